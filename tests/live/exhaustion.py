"""What notebook 05 does, as a function, so that a test can change one thing in it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import labkit as lab
from labkit.measure.record import RunData
from tests.live.lab import quiet


async def exhaustion(
    tmp_path: Path, *, secret_ctx_size: int | None = None, **parameters: Any
) -> tuple[RunData, lab.Verdict]:
    """Run 05 and judge it.

    Args:
        tmp_path: where the run folder goes.
        secret_ctx_size: cells of the pool that the load meets, though it is planned for the one asked for.
        parameters: of the notebook; the toy model unless told otherwise.
    """
    params = lab.KvExhaustion(**{"model": "toy"} | parameters)
    run = lab.open_run("05_kv_exhaustion", params, outputs=str(tmp_path))
    limits = params.limits() | {"lock_timeout_s": 60, "say": quiet}
    try:
        async with lab.open_server(params.server(), log_path=run.log_path("pool"), **limits) as server:
            plan = await lab.exhaustion_plan(params, server, run=run, say=quiet)
            if secret_ctx_size is None:
                await lab.measure_exhaustion(server, plan.first, run=run, params=params, say=quiet)
        if secret_ctx_size is not None:
            settings = params.server(ctx_size=secret_ctx_size)
            async with lab.open_server(settings, log_path=run.log_path("larger"), **limits) as server:
                await lab.measure_exhaustion(server, plan.first, run=run, params=params, say=quiet)
        for settings, arm in plan.others:
            async with lab.open_server(settings, log_path=run.log_path(arm.name), **limits) as server:
                await lab.measure_exhaustion(server, [arm], run=run, params=params, say=quiet)
    finally:
        run.close()
    data = lab.read_run(run.folder)
    return data, lab.judge_kv_exhaustion(data)


def run_exhaustion(tmp_path: Path, **changes: Any) -> tuple[RunData, lab.Verdict]:
    """Run exhaustion() to its end."""
    return asyncio.run(exhaustion(tmp_path, **changes))
