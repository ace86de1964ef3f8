"""A gateway as a child process of `rose serve`."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from rose_backend.errors import RoseError
from rose_ensemble.server_process import ServerProcess
from rose_ensemble.signals import StopSignals, held_signals

_PACKAGES = ("fastapi", "httptools", "orjson", "prometheus_client", "pybase64", "uvicorn", "uvloop")
_POLL_SECONDS = 0.1
_DRAIN_SECONDS = 50.0  # from when it is told to end; then its server does not wait for it either
_LEAST_SECONDS = 2.0  # to hand on what the server answered last


class GatewayFailedError(RoseError):
    """The gateway cannot start, or ended by itself."""


def require_packages() -> None:
    """See that the extra is installed, before a server is started in vain.

    Raises:
        GatewayFailedError: names what is missing.
    """
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise GatewayFailedError(
            f"the gateway needs its packages: pip install 'rose-on-triton[gateway]' ({', '.join(missing)} missing)"
        )


class GatewayProcess:
    """A running gateway, which ends when its server does; as a context manager it is stopped on the way out.

    Args:
        server: what it stands before, on the same address; it is asked to end when the gateway ends by itself.
        port: 0 picks a free one.
        api_key_file: as `rose gateway` takes it.
    """

    def __init__(self, server: ServerProcess, port: int, api_key_file: Path | None) -> None:
        at = server.endpoints
        command: Sequence[str] = (
            *(sys.executable, "-m", "rose_client.cli", "gateway"),
            *(f"--url={at.grpc}", f"--metrics-url={at.metrics}", f"--host={at.host}", f"--port={port}"),
            *(() if api_key_file is None else (f"--api-key-file={api_key_file}",)),
        )
        self._server = server
        self._failure: GatewayFailedError | None = None
        self._told_at: float | None = None
        self._watch = threading.Thread(target=self._follow, name="watch-gateway", daemon=True)
        with ExitStack() as undo:
            with held_signals():
                # A session of its own: Ctrl-C reaches us first, and we stop it in order.
                self._process = subprocess.Popen(  # noqa: S603 (our own command line)
                    command, stdout=subprocess.PIPE, text=True, start_new_session=True
                )
                undo.callback(self.stop)
            undo.pop_all()
        server.drain_after(self._process)

    def wait_until_listening(self) -> str:
        """Return its address, `http://host:port`, and watch over it from then on.

        Raises:
            GatewayFailedError: it does not start; its own words are on the standard error.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise GatewayFailedError(f"the gateway exited with status {self._process.wait()} before it was ready")
        self._watch.start()
        return line.split()[-1]

    def require_success(self) -> None:
        """Tell, once the server has ended, whether the gateway was the cause.

        Raises:
            GatewayFailedError: it was.
        """
        self._watch.join()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Have it answer what it has accepted and end; kill it if that takes too long, or at a second signal."""
        ends_at = self._tell() + _DRAIN_SECONDS
        ends_at = max(ends_at, time.monotonic() + _LEAST_SECONDS)
        with StopSignals() as signals:
            while self._process.poll() is None:
                if signals.came_again or time.monotonic() > ends_at:
                    self._process.kill()
                time.sleep(_POLL_SECONDS)

    def _tell(self) -> float:
        """Tell it to end; when that was first done."""
        self._process.terminate()
        self._told_at = self._told_at or time.monotonic()
        return self._told_at

    def __enter__(self) -> GatewayProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _follow(self) -> None:
        while not self._server.stopping.wait(_POLL_SECONDS):
            status = self._process.poll()
            if status is not None:
                self._failure = GatewayFailedError(f"the gateway ended by itself, with status {status}")
                self._server.ask_to_end()
                return
        self._tell()
