"""Pictures of notebook 00: what a slot gets unasked, and where a build's time went."""

from __future__ import annotations

import re
from typing import Any

from labkit.analyze.build.claims import DEFAULTS, SMOKE
from labkit.analyze.build.view import ARM_NAMES
from labkit.analyze.palette import INK, QUIET_INK, WIDTH, Datasets, finish, nothing_to_draw, numbers_if

_FILL, _LINE = "#0072B2", "#00496F"
_ROW_HEIGHT = 26


def slots_and_cells(run: dict[str, Any], *, title: str, subtitle: list[str]) -> Any:
    """Draw how many KV cells each slot may use, unasked and as labkit starts the engine.

    Args:
        run: run.json.
        title: what the picture shows.
        subtitle: run facts, a line each.

    Returns:
        An alt.VConcatChart, a panel an arm, one scale.
    """
    import altair as alt

    shown = {arm: _effective(run, arm) for arm in (DEFAULTS, SMOKE) if _effective(run, arm).get("slots")}
    if not shown:
        return nothing_to_draw(alt, title, subtitle, text="no server was seen: nothing to draw")
    datasets = Datasets()
    most = max(effective["pool_cells"] or effective["slot_cells"] for effective in shown.values())
    panels = [
        _slots_panel(alt, datasets, arm, effective, most, last=arm == list(shown)[-1])
        for arm, effective in shown.items()
    ]
    legend = "outline: cells that all slots share · filled: cells of this slot alone"
    return alt.vconcat(*panels, spacing=22, datasets=dict(datasets), **finish(title, [*subtitle, legend]))


def _effective(run: dict[str, Any], arm: str) -> dict[str, Any]:
    return ((run["arms"].get(arm) or {}).get("server") or {}).get("effective") or {}


def _slots_panel(alt: Any, datasets: Datasets, arm: str, effective: dict[str, Any], most: int, *, last: bool) -> Any:
    shared = bool(effective["kv_unified"]) and effective["slots"] > 1
    shown = min(int(effective["slots"]), 8)
    rows = [
        {"slot": f"slot {i}", "cells": effective["slot_cells"], "text": _slot_words(effective, shared)}
        for i in range(shown)
    ]
    x = alt.X(
        "cells:Q",
        title="KV cells that the slot may use" if last else None,
        scale=alt.Scale(domain=[0, most * 1.35], nice=False),
        axis=alt.Axis(tickCount=6, format=",d", grid=False, **numbers_if(last)),
    )
    y = alt.Y("slot:N", title=None, sort=None, axis=alt.Axis(domain=False, ticks=False, labelPadding=8))
    base = datasets.chart(alt, rows)
    look = {"fillOpacity": 0.12, "strokeDash": [5, 3]} if shared else {"fillOpacity": 0.85}
    bars = base.mark_bar(color=_FILL, stroke=_LINE, strokeWidth=1.4, height=_ROW_HEIGHT * 0.62, **look)
    words = base.mark_text(align="left", dx=8, fontSize=12, color=INK).encode(alt.Text("text:N"))
    more = f", {shown} of them drawn" if effective["slots"] > shown else ""
    name = {"text": f"{ARM_NAMES[arm]}: {_pool_words(effective, shared)}{more}", "anchor": "start", "frame": "bounds"}
    encoding = alt.Encoding(x=x, y=y)
    height = _ROW_HEIGHT * shown + 8
    return alt.layer(bars, words, encoding=encoding, width=WIDTH - 60, height=height, title=name)


def _slot_words(effective: dict[str, Any], shared: bool) -> str:
    cells = f"{effective['slot_cells']:,}"
    return f"up to {cells}, if the others leave them" if shared else f"{cells} of its own"


def _pool_words(effective: dict[str, Any], shared: bool) -> str:
    slots, pool = effective["slots"], effective["pool_cells"]
    cells = f"{pool:,} cells in all" if pool else "cells in all unknown"
    kind = "one pool for all" if shared else "a box for each" if slots > 1 else "all of it for the one slot"
    return f"{slots} slot{'s' if slots > 1 else ''}, {cells}, {kind}"


def slots_reading(run: dict[str, Any]) -> str:
    """Say in words what slots_and_cells() shows."""
    sentences = []
    for arm in (DEFAULTS, SMOKE):
        effective = _effective(run, arm)
        if not effective.get("slots"):
            sentences.append(f"{ARM_NAMES[arm].capitalize()}, the engine was not seen.")
            continue
        shared = bool(effective["kv_unified"]) and effective["slots"] > 1
        sentences.append(f"{ARM_NAMES[arm].capitalize()}: {_pool_words(effective, shared)}.")
    if all(_effective(run, arm).get("slots") for arm in (DEFAULTS, SMOKE)):
        sentences.append("Who compares two servers compares these first.")
    return " ".join(sentences)


def build_progress(build: dict[str, Any], *, title: str, subtitle: list[str]) -> Any:
    """Draw how many steps of a build were done when.

    Args:
        build: `build` in run.json.
        title: what the picture shows.
        subtitle: run facts, a line each.
    """
    import altair as alt

    points = build["progress"]
    if not points:
        return nothing_to_draw(alt, title, subtitle, text="nothing was left to compile: nothing to draw")
    datasets = Datasets()
    rows = [{"at_min": 0.0, "done": points[0]["done"] - 1}] + [
        {"at_min": point["at_s"] / 60, "done": point["done"]} for point in points
    ]
    total = points[-1]["total"]
    end = [{"at_min": rows[-1]["at_min"], "done": rows[-1]["done"], "text": f"{rows[-1]['done']} of {total} steps"}]
    x = alt.X(
        "at_min:Q",
        title="time since the compile began (min)",
        scale=alt.Scale(domain=[0, max(rows[-1]["at_min"] * 1.15, 0.01)], nice=False),
        axis=alt.Axis(tickCount=8, grid=False),
    )
    y = alt.Y("done:Q", title="steps done", scale=alt.Scale(domain=[0, total * 1.08], nice=False))
    line = datasets.chart(alt, rows).mark_line(interpolate="step-after", strokeWidth=2.2, color=_FILL)
    words = (
        datasets.chart(alt, end).mark_text(align="left", dx=7, dy=-8, fontSize=12, color=INK).encode(alt.Text("text:N"))
    )
    encoding = alt.Encoding(x=x, y=y)
    look = finish(title, subtitle)
    return alt.layer(line, words, encoding=encoding, width=WIDTH - 40, height=230, datasets=dict(datasets), **look)


def progress_reading(build: dict[str, Any]) -> str:
    """Say in words what build_progress() shows."""
    points = build["progress"]
    if not points:
        return "Nothing was left to compile: an earlier run had finished this build."
    done = points[-1]["done"] - points[0]["done"] + 1
    # a build that was resumed, or stopped, may have seen no step of its second half
    middle = min(points[-1]["total"] / 2, points[-1]["done"])
    half = next(point["at_s"] for point in points if point["done"] >= middle)
    return (
        f"{done} steps in {_time(points[-1]['at_s'])} with {build['jobs']} compilers at once; half of them were done "
        f"after {_time(half)}. The line is flat where the compilers are at large files."
    )


def slowest(build: dict[str, Any], *, title: str, subtitle: list[str]) -> Any:
    """Draw the steps of a build that took longest.

    Args:
        build: `build` in run.json.
        title: what the picture shows.
        subtitle: run facts, a line each.
    """
    import altair as alt

    steps = build["slowest_steps"]
    if not steps:
        return nothing_to_draw(alt, title, subtitle, text="the build tool left no log: nothing to draw")
    datasets = Datasets()
    rows = [
        {"step": _short(step["output"]), "seconds": step["seconds"], "text": f"{step['seconds']:.0f} s"}
        for step in steps
    ]
    top = max(row["seconds"] for row in rows)
    x = alt.X(
        "seconds:Q",
        title="time of one step (s)",
        scale=alt.Scale(domain=[0, max(top * 1.12, 0.1)], nice=False),
        axis=alt.Axis(tickCount=8, grid=False),
    )
    y = alt.Y("step:N", title=None, sort=None, axis=alt.Axis(domain=False, ticks=False, labelLimit=320))
    base = datasets.chart(alt, rows)
    bars = base.mark_bar(color=_FILL, height=15)
    words = base.mark_text(align="left", dx=6, fontSize=12, color=QUIET_INK).encode(alt.Text("text:N"))
    encoding = alt.Encoding(x=x, y=y)
    height = 24 * len(rows)
    look = finish(title, subtitle)
    return alt.layer(bars, words, encoding=encoding, width=WIDTH - 280, height=height, datasets=dict(datasets), **look)


def slowest_reading(build: dict[str, Any]) -> str:
    """Say in words what slowest() shows."""
    steps = build["slowest_steps"]
    if not steps:
        return "The build tool left no log of its steps."
    longest = steps[0]["seconds"]
    return (
        f"The longest step is {_short(steps[0]['output'])}, {_time(longest)}. However many compilers run at once, "
        "a whole build can't be shorter than that."
    )


def _short(output: str) -> str:
    """Return what a step was made from: ggml/src/ggml-cpu/repack.cpp, without the folders that cmake adds."""
    return re.sub(r"CMakeFiles/[^/]+\.dir/", "", output).removesuffix(".o")


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} min"
