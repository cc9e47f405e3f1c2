"""Every notebook in JupyterLab: Run All, no error, pictures there without a network, a panel at its end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import papermill
import pytest

from tests.browser.conftest import shut_down_kernels
from tests.browser.jupyter import NotebookPage, engines
from tests.conftest import PROJECT

pytestmark = [pytest.mark.browser, pytest.mark.live, pytest.mark.timeout(400)]

# small, so that all seven take a few minutes; what they say is not the point here
SMALL: dict[str, dict[str, Any]] = {
    "00_build": {"smoke_tokens": 8},
    "01_slot_escalation": {"slots_list": [1, 2], "requests_list": [2], "max_tokens": 16, "repeats": 1},
    "02_kv_unified_vs_split": {"ctx_size": 1024},
    "03_late_arrival": {"a_tokens": 64},
    "04_metrics_and_gpu": {"n_requests": 3, "answer_tokens": 32},
    "05_kv_exhaustion": {"remedies": False},
    "06_compare_runs": {},
}
PICTURES = {
    "00_build": 1,
    "01_slot_escalation": 4,
    "02_kv_unified_vs_split": 3,
    "03_late_arrival": 3,
    "04_metrics_and_gpu": 3,
    "05_kv_exhaustion": 2,
    "06_compare_runs": 2,
}


def two_runs(outputs: Path) -> None:
    """Record two runs for 06 to compare."""
    given = {"model": "toy", "a_tokens": 48, "control": False, "outputs": str(outputs)}
    for number in range(2):
        papermill.execute_notebook(
            PROJECT / "notebooks" / "03_late_arrival.ipynb", outputs / f"{number}.ipynb", given, progress_bar=False
        )


@pytest.mark.parametrize("name", SMALL)
def test_run_all_leaves_no_error_and_every_picture(
    page: Any, lab_address: str, tmp_path: Path, screenshot: Callable[[NotebookPage, str], Path], name: str
) -> None:
    if name == "06_compare_runs":
        two_runs(tmp_path)
    notebook = NotebookPage(page, lab_address, name)
    model = {} if name == "06_compare_runs" else {"model": "toy"}
    notebook.set_parameters(**model, outputs=str(tmp_path), **SMALL[name])
    notebook.run_all()
    assert notebook.errors() == []
    assert notebook.pictures() == PICTURES[name]
    notebook.until("panel.querySelector('canvas')")
    notebook.until("panel.querySelector('.labkit-state').textContent.startsWith('nothing runs')")
    assert notebook.page.locator(".jp-Dialog").count() == 0
    notebook.panel.scroll_into_view_if_needed()
    screenshot(notebook, name)
    assert engines() == []
    shut_down_kernels(page, lab_address)
