"""A small real-socket server that misbehaves as it is told; speaks enough of llama-server's HTTP."""

from __future__ import annotations

import asyncio
import json
import ssl
import urllib.parse
from collections.abc import Awaitable, Callable
from typing import Any

Handler = Callable[["Exchange"], Awaitable[None]]


class Exchange:
    """One request and the way to answer it, byte by byte."""

    def __init__(self, target: str, head: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        self.path, _, query = target.partition("?")
        self.query = dict(urllib.parse.parse_qsl(query))
        self.head_text, self.body, self._writer = head, body, writer

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.body)  # type: ignore[no-any-return]

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def head(self, status: int = 200, kind: str = "text/event-stream", more: str = "") -> None:
        lines = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nConnection: close\r\n{more}\r\n"
        await self.send(lines.encode())

    async def answer(self, body: Any, status: int = 200, more: str = "") -> None:
        await self.head(status, "application/json", more)
        await self.send(json.dumps(body).encode())

    async def error(self, status: int, message: str) -> None:
        await self.answer({"error": {"code": status, "message": message}}, status)

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


async def healthy(exchange: Exchange) -> None:
    await exchange.answer({"status": "ok"})


PROPS = {
    "default_generation_settings": {"n_ctx": 4096},
    "total_slots": 2,
    "model_alias": "m",
    "model_path": "/models/m.gguf",
    "endpoint_slots": True,
    "endpoint_metrics": True,
    "chat_template": "x",
    "build_info": "b10156-abc",
    "is_sleeping": False,
}


async def props(exchange: Exchange) -> None:
    await exchange.answer(PROPS)


MODEL = {"id": "m", "aliases": [], "object": "model", "owned_by": "llamacpp", "meta": {"n_ctx_train": 8192}}


async def models(exchange: Exchange) -> None:
    await exchange.answer({"object": "list", "data": [MODEL]})


METRICS = "# TYPE llamacpp:requests_deferred gauge\nllamacpp:requests_deferred 0\n"


async def metrics(exchange: Exchange) -> None:
    await exchange.head(200, "text/plain")
    await exchange.send(METRICS.encode())


async def not_found(exchange: Exchange) -> None:
    await exchange.error(404, "File Not Found")


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
        otherwise: for any other path.
        everywhere: for every path.
        host: the address to listen on; tls: as an https server.
    """

    def __init__(
        self,
        *,
        otherwise: Handler | None = None,
        everywhere: Handler | None = None,
        host: str = "127.0.0.1",
        tls: ssl.SSLContext | None = None,
        **routes: Handler,
    ) -> None:
        self.otherwise, self.host, self.tls = everywhere or otherwise or not_found, host, tls
        known: dict[str, Handler] = {
            "slots": idle_slots,
            "chat": one_token,
            "template": template,
            "tokenize": tokenize,
            "health": healthy,
            "props": props,
            "models": models,
            "metrics": metrics,
        }
        paths = {"chat": "/v1/chat/completions", "template": "/apply-template", "models": "/v1/models"}
        self.routes = {paths.get(name, f"/{name}"): handler for name, handler in (known | routes).items()}
        if everywhere:
            self.routes.clear()
        self.seen: list[str] = []
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> FakeServer:
        self._server = await asyncio.start_server(self._connected, self.host, 0, ssl=self.tls)
        host = f"[{self.host}]" if ":" in self.host else self.host
        self.base_url = f"http{'s' if self.tls else ''}://{host}:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.drop()
        # a handler that hangs is ended here: cancelled with the event loop it would be reported as an error
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def drop(self) -> None:
        """Cut every connection, as a dying server does."""
        for writer in self._open:
            writer.transport.abort()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            target = head.split(" ")[1]
            length = next(
                (int(line[15:]) for line in head.split("\r\n") if line.lower().startswith("content-length")), 0
            )
            self.seen.append(target)
            exchange = Exchange(target, head, await reader.readexactly(length), writer)
            await self.routes.get(exchange.path, self.otherwise)(exchange)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has gone, or drop() was called
        finally:
            self._open.discard(writer)
            writer.close()
