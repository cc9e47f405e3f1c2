"""Paths that are no llama-server, and the sentence each gets: one list for the tests and for the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class BadEngine:
    """One path that can't be used.

    Args:
        name: what it is, in words.
        make: puts it into a folder and returns its path.
        says: a regular expression for the error's sentence.
    """

    name: str
    make: Callable[[Path], Path]
    says: str


def script(text: str, *, mode: int = 0o755) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = folder / "llama-server"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(mode)
        return path

    return make


def other_processor(folder: Path) -> Path:
    # an ELF header for another machine (EM_S390), and nothing else
    path = folder / "llama-server"
    path.write_bytes(b"\x7fELF\x02\x02\x01" + b"\0" * 9 + b"\0\x02\0\x16\0\0\0\x01" + b"\0" * 40)
    path.chmod(0o755)
    return path


def garbage(folder: Path) -> Path:
    path = folder / "llama-server"
    path.write_bytes(bytes(range(256)) * 8)
    path.chmod(0o755)
    return path


HELP = "echo '--cont-batching, --no-cont-batching'"
BAD_ENGINES = [
    BadEngine("a path with nothing there", lambda folder: folder / "none", r"none does not exist"),
    BadEngine("a folder", lambda folder: folder, r"is a folder"),
    BadEngine("not executable", script("", mode=0o644), r"can't be executed: Permission denied.*chmod \+x"),
    BadEngine("built for another processor", other_processor, r"no executable for this machine"),
    BadEngine("not a program at all", garbage, r"no executable for this machine"),
    BadEngine(
        "dies of an illegal instruction", script("kill -ILL $$"), r"illegal instruction: it is built for another"
    ),
    BadEngine("dies of a signal", script("kill -SEGV $$"), r"was ended by signal 11"),
    BadEngine(
        "lacks a shared library",
        script("echo 'error while loading shared libraries: libllama.so: no such file' >&2; exit 127"),
        r"exit code 127: error while loading shared libraries: libllama.so",
    ),
    BadEngine("another program", script("echo 'usage: ls [FILE]'"), r"is not a llama-server: its --help"),
    BadEngine("never answers --help", script("sleep 60"), r"gives no answer within"),
    BadEngine(
        "fails at --version", script(f"[ $1 = --help ] && {HELP} || exit 3"), r"--version ended with exit code 3"
    ),
    BadEngine("leaves a child behind", script("sleep 60 & sleep 60"), r"gives no answer within"),
    BadEngine("never stops talking", script("yes"), r"is not a llama-server"),
    BadEngine("floods its output", script("yes x | head -c 30000000"), r"is not a llama-server"),
]
