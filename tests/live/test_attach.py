"""Attached to a real server: what is seen of it, what is claimed, and that it lives on."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import labkit as lab
from labkit.engine import process
from labkit.errors import EngineError
from tests.live.lab import attached_arrival, quiet

pytestmark = pytest.mark.live


def at_server(tmp_path: Path, use: Callable[[lab.Server], Awaitable[Any]], **settings: Any) -> Any:
    """Start a server as somebody else would, `await use(server)`, and end it."""

    async def scene() -> Any:
        server_settings = lab.ServerSettings(model="toy", **settings)
        async with lab.start_server(
            server_settings, log_path=tmp_path / "s.log", lock_timeout_s=60, say=quiet
        ) as server:
            found = await use(server)
            assert server.alive  # whatever was done to it, it was not stopped
            return found

    return asyncio.run(scene())


def test_a_late_request_joins_on_a_server_that_is_not_ours(tmp_path: Path) -> None:
    run, verdict = at_server(tmp_path, lambda server: attached_arrival(server, tmp_path))
    assert verdict.status == "supported", verdict
    assert verdict.checks[1].status == "not_tested"
    data = lab.read_run(run.folder)
    server = data.run["arms"]["treatment"]["server"]
    assert (server["attached"], server["argv"], server["pid"]) == (True, [], None)
    assert server["effective"]["kv_unified"] is None
    assert list(data.run["arms"]) == ["treatment"]
    assert not [row for row in data.requests if row["warm_up"]]


def test_batching_off_is_seen_without_a_control_and_a_command_line_names_it(tmp_path: Path) -> None:
    argv = "llama-server -np 2 -c 4096 -kvu -nocb"
    run, verdict = at_server(
        tmp_path, lambda server: attached_arrival(server, tmp_path, server_argv=argv), cont_batching=False
    )
    assert verdict.status == "refuted", verdict
    server = lab.read_run(run.folder).run["arms"]["treatment"]["server"]
    assert server["effective"]["cont_batching"] is False
    assert server["effective"]["pool_cells"] == 4096


def test_another_client_is_seen_drawn_grey_and_makes_it_inconclusive(tmp_path: Path) -> None:
    run, verdict = at_server(tmp_path, lambda server: attached_arrival(server, tmp_path, foreign=True), parallel=4)
    assert verdict.status == "inconclusive", verdict
    assert "another client uses this server" in verdict.checks[0].why
    frames = lab.RunFrames(lab.read_run(run.folder))
    assert "foreign" in set(frames.slots["label"])
    assert "another client" in lab.slot_lanes(frames, title="x", subtitle=[]).to_json()


def test_a_server_without_slots_and_metrics_is_undecided_and_says_both(tmp_path: Path) -> None:
    async def use(server: lab.Server) -> tuple[lab.Verdict, list[str]]:
        said: list[str] = []
        async with lab.attach_server(server.base_url, say=said.append):
            pass
        return (await attached_arrival(server, tmp_path))[1], said

    verdict, said = at_server(tmp_path, use, slots_endpoint=False, metrics_endpoint=False)
    assert "the server was started without --metrics" in said[1]
    assert "(--no-slots)" in said[0]
    assert verdict.status == "inconclusive"
    assert "/slots can't be read" in verdict.checks[0].why


def test_keys_of_every_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_API_KEY", "right-key-3b")

    async def use(server: lab.Server) -> list[str]:
        found = []
        for key in ("right-key-3b", "", "wrong"):
            monkeypatch.setenv("LABKIT_API_KEY", key)
            try:
                found.append((await attached_arrival(server, tmp_path))[1].status)
            except EngineError as error:
                found.append(str(error))
        return found

    right, none, wrong = at_server(tmp_path, use)
    assert right == "supported"
    assert "wants an API key: 401" in none
    assert "refuses this API key" in wrong
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in files if b"key-3b" in path.read_bytes()]


@asynccontextmanager
async def balancer(*ports: int) -> AsyncIterator[str]:
    """Forward each connection to the next of these ports, as a balancer does."""
    turn = itertools.cycle(ports)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", next(turn))
        await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer), return_exceptions=True)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()


@pytest.mark.full
def test_two_servers_behind_a_balancer_are_never_a_joining(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(first: lab.Server) -> list[lab.Verdict]:
        monkeypatch.setattr(process, "lock_path", lambda: "")  # two engines on purpose: no time is judged here
        settings = lab.ServerSettings(model="toy", cont_batching=False)
        async with lab.start_server(settings, log_path=tmp_path / "second.log", say=quiet) as second:
            ports = [int(server.base_url.rsplit(":", 1)[1]) for server in (first, second)]
            async with balancer(*ports) as url:
                first.base_url = url
                return [(await attached_arrival(first, tmp_path))[1] for _ in range(3)]

    # neither server batches: each request had one to itself, and their tokens came side by side
    verdicts = at_server(tmp_path, use, cont_batching=False)
    assert {verdict.status for verdict in verdicts} <= {"inconclusive", "refuted"}
    assert any("several" in verdict.checks[0].why for verdict in verdicts), verdicts
