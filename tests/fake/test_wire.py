"""Stamped connections: times of arrival, turns, ends and errors."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest

from labkit.engine.ports import free_port
from labkit.measure.wire import StampingTransport

Talk = Callable[[asyncio.StreamWriter], Awaitable[None]]
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@contextlib.asynccontextmanager
async def talking(talk: Talk, asked: list[bytes] | None = None) -> AsyncIterator[str]:
    """A server that takes a request's headers in and then does `talk`."""

    talks: list[Any] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talks.append(asyncio.current_task())
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if asked is not None:
                asked.append(head)
            await talk(writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        for task in talks:
            task.cancel()
        await asyncio.gather(*talks)
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def client(connections: int = 1, **more: Any) -> AsyncIterator[httpx.AsyncClient]:
    transport = StampingTransport(connections=connections, clock=time.perf_counter)
    async with httpx.AsyncClient(transport=transport, **more) as made:
        yield made


async def write(writer: asyncio.StreamWriter, *pieces: bytes, pause_s: float = 0.0) -> None:
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(pause_s)


async def three_chunks(writer: asyncio.StreamWriter) -> None:
    await write(writer, CHUNKED, b"3\r\none\r\n", b"3\r\ntwo\r\n", b"5\r\nthree\r\n0\r\n\r\n", pause_s=0.1)


def taken(talk: Talk, late_s: float = 0.0) -> tuple[list[tuple[bytes, float]], float]:
    """Return what came, each piece with its time, and when the headers did."""

    async def scene() -> tuple[list[tuple[bytes, float]], float]:
        async with talking(talk) as url, client() as http, http.stream("GET", url) as response:
            headers_s = response.extensions["arrived"]()
            await asyncio.sleep(late_s)
            return [(data, response.extensions["arrived"]()) async for data in response.aiter_raw()], headers_s

    return asyncio.run(scene())


def test_a_reader_that_comes_late_learns_when_each_piece_arrived() -> None:
    pieces, headers_s = taken(three_chunks, late_s=0.6)
    assert [data for data, _ in pieces] == [b"one", b"two", b"three"]
    times = [headers_s, *(at_s for _, at_s in pieces)]
    assert all(later - earlier > 0.05 for earlier, later in itertools.pairwise(times))
    assert times[-1] - times[0] < 0.5


def test_pieces_of_one_read_share_its_time() -> None:
    async def at_once(writer: asyncio.StreamWriter) -> None:
        await write(writer, CHUNKED + b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n")

    pieces, headers_s = taken(at_once)
    assert [data for data, _ in pieces] == [b"one", b"two"]
    assert {at_s for _, at_s in pieces} == {headers_s}


def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    async def old(writer: asyncio.StreamWriter) -> None:
        await write(writer, b"HTTP/1.1 200 OK\r\n\r\nall of it")

    assert b"".join(data for data, _ in taken(old)[0]) == b"all of it"


async def reset(writer: asyncio.StreamWriter) -> None:
    # RST instead of FIN
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def half(writer: asyncio.StreamWriter) -> None:
    await write(writer, CHUNKED, b"3\r\none\r\n")


async def broken_chunk(writer: asyncio.StreamWriter) -> None:
    await write(writer, CHUNKED, b"3\r\none\r\nthis is no length\r\n")


async def garbage(writer: asyncio.StreamWriter) -> None:
    await write(writer, b"220 mail.example ESMTP\r\n")


@pytest.mark.parametrize("talk", [reset, half, broken_chunk, garbage])
def test_an_answer_that_breaks_off_is_an_error_of_httpx(talk: Talk) -> None:
    seen = []

    async def scene() -> None:
        async with talking(talk) as url, client() as http, http.stream("GET", url) as response:
            async for data in response.aiter_raw():
                seen.append(data)

    with pytest.raises(httpx.RemoteProtocolError):
        asyncio.run(scene())
    assert seen == ([b"one"] if talk in (half, broken_chunk) else [])


def test_a_port_where_nobody_listens_is_a_connect_error() -> None:
    async def scene() -> None:
        async with client() as http:
            with pytest.raises(httpx.ConnectError):
                await http.get(f"http://127.0.0.1:{free_port('127.0.0.1')}/")

    asyncio.run(scene())


def test_a_connection_that_does_not_come_about_has_a_limit() -> None:
    async def scene() -> None:
        with socket.socket() as full:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            address = full.getsockname()
            with socket.socket() as first, socket.socket() as second:
                # nobody accepts: the queue is full, a further connection gets no answer
                for one in (first, second):
                    one.setblocking(False)
                    one.connect_ex(address)
                async with client(timeout=httpx.Timeout(None, connect=0.2)) as http:
                    with pytest.raises(httpx.ConnectTimeout):
                        await http.get(f"http://127.0.0.1:{address[1]}/")

    asyncio.run(scene())


def test_a_request_says_when_it_leaves_and_carries_what_httpx_gave_it() -> None:
    asked: list[bytes] = []
    left: list[float] = []

    async def scene() -> tuple[float, float]:
        async with talking(three_chunks, asked) as url, client(params={"model": "org/m"}) as http:
            before_s = time.perf_counter()
            extensions = {"sent": lambda: left.append(time.perf_counter())}
            async with http.stream("POST", url, json={"a": 1}, extensions=extensions) as response:
                return before_s, response.extensions["arrived"]()

    before_s, headers_s = asyncio.run(scene())
    assert before_s < left[0] < headers_s
    assert len(left) == 1
    assert asked[0].startswith(b"POST /?model=org%2Fm HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"Content-Length: 7\r\n" in asked[0]


# --- turns ------------------------------------------------------------------------------------------------


async def never(_writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(30.0)


@pytest.mark.parametrize("how", ["cancelled", "refused", "closed early"])
def test_a_request_that_ends_gives_its_turn_to_the_next(how: str) -> None:
    async def one(http: httpx.AsyncClient, url: str) -> None:
        if how == "cancelled":
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    await http.get(url)
        elif how == "refused":
            with pytest.raises(httpx.ConnectError):
                await http.get(f"http://127.0.0.1:{free_port('127.0.0.1')}/")
        else:
            async with http.stream("GET", url) as response:
                assert response.status_code == 200

    async def scene() -> str:
        async with talking(never if how == "cancelled" else three_chunks) as url, client() as http:
            await one(http, url)
            async with talking(three_chunks) as good, asyncio.timeout(5.0):
                return (await http.get(good)).text

    assert asyncio.run(scene()) == "onetwothree"


def test_no_more_requests_are_under_way_than_there_are_connections() -> None:
    under_way, most = [0], [0]

    async def counted(writer: asyncio.StreamWriter) -> None:
        under_way[0] += 1
        most[0] = max(most[0], under_way[0])
        await asyncio.sleep(0.05)
        under_way[0] -= 1
        await write(writer, CHUNKED, b"0\r\n\r\n")

    async def scene() -> None:
        async with talking(counted) as url, client(connections=2) as http:
            await asyncio.gather(*[http.get(url) for _ in range(6)])

    asyncio.run(scene())
    assert most[0] == 2


def test_hanging_up_reaches_the_server() -> None:
    gone: list[bool] = []

    async def noticing(writer: asyncio.StreamWriter) -> None:
        await write(writer, CHUNKED)
        try:
            await write(writer, *[b"3\r\none\r\n"] * 100, pause_s=0.02)
        except ConnectionError:
            gone.append(True)
            raise

    async def scene() -> None:
        async with talking(noticing) as url:
            async with client() as http, http.stream("GET", url) as response:
                assert await anext(response.aiter_raw()) == b"one"
            await asyncio.sleep(0.3)

    asyncio.run(scene())
    assert gone == [True]
