"""Pictures of a comparison: each figure's change with its interval, and each request's TTFT before and after."""

from __future__ import annotations

from typing import Any

from labkit.analyze.compare_runs.claims import Comparison
from labkit.analyze.compare_runs.paired import Change, request_changes
from labkit.analyze.frames import known
from labkit.analyze.lanes import seconds_text
from labkit.analyze.palette import INK, QUIET_INK, RULE, WIDTH, Datasets, finish, nothing_to_draw

BEFORE_COLOUR, AFTER_COLOUR = "#8A9099", "#0072B2"
ROW_PX, REQUEST_PX, MAX_REQUESTS = 64, 34, 24
PLOT_PX = 470
EMPTY = "no request was sent on both sides: nothing to draw"


def change_intervals(comparison: Comparison, *, title: str, subtitle: list[str]) -> Any:
    """Draw each figure's change for the worse: a point a request, the mean of the loads and its interval.

    Args:
        comparison: both sides.
        title: what the picture shows.
        subtitle: facts, a line each.

    Returns:
        An alt.LayerChart, a row a figure.
    """
    import altair as alt

    found = list(comparison.changes.values())
    if not found:
        return nothing_to_draw(alt, title, subtitle, text=EMPTY)
    datasets = Datasets()
    picture = _Changes(alt, comparison, found, datasets)
    layers = datasets.drawn(picture.layers())
    scale = alt.Scale(domain=[-picture.edge, picture.edge], nice=False, clamp=True)
    axis = alt.Axis(tickCount=9, grid=False, labelExpr="datum.value ? format(datum.value, '+d') : '0'")
    x = alt.X("x:Q", title="change for the worse (%); left of 0: better", scale=scale, axis=axis)
    y = alt.Y("y:Q", title=None, scale=alt.Scale(domain=[len(found), 0], nice=False), axis=None)
    legend = "point: a request · diamond and bar: mean over loads, 95 % interval · band: tolerated"
    cut = ["points at the edge lie beyond it"] if picture.cut else []
    look = finish(title, [*subtitle, legend, *cut]) | {"width": PLOT_PX, "height": ROW_PX * len(found)}
    return alt.layer(*layers, encoding=alt.Encoding(x=x, y=y), datasets=dict(datasets), **look)


class _Changes:
    def __init__(self, alt: Any, comparison: Comparison, found: list[Change], datasets: Datasets) -> None:
        self.alt, self.found, self.datasets = alt, found, datasets
        self.tolerance = comparison.tolerance_percent
        self.points = self._points(comparison)
        sizes = sorted(abs(point["x"]) for point in self.points)
        ends = [abs(end) for change in found for end in (change.percent, change.low, change.high) if end is not None]
        common = sizes[int(0.9 * (len(sizes) - 1))] if sizes else 0.0
        self.edge = max(20.0, 1.6 * self.tolerance, 1.25 * max(ends), 1.1 * common)
        self.cut = any(size > self.edge for size in sizes)

    def layers(self) -> list[Any]:
        alt, rows = self.alt, range(len(self.found))
        band = [{"x": -self.edge, "x2": self.tolerance, "y": 0.0, "y2": float(len(self.found))}]
        zero = [{"x": 0.0, "y": 0.0, "y2": float(len(self.found))}]
        limit = [{"x": self.tolerance, "y": 0.0, "y2": float(len(self.found))}]
        bars = [{"y": row + 0.5} | ends for row in rows if (ends := self._ends(self.found[row]))]
        means = [{"y": row + 0.5, "x": self.found[row].metric.worse(self.found[row].percent)} for row in rows]
        names = [{"x": -self.edge, "y": row + 0.5, "text": self.found[row].metric.words} for row in rows]
        words = [{"x": self.edge, "y": row + 0.5, "text": self._words(self.found[row])} for row in rows]
        rule = self._chart(zero).mark_rule(color=INK, strokeWidth=1).encode(alt.Y2("y2:Q"))
        dash = self._chart(limit).mark_rule(color=QUIET_INK, strokeDash=[4, 3]).encode(alt.Y2("y2:Q"))
        return [
            self._chart(band).mark_rect(color="#F1F4F2").encode(alt.X2("x2:Q"), alt.Y2("y2:Q")),
            rule,
            dash,
            self._chart(self.points).mark_circle(color=AFTER_COLOUR, size=30, opacity=0.45),
            self._chart(bars).mark_rule(color=INK, strokeWidth=4).encode(alt.X2("x2:Q")),
            self._chart(means).mark_point(shape="diamond", size=130, filled=True, color=INK, opacity=1),
            self.datasets.words(alt, names, align="right", dx=-10, fontSize=12.5),
            self.datasets.words(alt, words, dx=10, color=QUIET_INK, fontSize=12.5),
        ]

    def _points(self, comparison: Comparison) -> list[dict[str, Any]]:
        used = comparison.pairs[comparison.pairs["left_out"] == ""]
        points = []
        for row, change in enumerate(self.found):
            found = [float(value) for value in request_changes(used, change.metric) if known(value)]
            for number, percent in enumerate(found):
                # spread below and above the bar, always alike
                offset = 0.16 + 0.14 * ((number * 7) % 5) / 4
                side = -offset if number % 2 else offset
                points.append({"x": change.metric.worse(percent), "y": row + 0.5 + side})
        return points

    def _ends(self, change: Change) -> dict[str, float] | None:
        if change.low is None or change.high is None:
            return None
        low, high = sorted((change.metric.worse(change.low), change.metric.worse(change.high)))
        return {"x": low, "x2": high}

    def _words(self, change: Change) -> str:
        worse = change.metric.worse(change.percent)
        side = "worse" if worse > 0 else "better"
        interval = "" if change.low is not None else f", {change.loads} load{'s' * (change.loads != 1)}: no interval"
        share = " of TTFT" if change.metric.name == "wait" else ""
        return f"{abs(worse):.1f} %{share} {side}{interval}"

    def _chart(self, rows: list[dict[str, Any]]) -> Any:
        return self.datasets.chart(self.alt, rows)


def ttft_before_after(comparison: Comparison, *, title: str, subtitle: list[str]) -> Any:
    """Draw each request's TTFT before and after, its wait at the server apart.

    Args:
        comparison: both sides; of sets, the first pair of runs.
        title: what the picture shows.
        subtitle: facts, a line each.

    Returns:
        An alt.LayerChart, a row a request, those first that got slower most.
    """
    import altair as alt

    pairs = comparison.pairs[(comparison.pairs["left_out"] == "") & comparison.pairs["ttft_s_before"].notna()]
    pairs = pairs[pairs["ttft_s_after"].notna()]
    if pairs.empty:
        return nothing_to_draw(alt, title, subtitle, text=EMPTY)
    slower = (pairs["ttft_s_after"] - pairs["ttft_s_before"]).sort_values(ascending=False)
    shown = pairs.loc[slower.index[:MAX_REQUESTS]]
    datasets = Datasets()
    layers = datasets.drawn(_Requests(alt, shown, datasets).layers())
    most = float(shown[["ttft_s_before", "ttft_s_after"]].max().max())
    scale = alt.Scale(domain=[0, max(most, 1e-3) * 1.02], nice=False)
    x = alt.X("x:Q", title="time to first token (s)", scale=scale, axis=alt.Axis(tickCount=8))
    y = alt.Y("y:Q", title=None, scale=alt.Scale(domain=[len(shown), 0], nice=False), axis=None)
    legend = "upper bar, grey: before · lower bar, blue: after · pale part: wait at the server"
    rest = [f"the {MAX_REQUESTS} of {len(pairs)} that got slower most"] if len(pairs) > MAX_REQUESTS else []
    look = finish(title, [*subtitle, legend, *rest]) | {"width": WIDTH - 360, "height": REQUEST_PX * len(shown)}
    return alt.layer(*layers, encoding=alt.Encoding(x=x, y=y), datasets=dict(datasets), **look)


class _Requests:
    def __init__(self, alt: Any, pairs: Any, datasets: Datasets) -> None:
        self.alt, self.pairs, self.datasets = alt, pairs, datasets
        self.several = pairs["pair"].nunique() > 1

    def layers(self) -> list[Any]:
        alt = self.alt
        rules = [{"y": float(row)} for row in range(len(self.pairs))]
        names, words = [], []
        for row, pair in enumerate(self.pairs.itertuples()):
            number = f", pair {pair.pair}" if self.several else ""
            names.append({"x": 0, "y": row + 0.5, "text": f"{pair.label} · {pair.arm}{number}"})
            ends = max(pair.ttft_s_before, pair.ttft_s_after)
            text = f"{seconds_text(pair.ttft_s_before)} → {seconds_text(pair.ttft_s_after)}"
            words.append({"x": float(ends), "y": row + 0.5, "text": text})
        layers = [self.datasets.chart(alt, rules).mark_rule(color=RULE, strokeWidth=1)]
        for side, colour, top in (("before", BEFORE_COLOUR, 0.16), ("after", AFTER_COLOUR, 0.52)):
            layers.append(self._bars(side, top, waiting=True).mark_rect(color=colour, opacity=0.35))
            layers.append(self._bars(side, top, waiting=False).mark_rect(color=colour, opacity=1))
        layers[1:] = [layer.encode(alt.X2("x2:Q"), alt.Y2("y2:Q")) for layer in layers[1:]]
        return [
            *layers,
            self.datasets.words(alt, names, align="right", dx=-8),
            self.datasets.words(alt, words, dx=7, color=QUIET_INK),
        ]

    def _bars(self, side: str, top: float, *, waiting: bool) -> Any:
        rows = []
        for row, pair in enumerate(self.pairs.itertuples()):
            ttft_s, wait_s = float(getattr(pair, f"ttft_s_{side}")), getattr(pair, f"wait_s_{side}")
            wait_s = float(wait_s) if known(wait_s) else 0.0
            start, end = (0.0, wait_s) if waiting else (wait_s, ttft_s)
            rows.append({"x": start, "x2": end, "y": row + top, "y2": row + top + 0.32})
        return self.datasets.chart(self.alt, rows)
