"""Keeps a cell that awaits interruptible."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_WAKE_EVERY_S = 0.2


@asynccontextmanager
async def awake() -> AsyncIterator[None]:
    """Wake the event loop now and then while the block runs.

    ipykernel notices an interrupt of a cell that awaits only when something else wakes the loop
    (ipykernel 7.4, ipkernel.py, handle_sigint).
    """
    task = asyncio.create_task(_wake())
    try:
        yield
    finally:
        task.cancel()


async def _wake() -> None:
    while True:  # noqa: ASYNC110
        await asyncio.sleep(_WAKE_EVERY_S)
