"""Notebook 03's experiment on the real engine: the verdict must follow the truth."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

import labkit as lab
from labkit.errors import PlanError
from labkit.measure.load import Load
from labkit.measure.observe import SlotSampler
from tests.conftest import ended
from tests.live.lab import TOY, quiet, run_late_arrival

pytestmark = pytest.mark.live


def statuses(verdict: lab.Verdict) -> dict[str, str]:
    return {check.name: check.status for check in verdict.checks}


@pytest.mark.full
def test_the_default_model_supports_both_claims_and_fools_the_naive_criteria(tmp_path: Path) -> None:
    run, verdict = run_late_arrival(tmp_path, model="smollm2-135m", a_tokens=96, b_tokens=16, poll_hz=20.0)
    assert statuses(verdict) == {"joined": "supported", "because": "supported"}, verdict
    data = lab.read_run(run.folder)
    naive = lab.naive_criteria(data)
    assert naive is not None
    # the trap is real on this build: the naive criteria pass the control
    assert naive.polls > 5
    assert naive.two_busy > 0.8 * naive.polls
    assert naive.other_progress > 0.8 * naive.polls


def test_the_toy_supports_both_claims(tmp_path: Path) -> None:
    run, verdict = run_late_arrival(tmp_path)
    assert statuses(verdict) == {"joined": "supported", "because": "supported"}, verdict
    requests = lab.RunFrames(lab.read_run(run.folder)).requests
    # streamed pieces are tokens: the server counts the same
    assert requests["tokens"].tolist() == requests["predicted_n"].tolist() == [1500, 200, 1500, 200]
    assert (requests["cache_n"] == 0).all()


def test_batching_that_is_secretly_off_is_refuted(tmp_path: Path) -> None:
    _, verdict = run_late_arrival(tmp_path, really_on=False)
    assert statuses(verdict) == {"joined": "refuted", "because": "not_tested"}, verdict


def test_an_a_that_ends_before_b_decides_nothing(tmp_path: Path) -> None:
    _, verdict = run_late_arrival(tmp_path, a_tokens=8, control=False)
    assert verdict.status == "inconclusive", verdict


def test_one_slot_decides_nothing_and_says_what_to_change(tmp_path: Path) -> None:
    _, verdict = run_late_arrival(tmp_path, parallel=1, control=False, a_tokens=100)
    assert (verdict.status, verdict.checks[0].hint) == ("inconclusive", "parallel = 2")


def test_late_requests_beyond_the_free_slots_are_outside_the_claim(tmp_path: Path) -> None:
    run, verdict = run_late_arrival(tmp_path, n_late=3)
    assert verdict.status == "supported", verdict
    phases = lab.RunFrames(lab.read_run(run.folder)).phases
    assert (phases["phase"] == "deferred").sum() >= 2


def test_a_model_without_a_chat_template_uses_the_completion_endpoint(tmp_path: Path) -> None:
    from labkit.engine.models import cache_folder
    from labkit.engine.toy import toy_gguf

    path = toy_gguf(cache_folder(), chat_template=False)
    run, verdict = run_late_arrival(tmp_path, model=str(path), control=False)
    planned = lab.read_run(run.folder).run["arms"]["treatment"]["planned"]
    assert {request["endpoint"] for request in planned["requests"]} == {"completion"}
    assert verdict.status == "supported", verdict


def test_without_slots_the_streams_decide(tmp_path: Path) -> None:
    _, verdict = run_late_arrival(tmp_path, slots_endpoint=False, control=False)
    assert verdict.status == "supported", verdict
    assert "/slots does not tell" in verdict.checks[0].observed


def kill_when_decoding(server: lab.Server, how: signal.Signals) -> None:
    """Wait for 100 of the load's tokens, then send the signal; a stopped server is killed a second later."""
    tokens = server.log_path.parent / "tokens.jsonl"
    deadline = time.monotonic() + 60
    while not tokens.exists() or tokens.read_text().count('"warm_up": false') < 100:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(server.process.pid or 0, how)
    if how == signal.SIGSTOP:
        time.sleep(1.0)
        os.kill(server.process.pid or 0, signal.SIGKILL)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_server_killed_in_mid_run_is_inconclusive_and_what_was_seen_is_kept(
    tmp_path: Path, how: signal.Signals
) -> None:
    pids: list[int] = []

    def kill_soon(server: lab.Server) -> None:
        pids.append(server.process.pid or 0)
        threading.Thread(target=kill_when_decoding, args=(server, how), daemon=True).start()

    run, verdict = run_late_arrival(tmp_path, after_start=kill_soon, a_tokens=3900, ctx_size=8192, control=False)
    assert verdict.status == "inconclusive", verdict
    data = lab.read_run(run.folder)
    assert len(data.tokens) > 50
    assert data.run["arms"]["treatment"]["server_alive"] is False
    assert ended(pids[0])


def test_a_context_too_small_for_the_plan_is_refused_before_the_load(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"request A needs .* KV cells, a slot has 512"):
        run_late_arrival(tmp_path, ctx_size=512, control=False)
    (folder,) = (tmp_path / "03_late_arrival").iterdir()
    assert lab.read_run(folder).run["verdict"]["status"] == "not_run"
    assert lab.read_run(folder).requests == []


@pytest.mark.notebook
def test_a_long_prompt_stalls_the_running_stream_once_for_each_batch(tmp_path: Path) -> None:
    stalls = {}
    for batch_size in (1024, 256):
        run, _ = run_late_arrival(
            tmp_path, late_prompt_tokens=2000, batch_size=batch_size, ubatch_size=256, control=False, b_tokens=50
        )
        frames = lab.RunFrames(lab.read_run(run.folder))
        prompt = frames.requests.set_index("label").loc["B", "prompt_n"]
        assert prompt == pytest.approx(2000, rel=0.05)
        stalls[batch_size] = frames.stalls
    # 2,000 prompt tokens: 2 batches of 1,024, 8 of 256; noise may hide a gap under its neighbours
    assert 1 <= len(stalls[1024]) < len(stalls[256])
    assert stalls[256]["gap_s"].max() < stalls[1024]["gap_s"].max()


# --- the key ------------------------------------------------------------------------------------------


def test_a_key_is_used_and_appears_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "labkit-test-key-6bf1"
    monkeypatch.setenv("LABKIT_API_KEY", key)
    seen: list[str] = []

    def look(server: lab.Server) -> None:
        pid = server.process.pid or 0
        for process in (psutil.Process(pid), psutil.Process(psutil.Process(pid).ppid())):
            seen.append(" ".join(process.cmdline()))
        seen.append(repr(psutil.Process(pid).environ()))
        seen.append(repr(server))

    run, verdict = run_late_arrival(tmp_path, after_start=look, control=False)
    assert verdict.status == "supported", verdict
    assert len(seen) == 4
    assert key not in "".join(seen)
    files = [path for path in run.folder.rglob("*") if path.is_file()]
    assert len(files) >= 5
    assert not [path for path in files if key in path.read_text(errors="replace")]


# --- waiting, pinning, leaving ------------------------------------------------------------------------


async def on_server(scene: Any, tmp_path: Path, **settings: Any) -> Any:
    server_settings = lab.ServerSettings(model="toy", **settings)
    async with lab.start_server(
        server_settings, log_path=tmp_path / "server.log", lock_timeout_s=60, say=quiet
    ) as server:
        return await scene(server)


def requests(*changes: dict[str, Any]) -> tuple[lab.RequestPlan, ...]:
    base = {"prompt": "x" * 40, "max_tokens": 600}
    return tuple(
        lab.RequestPlan(**base | {"label": "ABCDEF"[i], "seed": 10 + i} | change) for i, change in enumerate(changes)
    )


async def measured(server: lab.Server, plan: lab.LoadPlan, tmp_path: Path) -> lab.RunFrames:
    run = lab.open_run("x", lab.LateArrival(), outputs=str(tmp_path))
    sampling = lab.SampleSettings(poll_hz=100)
    await lab.measure_arm(server, plan, run=run, arm="treatment", sampling=sampling, say=quiet)
    run.close()
    return lab.RunFrames(lab.read_run(run.folder))


def test_two_requests_pinned_to_one_slot_wait_for_it_and_the_kit_says_so(tmp_path: Path) -> None:
    plan = lab.LoadPlan(requests=requests({"id_slot": 0}, {"id_slot": 0}))
    frames = asyncio.run(on_server(lambda server: measured(server, plan, tmp_path), tmp_path, parallel=4))
    assert frames.requests["slot"].tolist() == [0, 0]
    text = lab.readings.concurrency_reading(frames, "treatment")
    assert "pinned to slot 0 and waited" in text
    assert "while 3 slots were idle" in text


def test_the_same_prompt_again_is_warm_only_when_the_cache_is_used(tmp_path: Path) -> None:
    async def scene(server: lab.Server) -> list[lab.RunFrames]:
        runs = []
        for cached in (True, False):
            # one after the other on one slot: B finds what A has left there
            same = {"prompt": "x" * 60, "cache_prompt": cached, "max_tokens": 8, "id_slot": 0}
            plan = lab.LoadPlan(requests=requests(same, same))
            runs.append(await measured(server, plan, tmp_path))
        return runs

    cached, uncached = [run.requests.sort_values("end_s") for run in asyncio.run(on_server(scene, tmp_path))]
    # the start token is shared with the warm-up
    assert cached["cache_n"].iloc[0] <= 1
    assert cached["cache_n"].iloc[1] >= 50
    assert bool(cached["warm"].iloc[1])
    assert uncached["cache_n"].tolist() == [0, 0]
    assert not uncached["warm"].any()


def test_a_sequential_client_is_recognised(tmp_path: Path) -> None:
    plan = lab.LoadPlan(requests=requests({}, {}, {}, {}), max_connections=1)
    frames = asyncio.run(on_server(lambda server: measured(server, plan, tmp_path), tmp_path, parallel=4))
    assert "client sent one at a time" in lab.readings.concurrency_reading(frames, "treatment")
    waits = sorted(frames.requests["client_wait_s"])
    assert waits[0] < waits[1] < waits[2] < waits[3]


@pytest.mark.parametrize("phase", ["decode", "prefill", "queued"])
def test_a_client_that_leaves_frees_its_slot_and_the_time_is_measured(tmp_path: Path, phase: str) -> None:
    prompt = {"prompt": "x" * (3000 if phase == "prefill" else 40), "max_tokens": 1000 if phase == "prefill" else 3900}
    plan = lab.LoadPlan(requests=requests(*[prompt] * (2 if phase == "queued" else 1)))

    async def scene(server: lab.Server) -> float | None:
        sampling = lab.SampleSettings(poll_hz=100)
        load = Load(plan, arm="treatment", clock=asyncio.get_running_loop().time, keep=lambda *row: None)
        async with SlotSampler(server.address, sampling, asyncio.get_running_loop().time, lambda row: None) as sampler:
            running = asyncio.create_task(load.run(server.address))
            for _ in range(200):
                row = await sampler.poll()
                if row["slots"] and row["slots"][0]["busy"]:
                    break
                await asyncio.sleep(0.005)
            else:
                raise AssertionError("the request never reached its slot")
            await asyncio.sleep(0.2 if phase != "prefill" else 0.0)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            return await sampler.until_idle(10.0)

    idle_after_s = asyncio.run(on_server(scene, tmp_path, parallel=1, ctx_size=4096))
    assert idle_after_s is not None  # the server notices within about 1 s: server-context.cpp


# --- asked and effective ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "slot_cells", "pool_cells", "unified"),
    [
        ({"ctx_size": 4096, "parallel": 4, "kv_unified": False}, 1024, 4096, False),
        ({"ctx_size": 4096, "parallel": 4, "kv_unified": True}, 4096, 4096, True),
        ({"ctx_size": 1024, "parallel": 3, "kv_unified": False}, 512, 1536, False),
        ({"ctx_size": 1000, "parallel": 1, "kv_unified": True}, 1024, 1024, True),
        ({"ctx_size": 2048, "parallel": "auto", "kv_unified": False}, 2048, 2048, True),
        ({"ctx_size": 8192, "parallel": 1, "kv_unified": True}, 4096, 8192, True),
    ],
    ids=["split", "unified", "padded up", "padded", "auto ignores split", "capped"],
)
def test_what_a_server_really_runs_with(
    tmp_path: Path, asked: dict[str, Any], slot_cells: int, pool_cells: int, unified: bool
) -> None:
    async def scene(server: lab.Server) -> dict[str, Any]:
        return server.describe()

    described = asyncio.run(on_server(scene, tmp_path, **asked))
    effective = described["effective"]
    assert (effective["slot_cells"], effective["pool_cells"]) == (slot_cells, pool_cells)
    assert effective["kv_unified"] is unified
    assert effective["slots"] == (4 if asked["parallel"] == "auto" else asked["parallel"])
    notes = " ".join(lab.settings_table(described)["note"])
    assert ("allocated" in notes) == (pool_cells != asked["ctx_size"])
    assert ("capped" in notes) == (slot_cells == 4096 < pool_cells)
    assert ("you asked for split, you got unified" in notes) == (asked["parallel"] == "auto")


def test_a_fresh_servers_first_request_is_taken_wherever_it_ran(tmp_path: Path) -> None:
    plan = lab.LoadPlan(requests=requests({"max_tokens": 8}))

    async def scene(server: lab.Server) -> int | None:
        load = Load(plan, arm="t", clock=asyncio.get_running_loop().time, keep=lambda *row: None)
        (record,) = await load.run(server.address)
        return record.id_slot

    assert asyncio.run(on_server(scene, tmp_path, parallel=4)) in range(4)


def test_a_port_asked_for_is_taken(tmp_path: Path) -> None:
    from labkit.engine.ports import free_port

    port = free_port("127.0.0.1")

    async def scene(server: lab.Server) -> str:
        return server.base_url

    assert asyncio.run(on_server(scene, tmp_path, port=port)) == f"http://127.0.0.1:{port}"


def test_another_host_needs_a_key(tmp_path: Path) -> None:
    async def scene(server: lab.Server) -> None:
        raise AssertionError("a server without a key was started on another address")

    with pytest.raises(lab.LabError, match="needs an API key"):
        asyncio.run(on_server(scene, tmp_path, host="0.0.0.0"))


def test_the_guard_of_this_file_the_toy_is_fast_but_not_too_fast(tmp_path: Path) -> None:
    run, _ = run_late_arrival(tmp_path, control=False)
    frames = lab.RunFrames(lab.read_run(run.folder))
    waiting = frames.slots[(frames.slots["label"] == "A") & frames.slots["busy"]]
    assert len(waiting) >= 5, f"A of {TOY['a_tokens']} tokens is over between two polls"
