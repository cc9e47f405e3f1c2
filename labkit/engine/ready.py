"""From a started process to a server that is ready, is ours, and is known for what it really runs with."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import psutil

from labkit.engine.http import http_client
from labkit.engine.log import LogFacts, failure, parse_log
from labkit.errors import (
    IdentityError,
    ModelError,
    PortInUseError,
    ServerDiedError,
    ServerError,
    ServerNotReadyError,
)

if TYPE_CHECKING:
    from labkit.engine.server import Server

_READY_POLL_S = 0.05
_PROGRESS_EVERY_S = 5.0


@dataclass(frozen=True)
class Effective:
    """What the server really runs with, as far as it says so; None where it doesn't.

    Args:
        slots: slots, from /props or the log.
        slot_cells: KV cells one slot may use, from /slots, /props or the log.
        fitted: whether llama.cpp's fit step (`--fit`, on by default) ran; from the log.
        kv_unified: one KV pool for all slots; from the log.
        pool_cells: KV cells in all, from the log.
        batch_size: logical batch in tokens; ubatch_size: physical; both from the log.
        kv_bytes: size of the KV buffers, from the log.
        slots_endpoint: whether /slots is on; metrics_endpoint: whether /metrics is; from /props.
    """

    slots: int | None
    slot_cells: int | None
    kv_unified: bool | None
    pool_cells: int | None
    batch_size: int | None
    ubatch_size: int | None
    kv_bytes: int | None
    slots_endpoint: bool | None
    metrics_endpoint: bool | None
    fitted: bool | None = None


async def until_ready(server: Server, limit_s: float, say: Callable[[str], None]) -> None:
    """Wait on /health and on the process: a server that dies is reported at once.

    Args:
        server: just started.
        limit_s: how long it may take.
        say: gets a progress line every few seconds.

    Raises:
        PortInUseError, ModelError: its log says so.
        ServerDiedError: its process ended.
        ServerNotReadyError: the limit passed.
    """
    started = time.monotonic()
    said_s = 0.0
    async with http_client(server.base_url, timeout_s=2.0) as client:
        while True:
            elapsed_s = time.monotonic() - started
            if not server.alive:
                raise _died(server)
            state = await _health(client, server.base_url)
            if state == "ready":
                return
            if elapsed_s > limit_s:
                raise _never_ready(server, state, limit_s)
            if elapsed_s - said_s >= _PROGRESS_EVERY_S:
                said_s = elapsed_s
                say(f"{state}, {elapsed_s:.0f} s")
            await asyncio.sleep(_READY_POLL_S)


async def _health(client: httpx.AsyncClient, base_url: str) -> str:
    # /health alone: other endpoints may say 200 while the model still loads
    try:
        status = (await client.get(f"{base_url}/health")).status_code
    except httpx.HTTPError:
        return "starting"
    return "ready" if status == 200 else "loading the model" if status == 503 else f"/health answers {status}"


def _died(server: Server) -> Exception:
    tail = server.process.log_tail()
    kind, reason = failure(_read(server.log_path))
    if kind == "port":
        return PortInUseError(f"the server could not listen on {server.base_url}", why=reason)
    if kind == "model":
        return ModelError(
            f"the engine can't load {server.model.path.name}", why=reason, hint=f"the log, {server.log_path}"
        )
    return ServerDiedError(
        f"the server {server.process.exit_text} while starting",
        why=f"its last words:\n{tail}\n",
        hint=f"by hand: {server.llama_server_command}",
    )


def _never_ready(server: Server, state: str, limit_s: float) -> ServerError:
    return ServerNotReadyError(
        f"the server was not ready within {limit_s:.0f} s",
        why=f"last state: {state}; its last words:\n{server.process.log_tail(5)}\n",
        hint="a larger load_timeout_s, or a smaller model",
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


async def identify(server: Server) -> None:
    """Make sure that our own server answers, with as many slots as asked, and note what it runs with.

    Raises:
        IdentityError: another server answers, or it isn't set as asked.
    """
    async with http_client(server.base_url, headers=server.headers, timeout_s=10.0) as client:
        props = await _json(client, f"{server.base_url}/props")
        _refuse_stranger(server, props)
        slots = await _json(client, f"{server.base_url}/slots") if server.settings.slots_endpoint else []
    facts = await _log_facts(server)
    server.effective = effective_values(props, facts, slots)
    server.build = server.build | {"reported": props.get("build_info")}
    asked, got = server.settings.parallel, server.effective.slots
    if asked != "auto" and got != asked:
        raise IdentityError(f"asked for {asked} slots, the server has {got}", hint="another build of llama-server")


async def _json(client: httpx.AsyncClient, url: str) -> Any:
    try:
        reply = await client.get(url)
        reply.raise_for_status()
        return reply.json()
    except (httpx.HTTPError, ValueError) as error:
        raise IdentityError(f"{url} gives no usable answer", why=f"{type(error).__name__}") from None


def _refuse_stranger(server: Server, props: dict[str, Any]) -> None:
    """Make sure that the server that answers is the one that was started."""
    alias = server.build["alias"]
    differs = [
        f"its alias is {props.get('model_alias')!r}, not {alias!r}" if props.get("model_alias") != alias else "",
        f"its model is {props.get('model_path')!r}" if props.get("model_path") != str(server.model.path) else "",
        "the listening socket is not its own" if not _holds_socket(server) else "",
    ]
    if any(differs):
        raise IdentityError(
            f"another server answers at {server.base_url}",
            why="; ".join(filter(None, differs)),
            hint="another port",
        )


def _holds_socket(server: Server) -> bool:
    port = int(server.base_url.rsplit(":", 1)[1])
    try:
        connections = psutil.Process(server.process.pid).net_connections("inet")
    except psutil.AccessDenied:
        return True  # not allowed to look: alias and model path have to do
    except psutil.Error:
        return False
    return any(c.status == psutil.CONN_LISTEN and tuple(c.laddr)[1:2] == (port,) for c in connections)


async def _log_facts(server: Server) -> LogFacts:
    # llama.cpp's log has a thread of its own and may lag behind /health by a moment
    for _ in range(20):
        facts = parse_log(_read(server.log_path))
        if facts.n_slots is not None:
            return facts
        await asyncio.sleep(_READY_POLL_S)
    return facts


def effective_values(props: dict[str, Any], facts: LogFacts, slots: list[dict[str, Any]]) -> Effective:
    """Combine what the server says of itself: /slots, then /props, then the log.

    Args:
        props: /props.
        facts: of the log.
        slots: /slots; empty where it is off.

    Raises:
        IdentityError: /slots and /props contradict each other.
    """
    by_props = (props.get("default_generation_settings") or {}).get("n_ctx", facts.slot_cells)
    by_slots = slots[0].get("n_ctx", by_props) if slots else by_props
    if by_slots != by_props:
        raise IdentityError(
            f"/slots says {by_slots} KV cells a slot, /props says {by_props}",
            hint="does another server answer one of them?",
        )
    return Effective(
        slots=props.get("total_slots", len(slots) or facts.n_slots),
        slot_cells=by_slots,
        kv_unified=facts.kv_unified,
        pool_cells=facts.pool_cells,
        batch_size=facts.batch_size,
        ubatch_size=facts.ubatch_size,
        kv_bytes=facts.kv_bytes,
        slots_endpoint=props.get("endpoint_slots"),
        metrics_endpoint=props.get("endpoint_metrics"),
        fitted=facts.fitted,
    )
