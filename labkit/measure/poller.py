"""A GET that costs little: one kept connection, parsed in C, for an endpoint that is asked 20 times a second.

On a machine whose cores all decode, the client's own CPU time slows the server down: through httpx and h11
a poll of /slots costs about 4 ms of it on the machine this was made on, through httptools 0.6 ms.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from urllib.parse import quote, urlencode

import httptools
import httpx

from labkit.engine.http import ANSWER_LIMIT_BYTES, Address, Answer, problem_of
from labkit.engine.untrusted import place, shown
from labkit.measure.stream import Clock


class _Reply(asyncio.Protocol):
    """One connection: feeds what arrives to the parser, and notes when an answer is complete."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.transport: asyncio.Transport | None = None
        self.open = False
        self.complete: asyncio.Future[None] | None = None
        self.start()

    def start(self) -> None:
        """Forget the answer before."""
        self._parser = httptools.HttpResponseParser(self)
        self.headers: dict[str, str] = {}
        self.body: list[bytes] = []
        self.size_bytes = 0
        self._headers_came = False
        self.arrived_s: float | None = None

    def answer(self) -> Answer:
        """Return what came."""
        headers = self.headers
        return Answer(
            self._parser.get_status_code(),
            b"".join(self.body),
            shown(headers.get("content-type", "")),
            shown(headers.get("server", "")),
            place(headers["location"]) if "location" in headers else "",
        )

    # --- of asyncio -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport, self.open = transport, True

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        # an answer of no announced length ends with its connection
        announced = {"content-length", "transfer-encoding"} & set(self.headers)
        if exc is None and self._headers_came and not announced:
            self.on_message_complete()
        else:
            self._end(exc or ConnectionResetError("hung up"))

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, UnicodeError) as error:
            self._end(error)

    # --- of the parser --------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._headers_came = True

    def on_body(self, body: bytes) -> None:
        self.size_bytes += len(body)
        if self.size_bytes > ANSWER_LIMIT_BYTES:
            self._end(OverflowError())
        else:
            self.body.append(body)

    def on_message_complete(self) -> None:
        self.arrived_s = self._clock()
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        if self.complete and not self.complete.done():
            if error:
                self.complete.set_exception(error)
            else:
                self.complete.set_result(None)


class Poller:
    """Asks one path again and again over one connection; makes a new one when the server has closed it.

    Args:
        address: of the server.
        path: what is asked for.
        limit_s: for a whole answer.
        clock: seconds on the run's clock.
    """

    def __init__(self, address: Address, path: str, limit_s: float, clock: Clock) -> None:
        url = httpx.URL(address.base_url)
        self._host, self._port = url.host, url.port or {"https": 443}.get(url.scheme, 80)
        self._tls = address.tls
        self._limit_s, self._clock = limit_s, clock
        self._request = _request(url, path, address)
        self._reply: _Reply | None = None

    async def get(self) -> tuple[Answer, float | None]:
        """Ask once; return the answer and when its last byte arrived, None if there was none."""
        try:
            async with asyncio.timeout(self._limit_s):
                reply = await self._exchange()
                return reply.answer(), reply.arrived_s
        except TimeoutError:
            return self._failed("no answer within the limit")
        except OverflowError:
            status = self._reply.answer().status if self._reply else None
            return self._failed(f"more than {ANSWER_LIMIT_BYTES / 1e6:.0f} MB", status)
        except httptools.HttpParserError:
            return self._failed("it does not speak HTTP as asked for, or hung up")
        except (OSError, UnicodeError) as error:
            if isinstance(error, ConnectionResetError | BrokenPipeError):
                return self._failed("it hung up")
            refused = httpx.ConnectError(str(error))
            refused.__cause__ = error
            return self._failed(problem_of(refused))

    async def _exchange(self) -> _Reply:
        fresh = self._reply is None or not self._reply.open
        try:
            return await self._asked(await self._connected())
        except ConnectionResetError:
            if fresh:
                raise
        # the kept connection had been closed meanwhile
        self._drop()
        return await self._asked(await self._connected())

    async def _connected(self) -> _Reply:
        if self._reply is None or not self._reply.open:
            loop = asyncio.get_running_loop()
            _, self._reply = await loop.create_connection(
                lambda: _Reply(self._clock), self._host, self._port, ssl=self._tls
            )
        return self._reply

    async def _asked(self, reply: _Reply) -> _Reply:
        assert reply.transport is not None
        reply.start()
        reply.complete = asyncio.get_running_loop().create_future()
        reply.transport.write(self._request)
        try:
            await reply.complete
        finally:
            reply.complete = None
        if reply.headers.get("connection", "").lower() == "close":
            self._drop()
        return reply

    def _failed(self, problem: str, status: int | None = None) -> tuple[Answer, float | None]:
        self._drop()  # half an answer may still come on it
        return Answer(status, problem=problem), None

    def _drop(self) -> None:
        if self._reply and self._reply.transport:
            self._reply.transport.abort()
        self._reply = None

    async def aclose(self) -> None:
        """Close the connection."""
        self._drop()
        with suppress(RuntimeError):
            await asyncio.sleep(0)


def _request(url: httpx.URL, path: str, address: Address) -> bytes:
    query = f"?{urlencode(address.query, quote_via=quote, safe='')}" if address.query else ""
    lines = [f"GET {url.raw_path.decode().rstrip('/')}{path}{query} HTTP/1.1", f"Host: {url.netloc.decode()}"]
    lines += [f"{name}: {value}" for name, value in {"Accept": "*/*", **address.headers}.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
