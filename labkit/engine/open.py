"""The door that every notebook uses: whatever the engine is, a running server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from labkit.engine.attach import attach_server
from labkit.engine.server import Server
from labkit.engine.start import start_server
from labkit.settings import AttachSettings, ServerSettings


@asynccontextmanager
async def open_server(
    settings: ServerSettings,
    *,
    log_path: Path,
    attach: AttachSettings | None = None,
    load_timeout_s: float = 120.0,
    lock_timeout_s: float = 15.0,
    say: Callable[[str], None] = print,
) -> AsyncIterator[Server]:
    """Start a server as the settings say, or attach to the one whose URL is their engine.

    Args:
        settings: what to start; of a URL only `engine` and `model` count.
        log_path: file for the log of a server that is started.
        attach: limits on the load of a server that isn't ours.
        load_timeout_s: limit for loading the model.
        lock_timeout_s: limit for waiting while another lab holds this machine.
        say: gets progress lines.

    Raises:
        LabError: what start_server() and attach_server() raise.
    """
    if settings.attached:
        opened = attach_server(
            settings.engine, model=settings.model, attach=attach, load_timeout_s=load_timeout_s, say=say
        )
    else:
        opened = start_server(
            settings, log_path=log_path, load_timeout_s=load_timeout_s, lock_timeout_s=lock_timeout_s, say=say
        )
    async with opened as server:
        yield server
