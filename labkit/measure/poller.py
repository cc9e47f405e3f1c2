"""A GET that costs little: one kept connection, for an endpoint that is asked many times a second."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from urllib.parse import quote, urlencode

import httptools
import httpx

from labkit.engine.http import ANSWER_LIMIT_BYTES, Address, Answer, answer, problem_of
from labkit.measure.stream import Clock
from labkit.measure.wire import Reply


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
        self._reply: Reply | None = None

    async def get(self) -> tuple[Answer, float | None]:
        """Ask once; return the answer and when its last byte arrived, None if there was none."""
        try:
            async with asyncio.timeout(self._limit_s):
                return await self._exchange()
        except TimeoutError:
            return self._failed("no answer within the limit")
        except OverflowError:
            status = self._reply.status if self._reply else None
            return self._failed(f"more than {ANSWER_LIMIT_BYTES / 1e6:.0f} MB", status)
        except httptools.HttpParserError:
            return self._failed("it does not speak HTTP as asked for, or hung up")
        except (OSError, UnicodeError) as error:
            if isinstance(error, ConnectionResetError | BrokenPipeError):
                return self._failed("it hung up")
            refused = httpx.ConnectError(str(error))
            refused.__cause__ = error
            return self._failed(problem_of(refused))

    async def _exchange(self) -> tuple[Answer, float | None]:
        fresh = self._reply is None or not self._reply.open
        try:
            return await self._asked(await self._connected())
        except ConnectionResetError:
            if fresh:
                raise
        # the kept connection had been closed meanwhile
        self._drop()
        return await self._asked(await self._connected())

    async def _connected(self) -> Reply:
        if self._reply is None or not self._reply.open:
            self._reply = Reply(self._clock, ANSWER_LIMIT_BYTES)
            loop = asyncio.get_running_loop()
            await loop.create_connection(lambda: self._reply, self._host, self._port, ssl=self._tls)
        return self._reply

    async def _asked(self, reply: Reply) -> tuple[Answer, float | None]:
        assert reply.transport is not None
        reply.start()
        reply.transport.write(self._request)
        body = await reply.whole()
        headers = httpx.Headers(reply.headers)
        if headers.get("connection", "").lower() == "close":
            self._drop()
        return answer(reply.status, headers, body), reply.arrived_s

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
