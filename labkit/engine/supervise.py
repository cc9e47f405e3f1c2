"""The small parent of every server process: no server outlives the kernel that asked for it.

`python -m labkit.engine.supervise` runs in a session of its own, so that an interrupt of the kernel does
not reach it. It reads one JSON order from stdin and then watches stdin: its end means that the kernel is
gone or wants the server stopped, however the kernel ended. It also holds the machine-wide engine lock for
exactly as long as the server lives. Events go to stdout as JSON lines.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import filelock

TERM_GRACE_S = 3.0
POLL_S = 0.05


def _say(**event: Any) -> None:
    # the kernel may be gone: then nobody listens, and the server still has to be stopped
    with suppress(OSError, ValueError):
        print(json.dumps(event), flush=True)  # noqa: T201


def _die_with_parent() -> None:
    """Ask Linux to kill the server if this supervisor is killed (it has one thread: no false alarm)."""
    if sys.platform == "linux":
        import ctypes

        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def _spawn(order: dict[str, Any]) -> subprocess.Popen[bytes]:
    with Path(order["log_path"]).open("wb") as log:
        child = subprocess.Popen(
            order["argv"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=order["env"],
            preexec_fn=_die_with_parent,
        )
    assert child.stdin is not None
    with suppress(BrokenPipeError):
        child.stdin.write(order["stdin"].encode() + b"\n")
        child.stdin.flush()
    return child


def _watch(child: subprocess.Popen[bytes], stopped: list[int]) -> None:
    """Return when the child ended, stdin ended, or a signal asked to stop."""
    while child.poll() is None and not stopped:
        readable, _, _ = select.select([sys.stdin], [], [], POLL_S)
        if readable and not os.read(sys.stdin.fileno(), 4096):
            return


def _stop(child: subprocess.Popen[bytes]) -> str:
    """End the child: end of its stdin and TERM, then KILL; return what it took."""
    if child.poll() is not None:
        return "ended by itself"
    assert child.stdin is not None
    with suppress(OSError):
        child.stdin.close()
    child.terminate()
    try:
        child.wait(TERM_GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
        return "KILL"
    return "TERM"


def _lock(order: dict[str, Any]) -> filelock.BaseFileLock | None:
    """Take the machine-wide lock; on failure say who has it and return None."""
    lock = filelock.FileLock(order["lock_path"], mode=0o666)
    holder = order["lock_path"] + ".holder"
    before = os.umask(0)  # every user of the machine must be able to take it
    try:
        lock.acquire(timeout=order["lock_timeout_s"], poll_interval=0.1)
        _note_holder(holder, order["holder"])
    except filelock.Timeout:
        said = ""
        with suppress(OSError):
            said = Path(holder).read_text(encoding="utf-8")[:200]
        _say(event="busy", holder=said)
        return None
    except OSError as error:
        _say(event="failed", error=f"the lock {order['lock_path']} can't be taken: {error.strerror}")
        return None
    finally:
        os.umask(before)
    return lock


def _note_holder(path: str, text: str) -> None:
    # a shared folder: never write through a link that somebody else has put there
    with suppress(OSError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o666)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)


def main() -> None:
    """Run one server as ordered on stdin; leave when it has ended."""
    stopped: list[int] = []

    def _note(number: int, _frame: FrameType | None) -> None:
        stopped.append(number)

    signal.signal(signal.SIGTERM, _note)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # unbuffered: select() must not miss bytes that Python has read ahead
    order = json.loads(_read_line(sys.stdin.fileno()))
    lock = _lock(order) if order["lock_path"] else None
    if order["lock_path"] and lock is None:
        return
    try:
        _serve(order, stopped)
    except (OSError, ValueError) as error:
        _say(event="failed", error=str(error))
    finally:
        if lock:
            lock.release()


def _serve(order: dict[str, Any], stopped: list[int]) -> None:
    child = _spawn(order)
    try:
        _say(event="started", pid=child.pid, at=time.time())
        _watch(child, stopped)
    finally:
        _say(event="ended", how=_stop(child), returncode=child.returncode)


def _read_line(descriptor: int) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        read = os.read(descriptor, 1)
        if not read:
            raise SystemExit("labkit: no order on stdin")
        line += read
    return line


if __name__ == "__main__":
    main()
