"""Bodies that are no request at all end at Triton's own front, and the next one is served."""

from __future__ import annotations

import pytest

from tests.support.wire import RawHttp


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'"tea"',
        b'{"inputs": 5}',
        b'{"inputs": [{"name": "TEXT"}]}',
        b'{"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [1, 1], "data": ["\\ud800"]}]}',
        b'{"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [1, 1]}]}',
        b'{"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": ["1", 1], "data": ["tea"]}]}',
        b'{"parameters": {"prompt": null}, "inputs": []}',
        b"\xff\xfe",
    ],
    ids=ascii,
)
def test_refused(raw_http: RawHttp, body: bytes) -> None:
    """24.10 says 500 for most of these and 400 for others."""
    status, answer = raw_http.post("/v2/models/embed/infer", body)
    assert status in (400, 500)
    assert answer["error"]
    assert raw_http.generate(TEXT="tea")[0] == 200
