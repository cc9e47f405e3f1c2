"""A toy of another shape, with the default model's tokenizer: a real server loads it and answers in words."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

import labkit as lab
from labkit.engine.models import DEFAULT, resolve_model
from labkit.engine.toy import Shape, shaped_gguf
from labkit.measure.load import Load
from labkit.measure.stream import RequestRecord
from tests.live.lab import quiet

pytestmark = pytest.mark.live
SMALL = Shape("toy-small", n_embd=128, n_layers=3, n_heads=4, n_kv_heads=2, n_ff=448, n_ctx_train=2048)


async def answered(model: Path, tmp_path: Path) -> RequestRecord:
    settings = lab.ServerSettings(model=str(model), parallel=1, ctx_size=512)
    request = lab.RequestPlan(label="A", prompt="Tell me about the sea.", max_tokens=64, seed=1)
    async with lab.open_server(settings, log_path=tmp_path / "s.log", lock_timeout_s=60, say=quiet) as server:
        load = Load(lab.LoadPlan(requests=(request,)), arm="a", clock=lambda: 0.0, keep=lambda *_: None, show_text=True)
        return (await load.run(server.address))[0]


@pytest.mark.full
def test_it_answers_in_plain_words(tmp_path: Path) -> None:
    vocabulary = resolve_model(DEFAULT).path
    assert vocabulary is not None
    record = asyncio.run(answered(shaped_gguf(tmp_path, SMALL, vocabulary=vocabulary, say=quiet), tmp_path))
    assert (record.outcome, record.error, record.tokens) == ("completed", None, 64)
    assert re.fullmatch(r"[A-Za-z ]{64,}", record.text or "")
