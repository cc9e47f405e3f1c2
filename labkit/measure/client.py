"""HTTP to a llama-server: its small endpoints and one streamed request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx

from labkit.engine.untrusted import mapping
from labkit.errors import ServerError
from labkit.measure.stream import ERROR_BODY_LIMIT, Clock, EventDecoder, RequestRecord, Stream
from labkit.settings import RequestPlan


def request_body(plan: RequestPlan, model: str) -> dict[str, Any]:
    """Return the JSON body for a plan; fields are llama-server's (tools/server/README.md)."""
    body: dict[str, Any] = {
        "model": model,
        "seed": plan.seed,
        "temperature": plan.temperature,
        "ignore_eos": plan.ignore_eos,
        "cache_prompt": plan.cache_prompt,
        "stream": True,
    }
    if plan.id_slot is not None:
        body["id_slot"] = plan.id_slot
    if plan.endpoint == "completion":
        return body | {"prompt": plan.prompt, "n_predict": plan.max_tokens}
    # verbose: the one way by which the chat endpoint tells the slot, in its last chunk
    return body | {
        "messages": [{"role": "user", "content": plan.prompt}],
        "max_tokens": plan.max_tokens,
        "verbose": True,
    }


_COUNT_LIMIT_S = 30.0
PATHS = {"chat": "/v1/chat/completions", "completion": "/completion"}


async def stream_request(client: httpx.AsyncClient, stream: Stream, *, model: str) -> None:
    """Send one request and take in its stream until it ends; failures end up in the record.

    Args:
        client: with the server's base URL and no read timeout (the load watches progress).
        stream: gets every event with its time.
        model: the server's alias.
    """
    record, plan = stream.record, stream.plan

    def sent() -> None:
        record.sent_s = stream.clock()

    body = request_body(plan, model)
    try:
        async with client.stream("POST", PATHS[plan.endpoint], json=body, extensions={"sent": sent}) as response:
            arrived = response.extensions.get("arrived", stream.clock)  # of a StampingTransport
            record.headers_s = arrived()
            record.status = response.status_code
            if response.status_code != 200:
                _refuse(record, (await response.aread()).decode("utf-8", "replace"))
            else:
                await _take_in(response.aiter_raw(), stream, arrived)
                stream.close()
    except httpx.HTTPError as error:
        record.outcome = "disconnected"
        record.error = f"{type(error).__name__}: {error}"
    finally:
        record.end_s = stream.clock()


async def _take_in(chunks: AsyncIterator[bytes], stream: Stream, arrived: Clock) -> None:
    decoder = EventDecoder()
    async for chunk in chunks:
        at_s = arrived()
        for kind, value in decoder.feed(chunk):
            stream.event(kind, value, at_s)
        if stream.record.outcome == "overrun":
            return
    at_s = arrived()
    for kind, value in decoder.close():
        stream.event(kind, value, at_s)


def _refuse(record: RequestRecord, body: str) -> None:
    record.error = body[:ERROR_BODY_LIMIT]
    if "exceed_context_size_error" in body:
        record.outcome = "does_not_fit"
    else:
        record.outcome = "server_error" if (record.status or 0) >= 500 else "refused"


async def count_tokens(client: httpx.AsyncClient, plan: RequestPlan, model: str = "") -> int:
    """Ask the server how many tokens a request's prompt has, chat template included.

    Args:
        client: of http_client().
        plan: the request.
        model: what a router calls the model.

    Raises:
        ServerError: it doesn't say.
    """
    prompt = plan.prompt
    try:
        if plan.endpoint == "chat":
            messages = [{"role": "user", "content": prompt}]
            prompt = (await _post(client, "/apply-template", {"model": model, "messages": messages}))["prompt"]
        body = {"model": model, "content": prompt, "add_special": True, "parse_special": True}
        tokens = (await _post(client, "/tokenize", body))["tokens"]
        if not isinstance(tokens, list):
            raise TypeError("tokens is no list")
        return len(tokens)
    except httpx.HTTPStatusError as error:
        said = error.response
        raise _uncounted(f"{said.request.url.path} answers {said.status_code}") from None
    except (httpx.HTTPError, TimeoutError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise _uncounted(type(error).__name__) from None


def _uncounted(why: str) -> ServerError:
    return ServerError(
        "the server does not count tokens",
        why=why,
        hint="a llama-server whose /tokenize and /apply-template can be used",
    )


async def _post(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> Any:
    async with asyncio.timeout(_COUNT_LIMIT_S):  # for the whole answer, also one that drips
        reply = await client.post(path, json=body, timeout=_COUNT_LIMIT_S)
    reply.raise_for_status()
    return mapping(reply.json())
