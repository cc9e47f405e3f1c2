"""One arm's rows of a recorded run: requests, token times and polls."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

from labkit.analyze.freshness import fresh_progress


class RunRows(Protocol):
    """What is judged: a recorded run as plain rows (measure.record.RunData)."""

    @property
    def run(self) -> dict[str, Any]: ...
    @property
    def requests(self) -> list[dict[str, Any]]: ...
    @property
    def tokens(self) -> list[dict[str, Any]]: ...
    @property
    def slots(self) -> list[dict[str, Any]]: ...
    @property
    def metrics(self) -> list[dict[str, Any]]: ...
    @property
    def memory(self) -> list[dict[str, Any]]: ...


def kv_devices(effective: Mapping[str, Any]) -> list[str]:
    """Return the names of the devices that hold a server's KV cache; none where its log doesn't tell.

    Args:
        effective: an arm's `server.effective` in run.json.
    """
    return [str(device) for device in effective.get("kv_devices") or []]


def in_main_memory(device: str) -> bool:
    """Return whether a device of that name is main memory (ggml's CPU backend calls its buffers CPU and more)."""
    return device.startswith("CPU")


def timing(request: dict[str, Any], name: str) -> float | None:
    """Return one of the server's own timings of a request; None where it gave none, or no number."""
    value = (request.get("timings") or {}).get(name)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def outcome(request: dict[str, Any]) -> str:
    """Return a request's outcome; an answer that was cut at its slot's end is known where the server doesn't say.

    The chat endpoint of b9093 has no `truncated`: there an answer that ended by length below its limit was cut.

    Args:
        request: a row of requests.jsonl.
    """
    untold = request["outcome"] == "completed" and request["truncated"] is None and request["finish_reason"] == "length"
    count = timing(request, "predicted_n")
    return "slot_limit" if untold and count is not None and count < request["max_tokens"] else str(request["outcome"])


class ArmRows:
    """Reads one arm's rows: requests, token times and polls, of the load alone.

    Args:
        data: the recorded run.
        name: the arm.
    """

    def __init__(self, data: RunRows, name: str) -> None:
        self.name = name
        self.facts: dict[str, Any] = data.run.get("arms", {}).get(name, {})
        mine = [row for row in data.requests if row["arm"] == name]
        self.warm_up = [row for row in mine if row["warm_up"]]
        self.requests = {row["label"]: row for row in mine if not row["warm_up"]}
        self.times: dict[str, list[float]] = {label: [] for label in self.requests}
        for token in data.tokens:
            if token["arm"] == name and not token["warm_up"] and token["at_s"] is not None:
                self.times.setdefault(token["label"], []).append(token["at_s"])
        # every piece of text has a row of its own: fewer mean that the record is cut
        self.tokens_lost = any(len(self.times[label]) < row["tokens"] for label, row in self.requests.items())
        polls = [row for row in data.slots if row["arm"] == name and row["slots"] is not None]
        self.polls = [row for row in polls if row["received_s"] is not None]
        self.fresh = fresh_progress(self.polls)
        server = self.facts.get("server") or {}
        self.attached = bool(server.get("attached"))
        self.asked: dict[str, Any] = server.get("asked") or {}
        self.effective: dict[str, Any] = server.get("effective") or {}
