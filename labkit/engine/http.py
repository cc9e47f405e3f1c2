"""The one way in which this kit makes an HTTP client, and looks at an endpoint that may be anything."""

from __future__ import annotations

import asyncio
import json
import ssl
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import httpx

from labkit.engine.untrusted import place, shown

# 256 slots of llama-server make half a megabyte
ANSWER_LIMIT_BYTES = 4_000_000
NOBODY = "nothing answers there"


@cache
def trusted() -> ssl.SSLContext:
    """Return the machine's trust store; $SSL_CERT_FILE adds a private authority (OpenSSL's own variable)."""
    return ssl.create_default_context()


@dataclass(frozen=True)
class Address:
    """Where a server answers, and what every request to it carries.

    Args:
        base_url: without a slash at the end.
        headers: the place of the key.
        query: what a router wants in every URL.
        model_id: what requests call the model.
    """

    base_url: str
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    query: dict[str, str] = field(default_factory=dict)
    model_id: str = ""

    @property
    def tls(self) -> ssl.SSLContext | None:
        """What to trust, for https; None for plain HTTP: loading the trust store costs 40 ms of CPU."""
        return trusted() if self.base_url.lower().startswith("https:") else None


def http_client(
    address: Address, *, timeout_s: float | httpx.Timeout, transport: httpx.AsyncBaseTransport | None = None
) -> httpx.AsyncClient:
    """Return a client without proxies, retries or hidden limits; made where it is used, for one event loop.

    Args:
        address: of the server.
        timeout_s: limit for each step of a request, or httpx's limits by step.
        transport: in place of httpx's own.
    """
    return httpx.AsyncClient(
        base_url=address.base_url,
        headers=address.headers,
        params=address.query,
        timeout=timeout_s,
        transport=transport,
        trust_env=False,
        verify=address.tls or False,
    )


@dataclass(frozen=True)
class Answer:
    """What an endpoint answered, or why it didn't.

    Args:
        status: HTTP status; None without an answer.
        body: its bytes, at most ANSWER_LIMIT_BYTES.
        kind: its content type.
        server: its Server header.
        location: where it redirects to.
        problem: in words, when there was no usable answer at all.
    """

    status: int | None = None
    body: bytes = b""
    kind: str = ""
    server: str = ""
    location: str = ""
    problem: str = ""

    @cached_property
    def json(self) -> Any:
        """The decoded body of a 200; None if there is none or it isn't JSON."""
        if self.status != 200:
            return None
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    @property
    def text(self) -> str:
        """What came, in a few words."""
        if self.problem:
            return self.problem
        if self.status == 200:
            return "200" if self.json is not None else f"200, but not JSON ({self.kind or 'no content type'})"
        return f"{self.status}" + (f" to {self.location}" if self.location else "")


def answer(status: int, headers: httpx.Headers, body: bytes) -> Answer:
    """Return an answer with what its headers say, made harmless."""
    location = place(headers["location"]) if "location" in headers else ""
    return Answer(status, body, shown(headers.get("content-type", "")), shown(headers.get("server", "")), location)


async def look(client: httpx.AsyncClient, path: str, query: dict[str, str] | None = None) -> Answer:
    """GET an endpoint without believing anything of it: no redirect is followed, a huge or slow answer is cut off.

    Args:
        client: of http_client(); its limit for a read holds for the whole answer.
        path: below the client's base URL.
        query: parameters of the URL.
    """
    # the client's limit is for each read: a body that drips would never end
    limit_s = client.timeout.read
    try:
        async with asyncio.timeout(limit_s), client.stream("GET", path, params=query or None) as reply:
            body = b""
            async for chunk in reply.aiter_bytes():
                body += chunk
                if len(body) > ANSWER_LIMIT_BYTES:
                    return Answer(reply.status_code, problem=f"more than {ANSWER_LIMIT_BYTES / 1e6:.0f} MB")
            return answer(reply.status_code, reply.headers, body)
    except (httpx.TimeoutException, TimeoutError):
        return Answer(problem="no answer within the limit")
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
        return Answer(problem=problem_of(error))


def problem_of(error: Exception) -> str:
    """Say what kept a connection from coming about or ended it, in words."""
    tls = next((cause for cause in _causes(error) if isinstance(cause, ssl.SSLError)), None)
    if isinstance(tls, ssl.SSLCertVerificationError):
        return f"its TLS certificate is not trusted ({tls.verify_message})"
    if tls is not None or "SSL" in str(error):
        return "it does not speak TLS as asked for"
    if isinstance(error, httpx.ConnectError):
        return NOBODY
    if isinstance(error, httpx.RemoteProtocolError):
        return "it does not speak HTTP as asked for, or hung up"
    return type(error).__name__


def _causes(error: BaseException | None) -> list[BaseException]:
    causes = []
    while error is not None:
        causes.append(error)
        error = error.__cause__ or error.__context__
    return causes
