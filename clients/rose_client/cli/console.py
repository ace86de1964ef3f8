"""Where the command line writes: results to standard output, everything else to standard error."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import typer
from rich.console import Console

from rose_ensemble.signals import handled, stop_signals

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)

_AGAIN_SECONDS = 0.05


def fail(message: str) -> NoReturn:
    """Say what is wrong and leave with status 1."""
    err.print(f"[red]error:[/] {message}", markup=True)
    raise typer.Exit(1)


@contextmanager
def errors_to_exit(*kinds: type[Exception]) -> Iterator[None]:
    """Turn expected exceptions into a message and status 1; anything else keeps its traceback."""
    try:
        yield
    except kinds as error:
        err.print("[red]error:[/]", end=" ")
        err.print(str(error), markup=False)
        raise typer.Exit(1) from error


@contextmanager
def sigterm_unwinds() -> Iterator[None]:
    """Let SIGTERM and SIGHUP leave through the stack, as SIGINT does, so that what was started is stopped on the way.

    On the way no other signal raises anything, which would lose what is being stopped; what takes long heeds them.
    """

    def leave(signum: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001 (signature of a handler)
        for number in stop_signals():
            signal.signal(number, lambda _signum, _frame: None)
        if signum == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + signum)

    def swallowed(unraisable: UnraisableHookArgs) -> None:
        """Python drops what is raised in a destructor or a callback of its own, as importing has them: try again."""
        code = unraisable.exc_value.code if isinstance(unraisable.exc_value, SystemExit) else None
        for number in stop_signals():
            if code == 128 + number:
                signal.signal(number, leave)
                Timer(_AGAIN_SECONDS, os.kill, (os.getpid(), number)).start()
                return
        hook(unraisable)

    hook = sys.unraisablehook
    sys.unraisablehook = swallowed
    try:
        with handled(leave):
            yield
    finally:
        sys.unraisablehook = hook
