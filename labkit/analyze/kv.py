"""KV memory by rule: from a model's header facts, cells and cache types to bytes. Pure arithmetic.

Sources: src/llama-kv-cache.cpp (a K and a V row for each cell and layer), src/llama-kv-cache-iswa.cpp (the second,
smaller cache of sliding layers) and, for which layers slide, src/models/*.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from labkit.settings.context import Context, effective_context, padded

TOLERANCE = 0.02
LOG_ROUNDING_BYTES = 0.005 * 2**20  # the log gives a buffer in MiB with two decimals


@dataclass(frozen=True)
class Sliding:
    """Which layers of an architecture slide.

    Args:
        period: one layer in so many sees everything; None: only the header's list says which.
        full_first: that layer is the first of its group, not the last.
        window: tokens, where the header says none; override: also where it does.
        layers: only models of so many layers slide; None: all.
        needs_window: without a window in the header no layer slides.
        cached_layers: only so many layers from the first have a cache; the others use those.
    """

    period: int | None
    full_first: bool = False
    window: int | None = None
    override: bool = False
    layers: int | None = None
    needs_window: bool = True
    cached_layers: int | None = None


# names as in general.architecture (src/llama-arch.cpp), rules as in src/models/<name>.cpp at b10156
SLIDING = {
    "afmoe": Sliding(4),
    "cohere2": Sliding(4),
    "cohere2moe": Sliding(4, full_first=True),
    "exaone-moe": Sliding(4, window=128, needs_window=False),
    "exaone4": Sliding(4, window=4096, layers=64, needs_window=False),
    "gemma2": Sliding(2, window=4096, needs_window=False),
    "gemma3": Sliding(6),
    "gemma3n": Sliding(5, cached_layers=20),
    "gemma4": Sliding(None),
    "gpt-oss": Sliding(2),
    "laguna": Sliding(4, full_first=True),
    "llama4": Sliding(4, window=8192, override=True, needs_window=False),
    "mellum": Sliding(4),
    "mimo2": Sliding(None),
    "olmo2": Sliding(4),
    "plamo3": Sliding(8),
    "smallthinker": Sliding(4, full_first=True, window=4096, override=True),
    "step35": Sliding(None),
}

# they keep a state for each sequence beside cells, or instead of them (src/llama-arch.cpp), or a cache of another shape
OTHER_MEMORY = frozenset({
    "arwkv7", "deepseek32", "deepseek4", "dflash", "eagle3", "falcon-h1", "gemma4-assistant", "glm-dsa",
    "granitehybrid", "hy_v3", "jamba", "kimi-linear", "lfm2", "lfm2moe", "mamba", "mamba2", "minimax-m3",
    "nemotron_h", "nemotron_h_moe", "plamo2", "qwen35", "qwen35moe", "qwen3next", "rwkv6", "rwkv6qwen2", "rwkv7",
})  # fmt: skip


@dataclass(frozen=True)
class KvSize:
    """KV memory of one server, by rule.

    Args:
        bytes: of all its KV buffers; None: not predicted.
        cells: in all, for the layers that see everything.
        sliding_cells: in all, for the layers that slide; 0: none does.
        layers: that see everything and have a cache; sliding_layers: that slide.
        why: why it is not predicted.
    """

    bytes: int | None
    cells: int = 0
    sliding_cells: int = 0
    layers: int = 0
    sliding_layers: int = 0
    why: str = ""


def kv_size(
    facts: Mapping[str, Any],
    context: Context,
    *,
    ubatch_size: int = 512,
    cache_type_k: str = "f16",
    cache_type_v: str = "f16",
    swa_full: bool = False,
) -> KvSize:
    """Return the KV memory that a server allocates when it starts.

    Args:
        facts: a model's header facts, as run.json keeps them in `arms.<arm>.server.model.facts`.
        context: cells by rule, of effective_context().
        ubatch_size: physical batch in tokens: a sliding cache has room for one more of them.
        cache_type_k: type of the K cache; cache_type_v of the V cache.
        swa_full: `--swa-full`: sliding layers get as many cells as the others.
    """
    if why := _not_predicted(facts):
        return KvSize(None, why=why)
    slides = sliding_layers(facts)
    streams = 1 if context.kv_unified else context.slots
    full, sliding = context.share_cells * streams, 0
    if any(slides):
        sliding = full if swa_full else streams * _sliding_cells(facts, context, ubatch_size)
    row = [_row_bytes(facts, i, slide, cache_type_k, cache_type_v) for i, slide in enumerate(slides)]
    return KvSize(
        bytes=sum(size * (sliding if slide else full) for size, slide in zip(row, slides, strict=True)),
        cells=full,
        sliding_cells=sliding,
        layers=slides.count(False),
        sliding_layers=slides.count(True),
    )


def _not_predicted(facts: Mapping[str, Any]) -> str:
    arch = str(facts.get("architecture"))
    if arch in OTHER_MEMORY:
        return f"the architecture {arch} keeps more than cells of K and V"
    missing = [name for name in ("n_layers", "n_kv_heads", "head_size_k", "head_size_v") if not facts.get(name)]
    if missing:
        return f"the model's header says nothing of {', '.join(missing)}"
    heads = facts["n_kv_heads"]
    if isinstance(heads, list) and len(heads) != facts["n_layers"]:
        return f"the header lists KV heads of {len(heads)} layers, the model has {facts['n_layers']}"
    rule = SLIDING.get(arch)
    listed = facts.get("sliding_window_pattern")
    if rule and rule.period is None and not (isinstance(listed, list) and len(listed) == facts["n_layers"]):
        return f"the header does not say which layers of {arch} slide"
    return ""


def _window(facts: Mapping[str, Any]) -> int:
    """Return the sliding window in tokens; 0: no layer slides."""
    rule = SLIDING.get(str(facts.get("architecture")))
    said = facts.get("sliding_window")
    if rule is None or (rule.layers and facts["n_layers"] != rule.layers) or (rule.needs_window and not said):
        return 0
    if said == 0:
        return 0
    return int((rule.window if rule.override else said or rule.window) or 0)


def sliding_layers(facts: Mapping[str, Any]) -> list[bool]:
    """Return, for each layer with a cache of its own, whether it slides.

    Args:
        facts: of kv_size().
    """
    rule, window = SLIDING.get(str(facts.get("architecture"))), _window(facts)
    count = int(facts["n_layers"]) - int(facts.get("shared_kv_layers") or 0)
    if rule is None or not window:
        return [False] * count
    listed = facts.get("sliding_window_pattern")
    if isinstance(listed, list):
        slides = [bool(slide) for slide in listed[:count]]
    else:
        period = int(listed) if listed is not None else int(rule.period or 1)
        slides = [_slides(i, period, full_first=rule.full_first) for i in range(count)]
    return slides[: rule.cached_layers]


def _slides(layer: int, period: int, *, full_first: bool) -> bool:
    # llama_hparams::set_swa_pattern; a period of 0 means that all slide
    if period == 0:
        return True
    return layer % period != 0 if full_first else layer % period < period - 1


def _sliding_cells(facts: Mapping[str, Any], context: Context, ubatch_size: int) -> int:
    """Return the cells of one stream of the sliding cache: every sequence's window and one physical batch."""
    sequences = context.slots if context.kv_unified else 1
    return padded(min(context.share_cells, _window(facts) * sequences + ubatch_size))


def _row_bytes(facts: Mapping[str, Any], layer: int, slides: bool, type_k: str, type_v: str) -> int:
    """Return the bytes of one cell in one layer."""
    heads = facts["n_kv_heads"]
    n = int(heads[layer] if isinstance(heads, list) else heads)
    k, v = (
        int((facts.get(f"{name}_swa") if slides else None) or facts[name]) for name in ("head_size_k", "head_size_v")
    )
    return type_bytes(type_k, n * k) + (0 if facts.get("latent_attention") else type_bytes(type_v, n * v))


def type_bytes(name: str, values: int) -> int:
    """Return the bytes of so many values of a ggml type, block by block.

    Args:
        name: f16, q8_0 and so on.
        values: how many.
    """
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    block, size = GGML_QUANT_SIZES[GGMLQuantizationType[name.upper()]]
    return int(-(-values // block) * size)


def agrees(predicted: int, logged: int) -> bool:
    """Whether a prediction is within 2 % of the log's figure, or within the log's own rounding.

    Args:
        predicted: bytes by rule.
        logged: bytes in the log.
    """
    return abs(predicted - logged) <= max(TOLERANCE * logged, 2 * LOG_ROUNDING_BYTES)


# --- one server, asked and by rule --------------------------------------------------------------------


def predicted_context(server: Mapping[str, Any]) -> Context | None:
    """Return the cells that a recorded server should have, from what it was asked for; None: not known.

    Args:
        server: an arm's `server` in run.json.
    """
    asked, facts = server.get("asked") or {}, (server.get("model") or {}).get("facts") or {}
    parallel, ctx_size = asked.get("parallel"), asked.get("ctx_size")
    if parallel is None or not isinstance(ctx_size, int) or asked.get("kv_unified") is None:
        return None
    return effective_context(
        ctx_size,
        parallel,
        bool(asked["kv_unified"]),
        n_ctx_train=facts.get("n_ctx_train"),
        per_slot_cells=asked.get("kv_unified_per_slot"),
    )


def predicted_kv(server: Mapping[str, Any]) -> KvSize:
    """Return the KV memory that a recorded server should have.

    Args:
        server: an arm's `server` in run.json.
    """
    context = predicted_context(server)
    if context is None:
        return KvSize(None, why="it is not known what the server was asked for")
    asked = server["asked"]
    # batches are limited to the context as asked for (src/llama-context.cpp)
    ubatch = min(asked["ubatch_size"], asked["batch_size"], asked["ctx_size"])
    types = {name: asked.get(name) or "f16" for name in ("cache_type_k", "cache_type_v")}
    full = "--swa-full" in (asked.get("extra_args") or ())
    return kv_size(server["model"]["facts"], context, ubatch_size=ubatch, swa_full=full, **types)
