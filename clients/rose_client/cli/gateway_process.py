"""A gateway as a child process of `rose serve`."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from rose_backend.errors import RoseError
from rose_ensemble.server_process import ServerProcess

_PACKAGES = ("fastapi", "httptools", "orjson", "prometheus_client", "pybase64", "uvicorn", "uvloop")
_POLL_SECONDS = 0.1
_DRAIN_SECONDS = 130.0  # a little more than the gateway takes


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
        # A session of its own: Ctrl-C reaches us first, and we stop it in order.
        self._process = subprocess.Popen(  # noqa: S603 (our own command line)
            command, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        server.drain_after(lambda: self._process.poll() is not None)
        self._watch = threading.Thread(target=self._follow, name="watch-gateway", daemon=True)

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
        """Have it answer what it has accepted and end; kill it if that takes too long."""
        self._process.terminate()
        try:
            self._process.wait(_DRAIN_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

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
                self._server.terminate()
                return
        self._process.terminate()
