"""One arm of a run as /metrics, memory and streams saw it: what a verdict on counters is made from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from labkit.analyze.metrics_and_gpu.counters import (
    Growth,
    Scrape,
    busy_slots_per_decode,
    growth,
    went_down,
    why_missing,
)
from labkit.analyze.rows import ArmRows, RunRows, timing

AT_ONCE, ONE_BY_ONE, METRICS_OFF = "at_once", "one_by_one", "metrics_off"
DONE = ("completed", "slot_limit")
OFF = "the server was started without --metrics"
# two tokens of one stream have a whole step between them
STEPS_AWAY = 2
Trouble = tuple[str, str]


@dataclass(frozen=True)
class QuietScrape:
    """A scrape during the load with no arrival and no end nearer than one whole step.

    Args:
        at_s: when it was sent (run's clock).
        open_requests: requests sent and not over at that time, as the client knows.
        deferred: what the server said.
    """

    at_s: float
    open_requests: int
    deferred: float | None


class CounterArm:
    """Reads one arm of a run.

    Args:
        data: the recorded run.
        name: the arm.
    """

    def __init__(self, data: RunRows, name: str) -> None:
        self.name = name
        self.rows = ArmRows(data, name)
        self.facts = self.rows.facts
        self.metrics = [row for row in data.metrics if row["arm"] == name]
        self.memory = [row for row in data.memory if row["arm"] == name]
        self.scrapes = [Scrape(r["sent_s"], r["received_s"], r["values"]) for r in self.metrics if r["values"]]

    @property
    def requests(self) -> list[dict[str, Any]]:
        """The load's requests, in the order of their labels."""
        return [row for _, row in sorted(self.rows.requests.items())]

    @property
    def attached(self) -> bool:
        """Whether somebody else started the server."""
        return self.rows.attached

    @property
    def slots(self) -> int | None:
        """Slots of the server, if known."""
        return self.rows.effective.get("slots")

    @property
    def build(self) -> int | None:
        """Build number of the server, if known."""
        return ((self.facts.get("server") or {}).get("build") or {}).get("number")

    @property
    def scrape_resets(self) -> bool | None:
        """Whether a scrape resets two gauges for everybody who scrapes; None: not known."""
        trait = (self.facts.get("traits") or {}).get("scrape_resets_gauges") or {}
        return trait.get("holds")

    # --- what the streams say ---------------------------------------------------------------------------

    @cached_property
    def span_s(self) -> tuple[float, float] | None:
        """From the first request's sending to the last one's end (run's clock)."""
        sent = [row["sent_s"] for row in self.requests if row["sent_s"] is not None]
        ends = [row["end_s"] for row in self.requests if row["end_s"] is not None]
        return (min(sent), max(ends)) if sent and ends else None

    @cached_property
    def streamed(self) -> int:
        """Tokens that the streams brought."""
        return sum(len(times) for times in self.rows.times.values())

    def streamed_between(self, start_s: float, end_s: float) -> int:
        """Return how many tokens came in a span of the run's clock."""
        return sum(start_s < at_s <= end_s for times in self.rows.times.values() for at_s in times)

    def timed(self, name: str) -> float | None:
        """Return the sum of one of the server's own timings over all requests; None if one lacks it."""
        values = [timing(row, name) for row in self.requests]
        return sum(v for v in values if v is not None) if values and None not in values else None

    def steps_between(self, start_s: float, end_s: float) -> int:
        """Return how many steps surely passed in a span: reads of one stream that brought it a token."""
        streams = self.rows.times.values()
        return max((len({at_s for at_s in times if start_s < at_s < end_s}) for times in streams), default=0)

    # --- what /metrics says -----------------------------------------------------------------------------

    @cached_property
    def window(self) -> tuple[Scrape, Scrape] | None:
        """The last scrape before the load and the first one after it."""
        if self.span_s is None:
            return None
        before = [scrape for scrape in self.scrapes if scrape.received_s <= self.span_s[0]]
        after = [scrape for scrape in self.scrapes if scrape.sent_s >= self.span_s[1]]
        return (before[-1], after[0]) if before and after else None

    def grown(self, name: str) -> Growth:
        """Return what a counter grew by over the load."""
        if self.window is None:
            return Growth(None, missing="no scrape before or after the load")
        return growth(self.window[0].values, self.window[1].values, name)

    @property
    def busy_per_call(self) -> Growth:
        """Busy slots per call of llama_decode over the load."""
        if self.window is None:
            return Growth(None, missing="no scrape before or after the load")
        return busy_slots_per_decode(self.window[0].values, self.window[1].values)

    @cached_property
    def during(self) -> list[Scrape]:
        """The scrapes that were under way while the load was."""
        if self.span_s is None:
            return []
        return [s for s in self.scrapes if s.received_s >= self.span_s[0] and s.sent_s <= self.span_s[1]]

    def said(self, name: str) -> list[float]:
        """Return a gauge's values during the load."""
        return [value for scrape in self.during if (value := scrape.values.get(name)) is not None]

    @cached_property
    def quiet_scrapes(self) -> list[QuietScrape]:
        """The scrapes during the load that no arrival and no end can have met."""
        edges = [row[end] for row in self.requests for end in ("sent_s", "end_s") if row[end] is not None]
        return [
            QuietScrape(scrape.sent_s, self.open_at(scrape.sent_s), scrape.values.get("requests_deferred"))
            for scrape in self.during
            if self._is_quiet(scrape, edges)
        ]

    def _is_quiet(self, scrape: Scrape, edges: list[float]) -> bool:
        """Whether a whole step lies between a scrape and the nearest arrival or end, on either side.

        The server takes in what has arrived between two steps. Of two tokens that came since, the second
        one's step began after that.
        """
        before = max((edge_s for edge_s in edges if edge_s < scrape.received_s), default=-math.inf)
        after = min((edge_s for edge_s in edges if edge_s >= scrape.received_s), default=math.inf)
        since, until = self.steps_between(before, scrape.sent_s), self.steps_between(scrape.received_s, after)
        return min(since, until) >= STEPS_AWAY

    def open_at(self, at_s: float) -> int:
        """Return how many requests were sent and not over at a time."""
        return sum(
            row["sent_s"] is not None and row["sent_s"] <= at_s and (row["end_s"] is None or at_s < row["end_s"])
            for row in self.requests
        )

    # --- why it can't be judged -------------------------------------------------------------------------

    def trouble(self) -> Trouble | None:
        """Return why nothing can be judged on this arm and what to change, or None."""
        checks = (self._incomplete, self._failed, self._strangers)
        return next((trouble for check in checks if (trouble := check())), None)

    def _incomplete(self) -> Trouble | None:
        planned = len((self.facts.get("planned") or {}).get("requests") or [])
        ran = {"load_start_s", "load_end_s"} <= set(self.facts) and self.span_s is not None
        if not self.facts.get("server_alive", True):
            how = self.facts.get("server_exit") or "ended"
            return f"the server {how} in the middle of the run", f"run it again; its log is server-{self.name}.log"
        ended = all(None not in (row["sent_s"], row["end_s"]) for row in self.requests if row["outcome"] in DONE)
        if not ran or not ended or self.rows.tokens_lost or len(self.requests) < planned:
            return f"the load {self.name} did not run to its end", "run it again; the run folder says how far it came"
        return None

    def _failed(self) -> Trouble | None:
        cold = [row for row in self.rows.warm_up if row["outcome"] not in DONE]
        if cold:
            return f"a warm-up request failed ({cold[0]['outcome']}: {cold[0]['error']})", "the server's log says more"
        bad = [row for row in self.requests if row["outcome"] not in DONE]
        if bad:
            what = f"{len(bad)} of {len(self.requests)} requests failed, {bad[0]['label']} as {bad[0]['outcome']}"
            return f"{what}: {bad[0]['error']}", "the server's log says more"
        return None

    def _strangers(self) -> Trouble | None:
        ours = {row["seed"] for row in [*self.requests, *self.rows.warm_up]}
        polls = [poll for poll in self.rows.polls if poll["sent_s"] >= self.facts["load_start_s"]]
        seeds = {s["seed"] for poll in polls for s in poll["slots"] if s["busy"] and s["seed"] is not None}
        if foreign := seeds - ours:
            return f"{len(foreign)} task(s) in /slots are not ours: another client uses this server", "a quiet server"
        if self.rows.polls and self.facts.get("quiet_after_s") is None:
            return "the server was not idle before the load", "a quiet server"
        return None

    def not_scraped(self) -> str:
        """Return why somebody else's server was left unscraped; empty if it wasn't."""
        if not self.attached or self.metrics or self.off or self.scrape_resets is False:
            return ""
        if self.scrape_resets:
            return "not scraped: on this build every scrape resets two gauges for whoever else watches the server"
        return "not scraped: the build isn't known, and on some a scrape resets two gauges for whoever else watches"

    @property
    def off(self) -> bool:
        """Whether the server doesn't offer /metrics."""
        return self.rows.effective.get("metrics_endpoint") is False or any(r["status"] == 501 for r in self.metrics)

    def metrics_trouble(self) -> Trouble | None:
        """Return why /metrics can't be judged on this arm and what to change, or None."""
        if trouble := self.trouble():
            return trouble
        if self.off:
            return OFF, "start it with --metrics (metrics_endpoint = True)"
        if not self.scrapes:
            errors = [row["error"] for row in self.metrics if row["error"]]
            return (errors[-1] if errors else "/metrics was never scraped"), "an address that offers /metrics"
        if self.window is None:
            return "no scrape before the load, or none after it, could be read", "run it again"
        if name := went_down(self.scrapes):
            return f"{name} went down between two scrapes: the server was started anew, or another answers", "run again"
        return self._not_idle(self.window[0])

    @staticmethod
    def _not_idle(before: Scrape) -> Trouble | None:
        names = ("requests_processing", "requests_deferred")
        busy = sum(before.values.get(name) or 0 for name in names)
        if busy:
            return f"/metrics counted {busy:.0f} requests before the load: somebody else's", "a quiet server"
        return None

    def missing(self, *names: str) -> str:
        """Return the first of these metrics that has no number around the load, and why; empty if all have one."""
        for name in names:
            for scrape in self.window or ():
                if why := why_missing(scrape.values, name):
                    return f"{name} is {why}" if why.startswith("not") else f"{name} has {why}"
        return ""
