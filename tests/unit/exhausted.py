"""Recorded runs of notebook 05 made by a small model of a KV pool: steps, cells, and what ends whom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from labkit.measure.record import RunData
from tests.synthetic import server

STEP_S = 0.02
ERROR = '{"code": 500, "message": "Context size has been exceeded.", "type": "server_error"}'
SEEDS = {label: 101 + i for i, label in enumerate("ABCDEFGHI")}


@dataclass
class Arm:
    """One arm: all requests start at once and advance a token a step.

    Args:
        answers: tokens of each answer.
        prompt: tokens of each prompt.
        error_at: cells at which the error comes; None: when the pool has none left.
        spared: a request that the error leaves alone.
        slots_speak: /slots counts cells.
    """

    answers: list[int]
    prompt: int = 205
    pool: int = 512
    slots: int = 2
    batch: int = 64
    unified: bool = True
    fails: bool = True
    one_by_one: bool = False
    error_at: int | None = None
    spared: str = ""
    slots_speak: bool = True
    labels: str = "ABCDEFGHI"
    start_s: float = 0.0
    pid: int = 1

    @property
    def box(self) -> int:
        return self.pool if self.unified else self.pool // self.slots

    def tokens(self) -> tuple[dict[str, list[float]], dict[str, str]]:
        """Return when each request got its tokens, and how it ended."""
        times: dict[str, list[float]] = {label: [] for label in self.labels[: len(self.answers)]}
        ends: dict[str, str] = {}
        now = self.start_s + 0.2
        wanted = dict(zip(times, self.answers, strict=True))
        while set(ends) != set(times):
            live = [label for label in times if label not in ends]
            live = live[:1] if self.one_by_one else live[: self.slots]
            cells = sum(self.prompt + len(times[label]) for label in live)
            limit = self.error_at if self.error_at is not None else self.pool
            if self.fails and self.unified and cells > limit:
                ends |= {label: "server_error" for label in live if label != self.spared}
                limit = self.error_at = 10**9
                continue
            now += STEP_S
            for label in live:
                times[label].append(now)
                if len(times[label]) == wanted[label]:
                    ends[label] = "completed"
                elif not self.unified and self.prompt + len(times[label]) == self.box:
                    ends[label] = "slot_limit"
        return times, ends

    def record(self, data: RunData, name: str) -> bool:
        """Add the arm's rows to a run."""
        times, ends = self.tokens()
        starts = dict.fromkeys(times, self.start_s)
        if self.one_by_one:
            previous = self.start_s
            for label in times:
                starts[label], previous = previous, times[label][-1] + 0.005
        for label, stream in times.items():
            data.requests.append(self.request(name, label, stream, ends[label], starts[label]))
            data.tokens.extend(
                {"arm": name, "label": label, "warm_up": False, "i": i, "at_s": at_s}
                for i, at_s in enumerate(stream, start=1)
            )
        end_s = max(stream[-1] for stream in times.values())
        data.slots.extend({"arm": name} | row for row in self.polls(times, end_s))
        facts = data.run["arms"].setdefault(name, {"prompt_tokens": {}, "planned": {"requests": []}})
        facts["prompt_tokens"] |= dict.fromkeys(times, self.prompt)
        facts["planned"]["requests"] += [{"label": label} for label in times]
        facts |= {"server": self.server(), "title": name, "load_start_s": -0.1, "quiet_after_s": 0.0,
                  "load_end_s": end_s + 0.1, "server_alive": True}  # fmt: skip
        return True

    def server(self) -> dict[str, Any]:
        described = server(self.slots)
        described["asked"] |= {"kv_unified": self.unified, "ctx_size": self.pool, "batch_size": self.batch}
        described["effective"] |= {"kv_unified": self.unified, "pool_cells": self.pool, "slot_cells": self.box,
                                   "batch_size": self.batch}  # fmt: skip
        return described | {"pid": self.pid}

    def request(self, arm: str, label: str, stream: list[float], end: str, sent_s: float) -> dict[str, Any]:
        failed = end == "server_error"
        timings = {"prompt_n": self.prompt, "cache_n": 0, "prompt_ms": 200.0, "predicted_n": len(stream)}
        return {
            "arm": arm, "label": label, "seed": SEEDS[label], "warm_up": False, "planned_s": sent_s, "sent_s": sent_s,
            "max_tokens": self.answers[self.labels.index(label)], "id_slot_asked": None, "headers_s": sent_s + 0.001,
            "first_event_s": stream[0], "first_token_s": stream[0], "first_answer_s": stream[0],
            "last_token_s": stream[-1], "end_s": stream[-1] + 0.001, "status": 200, "outcome": end,
            "error": ERROR if failed else None, "finish_reason": None if failed else "length",
            "truncated": end == "slot_limit", "id_slot": None if failed else self.labels.index(label) % self.slots,
            "tokens": len(stream), "pings": 0, "timings": None if failed else timings, "prompt": None, "text": None,
        }  # fmt: skip

    def polls(self, times: dict[str, list[float]], end_s: float) -> list[dict[str, Any]]:
        rows, at_s = [], self.start_s - 0.05
        while at_s < end_s + 0.1:
            slots = [self.slot(slot, times, at_s) for slot in range(self.slots)]
            rows.append(
                {"sent_s": at_s - 0.001, "received_s": at_s + 0.001, "status": 200, "error": None, "slots": slots}
            )
            at_s += 0.05
        return rows

    def slot(self, slot: int, times: dict[str, list[float]], at_s: float) -> dict[str, Any]:
        row = {"id": slot, "busy": False, "id_task": 1, "seed": 7, "n_ctx": self.box, "n_cells": 41, "n_decoded": 16,
               "n_prefilled": 26}  # fmt: skip
        for number, (label, stream) in enumerate(times.items()):
            start_s = self.start_s if not self.one_by_one or number == 0 else stream[0] - 0.02
            if number % self.slots != slot or not start_s <= at_s < stream[-1]:
                continue
            decoded = sum(time <= at_s for time in stream)
            row |= {"busy": True, "id_task": SEEDS[label], "seed": SEEDS[label], "n_prefilled": self.prompt}
            # until the prompt is done the slot shows the decoded tokens of the task before
            row |= {"n_decoded": decoded or 16, "n_cells": self.prompt + max(0, decoded - 1)}
        if not self.slots_speak:
            row |= {"n_cells": None, "n_prefilled": None}
        return row


def exhausted_run(
    *, given: list[int] | None = None, only: tuple[str, ...] = (), remedies: bool = True, **arms: Arm
) -> RunData:
    """Return a run of 05; arms by name replace the usual ones.

    Args:
        given: the answers that a user gave: then only `together` and `one_by_one` run.
        only: these arms alone.
        remedies: as the run's parameters say.
    """
    usual = {
        "together": Arm([115, 115]),
        "one_by_one": Arm([115, 115], one_by_one=True),
        "other_batch": Arm([115, 115], batch=512),
        "split": Arm([115, 115], unified=False),
        "larger_pool": Arm([115, 115], pool=768),
        "fewer_slots": Arm([115, 115], slots=1),
        "shorter_input": Arm([115, 115], prompt=120),
        "shorter_output": Arm([30, 30]),
        "split_with_room": Arm([115, 115], unified=False, pool=1024),
    }
    if given is not None:
        only = ("together", "one_by_one")
        first = arms["together"]
        usual["one_by_one"] = Arm(given, prompt=1, pool=first.pool, slots=first.slots, one_by_one=True)
    run: dict[str, Any] = {"arms": {}, "notebook": "05_kv_exhaustion",
                           "parameters": {"answers": given or [], "remedies": remedies}}  # fmt: skip
    run["provenance"] = {"cores": 2, "cpu": "a CPU", "memory_bytes": 2**34, "gpus": [], "os": "an OS"}
    data = RunData(run)
    for name, arm in (usual | arms).items():
        if not only or name in only:
            arm.record(data, name)
            warm = arm.request(name, "A", [arm.start_s], "completed", arm.start_s) | {"warm_up": True, "seed": 7}
            data.requests.append(warm)
    if not only:
        _too_long(data)
    return data


def _too_long(data: RunData) -> None:
    Arm([12], prompt=532, fails=False).record(data, "too_long")
    request = next(row for row in data.requests if row["arm"] == "too_long")
    data.tokens[:] = [row for row in data.tokens if row["arm"] != "too_long"]
    error = '{"error":{"code":400,"message":"request (532 tokens) exceeds","type":"exceed_context_size_error"}}'
    request |= {"status": 400, "outcome": "does_not_fit", "error": error, "tokens": 0, "first_token_s": None,
                "last_token_s": None, "timings": None, "id_slot": None}  # fmt: skip
