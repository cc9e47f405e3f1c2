"""The one way in which this kit makes an HTTP client."""

from __future__ import annotations

import ssl
from functools import cache

import httpx


@cache
def _trusted() -> ssl.SSLContext:
    return ssl.create_default_context()


def http_client(base_url: str, *, headers: dict[str, str] | None = None, timeout_s: float) -> httpx.AsyncClient:
    """Return a client without proxies, retries or hidden limits; made where it is used, for one event loop.

    Args:
        base_url: of the server.
        headers: sent with every request; the place of the key.
        timeout_s: limit for each step of a request.
    """
    # loading the trust store costs 40 ms of CPU a client: not for plain HTTP, once for TLS
    verify = _trusted() if base_url.startswith("https") else False
    return httpx.AsyncClient(
        base_url=base_url, headers=headers or {}, timeout=timeout_s, trust_env=False, verify=verify
    )
