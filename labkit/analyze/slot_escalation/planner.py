"""The context planner: does each step's context hold what the requests bring, and with how much to spare?

Rules: a request needs cells for its input, its history and its output, and its slot must have them; in a
unified cache all requests that hold a slot at once share the pool, and an overflow would end every one of
them (tools/server/server-context.cpp).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from labkit.analyze.frames import Column, tidy
from labkit.analyze.rows import RunRows
from labkit.settings import effective_context
from labkit.settings.context import padded

if TYPE_CHECKING:
    import pandas as pd

TIGHT_SHARE = 0.10

CONTEXT_PLAN = {
    "slots": Column("Int64", "", "slots of the step"),
    "asked_cells": Column("Int64", "cells", "KV cells asked for in all"),
    "pool_cells": Column("Int64", "cells", "KV cells in all, by rule"),
    "slot_cells": Column("Int64", "cells", "KV cells one slot may use, by rule"),
    "input": Column("Int64", "tokens", "of the largest request"),
    "history": Column("Int64", "tokens", "of the largest request"),
    "output": Column("Int64", "tokens", "of the largest request"),
    "at_once": Column("Int64", "requests", "requests that can hold a slot at once"),
    "at_once_cells": Column("Int64", "cells", "what these need together, the largest ones"),
    "headroom_cells": Column("Int64", "cells", "left where it is tightest: the slot, or the unified pool"),
    "headroom_percent": Column("Float64", "%", "the same as a share"),
    "note": Column("str", "", "what follows from it"),
}


@dataclass(frozen=True)
class StepContext:
    """The context of one step, planned.

    Args:
        slots: slots of the step; None: a server that isn't ours and doesn't tell.
        asked_cells: KV cells asked for in all; None for a server that isn't ours.
        pool_cells: KV cells in all, by rule; None: not known. The same for the others.
        slot_cells: KV cells one slot may use.
        kv_unified: whether all slots share the pool.
        largest: cells of the largest request, by part: input, history, output.
        at_once: requests that can hold a slot at once.
        at_once_cells: what the largest so many need together.
        needed: whether so many slots are needed for peak_concurrency; None: not judged.
    """

    slots: int | None
    asked_cells: int | None
    pool_cells: int | None
    slot_cells: int | None
    kv_unified: bool | None
    largest: dict[str, int]
    at_once: int
    at_once_cells: int
    needed: bool | None = None

    @property
    def largest_cells(self) -> int:
        """Cells of the largest request."""
        return sum(self.largest.values())

    @property
    def tightest(self) -> tuple[str, int, int] | None:
        """What is tightest: its name, its cells, and what is needed of them; None: nothing is known."""
        limits = [("a slot", self.slot_cells, self.largest_cells)]
        if self.kv_unified:
            limits.append(("the unified pool", self.pool_cells, self.at_once_cells))
        known = [(name, cells, need) for name, cells, need in limits if cells]
        return min(known, key=lambda limit: (limit[1] - limit[2]) / limit[1], default=None)

    @property
    def headroom_cells(self) -> int | None:
        """Cells left where it is tightest; below 0: missing."""
        return None if self.tightest is None else self.tightest[1] - self.tightest[2]

    @property
    def headroom_share(self) -> float | None:
        """The same as a share of what is there."""
        return None if self.tightest is None else (self.tightest[1] - self.tightest[2]) / self.tightest[1]

    @property
    def fits(self) -> bool:
        """Whether the step may start; an unknown context is left to the server."""
        return self.headroom_cells is None or self.headroom_cells >= 0

    @property
    def note(self) -> str:
        """What follows, in words."""
        unneeded = ["not needed: more slots than peak_concurrency"] if self.needed is False else []
        return "; ".join(filter(None, [self._room(), *unneeded]))

    def _room(self) -> str:
        if self.tightest is None:
            return "context not known"
        name, cells, need = self.tightest
        if not self.fits:
            return f"not started: {name} has {cells:,} cells, {need:,} are needed"
        if (cells - need) / cells < TIGHT_SHARE:
            return f"warning: less than {TIGHT_SHARE:.0%} of {name} is left"
        return ""


def context_plan(data: RunRows) -> list[StepContext]:
    """Return the planned context of every step, from a record that has the parameters and the needs.

    Args:
        data: the recorded run, once plan_loads() has counted.
    """
    run = data.run
    params, needs = run["parameters"], run["needs"]
    loads = [list(load.values()) for load in needs["loads"].values()]
    if needs["attached"]:
        return [_step(needs["slots"], None, needs, loads, params)]
    return [_step(slots, _asked(params, slots), needs, loads, params) for slots in params["slots_list"]]


def _asked(params: dict[str, Any], slots: int) -> int:
    return int(params["ctx_size"]) * (slots if params["context_rule"] == "per_slot" else 1)


def _step(
    slots: int | None,
    asked: int | None,
    needs: dict[str, Any],
    loads: list[list[dict[str, int]]],
    params: dict[str, Any],
) -> StepContext:
    at_once = [sorted(sum(need.values()) for need in load)[-(slots or len(load)) :] for load in loads]
    crowd = max(at_once, key=sum)
    pool, slot, unified = needs["pool_cells"], needs["slot_cells"], needs["kv_unified"]
    if asked is not None and slots is not None:
        context = effective_context(
            asked,
            slots,
            params["kv_unified"],
            n_ctx_train=needs["n_ctx_train"],
            per_slot_cells=params.get("kv_unified_per_slot"),
        )
        pool, slot, unified = context.pool_cells, context.slot_cells, context.kv_unified
    peak = params.get("peak_concurrency")
    return StepContext(
        slots=slots,
        asked_cells=asked,
        pool_cells=pool,
        slot_cells=slot,
        kv_unified=unified,
        largest=max((need for load in loads for need in load), key=lambda need: sum(need.values())),
        at_once=len(crowd),
        at_once_cells=sum(crowd),
        needed=None if peak is None or slots is None else _needed(slots, peak, params["slots_list"]),
    )


def _needed(slots: int, peak: int, steps: list[int]) -> bool:
    """Whether no smaller step has a slot for each of `peak` requests already."""
    return not any(peak <= step < slots for step in steps)


def context_table(plan: list[StepContext]) -> pd.DataFrame:
    """Return the plan as a table, a row a step.

    Args:
        plan: of context_plan().
    """
    rows = [
        {
            "slots": step.slots, "asked_cells": step.asked_cells, "pool_cells": step.pool_cells,
            "slot_cells": step.slot_cells, "at_once": step.at_once, "at_once_cells": step.at_once_cells,
            "headroom_cells": step.headroom_cells, "note": step.note,
            "headroom_percent": None if step.headroom_share is None else round(100 * step.headroom_share, 1),
        } | step.largest
        for step in plan
    ]  # fmt: skip
    return tidy(rows, CONTEXT_PLAN)


def room_hint(step: StepContext, params: dict[str, Any]) -> str:
    """Say what makes a step fit.

    Args:
        step: one that doesn't.
        params: the notebook's.
    """
    assert step.slots is not None
    shared = step.kv_unified and params["context_rule"] == "per_slot"
    cells = -(-step.at_once_cells // step.slots) if shared else step.at_once_cells
    if not step.kv_unified:
        cells = step.largest_cells * (1 if params["context_rule"] == "per_slot" else step.slots)
    cells = max(cells, step.largest_cells if params["context_rule"] == "total" else 0)
    shorter = "or a shorter input, history_tokens or max_tokens"
    return f"ctx_size = {padded(cells)} (a slot never has more than the model's training context), {shorter}"
