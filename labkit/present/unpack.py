"""Opens what `labkit pack` made, and refuses what is not what was packed. The file is untrusted."""

from __future__ import annotations

import json
import stat
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from labkit.engine.fetch import sha256_of
from labkit.engine.untrusted import mapping
from labkit.errors import AlteredError, ParameterError
from labkit.measure.record import read_run_json, recorded_folder

MANIFEST = "manifest.json"
SIDES = ("before", "after")  # of a comparison: the runs it compared are in its pack as before.0.zip and so on
MANIFEST_SCHEMA = 1
# far above any run of this kit: a run of 01 has about 60 files and 20 MB
MAX_MEMBERS = 1000
MAX_BYTES = 512 * 2**20
_CHUNK = 2**20


@contextmanager
def opened(path: Path | str) -> Iterator[Path]:
    """Give a run folder: the one given, or what a pack holds, in a temporary folder while the block runs.

    Args:
        path: a run folder, or a pack.

    Raises:
        ParameterError: there is neither.
        AlteredError: the pack is not what was packed.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        folder = recorded_folder(path)
        _refuse(path, altered(folder) if (folder / MANIFEST).is_file() else [])
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="labkit-pack-") as scratch:
        folder = Path(scratch) / "pack" / "run"
        folder.mkdir(parents=True)
        _refuse(path, unpack(path, folder))
        if not (folder / "run.json").is_file():
            raise ParameterError(f"{path.name} holds no run", why="there is no run.json in it")
        _refuse(path, [finding for inner, side in packed_sides(folder) for finding in _unpack_side(inner, side)])
        yield folder


def packed_sides(folder: Path) -> list[tuple[Path, Path]]:
    """Return the packs in an unpacked comparison of the runs that it compared, and where a replay looks for each.

    Args:
        folder: as opened() gives it.
    """
    arms = mapping(read_run_json(folder).get("arms"))
    noted = {side: mapping(arms.get(side)).get("folders") for side in SIDES}
    places = {
        f"{side}.{number}.zip": Path(str(place)).parts[-2:]
        for side, folders in noted.items()
        if isinstance(folders, list)
        for number, place in enumerate(folders)
    }
    return [
        (folder / name, folder.parents[1].joinpath(*parts))
        for name, parts in places.items()
        if (folder / name).is_file() and len(parts) == 2 and all(map(_plain, parts))
    ]


def _unpack_side(inner: Path, folder: Path) -> list[str]:
    if folder.exists():  # a run that is compared with itself
        return []
    folder.mkdir(parents=True)
    return [f"{inner.name}: {finding}" for finding in unpack(inner, folder)]


def _refuse(path: Path, findings: list[str]) -> None:
    if findings:
        raise AlteredError(f"{path.name} is not what was packed", why="; ".join(findings))


def unpack(path: Path, folder: Path) -> list[str]:
    """Unpack a pack into an empty folder; return what is wrong with it. Nothing is written unless its list is fit.

    Args:
        path: a zip file.
        folder: gets its files.
    """
    try:
        with zipfile.ZipFile(path) as pack:
            findings = unfit_members(pack.infolist())
            if findings:
                return findings
            for member in pack.infolist():
                _extract(pack, member, folder / member.filename)
    except (zipfile.BadZipFile, NotImplementedError, EOFError, OSError, RuntimeError, ValueError) as error:
        return [f"it can't be unpacked: {error}"]
    except Exception as error:  # zlib, lzma and bz2 have errors of their own for damaged data
        return [f"it can't be unpacked: {type(error).__name__}: {error}"]
    return altered(folder)


def unfit_members(members: list[zipfile.ZipInfo]) -> list[str]:
    """Return what is wrong with a zip file's list of members, before anything is unpacked.

    Args:
        members: of the zip file.
    """
    if len(members) > MAX_MEMBERS:
        return [f"it has {len(members):,} members, more than the {MAX_MEMBERS:,} that are read"]
    total = sum(member.file_size for member in members)
    if total > MAX_BYTES:
        return [f"it holds {total:,} bytes, more than the {MAX_BYTES:,} that are read"]
    names = Counter(member.filename.casefold() for member in members)
    found = [f"{name!r} is in it {count} times" for name, count in names.items() if count > 1]
    found += [f"{member.filename!r} is no plain file name" for member in members if not _plain(member.filename)]
    found += [f"{member.filename!r} is a link or encrypted" for member in members if _odd(member)]
    return found


def _plain(name: str) -> bool:
    return name.isprintable() and bool(name.strip(". ")) and not set(name) & set('/\\:*?"<>|')


def _odd(member: zipfile.ZipInfo) -> bool:
    return stat.S_ISLNK(member.external_attr >> 16) or bool(member.flag_bits & 1)


def _extract(pack: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path) -> None:
    # zipfile reads no more than the size that the list declares, and that was looked at
    with pack.open(member) as source, target.open("xb") as file:
        while chunk := source.read(_CHUNK):
            file.write(chunk)


def altered(folder: Path) -> list[str]:
    """Return how the files in a folder differ from its manifest.

    Args:
        folder: an unpacked pack.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        listed: dict[str, Any] = dict(manifest["files"])
        schema = manifest["schema"]
        sums = {name: (str(entry["sha256"]), int(entry["bytes"])) for name, entry in listed.items()}
    except FileNotFoundError:
        return [f"there is no {MANIFEST} in it"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return [f"its {MANIFEST} can't be read: {type(error).__name__}"]
    if schema != MANIFEST_SCHEMA:
        return [f"its {MANIFEST} has schema {schema!r}; this kit reads {MANIFEST_SCHEMA}"]
    there = {path.name for path in folder.iterdir()} - {MANIFEST}
    found = [f"{name} is missing" for name in sorted(set(sums) - there)]
    found += [f"{name} is not in its {MANIFEST}: it was added" for name in sorted(there - set(sums))]
    return found + [
        f"{name} was altered: it is not what its {MANIFEST} says"
        for name in sorted(there & set(sums))
        if _sums(folder / name) != sums[name]
    ]


def _sums(path: Path) -> tuple[str, int]:
    if path.is_symlink() or not path.is_file():
        return "", 0
    return sha256_of(path), path.stat().st_size
