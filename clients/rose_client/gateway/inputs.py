"""The forms in which APIs take texts, as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias, Union

import numpy as np
from pydantic import Field, StrictInt, StrictStr

from rose_client.chunking import Item
from rose_client.gateway.errors import GatewayError

TokenId = Annotated[StrictInt, Field(ge=0, lt=2**31)]
Inputs: TypeAlias = Union[StrictStr, list[StrictStr], list[TokenId], list[list[TokenId]]]  # noqa: UP007 - read by pydantic on 3.10


def read_inputs(value: Any, field: str, limit: int) -> list[Item]:
    """Texts in UTF-8, or token ids as `[num_tokens]` int32, which are used as they are.

    Args:
        value: one of `Inputs`.
        field: what the API calls it.
        limit: most inputs of a request.

    Raises:
        GatewayError: none, too many, or token ids of which a list is empty.
    """
    if isinstance(value, str):
        return [value.encode()]
    if not value:
        raise GatewayError.empty(field)
    if isinstance(value[0], int):
        return [np.array(value, np.int32)]
    check_count(value, field, limit)
    if isinstance(value[0], str):
        return [text.encode() for text in value]
    for index, ids in enumerate(value):
        if not ids:
            raise GatewayError.empty(f"{field}[{index}]")
    return [np.array(ids, np.int32) for ids in value]


def read_texts(texts: Sequence[str], field: str, limit: int) -> list[Item]:
    """The texts in UTF-8; errors as for `read_inputs`."""
    if not texts:
        raise GatewayError.empty(field)
    check_count(texts, field, limit)
    return [text.encode() for text in texts]


def check_count(values: Sequence[Any], field: str, limit: int) -> None:
    """Refuse too many inputs."""
    if len(values) > limit:
        raise GatewayError.invalid(f"{field} holds {len(values)} inputs: the limit is {limit} a request", field)
