from __future__ import annotations

import shlex
from pathlib import Path

import pytest

import labkit as lab
from labkit.analyze.verdict import Check, Verdict
from labkit.errors import VerdictError
from labkit.present.headline import Headline, repeat_command, summary, verdict_html
from labkit.present.show import table
from tests.synthetic import Scenario, recorded


def check(status: str, **more: str) -> Check:
    texts = {"claim": "a claim", "observed": "o", "expected": "e", "why": "w"} | more
    return Check(name="x", status=status, **texts)


@pytest.mark.parametrize(
    ("statuses", "overall"),
    [
        (["supported", "supported"], "supported"),
        (["supported", "inconclusive"], "inconclusive"),
        (["inconclusive", "refuted"], "refuted"),
        (["supported", "not_tested"], "supported"),
        (["not_tested"], "inconclusive"),
        ([], "inconclusive"),
    ],
)
def test_the_worst_check_decides_and_what_was_not_tested_is_left_out(statuses: list[str], overall: str) -> None:
    assert Verdict(tuple(check(status) for status in statuses)).status == overall


def test_what_a_server_said_is_escaped() -> None:
    page = verdict_html(Verdict((check("inconclusive", why="B ended: <script>alert(1)</script>"),)), [("a", "<b>")])
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "&lt;b&gt;" in page


def test_the_summary_names_build_model_hardware_and_the_command() -> None:
    data = recorded(treatment=Scenario())
    (engine, hardware, repeat) = summary(data.run, "papermill x")
    assert "llama.cpp b10229 (xllamacpp 2026.8.10229)" in engine[1]
    assert "sha256 abababababab" in engine[1]
    assert "2 cores" in hardware[1]
    assert repeat == ("Repeat it", "papermill x")


def test_the_command_repeats_what_differs_from_the_defaults() -> None:
    words = shlex.split(
        repeat_command("03_late_arrival", lab.LateArrival(parallel=4, keep_text=True, extra_args=["--x y"], seed=9))
    )
    assert words[:3] == ["papermill", "notebooks/03_late_arrival.ipynb", "outputs/03_late_arrival.again.ipynb"]
    assert words[3:] == [
        "-p",
        "parallel",
        "4",
        "-y",
        "extra_args: ['--x y']",
        "-p",
        "seed",
        "9",
        "-p",
        "keep_text",
        "True",
    ]


@pytest.mark.parametrize(("status", "code"), [("refuted", 1), ("inconclusive", 4)])
def test_strict_raises_after_everything_is_saved(tmp_path: Path, status: str, code: int, capsys) -> None:
    run = lab.open_run("03_late_arrival", lab.LateArrival(), outputs=str(tmp_path))
    with pytest.raises(VerdictError, match=f"the verdict is {status}, and strict is on") as error:
        Headline("question?").conclude(run, Verdict((check(status),)), command="c", strict=True)
    assert error.value.exit_code == code
    assert lab.read_run(run.folder).run["verdict"]["status"] == status


def test_without_strict_a_refuted_verdict_is_a_result(tmp_path: Path, capsys) -> None:
    run = lab.open_run("03_late_arrival", lab.LateArrival(), outputs=str(tmp_path))
    Headline("question?").conclude(run, Verdict((check("refuted"),)), command="c")
    assert lab.read_run(run.folder).run["verdict"]["status"] == "refuted"


def test_tables_show_missing_as_a_dash_and_escape(monkeypatch: pytest.MonkeyPatch) -> None:
    import pandas as pd

    shown: list[dict[str, str]] = []
    monkeypatch.setattr("labkit.present.show.display", lambda bundle, raw: shown.append(bundle))
    table(pd.DataFrame({"a<b": ["<i>", None], "n": pd.array([1.23456, None], dtype="Float64")}))
    page = shown[0]["text/html"]
    assert "<i>" not in page
    assert "a&lt;b" in page
    assert "1.235" in page
    assert page.count(">-</td>") == 2
