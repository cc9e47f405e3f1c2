"""Notebook 04 on a real server: as its users run it, attached, and without /metrics."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import labkit as lab
from tests.conftest import PROJECT
from tests.live.lab import quiet
from tests.live.test_papermill import outputs, papermill, record

pytestmark = pytest.mark.live
NOTEBOOK = PROJECT / "notebooks" / "04_metrics_and_gpu.ipynb"
TOY: dict[str, Any] = {"model": "toy", "answer_tokens": 300, "prompt_words": 40, "metrics_hz": 40}


async def load(server: lab.Server, params: lab.MetricsAndGpu, run: lab.Run) -> None:
    plan = lab.metrics_and_gpu_plan(params, server)
    await lab.rehearse(server, plan, run, say=quiet)
    await lab.measure_arm(
        server, plan, run=run, arm="at_once", title="all at once", sampling=params.sampling(), say=quiet
    )


def statuses(run: lab.Run) -> dict[str, str]:
    verdict = lab.judge_metrics_and_gpu(lab.read_run(run.folder))
    return {check.name: check.status for check in verdict.checks}


async def own_and_attached(tmp_path: Path) -> tuple[lab.Run, lab.Run]:
    """Measure one server as ours, without --metrics, and again as somebody else's."""
    mine = lab.MetricsAndGpu(**TOY)
    settings = mine.server(metrics_endpoint=False)
    own = lab.open_run("04_metrics_and_gpu", mine, outputs=str(tmp_path))
    async with lab.open_server(settings, log_path=own.log_path("a"), lock_timeout_s=60, say=quiet) as server:
        await load(server, mine, own)
        allowed = {"engine": server.base_url, "allow_load": True, "max_total_tokens": 100_000}
        theirs = lab.MetricsAndGpu(**TOY | allowed)
        attached = lab.open_run("04_metrics_and_gpu", theirs, outputs=str(tmp_path))
        async with lab.open_server(
            theirs.server(), log_path=attached.log_path("b"), say=quiet, **theirs.limits()
        ) as other:
            await load(other, theirs, attached)
    for run in (own, attached):
        run.close()
    return own, attached


def test_without_metrics_the_rest_is_still_judged_and_it_is_no_pass(tmp_path: Path) -> None:
    own, attached = asyncio.run(own_and_attached(tmp_path))
    found = statuses(own)
    assert found["resident_memory"] == "supported"
    assert {found[name] for name in ("processing", "deferred", "shared_steps")} == {"inconclusive"}
    verdict = lab.judge_metrics_and_gpu(lab.read_run(own.folder))
    assert verdict.status == "inconclusive"
    assert "without --metrics" in verdict.checks[0].why
    frames = lab.RunFrames(lab.read_run(own.folder))
    assert "at most 2 slots busy" in lab.readings.concurrency_reading(frames, "at_once")
    assert lab.counters_table(frames)["meaning"].tolist() == ["the server was started without --metrics"]
    # the same server as somebody else's: nothing but the load is sent, and its memory isn't ours to read
    data = lab.read_run(attached.folder)
    assert not data.metrics
    assert not data.memory
    assert not [row for row in data.requests if row["warm_up"]]
    assert statuses(attached)["resident_memory"] == "not_tested"
    assert statuses(attached)["processing"] == "inconclusive"


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("executed")
    arguments = [word for name, value in TOY.items() for word in ("-p", name, str(value))]
    run = papermill(str(folder / "out.ipynb"), *arguments, "-p", "outputs", str(folder), notebook=NOTEBOOK)
    assert run.returncode == 0, run.stderr[-3000:]
    return folder


@pytest.mark.notebook
def test_the_notebook_runs_and_its_verdict_is_supported(executed: Path) -> None:
    found = record(executed)
    checks = {check["name"]: check for check in found["verdict"]["checks"]}
    assert found["verdict"]["status"] == "supported", checks
    assert {name for name, check in checks.items() if check["status"] == "not_tested"} <= {"gpu_memory"}
    assert found["arms"]["metrics_off"]["answer"]["status"] == 501
    assert set(found["arms"]) == {"at_once", "one_by_one", "metrics_off"}


@pytest.mark.notebook
def test_its_pictures_and_sentences_are_in_the_executed_copy(executed: Path) -> None:
    found = outputs(executed / "out.ipynb")
    assert sum("image/png" in out.get("data", {}) for out in found) == 3
    text = " ".join(out["data"].get("text/plain", "") for out in found if "data" in out)
    for words in ("not exposed by this build", "tokens a call", "Predicted: 300 calls", "predicted_tokens_seconds"):
        assert words in text
