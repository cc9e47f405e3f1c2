"""The engine that is a path: any llama-server binary, asked first what it is and which flags it knows."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from labkit.engine.flags import TELLTALE, to_argv
from labkit.engine.http import ANSWER_LIMIT_BYTES
from labkit.engine.key import scrubbed_environment
from labkit.engine.launch import Launch
from labkit.errors import EngineError, ParameterError

PROBE_LIMIT_S = 20.0
# b9093 to b10156: "version: 10156 (sha)"; b11434: "version: 0.6.0-dev (build 11434, commit sha)"
_VERSION = re.compile(r"version: (?:\S+ \(build )?(\d{1,9})(?:, commit| \()\s*([0-9a-zA-Z]+)")
_FLAGS = re.compile(r"^(-[\w-]+(?:,\s*-[\w-]+)*)", re.MULTILINE)
_HINT = "a path to a llama-server executable"


@dataclass(frozen=True)
class Binary:
    """What a llama-server binary says of itself.

    Args:
        path: absolute.
        number: build number; commit: as it was built with. None where it doesn't say.
        flags: every flag that its --help lists.
    """

    path: Path
    number: int | None
    commit: str | None
    flags: frozenset[str]


def probe(engine: str) -> Binary:
    """Ask a binary for its version and its flags; runs it twice, without a model.

    Args:
        engine: the path.

    Raises:
        EngineError: it isn't there, can't be executed, isn't a llama-server, or doesn't answer.
    """
    path = _file(engine)
    flags = frozenset(flag for line in _FLAGS.findall(_ask(path, "--help")) for flag in re.split(r",\s*", line))
    if TELLTALE not in flags:
        raise EngineError(f"{path} is not a llama-server", why=f"its --help does not list {TELLTALE}", hint=_HINT)
    version = _VERSION.search(_ask(path, "--version"))
    number, commit = version.groups() if version else (None, None)
    # without git at build time it is built as number 0, commit "unknown" (cmake/build-info.cmake)
    known = commit if commit != "unknown" else None
    return Binary(path, int(number) if number and int(number) else None, known, flags)


def _file(engine: str) -> Path:
    try:
        path = Path(engine).expanduser().absolute()
        what = "" if path.is_file() else "is a folder" if path.is_dir() else "does not exist"
    except (OSError, RuntimeError, ValueError) as error:  # a name too long, no such user, a zero in it
        raise EngineError("the engine is no path that can be used", why=str(error)[:100], hint=_HINT) from None
    if what:
        url = f"http://{engine}, if it is a server's address" if re.fullmatch(r"[\w.-]+:\d+", engine) else ""
        hint = url or f'{_HINT}, "embedded", or the URL of a server'
        raise EngineError(f"the engine {engine} {what}", hint=hint)
    return path


def _ask(path: Path, question: str) -> str:
    # into a file: what it leaves behind could keep a pipe open; and it may never stop talking
    with tempfile.TemporaryFile() as said:
        try:
            asked = subprocess.Popen(
                [str(path), question],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env=scrubbed_environment(),
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise EngineError(f"{path} can't be executed", why=_reason(error), hint=_remedy(error, path)) from None
        code = _ended(asked, said.fileno())
        text = _read(said)
    if code is None:
        raise EngineError(f"{path} {question} gives no answer within {PROBE_LIMIT_S:.0f} s", hint=_HINT)
    if code != 0:
        raise EngineError(f"{path} {question} {_ending(code)}", why=_last_line(text), hint="run it by hand to see why")
    return text


def _ended(asked: subprocess.Popen[bytes], said: int) -> int | None:
    """Wait for its end and return its exit code, or end it and all it has started; None: it took too long."""
    deadline_s = time.monotonic() + PROBE_LIMIT_S
    try:
        while asked.poll() is None and time.monotonic() < deadline_s:
            if os.fstat(said).st_size > ANSWER_LIMIT_BYTES:
                return 0  # enough: what it is shows in what it said until now
            time.sleep(0.01)
        return asked.returncode
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(asked.pid, signal.SIGKILL)  # its children too
        asked.wait()


def _read(said: IO[bytes]) -> str:
    said.seek(0)
    return said.read(ANSWER_LIMIT_BYTES).decode("utf-8", "replace")


def _reason(error: Exception) -> str:
    if not isinstance(error, OSError):
        return str(error)[:100]
    if error.errno == errno.ENOEXEC:
        return "it is no executable for this machine (another processor, or not a program)"
    return str(error.strerror)


def _remedy(error: Exception, path: Path) -> str:
    return f"chmod +x {path}" if isinstance(error, PermissionError) else "a llama-server built for this machine"


def _ending(code: int) -> str:
    if code == -4:  # SIGILL
        return "was ended by an illegal instruction: it is built for another processor"
    return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else "it said nothing"


def binary_launch(engine: str, values: dict[str, Any], keys: list[str]) -> Launch:
    """Return how a llama-server binary is executed.

    Args:
        engine: its path.
        values: of flags.start_values().
        keys: API keys to ask for.

    Raises:
        EngineError: it can't be used, or lacks a flag that is needed.
        ParameterError: the key has characters that can't travel.
    """
    binary = probe(engine)
    argv, left_out = to_argv(values, binary=str(binary.path), known=binary.flags)
    return Launch(
        argv=argv,
        command_line=argv,
        build={
            "package": f"llama-server {binary.path}",
            "number": binary.number,
            "number_source": "its --version" if binary.number else None,
            "commit": binary.commit,
        },
        env=_key_environment(keys),
        notes=[f"this llama-server does not know {', '.join(left_out)}: not passed"] if left_out else [],
    )


def _key_environment(keys: list[str]) -> dict[str, str]:
    """Return the variable that carries keys: argv can be seen by everybody on the machine."""
    if any(re.search(r'[",\s]', key) for key in keys):
        raise ParameterError(
            "the API key has a comma, a quote or a space in it", why="llama-server would take it for several keys"
        )
    return {"LLAMA_API_KEY": ",".join(keys)} if keys else {}


def number_of(build_info: Any) -> int | None:
    """Return the build number in /props' build_info, b10156-abcdef say; None for b0-unknown and the like."""
    match = re.match(r"b(\d{1,9})(?!\d)", str(build_info))
    return int(match[1]) if match and int(match[1]) else None
