"""What notebook 01 does, as a function, so that a test can change one thing in it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import labkit as lab
from tests.live.lab import quiet

# the toy decodes some 1,500 tokens a second: answers must last many polls
TOY = {"model": "toy", "max_tokens": 700, "poll_hz": 50.0, "repeats": 1}


async def slot_escalation(
    tmp_path: Path, *, small_pool: bool = False, ceiling: bool = False, before_step: Any = None, **parameters: Any
) -> lab.Run:
    """Run 01 up to its verdict and return its closed run.

    Args:
        tmp_path: where the run folder goes.
        small_pool: show the wrong way too.
        ceiling: measure the ceiling too.
        before_step: called with (run, slots) before each step.
        parameters: of the notebook; the toy model unless told otherwise.
    """
    params = lab.SlotEscalation(**TOY | parameters)
    run = lab.open_run("01_slot_escalation", params, outputs=str(tmp_path))
    try:
        loads = await lab.plan_loads(params, run=run, say=quiet)
        for step in lab.context_plan(lab.read_run(run.folder)):
            if not step.fits:
                break
            if before_step:
                before_step(run, step.slots)
            await lab.measure_step(params, loads, step.slots, run=run, say=quiet)
            if not lab.step_outcome(lab.read_run(run.folder), step.slots).passed:
                break
        passed = lab.passed_steps(lab.read_run(run.folder))
        for slots, repeat, again in lab.repeat_order(params, passed):
            await lab.measure_step(params, loads, slots, run=run, repeat=repeat, again=again, say=quiet)
        if small_pool and passed:
            await lab.measure_small_pool(params, loads, passed[-1], run=run, say=quiet)
        if ceiling:
            await lab.measure_ceiling(params, passed, run=run, say=quiet)
    finally:
        run.close()
    return run


def run_slot_escalation(tmp_path: Path, **changes: Any) -> lab.Run:
    """Run slot_escalation() to its end."""
    return asyncio.run(slot_escalation(tmp_path, **changes))


def verdict_of(run: lab.Run) -> lab.Verdict:
    """Judge a closed run from its record."""
    return lab.judge_slot_escalation(lab.read_run(run.folder))
