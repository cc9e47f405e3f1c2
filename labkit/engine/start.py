"""From settings to a running llama-server that is known to be ours, ready, and set as asked."""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil

from labkit.engine.awake import awake
from labkit.engine.binary import binary_launch
from labkit.engine.build import NAME as BUILD
from labkit.engine.build import newest_build
from labkit.engine.embedded import embedded_launch, is_embedded
from labkit.engine.flags import start_values
from labkit.engine.key import KEY_VARIABLE, Secret, api_key, scrubbed_environment
from labkit.engine.launch import Launch
from labkit.engine.models import ModelFile, resolve_model
from labkit.engine.ports import free_port, refuse_taken
from labkit.engine.process import Command, ServerProcess
from labkit.engine.ready import identify, until_ready
from labkit.engine.server import Server
from labkit.errors import IdentityError, ParameterError, PortInUseError
from labkit.settings import ServerSettings

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@asynccontextmanager
async def start_server(
    settings: ServerSettings,
    *,
    log_path: Path,
    load_timeout_s: float = 120.0,
    lock_timeout_s: float = 15.0,
    say: Callable[[str], None] = print,
) -> AsyncIterator[Server]:
    """Start a server, wait until it is ready, and end it when the block ends, however it ends.

    Args:
        settings: what to start.
        log_path: file for its log.
        load_timeout_s: limit for loading the model.
        lock_timeout_s: limit for waiting while another lab holds this machine.
        say: gets progress lines.

    Raises:
        UnfitError: no such model or engine, port in use, another lab is running.
        ServerError: it died, never became ready, or isn't what was asked for.
    """
    model = await _resolved(settings.model, say)
    key = _key_for(settings)
    tries = 3 if settings.port is None else 1
    for attempt in range(tries):
        ordered = time.monotonic()
        server = _spawn(settings, model, key, log_path, lock_timeout_s)
        try:
            await until_ready(server, load_timeout_s, say)
            server.startup_s = time.monotonic() - ordered
            await identify(server)
        except (PortInUseError, IdentityError):
            server.stop()
            if attempt + 1 == tries:  # somebody took the free port in between, again and again
                raise
            continue
        except BaseException:
            server.stop()
            raise
        break
    for note in server.notes:
        say(note)
    try:
        async with awake():
            yield server
    finally:
        if server.stop() == "KILL":
            say(f"the server (pid {server.process and server.process.pid}) did not end when asked to and was killed")


async def _resolved(name: str, say: Callable[[str], None]) -> ModelFile:
    """Resolve a model in a thread: a fetch may take minutes, and an interrupt must end it."""
    stop = threading.Event()
    try:
        return await asyncio.to_thread(resolve_model, name, say=say, stop=stop)
    finally:
        stop.set()


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
    refuse_taken(settings.host, port)
    alias = f"labkit-{secrets.token_hex(6)}"
    # llama-server takes the physical cores; the wheel alone would take 4 threads on any machine,
    # which on 2 cores costs 40 % of the speed (seen live)
    settings = settings.model_copy(update={"threads": settings.threads or physical_cores()})
    values = start_values(settings, model_path=str(model.path), alias=alias, port=port)
    # a single key's last letters would be in llama.cpp's log; of several it tells the number alone
    keys = [key.reveal(), secrets.token_urlsafe(24)] if key else []
    launch = _launch(settings.engine, values, keys)
    process = ServerProcess(
        Command(
            argv=launch.argv,
            env=scrubbed_environment() | launch.env,
            stdin=launch.stdin,
            log_path=log_path,
        ),
        lock_timeout_s=lock_timeout_s,
    )
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return Server(
        base_url=f"http://{host}:{port}",
        asked=settings.model_dump(),
        model=model,
        model_id=alias,
        key=key,
        build=launch.build,
        argv=launch.argv,
        llama_server_command=shlex.join(launch.command_line),
        process=process,
        notes=[*launch.notes, *_ignored_variables()],
        slots_readable=settings.slots_endpoint,
    )


def _launch(engine: str, values: dict[str, Any], keys: list[str]) -> Launch:
    if is_embedded(engine):
        return embedded_launch(engine, values, keys)
    return binary_launch(str(newest_build()) if engine == BUILD else engine, values, keys)


def _ignored_variables() -> list[str]:
    names = sorted(name for name in os.environ if name.startswith("LLAMA_ARG_"))
    return [f"kept from the server, since each acts as a flag: {', '.join(names)}"] if names else []


def physical_cores() -> int:
    """Return the cores this process may use, without hyper-threads (as common/common.cpp counts)."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(usable, psutil.cpu_count(logical=False) or usable))
