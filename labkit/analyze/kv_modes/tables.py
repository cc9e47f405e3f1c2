"""Tables of notebook 02: what each server has, by rule and as measured, and what became of each request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labkit.analyze.frames import Column, tidy
from labkit.analyze.kv_modes.claims import LOADED, OTHER_UBATCH, SPLIT, SPLIT_ROOMY, STARTED, UNIFIED
from labkit.analyze.kv_modes.view import KvArm
from labkit.analyze.rows import RunRows

if TYPE_CHECKING:
    import pandas as pd

MIB = 2**20
ROWS = {
    UNIFIED: "unified",
    SPLIT: "split, same total",
    SPLIT_ROOMY: "split, same per slot",
    OTHER_UBATCH: "unified, other ubatch",
}
KV_SERVERS = {
    "server": Column("str", "", "arm"),
    "asked": Column("str", "", "what was passed"),
    "slots": Column("Int64", "", "as measured"),
    "KV": Column("str", "", "KV mode as measured"),
    "slot by rule": Column("Int64", "cells", "cells that one slot may use, by rule"),
    "slot measured": Column("Int64", "cells", "as /slots says"),
    "pool by rule": Column("Int64", "cells", "cells in all, by rule"),
    "pool measured": Column("Int64", "cells", "as the log says"),
    "KV MiB by rule": Column("Float64", "MiB", "from header, cells and cache type"),
    "KV MiB in log": Column("Float64", "MiB", "sum of the KV buffers"),
    "compute MiB": Column("Float64", "MiB", "sum of the compute buffers in the log"),
    "resident MiB": Column("Float64", "MiB", "what the server's process holds after its start"),
    "GPU MiB": Column("Float64", "MiB", "in use on all NVIDIA GPUs then; NA without any"),
}
KV_FATES = {
    "request": Column("str", "", "label"),
    "prompt": Column("Int64", "tokens", "as the server counts"),
    "answer": Column("Int64", "tokens", "asked for"),
    **{name: Column("str", "", "what became of it") for name in LOADED},
}


def kv_servers_table(data: RunRows) -> pd.DataFrame:
    """Return one row a server: asked, by rule and as measured.

    Args:
        data: a run whose servers were started.
    """
    return tidy([_server_row(arm) for name in STARTED if (arm := KvArm(data, name)).started], KV_SERVERS)


def _server_row(arm: KvArm) -> dict[str, Any]:
    asked, has, rule = arm.server["asked"], arm.effective, arm.by_rule
    mode = mode_name(asked["kv_unified"])
    return {
        "server": arm.name,
        "asked": f"ctx_size {asked['ctx_size']}, parallel {asked['parallel']}, {mode}, ubatch {asked['ubatch_size']}",
        "slots": has.get("slots"),
        "KV": mode_name(has.get("kv_unified")),
        "slot by rule": rule and rule.slot_cells,
        "slot measured": has.get("slot_cells"),
        "pool by rule": rule and rule.pool_cells,
        "pool measured": has.get("pool_cells"),
        "KV MiB by rule": _mib(arm.kv.bytes),
        "KV MiB in log": _mib(has.get("kv_bytes")),
        "compute MiB": _mib(has.get("compute_bytes")),
        "resident MiB": _mib(resident_bytes(arm) or None),
        "GPU MiB": _mib(gpu_bytes(arm) or None),
    }


def resident_bytes(arm: KvArm) -> int:
    """Return what the server's process held after its start; 0: not known."""
    return int((arm.facts.get("memory_at_start") or {}).get("resident_bytes") or 0)


def gpu_bytes(arm: KvArm) -> int:
    """Return what was in use on all NVIDIA GPUs after its server's start; 0: none, or not known."""
    gpus = (arm.facts.get("memory_at_start") or {}).get("gpus") or ()
    return sum(int(gpu["used_bytes"] or 0) for gpu in gpus)


def mode_name(kv_unified: bool | None) -> str:
    return "unknown" if kv_unified is None else "unified" if kv_unified else "split"


def _mib(size: int | None) -> float | None:
    return None if size is None else size / MIB


def kv_fates_table(data: RunRows) -> pd.DataFrame:
    """Return one row a mixed request, and what became of it in each mode.

    Args:
        data: a run with a load.
    """
    rows: dict[str, dict[str, Any]] = {}
    for name in LOADED:
        for fate in KvArm(data, name).fates:
            row = rows.setdefault(fate.label, {"request": fate.label, "prompt": fate.prompt, "answer": fate.answer})
            row[name] = fate.outcome
    return tidy(list(rows.values()), KV_FATES)
