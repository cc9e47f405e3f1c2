"""The command's own part: words to values, sentences and exit codes. What it runs is tested elsewhere."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from labkit.errors import EngineError
from labkit.present import cli, execute, stick
from labkit.present.outcome import Outcome
from labkit.present.progress import Progress
from tests.recorded import run_json, write_run


def labkit(*arguments: str) -> Any:
    return CliRunner().invoke(cli.main, list(arguments))


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """What would have been run; each is supported."""
    calls: list[tuple[str, dict[str, Any]]] = []
    folder = write_run(tmp_path)

    def fake(notebook: Path, parameters: dict[str, Any], **_: Any) -> Outcome:
        calls.append((notebook.stem, parameters))
        return Outcome(folder / "03_late_arrival.ipynb", folder, run_json())

    monkeypatch.setattr(execute, "execute", fake)
    return calls


def test_parameters_are_typed_as_papermill_does_and_the_later_one_wins(ran: list[Any], tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("parallel: 4\nctx_size: 512\n")
    done = labkit(
        "run", "03", "-p", "parallel", "2", "-p", "control", "False", "-p", "seed", "None", "-p", "poll_hz", "2.5",
        "-p", "model", "toy", "-f", str(tmp_path / "p.yaml"), "-y", "ctx_size: 1\na_tokens: 9",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    given = {"parallel": 2, "control": False, "seed": None, "poll_hz": 2.5, "model": "toy"}
    assert ran == [("03_late_arrival", {"ctx_size": 512, "a_tokens": 9} | given)]


def test_the_last_line_of_a_run_is_json(ran: list[Any]) -> None:
    lines = labkit("run", "03_late_arrival.ipynb", "--quiet").stdout.splitlines()
    assert lines[0] == "Verdict: supported"
    assert json.loads(lines[-1])["exit_code"] == 0


def test_compare_is_06_with_two_runs(ran: list[Any], tmp_path: Path) -> None:
    folder = str(tmp_path / "03_late_arrival" / "20261130T120000Z-abcd")
    assert labkit("compare", folder, str(tmp_path), "-p", "changed", "build").exit_code == 0
    assert ran == [("06_compare_runs", {"before": folder, "after": str(tmp_path), "changed": "build"})]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "99_none"], "99_none names no notebook. Try: one of 00_build"),
        (["run", "0"], "0 names several notebooks"),
        (["run", "03", "-f", "/no/such.yaml"], "/no/such.yaml can't be read"),
        (["run", "03", "-y", "[1, 2]"], "-y does not hold names with values"),
        (["run", "03", "-p", "parallel"], "requires 2 arguments"),
        (["nonsense"], "No such command"),
        (["pack", "/nowhere"], "/nowhere is no run"),
        (["compare", "/nowhere", "/nowhere"], "/nowhere is no run"),
        (["clean", "/etc/passwd"], "is not in the list, so nothing is removed"),
        (["report", "03", "-p", "paralel", "2", "--to", "{tmp}"], "paralel is not a parameter of any"),
        (["fetch"], "Missing option '--to'"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_wrong_arguments_are_one_sentence_and_exit_2(arguments: list[str], sentence: str, tmp_path: Path) -> None:
    done = labkit(*[word.replace("{tmp}", str(tmp_path)) for word in arguments])
    assert done.exit_code == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_is_no_notebook_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.ipynb").write_text("[]")
    done = labkit("run", str(tmp_path / "mine.ipynb"), "-p", "outputs", str(tmp_path))
    assert (done.exit_code, "mine.ipynb is not a notebook" in done.stderr) == (2, True)


def test_what_the_library_raises_decides_the_exit_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise EngineError("there is no engine")

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(stick, "fetch_to", fails)
    done = labkit("fetch", "--to", str(tmp_path))
    assert (done.exit_code, done.stderr) == (3, "EngineError: there is no engine.\n")
    monkeypatch.setattr(stick, "fetch_to", interrupted)
    assert labkit("fetch", "--to", str(tmp_path)).exit_code == 130


def test_a_notebook_is_meant_by_number_name_or_path(tmp_path: Path) -> None:
    assert execute.find_notebook("03") == execute.find_notebook("03_late_arrival") == execute.notebooks()[3]
    (tmp_path / "mine.ipynb").write_text("{}")
    assert execute.find_notebook(str(tmp_path / "mine.ipynb")) == tmp_path / "mine.ipynb"
    assert [path.stem[:2] for path in execute.notebooks()] == ["00", "01", "02", "03", "04", "05", "06"]


def test_progress_is_plain_lines_where_there_is_no_terminal() -> None:
    out = io.StringIO()
    progress = Progress("03", out=out)
    progress.write("warming 2 slots\n\nsending\n")
    progress.count(3, 9)
    progress.done()
    assert out.getvalue() == "03: warming 2 slots\n03: sending\n"


def test_progress_is_one_changing_line_on_a_terminal() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    progress = Progress("03", out=out)
    progress.count(3, 9)
    progress.say("sending " + "x" * 500)
    progress.done()
    assert "\n" not in out.getvalue()
    assert "03 3/9, 0 s  sending" in out.getvalue()
    assert max(map(len, out.getvalue().split("\r"))) < 200
    assert out.getvalue().endswith("\r\x1b[2K")


def test_quiet_is_quiet() -> None:
    out = io.StringIO()
    progress = Progress("03", quiet=True, out=out)
    progress.say("x")
    progress.done()
    assert out.getvalue() == ""


def test_the_stick_has_every_pin_and_not_the_kit_itself() -> None:
    text = stick.requirements()
    assert "xllamacpp==" in text
    assert "-e" not in text
    assert "#" not in text
