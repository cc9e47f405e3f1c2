"""Notebook 01's own pictures: how rates change with the slots, and where each request waited."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from labkit.analyze.frames import RunFrames, known
from labkit.analyze.lanes import seconds_text
from labkit.analyze.palette import INK, QUIET_INK, WIDTH, Datasets, colours, finish, nothing_to_draw, numbers_if
from labkit.analyze.slot_escalation.scaling import Measured, figure, load_figures

# dark for the largest load: loads have no colour of their own elsewhere
_LOAD_SHADES = ("#9AA7B4", "#5C7A99", "#1F3A5F")
_CEILING = "#B3261E"
_PANELS = (
    ("aggregate_tokens_per_s", "all requests together (tokens/s)", "Aggregate rate"),
    ("stream_tokens_per_s", "one stream once it runs (tokens/s)", "Rate of a stream"),
    ("slowest_ttft_s", "slowest first token (s)", "Time to first token"),
)


def scaling_chart(frames: RunFrames, *, title: str, subtitle: list[str]) -> Any:
    """Draw aggregate rate, rate of a stream and slowest first token against the slots, a line a load.

    Args:
        frames: the run.
        title: what the picture shows.
        subtitle: run facts, a line each.

    Returns:
        An alt.HConcatChart; points are single runs, lines their means, bars 95 % bootstrap intervals.
    """
    import altair as alt

    loads = load_figures(frames)
    loads = loads[(loads["kind"] == "step") & (loads["requests"] > 1)] if len(loads) else loads
    if loads.empty or loads["aggregate_tokens_per_s"].isna().all():
        return nothing_to_draw(alt, title, subtitle, text="no load of several requests was answered: nothing to draw")
    datasets = Datasets()
    ceiling = (frames.data.run.get("ceiling") or {}).get("rows") or []
    panels = [_Panel(alt, loads, panel, ceiling, datasets).chart() for panel in _PANELS]
    legend = "point: one run · line: mean of the runs"
    if any(len(runs) >= 3 for _, runs in loads.groupby(["slots", "requests"])):
        legend += " · bar: its 95 % bootstrap interval"
    if ceiling:
        legend += " · dashed: llama-batched-bench, same build, model and batch"
    return alt.hconcat(*panels, spacing=24, datasets=dict(datasets), **finish(title, [*subtitle, legend]))


class _Panel:
    def __init__(
        self,
        alt: Any,
        loads: Any,
        panel: tuple[str, str, str],
        ceiling: list[dict[str, Any]],
        datasets: Datasets,
    ) -> None:
        self.alt, self.loads, self.datasets = alt, loads, datasets
        self.column, self.axis, self.name = panel
        self.ceiling = ceiling if self.column == "aggregate_tokens_per_s" else []
        self.slots = sorted(int(slots) for slots in set(loads["slots"]))
        self.sizes = sorted(int(size) for size in set(loads["requests"]))
        measured = [float(value) for value in loads[self.column].dropna()]
        self.top = 1.12 * max([*measured, *(row["tokens_per_s"] for row in self.ceiling)], default=1.0)
        self.width = (WIDTH - 150) // len(_PANELS)

    def chart(self) -> Any:
        alt = self.alt
        # steps stand at equal distances: 1, 2, 4 would crowd on one side of a plain axis
        last = len(self.slots) - 1
        names = "".join(f"datum.value == {i} ? '{slots}' : " for i, slots in enumerate(self.slots))
        x = alt.X(
            "x:Q",
            title="slots",
            scale=alt.Scale(domain=[-0.35, last + 0.95], nice=False, zero=False),
            axis=alt.Axis(values=list(range(last + 1)), labelExpr=f"{names}''", grid=False, labelFontSize=13),
        )
        y = alt.Y("y:Q", title=self.axis, scale=alt.Scale(domain=[0, self.top], nice=False), axis=alt.Axis(tickCount=5))
        means = self._means()
        names_of = self._end_names(means)
        colour = alt.Color(
            "load:N", scale=alt.Scale(domain=[str(size) for size in self.sizes], range=self._shades()), legend=None
        )
        rules = self._rows([row for row in means if row["low"] is not None])
        layers = [
            *self._ceiling_layers(),
            self._rows(means).mark_line(strokeWidth=2.2).encode(colour),
            rules.mark_rule(strokeWidth=3, opacity=0.45).encode(colour, alt.Y("low:Q"), alt.Y2("high:Q")),
            self._rows(self._points()).mark_point(size=34, filled=True, opacity=0.75).encode(colour),
            self._rows(names_of)
            .mark_text(align="left", dx=15, fontSize=12, fontWeight="bold")
            .encode(colour, alt.Text("text:N")),
        ]
        head = {"text": self.name, "anchor": "start"}
        encoding = alt.Encoding(x=x, y=y)
        return alt.layer(*self.datasets.drawn(layers), encoding=encoding, width=self.width, height=270, title=head)

    def _shades(self) -> list[str]:
        count = len(self.sizes)
        if count <= len(_LOAD_SHADES):
            return list(_LOAD_SHADES[-count:])
        return [_LOAD_SHADES[round(i * (len(_LOAD_SHADES) - 1) / (count - 1))] for i in range(count)]

    def _rows(self, rows: list[dict[str, Any]]) -> Any:
        return self.datasets.chart(self.alt, rows)

    def _means(self) -> list[dict[str, Any]]:
        found = [(slots, size, self._figure(slots, size)) for size in self.sizes for slots in self.slots]
        return [
            {"x": self.slots.index(slots), "y": value.mean, "low": value.low, "high": value.high, "load": str(size)}
            for slots, size, value in found
            if value
        ]

    def _figure(self, slots: int, size: int) -> Measured | None:
        return figure(self.loads, self.column, slots, size)

    def _points(self) -> list[dict[str, Any]]:
        # side by side: runs of one step often give nearly the same
        most = max(1, int(self.loads["repeat"].max()))
        apart = min(0.05, 0.2 / most)
        shift = {repeat: apart * (repeat - (most + 1) / 2) for repeat in range(1, most + 1)}
        return [
            {
                "x": self.slots.index(int(row.slots)) + shift[int(row.repeat)],
                "y": getattr(row, self.column),
                "load": str(row.requests),
            }
            for row in self.loads.itertuples()
            if known(getattr(row, self.column))
        ]

    def _end_names(self, means: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Name each line at its right end; ends that lie too near each other are moved apart."""
        ends = {row["load"]: row for row in means}  # the last one of each load
        room = 0.055 * self.top
        words = ({**row, "y": max(row["y"], room), "text": f"{load} requests"} for load, row in ends.items())
        names = sorted(words, key=lambda row: row["y"])
        for below, above in pairwise(names):
            if abs(above["x"] - below["x"]) < 0.5:
                above["y"] = max(above["y"], below["y"] + room)
        return names

    def _ceiling_layers(self) -> list[Any]:
        rows = [
            {"x": self.slots.index(row["sequences"]), "y": row["tokens_per_s"], "text": "ceiling"}
            for row in self.ceiling
            if row["sequences"] in self.slots
        ]
        if not rows:
            return []
        line = self._rows(rows).mark_line(strokeDash=[5, 4], strokeWidth=1.8, color=_CEILING)
        word = self._rows(rows[-1:]).mark_text(align="left", dx=15, fontSize=12, color=_CEILING)
        return [line, word.encode(self.alt.Text("text:N"))]


# --- where each request waited ----------------------------------------------------------------------------

_ROW_PX = 26
_PARTS = ("client", "server", "prefill", "decode")


def waiting_split(frames: RunFrames, *, title: str, subtitle: list[str]) -> Any:
    """Draw each request's time from when it was due to its last token: client wait, server wait, prefill, decode.

    Args:
        frames: the run, or some arms of it; a panel an arm.
        title: what the picture shows.
        subtitle: run facts, a line each.

    Returns:
        An alt.VConcatChart on one time axis.
    """
    import altair as alt

    bars = {arm: _bars(frames, arm) for arm in frames.arms}
    bars = {arm: rows for arm, rows in bars.items() if rows}
    if not bars:
        return nothing_to_draw(alt, title, subtitle)
    end_s = max(row["x2"] for rows in bars.values() for row in rows)
    datasets = Datasets()
    last = list(bars)[-1]
    panels = [_split_panel(alt, frames, arm, rows, end_s, datasets, last=arm == last) for arm, rows in bars.items()]
    legend = "grey: waits in the client · outline: waits in the server · solid: prefill · tint: decode"
    look = finish(title, [*subtitle, legend])
    return alt.vconcat(*panels, spacing=16, resolve={"scale": {"x": "shared"}}, datasets=dict(datasets), **look)


def _bars(frames: RunFrames, arm: str) -> list[dict[str, Any]]:
    requests = frames.requests[frames.requests["arm"] == arm].sort_values("label")
    rows: list[dict[str, Any]] = []
    for place, request in enumerate(requests.itertuples()):
        spans = (request.client_wait_s, request.server_wait_s, request.prefill_s, request.decode_s)
        if not known(request.sent_s):
            continue
        at_s = float(request.sent_s) - (float(request.client_wait_s) if known(request.client_wait_s) else 0.0)
        for part, span_s in zip(_PARTS, spans, strict=True):
            if known(span_s) and float(span_s) > 0:
                rows.append({"part": part, "x": at_s, "x2": at_s + float(span_s), "y": place, "label": request.label})
                at_s += float(span_s)
    return rows


def _split_panel(
    alt: Any, frames: RunFrames, arm: str, rows: list[dict[str, Any]], end_s: float, datasets: Datasets, *, last: bool
) -> Any:
    start_s = min(0.0, *(row["x"] for row in rows))
    labels = list(dict.fromkeys(row["label"] for row in rows))
    places = {row["y"]: row["label"] for row in rows}
    x = alt.X(
        "x:Q",
        title="time since the first request was sent (s)" if last else None,
        scale=alt.Scale(domain=[start_s, end_s * 1.12], nice=False),
        axis=alt.Axis(tickCount=12, **numbers_if(last)),
    )
    names = "".join(f"datum.value == {place} ? '{_quoted(label)}' : " for place, label in places.items())
    y = alt.Y(
        "mid:Q",
        scale=alt.Scale(domain=[max(places) + 0.5, -0.5], nice=False, zero=False),
        axis=alt.Axis(
            values=list(places), labelExpr=f"{names}''", title=None, grid=False, ticks=False, domain=False,
            labelFontSize=13, labelFontWeight="bold", labelPadding=8,
        ),
    )  # fmt: skip
    boxes = [row | {"mid": row["y"] - 0.32, "low": row["y"] + 0.32} for row in rows]
    colour = alt.Color("label:N", scale=colours(alt, labels), legend=None)
    stroke = alt.Stroke("label:N", scale=colours(alt, labels), legend=None)
    outline = {"fill": "white", "strokeDash": [4, 3], "strokeWidth": 1.5}
    layers = [
        _boxes(alt, datasets, boxes, "client", color="#B8BDC3"),
        _boxes(alt, datasets, boxes, "server", **outline).encode(stroke),
        _boxes(alt, datasets, boxes, "prefill", opacity=1.0).encode(colour),
        _boxes(alt, datasets, boxes, "decode", opacity=0.3).encode(colour),
        *_words(alt, datasets, rows, end_s),
    ]
    name = {"text": frames.arm_name(arm), "anchor": "start", "frame": "bounds"}
    height = _ROW_PX * (max(places) + 1)
    encoding = alt.Encoding(x=x, y=y)
    return alt.layer(*datasets.drawn(layers), encoding=encoding, width=WIDTH, height=height, title=name)


def _boxes(alt: Any, datasets: Datasets, rows: list[dict[str, Any]], part: str, **mark: Any) -> Any:
    mine = [row for row in rows if row["part"] == part]
    return datasets.chart(alt, mine).mark_rect(**mark).encode(alt.X2("x2:Q"), alt.Y2("low:Q"))


def _words(alt: Any, datasets: Datasets, rows: list[dict[str, Any]], end_s: float) -> list[Any]:
    """Name a wait inside its box where there is room, and each request's time to first token at its end."""
    inside = [
        {
            "x": (row["x"] + row["x2"]) / 2,
            "mid": row["y"],
            "text": f"{row['part']} {seconds_text(row['x2'] - row['x'])}",
        }
        for row in rows
        if row["part"] in ("client", "server") and row["x2"] - row["x"] > 0.1 * end_s
    ]
    ends: list[dict[str, Any]] = []
    for place in dict.fromkeys(row["y"] for row in rows):
        mine = {row["part"]: row for row in rows if row["y"] == place}
        if "decode" in mine:
            start_s = min(row["x"] for row in mine.values())
            text = f"first token {seconds_text(mine['decode']['x'] - start_s)}"
            ends.append({"x": mine["decode"]["x2"], "mid": place, "text": text})
    base = {"baseline": "middle", "fontSize": 11.5}
    return [
        datasets.chart(alt, inside).mark_text(color=INK, **base).encode(alt.Text("text:N")),
        datasets.chart(alt, ends).mark_text(align="left", dx=6, color=QUIET_INK, **base).encode(alt.Text("text:N")),
    ]


def _quoted(label: str) -> str:
    return label.replace("\\", "\\\\").replace("'", "\\'")
