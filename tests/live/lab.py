"""What the notebook does, as a function, so that a test can change one thing in it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

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
            async with lab.start_server(settings, log_path=run.log_path(arm), lock_timeout_s=60, say=quiet) as server:
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
