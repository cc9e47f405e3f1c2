"""Recorded runs of notebook 04 made by a small model of slots, steps and counters; it knows nothing of HTTP."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from labkit.measure.record import RunData
from tests.synthetic import server

STEP_S, PREFILL_S, SCRAPE_S, PROMPT = 0.02, 0.06, 0.05, 300
MIB = 2**20


@dataclass
class Answer:
    """One request: its tokens' times once it ran."""

    label: str
    tokens: int
    seed: int
    sent_s: float = 0.0
    slot: int | None = None
    left: int = PROMPT
    times: list[float] = field(default_factory=list)

    @property
    def over(self) -> bool:
        return len(self.times) == self.tokens

    @property
    def end_s(self) -> float:
        return self.times[-1] + 0.001 if self.over else float("inf")


@dataclass
class Counted:
    """One arm. `shares`: one call serves all slots; `at_once`: all sent together; `bias`: added to a counter.

    `mid_gauge`: what predicted_tokens_seconds shows while nothing has ended.
    """

    slots: int = 2
    n: int = 6
    tokens: int = 40
    shares: bool = True
    at_once: bool = True
    build: int | None = 10229
    bias: dict[str, float] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    no_value: tuple[str, ...] = ()
    grows_mib: float = 0.5
    gpu_grows_mib: float | None = None
    gpu_processes: int | None = 1
    attached: bool = False
    start: float = 0.0  # counters before the load

    def __post_init__(self) -> None:
        self.answers = [
            Answer(chr(ord("A") + i), self.tokens - 2 * i, 100 + i, sent_s=1.0 + 0.001 * i) for i in range(self.n)
        ]
        self.calls: list[tuple[float, int]] = []  # time, busy slots
        self.play()

    def play(self) -> None:
        now = 1.01
        while not all(answer.over for answer in self.answers):
            if not self.at_once:
                self._send_next(now)
            self._assign(now)
            running = [a for a in self.answers if a.slot is not None and not a.over]
            if running:
                now = self._step(running, now)
            else:
                now += STEP_S

    def _send_next(self, now: float) -> None:
        for before, answer in zip(self.answers, self.answers[1:], strict=False):
            if answer.slot is None and not answer.times:
                answer.sent_s = before.end_s + 0.001 if before.over else float("inf")
        del now

    def _assign(self, now: float) -> None:
        taken = {a.slot for a in self.answers if a.slot is not None and not a.over}
        for answer in self.answers:
            free = [slot for slot in range(self.slots) if slot not in taken]
            if answer.slot is None and answer.sent_s <= now and free:
                answer.slot = free[0]
                taken.add(free[0])

    def _step(self, running: list[Answer], now: float) -> float:
        groups = [running] if self.shares else [[answer] for answer in running]
        busy = len(running)
        for group in groups:
            now += PREFILL_S if any(answer.left for answer in group) else STEP_S
            self.calls.append((now, busy))
            for answer in group:
                answer.left = 0
                answer.times.append(now)
        return now

    # --- rows -------------------------------------------------------------------------------------------

    @property
    def end_s(self) -> float:
        return max(answer.end_s for answer in self.answers)

    def scrape_times(self) -> list[float]:
        count = int((self.end_s + 0.1 - 0.5) / SCRAPE_S) + 1
        return [0.5 + i * SCRAPE_S for i in range(count)] + [self.end_s + 0.15]

    def values(self, at_s: float) -> dict[str, float | None]:
        over = [answer for answer in self.answers if answer.end_s <= at_s]
        begun = [answer for answer in self.answers if answer.times and answer.times[0] <= at_s]
        on_slot = self.processing(at_s)
        calls = [busy for time_s, busy in self.calls if time_s <= at_s]
        n_decode = self.start + len(calls)
        busy_sum = 2 * self.start + sum(calls)
        values: dict[str, float | None] = {
            "prompt_tokens_total": self.start + PROMPT * len(begun),
            "tokens_predicted_total": self.start + sum(answer.tokens for answer in over),
            "n_decode_total": n_decode,
            "n_busy_slots_per_decode": float(f"{busy_sum / n_decode:.6g}") if n_decode else None,
            "predicted_tokens_seconds": 33.0,
            "requests_processing": on_slot,
            "requests_deferred": max(0, self.open(at_s) - on_slot),
        }
        if at_s > 1.05:
            values = {name: (value or 0) + self.bias.get(name, 0) for name, value in values.items()}
        values |= dict.fromkeys(self.no_value, None)
        return {name: value for name, value in values.items() if name not in self.absent}

    def open(self, at_s: float) -> int:
        return sum(answer.sent_s <= at_s < answer.end_s for answer in self.answers)

    def processing(self, at_s: float) -> int:
        return min(self.slots, self.open(at_s))

    def metrics_rows(self, arm: str) -> list[dict[str, Any]]:
        return [
            {"arm": arm, "sent_s": t, "received_s": t + 0.004, "status": 200, "error": None, "values": self.values(t)}
            for t in self.scrape_times()
        ]

    def memory_rows(self, arm: str) -> list[dict[str, Any]]:
        rows = []
        for at_s in self.scrape_times():
            share = min(1.0, max(0.0, at_s - 1.0) / (self.end_s - 1.0))
            gpu = {"used_bytes": int((5000 + (self.gpu_grows_mib or 0) * share) * MIB), "utilisation_percent": 80}
            gpus = [gpu | {"processes": self.gpu_processes}] if self.gpu_grows_mib is not None else []
            resident = int((800 + self.grows_mib * share) * MIB)
            rows.append({"arm": arm, "at_s": at_s, "resident_bytes": resident, "gpus": gpus})
        return rows

    def poll_rows(self, arm: str) -> list[dict[str, Any]]:
        return [
            {"arm": arm, "sent_s": t, "received_s": t + 0.004, "status": 200, "error": None, "slots": self.slot_rows(t)}
            for t in self.scrape_times()
        ]

    def slot_rows(self, at_s: float) -> list[dict[str, Any]]:
        rows = []
        for slot in range(self.slots):
            mine = [a for a in self.answers if a.slot == slot and a.sent_s <= at_s < a.end_s]
            on = mine[0] if mine else None
            decoded = sum(t <= at_s for t in on.times) if on else 0
            rows.append(
                {"id": slot, "busy": on is not None, "id_task": on and on.seed, "seed": on and on.seed, "n_ctx": 4096,
                 "n_decoded": decoded, "n_prefilled": PROMPT, "n_cells": PROMPT + decoded}
            )  # fmt: skip
        return rows

    def request_row(self, arm: str, answer: Answer) -> dict[str, Any]:
        first, last = answer.times[0], answer.times[-1]
        timings = {"prompt_n": PROMPT, "prompt_ms": PREFILL_S * 1e3, "cache_n": 0, "predicted_n": answer.tokens,
                   "predicted_ms": (last - first) * 1e3}  # fmt: skip
        return {
            "arm": arm, "label": answer.label, "seed": answer.seed, "max_tokens": answer.tokens, "warm_up": False,
            "id_slot_asked": None, "planned_s": answer.sent_s, "sent_s": answer.sent_s, "headers_s": first,
            "first_event_s": first, "first_token_s": first, "first_answer_s": first, "last_token_s": last,
            "end_s": answer.end_s, "status": 200, "outcome": "completed", "error": None, "finish_reason": "length",
            "truncated": False, "id_slot": answer.slot, "tokens": len(answer.times), "pings": 0, "timings": timings,
            "prompt": None, "text": None,
        }  # fmt: skip

    def facts(self, title: str) -> dict[str, Any]:
        described = server(self.slots) | {"attached": self.attached, "llama_server_command": "llama-server -np 2"}
        described["build"] = {"number": self.build, "package": "a wheel", "reported": "b0-unknown"}
        resets = None if self.build is None else self.build > 11433
        return {
            "title": title, "server": described, "planned": {"requests": [{} for _ in self.answers]},
            "prompt_tokens": {answer.label: PROMPT for answer in self.answers}, "load_start_s": 0.9,
            "load_end_s": self.end_s + 0.2, "quiet_after_s": 0.01, "server_alive": True,
            "traits": {"scrape_resets_gauges": {"holds": resets, "known_by": "rule"}},
        }  # fmt: skip


ANSWER = {"status": 501, "said": "This server does not support metrics endpoint. Start it with `--metrics`"}
TITLES = {"at_once": "all at once", "one_by_one": "one after another"}


def counted(load: Counted | None = None, alone: Counted | None = None, **parameters: Any) -> RunData:
    """Return a run of 04: its load, and the same one after another unless it is None."""
    load = load or Counted()
    run: dict[str, Any] = {"arms": {}, "parameters": {"one_by_one": alone is not None} | parameters}
    run["provenance"] = {"cores": 2, "cpu": "a CPU", "memory_bytes": 2**34, "gpus": [], "os": "an OS"}
    data = RunData(run | {"notebook": "04_metrics_and_gpu"})
    for arm, scene in {"at_once": load, "one_by_one": alone}.items():
        if scene is None:
            continue
        data.run["arms"][arm] = scene.facts(TITLES[arm])
        data.requests.extend(scene.request_row(arm, answer) for answer in scene.answers)
        data.tokens.extend(
            {"arm": arm, "label": answer.label, "warm_up": False, "i": i, "at_s": at_s}
            for answer in scene.answers
            for i, at_s in enumerate(answer.times, start=1)
        )
        data.slots.extend(scene.poll_rows(arm))
        data.metrics.extend(scene.metrics_rows(arm))
        data.memory.extend(scene.memory_rows(arm))
    data.run["arms"]["metrics_off"] = {"server": {}, "answer": dict(ANSWER)}
    return data


def full(**changes: Any) -> RunData:
    """Return a run with both arms, the load's changed."""
    return counted(Counted(**changes), Counted(at_once=False, build=changes.get("build", 10229)))
