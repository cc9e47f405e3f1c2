"""Supervised processes: how they start, fail, flood, and end; with scripts in place of a server."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import labkit as lab
from labkit.engine import process, ready
from labkit.engine.ports import free_port, refuse_taken
from labkit.engine.process import Command, ServerProcess
from labkit.engine.server import Server
from labkit.errors import (
    EngineBusyError,
    EngineError,
    ModelError,
    PortInUseError,
    ServerDiedError,
    ServerNotReadyError,
)
from tests.conftest import DATA, ended, heed_interrupts

Start = Callable[..., ServerProcess]
PROMISE_S = 5.0  # no server outlives its kernel by more


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lock of the test's own: a lab that runs beside the tests must not matter."""
    path = tmp_path / "engine.lock"
    monkeypatch.setattr(process, "lock_path", lambda: str(path))
    return path


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[ServerProcess] = []

    def run(
        script: str, *, stdin: str = "", lock_timeout_s: float = 5.0, argv: list[str] | None = None
    ) -> ServerProcess:
        argv = argv or [sys.executable, "-u", "-c", script]
        command = Command(argv=argv, env=dict(os.environ), stdin=stdin, log_path=tmp_path / f"{len(started)}.log")
        started.append(ServerProcess(command, lock_timeout_s=lock_timeout_s))
        return started[-1]

    yield run
    for one in started:
        one.stop()


def gone(pid: int, limit_s: float) -> float:
    """Wait for a process to end; return the seconds it took."""
    started = time.monotonic()
    while time.monotonic() - started < limit_s:
        if ended(pid):
            return time.monotonic() - started
        time.sleep(0.02)
    raise AssertionError(f"pid {pid} still runs after {limit_s} s")


def until(condition: Callable[[], bool], limit_s: float = 5.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


SLEEP = "import time; time.sleep(60)"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('on', flush=True); time.sleep(60)"


# --- ends ---------------------------------------------------------------------------------------------


def test_a_server_ends_when_told_to(start: Start) -> None:
    server = start(SLEEP)
    assert server.alive
    assert server.stop() == "TERM"
    assert not server.alive
    assert server.exit_text == "was ended by signal 15"


def test_one_that_ignores_the_request_is_killed(start: Start) -> None:
    server = start(STUBBORN)
    until(lambda: "on" in server.log_tail())
    assert server.stop() == "KILL"
    assert ended(server.pid or 0)


def test_one_that_is_stopped_by_a_signal_is_killed_too(start: Start) -> None:
    server = start(SLEEP)
    os.kill(server.pid or 0, signal.SIGSTOP)
    # of two pending signals the lower number is delivered first: it must have stopped before TERM is sent
    until(lambda: psutil.Process(server.pid).status() == psutil.STATUS_STOPPED)
    assert server.stop() == "KILL"


def test_one_that_ends_by_itself_is_noticed_with_its_code(start: Start) -> None:
    server = start("raise SystemExit(7)")
    until(lambda: not server.alive)
    assert server.exit_text == "ended with exit code 7"
    assert server.stop() == "ended by itself"


def test_stopping_twice_is_no_harm(start: Start) -> None:
    server = start(SLEEP)
    server.stop()
    assert server.stop() == "TERM"


PARENT = """
import os, sys, time
from pathlib import Path
from labkit.engine import process
process.lock_path = lambda: {lock!r}
command = process.Command([sys.executable, "-u", "-c", {script!r}], dict(os.environ), "", Path({log!r}))
server = process.ServerProcess(command)
print(server.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("script", [SLEEP, STUBBORN], ids=["willing", "stubborn"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_server_outlives_the_process_that_asked_for_it(tmp_path: Path, how: signal.Signals, script: str) -> None:
    code = PARENT.format(lock=str(tmp_path / "l"), script=script, log=str(tmp_path / "log"))
    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=heed_interrupts,
    )
    assert parent.stdout is not None
    try:
        with parent.stdout:
            pid = int(parent.stdout.readline())
        if script == STUBBORN:
            until(lambda: "on" in (tmp_path / "log").read_text())
        parent.send_signal(how)
        parent.wait(10)
        assert gone(pid, 10) < PROMISE_S
    finally:
        parent.kill()
        parent.wait(10)


def test_a_killed_supervisor_takes_its_server_along(start: Start) -> None:
    server = start(SLEEP)
    supervisor = psutil.Process(server.pid).ppid()
    os.kill(supervisor, signal.SIGKILL)
    assert gone(server.pid or 0, 10) < PROMISE_S
    assert not server.alive


def test_an_interrupt_of_the_kernels_group_does_not_reach_the_server(start: Start) -> None:
    server = start(SLEEP)
    assert os.getpgid(server.pid or 0) != os.getpgid(0)


# --- logs ---------------------------------------------------------------------------------------------


def test_a_flood_of_log_lines_never_blocks_the_server_and_its_tail_is_bounded(start: Start) -> None:
    flood = "import sys\nfor i in range(200_000): sys.stderr.write('x' * 99 + chr(10))\nprint('through')"
    server = start(flood)
    until(lambda: not server.alive, 30)
    assert server.command.log_path.stat().st_size > 19_000_000
    tail = server.log_tail(12)
    assert tail.endswith("through")
    assert len(tail) < 4000


# --- one engine on a machine --------------------------------------------------------------------------


def test_a_second_lab_is_told_who_is_running(start: Start) -> None:
    first = start(SLEEP)
    with pytest.raises(
        EngineBusyError, match=rf"another lab is running: pid {os.getpid()} in .*LABKIT_SHARE_MACHINE=1"
    ):
        start(SLEEP, lock_timeout_s=0.2)
    first.stop()
    assert start(SLEEP, lock_timeout_s=0.2).alive


def test_the_lock_is_free_again_after_a_kill(start: Start) -> None:
    server = start(SLEEP)
    os.kill(server.pid or 0, signal.SIGKILL)
    until(lambda: not server.alive)
    assert start(SLEEP, lock_timeout_s=2.0).alive


def test_the_lock_can_be_overridden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("LABKIT_SHARE_MACHINE", "1")
    assert process.lock_path() == ""
    monkeypatch.delenv("LABKIT_SHARE_MACHINE")
    assert process.lock_path().endswith("labkit-engine.lock")


def test_a_command_that_cannot_be_executed_says_why(start: Start) -> None:
    with pytest.raises(EngineError, match="No such file or directory"):
        start("", argv=["/no/such/llama-server"])


# --- readiness ----------------------------------------------------------------------------------------

SLOW_START = """
import http.server, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    started = time.monotonic()
    def do_GET(self):
        self.send_response(200 if time.monotonic() - self.started > {loads_s} or self.path != "/health" else 503)
        self.end_headers()
    def log_message(self, *args): pass
time.sleep({refuses_s})
http.server.HTTPServer(("127.0.0.1", {port}), Handler).serve_forever()
"""


def waiting_for(server: ServerProcess, port: int) -> Server:
    return Server(
        base_url=f"http://127.0.0.1:{port}",
        asked=lab.ServerSettings().model_dump(),
        model=lab.resolve_model("toy"),
        model_id="lab",
        argv=server.command.argv,
        llama_server_command="llama-server --model x",
        process=server,
        key=None,
    )


def wait(server: Server, limit_s: float = 20.0) -> list[str]:
    said: list[str] = []
    asyncio.run(ready.until_ready(server, limit_s, said.append))
    return said


def test_readiness_waits_on_health_alone_and_says_what_it_waits_for(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ready, "_PROGRESS_EVERY_S", 0.3)
    port = free_port("127.0.0.1")
    server = waiting_for(start(SLOW_START.format(loads_s=1.5, refuses_s=0.7, port=port)), port)
    said = wait(server)
    assert said[0].startswith("starting")
    assert said[-1].startswith("loading the model")


def test_a_server_that_never_loads_is_given_up_with_its_last_words(start: Start) -> None:
    port = free_port("127.0.0.1")
    server = waiting_for(
        start("print('loading tensors')\n" + SLOW_START.format(loads_s=60, refuses_s=0, port=port)), port
    )
    with pytest.raises(ServerNotReadyError, match=r"(?s)not ready within 1 s.*loading the model.*loading tensors"):
        wait(server, 1.0)


def test_a_server_that_dies_while_loading_is_reported_at_once(start: Start) -> None:
    server = waiting_for(start("print('GGML_ASSERT(x) failed'); raise SystemExit(134)"), 1)
    with pytest.raises(ServerDiedError, match=r"(?s)exit code 134.*GGML_ASSERT.*llama-server --model x"):
        wait(server, limit_s=60)  # not ServerNotReadyError: the limit is not waited out


@pytest.mark.parametrize(("log", "kind"), [("port_taken", PortInUseError), ("truncated", ModelError)])
def test_the_reason_comes_from_the_log(start: Start, log: str, kind: type[Exception]) -> None:
    path = DATA / "b10229" / f"{log}.log"
    server = waiting_for(start(f"print(open({str(path)!r}).read()); raise SystemExit(1)"), 1)
    with pytest.raises(kind):
        wait(server)


# --- ports --------------------------------------------------------------------------------------------


def test_a_port_in_use_is_refused_before_anything_starts_and_names_the_holder() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortInUseError, match=rf"port {port} on 127.0.0.1 can't be used.*held by pid {os.getpid()}"):
            refuse_taken("127.0.0.1", port)
    refuse_taken("127.0.0.1", port)


def test_a_free_port_can_be_used() -> None:
    refuse_taken("127.0.0.1", free_port("127.0.0.1"))
