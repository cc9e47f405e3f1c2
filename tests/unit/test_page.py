"""The one-file page, the summary and the index, from a recorded run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from labkit.present.digest import digest_of
from labkit.present.outcome import Outcome
from labkit.present.page import page_of
from labkit.present.report import Row, exit_code, reason, with_evidence, write_index
from tests.recorded import PNG, run_json, write_run


def recorded(folder: Path) -> tuple[Path, dict[str, Any]]:
    return folder / "03_late_arrival.ipynb", json.loads((folder / "run.json").read_text())


def test_the_page_has_the_verdict_first_then_pictures_then_the_record(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    page = page_of(*recorded(folder), folder)
    places = [page.index(part) for part in ("Verdict: supported", "<h2>Pictures", "<h2>The record", "<h2>The notebook")]
    assert places == sorted(places)
    assert "<title>03 · Does a late request join?</title>" in page


def test_nothing_in_the_page_comes_from_elsewhere_and_nothing_runs(tmp_path: Path) -> None:
    folder = write_run(tmp_path, printed="<script>alert(1)</script> http://evil.example/")
    page = page_of(*recorded(folder), folder)
    assert "default-src 'none'; img-src data:" in page
    assert "<script" not in page
    sources = re.findall(r"""(?:src|href)=["']?(.)|url\((.)""", page)
    assert {source for source, _ in sources} == {"d", "#"}  # data: and places in the page


def test_pictures_are_drawn_as_svg_and_fall_back_to_the_notebooks_own(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    assert "data:image/svg+xml;base64," in page_of(*recorded(folder), folder)
    (folder / "lanes.vl.json").unlink()
    assert f"data:image/png;base64,{PNG}" in page_of(*recorded(folder), folder)


def test_a_picture_is_shown_once_with_its_words_and_code_is_folded(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    page = page_of(*recorded(folder), folder)
    assert page.count("<img") == 1
    assert 'alt="B joined"' in page
    assert '<a href="#picture-1">Picture 1</a>' in page
    assert page.count('<details class="code">') == 3
    assert "<details open" not in page
    assert "at the top" not in page  # the notebook's own headline would say it twice


def test_a_failed_run_says_why_in_the_place_of_a_verdict(tmp_path: Path) -> None:
    import nbformat

    error = nbformat.v4.new_output("error", ename="ModelError", evalue="no <such> model", traceback=["x"])
    node = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("x", outputs=[error])])
    nbformat.write(node, tmp_path / "out.ipynb")
    assert "ModelError: no &lt;such&gt; model" in page_of(tmp_path / "out.ipynb", {}, None)
    assert "**ModelError**: no <such> model" in digest_of(tmp_path / "out.ipynb", {})


def test_the_summary_reads_as_text(tmp_path: Path) -> None:
    text = digest_of(*recorded(write_run(tmp_path)))
    assert text.startswith("# 03 · Does a late request join?\n\n**Verdict: supported**\n\n- **supported**: the late")
    assert "1. B joined" in text
    assert "<" not in text
    assert max(map(len, text.splitlines())) < 200


def test_a_replay_is_marked_as_recorded_in_the_page_and_the_summary(tmp_path: Path) -> None:
    then = {"run_id": "20261101T000000Z-0001", "started_at": "2026-11-01", "verdict": "supported"}
    folder = write_run(tmp_path, recorded=then)
    for text in (page_of(*recorded(folder), folder), digest_of(*recorded(folder))):
        assert (
            "Recorded: replayed from run 20261101T000000Z-0001, measured 2026-11-01; nothing was measured now" in text
        )


def test_the_index_shows_every_verdict_and_links_what_lies_beside_it(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    notebook, run = recorded(folder)
    good = with_evidence(Outcome(notebook, folder, run, seconds=12.4))
    bad = Outcome(tmp_path / "x.ipynb", error=("ModelError", "the model is <gone>."))
    page = write_index([Row("03_late_arrival", good), Row("05_kv_exhaustion", bad)], folder).read_text()
    assert "✔ supported" in page
    assert "… not run" in page
    assert "the model is &lt;gone&gt;." in page
    assert 'href="03_late_arrival.html"' in page
    assert (folder / "03_late_arrival.html").is_file()
    assert "- **not run** 05_kv_exhaustion" in (folder / "index.md").read_text()


def test_an_undecided_comparison_of_equal_runs_does_not_fail_a_report() -> None:
    def row(name: str, status: str) -> Row:
        return Row(name, Outcome(Path("x"), run=run_json(verdict={"status": status, "checks": []})))

    good, equal = row("03_late_arrival", "supported"), row("06_compare_runs", "inconclusive")
    assert exit_code([good, equal]) == 0
    assert exit_code([good, row("06_compare_runs", "refuted")]) == 1
    assert exit_code([row("03_late_arrival", "inconclusive"), equal]) == 4


def test_the_reason_is_the_deciding_check() -> None:
    assert reason(Outcome(Path("x"), run=run_json())) == "the late request joined: both were in the same steps"


def test_the_reason_says_how_many_claims_stand_beside_it() -> None:
    checks = run_json()["verdict"]["checks"] * 3 + [{"status": "not_tested", "claim": "c", "why": "w"}]
    found = reason(Outcome(Path("x"), run=run_json(verdict={"status": "supported", "checks": checks})))
    assert found.endswith("both were in the same steps (and 2 more claims)")
