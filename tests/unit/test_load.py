import asyncio
from typing import Any

import pytest

import labkit as lab
from labkit.errors import ParameterError, PlanError
from labkit.measure.experiment import warm_up_plan
from labkit.measure.load import Progress, check_fit
from labkit.settings import After


def plan(*lengths: int, **first: Any) -> lab.LoadPlan:
    requests = [
        lab.RequestPlan(label="ABCDEF"[i], prompt="x", max_tokens=n, seed=i + 1, **(first if i == 0 else {}))
        for i, n in enumerate(lengths)
    ]
    return lab.LoadPlan(requests=tuple(requests))


def fit(load: lab.LoadPlan, prompt: int = 50, **server: Any) -> None:
    values = {"slots": 2, "slot_cells": 512, "pool_cells": 512, "kv_unified": True} | server
    check_fit(load, {request.label: prompt for request in load.requests}, **values)


# --- does it fit? -------------------------------------------------------------------------------------


def test_a_plan_that_fits_passes() -> None:
    fit(plan(100, 100))


def test_a_request_larger_than_a_slot_is_refused_before_it_is_sent() -> None:
    with pytest.raises(PlanError, match=r"request A needs 550 KV cells, a slot has 512.*ctx_size = 768 or more"):
        fit(plan(500, 10))
    with pytest.raises(PlanError, match=r"ctx_size = 1536 or more"):
        fit(plan(500, 10), kv_unified=False)


def test_requests_that_overflow_a_unified_pool_together_are_refused() -> None:
    with pytest.raises(PlanError, match=r"run at once need 600 KV cells, the unified pool has 512"):
        fit(plan(250, 250))


def test_only_as_many_requests_as_slots_run_at_once() -> None:
    fit(plan(200, 150, 150, 150))


def test_a_split_cache_has_no_common_pool_to_overflow() -> None:
    fit(plan(250, 250), kv_unified=False)


def test_what_the_server_does_not_tell_is_not_checked() -> None:
    fit(plan(5000), slots=None, slot_cells=None, pool_cells=None, kv_unified=None)


def test_a_pin_to_a_slot_that_is_not_there_is_refused() -> None:
    with pytest.raises(ParameterError, match="A is pinned to slot 7, the server has slots 0 to 3"):
        fit(plan(10, id_slot=7), slots=4)


# --- waiting for a state ------------------------------------------------------------------------------


def test_a_state_is_reached_by_tokens_not_by_time() -> None:
    async def scene() -> tuple[bool, bool]:
        progress = Progress()
        waiting = asyncio.create_task(progress.reached(After(label="A", tokens=3)))
        await asyncio.sleep(0)
        for _ in range(2):
            progress.token("A")
        await asyncio.sleep(0)
        early = waiting.done()
        progress.token("A")
        return early, await waiting

    assert asyncio.run(scene()) == (False, True)


def test_a_state_that_can_no_longer_come_is_not_waited_for() -> None:
    async def scene() -> bool:
        progress = Progress()
        waiting = asyncio.create_task(progress.reached(After(label="A", tokens=3)))
        progress.token("A")
        progress.over("A")
        return await waiting

    assert asyncio.run(scene()) is False


def test_a_state_already_reached_needs_no_waiting() -> None:
    async def scene() -> bool:
        progress = Progress()
        progress.token("A")
        progress.over("A")
        return await progress.reached(After(label="A", tokens=1))

    assert asyncio.run(scene()) is True


# --- warm-up ------------------------------------------------------------------------------------------


def test_the_warm_up_uses_every_slot_with_seeds_of_its_own() -> None:
    load = plan(10, 10)
    warm = warm_up_plan(4, load)
    assert len(warm.requests) == 4
    assert not {request.seed for request in warm.requests} & {request.seed for request in load.requests}
    assert warm_up_plan(4, load) == warm
