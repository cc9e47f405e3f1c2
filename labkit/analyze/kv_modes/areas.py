"""From the ledger to areas: each request's cells over time as a shape that can be stacked on others.

Between two polls cells are taken to grow evenly: a prefill fills its cells while the server is too busy to answer.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from labkit.analyze.frames import RunFrames, known
from labkit.analyze.ledger import BY_SLOTS, BY_STREAMS, counts_cells, ledger

if TYPE_CHECKING:
    import pandas as pd

MAX_POLLS = 400  # more than the columns of a picture's pixels
_NUDGE_S = 1e-6


@dataclass
class Area:
    """Cells that one request held on one slot, or that it left there.

    Args:
        slot: the slot.
        label: the request; None: cells left by an earlier one.
        knots: (seconds, cells), rising in time; straight lines between them.
    """

    slot: int
    label: str | None
    knots: list[tuple[float, float]] = field(default_factory=list)

    @property
    def start_s(self) -> float:
        """When it begins."""
        return self.knots[0][0]

    @property
    def end_s(self) -> float:
        """When it ends."""
        return self.knots[-1][0]

    def at(self, time_s: float) -> float:
        """Return its cells at a moment; 0 outside its time."""
        if not self.start_s <= time_s <= self.end_s:
            return 0.0
        i = min(bisect_right([t for t, _ in self.knots], time_s), len(self.knots) - 1)
        (t0, c0), (t1, c1) = self.knots[max(0, i - 1)], self.knots[i]
        return c1 if t1 <= t0 else c0 + (c1 - c0) * min(1.0, (time_s - t0) / (t1 - t0))


def areas(frames: RunFrames, arm: str) -> list[Area]:
    """Return one arm's areas, slot by slot in time.

    Args:
        frames: the run.
        arm: one that put a load on.
    """
    rows = ledger(frames, arm)
    requests = frames.requests[frames.requests["arm"] == arm].set_index("label")
    phases = frames.phases[(frames.phases["arm"] == arm) & (frames.phases["phase"] == "prefill")].set_index("label")
    polls = sorted(rows["poll"].unique())
    kept = set(polls[:: 1 + len(polls) // MAX_POLLS])
    found: list[Area] = []
    for slot, mine in rows[rows["poll"].isin(kept)].groupby("slot"):
        found += _of_slot(int(slot), mine.sort_values("at_s"), requests, phases)
    return found


def _of_slot(slot: int, rows: pd.DataFrame, requests: pd.DataFrame, prefills: pd.DataFrame) -> list[Area]:
    found: list[Area] = []
    polls = [(float(r.at_s), r.label if known(r.label) else None, float(r.cells)) for r in rows.itertuples()]
    before_s = 0.0
    for at_s, label, cells in polls:
        last = found[-1] if found else None
        if last is None or last.label != label:
            if last is not None and last.label is not None:
                _close(last, requests, at_s)
            found.append(_begun(Area(slot, label), last, before_s, cells, prefills))
        found[-1].knots.append((at_s, cells))
        before_s = at_s
    if found and found[-1].label is not None:
        _close(found[-1], requests, float("inf"))
    return [area for area in found if max(cells for _, cells in area.knots) > 0]


def _close(area: Area, requests: pd.DataFrame, before_s: float) -> None:
    """Let a request's area last until its stream ended, which may be between two polls."""
    end_s = requests["end_s"].get(area.label)
    if end_s is not None and known(end_s) and float(end_s) > area.end_s:
        area.knots.append((min(float(end_s), before_s) - _NUDGE_S, area.knots[-1][1]))


def _begun(area: Area, last: Area | None, before_s: float, cells: float, prefills: pd.DataFrame) -> Area:
    """Let an area begin where the one before it ended: a request with no cell, cells that are left as they are."""
    start_s = max(before_s, last.end_s + _NUDGE_S if last else 0.0)
    if area.label is None:
        area.knots.append((start_s, cells))
        return area
    prefill_s = prefills["start_s"].get(area.label)
    if prefill_s is not None and known(prefill_s):
        start_s = max(start_s, float(prefill_s))
    area.knots.append((start_s, 0.0))
    return area


def stacked(pile: list[Area]) -> list[list[dict[str, Any]]]:
    """Return, for each area, its outline as rows with x, y (its foot) and y2 (its top): running ones lie below.

    Args:
        pile: areas that share one box of cells, in the order in which they lie on each other.
    """
    order = sorted(pile, key=lambda area: area.label is None)
    grid = sorted({time for area in order for time, _ in area.knots})
    outlines = []
    for position, area in enumerate(order):
        times = [time for time in grid if area.start_s <= time <= area.end_s]
        feet = [sum(under.at(time) for under in order[:position]) for time in times]
        outlines.append(
            [
                {"x": t, "y": foot, "y2": foot + area.at(t), "label": area.label}
                for t, foot in zip(times, feet, strict=True)
            ]
        )
    return outlines


@dataclass(frozen=True)
class CellUse:
    """How an arm's cells were used, from its first request's sending to its last one's end.

    Args:
        peak_cells: most cells that running requests were seen to hold at once.
        idle_share: of all cells, those that no running request held, averaged over time.
        source: what tells.
    """

    peak_cells: int
    idle_share: float
    source: str


def cell_use(frames: RunFrames, arm: str) -> CellUse | None:
    """Return how an arm's cells were used; None where nothing tells.

    Args:
        frames: the run.
        arm: one that put a load on.
    """
    effective = (frames.facts(arm).get("server") or {}).get("effective") or {}
    pool, running = effective.get("pool_cells"), [area for area in areas(frames, arm) if area.label is not None]
    end_s = frames.requests[frames.requests["arm"] == arm]["end_s"].max()
    if not pool or not running or not known(end_s) or float(end_s) <= 0:
        return None
    grid = sorted({time for area in running for time, _ in area.knots})
    held = sum((t1 - t0) * (c0 + c1) / 2 for area in running for (t0, c0), (t1, c1) in pairwise(area.knots))
    return CellUse(
        peak_cells=round(max(sum(area.at(time) for area in running) for time in grid)),
        idle_share=1 - held / (pool * float(end_s)),
        source=BY_SLOTS if counts_cells(frames, arm) else BY_STREAMS,
    )
