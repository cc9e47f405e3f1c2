"""Stamped connections: times of arrival, ends, limits, errors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpcore
import httpx
import pytest

from labkit.engine.ports import free_port
from labkit.measure.wire import StampedStream, StampingBackend, StampingTransport, arrival_clock

Talk = Callable[[asyncio.StreamWriter], Awaitable[None]]


def connected(talk: Talk, scene: Callable[[StampedStream], Awaitable[Any]]) -> Any:
    """Run `scene` on a connection to a server that does `talk`."""

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await talk(writer)
        finally:
            writer.close()

    async def run() -> Any:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            stream = await StampingBackend(time.perf_counter).connect_tcp(*server.sockets[0].getsockname())
            assert isinstance(stream, StampedStream)
            try:
                return await scene(stream)
            finally:
                await stream.aclose()
                await asyncio.sleep(0)

    return asyncio.run(run())


async def three_pieces(writer: asyncio.StreamWriter) -> None:
    for piece in (b"one", b"two", b"three"):
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0.1)


def test_a_reader_that_comes_late_learns_when_bytes_arrived() -> None:
    async def scene(stream: StampedStream) -> list[tuple[bytes, float | None]]:
        await asyncio.sleep(0.5)
        return [(await stream.read(100), stream.arrived_s) for _ in range(3)]

    (one, first_s), (two, second_s), (three, third_s) = connected(three_pieces, scene)
    assert (one, two, three) == (b"one", b"two", b"three")
    assert second_s - first_s > 0.05
    assert third_s - second_s > 0.05


def test_a_read_takes_no_more_than_it_asked_for_and_keeps_the_time() -> None:
    async def scene(stream: StampedStream) -> tuple[list[bytes], set[float | None]]:
        pieces, stamps = [], set()
        for _ in range(2):
            pieces.append(await stream.read(2))
            stamps.add(stream.arrived_s)
        return pieces, stamps

    pieces, stamps = connected(three_pieces, scene)
    assert pieces == [b"on", b"e"]
    assert len(stamps) == 1


async def end_at_once(writer: asyncio.StreamWriter) -> None:
    writer.write(b"x")
    await writer.drain()


def test_the_end_of_a_connection_is_an_empty_read() -> None:
    async def scene(stream: StampedStream) -> list[bytes]:
        return [await stream.read(10), await stream.read(10), await stream.read(10)]

    assert connected(end_at_once, scene) == [b"x", b"", b""]


def test_a_connection_that_is_over_is_not_used_again() -> None:
    async def scene(stream: StampedStream) -> tuple[bool, bool]:
        fresh = stream.get_extra_info("is_readable")
        await asyncio.sleep(0.2)
        return fresh, stream.get_extra_info("is_readable")

    assert connected(end_at_once, scene)[1] is True


def test_a_broken_connection_is_an_error() -> None:
    async def abort(writer: asyncio.StreamWriter) -> None:
        import socket
        import struct

        # RST instead of FIN
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    async def scene(stream: StampedStream) -> None:
        with pytest.raises(httpcore.ReadError):
            await stream.read(10)
        with pytest.raises(httpcore.WriteError):
            await stream.write(b"x")

    connected(abort, scene)


async def silence(_: asyncio.StreamWriter) -> None:
    await asyncio.sleep(0.5)


def test_a_read_keeps_its_limit() -> None:
    async def scene(stream: StampedStream) -> None:
        with pytest.raises(httpcore.ReadTimeout):
            await stream.read(10, timeout=0.05)

    connected(silence, scene)


def test_a_port_where_nobody_listens_is_a_connect_error() -> None:
    async def scene() -> None:
        transport = StampingTransport(connections=1, clock=time.perf_counter)
        async with httpx.AsyncClient(transport=transport) as client:
            with pytest.raises(httpx.ConnectError):
                await client.get(f"http://127.0.0.1:{free_port('127.0.0.1')}/")

    asyncio.run(scene())


def test_httpx_uses_the_stamped_connection() -> None:
    # the guard of the one private attribute that wire.py sets: another httpx may ignore it
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await writer.drain()
        writer.close()

    async def scene() -> tuple[float, float]:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            transport = StampingTransport(connections=1, clock=lambda: 42.0)
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
            async with httpx.AsyncClient(transport=transport) as client, client.stream("GET", url) as response:
                stamped = arrival_clock(response, lambda: 0.0)()
            plain = arrival_clock(httpx.Response(200), lambda: 7.0)()
        return stamped, plain

    assert asyncio.run(scene()) == (42.0, 7.0)
