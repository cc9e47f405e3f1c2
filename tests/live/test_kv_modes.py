"""Notebook 02 on the real engine: cells by rule on real servers, and the experiment as the notebook runs it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import labkit as lab
from labkit.analyze.ledger import ledger
from labkit.errors import EngineError
from tests.bench.context_matrix import measured
from tests.conftest import PROJECT
from tests.live.lab import quiet

pytestmark = pytest.mark.live
COMBINATIONS = [
    {"ctx_size": 1000, "parallel": 3, "kv_unified": False},  # rounded up, though the log says down
    {"ctx_size": 1000, "parallel": 3, "kv_unified": True},
    {"ctx_size": 4096, "parallel": "auto", "kv_unified": False},  # the flag is ignored
    {"ctx_size": 9000, "parallel": 1, "kv_unified": True},  # capped to the training context
    {"ctx_size": 9000, "parallel": 2, "kv_unified": False},
    {"ctx_size": 200, "parallel": 6, "kv_unified": False},
]


@pytest.mark.parametrize("asked", COMBINATIONS, ids=lambda asked: "-".join(str(value) for value in asked.values()))
def test_real_servers_have_what_the_rule_gives(tmp_path: Path, asked: dict[str, Any]) -> None:
    row = asyncio.run(measured("embedded", "toy", asked, tmp_path))
    assert row.measured == row.rule
    assert row.kv_agrees


async def experiment(tmp_path: Path, **parameters: Any) -> tuple[lab.RunFrames, lab.Verdict]:
    params = lab.KvModes(**{"model": "toy", "ctx_size": 2048, "poll_hz": 50.0} | parameters)
    run = lab.open_run("02_kv_unified_vs_split", params, outputs=str(tmp_path))
    await lab.start_kv_servers(params, run, say=quiet)
    if not lab.kv_stop_reason(lab.read_run(run.folder)):
        await lab.load_kv_servers(params, run, say=quiet)
    run.close()
    data = lab.read_run(run.folder)
    return lab.RunFrames(data), lab.judge_kv_modes(data)


def test_when_both_modes_give_the_same_nothing_is_sent(tmp_path: Path) -> None:
    frames, verdict = asyncio.run(experiment(tmp_path, ctx_size=8192, equal_per_slot=False))
    assert verdict.status == "inconclusive"
    assert not frames.data.requests
    (hint,) = {check.hint for check in verdict.checks if check.status == "inconclusive" and check.name != "auto"}
    assert hint == "ctx_size = 4096, or any below it"


def test_a_cap_for_each_slot_is_refused_by_name_where_the_build_has_none(tmp_path: Path) -> None:
    async def scene() -> None:
        settings = lab.ServerSettings(model="toy", parallel=4, ctx_size=1024, kv_unified_per_slot=256)
        async with lab.open_server(settings, log_path=tmp_path / "log", lock_timeout_s=60, say=quiet):
            raise AssertionError("this build is not known to have it")

    with pytest.raises(EngineError, match="does not know kv_unified_per_slot"):
        asyncio.run(scene())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of the notebook, executed once; strict, so that it fails unless its verdict is supported."""
    outputs = tmp_path_factory.mktemp("executed")
    command = [
        sys.executable, "-m", "papermill", "notebooks/02_kv_unified_vs_split.ipynb", str(outputs / "out.ipynb"),
        "-p", "model", "toy", "-p", "ctx_size", "1024", "-p", "max_tokens", "60", "-p", "poll_hz", "200",
        "-p", "outputs", str(outputs), "-p", "strict", "True", "--no-progress-bar",
    ]  # fmt: skip
    run = subprocess.run(command, cwd=PROJECT, env=os.environ, capture_output=True, text=True, timeout=150, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    (made,) = (outputs / "02_kv_unified_vs_split").iterdir()
    return made


@pytest.mark.notebook
def test_the_notebook_runs_and_every_claim_holds(folder: Path) -> None:
    verdict = lab.read_run(folder).run["verdict"]
    found = {check["name"]: check["status"] for check in verdict["checks"]}
    assert found.pop("gpu_memory") in ("supported", "not_tested")
    assert list(found.values()) == ["supported"] * 7
    assert {"ledger.vl.json", "lengths.vl.json", "memory.vl.json"} <= {path.name for path in folder.iterdir()}


@pytest.mark.notebook
def test_one_pool_serves_what_no_box_does(folder: Path) -> None:
    frames = lab.RunFrames(lab.read_run(folder))
    long = frames.requests[frames.requests["arm"].isin(["unified_long", "split_long"])].set_index("arm")
    assert long["status"].to_dict() == {"unified_long": 200, "split_long": 400}
    assert "exceed_context_size_error" in long.loc["split_long", "error"]
    assert lab.kv_readings.kv_choice(frames).mode == "unified"


@pytest.mark.notebook
def test_the_guard_of_this_file_the_ledger_was_seen_filled(folder: Path) -> None:
    frames = lab.RunFrames(lab.read_run(folder))
    held = ledger(frames, "unified").dropna(subset=["label"])
    assert held["label"].nunique() >= 3, "the requests are over between two polls"
