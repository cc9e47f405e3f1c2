"""What outputs/ and the cache hold, and its removal by name. Only what is listed can be removed."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from labkit.engine.models import cache_folder
from labkit.errors import ParameterError
from labkit.measure.record import outputs_folder

# of the repository, not of a run
_KEPT = frozenset({"README.md", "samples"})


@dataclass(frozen=True)
class Item:
    """One thing that can be removed.

    Args:
        name: how it is named on the command line.
        path: where it is.
        size_bytes: with all that is in it.
        age_s: since it was last changed.
    """

    name: str
    path: Path
    size_bytes: int
    age_s: float


def holdings() -> list[Item]:
    """Return what outputs/ and the cache hold, a run at a time, the largest first."""
    paths = {f"outputs/{path.relative_to(outputs_folder(''))}": path for path in _outputs(outputs_folder(""))}
    paths |= {f"cache/{path.name}": path for path in _children(cache_folder())}
    return sorted((_item(name, path) for name, path in paths.items()), key=lambda item: -item.size_bytes)


def remove(names: list[str]) -> list[Item]:
    """Remove what is named, and return it.

    Args:
        names: as listed, or the beginning of several up to a slash: "outputs/03_late_arrival".

    Raises:
        ParameterError: a name is not in the list; nothing is removed then.
    """
    held = holdings()
    chosen: dict[str, Item] = {}
    for name in names:
        found = [item for item in held if item.name == name.rstrip("/") or item.name.startswith(f"{name.rstrip('/')}/")]
        if not found or not name.strip("/"):
            raise ParameterError(f"{name} is not in the list, so nothing is removed", hint="labkit clean, for the list")
        chosen |= {item.name: item for item in found}
    for item in chosen.values():
        _remove(item.path)
    return list(chosen.values())


def _children(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _outputs(folder: Path) -> list[Path]:
    found: list[Path] = []
    for path in (path for path in _children(folder) if path.name not in _KEPT):
        runs = [] if path.is_symlink() else sorted(record.parent for record in path.glob("*/run.json"))
        runs = [run for run in runs if not run.is_symlink()]
        found += runs or [path]
    return found


def _item(name: str, path: Path) -> Item:
    inside = (
        [] if path.is_symlink() or not path.is_dir() else [each for each in path.rglob("*") if not each.is_symlink()]
    )
    stats = [each.lstat() for each in (path, *inside)]
    size = sum(stat.st_size for stat, each in zip(stats, (path, *inside), strict=True) if not each.is_dir())
    return Item(name, path, size, time.time() - max(stat.st_mtime for stat in stats))


def _remove(path: Path) -> None:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()  # of a link, the link alone
    except OSError as error:
        raise ParameterError(f"{path} can't be removed", why=str(error.strerror)) from None
    for folder in (path.parent,):
        if folder != outputs_folder("") and folder.parent == outputs_folder("") and not any(folder.iterdir()):
            folder.rmdir()


def size_text(size_bytes: float) -> str:
    """Return a size as people say it."""
    for unit in ("B", "KB", "MB"):
        if size_bytes < 1000:
            return f"{size_bytes:.0f} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.1f} GB"


def age_text(age_s: float) -> str:
    """Return an age as people say it."""
    for unit, length_s in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if age_s >= 2 * length_s:
            return f"{age_s // length_s:.0f} {unit}"
    return f"{max(age_s, 0):.0f} seconds"
