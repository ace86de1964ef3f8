"""Stand-ins for parts of a tritonserver, for what a real one does only when something is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from rose_ensemble.tritonserver import TritonServer

Answer = tuple[int, str]


@contextmanager
def stand_in(answer: Callable[[str, Any], Answer]) -> Iterator[int]:
    """Serve on a free port of 127.0.0.1, which is yielded.

    Args:
        answer: status and body for a path and the JSON that was posted to it (None for GET); called from a thread
            of each request's own.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._reply(None)

        def do_POST(self) -> None:
            self._reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _reply(self, posted: Any) -> None:
            status, text = answer(self.path, posted)
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 (the base class's name)
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.01,))  # seconds until it notices that it shall end
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class ScriptServer(TritonServer):
    """In place of the executable a Python script, which is `origin`."""

    def command(self, *arguments: object) -> list[str]:
        return [sys.executable, "-c", self.origin]


def stub_command(folder: Path, model: str = "rose", name: str = "triton_python_backend_stub") -> list[str]:
    """A command line like that of a model's process, for `/bin/sh`; it waits until its standard input ends."""
    script = folder / model / "1" / "model.py"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text("read line\n")
    return [f"/backends (x)/{name}", str(script), stub_region(folder, model), "1048576"]


def stub_region(folder: Path, model: str) -> str:
    """Name of the memory that it would share."""
    return f"triton_python_backend_shm_region_{folder.name}_{model}"


@contextmanager
def stand_in_stub(
    folder: Path, model: str = "rose", name: str = "triton_python_backend_stub"
) -> Iterator[subprocess.Popen[bytes]]:
    """A child of this process that looks like a model's."""
    command = stub_command(folder, model, name)
    with subprocess.Popen(command, executable="/bin/sh", stdin=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()
