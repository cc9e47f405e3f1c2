"""KV cells that running requests hold, counted from their streams and from /slots.

A request holds its prompt and the tokens decoded so far, less one: a token is written when the next one
is made. A step wants one cell more for each request that decodes (tools/server/server-context.cpp).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from labkit.analyze.rows import ArmRows, RunRows, outcome, timing

EXHAUSTED_TEXT = "Context size has been exceeded"
ANSWERED, SLOT_LIMIT, TOO_LONG, EXHAUSTED = "completed", "slot_limit", "does_not_fit", "pool_exhausted"
ENDS = {
    ANSWERED: "answered",
    SLOT_LIMIT: "stopped at the slot's limit",
    TOO_LONG: "refused, longer than a slot",
    EXHAUSTED: "shared KV pool exhausted",
}
# Errors of one failed step reach their clients within this; a request that goes on after it was spared.
TOGETHER_S = 0.25
SPARED_TOKENS = 3


def ending(request: dict[str, Any]) -> str:
    """Return how a request ended: one of ENDS, or the recorded outcome of any other end."""
    if request["outcome"] == "server_error" and EXHAUSTED_TEXT in (request["error"] or ""):
        return EXHAUSTED
    return outcome(request)


def ending_text(request: dict[str, Any]) -> str:
    """Return how a request ended, in words; the error of an end that is none of ENDS."""
    end = ending(request)
    if end == EXHAUSTED:
        where = "inside a 200 stream" if request["status"] == 200 else f"status {request['status']}"
        return f"{ENDS[end]} ({where})"
    return ENDS.get(end, f"{end}: {request['error']}")


@dataclass(frozen=True)
class Moment:
    """One step for which the pool had no cells left.

    Args:
        at_s: the first error came (run's clock).
        victims: requests that it ended.
        spared: requests that decoded beside its victims before it and went on after it.
        beside: requests that went on after it and may have run before it: a late reader can't tell.
        held: cells by request that had been running.
        wanted: cells that the failing step needed in all.
    """

    at_s: float
    victims: tuple[str, ...]
    spared: tuple[str, ...]
    beside: tuple[str, ...]
    held: dict[str, int]
    wanted: int

    @property
    def total(self) -> int:
        """Cells held by all of them."""
        return sum(self.held.values())


class ArmCells:
    """One arm of notebook 05 in cells.

    Args:
        data: the recorded run.
        name: the arm.
    """

    def __init__(self, data: RunRows, name: str) -> None:
        self.name, self.rows = name, ArmRows(data, name)
        facts = self.rows.facts
        self.title = str(facts.get("title") or name)
        self.skipped: str | None = facts.get("skipped")
        self.prompts: dict[str, int] = facts.get("prompt_tokens") or {}
        self.pool: int | None = self.rows.effective.get("pool_cells")
        self.slot_cells: int | None = self.rows.effective.get("slot_cells")
        self.slots: int = self.rows.effective.get("slots") or 1
        self.unified: bool | None = self.rows.effective.get("kv_unified")
        self.ends = {label: ending(request) for label, request in self.rows.requests.items()}

    @property
    def ran(self) -> bool:
        """Whether it put a load on a server."""
        return bool(self.rows.requests)

    def wants(self, label: str) -> int:
        """Cells that a request wants at its full length."""
        return self.prompts[label] + int(self.rows.requests[label]["max_tokens"])

    @property
    def worst(self) -> int:
        """Cells that its requests want if as many as there are slots have their full length at once."""
        return sum(sorted(map(self.wants, self.rows.requests))[-self.slots :])

    def decoded(self, label: str, at_s: float) -> int:
        """Tokens that a request has decoded by then: as streamed, or as /slots said if that is more.

        A stream may bring fewer pieces than tokens: a token without text of its own is held back.
        """
        streamed = bisect_right(self.rows.times[label], at_s)
        if not streamed:
            return 0
        return max(streamed, self._polled(label, self.rows.times[label][0], at_s, "n_decoded"))

    def held(self, label: str, at_s: float) -> int:
        """Cells that a request holds at a moment; 0 before its prompt and after its end."""
        request = self.rows.requests[label]
        if request["sent_s"] is None or at_s < request["sent_s"] or at_s > self.over_s(label):
            return 0
        if decoded := self.decoded(label, at_s):
            return self.prompts[label] + decoded - 1
        return self._polled(label, request["sent_s"], at_s, "n_cells")

    def over_s(self, label: str) -> float:
        """When a request let go of its cells: its last token, or the error that ended it."""
        request = self.rows.requests[label]
        failed = self.ends[label] == EXHAUSTED or request["last_token_s"] is None
        return float(request["end_s"] if failed and request["end_s"] is not None else request["last_token_s"] or 0.0)

    def _polled(self, label: str, since_s: float, at_s: float, counter: str) -> int:
        """Return a request's last fresh count in /slots between two moments; 0 where there is none.

        While a prompt is read its slot counts it already, and still shows the tokens of the task before.
        """
        found = 0
        for sent_s, received_s, values in self._polls.get(label, ()):
            if received_s > at_s:
                break
            if sent_s >= since_s:
                found = values[counter] or found
        return int(found)

    @cached_property
    def _polls(self) -> dict[str, list[tuple[float, float, dict[str, Any]]]]:
        return dict(self._read_polls())

    def _read_polls(self) -> Iterator[tuple[str, list[tuple[float, float, dict[str, Any]]]]]:
        """Yield, for each request, the polls that show fresh progress of its task."""
        for label, request in self.rows.requests.items():
            yield (
                label,
                [
                    (poll["sent_s"], poll["received_s"], slot)
                    for poll, fresh in zip(self.rows.polls, self.rows.fresh, strict=True)
                    for slot in poll["slots"]
                    if slot["busy"] and slot["seed"] == request["seed"] and request["seed"] in fresh
                ],
            )

    @property
    def slots_speak(self) -> bool:
        """Whether /slots counted cells of these requests; builds before b10068 do not."""
        return any(slot["n_cells"] is not None for polls in self._polls.values() for *_, slot in polls)

    def peak(self) -> tuple[int, dict[str, int], float]:
        """Return the largest sum of live cells, its parts, and when it was."""
        best: tuple[int, dict[str, int], float] = (0, {}, 0.0)
        for at_s in sorted({time for times in self.rows.times.values() for time in times}):
            held = {label: self.held(label, at_s) for label in self.rows.requests}
            if sum(held.values()) > best[0]:
                best = (sum(held.values()), held, at_s)
        return best

    def moments(self) -> list[Moment]:
        """Return when the pool ran out, in order."""
        victims = sorted(
            (self.over_s(label), label)
            for label, request in self.rows.requests.items()
            if self.ends[label] == EXHAUSTED
        )
        groups: list[tuple[float, list[str]]] = []
        for end_s, label in victims:
            if groups and self._ended_at(label, end_s, groups[-1][0]):
                groups[-1][1].append(label)
            else:
                groups.append((end_s, [label]))
        return [self._moment(at_s, labels) for at_s, labels in groups]

    def _ended_at(self, label: str, end_s: float, at_s: float) -> bool:
        """Whether a victim's error is that of a moment before, read late: it got no token since.

        A request that decodes gets a token in every step, so one without any since then had ended; one that
        was still being read may have ended later, and only the time tells.
        """
        decoding = bisect_right(self.rows.times[label], at_s) > 0
        return (decoding or end_s - at_s <= TOGETHER_S) and not self._tokens_after(label, at_s)

    def _tokens_after(self, label: str, at_s: float) -> int:
        times = self.rows.times[label]
        return len(times) - bisect_right(times, at_s)

    def _moment(self, at_s: float, victims: list[str]) -> Moment:
        others = [label for label in self.rows.requests if label not in victims and self.held(label, at_s)]
        went_on = [label for label in others if self._tokens_after(label, at_s) >= SPARED_TOKENS]
        spared = tuple(label for label in went_on if self._side_by_side(label, victims))
        owners = [label for label in self.rows.requests if self._owned_before(label, victims)]
        beside = tuple(dict.fromkeys(label for label in [*went_on, *owners] if label not in spared))
        held = {label: self.held(label, self.over_s(label)) for label in victims}
        held |= {label: self.held(label, at_s) for label in spared}
        # a request that decodes wants one cell more; one that was still being read wants its whole prompt
        wanted = sum(cells + 1 if self.rows.times[label] else self.prompts[label] for label, cells in held.items())
        return Moment(at_s, tuple(sorted(victims)), spared, beside, dict(sorted(held.items())), wanted)

    def _side_by_side(self, label: str, victims: list[str]) -> bool:
        """Whether a request decoded while a victim still did, read by read: not just before its error was read."""
        first_s = min(self.rows.times[label], default=math.inf)
        reads = [len({at_s for at_s in self.rows.times[victim] if at_s >= first_s}) for victim in victims]
        return max(reads) >= SPARED_TOKENS

    def _owned_before(self, label: str, victims: list[str]) -> bool:
        """Whether a request owned a slot, by /slots, while all victims still decoded, and got its first token later."""
        lasts = [self.rows.times[victim][-1] for victim in victims if self.rows.times[victim]]
        times, request = self.rows.times[label], self.rows.requests[label]
        if label in victims or not lasts or not times or times[0] <= max(lasts):
            return False
        polls = (poll for poll in self.rows.polls if poll["received_s"] <= min(lasts))
        since = [poll for poll in polls if (request["sent_s"] or 0.0) <= poll["sent_s"]]
        return any(slot["busy"] and slot["seed"] == request["seed"] for poll in since for slot in poll["slots"])

    def cut_short(self) -> list[str]:
        """Return the answered requests that ended by themselves before their full length."""
        answered = [label for label, end in self.ends.items() if end == ANSWERED]
        return [label for label in answered if self._made(label) < self.rows.requests[label]["max_tokens"]]

    def _made(self, label: str) -> float:
        request = self.rows.requests[label]
        made = timing(request, "predicted_n")
        return request["tokens"] if made is None else made

    def reached(self, label: str) -> int | None:
        """Cells that an answer had filled when it ended, by the server's own counts; None where it gives none."""
        request = self.rows.requests[label]
        counts = [timing(request, name) for name in ("prompt_n", "cache_n", "predicted_n")]
        if counts[0] is None or counts[2] is None:
            return None
        return int(counts[0] + (counts[1] or 0.0) + counts[2])


@dataclass(frozen=True)
class Lockstep:
    """What the lengths alone predict if all requests start at once and advance a token a step.

    Args:
        victims: requests that the pool's end would end.
        peak: largest sum of live cells.
    """

    victims: tuple[str, ...]
    peak: int


def lockstep(prompts: dict[str, int], answers: dict[str, int], slots: int, pool: int) -> Lockstep:
    """Work out who would run when the pool runs out.

    Args:
        prompts: tokens by request, in the order sent.
        answers: tokens to decode by request.
        slots: requests that run at once.
        pool: cells in all.
    """
    waiting, running, victims, peak = list(prompts), dict[str, int](), list[str](), 0
    while waiting or running:
        while waiting and len(running) < slots:
            running[waiting.pop(0)] = 1  # the prompt's own step makes the first token
        cells = sum(prompts[label] + decoded - 1 for label, decoded in running.items())
        if cells > pool:
            victims += running
            running.clear()
            continue
        peak = max(peak, cells)
        running = {label: decoded + 1 for label, decoded in running.items() if decoded < answers[label]}
    return Lockstep(tuple(sorted(victims)), peak)
