"""Requests sent by hand through a panel's session, to a server that somebody else started."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import labkit as lab
from labkit.measure.record import RunData
from labkit.present.controls.experiments import EXPERIMENTS
from labkit.present.controls.session import OFF, READY, Session
from tests.fake.server import Exchange, FakeServer

Hands = Callable[[Session], Awaitable[None]]


async def endless(exchange: Exchange) -> None:
    await exchange.head()
    while True:
        await exchange.token()
        await asyncio.sleep(0.01)


async def reached(session: Session, state: str) -> None:
    async with asyncio.timeout(20):
        while session.state != state:
            await asyncio.sleep(0.01)


def played(tmp_path: Path, hands: Hands, limits: dict[str, Any], **routes: Any) -> tuple[Session, RunData]:
    """Start a session on a fake server, let `hands` act, stop it, and read its record."""

    async def scenario() -> Session:
        async with FakeServer(**routes) as fake:
            params = lab.LateArrival(engine=fake.base_url, outputs=str(tmp_path), control=False, **limits)
            experiment = EXPERIMENTS["03_late_arrival"]
            session = Session("03_late_arrival", experiment, show=lambda _f, _r: None, changed=lambda: None)
            session.start(params, params.server(), params.limits())
            await reached(session, READY)
            await hands(session)
            session.stop()
            await reached(session, OFF)
            return session

    session = asyncio.run(scenario())
    assert session.run
    return session, lab.read_run(session.run.folder)


async def one(session: Session) -> None:
    assert session.hand
    session.hand.send(max_tokens=1)
    while session.hand.running:
        await asyncio.sleep(0.01)


def test_stop_leaves_a_whole_record(tmp_path: Path) -> None:
    session, data = played(tmp_path, one, {"allow_load": True})
    arm = data.run["arms"]["treatment"]
    assert session.trouble == ""
    assert [request["label"] for request in arm["planned"]["requests"]] == ["A"]
    assert {"load_start_s", "load_end_s", "idle_after_s", "server_alive"} <= set(arm)
    assert data.requests[0]["outcome"] == "completed"


def test_stop_in_mid_answer_cancels_it_and_leaves_a_whole_record(tmp_path: Path) -> None:
    async def in_the_middle(session: Session) -> None:
        assert session.hand
        session.hand.send(max_tokens=900)
        await asyncio.sleep(0.5)

    session, data = played(tmp_path, in_the_middle, {"allow_load": True}, chat=endless)
    assert session.trouble == ""
    assert data.requests[0]["outcome"] == "cancelled"
    assert "planned" in data.run["arms"]["treatment"]


def test_no_more_is_sent_than_its_owner_allowed(tmp_path: Path) -> None:
    async def two(session: Session) -> None:
        await one(session)
        await one(session)

    session, data = played(tmp_path, two, {"allow_load": True, "max_requests": 1})
    assert len(data.requests) == 1
    assert any("the load needs max_requests = 2, 1 are allowed" in line for line in session.lines)


def test_without_leave_nothing_is_sent(tmp_path: Path) -> None:
    async def scenario() -> tuple[Session, list[str]]:
        async with FakeServer() as fake:
            params = lab.LateArrival(engine=fake.base_url, outputs=str(tmp_path), control=False)
            experiment = EXPERIMENTS["03_late_arrival"]
            session = Session("03_late_arrival", experiment, show=lambda _f, _r: None, changed=lambda: None)
            session.start(params, params.server(), params.limits())
            await reached(session, OFF)
            return session, fake.seen

    session, seen = asyncio.run(scenario())
    assert "allow_load = True" in session.trouble
    assert "/v1/chat/completions" not in seen
