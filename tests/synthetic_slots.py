"""Recorded slot escalations made by a small model of clients, slots and queues, whose truth is known."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from labkit.measure.record import RunData
from labkit.measure.slot_loads import label_of
from tests.synthetic import server

STEP_S, PREFILL_S, POLL_S, SCRAPE_S = 0.02, 0.06, 0.05, 0.1
PROMPT = 40


@dataclass
class Task:
    label: str
    seed: int
    planned_s: float
    sent_s: float = 0.0
    slot: int = 0
    owned_s: float = 0.0
    times: list[float] = field(default_factory=list)

    @property
    def end_s(self) -> float:
        return self.times[-1]


@dataclass
class Load:
    """One load on one server.

    `works` is how many of its slots the server really uses; `pool` the client's connections; `slow` stretches
    every step; `arrivals` sends them by chance; `held` keeps what has no slot from being counted as deferred.
    """

    slots: int
    requests: int
    tokens: int = 40
    works: int | None = None
    pool: int | None = None
    slow: float = 1.0
    arrivals: list[float] | None = None
    held: bool = False
    slots_error: bool = False
    metrics_error: bool = False
    seed: int = 100

    def tasks(self) -> list[Task]:
        free = dict.fromkeys(range(self.works or self.slots), 0.0)
        tasks: list[Task] = []
        for i in range(self.requests):
            due_s = self.arrivals[i] if self.arrivals else 0.0
            task = Task(label_of(i), self.seed + i, due_s)
            running = sorted(t.end_s for t in tasks)
            waits = self.pool is not None and len(running) >= self.pool
            task.sent_s = max(due_s + 0.001 * (i + 1), running[len(running) - (self.pool or 0)] + 0.001 if waits else 0)
            task.slot = min(free, key=lambda slot: (max(free[slot], task.sent_s), -slot))
            task.owned_s = max(free[task.slot], task.sent_s) + 0.001
            first_s = task.owned_s + PREFILL_S * self.slow
            task.times = [first_s + STEP_S * self.slow * n for n in range(self.tokens)]
            free[task.slot] = task.end_s
            tasks.append(task)
        return tasks

    def polls(self, tasks: list[Task]) -> list[dict[str, Any]]:
        rows = []
        for at_s in _times(tasks, POLL_S):
            slots = [self._slot(slot, tasks, at_s) for slot in range(self.slots)]
            rows.append(_row(at_s) | {"slots": None if self.slots_error else slots})
        return rows

    def _slot(self, slot: int, tasks: list[Task], at_s: float) -> dict[str, Any]:
        row = {"id": slot, "busy": False, "id_task": None, "seed": None, "n_ctx": 1024, "speculative": False}
        for task in tasks:
            if task.slot == slot and task.owned_s <= at_s < task.end_s:
                decoded = sum(t <= at_s for t in task.times)
                row |= {"busy": True, "id_task": task.seed, "seed": task.seed, "n_decoded": decoded}
        return {"n_decoded": 0, "n_prefilled": PROMPT, "n_cells": PROMPT} | row

    def scrapes(self, tasks: list[Task]) -> list[dict[str, Any]]:
        rows = []
        for at_s in _times(tasks, SCRAPE_S):
            waiting = sum(t.sent_s <= at_s < t.owned_s for t in tasks)
            running = sum(t.owned_s <= at_s < t.end_s for t in tasks)
            deferred = 0.0 if self.held else float(waiting)
            values = {"requests_processing": float(running), "requests_deferred": deferred}
            rows.append(_row(at_s) | {"values": None if self.metrics_error else values})
        return rows


def _times(tasks: list[Task], every_s: float) -> list[float]:
    end_s = max(task.end_s for task in tasks)
    return [-0.2 + every_s * n + 0.013 for n in range(int((end_s + 0.3) / every_s))]


def _row(at_s: float) -> dict[str, Any]:
    return {"sent_s": at_s - 0.002, "received_s": at_s + 0.002, "status": 200, "error": None}


def request_row(arm: str, task: Task, load: Load) -> dict[str, Any]:
    return {
        "arm": arm, "label": task.label, "seed": task.seed, "max_tokens": load.tokens, "warm_up": False,
        "id_slot_asked": None, "planned_s": task.planned_s, "sent_s": task.sent_s, "headers_s": task.owned_s,
        "first_event_s": task.times[0], "first_token_s": task.times[0], "first_answer_s": task.times[0],
        "last_token_s": task.end_s, "end_s": task.end_s + 0.001, "status": 200, "outcome": "completed", "error": None,
        "finish_reason": "length", "truncated": False, "id_slot": task.slot, "tokens": load.tokens, "pings": 0,
        "timings": {"cache_n": 0, "prompt_n": PROMPT, "prompt_ms": 1e3 * PREFILL_S * load.slow,
                    "predicted_n": load.tokens, "predicted_ms": (task.end_s - task.times[0]) * 1e3},
        "prompt": None, "text": None,
    }  # fmt: skip


def add_load(data: RunData, load: Load, *, repeat: int = 1, kind: str = "step", name: str = "") -> str:
    """Add one arm to a run and return its name."""
    arm = name or f"slots{load.slots}-requests{load.requests}-run{repeat}{'-again' * (kind == 'again')}"
    tasks = load.tasks()
    planned = [{"label": t.label, "at_s": t.planned_s if load.arrivals else None} for t in tasks]
    step = {"slots": load.slots, "requests": load.requests, "repeat": repeat, "kind": kind}
    data.run["arms"][arm] = {
        "server": server(load.slots), "step": step | {"command": f"llama-server --parallel {load.slots}"},
        "title": f"{load.slots} slots, {load.requests} requests",
        "planned": {"requests": planned, "max_connections": load.pool}, "load_start_s": -0.01, "quiet_after_s": 0.01,
        "load_end_s": max(t.end_s for t in tasks) + 0.05, "server_alive": True, "answer_sha256": "ab",
    }  # fmt: skip
    data.requests.extend(request_row(arm, task, load) for task in tasks)
    data.tokens.extend(
        {"arm": arm, "label": task.label, "warm_up": False, "i": i, "at_s": at_s}
        for task in tasks
        for i, at_s in enumerate(task.times, start=1)
    )
    data.slots.extend({"arm": arm} | poll for poll in load.polls(tasks))
    data.metrics.extend({"arm": arm} | scrape for scrape in load.scrapes(tasks))
    return arm


def parameters(**changes: Any) -> dict[str, Any]:
    """Return the parameters that a record of 01 has."""
    return {
        "slots_list": [1, 2, 4], "requests_list": [2, 4], "ctx_size": 1024, "context_rule": "per_slot",
        "kv_unified": True, "repeats": 1, "arrival_rate": None, "peak_concurrency": None, "slo_ttft_s": None,
        "slo_itl_s": None,
    } | changes  # fmt: skip


def empty_run(*, tokens: int = 40, attached: bool = False, n_ctx_train: int = 8192, **changes: Any) -> RunData:
    """Return a run whose loads are planned and none is run."""
    params = parameters(**changes)
    sizes = [1, *(size for size in params["requests_list"] if size > 1)]
    need = {"input": PROMPT, "history": 0, "output": tokens}
    needs = {
        "loads": {str(size): {label_of(i): dict(need) for i in range(size)} for size in sizes},
        "attached": attached, "n_ctx_train": n_ctx_train, "slots": 2, "slot_cells": 1024, "pool_cells": 2048,
        "kv_unified": True,
    }  # fmt: skip
    machine = {"cores": 2, "cpu": "a CPU", "memory_bytes": 2**34, "gpus": [], "os": "an OS"}
    run = {"arms": {}, "parameters": params, "needs": needs, "notebook": "01_slot_escalation", "provenance": machine}
    return RunData(run)


def escalated(*, steps: tuple[int, ...] = (1, 2, 4), repeats: int = 1, slow: Any = None, **load: Any) -> RunData:
    """Return a run of every step and load.

    Args:
        steps: slot counts.
        repeats: how often each was measured; more than one add the A/A arm.
        slow: from (slots, repeat, kind) to how much longer each step takes; none: decoding is shared for free.
        load: of Load, for every load.
    """
    data = empty_run(slots_list=list(steps), repeats=repeats, tokens=load.get("tokens", 40))
    slow = slow or (lambda slots, repeat, kind: 1.0)
    for repeat in range(1, repeats + 1):
        for slots in steps:
            for requests in (1, 2, 4) if repeat == 1 else (2, 4):
                add_load(data, Load(slots, requests, slow=slow(slots, repeat, "step"), **load), repeat=repeat)
        if repeats > 1:
            first = Load(steps[0], 4, slow=slow(steps[0], repeat, "again"), **load)
            add_load(data, first, repeat=repeat, kind="again")
    return data
