"""A supervised server process as the kernel sees it: start, events, end."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from labkit.errors import EngineBusyError, EngineError

STOP_LIMIT_S = 8.0
SHARE_VARIABLE = "LABKIT_SHARE_MACHINE"


def lock_path() -> str:
    """Return the path of the machine-wide lock, or "" if LABKIT_SHARE_MACHINE=1 overrides it."""
    if os.environ.get(SHARE_VARIABLE) == "1":
        return ""
    # one path for all users and sessions of the machine, whatever their TMPDIR
    folder = Path("/tmp") if os.name == "posix" else Path(tempfile.gettempdir())  # noqa: S108
    return str(folder / "labkit-engine.lock")


@dataclass(frozen=True)
class Command:
    """What to execute.

    Args:
        argv: the command, an argument each; holds no secret.
        env: the environment of the server.
        stdin: one line for the server's stdin; the way for secrets.
        log_path: file that its stdout and stderr go to; an older one is replaced.
    """

    argv: list[str]
    env: dict[str, str] = field(repr=False)
    stdin: str = field(repr=False)
    log_path: Path


class ServerProcess:
    """A server under its supervisor.

    Args:
        command: what to execute.
        lock_timeout_s: how long to wait while another lab holds the machine.
        exclusive: it needs the machine for itself, as a server does; a download doesn't.

    Raises:
        EngineBusyError: another lab kept the lock.
        EngineError: the command could not be executed.
    """

    def __init__(self, command: Command, *, lock_timeout_s: float = 15.0, exclusive: bool = True) -> None:
        self.command = command
        self._lock_path = lock_path() if exclusive else ""
        self.pid: int | None = None
        self.ended: dict[str, Any] | None = None
        self._first = threading.Event()
        self._refused: dict[str, Any] | None = None
        self._listener = threading.Thread(target=self._listen, daemon=True, name="labkit-supervisor-events")
        # a session of its own: an interrupt of the kernel goes to the kernel's whole process group
        self._supervisor = subprocess.Popen(
            [sys.executable, "-m", "labkit.engine.supervise"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            self._order(lock_timeout_s)
            self._raise_if_refused(lock_timeout_s)
        except BaseException:
            self.stop()
            raise

    def _order(self, lock_timeout_s: float) -> None:
        order = {
            "argv": self.command.argv,
            "env": self.command.env,
            "stdin": self.command.stdin,
            "log_path": str(self.command.log_path),
            "lock_path": self._lock_path,
            "lock_timeout_s": lock_timeout_s,
            "holder": f"pid {os.getpid()} in {Path.cwd()}",
        }
        assert self._supervisor.stdin is not None
        self._supervisor.stdin.write(json.dumps(order).encode() + b"\n")
        self._supervisor.stdin.flush()
        self._listener.start()

    def _listen(self) -> None:
        assert self._supervisor.stdout is not None
        with self._supervisor.stdout as events:
            for line in events:
                event = json.loads(line)
                if event["event"] == "started":
                    self.pid = event["pid"]
                elif event["event"] == "ended":
                    self.ended = event
                else:
                    self._refused = event
                self._first.set()
        if self.ended is None:
            self.ended = {"how": "supervisor ended", "returncode": None}
        self._first.set()

    def _raise_if_refused(self, lock_timeout_s: float) -> None:
        self._first.wait(lock_timeout_s + 10)
        if self._refused and self._refused["event"] == "busy":
            raise EngineBusyError(
                f"another lab is running: {self._refused['holder'] or 'holder unknown'}",
                why="two decoding engines on one machine distort each other's times",
                hint=f"wait for it to end, or set {SHARE_VARIABLE}=1 and distrust every time",
            )
        if self._refused or self.pid is None:
            silent = "its supervisor ended" if self._first.is_set() else "its supervisor did not answer in time"
            why = self._refused["error"] if self._refused else silent
            raise EngineError("the server could not be executed", why=why, hint=shlex.join(self.command.argv))

    @property
    def alive(self) -> bool:
        """Whether the server's process still runs; true to the moment, before its supervisor has reported."""
        if self.ended is not None or self._supervisor.poll() is not None:
            return False
        try:
            return psutil.Process(self.pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
        except psutil.NoSuchProcess:
            return False

    @property
    def exit_text(self) -> str:
        """How the process ended, in words."""
        if not self.alive:
            self._listener.join(1.0)  # the supervisor is about to report
        code = self.ended["returncode"] if self.ended else None
        if code is None:
            return "ended in a way nobody saw"
        return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"

    def stop(self) -> str:
        """End the server and wait for it; return what it took ("TERM", "KILL", "ended by itself")."""
        assert self._supervisor.stdin is not None
        with suppress(OSError):  # it may be gone already
            self._supervisor.stdin.close()
        try:
            self._supervisor.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._supervisor.kill()  # takes the server with it, see supervise._die_with_parent
            self._supervisor.wait()
        if self._listener.is_alive():
            self._listener.join(1.0)  # the last event is in the pipe
        return str(self.ended["how"]) if self.ended else "supervisor killed"

    def log_tail(self, lines: int = 12) -> str:
        """Return the last lines of the server's log."""
        return log_tail(self.command.log_path, lines)


def log_tail(path: Path, lines: int = 12) -> str:
    """Return the last lines of a server's log; reads at most its last 64 KiB.

    Args:
        path: the log; one that isn't there has none.
        lines: how many.
    """
    try:
        with path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 65536))
            text = log.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(line[:300] for line in text.splitlines()[-lines:])
