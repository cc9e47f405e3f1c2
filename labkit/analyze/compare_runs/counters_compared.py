"""Growth of /metrics counters in two runs, without those whose meaning changed between their builds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labkit.analyze.compare_runs.comparable import common_arms
from labkit.analyze.frames import Column, RunFrames, tidy
from labkit.analyze.rows import RunRows

if TYPE_CHECKING:
    import pandas as pd

COUNTERS = ("prompt_tokens_total", "tokens_predicted_total", "n_decode_total")
# last build seen with the old meaning, first seen with the new one (tools/server/server-context.cpp)
_OLD, _NEW = 10229, 11434
MEANINGS = {
    "prompt_tokens_total": "added at a request's first token; from b11434 on with each step",
    "tokens_predicted_total": "added when a request completes; from b11434 on also when it is cancelled or fails",
    "n_decode_total": "every attempt; from b11434 on successful ones only",
    "n_busy_slots_per_decode": "over every attempt; from b11434 on over successful ones only",
    "prompt_tokens_seconds": "mean since the start; from b11434 on since the last scrape",
    "predicted_tokens_seconds": "mean since the start; from b11434 on since the last scrape",
}
GROWTH = {
    "arm": Column("str", "", "arm of the runs"),
    "counter": Column("str", "", "of /metrics"),
    "before": Column("Float64", "", "growth during the load"),
    "after": Column("Float64", "", "growth during the load"),
}


def changed_meanings(one: int | None, other: int | None) -> dict[str, str]:
    """Return the metrics that mean something else on the other build, and what; all where a build is not known.

    Args:
        one: build number; None: not known.
        other: the other's.
    """
    if one is not None and one == other:
        return {}
    known = [number for number in (one, other) if number is not None]
    same = len(known) == 2 and (max(known) <= _OLD or min(known) >= _NEW)
    return {} if same else MEANINGS


def builds(data: RunRows) -> int | None:
    """Return the build number of a run's servers; None where it is not known."""
    servers: list[dict[str, Any]] = [arm.get("server") or {} for arm in data.run.get("arms", {}).values()]
    return next((number for server in servers if (number := (server.get("build") or {}).get("number"))), None)


def counters_compared(before: RunRows, after: RunRows) -> pd.DataFrame:
    """Return how much counters grew in each common arm, those left out that mean another thing.

    Args:
        before: the earlier run.
        after: the later run.
    """
    left_out = changed_meanings(builds(before), builds(after))
    grown = [_growth(RunFrames(data)) for data in (before, after)]
    rows = [
        {"arm": arm, "counter": name, "before": grown[0][arm, name], "after": grown[1][arm, name]}
        for arm in common_arms(before, after)
        for name in COUNTERS
        if name not in left_out and (arm, name) in grown[0] and (arm, name) in grown[1]
    ]
    return tidy(rows, GROWTH)


def _growth(frames: RunFrames) -> dict[tuple[str, str], float]:
    seen = frames.metrics[frames.metrics["name"].isin(COUNTERS) & frames.metrics["value"].notna()]
    grouped = seen.sort_values("scrape").groupby(["arm", "name"])["value"]
    return {key: float(values.iloc[-1] - values.iloc[0]) for key, values in grouped if len(values) > 1}
