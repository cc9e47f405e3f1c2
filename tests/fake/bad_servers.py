"""Servers that are no good, and what attaching to each must say: one list for the tests and for the table."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from tests.fake.server import MODEL, PROPS, Exchange, FakeServer, Handler

Opened = Callable[[], AbstractAsyncContextManager[str]]


@dataclass(frozen=True)
class BadServer:
    """One way in which a URL can disappoint.

    Args:
        name: what it is, in words.
        open: an async context manager that yields its URL.
        says: a regular expression for the error's sentence, or for a note where attaching works.
        attaches: whether attaching works all the same.
    """

    name: str
    open: Opened
    says: str
    attaches: bool = False


def fake(**routes: Handler) -> Opened:
    @asynccontextmanager
    async def opened() -> AsyncIterator[str]:
        async with FakeServer(**routes) as server:  # type: ignore[arg-type]
            yield server.base_url

    return opened


def answers(status: int, body: str = "", *, kind: str = "text/html", more: str = "") -> Handler:
    async def handler(exchange: Exchange) -> None:
        await exchange.head(status, kind, more)
        await exchange.send(body.encode())

    return handler


def says(body: object) -> Handler:
    async def handler(exchange: Exchange) -> None:
        await exchange.answer(body)

    return handler


def error(status: int, message: str = "") -> Handler:
    async def handler(exchange: Exchange) -> None:
        await exchange.error(status, message)

    return handler


async def hang(exchange: Exchange) -> None:
    await asyncio.sleep(60)


async def huge(exchange: Exchange) -> None:
    await exchange.head(200, "application/json")
    for _ in range(160):
        await exchange.send(b"[" + b" " * 65536)


@asynccontextmanager
async def nothing() -> AsyncIterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    yield f"http://127.0.0.1:{port}"


@asynccontextmanager
async def plain_on_https() -> AsyncIterator[str]:
    async with greeting(b"HTTP/1.1 400 Bad Request\r\n\r\n") as url:
        yield url.replace("http:", "https:")


@asynccontextmanager
async def untrusted() -> AsyncIterator[str]:
    import trustme

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    async with FakeServer(tls=context) as server:
        yield server.base_url


def no_http() -> AbstractAsyncContextManager[str]:
    return greeting(b"SSH-2.0-OpenSSH_9.2\r\n")


@asynccontextmanager
async def greeting(words: bytes) -> AsyncIterator[str]:
    """Serve these bytes to whoever says anything."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(words)
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def entry(name: str, state: str) -> dict[str, object]:
    return MODEL | {"id": name, "status": {"value": state}}


ROUTER_PROPS = {"role": "router", "build_info": "b10156-abc", "model_alias": "llama-server", "model_path": "none"}
MISSING = error(400, "model name is missing from the request")


def router(*entries: dict[str, object], props: Handler | None = None) -> Opened:
    return fake(models=says({"data": list(entries)}), props=props or says(ROUTER_PROPS), slots=MISSING)


VLLM = says({"object": "list", "data": [{"id": "m", "owned_by": "vllm"}]})
OLLAMA = says({"object": "list", "data": [{"id": "m", "owned_by": "library"}]})
LLAMA = "Server: llama.cpp\r\n"

BAD_SERVERS = [
    BadServer("nothing listens there", nothing, r"can't be used: nothing answers there\. Try: is the server running"),
    BadServer("/health hangs", fake(everywhere=hang), r"no answer within the limit"),
    BadServer("503, loading, for ever", fake(everywhere=error(503, "Loading model")), r"not ready within 1 s.*loading"),
    BadServer("401 without a key", fake(props=error(401)), r"wants an API key: 401.*LABKIT_API_KEY"),
    BadServer("403 from a proxy", fake(props=answers(403, more="Server: nginx\r\n")), r"403.*from nginx"),
    BadServer(
        "every path redirects", fake(everywhere=answers(302, more="Location: https://sso/\r\n")), "sends us else"
    ),
    BadServer("https to a plain server", plain_on_https, r"does not speak TLS.*http:// instead of https://"),
    BadServer("a certificate nobody trusts", untrusted, r"certificate is not trusted.*SSL_CERT_FILE"),
    BadServer("no HTTP at all", no_http, r"does not speak HTTP"),
    BadServer("a vLLM server", fake(models=VLLM, props=error(404), slots=error(404)), "not a llama-server.*by vllm"),
    BadServer("an Ollama server", fake(models=OLLAMA, props=error(404), health=error(404)), "not a llama.*by library"),
    BadServer("a web site", fake(everywhere=answers(200, "<html>")), r"not a llama-server.*not JSON \(text/html\)"),
    BadServer("500 everywhere", fake(everywhere=error(500)), r"not a llama-server.*500"),
    BadServer("a router without a model", router(), r"router with 0 models.*load a model there first"),
    BadServer(
        "a router, no model chosen",
        router(entry("org/a:Q4", "loaded"), entry("b", "unloaded")),
        r"router with 2 models, and model = 'smollm2-135m' is none of them.*org/a:Q4, b",
    ),
    BadServer(
        "a router, model not loaded",
        router(entry("smollm2-135m", "unloaded")),
        r"has not loaded smollm2-135m.*unloaded",
    ),
    BadServer(
        "/slots and /props disagree on slots",
        fake(props=says(PROPS | {"total_slots": 4})),
        r"two servers seem to answer",
    ),
    BadServer(
        "/slots and /props disagree on context",
        fake(props=says(PROPS | {"default_generation_settings": {"n_ctx": 512}})),
        r"/slots says 4096 KV cells a slot, /props says 512",
    ),
    BadServer("/slots off (501)", fake(slots=error(501)), r"/slots: 501.*can't be seen who owns a slot", attaches=True),
    BadServer("/slots hidden (404)", fake(slots=error(404)), r"/slots: 404; a proxy may hide it", attaches=True),
    BadServer("/slots is HTML", fake(slots=answers(200, "<html>")), r"/slots: 200, but not JSON", attaches=True),
    BadServer("/slots hangs", fake(slots=hang), r"/slots: no answer within the limit", attaches=True),
    BadServer("/slots of 10 MB", fake(slots=huge), r"/slots: more than 4 MB", attaches=True),
    BadServer("/slots is an object", fake(slots=says({"slots": []})), r"200, but no list of slots", attaches=True),
    BadServer(
        "only /v1 comes through",
        fake(props=error(404), slots=error(404)),
        r"/props: 404: slots, context and build",
        True,
    ),
    BadServer(
        "no /metrics", fake(props=says(PROPS | {"endpoint_metrics": False})), r"without --metrics", attaches=True
    ),
    BadServer(
        "asleep", fake(props=says(PROPS | {"is_sleeping": True})), r"asleep: /slots was not asked", attaches=True
    ),
]
