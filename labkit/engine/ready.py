"""From a started process to a server that is ready, is ours, and is known for what it really runs with."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import psutil

from labkit.engine.effective import effective_values
from labkit.engine.http import Address, http_client
from labkit.engine.log import LogFacts, failure, parse_log
from labkit.errors import (
    EngineError,
    IdentityError,
    ModelError,
    PortInUseError,
    ServerDiedError,
    ServerError,
    ServerNotReadyError,
    SlotCountError,
)

if TYPE_CHECKING:
    from labkit.engine.process import ServerProcess
    from labkit.engine.server import Server

_READY_POLL_S = 0.05
_PROGRESS_EVERY_S = 5.0


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
    async with http_client(Address(server.base_url), timeout_s=2.0) as client:
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
    process = our_process(server)
    log = _read(process.command.log_path)
    kind, reason = failure(log)
    if kind == "port":
        return PortInUseError(f"the server could not listen on {server.base_url}", why=reason)
    if kind == "model":
        return ModelError(
            f"the engine can't load {server.model.name}", why=reason, hint=f"the log, {process.command.log_path}"
        )
    if kind == "setting":
        return EngineError(
            f"this build of the engine does not know {reason}",
            why=f"it is {server.build.get('package', 'unknown')}",
            hint=f"a newer build, or leave {reason} out",
        )
    # seen with an architecture that can't share one cache between sequences
    split = "kv_unified = False; " if "GGML_ASSERT" in log and server.asked.get("kv_unified") else ""
    return ServerDiedError(
        f"the server {process.exit_text} while starting",
        why=f"its last words:\n{process.log_tail() or 'none'}\n",
        hint=f"{split}by hand: {server.llama_server_command}",
    )


def _never_ready(server: Server, state: str, limit_s: float) -> ServerError:
    return ServerNotReadyError(
        f"the server was not ready within {limit_s:.0f} s",
        why=f"last state: {state}; its last words:\n{our_process(server).log_tail(5)}\n",
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
        IdentityError: another server answers; SlotCountError: it has another number of slots than asked.
    """
    async with http_client(server.address, timeout_s=10.0) as client:
        props = await _json(client, f"{server.base_url}/props")
        _refuse_stranger(server, props)
        slots = await _json(client, f"{server.base_url}/slots") if server.asked["slots_endpoint"] else []
    server.effective = effective_values(props, slots, facts=await _log_facts(server))
    server.build = server.build | {"reported": props.get("build_info")}
    asked, got = server.asked["parallel"], server.effective.slots
    if asked != "auto" and got != asked:
        raise SlotCountError(f"asked for {asked} slots, the server has {got}", hint="another build of llama-server")


async def _json(client: httpx.AsyncClient, url: str) -> Any:
    try:
        reply = await client.get(url)
        reply.raise_for_status()
        return reply.json()
    except (httpx.HTTPError, ValueError) as error:
        raise IdentityError(f"{url} gives no usable answer", why=f"{type(error).__name__}") from None


def _refuse_stranger(server: Server, props: dict[str, Any]) -> None:
    """Make sure that the server that answers is the one that was started."""
    alias = server.model_id
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
        connections = psutil.Process(our_process(server).pid).net_connections("inet")
    except psutil.AccessDenied:
        return True  # not allowed to look: alias and model path have to do
    except psutil.Error:
        return False
    return any(c.status == psutil.CONN_LISTEN and tuple(c.laddr)[1:2] == (port,) for c in connections)


async def _log_facts(server: Server) -> LogFacts:
    # llama.cpp's log has a thread of its own and may lag behind /health by a moment
    for _ in range(20):
        facts = parse_log(_read(our_process(server).command.log_path))
        if facts.n_slots is not None:
            return facts
        await asyncio.sleep(_READY_POLL_S)
    return facts


def our_process(server: Server) -> ServerProcess:
    """Return the process of a server that was started here."""
    assert server.process is not None
    return server.process
