"""Is memory flat during a load? Resident memory of the server's process, and the GPUs' as NVML says.

The KV cache is allocated when the server starts (src/llama-kv-cache.cpp), so a load should add next to
nothing. How much it would have added, if cells were allocated when they are first used, is worked out
beside it: where that is below the tolerance, a flat line says nothing about the KV cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from labkit.analyze.metrics_and_gpu.view import CounterArm
from labkit.analyze.rows import in_main_memory, kv_devices
from labkit.analyze.verdict import INCONCLUSIVE, NOT_TESTED, REFUTED, SUPPORTED, Check

MIB = 2**20
MIN_SAMPLES = 5
DEFAULT_TOLERANCE_MIB = 8.0
EXPECTED = "it grows by at most {:g} MiB from before the load to any moment in it"


@dataclass(frozen=True)
class MemoryChange:
    """How one kind of memory changed over a load.

    Args:
        before_bytes: in the last sample before the load.
        least_bytes: the smallest during and right after it. most_bytes: the largest.
        samples: samples during the load.
        to_its_end: there is a sample after the load too: none stopped in the middle of it.
    """

    before_bytes: int
    least_bytes: int
    most_bytes: int
    samples: int
    to_its_end: bool

    @property
    def growth_mib(self) -> float:
        """By how much it grew at most."""
        return (self.most_bytes - self.before_bytes) / MIB


def memory_change(arm: CounterArm, kind: str) -> MemoryChange | None:
    """Return how memory changed over the arm's load; None without a sample before it or any after.

    Args:
        arm: the arm.
        kind: "resident_bytes", or "gpu_used_bytes": all GPUs together.
    """
    start_s, end_s = arm.span_s or (0.0, 0.0)
    cards = max((len(row["gpus"]) for row in arm.memory), default=0)
    samples = [(row["at_s"], _value(row, kind, cards)) for row in arm.memory]
    known = [(at_s, value) for at_s, value in samples if value is not None]
    before = [value for at_s, value in known if at_s <= start_s]
    later = [value for at_s, value in known if at_s > start_s]
    during = sum(start_s < at_s <= end_s for at_s, _ in known)
    to_its_end = any(at_s >= end_s for at_s, _ in known)
    return MemoryChange(before[-1], min(later), max(later), during, to_its_end) if before and later else None


def _value(row: dict[str, Any], kind: str, cards: int) -> int | None:
    used = [row[kind]] if kind == "resident_bytes" else [gpu["used_bytes"] for gpu in row["gpus"]]
    there = kind == "resident_bytes" or len(used) == cards  # a card that is missing once would seem to free memory
    return sum(int(value) for value in used) if used and there and None not in used else None


def tolerance_mib(run: dict[str, Any]) -> float:
    """Return the tolerance that the run was made with."""
    return float((run.get("parameters") or {}).get("memory_tolerance_mib") or DEFAULT_TOLERANCE_MIB)


def cells_mib(arm: CounterArm) -> float | None:
    """Return what the KV cells of the requests that ran at once take; None if something for it isn't known."""
    effective, prompts = arm.rows.effective, arm.facts.get("prompt_tokens") or {}
    needs = sorted(prompts.get(row["label"], 0) + row["max_tokens"] for row in arm.requests)
    kv_bytes, cells, slots = effective.get("kv_bytes"), effective.get("pool_cells"), effective.get("slots")
    if not kv_bytes or not cells or not slots or not needs:
        return None
    return float(sum(needs[-slots:]) * kv_bytes / cells / MIB)


def resident_check(arm: CounterArm, run: dict[str, Any]) -> Check:
    """Judge the resident memory of the server's process."""
    limit = tolerance_mib(run)
    status, observed, why, hint = _not_sampled(arm) or _elsewhere(arm) or _flat(arm, "resident_bytes", limit)
    claim = "resident memory of the server's process stays flat during the load"
    return Check("resident_memory", claim, status, observed, EXPECTED.format(limit), why, hint)


def gpu_check(arm: CounterArm, run: dict[str, Any]) -> Check:
    """Judge the memory in use on the GPUs, of all processes together; utilisation is never judged."""
    limit = tolerance_mib(run)
    status, observed, why, hint = _not_sampled(arm) or _no_gpu(arm) or _gpu_flat(arm, limit)
    claim = "memory in use on the GPU stays flat during the load"
    return Check("gpu_memory", claim, status, observed, EXPECTED.format(limit), why, hint)


def _not_sampled(arm: CounterArm) -> tuple[str, str, str, str] | None:
    if arm.attached:
        return NOT_TESTED, "not sampled", "the server isn't ours, and its machine may be another", ""
    if trouble := arm.trouble():
        return INCONCLUSIVE, "not to be judged", *trouble
    return None


def _elsewhere(arm: CounterArm) -> tuple[str, str, str, str] | None:
    # the host's side of a GPU backend grows on its own: staging buffers, the driver's tables
    devices = kv_devices(arm.rows.effective)
    if devices and not any(map(in_main_memory, devices)):
        return NOT_TESTED, "not judged", f"the KV cache is on {', '.join(devices)}, not in main memory", ""
    return None


def _no_gpu(arm: CounterArm) -> tuple[str, str, str, str] | None:
    if not any(row["gpus"] for row in arm.memory):
        return NOT_TESTED, "not sampled", "no NVIDIA GPU on this machine", ""
    devices = kv_devices(arm.rows.effective)
    if devices and all(map(in_main_memory, devices)):
        return NOT_TESTED, "not judged", "this server keeps its KV cache in main memory, not on the GPU", ""
    return None


def _flat(arm: CounterArm, kind: str, limit_mib: float) -> tuple[str, str, str, str]:
    change = memory_change(arm, kind)
    if change is None or change.samples < MIN_SAMPLES:
        some = change.samples if change else 0
        return INCONCLUSIVE, f"{some} samples", "too few samples to say", "a larger memory_hz or answer_tokens"
    before = change.before_bytes / MIB
    observed = f"{before:,.0f} MiB before the load, {change.growth_mib:+.1f} MiB at most, {change.samples} samples"
    if change.growth_mib > limit_mib:
        return REFUTED, observed, "it grew by more than the tolerance", ""
    if (fell_mib := before - change.least_bytes / MIB) > limit_mib:
        why = f"it fell by {fell_mib:,.0f} MiB: what was given back may hide what was taken"
        return INCONCLUSIVE, observed, why, "a machine that nothing else is short of memory on, a GPU of its own"
    if not change.to_its_end:
        return INCONCLUSIVE, observed, "the last sample was taken before the load was over", "run it again"
    return SUPPORTED, observed, _meaning(arm, kind, limit_mib), ""


def _meaning(arm: CounterArm, kind: str, limit_mib: float) -> str:
    cells = cells_mib(arm)
    devices = kv_devices(arm.rows.effective)
    if not devices and any(row["gpus"] for row in arm.memory):
        return "it is flat; whether the KV cache is there isn't known, so that says nothing about it"
    if kind == "resident_bytes" and not all(map(in_main_memory, devices)):
        return f"it is flat; the KV cache is on {', '.join(devices)}, so that says nothing about it"
    if cells is None:
        return "it is flat; what the load's KV cells take is not known, so that says nothing about them"
    if cells <= limit_mib:
        return f"it is flat; the load's KV cells take {cells:.1f} MiB, too little to tell when they were reserved"
    return f"the load's KV cells take {cells:.1f} MiB, and were there before: KV is reserved at start"


def _gpu_flat(arm: CounterArm, limit_mib: float) -> tuple[str, str, str, str]:
    status, observed, why, hint = _flat(arm, "gpu_used_bytes", limit_mib)
    processes = {gpu.get("processes") for row in arm.memory for gpu in row["gpus"]}
    if status == REFUTED and not processes <= {0, 1}:
        why = "it grew, but NVML counts the memory of every process, and this server's may not be the only one"
        return INCONCLUSIVE, observed, why, "a GPU that nobody else uses"
    return status, observed, why, hint
