"""What notebook 06's tables and pictures say, in words with these runs' numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labkit.analyze.compare_runs.claims import Comparison
from labkit.analyze.compare_runs.counters_compared import builds, changed_meanings
from labkit.analyze.frames import Column, tidy
from labkit.analyze.lanes import seconds_text
from labkit.analyze.verdict import REFUTED, SUPPORTED, Verdict

if TYPE_CHECKING:
    import pandas as pd

DIFFERENCES = {
    "what": Column("str", "", "what is not the same"),
    "before": Column("str", "", "as recorded before the change"),
    "after": Column("str", "", "as recorded after it"),
    "meaning": Column("str", "", "what it means for the comparison"),
    "arms": Column("str", "", "where it was seen; empty: of the whole run"),
}
NOT_COMPARABLE = "These runs are not comparable: the numbers say nothing about the change. "
SHOWN = ("pair", "arm", "label", "ttft_s_before", "ttft_s_after", "wait_s_before", "wait_s_after", "itl_ms_before",
         "itl_ms_after", "tokens_per_s_before", "tokens_per_s_after", "left_out")  # fmt: skip


def differences_table(comparison: Comparison) -> pd.DataFrame:
    """Return every difference between the sides, those first that forbid a comparison."""
    rows = [
        {"what": item.what, "before": item.before, "after": item.after, "meaning": item.meaning,
         "arms": ", ".join(item.arms)}
        for item in comparison.differences
    ]  # fmt: skip
    return tidy(rows, DIFFERENCES)


def pairs_shown(comparison: Comparison) -> pd.DataFrame:
    """Return the pairs in the order in which they are read, each request's wait among them."""
    return comparison.pairs[list(SHOWN)]


def sides_text(comparison: Comparison, *, recorded: bool = False) -> str:
    """Return the line that every picture's subtitle carries: notebook, runs, what differs.

    Args:
        comparison: of the two sides.
        recorded: the comparison is a replay of an earlier one.
    """
    one, other = comparison.before[0].run, comparison.after[0].run
    runs = [f"{run.get('run_id', '?')}" for run in (one, other)]
    more = [f" and {len(side) - 1} more" * (len(side) > 1) for side in (comparison.before, comparison.after)]
    what = comparison.change or "nothing"
    if not comparison.comparable:
        what += " · NOT COMPARABLE"
    what += " · recorded" * recorded
    return f"{one.get('notebook')}: {runs[0]}{more[0]} → {runs[1]}{more[1]} · changed: {what}"


def change_reading(comparison: Comparison) -> str:
    """Say how each figure changed, with its interval."""
    found = [f"{change.metric.words} {change.text}" for change in comparison.changes.values()]
    if not found:
        return "No request was answered on both sides: there is no figure to compare."
    warning = "" if comparison.comparable else NOT_COMPARABLE
    share = "The wait's change is in per cent of the median TTFT before."
    return f"{warning}From before to after: {'; '.join(found)}. {share}"


def requests_reading(comparison: Comparison) -> str:
    """Say what happened to single requests: how many waited longer, and who most."""
    pairs = comparison.pairs[(comparison.pairs["left_out"] == "") & comparison.pairs["ttft_s_before"].notna()]
    pairs = pairs[pairs["ttft_s_after"].notna()]
    if pairs.empty:
        return "No request got a first token on both sides."
    slower = pairs["ttft_s_after"] - pairs["ttft_s_before"]
    worst = pairs.loc[slower.idxmax()]
    text = (
        f"{int((slower > 0).sum())} of {len(pairs)} requests got their first token later than before; the largest"
        f" change for the worse is {worst['label']} in {worst['arm']}: {seconds_text(float(worst['ttft_s_before']))}"
        f" before, {seconds_text(float(worst['ttft_s_after']))} after."
    )
    waits = pairs[pairs["wait_s_before"].notna() & pairs["wait_s_after"].notna()]
    if len(waits):
        longest = [seconds_text(float(waits[f"wait_s_{side}"].max())) for side in ("before", "after")]
        text += f" The longest wait at the server: {longest[0]} before, {longest[1]} after."
    left_out = int((comparison.pairs["left_out"] != "").sum())
    return text + (f" {left_out} pairs are left out, with the reason in the table." if left_out else "")


def averages_reading(comparison: Comparison) -> str:
    """Compare two averages, once: what that hides."""
    pairs = comparison.pairs[(comparison.pairs["left_out"] == "") & comparison.pairs["ttft_s_before"].notna()]
    pairs = pairs[pairs["ttft_s_after"].notna()]
    change = comparison.changes.get("ttft")
    if pairs.empty or change is None:
        return "No request got a first token on both sides: there is no average to compare."
    means = [float(pairs[f"ttft_s_{side}"].mean()) for side in ("before", "after")]
    percent = 100 * (means[1] / means[0] - 1)
    said = "better" if percent < 0 else "worse"
    against = int(((pairs["ttft_s_after"] > pairs["ttft_s_before"]) == (percent < 0)).sum())
    return (
        f"Mean TTFT: {seconds_text(means[0])} before, {seconds_text(means[1])} after. {abs(percent):.1f} % {said}, say"
        f" the averages, and {against} of {len(pairs)} requests went the other way. A mean is ruled by its slowest"
        f" requests and has no interval here; in pairs the change is {change.text}."
    )


def counters_reading(comparison: Comparison) -> str:
    """Name the metrics that are left out because the builds mean other things by them."""
    numbers = [builds(side[0]) for side in (comparison.before, comparison.after)]
    left_out = changed_meanings(*numbers)
    names = [f"b{number}" if number else "an unknown build" for number in numbers]
    if not left_out:
        both = names[0] if names[0] == names[1] else f"{names[0]} and {names[1]}"
        return f"Both sides ({both}) mean the same by these counters: none is left out."
    reasons = "; ".join(f"{name} ({reason})" for name, reason in left_out.items())
    return f"Left out, since {names[0]} and {names[1]} may not mean the same by them: {reasons}."


def decision_reading(comparison: Comparison, verdict: Verdict) -> str:
    """Say what the verdict advises."""
    change = comparison.change or "the configuration, which is the same"
    if verdict.status == SUPPORTED:
        return f"Keep {change}: nothing is worse by more than {comparison.tolerance_percent:g} %."
    if verdict.status == REFUTED:
        reasons = "; ".join(f"{check.claim}: {check.why}" for check in verdict.checks if check.status == REFUTED)
        return f"Go back to the earlier configuration: {reasons}."
    if verdict.checks[0].status != SUPPORTED:
        return f"Not comparable: {verdict.checks[0].why.removeprefix('not comparable: ')}."
    open_checks = [check.claim for check in verdict.checks if check.status not in (SUPPORTED, "not_tested")]
    return f"Can't be told from these runs, neither for keeping nor for going back: {'; '.join(open_checks)}."


def predicted_change_reading(comparison: Comparison, predicted_percent: float) -> str:
    """Compare the prediction with what was measured.

    Args:
        comparison: both sides.
        predicted_percent: of the time to first token; below 0: faster.
    """
    change = comparison.changes.get("ttft")
    found = change.text if change else "nothing"
    return f"Predicted: TTFT changes by {predicted_percent:+g} %. Measured: {found}."
