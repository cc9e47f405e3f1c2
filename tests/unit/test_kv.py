"""KV memory by rule: figures of real servers' logs, architectures from their sources, and what always holds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.analyze.kv import OTHER_MEMORY, SLIDING, agrees, kv_size, predicted_kv, sliding_layers, type_bytes
from labkit.settings import CACHE_TYPES, effective_context
from tests.synthetic import server

SMOLLM2 = {"architecture": "llama", "n_layers": 30, "n_kv_heads": 3, "head_size_k": 64, "head_size_v": 64}
GEMMA3 = {"architecture": "gemma3", "n_layers": 18, "n_kv_heads": 1, "head_size_k": 256, "head_size_v": 256,
          "sliding_window": 512}  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "asked", "more", "logged"),
    [
        (SMOLLM2, (4096, 2, True), {}, 94371840),
        (SMOLLM2, (4096, 2, False), {}, 94371840),
        (SMOLLM2, (1000, 3, False), {}, 35389440),
        (SMOLLM2, (8192, "auto", True), {}, 188743680),
        (SMOLLM2, (4096, 2, True), {"cache_type_k": "q8_0", "cache_type_v": "q8_0"}, 50132419),
        (GEMMA3, (4096, 2, True), {}, 36175872),
        (GEMMA3, (4096, 2, False), {}, 44040192),
        (GEMMA3, (4096, 2, True), {"ubatch_size": 128}, 32243712),
        (GEMMA3, (1000, 3, False), {}, 28311552),
        (GEMMA3, (8192, "auto", True), {}, 64487424),
        (GEMMA3, (8192, 4, False), {}, 88080384),
        (GEMMA3, (4096, 2, True), {"cache_type_k": "q8_0", "cache_type_v": "q8_0"}, 19220398),
    ],
)
def test_the_rule_gives_what_real_servers_logged(
    facts: dict[str, Any], asked: tuple[Any, ...], more: dict[str, Any], logged: int
) -> None:
    found = kv_size(facts, effective_context(*asked), **more).bytes
    assert found is not None
    assert agrees(found, logged)
    assert abs(found / logged - 1) < 0.0002  # the log's rounding alone


def test_a_wrong_size_does_not_agree() -> None:
    assert not agrees(94371840, 188743680)
    assert not agrees(97, 10**6)
    assert agrees(65536, 62915)  # 0.06 MiB in the log of a toy
    assert not agrees(0, 94371840)


@pytest.mark.parametrize(
    ("architecture", "more", "slides"),
    [
        ("llama", {"sliding_window": 4096}, "........"),  # its header may say so, llama.cpp does not
        ("gemma3", {"sliding_window": 512}, "sssss.ss"),
        ("gemma3", {}, "........"),
        ("gemma3", {"sliding_window": 512, "sliding_window_pattern": 2}, "s.s.s.s."),
        ("gemma2", {}, "s.s.s.s."),
        ("gpt-oss", {"sliding_window": 128}, "s.s.s.s."),
        ("cohere2moe", {"sliding_window": 4096}, ".sss.sss"),
        ("exaone4", {"sliding_window": 4096}, "........"),  # the 64 layers of the large one alone slide
        ("llama4", {"sliding_window": 0}, "........"),
        ("llama4", {}, "sss.sss."),
        ("gemma4", {"sliding_window": 512, "sliding_window_pattern": [True, False] * 4}, "s.s.s.s."),
        (
            "gemma4",
            {"sliding_window": 512, "sliding_window_pattern": [True, False] * 4, "shared_kv_layers": 3},
            "s.s.s",
        ),
        ("gemma3", {"sliding_window": 512, "sliding_window_pattern": 0}, "ssssssss"),
    ],
)
def test_which_layers_slide_is_known_for_each_architecture(
    architecture: str, more: dict[str, Any], slides: str
) -> None:
    facts = SMOLLM2 | {"architecture": architecture, "n_layers": 8} | more
    assert "".join("s" if slide else "." for slide in sliding_layers(facts)) == slides


def test_layers_that_use_an_earlier_cache_have_none() -> None:
    facts = SMOLLM2 | {"architecture": "gemma3n", "n_layers": 30, "sliding_window": 512}
    size = kv_size(facts, effective_context(4096, 1, True))
    assert size.layers + size.sliding_layers == 20
    assert (size.layers, size.sliding_layers) == (4, 16)


def test_latent_attention_keeps_one_row_and_layers_may_differ() -> None:
    context = effective_context(4096, 1, True)
    ordinary, latent = (kv_size(SMOLLM2 | {"latent_attention": flag}, context).bytes for flag in (False, True))
    assert ordinary == 2 * (latent or 0)
    uneven = kv_size(SMOLLM2 | {"n_layers": 2, "n_kv_heads": [1, 3]}, context).bytes
    assert uneven == 4096 * 2 * 2 * 64 * (1 + 3)


def test_swa_full_gives_every_layer_all_cells() -> None:
    context = effective_context(4096, 2, True)
    full = kv_size(GEMMA3, context, swa_full=True)
    assert full.bytes == kv_size(GEMMA3 | {"sliding_window": None}, context).bytes
    assert full.sliding_cells == 4096


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"architecture": "mamba2"}, "keeps more than cells"),
        ({"architecture": "unknown"}, "says nothing of n_layers"),
        (SMOLLM2 | {"n_kv_heads": [3, 3]}, "lists KV heads of 2 layers"),
        (SMOLLM2 | {"architecture": "gemma4", "sliding_window": 512}, "which layers of gemma4 slide"),
    ],
)
def test_what_can_not_be_predicted_is_said(facts: dict[str, Any], why: str) -> None:
    size = kv_size(facts, effective_context(4096, 2, True))
    assert size.bytes is None
    assert why in size.why


def test_no_architecture_is_in_both_lists() -> None:
    assert not OTHER_MEMORY & set(SLIDING)


@pytest.mark.parametrize(("name", "bytes_of_64"), [("f32", 256), ("f16", 128), ("q8_0", 68), ("q4_0", 36)])
def test_a_type_takes_its_blocks(name: str, bytes_of_64: int) -> None:
    assert type_bytes(name, 64) == bytes_of_64


def test_every_cache_type_of_the_settings_is_known() -> None:
    assert all(type_bytes(name, 64) > 0 for name in CACHE_TYPES)


@given(
    st.integers(1, 65536), st.integers(1, 16), st.integers(1, 64), st.integers(1, 8), st.sampled_from([64, 96, 128]),
    st.sampled_from(CACHE_TYPES),
)  # fmt: skip
def test_ordinary_models_cost_the_same_in_both_modes(
    ctx_size: int, slots: int, layers: int, heads: int, width: int, name: str
) -> None:
    facts = SMOLLM2 | {"n_layers": layers, "n_kv_heads": heads, "head_size_k": width, "head_size_v": width}
    pool, boxes = (effective_context(ctx_size, slots, unified) for unified in (True, False))
    sizes = [kv_size(facts, context, cache_type_k=name, cache_type_v=name).bytes for context in (pool, boxes)]
    row = 2 * layers * type_bytes(name, heads * width)
    assert sizes == [pool.pool_cells * row, boxes.pool_cells * row]
    assert 0 < (sizes[0] or 0) <= (sizes[1] or 0)


@given(st.integers(256, 65536), st.integers(1, 8), st.sampled_from([128, 512, 2048]), st.integers(64, 4096))
def test_sliding_layers_never_cost_more_than_full_ones(ctx_size: int, slots: int, ubatch: int, window: int) -> None:
    for unified in (True, False):
        context = effective_context(ctx_size, slots, unified)
        facts = GEMMA3 | {"sliding_window": window}
        size, full = (kv_size(facts, context, ubatch_size=ubatch, swa_full=flag) for flag in (False, True))
        assert (size.bytes or 0) <= (full.bytes or 0)
        assert size.cells == context.pool_cells
        assert size.sliding_cells % 256 == 0
        assert kv_size(facts, context, ubatch_size=2 * ubatch).bytes >= (size.bytes or 0)  # type: ignore[operator]


def test_a_recorded_servers_memory_is_predicted_from_what_it_was_asked() -> None:
    recorded = server()
    recorded["model"]["facts"] |= SMOLLM2
    assert predicted_kv(recorded).bytes == recorded["effective"]["kv_bytes"]
    recorded["asked"] |= {"kv_unified": None}
    assert predicted_kv(recorded).why == "it is not known what the server was asked for"
