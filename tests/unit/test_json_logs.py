"""What a model process writes about itself."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from rose_backend.buckets import Bucket
from rose_ensemble.json_logs import LEVEL_VARIABLE, configure_logs


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("rose_backend", "rose_ensemble")]
    before = [(logger.handlers, logger.propagate, logger.level) for logger in loggers]
    yield
    for logger, (handlers, propagate, level) in zip(loggers, before, strict=True):
        logger.handlers, logger.propagate, logger.level = handlers, propagate, level


def test_a_line_is_one_object_with_all_that_was_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(LEVEL_VARIABLE, "INFO")
    configure_logs(model="embed")
    bucket = Bucket(64, 1, 32)
    logging.getLogger("rose_backend.graphs").info("graph captured: %s", "b", extra={"bucket": bucket, "bytes": 7})
    line = json.loads(capsys.readouterr().err)
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "info",
        "logger": "rose_backend.graphs",
        "event": "graph captured: b",
        "bucket": str(bucket),
        "bytes": 7,
        "model": "embed",
    }


def test_quiet_by_default(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv(LEVEL_VARIABLE, raising=False)
    configure_logs()
    logging.getLogger("rose_ensemble.x").info("a word")
    assert capsys.readouterr().err == ""
    try:
        [][0]
    except IndexError:
        logging.getLogger("rose_ensemble.x").exception("reply failed")
    line = json.loads(capsys.readouterr().err)
    assert line["level"] == "error"
    assert "IndexError: list index out of range" in line["traceback"]


def test_an_unknown_level_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LEVEL_VARIABLE, "loud")
    with pytest.raises(ValueError, match=r"ROSE_LOG_LEVEL is 'loud', not one of \['debug', 'info'"):
        configure_logs()
