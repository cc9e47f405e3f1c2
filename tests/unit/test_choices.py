"""What settings mean, before anything starts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.analyze.choices import choices, choices_table, kv_text
from labkit.engine.flags import from_argv
from labkit.engine.preview import preview_command
from labkit.errors import EngineError
from labkit.settings import ServerSettings

# SmolLM2-135M's header
FACTS = {
    "architecture": "llama",
    "n_layers": 30,
    "n_kv_heads": 3,
    "head_size_k": 64,
    "head_size_v": 64,
    "n_ctx_train": 8192,
}


def said(**settings: Any) -> str:
    return " ".join(choices(ServerSettings(**settings), FACTS).warnings)


def test_cells_and_bytes_are_those_of_the_rules() -> None:
    found = choices(ServerSettings(ctx_size=1000, parallel=3, kv_unified=False), FACTS)
    assert (found.context.slots, found.context.slot_cells, found.context.pool_cells) == (3, 512, 1536)
    assert found.kv.bytes == 1536 * 30 * 2 * 3 * 64 * 2
    assert kv_text(found.kv) == "33.8 MiB"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "explicit --parallel alone would turn the shared pool off"),
        ({}, "every one of them fails"),
        ({"parallel": "auto"}, "the server takes 4 slots and one pool"),
        ({"parallel": "auto", "kv_unified": False}, "is ignored"),
        ({"parallel": 1}, "a second request waits without a slot"),
        ({"cont_batching": False}, "waits on its slot until no other slot decodes"),
        ({"ctx_size": 1000}, "1,000 cells asked for, 1,024 allocated"),
        ({"kv_unified": False}, "longer than 2,048 tokens"),
        ({"ctx_size": 16384}, "capped at 8,192 cells, the model's training context; its share would be 16,384"),
        ({"ubatch_size": 4096}, "cut to it: 2,048"),
        ({"ctx_size": 1024}, "A batch never has more tokens than there are cells: 1,024"),
        ({"flash_attn": "off", "cache_type_v": "q8_0"}, "does not start"),
    ],
)
def test_a_choice_that_means_something_else_is_said_in_words(settings: dict[str, Any], words: str) -> None:
    assert words in said(**settings)


def test_what_means_what_it_seems_is_not_warned_of() -> None:
    assert said(parallel=1, ctx_size=4096) == said(parallel=1)
    assert "padded" not in said(ctx_size=4096)
    assert "capped" not in said(ctx_size=8192)
    assert "divided" not in said(kv_unified=True)
    assert "shared pool off" not in said(kv_unified=False)


def test_a_model_whose_memory_is_not_predicted_is_named() -> None:
    found = choices(ServerSettings(), {"architecture": "mamba", "n_ctx_train": 2048})
    assert kv_text(found.kv) == "not predicted: the architecture mamba keeps more than cells of K and V"


def test_the_table_has_the_command_and_every_warning() -> None:
    found = choices(ServerSettings(ctx_size=1000), FACTS)
    table = choices_table(found, "llama-server --ctx-size 1000")
    assert table["value"][0] == "llama-server --ctx-size 1000"
    assert table["value"][table["what"] == "mind"].tolist() == list(found.warnings)


@given(st.integers(1, 32), st.integers(256, 20_000), st.booleans(), st.booleans(), st.sampled_from([32, 512, 2048]))
def test_the_previewed_command_says_what_was_chosen(
    parallel: int, ctx_size: int, kv_unified: bool, cont_batching: bool, batch_size: int
) -> None:
    asked = {
        "parallel": parallel,
        "ctx_size": ctx_size,
        "kv_unified": kv_unified,
        "cont_batching": cont_batching,
        "batch_size": batch_size,
    }
    values, rest = from_argv(preview_command(ServerSettings(**asked), "/models/a.gguf").split()[1:])
    assert {name: values[name] for name in asked} == asked
    assert values["model_path"] == "/models/a.gguf"
    assert rest == []


def test_a_preview_names_the_binary_and_a_url_has_none() -> None:
    assert preview_command(ServerSettings(engine="/opt/llama-server"), "m").startswith("/opt/llama-server --model m")
    assert preview_command(ServerSettings(engine="http://127.0.0.1:8080"), "m") == ""
    assert "--port 1234" in preview_command(ServerSettings(port=1234), "m")
    with pytest.raises(EngineError, match="extra_args can't set --parallel"):
        preview_command(ServerSettings(engine="/x", extra_args=("--parallel", "3")), "m")
