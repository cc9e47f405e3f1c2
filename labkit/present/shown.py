"""What an executed notebook shows as its verdict, compared with the verdict that its record gives."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import nbformat

from labkit.analyze.verdict import Verdict
from labkit.present.headline import verdict_html

_COLUMNS = ("status", "claim", "expected", "observed", "why")
_VERDICT = re.compile(r"Verdict: (\w+)</b>")


class _Cells(HTMLParser):
    """Collects the cells of a verdict's table, row by row."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.rows: list[list[str]] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        if tag == "tr":
            self.rows.append([])
        elif tag == "td" and self.rows:
            self.rows[-1].append("")
        self._inside = tag == "td" or (self._inside and tag not in ("tr", "table"))

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "tr", "table"):
            self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside and self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


def verdict_cells(page: str) -> tuple[str, list[list[str]]]:
    """Return a verdict's status and the texts of its table, a row for each check.

    Args:
        page: of verdict_html().
    """
    parser = _Cells()
    parser.feed(page)
    status = _VERDICT.search(page)
    return (status[1] if status else ""), [row for row in parser.rows if len(row) == len(_COLUMNS)]


def same_text(said: str, found: str) -> bool:
    """Whether two texts are the same, but for a home folder that a pack hides.

    Args:
        said: as a record or a notebook has it.
        found: recomputed; 06 reads the runs that it compared where they lie, with nothing hidden.
    """
    return said in (found, found.replace(str(Path.home()), "~"))


def notebook_findings(folder: Path, found: Verdict) -> tuple[list[str], list[str]]:
    """Return what was compared, and how the executed notebooks in a folder differ from a verdict.

    Args:
        folder: of a run, or of an unpacked pack.
        found: recomputed from the rows.
    """
    checked, differences = [], []
    for path in sorted(folder.glob("*.ipynb")):
        pages, trouble = _pages(path)
        if pages:
            checked.append(f"the verdict that {path.name} shows was compared")
        texts = [trouble] if trouble else [text for page in pages for text in _unlike(page, found)]
        differences += [f"{path.name} {text}" for text in dict.fromkeys(texts)]  # top and end say the same
    return checked or ["no executed notebook lies beside the record: nothing to compare there"], differences


def painted(folder: Path) -> list[str]:
    """Return the notebooks that show a verdict, for a run that came to none.

    Args:
        folder: of a run, or of an unpacked pack.
    """
    return [f"{path.name} shows a verdict, and run.json has none" for path in folder.glob("*.ipynb") if _pages(path)[0]]


def _pages(path: Path) -> tuple[list[str], str]:
    """Return a notebook's outputs that show a verdict, or why there is none; a page of words alone needs none."""
    try:
        cells = nbformat.read(path, as_version=4).cells
    except Exception as error:  # any text may stand in this file
        return [], f"can't be read as a notebook: {type(error).__name__}"
    outputs = [out for cell in cells for out in cell.get("outputs", [])]
    pages = ["".join(out.get("data", {}).get("text/html", "")) for out in outputs]
    pages = [page for page in pages if _VERDICT.search(page)]
    has_code = any(cell.cell_type == "code" for cell in cells)
    return pages, "shows no verdict" if has_code and not pages else ""


def _unlike(page: str, found: Verdict) -> list[str]:
    status, rows = verdict_cells(page)
    wanted_status, wanted = verdict_cells(verdict_html(found, []))
    if status != wanted_status:
        return [f"shows {status}, the rows of the record say {wanted_status}"]
    if len(rows) != len(wanted):
        return [f"shows {len(rows)} checks, the rows of the record give {len(wanted)}"]
    return [
        f"shows {said!r} as {column} of check {check.name}, the rows of the record give {right!r}"
        for check, row, ought in zip(found.checks, rows, wanted, strict=True)
        for column, said, right in zip(_COLUMNS, row, ought, strict=True)
        if not same_text(said, right)
    ]
