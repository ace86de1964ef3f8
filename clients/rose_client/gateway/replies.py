"""JSON of vectors: numbers straight from numpy, or packed in base64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pybase64
from starlette.responses import Response


def json_response(content: Any, headers: Mapping[str, str] | None = None) -> Response:
    """A reply whose content may hold numpy arrays and numbers."""
    body = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(body, headers=headers, media_type="application/json")


def base64_rows(matrix: npt.NDArray[Any]) -> list[str]:
    """Each row's bytes, little-endian, in base64."""
    plain = np.ascontiguousarray(matrix, matrix.dtype.newbyteorder("<"))
    return [pybase64.b64encode_as_string(row) for row in plain]
