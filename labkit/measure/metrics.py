"""/metrics as a series: what the server counts, sampled on the run's clock."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

from labkit.engine.http import Address
from labkit.measure.poller import Poller
from labkit.measure.stream import Clock

PREFIX = "llamacpp:"
LIMIT_S = 5.0


def parse_metrics(text: str) -> dict[str, float | None]:
    """Return Prometheus text as numbers by name, without llama.cpp's prefix.

    A labelled metric keeps its labels in its name. NaN and infinities are no value yet: None, never 0.
    What a build doesn't expose is missing, never 0.

    Args:
        text: the body of /metrics.

    Raises:
        ValueError: it isn't Prometheus text.
    """
    from prometheus_client.parser import text_string_to_metric_families

    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {_name(s, text): float(s.value) if math.isfinite(s.value) else None for s in samples}


def _name(sample: Any, text: str) -> str:
    labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
    # the parser adds _total to every counter; llama.cpp calls some averages and maxima counters without it
    name = sample.name if sample.name in text else sample.name.removesuffix("_total")
    return str(name).removeprefix(PREFIX) + (f"{{{labels}}}" if labels else "")


class MetricsSampler:
    """Scrapes /metrics with a client of its own.

    Args:
        address: of the server.
        hz: scrapes a second.
        clock: seconds on the run's clock.
        keep: gets each scrape's row.
    """

    def __init__(self, address: Address, hz: float, clock: Clock, keep: Callable[[dict[str, Any]], None]) -> None:
        self._poller = Poller(address, "/metrics", LIMIT_S, clock)
        self._interval_s = 1.0 / hz
        self._clock, self._keep = clock, keep

    async def __aenter__(self) -> MetricsSampler:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._poller.aclose()

    async def scrape(self) -> bool:
        """Scrape once, and say whether the endpoint is worth asking again.

        The row says what went wrong instead of raising.
        """
        row: dict[str, Any] = {"sent_s": self._clock()}
        answer, arrived_s = await self._poller.get()
        row |= {"received_s": arrived_s, "status": answer.status, "error": None, "values": None}
        if answer.status == 501:
            row["error"] = "/metrics is disabled on this server (started without --metrics)"
        elif answer.status != 200 or answer.problem:
            row["error"] = f"/metrics: {answer.text}"
        else:
            try:
                row["values"] = parse_metrics(answer.body.decode("utf-8", "replace"))
            except ValueError:
                row["error"] = "/metrics: not Prometheus text"
        self._keep(row)
        return answer.status not in (401, 403, 404, 501)

    async def run(self) -> None:
        """Scrape at the rate asked for until cancelled."""
        while True:
            due_s = self._clock() + self._interval_s
            await self.scrape()
            await asyncio.sleep(max(0.0, due_s - self._clock()))
