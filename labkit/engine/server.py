"""From settings to a running llama-server that is known to be ours, ready, and set as asked."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shlex
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from labkit.engine.embedded import embedded_argv, embedded_build
from labkit.engine.flags import start_values, to_argv, to_attributes
from labkit.engine.key import KEY_VARIABLE, Secret, api_key
from labkit.engine.models import ModelFile, resolve_model
from labkit.engine.ports import free_port, refuse_taken
from labkit.engine.process import Command, ServerProcess
from labkit.engine.ready import Effective, identify, until_ready
from labkit.errors import EngineError, IdentityError, ParameterError, PortInUseError
from labkit.settings import ServerSettings

LOOPBACK = ("127.0.0.1", "::1", "localhost")


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
        process: its supervised process.
        key: the API key it asks for, if any.
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
    if settings.engine != "embedded":
        raise EngineError(f"engine = {settings.engine!r} is unknown", hint='engine = "embedded"')
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
    awake = asyncio.create_task(_stay_awake())
    try:
        yield server
    finally:
        awake.cancel()
        if server.stop() == "KILL":
            say(f"the server (pid {server.process.pid}) did not end when asked to and was killed")


async def _resolved(name: str, say: Callable[[str], None]) -> ModelFile:
    """Resolve a model in a thread: a fetch may take minutes, and an interrupt must end it."""
    stop = threading.Event()
    try:
        return await asyncio.to_thread(resolve_model, name, say=say, stop=stop)
    finally:
        stop.set()


async def _stay_awake() -> None:
    """Wake the event loop now and then: ipykernel's interrupt of a cell that awaits is noticed only when
    something else wakes the loop (ipykernel 7.4, ipkernel.py, handle_sigint)."""
    while True:  # noqa: ASYNC110
        await asyncio.sleep(0.2)


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
    order = {"attributes": to_attributes(values), "api_keys": keys}
    process = ServerProcess(
        Command(argv=embedded_argv(), env=_scrubbed_environment(), stdin=json.dumps(order), log_path=log_path),
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
