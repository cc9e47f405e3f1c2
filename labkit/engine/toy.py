"""GGUF files with random weights: real engines without a real model's cost, or with the memory of a large one.

The toy is made in a second, and its tokens are single characters: a prompt's length in tokens is known
beforehand. A larger shape costs a GPU what a real model of that size does; its weights are one random block
over and over, so that writing them is all it takes, and its tokenizer is another model's.
All of them answer plain ASCII text: a server answers 500 to text that isn't valid.
"""

from __future__ import annotations

import itertools
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock

from labkit.errors import ModelError

VERSION = 1


@dataclass(frozen=True)
class Shape:
    """How large a model is; field names are the header's, `name` is the file's."""

    name: str
    n_embd: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    n_ff: int
    n_ctx_train: int


TOY = Shape("toy", n_embd=64, n_layers=2, n_heads=4, n_kv_heads=2, n_ff=128, n_ctx_train=4096)
# as Llama 3 8B but for the vocabulary: 14 GiB in f16, and 128 KiB of KV for each cell
SHAPES = {"toy-8b": Shape("toy-8b", n_embd=4096, n_layers=32, n_heads=32, n_kv_heads=8, n_ff=14336, n_ctx_train=32768)}

_SPECIAL = ["<unk>", "<s>", "</s>"]
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
# U+2581 is the SentencePiece space
_CHARACTERS = ["▁", *(chr(code) for code in range(33, 127))]
TOKENS = [*_SPECIAL, *_BYTES, *_CHARACTERS]
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
_TOKEN_TYPES = [_UNKNOWN, _CONTROL, _CONTROL, *[_BYTE] * 256, *[_NORMAL] * len(_CHARACTERS)]
CHAT_TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
# of byte-pair tokenizers, where Ġ is a space: letters alone, which no chat format takes for markup
_WORD = re.compile(r"Ġ?[A-Za-z]+")
_SEED = 20261129
_SPARE_BYTES = 2**30

AddTokenizer = Callable[[Any], None]
Matrix = Callable[[int, int], Any]


def toy_gguf(folder: Path, *, chat_template: bool = True) -> Path:
    """Return the toy model's path, writing it first if it isn't there.

    Args:
        folder: where it is kept.
        chat_template: give it a chat template.
    """
    plain = [len(token) == 1 and token.isascii() for token in TOKENS]

    def write(path: Path) -> None:
        weights = _weights(TOY, plain, _drawn())
        _write(path, TOY, weights, lambda writer: _add_tokenizer(writer, chat_template=chat_template))

    return _made(folder / f"toy-v{VERSION}{'' if chat_template else '-no-template'}.gguf", write)


def shaped_gguf(folder: Path, shape: Shape, *, vocabulary: Path, say: Callable[[str], None]) -> Path:
    """Return the path of a model with random f16 weights of a shape, writing it first if it isn't there.

    Args:
        folder: where it is kept.
        shape: how large it is.
        vocabulary: a GGUF file whose tokenizer and chat template it gets.
        say: gets a line before it is written.

    Raises:
        ModelError: it doesn't fit on the disk, or no token of the vocabulary is a word.
    """

    def write(path: Path) -> None:
        tokenizer, plain = _tokenizer_of(vocabulary)
        weights = _weights(shape, plain, _repeated(max(len(plain), shape.n_ff) * shape.n_embd, shape.n_embd))
        size = sum(weight.nbytes for weight in weights.values())
        _refuse_full_disk(folder, shape.name, size)
        say(f"writing {shape.name}: {size / 1e9:.1f} GB of random weights, once, to {folder}")
        _write(path, shape, weights, tokenizer)

    return _made(folder / f"{shape.name}-v{VERSION}.gguf", write)


def _made(path: Path, write: Callable[[Path], None]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(f"{path}.lock"):
        if not path.is_file():
            scratch = path.with_suffix(".tmp")
            try:
                write(scratch)
                scratch.replace(path)
            finally:
                with suppress(OSError):
                    scratch.unlink()
    return path


def _refuse_full_disk(folder: Path, name: str, size_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < size_bytes + _SPARE_BYTES:
        raise ModelError(
            f"{name} takes {size_bytes / 1e9:.1f} GB, the disk of {folder} has {free / 1e9:.1f} GB left",
            hint="LABKIT_CACHE = a folder on another disk",
        )


def _write(path: Path, shape: Shape, weights: dict[str, Any], add_tokenizer: AddTokenizer) -> None:
    from gguf import GGUFWriter, LlamaFileType

    writer = GGUFWriter(path, "llama")
    writer.add_name(f"labkit {shape.name}")
    writer.add_block_count(shape.n_layers)
    writer.add_context_length(shape.n_ctx_train)
    writer.add_embedding_length(shape.n_embd)
    writer.add_feed_forward_length(shape.n_ff)
    writer.add_head_count(shape.n_heads)
    writer.add_head_count_kv(shape.n_kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(shape.n_embd // shape.n_heads)
    half = weights["output.weight"].dtype == "float16"
    writer.add_file_type(LlamaFileType.MOSTLY_F16 if half else LlamaFileType.ALL_F32)
    add_tokenizer(writer)
    for name, weight in weights.items():
        writer.add_tensor(name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# --- tokenizers ---------------------------------------------------------------------------------------


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


def _tokenizer_of(path: Path) -> tuple[AddTokenizer, list[bool]]:
    """Return what copies a file's tokenizer, and which of its tokens are plain words."""
    from gguf import GGUFReader, GGUFValueType

    fields = {name: field for name, field in GGUFReader(path).fields.items() if name.startswith("tokenizer.")}
    tokens, types = (fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "token_type"))
    plain = [kind == _NORMAL and bool(_WORD.fullmatch(token)) for token, kind in zip(tokens, types, strict=True)]
    if not any(plain):
        raise ModelError(f"no token of {path} is a plain word", hint="a model with a byte-pair tokenizer")

    def add(writer: Any) -> None:
        writer.add_vocab_size(len(tokens))
        for name, field in fields.items():
            kind, *rest = field.types
            inner = rest[-1] if kind == GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), kind, sub_type=inner)

    return add, plain


# --- weights ------------------------------------------------------------------------------------------


def _drawn() -> Matrix:
    """Return what draws each matrix anew."""
    import numpy as np

    random = np.random.default_rng(_SEED)
    return lambda rows, columns: random.normal(0, columns**-0.5, (rows, columns)).astype(np.float32)


def _repeated(largest: int, n_embd: int) -> Matrix:
    """Return what cuts each matrix out of one random block, each from another place: views, no copies."""
    import numpy as np

    random = np.random.default_rng(_SEED)
    block = (random.standard_normal(largest + 2**20, dtype=np.float32) * np.float32(n_embd**-0.5)).astype(np.float16)
    cuts = itertools.count()

    def matrix(rows: int, columns: int) -> Any:
        start = next(cuts) * 4099 % (len(block) - rows * columns)
        return block[start : start + rows * columns].reshape(rows, columns)

    return matrix


def _weights(shape: Shape, plain: list[bool], matrix: Matrix) -> dict[str, Any]:
    import numpy as np

    n_embd, n_ff, norm = shape.n_embd, shape.n_ff, np.ones(shape.n_embd, np.float32)
    head_width = n_embd // shape.n_heads * shape.n_kv_heads
    # greedy decoding takes the largest logit: a zero row is never it among many random ones
    drawn = matrix(len(plain), n_embd)
    output = np.where(np.array(plain)[:, None], drawn, drawn.dtype.type(0))
    weights = {"token_embd.weight": matrix(len(plain), n_embd), "output.weight": output, "output_norm.weight": norm}
    shapes = {
        "attn_q": (n_embd, n_embd),
        "attn_k": (head_width, n_embd),
        "attn_v": (head_width, n_embd),
        "attn_output": (n_embd, n_embd),
        "ffn_gate": (n_ff, n_embd),
        "ffn_up": (n_ff, n_embd),
        "ffn_down": (n_embd, n_ff),
    }
    for layer in range(shape.n_layers):
        weights |= {f"blk.{layer}.{name}.weight": matrix(*size) for name, size in shapes.items()}
        weights |= {f"blk.{layer}.{name}.weight": norm for name in ("attn_norm", "ffn_norm")}
    return weights
