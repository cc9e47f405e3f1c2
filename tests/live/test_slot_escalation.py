"""Notebook 01's experiment on the real engine: the verdict must follow the truth."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import labkit as lab
from labkit.engine.batched_bench import run_bench
from labkit.engine.ports import free_port
from labkit.errors import ParameterError, ServerError
from tests.conftest import PROJECT
from tests.live.escalation import run_slot_escalation, slot_escalation, verdict_of
from tests.live.lab import quiet
from tests.live.shim import make_shim
from tests.live.test_papermill import outputs, papermill

pytestmark = pytest.mark.live
NOTEBOOK = PROJECT / "notebooks" / "01_slot_escalation.ipynb"
SHORT = {"slots_list": [1, 2], "requests_list": [3], "max_tokens": 400}


def statuses(verdict: lab.Verdict) -> dict[str, str]:
    return {check.name: check.status for check in verdict.checks}


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The notebook as its users run it: an executed copy that several tests look at."""
    folder = tmp_path_factory.mktemp("executed")
    typed = "{slots_list: [1, 2], requests_list: [3], model: toy, max_tokens: 400, poll_hz: 50}"
    more = ["-p", "repeats", "1", "-p", "client_pool", "1", "-p", "outputs", str(folder)]
    done = papermill(str(folder / "out.ipynb"), "-y", typed, *more, notebook=NOTEBOOK)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "out.ipynb"


@pytest.fixture(scope="module")
def data(executed: Path) -> Any:
    """The record of that run."""
    (folder,) = (executed.parent / "01_slot_escalation").iterdir()
    return lab.read_run(folder)


@pytest.mark.notebook
def test_the_verdict_stands_at_the_top_and_a_command_line_above_it(executed: Path) -> None:
    found = outputs(executed)
    pages = [out["data"]["text/html"] for out in found if "text/html" in out.get("data", {})]
    assert "Verdict: supported" in pages[0]
    assert pages[0] == pages[-1]
    assert "slots_list: [1, 2]" in pages[0]
    assert sum("image/png" in out.get("data", {}) for out in found) == 4
    text = "".join(out["text"] for out in found if out.output_type == "stream")
    assert "llama-server --model" in text
    assert executed.stat().st_size < 1_000_000


@pytest.mark.notebook
def test_every_claim_of_every_step_holds(data: Any) -> None:
    verdict = lab.judge_slot_escalation(data)
    assert verdict.status == "supported", verdict
    found = statuses(verdict)
    assert {name for name, status in found.items() if status != "supported"} == {"speed"}
    busy = {check.name: check.observed for check in verdict.checks}
    assert busy["busy_2"] == "1 request: 1 of 1; 3 requests: 2 of 2"
    assert busy["deferred_1"] == "1 request: at most 0 deferred; 3 requests: at most 2 deferred"
    assert busy["deferred_2"] == "1 request: at most 0 deferred; 3 requests: at most 1 deferred"


@pytest.mark.notebook
def test_each_step_is_a_fresh_server_and_nothing_is_warm(data: Any) -> None:
    steps = [arm for arm in data.run["arms"].values() if arm["step"]["kind"] == "step"]
    assert len({arm["server"]["pid"] for arm in steps}) == 2
    assert [arm["server"]["effective"]["slots"] for arm in steps] == [1, 1, 2, 2]
    assert [arm["server"]["effective"]["pool_cells"] for arm in steps] == [1024, 1024, 2048, 2048]
    requests = lab.RunFrames(data).requests
    assert (requests["cache_n"] == 0).all()


@pytest.mark.notebook
def test_the_answer_is_shown_and_not_kept(data: Any) -> None:
    assert len(data.requests) > 8
    assert all(row["text"] is None and row["prompt"] is None for row in data.requests)
    assert all("text" not in row for row in data.tokens)
    digests = [arm.get("answer_sha256") for arm in data.run["arms"].values() if arm["step"]["requests"] == 1]
    assert all(digests)


@pytest.mark.notebook
def test_the_small_pool_is_no_finding_about_the_server(data: Any) -> None:
    text = lab.slot_readings.small_pool_reading(lab.RunFrames(data), "small-client-pool")
    assert "3 requests on 2 slots, yet at most 1 slots were ever busy and 0 requests deferred" in text
    assert {row["outcome"] for row in data.requests if row["arm"] == "small-client-pool"} == {"completed"}
    assert lab.passed_steps(data) == [1, 2]


@pytest.mark.notebook
def test_a_command_line_is_recommended_and_the_wheel_has_no_ceiling(data: Any) -> None:
    frames = lab.RunFrames(data)
    found = lab.recommend_slots(frames)
    assert found.slots == 2
    assert "--parallel 2" in found.command
    assert "no llama-batched-bench" in lab.slot_readings.ceiling_reading(frames)


@pytest.mark.full
def test_a_step_that_gets_fewer_slots_stops_the_escalation(tmp_path: Path) -> None:
    shim = make_shim(tmp_path, SHIM_SLOTS="1")
    # a port of its own: without one a start is tried again, since somebody could have taken the port
    port = free_port("127.0.0.1")
    run = run_slot_escalation(tmp_path, engine=str(shim), port=port, **SHORT | {"requests_list": [1]})
    data = lab.read_run(run.folder)
    assert data.run["step_failures"]["2"]["kind"] == "SlotCountError"
    assert statuses(verdict_of(run))["slots_2"] == "refuted"
    assert "Go back to 1 slot" in lab.step_outcome(data, 2).text


def test_answers_too_short_to_be_seen_stop_it_as_undecided(tmp_path: Path) -> None:
    run = run_slot_escalation(tmp_path, slots_list=[2, 4], requests_list=[2], max_tokens=2, poll_hz=5)
    verdict = verdict_of(run)
    assert verdict.status == "inconclusive", verdict
    assert any("max_tokens" in check.hint for check in verdict.checks)
    assert statuses(verdict)["step_4"] == "not_tested"


@pytest.mark.full
def test_a_server_killed_in_mid_step_is_not_a_finding(tmp_path: Path) -> None:
    def kill_soon(run: lab.Run, slots: int) -> None:
        if slots == 2:
            asyncio.get_running_loop().create_task(_kill_when_decoding(run))

    run = run_slot_escalation(tmp_path, before_step=kill_soon, **SHORT | {"requests_list": [2], "max_tokens": 900})
    verdict = verdict_of(run)
    assert verdict.status == "inconclusive", verdict
    assert lab.passed_steps(lab.read_run(run.folder)) == [1]


async def _kill_when_decoding(run: lab.Run) -> None:
    tokens = run.folder / "tokens.jsonl"
    for _ in range(2000):
        if tokens.exists() and '"arm": "slots2-requests1-run1", "label": "A", "warm_up": false' in tokens.read_text():
            os.kill(run.fields["arms"]["slots2-requests1-run1"]["server"]["pid"], signal.SIGKILL)
            return
        await asyncio.sleep(0.01)


def test_a_server_that_is_not_ours_is_one_step(tmp_path: Path) -> None:
    async def scene() -> lab.Run:
        settings = lab.ServerSettings(model="toy", parallel=2, ctx_size=4096)
        async with lab.start_server(settings, log_path=tmp_path / "s.log", lock_timeout_s=60, say=quiet) as server:
            url: dict[str, Any] = {"engine": server.base_url, "requests_list": [3], "max_tokens": 400}
            with pytest.raises(ParameterError, match="allow_load = True"):
                await slot_escalation(tmp_path / "refused", **url)
            with pytest.raises(ParameterError, match="max_total_tokens = "):
                await slot_escalation(tmp_path / "limits", **url, allow_load=True, max_total_tokens=1000)
            run = await slot_escalation(tmp_path, **url, allow_load=True, repeats=3, small_pool=True)
            assert server.alive
            return run

    run = asyncio.run(scene())
    verdict = verdict_of(run)
    assert verdict.status == "supported", verdict
    found = statuses(verdict)
    assert found["escalation"] == found["slots_2"] == "not_tested"
    data = lab.read_run(run.folder)
    assert len(data.requests) == 4
    assert "its owner's" in lab.recommend_slots(lab.RunFrames(data)).text


def test_a_first_step_without_room_is_refused_by_the_planner(tmp_path: Path) -> None:
    run = run_slot_escalation(tmp_path, ctx_size=256, max_tokens=400, slots_list=[1, 2])
    data = lab.read_run(run.folder)
    assert data.requests == []
    found = statuses(verdict_of(run))
    assert (found["fits_1"], found["step_2"]) == ("inconclusive", "not_tested")


# --- the ceiling ------------------------------------------------------------------------------------------


def bench(tmp_path: Path, code: str) -> list[Any]:
    tool = tmp_path / "llama-batched-bench"
    tool.write_text(f"#!{sys.executable}\n{code}\n")
    tool.chmod(0o755)
    return asyncio.run(run_bench([str(tool)], log_path=tmp_path / "bench.log", limit_s=1.0, say=quiet))


def test_the_bench_is_run_and_read(tmp_path: Path) -> None:
    rows = bench(tmp_path, """print('{"pp": 50, "tg": 32, "pl": 4, "t_pp": 0.8, "t_tg": 1.2}')""")
    assert [(row.sequences, row.tokens_per_s) for row in rows] == [(4, 64.0)]


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("raise SystemExit(1)", "ended with exit code 1"),
        ("print('no table')", "gave no ceiling"),
        ("import time; time.sleep(60)", "took more than 1 s"),
    ],
)
def test_a_bench_that_fails_or_hangs_is_one_sentence(tmp_path: Path, code: str, sentence: str) -> None:
    with pytest.raises(ServerError) as caught:
        bench(tmp_path, code)
    assert sentence in str(caught.value)
