"""The architecture, kept by tests: rooms import leftwards, names are public, the import is light."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import labkit as lab

ROOMS = ["engine", "measure", "analyze", "present"]
EVERYWHERE = {"labkit", "labkit.errors", "labkit.settings"}
# a scripted run is judged and drawn from plain rows: analyze must not reach a server or a client
PURE = {"httpx", "psutil", "subprocess", "socket", "asyncio", "pathlib", "os", "IPython"}


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_from_rooms_to_its_left(project: Path, room: str) -> None:
    allowed = ROOMS[: ROOMS.index(room) + 1]
    for path in (project / "labkit" / room).rglob("*.py"):
        ours = {name for name in imports(path) if name.split(".")[0] == "labkit"} - EVERYWHERE
        assert not {name for name in ours if name.split(".")[1] not in (*allowed, "settings")}, path


def test_analyze_does_no_io(project: Path) -> None:
    for path in (project / "labkit" / "analyze").rglob("*.py"):
        assert not {name.split(".")[0] for name in imports(path)} & PURE, path
        assert not {name for name in imports(path) if name.startswith(("labkit.engine", "labkit.measure"))}, path


def test_public_names_are_sorted_and_all_load() -> None:
    assert list(lab.__all__) == sorted(lab.__all__)
    assert all(getattr(lab, name) is not None for name in lab.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        lab.nonsense  # noqa: B018


def test_importing_labkit_loads_nothing_heavy() -> None:
    script = "import sys, labkit; print(*{'pandas', 'altair', 'httpx', 'gguf', 'scipy', 'IPython'} & set(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == ""


def test_modules_stay_small(project: Path) -> None:
    sizes = {path: len(path.read_text().splitlines()) for path in (project / "labkit").rglob("*.py")}
    assert max(sizes.values()) < 400, max(sizes, key=lambda path: sizes[path])


def test_no_merge_was_left_half_done(project: Path) -> None:
    kinds = (".md", ".py", ".sh", ".toml", ".txt", ".yaml", ".ipynb")
    files = [path for room in ("labkit", "tests", "params", "notebooks") for path in (project / room).rglob("*")]
    for path in [*files, *project.glob("*.*")]:
        if path.suffix in kinds and path.is_file():
            assert not re.search(r"^(<{7}|>{7}) ", path.read_text("utf-8"), re.MULTILINE), path
