"""Asked and effective, side by side: what a server was told and what it does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labkit.analyze.frames import Column, tidy

if TYPE_CHECKING:
    import pandas as pd

UNKNOWN = "unknown"
SETTINGS = {
    "setting": Column("str", "", "what is set"),
    "asked": Column("str", "", "as passed to the server"),
    "effective": Column("str", "", "as the server says; unknown where nothing tells"),
    "note": Column("str", "", "what a reader should notice"),
}


def settings_table(server: dict[str, Any]) -> pd.DataFrame:
    """Return one row a setting, asked beside effective.

    Args:
        server: an arm's `server` in run.json.
    """
    asked, effective = server["asked"], server["effective"] or {}
    missing = "not known" if server.get("attached") else ""
    context = server["model"]["facts"].get("n_ctx_train")
    rows = [
        ("slots (--parallel)", asked["parallel"], effective.get("slots"), _slots_note(asked)),
        (
            "KV cache",
            _mode(asked["kv_unified"]),
            _mode(effective.get("kv_unified")),
            mode_note(asked, effective),
        ),
        (
            "KV cells in all (--ctx-size)",
            asked["ctx_size"],
            effective.get("pool_cells"),
            pool_note(asked, effective),
        ),
        ("KV cells a slot may use", "", effective.get("slot_cells"), slot_note(effective, context)),
        (
            "continuous batching",
            _on(asked["cont_batching"]),
            _on(effective.get("cont_batching")),
            "no endpoint tells; the experiment does",
        ),
        ("logical batch (--batch-size)", asked["batch_size"], effective.get("batch_size"), "tokens a step"),
        ("physical batch (--ubatch-size)", asked["ubatch_size"], effective.get("ubatch_size"), ""),
        ("compute threads", asked["threads"], None, "physical cores unless asked otherwise"),
    ]
    return tidy(
        [
            dict(zip(SETTINGS, (name, _text(a, missing), _text(e, UNKNOWN), note), strict=True))
            for name, a, e, note in rows
        ],
        SETTINGS,
    )


def pool_note(asked: dict[str, Any], effective: dict[str, Any]) -> str:
    """Say how far the allocated cells are from the asked ones: the server pads to 256 (src/llama-context.cpp)."""
    pool = effective.get("pool_cells")
    if not pool or not asked["ctx_size"] or pool == asked["ctx_size"]:
        return ""
    return f"asked {asked['ctx_size']:,}, allocated {pool:,} ({pool / asked['ctx_size'] - 1:+.0%} KV memory)"


def mode_note(asked: dict[str, Any], effective: dict[str, Any]) -> str:
    """Say when the KV mode isn't the one asked for: without --parallel the server decides it alone."""
    got = effective.get("kv_unified")
    if None in (got, asked["kv_unified"]) or got == asked["kv_unified"]:
        return ""
    return f"you asked for {_mode(asked['kv_unified'])}, you got {_mode(got)}"


def slot_note(effective: dict[str, Any], n_ctx_train: int | None) -> str:
    """Say how a slot's cells come about: shared, its share, or capped to the training context."""
    slot, pool, slots = effective.get("slot_cells"), effective.get("pool_cells"), effective.get("slots")
    if slot is None or pool is None or not slots:
        return ""
    share = pool if effective.get("kv_unified") else pool // slots
    if n_ctx_train and slot == n_ctx_train < share:
        return f"capped to the model's training context; its share would be {share:,}"
    if effective.get("kv_unified"):
        if slot < share:
            return f"a cap of its own inside the shared pool of {pool:,}"
        return "each slot may use the whole pool, all share it" if slots > 1 else ""
    return f"a box of its own: {pool:,} / {slots}"


def _slots_note(asked: dict[str, Any]) -> str:
    return "left out: the server takes 4 and a unified KV cache" if asked["parallel"] == "auto" else ""


def _mode(kv_unified: bool | None) -> str | None:
    return None if kv_unified is None else "unified" if kv_unified else "split"


def _on(switch: bool | None) -> str | None:
    return None if switch is None else "on" if switch else "off"


def _text(value: Any, missing: str) -> str:
    if value is None:
        return missing
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
