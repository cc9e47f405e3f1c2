"""What the header of a GGUF file says, read through the gguf package."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.errors import ModelError


@dataclass(frozen=True)
class GgufFacts:
    """What the header of a GGUF file says; None where it doesn't.

    Args:
        n_kv_heads: KV heads of a layer; a list where the layers differ.
        head_size_k: width of one K head; head_size_v of one V head.
        n_ctx_train: tokens of context the model was trained with.
        quantisation: the file type's name, Q4_1 say.
        sliding_window: tokens, for models that have one.
        sliding_window_pattern: every how many layers one sees everything, or for each layer whether it slides.
        head_size_k_swa: width of one K head in sliding layers, where it is another; head_size_v_swa of V.
        shared_kv_layers: layers at the end that use the cache of an earlier one.
        latent_attention: K and V are kept as one (MLA).
    """

    architecture: str
    name: str | None
    n_layers: int | None
    n_heads: int | None
    n_kv_heads: int | list[int] | None
    head_size_k: int | None
    head_size_v: int | None
    n_embd: int | None
    n_ctx_train: int | None
    quantisation: str | None
    sliding_window: int | None
    has_chat_template: bool
    sliding_window_pattern: int | list[bool] | None = None
    head_size_k_swa: int | None = None
    head_size_v_swa: int | None = None
    shared_kv_layers: int | None = None
    latent_attention: bool = False


def read_facts(path: Path) -> GgufFacts:
    """Read a file's header; looks at every tensor's place too, so that a truncated file is noticed.

    Raises:
        ModelError: the file is damaged or truncated.
    """
    from gguf import GGUFReader

    try:
        reader = GGUFReader(path)
    except Exception:  # the reader raises whatever numpy or struct raise on what it finds
        raise ModelError(
            f"{path.name} is a damaged or truncated GGUF file",
            why=f"what its header announces does not fit into its {path.stat().st_size:,} bytes",
            hint="fetch the file again and compare its size",
        ) from None
    return facts_from(reader)


def facts_from(reader: Any) -> GgufFacts:
    """Return the facts in an open gguf.GGUFReader (key names: the GGUF specification)."""

    def value(key: str) -> Any:
        field = reader.get_field(key)
        return field.contents() if field else None

    arch = str(value("general.architecture"))
    n_heads, n_embd = value(f"{arch}.attention.head_count"), value(f"{arch}.embedding_length")
    # without a key of its own a head is the embedding divided by the heads (src/llama-hparams.cpp)
    head_size = n_embd // n_heads if isinstance(n_heads, int) and n_heads and n_embd else None
    return GgufFacts(
        architecture=arch,
        name=value("general.name"),
        n_layers=value(f"{arch}.block_count"),
        n_heads=n_heads if isinstance(n_heads, int) else None,
        n_kv_heads=_plain(value(f"{arch}.attention.head_count_kv") or n_heads),
        head_size_k=value(f"{arch}.attention.key_length") or head_size,
        head_size_v=value(f"{arch}.attention.value_length") or head_size,
        n_embd=n_embd,
        n_ctx_train=value(f"{arch}.context_length"),
        quantisation=_file_type(value("general.file_type")),
        sliding_window=value(f"{arch}.attention.sliding_window"),
        has_chat_template=value("tokenizer.chat_template") is not None,
        sliding_window_pattern=_plain(value(f"{arch}.attention.sliding_window_pattern")),
        head_size_k_swa=value(f"{arch}.attention.key_length_swa"),
        head_size_v_swa=value(f"{arch}.attention.value_length_swa"),
        shared_kv_layers=value(f"{arch}.attention.shared_kv_layers"),
        latent_attention=value(f"{arch}.attention.key_length_mla") is not None,
    )


def _plain(found: Any) -> Any:
    """Return a number or a list of them as JSON keeps it."""
    return [item.item() if hasattr(item, "item") else item for item in found] if isinstance(found, list) else found


def _file_type(number: int | None) -> str | None:
    from gguf import LlamaFileType

    with suppress(ValueError):
        return LlamaFileType(number).name.removeprefix("MOSTLY_") if number is not None else None
    return f"unknown file type {number}"
