"""The labkit command on the real engine: each exit code by a real situation, Ctrl-C, and what it leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest

from tests.conftest import ended, heed_interrupts

pytestmark = pytest.mark.live
LABKIT = [sys.executable, "-c", "from labkit.present.cli import main; main(prog_name='labkit')"]
TOY = ["-p", "model", "toy", "-p", "a_tokens", "1500", "-p", "b_tokens", "200", "-p", "poll_hz", "50"]
SHORT = [*TOY, "-p", "control", "False"]


def labkit(*arguments: str, cwd: Path, **environment: str) -> Any:
    return subprocess.run(
        [*LABKIT, *arguments], cwd=cwd, env=os.environ | environment, capture_output=True, text=True, timeout=200,
        check=False,
    )  # fmt: skip


def last_line(text: str) -> dict[str, Any]:
    return json.loads(text.splitlines()[-1])  # type: ignore[no-any-return]


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def write_notebook(path: Path, *sources: str) -> Path:
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources]), path)
    return path


@pytest.fixture(scope="module")
def supported(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One supported run, from a folder that has nothing to do with the kit; its answers are kept."""
    folder = tmp_path_factory.mktemp("elsewhere")
    return labkit("run", "03", *TOY, "-p", "outputs", "runs", "-p", "keep_text", "True", cwd=folder), folder


@pytest.mark.full
def test_0_supported_with_everything_in_the_run_folder(supported: Any) -> None:
    done, folder = supported
    assert done.returncode == 0, done.stderr
    line = last_line(done.stdout)
    assert (line["verdict"], line["exit_code"], line["error"]) == ("supported", 0, None)
    run = Path(line["run"])
    assert run.parent == folder / "runs" / "03_late_arrival"
    assert {"03_late_arrival.ipynb", "03_late_arrival.html", "03_late_arrival.md", "run.json"} <= names_in(run)
    assert names_in(folder / "runs") == {"03_late_arrival"}  # no copy is left elsewhere
    assert "03_late_arrival: treatment: sending 2 requests" in done.stderr
    assert "\x1b" not in done.stderr + done.stdout
    assert all(line.startswith("03_late_arrival: ") for line in done.stderr.splitlines()), done.stderr


@pytest.mark.full
def test_its_page_is_small_and_whole(supported: Any) -> None:
    page = Path(last_line(supported[0].stdout)["page"])
    text = page.read_text()
    assert page.stat().st_size < 3_000_000
    assert text.count("data:image/svg+xml;base64,") + text.count("data:image/png;base64,") == 3
    assert "http" not in text.replace("http-equiv", "").replace("threads_http", "").replace("--threads-http", "")


@pytest.mark.full
def test_its_pack_has_no_answer_and_no_folder_of_this_machine(supported: Any, tmp_path: Path) -> None:
    done, folder = supported
    run = Path(last_line(done.stdout)["run"])
    answer = json.loads((run / "requests.jsonl").read_text().splitlines()[-1])["text"]
    packed = labkit("pack", str(run), "-o", str(tmp_path / "t.zip"), cwd=folder, HOME=str(folder))
    assert packed.returncode == 0, packed.stderr
    with zipfile.ZipFile(tmp_path / "t.zip") as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
    assert {"report.html", "summary.md", "manifest.json", "server-treatment.log", "tokens.jsonl"} <= set(found)
    hidden = (str(folder).encode(), json.dumps(answer)[1:-1].encode(), answer.encode())
    assert not [name for name, data in found.items() if any(text in data for text in hidden)]


@pytest.mark.full
def test_1_refuted_without_continuous_batching(tmp_path: Path) -> None:
    done = labkit("run", "03", *SHORT, "-p", "cont_batching", "False", "-p", "outputs", ".", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert last_line(done.stdout)["verdict"] == "refuted"


@pytest.mark.parametrize(
    ("arguments", "code", "name"),
    [
        (["-p", "paralel", "8"], 2, "ParameterError"),
        (["-p", "model", "/no/such.gguf"], 3, "ModelError"),
        (["-p", "engine", "/no/such/llama-server"], 3, "EngineError"),
        (["-p", "model", "toy", "-p", "port", "{taken}"], 3, "PortInUseError"),
    ],
)
@pytest.mark.full
def test_2_and_3_what_can_not_be_run_is_refused(tmp_path: Path, arguments: list[str], code: int, name: str) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = [word.replace("{taken}", str(taken.getsockname()[1])) for word in arguments]
        done = labkit("run", "03", *words, "-p", "outputs", ".", "--quiet", cwd=tmp_path)
    line = last_line(done.stdout)
    assert (done.returncode, line["exit_code"], line["error"]["name"]) == (code, code, name)
    assert Path(line["notebook"]).is_file()
    assert Path(line["page"]).is_file()
    assert "03_late_arrival:" not in done.stderr


@pytest.mark.full
def test_3_a_gpu_asked_for_and_absent(tmp_path: Path) -> None:
    from labkit.engine.gpu import gpus

    if gpus():
        pytest.skip("there is one")
    wanted = ["-p", "engine", "build", "-p", "backend", "cuda", "-p", "outputs", "."]
    done = labkit("run", "00", *wanted, cwd=tmp_path)
    assert done.returncode == 3, done.stdout


@pytest.mark.full
def test_4_inconclusive_where_a_was_over_too_early(tmp_path: Path) -> None:
    done = labkit("run", "03", *SHORT, "-p", "a_tokens", "9", "-p", "outputs", ".", cwd=tmp_path)
    assert done.returncode == 4, done.stdout
    assert last_line(done.stdout)["verdict"] == "inconclusive"


@pytest.mark.full
def test_5_a_notebook_crashed(tmp_path: Path) -> None:
    done = labkit("run", str(write_notebook(tmp_path / "mine.ipynb", "1 / 0")), "-p", "outputs", ".", cwd=tmp_path)
    assert done.returncode == 5
    assert last_line(done.stdout)["error"] == {"name": "ZeroDivisionError", "says": "division by zero"}


@pytest.mark.full
def test_5_the_kernel_was_killed(tmp_path: Path) -> None:
    mine = write_notebook(tmp_path / "mine.ipynb", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    done = labkit("run", str(mine), "-p", "outputs", ".", cwd=tmp_path)
    assert done.returncode == 5
    assert last_line(done.stdout)["error"]["name"] == "DeadKernelError"


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_130_an_interrupt_keeps_what_was_seen_and_leaves_no_server(tmp_path: Path, number: signal.Signals) -> None:
    # the default model's long answer, so that there is time to interrupt
    words = ["run", "03", "-p", "a_tokens", "1500", "-p", "outputs", "."]
    process = subprocess.Popen(
        [*LABKIT, *words], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=heed_interrupts,
    )  # fmt: skip
    assert process.stderr
    assert any("sending 2 requests" in line for line in process.stderr)
    time.sleep(1.0)
    children = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    assert len(children) >= 3  # kernel, supervisor, server
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    line = last_line(out)
    assert line["error"]["name"] == "KeyboardInterrupt"
    run = Path(line["run"])
    assert len((run / "tokens.jsonl").read_text().splitlines()) > 10
    assert nbformat.read(run / "03_late_arrival.ipynb", as_version=4).cells[0].source
    deadline = time.monotonic() + 10
    while not all(map(ended, children)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert all(map(ended, children))


@pytest.mark.full
def test_a_report_of_two_notebooks_has_an_index_and_the_worst_exit_code(tmp_path: Path) -> None:
    target = tmp_path / "report"
    words = ["-p", "model", "toy", "-p", "a_tokens", "1500", "-p", "outputs", str(tmp_path / "runs")]
    done = labkit("report", "03", "06", "--to", str(target), *words, cwd=tmp_path)
    names = names_in(target)
    assert {"index.html", "index.md", "03_late_arrival.html", "06_compare_runs.html", "06_compare_runs.ipynb"} <= names
    assert "supported" in (target / "index.md").read_text()
    assert done.returncode in (0, 1, 4), done.stderr  # two runs of the same: on a busy machine one may be slower
    assert done.stdout.splitlines()[-1] == str(target / "index.html")


@pytest.mark.full
def test_the_doctor_says_what_is_here(tmp_path: Path) -> None:
    done = labkit("doctor", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for name in ("engine, embedded", "model", "GPU", "build tools", "port", "disk", "03_late_arrival"):
        assert f"\n{name} " in f"\n{done.stdout}"
    assert labkit("doctor", "/no/such/llama-server", cwd=tmp_path).returncode == 3
