"""How llama-server turns a context size, a slot count and a KV mode into cells: pure arithmetic.

Source: src/llama-context.cpp (padding, shares), tools/server/server.cpp (auto) and
tools/server/server-context.cpp (cap to the training context).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PADDING_CELLS = 256
AUTO_SLOTS = 4


@dataclass(frozen=True)
class Context:
    """What a server makes of what it was asked for.

    Args:
        slots: slots.
        kv_unified: one pool for all slots; else a box for each.
        pool_cells: KV cells allocated in all.
        share_cells: KV cells that one slot could use by its share: the pool, or its box.
        slot_cells: KV cells that one slot may use: its share, capped to the training context.
    """

    slots: int
    kv_unified: bool
    pool_cells: int
    share_cells: int
    slot_cells: int


def effective_context(
    ctx_size: int,
    parallel: int | Literal["auto"],
    kv_unified: bool,
    *,
    n_ctx_train: int | None = None,
    per_slot_cells: int | None = None,
) -> Context:
    """Return the cells that a server has, by rule.

    Args:
        ctx_size: cells asked for; 0: the cap on each slot times the slots, if there is one (newer builds), else
            the model's training context.
        parallel: slots asked for; "auto": left to the server, which takes 4 and a unified cache
            whatever `kv_unified` says.
        kv_unified: KV mode asked for.
        n_ctx_train: the model's training context in tokens; None: not known, no cap.
        per_slot_cells: cap on each slot of a unified pool (newer builds); None: none.
    """
    auto = parallel == "auto" or int(parallel) < 0
    slots, unified = (AUTO_SLOTS, True) if auto else (int(parallel), kv_unified)
    capped = slots * per_slot_cells if unified and per_slot_cells else 0
    cells = padded(ctx_size or capped or n_ctx_train or PADDING_CELLS)
    share = cells if unified else padded(cells // slots)
    pool = cells if unified else share * slots
    caps = [cap for cap in (n_ctx_train, per_slot_cells if unified else None) if cap]
    return Context(slots, unified, pool, share, min([share, *caps]))


def padded(cells: int) -> int:
    """Return the next multiple of 256 cells."""
    return max(PADDING_CELLS, -(-cells // PADDING_CELLS) * PADDING_CELLS)
