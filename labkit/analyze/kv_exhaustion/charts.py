"""Pictures of KV cells: what running requests hold over time, and each arm's most beside what there is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from labkit.analyze.frames import RunFrames
from labkit.analyze.kv_exhaustion.cells import ENDS, EXHAUSTED, ArmCells, Moment
from labkit.analyze.palette import (
    FAILED_COLOUR,
    INK,
    QUIET_INK,
    WIDTH,
    Datasets,
    colours,
    finish,
    nothing_to_draw,
    numbers_if,
)
from labkit.analyze.rows import timing

MAIN_ARMS = ("together", "one_by_one", "split", "larger_pool")
ALL_ARMS = (
    "together", "one_by_one", "other_batch", "split", "larger_pool", "fewer_slots", "shorter_input", "shorter_output",
    "split_with_room",
)  # fmt: skip
PANEL_PX, ROW_PX, MAX_POINTS = 118, 34, 400
THIN_SHARE = 0.085


def kv_cells_over_time(frames: RunFrames, *, arms: Sequence[str] = MAIN_ARMS, title: str, subtitle: list[str]) -> Any:
    """Draw the cells that requests hold over time, on each other, against the pool; split: each in its own box.

    Args:
        frames: the run.
        arms: which arms, in order; those that did not run are left out.
        title: what the picture shows.
        subtitle: run facts, a line each.

    Returns:
        An alt.VConcatChart, a panel an arm, one time axis.
    """
    import altair as alt

    shown = [cells for name in arms if (cells := ArmCells(frames.data, name)).ran and cells.pool]
    if not shown or frames.tokens.empty:
        return nothing_to_draw(alt, title, subtitle)
    datasets = Datasets()
    end_s = max(cells.over_s(label) - _origin(cells) for cells in shown for label in cells.rows.requests)
    panels = [_Panel(alt, cells, max(end_s, 1e-3), datasets) for cells in shown]
    charts = [panel.chart(last=panel is panels[-1]) for panel in panels]
    legend = "height: KV cells that a request holds, prompt and answer · dashed: all cells there are"
    look = finish(title, [*subtitle, legend])
    return alt.vconcat(*charts, spacing=18, resolve={"scale": {"x": "shared"}}, datasets=dict(datasets), **look)


def _origin(cells: ArmCells) -> float:
    return min((r["sent_s"] for r in cells.rows.requests.values() if r["sent_s"] is not None), default=0.0)


class _Panel:
    """One arm. Stacked on each other in a common pool; split, each request stands on its own box's floor."""

    def __init__(self, alt: Any, cells: ArmCells, end_s: float, datasets: Datasets) -> None:
        self.alt, self.cells, self.end_s, self.datasets = alt, cells, end_s, datasets
        self.origin = _origin(cells)
        self.labels = sorted(cells.rows.requests)
        self.pool = cells.pool or 1
        self.moments = cells.moments()
        # the errors of one step reach the client one by one: all its victims let go at the first
        self.cut = {label: moment.at_s for moment in self.moments for label in moment.victims}
        self.top = self.pool * 1.2

    def chart(self, *, last: bool) -> Any:
        alt = self.alt
        self.colour = alt.Color("label:N", scale=colours(alt, self.labels), legend=None)
        x = alt.X(
            "x:Q",
            title="time since the arm's first request was sent (s)" if last else None,
            scale=alt.Scale(domain=[0, self.end_s * 1.04], nice=False),
            axis=alt.Axis(tickCount=12, grid=False, **numbers_if(last)),
        )
        y = alt.Y(
            "y:Q",
            title="KV cells",
            scale=alt.Scale(domain=[0, self.top], nice=False),
            axis=alt.Axis(values=[0, self.pool // 2, self.pool], format=",d", grid=False),
        )
        layers = [self._areas(), *self._limits(), *self._failures(), self._letters()]
        name: dict[str, Any] = {
            "text": self.cells.title,
            "subtitle": self._outcome(),
            "anchor": "start",
            "frame": "bounds",
        }
        name |= {"subtitleFontSize": 12.5, "subtitleColor": QUIET_INK}
        encoding = alt.Encoding(x=x, y=y)
        drawn = self.datasets.drawn(layers)
        return alt.layer(*drawn, encoding=encoding, width=WIDTH - 60, height=PANEL_PX, title=name)

    # --- rows -----------------------------------------------------------------------------------------

    def _grid(self) -> list[float]:
        """Return the times at which something changes, thinned where there are more than pixels."""
        times = sorted({time for stream in self.cells.rows.times.values() for time in stream})
        edges = {time for label in self.labels for time in (*self._span(label), self.cells.over_s(label))}
        step = max(1, len(times) // MAX_POINTS)
        after = {self.cells.over_s(label) + 1e-6 for label in self.labels}
        after |= {at_s + offset for at_s in self.cut.values() for offset in (0.0, 1e-6)}
        return sorted({*times[::step], *edges, *after})

    def _span(self, label: str) -> tuple[float, float]:
        """Return when a request's prompt began to be read and when its first token came."""
        request = self.cells.rows.requests[label]
        over_s = self.cells.over_s(label)
        first_s = float(request["first_token_s"] or over_s)
        prompt_ms = timing(request, "prompt_ms")
        if prompt_ms is not None:
            sent_s = first_s if request["sent_s"] is None else float(request["sent_s"])
            return max(sent_s, first_s - prompt_ms / 1e3), first_s
        return float(request["headers_s"] or first_s), first_s

    def _held(self, label: str, at_s: float) -> float:
        if at_s > self.cut.get(label, at_s):
            return 0.0
        start_s, first_s = self._span(label)
        if start_s <= at_s < first_s <= self.cells.over_s(label) and self.cells.rows.times[label]:
            # between the two nothing is known: a straight line stands for the prompt being read
            return self.cells.prompts[label] * (at_s - start_s) / max(first_s - start_s, 1e-9)
        return float(self.cells.held(label, at_s))

    def _floor(self, label: str) -> float:
        slot = self.cells.rows.requests[label]["id_slot"]
        order = slot if slot is not None else self.labels.index(label)
        return float(order * (self.cells.slot_cells or 0))

    def _rows(self) -> list[dict[str, Any]]:
        rows = []
        for at_s in self._grid():
            top = 0.0
            for label in self.labels:
                cells = self._held(label, at_s)
                floor = self._floor(label) if self.cells.unified is False else top
                top += cells
                rows.append({"x": at_s - self.origin, "y": floor, "y2": floor + cells, "label": label})
        return rows

    # --- layers ---------------------------------------------------------------------------------------

    def _areas(self) -> Any:
        self.rows = self._rows()
        areas = self.datasets.chart(self.alt, self.rows).mark_area(opacity=0.72)
        return areas.encode(self.colour, self.alt.Y2("y2:Q"))

    def _limits(self) -> list[Any]:
        split = self.cells.unified is False and self.cells.slot_cells
        levels = range(self.cells.slot_cells or 1, self.pool + 1, self.cells.slot_cells or 1) if split else [self.pool]
        rows = [{"x": 0, "x2": self.end_s * 1.04, "y": level} for level in levels]
        rule = self.datasets.chart(self.alt, rows).mark_rule(color=INK, strokeDash=[5, 3], strokeWidth=1.3)
        boxes = f"{self.cells.slots} boxes of {self.cells.slot_cells:,} cells"
        text = boxes if split else f"one pool of {self.pool:,} cells"
        where = [{"x": 0, "y": self.pool, "text": text}]
        words = self.datasets.words(self.alt, where, baseline="bottom", dx=4, dy=-3, fontSize=11.5)
        return [rule.encode(self.alt.X2("x2:Q")), words]

    def _failures(self) -> list[Any]:
        rows: list[dict[str, Any]] = [
            {"x": m.at_s - self.origin, "y": 0, "y2": self.pool, "text": self._victims(m)} for m in self.moments
        ]
        rule = self.datasets.chart(self.alt, rows).mark_rule(color=FAILED_COLOUR, strokeWidth=2)
        points = self.datasets.chart(self.alt, [row | {"y": row["y2"]} for row in rows])
        cross = points.mark_point(shape="cross", angle=45, size=130, filled=True, color=FAILED_COLOUR, opacity=1)
        # the words stand over the line, on the side of the cross that has room beside the pool's name
        early = [row for row in rows if row["x"] < 0.55 * self.end_s]
        style = {"fontWeight": "bold", "color": FAILED_COLOUR, "baseline": "bottom", "dy": -4}
        sides = (
            (early, {"align": "left", "dx": 10}),
            ([r for r in rows if r not in early], {"align": "right", "dx": -10}),
        )
        words = [
            self.datasets.words(self.alt, [row | {"y": self.pool} for row in side], **style, **place)
            for side, place in sides
        ]
        return [rule.encode(self.alt.Y2("y2:Q")), cross, *words]

    def _victims(self, moment: Moment) -> str:
        return f"{', '.join(moment.victims)} end with an error: {moment.total:,} of {self.pool:,} cells held"

    def _letters(self) -> Any:
        """Return each request's letter, where it holds most, away from its ends; none on a band too thin for one."""
        words = []
        for label in self.labels:
            mine = [row for row in self.rows if row["label"] == label and row["y2"] > row["y"]]
            inner = mine[len(mine) // 4 : max(1, 3 * len(mine) // 4)]
            row = max(inner, key=lambda row: row["y2"] - row["y"], default=None)
            if row and row["y2"] - row["y"] > THIN_SHARE * self.top:
                words.append({"x": row["x"], "y": (row["y"] + row["y2"]) / 2, "text": label})
        style = {"fontSize": 14, "fontWeight": "bold", "color": "white", "align": "center"}
        return self.datasets.words(self.alt, words, **style)

    def _outcome(self) -> str:
        return outcome_text(self.cells)


def kv_peaks(frames: RunFrames, *, arms: Sequence[str] = ALL_ARMS, title: str, subtitle: list[str]) -> Any:
    """Draw, for every arm, the most cells that its requests held at once, beside the cells there are.

    Args:
        frames: the run.
        arms: which arms, in order; those that did not run are left out.
        title: what the picture shows.
        subtitle: run facts, a line each.

    Returns:
        An alt.LayerChart, a row an arm.
    """
    import altair as alt

    shown = [cells for name in arms if (cells := ArmCells(frames.data, name)).ran and cells.pool]
    if not shown:
        return nothing_to_draw(alt, title, subtitle)
    datasets = Datasets()
    layers = _Peaks(alt, shown, datasets).layers()
    most = max(cells.pool or 1 for cells in shown)
    scale, axis = alt.Scale(domain=[0, most * 1.02], nice=False), alt.Axis(tickCount=6, format=",d", grid=False)
    x = alt.X("x:Q", title="KV cells", scale=scale, axis=axis)
    y = alt.Y("y:Q", title=None, scale=alt.Scale(domain=[len(shown), 0], nice=False), axis=None)
    legend = "bar: the most that the requests held at once · black line: the cells there are"
    look = finish(title, [*subtitle, legend]) | {"width": 460, "height": ROW_PX * len(shown)}
    encoding = alt.Encoding(x=x, y=y)
    return alt.layer(*datasets.drawn(layers), encoding=encoding, datasets=dict(datasets), **look)


class _Peaks:
    """Rows from the top, an arm each, 1 high."""

    def __init__(self, alt: Any, arms: list[ArmCells], datasets: Datasets) -> None:
        self.alt, self.arms, self.datasets = alt, arms, datasets
        self.most = max(cells.pool or 1 for cells in arms)

    def layers(self) -> list[Any]:
        alt, bars = self.alt, self._bars()
        scale = colours(alt, sorted({bar["label"] for bar in bars}))
        colour = alt.Color("label:N", scale=scale, legend=None)
        pools = [{"x": cells.pool, "y": row + 0.08, "y2": row + 0.92} for row, cells in enumerate(self.arms)]
        names = [{"x": 0, "y": row + 0.5, "text": cells.title} for row, cells in enumerate(self.arms)]
        letters = [
            {"x": (bar["x"] + bar["x2"]) / 2, "y": (bar["y"] + bar["y2"]) / 2, "text": bar["label"]}
            for bar in bars
            if bar["x2"] - bar["x"] > 0.05 * self.most
        ]
        rects = self.datasets.chart(alt, bars).mark_rect(opacity=0.75)
        return [
            rects.encode(alt.X2("x2:Q"), alt.Y2("y2:Q"), colour),
            self.datasets.words(alt, letters, align="center", color="white", fontWeight="bold"),
            self.datasets.chart(alt, pools).mark_rule(color=INK, strokeWidth=2.4).encode(alt.Y2("y2:Q")),
            self.datasets.words(alt, names, align="right", dx=-8),
            self.datasets.words(alt, self._words(failed=True), dx=8, color=FAILED_COLOUR, fontWeight="bold"),
            self.datasets.words(alt, self._words(failed=False), dx=8, color=QUIET_INK),
        ]

    def _bars(self) -> list[dict[str, Any]]:
        bars = []
        for row, cells in enumerate(self.arms):
            left = 0
            for label, held in sorted(cells.peak()[1].items()):
                bars.append({"x": left, "x2": left + held, "y": row + 0.2, "y2": row + 0.8, "label": label})
                left += held
        return bars

    def _words(self, *, failed: bool) -> list[dict[str, Any]]:
        return [
            {"x": cells.pool, "y": row + 0.5, "text": outcome_text(cells)}
            for row, cells in enumerate(self.arms)
            if (EXHAUSTED in cells.ends.values()) == failed
        ]


def outcome_text(cells: ArmCells) -> str:
    """Return how an arm's requests ended, in a few words."""
    alike: dict[str, list[str]] = {}
    for label, end in sorted(cells.ends.items()):
        alike.setdefault(ENDS.get(end, end), []).append(label)
    return "; ".join(f"{', '.join(labels)}: {text}" for text, labels in alike.items())
