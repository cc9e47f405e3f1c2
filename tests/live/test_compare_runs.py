"""06 on real runs of 03: what differs is named, and the notebook finds the runs by itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import labkit as lab
from tests.conftest import PROJECT
from tests.live.lab import run_late_arrival
from tests.live.test_papermill import outputs, papermill

pytestmark = pytest.mark.live
SHORT: dict[str, Any] = {"a_tokens": 400, "b_tokens": 60, "seed": 5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of 03 that differ in their slots."""
    found = tmp_path_factory.mktemp("compared")
    for parallel in (2, 3):
        run, verdict = run_late_arrival(found, parallel=parallel, **SHORT)
        run.update(verdict=verdict.to_dict())
    return found


@pytest.mark.notebook
def test_two_runs_differ_in_what_was_changed_alone(folder: Path) -> None:
    sides = lab.read_sides(lab.CompareRuns(outputs=str(folder)))
    comparison = lab.compared(sides.before, sides.after, changed="auto", tolerance_percent=10)
    assert comparison.found == ["parallel"]
    assert comparison.blocking == [], comparison.blocking
    assert set(comparison.pairs["label"]) == {"A", "B"}
    assert comparison.pairs["wait_s_before"].notna().all()
    assert set(comparison.changes) == {"ttft", "wait", "itl", "rate"}


@pytest.mark.notebook
def test_the_notebook_finds_the_runs_compares_them_and_says_so(folder: Path) -> None:
    out = folder / "out.ipynb"
    notebook = PROJECT / "notebooks" / "06_compare_runs.ipynb"
    run = papermill(str(out), "-p", "outputs", str(folder), notebook=notebook)
    assert run.returncode == 0, run.stderr[-3000:]
    (path,) = (folder / "06_compare_runs").rglob("run.json")
    record = json.loads(path.read_text())
    checks = {check["name"]: check["status"] for check in record["verdict"]["checks"]}
    assert checks["comparable"] == "supported"
    assert checks["answered"] == "supported"
    # two loads give no interval
    assert {checks[name] for name in ("ttft", "wait", "itl", "rate")} == {"inconclusive"}
    pages = [found["data"]["text/html"] for found in outputs(out) if "text/html" in found.get("data", {})]
    assert "Verdict: inconclusive" in pages[0]
    assert f"-p before {folder}" in pages[0]
    assert sum("image/png" in found.get("data", {}) for found in outputs(out)) == 2


@pytest.mark.full
def test_the_notebook_says_in_a_sentence_when_there_is_nothing_to_compare(tmp_path: Path) -> None:
    out = tmp_path / "out.ipynb"
    notebook = PROJECT / "notebooks" / "06_compare_runs.ipynb"
    run = papermill(str(out), "-p", "outputs", str(tmp_path), notebook=notebook)
    assert run.returncode != 0
    (error,) = [found for found in outputs(out) if found.output_type == "error"]
    assert "there are no two finished run folders of one notebook" in error["traceback"][0]
