"""Connections whose answers are parsed in C and stamped when they arrive, not when somebody gets round to them.

A stream of a thousand tokens a second keeps a client busy. If a time were taken where a token is parsed,
a client that falls behind would give late times to early tokens, and A's backlog could seem to follow
B's first token. Here the event loop's own callback takes the time; everything that came in one read
shares it.

On a machine whose cores all decode, the client's own CPU time slows the server down. Through httpx's own
transport and h11 a token costs 330 µs of it on the machine this was made on, through httptools 210 µs;
a poll of /slots 4 ms and 0.6 ms.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import httptools
import httpx

from labkit.measure.stream import Clock

Found = TypeVar("Found")


class Reply(asyncio.Protocol):
    """The event loop's side of one connection: the answer as it comes, and when each piece of it came.

    Args:
        clock: seconds on the run's clock.
        limit_bytes: of a whole body; None: any.
    """

    def __init__(self, clock: Clock, limit_bytes: float | None = None) -> None:
        self._clock, self._limit_bytes = clock, limit_bytes or float("inf")
        self.transport: asyncio.Transport | None = None
        self.open = False
        self._waiting: asyncio.Future[None] | None = None
        self.start()

    def start(self) -> None:
        """Forget the answer before."""
        self._parser = httptools.HttpResponseParser(self)
        self.headers: list[tuple[bytes, bytes]] = []
        self.pieces: deque[tuple[float, bytes]] = deque()
        self.size_bytes = 0
        self.arrived_s: float | None = None
        self.started = self.over = False
        self.error: Exception | None = None

    @property
    def status(self) -> int:
        """Status code of an answer whose headers have come."""
        return int(self._parser.get_status_code())

    async def headers_came(self) -> float | None:
        """Wait for the headers and return when they came.

        Raises:
            OSError: the connection broke; and what httptools raises where there is no HTTP.
        """
        while not self.started:
            await self._something()
        return self.arrived_s

    async def piece(self) -> tuple[float, bytes] | None:
        """Wait for a piece of the body; None at its end. Raises as headers_came()."""
        while not self.pieces:
            if self.over and self.error is None:
                return None
            await self._something()
        return self.pieces.popleft()

    async def whole(self) -> bytes:
        """Wait for the whole body. Raises as headers_came(); OverflowError: it is longer than allowed."""
        while not self.over or self.error:
            await self._something()
        return b"".join(data for _, data in self.pieces)

    async def _something(self) -> None:
        """Wait until something has come, or raise what ended the answer."""
        if self.error:
            raise self.error
        self._waiting = asyncio.get_running_loop().create_future()
        await self._waiting

    def _wake(self) -> None:
        if self._waiting and not self._waiting.done():
            self._waiting.set_result(None)

    def _end(self, error: Exception | None) -> None:
        if not self.over:
            self.over, self.error = True, error
            self._wake()

    # --- of asyncio -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport, self.open = transport, True

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        # an answer of no announced length ends with its connection
        announced = any(name.lower() in (b"content-length", b"transfer-encoding") for name, _ in self.headers)
        if exc is None and self.started and not announced:
            self._end(None)
        else:
            self._end(exc or ConnectionResetError("it hung up in the middle of its answer"))

    def data_received(self, data: bytes) -> None:
        if self.over:
            return
        self.arrived_s = self._clock()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade, UnicodeError) as error:
            self._end(httptools.HttpParserError(str(error)))

    # --- of the parser --------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self.started = True
        self._wake()

    def on_body(self, body: bytes) -> None:
        self.size_bytes += len(body)
        if self.size_bytes > self._limit_bytes:
            self._end(OverflowError())
        else:
            assert self.arrived_s is not None
            self.pieces.append((self.arrived_s, body))
            self._wake()

    def on_message_complete(self) -> None:
        self._end(None)


# --- as httpx's transport ---------------------------------------------------------------------------------


class StampingTransport(httpx.AsyncBaseTransport):
    """httpx's transport with a stamped connection for each request: no keeping, no retries, no limit for a read.

    A connection is not used again: llama-server may close it when a stream is over, and a request that
    waited for it would be lost. A request may carry two extensions: `sent`, called when it leaves; and
    httpx's own `timeout`, of which `connect` counts. `arrived` in a response's extensions says when what
    was read last had arrived.

    Args:
        connections: at once; a request waits for its turn.
        clock: seconds on the run's clock.
        tls: what to trust, for https.
    """

    def __init__(self, *, connections: int, clock: Clock, tls: ssl.SSLContext | None = None) -> None:
        self._turn = asyncio.Semaphore(connections)
        self._clock, self._tls = clock, tls

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await self._turn.acquire()
        body = _Body(Reply(self._clock), self._turn.release)
        try:
            await self._send(request, body.reply)
            body.taken_s = await _answered(body.reply.headers_came())
        except BaseException:
            await body.aclose()
            raise
        reply = body.reply
        return httpx.Response(
            reply.status, headers=reply.headers, stream=body, extensions={"arrived": lambda: body.taken_s}
        )

    async def _send(self, request: httpx.Request, reply: Reply) -> None:
        content = await request.aread()
        await _connect(request, reply, self._tls if request.url.scheme == "https" else None)
        assert reply.transport is not None
        request.extensions.get("sent", lambda: None)()
        reply.transport.write(_head(request) + content)


async def _connect(request: httpx.Request, reply: Reply, tls: ssl.SSLContext | None) -> None:
    url, loop = request.url, asyncio.get_running_loop()
    try:
        async with asyncio.timeout(request.extensions.get("timeout", {}).get("connect")):
            await loop.create_connection(lambda: reply, url.host, url.port or (443 if tls else 80), ssl=tls)
    except TimeoutError:
        raise httpx.ConnectTimeout("no connection within the limit") from None
    except OSError as error:  # an ssl.SSLError is one
        raise httpx.ConnectError(str(error)) from error


def _head(request: httpx.Request) -> bytes:
    lines = [request.method.encode() + b" " + request.url.raw_path + b" HTTP/1.1"]
    lines += [name + b": " + value for name, value in request.headers.raw]
    return b"\r\n".join(lines) + b"\r\n\r\n"


class _Body(httpx.AsyncByteStream):
    """An answer's body, as httpx reads it."""

    def __init__(self, reply: Reply, closed: Callable[[], None]) -> None:
        self.reply, self._closed = reply, closed
        self.taken_s: float | None = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while piece := await _answered(self.reply.piece()):
            self.taken_s, data = piece
            yield data

    async def aclose(self) -> None:
        if self.reply.transport:
            self.reply.transport.abort()
        closed, self._closed = self._closed, lambda: None
        closed()


async def _answered(step: Awaitable[Found]) -> Found:
    """Await a step of a reply, with httpx's errors for what ends it."""
    try:
        return await step
    except (ConnectionResetError, httptools.HttpParserError) as error:
        raise httpx.RemoteProtocolError(str(error)) from None
    except OSError as error:
        raise httpx.ReadError(str(error)) from None
