"""Every notebook, one after the other, and one page that shows all verdicts."""

from __future__ import annotations

import difflib
import html
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from labkit.errors import ParameterError, RecordError
from labkit.measure.record import outputs_folder
from labkit.present.digest import digest_of
from labkit.present.execute import execute, quick_parameters
from labkit.present.headline import COLOURS, MARKS
from labkit.present.judges import judge_of
from labkit.present.outcome import INCONCLUSIVE, INTERRUPTED, Outcome, worst
from labkit.present.pack import find_run
from labkit.present.page import document, facts_of, page_of, title_of
from labkit.present.progress import Progress

COMPARED, COMPARISON = "03_late_arrival", "06_compare_runs"


@dataclass(frozen=True)
class Row:
    """One line of the index: a notebook's name and what came of it."""

    name: str
    outcome: Outcome


def with_evidence(outcome: Outcome) -> Outcome:
    """Write the HTML and the Markdown of a run beside its notebook.

    Raises:
        RecordError: they can't be written.
    """
    page, digest = outcome.notebook.with_suffix(".html"), outcome.notebook.with_suffix(".md")
    _write(page, page_of(outcome.notebook, outcome.run, outcome.folder))
    _write(digest, digest_of(outcome.notebook, outcome.run))
    return replace(outcome, page=page, digest=digest)


def dated_folder() -> Path:
    """Make and return outputs/<date>, or outputs/<date>.2 where that is there: evidence is not overwritten.

    Raises:
        RecordError: it can't be made.
    """
    date = f"{datetime.now(UTC).astimezone():%Y-%m-%d}"
    for folder in (outputs_folder("") / f"{date}{f'.{i}' if i > 1 else ''}" for i in range(1, 1000)):
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise RecordError(f"the folder {folder} can't be made", why=str(error.strerror)) from None
        return folder
    raise RecordError(f"there are too many reports of {date} in outputs/", hint="labkit clean")


def given_folder(folder: Path) -> Path:
    """Make and return a folder for a report.

    Raises:
        RecordError: it can't be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecordError(f"the folder {folder} can't be made", why=str(error.strerror)) from None
    return folder.resolve()


def side_of(name: str) -> str:
    """Return the run folder, or the folder of several, that a person means by one side of a comparison.

    Raises:
        ParameterError: there is none.
    """
    path = Path(name).expanduser()
    return str(path.resolve() if path.is_dir() else find_run(name))


def report(
    notebooks: list[Path],
    folder: Path,
    *,
    size: str,
    changes: dict[str, Any],
    progress: Callable[[str], Progress],
) -> list[Row]:
    """Run notebooks and write each one's page, and the index after each of them.

    Args:
        notebooks: which, in order.
        folder: where everything goes but the run folders.
        size: "quick" or "full" parameters.
        changes: parameters for every notebook that has them.
        progress: makes what tells how far one notebook is.

    Returns:
        A row a notebook; an interrupted one is the last.

    Raises:
        ParameterError: none of the notebooks has a parameter of that name.
        RecordError: a page can't be written.
    """
    own = {notebook: _own(notebook, changes) for notebook in notebooks}
    _refuse_unknown(changes, own)

    def run(notebook: Path, parameters: dict[str, Any], name: str) -> Outcome:
        return execute(notebook, parameters, progress=progress(name), copy=folder / f"{name}.ipynb")

    rows: list[Row] = []
    for notebook in notebooks:
        parameters = quick_parameters(notebook, size) | own[notebook]
        first = next((row.outcome for row in rows if row.name == COMPARED and row.outcome.folder), None)
        if notebook.stem == COMPARISON and first:
            outcome = _compare(notebook, parameters, first, run)
        else:
            outcome = run(notebook, parameters, notebook.stem)
        rows.append(Row(outcome.notebook.stem, with_evidence(outcome)))
        write_index(rows, folder)
        if outcome.exit_code == INTERRUPTED:
            break
    return rows


def exit_code(rows: list[Row]) -> int:
    """Return the exit code of a report: the worst, but for a comparison of equal runs that can't tell, as it should."""
    codes = [(row.name, row.outcome.exit_code) for row in rows]
    return worst([code for name, code in codes if (name, code) != (COMPARISON, INCONCLUSIVE)])


def _fields(notebook: Path) -> dict[str, Any]:
    return judge_of(notebook.stem).model.model_fields


def _own(notebook: Path, changes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in changes.items() if name in _fields(notebook)}


def _refuse_unknown(changes: dict[str, Any], own: dict[Path, dict[str, Any]]) -> None:
    for name in changes:
        if not any(name in given for given in own.values()):
            known = sorted({field for notebook in own for field in _fields(notebook)})
            near = difflib.get_close_matches(name, known, n=1)
            raise ParameterError(
                f"{name} is not a parameter of any of these notebooks",
                hint=near[0] if near else "papermill --help-notebook",
            )


def _compare(
    comparison: Path, parameters: dict[str, Any], first: Outcome, run: Callable[[Path, dict[str, Any], str], Outcome]
) -> Outcome:
    """Run 03 once more as it was, so that 06 has two runs to compare: what this machine can't tell apart."""
    notebook = comparison.with_name(f"{COMPARED}.ipynb")
    listed = _listed(notebook)
    same = {k: v for k, v in first.run["parameters"].items() if k in listed and v is not None}
    second = run(notebook, same, f"{COMPARED}.again")
    if second.exit_code == INTERRUPTED:
        return second
    sides = {"before": str(first.folder), "after": str(second.folder)} if second.folder else {}
    return run(comparison, parameters | sides, comparison.stem)


def _listed(notebook: Path) -> set[str]:
    from papermill import inspect_notebook

    return set(inspect_notebook(str(notebook)))


def write_index(rows: list[Row], folder: Path) -> Path:
    """Write index.html and index.md, and return the page.

    Raises:
        RecordError: they can't be written.
    """
    title = f"Report of {folder.name}"
    facts = next((facts_of(row.outcome.run) for row in rows if row.outcome.run.get("arms")), [])
    lead = "".join(f"<p><b>{name}:</b> {html.escape(text)}</p>" for name, text in facts if name != "Repeat it")
    head = "<tr><th>verdict</th><th>notebook</th><th>why</th><th>time</th><th>files</th></tr>"
    table = f'<table class="index"><thead>{head}</thead><tbody>{"".join(map(_line, rows))}</tbody></table>'
    _write(folder / "index.html", document(title, f"<h1>{html.escape(title)}</h1>{lead}<div class=wide>{table}</div>"))
    _write(folder / "index.md", _index_text(title, rows, facts))
    return folder / "index.html"


def _line(row: Row) -> str:
    outcome = row.outcome
    status = f"{MARKS[outcome.status]} {outcome.status.replace('_', ' ')}"
    links = [path for path in (outcome.page, outcome.digest, outcome.notebook) if path]
    files = " · ".join(f'<a href="{html.escape(path.name)}">{path.suffix[1:]}</a>' for path in links)
    title = f'<a href="{html.escape(outcome.page.name)}">{_title(outcome)}</a>' if outcome.page else row.name
    cells = [
        f'<td class="status" style="color:{COLOURS[outcome.status]}">{status}</td><td>{title}</td>',
        f"<td>{html.escape(reason(outcome))}</td>",
        f'<td class="short">{outcome.seconds:.0f} s</td><td class="short">{files}</td>',
    ]
    return f"<tr>{''.join(cells)}</tr>"


def _title(outcome: Outcome) -> str:
    import nbformat

    return html.escape(title_of(nbformat.read(outcome.notebook, as_version=4), outcome.notebook.stem))


def reason(outcome: Outcome) -> str:
    """Return in one sentence why a notebook's outcome is what it is."""
    if outcome.error[0]:
        return outcome.error[1]
    checks = outcome.run.get("verdict", {}).get("checks", [])
    deciding = [check for check in checks if check["status"] == outcome.status]
    if not deciding:
        return "it came to no verdict"
    more = f" (and {len(deciding) - 1} more claims)" if len(deciding) > 2 else ""
    return f"{deciding[0]['claim']}: {deciding[0]['why']}{more}"


def _index_text(title: str, rows: list[Row], facts: list[tuple[str, str]]) -> str:
    lines = [f"# {title}", "\n".join(f"- {name}: {text}" for name, text in facts if name != "Repeat it")]
    for row in rows:
        status = row.outcome.status.replace("_", " ")
        lines.append(f"- **{status}** {row.name} ({row.outcome.seconds:.0f} s)\n  {reason(row.outcome)}")
    return "\n\n".join(filter(None, lines)) + "\n"


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RecordError(f"{path} can't be written", why=str(error.strerror)) from None
