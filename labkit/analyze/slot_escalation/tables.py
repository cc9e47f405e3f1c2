"""Notebook 01's tables: a row a step and load, and a row a request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labkit.analyze.frames import Column, RunFrames, known, tidy
from labkit.analyze.slot_escalation.scaling import LOADS, figure, load_figures
from labkit.analyze.slot_escalation.view import LoadView

if TYPE_CHECKING:
    import pandas as pd

STEPS = {
    "slots": LOADS["slots"],
    "requests": LOADS["requests"],
    "runs": Column("Int64", "", "times it was measured"),
    "busy": Column("Int64", "slots", "busy at once, at most, as /slots says"),
    "deferred": Column("Int64", "requests", "waiting without a slot, at most, as /metrics says"),
    "in_flight": Column("Int64", "requests", "in flight at once, at most, for the client"),
    "pool_cells": Column("Int64", "cells", "KV cells in all"),
    "kv_mib": Column("Float64", "MiB", "KV buffers, as the log says"),
    "memory_mib": Column("Float64", "MiB", "most memory used: of the GPUs, else resident of the process"),
    "aggregate_tokens_per_s": LOADS["aggregate_tokens_per_s"],
    "stream_tokens_per_s": LOADS["stream_tokens_per_s"],
    "slowest_ttft_s": LOADS["slowest_ttft_s"],
    "note": Column("str", "", "warm prompts, steps that are not needed"),
}
WAITS = {
    "load": Column("str", "", "slots and requests"),
    "label": Column("str", "", "name of the request"),
    "slot": Column("Int64", "", "slot it ran on"),
    "client_wait_s": Column("Float64", "s", "from due to sent: waiting for the client's own pool"),
    "server_wait_s": Column("Float64", "s", "from sent to the start of its prefill: queue, slot, batch"),
    "prefill_s": Column("Float64", "s", "the server's own prompt_ms"),
    "ttft_s": Column("Float64", "s", "time to first token, from sent"),
    "decode_s": Column("Float64", "s", "from its first to its last token"),
    "gap_s": Column("Float64", "s", "median inter-token gap"),
    "longest_gap_s": Column("Float64", "s", "longest inter-token gap"),
    "tokens": Column("Int64", "tokens", "received"),
    "cache_n": Column("Int64", "tokens", "prompt tokens taken from a slot's cache"),
    "outcome": Column("str", "", "how it ended"),
}


def step_table(frames: RunFrames) -> pd.DataFrame:
    """Return one row a step and load: what was busy, who waited, what it cost, how fast it was.

    Args:
        frames: the run.
    """
    loads = load_figures(frames)
    steps = loads[loads["kind"] == "step"]
    pairs = list(dict.fromkeys(zip(steps["slots"], steps["requests"], strict=True)))
    return tidy([_step_row(frames, loads, int(slots), int(requests)) for slots, requests in pairs], STEPS)


def _step_row(frames: RunFrames, loads: pd.DataFrame, slots: int, requests: int) -> dict[str, Any]:
    mine = loads[(loads["slots"] == slots) & (loads["requests"] == requests) & (loads["kind"] == "step")]
    views = [LoadView(frames.data, arm, frames.rows(arm)) for arm in mine["arm"]]
    effective = views[0].rows.effective
    names = ("aggregate_tokens_per_s", "stream_tokens_per_s", "slowest_ttft_s")
    figures = {name: figure(loads, name, slots, requests) for name in names}
    kv_bytes = effective.get("kv_bytes")
    return {
        "slots": slots, "requests": requests, "runs": len(mine),
        "busy": _most(view.peak_busy for view in views), "deferred": _most(view.peak_deferred for view in views),
        "in_flight": _most(view.in_flight for view in views),
        "pool_cells": effective.get("pool_cells"), "kv_mib": kv_bytes / 2**20 if kv_bytes else None,
        "memory_mib": _memory_mib(frames, list(mine["arm"])),
        "note": "warm: prompts came from a cache" if mine["warm"].any() else "",
    } | {name: value.mean if value else None for name, value in figures.items()}  # fmt: skip


def _most(values: Any) -> int | None:
    return max((int(value) for value in values if value is not None), default=None)


def _memory_mib(frames: RunFrames, arms: list[str]) -> float | None:
    memory = frames.memory[frames.memory["arm"].isin(arms)]
    gpu, resident = memory["gpu_used_bytes"].max(), memory["resident_bytes"].max()
    most = gpu if known(gpu) else resident
    return float(most) / 2**20 if known(most) else None


def waits_table(frames: RunFrames) -> pd.DataFrame:
    """Return one row a request: where it waited, how long it was prefilled and decoded, its gaps.

    Args:
        frames: the run, or some arms of it.
    """
    gaps = frames.tokens.groupby(["arm", "label"])["gap_s"].agg(["median", "max"])
    rows = []
    for arm in frames.arms:
        for row in frames.requests[frames.requests["arm"] == arm].to_dict("records"):
            key = (arm, row["label"])
            median, longest = gaps.loc[key] if key in gaps.index else (None, None)
            rows.append(row | {"load": frames.arm_name(arm), "gap_s": median, "longest_gap_s": longest})
    return tidy(rows, WAITS)
