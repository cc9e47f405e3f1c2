"""How rates and times change with the slots: numbers with intervals, reported and never claimed.

The unit that is repeated is a load on a fresh server, so intervals are bootstrapped over repeats: requests
of one load are no independent samples. More slots hold more sequences; they add no compute and no bandwidth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from labkit.analyze.frames import Column, RunFrames, known, tidy
from labkit.analyze.slot_escalation.view import LoadView, step_of

if TYPE_CHECKING:
    import pandas as pd

# fewer give no interval: their spread is drawn as points
MIN_RUNS = 3
_CONFIDENCE, _RESAMPLES = 0.95, 2000

LOADS = {
    "arm": Column("str", "", "name of the load in the record"),
    "slots": Column("Int64", "", "slots of its server"),
    "requests": Column("Int64", "", "requests of the load"),
    "repeat": Column("Int64", "", "number of the measurement, from 1"),
    "kind": Column("str", "", "step, again (the A/A arm) or wrong_way"),
    "aggregate_tokens_per_s": Column("Float64", "tokens/s", "all tokens, from the first sending to the last token"),
    "stream_tokens_per_s": Column("Float64", "tokens/s", "median decode rate of its requests"),
    "ttft_s": Column("Float64", "s", "median time to first token"),
    "slowest_ttft_s": Column("Float64", "s", "its slowest first token"),
    "slowest_itl_s": Column("Float64", "s", "time per token of its slowest stream"),
    "warm": Column("boolean", "", "some of its prompts came from a slot's cache"),
}


@dataclass(frozen=True)
class Measured:
    """A figure that was measured several times.

    Args:
        mean: of all runs.
        low: lower end of its 95 % bootstrap interval; None with fewer than 3 runs. high: upper end.
        runs: how often it was measured.
    """

    mean: float
    low: float | None
    high: float | None
    runs: int

    def text(self, form: str = ".1f") -> str:
        """Return it with its interval, or with the reason why it has none."""
        if self.low is None or self.high is None:
            return f"{self.mean:{form}} ({self.runs} run{'s' * (self.runs > 1)}, no interval)"
        return f"{self.mean:{form}} ({self.low:{form}} to {self.high:{form}})"


def measured(values: list[float]) -> Measured | None:
    """Return mean and interval of what several runs gave; None for none.

    Args:
        values: one a run.
    """
    if not values:
        return None
    mean = sum(values) / len(values)
    if len(values) < MIN_RUNS:
        return Measured(mean, None, None, len(values))
    import numpy as np
    from scipy.stats import bootstrap

    found = bootstrap(
        (values,), np.mean, confidence_level=_CONFIDENCE, n_resamples=_RESAMPLES, method="percentile", rng=0
    ).confidence_interval
    return Measured(mean, float(found.low), float(found.high), len(values))


def load_figures(frames: RunFrames) -> pd.DataFrame:
    """Return one row a load, every repeat and the A/A arm by itself.

    Args:
        frames: the run.
    """
    rows = [_figures(frames, arm) for arm in frames.arms if step_of(frames.data.run, arm)]
    return tidy(rows, LOADS)


def _figures(frames: RunFrames, arm: str) -> dict[str, Any]:
    view = LoadView(frames.data, arm, frames.rows(arm))
    requests = frames.requests[frames.requests["arm"] == arm]
    per_token = requests["decode_s"] / (requests["tokens"] - 1).where(requests["tokens"] > 1)
    # a load with a failed request has no rate: what was left out would have taken its time
    whole = not view.undone and not view.trouble
    return {
        "arm": arm, "slots": view.step.slots or view.slots, "requests": view.step.requests,
        "repeat": view.step.repeat, "kind": view.step.kind,
        "aggregate_tokens_per_s": view.rate() if whole else None,
        "stream_tokens_per_s": _or_none(requests["decode_tokens_per_s"].median()) if whole else None,
        "ttft_s": _or_none(requests["ttft_s"].median()) if whole else None,
        # a request that never had a token is no fast one
        "slowest_ttft_s": _or_none(requests["ttft_s"].max(skipna=False)) if whole else None,
        "slowest_itl_s": _or_none(per_token.max()) if whole else None,
        "warm": bool(requests["warm"].fillna(False).any()),
    }  # fmt: skip


def _or_none(value: Any) -> float | None:
    return float(value) if known(value) else None


def figure(loads: pd.DataFrame, name: str, slots: int, requests: int) -> Measured | None:
    """Return one figure of one step and load, over its repeats.

    Args:
        loads: of load_figures().
        name: of the column.
        slots: of the step; requests: of the load.
    """
    mine = loads[(loads["slots"] == slots) & (loads["requests"] == requests) & (loads["kind"] == "step")]
    return measured([float(value) for value in mine[name].dropna()])


def ratio(loads: pd.DataFrame, slots: int, base: int, *, kind: str = "step") -> Measured | None:
    """Return a step's aggregate rate as a multiple of another's, paired by repeat, under the largest load.

    Args:
        loads: of load_figures().
        slots: of the step above the line; base: below it.
        kind: "again" for the A/A ratio: the same step measured twice in each repeat.
    """
    if loads.empty:
        return None
    name = "aggregate_tokens_per_s"
    heavy = loads[loads["requests"] == loads["requests"].max()].dropna(subset=[name])
    above = heavy[(heavy["slots"] == slots) & (heavy["kind"] == kind)].set_index("repeat")[name]
    below = heavy[(heavy["slots"] == base) & (heavy["kind"] == "step")].set_index("repeat")[name]
    pairs = (above / below).dropna()
    return measured([float(value) for value in pairs])


def single_rate(loads: pd.DataFrame) -> float | None:
    """Return the aggregate rate of a single request, over all steps.

    Args:
        loads: of load_figures().
    """
    alone = loads[(loads["requests"] == 1) & (loads["kind"] == "step")]["aggregate_tokens_per_s"]
    return _or_none(alone.mean()) if len(alone) else None
