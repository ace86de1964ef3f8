"""The configuration reference, from the code: dataclasses with their docstrings, the options of two commands.

python tools/config_reference.py          # writes docs/configuration.md
python tools/config_reference.py --check  # status 1 if it is out of date
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

import typer.main

from rose_backend.config import EngineConfig, GraphConfig, HeadConfig, QueueConfig
from rose_client.chunking import ChunkLimits
from rose_client.cli.main import app
from rose_client.retries import RetryPolicy
from rose_ensemble.engine_settings import EngineSettings
from rose_ensemble.health import HealthPolicy
from rose_ensemble.options import RequestOptions
from rose_ensemble.pipeline import Pipeline
from rose_ensemble.texts import TextLimits

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
_PARTS: tuple[tuple[str, str, tuple[type, ...]], ...] = (
    (
        "A pipeline",
        "What a checkpoint is served with. `rose serve` and `rose repository add` set it by their options; it is kept "
        "in the `config.pbtxt` of the models it becomes.",
        (Pipeline, EngineSettings),
    ),
    ("A request", "Parameters of a request, by name.", (RequestOptions, TextLimits)),
    ("The watch over models", "`rose serve --probe-interval` sets the interval.", (HealthPolicy,)),
    ("The client", "Arguments of `RoseClient` and `AsyncRoseClient`.", (RetryPolicy, ChunkLimits)),
    (
        "The engine",
        "For whoever uses `rose_backend` by itself; a server fills these in from the checkpoint and its pipeline.",
        (EngineConfig, HeadConfig, GraphConfig, QueueConfig),
    ),
)
_ATTRIBUTE = re.compile(r"^    (\w+): (.+?)(?=^    \w+: |\Z)", re.MULTILINE | re.DOTALL)


def page() -> str:
    """The whole page."""
    lines = [
        "# Configuration",
        "",
        "<!-- Written by tools/config_reference.py from the code: change it there. -->",
        "",
        "## `rose serve`",
        "",
        *_table(("option", "default", ""), _options("serve")),
        "",
        "## `rose gateway`",
        "",
        *_table(("option", "default", ""), _options("gateway")),
    ]
    for title, text, classes in _PARTS:
        lines += ["", f"## {title}", "", text]
        for kind in classes:
            summary = (inspect.getdoc(kind) or "").split("\n\n", 1)[0].replace("\n", " ")
            lines += ["", f"### `{kind.__name__}`", "", summary, ""]
            lines += _table(("field", "type", "default", ""), _fields(kind))
    return "\n".join(lines) + "\n"


def _options(name: str) -> Iterator[tuple[str, ...]]:
    command: Any = typer.main.get_command(app)
    for option in command.commands[name].params:
        if option.name == "help":
            continue
        default = option.show_default if isinstance(option.show_default, str) else option.default
        shown = "" if default is None or default is False or callable(default) else f"`{default}`"
        yield f"`{option.opts[0]}`", shown, option.help or ""


def _fields(kind: type) -> Iterator[tuple[str, ...]]:
    described = _described(kind)
    for field in fields(kind):
        yield f"`{field.name}`", f"`{field.type}`", _default(field), described[field.name]


def _described(kind: type) -> dict[str, str]:
    """The docstring's `Attributes`.

    Raises:
        ValueError: it leaves a field out.
    """
    section = (inspect.getdoc(kind) or "").partition("Attributes:\n")[2].partition("\n\n")[0] + "\n"
    found = {name: " ".join(text.split()) for name, text in _ATTRIBUTE.findall(section)}
    missing = {field.name for field in fields(kind)} - set(found)
    if missing:
        raise ValueError(f"{kind.__name__}: the docstring says nothing of {sorted(missing)}")
    return found


def _default(field: Field[Any]) -> str:
    if field.default is not MISSING:
        value = field.default
    elif field.default_factory is not MISSING:
        value = field.default_factory()
    else:
        return "required"
    if hasattr(value, "__dataclass_fields__"):
        return f"`{type(value).__name__}()`"
    return f"`{getattr(value, 'value', value)!r}`"


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]


def main() -> None:
    """Write the page, or compare it."""
    text = page()
    if sys.argv[1:] == ["--check"]:
        if not PAGE.is_file() or PAGE.read_text() != text:
            sys.exit(f"{PAGE} is out of date: python tools/config_reference.py")
        return
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
