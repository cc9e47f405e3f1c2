"""Pictures of notebook 04: queue and slots over time, tokens against calls, memory under load."""

from __future__ import annotations

from typing import Any

from labkit.analyze.frames import RunFrames, known
from labkit.analyze.metrics_and_gpu.memory_checks import MIB, cells_mib, tolerance_mib
from labkit.analyze.metrics_and_gpu.readings import no_metrics
from labkit.analyze.metrics_and_gpu.view import AT_ONCE, CounterArm
from labkit.analyze.palette import INK, QUIET_INK, WIDTH, Datasets, finish, nothing_to_draw, numbers_if

BLUE, ORANGE, BAND = "#0072B2", "#D55E00", "#D5DAE0"
# processing and deferred, in this order
GAUGES = {"processing": ("requests_processing", BLUE), "deferred": ("requests_deferred", ORANGE)}
ROW_PX, PANEL_PX = 36, 230  # height of one request in the queue's picture, and of a panel at most
MOST_DOTS = 220  # of one line: more would run into each other


def processing_and_deferred(frames: RunFrames, *, title: str, subtitle: list[str]) -> Any:
    """Draw requests processing and deferred over time as /metrics says, with what the streams say behind it.

    Args:
        frames: the run.
        title: what the picture shows.
        subtitle: run facts, a line each.

    Returns:
        An alt.HConcatChart, a column an arm, processing above deferred.
    """
    import altair as alt

    if frames.phases.empty:
        return nothing_to_draw(alt, title, subtitle)
    # scrapes go on for a moment after the last answer
    ends_s = (frames.phases["end_s"].max(), frames.metrics["received_s"].max())
    datasets, end_s = Datasets(), max(float(end_s) for end_s in ends_s if known(end_s))
    columns = [_Queue(alt, frames, arm, datasets, end_s).column(first=arm == frames.arms[0]) for arm in frames.arms]
    legend = "line and dots: /metrics, a dot a scrape · grey: what the streams say, counted by the client"
    look = finish(title, [*subtitle, legend])
    return alt.hconcat(*columns, spacing=24, datasets=dict(datasets), **look)


class _Queue:
    def __init__(self, alt: Any, frames: RunFrames, arm: str, datasets: Datasets, end_s: float) -> None:
        self.alt, self.frames, self.arm, self.datasets, self.end_s = alt, frames, arm, datasets, end_s
        self.requests = frames.requests[(frames.requests["arm"] == arm) & frames.requests["sent_s"].notna()]
        self.metrics = frames.metrics[frames.metrics["arm"] == arm]
        self.view = CounterArm(frames.data, arm)
        self.start_s = min(0.0, float(self.metrics["received_s"].min())) if len(self.metrics) else 0.0

    def column(self, *, first: bool) -> Any:
        upper, lower = (self._panel(kind, first=first, last=kind == "deferred") for kind in GAUGES)
        # the name is the upper panel's: a column's would stand as high as its highest mark, each column's elsewhere
        upper.title = self.alt.Title(self.frames.arm_name(self.arm), anchor="start", frame="bounds")
        return self.alt.vconcat(upper, lower, spacing=14)

    def _panel(self, kind: str, *, first: bool, last: bool) -> Any:
        alt, most = self.alt, self._most(kind)
        x = alt.X(
            "x:Q",
            title="time since the first request was sent (s)" if last else None,
            scale=alt.Scale(domain=[self.start_s, self.end_s * 1.02], nice=False),
            axis=alt.Axis(tickCount=6, grid=False, **numbers_if(last)),
        )
        y = alt.Y(
            "y:Q",
            title=kind if first else None,
            scale=alt.Scale(domain=[0, most + 0.6], nice=False),
            axis=alt.Axis(values=list(range(0, most + 1, -(-most // 8))), format="d"),
        )
        layers = [self._band(kind), *self._line(kind), *(self._slots() if kind == "processing" else [])]
        width = (WIDTH - 24 * (len(self.frames.arms) - 1)) // len(self.frames.arms) - 30
        height = min(ROW_PX * (most + 1), PANEL_PX)
        return alt.layer(
            *self.datasets.drawn(layers), encoding=alt.Encoding(x=x, y=y), width=width, height=height
        )  # fmt: skip

    def _most(self, kind: str) -> int:
        """Return the top of a panel's axis: the same for all arms."""
        name = GAUGES[kind][0]
        said = self.frames.metrics[self.frames.metrics["name"] == name]["value"].max()
        counted = [_Queue(self.alt, self.frames, arm, Datasets(), self.end_s).counted(kind) for arm in self.frames.arms]
        tops = [max((row["y"] for row in rows), default=0) for rows in counted]
        return max(1, self.view.slots or 0 if kind == "processing" else 0, *tops, int(said) if known(said) else 0)

    def counted(self, kind: str) -> list[dict[str, Any]]:
        """Return how many requests the streams show running, or waiting, from when to when."""
        edges: list[tuple[float, int]] = []
        for row in self.requests.itertuples():
            end_s = float(row.end_s) if known(row.end_s) else self.end_s
            started_s = float(row.sent_s) + float(row.server_wait_s) if known(row.server_wait_s) else end_s
            span = (started_s, end_s) if kind == "processing" else (float(row.sent_s), started_s)
            edges += [(span[0], 1), (span[1], -1)]
        # a client's clock can't tell the order of what happens within one step
        return steps_of(edges, shortest_s=0.005 * self.end_s)

    def _band(self, kind: str) -> Any:
        return self.datasets.chart(self.alt, self.counted(kind)).mark_area(color=BAND, interpolate="step-after")

    def _line(self, kind: str) -> list[Any]:
        name, colour = GAUGES[kind]
        said = self.metrics[(self.metrics["name"] == name) & self.metrics["value"].notna()]
        rows = [{"x": float(row.received_s), "y": float(row.value)} for row in said.itertuples()]
        if not rows:
            text = no_metrics(self.view) or f"{name}: not exposed by this build"
            where = [{"x": self.start_s, "y": 0.5, "text": text}]
            return [self.datasets.words(self.alt, where, dx=6)]
        rows = thinned_steps(rows)
        line = self.datasets.chart(self.alt, rows).mark_line(interpolate="step-after", color=colour, strokeWidth=2)
        return [line, self.datasets.chart(self.alt, rows).mark_circle(color=colour, size=22, opacity=1)]

    def _slots(self) -> list[Any]:
        if not self.view.slots:
            return []
        rows = [{"x": self.end_s * 1.02, "y": self.view.slots, "text": f"{self.view.slots} slots"}]
        rule = self.datasets.chart(self.alt, rows).mark_rule(color=INK, strokeDash=[4, 3], strokeWidth=1)
        # over the whole width: a rule without an x
        rule = rule.encode(x=self.alt.value(0), x2=self.alt.value("width"))
        return [rule, self.datasets.words(self.alt, rows, align="right", dy=-9, color=QUIET_INK)]


def steps_of(edges: list[tuple[float, int]], *, shortest_s: float = 0.0) -> list[dict[str, Any]]:
    """Return a count over time as the corners of steps, without those too short to be seen.

    Args:
        edges: (time in s, +1 or -1).
        shortest_s: a step that is over sooner is left out.
    """
    count = 0
    corners: list[dict[str, Any]] = []
    for at_s, step in sorted(edges):
        count += step
        if corners and at_s - corners[-1]["x"] <= shortest_s:
            corners[-1]["y"] = count
        else:
            corners.append({"x": at_s, "y": count})
    return corners


def thinned_steps(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows where something changes, and of the others as many as can be seen apart."""
    if len(rows) <= MOST_DOTS:
        return rows
    every = -(-len(rows) // MOST_DOTS)
    ends = (0, len(rows) - 1)
    return [
        row
        for i, row in enumerate(rows)
        if i in ends or i % every == 0 or row["y"] != rows[i - 1]["y"] or row["y"] != rows[i + 1]["y"]
    ]


# --- tokens against calls -------------------------------------------------------------------------------


def tokens_per_call(frames: RunFrames, *, title: str, subtitle: list[str]) -> Any:
    """Draw tokens streamed against the growth of n_decode_total: above one token a call, steps were shared.

    Args:
        frames: the run.
        title: what the picture shows.
        subtitle: run facts, a line each.

    Returns:
        An alt.LayerChart, a line an arm.
    """
    import altair as alt

    lines = {arm: _calls(CounterArm(frames.data, arm)) for arm in frames.arms}
    lines = {arm: _every(rows, most=1000) for arm, rows in lines.items() if rows}
    if not lines:
        why = no_metrics(CounterArm(frames.data, AT_ONCE)) or "n_decode_total has no value around the load"
        return nothing_to_draw(alt, title, subtitle, text=f"{why} Nothing to draw.")
    return _tokens_per_call(alt, frames, lines, finish(title, subtitle))


def _calls(view: CounterArm) -> list[dict[str, Any]]:
    """Return tokens streamed by each scrape, beside the calls by then."""
    if view.window is None:
        return []
    first, last = view.window
    start = first.values.get("n_decode_total")
    rows = []
    for scrape in view.scrapes:
        calls = scrape.values.get("n_decode_total")
        if start is not None and calls is not None and first.sent_s <= scrape.sent_s <= last.sent_s:
            rows.append({"x": calls - start, "y": view.streamed_between(first.sent_s, scrape.received_s)})
    return rows


def _tokens_per_call(alt: Any, frames: RunFrames, lines: dict[str, list[dict[str, Any]]], look: Any) -> Any:
    datasets = Datasets()
    most_calls = max(1.0, *(rows[-1]["x"] for rows in lines.values()))
    most_tokens = max(1, *(rows[-1]["y"] for rows in lines.values()))
    x = alt.X(
        "x:Q",
        title="calls of llama_decode since before the load",
        scale=alt.Scale(domain=[0, most_calls * 1.06], nice=False),
        axis=alt.Axis(tickCount=8, grid=False),
    )
    y = alt.Y(
        "y:Q",
        title="tokens streamed, all requests",
        scale=alt.Scale(domain=[0, most_tokens * 1.14], nice=False),
        axis=alt.Axis(tickCount=6),
    )
    layers = _guides(alt, datasets, most_calls, most_tokens, slots=CounterArm(frames.data, AT_ONCE).slots)
    for arm, colour in zip(lines, (BLUE, ORANGE), strict=False):
        name = frames.arm_name(arm)
        layers += _line_of(alt, datasets, lines[arm], colour, name, above=colour == BLUE, most_calls=most_calls)
    encoding = alt.Encoding(x=x, y=y)
    return alt.layer(
        *datasets.drawn(layers), encoding=encoding, width=WIDTH - 40, height=360, datasets=dict(datasets), **look
    )


def _every(rows: list[dict[str, Any]], most: int = MOST_DOTS) -> list[dict[str, Any]]:
    """Return at most so many of the rows, evenly, with the last."""
    every = -(-len(rows) // most)
    return [row for i, row in enumerate(rows) if i % every == 0 or i == len(rows) - 1]


def _guides(alt: Any, datasets: Datasets, most_calls: float, most_tokens: float, *, slots: int | None) -> list[Any]:
    layers = []
    slopes: list[tuple[int, str]] = [(1, "1 token a call: nothing shared")]
    if slots and slots > 1:
        slopes.append((slots, f"{slots} tokens a call: every slot in every call"))
    for slope, text in slopes:
        end = min(most_calls * 1.06, most_tokens * 1.14 / slope)
        rule: list[dict[str, Any]] = [{"x": 0.0, "y": 0.0}, {"x": end, "y": end * slope}]
        layers.append(datasets.chart(alt, rule).mark_line(color=QUIET_INK, strokeDash=[5, 4], strokeWidth=1.2))
        # at the upper end of the steep one, below the lower half of the other
        part, side = (0.97, {"dx": 10}) if slope > 1 else (0.3, {"dx": 12, "dy": 10})
        at = {"x": end * part, "y": end * part * slope, "text": text}
        layers.append(datasets.words(alt, [at], color=QUIET_INK, **side))
    return layers


def _line_of(
    alt: Any,
    datasets: Datasets,
    rows: list[dict[str, Any]],
    colour: str,
    name: str,
    *,
    above: bool,
    most_calls: float,
) -> list[Any]:
    """Draw a line with its name on the side that the other one leaves free."""
    end = rows[-1]
    a_call = f"{end['y'] / end['x']:.2f} a call" if end["x"] else "no call"
    text = f"{name}\n{end['y']:,} tokens, {end['x']:,.0f} calls: {a_call}"
    near = min(rows, key=lambda row: abs(row["x"] - (0.72 if above else 0.6) * end["x"]))
    # a steep line leaves no room between the axis and itself: its name goes behind its end
    steep = above and near["x"] < 0.35 * most_calls
    place = {"align": "right", "dx": -14, "dy": -22} if above else {"align": "left", "dx": 14, "dy": 12}
    near, place = (end, {"align": "left", "dx": 12, "dy": 12}) if steep else (near, place)
    style = {"color": colour, "fontWeight": "bold", "fontSize": 12.5, "lineBreak": "\n", "lineHeight": 17}
    return [
        datasets.chart(alt, rows).mark_line(color=colour, strokeWidth=2.6),
        datasets.chart(alt, _every(rows)).mark_circle(color=colour, size=26, opacity=1),
        datasets.words(alt, [near | {"text": text}], **style, **place),
    ]


# --- memory ---------------------------------------------------------------------------------------------


def memory_over_time(frames: RunFrames, *, title: str, subtitle: list[str]) -> Any:
    """Draw how memory changed since before the load, with the load marked; a GPU's utilisation below it.

    Args:
        frames: the run.
        title: what the picture shows.
        subtitle: run facts, a line each.

    Returns:
        An alt.VConcatChart, a row a quantity on its own axis, one time axis.
    """
    import altair as alt

    memory = frames.memory[frames.memory["arm"] == AT_ONCE]
    panels = {
        "resident_bytes": "resident memory, change (MiB)",
        "gpu_used_bytes": "GPU memory, change (MiB)",
        "gpu_utilisation_percent": "GPU utilisation (%)",
    }
    shown = {column: name for column, name in panels.items() if len(memory) and memory[column].notna().any()}
    if not shown:
        return nothing_to_draw(alt, title, subtitle, text="memory was not sampled: nothing to draw")
    datasets = Datasets()
    rows = [
        _Memory(alt, frames, column, name, datasets).row(last=column == list(shown)[-1])
        for column, name in shown.items()
    ]
    legend = "line: samples · band: the load, from the first request's sending to the last one's end"
    look = finish(title, [*subtitle, legend])
    return alt.vconcat(*rows, spacing=16, datasets=dict(datasets), **look)


class _Memory:
    def __init__(self, alt: Any, frames: RunFrames, column: str, name: str, datasets: Datasets) -> None:
        self.alt, self.column, self.name, self.datasets = alt, column, name, datasets
        samples = frames.memory[(frames.memory["arm"] == AT_ONCE) & frames.memory[column].notna()]
        self.view, self.limit = CounterArm(frames.data, AT_ONCE), tolerance_mib(frames.data.run)
        self.relative = column != "gpu_utilisation_percent"
        before = samples[samples["at_s"] <= 0][column]
        first = before.iloc[-1] if len(before) else samples[column].iloc[0]
        self.base = float(first) if self.relative else 0.0
        unit = MIB if self.relative else 1
        self.rows = [
            {"x": float(row.at_s), "y": (float(getattr(row, column)) - self.base) / unit}
            for row in samples.itertuples()
        ]
        self.few = len(self.rows) <= MOST_DOTS
        span = self.view.span_s
        self.load_s = span[1] - span[0] if span else 0.0
        self.end_s = max([self.load_s, *(row["x"] for row in self.rows)])
        self.start_s = min([0.0, *(row["x"] for row in self.rows)])

    def row(self, *, last: bool) -> Any:
        alt = self.alt
        x = alt.X(
            "x:Q",
            title="time since the first request was sent (s)" if last else None,
            scale=alt.Scale(domain=[self.start_s, self.end_s * 1.02], nice=False),
            axis=alt.Axis(tickCount=10, grid=False, **numbers_if(last)),
        )
        low, high = self._domain()
        y = alt.Y(
            "y:Q", title=self.name, scale=alt.Scale(domain=[low, high], nice=False), axis=alt.Axis(tickCount=5)
        )  # fmt: skip
        band = [{"x": 0.0, "x2": self.load_s, "y": low, "y2": high}]
        marks = {"color": BLUE if self.relative else QUIET_INK}
        layers = [
            self._chart(band).mark_rect(color=BAND, opacity=0.5).encode(alt.X2("x2:Q"), alt.Y2("y2:Q")),
            *(self._references() if self.relative else []),
            self._chart(thinned_steps(self.rows)).mark_line(strokeWidth=2, **marks),
            self._chart(thinned_steps(self.rows) if self.few else []).mark_circle(size=24, opacity=1, **marks),
        ]
        encoding = alt.Encoding(x=x, y=y)
        return alt.layer(*self.datasets.drawn(layers), encoding=encoding, width=WIDTH - 30, height=190)

    def _chart(self, rows: list[dict[str, Any]]) -> Any:
        return self.datasets.chart(self.alt, rows)

    def _domain(self) -> tuple[float, float]:
        if not self.relative:
            return 0.0, 100.0
        values = [row["y"] for row in self.rows]
        high = max([self.limit, cells_mib(self.view) or 0.0, *values])
        return min([-0.25 * high, *(1.1 * value for value in values)]), 1.3 * high

    def _references(self) -> list[Any]:
        """Mark the tolerance, and what the load's cells would have added if they were allocated when used."""
        lines: list[dict[str, Any]] = [{"y": self.limit, "text": f"tolerance, {self.limit:g} MiB"}]
        if (cells := cells_mib(self.view)) is not None:
            lines.append({"y": cells, "text": f"what the KV cells of the load take, {cells:.1f} MiB"})
        near = len(lines) == 2 and abs(lines[0]["y"] - lines[1]["y"]) < 0.12 * self._domain()[1]
        lines = [line | {"x": self.end_s * 1.02} for line in lines]
        start = [{"x": self.start_s, "y": 0.0, "text": f"{self.base / MIB:,.0f} MiB before the load"}]
        rule = self._chart(lines).mark_rule(color=INK, strokeDash=[4, 3], strokeWidth=1)
        rule = rule.encode(x=self.alt.value(0), x2=self.alt.value("width"))
        *lower, highest = sorted(lines, key=lambda line: float(line["y"]))
        words = [
            self.datasets.words(self.alt, [highest], align="right", dy=-9, dx=-4),
            self.datasets.words(self.alt, lower, align="right", dy=11 if near else -9, dx=-4),
        ]
        return [rule, *words, self.datasets.words(self.alt, start, dx=6, dy=13, color=QUIET_INK)]
