"""One run as one zip for a ticket, redacted: page, notebook, summary, record, logs, and a manifest of hashes.

Texts are redacted first and everything else is made from them, so that no secret can hide inside base64 or pixels:
the page is built from the redacted notebook, and a picture whose specification changed is drawn anew.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat

from labkit.errors import ParameterError, RecordError
from labkit.measure.compare_runs import OWN, recorded_sides
from labkit.measure.record import outputs_folder, read_run_json
from labkit.present.digest import digest_of
from labkit.present.execute import folder_of
from labkit.present.hidden import hidden_here
from labkit.present.page import page_of
from labkit.present.redact import Hide, forms, redact, redact_json, texts_in
from labkit.present.unpack import MANIFEST, MANIFEST_SCHEMA, SIDES
from labkit.settings import CompareRuns

PAGE, DIGEST = "report.html", "summary.md"
NO_NOTEBOOK = "the executed notebook, which wasn't found: name it instead of its run"
_TEXT_KINDS = (".json", ".jsonl", ".log", ".txt", ".md", ".yaml")
# shorter texts ("yes") are words that stand everywhere
_SHORTEST_TEXT = 12


def find_run(name: str) -> Path:
    """Return the run folder that a person means.

    Args:
        name: a run folder, an executed notebook, or the name of a run in outputs/.

    Raises:
        ParameterError: there is none.
    """
    path = Path(name).expanduser()
    if (path / "run.json").is_file():
        return path.resolve()
    if path.suffix == ".ipynb" and path.is_file() and (folder := folder_of(path)):
        return folder
    found = sorted(outputs_folder("").glob(f"*/{path.name}/run.json")) if path.name else []
    if not found:
        why = "no run folder that it names is here" if path.suffix == ".ipynb" and path.is_file() else ""
        hint = "outputs/<notebook>/<run>, its name, or an executed notebook"
        raise ParameterError(f"{name} is no run", why=why, hint=hint)
    return found[0].parent


def pack(
    folder: Path, target: Path | None = None, *, notebook: Path | None = None, with_text: bool = False
) -> tuple[Path, list[str]]:
    """Make the zip of a run.

    Args:
        folder: of the run.
        target: the zip; None: outputs/<notebook>-<run>.zip.
        notebook: its executed notebook; None: looked for beside it and in outputs/.
        with_text: keep prompts and answers, where the record has them.

    Returns:
        The zip, and what was left out: files that are no text, a notebook or compared runs that aren't here.

    Raises:
        ParameterError: it isn't a run folder.
        RecordError: the zip can't be written, or a secret would be in it.
    """
    run = read_run_json(folder)
    target = target or outputs_folder("") / f"{run['notebook']}-{run['run_id']}.zip"
    hides = hidden_here(run)
    hides += [] if with_text else [Hide(text, "[left out]") for text in _texts(folder) if len(text) >= _SHORTEST_TEXT]
    notebook = notebook or executed_copy(folder, run)
    with TemporaryDirectory(prefix="labkit-pack-") as scratch:
        staging = Path(scratch)
        skipped = _redacted_copy(folder, run["notebook"], staging, hides, drop_text=not with_text)
        skipped += [] if notebook else [NO_NOTEBOOK]
        _made(staging, notebook, run["notebook"], hides, drop_text=not with_text)
        _refuse_secrets(staging, hides)
        skipped += _pack_sides(run, staging, with_text=with_text)
        _zip(staging, target)
    return target, skipped


def _pack_sides(run: dict[str, Any], staging: Path, *, with_text: bool) -> list[str]:
    """Put the runs that a comparison compared beside it, each as a pack; return those that aren't here any more."""
    if run["notebook"] != OWN or run["verdict"]["status"] == "not_run":
        return []
    try:
        sides = recorded_sides(run, CompareRuns(**run["parameters"]))
    except ParameterError as error:
        return [str(error)]
    for name, folders in zip(SIDES, (sides.before_folders, sides.after_folders), strict=True):
        for number, folder in enumerate(folders):
            pack(folder, staging / f"{name}.{number}.zip", with_text=with_text)
    return []


def executed_copy(folder: Path, run: dict[str, Any]) -> Path | None:
    """Return the executed notebook of a run: in its folder, else the one in outputs/ that names it."""
    own = folder / f"{run['notebook']}.ipynb"
    if own.is_file():
        return own
    near = [
        *outputs_folder("").glob("*.ipynb"),
        *outputs_folder("").glob("*/*.ipynb"),
        *folder.parents[1].glob("*.ipynb"),
    ]
    return next((path for path in near if (found := folder_of(path)) and found.samefile(folder)), None)


def _texts(folder: Path) -> list[str]:
    texts: list[str] = []
    for path in [*folder.glob("*.jsonl"), folder / "run.json"]:
        for line in (
            path.read_text("utf-8", errors="replace").splitlines()
            if path.suffix == ".jsonl"
            else [path.read_text("utf-8")]
        ):
            with suppress(ValueError):
                texts += texts_in(json.loads(line))
    lines = [line.strip() for text in texts for line in text.splitlines()]
    return list(dict.fromkeys([*texts, *lines]))


def _redacted_copy(folder: Path, name: str, staging: Path, hides: Sequence[Hide], *, drop_text: bool) -> list[str]:
    """Copy the text files of a run of notebook `name` redacted, and return which were left out."""
    skipped = []
    for path in sorted(folder.iterdir()):
        if path.suffix == ".ipynb" or path.name.removesuffix(".html").removesuffix(".md") == name:
            continue  # made anew from what is redacted
        if path.is_symlink() or not path.is_file() or path.suffix not in _TEXT_KINDS:
            skipped.append(f"{path.name}, which is no text")
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        # a picture's specification has fields called "text" that are no answers
        drop = drop_text and not path.name.endswith(".vl.json")
        (staging / redact(path.name, hides)).write_text(_redacted(text, path.suffix, hides, drop), encoding="utf-8")
    return skipped


def _redacted(text: str, suffix: str, hides: Sequence[Hide], drop: bool) -> str:
    if suffix == ".jsonl":
        return "".join(_line(line, hides, drop) for line in text.splitlines())
    if suffix == ".json":
        with suppress(ValueError):
            return json.dumps(redact_json(json.loads(text), hides, drop_text=drop), indent=1)
    return redact(text, hides)


def _line(line: str, hides: Sequence[Hide], drop: bool) -> str:
    try:
        value = json.loads(line)
    except ValueError:  # the half-written last line of a run that was killed: nobody reads it, and it may hold text
        return ""
    changed = redact_json(value, hides, drop_text=drop)
    return f"{line if changed == value else json.dumps(changed)}\n"


def _made(staging: Path, notebook: Path | None, name: str, hides: Sequence[Hide], *, drop_text: bool) -> None:
    """Make notebook, page and summary from what is redacted."""
    node = nbformat.read(notebook, as_version=4) if notebook else _stand_in(name)
    node = nbformat.from_dict(redact_json(node, hides, drop_text=drop_text, fields=frozenset()))
    for output in (output for cell in node.cells for output in cell.get("outputs", [])):
        _redraw(output, staging)
    copy = staging / f"{name}.ipynb"
    nbformat.write(node, copy)
    run = json.loads((staging / "run.json").read_text(encoding="utf-8"))
    (staging / PAGE).write_text(page_of(copy, run, staging), encoding="utf-8")
    (staging / DIGEST).write_text(digest_of(copy, run), encoding="utf-8")


def _stand_in(name: str) -> Any:
    """Return a notebook for a run whose executed copy isn't here."""
    text = f"# {name}\n\nThe executed notebook of this run was not found; the record is complete without it."
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(text)])


def _redraw(output: Any, staging: Path) -> None:
    """Draw a picture from its redacted specification: what was hidden in it was hidden in pixels too."""
    from labkit.present.show import png

    chart = output.get("metadata", {}).get("labkit", {}).get("chart")
    path = staging / f"{chart}.vl.json"
    if "image/png" in output.get("data", {}) and chart and path.is_file():
        image = png(json.loads(path.read_text(encoding="utf-8")))
        output.data["image/png"] = base64.b64encode(image).decode()


def _refuse_secrets(staging: Path, hides: Sequence[Hide]) -> None:
    """Look once more through what was made.

    Raises:
        RecordError: a secret is in it.
    """
    secrets = [form for hide in hides if not hide.word for form in forms(hide)]
    for path in staging.iterdir():
        text = path.read_text(encoding="utf-8", errors="replace")
        if any(secret in text for secret in secrets):
            raise RecordError(f"{path.name} would still hold what is to be hidden: nothing was packed")


def _zip(staging: Path, target: Path) -> None:
    files = {path.name: path.read_bytes() for path in sorted(staging.iterdir())}
    listed = {name: {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)} for name, data in files.items()}
    files[MANIFEST] = json.dumps({"schema": MANIFEST_SCHEMA, "files": listed}, indent=1).encode()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for name, data in files.items():
                archive.writestr(name, data)
    except OSError as error:
        raise RecordError(f"{target} can't be written", why=str(error.strerror)) from None
