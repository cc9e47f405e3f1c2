"""The notebook as its users run it: papermill on the command line, the executed copy, its exports."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.conftest import PROJECT

pytestmark = [pytest.mark.live, pytest.mark.notebook]
NOTEBOOK = PROJECT / "notebooks" / "03_late_arrival.ipynb"
TOY = ["-p", "model", "toy", "-p", "a_tokens", "1500", "-p", "b_tokens", "200", "-p", "poll_hz", "50"]
ALLOWED = {"image/png", "text/plain", "text/html"}


def papermill(*arguments: str, cwd: Path = PROJECT, notebook: Path | str = NOTEBOOK, **environment: str) -> Any:
    command = [sys.executable, "-m", "papermill", str(notebook), *arguments, "--no-progress-bar"]
    return subprocess.run(
        command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True, timeout=200, check=False
    )


def outputs(path: Path) -> list[Any]:
    return [out for cell in nbformat.read(path, as_version=4).cells for out in cell.get("outputs", [])]


def record(folder: Path) -> dict[str, Any]:
    (path,) = folder.rglob("run.json")
    return json.loads(path.read_text())  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One executed copy that several tests look at; its run used a key."""
    folder = tmp_path_factory.mktemp("executed")
    run = papermill(str(folder / "out.ipynb"), *TOY, "-p", "outputs", str(folder), LABKIT_API_KEY="labkit-key-9d2e")
    assert run.returncode == 0, run.stderr[-3000:]
    return folder / "out.ipynb"


def test_the_run_is_supported_and_its_record_complete(executed: Path) -> None:
    found = record(executed.parent)
    assert found["verdict"]["status"] == "supported"
    assert found["parameters"]["a_tokens"] == 1500
    treatment = found["arms"]["treatment"]["server"]
    assert treatment["build"]["number"] == 10229
    assert treatment["llama_server_command"].startswith("llama-server --model")
    assert treatment["model"]["licence"] == "MIT"
    (folder,) = (executed.parent / "03_late_arrival").iterdir()
    names = {path.name for path in folder.iterdir()}
    assert {"requests.jsonl", "tokens.jsonl", "slots.jsonl", "server-treatment.log", "slot_lanes.vl.json"} <= names


def test_the_verdict_stands_at_the_top_and_at_the_end(executed: Path) -> None:
    pages = [out["data"]["text/html"] for out in outputs(executed) if "text/html" in out.get("data", {})]
    assert "Verdict: supported" in pages[0]
    assert pages[0] == pages[-1]
    assert "papermill notebooks/03_late_arrival.ipynb" in pages[0]


def test_every_output_can_be_seen_without_a_kernel_a_widget_or_a_network(executed: Path) -> None:
    for out in outputs(executed):
        if out.output_type in ("display_data", "execute_result"):
            assert set(out["data"]) <= ALLOWED
            assert "image/png" in out["data"] or "text/html" in out["data"]
        else:
            assert out.output_type == "stream", out
    assert sum("image/png" in out.get("data", {}) for out in outputs(executed)) == 3
    text = executed.read_text()
    for word in ("cdn.jsdelivr", "vegalite", "widget-view", "VegaLite object"):
        assert word not in text


def test_pictures_carry_their_size_and_say_in_words_what_they_show(executed: Path) -> None:
    pictures = [out for out in outputs(executed) if "image/png" in out.get("data", {})]
    for picture in pictures:
        facts = picture["metadata"]["image/png"]
        assert 800 < facts["width"] < 1100
        assert len(facts["alt"]) > 40


def test_the_executed_copy_is_small(executed: Path) -> None:
    assert executed.stat().st_size < 1_000_000


def test_it_exports_to_html_with_its_pictures_inside(executed: Path) -> None:
    page = executed.with_suffix(".html")
    command = [sys.executable, "-m", "nbconvert", "--to", "html", str(executed), "--output", str(page)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    text = page.read_text()
    assert len(re.findall(r'<img[^>]+src="data:image/png;base64', text)) == 3
    assert not re.findall(r'<img[^>]+src="http', text)
    assert 'alt="' in text


def test_the_key_is_nowhere(executed: Path) -> None:
    files = [path for path in executed.parent.rglob("*") if path.is_file()]
    assert len(files) >= 8
    assert not [path for path in files if b"labkit-key-9d2e" in path.read_bytes()]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["-p", "paralel", "8"], "paralel is not a parameter of this notebook, did you mean parallel?"),
        pytest.param(
            ["-p", "kv_unified", "maybe"],
            "kv_unified = 'maybe' can't be used: it takes true or false",
            marks=pytest.mark.full,
        ),
        pytest.param(
            ["-p", "parallel", "0"],
            "parallel = 0 can't be used: it takes a whole number from 1",
            marks=pytest.mark.full,
        ),
        pytest.param(["-p", "parallel", "two"], "parallel = 'two' can't be used", marks=pytest.mark.full),
        pytest.param(
            ["-p", "ctx_size", "-5"],
            "ctx_size = -5 can't be used: it takes a whole number from 1",
            marks=pytest.mark.full,
        ),
        pytest.param(["-p", "poll_hz", "nan"], "poll_hz = nan can't be used", marks=pytest.mark.full),
        pytest.param(
            ["-p", "model", "/no/such.gguf"], "the model /no/such.gguf does not exist", marks=pytest.mark.full
        ),
        (["-p", "model", __file__], "is not a GGUF file"),
        (["-p", "model", "toy", "-p", "ctx_size", "256", "-p", "a_tokens", "300"], "KV cells, a slot has 256"),
        (["-p", "api_key", "x"], "make a new key, and pass it in the environment variable LABKIT_API_KEY"),
    ],
    ids=lambda value: value[1] + value[2] if isinstance(value, list) else "",
)
def test_bad_input_is_one_sentence_and_a_failed_job(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    run = papermill(str(tmp_path / "out.ipynb"), *arguments, "-p", "outputs", str(tmp_path))
    assert run.returncode != 0
    (error,) = [out for out in outputs(tmp_path / "out.ipynb") if out.output_type == "error"]
    assert len(error["traceback"]) == 1
    assert sentence in error["traceback"][0]
    assert not list(tmp_path.rglob("requests.jsonl"))  # nothing was sent


@pytest.mark.full
def test_a_string_that_means_true_is_true(tmp_path: Path) -> None:
    short = ["-p", "model", "toy", "-p", "a_tokens", "100", "-p", "control", "False", "-r", "kv_unified", "true"]
    run = papermill(str(tmp_path / "out.ipynb"), *short, "-p", "outputs", str(tmp_path))
    assert run.returncode == 0, run.stderr[-2000:]
    assert record(tmp_path)["parameters"]["kv_unified"] is True


def test_strict_fails_the_job_after_the_verdict_is_saved(tmp_path: Path) -> None:
    refuted = [*TOY, "-p", "cont_batching", "False", "-p", "control", "False", "-p", "strict", "True"]
    run = papermill(str(tmp_path / "out.ipynb"), *refuted, "-p", "outputs", str(tmp_path))
    assert run.returncode != 0
    found = outputs(tmp_path / "out.ipynb")
    assert record(tmp_path)["verdict"]["status"] == "refuted"
    kinds = [out.output_type for out in found]
    assert kinds[-1] == "error"
    assert "Verdict: refuted" in found[-2]["data"]["text/html"]
    assert "the verdict is refuted, and strict is on" in found[-1]["traceback"][0]


@pytest.mark.full
def test_it_runs_from_its_own_folder_with_its_params_file(tmp_path: Path) -> None:
    params = PROJECT / "params" / "03_late_arrival.quick.yaml"
    run = papermill(
        str(tmp_path / "out.ipynb"), "-f", str(params), "-p", "model", "toy", "-p", "outputs", str(tmp_path),
        cwd=NOTEBOOK.parent, notebook=NOTEBOOK.name,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    assert record(tmp_path)["parameters"]["a_tokens"] == 96


def test_help_lists_the_parameters() -> None:
    run = papermill("--help-notebook")
    assert run.returncode == 0
    assert "parallel: int (default 2)" in run.stdout
    assert "slots: requests that own a slot at once" in run.stdout
