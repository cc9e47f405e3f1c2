"""What this machine has to build and run a llama-server with: tools, CPU features, GPUs, memory, disk."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from labkit.engine.gpu import gpus

# what ggml's CPU code has variants for (ggml/src/ggml-cpu/CMakeLists.txt)
_CPU_FEATURES = (
    "sse4_2", "ssse3", "avx", "f16c", "fma", "bmi2", "avx2", "avx_vnni", "avx512f", "avx512bw", "avx512vbmi",
    "avx512_vnni", "avx512_bf16", "amx_tile", "amx_int8", "asimd", "asimddp", "i8mm", "sve",
)  # fmt: skip
_VERSION = re.compile(r"\d+(?:\.\d+)+")
_ASK_LIMIT_S = 20.0


@dataclass(frozen=True)
class Tool:
    """A program that a build needs: where it is and its version; None where it doesn't tell."""

    path: str
    version: str | None


@dataclass(frozen=True)
class Toolchain:
    """What is here; None for a tool that isn't.

    Args:
        git, cmake, ninja, cc, cxx, nvcc: the tools; cmake and ninja of this environment's wheels first.
        gpus: of gpu.gpus().
        cpu_features: of the CPU, those that llama.cpp has code for.
        cpus: that this process may use.
        memory_available_bytes: free for use now; disk_free_bytes: on the disk of the destination.
    """

    git: Tool | None
    cmake: Tool | None
    ninja: Tool | None
    cc: Tool | None
    cxx: Tool | None
    nvcc: Tool | None
    gpus: list[dict[str, Any]]
    cpu_features: list[str]
    cpus: int
    memory_available_bytes: int
    disk_free_bytes: int

    @property
    def lacking(self) -> list[str]:
        """Names of what a build can't do without and isn't here."""
        needed = {"cmake": self.cmake, "ninja": self.ninja, "a C compiler": self.cc, "a C++ compiler": self.cxx}
        return [name for name, tool in needed.items() if tool is None]

    def describe(self) -> dict[str, Any]:
        """Return it as the record keeps it."""
        return asdict(self)


def survey(folder: Path) -> Toolchain:
    """Look at this machine.

    Args:
        folder: where a build would go; need not exist.
    """
    return Toolchain(
        git=_tool(shutil.which("git")),
        cmake=_tool(_from_wheel("cmake", "CMAKE_BIN_DIR") or shutil.which("cmake")),
        ninja=_tool(_from_wheel("ninja", "BIN_DIR") or shutil.which("ninja")),
        cc=_tool(_compiler("CC", "cc", "gcc", "clang")),
        cxx=_tool(_compiler("CXX", "c++", "g++", "clang++")),
        nvcc=_tool(_nvcc(), r"release ([\d.]+)"),
        gpus=gpus(),
        cpu_features=_cpu_features(),
        cpus=usable_cpus(),
        memory_available_bytes=available_memory(),
        disk_free_bytes=shutil.disk_usage(_existing(folder)).free,
    )


def _from_wheel(package: str, attribute: str) -> str | None:
    """Return the program of a wheel: the wheel's script in bin/ may be a shell around it."""
    with suppress(ImportError, AttributeError):
        folders = (Path(getattr(importlib.import_module(package), attribute)), Path(sys.executable).parent)
        return next((str(folder / package) for folder in folders if (folder / package).is_file()), None)
    return None


def _compiler(variable: str, *names: str) -> str | None:
    """Return the compiler that cmake would take: the one its variable names, else the first that is there."""
    chosen = os.environ.get(variable)
    return shutil.which(chosen) if chosen else next(filter(None, map(shutil.which, names)), None)


def _nvcc() -> str | None:
    """Return nvcc: of CUDACXX, on the PATH, below CUDA_HOME or CUDA_PATH, or where NVIDIA installs it."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda", "/opt/cuda"]
    below = [str(Path(home) / "bin" / "nvcc") for home in homes if home]
    return next(filter(None, map(shutil.which, [os.environ.get("CUDACXX") or "nvcc", *below])), None)


def _tool(path: str | None, pattern: str = "") -> Tool | None:
    if path is None:
        return None
    text = ""
    with suppress(OSError, subprocess.SubprocessError):
        asked = subprocess.run(
            [path, "--version"], capture_output=True, text=True, errors="replace", timeout=_ASK_LIMIT_S,
            stdin=subprocess.DEVNULL, check=True,
        )  # fmt: skip
        text = asked.stdout
    found = re.search(pattern, text) if pattern else _VERSION.search(text)
    name = "clang " if "clang" in text.lower() else "GNU " if "Free Software Foundation" in text else ""
    version = found[found.lastindex or 0] if found else None
    return Tool(path, f"{name}{version}" if version else None)


def usable_cpus() -> int:
    """Return the CPUs that this process may use: its affinity, and a container's quota where there is one."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # cgroup v2
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        if quota != "max":
            usable = min(usable, max(1, int(quota) // int(period)))
    return usable


def available_memory() -> int:
    """Return the bytes of memory that can be had now, a container's limit taken into account."""
    free = psutil.virtual_memory().available
    with suppress(OSError, ValueError, KeyError):  # cgroup v2
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii"))
        stat = dict(line.split() for line in Path("/sys/fs/cgroup/memory.stat").read_text("ascii").splitlines())
        if limit != "max":  # what files are cached in can be had at once
            free = min(free, max(0, int(limit) - used + int(stat["file"])))
    return free


def _cpu_features() -> list[str]:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("flags", "Features")):
                has = set(line.split(":", 1)[1].split())
                return [name for name in _CPU_FEATURES if name in has]
    return []


def _existing(folder: Path) -> Path:
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())
