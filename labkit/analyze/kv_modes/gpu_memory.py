"""Does a GPU's memory follow the KV rule from one server of notebook 02 to the next?

What a server holds besides its KV (weights, the backend's own context) is the same for all of them and drops out
of a difference; its compute buffers are not, and are taken as its log names them.
"""

from __future__ import annotations

from collections.abc import Sequence

from labkit.analyze.kv import TOLERANCE
from labkit.analyze.kv_modes.view import KvArm
from labkit.analyze.rows import in_main_memory, kv_devices
from labkit.analyze.verdict import INCONCLUSIVE, NOT_TESTED, REFUTED, SUPPORTED, Check

MIB = 2**20
# cudaMalloc gives pages of 2 MiB: 2 % of less than this is a page or two
LEAST_BYTES = 200 * MIB
Outcome = tuple[str, str, str, str]  # status, observed, why, hint


def gpu_check(base: KvArm, others: Sequence[KvArm]) -> Check:
    """Judge whether GPU memory differs between servers as their KV does by rule.

    Args:
        base: the server that the others are compared with.
        others: those of the same model and physical batch; one that wasn't started is passed over.
    """
    started = [arm for arm in others if arm.started]
    status, observed, why, hint = _not_here(base) or _untold([base, *started]) or _judged(base, started)
    claim = "memory in use on the GPU differs from server to server by their KV memory"
    expected = f"the difference by rule, and what the logs say of compute buffers, within {TOLERANCE:.0%}"
    return Check("gpu_memory", claim, status, observed, expected, why, hint)


def _not_here(base: KvArm) -> Outcome | None:
    if not base.started:
        return NOT_TESTED, "not sampled", "no server to compare with was started", ""
    if not _gpus(base):
        return NOT_TESTED, "not sampled", "no NVIDIA GPU on this machine", ""
    devices = kv_devices(base.effective)
    if devices and all(map(in_main_memory, devices)):
        return NOT_TESTED, "not judged", "these servers keep their KV cache in main memory, not on the GPU", ""
    if base.kv.bytes is None:
        return NOT_TESTED, "not judged", f"the KV memory is not predicted: {base.kv.why}", ""
    return None


def _untold(arms: Sequence[KvArm]) -> Outcome | None:
    for arm in arms:
        if held_bytes(arm) is None:
            why = f"NVML does not tell what the server of {arm.name} holds, and others compute on this GPU"
            return INCONCLUSIVE, "not known", why, "a GPU that nobody else uses"
        if gpu_compute_bytes(arm) is None:
            why = f"the log of {arm.name} gives no compute buffers"
            return INCONCLUSIVE, "not known", why, "an engine that was started here, at its usual log level"
    return None


def _judged(base: KvArm, others: Sequence[KvArm]) -> Outcome:
    largest = max([arm.kv.bytes or 0 for arm in others], default=0) - (base.kv.bytes or 0)
    if largest < LEAST_BYTES:
        why = f"KV grows by {largest / MIB:,.0f} MiB at most, and GPU memory is handed out by 2 MiB"
        return NOT_TESTED, "not judged", why, "a larger ctx_size or parallel, with equal_per_slot"
    seen, wrong = [], []
    for arm in others:
        by_rule, found = expected_growth(base, arm), (held_bytes(arm) or 0) - (held_bytes(base) or 0)
        words = f"{arm.name} {found / MIB:+,.0f} MiB beside {base.name}, {by_rule / MIB:+,.1f} by rule"
        seen.append(words)
        if abs(found - by_rule) > TOLERANCE * (abs((arm.kv.bytes or 0) - (base.kv.bytes or 0)) or base.kv.bytes or 0):
            wrong.append(words)
    if wrong:
        return REFUTED, "; ".join(seen), wrong[0], ""
    why = f"{base.name} holds {(held_bytes(base) or 0) / MIB:,.0f} MiB, by {_witness(base)}"
    return SUPPORTED, "; ".join(seen), why, ""


def expected_growth(base: KvArm, arm: KvArm) -> int:
    """Return the bytes by which a server's GPU memory should differ from another's."""
    kv = (arm.kv.bytes or 0) - (base.kv.bytes or 0)
    return kv + (gpu_compute_bytes(arm) or 0) - (gpu_compute_bytes(base) or 0)


def gpu_compute_bytes(arm: KvArm) -> int | None:
    """Return the compute buffers that its log places on GPUs; None: it says nothing of them."""
    buffers = arm.effective.get("compute_by_device")
    if not buffers:
        return None
    return sum(int(n) for device, n in buffers.items() if not in_main_memory(device) and "Host" not in device)


def held_bytes(arm: KvArm) -> int | None:
    """Return what a server held on the GPUs before any load; None: nothing tells.

    NVML's figure for its process; where that isn't told, as in many containers, what all GPUs had in use more
    than before its start, if nobody else computed there.

    Args:
        arm: whose server was started.
    """
    own = [gpu.get("process_bytes") for gpu in _gpus(arm)]
    if own and any(size is not None for size in own):
        return sum(size or 0 for size in own)
    before, after = _gpus(arm, "memory_before_start"), _gpus(arm)
    alone = not any(gpu.get("processes") for gpu in before) and all((g.get("processes") or 0) <= 1 for g in after)
    used = [[gpu["used_bytes"] for gpu in gpus] for gpus in (before, after)]
    if not before or None in [*used[0], *used[1]] or not alone:
        return None
    return sum(size or 0 for size in used[1]) - sum(size or 0 for size in used[0])


def _gpus(arm: KvArm, sample: str = "memory_at_start") -> list[dict[str, int | None]]:
    return list((arm.facts.get(sample) or {}).get("gpus") or ())


def _witness(arm: KvArm) -> str:
    told = any(gpu.get("process_bytes") is not None for gpu in _gpus(arm))
    return "NVML's figure for its process" if told else "all in use on the GPU, less what was before its start"
