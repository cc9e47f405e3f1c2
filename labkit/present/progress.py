"""Progress of a long step: one line that changes on a terminal, plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TextIO

_CLEAR = "\r\x1b[2K"


class Progress:
    """Where a long step tells how far it is; a file too, so that a notebook's printed lines can go here.

    Args:
        title: what the step is called.
        quiet: say nothing.
        out: where to; standard error unless told otherwise, so that standard output stays for the result.
    """

    def __init__(self, title: str, *, quiet: bool = False, out: TextIO | None = None) -> None:
        self.title = title
        self._quiet = quiet
        self._out = out or sys.stderr
        self._terminal = self._out.isatty()
        self._started = time.monotonic()
        self._count = ""

    def count(self, done: int, of: int) -> None:
        """Say that `done` of `of` parts are done; seen on a terminal alone."""
        self._count = f" {done}/{of}"
        if self._terminal:
            self._show("")

    def say(self, line: str) -> None:
        """Say one thing."""
        self._show(line)

    def write(self, text: str) -> int:
        """Take what a notebook prints: its last line is what it does now."""
        for line in filter(str.strip, text.splitlines()):
            self._show(line.strip())
        return len(text)

    def flush(self) -> None:
        """Files have it; every line is written at once here."""

    def done(self) -> None:
        """Take the changing line away."""
        if self._terminal and not self._quiet:
            self._put(_CLEAR)

    def _show(self, line: str) -> None:
        if self._quiet:
            return
        elapsed = f"{time.monotonic() - self._started:.0f} s"
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1
            self._put(_CLEAR + f"{self.title}{self._count}, {elapsed}  {line}"[:width])
        else:
            self._put(f"{self.title}: {line}\n")

    def _put(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
