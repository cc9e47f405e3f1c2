"""Cells by rule, against what users and live runs reported, and as properties."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.settings.context import effective_context


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ((1024, 3, False), (3, False, 1536, 512)),  # rounded up, though the log says down
        ((1000, 1, True), (1, True, 1024, 1024)),
        ((8192, 6, False), (6, False, 9216, 1536)),
        ((2048, "auto", False), (4, True, 2048, 2048)),  # the flag is ignored
        ((2048, -1, False), (4, True, 2048, 2048)),
        ((512, 4, True), (4, True, 512, 512)),
        ((512, 4, False), (4, False, 1024, 256)),
        ((1, 1, True), (1, True, 256, 256)),
    ],
)
def test_cells_are_as_seen_on_real_servers(asked: tuple[Any, ...], expected: tuple[Any, ...]) -> None:
    found = effective_context(*asked)
    assert (found.slots, found.kv_unified, found.pool_cells, found.slot_cells) == expected


def test_a_slot_is_capped_to_the_training_context_and_the_pool_is_not() -> None:
    found = effective_context(16384, 1, True, n_ctx_train=8192)
    assert (found.pool_cells, found.share_cells, found.slot_cells) == (16384, 16384, 8192)
    assert effective_context(0, 2, True, n_ctx_train=8192).pool_cells == 8192


def test_a_cap_for_each_slot_holds_in_a_unified_pool_alone() -> None:
    assert effective_context(1024, 4, True, per_slot_cells=256).slot_cells == 256
    assert effective_context(4096, 4, False, per_slot_cells=256).slot_cells == 1024
    # without a context size the pool is made of the caps
    capped = effective_context(0, 4, True, per_slot_cells=256, n_ctx_train=8192)
    assert (capped.pool_cells, capped.slot_cells) == (1024, 256)


@given(st.integers(1, 200_000), st.integers(1, 256), st.booleans(), st.integers(256, 131_072))
def test_what_always_holds(ctx_size: int, slots: int, unified: bool, trained: int) -> None:
    found = effective_context(ctx_size, slots, unified, n_ctx_train=trained)
    assert found.pool_cells % 256 == found.share_cells % 256 == 0
    assert ctx_size <= found.pool_cells
    assert found.slot_cells == min(found.share_cells, trained)
    assert found.pool_cells == found.share_cells * (1 if unified else slots)
    assert found.pool_cells - ctx_size < 256 * (1 if unified else slots + 1)
