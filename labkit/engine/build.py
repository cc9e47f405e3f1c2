"""From llama.cpp's source to a llama-server binary, with a record of how beside it.

A build has a folder of its own: `source/` (unless the tree is the user's), `build/`, the logs. The record,
build.json, lies beside the binary and is written when it is finished: what has no record is no build.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import filelock

import labkit
from labkit.engine.cmake import (
    CEILING_TARGET,
    TARGET,
    Order,
    cmake_arguments,
    commit_name,
    compile_targets,
    configure,
    jobs_for,
    slowest_steps,
)
from labkit.engine.fetch import sha256_of
from labkit.engine.models import cache_folder
from labkit.engine.sdist import sdist_source
from labkit.engine.source import Source, git_source, tree_source
from labkit.engine.toolchain import Toolchain, survey
from labkit.errors import EngineError
from labkit.settings import Build

NAME = "build"
RECORD = "build.json"
SCHEMA_VERSION = 1
_DISK_BYTES = {"cpu": 1 * 2**30, "cuda": 6 * 2**30}

Say = Callable[[str], None]


def builds_folder() -> Path:
    """Return the folder that builds go to unless told otherwise."""
    return cache_folder() / "builds"


def build_server(params: Build, *, say: Say = print, tools: Toolchain | None = None) -> dict[str, Any]:
    """Build a llama-server, or go on with a build that was interrupted; return its record.

    Args:
        params: where the source is from, where the build goes, for which backend.
        say: gets progress lines.
        tools: of survey(); looked for if not given.

    Raises:
        EngineError: a tool is missing, the source can't be had, the destination holds something else, the
            build failed.
        EngineBusyError: a lab is running.
    """
    tools = tools or survey(Path(params.destination or builds_folder()).expanduser())
    refuse_without_tools(tools)
    backend, note = resolve_backend(params, tools)
    if note:
        say(note)
    folder = destination(params, backend)
    _refuse_full_disk(tools, backend, folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(folder / ".lock")
        with lock.acquire(timeout=0):
            return _build_in(folder, params, backend, tools, say)
    except filelock.Timeout:
        raise EngineError(
            f"another run is building in {folder}", hint="wait for it, or another `destination`"
        ) from None
    except OSError as error:
        raise EngineError(
            f"{folder} can't be written", why=str(error.strerror), hint="`destination` = a folder you can write"
        ) from None


def refuse_without_tools(tools: Toolchain) -> None:
    """Make sure that cmake, ninja and the compilers are here.

    Raises:
        EngineError: one isn't.
    """
    if tools.lacking:
        raise EngineError(
            f"nothing can be built here: there is no {', no '.join(tools.lacking)}",
            hint='apt install g++; pip install cmake ninja; or engine = "embedded"',
        )


def resolve_backend(params: Build, tools: Toolchain) -> tuple[str, str]:
    """Return "cpu" or "cuda", and what should be said about the choice.

    Raises:
        EngineError: CUDA is asked for and can't be built here.
    """
    nvcc, gpu = tools.nvcc, tools.gpus[0]["name"] if tools.gpus else None
    if params.backend == "cpu":
        return "cpu", ""
    if params.backend == "auto":
        if nvcc and gpu:
            return "cuda", f"{gpu} and CUDA {nvcc.version}: building for CUDA"
        if gpu:
            return "cpu", f"there is a GPU ({gpu}) and no CUDA toolkit (nvcc): building for the CPU"
        return "cpu", "there is a CUDA toolkit and no GPU: building for the CPU" if nvcc else ""
    if nvcc is None:
        raise EngineError(
            "backend = cuda needs the CUDA toolkit",
            why="there is no nvcc on the PATH, below CUDA_HOME, or in /usr/local/cuda",
            hint="install it, point CUDA_HOME to it, or backend = cpu",
        )
    if gpu is None and not params.cuda_architectures:
        raise EngineError(
            "backend = cuda, and there is no GPU here to build for",
            hint="cuda_architectures = 90 for an H100 or H200, 89 for an L40 or RTX 40; or backend = cpu",
        )
    return "cuda", "" if gpu else "there is no GPU here: what is built can't be run on this machine"


def architectures(params: Build, tools: Toolchain, backend: str) -> str:
    """Return the CUDA architectures to build for: as asked, else those of the GPUs that are here."""
    if backend != "cuda":
        return ""
    here = sorted({gpu["compute_capability"].replace(".", "") for gpu in tools.gpus if gpu.get("compute_capability")})
    return params.cuda_architectures or ";".join(here) or "native"


def destination(params: Build, backend: str) -> Path:
    """Return the folder of a build: as asked, else one in the cache named after source and backend."""
    if params.destination:
        return Path(params.destination).expanduser().resolve()
    name = {
        "git": params.commit[:12],
        "sdist": params.sdist_version,
        "tree": f"tree-{_short_hash(str(Path(params.tree).expanduser().resolve()))}",
    }[params.source]
    return builds_folder() / f"{name}-{backend}"


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _refuse_full_disk(tools: Toolchain, backend: str, folder: Path) -> None:
    if tools.disk_free_bytes < _DISK_BYTES[backend] and not (folder / "build").is_dir():
        raise EngineError(
            f"the disk of {folder} has {tools.disk_free_bytes / 2**30:.1f} GiB left",
            why=f"source and build need about {_DISK_BYTES[backend] / 2**30:.0f} GiB",
            hint="`destination` = a folder on another disk",
        )


def _build_in(folder: Path, params: Build, backend: str, tools: Toolchain, say: Say) -> dict[str, Any]:
    started = datetime.now(UTC)
    source = _source(folder, params, say)
    order = Order(
        source=source,
        folder=folder / "build",
        backend=backend,
        architectures=architectures(params, tools, backend),
        jobs=params.jobs or jobs_for(tools.cpus, tools.memory_available_bytes),
        targets=(TARGET, CEILING_TARGET) if params.ceiling else (TARGET,),
        log_folder=folder,
        silence_limit_s=params.silence_limit_s,
    )
    number = f"build number {source.number}" if source.number else "no build number known"
    say(f"building {', '.join(order.targets)} for {backend}, {number}, {order.jobs} jobs, in {folder}")
    configure_s = configure(order, tools, say)
    compile_s, progress = compile_targets(order, tools, say)
    seconds = {"configure_s": round(configure_s, 1), "compile_s": round(compile_s, 1)}
    return _record(order, tools, seconds, progress, started)


def _source(folder: Path, params: Build, say: Say) -> Source:
    place, limit_s = folder / "source", params.silence_limit_s
    if params.source == "git":
        log_path = folder / "git.log"
        return git_source(params.repo_url, params.commit, place, log_path=log_path, say=say, silence_limit_s=limit_s)
    if params.source == "sdist":
        version, expected = params.sdist_version, params.sdist_sha256
        return sdist_source(version, expected, place, log_path=folder / "pip.log", say=say, silence_limit_s=limit_s)
    return tree_source(Path(params.tree), params.build_number)


def _record(
    order: Order, tools: Toolchain, seconds: dict[str, float], progress: list[dict[str, Any]], started: datetime
) -> dict[str, Any]:
    binary = order.folder / "bin" / TARGET
    if not binary.is_file():
        raise EngineError(f"the build ended without {binary}", hint=f"its log, {order.log_folder / 'build.log'}")
    older, digest = read_record(binary), sha256_of(binary)
    if older and older["binary_sha256"] == digest and _steps(progress) < _steps(older["progress"]):
        # ninja had nothing to do, or next to nothing: the same binary took what the older record says
        progress, seconds = older["progress"], older["seconds"]
    record = {
        "schema_version": SCHEMA_VERSION,
        "labkit": labkit.__version__,
        "source": order.source.describe(),
        "number": order.source.number,
        "commit_passed": commit_name(order.source),
        "backend": order.backend,
        "cmake_arguments": cmake_arguments(order, tools),
        "targets": list(order.targets),
        "tools": {name: tool and asdict(tool) for name, tool in _tools(tools, order.backend).items()},
        "jobs": order.jobs,
        "seconds": seconds,
        "progress": progress,
        "slowest_steps": slowest_steps(order.folder),
        "started_at": started.isoformat(timespec="seconds"),
        "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "log_folder": str(order.log_folder),
        "binary": str(binary),
        "binary_bytes": binary.stat().st_size,
        "binary_sha256": digest,
        "ceiling_binary": str(binary.with_name(CEILING_TARGET)) if CEILING_TARGET in order.targets else None,
    }
    _write(binary.with_name(RECORD), record)
    _point_to(binary)
    return record


def _steps(progress: list[dict[str, Any]]) -> int:
    return int(progress[-1]["total"]) if progress else 0


def _tools(tools: Toolchain, backend: str) -> dict[str, Any]:
    used = {"cmake": tools.cmake, "ninja": tools.ninja, "cc": tools.cc, "cxx": tools.cxx}
    return used | ({"nvcc": tools.nvcc} if backend == "cuda" else {})


def _write(path: Path, content: dict[str, Any]) -> None:
    scratch = path.with_suffix(".tmp")
    scratch.write_text(json.dumps(content, indent=1), encoding="utf-8")
    scratch.replace(path)


def _point_to(binary: Path) -> None:
    """Leave a note of a build that lies elsewhere, so that engine = "build" finds it too."""
    if not binary.is_relative_to(builds_folder().resolve()):
        with suppress(OSError):  # a cache that can't be written: its path still works as an engine
            builds_folder().mkdir(parents=True, exist_ok=True)
            _write(builds_folder() / f"elsewhere-{_short_hash(str(binary))}.json", {"binary": str(binary)})


def read_record(binary: Path) -> dict[str, Any] | None:
    """Return the record beside a binary; None where there is none that this version can read."""
    try:
        record = json.loads(binary.with_name(RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and record.get("schema_version") == SCHEMA_VERSION else None


def finished_builds() -> list[tuple[Path, dict[str, Any]]]:
    """Return every finished build that is still there, binary and record, the newest first."""
    binaries = [path.with_name(TARGET) for path in builds_folder().glob(f"*/build/bin/{RECORD}")]
    for note in builds_folder().glob("elsewhere-*.json"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            binaries.append(Path(json.loads(note.read_text(encoding="utf-8"))["binary"]))
    found = [(binary, record) for binary in binaries if binary.is_file() and (record := read_record(binary))]
    return sorted(found, key=lambda item: str(item[1]["finished_at"]), reverse=True)


def newest_build() -> Path:
    """Return the binary of the newest finished build.

    Raises:
        EngineError: there is none, or it has changed since it was built.
    """
    builds = finished_builds()
    if not builds:
        raise EngineError(
            'engine = "build", and nothing is built yet',
            why=f"no finished build in {builds_folder()}",
            hint="run notebook 00_build with engine = build first, or give a path to a llama-server",
        )
    binary, record = builds[0]
    if sha256_of(binary) != record["binary_sha256"]:
        raise EngineError(
            f"{binary} has changed since it was built",
            why="its sha256 is another than in its record",
            hint="run notebook 00_build again, or give its path as the engine",
        )
    return binary
