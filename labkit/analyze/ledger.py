"""The ledger of KV cells: who held how many, and when.

From /slots, where the build counts cells there (its `n_prompt_tokens` is all that a slot holds: prompt and answer so
far, tools/server/server-context.cpp); else put together from the streams.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labkit.analyze.frames import FOREIGN, Column, RunFrames, known, tidy

if TYPE_CHECKING:
    import pandas as pd

LEDGER = {
    "arm": Column("str", "", "arm"),
    "at_s": Column("Float64", "s", "the poll was answered, since the arm's first request was sent"),
    "poll": Column("Int64", "", "number of the poll"),
    "slot": Column("Int64", "", "slot"),
    "label": Column("str", "", "request that the cells belong to; NA: left by an earlier one, free when needed"),
    "cells": Column("Int64", "cells", "KV cells"),
}
BY_SLOTS, BY_STREAMS = "/slots", "the streams, since this build's /slots does not count cells"


def counts_cells(frames: RunFrames, arm: str) -> bool:
    """Whether this arm's /slots tells how many cells a slot holds."""
    rows = frames.slots[(frames.slots["arm"] == arm) & (frames.slots["label"] != FOREIGN)]
    return bool(rows["n_cells"].notna().any())


def ledger(frames: RunFrames, arm: str) -> pd.DataFrame:
    """Return one row a poll and slot, from the first request's sending to the last one's end.

    A slot that owns a task but has not begun with it still shows what the task before left: those cells count as
    left. They are known by their number, which is where the task before ended.

    Args:
        frames: the run.
        arm: one that put a load on.
    """
    end_s = frames.requests[frames.requests["arm"] == arm]["end_s"].max()
    mine = frames.slots[(frames.slots["arm"] == arm) & (frames.slots["received_s"] >= 0)]
    if not known(end_s) or mine.empty:
        return tidy([], LEDGER)
    mine = mine[mine["received_s"] <= end_s]
    if not counts_cells(frames, arm):
        return tidy(_from_streams(frames, arm, mine), LEDGER)
    finals = _finals(frames, arm)
    return tidy([row for _, rows in mine.groupby("slot") for row in _from_slots(rows, finals)], LEDGER)


def _finals(frames: RunFrames, arm: str) -> dict[str, int]:
    """Return the cells that each request held at its end, by the server's own counts."""
    rows = frames.requests[(frames.requests["arm"] == arm) & frames.requests["predicted_n"].notna()]
    counts = rows["cache_n"].fillna(0) + rows["prompt_n"].fillna(0) + rows["predicted_n"] - 1
    return {str(label): int(cells) for label, cells in zip(rows["label"], counts, strict=True)}


def _from_slots(polls: pd.DataFrame, finals: dict[str, int]) -> list[dict[str, Any]]:
    rows, before, label_before = [], 0, None
    for poll in polls.sort_values("poll").itertuples():
        cells = int(poll.n_cells) if known(poll.n_cells) else 0
        label = poll.label if known(poll.label) else None
        if label is not None and label != label_before and not poll.fresh:
            left = (before, finals.get(str(label_before), before))
            label = None if min(left) <= cells <= max(left) + 1 else label
        if label is not None or not poll.busy:
            before, label_before = cells, label or label_before
        facts = {"arm": poll.arm, "at_s": poll.received_s, "poll": poll.poll, "slot": poll.slot}
        rows.append(facts | {"label": label, "cells": cells})
    return rows


def _from_streams(frames: RunFrames, arm: str, polls: pd.DataFrame) -> list[dict[str, Any]]:
    """Count a request's prompt from its first token on, and a cell for each token, at the moments of the polls."""
    prompts = frames.facts(arm).get("prompt_tokens") or {}
    # the builds that count no cells don't name the slot in their answers either: the polls tell it
    phases = frames.phases[(frames.phases["arm"] == arm) & frames.phases["slot"].notna()]
    slot_of = dict(zip(phases["label"], phases["slot"], strict=True))
    requests = frames.requests[(frames.requests["arm"] == arm) & frames.requests["label"].isin(list(slot_of))]
    tokens = {
        label: list(times)
        for label, times in frames.tokens[frames.tokens["arm"] == arm].dropna(subset=["t_s"]).groupby("label")["t_s"]
    }
    rows = []
    for poll in polls.itertuples():
        at_s, facts = float(poll.received_s), {"arm": arm, "at_s": poll.received_s, "poll": poll.poll}
        for request in requests[requests["end_s"] >= at_s].itertuples():
            if slot_of[request.label] != poll.slot:
                continue
            got = sum(time <= at_s for time in tokens.get(request.label, []))
            if got:
                cells = int(prompts.get(request.label, 0)) + got - 1
                rows.append(facts | {"slot": poll.slot, "label": request.label, "cells": cells})
    return rows
