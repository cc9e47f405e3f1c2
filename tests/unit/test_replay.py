"""A notebook on a recorded run: no engine, no model, marked as recorded, judged with the recorded parameters."""

from __future__ import annotations

import ast
import json
import shutil
from pathlib import Path
from typing import Any

import nbformat
import pytest

import labkit as lab
from labkit.analyze.verdict import SUPPORTED, Check, Verdict
from labkit.errors import ParameterError
from labkit.measure.compare_runs import read_sides
from labkit.measure.record import recorded_folder
from labkit.present import panel as door
from labkit.present import preview as previews
from labkit.present.controls.experiments import EXPERIMENTS
from labkit.present.headline import repeat_command, summary, verdict_html
from labkit.present.judges import JUDGES, judge_of
from labkit.present.replay import replay
from tests.conftest import PROJECT
from tests.notebooks import read_json, run_notebook

SAMPLES = PROJECT / "outputs" / "samples"
LATE, HELD, FULL = (SAMPLES / name for name in ("late_arrival_joined", "late_arrival_held", "kv_exhausted"))
RECORDED = {LATE: "supported", HELD: "refuted", FULL: "supported"}
# names of labkit that start, ask or load something; a replay must not reach one of them
MEASURES = (
    "ask_without_metrics", "attach_server", "exhaustion_plan", "late_arrival_plan", "load_kv_servers",
    "look_at_machine", "measure_arm", "measure_ceiling", "measure_exhaustion", "measure_small_pool", "measure_step",
    "metrics_and_gpu_plan", "note_defaults", "one_after_another", "open_server", "plan_loads", "prepare_engine",
    "rehearse", "repeat_order", "resolve_model", "smoke_plan", "start_bare", "start_kv_servers", "start_server",
)  # fmt: skip


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which nothing can be started and no model can be had."""

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("a replay reached for an engine or a model")

    for name in MEASURES:
        monkeypatch.setattr(lab, name, never)
    monkeypatch.setattr(previews, "resolve_model", never)


def chosen(sample: Path, **given: Any) -> Any:
    return lab.parameters(judge_of(read_json(sample / "run.json")["notebook"]).model, {"replay": str(sample)} | given)


# --- the samples ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sample", RECORDED, ids=lambda path: path.name)
@pytest.mark.usefixtures("no_engine")
def test_a_sample_gives_pictures_and_the_verdict_it_was_recorded_with(sample: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in sample.iterdir()}
    recorded = read_json(sample / "run.json")
    names = run_notebook(recorded["notebook"], replay=str(sample), outputs=str(tmp_path))
    run = names["run"]
    found = read_json(run.folder / "run.json")
    assert found["verdict"] == recorded["verdict"]
    assert found["verdict"]["status"] == found["recorded"]["verdict"] == RECORDED[sample]
    assert found["recorded"]["run_id"] == recorded["run_id"] != found["run_id"]
    assert found["provenance"] == recorded["provenance"]
    assert "nothing is measured" in names["printed"]
    pictures = list(run.folder.glob("*.vl.json"))
    assert len(pictures) == (2 if sample == FULL else 3)
    assert all(f"recorded {recorded['started_at'][:10]}" in path.read_text() for path in pictures)
    assert {path.name: path.read_bytes() for path in sample.iterdir()} == before


@pytest.mark.parametrize("sample", RECORDED, ids=lambda path: path.name)
def test_a_sample_is_small_and_says_nothing_of_whose_it_is(sample: Path) -> None:
    files = list(sample.iterdir())
    assert sum(path.stat().st_size for path in files) < 350_000
    for path in files:
        assert not [word for word in ("/root", "/home", "/tmp", "/Users") if word in path.read_text()], path
    parameters = read_json(sample / "run.json")["parameters"]
    assert (parameters["model"], parameters["engine"]) == ("smollm2-135m", "embedded")


@pytest.mark.notebook
def test_papermill_replays_a_sample_and_marks_it(tmp_path: Path) -> None:
    executed = replay(LATE, tmp_path / "out.ipynb")
    cells = nbformat.read(executed, as_version=4).cells
    bundles = [out["data"] for cell in cells for out in cell.get("outputs", []) if "data" in out]
    pages = [bundle["text/html"] for bundle in bundles if "text/html" in bundle]
    assert "Verdict: supported</b> · <b>recorded</b>" in pages[0]
    assert "No engine was started for this page" in pages[0]
    assert not cells[-1].outputs  # no panel
    assert sum("image/png" in bundle for bundle in bundles) == 3
    (record,) = tmp_path.rglob("run.json")
    # a replay can be replayed: it says what was measured
    again = lab.open_run("03_late_arrival", lab.LateArrival(), outputs=str(tmp_path), replay=str(record.parent))
    assert again.fields["recorded"] == read_json(record)["recorded"]


# --- every notebook -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted((PROJECT / "notebooks").glob("[0-9]*.ipynb")), ids=lambda path: path.stem)
def test_what_measures_stands_where_a_replay_does_not_go(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells
    trees = [ast.parse(cell.source) for cell in cells if cell.cell_type == "code"]
    assert "replay=params.replay" in "".join(map(ast.unparse, trees))
    reached = [name for tree in trees for name in reached_by_a_replay(tree)]
    assert not reached


def reached_by_a_replay(node: ast.AST) -> list[str]:
    """Return the measuring calls that no condition on `run.recorded` keeps from a replay."""
    if isinstance(node, ast.If | ast.IfExp) and "run.recorded" in ast.unparse(node.test):
        branch = node.body if ast.unparse(node.test) == "run.recorded" else node.orelse
        return [
            name for part in (branch if isinstance(branch, list) else [branch]) for name in reached_by_a_replay(part)
        ]
    if isinstance(node, ast.For) and ast.unparse(node.iter).startswith("[] if run.recorded else "):
        return []
    own = [node.attr] if isinstance(node, ast.Attribute) and node.attr in MEASURES else []
    return own + [name for child in ast.iter_child_nodes(node) for name in reached_by_a_replay(child)]


def test_every_notebook_has_a_judge_and_the_panel_uses_it() -> None:
    assert list(JUDGES) == list(EXPERIMENTS) == sorted(path.stem for path in (PROJECT / "notebooks").glob("*.ipynb"))
    assert all(EXPERIMENTS[name].judge is judge for name, judge in JUDGES.items())
    with pytest.raises(ParameterError, match="'07_nothing' is no notebook"):
        judge_of("07_nothing")


# --- parameters -----------------------------------------------------------------------------------------


def test_the_recorded_parameters_are_used_and_the_prediction_is_mine() -> None:
    params = chosen(LATE, predicted_tokens_left=3, strict=True, interactive=False, outputs="here")
    recorded = read_json(LATE / "run.json")["parameters"]
    assert (params.a_tokens, params.seed) == (recorded["a_tokens"], recorded["seed"])
    assert (params.predicted_tokens_left, params.strict, params.interactive, params.outputs) == (3, True, False, "here")
    assert chosen(LATE).predicted_tokens_left == recorded["predicted_tokens_left"]


@pytest.mark.parametrize(
    ("given", "named"),
    [({"parallel": 4}, "parallel"), ({"parallel": 4, "a_tokens": 7000}, "a_tokens, parallel"), ({"seed": 1}, "seed")],
)
def test_what_would_change_the_experiment_is_refused_by_name(given: dict[str, Any], named: str) -> None:
    with pytest.raises(ParameterError, match=rf"^{named} can't be changed in a replay: the recorded run had"):
        chosen(LATE, **given)


def test_a_value_that_is_the_recorded_one_may_be_said_again() -> None:
    assert chosen(HELD, cont_batching=False).cont_batching is False
    with pytest.raises(ParameterError, match="cont_batching can't be changed"):
        chosen(HELD, cont_batching=True)


def test_in_jupyterlab_the_edited_cell_counts_and_its_defaults_do_not() -> None:
    cell = f'# parameters\ncont_batching: bool = True\na_tokens: int = 256\nreplay: str = "{HELD}"\n'
    namespace = {"In": ["", cell], "cont_batching": True, "a_tokens": 256, "replay": str(HELD)}
    assert lab.parameters(lab.LateArrival, namespace).cont_batching is False
    with pytest.raises(ParameterError, match="a_tokens can't be changed"):
        lab.parameters(lab.LateArrival, namespace | {"a_tokens": 300})
    injected = {"In": ["", cell, "# Parameters\ncont_batching = True"]}
    with pytest.raises(ParameterError, match="cont_batching can't be changed"):
        lab.parameters(lab.LateArrival, namespace | injected)


def test_a_run_of_another_notebook_is_refused() -> None:
    with pytest.raises(ParameterError, match="is a run of 05_kv_exhaustion"):
        lab.parameters(lab.LateArrival, {"replay": str(FULL)})
    with pytest.raises(ParameterError, match="is a run of 05_kv_exhaustion"):
        lab.open_run("03_late_arrival", lab.LateArrival(), replay=str(FULL))


def test_a_folder_without_a_run_and_a_run_without_a_verdict_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="there is no recorded run in"):
        lab.parameters(lab.LateArrival, {"replay": str(tmp_path)})
    unfinished = lab.open_run("03_late_arrival", lab.LateArrival(), outputs=str(tmp_path))
    unfinished.close()
    with pytest.raises(ParameterError, match="came to no verdict"):
        lab.open_run("03_late_arrival", lab.LateArrival(), outputs=str(tmp_path), replay=str(unfinished.folder))
    assert len(list((tmp_path / "03_late_arrival").iterdir())) == 1  # refused before a folder is made


def test_a_sample_is_found_from_the_notebooks_folder_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PROJECT / "notebooks")
    assert recorded_folder(f"outputs/samples/{LATE.name}") == LATE


# --- what a replay shows ----------------------------------------------------------------------------------


def test_no_panel_is_offered_even_if_asked_for() -> None:
    assert door.wanted(lab.LateArrival(interactive=True))
    assert not door.wanted(lab.LateArrival(interactive=True, replay="somewhere"))


@pytest.mark.usefixtures("no_engine")
def test_the_preview_is_made_from_the_record(capsys: pytest.CaptureFixture[str]) -> None:
    lab.preview(chosen(LATE))
    assert "llama-server --model" in capsys.readouterr().out


def test_headline_and_command_say_that_it_is_recorded() -> None:
    params = chosen(HELD, predicted_tokens_left=3)
    command = repeat_command("03_late_arrival", params)
    assert command.split()[3:] == ["-p", "replay", str(HELD), "-p", "predicted_tokens_left", "3"]
    fields = read_json(HELD / "run.json")
    fields["recorded"] = {"run_id": "R", "started_at": "T", "verdict": "refuted"}
    first, *_ = summary(fields, command)
    assert first[0] == "Recorded"
    assert first[1].startswith("recorded run R, measured T, refuted then")
    verdict = Verdict((Check("c", "claim", SUPPORTED, "seen", "expected", "why"),))
    assert "recorded" in verdict_html(verdict, [], recorded=True)
    assert "recorded" not in verdict_html(verdict, [])


# --- comparisons ------------------------------------------------------------------------------------------


def copy_as_run(sample: Path, outputs: Path, run_id: str, **more: Any) -> Path:
    run = read_json(sample / "run.json") | {"run_id": run_id} | more
    folder = outputs / str(run["notebook"]) / run_id
    shutil.copytree(sample, folder)
    (folder / "run.json").write_text(json.dumps(run))
    return folder


@pytest.mark.usefixtures("no_engine")
def test_06_replays_its_recorded_sides_and_finds_them_where_they_lie_now(tmp_path: Path) -> None:
    one, other = (copy_as_run(LATE, tmp_path / "then", name) for name in ("20260101T000000Z-a", "20260102T000000Z-b"))
    first = run_notebook("06_compare_runs", before=str(one), after=str(other), outputs=str(tmp_path / "then"))["run"]
    (tmp_path / "then").rename(tmp_path / "now")
    recorded = tmp_path / "now" / "06_compare_runs" / first.folder.name
    again = run_notebook("06_compare_runs", replay=str(recorded), outputs=str(tmp_path / "now"))["run"]
    found = read_json(again.folder / "run.json")
    assert found["verdict"] == first.fields["verdict"]
    assert "recorded" in (again.folder / "change_intervals.vl.json").read_text()
    shutil.rmtree(tmp_path / "now" / "03_late_arrival")
    with pytest.raises(ParameterError, match=r"20260101T000000Z-a that was compared isn't here any more"):
        read_sides(lab.CompareRuns(), run=again)


def test_neither_samples_nor_replays_are_taken_for_runs_of_ones_own(tmp_path: Path) -> None:
    for run_id in ("20260101T000000Z-a", "20260102T000000Z-b"):
        copy_as_run(LATE, tmp_path, run_id)
    copy_as_run(LATE, tmp_path, "20260103T000000Z-c", recorded={"run_id": "R", "started_at": "T", "verdict": "v"})
    shutil.copytree(SAMPLES, tmp_path / "samples")
    sides = read_sides(lab.CompareRuns(outputs=str(tmp_path)))
    assert [path.name for path in (*sides.before_folders, *sides.after_folders)] == [
        "20260101T000000Z-a",
        "20260102T000000Z-b",
    ]
