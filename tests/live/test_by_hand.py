"""Requests sent by hand on the real engine: recorded like a planned load's, and judged by the same rules."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import labkit as lab
from labkit.measure.by_hand import ByHand, by_hand
from labkit.measure.record import Run, RunData

pytestmark = pytest.mark.live

Hands = Callable[[ByHand, Run], Awaitable[None]]


def recorded(tmp_path: Path, hands: Hands, **parameters: object) -> RunData:
    params = lab.LateArrival(model="toy", control=False, **parameters)

    async def scenario() -> Path:
        run = lab.open_run("03_late_arrival", params, outputs=str(tmp_path))
        async with (
            lab.open_server(params.server(), log_path=run.log_path("treatment"), **params.limits()) as server,
            by_hand(server, run=run, arm="treatment", sampling=params.sampling(), seed=1) as hand,
        ):
            await hands(hand, run)
        run.close()
        return run.folder

    return lab.read_run(asyncio.run(scenario()))


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not true():
            await asyncio.sleep(0.01)


async def a_then_b(hand: ByHand, run: Run) -> None:
    tokens: list[str] = []
    run.listen(lambda stream, row: tokens.append(row["label"]) if stream == "tokens" else None)
    assert hand.send(max_tokens=400) == "A"
    await until(lambda: tokens.count("A") >= 5)
    assert hand.send(max_tokens=16, prompt_length=60) == "B"
    await until(lambda: not hand.running)


def test_a_and_b_sent_by_hand_are_judged_like_any_late_arrival(tmp_path: Path) -> None:
    data = recorded(tmp_path, a_then_b)
    arm = data.run["arms"]["treatment"]
    a, b = arm["planned"]["requests"]
    assert (a["label"], a["after"], a["max_tokens"]) == ("A", None, 400)
    assert b["after"]["label"] == "A"
    assert b["after"]["tokens"] >= 5
    assert 40 <= arm["prompt_tokens"]["B"] <= 80
    assert {row["label"]: row["outcome"] for row in data.requests if not row["warm_up"]} == dict.fromkeys(
        "AB", "completed"
    )
    joined, because = lab.judge_late_arrival(data).checks
    assert joined.status in ("supported", "inconclusive")
    assert because.status == "not_tested"
    assert lab.RunFrames(data).arm_name("treatment") == "by hand"


async def cancelled(hand: ByHand, run: Run) -> None:
    tokens: list[str] = []
    run.listen(lambda stream, row: tokens.append(row["label"]) if stream == "tokens" else None)
    for _ in range(3):
        hand.send(max_tokens=2000 if hand.next_label != "C" else 8)
    await until(lambda: {"A", "B"} <= set(tokens))
    hand.cancel("A")
    hand.cancel("nobody")
    await until(lambda: "C" not in hand.running)


def test_a_cancelled_request_frees_its_slot_and_what_still_runs_at_the_end_is_cancelled(tmp_path: Path) -> None:
    data = recorded(tmp_path, cancelled)
    outcomes = {row["label"]: row["outcome"] for row in data.requests if not row["warm_up"]}
    assert outcomes == {"A": "cancelled", "B": "cancelled", "C": "completed"}
    assert data.run["arms"]["treatment"]["idle_after_s"] is not None
