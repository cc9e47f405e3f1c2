"""Connections that stamp bytes when they arrive, not when somebody gets round to parsing them.

A stream of a thousand tokens a second keeps a client busy. If a time were taken where a token is parsed,
a client that falls behind would give late times to early tokens, and A's backlog could seem to follow
B's first token. Here the event loop's own callback takes the time; everything that came in one read
shares it. httpcore lets its network be replaced; this one also saves half of a token's CPU time.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import httpcore
import httpx


class _Arrivals(asyncio.Protocol):
    """The event loop's side of a connection: what came, and when."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.reads: deque[tuple[float, bytes]] = deque()
        self.over = False
        self.error: Exception | None = None
        self._waiting: asyncio.Future[None] | None = None

    def data_received(self, data: bytes) -> None:
        self.reads.append((self._clock(), data))
        self._wake()

    def eof_received(self) -> None:
        self.over = True
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.over, self.error = True, exc
        self._wake()

    def _wake(self) -> None:
        if self._waiting and not self._waiting.done():
            self._waiting.set_result(None)

    async def something(self) -> None:
        """Wait until there is a read or the end."""
        while not self.reads and not self.over:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting


class StampedStream(httpcore.AsyncNetworkStream):
    """One connection; `arrived_s` is when the bytes that were read last had arrived."""

    def __init__(self, transport: asyncio.Transport, arrivals: _Arrivals) -> None:
        self._transport, self._arrivals = transport, arrivals
        self.arrived_s: float | None = None

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        arrivals = self._arrivals
        if timeout is None:
            await arrivals.something()
        else:
            try:
                await asyncio.wait_for(arrivals.something(), timeout)
            except TimeoutError:
                raise httpcore.ReadTimeout from None
        if not arrivals.reads:
            if arrivals.error:
                raise httpcore.ReadError(str(arrivals.error))
            return b""
        self.arrived_s, data = arrivals.reads.popleft()
        if len(data) > max_bytes:
            arrivals.reads.appendleft((self.arrived_s, data[max_bytes:]))
        return data[:max_bytes]

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002
        if self._transport.is_closing():
            raise httpcore.WriteError("the connection is closed")
        self._transport.write(buffer)

    async def aclose(self) -> None:
        self._transport.abort()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout):
                transport = await loop.start_tls(
                    self._transport, self._arrivals, ssl_context, server_hostname=server_hostname
                )
        except TimeoutError:
            raise httpcore.ConnectTimeout from None
        except OSError as error:  # an ssl.SSLError is one
            raise httpcore.ConnectError(str(error)) from error
        assert transport is not None
        return StampedStream(transport, self._arrivals)

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable":  # httpcore asks it of idle connections: readable means closed
            return self._arrivals.over or bool(self._arrivals.reads)
        return self._transport.get_extra_info(info)


class StampingBackend(httpcore.AsyncNetworkBackend):
    """Makes stamped connections.

    Args:
        clock: seconds on the run's clock.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,  # noqa: ARG002
        socket_options: Iterable[Any] | None = None,  # noqa: ARG002
    ) -> httpcore.AsyncNetworkStream:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout):
                transport, arrivals = await loop.create_connection(lambda: _Arrivals(self._clock), host, port)
        except TimeoutError:
            raise httpcore.ConnectTimeout from None
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from None
        return StampedStream(transport, arrivals)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class StampingTransport(httpx.AsyncHTTPTransport):
    """httpx's transport on stamped connections.

    Args:
        connections: size of the pool.
        clock: seconds on the run's clock.
        tls: what to trust, for https.
    """

    def __init__(self, *, connections: int, clock: Callable[[], float], tls: ssl.SSLContext | None = None) -> None:
        super().__init__(verify=False, trust_env=False)
        # httpx has no argument for httpcore's network_backend; its own pool holds no connection yet
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=tls,
            max_connections=connections,
            # llama-server may close a connection when a stream is over: a request that waited for it would be lost
            max_keepalive_connections=0,
            network_backend=StampingBackend(clock),
        )


def arrival_clock(response: httpx.Response, clock: Callable[[], float]) -> Callable[[], float]:
    """Return a function that says when the bytes read last had arrived.

    Args:
        response: of a client on a StampingTransport; any other falls back to `clock`.
        clock: seconds on the run's clock.
    """
    stream = response.extensions.get("network_stream")
    if not isinstance(stream, StampedStream):
        return clock
    return lambda: stream.arrived_s if stream.arrived_s is not None else clock()
