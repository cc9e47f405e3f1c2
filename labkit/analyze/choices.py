"""What a choice of settings means, worked out before anything starts: cells, bytes, and words of warning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from labkit.analyze.frames import Column, tidy
from labkit.analyze.kv import KvSize, predicted_kv
from labkit.settings import ServerSettings
from labkit.settings.context import AUTO_SLOTS, Context, effective_context

if TYPE_CHECKING:
    import pandas as pd

CHOICES = {
    "what": Column("str", "", "what follows from the settings"),
    "value": Column("str", "", "by rule, before anything starts"),
}


@dataclass(frozen=True)
class Choices:
    """What settings mean for one model.

    Args:
        context: slots and cells by rule.
        kv: KV memory by rule.
        warnings: sentences, where a choice means something else than it seems.
    """

    context: Context
    kv: KvSize
    warnings: tuple[str, ...]


def choices(settings: ServerSettings, facts: Mapping[str, Any]) -> Choices:
    """Work out what a server with these settings would have.

    Args:
        settings: of the server.
        facts: the model's header facts, by name.
    """
    train = facts.get("n_ctx_train")
    context = effective_context(
        settings.ctx_size,
        settings.parallel,
        settings.kv_unified,
        n_ctx_train=train,
        per_slot_cells=settings.kv_unified_per_slot,
    )
    kv = predicted_kv({"asked": settings.model_dump(), "model": {"facts": dict(facts)}})
    rules = (_slots_words, _pool_words, _slot_words, _batch_words, _cache_words)
    return Choices(context, kv, tuple(text for rule in rules for text in rule(settings, context, train)))


def _slots_words(settings: ServerSettings, _context: Context, _train: int | None) -> list[str]:
    if settings.parallel == "auto":
        ignored = "; the box for each slot that you chose is ignored" if not settings.kv_unified else ""
        return [f"Left to itself the server takes {AUTO_SLOTS} slots and one pool of KV cells for all{ignored}."]
    said = []
    if settings.kv_unified and settings.parallel > 1:
        said.append(
            "An explicit --parallel alone would turn the shared pool off: it is kept by --kv-unified, which has to"
            " stand beside it."
        )
    if settings.parallel == 1:
        said.append("One slot: a second request waits without a slot, whatever continuous batching says.")
    if not settings.cont_batching and settings.parallel > 1:
        said.append("Without continuous batching a new prompt waits on its slot until no other slot decodes.")
    return said


def _pool_words(settings: ServerSettings, context: Context, _train: int | None) -> list[str]:
    said = []
    if context.pool_cells != settings.ctx_size:
        what = "cells are padded to 256s" if context.kv_unified else "each box is padded to 256s"
        said.append(f"{settings.ctx_size:,} cells asked for, {context.pool_cells:,} allocated: {what}.")
    if context.kv_unified and context.slots > 1:
        said.append(
            "The slots share the pool: when running requests together need more than it has, every one of them fails."
        )
    if not context.kv_unified and context.slots > 1:
        said.append(
            f"The cells are divided: a request longer than {context.slot_cells:,} tokens, prompt and answer, does not"
            " fit any slot, even when all others are empty."
        )
    return said


def _slot_words(_settings: ServerSettings, context: Context, train: int | None) -> list[str]:
    if not train or context.slot_cells != train or context.share_cells <= train:
        return []
    share = f"its share would be {context.share_cells:,}"
    return [f"A slot is capped at {train:,} cells, the model's training context; {share}."]


def _batch_words(settings: ServerSettings, _context: Context, _train: int | None) -> list[str]:
    said = []
    if settings.ubatch_size > settings.batch_size:
        said.append(f"A physical batch above the logical one is cut to it: {settings.batch_size:,} tokens.")
    if settings.batch_size > settings.ctx_size:
        said.append(f"A batch never has more tokens than there are cells: {settings.ctx_size:,}.")
    return said


def _cache_words(settings: ServerSettings, _context: Context, _train: int | None) -> list[str]:
    if settings.flash_attn == "off" and settings.cache_type_v not in ("f32", "f16", "bf16"):
        return ["A quantised V cache needs flash attention: such a server does not start."]
    return []


def choices_table(found: Choices, command: str) -> pd.DataFrame:
    """Return what a panel shows while its knobs move, as a table.

    Args:
        found: of choices().
        command: the server's command line.
    """
    rows = [
        ("command", command),
        ("slots", str(found.context.slots)),
        ("KV cache", "one pool for all slots" if found.context.kv_unified else "a box for each slot"),
        ("KV cells in all", f"{found.context.pool_cells:,}"),
        ("KV cells a slot may use", f"{found.context.slot_cells:,}"),
        ("KV memory", kv_text(found.kv)),
        *(("mind", text) for text in found.warnings),
    ]
    return tidy([dict(zip(CHOICES, row, strict=True)) for row in rows], CHOICES)


def kv_text(kv: KvSize) -> str:
    """Return KV memory in MiB, or why it is not predicted."""
    return f"not predicted: {kv.why}" if kv.bytes is None else f"{kv.bytes / 2**20:,.1f} MiB"
