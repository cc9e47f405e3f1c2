"""From frames to charts, one function a question; slot lanes have a module of their own (lanes)."""

from __future__ import annotations

from typing import Any

from labkit.analyze.frames import RunFrames, known
from labkit.analyze.lanes import seconds_text
from labkit.analyze.palette import INK, QUIET_INK, WIDTH, Datasets, colours, finish, nothing_to_draw, numbers_if
from labkit.analyze.placing import Room
from labkit.analyze.thinning import MAX_MARKS, thinned, thinning_note


def tokens_over_time(frames: RunFrames, *, title: str, subtitle: list[str]) -> Any:
    """Draw how many tokens each request has got by when: does B rise while A still does?

    Args:
        frames: the run.
        title: what the picture shows.
        subtitle: run facts, a line each.

    Returns:
        An alt.HConcatChart, a panel an arm, one scale.
    """
    import altair as alt

    if frames.tokens.empty:
        return nothing_to_draw(alt, title, subtitle)
    datasets = Datasets()
    panels = [_Tokens(alt, frames, arm, datasets).panel(first=arm == frames.arms[0]) for arm in frames.arms]
    look = finish(title, [*subtitle, "▲ the request was sent", *thinning_note(frames)])
    return alt.hconcat(*panels, spacing=26, datasets=dict(datasets), **look)


class _Tokens:
    def __init__(self, alt: Any, frames: RunFrames, arm: str, datasets: Datasets) -> None:
        self.alt, self.arm, self.datasets = alt, arm, datasets
        self.name = frames.arm_name(arm)
        self.tokens = frames.tokens[frames.tokens["arm"] == arm]
        self.requests = frames.requests[frames.requests["arm"] == arm]
        self.end_s = float(frames.phases["end_s"].max()) if len(frames.phases) else 1.0
        self.most = max(1, int(frames.tokens["i"].max())) if len(frames.tokens) else 1
        self.width = WIDTH // max(1, len(frames.arms)) - 40

    def panel(self, *, first: bool) -> Any:
        alt = self.alt
        x = alt.X(
            "x:Q",
            title="time since A was sent (s)",
            scale=alt.Scale(domain=[0, self.end_s * 1.02], nice=False),
            axis=alt.Axis(tickCount=7, grid=False),
        )
        y = alt.Y(
            "y:Q",
            title="tokens received" if first else None,
            scale=alt.Scale(domain=[0, self.most * 1.08], nice=False),
            axis=alt.Axis(tickCount=5, labels=first),
        )
        self.colour = alt.Color("label:N", scale=colours(alt, sorted(set(self.requests["label"]))), legend=None)
        lines = self.datasets.chart(alt, self._steps()).mark_line(interpolate="step-after", strokeWidth=2.4)
        sent = self.datasets.chart(alt, self._sent()).mark_point(shape="triangle-up", size=80, filled=True, opacity=1)
        style = {"fontSize": 13, "fontWeight": "bold"}
        words = self.datasets.chart(alt, self._words())
        right = words.transform_filter("!datum.late").mark_text(align="left", dx=7, dy=2, **style)
        left = words.transform_filter("datum.late").mark_text(align="right", dx=-9, dy=-3, **style)
        layers = [layer.encode(self.colour) for layer in (lines, sent)]
        layers += [layer.encode(self.colour, self.alt.Text("text:N")) for layer in (right, left)]
        name = {"text": self.name, "anchor": "start"}
        encoding = alt.Encoding(x=x, y=y)
        return alt.layer(*self.datasets.drawn(layers), encoding=encoding, width=self.width, height=260, title=name)

    def _steps(self) -> list[dict[str, Any]]:
        return [
            {"x": row.t_s, "y": row.i, "label": row.label}
            for row in thinned(self.tokens, "t_s", self.end_s).itertuples()
        ]

    def _sent(self) -> list[dict[str, Any]]:
        return [
            {"x": row.sent_s, "y": 0, "label": row.label} for row in self.requests.itertuples() if known(row.sent_s)
        ]

    def _words(self) -> list[dict[str, Any]]:
        words: list[dict[str, Any]] = []
        for label, stream in self.tokens.groupby("label"):
            x, y = float(stream["t_s"].iloc[-1]), int(stream["i"].iloc[-1])
            near = [w for w in words if abs(w["x"] - x) < 0.08 * self.end_s and abs(w["y"] - y) < 0.06 * self.most]
            if near:  # two ends on one spot share one label
                near[0]["names"] += f" and {label}"
            else:
                words.append({"x": x, "y": y, "label": label, "names": str(label), "late": x > 0.8 * self.end_s})
        return [word | {"text": f"{word['names']}, {word['y']}"} for word in words]


def inter_token_gaps(frames: RunFrames, *, label: str = "A", title: str, subtitle: list[str]) -> Any:
    """Draw the gap before each of one request's tokens: what do others' prefills cost a running stream?

    Args:
        frames: the run.
        label: the running request.
        title: what the picture shows.
        subtitle: run facts, a line each.

    Returns:
        An alt.VConcatChart, a row an arm, one scale.
    """
    import altair as alt

    if frames.tokens.empty:
        return nothing_to_draw(alt, title, subtitle)
    datasets = Datasets()
    rows = [_Gaps(alt, frames, arm, label, datasets).row(last=arm == frames.arms[-1]) for arm in frames.arms]
    legend = f"point: one token of {label} and the gap before it · band: the prefill of the request named in it"
    look = finish(title, [*subtitle, legend, *thinning_note(frames)])
    resolve = {"scale": {"x": "shared", "y": "shared"}}
    return alt.vconcat(*rows, spacing=20, resolve=resolve, datasets=dict(datasets), **look)


class _Gaps:
    def __init__(self, alt: Any, frames: RunFrames, arm: str, label: str, datasets: Datasets) -> None:
        self.alt, self.arm, self.label, self.datasets = alt, arm, label, datasets
        self.name = frames.arm_name(arm)
        tokens, stalls, phases = (f[f["arm"] == arm] for f in (frames.tokens, frames.stalls, frames.phases))
        self.gaps = tokens[(tokens["label"] == label) & tokens["gap_s"].notna()]
        self.stalls = stalls[stalls["label"] == label]
        self.prefills = phases[(phases["phase"] == "prefill") & (phases["label"] != label)]
        all_gaps = frames.tokens[frames.tokens["label"] == label]["gap_s"]
        self.top_ms = 1e3 * float(all_gaps.max()) * 1.18 if all_gaps.notna().any() else 1.0
        self.end_s = float(frames.phases["end_s"].max()) if len(frames.phases) else 1.0
        self.median_ms = 1e3 * float(self.gaps["gap_s"].median()) if len(self.gaps) else 0.0

    def row(self, *, last: bool) -> Any:
        alt = self.alt
        x = alt.X(
            "x:Q",
            title="time since A was sent (s)" if last else None,
            scale=alt.Scale(domain=[0, self.end_s * 1.02], nice=False),
            axis=alt.Axis(tickCount=12, grid=False, **numbers_if(last)),
        )
        y = alt.Y(
            "y:Q",
            title=f"{self.label}'s inter-token gap (ms)",
            scale=alt.Scale(domain=[0, self.top_ms], nice=False),
            axis=alt.Axis(tickCount=5),
        )
        layers = [self._bands(), self._median(), *self._points(), *self._words()]
        name = {"text": self.name, "anchor": "start", "frame": "bounds"}
        encoding = alt.Encoding(x=x, y=y)
        return alt.layer(*self.datasets.drawn(layers), encoding=encoding, width=WIDTH - 20, height=190, title=name)

    def _bands(self) -> Any:
        rows = [
            {"x": row.start_s, "x2": row.end_s, "y": 0, "y2": self.top_ms, "label": row.label}
            for row in self.prefills.itertuples()
        ]
        scale = colours(self.alt, sorted({row["label"] for row in rows}))
        return (
            self.datasets.chart(self.alt, rows)
            .mark_rect(opacity=0.16)
            .encode(self.alt.Color("label:N", scale=scale, legend=None), self.alt.X2("x2:Q"), self.alt.Y2("y2:Q"))
        )

    def _points(self) -> list[Any]:
        rows = [{"x": row.t_s, "y": 1e3 * row.gap_s, "y0": 0} for row in self._shown_gaps().itertuples()]
        base = self.datasets.chart(self.alt, rows)
        colour = colours(self.alt, [self.label]).to_dict()["range"][0]
        stems = base.mark_rule(color=colour, opacity=0.35, strokeWidth=1.2).encode(self.alt.Y2("y0:Q"))
        return [stems, base.mark_circle(color=colour, size=26, opacity=0.9)]

    def _shown_gaps(self) -> Any:
        # the long ones are the matter: where there are too many, the longest of each pixel is kept
        if len(self.gaps) <= MAX_MARKS:
            return self.gaps
        pixel = (self.gaps["t_s"] / self.end_s * MAX_MARKS).astype(int)
        return self.gaps.loc[self.gaps.groupby(pixel)["gap_s"].idxmax()]

    def _median(self) -> Any:
        rows = [{"x": 0, "x2": self.end_s * 1.02, "y": self.median_ms}]
        rule = self.datasets.chart(self.alt, rows).mark_rule(color=INK, strokeDash=[4, 3], strokeWidth=1)
        return rule.encode(self.alt.X2("x2:Q"))

    def _words(self) -> list[Any]:
        room, tight = self._stall_words()
        median = [{"x": self.end_s * 1.02, "y": self.median_ms, "text": f"median {self.median_ms:.0f} ms"}]
        style = {"fontSize": 12, "color": INK, "baseline": "middle"}
        stalls = self.datasets.chart(self.alt, room).mark_text(align="left", dx=8, **style)
        left = self.datasets.chart(self.alt, tight).mark_text(align="right", dx=-8, **style)
        right = self.datasets.chart(self.alt, median).mark_text(align="right", dy=-12, **style | {"color": QUIET_INK})
        bands = self.datasets.chart(self.alt, self._band_names()).mark_text(align="left", dx=4, dy=10, **style)
        return [layer.encode(self.alt.Text("text:N")) for layer in (stalls, left, right, bands)]

    def _stall_words(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the words right and left of the longest stalls; several are told by their bands, so say less."""
        longest, room = self.stalls.nlargest(3, "gap_s"), Room(self.end_s * 1.02)
        sides: dict[str, list[dict[str, Any]]] = {"left": [], "right": []}
        for row in longest.itertuples():
            text = self._stall_text(row) if len(longest) == 1 else seconds_text(row.gap_s)
            align, dx = ("left", 8) if row.end_s <= 0.6 * self.end_s else ("right", -8)
            if room.take({"x": row.end_s, "y": 0.0, "text": text}, dx=dx, size=12, align=align):
                sides[align].append({"x": row.end_s, "y": 1e3 * row.gap_s, "text": text})
        return sides["left"], sides["right"]

    def _band_names(self) -> list[dict[str, Any]]:
        names: list[dict[str, Any]] = []
        for row in self.prefills.sort_values("start_s").itertuples():
            if names and row.start_s - names[-1]["x"] < 0.03 * self.end_s:
                names[-1]["text"] += f", {row.label}"
            else:
                names.append({"x": row.start_s, "y": self.top_ms, "text": row.label})
        return names

    def _stall_text(self, row: Any) -> str:
        times = row.gap_s / row.median_gap_s
        return f"{seconds_text(row.gap_s)} while {row.cause} is prefilled: {times:.0f} times the median"
