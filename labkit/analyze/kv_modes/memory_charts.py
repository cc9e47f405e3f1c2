"""More pictures of notebook 02: which lengths fitted, and what the cells cost in memory."""

from __future__ import annotations

from typing import Any

from labkit.analyze.frames import RunFrames
from labkit.analyze.kv_modes.charts import NO_LOAD, SHAPES, colour_of
from labkit.analyze.kv_modes.claims import LOADED
from labkit.analyze.kv_modes.tables import ROWS, gpu_bytes, resident_bytes
from labkit.analyze.kv_modes.view import KvArm
from labkit.analyze.palette import CROSS, INK, QUIET_INK, WIDTH, Datasets, finish, nothing_to_draw

MIB = 2**20
KV_COLOUR, COMPUTE_COLOUR, RESIDENT_COLOUR = "#0072B2", "#E69F00", "#5F6368"


def lengths_that_fit(frames: RunFrames, *, title: str, subtitle: list[str]) -> Any:
    """Draw each mixed request's length against the cells that a slot may use: what was served, what refused?

    Args:
        frames: the run.
        title: what the picture shows.
        subtitle: run facts, a line each.

    Returns:
        An alt.LayerChart, a row an arm.
    """
    import altair as alt

    arms = [arm for arm in LOADED if arm in frames.arms]
    if not arms:
        return nothing_to_draw(alt, title, subtitle, text=NO_LOAD)
    views = {ROWS[arm]: KvArm(frames.data, arm) for arm in arms}
    marks: list[dict[str, Any]] = []
    limits: list[dict[str, Any]] = []
    for name, view in views.items():
        labels = [fate.label for fate in view.fates]
        slot = int(view.effective["slot_cells"])
        limits.append({"x": slot, "row": name, "text": f"a slot ends at {slot:,}"})
        for fate in view.fates:
            good = fate.outcome in SHAPES
            facts = {"x": fate.prompt + fate.answer, "row": name, "label": fate.label, "good": good}
            text = fate.label if good else f"{fate.label} {fate.words}"
            marks.append(facts | {"text": text, "colour": colour_of(fate.label, labels)})
    legend = "circle: served · cross: not served · bar: where a slot ends"
    datasets = Datasets()
    return _fit_chart(alt, datasets, marks, limits, list(views), finish(title, [*subtitle, legend]))


def _named_together(marks: list[dict[str, Any]], most: float) -> list[dict[str, Any]]:
    """Return the marks' names, those of close neighbours as one: they would lie on each other."""
    names: list[dict[str, Any]] = []
    for mark in sorted(marks, key=lambda mark: (mark["row"], mark["good"], mark["x"])):
        last = names[-1] if names else None
        alike = last and (last["row"], last["good"]) == (mark["row"], mark["good"])
        if last and alike and mark["x"] - last["end"] < (0.016 if mark["good"] else 0.09) * most:
            last |= {"text": f"{last['text']} {mark['text']}", "end": mark["x"]}
            last["x"] = (last["start"] + mark["x"]) / 2 if mark["good"] else last["start"]
        else:
            names.append({**mark, "start": mark["x"], "end": mark["x"]})
    return names


def _fit_chart(
    alt: Any, datasets: Datasets, marks: list[Any], limits: list[Any], rows: list[str], look: dict[str, Any]
) -> Any:
    most = max(row["x"] for row in marks + limits)
    x = alt.X(
        "x:Q", title="prompt and answer (tokens, a cell each)", axis=alt.Axis(tickCount=8),
        scale=alt.Scale(domain=[0, most * 1.06], nice=False),
    )  # fmt: skip
    axis = alt.Axis(title=None, ticks=False, domain=False, labelFontSize=12.5, labelPadding=8, grid=True)
    y = alt.Y("row:N", sort=rows, axis=axis, scale=alt.Scale(padding=0.5))
    base = datasets.chart(alt, marks)
    ends, names = datasets.chart(alt, limits), datasets.chart(alt, _named_together(marks, most))
    colour = alt.Color("colour:N", scale=None)
    served = base.transform_filter("datum.good").mark_circle(size=150, opacity=1, stroke="white", strokeWidth=1)
    lost = base.transform_filter("!datum.good").mark_point(shape=CROSS, size=150, strokeWidth=3, opacity=1)
    text = {"fontSize": 12, "fontWeight": "bold", "color": INK}
    layers = [
        ends.mark_tick(thickness=2.4, size=44, color=INK, orient="vertical"),
        ends.mark_text(align="right", dx=-6, dy=18, fontSize=11, color=QUIET_INK).encode(alt.Text("text:N")),
        served.encode(colour),
        lost.encode(alt.Stroke("colour:N", scale=None)),
        # above and below: a served request and a refused one often stand on the two sides of a slot's end
        names.transform_filter("datum.good").mark_text(dy=-15, **text).encode(alt.Text("text:N")),
        names.transform_filter("!datum.good").mark_text(dy=18, dx=-6, align="left", **text).encode(alt.Text("text:N")),
    ]
    return alt.layer(
        *layers,
        encoding=alt.Encoding(x=x, y=y),
        width=WIDTH - 150,
        height=70 * len(rows),
        datasets=dict(datasets),
        **look,
    )


def kv_memory(frames: RunFrames, *, title: str, subtitle: list[str]) -> Any:
    """Draw each server's KV buffer, by rule and as logged, its compute buffer, and what its process holds.

    Args:
        frames: the run.
        title: what the picture shows.
        subtitle: run facts, a line each.

    Returns:
        An alt.HConcatChart.
    """
    import altair as alt

    views = {ROWS[arm]: view for arm in ROWS if (view := KvArm(frames.data, arm)).started}
    bars = [row for name, view in views.items() for row in _bars(name, view)]
    if not bars:
        return nothing_to_draw(alt, title, subtitle, text="no server said how large its buffers are: nothing to draw")
    datasets = Datasets()
    charts = [_buffers(alt, datasets, bars, views)]
    what, held = _held(views)
    if held:
        charts.append(_processes(alt, datasets, held, list(views), what))
    legend = "bar: buffer in the server's log · line: KV by rule, from the model's header, the cells and the cache type"
    look = finish(title, [*subtitle, legend])
    return alt.hconcat(*charts, spacing=30, datasets=dict(datasets), **look)


def _bars(name: str, view: KvArm) -> list[dict[str, Any]]:
    parts = {"KV": view.effective.get("kv_bytes"), "compute": view.effective.get("compute_bytes")}
    ubatch = view.effective.get("ubatch_size")
    return [
        {"row": name, "part": part, "mib": size / MIB, "text": f"{part} {size / MIB:,.1f}"
         + (f" (ubatch {ubatch})" if part == "compute" else "")}
        for part, size in parts.items() if size
    ]  # fmt: skip


def _held(views: dict[str, KvArm]) -> tuple[str, list[dict[str, Any]]]:
    """Return what was seen to be in use after each start, on the GPUs if there are any, else by the process."""
    for what, bytes_of in (("GPU memory in use (MiB)", gpu_bytes), ("server's resident memory (MiB)", resident_bytes)):
        held = {name: size / MIB for name, view in views.items() if (size := bytes_of(view))}
        if held:
            return what, [{"row": name, "mib": mib, "text": f"{mib:,.0f}"} for name, mib in held.items()]
    return "", []


def _buffers(alt: Any, datasets: Datasets, bars: list[dict[str, Any]], views: dict[str, KvArm]) -> Any:
    rules = [
        {"row": name, "part": "KV", "mib": view.kv.bytes / MIB, "text": f"rule {view.kv.bytes / MIB:,.1f}"}
        for name, view in views.items()
        if view.kv.bytes
    ]
    most = max(row["mib"] for row in bars)
    x = alt.X(
        "mib:Q", title="buffer (MiB)", axis=alt.Axis(tickCount=6), scale=alt.Scale(domain=[0, most * 1.3], nice=False)
    )
    axis = alt.Axis(title=None, ticks=False, domain=False, labelFontSize=12.5, labelPadding=8)
    y = alt.Y("row:N", sort=list(views), axis=axis)
    inner = alt.YOffset("part:N", sort=["KV", "compute"])
    colour = alt.Color(
        "part:N", legend=None, scale=alt.Scale(domain=["KV", "compute"], range=[KV_COLOUR, COMPUTE_COLOUR])
    )
    base = datasets.chart(alt, bars)
    layers = [
        base.mark_bar(height={"band": 0.86}).encode(colour, inner),
        base.mark_text(align="left", dx=7, fontSize=11.5, color=INK).encode(alt.Text("text:N"), inner),
    ]
    if rules:
        line = datasets.chart(alt, rules).mark_tick(thickness=3, color=INK, orient="vertical", size=26)
        layers.append(line.encode(inner))
    return alt.layer(*layers, encoding=alt.Encoding(x=x, y=y), width=470, height=64 * len(views))


def _processes(alt: Any, datasets: Datasets, resident: list[dict[str, Any]], rows: list[str], what: str) -> Any:
    most = max(row["mib"] for row in resident)
    x = alt.X(
        "mib:Q", title=what, axis=alt.Axis(tickCount=4),
        scale=alt.Scale(domain=[0, most * 1.25], nice=False),
    )  # fmt: skip
    base = datasets.chart(alt, resident)
    layers = [
        base.mark_bar(color=RESIDENT_COLOUR, height={"band": 0.42}),
        base.mark_text(align="left", dx=7, fontSize=11.5, color=INK).encode(alt.Text("text:N")),
    ]
    y = alt.Y("row:N", sort=rows, axis=None)
    return alt.layer(*layers, encoding=alt.Encoding(x=x, y=y), width=250, height=64 * len(rows))
