"""Sentences that read notebook 03's pictures and tables out, with the numbers of this very run."""

from __future__ import annotations

from typing import Any

from labkit.analyze.frames import RunFrames
from labkit.analyze.lanes import seconds_text
from labkit.analyze.late_arrival.naive import NaiveCriteria
from labkit.analyze.late_arrival.view import LateRows


def lanes_reading(frames: RunFrames) -> str:
    """Say, for each arm, when the late requests got their first token and what A did by then."""
    sentences = []
    for arm in frames.arms:
        rows, name = LateRows(frames.data, arm), frames.arm_name(arm)
        for label, request in rows.requests.items():
            if label != "A":
                sentences.append(_late_sentence(rows, name, label, request))
    return " ".join(sentences) or "No request was sent."


def _late_sentence(rows: LateRows, name: str, label: str, request: dict[str, Any]) -> str:
    where = name[0].upper() + name[1:]
    if request["first_token_s"] is None or request["sent_s"] is None:
        return f"{where}: {label} got no token ({request['outcome']})."
    wait = seconds_text(request["first_token_s"] - request["sent_s"])
    left = rows.tokens_after(request["first_token_s"])
    rest = f"A still got {left} tokens after it" if left else "A had got its last token before"
    return f"{where}: {label}'s first token came {wait} after it was sent; {rest}."


def tokens_reading(frames: RunFrames) -> str:
    """Say how many tokens each request got, and between when and when."""
    sentences = []
    for (arm, label), stream in frames.tokens.groupby(["arm", "label"], sort=False):
        span = f"{float(stream['t_s'].min()):.2f} s to {float(stream['t_s'].max()):.2f} s"
        sentences.append(f"{label} got {len(stream)} tokens from {span} with {frames.arm_name(arm)}.")
    return " ".join(sentences) or "No request got a token."


def gaps_reading(frames: RunFrames) -> str:
    """Say how long A stalled, and for whom."""
    sentences = []
    for arm in frames.arms:
        stalls = frames.stalls[(frames.stalls["arm"] == arm) & (frames.stalls["label"] == "A")]
        name = frames.arm_name(arm)
        of_a = frames.tokens[(frames.tokens["arm"] == arm) & (frames.tokens["label"] == "A")]
        if len(of_a) > 1 and of_a["gap_s"].median() <= 0:
            sentences.append(f"With {name}, A's tokens came bunched, several in one read: single gaps can't be told.")
            continue
        if stalls.empty:
            sentences.append(f"With {name}, no prefill of another request falls into A's stream.")
        for cause, group in stalls.groupby("cause"):
            worst = group.loc[group["gap_s"].idxmax()]
            times = worst["gap_s"] / worst["median_gap_s"]
            sentences.append(
                f"With {name}, the prefill of {cause} makes {len(group)} long gap{'s' * (len(group) > 1)}"
                f" in A's stream, the longest {seconds_text(worst['gap_s'])}: {times:.0f} times A's median gap."
            )
    return " ".join(sentences) or "No request got a token."


def naive_reading(naive: NaiveCriteria | None) -> str:
    """Say what the naive criteria claimed where nothing had joined."""
    if naive is None or not naive.polls:
        return "No control arm ran to its end with batching off and polls: nothing to try the naive criteria on."
    share = f"{naive.other_progress / naive.polls:.0%}"
    said = (
        f'The article\'s criterion says "batched" in {naive.other_progress} ({share}): this build still shows the'
        " previous task's counters on a slot whose new task waits."
        if naive.other_progress
        else "The article's criterion says \"batched\" in none: this build clears a finished task's counters."
    )
    return (
        f"Without continuous batching, in {naive.polls} polls in which no late request had a token:"
        f' "two slots are busy" is true in {naive.two_busy} ({naive.two_busy / naive.polls:.0%}). {said}'
        " Busy is not batched."
    )


def prediction_reading(frames: RunFrames, predicted: int) -> str:
    """Compare the prediction with what was measured.

    Args:
        frames: the run.
        predicted: tokens that A would still get after B's first one.
    """
    measured = []
    for arm in frames.arms:
        rows = LateRows(frames.data, arm)
        first_s = rows.requests.get("B", {}).get("first_token_s")
        if first_s is not None and rows.requests.get("A", {}).get("outcome") not in ("completed", "slot_limit"):
            measured.append(f"cut short with {frames.arm_name(arm)}")
        elif first_s is not None:
            measured.append(f"{rows.tokens_after(first_s)} with {frames.arm_name(arm)}")
    found = ", ".join(measured) or "nothing: B got no token"
    return f"Predicted: A gets {predicted} tokens after B's first one. Measured: {found}."
