"""Slot lanes: who held which slot, and when; the picture of this project.

Time runs to the right, a lane for each slot. In a lane: outline while a request waits on its slot, solid
while its prompt is prefilled, tint while it decodes, a tick for each token as the client got it. Under
each lane a strip with what /slots said at each poll, so that the two sources are seen to agree. Requests
without a slot wait in rows of their own above the lanes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labkit.analyze.frames import FOREIGN, RunFrames, known
from labkit.analyze.palette import (
    FOREIGN_COLOUR,
    INK,
    QUIET_INK,
    WIDTH,
    Datasets,
    colours,
    finish,
    nothing_to_draw,
    numbers_if,
)
from labkit.analyze.placing import Room
from labkit.analyze.thinning import foreign_spans, poll_spans, thinned, thinning_note

if TYPE_CHECKING:
    import pandas as pd

LANE_PX, QUEUE_PX = 84, 30
MANY_WAIT, CROWDED_PX = 8, 14  # more waiting requests than that, and their rows are lower
NEAR_PX = 30  # arrival marks nearer than this leave no room for a name between them
# parts of a lane's height, from its top
BAR_TOP, BAR_BOTTOM, STRIP_TOP, STRIP_BOTTOM = 0.30, 0.74, 0.82, 0.93
ALIGNS = ("left", "center", "right")


def slot_lanes(frames: RunFrames, *, title: str, subtitle: list[str], early: str | None = "A") -> Any:
    """Draw the lanes of every arm under each other on one time axis.

    Args:
        frames: the run.
        title: what the picture shows.
        subtitle: run facts, a line each.
        early: the request whose last token matters to the others, which get an arrival mark; None: all are alike.

    Returns:
        An alt.VConcatChart.
    """
    import altair as alt

    if frames.phases.empty:
        return nothing_to_draw(alt, title, subtitle)
    end_s = max(float(frames.phases["end_s"].max()), 0.1)
    datasets = Datasets()
    arms = [_Arm(frames, arm, end_s, datasets, early).chart(alt, last=arm == frames.arms[-1]) for arm in frames.arms]
    legend = "outline: waits · solid: prefill · tint: decode · tick: a token reaches the client"
    strip = "strip under a lane: what /slots said, filled = progress of this very task, hollow = busy without any"
    look = finish(title, [*subtitle, legend, strip, *thinning_note(frames)])
    resolve = {"scale": {"x": "shared"}}
    return alt.vconcat(*arms, spacing=22, resolve=resolve, datasets=dict(datasets), **look)


class _Arm:
    """One arm's rows on a quantitative y axis: 0 is the top, each lane is 1 high."""

    def __init__(self, frames: RunFrames, arm: str, end_s: float, datasets: Datasets, early: str | None) -> None:
        self.frames, self.arm, self.end_s, self.datasets, self.early = frames, arm, end_s, datasets, early
        self.phases = self._of(frames.phases)
        self.requests = self._of(frames.requests)
        self.deferred = list(dict.fromkeys(self.phases[self.phases["phase"] == "deferred"]["label"]))
        self.slots = self._slots()
        # arrivals have a row of their own; each deferred request one more
        self.crowded = len(self.deferred) > MANY_WAIT
        self.row = (CROWDED_PX if self.crowded else QUEUE_PX) / LANE_PX
        self.queue = QUEUE_PX / LANE_PX + self.row * len(self.deferred)
        self.height = self.queue + len(self.slots)

    def _of(self, frame: pd.DataFrame) -> pd.DataFrame:
        return frame[frame["arm"] == self.arm]

    def _slots(self) -> list[int]:
        effective = (self.frames.facts(self.arm).get("server") or {}).get("effective") or {}
        polled = self._of(self.frames.slots)["slot"]
        seen = {*self.phases["slot"].dropna(), *polled.dropna(), *range(effective.get("slots") or 0)}
        return sorted(int(slot) for slot in seen)

    def _lane(self, slot: Any) -> float:
        return self.queue + self.slots.index(int(slot))

    # --- layers ---------------------------------------------------------------------------------------

    def chart(self, alt: Any, *, last: bool) -> Any:
        self.alt, self.last = alt, last
        labels = [*sorted(set(self.requests["label"])), FOREIGN]
        scale = colours(alt, labels)
        self.room = Room(self.end_s * 1.005)
        self.names = self._names()
        self.colour = alt.Color("label:N", scale=scale, legend=None)
        self.stroke = alt.Stroke("label:N", scale=scale, legend=None)
        layers = [
            self._lane_background(),
            *self._foreign_tasks(),
            self._bars("prefill", opacity=1.0),
            self._bars("decode", opacity=0.24),
            self._waits(),
            self._ticks(),
            *self._strip(),
            self._last_token(),
            *self._stalls(),
            *self._texts(),
            *self._arrivals(),
            *self._wait_words(),
        ]
        height = round(LANE_PX * self.height)
        name = {"text": self.frames.arm_name(self.arm), "anchor": "start", "frame": "bounds"}
        # axes once for all layers: Altair copies what is in each of them
        encoding = alt.Encoding(x=self._x(), y=self._y())
        return alt.layer(*self.datasets.drawn(layers), encoding=encoding, width=WIDTH, height=height, title=name)

    def _x(self) -> Any:
        title = "time since A was sent (s)" if self.last else None
        axis = self.alt.Axis(title=title, grid=True, tickCount=12, **numbers_if(self.last))
        scale = self.alt.Scale(domain=[0, self.end_s * 1.005], nice=False)
        return self.alt.X("x:Q", axis=axis, scale=scale)

    def _y(self) -> Any:
        middles = [self._lane(slot) + (BAR_TOP + BAR_BOTTOM) / 2 for slot in self.slots]
        names = [f"'slot {slot}'" for slot in self.slots]
        cases = "".join(
            f"abs(datum.value - {middle}) < 0.01 ? {name} : " for middle, name in zip(middles, names, strict=True)
        )
        axis = self.alt.Axis(
            values=middles, labelExpr=f"{cases}''", title=None, grid=False, ticks=False, domain=False,
            labelFontSize=14, labelFontWeight="bold", labelPadding=8,
        )  # fmt: skip
        scale = self.alt.Scale(domain=[self.height, 0], nice=False, zero=False)
        return self.alt.Y("y:Q", axis=axis, scale=scale)

    def _marks(self, rows: list[dict[str, Any]]) -> Any:
        return self.datasets.chart(self.alt, rows)

    def _rects(self, rows: list[dict[str, Any]], **mark: Any) -> Any:
        return self._marks(rows).mark_rect(**mark).encode(self.alt.X2("x2:Q"), self.alt.Y2("y2:Q"))

    def _lane_background(self) -> Any:
        rows = [
            {
                "x": 0,
                "x2": self.end_s * 1.005,
                "y": self._lane(slot) + BAR_TOP,
                "y2": self._lane(slot) + BAR_BOTTOM,
            }
            for slot in self.slots
        ]
        return self._rects(rows, color="#F5F6F7")

    def _spans(self, phase: str) -> list[dict[str, Any]]:
        spans = []
        for row in self.phases[self.phases["phase"] == phase].itertuples():
            if known(row.slot):
                lane = self._lane(row.slot)
                at = {"x": row.start_s, "x2": row.end_s, "y": lane + BAR_TOP, "y2": lane + BAR_BOTTOM}
                spans.append(at | {"label": row.label})
        return spans

    def _bars(self, phase: str, *, opacity: float) -> Any:
        return self._rects(self._spans(phase), opacity=opacity, cornerRadius=2).encode(self.colour)

    def _foreign_tasks(self) -> list[Any]:
        """Somebody else's tasks: grey, from the polls that saw them, since nothing else tells of them."""
        bars, words = [], []
        for span in foreign_spans(self._of(self.frames.slots)):
            lane = self._lane(span["slot"])
            x, x2 = max(0.0, span["x"]), min(self.end_s, span["x2"])
            if x2 > x:
                bars.append({"x": x, "x2": x2, "y": lane + BAR_TOP, "y2": lane + BAR_BOTTOM})
                words.append({"x": x, "y": lane + 0.17, "text": "another client", "slot": span["slot"]})
        first = {word["slot"]: word for word in reversed(words)}
        bars_layer = self._rects(bars, color=FOREIGN_COLOUR, opacity=0.45)
        return [bars_layer, self._text(list(first.values()), color=QUIET_INK, fontSize=11.5)]

    def _waits(self) -> Any:
        inset = 0.09
        rows = [
            row | {"y": row["y"] + inset, "y2": row["y2"] - inset}
            for row in self._spans("waiting")
            if row["x2"] - row["x"] > 0.01 * self.end_s  # shorter: an outline would hide what follows it
        ]
        for row in self.phases[self.phases["phase"] == "deferred"].itertuples():
            top = self._queue_row(row.label)
            at = {"y": top + 0.22 * self.row, "y2": top + 0.78 * self.row}
            rows.append(at | {"x": row.start_s, "x2": row.end_s, "label": row.label})
        outline = {"fill": "white", "fillOpacity": 0.6, "strokeDash": [4, 3], "strokeWidth": 1.6}
        return self._rects(rows, **outline).encode(self.stroke)

    def _queue_row(self, label: str) -> float:
        return QUEUE_PX / LANE_PX + self.row * self.deferred.index(label)

    def _ticks(self) -> Any:
        slot_of = {row.label: row.slot for row in self.phases.itertuples() if known(row.slot)}
        tokens = self._of(self.frames.tokens)
        rows = [
            {
                "x": row.t_s,
                "y": self._lane(slot_of[row.label]) + 0.38,
                "y2": self._lane(slot_of[row.label]) + 0.66,
                "label": row.label,
            }
            for row in thinned(tokens, "t_s", self.end_s).itertuples()
            if row.label in slot_of
        ]
        return self._marks(rows).mark_rule(strokeWidth=1.1, opacity=0.85).encode(self.alt.Y2("y2:Q"), self.colour)

    def _strip(self) -> list[Any]:
        rows = []
        for row in poll_spans(self._of(self.frames.slots)):
            lane = self._lane(row.pop("slot"))
            if row["x"] > self.end_s:  # somebody else's task goes on when ours are over
                continue
            rows.append(row | {"y": lane + STRIP_TOP, "y2": lane + STRIP_BOTTOM})
        fresh = self._rects([row for row in rows if row["fresh"]]).encode(self.colour)
        stale = self._rects([row for row in rows if not row["fresh"]], fill="white", strokeWidth=1)
        return [fresh, stale.encode(self.stroke)]

    def _last_token(self) -> Any:
        a = self.phases[(self.phases["label"] == self.early) & (self.phases["phase"] == "decode")]
        rows = [{"x": float(row.end_s), "y": 0.0, "y2": self.height} for row in a.itertuples()]
        return self._marks(rows).mark_rule(color=INK, strokeDash=[2, 3], strokeWidth=1.2).encode(self.alt.Y2("y2:Q"))

    # --- words ----------------------------------------------------------------------------------------

    def _text(self, rows: list[dict[str, Any]], **mark: Any) -> Any:
        return self.datasets.words(self.alt, rows, **mark)

    def _texts(self) -> list[Any]:
        stalled = set(self._of(self.frames.stalls)["label"])
        details, end_details = [], []
        for row in self.requests.itertuples():
            spans = self._ran(row.label)
            if spans is None:
                continue
            y = self._lane(spans["slot"].dropna().iloc[0]) + 0.17
            # a stalled stream has words of its stalls near its start, and is long: its details go to its end
            if row.label in stalled:
                end_details.append({"x": float(spans["end_s"].max()), "y": y, "text": self._detail(row)})
            else:
                details.append({"x": float(spans["start_s"].min()), "y": y, "text": self._detail(row)})
        details = [word for word in details if self.room.take(word, dx=18)]
        end_details = [word for word in end_details if self.room.take(word, dx=-6, align="right")]
        return [
            self._text(self.names, fontSize=15, fontWeight="bold", dx=1).encode(self.colour),
            self._text(details, color=QUIET_INK, dx=18, fontSize=11.5),
            self._text(end_details, color=QUIET_INK, dx=-6, fontSize=11.5, align="right"),
            *self._end_texts(),
        ]

    def _ran(self, label: str) -> pd.DataFrame | None:
        """Return a request's prefill and decode, None if it had neither on a slot."""
        mine = self.phases[(self.phases["label"] == label) & self.phases["phase"].isin(["prefill", "decode"])]
        return None if mine.empty or mine["slot"].isna().all() else mine

    def _names(self) -> list[dict[str, Any]]:
        names = []
        for label in self.requests["label"]:
            if (spans := self._ran(label)) is not None:
                y = self._lane(spans["slot"].dropna().iloc[0]) + 0.17
                names.append({"x": float(spans["start_s"].min()), "y": y, "text": label, "label": label})
        for name in names:
            self.room.take(name, size=15)  # names are drawn in any case
        return names

    def _end_texts(self) -> list[Any]:
        a = self.phases[(self.phases["label"] == self.early) & (self.phases["phase"] == "decode")]
        end_s = a["end_s"].max()
        ends = [{"x": float(end_s), "y": 0.17, "text": f"{self.early}'s last token"}] if known(end_s) else []
        beside = {"dx": -5, "align": "right"} if known(end_s) and end_s > 0.86 * self.end_s else {"dx": 5}
        return [self._text(ends, color=QUIET_INK, **beside)]

    def _detail(self, row: Any) -> str:
        prefill = f"prefill {seconds_text(row.prefill_s)}" if known(row.prefill_s) else ""
        bad = row.outcome if row.outcome not in ("completed", "slot_limit") else ""
        parts = [prefill, f"{row.tokens} tokens", bad]
        return " · ".join(part for part in parts if part)

    def _stalls(self) -> list[Any]:
        stalls = self._of(self.frames.stalls)
        brackets, words = [], []
        for _, group in stalls.groupby(["label", "cause"]):
            worst = group.loc[group["gap_s"].idxmax()]
            slots = self.phases[(self.phases["label"] == worst["label"]) & self.phases["slot"].notna()]["slot"]
            if slots.empty:
                continue
            y = self._lane(slots.iloc[0]) + 0.255
            many = f" (longest of {len(group)})" if len(group) > 1 else ""
            text = f"{worst['label']} stalls {seconds_text(worst['gap_s'])}{many}"
            word = self._beside(worst["start_s"], worst["end_s"]) | {"y": y - 0.085, "text": text}
            if self.room.take(word, align=word["align"]):
                words.append(word)
                brackets.append({"x": worst["start_s"], "x2": worst["end_s"], "y": y})
        rule = self._marks(brackets).mark_rule(color=INK, strokeWidth=2).encode(self.alt.X2("x2:Q"))
        return [rule, *(self._text([w for w in words if w["align"] == at], fontSize=11.5, align=at) for at in ALIGNS)]

    def _beside(self, start_s: float, end_s: float) -> dict[str, Any]:
        """Place words over a long bracket, else at the side of it that has room."""
        if end_s - start_s > 0.25 * self.end_s:
            return {"x": (start_s + end_s) / 2, "align": "center"}
        if end_s > 0.6 * self.end_s:
            return {"x": start_s, "align": "right"}
        return {"x": end_s + 0.003 * self.end_s, "align": "left"}

    def _arrivals(self) -> list[Any]:
        sent = [row for row in self.requests.itertuples() if row.label != self.early and known(row.sent_s)]
        marks = [{"x": row.sent_s, "y": 0.17, "label": row.label} for row in sent]
        words: list[dict[str, Any]] = []
        for row in sent:
            ttft_s = float(row.ttft_s) if known(row.ttft_s) else None
            words.append({"x": row.sent_s, "y": 0.15, "label": row.label, "ttft_s": ttft_s, "text": self._arrival(row)})
            self.room.take({"x": row.sent_s, "y": 0.15, "text": " "}, align="center")  # for its mark
        groups = _together(words, near_s=NEAR_PX / WIDTH * self.end_s)
        together = [word for group in groups if (word := self._arrival_words(group))]
        triangle = self._marks(marks).mark_point(shape="triangle-down", size=90, filled=True, opacity=1)
        return [triangle.encode(self.colour), self._text(together, dx=9)]

    def _wait_words(self) -> list[Any]:
        """Say how long requests wait, for a slot or on theirs, where there is room."""
        waits = [self._wait(span) for span in self.phases[self.phases["phase"] == "deferred"].itertuples()]
        held = [
            {
                "x": row["x"],
                "y": (row["y"] + row["y2"]) / 2,
                "text": f"{row['label']} owns the slot, waits {seconds_text(row['x2'] - row['x'])}",
            }
            for row in self._spans("waiting")
            if row["x2"] - row["x"] > 0.2 * self.end_s
        ]
        return [self._text(waits, dx=5, fontSize=10.5 if self.crowded else 12), self._text(held, dx=8)]

    def _wait(self, span: Any) -> dict[str, Any]:
        """Name one wait behind its end; inside it where there is no room behind, if its row is high enough."""
        row = {"x": float(span.end_s), "y": self._queue_row(span.label) + self.row / 2}
        time = seconds_text(span.end_s - span.start_s)
        long = span.end_s >= 0.8 * self.end_s
        if long and self.crowded:
            return row | {"text": f"{span.label} {time}"}
        row |= {"x": float(span.start_s) + 0.004 * self.end_s} if long else {}
        return row | {"text": f"{span.label} waits {time} for a slot"}

    def _arrival_words(self, group: list[dict[str, Any]]) -> dict[str, Any] | None:
        """Return the words behind a group's last mark; the names alone, or none, where the next one is too near."""
        words = (group[-1] | {"text": text} for text in (_group_text(group), _group_names(group)))
        return next((word for word in words if self.room.take(word, dx=9, size=12)), None)

    def _arrival(self, row: Any) -> str:
        if not known(row.ttft_s):
            return f"{row.label} sent"
        return f"{row.label} sent, first token after {seconds_text(row.ttft_s)}"


def _together(words: list[dict[str, Any]], *, near_s: float) -> list[list[dict[str, Any]]]:
    """Return the words of requests sent together as groups: a name would lie on the next one's mark."""
    groups: list[list[dict[str, Any]]] = []
    for row in sorted(words, key=lambda row: row["x"]):
        if groups and row["x"] - groups[-1][-1]["x"] < near_s:
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def _group_text(group: list[dict[str, Any]]) -> str:
    """Return the words of one group; of more than two requests there is room for the span alone."""
    ttfts = [row["ttft_s"] for row in group if row["ttft_s"] is not None]
    if len(group) < 3 or not ttfts:
        return "; ".join(row["text"] for row in group)
    span = " to ".join(dict.fromkeys((seconds_text(min(ttfts)), seconds_text(max(ttfts)))))
    return f"{_group_names(group)} sent, first tokens after {span}"


def _group_names(group: list[dict[str, Any]]) -> str:
    labels = [row["label"] for row in group]
    return ", ".join(labels) if len(labels) < 3 else f"{labels[0]} to {labels[-1]}"


def seconds_text(value: float) -> str:
    return f"{value * 1e3:.0f} ms" if value < 1 else f"{value:.2f} s"
