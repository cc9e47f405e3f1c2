"""One arm of notebook 02 reduced to what a verdict needs: its server by rule and as measured, its requests' fates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from labkit.analyze.kv import KvSize, predicted_context, predicted_kv
from labkit.analyze.rows import RunRows, outcome, timing
from labkit.settings.context import Context

Trouble = tuple[str, str]
SERVED, REFUSED, CUT, EXHAUSTED = "completed", "does_not_fit", "slot_limit", "pool exhausted"
EXCEEDED = "Context size has been exceeded"
BROKEN = ("disconnected", "stalled", "cancelled", "not_sent", "overrun")


@dataclass(frozen=True)
class Fate:
    """What became of one request, and what should have, by its length and its slot's cells.

    Args:
        prompt: its tokens, as the server counts them; answer: tokens asked for.
        expected: outcomes that the rule allows.
        outcome: what happened.
    """

    label: str
    prompt: int
    answer: int
    expected: frozenset[str]
    outcome: str

    @property
    def as_expected(self) -> bool:
        """Whether it went by the rule."""
        return self.outcome in self.expected

    @property
    def words(self) -> str:
        """What became of it, in a reader's words."""
        return {SERVED: "served", REFUSED: "refused", CUT: "cut at its slot's end"}.get(self.outcome, self.outcome)


class KvArm:
    """Reads one arm of the record.

    Args:
        data: the recorded run.
        name: the arm.
    """

    def __init__(self, data: RunRows, name: str) -> None:
        self.data, self.name = data, name
        self.facts: dict[str, Any] = data.run.get("arms", {}).get(name, {})
        self.server: dict[str, Any] = self.facts.get("server") or {}
        self.effective: dict[str, Any] = self.server.get("effective") or {}
        mine = [row for row in data.requests if row["arm"] == name]
        self.warm_up = [row for row in mine if row["warm_up"]]
        self.requests = [row for row in mine if not row["warm_up"]]

    @property
    def started(self) -> bool:
        """Whether its server was up."""
        return bool(self.effective)

    @property
    def loaded(self) -> bool:
        """Whether requests were sent to it."""
        return bool(self.requests)

    @property
    def by_rule(self) -> Context | None:
        """Cells that its server should have."""
        return predicted_context(self.server) if self.server else None

    @property
    def kv(self) -> KvSize:
        """KV memory that its server should have."""
        return predicted_kv(self.server) if self.server else KvSize(None, why="it was not started")

    @property
    def measured(self) -> Context | None:
        """Cells that its server has, in the rule's words; None: not all of it is known."""
        names = ("slots", "kv_unified", "pool_cells", "slot_cells")
        slots, unified, pool, cells = (self.effective.get(name) for name in names)
        if None in (slots, unified, pool, cells) or not slots:
            return None
        return Context(
            int(slots), bool(unified), int(pool or 0), int(pool or 0) // (1 if unified else slots), int(cells or 0)
        )

    # --- the load -------------------------------------------------------------------------------------

    @property
    def trouble(self) -> Trouble | None:
        """Why its load can't be judged and what to change, or None."""
        checks = (self._incomplete, self._cold, self._strangers, self._broken)
        return next((trouble for check in checks if (trouble := check())), None)

    def _incomplete(self) -> Trouble | None:
        planned = len((self.facts.get("planned") or {}).get("requests") or ())
        if not self.facts.get("server_alive", True):
            how = self.facts.get("server_exit") or "ended"
            return f"the server of {self.name} {how} in the middle of the run", f"its log, server-{self.name}.log"
        times = (self.facts.get("load_start_s"), self.facts.get("load_end_s"))
        if None in times or len(self.requests) < max(1, planned):
            return (
                f"the load of {self.name} did not run to its end",
                "run it again; the run folder says how far it came",
            )
        if self.measured is None or set(self.prompts) < {row["label"] for row in self.requests}:
            return f"the server of {self.name} does not say how many cells it has", "a newer build"
        return None

    def _cold(self) -> Trouble | None:
        failed = [row for row in self.warm_up if row["outcome"] not in (SERVED, CUT)]
        if not failed:
            return None
        return f"{len(failed)} warm-up requests of {self.name} failed ({failed[0]['outcome']})", "the server's log"

    def _strangers(self) -> Trouble | None:
        # a task that names no seed may be anybody's
        ours = {row["seed"] for row in self.requests}
        since_s, until_s = self.facts["load_start_s"], self.facts["load_end_s"]
        polls = [row for row in self.data.slots if row["arm"] == self.name and row["slots"] is not None]
        during = [poll for poll in polls if since_s <= poll["sent_s"] <= until_s]
        seeds = {slot["seed"] for poll in during for slot in poll["slots"] if slot["busy"]} - ours
        if seeds:
            return f"{len(seeds)} task(s) in /slots are not ours: another client uses this server", "a quiet server"
        if polls and self.facts.get("quiet_after_s") is None:
            return "the server was not idle before the load", "a quiet server"
        return None

    def _broken(self) -> Trouble | None:
        for row in self.requests:
            other = row["outcome"] == "server_error" and EXCEEDED not in str(row["error"])
            if other or row["outcome"] in (*BROKEN, "refused"):
                return f"{row['label']} of {self.name} ended as {row['outcome']}: {row['error']}", "the server's log"
        return None

    @property
    def prompts(self) -> dict[str, int]:
        """Prompt lengths in tokens by label, as the server counts them."""
        return self.facts.get("prompt_tokens") or {}

    @property
    def fates(self) -> list[Fate]:
        """What became of each request, in the order of the plan."""
        order = [request["label"] for request in (self.facts.get("planned") or {}).get("requests") or ()]
        rows = sorted(self.requests, key=lambda row: order.index(row["label"]) if row["label"] in order else 0)
        return [self._fate(row) for row in rows]

    def _fate(self, row: dict[str, Any]) -> Fate:
        prompt, answer, cells = int(self.prompts.get(row["label"], 0)), int(row["max_tokens"]), self._slot_cells
        # an answer that ended by itself wanted no more cells than it had
        wanted = min(answer, decoded(row)) if row["finish_reason"] == "stop" else answer
        return Fate(
            label=row["label"],
            prompt=prompt,
            answer=answer,
            expected=expected_outcomes(prompt, wanted, cells) | ({EXHAUSTED} if self.may_overflow else frozenset()),
            outcome=outcome_of(row),
        )

    @property
    def _slot_cells(self) -> int:
        return int(self.effective.get("slot_cells") or 0)

    @property
    def worst_sum(self) -> int:
        """Cells that the largest requests would need, were they to run at once; those that don't fit are left out."""
        needs = [
            self.prompts.get(row["label"], 0) + row["max_tokens"]
            for row in self.requests
            if self.prompts.get(row["label"], 0) < self._slot_cells
        ]
        return sum(sorted(min(need, self._slot_cells) for need in needs)[-int(self.effective.get("slots") or 1) :])

    @property
    def may_overflow(self) -> bool:
        """Whether the requests can need more cells together than the pool has."""
        return bool(self.effective.get("kv_unified")) and self.worst_sum > int(self.effective.get("pool_cells") or 0)

    def cells_of(self, label: str) -> int | None:
        """Return the cells that a served request held at its end, by the server's own timings."""
        for row in self.requests:
            counts = [timing(row, name) for name in ("cache_n", "prompt_n", "predicted_n")]
            if row["label"] == label and counts[1] is not None and counts[2] is not None:
                return int((counts[0] or 0) + counts[1] + counts[2]) - 1
        return None


def decoded(row: dict[str, Any]) -> int:
    """Return the tokens a request decoded: the server's own count, else the pieces streamed."""
    count = timing(row, "predicted_n")
    return int(row["tokens"] if count is None else count)


def outcome_of(row: dict[str, Any]) -> str:
    """Return how a request ended, in this notebook's terms.

    Args:
        row: of requests.jsonl.
    """
    exhausted = row["outcome"] == "server_error" and EXCEEDED in str(row["error"])
    return EXHAUSTED if exhausted else outcome(row)


def expected_outcomes(prompt: int, answer: int, slot_cells: int) -> frozenset[str]:
    """Return the outcomes that the rule allows for a request on a slot of so many cells.

    A prompt needs a cell less than the slot has, an answer ends when both reach the slot's cells
    (tools/server/server-context.cpp).

    Args:
        prompt: tokens of its prompt.
        answer: tokens it may decode, and does, since its end-of-text is ignored.
        slot_cells: KV cells that one slot may use.
    """
    if prompt >= slot_cells:
        return frozenset({REFUSED})
    if abs(prompt + answer - slot_cells) <= 1:  # ends by both limits at once
        return frozenset({SERVED, CUT})
    return frozenset({SERVED if prompt + answer < slot_cells else CUT})
