"""`rose warm` against a real server: every shape is run several times on its engine."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from rose_client.cli.main import app
from rose_ensemble.server_process import Endpoints
from tests.support.prometheus import Counters


def test_shapes_are_run_and_timed(server: Endpoints, counters: Counters) -> None:
    tokens, sequences = counters.read("rose_tokens_total"), counters.read("rose_sequences_total")
    result = CliRunner().invoke(app, ["warm", "1x16", "4x20", "--url", server.grpc])
    assert result.exit_code == 0, result.output
    assert [line.split(":")[0] for line in result.output.splitlines()] == ["1x16", "4x20"]
    assert counters.read("rose_sequences_total") - sequences == 4 * (1 + 4)
    assert counters.read("rose_tokens_total") - tokens == 4 * (16 + 80)


@pytest.mark.parametrize("shape", ["16", "1x", "0x5", "1x0", "x", "1x16x2"])
def test_shapes_that_are_none(shape: str) -> None:
    result = CliRunner().invoke(app, ["warm", shape])
    assert result.exit_code == 2
    assert "SEQUENCESxTOKENS" in result.output


def test_a_shape_longer_than_the_model_is_refused_by_the_server(server: Endpoints) -> None:
    result = CliRunner().invoke(app, ["warm", "1x257", "--url", server.grpc])
    assert result.exit_code == 1
    assert "the limit is 256 tokens" in result.output
