"""Recorded runs made by a small model of the server's scheduler, for verdicts, frames and charts.

It knows slots, steps, prefill, continuous batching and stale counters, and nothing of HTTP. What it
shows in /slots follows what was seen live: until its prompt is done, a task's slot shows the counters of
the task before (builds to b10229), or zeros (b11549).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from labkit.measure.record import RunData

STEP_S, PREFILL_S = 0.02, 0.2
OLD = (37, 16)  # prefilled and decoded tokens of each slot's warm-up task
SEEDS = {"A": 101, "B": 102, "C": 103, "D": 104}


@dataclass
class Task:
    label: str
    tokens: int
    sent_s: float
    slot: int | None = None
    owned_s: float | None = None
    prefill_s: float | None = None
    times: list[float] = field(default_factory=list)

    @property
    def over_s(self) -> float:
        return self.times[-1] if len(self.times) == self.tokens else float("inf")


@dataclass
class Scenario:
    """One arm. `joins`: continuous batching. `stale`: a waiting task's slot shows old counters."""

    joins: bool = True
    a_tokens: int = 60
    b_tokens: int = 12
    trigger: int = 8
    late: int = 1
    slots: int = 2
    stale: bool = True
    poll_s: float = 0.05
    prompt_counters: bool = True
    foreign: bool = False
    slots_error: str | None = None

    def run(self) -> tuple[list[Task], list[dict[str, Any]]]:
        tasks = self.schedule()
        return tasks, self.polls(tasks)

    def schedule(self) -> list[Task]:
        a = Task("A", self.a_tokens, 0.0, slot=self.slots - 1, owned_s=0.001, prefill_s=0.002)
        tasks, now = [a], 0.002 + PREFILL_S
        a.times.append(now)
        while True:
            # the trigger may be A's last token: B is sent all the same
            if len(a.times) >= self.trigger and len(tasks) == 1:
                tasks += [Task("BCD"[i], self.b_tokens, now + 0.001) for i in range(self.late)]
            if all(task.over_s < float("inf") for task in tasks):
                return tasks
            now = self.step(tasks, now)

    def step(self, tasks: list[Task], now: float) -> float:
        self.assign(tasks, now)
        decoding = [task for task in tasks if task.times and task.over_s == float("inf")]
        entering = [task for task in tasks if task.slot is not None and not task.times and task.sent_s <= now]
        if decoding and not self.joins:
            entering = []
        for task in entering:
            task.prefill_s = now
        now += PREFILL_S if entering else STEP_S
        for task in decoding + entering:
            task.times.append(now)
        return now

    def assign(self, tasks: list[Task], now: float) -> None:
        busy = {task.slot for task in tasks if task.slot is not None and task.over_s > now}
        for task in tasks:
            free = sorted(set(range(self.slots)) - busy, reverse=True)
            if task.slot is None and task.sent_s <= now + STEP_S and free:
                task.slot, task.owned_s = free[0], max(now, task.sent_s)
                busy.add(free[0])

    def polls(self, tasks: list[Task]) -> list[dict[str, Any]]:
        end_s = max(task.times[-1] for task in tasks) + 0.1
        rows, at_s = [], -0.2
        while at_s < end_s:
            slots = None if self.slots_error else [self.slot_row(slot, tasks, at_s) for slot in range(self.slots)]
            status = 501 if self.slots_error else 200
            row = {"sent_s": at_s - 0.002, "received_s": at_s + 0.002, "status": status}
            rows.append(row | {"error": self.slots_error, "slots": slots})
            at_s += self.poll_s
        return rows

    def slot_row(self, slot: int, tasks: list[Task], at_s: float) -> dict[str, Any]:
        row = {"id": slot, "busy": False, "id_task": 1, "seed": 7, "n_ctx": 4096, "n_cells": 50}
        counters = OLD if self.stale else (0, 0)
        if self.foreign and slot == 0 and at_s > 0.3:
            row |= {"busy": True, "id_task": 77, "seed": 999}
        for task in tasks:
            if task.slot != slot or task.owned_s is None or at_s < task.owned_s:
                continue
            decoded = sum(t <= at_s for t in task.times)
            row |= {"id_task": SEEDS[task.label], "seed": SEEDS[task.label], "busy": at_s < task.over_s}
            if decoded:
                counters = (50, decoded)
            if not row["busy"] and not self.stale:
                counters = (0, 0)
        prefilled = counters[0] if self.prompt_counters else None
        return row | {"n_prefilled": prefilled, "n_decoded": counters[1]}


def request_row(arm: str, task: Task) -> dict[str, Any]:
    first = task.times[0] if task.times else None
    prompt_ms = (first - task.prefill_s) * 1e3 if first is not None and task.prefill_s is not None else None
    return {
        "arm": arm, "label": task.label, "seed": SEEDS[task.label], "max_tokens": task.tokens, "warm_up": False,
        "id_slot_asked": None, "planned_s": task.sent_s, "sent_s": task.sent_s, "headers_s": task.prefill_s,
        "first_event_s": first, "first_token_s": first, "first_answer_s": first, "last_token_s": task.times[-1],
        "end_s": task.times[-1] + 0.001, "status": 200, "outcome": "completed", "error": None,
        "finish_reason": "length", "truncated": False, "id_slot": task.slot, "tokens": len(task.times), "pings": 0,
        "timings": {"cache_n": 0, "prompt_n": 50, "prompt_ms": prompt_ms, "predicted_n": len(task.times),
                    "predicted_ms": (task.times[-1] - task.times[0]) * 1e3},
        "prompt": None, "text": None,
    }  # fmt: skip


def server(slots: int = 2, cont_batching: bool = True) -> dict[str, Any]:
    return {
        "asked": {
            "parallel": slots, "kv_unified": True, "ctx_size": 4096, "cont_batching": cont_batching, "batch_size": 2048,
            "ubatch_size": 512, "threads": 2,
        },
        "effective": {
            "slots": slots, "slot_cells": 4096, "kv_unified": True, "pool_cells": 4096, "batch_size": 2048,
            "ubatch_size": 512, "kv_bytes": 94371840, "slots_endpoint": True, "metrics_endpoint": True,
        },
        "build": {"number": 10229, "package": "xllamacpp 2026.8.10229", "alias": "labkit-1"},
        "model": {
            "name": "toy", "sha256": "ab" * 32,
            "facts": {"name": "toy", "quantisation": "Q4_1", "n_ctx_train": 8192},
        },
    }  # fmt: skip


def recorded(**arms: Scenario) -> RunData:
    """Return a run with one arm for each scenario: recorded(treatment=Scenario(), control=Scenario(joins=False))."""
    run: dict[str, Any] = {"arms": {}, "parameters": {"control": "control" in arms}, "notebook": "03_late_arrival"}
    run["provenance"] = {"cores": 2, "cpu": "a CPU", "memory_bytes": 2**34, "gpus": [], "os": "an OS"}
    data = RunData(run)
    for name, scenario in arms.items():
        tasks, polls = scenario.run()
        run["arms"][name] = {
            "server": server(scenario.slots, name != "control"), "planned": {"requests": len(tasks)},
            "prompt_tokens": {task.label: 50 for task in tasks}, "load_start_s": -0.05, "quiet_after_s": 0.01,
            "load_end_s": polls[-1]["sent_s"], "server_alive": True,
        }  # fmt: skip
        data.requests.extend(request_row(name, task) for task in tasks)
        for task in tasks:
            data.tokens.extend(
                {"arm": name, "label": task.label, "warm_up": False, "i": i, "at_s": t}
                for i, t in enumerate(task.times, start=1)
            )
        data.slots.extend({"arm": name} | poll for poll in polls)
    return data
