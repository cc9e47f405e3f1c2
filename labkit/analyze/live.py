"""A run while it happens: rows in as they come, out what a moving picture needs.

Recorded runs are read by frames; this looks at the same rows one by one, without waiting for the end. It decides
nothing: verdicts are judged from the record.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from labkit.analyze.freshness import Freshness
from labkit.analyze.palette import colour

KEPT_S = 60.0  # of lanes, for a page that is loaded in mid-run
KEPT_MARKS = 4000
TEXT_LIMIT = 4000  # characters of an answer that a page gets when it is loaded
HELD, PREFILL, DECODE = "held", "prefill", "decode"
ENDED_WELL = ("completed", "slot_limit")


@dataclass
class LiveRequest:
    """One request as far as it has come.

    Args:
        label: its name; seed: by which /slots names it.
        sent_s: when it was sent, on the run's clock.
        prompt: prompt tokens; None: not counted.
        slot: on which it was seen; None: on none yet.
        tokens: received so far; first_s: when the first one came.
        outcome: how it ended; empty while it runs.
    """

    label: str
    seed: int
    sent_s: float
    max_tokens: int
    prompt: int | None = None
    slot: int | None = None
    tokens: int = 0
    first_s: float | None = None
    end_s: float | None = None
    outcome: str = ""
    error: str = ""
    text: str = ""

    @property
    def cells(self) -> int:
        """KV cells that it holds: its prompt and what it got, while it runs and owns a slot."""
        return 0 if self.outcome or self.slot is None else (self.prompt or 0) + self.tokens

    def state(self) -> str:
        """Return what it does, in a word."""
        if self.outcome:
            return "done" if self.outcome in ENDED_WELL else "failed"
        if self.tokens:
            return DECODE
        return "deferred" if self.slot is None else HELD


@dataclass
class _Span:
    slot: int
    label: str
    kind: str
    start_s: float
    end_s: float | None = None

    def row(self) -> list[Any]:
        return [self.slot, self.label, self.kind, round(self.start_s, 3), self.end_s and round(self.end_s, 3)]


@dataclass
class Live:
    """What a run's watchers have seen so far of the arm that is running.

    Args:
        slots: of the server; pool_cells, slot_cells and kv_unified: its KV cache. None: not known.
        title: what the arm is called.
    """

    title: str = ""
    slots: int = 0
    pool_cells: int | None = None
    slot_cells: int | None = None
    kv_unified: bool | None = None
    requests: dict[str, LiveRequest] = field(default_factory=dict)
    deferred: int | None = None
    _arm: str = ""
    _prompts: dict[str, int] = field(default_factory=dict)
    _now_s: float = 0.0
    _open: dict[int, _Span] = field(default_factory=dict)
    _closed: deque[_Span] = field(default_factory=lambda: deque(maxlen=KEPT_MARKS))
    _marks: deque[tuple[str, float]] = field(default_factory=lambda: deque(maxlen=KEPT_MARKS))
    _new_spans: list[_Span] = field(default_factory=list)
    _new_marks: list[tuple[str, float]] = field(default_factory=list)
    _new_text: dict[str, str] = field(default_factory=dict)
    _fresh: Freshness = field(default_factory=Freshness)
    _changed: bool = False

    def take(self, stream: str, row: dict[str, Any]) -> None:
        """Take in one row of a run, as Run hands it to its listeners.

        Args:
            stream: "arm", "sent", "text", or the name of a file of the run folder.
            row: the row.
        """
        taker = getattr(self, f"_take_{stream}", None)
        if taker and not row.get("warm_up"):
            taker(row)

    # --- rows ---------------------------------------------------------------------------------------

    def _take_arm(self, row: dict[str, Any]) -> None:
        if row["arm"] != self._arm:
            self._arm = row["arm"]
            self._begin()
        batching = ((row.get("server") or {}).get("asked") or {}).get("cont_batching")
        if batching is not None and self.title == self._arm:
            self.title = f"continuous batching {'on' if batching else 'off'}"
        self.title = row.get("title") or self.title
        for label, tokens in (row.get("prompt_tokens") or {}).items():
            self._prompts[label] = tokens
            if label in self.requests:
                self.requests[label].prompt = tokens
        effective = (row.get("server") or {}).get("effective")
        if effective:
            self.slots = effective.get("slots") or 0
            self.pool_cells, self.slot_cells = effective.get("pool_cells"), effective.get("slot_cells")
            self.kv_unified = effective.get("kv_unified")

    def _begin(self) -> None:
        self.title, self.requests, self._prompts, self.deferred = self._arm, {}, {}, None
        self._open, self._fresh = {}, Freshness()
        for kept in (self._closed, self._marks, self._new_spans, self._new_marks, self._new_text):
            kept.clear()
        self._changed = True

    def _take_sent(self, row: dict[str, Any]) -> None:
        label = row["label"]
        self.requests[label] = LiveRequest(
            label, row["seed"], row["at_s"], row["max_tokens"], prompt=self._prompts.get(label)
        )
        self._now_s = max(self._now_s, row["at_s"])

    def _take_text(self, row: dict[str, Any]) -> None:
        request = self.requests.get(row["label"])
        if request:
            request.text = (request.text + row["text"])[-TEXT_LIMIT:]
            self._new_text[request.label] = self._new_text.get(request.label, "") + row["text"]

    def _take_tokens(self, row: dict[str, Any]) -> None:
        request = self.requests.get(row["label"])
        if request is None:
            return
        request.tokens, at_s = request.tokens + 1, row["at_s"]
        self._marks.append((request.label, at_s))
        self._new_marks.append((request.label, at_s))
        self._now_s = max(self._now_s, at_s)
        if request.first_s is None:
            request.first_s = at_s
            if request.slot is not None:
                self._show(request.slot, request.label, DECODE, at_s)

    def _take_requests(self, row: dict[str, Any]) -> None:
        request = self.requests.get(row["label"])
        if request is None:
            return
        request.outcome, request.error = row["outcome"], row["error"] or ""
        request.end_s = row["end_s"] if row["end_s"] is not None else self._now_s
        if request.slot is None:
            request.slot = row["id_slot"]
        span = self._open.get(-1 if request.slot is None else request.slot)
        if span and span.label == request.label:
            self._close(span, request.end_s)

    def _take_slots(self, row: dict[str, Any]) -> None:
        at_s = row["received_s"] if row["received_s"] is not None else row["sent_s"]
        self._now_s = max(self._now_s, at_s)
        if row["slots"] is None:
            return
        self.slots = max(self.slots, len(row["slots"]))
        fresh = self._fresh.progressed(row["slots"])
        ours = {request.seed: request for request in self.requests.values()}
        for slot in row["slots"]:
            self._look(slot, ours.get(slot["seed"]), at_s, fresh=slot["seed"] in fresh)

    def _look(self, slot: dict[str, Any], request: LiveRequest | None, at_s: float, *, fresh: bool) -> None:
        """Take in what a poll says of one slot."""
        number = slot["id"]
        if not slot["busy"]:
            if number in self._open:
                self._close(self._open[number], at_s)
        elif request is None:
            self._show(number, "", DECODE if fresh else HELD, at_s)  # somebody else's task
        elif not request.outcome:
            request.slot = number
            # tokens may come before the first poll that shows the slot
            since_s = at_s if request.first_s is None else min(at_s, request.first_s)
            self._show(number, request.label, DECODE if request.tokens else PREFILL if fresh else HELD, since_s)

    def _take_metrics(self, row: dict[str, Any]) -> None:
        value = (row.get("values") or {}).get("requests_deferred")
        self.deferred = int(value) if isinstance(value, int | float) else self.deferred

    # --- spans --------------------------------------------------------------------------------------

    def _show(self, slot: int, label: str, kind: str, at_s: float) -> None:
        span = self._open.get(slot)
        if span and (span.label, span.kind) == (label, kind):
            return
        if span and span.label == label and span.kind == DECODE:
            return  # a poll that was sent before the first token came
        if span:
            self._close(span, at_s)
        self._open[slot] = _Span(slot, label, kind, at_s)

    def _close(self, span: _Span, at_s: float) -> None:
        span.end_s = max(at_s, span.start_s)
        self._open.pop(span.slot, None)
        self._closed.append(span)
        self._new_spans.append(span)

    # --- out ----------------------------------------------------------------------------------------

    def frame(self, now_s: float | None = None) -> dict[str, Any]:
        """Return what is new since the last frame, and all that is small.

        Args:
            now_s: the run's clock; None: the time of the last row.
        """
        if self._changed:
            self._changed = False
            return self.everything(now_s)
        frame = self._small(now_s) | {
            "spans": [span.row() for span in self._new_spans],
            "marks": _by_label(self._new_marks),
            "text": dict(self._new_text),
        }
        for kept in (self._new_spans, self._new_marks, self._new_text):
            kept.clear()
        return frame

    def everything(self, now_s: float | None = None) -> dict[str, Any]:
        """Return the whole picture, for a page that has nothing of it yet."""
        since_s = (self._now_s if now_s is None else now_s) - KEPT_S
        frame = self._small(now_s) | {
            "all": True,
            "spans": [span.row() for span in self._closed if (span.end_s or 0) >= since_s],
            "marks": _by_label([mark for mark in self._marks if mark[1] >= since_s]),
            "text": {label: request.text for label, request in self.requests.items()},
        }
        for kept in (self._new_spans, self._new_marks, self._new_text):
            kept.clear()
        return frame

    def _small(self, now_s: float | None) -> dict[str, Any]:
        return {
            "t": round(self._now_s if now_s is None else now_s, 3),
            "title": self.title,
            "slots": self.slots,
            "open": [span.row() for span in self._open.values()],
            "requests": [_request_row(self.requests[label]) for label in sorted(self.requests, key=_by_name)],
            "deferred": self.deferred,
            "kv": {"unified": self.kv_unified, "pool": self.pool_cells, "slot": self.slot_cells},
        }


def _by_name(label: str) -> tuple[int, str]:
    return len(label), label


def _request_row(request: LiveRequest) -> dict[str, Any]:
    return {
        "label": request.label,
        "colour": colour(request.label),
        "state": request.state(),
        "slot": request.slot,
        "sent": round(request.sent_s, 3),
        "first": request.first_s and round(request.first_s, 3),
        "end": request.end_s and round(request.end_s, 3),
        "tokens": request.tokens,
        "max_tokens": request.max_tokens,
        "cells": request.cells,
        "outcome": request.outcome,
        "error": request.error[:300],
    }


def _by_label(marks: list[tuple[str, float]]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for label, at_s in marks:
        found.setdefault(label, []).append(round(at_s, 3))
    return found
