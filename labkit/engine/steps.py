"""One long command at a time (git, pip, cmake, ninja): watched, logged, limited, ended with all its children.

It runs under the same supervisor as a server: an interrupt ends it, and so does the kernel's end.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from labkit.engine.process import Command, ServerProcess
from labkit.errors import EngineError

SAY_EVERY_S = 5.0
_LOOK_EVERY_S = 0.1

Say = Callable[[str], None]


@dataclass(frozen=True)
class Step:
    """One command of a build.

    Args:
        name: what progress lines call it: "compiling", say.
        argv: the command, an argument each.
        log_path: file for what it prints; an older one is replaced.
        env: variables on top of this process's own; an empty value takes one away.
        silence_limit_s: it is given up when it neither prints nor gets on for so long.
        exclusive: no lab may decode meanwhile: it takes the whole machine.
    """

    name: str
    argv: list[str]
    log_path: Path
    env: dict[str, str] = field(default_factory=dict)
    silence_limit_s: float = 600.0
    exclusive: bool = False


@dataclass(frozen=True)
class Ended:
    """How a step ended.

    Args:
        returncode: of the command; None where it was ended because it had done enough.
        seconds: how long it ran.
        text: what it printed.
    """

    returncode: int | None
    seconds: float
    text: str

    @property
    def last_words(self) -> str:
        """The last thing it printed that says something."""
        lines = [line.strip() for line in self.text.replace("\r", "\n").splitlines() if line.strip()]
        return lines[-1][:300] if lines else "it said nothing"


class Watcher:
    """What a step shows of its progress: here the last line it printed."""

    _last = ""

    def look(self, new_text: str) -> str:
        """Return where it is, in words; called every tenth of a second with what was printed since."""
        lines = new_text.replace("\r", "\n").strip().splitlines()
        self._last = lines[-1].strip()[:100] if lines else self._last
        return self._last

    @property
    def enough(self) -> bool:
        """Whether the step has done what it was started for and may be ended."""
        return False


def run_step(step: Step, say: Say, watcher: Watcher | None = None) -> Ended:
    """Run one command to its end, with a progress line every few seconds and one at the end.

    Args:
        step: what to run.
        say: gets progress lines.
        watcher: makes progress out of what it prints.

    Raises:
        EngineError: it can't be executed, or says nothing for too long.
        EngineBusyError: it is exclusive, and a lab is running.
    """
    environment = {name: value for name, value in (os.environ | step.env).items() if value}
    command = Command(argv=step.argv, env=environment, stdin="", log_path=step.log_path)
    started_s = time.monotonic()
    process = ServerProcess(command, exclusive=step.exclusive)
    try:
        done = _watch(step, process, say, watcher or Watcher(), started_s)
    finally:
        _end(process)
    seconds = time.monotonic() - started_s
    code = None if done else (process.ended or {}).get("returncode")
    state = "done" if done or code == 0 else process.exit_text
    say(f"{step.name}: {state} after {seconds:.0f} s")
    return Ended(code, seconds, _Log(step.log_path).new_text())


def _watch(step: Step, process: ServerProcess, say: Say, watcher: Watcher, started_s: float) -> bool:
    """Wait until it ends; return whether it had done enough before."""
    log, state = _Log(step.log_path), ""
    moved_s = said_s = time.monotonic()
    while True:
        alive = process.alive
        now = time.monotonic()
        text = log.new_text()
        before, state = state, watcher.look(text)
        if watcher.enough:
            return True
        if not alive:
            return False
        moved_s = now if text or state != before else moved_s
        if now - moved_s > step.silence_limit_s:
            raise EngineError(
                f"{step.name} was given up",
                why=f"it has said nothing for {now - moved_s:.0f} s; last: {state or 'nothing'}",
                hint=f"a larger silence_limit_s; its log: {step.log_path}",
            )
        if now - said_s >= SAY_EVERY_S:
            said_s = now
            say(f"{step.name}: {state}{', ' if state else ''}{now - started_s:.0f} s")
        time.sleep(_LOOK_EVERY_S)


def _end(process: ServerProcess) -> None:
    """End what still runs. Compilers are not in ninja's process group, nor what pip starts in pip's."""
    children: list[psutil.Process] = []
    with suppress(psutil.Error):
        children = psutil.Process(process.pid).children(recursive=True) if process.alive else []
    process.stop()
    for child in children:
        with suppress(psutil.Error):
            child.kill()


class _Log:
    """The growing log of a step."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0

    def new_text(self) -> str:
        """Return what was written since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                new = file.read()
        except OSError:
            return ""
        self._offset += len(new)
        return new.decode("utf-8", "replace")
