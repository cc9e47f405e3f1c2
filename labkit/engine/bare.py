"""An engine started with a model and nothing else: what are its own defaults?

What it takes to find and read it is passed all the same: address, a name, and how much it logs. None of
these decides slots, cells or endpoints.
"""

from __future__ import annotations

import secrets
import shlex
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from labkit.engine.awake import awake
from labkit.engine.binary import binary_launch
from labkit.engine.embedded import embedded_launch, is_embedded
from labkit.engine.flags import FIXED
from labkit.engine.key import scrubbed_environment
from labkit.engine.models import resolve_model
from labkit.engine.ports import free_port
from labkit.engine.process import Command, ServerProcess
from labkit.engine.ready import identify, until_ready
from labkit.engine.server import Server

HOST = "127.0.0.1"


@asynccontextmanager
async def start_bare(
    engine: str,
    *,
    model: str,
    log_path: Path,
    load_timeout_s: float = 120.0,
    lock_timeout_s: float = 15.0,
    say: Callable[[str], None] = print,
) -> AsyncIterator[Server]:
    """Start an engine that is told nothing but its model, and end it when the block ends.

    Args:
        engine: "embedded" or a path to a llama-server.
        model: name or path of a model.
        log_path: file for its log.
        load_timeout_s: limit for loading the model.
        lock_timeout_s: limit for waiting while another lab holds this machine.
        say: gets progress lines.

    Raises:
        UnfitError: no such model or engine, or another lab is running.
        ServerError: it died, never became ready, or something else answers in its place.
    """
    file, port, alias = resolve_model(model, say=say), free_port(HOST), f"labkit-{secrets.token_hex(6)}"
    found = {"model_path": str(file.path), "alias": alias, "host": HOST, "port": port}
    values = found | {"verbosity": FIXED["verbosity"]}
    launch = (embedded_launch if is_embedded(engine) else binary_launch)(engine, values, [])
    command = Command(launch.argv, scrubbed_environment() | launch.env, launch.stdin, log_path)
    server = Server(
        base_url=f"http://{HOST}:{port}",
        # what identify() looks at: left to the server
        asked={"parallel": "auto", "slots_endpoint": True},
        model=file,
        model_id=alias,
        key=None,
        build=launch.build,
        argv=launch.argv,
        llama_server_command=shlex.join(launch.command_line),
        process=ServerProcess(command, lock_timeout_s=lock_timeout_s),
    )
    try:
        await until_ready(server, load_timeout_s, say)
        await identify(server)
        async with awake():
            yield server
    finally:
        server.stop()
