"""What notebook 05's tables and pictures say, in words with this run's numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labkit.analyze.frames import Column, RunFrames, tidy
from labkit.analyze.kv_exhaustion.cells import ANSWERED, EXHAUSTED, ArmCells, Moment
from labkit.analyze.kv_exhaustion.charts import ALL_ARMS
from labkit.analyze.kv_exhaustion.trouble import ended_text

if TYPE_CHECKING:
    import pandas as pd

ARMS = (*ALL_ARMS, "too_long")
OUTCOMES = {
    "arm": Column("str", "", "what was different"),
    "slots": Column("Int64", "", "requests that run at once"),
    "KV": Column("str", "", "one pool, or a box for each slot"),
    "cells": Column("Int64", "cells", "KV cells in all"),
    "cells a slot": Column("Int64", "cells", "that one slot may use"),
    "batch": Column("Int64", "tokens", "logical batch"),
    "wanted": Column("Int64", "cells", "if as many requests as there are slots have their full length at once"),
    "held at most": Column("Int64", "cells", "by running requests at once, counted from their streams"),
    "ended": Column("str", "", "how each request ended"),
}


def exhaustion_table(frames: RunFrames) -> pd.DataFrame:
    """Return one row an arm: what there was, what was wanted, who ended how.

    Args:
        frames: the run.
    """
    return tidy([_row(cells) for cells in _ran(frames)], OUTCOMES)


def _ran(frames: RunFrames) -> list[ArmCells]:
    return [cells for name in ARMS if (cells := ArmCells(frames.data, name)).ran]


def _row(cells: ArmCells) -> dict[str, Any]:
    known = set(cells.rows.requests) <= set(cells.prompts)
    mode = {True: "unified", False: "split", None: "unknown"}[cells.unified]
    batch = cells.rows.effective.get("batch_size")
    counted = (cells.worst, cells.peak()[0]) if known else (None, None)
    values = (cells.title, cells.slots, mode, cells.pool, cells.slot_cells, batch, *counted, ended_text(cells))
    return dict(zip(OUTCOMES, values, strict=True))


def cells_reading(frames: RunFrames) -> str:
    """Say when the pool ran out, how full it was, and who was ended."""
    together = ArmCells(frames.data, "together")
    if not together.ran:
        return f"The pool was not filled: {together.skipped or 'the arm did not run'}."
    sentences = [_moment_sentence(together, moment) for moment in together.moments()]
    if not sentences:
        peak, _, _ = together.peak()
        wanted = f"at full length at once they would want {together.worst:,}"
        sentences = [f"Nobody failed: the requests held at most {peak:,} of {together.pool:,} cells; {wanted}."]
    alone = ArmCells(frames.data, "one_by_one")
    if alone.ran:
        held = f"at most {alone.peak()[0]:,} cells at once"
        sentences.append(f"One after another, on the same server afterwards: {ended_text(alone)}, {held}.")
    return " ".join(sentences)


def _moment_sentence(cells: ArmCells, moment: Moment) -> str:
    parts = " + ".join(str(held) for held in moment.held.values())
    share = f"{moment.total:,} of {cells.pool:,} cells ({parts})"
    spared = f" {', '.join(moment.spared)} went on." if moment.spared else " Nobody who ran then was spared."
    ended = f"{', '.join(moment.victims)} ended with an error."
    return f"Shared KV pool exhausted with {share} held and {moment.wanted:,} wanted: {ended}{spared}"


def peaks_reading(frames: RunFrames) -> str:
    """Say which arms stayed inside their cells and which did not."""
    ran = [cells for cells in _ran(frames) if cells.name != "too_long"]
    failed = [cells.title for cells in ran if EXHAUSTED in cells.ends.values()]
    passed = [cells.title for cells in ran if set(cells.ends.values()) == {ANSWERED}]
    cut = [cells.title for cells in ran if cells.title not in (*failed, *passed)]
    parts = [("The pool ran out in", failed), ("All were answered in full in", passed), ("Answers were cut in", cut)]
    return " ".join(f"{words}: {'; '.join(titles)}." for words, titles in parts if titles) or "No arm ran."


def log_reading(frames: RunFrames) -> str:
    """Say how often the server's log told of the missing cells; the lines themselves stay in the log."""
    counts = frames.facts("together").get("log_lines")
    if not counts:
        return "The server's log was not read."
    return (
        f"In the first arm the server's log says {_times(counts['smaller_batch'])} that it found no free cells and"
        f" tries a smaller batch, each half of the one before, and {_times(counts['exceeded'])} that it gives up."
        f" Idle slots whose cells it took back: {counts['purged_slots']}; a busy slot's are never taken back."
    )


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def status_reading(frames: RunFrames) -> str:
    """Count a 200 as success, once: what that misses."""
    requests = sorted(ArmCells(frames.data, "together").rows.requests.values(), key=lambda row: str(row["label"]))
    if not requests:
        return "No request was sent in the first arm."
    ok = [request for request in requests if request["status"] == 200]
    inside = [request for request in ok if request["outcome"] == "server_error"]
    whole = [request for request in requests if request["outcome"] == ANSWERED]
    said = f"By HTTP status {len(ok)} of {len(requests)} requests succeeded (200)."
    if not inside:
        return f"{said} In truth {len(whole)} were answered in full: here the two agree."
    cut = ", ".join(f"{row['label']} after {row['tokens']} of {row['max_tokens']} tokens" for row in inside)
    return (
        f"{said} In truth {len(whole)} were answered in full: {len(inside)} streams ended with an error inside a 200"
        f" ({cut}). The status was sent before the answer began; only the stream's last event tells."
    )


def victims_reading(frames: RunFrames, predicted: int) -> str:
    """Compare the prediction with what was measured.

    Args:
        frames: the run.
        predicted: requests that would end with an error.
    """
    together = ArmCells(frames.data, "together")
    if not together.ran:
        return f"Predicted: {predicted} requests end with an error. Measured: nothing, the arm did not run."
    failed = sum(end == EXHAUSTED for end in together.ends.values())
    return f"Predicted: {predicted} of {len(together.ends)} requests end with an error. Measured: {failed}."
