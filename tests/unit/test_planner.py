"""The context planner of notebook 01: cells by rule, headroom, and what follows from it."""

from __future__ import annotations

from typing import Any

import pytest

import labkit as lab
from labkit.analyze.slot_escalation.planner import room_hint
from tests.synthetic_slots import empty_run


def plan(**run: Any) -> list[Any]:
    return lab.context_plan(empty_run(**run))


def test_a_slots_context_stays_and_the_total_grows() -> None:
    steps = plan(ctx_size=1024)
    assert [step.asked_cells for step in steps] == [1024, 2048, 4096]
    assert [step.headroom_cells for step in steps] == [944, 1888, 3776]  # 80 a request, those that hold a slot


def test_the_total_stays_and_a_slots_share_shrinks() -> None:
    steps = plan(ctx_size=2048, context_rule="total", kv_unified=False)
    assert [step.asked_cells for step in steps] == [2048] * 3
    assert [step.slot_cells for step in steps] == [2048, 1024, 512]
    assert [step.pool_cells for step in steps] == [2048] * 3


@pytest.mark.parametrize(
    ("tokens", "fits", "note"),
    [
        (180, True, ""),
        (210, True, "warning: less than 10% of a slot is left"),  # 250 of 256
        (216, True, "warning: less than 10% of a slot is left"),  # exactly full
        (217, False, "not started: a slot has 256 cells, 257 are needed"),
    ],
)
def test_headroom_decides_a_slot_of_its_own(tokens: int, fits: bool, note: str) -> None:
    step = plan(tokens=tokens, ctx_size=256, kv_unified=False, slots_list=[2])[0]
    assert step.fits is fits
    assert step.note == note
    assert step.headroom_cells == 216 - tokens


def test_under_unified_the_requests_that_hold_a_slot_share_the_pool() -> None:
    two, four = plan(tokens=100, ctx_size=512, context_rule="total", slots_list=[2, 4])
    assert (two.at_once, two.at_once_cells, two.fits) == (2, 280, True)
    assert (four.at_once, four.at_once_cells, four.fits) == (4, 560, False)
    assert four.note == "not started: the unified pool has 512 cells, 560 are needed"


def test_only_the_largest_requests_that_can_hold_a_slot_count() -> None:
    data = empty_run(slots_list=[2], requests_list=[4])
    for i, need in enumerate(data.run["needs"]["loads"]["4"].values()):
        need["history"] = 100 * i
    (step,) = lab.context_plan(data)
    assert step.largest == {"input": 40, "history": 300, "output": 40}
    assert step.at_once_cells == 380 + 280


def test_a_slot_never_has_more_than_the_training_context() -> None:
    assert [step.slot_cells for step in plan(ctx_size=1024, n_ctx_train=1500)] == [1024, 1500, 1500]


def test_a_cap_on_each_slot_is_respected() -> None:
    (step,) = plan(ctx_size=1024, slots_list=[4], kv_unified_per_slot=256)
    assert (step.slot_cells, step.pool_cells) == (256, 4096)


@pytest.mark.parametrize(
    ("peak", "needed"), [(None, [None] * 3), (1, [True, False, False]), (2, [True, True, False]), (3, [True] * 3)]
)
def test_more_slots_than_there_are_requests_are_marked(peak: int | None, needed: list[bool]) -> None:
    steps = plan(peak_concurrency=peak)
    assert [step.needed for step in steps] == needed
    assert [("not needed" in step.note) for step in steps] == [value is False for value in needed]


def test_a_server_that_is_not_ours_is_one_step_with_what_it_tells() -> None:
    (step,) = plan(attached=True)
    assert (step.slots, step.asked_cells, step.pool_cells) == (2, None, 2048)
    data = empty_run(attached=True)
    data.run["needs"] |= {"slot_cells": None, "pool_cells": None, "kv_unified": None}
    (unknown,) = lab.context_plan(data)
    assert (unknown.fits, unknown.note, unknown.headroom_cells) == (True, "context not known", None)


@pytest.mark.parametrize("unified", [True, False])
@pytest.mark.parametrize("rule", ["per_slot", "total"])
def test_the_remedy_makes_the_step_fit(unified: bool, rule: str) -> None:
    change = {"tokens": 500, "slots_list": [4], "kv_unified": unified, "context_rule": rule}
    data = empty_run(ctx_size=256, **change)
    (step,) = lab.context_plan(data)
    assert not step.fits
    ctx_size = int(room_hint(step, data.run["parameters"]).split("ctx_size = ")[1].split(" ")[0])
    assert plan(ctx_size=ctx_size, **change)[0].fits


def test_the_table_has_a_row_a_step_with_cells_and_percent() -> None:
    table = lab.context_table(plan(ctx_size=256))
    assert table["slots"].tolist() == [1, 2, 4]
    assert table["headroom_cells"].tolist() == [176, 352, 704]
    assert table["headroom_percent"].tolist() == [68.8] * 3
