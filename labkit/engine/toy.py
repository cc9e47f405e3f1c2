"""A tiny GGUF with random weights, made in a second: a real engine without a real model's cost.

Its tokens are single characters, so a prompt's length in tokens is known beforehand. It always answers
printable ASCII: a server answers 500 to text that isn't valid.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import filelock

VERSION = 1
N_EMBD, N_LAYERS, N_HEADS, N_KV_HEADS, N_FF, N_CTX_TRAIN = 64, 2, 4, 2, 128, 4096

_SPECIAL = ["<unk>", "<s>", "</s>"]
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
# U+2581 is the SentencePiece space
_CHARACTERS = ["▁", *(chr(code) for code in range(33, 127))]
TOKENS = [*_SPECIAL, *_BYTES, *_CHARACTERS]
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
_TOKEN_TYPES = [_UNKNOWN, _CONTROL, _CONTROL, *[_BYTE] * 256, *[_NORMAL] * len(_CHARACTERS)]
CHAT_TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


def toy_gguf(folder: Path, *, chat_template: bool = True) -> Path:
    """Return the toy model's path, writing it first if it isn't there.

    Args:
        folder: where it is kept.
        chat_template: give it a chat template.
    """
    path = folder / f"toy-v{VERSION}{'' if chat_template else '-no-template'}.gguf"
    folder.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(f"{path}.lock"):
        if not path.is_file():
            scratch = path.with_suffix(".tmp")
            _write(scratch, chat_template=chat_template)
            scratch.replace(path)
    return path


def _write(path: Path, *, chat_template: bool) -> None:
    from gguf import GGUFWriter

    writer = GGUFWriter(path, "llama")
    writer.add_name("labkit toy")
    writer.add_block_count(N_LAYERS)
    writer.add_context_length(N_CTX_TRAIN)
    writer.add_embedding_length(N_EMBD)
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(N_HEADS)
    writer.add_head_count_kv(N_KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(N_EMBD // N_HEADS)
    writer.add_file_type(0)
    _add_tokenizer(writer, chat_template=chat_template)
    for name, weights in _weights().items():
        writer.add_tensor(name, weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: Any, *, chat_template: bool) -> None:
    writer.add_tokenizer_model("llama")
    writer.add_token_list(TOKENS)
    writer.add_token_scores([0.0] * len(TOKENS))
    writer.add_token_types(_TOKEN_TYPES)
    writer.add_vocab_size(len(TOKENS))
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_space_prefix(False)
    if chat_template:
        writer.add_chat_template(CHAT_TEMPLATE)


def _weights() -> dict[str, Any]:
    import numpy as np

    random = np.random.default_rng(20261129)
    head_width = N_EMBD // N_HEADS * N_KV_HEADS

    def matrix(rows: int, columns: int) -> Any:
        return random.normal(0, columns**-0.5, (rows, columns)).astype(np.float32)

    output = matrix(len(TOKENS), N_EMBD)
    # greedy decoding takes the largest logit: a zero row is never it among 94 random ones
    output[[i for i, token in enumerate(TOKENS) if not (len(token) == 1 and token.isascii())]] = 0
    weights = {"token_embd.weight": matrix(len(TOKENS), N_EMBD), "output.weight": output}
    weights["output_norm.weight"] = np.ones(N_EMBD, np.float32)
    for layer in range(N_LAYERS):
        shapes = {
            "attn_q": (N_EMBD, N_EMBD),
            "attn_k": (head_width, N_EMBD),
            "attn_v": (head_width, N_EMBD),
            "attn_output": (N_EMBD, N_EMBD),
            "ffn_gate": (N_FF, N_EMBD),
            "ffn_up": (N_FF, N_EMBD),
            "ffn_down": (N_EMBD, N_FF),
        }
        weights |= {f"blk.{layer}.{name}.weight": matrix(*shape) for name, shape in shapes.items()}
        norms = ("attn_norm", "ffn_norm")
        weights |= {f"blk.{layer}.{name}.weight": np.ones(N_EMBD, np.float32) for name in norms}
    return weights
