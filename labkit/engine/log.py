"""Facts that llama-server tells in its log alone: sizes of the KV cache, batch sizes, why it failed.

The log's lines are llama.cpp's (src/llama-context.cpp, src/llama-kv-cache.cpp, tools/server/); they need
`-lv 4`. A line that a build doesn't print leaves its fact at None.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class LogFacts:
    """What a start-up log says; None where it says nothing.

    Args:
        n_slots: slots.
        slot_cells: KV cells that one slot may use, capped to the training context.
        kv_unified: one pool (True) or a box for each slot (False).
        pool_cells: KV cells in all.
        batch_size: logical batch in tokens.
        ubatch_size: physical batch in tokens.
        kv_bytes: size of the KV buffers, all devices.
        compute_bytes: size of the compute buffers, all devices: scratch of one pass through the backend.
        compute_by_device: the same by device; a name with Host in it is main memory that a GPU can read.
        devices: names of the devices that hold KV.
        fitted: llama.cpp's fit step looked at the memory and may have changed what was left to it.
    """

    n_slots: int | None = None
    slot_cells: int | None = None
    kv_unified: bool | None = None
    pool_cells: int | None = None
    batch_size: int | None = None
    ubatch_size: int | None = None
    kv_bytes: int | None = None
    compute_bytes: int | None = None
    compute_by_device: dict[str, int] | None = None
    devices: tuple[str, ...] = ()
    fitted: bool = False


_CONTEXT = re.compile(r"llama_context: (n_ctx|n_batch|n_ubatch|kv_unified)\s*= (\w+)")
_SLOTS = re.compile(r"initializing(?: slots)?, n_slots = (\d+)(?:, n_ctx_slot = (\d+))?")
_KV_BUFFER = re.compile(r"(\S+) KV buffer size =\s*([\d.]+) MiB")
_COMPUTE_BUFFER = re.compile(r"(\S+) compute buffer size =\s*([\d.]+) MiB")


def parse_log(text: str) -> LogFacts:
    """Read a start-up log.

    Args:
        text: the log, from its start to the line that says the server listens.
    """
    context: dict[str, str] = {}
    for name, value in _CONTEXT.findall(text):
        # the fit step may create a context first; the one in use is named last
        context[name] = value
    slots = _SLOTS.search(text)
    buffers = _KV_BUFFER.findall(text)
    # reserved anew when something changes, and for the fit step's context: the last line of a device holds
    compute = dict(_COMPUTE_BUFFER.findall(text))
    return LogFacts(
        n_slots=int(slots[1]) if slots else None,
        slot_cells=int(slots[2]) if slots and slots[2] else None,
        kv_unified={"true": True, "false": False}.get(context.get("kv_unified", "")),
        pool_cells=_int(context.get("n_ctx")),
        batch_size=_int(context.get("n_batch")),
        ubatch_size=_int(context.get("n_ubatch")),
        kv_bytes=round(sum(float(mib) for _, mib in buffers) * 2**20) if buffers else None,
        compute_bytes=round(sum(map(float, compute.values())) * 2**20) if compute else None,
        compute_by_device={name: round(float(mib) * 2**20) for name, mib in compute.items()} or None,
        devices=tuple(dict.fromkeys(device for device, _ in buffers)),
        fitted="fitting params to device memory" in text,
    )


def _int(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None


_PORT_TAKEN = re.compile(r"couldn't bind HTTP server socket")
_MODEL_FAILED = re.compile(r"failed to load model|error loading model|llama_model_load:")
# the embedded engine's own word for a setting that its build lacks (labkit/engine/embedded_child.py)
_UNKNOWN_SETTING = re.compile(r"labkit: this xllamacpp build has none of the attributes (\S+)")
_REASON = re.compile(r"\bE (?:\S+\s+){0,3}?.*?: (.+)$|(error: .+)$", re.MULTILINE)


def failure(text: str) -> tuple[str, str]:
    """Say why a server failed to start: a kind ("port", "model", "setting", "other") and the log's own words.

    Args:
        text: the log. Its error lines carry an E after the time.
    """
    reasons = [first or second for first, second in _REASON.findall(text)]
    reason = reasons[0] if reasons else ""
    if _PORT_TAKEN.search(text):
        return "port", reason
    if _MODEL_FAILED.search(text):
        return "model", reason
    if unknown := _UNKNOWN_SETTING.search(text):
        return "setting", unknown[1]
    return "other", reason
