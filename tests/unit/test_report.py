"""A report's order: what is run after what, what the comparison gets, and where an interrupt ends it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from labkit.present import report
from labkit.present.execute import find_notebook
from labkit.present.outcome import INTERRUPTED, Outcome
from labkit.present.progress import Progress
from tests.recorded import run_json, write_run

AGAIN = "03_late_arrival.again"


class Script:
    """Stands for execute(): writes what a run would have left, and remembers what it was asked for."""

    def __init__(self, folder: Path, *, interrupted: str = "") -> None:
        self.folder, self.interrupted = folder, interrupted
        self.asked: dict[str, dict[str, Any]] = {}

    def __call__(self, notebook: Path, parameters: dict[str, Any], *, progress: Progress, copy: Path) -> Outcome:
        self.asked[copy.stem] = parameters
        run = write_run(self.folder / copy.stem)
        copy.write_bytes((run / "03_late_arrival.ipynb").read_bytes())
        stopped = copy.stem == self.interrupted
        return Outcome(copy, run, run_json(), ("KeyboardInterrupt", "interrupted") if stopped else ("", ""))


def run_report(script: Script, monkeypatch: pytest.MonkeyPatch) -> list[report.Row]:
    monkeypatch.setattr(report, "execute", script)
    notebooks = [find_notebook(name) for name in ("03", "06", "05")]
    return report.report(
        notebooks, script.folder, size="quick", changes={}, progress=lambda name: Progress(name, quiet=True)
    )


def test_the_comparison_gets_03_and_03_again_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(tmp_path)
    rows = run_report(script, monkeypatch)
    assert list(script.asked) == ["03_late_arrival", AGAIN, "06_compare_runs", "05_kv_exhaustion"]
    assert script.asked[AGAIN]["seed"] == 7  # the seed that the first one had drawn
    sides = [Path(script.asked["06_compare_runs"][side]) for side in ("before", "after")]
    assert [side.parents[1].name for side in sides] == ["03_late_arrival", AGAIN]
    assert report.exit_code(rows) == 0


@pytest.mark.parametrize("stopped", ["03_late_arrival", AGAIN, "06_compare_runs"])
def test_an_interrupt_ends_the_report_wherever_it_comes_and_the_index_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped: str
) -> None:
    script = Script(tmp_path, interrupted=stopped)
    rows = run_report(script, monkeypatch)
    assert list(script.asked)[-1] == stopped
    assert rows[-1].name == stopped
    assert report.exit_code(rows) == INTERRUPTED
    assert stopped in (tmp_path / "index.md").read_text()
    assert (tmp_path / f"{stopped}.html").is_file()
