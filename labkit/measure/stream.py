"""One streamed answer: from bytes to events, from events to a record.

The only place that reads server-sent events. The parser is our own because llama-server's streams need
what a strict one drops: an `error:` line, a last event without its blank line, pings as signs of life.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from labkit.engine.untrusted import finite, mapping, switch, whole
from labkit.settings import RequestPlan

ERROR_BODY_LIMIT = 4000
OVERRUN_TOKENS = 8  # pieces above max_tokens at which the client hangs up
Clock = Callable[[], float]


class EventDecoder:
    """Bytes in, (field, value) out: "data", "error" or "ping"; accepts LF, CRLF and a missing last newline."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> Iterator[tuple[str, bytes]]:
        """Yield the events that `chunk` completes."""
        lines = (self._rest + chunk).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            yield from self._line(line.rstrip(b"\r"))

    def close(self) -> Iterator[tuple[str, bytes]]:
        """Yield what is left when the stream ends."""
        yield from self._line(self._rest.rstrip(b"\r"))
        yield from self._line(b"")

    def _line(self, line: bytes) -> Iterator[tuple[str, bytes]]:
        if line.startswith(b"data:"):
            self._data.append(line[5:].strip())
        elif line.startswith(b":"):
            yield "ping", b""
        elif line.startswith(b"error:"):
            yield "error", line[6:].strip()
        elif not line and self._data:
            yield "data", b"\n".join(self._data)
            self._data.clear()


# --- one request --------------------------------------------------------------------------------------


@dataclass
class RequestRecord:
    """All that is known of one request; times are seconds on the run's clock, None where it never came.

    Args:
        planned_s: when the plan wanted it sent.
        sent_s: when its first byte left; sent_s - planned_s is the wait for the client's own pool.
        headers_s: response headers; from b10156 on the server sends them when the prompt starts.
        first_event_s: first event of any kind (the chat endpoint's role chunk, say).
        first_token_s: first token, reasoning or answer: TTFT is first_token_s - sent_s.
        first_answer_s: first token of the answer, after any reasoning.
        last_token_s: last token; usage chunks and pings don't count.
        end_s: end of the stream.
        tokens: pieces of text streamed; `timings` has the server's own count.
        outcome: completed, slot_limit, does_not_fit, server_error, refused, disconnected, stalled,
            overrun (it streamed more than max_tokens), cancelled or not_sent.
        timings: the server's own (tools/server/server-task.cpp): prompt_n, prompt_ms, cache_n, ...
    """

    arm: str
    label: str
    seed: int
    max_tokens: int
    warm_up: bool = False
    id_slot_asked: int | None = None
    planned_s: float | None = None
    sent_s: float | None = None
    headers_s: float | None = None
    first_event_s: float | None = None
    first_token_s: float | None = None
    first_answer_s: float | None = None
    last_token_s: float | None = None
    end_s: float | None = None
    status: int | None = None
    outcome: str = "not_sent"
    error: str | None = None
    finish_reason: str | None = None
    truncated: bool | None = None
    id_slot: int | None = None
    tokens: int = 0
    pings: int = 0
    timings: dict[str, Any] | None = None
    prompt: str | None = None
    text: str | None = None

    def row(self) -> dict[str, Any]:
        """Return it as a line of requests.jsonl."""
        return asdict(self)


@dataclass
class Stream:
    """One streamed request in flight: feeds its record from events.

    Args:
        plan: the request.
        record: filled as events arrive.
        clock: seconds on the run's clock.
        on_token: called with (record, time, text) for each token as it arrives.
        on_event: called for each event, pings included: signs of life.
        keep_text: keep prompt and answer in the record.
    """

    plan: RequestPlan
    record: RequestRecord
    clock: Clock
    on_token: Callable[[RequestRecord, float, str], None]
    on_event: Callable[[], None] = lambda: None
    keep_text: bool = False
    finished: bool = False
    _texts: list[str] = field(default_factory=list)

    def event(self, kind: str, value: bytes, at_s: float) -> None:
        """Take in one event received at `at_s`."""
        self.on_event()
        if kind == "ping":
            self.record.pings += 1
            return
        if self.record.first_event_s is None:
            self.record.first_event_s = at_s
        if kind == "error":
            self._fail(value.decode("utf-8", "replace"))
        elif value == b"[DONE]":
            self.finished = True
        else:
            self._data(value, at_s)

    def _data(self, value: bytes, at_s: float) -> None:
        try:
            body = json.loads(value)
        except (ValueError, RecursionError):
            self._fail(f"an event that is not JSON: {value[:200]!r}")
            return
        try:
            self._body(body, at_s)
        except (TypeError, AttributeError, KeyError, IndexError, ValueError):
            self._fail(f"an event of an unknown shape: {value[:200]!r}")

    def _body(self, body: dict[str, Any], at_s: float) -> None:
        if "error" in body:
            self._fail(json.dumps(body["error"]))
            return
        choices = body.get("choices")
        if choices is None:
            self._native(body, at_s)
        elif choices:
            self._chat(choices[0], at_s)
        self._facts(body)

    def _chat(self, choice: dict[str, Any], at_s: float) -> None:
        delta = choice.get("delta") or {}
        answer, reasoning = delta.get("content"), delta.get("reasoning_content")
        if answer or reasoning:
            self._token(at_s, str(answer or reasoning), is_answer=bool(answer))
        if choice.get("finish_reason"):
            self.record.finish_reason = choice["finish_reason"]
            self.finished = True

    def _native(self, body: dict[str, Any], at_s: float) -> None:
        if body.get("content"):
            self._token(at_s, body["content"], is_answer=True)
        if body.get("stop"):
            self.record.finish_reason = {"limit": "length"}.get(body.get("stop_type", ""), "stop")
            self.finished = True
            self._details(body)

    def _facts(self, body: dict[str, Any]) -> None:
        if timings := mapping(body.get("timings")):
            # counts are whole, durations any number; anything else is no timing
            self.record.timings = {
                name: whole(value) if name.endswith("_n") else finite(value) for name, value in timings.items()
            }
        if "__verbose" in body:
            self._details(body["__verbose"])

    def _details(self, final: dict[str, Any]) -> None:
        # -1 while it isn't known (tools/server/server-context.cpp)
        if (id_slot := whole(final.get("id_slot"))) is not None:
            self.record.id_slot = id_slot
        if (truncated := switch(final.get("truncated"))) is not None:
            self.record.truncated = truncated

    def _token(self, at_s: float, text: str, *, is_answer: bool) -> None:
        record = self.record
        if record.first_token_s is None:
            record.first_token_s = at_s
        if is_answer and record.first_answer_s is None:
            record.first_answer_s = at_s
        record.last_token_s = at_s
        record.tokens += 1
        if record.tokens > self.plan.max_tokens + OVERRUN_TOKENS:
            self.record.outcome = "overrun"
            self.record.error = f"the server did not stop at max_tokens = {self.plan.max_tokens}: the client hung up"
        if self.keep_text:
            self._texts.append(text)
        self.on_token(record, at_s, text)

    def _fail(self, error: str) -> None:
        self.record.error = error[:ERROR_BODY_LIMIT]
        self.record.outcome = "server_error"

    def close(self) -> None:
        """Settle the outcome of a stream that ended."""
        if self.keep_text:
            self.record.prompt, self.record.text = self.plan.prompt, "".join(self._texts)
        if self.record.outcome in ("server_error", "overrun"):
            return
        if not self.finished:
            self.record.outcome = "disconnected"
            self.record.error = "the stream ended before the answer did"
        elif self.record.truncated and self.record.finish_reason == "length":
            self.record.outcome = "slot_limit"
        else:
            self.record.outcome = "completed"
