"""What one load of a slot escalation shows: how it ended, how many ran at once, who waited without a slot.

Three witnesses: the client (what it had in flight), /slots (which requests own a slot) and /metrics (how
many wait without one). Each is counted apart; the verdict compares them.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from labkit.analyze.rows import ArmRows, RunRows, timing

DONE = ("completed", "slot_limit")
# the server itself said no; any other bad ending may have its cause elsewhere
SERVER_SAID_NO = ("server_error", "refused", "does_not_fit")
# so many polls, or scrapes, must have had the chance to see something before its absence counts
MIN_POLLS, MIN_SCRAPES = 3, 2
# of the mean time between two arrivals: a request sent later than that was not sent when planned
LATE_SHARE = 0.25

Trouble = tuple[str, str]


@dataclass(frozen=True)
class Step:
    """Which measurement an arm is.

    Args:
        slots: slots of its server, as asked; None for a server that isn't ours and doesn't tell.
        requests: requests of its load.
        repeat: number of the measurement, from 1.
        kind: step, again (the A/A arm) or wrong_way.
        command: the command line that starts such a server elsewhere.
    """

    slots: int | None
    requests: int
    repeat: int
    kind: str
    command: str = ""


def step_of(run: dict[str, Any], arm: str) -> Step | None:
    """Return which measurement an arm is, None for an arm of another experiment."""
    found = run["arms"].get(arm, {}).get("step")
    return Step(**found) if found else None


class LoadView:
    """Reads one arm.

    Args:
        data: the recorded run.
        arm: an arm with a step.
        rows: the arm's rows, where they have been read already.
    """

    def __init__(self, data: RunRows, arm: str, rows: ArmRows | None = None) -> None:
        step = step_of(data.run, arm)
        assert step is not None
        self.arm, self.step = arm, step
        self.rows = rows or ArmRows(data, arm)
        self.requests = list(self.rows.requests.values())
        self._params: dict[str, Any] = data.run.get("parameters") or {}
        metrics = [row for row in data.metrics if row["arm"] == arm and row["values"] is not None]
        self._scrapes = [row for row in metrics if row["received_s"] is not None]
        planned = self.rows.facts.get("planned") or {}
        self.pool: int | None = planned.get("max_connections")
        self._at_s = {row["label"]: row.get("at_s") for row in planned.get("requests") or []}

    @property
    def told_slots(self) -> int | None:
        """Slots that the server has, as far as it tells; None: it doesn't."""
        shown = len(self.rows.polls[0]["slots"]) if self.rows.polls else None
        return self.rows.effective.get("slots") or shown

    @property
    def slots(self) -> int:
        """The same, for arms whose server tells (every one of our own does)."""
        return int(self.told_slots or self.step.slots or 1)

    @property
    def open_loop(self) -> bool:
        """Whether requests arrive by chance and not all at once."""
        return any(at_s is not None for at_s in self._at_s.values())

    # --- how it ended -----------------------------------------------------------------------------------

    @cached_property
    def trouble(self) -> Trouble | None:
        """Why nothing can be said of this arm and what to change, or None."""
        checks = (self._incomplete, self._cold, self._strangers, self._unquiet)
        return next((trouble for check in checks if (trouble := check())), None)

    def _incomplete(self) -> Trouble | None:
        facts = self.rows.facts
        times = (facts.get("load_start_s"), facts.get("load_end_s"))
        if None in times or len(self.requests) < self.step.requests:
            return "the load did not run to its end", "run it again; the run folder says how far it came"
        if not facts.get("server_alive", True):
            how = facts.get("server_exit") or "ended"
            return f"the server {how} in the middle of the load", "run it again; the server's log says more"
        return None

    def _cold(self) -> Trouble | None:
        failed = [row for row in self.rows.warm_up if row["outcome"] not in DONE]
        if failed:
            what = f"{len(failed)} of {len(self.rows.warm_up)} warm-up requests failed ({failed[0]['outcome']})"
            return what, "the server's log says more"
        return None

    def _strangers(self) -> Trouble | None:
        # a task that names no seed may be anybody's
        seeds = {s["seed"] for p in self.polls for s in p["slots"] if s["busy"]} - {r["seed"] for r in self.requests}
        if seeds:
            return f"{len(seeds)} task(s) in /slots are not ours: another client uses this server", "a quiet server"
        if len({len(poll["slots"]) for poll in self.rows.polls}) > 1:
            return "the number of slots in /slots changes: several servers answer it", "the address of one server"
        return None

    def _unquiet(self) -> Trouble | None:
        if self.rows.polls and self.rows.facts.get("quiet_after_s") is None:
            return "the server was not idle before the load", "a quiet server"
        return None

    @cached_property
    def undone(self) -> list[dict[str, Any]]:
        """The requests that were not answered to their end."""
        return [row for row in self.requests if row["outcome"] not in DONE or row["status"] != 200]

    @cached_property
    def polls(self) -> list[dict[str, Any]]:
        """The readable polls during the load."""
        since_s, until_s = self.rows.facts.get("load_start_s"), self.rows.facts.get("load_end_s")
        if since_s is None or until_s is None:
            return []
        return [poll for poll in self.rows.polls if since_s <= poll["sent_s"] <= until_s]

    @cached_property
    def shortest_polls(self) -> int:
        """In how many polls the shortest answer could be seen: sent and answered while it was streamed."""
        spans = [(row["first_token_s"], row["last_token_s"]) for row in self.requests if row["outcome"] in DONE]
        counts = [
            sum(poll["sent_s"] >= first_s and poll["received_s"] <= last_s for poll in self.polls)
            for first_s, last_s in spans
            if first_s is not None and last_s is not None
        ]
        return min(counts, default=0)

    @property
    def brief(self) -> bool:
        """Whether the shortest answer, from sending to its end, was over within two polls."""
        spans = [row["end_s"] - row["sent_s"] for row in self.requests if None not in (row["sent_s"], row["end_s"])]
        return min(spans, default=0.0) < 2 / float(self._params.get("poll_hz") or 20.0)

    # --- what the client had in flight ------------------------------------------------------------------

    @cached_property
    def _spans(self) -> list[tuple[float, float]]:
        return [
            (row["sent_s"], row["end_s"])
            for row in self.requests
            if row["sent_s"] is not None and row["end_s"] is not None
        ]

    @cached_property
    def in_flight(self) -> int:
        """Requests in flight at once, at most: sent and not yet over, for the client."""
        edges = sorted([(start, 1) for start, _ in self._spans] + [(end, -1) for _, end in self._spans])
        running = most = 0
        for _, step in edges:
            running += step
            most = max(most, running)
        return most

    def surely_in_flight(self, row: dict[str, Any]) -> int:
        """Return how many requests were in flight all the while a poll or scrape was under way."""
        return sum(start <= row["sent_s"] and row["received_s"] <= end for start, end in self._spans)

    def perhaps_in_flight(self, row: dict[str, Any]) -> int:
        """Return how many requests were in flight at some time while a poll or scrape was under way."""
        return sum(start <= row["received_s"] and row["sent_s"] <= end for start, end in self._spans)

    @property
    def client_wait_s(self) -> float:
        """The longest wait for the client's own pool."""
        waits = [
            row["sent_s"] - row["planned_s"] for row in self.requests if None not in (row["sent_s"], row["planned_s"])
        ]
        return max(waits, default=0.0)

    @cached_property
    def held_back(self) -> int:
        """Requests that the client sent only when another answer was over, though they were due before."""
        return sum(
            any(row["planned_s"] < end_s <= row["sent_s"] for _, end_s in self._spans)
            for row in self.requests
            if None not in (row["sent_s"], row["planned_s"])
        )

    @property
    def late_s(self) -> float:
        """Open loop: how long after its time, counted from the first one's, a request was sent at the latest."""
        due = [(self._at_s.get(row["label"]), row["sent_s"]) for row in self.requests]
        known: list[tuple[float, float]] = [
            (at_s, sent_s) for at_s, sent_s in due if at_s is not None and sent_s is not None
        ]
        if not known:
            return 0.0
        start_s = min(sent_s - at_s for at_s, sent_s in known)
        return max(sent_s - at_s - start_s for at_s, sent_s in known)

    @property
    def late_limit_s(self) -> float:
        """Open loop: the lateness from which a load is not what was planned."""
        return LATE_SHARE / float(self._params.get("arrival_rate") or 1.0)

    # --- what the server says ---------------------------------------------------------------------------

    @cached_property
    def peak_busy(self) -> int | None:
        """Slots busy with our requests at once, at most; None where /slots doesn't tell."""
        return max((self._ours(poll) for poll in self.polls), default=None)

    def _ours(self, poll: dict[str, Any]) -> int:
        return len({slot["seed"] for slot in poll["slots"] if slot["busy"]})

    @cached_property
    def expected_busy(self) -> int:
        """Slots that should be busy at once: as many as requests or slots; open loop: as the client had in flight."""
        if not self.open_loop:
            return min(self.step.requests, self.slots)
        levels = sorted((min(self._wanting(poll), self.slots) for poll in self.polls), reverse=True)
        return levels[MIN_POLLS - 1] if len(levels) >= MIN_POLLS else 0

    @cached_property
    def chance_polls(self) -> int:
        """Polls during which so many requests were in flight that the expected number of slots had to be busy."""
        count = self._wanting if self.open_loop else self.surely_in_flight
        return sum(min(count(poll), self.slots) >= self.expected_busy for poll in self.polls)

    def _wanting(self, poll: dict[str, Any]) -> int:
        """Return how many requests were in flight all the while, and had been for more than a step.

        A request that comes in the middle of a step is taken in at its end, which its tokens tell; newer builds
        answer /slots meanwhile (tools/server/server-queue.cpp).
        """
        return sum(
            start <= poll["sent_s"] and poll["received_s"] <= end and self._stepped(start, poll["sent_s"])
            for start, end in self._spans
        )

    def _stepped(self, since_s: float, until_s: float) -> bool:
        """Whether a token of any request came in between: a step was over."""
        return bisect_right(self._token_times, until_s) > bisect_right(self._token_times, since_s)

    @cached_property
    def _token_times(self) -> list[float]:
        return sorted(at_s for times in self.rows.times.values() for at_s in times)

    @cached_property
    def waiting_polls(self) -> int:
        """Polls that show all slots taken while a request of ours was in flight without one."""
        return sum(
            self._ours(poll) >= self.slots and self.surely_in_flight(poll) > self._ours(poll) for poll in self.polls
        )

    def _said(self, name: str) -> list[tuple[dict[str, Any], float]]:
        since_s, until_s = self.rows.facts.get("load_start_s"), self.rows.facts.get("load_end_s")
        if since_s is None or until_s is None:
            return []
        during = [row for row in self._scrapes if since_s <= row["sent_s"] and row["received_s"] <= until_s]
        return [(row, row["values"][name]) for row in during if row["values"].get(name) is not None]

    @cached_property
    def peak_processing(self) -> float | None:
        """Requests that /metrics counts as processing at once, at most; None where it doesn't tell."""
        return max((value for _, value in self._said("requests_processing")), default=None)

    @cached_property
    def peak_deferred(self) -> float | None:
        """Requests that /metrics counts as deferred at once, at most; None where it doesn't tell."""
        return max((value for _, value in self._said("requests_deferred")), default=None)

    @cached_property
    def deferred_in_turn(self) -> float:
        """The same, of scrapes under way while more requests may have been in flight than there are slots."""
        counted = (value for row, value in self._said("requests_deferred") if self.perhaps_in_flight(row) > self.slots)
        return max(counted, default=0.0)

    @cached_property
    def vain_scrapes(self) -> int:
        """Scrapes that count requests as deferred while each one in flight had a slot to have."""
        counting = (row for row, value in self._said("requests_deferred") if value > 0)
        return sum(self.perhaps_in_flight(row) <= self.slots for row in counting)

    @cached_property
    def peak_scrapes(self) -> int:
        """Scrapes that told while as many requests were in flight as there ever were."""
        return sum(self.surely_in_flight(row) >= self.in_flight for row, _ in self._said("requests_deferred"))

    @cached_property
    def chance_scrapes(self) -> int:
        """Of these, scrapes under way while more requests were in flight than there are slots."""
        return sum(self.surely_in_flight(row) > self.slots for row, _ in self._said("requests_deferred"))

    @property
    def http_threads(self) -> int | None:
        """HTTP threads of the server if they are fewer than the requests that were open at once.

        Each open request holds one, a deferred one too (tools/server/server-http.cpp): what has none is
        unknown to the server, which answers /slots and /metrics late as well.
        """
        threads = self.rows.asked.get("threads_http")
        return int(threads) if threads and self.in_flight > int(threads) else None

    def rate(self) -> float | None:
        """Return the load's aggregate rate: all tokens over the time from the first sending to the last token."""
        spans = [(row["sent_s"], row["last_token_s"]) for row in self.requests]
        if self.undone or not spans or any(None in span for span in spans):
            return None
        start_s, end_s = min(start for start, _ in spans), max(end for _, end in spans)
        tokens = sum(tokens_of(row) for row in self.requests)
        return tokens / (end_s - start_s) if end_s > start_s else None


def tokens_of(row: dict[str, Any]) -> float:
    """Return the tokens a request decoded: the server's own count, else the pieces streamed."""
    return timing(row, "predicted_n") or float(row["tokens"])
