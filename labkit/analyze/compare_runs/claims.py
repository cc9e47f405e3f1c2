"""The verdict of notebook 06: keep the change, go back, or not comparable.

supported: keep; no figure is worse by more than is tolerated. refuted: go back to the earlier configuration;
something that was answered isn't any more, or a figure is surely worse. inconclusive: the runs can't be
compared, or the pairs are too few or too noisy to tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from labkit.analyze.compare_runs.comparable import (
    BLOCKS,
    CHANGED,
    PRIMARY,
    Difference,
    common_arms,
    differences,
    named_change,
)
from labkit.analyze.compare_runs.paired import ANSWERED, METRICS, MIN_LOADS, Change, Metric, changes, pair_table
from labkit.analyze.rows import RunRows
from labkit.analyze.verdict import INCONCLUSIVE, NOT_TESTED, REFUTED, SUPPORTED, Check, Verdict

if TYPE_CHECKING:
    import pandas as pd

# an answer that its slot cut short is worth less than a whole one, and more than none
_RANKS = {"completed": 2, "slot_limit": 1}
MORE_RUNS = "give folders of several runs each, made by turns: before, after, before, after, ..."


@dataclass(frozen=True)
class Comparison:
    """Two sides and what is to differ between them.

    Args:
        before: runs of the earlier configuration, oldest first.
        after: runs of the new one.
        changed: what differs on purpose, one of PRIMARY, or "auto": what the records say.
        tolerance_percent: a figure may get worse by so much and still be kept.
    """

    before: tuple[RunRows, ...]
    after: tuple[RunRows, ...]
    changed: str = "auto"
    tolerance_percent: float = 10.0

    @cached_property
    def found(self) -> list[str]:
        """Which of the four settings differ, by the records."""
        return named_change(self.before[0], self.after[0])

    @property
    def change(self) -> str:
        """What differs on purpose; empty: nothing."""
        if self.changed != "auto":
            return self.changed
        return self.found[0] if self.found else ""

    @cached_property
    def differences(self) -> list[Difference]:
        """Every difference: between the sides, and within each of them."""
        found = [*_of_sides(self.before, self.after), *differences(self.before[0], self.after[0], self.change)]
        for name, side in (("before", self.before), ("after", self.after)):
            for number, run in enumerate(side[1:], start=2):
                found += [
                    Difference(f"{item.what}, run 1 and {number} {name}", item.before, item.after, BLOCKS, item.arms)
                    for item in differences(side[0], run, "")
                    if item.meaning == BLOCKS
                ]
        return found

    @property
    def blocking(self) -> list[Difference]:
        """The differences that make the sides not comparable."""
        return [item for item in self.differences if item.meaning == BLOCKS]

    @property
    def comparable(self) -> bool:
        """Whether one change alone stands between the sides."""
        return not self.blocking and not (self.changed == "auto" and len(self.found) > 1)

    @cached_property
    def pairs(self) -> pd.DataFrame:
        """One row for each request that both sides sent."""
        return pair_table(self.before, self.after)

    @cached_property
    def changes(self) -> dict[str, Change]:
        """What the pairs say of each figure."""
        return changes(self.pairs)


def _of_sides(before: Sequence[RunRows], after: Sequence[RunRows]) -> Iterator[Difference]:
    """Yield what is wrong with the choice of runs: some without a partner, or one that counts twice."""
    if len(before) != len(after):
        yield Difference("number of runs", str(len(before)), str(len(after)), BLOCKS)
    ids = [[data.run.get("run_id") for data in side] for side in (before, after)]
    every = [name for side in ids for name in side if name is not None]
    if twice := {name for name in every if every.count(name) > 1}:
        words = [", ".join(str(name) for name in side if name in twice) for side in ids]
        yield Difference("the same run twice", words[0], words[1], BLOCKS)


def judge_compare_runs(comparison: Comparison) -> Verdict:
    """Judge whether the new configuration is to be kept.

    Args:
        comparison: both sides.
    """
    comparable = _comparable_check(comparison)
    if comparable.status != SUPPORTED:
        rest = [_answered(NOT_TESTED, "", "the runs are not comparable")]
        rest += [_metric_check(metric, NOT_TESTED, "", "the runs are not comparable") for metric in METRICS]
        return Verdict((comparable, *rest))
    checks = [comparable, _answered_check(comparison), *(_judged(comparison, metric) for metric in METRICS)]
    return Verdict(tuple(checks))


def _comparable_check(comparison: Comparison) -> Check:
    status, observed, why, hint = _comparable_said(comparison)
    return Check(
        name="comparable",
        claim="the two sides can be compared: they differ in one setting alone",
        status=status,
        observed=observed,
        expected=f"{comparison.change} differs, and what follows from it" if comparison.change else "nothing differs",
        why=why,
        hint=hint,
        numbers={"differences": [vars(item) for item in comparison.differences]},
    )


def _comparable_said(comparison: Comparison) -> tuple[str, str, str, str]:
    if comparison.changed == "auto" and len(comparison.found) > 1:
        names = " and ".join(comparison.found)
        why = f"not comparable: {names} differ; whose effect it is can't be told"
        return INCONCLUSIVE, f"{names} differ", why, "change one at a time"
    if blocking := comparison.blocking:
        listed = "; ".join(f"{item.what}: {item.before or '-'} / {item.after or '-'}" for item in blocking)
        what = ", ".join(dict.fromkeys(item.what for item in blocking))
        return INCONCLUSIVE, listed, f"not comparable: {what}", "runs of the same notebook, with the same parameters"
    if not common_arms(comparison.before[0], comparison.after[0]):
        return INCONCLUSIVE, "no arm in both", "not comparable: no load was measured in both", "runs of one notebook"
    if comparison.pairs.empty:
        return INCONCLUSIVE, "no request in both", "not comparable: no request was sent in both", "runs of one notebook"
    on_purpose = [item for item in comparison.differences if item.meaning == CHANGED]
    observed = "; ".join(f"{item.what}: {item.before} / {item.after}" for item in on_purpose)
    if observed:
        return SUPPORTED, observed, "nothing else that matters differs", ""
    if comparison.change:
        why = f"{comparison.change} was to differ, and is the same on both sides"
        hint = f"changed = one of {', '.join(PRIMARY)} that differs, or auto"
        return INCONCLUSIVE, "nothing differs", why, hint
    return SUPPORTED, "nothing differs", "the same configuration twice: what differs below is noise", ""


def _answered_check(comparison: Comparison) -> Check:
    ended = _Ended()
    for number, (one, other) in enumerate(zip(comparison.before, comparison.after, strict=True), start=1):
        ended.add(one, other, f", pair {number}" if len(comparison.before) > 1 else "")
    both, lost, gained = len(comparison.pairs), ended.lost, ended.gained
    observed = f"{both} requests on both sides; answered before only: {len(lost)}, after only: {len(gained)}"
    if lost and not comparison.change:
        return _answered(INCONCLUSIVE, observed, f"{'; '.join(lost[:5])}, and nothing was changed", MORE_RUNS)
    if lost:
        return _answered(REFUTED, observed, f"no longer answered: {'; '.join(lost[:5])}")
    if ended.not_run:
        why = f"answered before and not run after: {', '.join(ended.not_run)}"
        return _answered(INCONCLUSIVE, observed, why, "runs with the same parameters, none of whose arms is left out")
    why = f"newly answered: {'; '.join(gained[:5])}" if gained else "as many as before"
    return _answered(SUPPORTED, observed, why)


class _Ended:
    """How the requests of two sides ended: who lost by it, who gained, and which arms only the first side ran."""

    def __init__(self) -> None:
        self.lost: list[str] = []
        self.gained: list[str] = []
        self.not_run: list[str] = []

    def add(self, one: RunRows, other: RunRows, which: str) -> None:
        """Take in one pair of runs; `which` names it."""
        arms, ends = set(common_arms(one, other)), [_ends(run) for run in (one, other)]
        for key in sorted(set(ends[0]) & set(ends[1])):
            ranks = [_RANKS.get(side[key], 0) for side in ends]
            if key[0] in arms and ranks[0] != ranks[1]:
                worse = ranks[1] < ranks[0]
                end = ends[1][key] if worse else f"{ends[0][key]} before"
                (self.lost if worse else self.gained).append(f"{key[1]} in {key[0]}{which}: {end}")
        there = {arm for arm, _ in ends[1]}
        gone = {arm for (arm, _), end in ends[0].items() if end in ANSWERED and arm not in there}
        self.not_run += [arm + which for arm in sorted(gone)]


def _answered(status: str, observed: str, why: str, hint: str = "") -> Check:
    claim = "what was answered before is answered after"
    return Check("answered", claim, status, observed, "no request ends worse than before", why, hint)


def _ends(data: RunRows) -> dict[tuple[str, str], str]:
    return {(row["arm"], row["label"]): row["outcome"] for row in data.requests if not row["warm_up"]}


def _judged(comparison: Comparison, metric: Metric) -> Check:
    change, limit = comparison.changes.get(metric.name), comparison.tolerance_percent
    if change is None:
        return _metric_check(metric, *_unpaired(comparison.pairs, metric))
    name, worse = change.worst
    observed = f"{change.text}, {change.requests} requests; worst: {name}, {worse:+.1f} % worse"
    return _metric_check(metric, *_said(comparison, change, observed), limit=limit)


def _said(comparison: Comparison, change: Change, observed: str) -> tuple[str, str, str, str]:
    limit, hidden = comparison.tolerance_percent, change.surely_worse
    if change.low is None or change.high is None:
        why = f"{change.loads} loads give no interval; it takes {MIN_LOADS}"
        return INCONCLUSIVE, observed, why, MORE_RUNS
    ends = sorted((change.metric.worse(change.low), change.metric.worse(change.high)))
    if ends[0] > limit and not comparison.change:
        why = f"worse by at least {ends[0]:.1f} %, and nothing was changed: so much comes from the machine"
        return INCONCLUSIVE, observed, why, MORE_RUNS
    if ends[0] > limit:
        return REFUTED, observed, f"worse by at least {ends[0]:.1f} %", ""
    if not ends[1] <= limit:
        why = f"from {ends[0]:+.1f} to {ends[1]:+.1f} % worse: the interval holds the limit"
        return INCONCLUSIVE, observed, why, MORE_RUNS
    if hidden and hidden[1] > limit:
        why = f"not worse on the whole, but {hidden[0]} is, by at least {hidden[1]:.1f} %: whose figure counts is yours"
        return INCONCLUSIVE, observed, why, "look at the requests one by one"
    if lacking := _on_one_side(comparison.pairs, change.metric):
        return INCONCLUSIVE, observed, f"{lacking} requests have it on one side only", MORE_RUNS
    return SUPPORTED, observed, f"at most {max(0.0, ends[1]):.1f} % worse", ""


def _unpaired(pairs: pd.DataFrame, metric: Metric) -> tuple[str, str, str, str]:
    """Say what it means that no pair has a figure: nothing to compare, or something that was lost."""
    columns = [f"{metric.column}_{side}" for side in ("before", "after")]
    observed = "no request has it on both sides"
    if metric.name == "ttft" or pairs[columns].notna().any(axis=None):
        left_out = int((pairs["left_out"] != "").sum())
        why = f"{left_out} of {len(pairs)} pairs are left out" if left_out else "it was measured on one side only"
        return INCONCLUSIVE, observed, why, "runs in which requests are answered on both sides"
    return NOT_TESTED, observed, "nothing to compare", ""


def _on_one_side(pairs: pd.DataFrame, metric: Metric) -> int:
    """Return how many pairs that count lack a figure on one side."""
    used = pairs[pairs["left_out"] == ""]
    there = [used[f"{metric.column}_{side}"].notna() for side in ("before", "after")]
    return int((there[0] != there[1]).sum())


def _metric_check(
    metric: Metric, status: str, observed: str, why: str, hint: str = "", limit: float | None = None
) -> Check:
    share = " of the median TTFT" if metric.name == "wait" else ""
    return Check(
        name=metric.name,
        claim=f"{metric.words}: not worse",
        status=status,
        observed=observed,
        expected=f"at most {limit:g} %{share} worse" if limit is not None else "",
        why=why,
        hint=hint,
    )


def compared(
    before: Sequence[RunRows], after: Sequence[RunRows], *, changed: str, tolerance_percent: float
) -> Comparison:
    """Return the comparison of two sides.

    Args:
        before: runs of the earlier configuration, oldest first.
        after: runs of the new one.
        changed: what differs on purpose, or "auto".
        tolerance_percent: a figure may get worse by so much and still be kept.
    """
    return Comparison(tuple(before), tuple(after), changed, tolerance_percent)
