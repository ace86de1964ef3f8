"""Ports, and a server process that ends before it is ready or does not end when asked."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from rose_ensemble import server_process, stubs
from rose_ensemble.server_process import Endpoints, ServerProcess, ServerStartError
from tests.support.processes import processes_mentioning
from tests.support.stand_in import ScriptServer, stand_in, stub_command, stub_region
from tests.support.waiting import wait_until

_ENDPOINTS = Endpoints("127.0.0.1", 1, 2, 3)


def _started(script: str, tmp_path: Path, endpoints: Endpoints = _ENDPOINTS) -> ServerProcess:
    return ServerProcess(ScriptServer(Path(), None, {}, script), tmp_path, ["embed"], endpoints)


def _ready(script: str, tmp_path: Path, port: int) -> ServerProcess:
    """With a stand-in for its HTTP on the port."""
    process = _started(script, tmp_path, Endpoints("127.0.0.1", port, 2, 3))
    process.wait_until_ready()
    return process


def test_free_ports_are_different_and_free() -> None:
    ports = Endpoints.free("127.0.0.1")
    numbers = {ports.http_port, ports.grpc_port, ports.metrics_port}
    assert len(numbers) == 3
    for number in numbers:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", number))


def test_given_ports_are_kept() -> None:
    free = Endpoints.free("127.0.0.1")
    assert Endpoints.free("127.0.0.1", free.http_port, 0, free.metrics_port).http_port == free.http_port


def test_a_taken_port_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ServerStartError, match=rf"cannot listen on 127\.0\.0\.1:{port}"):
            Endpoints.free("127.0.0.1", 0, port, 0)


def test_a_foreign_address_is_named() -> None:
    with pytest.raises(ServerStartError, match=r"192\.0\.2\.1"):
        Endpoints.free("192.0.2.1")


def test_a_name_becomes_an_address() -> None:
    """Triton's HTTP accepts `localhost` and listens nowhere."""
    assert Endpoints.free("localhost").host == "127.0.0.1"


@pytest.mark.parametrize("host", ["no.such.host.invalid", "[::1]", "::1::"])
def test_a_host_that_means_nothing_is_named(host: str) -> None:
    with pytest.raises(ServerStartError, match=re.escape(f"cannot listen on {host}: ")):
        Endpoints.free(host)


@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")])
def test_addresses(host: str, shown: str) -> None:
    endpoints = Endpoints(host, 1, 2, 3)
    assert (endpoints.http, endpoints.grpc, endpoints.metrics) == (f"{shown}:1", f"{shown}:2", f"{shown}:3")


def test_a_server_that_exits_is_not_waited_for(tmp_path: Path) -> None:
    with _started("raise SystemExit(7)", tmp_path) as process, pytest.raises(ServerStartError, match="status 7"):
        process.wait_until_ready()


def test_a_server_that_never_answers_is_given_up(tmp_path: Path) -> None:
    script = "import time; time.sleep(600)"
    with _started(script, tmp_path) as process, pytest.raises(ServerStartError, match="not ready after 0 s"):
        process.wait_until_ready(timeout=0.2)
    assert process._process.poll() is not None


def test_a_server_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    process = _stubborn(tmp_path)
    process.stop(timeout=0.2)
    assert process._process.poll() == -9


def test_stopping_twice_is_no_harm(tmp_path: Path) -> None:
    process = _started("import time; time.sleep(600)", tmp_path)
    process.stop()
    process.stop()


def test_environment_is_added_to_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROSE_TEST_OURS", "1")
    script = "import os; raise SystemExit(int(os.environ['ROSE_TEST_OURS']) + int(os.environ['ROSE_TEST_OWN']))"
    server = ScriptServer(Path(), None, {"ROSE_TEST_OWN": "41"}, script)
    assert ServerProcess(server, tmp_path, [], _ENDPOINTS).wait() == 42


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_passed_on_and_handlers_are_put_back(tmp_path: Path, number: signal.Signals) -> None:
    before = signal.getsignal(number)
    script = (
        "import pathlib, signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(5)); "
        f"pathlib.Path({str(tmp_path / 'there')!r}).touch(); time.sleep(600)"
    )
    process = _started(script, tmp_path)

    def interrupt() -> None:
        wait_until((tmp_path / "there").exists, "the handler is set")
        wait_until(lambda: signal.getsignal(number) is not before, "ours too")
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=interrupt)
    thread.start()
    assert process.wait() == 5
    thread.join()
    assert process.stopping.is_set()
    assert signal.getsignal(number) is before


def test_a_second_signal_does_not_wait_for_what_was_begun(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with stand_in(lambda _path, _posted: (200, '[{"name": "embed", "state": "UNLOADING"}]')) as port:
        process = _ready(f"import time; time.sleep(600)  # {tmp_path}", tmp_path, port)

        def interrupt() -> None:
            wait_until(lambda: signal.getsignal(signal.SIGTERM) is not before, "the handler is set")
            for _ in range(2):  # as what starts commands passes on what the terminal sends to all
                os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.8)
            still_there.append(processes_mentioning(f"# {tmp_path}") != [])
            os.kill(os.getpid(), signal.SIGTERM)

        still_there = list[bool]()
        thread = threading.Thread(target=interrupt)
        thread.start()
        assert process.wait() == -signal.SIGTERM
        thread.join()
    assert still_there == [True]


class _Unguarded(threading.Event):
    """While it is being set comes a signal, whose handler must not set it: it would wait for what it interrupts."""

    def __init__(self) -> None:
        super().__init__()
        self.interrupted = 0
        self._held = threading.Lock()

    def set(self) -> None:
        assert self._held.acquire(blocking=False)
        try:
            if threading.current_thread() is threading.main_thread():
                self.interrupted += 1
                signal.raise_signal(signal.SIGINT)
            super().set()
        finally:
            self._held.release()


def test_a_signal_may_come_at_any_moment(tmp_path: Path) -> None:
    process = _started(
        f"import pathlib, time; pathlib.Path({str(tmp_path / 'there')!r}).touch(); time.sleep(600)", tmp_path
    )
    process.stopping = stopping = _Unguarded()
    before = signal.getsignal(signal.SIGTERM)

    def interrupt() -> None:
        wait_until(lambda: signal.getsignal(signal.SIGTERM) is not before, "the handler is set")
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=interrupt)
    thread.start()
    assert process.wait() == -signal.SIGTERM
    thread.join()
    assert stopping.interrupted > 1


def test_a_server_that_outlives_its_exit_timeout_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_process, "EXIT_SECONDS", 0.2)
    monkeypatch.setattr(server_process, "_OVERDUE_SECONDS", 0.2)
    process = _stubborn(tmp_path)
    process.terminate()
    assert process.wait() == -signal.SIGKILL


def test_a_server_with_nothing_left_to_answer_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton waits for connections of HTTP that nobody closes."""
    monkeypatch.setattr(server_process, "_ANSWERS_LEAVE_SECONDS", 0.5)
    process = _stubborn(tmp_path)
    process.terminate()
    assert process.wait() == 0


def test_an_answer_that_still_leaves_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_process, "_ANSWERS_LEAVE_SECONDS", 0.5)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with socket.create_connection(listener.getsockname()) as reader:
            connection, _ = listener.accept()
            connection.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    connection.send(bytes(1 << 16))
            process = _stubborn(tmp_path, Endpoints("127.0.0.1", listener.getsockname()[1], 2, 3))
            process.terminate()
            began = time.monotonic()

            def read() -> None:
                connection.close()
                while reader.recv(1 << 20):
                    pass

            reading = threading.Timer(2.0, read)
            reading.start()
            assert process.wait() == 0
            assert time.monotonic() - began > 2.0
            reading.join()


def test_a_server_that_was_not_ready_is_not_drained(tmp_path: Path) -> None:
    with stand_in(lambda path, _posted: pytest.fail(path)) as port:
        process = _started("import time; time.sleep(600)", tmp_path, Endpoints("127.0.0.1", port, 2, 3))
        process.stop()
    assert process._process.poll() == -signal.SIGTERM


@pytest.mark.parametrize("ends", ["by its block", "by a thread"])
def test_a_server_is_drained_whoever_ends_it(tmp_path: Path, ends: str) -> None:
    asked = list[str]()

    def answer(path: str, _posted: Any) -> tuple[int, str]:
        asked.append(path)
        return 200, '[{"name": "embed", "state": "READY"}]' if len(asked) == 2 else "[]"

    with stand_in(answer) as port, _ready("import time; time.sleep(600)", tmp_path, port) as process:
        if ends == "by a thread":
            threading.Timer(0.2, process.ask_to_end).start()
            assert process.wait() == -signal.SIGTERM
    unload = "/v2/repository/models/embed/unload"
    assert asked == ["/v2/health/ready", "/v2/repository/index", unload, "/v2/repository/index"]


def test_the_models_stay_until_who_asks_them_has_ended(tmp_path: Path) -> None:
    """Something in front of the server may have sent a part of its work only."""
    asked = list[tuple[str, bool]]()

    def answer(path: str, _posted: Any) -> tuple[int, str]:
        asked.append((path, front.poll() is not None))
        return 200, '[{"name": "embed", "state": "UNAVAILABLE"}]'

    before = signal.getsignal(signal.SIGTERM)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as front, stand_in(answer) as port:
        process = _ready("import time; time.sleep(600)", tmp_path, port)
        process.drain_after(front)

        def interrupt() -> None:
            wait_until(lambda: signal.getsignal(signal.SIGTERM) is not before, "the handler is set")
            os.kill(os.getpid(), signal.SIGTERM)
            told.append(process.stopping.wait(10))
            time.sleep(0.5)
            front.communicate()

        told = list[bool]()
        thread = threading.Thread(target=interrupt)
        thread.start()
        assert process.wait() == -signal.SIGTERM
        thread.join()
    assert told == [True]
    assert asked == [("/v2/health/ready", False), ("/v2/repository/index", True)]


def _stubborn(tmp_path: Path, endpoints: Endpoints = _ENDPOINTS) -> ServerProcess:
    """One that does not end when it is told to."""
    script = (
        "import pathlib, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        f"pathlib.Path({str(tmp_path / 'there')!r}).touch(); time.sleep(600)"
    )
    process = _started(script, tmp_path, endpoints)
    wait_until((tmp_path / "there").exists, "the signal is ignored")
    return process


@pytest.mark.slow
@pytest.mark.parametrize("state", ["UNLOADING", "UNAVAILABLE"])
def test_a_process_of_a_model_is_waited_for_while_it_works(tmp_path: Path, state: str) -> None:
    """One whose neighbour died, or that somebody keeps a stream to, is never unloaded."""
    work = stub_command(tmp_path)
    Path(work[1]).write_text("i=0; while [ $i -lt 6000000 ]; do i=$((i+1)); done; : > answered; read line")
    script = (
        "import signal, subprocess, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        f"subprocess.Popen({work}, executable='/bin/sh', cwd={str(tmp_path)!r}, stdin=subprocess.PIPE); time.sleep(600)"
    )
    with stand_in(lambda _path, _posted: (200, json.dumps([{"name": "embed", "state": state}]))) as port:
        process = _ready(script, tmp_path, port)
        wait_until(lambda: len(process.stubs()) == 1, "it is there")
        process.ask_to_end()
        began = time.monotonic()
        assert process.wait() == 0
        assert 10 < time.monotonic() - began < 90
    assert (tmp_path / "answered").exists()
    assert processes_mentioning(tmp_path / "rose") == []


@pytest.mark.parametrize("ends", ["when asked", "by itself"])
def test_what_a_server_leaves_behind_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str) -> None:
    """A process of a model may wait for ever for a server that ended first; the memory that they shared stays."""
    monkeypatch.setattr(stubs, "_REGIONS", tmp_path)
    region = tmp_path / stub_region(tmp_path, "rose")
    region.touch()
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    script = (
        "import os, subprocess, time; "
        f"both = os.open({str(fifo)!r}, os.O_RDWR); "  # so that reading it never ends
        f"subprocess.Popen({stub_command(tmp_path)}, executable='/bin/sh', stdin=both); time.sleep(600)"
    )
    with _started(script, tmp_path) as server:
        wait_until(lambda: len(server.stubs()) == 1, "the stub is there")
        [stub] = server.stubs()
        if ends == "by itself":
            os.kill(server.pid, signal.SIGKILL)
            assert server.wait() == -signal.SIGKILL
            assert stub.pid in processes_mentioning(tmp_path)
        assert region.exists()
    assert not region.exists()
    wait_until(lambda: stub.pid not in processes_mentioning(tmp_path), "it has ended")


def test_a_signal_in_the_midst_of_starting_stops_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Signalled(subprocess.Popen[bytes]):
        """One after whose start the signal comes, before anybody knows the process."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(subprocess, "Popen", Signalled)
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with pytest.raises(SystemExit, match="143"):
            _started(f"import time; time.sleep(600)  # {tmp_path}", tmp_path)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert processes_mentioning(f"# {tmp_path}") == []
