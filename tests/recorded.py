"""A small run folder with an executed notebook, written by hand: for tests of what is made from a record."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import altair as alt
import nbformat
import pandas as pd

PNG = base64.b64encode(b"\x89PNG not really").decode()
CHECK = {
    "name": "joined",
    "claim": "the late request joined",
    "status": "supported",
    "observed": "86 tokens",
    "expected": "some",
    "why": "both were in the same steps",
    "hint": "",
    "numbers": {},
}


def chart(title: str) -> dict[str, Any]:
    points = alt.Chart(pd.DataFrame({"x": [1, 2], "y": [3, 4]})).mark_line().encode(x="x:Q", y="y:Q")
    return points.properties(title=title).to_dict()  # type: ignore[no-any-return]


def run_json(**changes: Any) -> dict[str, Any]:
    """Return a run.json of notebook 03."""
    run = {
        "schema_version": 1,
        "notebook": "03_late_arrival",
        "run_id": "20261130T120000Z-abcd",
        "started_at": "2026-11-30T12:00:00+00:00",
        "parameters": {"model": "toy", "seed": 7},
        "verdict": {"status": "supported", "checks": [CHECK]},
        "arms": {},
    }
    return run | changes


def write_run(outputs: Path, *, title: str = "a picture", printed: str = "", log: str = "", **changes: Any) -> Path:
    """Write a run folder under `outputs`, with its executed notebook in it, and return it.

    Args:
        outputs: where.
        title: of its one picture.
        printed: by a cell.
        log: of its server.
        changes: of run.json.
    """
    run = run_json(**changes)
    folder = outputs / run["notebook"] / run["run_id"]
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(run))
    (folder / "requests.jsonl").write_text(json.dumps({"label": "A", "prompt": None, "text": None, "tokens": 3}) + "\n")
    (folder / "server-treatment.log").write_text(log or "srv init\n")
    (folder / "lanes.vl.json").write_text(json.dumps(chart(title)))
    nbformat.write(executed(folder, printed), folder / f"{run['notebook']}.ipynb")
    return folder


def executed(folder: Path, printed: str) -> Any:
    """Return an executed notebook of the run in `folder`."""
    v4 = nbformat.v4
    picture = v4.new_output(
        "display_data",
        {"image/png": PNG, "text/plain": "B joined"},
        metadata={"image/png": {"alt": "B joined", "width": 10, "height": 10}, "labkit": {"chart": "lanes"}},
    )
    words = v4.new_output("stream", name="stdout", text=f"everything goes to {folder}\n{printed}\n")
    top = v4.new_output("display_data", {"text/html": "<p>Verdict: at the top</p>", "text/plain": "x"})
    cells = [
        v4.new_markdown_cell("# 03 · Does a late request join?\n\n**Question.** Does it?"),
        v4.new_code_cell("top = lab.Headline('?')", outputs=[top]),
        v4.new_code_cell("print(run.folder)", outputs=[words]),
        v4.new_code_cell("lab.show(lanes)", outputs=[picture]),
    ]
    return v4.new_notebook(cells=cells)
