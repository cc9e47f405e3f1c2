"""What a person does first, in one go: open 03, run it all, turn a knob, send A and B, stop. CI runs this one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import shut_down_kernels
from tests.browser.jupyter import NotebookPage, engines, engines_left

pytestmark = [pytest.mark.browser, pytest.mark.live, pytest.mark.timeout(300)]


@pytest.fixture
def notebook(page: Any, lab_address: str, tmp_path: Path) -> Iterator[NotebookPage]:
    found = NotebookPage(page, lab_address, "03_late_arrival")
    # the default model: the toy may have answered A before a hand, or a test, gets round to sending B
    found.set_parameters(a_tokens=256, outputs=str(tmp_path))
    yield found
    shut_down_kernels(page, lab_address)
    assert engines_left() == []


def test_run_all_then_turn_start_send_and_stop(
    notebook: NotebookPage, screenshot: Callable[[NotebookPage, str], Path]
) -> None:
    notebook.run_all()
    assert notebook.errors() == []
    assert notebook.pictures() >= 3
    assert "Verdict:" in notebook.page.locator(".jp-Notebook").text_content()
    notebook.panel.locator(".labkit-knob-parallel .noUi-handle").focus()
    notebook.page.keyboard.press("ArrowRight")
    notebook.until("panel.querySelector('.labkit-preview').textContent.includes('--parallel 3 ')")
    notebook.panel.get_by_role("tab", name="Send requests by hand").click()
    notebook.click("Start server")
    notebook.until_state("ready")
    notebook.click("Send A: long")
    notebook.until("panel.querySelector('.labkit-stage').dataset.busy.includes(':A:decode')")
    notebook.click("Send B: short")
    notebook.until(
        "['A', 'B'].every((l) => panel.querySelector('.labkit-stage').dataset.busy.includes(`:${l}:decode`))"
    )
    screenshot(notebook, "lanes")
    notebook.click("Stop")
    notebook.until_state("nothing runs")
    assert engines() == []
