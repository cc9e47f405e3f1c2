"""outputs/README.md names every key that run.json is given, and none besides."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import nbformat

import labkit as lab
from labkit.measure.record import STREAMS
from tests.conftest import PROJECT

README = (PROJECT / "outputs" / "README.md").read_text(encoding="utf-8")
# `key`, or `arms.some_arm.key`, in the first column of a table
NAME = re.compile(r"`(arms\.[^.`]+\.)?(\w+)`")


def documented(*, of_an_arm: bool) -> set[str]:
    rows = README.partition("`run.json`, schema version")[2].splitlines()
    cells = [row.split("|")[1] for row in rows if row.startswith("| `")]
    return {name for cell in cells if ("arms." in cell) == of_an_arm for _, name in NAME.findall(cell)}


def noted(method: str) -> set[str]:
    """Return the names of what `run.note(arm, ...)` or `run.update(...)` is given anywhere."""
    notebooks = [nbformat.read(path, as_version=4) for path in (PROJECT / "notebooks").glob("*.ipynb")]
    sources = [cell.source for notebook in notebooks for cell in notebook.cells if cell.cell_type == "code"]
    sources += [path.read_text(encoding="utf-8") for path in (PROJECT / "labkit").rglob("*.py")]
    calls = [node for text in sources for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    return {name for call in calls if ast.unparse(call.func).endswith(f"run.{method}") for name in given(call)}


def given(call: ast.Call) -> Iterator[str]:
    for keyword in call.keywords:
        if keyword.arg:
            yield keyword.arg
        else:  # **{...}
            displays = [node for node in ast.walk(keyword.value) if isinstance(node, ast.Dict)]
            yield from (str(key.value) for d in displays for key in d.keys if isinstance(key, ast.Constant))


def test_every_key_of_an_arm_is_explained_and_none_that_is_gone() -> None:
    assert documented(of_an_arm=True) == noted("note")


def test_every_key_of_a_run_is_explained_and_none_that_is_gone(tmp_path: Path) -> None:
    run = lab.open_run("03_late_arrival", lab.LateArrival(), outputs=str(tmp_path))
    run.close()
    assert documented(of_an_arm=False) == (set(run.fields) | noted("update") | {"recorded"}) - {"arms"}


def test_every_file_of_rows_is_explained() -> None:
    assert set(re.findall(r"`(\w+)\.jsonl` \|", README)) == set(STREAMS)
