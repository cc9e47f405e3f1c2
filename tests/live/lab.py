"""What the notebook does, as a function, so that a test can change one thing in it."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import httpx

import labkit as lab

# the toy decodes about 40 times as fast as the default model
TOY = {"model": "toy", "a_tokens": 1500, "b_tokens": 200, "poll_hz": 50.0}


def quiet(_: str) -> None:
    """Take a progress line and drop it."""


async def late_arrival(
    tmp_path: Path, *, really_on: bool = True, after_start: Any = None, **parameters: Any
) -> tuple[lab.Run, lab.Verdict]:
    """Run 03 and judge it.

    Args:
        tmp_path: where the run folder goes.
        really_on: False: the treatment arm secretly runs without continuous batching.
        after_start: called with the treatment's server before its load.
        parameters: of the notebook; the toy model unless told otherwise.
    """
    params = lab.LateArrival(**TOY | parameters)
    run = lab.open_run("03_late_arrival", params, outputs=str(tmp_path))
    plan = None
    arms = {"treatment": params.server(cont_batching=params.cont_batching and really_on)}
    if params.control:
        arms["control"] = params.server(cont_batching=False)
    try:
        for arm, settings in arms.items():
            async with lab.open_server(settings, log_path=run.log_path(arm), lock_timeout_s=60, say=quiet) as server:
                plan = plan or await lab.late_arrival_plan(params, server)
                if after_start and arm == "treatment":
                    after_start(server)
                await lab.measure_arm(server, plan, run=run, arm=arm, sampling=params.sampling(), say=quiet)
    finally:
        run.close()
    return run, lab.judge_late_arrival(lab.read_run(run.folder))


def run_late_arrival(tmp_path: Path, **changes: Any) -> tuple[lab.Run, lab.Verdict]:
    """Run late_arrival() to its end."""
    return asyncio.run(late_arrival(tmp_path, **changes))


async def attached_arrival(
    server: lab.Server, tmp_path: Path, *, foreign: bool = False, **parameters: Any
) -> tuple[lab.Run, lab.Verdict]:
    """Run 03 on a server as if somebody else had started it.

    Args:
        server: running.
        tmp_path: where the run folder goes.
        foreign: another client uses it meanwhile.
        parameters: of the notebook; the toy model's unless told otherwise.
    """
    allowed = {"engine": server.base_url, "allow_load": True, "max_total_tokens": 100_000}
    params = lab.LateArrival(**TOY | allowed | parameters)
    run = lab.open_run("03_late_arrival", params, outputs=str(tmp_path))
    other = asyncio.create_task(foreign_client(server)) if foreign else None
    try:
        settings, limits = params.server(), params.limits()
        async with lab.open_server(settings, log_path=run.log_path("treatment"), say=quiet, **limits) as attached:
            plan = await lab.late_arrival_plan(params, attached)
            sampling = params.sampling()
            await lab.measure_arm(attached, plan, run=run, arm="treatment", sampling=sampling, say=quiet)
    finally:
        if other:
            other.cancel()
            await asyncio.gather(other, return_exceptions=True)
        run.close()
    return run, lab.judge_late_arrival(lab.read_run(run.folder))


async def foreign_client(server: lab.Server) -> None:
    """Send short requests now and then, as somebody else would: without seeds, for ever."""
    draw = random.Random(7)
    async with httpx.AsyncClient(base_url=server.base_url, timeout=60, trust_env=False) as client:
        while True:
            await client.post("/completion", json={"prompt": "hi", "n_predict": draw.randint(1, 12), "temperature": 0})
            await asyncio.sleep(draw.uniform(0.0, 0.3))
