"""Polls of /slots over a real connection: what a good, a bad, a slow and a hanging server make of a row."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

import labkit as lab
from labkit.engine.http import Address
from labkit.measure.observe import SlotSampler
from labkit.measure.poller import Poller
from tests.fake.bad_servers import answers, error, hang, huge, no_http, nothing, says
from tests.fake.server import Exchange, FakeServer, Handler

SLOT = {"id": 0, "n_ctx": 4096, "is_processing": False}


async def polled(url: str, times: int = 1, **address: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    sampling = lab.SampleSettings(timeout_s=0.4)
    async with SlotSampler(Address(url, **address), sampling, time.perf_counter, rows.append) as sampler:
        for _ in range(times):
            await sampler.poll()
    return rows


def poll(handler: Handler, times: int = 1) -> list[dict[str, Any]]:
    async def scene() -> list[dict[str, Any]]:
        async with FakeServer(slots=handler) as server:
            return await polled(server.base_url, times)

    return asyncio.run(scene())


@pytest.mark.parametrize(
    ("handler", "status", "complaint"),
    [
        (error(501), 501, "/slots is disabled"),
        (error(401), 401, "401: a key is needed"),
        (error(404), 404, "/slots: 404"),
        (answers(302, more="Location: https://u:secret-9@host/?x=secret-9\r\n"), 302, "302 to https://host/"),
        (answers(200, "<html>"), 200, "not JSON"),
        (says({"a": 1}), 200, "not a list of slots"),
        (hang, None, "no answer within the limit"),
        (huge, 200, "more than 4 MB"),
    ],
)
def test_a_poll_that_fails_is_a_row_with_its_reason(handler: Handler, status: int | None, complaint: str) -> None:
    (row,) = poll(handler)
    assert complaint in row["error"]
    assert "secret-9" not in row["error"]
    assert (row["status"], row["slots"]) == (status, None)
    assert row["sent_s"] > 0


def test_a_good_poll_has_both_times() -> None:
    (row,) = poll(says([SLOT]))
    assert row["error"] is None
    assert [slot["id"] for slot in row["slots"]] == [0]
    assert 0 < row["received_s"] - row["sent_s"] < 0.4


@pytest.mark.parametrize(("opened", "complaint"), [(nothing, "nothing answers"), (no_http, "does not speak HTTP")])
def test_what_is_no_server_is_named(opened: Any, complaint: str) -> None:
    async def scene() -> list[dict[str, Any]]:
        async with opened() as url:
            return await polled(url, 2)

    assert [complaint in row["error"] for row in asyncio.run(scene())] == [True, True]


def test_a_server_that_comes_back_is_polled_again() -> None:
    bad = iter([True, False, True, False])

    async def moody(exchange: Exchange) -> None:
        await (exchange.send(b"garbage\r\n\r\n") if next(bad) else exchange.answer([SLOT]))

    assert [row["slots"] is not None for row in poll(moody, 4)] == [False, True, False, True]


async def keeps(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: list[bytes], chunked: bool) -> None:
    """Answer on a kept connection, in pieces; close it after three answers without a word, as a server may."""
    body = b'[{"id": 0, "is_processing": false}]'
    for _ in range(3):
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        if chunked:
            head, body_bytes = b"Transfer-Encoding: chunked", b"23\r\n" + body + b"\r\n0\r\n\r\n"
        else:
            head, body_bytes = b"Content-Length: %d" % len(body), body
        for piece in (b"HTTP/1.1 200 OK\r\n" + head, b"\r\n\r\n" + body_bytes[:9], body_bytes[9:]):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.005)
    writer.close()


@pytest.mark.parametrize("chunked", [True, False])
def test_a_connection_is_kept_and_made_anew_when_the_server_has_closed_it(chunked: bool) -> None:
    asked: list[bytes] = []
    connections = [0]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections[0] += 1
        try:
            await keeps(reader, writer, asked, chunked)
        finally:
            writer.close()

    async def scene() -> list[dict[str, Any]]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/upstream/m"
            return await polled(url, 6, headers={"Authorization": "Bearer k"}, query={"model": "org/m:Q4"})

    assert [row["error"] for row in asyncio.run(scene())] == [None] * 6
    assert connections[0] == 2
    assert asked[0].startswith(b"GET /upstream/m/slots?model=org%2Fm%3AQ4 HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"Authorization: Bearer k" in asked[0]


def test_the_time_is_that_of_the_last_byte() -> None:
    async def late(exchange: Exchange) -> None:
        await exchange.head(200, "application/json")
        await exchange.send(b"[")
        await asyncio.sleep(0.2)
        await exchange.send(b"]")

    async def scene() -> tuple[Any, float | None, float]:
        async with FakeServer(slots=late) as server:
            poller = Poller(Address(server.base_url), "/slots", 1.0, time.perf_counter)
            before_s = time.perf_counter()
            answer, arrived_s = await poller.get()
            await poller.aclose()
            return answer.json, arrived_s, before_s

    found, arrived_s, before_s = asyncio.run(scene())
    assert found == []
    assert arrived_s is not None
    assert arrived_s - before_s >= 0.2
