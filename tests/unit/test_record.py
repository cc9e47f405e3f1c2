from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

import labkit as lab
from labkit.errors import ParameterError, RecordError
from labkit.measure.record import Run, outputs_folder


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    run = lab.open_run("03_late_arrival", lab.LateArrival(), outputs=str(tmp_path))
    yield run
    run.close()


def test_a_run_starts_with_a_record_that_says_not_run(run: Run) -> None:
    record = json.loads((run.folder / "run.json").read_text())
    assert record["verdict"] == {"status": "not_run", "checks": []}
    assert record["parameters"]["parallel"] == 2
    assert record["provenance"]["labkit"] == lab.__version__
    assert record["schema_version"] == 1


def test_lines_are_there_as_soon_as_they_are_appended(run: Run) -> None:
    run.append("tokens", {"i": 1})
    assert (run.folder / "tokens.jsonl").read_text() == '{"i": 1}\n'


def test_a_half_written_last_line_is_left_out(run: Run) -> None:
    run.append("tokens", {"i": 1})
    run.close()
    with (run.folder / "tokens.jsonl").open("a") as file:
        file.write('{"i": 2')
    assert lab.read_run(run.folder).tokens == [{"i": 1}]


def test_what_is_no_number_becomes_null(run: Run) -> None:
    run.append("tokens", {"a": math.nan, "b": [math.inf, 1.5], "c": {"d": -math.inf}})
    assert json.loads((run.folder / "tokens.jsonl").read_text()) == {"a": None, "b": [None, 1.5], "c": {"d": None}}


def test_secrets_are_taken_out_wherever_they_turn_up(run: Run) -> None:
    run.hide("s3cret")
    run.append("requests", {"error": "Invalid key s3cret"})
    run.update(note={"deep": ["s3cret"]})
    run.close()
    for path in run.folder.iterdir():
        assert "s3cret" not in path.read_text()
    assert "[redacted]" in (run.folder / "run.json").read_text()


def test_facts_of_an_arm_are_added_not_replaced(run: Run) -> None:
    run.note("control", a=1)
    run.note("control", b=2)
    assert lab.read_run(run.folder).run["arms"] == {"control": {"a": 1, "b": 2}}


def test_a_full_disk_is_one_clear_error_and_what_was_seen_stays(run: Run) -> None:
    run.append("requests", {"label": "A"})
    (run.folder / "tokens.jsonl").symlink_to("/dev/full")
    with pytest.raises(RecordError, match=r"can't be written: No space left on device.*outputs"):
        run.append("tokens", {"i": 1})
    assert lab.read_run(run.folder).requests == [{"label": "A"}]


def test_run_json_is_replaced_in_one_step(run: Run) -> None:
    before = (run.folder / "run.json").stat().st_ino
    run.update(note=1)
    assert (run.folder / "run.json").stat().st_ino != before
    assert not list(run.folder.glob("*.tmp"))


def test_the_clock_counts_from_the_start(tmp_path: Path) -> None:
    ticks = iter([100.0, 101.5])
    run = lab.open_run("x", lab.LateArrival(), outputs=str(tmp_path), clock=lambda: next(ticks))
    assert run.clock() == 1.5


def test_runs_go_to_the_projects_outputs_whatever_the_working_folder(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert outputs_folder("") == project / "outputs"
    assert outputs_folder("here") == tmp_path / "here"


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ParameterError, match=r"run folder .* can't be made"):
        lab.open_run("x", lab.LateArrival(), outputs=str(tmp_path / "file"))
    with pytest.raises(ParameterError, match="can't name a folder"):
        lab.open_run("../x", lab.LateArrival(), outputs=str(tmp_path))


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="is not a run folder"):
        lab.read_run(tmp_path)
    (tmp_path / "run.json").write_text('{"schema_version": 99}')
    with pytest.raises(ParameterError, match="schema 99"):
        lab.read_run(tmp_path)


def test_environment_variables_are_recorded_by_name_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_API_KEY", "s3cret")
    run = lab.open_run("x", lab.LateArrival(), outputs=str(tmp_path))
    text = (run.folder / "run.json").read_text()
    assert "LLAMA_ARG_API_KEY" in text
    assert "s3cret" not in text


def test_a_listener_hears_what_is_written_and_what_is_told_without_secrets(run: Run) -> None:
    heard: list[tuple[str, object]] = []
    run.listen(lambda stream, row: heard.append((stream, row)))
    run.hide("s3cret")
    run.append("tokens", {"text": "a s3cret"})
    run.tell("text", {"text": "s3cret"})
    run.note("treatment", title="s3cret")
    assert heard == [
        ("tokens", {"text": "a [redacted]"}),
        ("text", {"text": "[redacted]"}),
        ("arm", {"arm": "treatment", "title": "[redacted]"}),
    ]
    assert not (run.folder / "text.jsonl").exists()


def test_a_listener_that_fails_ends_no_measurement(run: Run) -> None:
    run.listen(lambda stream, row: row["no such key"])
    with pytest.warns(UserWarning, match="a watcher of this run failed"):
        run.append("tokens", {"i": 1})
    run.append("tokens", {"i": 2})
    assert len((run.folder / "tokens.jsonl").read_text().splitlines()) == 2
