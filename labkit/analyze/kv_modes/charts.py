"""The picture of notebook 02: the cells of one pool, and of a box for each slot, filled over time."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from labkit.analyze.frames import RunFrames, known
from labkit.analyze.kv_modes.areas import areas, cell_use, stacked
from labkit.analyze.kv_modes.claims import LOADED, counted
from labkit.analyze.kv_modes.view import CUT, REFUSED, SERVED, KvArm
from labkit.analyze.palette import (
    CROSS,
    FAILED_COLOUR,
    INK,
    QUIET_INK,
    REQUEST_COLOURS,
    WIDTH,
    Datasets,
    finish,
    nothing_to_draw,
)

FILL_PX, HEAD_PX, AXIS_PX, BETWEEN_PX = 330, 24, 50, 26
EMPTY, LEFT = "#EEF0F2", "#C9CDD2"
NO_LOAD = "no load was put on: nothing to draw"
SHAPES = {SERVED: "circle", CUT: "square"}


def kv_ledger(frames: RunFrames, *, title: str, subtitle: list[str]) -> Any:
    """Draw who held how many cells and when: one pool, and a box for each slot, cells to one scale everywhere.

    Args:
        frames: the run.
        title: what the picture shows.
        subtitle: run facts, a line each.

    Returns:
        An alt.HConcatChart, a column an arm.
    """
    import altair as alt

    arms = [arm for arm in LOADED if arm in frames.arms]
    if not arms:
        return nothing_to_draw(alt, title, subtitle, text=NO_LOAD)
    datasets = Datasets()
    end_s = max(0.1, float(frames.requests[frames.requests["arm"].isin(arms)]["end_s"].max()))
    boxes = {arm: _boxes(KvArm(frames.data, arm)) for arm in arms}
    most = max(count * cells for count, cells in boxes.values())
    width = (WIDTH - AXIS_PX - BETWEEN_PX * (len(arms) - 1)) // len(arms)
    columns = [
        _Column(alt, frames, arm, datasets, end_s=end_s, width=width, most=most, boxes=boxes[arm]).chart(
            first=arm == arms[0]
        )
        for arm in arms
    ]
    legend = "colour: cells that a running request holds · grey: left by an ended one, free when needed · pale: empty"
    look = finish(title, [*subtitle, legend])
    return alt.hconcat(*columns, spacing=BETWEEN_PX, datasets=dict(datasets), **look)


def _boxes(arm: KvArm) -> tuple[int, int]:
    """Return how many boxes an arm's cells are cut into, and the cells of each."""
    pool, slots = int(arm.effective.get("pool_cells") or 1), int(arm.effective.get("slots") or 1)
    return (1, pool) if arm.effective.get("kv_unified") else (slots, pool // slots)


def colour_of(label: str, labels: list[str]) -> str:
    """Return a request's colour; where there are more requests than colours these come round again."""
    colours = list(REQUEST_COLOURS.values())
    return colours[labels.index(label) % len(colours)]


def _between(rows: list[dict[str, Any]], x: float, key: str) -> float:
    """Return a line's height at x."""
    after = next((i for i, row in enumerate(rows) if row["x"] >= x), len(rows) - 1)
    left, right = rows[max(0, after - 1)], rows[after]
    width = right["x"] - left["x"]
    return float(right[key] if width <= 0 else left[key] + (right[key] - left[key]) * (x - left["x"]) / width)


def _centroid(rows: list[dict[str, Any]]) -> float:
    """Return the moment at which an area has as much on its left as on its right, about."""
    pieces = [
        ((left["x"] + right["x"]) / 2, (right["x"] - left["x"]) * (left["y2"] - left["y"] + right["y2"] - right["y"]))
        for left, right in pairwise(rows)
    ]
    weight = sum(size for _, size in pieces)
    return float(sum(x * size for x, size in pieces) / weight if weight > 0 else rows[0]["x"])


class _Column:
    """One arm; y counts cells from the bottom, box upon box."""

    def __init__(
        self, alt: Any, frames: RunFrames, arm: str, datasets: Datasets, *, end_s: float, width: int, most: int,
        boxes: tuple[int, int],
    ) -> None:  # fmt: skip
        self.alt, self.frames, self.arm, self.datasets = alt, frames, arm, datasets
        self.end_s, self.width, self.most = end_s, width, most
        self.view, self.use = KvArm(frames.data, arm), cell_use(frames, arm)
        self.count, self.cells = boxes
        self.px = most / FILL_PX  # cells
        self.labels = [fate.label for fate in self.view.fates]
        self.areas = areas(frames, arm)

    def chart(self, *, first: bool) -> Any:
        alt = self.alt
        layers = [
            self._empty(),
            *self._filled(),
            self._frames(),
            *self._peak(),
            *self._names(),
            *self._refused(),
        ]
        x = alt.X(
            "x:Q", title="time since the first request was sent (s)",
            scale=alt.Scale(domain=[0, self.end_s * 1.01], nice=False), axis=alt.Axis(tickCount=6, grid=False),
        )  # fmt: skip
        scale = alt.Scale(domain=[0, self.most + HEAD_PX * self.px], nice=False)
        y = alt.Y("y:Q", title="KV cells" if first else None, axis=self._axis(first=first), scale=scale)
        drawn, height = self.datasets.drawn(layers), FILL_PX + HEAD_PX
        encoding = alt.Encoding(x=x, y=y)
        return alt.layer(*drawn, encoding=encoding, width=self.width, height=height, title=self._title())

    def _axis(self, *, first: bool) -> Any:
        """Return the axis that all columns share: numbers on the first one, lines on each."""
        quarters = [self.most * i // 4 for i in range(5)]
        return self.alt.Axis(values=quarters, format=",d", labels=first, ticks=first, domain=False)

    def _title(self) -> dict[str, Any]:
        what = "unified: one pool" if self.view.effective.get("kv_unified") else f"split: {self.count} boxes"
        used = f"{self.use.idle_share:.0%} of the cells idle on average" if self.use else "cells not known"
        text = {"text": f"{what}, {self.count * self.cells:,} cells in all", "anchor": "start", "fontSize": 13.5}
        return text | {"subtitle": [counted(self.view.fates), used], "subtitleColor": QUIET_INK}

    def _rects(self, rows: list[dict[str, Any]], **mark: Any) -> Any:
        return self.datasets.chart(self.alt, rows).mark_rect(**mark).encode(self.alt.X2("x2:Q"), self.alt.Y2("y2:Q"))

    def _box_rows(self) -> list[dict[str, Any]]:
        feet = range(0, self.count * self.cells, self.cells)
        return [{"x": 0, "x2": self.end_s * 1.01, "y": foot, "y2": foot + self.cells} for foot in feet]

    def _empty(self) -> Any:
        return self._rects(self._box_rows(), color=EMPTY)

    def _frames(self) -> Any:
        return self._rects(self._box_rows(), fill=None, stroke="#6B7075", strokeWidth=1.6)

    def _outlines(self) -> list[list[dict[str, Any]]]:
        """Return every area's outline in cells from the bottom."""
        if self.count == 1:
            return stacked(self.areas)
        outlines: list[list[dict[str, Any]]] = []
        for box in range(self.count):
            foot = box * self.cells
            for outline in stacked([area for area in self.areas if area.slot == box]):
                outlines.append([row | {"y": foot + row["y"], "y2": foot + row["y2"]} for row in outline])
        return outlines

    def _filled(self) -> list[Any]:
        rows = [row | {"part": i} for i, outline in enumerate(self._outlines()) for row in outline]
        running, left = [r for r in rows if r["label"]], [r for r in rows if not r["label"]]
        present = sorted({row["label"] for row in running})
        scale = self.alt.Scale(domain=present, range=[colour_of(label, self.labels) for label in present])
        colour = self.alt.Color("label:N", scale=scale, legend=None)
        edge = {"stroke": "white", "strokeWidth": 0.8}
        return [
            self.datasets.chart(self.alt, left).mark_area(color=LEFT, line=edge)
            .encode(self.alt.Y2("y2:Q"), self.alt.Detail("part:N")),
            self.datasets.chart(self.alt, running).mark_area(opacity=0.9, line=edge)
            .encode(self.alt.Y2("y2:Q"), self.alt.Detail("part:N"), colour),
        ]  # fmt: skip

    # --- words ----------------------------------------------------------------------------------------

    def _text(self, rows: list[dict[str, Any]], **mark: Any) -> Any:
        return self.datasets.words(self.alt, rows, **{"fontSize": 11.5} | mark)

    def _names(self) -> list[Any]:
        inside: list[dict[str, Any]] = []
        above: list[dict[str, Any]] = []
        outlines = self._outlines()
        for outline in outlines:
            if not outline or not outline[0]["label"]:
                continue
            word, height, width = self._name(outline)
            if height >= 11 * self.px and width >= 11:
                inside.append(word)
            else:
                above.append(word | {"y": 8 * self.px + self._pile_top(outlines, word)})
        sizes = [
            {"x": self.end_s, "y": (box + 1) * self.cells - 10 * self.px, "text": self._box_name(box)}
            for box in range(self.count)
        ]
        return [
            self._text(inside, color="white", fontWeight="bold", fontSize=12, align="center"),
            self._text(self._lifted(above), fontWeight="bold", align="center"),
            self._text(sizes, align="right", color=QUIET_INK, fontSize=11),
        ]

    def _pile_top(self, outlines: list[list[dict[str, Any]]], word: dict[str, Any]) -> float:
        """Return the height of what lies on each other in a name's box at its moment."""
        x, box = word["x"], self._box_of(word["y"])
        here = [rows for rows in outlines if rows and rows[0]["x"] <= x <= rows[-1]["x"]]
        return max(_between(rows, x, "y2") for rows in here if self._box_of(_between(rows, x, "y")) == box)

    def _box_of(self, cells: float) -> int:
        return min(int(cells // self.cells), self.count - 1)

    def _lifted(self, words: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Place names over each other where they would meet, the lower area's lower."""
        placed: list[dict[str, Any]] = []
        for word in words:
            near = [other for other in placed if abs(other["x"] - word["x"]) / self.end_s * self.width < 11]
            while close := [other["y"] for other in near if abs(other["y"] - word["y"]) < 11.9 * self.px]:
                word["y"] = max(close) + 12 * self.px
            placed.append(word)
        return placed

    def _name(self, outline: list[dict[str, Any]]) -> tuple[dict[str, Any], float, float]:
        """Place a request's letter at its area's middle; return it with the area's height there, and its width."""
        middle_s = _centroid(outline)
        foot, top = (_between(outline, middle_s, key) for key in ("y", "y2"))
        word = {"x": middle_s, "y": (foot + top) / 2, "text": outline[0]["label"]}
        return word, top - foot, 0.6 * (outline[-1]["x"] - outline[0]["x"]) / self.end_s * self.width

    def _box_name(self, box: int) -> str:
        return f"{self.cells:,} cells, all slots" if self.count == 1 else f"{self.cells:,} cells, slot {box}"

    def _peak(self) -> list[Any]:
        if self.use is None or self.count > 1:
            return []
        y = self.use.peak_cells
        rule = self.datasets.chart(self.alt, [{"x": 0, "x2": self.end_s * 1.01, "y": y}])
        lift_px = 8 if y + 18 * self.px < self.cells else -9
        text = [{"x": 0.012 * self.end_s, "y": y + lift_px * self.px, "text": f"peak {self.use.peak_cells:,}"}]
        line = rule.mark_rule(color=INK, strokeDash=[4, 3], strokeWidth=1.1).encode(self.alt.X2("x2:Q"))
        return [line, self._text(text)]

    def _refused(self) -> list[Any]:
        rows = self.frames.requests[self.frames.requests["arm"] == self.arm]
        marks, words, y = [], [], self.count * self.cells + 10 * self.px
        for row in rows[rows["outcome"].isin([REFUSED, "server_error"])].sort_values("end_s").itertuples():
            at_s = float(row.end_s) if known(row.end_s) else 0.0
            what = "refused" if row.outcome == REFUSED else "aborted"
            marks.append({"x": at_s, "y": y})
            need = f"{self.view.prompts.get(row.label, 0):,} tokens"
            words.append({"x": at_s, "y": y, "text": f"{row.label} {what}: {need}", "late": at_s > self.end_s / 2})
        words = words[:1] if len(words) < 2 else [words[0] | {"text": f"{words[0]['text']}, and {len(words) - 1} more"}]
        cross = self.datasets.chart(self.alt, marks).mark_point(
            shape=CROSS, size=110, color=FAILED_COLOUR, strokeWidth=2.4, opacity=1
        )
        style = {"fontWeight": "bold", "color": FAILED_COLOUR}
        return [
            cross,
            self._text([w for w in words if not w["late"]], dx=9, **style),
            self._text([w for w in words if w["late"]], dx=-9, align="right", **style),
        ]
