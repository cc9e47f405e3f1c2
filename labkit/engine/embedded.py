"""The embedded engine: llama.cpp's server from the xllamacpp wheel, in a process of its own."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import labkit
from labkit.engine.flags import to_argv, to_attributes
from labkit.engine.key import scrubbed_environment
from labkit.engine.launch import Launch
from labkit.errors import EngineError

PACKAGE = "xllamacpp"
NAME = "embedded"


def is_embedded(engine: str) -> bool:
    """Whether an engine is this one: "embedded", or "embedded:" and a virtual environment's folder."""
    return engine == NAME or engine.startswith(f"{NAME}:")


def embedded_launch(engine: str, values: dict[str, Any], keys: list[str]) -> Launch:
    """Return how the embedded engine is executed.

    Args:
        engine: "embedded", or "embedded:/path/to/venv" for the wheel of another environment.
        values: of flags.start_values().
        keys: API keys to ask for.

    Raises:
        EngineError: the wheel isn't installed there, or extra_args is set.
    """
    python = _python(engine)
    order = {"attributes": to_attributes(values), "api_keys": keys}
    return Launch(
        argv=[python, "-m", "labkit.engine.embedded_child"],
        command_line=to_argv(values)[0],
        build=_build(python),
        # another environment has the wheel, and this kit only from here
        env={} if python == sys.executable else {"PYTHONPATH": str(Path(labkit.__file__).parents[1])},
        stdin=json.dumps(order),
    )


def _python(engine: str) -> str:
    _, _, folder = engine.partition(":")
    if not folder:
        return sys.executable
    try:
        python = Path(folder).expanduser().absolute() / "bin" / "python"
        there = python.is_file()
    except (OSError, RuntimeError, ValueError):  # a name too long, no such user, a zero in it
        there = False
    if not there:
        raise EngineError(
            f"{folder} is not a virtual environment", why="it has no bin/python", hint=f"python3 -m venv {folder}"
        )
    return str(python)


def _build(python: str) -> dict[str, Any]:
    """Return what is known of a wheel's build: its version ends in llama.cpp's build number.

    The wheel's own build_info says b0-unknown.
    """
    version = _version_here() if python == sys.executable else _version_there(python)
    if version is None:
        folder, here = Path(python).parents[1], python == sys.executable
        raise EngineError(
            "the embedded engine is not installed",
            why=f"no {PACKAGE} in {folder}",
            hint="pip install -r requirements.txt" if here else f"{python} -m pip install {PACKAGE}",
        )
    number = version.split(".")[2:3]
    return {
        "package": f"{PACKAGE} {version}",
        "number": int(number[0]) if number and number[0].isdigit() else None,
        "number_source": f"version of the {PACKAGE} wheel",
    }


def _version_here() -> str | None:
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(PACKAGE)
    return None


def _version_there(python: str) -> str | None:
    question = f"import importlib.metadata as m; print(m.version({PACKAGE!r}))"
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            [python, "-c", question], env=scrubbed_environment(), capture_output=True, timeout=20, check=True
        )
        # its last word: a Python may warn before it answers
        answer = re.search(rb"(\d+(?:\.\d+)+)\s*$", done.stdout)
        return answer[1].decode()[:40] if answer else None
    return None
