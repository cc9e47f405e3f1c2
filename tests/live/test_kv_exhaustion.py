"""05 on a real engine: a pool that runs out, who ends, and what helps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import labkit as lab
from labkit.analyze.kv_exhaustion.cells import ArmCells
from tests.conftest import PROJECT
from tests.live.exhaustion import run_exhaustion
from tests.live.test_papermill import outputs, papermill

pytestmark = pytest.mark.live
FOUR: dict[str, Any] = {"parallel": 4, "ctx_size": 256, "remedies": False}


def pool_check(verdict: lab.Verdict) -> lab.Check:
    return next(check for check in verdict.checks if check.name == "pool")


@pytest.mark.parametrize(
    ("answers", "victims"), [([70, 70, 70, 70], "ABCD"), ([80, 40, 80, 80], ""), ([90, 90, 40, 90], "ABD")]
)
def test_who_runs_when_the_pool_is_full_fails_and_nobody_else(tmp_path: Path, answers: list[int], victims: str) -> None:
    data, verdict = run_exhaustion(tmp_path, answers=answers, **FOUR)
    check = pool_check(verdict)
    assert check.status == "supported", check
    ended = "".join(label for label, end in sorted(ArmCells(data, "together").ends.items()) if end == "pool_exhausted")
    named = "".join(label for moment in check.numbers["moments"] for label in moment["victims"])
    assert ended == named
    if ended != victims:  # how far they overlap is a matter of timing: the cells must say so too
        assert check.numbers["moments"] or check.numbers["peak_cells"] <= 256 + 8
    assert "too long" not in check.claim + check.observed + check.expected


def test_a_pool_that_the_slots_can_not_fill_is_left_out_with_the_reason(tmp_path: Path) -> None:
    data, verdict = run_exhaustion(tmp_path, ctx_size=8192)
    assert verdict.status == "inconclusive"
    assert pool_check(verdict).status == "not_tested"
    assert "2 slots of at most 4,096 cells each can't fill a pool of 8,192" in pool_check(verdict).why
    assert not data.requests


@pytest.mark.full
def test_the_notebook_runs_and_every_claim_is_supported(tmp_path: Path) -> None:
    notebook = PROJECT / "notebooks" / "05_kv_exhaustion.ipynb"
    out = tmp_path / "out.ipynb"
    values = ["-p", "model", "toy", "-p", "poll_hz", "50", "-p", "outputs", str(tmp_path)]
    run = papermill(str(out), *values, notebook=notebook)
    assert run.returncode == 0, run.stderr[-3000:]
    (path,) = tmp_path.rglob("run.json")
    record = json.loads(path.read_text())
    assert record["verdict"]["status"] == "supported", record["verdict"]
    assert {check["status"] for check in record["verdict"]["checks"]} == {"supported"}
    moment = record["verdict"]["checks"][0]["numbers"]["moments"][0]
    assert moment["victims"] == ["A", "B"]
    assert abs(moment["sum"] - 512) <= 4
    assert record["arms"]["together"]["log_lines"]["exceeded"] == 1
    pages = [found["data"]["text/html"] for found in outputs(out) if "text/html" in found.get("data", {})]
    assert "Verdict: supported" in pages[0]
    assert any("2 of 2 requests succeeded (200). In truth 0" in page for page in pages)
    assert sum("image/png" in found.get("data", {}) for found in outputs(out)) == 2


def test_the_notebook_refuses_a_server_that_is_not_ours(tmp_path: Path) -> None:
    notebook = PROJECT / "notebooks" / "05_kv_exhaustion.ipynb"
    out = tmp_path / "out.ipynb"
    run = papermill(str(out), "-p", "engine", "http://127.0.0.1:9", "-p", "outputs", str(tmp_path), notebook=notebook)
    assert run.returncode != 0
    (error,) = [found for found in outputs(out) if found.output_type == "error"]
    assert "would end the running requests of everybody who uses it" in error["traceback"][0]
    assert not list(tmp_path.rglob("run.json"))
