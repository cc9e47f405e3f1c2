"""Paired figures of two sides: the same request before and after, and what the pairs say together.

The unit that is repeated is a load (an arm of a run): its requests share a server and a moment, so they are
no independent samples. A change is the mean over loads of the mean over a load's requests, on a logarithmic
scale for ratios; its interval is bootstrapped over loads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from labkit.analyze.compare_runs.comparable import common_arms
from labkit.analyze.frames import Column, RunFrames, known, tidy
from labkit.analyze.rows import RunRows

if TYPE_CHECKING:
    import pandas as pd

ANSWERED = ("completed", "slot_limit")
MIN_LOADS = 5  # fewer give no interval worth the name
_CONFIDENCE, _RESAMPLES = 0.95, 4000


@dataclass(frozen=True)
class Metric:
    """One figure of a request.

    Args:
        name: short name, stable.
        words: what it is.
        column: of the pairs, without its side.
        unit: of the column.
        lower_is_better: whether less is better.
    """

    name: str
    words: str
    column: str
    unit: str
    lower_is_better: bool = True

    def worse(self, change_percent: float) -> float:
        """Return a change as how much worse it is, in per cent; below 0: better."""
        return change_percent if self.lower_is_better else -change_percent


METRICS = (
    Metric("ttft", "time to first token", "ttft_s", "s"),
    Metric("wait", "wait at the server", "wait_s", "s"),
    Metric("itl", "inter-token latency", "itl_ms", "ms"),
    Metric("rate", "decode rate", "tokens_per_s", "tokens/s", lower_is_better=False),
)

_SIDES = ("before", "after")
PAIRS = {
    "pair": Column("Int64", "", "number of the pair of runs, from 1"),
    "arm": Column("str", "", "arm of the run"),
    "label": Column("str", "", "name of the request"),
    **{
        f"{metric.column}_{side}": Column("Float64", metric.unit, f"{metric.words}, {side}")
        for metric in METRICS
        for side in _SIDES
    },
    "left_out": Column("str", "", "why it enters no figure; empty: it does"),
}


@dataclass(frozen=True)
class Change:
    """What all pairs say of one figure.

    Args:
        metric: which.
        percent: change from before to after; of a wait: in per cent of the median TTFT before.
        low: lower end of its 95 % bootstrap interval; None with fewer than MIN_LOADS loads. high: upper end.
        loads: how many loads gave a pair.
        requests: how many requests did.
        worst: the request that got worse most, as (name, per cent worse).
        surely_worse: the request that is worse in load after load, as (label, at least so many per cent);
            None with fewer than MIN_LOADS loads of each.
    """

    metric: Metric
    percent: float
    low: float | None
    high: float | None
    loads: int
    requests: int
    worst: tuple[str, float]
    surely_worse: tuple[str, float] | None = None

    @property
    def text(self) -> str:
        """The change with its interval, or why it has none."""
        if self.low is None or self.high is None:
            return f"{self.percent:+.1f} % ({self.loads} load{'s' * (self.loads != 1)}: no interval)"
        return f"{self.percent:+.1f} % (95 % interval {self.low:+.1f} to {self.high:+.1f}, {self.loads} loads)"


def pair_table(before: Sequence[RunRows], after: Sequence[RunRows]) -> pd.DataFrame:
    """Return one row for each request that both sides sent, run by run in the order given.

    Args:
        before: runs of the earlier configuration.
        after: runs of the new one.
    """
    rows: list[dict[str, Any]] = []
    for number, (one, other) in enumerate(zip(before, after, strict=False), start=1):
        sides = [_by_request(one), _by_request(other)]
        order = {arm: place for place, arm in enumerate(common_arms(one, other))}
        both = [key for key in set(sides[0]) & set(sides[1]) if key[0] in order]
        keys = sorted(both, key=lambda key: (order[key[0]], key[1]))
        rows += [
            {"pair": number, "arm": arm, "label": label}
            | _figures(sides[0][arm, label], "before", sides[1][arm, label])
            | _figures(sides[1][arm, label], "after", sides[0][arm, label])
            | {"left_out": _why_not(sides[0][arm, label], sides[1][arm, label])}
            for arm, label in keys
        ]
    return tidy(rows, PAIRS)


def _by_request(data: RunRows) -> dict[tuple[str, str], Any]:
    return {(row.arm, row.label): row for row in RunFrames(data).requests.itertuples()}


def _figures(row: Any, side: str, other: Any) -> dict[str, float | None]:
    rate = _rate(row, other)
    figures = {
        "ttft_s": _above_zero(row.ttft_s),
        "wait_s": float(row.server_wait_s) if known(row.server_wait_s) else None,
        "itl_ms": 1e3 / rate if rate else None,
        "tokens_per_s": rate,
    }
    return {f"{name}_{side}": value for name, value in figures.items()}


def _rate(row: Any, other: Any) -> float | None:
    """Return a decode rate by the server's own count of tokens, where it gave one on both sides.

    A piece of text may hold several tokens, and how many it holds is the client's affair.
    """
    if not known(row.decode_tokens_per_s):
        return None
    counted = known(row.predicted_n) and known(other.predicted_n)
    tokens = row.predicted_n if counted else row.tokens
    return _above_zero((tokens - 1) / row.decode_s)


def _above_zero(value: Any) -> float | None:
    """Return a figure of which a ratio can be made; a record altered by hand may hold others."""
    return float(value) if known(value) and 0 < value < math.inf else None


def _why_not(one: Any, other: Any) -> str:
    ends = [row.outcome for row in (one, other)]
    if any(end not in ANSWERED for end in ends):
        return f"ended as {ends[0]} before, {ends[1]} after"
    warm = [bool(row.warm) if known(row.warm) else False for row in (one, other)]
    if warm[0] != warm[1]:
        return f"some of its prompt came from a cache {'before' if warm[0] else 'after'} only"
    return ""


def changes(pairs: pd.DataFrame) -> dict[str, Change]:
    """Return what the pairs say of each figure, by its name; a figure that no pair has is missing.

    Args:
        pairs: of pair_table().
    """
    used = pairs[pairs["left_out"] == ""]
    found = {metric.name: _change(used, metric) for metric in METRICS}
    return {name: change for name, change in found.items() if change}


def request_changes(pairs: pd.DataFrame, metric: Metric) -> pd.Series:
    """Return each pair's change of one figure in per cent; NA where a side lacks it.

    Args:
        pairs: of pair_table(), without those left out.
        metric: the figure. A wait may be nothing, so its change is one in per cent of the median TTFT before.
    """
    before, after = pairs[f"{metric.column}_before"], pairs[f"{metric.column}_after"]
    if metric.name == "wait" and pairs["ttft_s_before"].notna().any():
        return 100 * (after - before) / float(pairs["ttft_s_before"].median())
    return 100 * (after / before - 1)


def _change(pairs: pd.DataFrame, metric: Metric) -> Change | None:
    percent = request_changes(pairs, metric).astype("Float64")
    there = pairs[percent.notna()].assign(percent=percent[percent.notna()])
    if there.empty:
        return None
    there["worse"] = [metric.worse(float(p)) for p in there["percent"]]
    worst = there.loc[there["worse"].idxmax()]
    worst_named = f"{worst['label']} in {worst['arm']}", float(worst["worse"])
    percent, low, high, loads = _over_loads(there, metric)
    return Change(metric, percent or 0.0, low, high, loads, len(there), worst_named, _surely_worse(there, metric))


def _over_loads(there: pd.DataFrame, metric: Metric) -> tuple[float | None, float | None, float | None, int]:
    """Return the mean change over loads in per cent, its interval, and how many loads there are."""
    logarithmic = metric.name != "wait"
    scaled = [math.log1p(p / 100) if logarithmic else p / 100 for p in there["percent"]]
    units = [float(value) for value in there.assign(scaled=scaled).groupby(["pair", "arm"])["scaled"].mean()]

    def percents(value: float | None) -> float | None:
        return None if value is None else 100 * (math.expm1(value) if logarithmic else value)

    mean, low, high = map(percents, _interval(units))
    return mean, low, high, len(units)


def _surely_worse(there: pd.DataFrame, metric: Metric) -> tuple[str, float] | None:
    """Return the request that a mean over all requests may hide: worse in load after load, and by how much at least."""
    found = []
    for label, rows in there.groupby("label"):
        _, low, high, _ = _over_loads(rows, metric)
        if low is not None and high is not None:
            found.append((min(metric.worse(low), metric.worse(high)), str(label)))
    return (max(found)[1], max(found)[0]) if found else None


def _interval(values: list[float]) -> tuple[float, float | None, float | None]:
    mean = sum(values) / len(values)
    if len(values) < MIN_LOADS:
        return mean, None, None
    import numpy as np
    from scipy.stats import bootstrap

    found = bootstrap(
        (values,), np.mean, confidence_level=_CONFIDENCE, n_resamples=_RESAMPLES, method="percentile", rng=0
    ).confidence_interval
    return mean, float(found.low), float(found.high)
