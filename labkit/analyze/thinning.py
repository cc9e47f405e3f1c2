"""Keeps pictures of long runs drawable: at most one mark a pixel, and a line that says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labkit.analyze.frames import FOREIGN, RunFrames

if TYPE_CHECKING:
    import pandas as pd

MAX_MARKS = 1500  # of one kind in one arm: more than a picture of this width can show apart


def thinning_note(frames: RunFrames) -> list[str]:
    """Return the line that says that marks were left out, if any were."""
    busy = int(frames.slots["busy"].fillna(False).sum())
    if max(len(frames.tokens), 2 * busy) <= MAX_MARKS:
        return []
    return [
        f"{len(frames.tokens):,} tokens, {busy:,} slot states: at most one mark a pixel is drawn, all are in the record"
    ]


def thinned(frame: pd.DataFrame, time: str, end_s: float) -> pd.DataFrame:
    """Return at most one row a request and pixel: more could not be seen, and Altair refuses 5,000."""
    if len(frame) <= MAX_MARKS:
        return frame
    pixels = max(1, MAX_MARKS // max(1, frame["label"].nunique()))
    pixel = (frame[time] / max(end_s, 1e-9) * pixels).astype(int)
    return frame[~frame.assign(pixel=pixel).duplicated(["label", "pixel"])]


def poll_spans(slots: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the strip's pieces: one for each busy slot and poll, or runs of equal ones where there are many."""
    if slots.empty:
        return []
    busy = slots[slots["busy"].fillna(False) & (slots["received_s"] >= 0)]
    polls = slots.groupby("poll")["received_s"].first()
    interval_s = float(polls.diff().median()) if len(polls) > 1 else 0.05
    spans = [
        {"slot": int(row.slot), "label": row.label, "fresh": bool(row.fresh), "poll": int(row.poll),
         "x": float(row.received_s) - 0.3 * interval_s, "x2": float(row.received_s) + 0.3 * interval_s}
        for row in busy.sort_values(["slot", "poll"]).itertuples()
    ]  # fmt: skip
    return spans if len(spans) <= MAX_MARKS // 2 else _joined(spans)


def foreign_spans(slots: pd.DataFrame) -> list[dict[str, Any]]:
    """Return when somebody else's tasks held a slot: from the first to the last of each run of polls that show one."""
    theirs = slots[slots["label"] == FOREIGN].sort_values(["slot", "poll"])
    spans = [
        {"slot": int(row.slot), "label": FOREIGN, "fresh": False, "poll": int(row.poll),
         "x": float(row.sent_s), "x2": float(row.received_s)}
        for row in theirs.itertuples()
    ]  # fmt: skip
    return _joined(spans)


def _joined(spans: list[dict[str, Any]]) -> list[dict[str, Any]]:
    joined: list[dict[str, Any]] = []
    for span in spans:
        last = joined[-1] if joined else None
        same = last and all(last[key] == span[key] for key in ("slot", "label", "fresh"))
        if last and same and span["poll"] == last["poll"] + 1:
            last |= {"x2": span["x2"], "poll": span["poll"]}
        else:
            joined.append(dict(span))
    return joined
