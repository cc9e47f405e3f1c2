"""One run as Markdown that also reads well as plain text in an e-mail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from labkit.present.page import facts_of, recorded_of, title_of


def digest_of(notebook: Path, run: dict[str, Any]) -> str:
    """Return verdict, reasons, what the pictures say, and how to repeat it.

    Args:
        notebook: the executed copy.
        run: its run.json; empty where there is none.
    """
    import nbformat

    node = nbformat.read(notebook, as_version=4)
    status = str(run.get("verdict", {}).get("status", "not_run")).replace("_", " ")
    parts = [f"# {title_of(node, notebook.stem)}", f"**Verdict: {status}**"]
    parts += [text] if (text := recorded_of(run)) else []
    parts += [_check(check) for check in run.get("verdict", {}).get("checks", [])]
    parts += [f"**{out.ename}**: {out.evalue}" for out in _outputs(node) if out.output_type == "error"]
    readings = [alt for out in _outputs(node) if (alt := out.get("metadata", {}).get("image/png", {}).get("alt"))]
    parts += ["## What the pictures say"] if readings else []
    parts += [f"{number}. {reading}" for number, reading in enumerate(readings, 1)]
    parts += ["## The record", *_record(run)] if run else []
    return "\n\n".join(parts) + "\n"


def _outputs(node: Any) -> list[Any]:
    return [output for cell in node.cells for output in cell.get("outputs", [])]


def _check(check: dict[str, Any]) -> str:
    lines = [
        f"- **{check['status'].replace('_', ' ')}**: {check['claim']}",
        f"  - expected: {check['expected']}",
        f"  - observed: {check['observed']}",
        f"  - why: {check['why']}",
    ]
    return "\n".join([*lines, f"  - to decide it: {check['hint']}"] if check["hint"] else lines)


def _record(run: dict[str, Any]) -> list[str]:
    lines = [f"- run: {run.get('run_id')}, {run.get('started_at')}"]
    lines += [f"- {name}: {text}" for name, text in facts_of(run) if name != "Repeat it"]
    command = [text for name, text in facts_of(run) if name == "Repeat it"]
    return ["\n".join(lines), *(f"To repeat it:\n\n    {text}" for text in command)]
