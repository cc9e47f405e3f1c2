"""Tidy pandas frames of a recorded run, each with a written schema.

Times in frames are seconds since the arm's first request was sent (`t` = 0), so that arms can be laid
over each other. Missing is NA, never 0.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from labkit.analyze.rows import ArmRows, RunRows, timing

if TYPE_CHECKING:
    import pandas as pd

FOREIGN = "foreign"
STALL_FACTOR = 2.0


class Column(NamedTuple):
    """One column: pandas dtype, unit, meaning."""

    dtype: str
    unit: str
    meaning: str


_ARM = {
    "arm": Column("str", "", "which measurement of the run: treatment, control, ..."),
    "label": Column("str", "", "name of the request"),
}

REQUESTS = _ARM | {
    "slot": Column("Int64", "", "slot it ran on, as the server says in its last chunk"),
    "sent_s": Column("Float64", "s", "its first byte left the client"),
    "client_wait_s": Column("Float64", "s", "from planned to sent: waiting for the client's own pool"),
    "server_wait_s": Column("Float64", "s", "from sent to the start of its prefill: queue, slot, batch"),
    "prefill_s": Column("Float64", "s", "the server's own prompt_ms"),
    "ttft_s": Column("Float64", "s", "time to first token: from sent to the first token"),
    "decode_s": Column("Float64", "s", "from its first to its last token"),
    "end_s": Column("Float64", "s", "end of its stream"),
    "tokens": Column("Int64", "tokens", "pieces of text that the stream brought"),
    "predicted_n": Column("Int64", "tokens", "tokens decoded, as the server counts them"),
    "prompt_n": Column("Int64", "tokens", "prompt tokens prefilled"),
    "cache_n": Column("Int64", "tokens", "prompt tokens taken from a slot's cache"),
    "warm": Column("boolean", "", "some of its prompt came from the cache: not comparable with cold ones"),
    "decode_tokens_per_s": Column("Float64", "tokens/s", "its decode rate, first token left out"),
    "status": Column("Int64", "", "HTTP status"),
    "outcome": Column("str", "", "completed, slot_limit, does_not_fit, server_error, ..."),
    "error": Column("str", "", "what the server or the connection said"),
}
SUMMARY = (
    *_ARM, "slot", "sent_s", "server_wait_s", "prefill_s", "ttft_s", "decode_s", "tokens", "cache_n", "warm", "outcome",
)  # fmt: skip
TOKENS = _ARM | {
    "i": Column("Int64", "", "number of the token in its stream, from 1"),
    "t_s": Column("Float64", "s", "when the client got it"),
    "gap_s": Column("Float64", "s", "since the token before: inter-token latency"),
}
SLOTS = {
    "arm": _ARM["arm"],
    "poll": Column("Int64", "", "number of the poll in its arm, from 0"),
    "sent_s": Column("Float64", "s", "the poll was sent"),
    "received_s": Column("Float64", "s", "its answer came"),
    "slot": Column("Int64", "", "slot"),
    "busy": Column("boolean", "", "is_processing: it owns a task, which may be waiting"),
    "label": Column("str", "", 'request on it, found by its seed; "foreign" if it is none of ours'),
    "fresh": Column("boolean", "", "its counters moved for this very task"),
    "n_decoded": Column("Int64", "tokens", "as shown; may be the previous task's"),
    "n_prefilled": Column("Int64", "tokens", "as shown; may be the previous task's"),
    "n_cells": Column("Int64", "cells", "KV cells the slot holds: prompt and answer so far"),
}
METRICS = {
    "arm": _ARM["arm"],
    "scrape": Column("Int64", "", "number of the scrape in its arm, from 0"),
    "sent_s": Column("Float64", "s", "it was sent"),
    "received_s": Column("Float64", "s", "its answer came"),
    "name": Column("str", "", "metric, without llamacpp:, labels in braces"),
    "value": Column("Float64", "", "as exposed; NA while the server has none yet"),
}
MEMORY = {
    "arm": _ARM["arm"],
    "at_s": Column("Float64", "s", "the sample was taken"),
    "resident_bytes": Column("Int64", "bytes", "resident memory of the server's process"),
    "gpu_used_bytes": Column("Int64", "bytes", "memory in use on all NVIDIA GPUs; NA without any"),
    "gpu_utilisation_percent": Column("Int64", "%", "of the busiest GPU; context, never a claim"),
}
PHASES = _ARM | {
    "phase": Column("str", "", "deferred (no slot yet), waiting (sent, or on a slot), prefill, decode"),
    "start_s": Column("Float64", "s", "it began"),
    "end_s": Column("Float64", "s", "it was over"),
    "slot": Column("Int64", "", "its slot; NA while deferred"),
}
STALLS = _ARM | {
    "cause": Column("str", "", "the request whose prefill it overlaps"),
    "start_s": Column("Float64", "s", "the last token before it"),
    "end_s": Column("Float64", "s", "the first token after it"),
    "gap_s": Column("Float64", "s", "its length"),
    "median_gap_s": Column("Float64", "s", "the stream's median gap"),
}


def tidy(rows: list[dict[str, Any]], schema: dict[str, Column]) -> pd.DataFrame:
    """Return rows as a frame with exactly the schema's columns and dtypes, also when there are none."""
    import pandas as pd

    frame = pd.DataFrame(rows, columns=list(schema))
    return frame.astype({name: column.dtype for name, column in schema.items()})


@dataclass(frozen=True)
class RunFrames:
    """The frames of one run; made when first asked for.

    Args:
        data: a recorded run, from labkit.read_run.
    """

    data: RunRows

    @property
    def arms(self) -> list[str]:
        """The arms that put a load on, in the order they ran."""
        return [arm for arm in self.data.run["arms"] if arm in self._origin]

    def arm_name(self, arm: str) -> str:
        """Return what an arm is called in pictures: what it was started with, not what it was meant to be."""
        if title := self.facts(arm).get("title"):
            return str(title)
        asked = (self.facts(arm).get("server") or {}).get("asked") or {}
        if (self.facts(arm).get("server") or {}).get("attached"):
            return "a server that isn't ours"
        if "cont_batching" not in asked:
            return arm
        name = f"continuous batching {'on' if asked['cont_batching'] else 'off'}"
        return f"{name} (control)" if arm == "control" else name

    @cached_property
    def _mine(self) -> list[dict[str, Any]]:
        return [row for row in self.data.requests if not row["warm_up"]]

    @cached_property
    def _origin(self) -> dict[str, float]:
        """Seconds on the run's clock at which each arm's first request was sent."""
        sent: dict[str, float] = {}
        for row in self._mine:
            if row["sent_s"] is not None:
                sent[row["arm"]] = min(row["sent_s"], sent.get(row["arm"], row["sent_s"]))
        return sent

    @cached_property
    def _label_of(self) -> dict[tuple[str, int], str]:
        return {(row["arm"], row["seed"]): row["label"] for row in self._mine}

    @cached_property
    def _rows(self) -> dict[str, ArmRows]:
        return {arm: ArmRows(self.data, arm) for arm in self.arms}

    def rows(self, arm: str) -> ArmRows:
        """Return one arm's rows, read once: its polls and what is fresh in them serve frames and readings."""
        return self._rows[arm]

    def facts(self, arm: str) -> dict[str, Any]:
        """Return what run.json says of one arm."""
        return dict(self.data.run["arms"].get(arm, {}))

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row a request."""
        rows = [self._request(row) for row in self._mine]
        return tidy(rows, REQUESTS).sort_values(["arm", "label"], ascending=[False, True], ignore_index=True)

    @property
    def summary(self) -> pd.DataFrame:
        """The requests in the columns that a reader needs first."""
        return self.requests[list(SUMMARY)]

    def _request(self, row: dict[str, Any]) -> dict[str, Any]:
        timings = row["timings"] or {}
        prefill_s = _scaled(timing(row, "prompt_ms"), 1e-3)
        decode_s = _minus(row["last_token_s"], row["first_token_s"])
        ttft_s = _minus(row["first_token_s"], row["sent_s"])
        return row | {
            "slot": row["id_slot"],
            "sent_s": self._since(row["arm"], row["sent_s"]),
            "client_wait_s": _minus(row["sent_s"], row["planned_s"]),
            "server_wait_s": max(0.0, ttft_s - prefill_s) if ttft_s is not None and prefill_s is not None else None,
            "prefill_s": prefill_s,
            "ttft_s": ttft_s,
            "decode_s": decode_s,
            "end_s": self._since(row["arm"], row["end_s"]),
            "predicted_n": timings.get("predicted_n"),
            "prompt_n": timings.get("prompt_n"),
            "cache_n": timings.get("cache_n"),
            "warm": timings["cache_n"] > 0 if timings.get("cache_n") is not None else None,
            # a request that ended badly has no rate
            "decode_tokens_per_s": (row["tokens"] - 1) / decode_s
            if decode_s and row["outcome"] in ("completed", "slot_limit")
            else None,
        }

    @cached_property
    def tokens(self) -> pd.DataFrame:
        """One row a token."""
        rows = [
            row | {"t_s": self._since(row["arm"], row["at_s"])}
            for row in self.data.tokens
            if not row["warm_up"] and row["arm"] in self._origin
        ]
        frame = tidy(rows, TOKENS)
        frame["gap_s"] = frame.groupby(["arm", "label"])["t_s"].diff()
        return frame

    @cached_property
    def slots(self) -> pd.DataFrame:
        """One row a slot and poll, of polls that could be read."""
        return tidy([row for arm in self.arms for row in self._slot_rows(arm)], SLOTS)

    def _slot_rows(self, arm: str) -> list[dict[str, Any]]:
        mine, rows = self.rows(arm), []
        for number, (poll, fresh) in enumerate(zip(mine.polls, mine.fresh, strict=True)):
            times = {
                "sent_s": self._since(arm, poll["sent_s"]),
                "received_s": self._since(arm, poll["received_s"]),
            }
            for slot in poll["slots"]:
                label = self._label_of.get((arm, slot["seed"]), FOREIGN) if slot["busy"] else None
                facts = {"arm": arm, "poll": number, "slot": slot["id"], "label": label}
                rows.append(slot | times | facts | {"fresh": slot["busy"] and slot["seed"] in fresh})
        return rows

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """One row a metric and scrape, of scrapes that could be read."""
        readable = [row for row in self.data.metrics if row["values"] is not None and row["arm"] in self._origin]
        number: Counter[str] = Counter()
        rows = []
        for row in readable:
            times = {name: self._since(row["arm"], row[name]) for name in ("sent_s", "received_s")}
            facts = {"arm": row["arm"], "scrape": number[row["arm"]]} | times
            rows += [facts | {"name": name, "value": value} for name, value in row["values"].items()]
            number[row["arm"]] += 1
        return tidy(rows, METRICS)

    @cached_property
    def memory(self) -> pd.DataFrame:
        """One row a sample of the server's memory."""
        rows = []
        for row in self.data.memory:
            used = [gpu["used_bytes"] for gpu in row["gpus"] if gpu["used_bytes"] is not None]
            busy = [gpu["utilisation_percent"] for gpu in row["gpus"] if gpu["utilisation_percent"] is not None]
            facts = {"gpu_used_bytes": sum(used) if used else None, "gpu_utilisation_percent": max(busy, default=None)}
            rows.append(row | facts | {"at_s": self._since(row["arm"], row["at_s"])})
        return tidy(rows, MEMORY)

    @cached_property
    def phases(self) -> pd.DataFrame:
        """What each request did when: deferred, waiting, prefill, decode."""
        return tidy([phase for row in self._mine for phase in self._phases(row)], PHASES)

    def _phases(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        if row["sent_s"] is None or row["arm"] not in self._origin:
            return []
        end_s = row["end_s"] if row["end_s"] is not None else row["sent_s"]
        first_s = row["first_token_s"] if row["first_token_s"] is not None else end_s
        prefill_s = _prefill_start(row, first_s)
        slot, owned_s = self._slot_of(row)
        spans = [
            ("deferred", row["sent_s"], min(owned_s, prefill_s)),
            ("waiting", min(owned_s, prefill_s), prefill_s),
            ("prefill", prefill_s, first_s),
            ("decode", first_s, row["last_token_s"] or first_s),
        ]
        return [
            {
                "arm": row["arm"],
                "label": row["label"],
                "phase": phase,
                "start_s": self._since(row["arm"], start_s),
                "end_s": self._since(row["arm"], stop_s),
                "slot": None if phase == "deferred" else slot,
            }
            for phase, start_s, stop_s in spans
            if stop_s > start_s
        ]

    def _slot_of(self, row: dict[str, Any]) -> tuple[int | None, float]:
        """Return a request's slot and when it had it: at its sending, unless polls show it without a slot to have.

        A free slot means that the server has not taken the request in yet: it does so between two steps.
        """
        slot, sent_s = row["id_slot"], row["sent_s"]
        seen_without = 0
        for poll in self.data.slots:
            if poll["arm"] != row["arm"] or poll["slots"] is None or poll["sent_s"] < sent_s:
                continue
            mine = next((s["id"] for s in poll["slots"] if s["busy"] and s["seed"] == row["seed"]), None)
            if mine is not None:
                # one poll without it may just have been on its way; a late answer tells of its end, not of its sending
                return (mine if slot is None else slot), (poll["received_s"] or sent_s if seen_without > 1 else sent_s)
            wanted = [s for s in poll["slots"] if row["id_slot_asked"] in (None, s["id"])]
            seen_without += all(s["busy"] for s in wanted)
        return slot, sent_s

    @cached_property
    def stalls(self) -> pd.DataFrame:
        """The gaps that other requests' prefill put into a running stream."""
        rows = []
        prefills = self.phases[self.phases["phase"] == "prefill"]
        for (arm, label), stream in self.tokens.groupby(["arm", "label"]):
            median_s = stream["gap_s"].median()
            if not known(median_s) or median_s <= 0:
                continue  # its tokens came bunched, several in one read: single gaps mean nothing
            others = prefills[(prefills["arm"] == arm) & (prefills["label"] != label)]
            for gap in stream[stream["gap_s"] > STALL_FACTOR * median_s].itertuples():
                start_s, end_s = float(gap.t_s) - float(gap.gap_s), float(gap.t_s)
                overlap_s = others["end_s"].clip(upper=end_s) - others["start_s"].clip(lower=start_s)
                causes = others[overlap_s > 0.5 * float(gap.gap_s)]["label"]
                if len(causes):
                    spans = {"start_s": start_s, "end_s": end_s, "gap_s": gap.gap_s, "median_gap_s": median_s}
                    rows.append({"arm": arm, "label": label, "cause": " and ".join(sorted(causes))} | spans)
        return tidy(rows, STALLS)

    def _since(self, arm: str, at_s: float | None) -> float | None:
        return _minus(at_s, self._origin.get(arm))


def known(value: Any) -> bool:
    """Whether a frame's cell holds a value."""
    import pandas as pd

    return bool(pd.notna(value))


def _prefill_start(row: dict[str, Any], first_s: float) -> float:
    """Return when a request's prompt was first batched: its first token less the server's prompt_ms.

    Without timings (it failed before) the response headers stand in: the server sends them when the
    prompt starts (tools/server/server-context.cpp, from b10156 on).
    """
    prompt_ms = timing(row, "prompt_ms")
    if row["first_token_s"] is not None and prompt_ms is not None:
        return float(max(row["sent_s"], first_s - prompt_ms / 1e3))
    return float(row["headers_s"]) if row["headers_s"] is not None else first_s


def _minus(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
