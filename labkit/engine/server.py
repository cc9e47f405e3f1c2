"""From settings to a running llama-server that is known to be ours, ready, and set as asked."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shlex
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from labkit.engine.embedded import embedded_argv, embedded_build
from labkit.engine.flags import start_values, to_argv, to_attributes
from labkit.engine.log import LogFacts, failure, parse_log
from labkit.engine.models import ModelFile, resolve_model
from labkit.engine.process import Command, ServerProcess
from labkit.errors import (
    EngineError,
    IdentityError,
    ModelError,
    ParameterError,
    PortInUseError,
    ServerDiedError,
    ServerError,
    ServerNotReadyError,
)
from labkit.settings import ServerSettings

KEY_VARIABLE, KEY_FILE_VARIABLE = "LABKIT_API_KEY", "LABKIT_API_KEY_FILE"
LOOPBACK = ("127.0.0.1", "::1", "localhost")
_READY_POLL_S = 0.05
_PROGRESS_EVERY_S = 5.0


class Secret:
    """An API key that shows itself nowhere by accident."""

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the key itself."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(…)"


def api_key() -> Secret | None:
    """Return the key from $LABKIT_API_KEY or the file that $LABKIT_API_KEY_FILE names, if any.

    Raises:
        ParameterError: the file can't be read.
    """
    value = os.environ.get(KEY_VARIABLE, "")
    path = os.environ.get(KEY_FILE_VARIABLE)
    if not value and path:
        try:
            value = Path(path).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ParameterError(
                f"{KEY_FILE_VARIABLE} = {path} can't be read", why=str(error.strerror)
            ) from None
    return Secret(value) if value else None


@dataclass(frozen=True)
class Effective:
    """What the server really runs with, as far as it says so; None where it doesn't.

    Args:
        slots: slots, from /props or the log.
        slot_cells: KV cells one slot may use, from /slots, /props or the log.
        kv_unified: from the log.
        pool_cells: KV cells in all, from the log.
        kv_bytes: size of the KV buffers, from the log.
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


@dataclass
class Server:
    """A running llama-server.

    Args:
        base_url: where it answers, without a slash at the end.
        settings: what was asked.
        effective: what it runs with.
        model: the model's file, hash and header facts.
        build: reported (by /props), package, number and number_source.
        argv: what was executed.
        llama_server_command: the same as a llama-server command line, to copy.
        startup_s: seconds from the order to readiness.
    """

    base_url: str
    settings: ServerSettings
    model: ModelFile
    argv: list[str]
    llama_server_command: str
    process: ServerProcess
    key: Secret | None = field(repr=False)
    effective: Effective | None = None
    build: dict[str, Any] = field(default_factory=dict)
    startup_s: float = 0.0

    @property
    def headers(self) -> dict[str, str]:
        """The request headers that carry the key, if there is one."""
        return {"Authorization": f"Bearer {self.key.reveal()}"} if self.key else {}

    @property
    def alive(self) -> bool:
        """Whether its process still runs."""
        return self.process.alive

    @property
    def log_path(self) -> Path:
        """The file that its log goes to."""
        return self.process.command.log_path

    def stop(self) -> str:
        """End it; return what it took ("TERM", "KILL", "ended by itself")."""
        return self.process.stop()

    def describe(self) -> dict[str, Any]:
        """Return what the record keeps of it; holds no secret."""
        return {
            "asked": self.settings.model_dump(),
            "effective": asdict(self.effective) if self.effective else None,
            "build": self.build,
            "model": asdict(self.model) | {"path": str(self.model.path)},
            "argv": self.argv,
            "llama_server_command": self.llama_server_command,
            "pid": self.process.pid,
            "startup_s": round(self.startup_s, 3),
        }


@asynccontextmanager
async def start_server(
    settings: ServerSettings,
    *,
    log_path: Path,
    start_timeout_s: float = 120.0,
    lock_timeout_s: float = 15.0,
    say: Callable[[str], None] = print,
) -> AsyncIterator[Server]:
    """Start a server, wait until it is ready, and end it when the block ends, however it ends.

    Args:
        settings: what to start.
        log_path: file for its log.
        start_timeout_s: limit for loading the model.
        lock_timeout_s: limit for waiting while another lab holds this machine.
        say: gets progress lines.

    Raises:
        UnfitError: no such model or engine, port in use, another lab is running.
        ServerError: it died, never became ready, or isn't what was asked for.
    """
    if settings.engine != "embedded":
        raise EngineError(f"engine = {settings.engine!r} is unknown", hint='engine = "embedded"')
    model = resolve_model(settings.model, say=say)
    key = _key_for(settings)
    tries = 3 if settings.port is None else 1
    for attempt in range(tries):
        server = _spawn(settings, model, key, log_path, lock_timeout_s)
        try:
            await _until_ready(server, start_timeout_s, say)
            await _identify(server)
        except PortInUseError:
            server.stop()
            if attempt + 1 == tries:  # somebody took the free port in between, again and again
                raise
            continue
        except BaseException:
            server.stop()
            raise
        break
    try:
        yield server
    finally:
        server.stop()


def _key_for(settings: ServerSettings) -> Secret | None:
    key = api_key()
    if settings.host not in LOOPBACK and key is None:
        raise ParameterError(
            f"host = {settings.host!r} needs an API key",
            why="other machines could use this server",
            hint=f"{KEY_VARIABLE} in the environment, or host = 127.0.0.1",
        )
    return key


def _spawn(
    settings: ServerSettings, model: ModelFile, key: Secret | None, log_path: Path, lock_timeout_s: float
) -> Server:
    port = settings.port or free_port(settings.host)
    _refuse_taken(settings.host, port)
    alias = f"labkit-{secrets.token_hex(6)}"
    # llama-server takes the physical cores; the wheel alone would take 4 threads on any machine,
    # which on 2 cores costs 40 % of the speed (seen live)
    settings = settings.model_copy(update={"threads": settings.threads or physical_cores()})
    values = start_values(settings, model_path=str(model.path), alias=alias, port=port)
    order = {"attributes": to_attributes(values), "api_keys": [key.reveal()] if key else []}
    process = ServerProcess(
        Command(
            argv=embedded_argv(), env=_scrubbed_environment(), stdin=json.dumps(order), log_path=log_path
        ),
        lock_timeout_s=lock_timeout_s,
    )
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return Server(
        base_url=f"http://{host}:{port}",
        settings=settings,
        model=model,
        argv=process.command.argv,
        llama_server_command=shlex.join(to_argv(values)),
        process=process,
        key=key,
        build=embedded_build() | {"alias": alias},
    )


def _scrubbed_environment() -> dict[str, str]:
    """Return the environment without LLAMA_ARG_* (they act as flags) and without keys."""
    unwanted = ("LLAMA_ARG_", "LLAMA_API_KEY", KEY_VARIABLE)
    return {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}


def physical_cores() -> int:
    """Return the cores this process may use, without hyper-threads (as common/common.cpp counts)."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(usable, psutil.cpu_count(logical=False) or usable))


def free_port(host: str) -> int:
    """Return a port that nobody listens on right now."""
    with socket.create_server((host, 0), family=_family(host)) as probe:
        return int(probe.getsockname()[1])


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _refuse_taken(host: str, port: int) -> None:
    try:
        socket.create_server((host, port), family=_family(host)).close()
    except OSError as error:
        raise PortInUseError(
            f"port {port} on {host} can't be used",
            why=f"{error.strerror}{_holder(port)}",
            hint="leave `port` out to get a free one",
        ) from None


def _holder(port: int) -> str:
    try:
        connections = psutil.net_connections("inet")
    except psutil.Error:
        return ""
    for connection in connections:
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
            return f", held by pid {connection.pid}"
    return ""


# --- readiness ----------------------------------------------------------------------------------------


async def _until_ready(server: Server, limit_s: float, say: Callable[[str], None]) -> None:
    """Wait on /health and on the process: a server that dies is reported at once."""
    started = time.monotonic()
    said_s = 0.0
    async with httpx.AsyncClient(trust_env=False, timeout=2.0) as client:
        while True:
            elapsed_s = time.monotonic() - started
            if not server.alive:
                raise _died(server)
            state = await _health(client, server.base_url)
            if state == "ready":
                server.startup_s = elapsed_s
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
        hint="a larger start_timeout_s, or a smaller model",
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


# --- identity and effective values --------------------------------------------------------------------


async def _identify(server: Server) -> None:
    async with httpx.AsyncClient(trust_env=False, timeout=10.0, headers=server.headers) as client:
        props = await _json(client, f"{server.base_url}/props")
    _refuse_stranger(server, props)
    facts = await _log_facts(server)
    server.effective = effective_values(props, facts)
    server.build = server.build | {"reported": props.get("build_info")}
    asked, got = server.settings.parallel, server.effective.slots
    if asked != "auto" and got != asked:
        raise IdentityError(
            f"asked for {asked} slots, the server has {got}", hint="another build of llama-server"
        )


async def _json(client: httpx.AsyncClient, url: str) -> dict[str, Any]:
    try:
        reply = await client.get(url)
        reply.raise_for_status()
        body = reply.json()
    except (httpx.HTTPError, ValueError) as error:
        raise IdentityError(f"{url} gives no usable answer", why=f"{type(error).__name__}") from None
    return body if isinstance(body, dict) else {}


def _refuse_stranger(server: Server, props: dict[str, Any]) -> None:
    """Make sure that the server that answers is the one that was started."""
    alias = server.build["alias"]
    differs = [
        f"its alias is {props.get('model_alias')!r}, not {alias!r}"
        if props.get("model_alias") != alias
        else "",
        f"its model is {props.get('model_path')!r}"
        if props.get("model_path") != str(server.model.path)
        else "",
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
    return any(c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in connections)


async def _log_facts(server: Server) -> LogFacts:
    # llama.cpp's log has a thread of its own and may lag behind /health by a moment
    for _ in range(20):
        facts = parse_log(_read(server.log_path))
        if facts.n_slots is not None:
            return facts
        await asyncio.sleep(_READY_POLL_S)
    return facts


def effective_values(props: dict[str, Any], facts: LogFacts) -> Effective:
    """Combine what /props and the log say; /props wins where both speak."""
    slots = props.get("total_slots")
    return Effective(
        slots=slots if slots is not None else facts.n_slots,
        slot_cells=(props.get("default_generation_settings") or {}).get("n_ctx", facts.slot_cells),
        kv_unified=facts.kv_unified,
        pool_cells=facts.pool_cells,
        batch_size=facts.batch_size,
        ubatch_size=facts.ubatch_size,
        kv_bytes=facts.kv_bytes,
        slots_endpoint=props.get("endpoint_slots"),
        metrics_endpoint=props.get("endpoint_metrics"),
    )
