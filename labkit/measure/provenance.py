"""What a reader of the record needs to repeat a run: machine, system, Python, package versions."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

import labkit
from labkit.engine.gpu import gpus

PACKAGES = (
    "xllamacpp",
    "httpx",
    "pandas",
    "altair",
    "vl-convert-python",
    "papermill",
    "ipykernel",
    "gguf",
    "scipy",
)


def provenance() -> dict[str, Any]:
    """Return facts about this machine and this Python; names no host. Paths may hold a user's name."""
    return {
        "labkit": labkit.__version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "os": _os_name(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "cpu": _cpu_name(),
        "cores": psutil.cpu_count(logical=False),
        "threads": psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "load_1min": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "gpus": gpus(),
        "packages": {name: _version(name) for name in PACKAGES},
        # names only: a value may be a secret
        "llama_environment": sorted(name for name in os.environ if name.startswith("LLAMA_")),
    }


def _version(package: str) -> str | None:
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return None


def _os_name() -> str:
    with suppress(OSError, KeyError):
        return str(platform.freedesktop_os_release()["PRETTY_NAME"])
    return platform.platform()


def _cpu_name() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"
