"""A small real-socket server that misbehaves as it is told; speaks enough of llama-server's HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

Handler = Callable[["Exchange"], Awaitable[None]]


class Exchange:
    """One request and the way to answer it, byte by byte."""

    def __init__(self, path: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        self.path, self.body, self._writer = path, body, writer

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.body)  # type: ignore[no-any-return]

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def head(self, status: int = 200, kind: str = "text/event-stream") -> None:
        await self.send(f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nConnection: close\r\n\r\n".encode())

    async def answer(self, body: Any, status: int = 200) -> None:
        await self.head(status, "application/json")
        await self.send(json.dumps(body).encode())

    async def token(self, text: str = "x") -> None:
        await self.event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]})

    async def finish(self) -> None:
        await self.event({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
        await self.send(b"data: [DONE]\n\n")

    async def event(self, body: Any) -> None:
        await self.send(b"data: " + json.dumps(body).encode() + b"\n\n")


async def idle_slots(exchange: Exchange) -> None:
    slot = {"id": 0, "n_ctx": 4096, "speculative": False, "is_processing": False}
    await exchange.answer([slot, slot | {"id": 1}])


async def one_token(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.token()
    await exchange.finish()


async def template(exchange: Exchange) -> None:
    await exchange.answer({"prompt": "a prompt"})


async def tokenize(exchange: Exchange) -> None:
    await exchange.answer({"tokens": [1, 2, 3]})


class FakeServer:
    """Serves on a free loopback port while the block runs.

    Args:
        routes: handlers by path, in place of well-behaved ones.
    """

    def __init__(self, **routes: Handler) -> None:
        known: dict[str, Handler] = {
            "slots": idle_slots,
            "chat": one_token,
            "template": template,
            "tokenize": tokenize,
        }
        paths = {"chat": "/v1/chat/completions", "template": "/apply-template"}
        self.routes = {paths.get(name, f"/{name}"): handler for name, handler in (known | routes).items()}
        self.seen: list[str] = []
        self._open: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> FakeServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.base_url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.drop()
        await asyncio.sleep(0)

    def drop(self) -> None:
        """Cut every connection, as a dying server does."""
        for writer in self._open:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            path = head.split(" ")[1]
            length = next(
                (int(line[15:]) for line in head.split("\r\n") if line.lower().startswith("content-length")), 0
            )
            self.seen.append(path)
            await self.routes[path](Exchange(path, await reader.readexactly(length), writer))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has gone, or drop() was called
        finally:
            self._open.discard(writer)
            writer.close()
