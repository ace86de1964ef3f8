"""From the client's tensors to what the tokenizer works on, refusing what cannot be meant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rose_backend.core import Int32Array
from rose_backend.errors import InvalidArgumentError


@dataclass(frozen=True)
class TextLimits:
    """How much one request may bring.

    Attributes:
        max_texts: most texts (or token sequences) in one request.
        max_bytes: most UTF-8 bytes of all its texts together.
    """

    max_texts: int = 4096
    max_bytes: int = 32 * 1024 * 1024


def check_shape(name: str, shape: tuple[int, ...], limits: TextLimits) -> tuple[int, int]:
    """The `[b, n]` of a client tensor.

    Raises:
        InvalidArgumentError: not two-dimensional, empty, or more texts than one request may bring.
    """
    if len(shape) != 2:
        raise InvalidArgumentError(f"{name} has shape {list(shape)}: expected [b, n]")
    rows, columns = shape
    if rows * columns == 0:
        raise InvalidArgumentError(f"{name} has shape {list(shape)}: a request needs at least one text")
    if rows * columns > limits.max_texts:
        raise InvalidArgumentError(
            f"{name} holds {rows * columns} texts: the limit is {limits.max_texts} in one request"
        )
    return rows, columns


def decode_texts(tensor: npt.NDArray[Any], limits: TextLimits, name: str = "TEXT") -> list[str]:
    """The texts of a BYTES tensor `[b, n]`, row by row; messages call it by its name.

    Raises:
        InvalidArgumentError: shape, size or encoding is wrong; the message names the element.
    """
    check_shape(name, tensor.shape, limits)
    flat: list[bytes] = tensor.ravel().tolist()
    size = sum(map(len, flat))
    if size > limits.max_bytes:
        raise InvalidArgumentError(f"{name} holds {size} bytes: the limit is {limits.max_bytes} in one request")
    try:
        return [element.decode("utf-8") for element in flat]
    except UnicodeDecodeError as cause:
        # `object` is the element itself; the first equal one is at fault as well.
        row, column = divmod(flat.index(cause.object), tensor.shape[1])
        raise InvalidArgumentError(
            f"{name}[{row}, {column}] is not valid UTF-8: byte {cause.start} is "
            f"0x{cause.object[cause.start]:02x} ({cause.reason})"
        ) from None


def read_chunk_counts(counts: npt.NDArray[np.int32], num_texts: int) -> Int32Array:
    """CHUNK_COUNTS `[1, num_documents]`, how many consecutive texts form each document.

    Raises:
        InvalidArgumentError: a document without texts, or not as many texts as there are.
    """
    flat = counts.flatten()  # a copy: a large request outlives the call that its tensors came with
    if flat.size == 0 or int(flat.min()) < 1:
        raise InvalidArgumentError(f"CHUNK_COUNTS holds {flat.tolist()[:8]}: every document needs at least 1 text")
    total = int(flat.sum(dtype=np.int64))
    if total != num_texts:
        raise InvalidArgumentError(f"CHUNK_COUNTS adds up to {total}, but TEXT holds {num_texts} texts")
    return flat


@dataclass(frozen=True)
class TokenInput:
    """Token ids sent by the client, used as they are: no special tokens are added.

    Attributes:
        ids: `[total_tokens]` int32.
        lengths: `[num_sequences]` int32.
    """

    ids: Int32Array
    lengths: Int32Array


def read_token_input(
    ids: npt.NDArray[np.int32], lengths: npt.NDArray[np.int32], vocab_size: int, limits: TextLimits
) -> TokenInput:
    """Check `TOKEN_IDS` `[1, total_tokens]` against `TOKEN_LENGTHS` `[b, n]`.

    Raises:
        InvalidArgumentError: the two do not fit, or an id is outside the vocabulary.
    """
    check_shape("TOKEN_LENGTHS", lengths.shape, limits)
    flat_ids, flat_lengths = ids.ravel(), lengths.ravel()
    if int(flat_lengths.min()) < 1:
        raise InvalidArgumentError(
            f"TOKEN_LENGTHS holds {int(flat_lengths.min())}: every sequence needs at least 1 token"
        )
    total = int(flat_lengths.sum(dtype=np.int64))
    if total != flat_ids.size:
        raise InvalidArgumentError(f"TOKEN_LENGTHS adds up to {total}, but TOKEN_IDS holds {flat_ids.size} ids")
    lowest, highest = int(flat_ids.min()), int(flat_ids.max())
    if lowest < 0 or highest >= vocab_size:
        wrong = lowest if lowest < 0 else highest
        raise InvalidArgumentError(f"TOKEN_IDS holds {wrong}: ids lie between 0 and {vocab_size - 1}")
    return TokenInput(flat_ids, flat_lengths)
