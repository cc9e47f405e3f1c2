"""Load and observation against a server that misbehaves."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import labkit as lab
from labkit.engine.effective import Effective
from labkit.engine.http import Address
from labkit.errors import RecordError
from labkit.measure import experiment
from labkit.measure.load import Load
from labkit.measure.observe import SlotSampler
from labkit.measure.stream import RequestRecord
from labkit.settings import After
from tests.fake.server import Exchange, FakeServer


def plan(*requests: dict[str, Any], **limits: Any) -> lab.LoadPlan:
    defaults = {"prompt": "hi", "max_tokens": 4}
    made = [
        lab.RequestPlan(**defaults | {"label": "ABCDEFGH"[i % 8] + str(i // 8 or ""), "seed": i + 1} | request)
        for i, request in enumerate(requests)
    ]
    return lab.LoadPlan(requests=tuple(made), **limits)


async def load(
    server: FakeServer, load_plan: lab.LoadPlan
) -> tuple[list[RequestRecord], list[tuple[str, dict[str, Any]]]]:
    rows: list[tuple[str, dict[str, Any]]] = []
    running = Load(load_plan, arm="treatment", clock=time.perf_counter, keep=lambda *row: rows.append(row))
    return await running.run(Address(server.base_url)), rows


def serve(scene: Callable[[FakeServer], Awaitable[Any]], **routes: Any) -> Any:
    async def run() -> Any:
        async with FakeServer(**routes) as server:
            return await scene(server)

    return asyncio.run(run())


# --- the client is not the queue ----------------------------------------------------------------------


def test_many_requests_may_wait_long_without_a_client_limit() -> None:
    # httpx would give up after 5 s, and open 100 connections at most
    async def hold(exchange: Exchange) -> None:
        await asyncio.sleep(6)
        await exchange.head()
        await exchange.token()
        await exchange.finish()

    records, _ = serve(lambda server: load(server, plan(*[{}] * 120)), chat=hold)
    assert [record.outcome for record in records] == ["completed"] * 120
    # all were sent while the first was held
    assert max(record.sent_s for record in records) < min(record.end_s for record in records)


def test_a_smaller_pool_is_seen_as_the_clients_own_wait() -> None:
    async def hold(exchange: Exchange) -> None:
        await asyncio.sleep(0.3)
        await exchange.head()
        await exchange.token()
        await exchange.finish()

    records, _ = serve(lambda server: load(server, plan({}, {}, {}, max_connections=1)), chat=hold)
    one, two, three = sorted(records, key=lambda record: record.sent_s)
    assert one.end_s <= two.sent_s
    assert two.end_s <= three.sent_s
    # the wait is seen as the client's: all were planned before the first was over
    assert max(record.planned_s for record in records) < one.end_s
    assert [record.outcome for record in records] == ["completed"] * 3


def test_nothing_is_sent_twice() -> None:
    async def refuse(exchange: Exchange) -> None:
        await exchange.answer({"error": {"code": 500, "message": "no"}}, status=500)

    async def scene(server: FakeServer) -> tuple[list[str], list[str]]:
        records, _ = await load(server, plan({}, {}, {}, {}))
        return [record.outcome for record in records], server.seen

    outcomes, seen = serve(scene, chat=refuse)
    assert outcomes == ["server_error"] * 4
    assert len(seen) == 4


def test_a_proxy_of_the_environment_does_not_apply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    records, _ = serve(lambda server: load(server, plan({})))
    assert records[0].outcome == "completed"


def test_the_same_calls_work_in_several_loops_and_in_a_thread() -> None:
    outcomes = []

    def run() -> None:
        records, _ = serve(lambda server: load(server, plan({}, {})))
        outcomes.extend(record.outcome for record in records)

    run()
    run()
    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    assert outcomes == ["completed"] * 6


# --- staging ------------------------------------------------------------------------------------------


def test_a_late_request_is_sent_when_the_early_one_has_come_so_far() -> None:
    async def stream(exchange: Exchange) -> None:
        await exchange.head()
        for _ in range(exchange.json["max_tokens"]):
            await exchange.token()
            await asyncio.sleep(0.03)
        await exchange.finish()

    late = {"after": After(label="A", tokens=3)}
    records, rows = serve(lambda server: load(server, plan({"max_tokens": 12}, late, late)), chat=stream)
    times = [row["at_s"] for name, row in rows if name == "tokens" and row["label"] == "A"]
    for record in records[1:]:
        assert record.planned_s is not None
        assert times[2] <= record.planned_s < times[6]
    assert [record.tokens for record in records] == [12, 4, 4]


def test_a_late_request_can_be_sent_by_time() -> None:
    records, _ = serve(lambda server: load(server, plan({}, {"at_s": 0.3})))
    assert records[1].planned_s - records[0].planned_s >= 0.299


def test_an_early_request_that_never_starts_does_not_hold_the_late_one_for_ever() -> None:
    async def silent(exchange: Exchange) -> None:
        await exchange.head()
        await asyncio.sleep(1.0)
        await exchange.finish()

    late = {"after": After(label="A", tokens=1)}
    records, _ = serve(lambda server: load(server, plan({}, late, start_timeout_s=0.2)), chat=silent)
    assert records[1].outcome == "not_sent"
    assert records[1].sent_s is None
    assert "A was over, or had not started in time" in (records[1].error or "")


def test_an_early_request_that_ends_too_soon_releases_who_waits() -> None:
    records, _ = serve(lambda server: load(server, plan({}, {"after": After(label="A", tokens=9)})))
    assert [record.outcome for record in records] == ["completed", "not_sent"]


# --- servers that stop working ------------------------------------------------------------------------


async def wedge(exchange: Exchange) -> None:
    await exchange.head()
    for _ in range(5):
        await exchange.token()
    await asyncio.sleep(30)


def test_a_server_that_stops_decoding_is_given_up_with_what_it_gave() -> None:
    records, rows = serve(lambda server: load(server, plan({}, stall_timeout_s=0.5)), chat=wedge)
    assert (records[0].outcome, records[0].tokens) == ("stalled", 5)
    assert "server not making progress" in (records[0].error or "")
    assert "after 5 tokens" in (records[0].error or "")
    assert len([row for name, row in rows if name == "tokens"]) == 5


def test_pings_are_signs_of_life() -> None:
    async def pinging(exchange: Exchange) -> None:
        await exchange.head()
        for _ in range(8):
            await exchange.send(b":\n\n")
            await asyncio.sleep(0.2)
        await exchange.token()
        await exchange.finish()

    records, _ = serve(lambda server: load(server, plan({}, stall_timeout_s=1.2)), chat=pinging)
    assert (records[0].outcome, records[0].pings, records[0].tokens) == ("completed", 8, 1)


def test_a_server_that_dies_in_the_middle_leaves_a_record() -> None:
    async def scene(server: FakeServer) -> RequestRecord:
        async def die() -> None:
            await asyncio.sleep(0.3)
            server.drop()

        dying = asyncio.create_task(die())
        records, _ = await load(server, plan({}))
        await dying
        return records[0]

    record = serve(scene, chat=wedge)
    assert (record.outcome, record.tokens, record.status) == ("disconnected", 5, 200)
    assert record.end_s is not None


def test_a_server_that_is_not_there_is_a_record_too() -> None:
    async def scene(server: FakeServer) -> RequestRecord:
        server.base_url = "http://127.0.0.1:9"
        records, _ = await load(server, plan({}))
        return records[0]

    record = serve(scene)
    assert record.outcome == "disconnected"
    assert "ConnectError" in (record.error or "")


# --- watching -----------------------------------------------------------------------------------------


async def watch(server: FakeServer, seconds: float, **settings: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    sampling = lab.SampleSettings(**settings)
    async with SlotSampler(Address(server.base_url), sampling, time.perf_counter, rows.append) as sampler:
        watching = asyncio.create_task(sampler.run())
        await asyncio.sleep(seconds)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    return rows


def test_polls_that_hang_are_cut_by_their_own_limit() -> None:
    async def hang(exchange: Exchange) -> None:
        await asyncio.sleep(30)

    rows = serve(lambda server: watch(server, 0.75, poll_hz=20, timeout_s=0.2), slots=hang)
    assert len(rows) >= 2
    assert {row["error"] for row in rows} == {"no answer within the limit"}


def test_slow_polls_are_not_doubled() -> None:
    running = most = 0

    async def slow(exchange: Exchange) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.2)
        running -= 1
        await exchange.answer([])

    rows = serve(lambda server: watch(server, 0.9, poll_hz=50), slots=slow)
    assert most == 1
    assert all(row["received_s"] - row["sent_s"] >= 0.19 for row in rows)


# --- a whole arm --------------------------------------------------------------------------------------


def lab_server(server: FakeServer) -> Any:
    effective = Effective(2, 4096, True, 4096, 2048, 512, None, True, True)
    return SimpleNamespace(
        address=Address(server.base_url, model_id="m"),
        key=None,
        effective=effective,
        build={},
        attached=False,
        process=None,
        attach=None,
        alive=True,
        log_path=None,
        require_load_allowed=lambda: None,
        describe=lambda: {"effective": {"slots": 2}},
    )


def measure(tmp_path: Path, before: Callable[[lab.Run], None] = lambda run: None, **routes: Any) -> lab.Run:
    run = lab.open_run("x", lab.LateArrival(), outputs=str(tmp_path))
    before(run)

    async def scene(server: FakeServer) -> None:
        sampling = lab.SampleSettings(poll_hz=50, timeout_s=0.2)
        await lab.measure_arm(
            lab_server(server),
            plan({}, stall_timeout_s=0.9),
            run=run,
            arm="treatment",
            sampling=sampling,
            say=lambda _: None,
        )

    try:
        serve(scene, **routes)
    finally:
        run.close()
    return run


def test_an_arm_is_recorded_with_warm_up_and_polls(tmp_path: Path) -> None:
    data = lab.read_run(measure(tmp_path).folder)
    assert [row["warm_up"] for row in data.requests] == [True, True, False]
    assert all(row["arm"] == "treatment" for row in data.slots)
    assert data.run["arms"]["treatment"]["quiet_after_s"] is not None
    assert "prompt" not in data.run["arms"]["treatment"]["planned"]["requests"][0]


def test_slow_slots_do_not_make_a_wedged_server_while_tokens_flow(tmp_path: Path) -> None:
    async def slow_slots(exchange: Exchange) -> None:
        await asyncio.sleep(0.15)
        await exchange.answer([])

    async def slow_stream(exchange: Exchange) -> None:
        await exchange.head()
        for _ in range(4):
            await asyncio.sleep(0.25)
            await exchange.token()
        await exchange.finish()

    data = lab.read_run(measure(tmp_path, slots=slow_slots, chat=slow_stream).folder)
    assert {row["outcome"] for row in data.requests} == {"completed"}


def test_a_wedged_server_is_named_with_what_slots_said_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "IDLE_LIMIT_S", 0.5)  # it will not be idle again
    # healthy, five tokens, then nothing from the stream and nothing from /slots
    wedged = asyncio.Event()

    async def then_silent(exchange: Exchange) -> None:
        if wedged.is_set():
            await asyncio.sleep(60)
        slot = {"id": 0, "is_processing": True, "id_task": 1, "next_token": [{"n_decoded": 5}]}
        first = {"id": 0, "is_processing": False}
        await exchange.answer([slot if then_silent.asked else first])  # type: ignore[attr-defined]
        then_silent.asked += 1  # type: ignore[attr-defined]

    then_silent.asked = 0  # type: ignore[attr-defined]

    async def five(exchange: Exchange) -> None:
        await exchange.head()
        warm_up = exchange.json["max_tokens"] == 16
        for _ in range(5):
            await exchange.token()
        await asyncio.sleep(0.1)
        if warm_up:
            await exchange.finish()
            return
        wedged.set()
        await asyncio.sleep(60)

    last = lab.read_run(measure(tmp_path, slots=then_silent, chat=five).folder).requests[-1]
    assert (last["outcome"], last["tokens"]) == ("stalled", 5)
    assert "after 5 tokens of this one; /slots last said: slot 0 busy, 5 tokens decoded" in last["error"]


def test_a_long_prefill_that_slots_show_is_no_stall(tmp_path: Path) -> None:
    processed = 0

    async def moving(exchange: Exchange) -> None:
        nonlocal processed
        processed += 1
        slot = {
            "id": 0,
            "is_processing": True,
            "id_task": 1,
            "params": {"seed": 1},
            "n_prompt_tokens_processed": processed,
        }
        await exchange.answer([slot if processed > 2 else slot | {"is_processing": False}])

    async def late(exchange: Exchange) -> None:
        await exchange.head()
        await asyncio.sleep(1.2 if exchange.json["seed"] == 1 else 0.0)
        await exchange.token()
        await exchange.finish()
        nonlocal processed
        processed = 0 if exchange.json["seed"] == 1 else processed

    data = lab.read_run(measure(tmp_path, slots=moving, chat=late).folder)
    assert data.requests[-1]["outcome"] == "completed"


def test_disabled_slots_leave_the_streams(tmp_path: Path) -> None:
    async def disabled(exchange: Exchange) -> None:
        await exchange.answer({"error": {"code": 501}}, status=501)

    data = lab.read_run(measure(tmp_path, slots=disabled).folder)
    assert data.requests[-1]["outcome"] == "completed"
    assert {row["slots"] for row in data.slots} == {None}
    assert "disabled" in data.slots[0]["error"]


@pytest.mark.parametrize("stream", ["slots", "tokens", "requests"])
def test_a_full_disk_ends_the_arm_with_one_clear_error(tmp_path: Path, stream: str) -> None:
    def fill(run: lab.Run) -> None:
        (run.folder / f"{stream}.jsonl").symlink_to("/dev/full")

    with pytest.raises(RecordError, match="No space left on device"):
        measure(tmp_path, fill)
