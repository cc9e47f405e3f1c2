"""Exit codes and the JSON line, from what a run can end with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from labkit.present.outcome import Outcome, worst
from tests.recorded import CHECK, run_json


def outcome(status: str = "supported", error: str = "", **changes: object) -> Outcome:
    run = run_json(verdict={"status": status, "checks": [CHECK | {"status": status}]}, **changes)
    return Outcome(Path("out.ipynb"), Path("run"), run, (error, "why it ended" if error else ""), 1.26)


@pytest.mark.parametrize(
    ("status", "error", "code"),
    [
        ("supported", "", 0),
        ("refuted", "", 1),
        ("inconclusive", "", 4),
        ("not_run", "ParameterError", 2),
        ("not_run", "ModelError", 3),
        ("not_run", "EngineBusyError", 3),
        ("not_run", "PortInUseError", 3),
        ("not_run", "ServerDiedError", 5),
        ("not_run", "ValueError", 5),
        ("not_run", "DeadKernelError", 5),
        ("refuted", "VerdictError", 1),
        ("inconclusive", "VerdictError", 4),
        ("not_run", "KeyboardInterrupt", 130),
        ("not_run", "annotations", 5),  # a name in labkit.errors that is no error
    ],
)
def test_every_end_has_its_exit_code(status: str, error: str, code: int) -> None:
    assert outcome(status, error).exit_code == code


def test_an_inconclusive_run_whose_server_died_is_a_crash() -> None:
    assert outcome("inconclusive", arms={"treatment": {"server_alive": False}}).exit_code == 5
    assert outcome("refuted", arms={"treatment": {"server_alive": False}}).exit_code == 1


def test_a_notebook_without_a_verdict_decided_nothing() -> None:
    assert Outcome(Path("mine.ipynb")).exit_code == 4


def test_the_json_line_says_what_a_pipeline_needs() -> None:
    line = json.loads(outcome("refuted").json_line())
    assert line == {
        "verdict": "refuted", "exit_code": 1, "run": "run", "notebook": "out.ipynb", "page": None, "summary": None,
        "error": None, "seconds": 1.3,
    }  # fmt: skip
    assert json.loads(outcome("not_run", "ModelError").json_line())["error"] == {
        "name": "ModelError",
        "says": "why it ended",
    }


def test_the_verdict_is_told_with_its_reasons() -> None:
    assert outcome().lines()[:4] == [
        "Verdict: supported",
        "  supported: the late request joined",
        "    observed: 86 tokens",
        "    why: both were in the same steps",
    ]


def test_the_worst_of_several_decides() -> None:
    assert worst([0, 4, 1]) == 1
    assert worst([0, 4]) == 4
    assert worst([0, 1, 5, 3]) == 5
    assert worst([130, 5]) == 130
    assert worst([]) == 0
