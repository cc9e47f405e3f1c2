"""Notebooks as files: stripped, parameterised, short cells, and in step with their parameter models."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import nbformat
import pytest
import yaml

import labkit as lab
from labkit.settings import AttachSettings, Setting
from tests.conftest import PROJECT

MODELS: dict[str, type[Setting]] = {
    "00_build": lab.Build,
    "01_slot_escalation": lab.SlotEscalation,
    "02_kv_unified_vs_split": lab.KvModes,
    "03_late_arrival": lab.LateArrival,
    "04_metrics_and_gpu": lab.MetricsAndGpu,
    "05_kv_exhaustion": lab.KvExhaustion,
    "06_compare_runs": lab.CompareRuns,
}
NOTEBOOKS = sorted((PROJECT / "notebooks").glob("[0-9]*.ipynb"))
# flags that a notebook need not list; they can be passed all the same
UNLISTED = {"host", "kv_unified_per_slot", "slots_endpoint", "metrics_endpoint"}
# fields of the common base that have no meaning in a notebook: refused, or without anybody to wait for
NOT_HERE = {
    "02_kv_unified_vs_split": {"kv_unified", "start_timeout_s", *AttachSettings.model_fields},
    "05_kv_exhaustion": {"start_timeout_s", *AttachSettings.model_fields},
    "01_slot_escalation": {"parallel", "start_timeout_s"},
    "04_metrics_and_gpu": {"start_timeout_s"},
}


def cells(path: Path, kind: str = "code") -> list[Any]:
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == kind]


def tagged(path: Path) -> list[Any]:
    return [cell for cell in cells(path) if "parameters" in cell.metadata.get("tags", [])]


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request: pytest.FixtureRequest) -> Path:
    return request.param  # type: ignore[no-any-return]


def test_every_notebook_has_a_model(notebook: Path) -> None:
    assert notebook.stem in MODELS


def test_sources_carry_no_output_and_the_plain_kernel(notebook: Path) -> None:
    assert all(not cell.outputs and cell.execution_count is None for cell in cells(notebook))
    kernel = nbformat.read(notebook, as_version=4).metadata.kernelspec
    assert (kernel.name, kernel.display_name) == ("python3", "Python 3")


def test_there_is_one_parameters_cell_of_typed_literals_with_help(notebook: Path) -> None:
    (cell,) = tagged(notebook)
    lines = cell.source.splitlines()
    assert lines[0] == "# parameters"
    for line, node in zip(lines[1:], ast.parse(cell.source).body, strict=True):
        assert isinstance(node, ast.AnnAssign)
        ast.literal_eval(node.value)  # type: ignore[arg-type]
        assert "  # " in line


def test_defaults_and_help_are_those_of_the_model(notebook: Path) -> None:
    (cell,) = tagged(notebook)
    fields = MODELS[notebook.stem].model_fields
    helps = {line.split(":")[0]: line.split("  # ", 1)[1] for line in cell.source.splitlines()[1:]}
    defaults = {node.target.id: ast.literal_eval(node.value) for node in ast.parse(cell.source).body}  # type: ignore
    assert set(defaults) == set(fields) - UNLISTED - NOT_HERE.get(notebook.stem, set())
    assert {n: tuple(d) if isinstance(d, list) else d for n, d in defaults.items()} == {
        name: fields[name].default for name in defaults
    }
    for name, text in helps.items():
        assert text.startswith(str(fields[name].description)), name


def test_code_cells_are_short(notebook: Path) -> None:
    long = [cell.source for cell in cells(notebook) if len(cell.source.splitlines()) > 15]
    assert set(long) <= {cell.source for cell in tagged(notebook)}


def test_the_anatomy_is_there(notebook: Path) -> None:
    text = "\n".join(cell.source for cell in cells(notebook, "markdown"))
    for part in (
        "**Question.**",
        "**Predict first.**",
        "**What to see:**",
        "## The wrong way",
        "## Limits",
        "## Exercises",
    ):
        assert part in text
    assert "headline" in cells(notebook)[0].source.lower()
    assert "conclude" in cells(notebook)[-2].source
    assert cells(notebook)[-1].source == f'lab.panel("{notebook.stem}", params)'


def test_no_notebook_installs_or_names_a_path(notebook: Path) -> None:
    source = "\n".join(cell.source for cell in cells(notebook))
    for word in ("pip install", "!", "%", "/root", "/home", "sys.path", "asyncio.run", "nest_asyncio"):
        assert word not in source.replace("!=", "")


@pytest.mark.parametrize("path", sorted((PROJECT / "params").glob("*.yaml")), ids=lambda path: path.name)
def test_parameter_files_fit_their_notebook(path: Path) -> None:
    notebook = path.name.split(".")[0]
    assert lab.parameters(MODELS[notebook], yaml.safe_load(path.read_text()))
