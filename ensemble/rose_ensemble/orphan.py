"""A model process must not outlive its server: it would keep its GPU's memory, and nobody could ever reach it."""

from __future__ import annotations

import logging
import os
import threading
import time

from rose_ensemble.stubs import own_stub

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0


def end_with_server() -> None:
    """From now on end this process, at once and whatever it is doing, when the process that started it is gone.

    An orderly end is not possible then: an answer under way waits for a receipt that nobody will send.
    Triton may keep the interpreter's lock while it waits for its server, and then this thread cannot run either; what
    `rose serve` started is ended by `ServerProcess.stop`.
    """
    server = os.getppid()
    threading.Thread(target=_watch, args=(server,), name="rose-orphan", daemon=True).start()


def _watch(server: int) -> None:
    while os.getppid() == server:
        time.sleep(_LOOK_SECONDS)
    logger.error("the server is gone", extra={"pid": server})
    stub = own_stub()
    if stub is not None:
        stub.remove_region()
    os._exit(1)
