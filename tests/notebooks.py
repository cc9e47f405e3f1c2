"""Runs a notebook's code cells in this process: quick, and what it calls can be replaced."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import json
from pathlib import Path
from typing import Any

import nbformat

from tests.conftest import PROJECT


def run_notebook(name: str, **parameters: Any) -> dict[str, Any]:
    """Run it with these parameters, as papermill would inject them; return its names, and "printed"."""
    notebook = nbformat.read(PROJECT / "notebooks" / f"{name}.ipynb", as_version=4)
    namespace: dict[str, Any] = {"In": [""]}
    printed = io.StringIO()
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        _run(cell.source, namespace, printed)
        if "parameters" in cell.metadata.get("tags", []):
            given = "\n".join(f"{name} = {value!r}" for name, value in parameters.items())
            _run(f"# Parameters\n{given}", namespace, printed)
    return namespace | {"printed": printed.getvalue()}


def _run(source: str, namespace: dict[str, Any], printed: io.StringIO) -> None:
    namespace["In"].append(source)
    code = compile(source, "<cell>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    with contextlib.redirect_stdout(printed):  # outside IPython a display is printed, pictures as bytes
        if code.co_flags & inspect.CO_COROUTINE:
            asyncio.run(eval(code, namespace))
        else:
            exec(code, namespace)


def read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))  # type: ignore[no-any-return]
