"""The panel in a real page: knobs, lanes, cells, buttons, and what leaves a server behind (nothing)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.browser.conftest import Open, shut_down_kernels
from tests.browser.jupyter import NotebookPage, engines

pytestmark = [pytest.mark.browser, pytest.mark.live, pytest.mark.timeout(300)]
Screenshot = Callable[[NotebookPage, str], Path]
# the toy may have answered before a hand gets round to the next click
SLOW: dict[str, Any] = {"model": "smollm2-135m"}


def by_hand(panel: NotebookPage) -> None:
    """Turn to the tab for requests by hand, start a server and wait for it."""
    panel.panel.get_by_role("tab", name="Send requests by hand").click()
    panel.click("Start server")
    panel.until_state("ready")


def stopped(panel: NotebookPage) -> None:
    panel.click("Stop")
    panel.until_state("nothing runs")
    assert panel.panel.locator(".labkit-error").all_text_contents() == []
    assert engines() == []


def runs(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*/*/run.json"))]


def test_a_dragged_slider_changes_command_and_cells(open_panel: Open, page: Any, screenshot: Screenshot) -> None:
    panel = open_panel()
    handle = panel.panel.locator(".labkit-knob-parallel .noUi-handle")
    box = handle.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + 60, box["y"] + 5, steps=6)
    page.mouse.up()
    panel.until("!panel.querySelector('.labkit-preview').textContent.includes('--parallel 2 ')")
    panel.panel.get_by_role("button", name="a box each").click()
    panel.until("panel.querySelector('.labkit-preview').textContent.includes('--no-kv-unified')")
    assert "The cells are divided" in panel.panel.locator(".labkit-preview").text_content()
    screenshot(panel, "divided")
    assert engines() == []


def test_two_lanes_move_at_once_and_answers_are_text(open_panel: Open, screenshot: Screenshot, tmp_path: Path) -> None:
    panel = open_panel(**SLOW)
    by_hand(panel)
    panel.click("Send A: long")
    panel.until("panel.querySelector('.labkit-stage').dataset.busy.includes(':A:decode')")
    panel.click("Send B: short")
    panel.until(
        "/:A:decode/.test(panel.querySelector('.labkit-stage').dataset.busy)"
        " && /:B:decode/.test(panel.querySelector('.labkit-stage').dataset.busy)"
    )
    screenshot(panel, "two_lanes")
    panel.until("panel.querySelector('[data-label=B]').dataset.state === 'done'")
    answer = panel.panel.locator("[data-label=B] .labkit-answer-text")
    assert len(answer.text_content()) > 16
    assert answer.locator("*").count() == 0
    stopped(panel)
    (run,) = runs(tmp_path)
    assert run["arms"]["treatment"]["planned"]["requests"][1]["after"]["label"] == "A"


def test_more_requests_than_slots_wait_and_one_can_be_cancelled(open_panel: Open, screenshot: Screenshot) -> None:
    panel = open_panel(**SLOW)
    by_hand(panel)
    for label in "AB":
        panel.click(f"Send {label}: long")
    panel.until("panel.querySelector('.labkit-stage').dataset.busy.split(' ').length === 2")
    panel.click("Send C: short")
    panel.until("panel.querySelector('.labkit-stage').dataset.waiting.includes('C')")
    screenshot(panel, "c_waits")
    assert panel.panel.locator("select").last.input_value() == "A"  # the first that runs is offered
    panel.click("Cancel it")
    panel.until("panel.querySelector('[data-label=A]').dataset.state === 'failed'")
    panel.until("panel.querySelector('[data-label=C]').dataset.state === 'done'")
    stopped(panel)


def test_without_continuous_batching_b_waits_on_its_slot(open_panel: Open, screenshot: Screenshot) -> None:
    panel = open_panel(cont_batching=False, **SLOW)
    by_hand(panel)
    panel.click("Send A: long")
    panel.until("panel.querySelector('.labkit-stage').dataset.busy.includes(':A:decode')")
    panel.click("Send B: short")
    panel.until("/:B:held/.test(panel.querySelector('.labkit-stage').dataset.busy)")
    screenshot(panel, "b_held")
    panel.until("panel.querySelector('[data-label=B]').dataset.state === 'done'")
    stopped(panel)


def test_the_experiment_asks_for_a_guess_and_gives_verdict_reasons_and_command(
    open_panel: Open, screenshot: Screenshot, tmp_path: Path
) -> None:
    panel = open_panel(a_tokens=128)
    assert panel.button("Run the experiment").is_disabled()
    panel.panel.locator("input[placeholder='your number']").fill("100")
    panel.click("Run the experiment")
    panel.until_state("the experiment runs")
    assert panel.button("Run the experiment").is_disabled()
    panel.until("/:A:.*:B:|:B:.*:A:/.test(panel.querySelector('.labkit-stage').dataset.busy)")
    panel.until_state("nothing runs", 120_000)
    panel.until("panel.querySelector('.labkit-result')")
    text = panel.panel.locator(".labkit-result").text_content()
    assert "Predicted: A gets 100 tokens" in text
    (run,) = runs(tmp_path)
    assert f"Verdict: {run['verdict']['status']}" in text
    assert run["parameters"]["predicted_tokens_left"] == 100
    command = panel.panel.locator(".labkit-command code").text_content()
    assert "papermill notebooks/03_late_arrival.ipynb" in command
    assert f"-p seed {run['parameters']['seed']}" in command
    panel.click("Copy as papermill")
    panel.until("[...panel.querySelectorAll('button')].some((b) => /Copied|Press/.test(b.textContent))")
    screenshot(panel, "verdict")
    assert engines() == []


def test_a_pool_that_runs_out_on_purpose_shows_who_dies(open_panel: Open, screenshot: Screenshot) -> None:
    panel = open_panel("05_kv_exhaustion", ctx_size=256, parallel=2, batch_size=64)
    by_hand(panel)
    panel.click("Send A: long")
    panel.click("Send B: long")
    panel.until("['A', 'B'].every((l) => panel.querySelector(`[data-label=${l}]`)?.dataset.state === 'failed')", 90_000)
    assert "Context size has been exceeded" in panel.panel.locator("[data-label=A]").text_content()
    assert panel.panel.locator(".labkit-box").count() == 1
    screenshot(panel, "both_died")
    stopped(panel)


def test_split_has_a_box_for_each_slot(open_panel: Open, screenshot: Screenshot) -> None:
    panel = open_panel("02_kv_unified_vs_split", ctx_size=1024)
    panel.panel.get_by_role("button", name="a box each").click()
    by_hand(panel)
    panel.click("Send A: long")
    panel.until("panel.querySelectorAll('.labkit-box').length === 2 && panel.querySelector('.labkit-cells')")
    assert "box of slot 1" in panel.panel.locator(".labkit-kv").text_content()
    screenshot(panel, "boxes")
    stopped(panel)


def test_an_engine_that_is_not_there_is_said_in_the_panel(open_panel: Open, screenshot: Screenshot) -> None:
    panel = open_panel()
    engine = panel.panel.locator(".labkit-knob-engine input")
    engine.fill("/no/such/llama-server")
    engine.press("Enter")
    panel.panel.get_by_role("tab", name="Send requests by hand").click()
    panel.click("Start server")
    panel.until("panel.querySelector('.labkit-error')")
    assert "/no/such/llama-server does not exist" in panel.panel.locator(".labkit-error").text_content()
    screenshot(panel, "no_engine")
    panel.until_state("nothing runs")


# --- nothing is left behind ---------------------------------------------------------------------------


def no_error_box(page: Any) -> None:
    assert page.locator(".jp-Dialog").count() == 0


def test_a_reloaded_page_finds_its_panel_and_the_running_server(open_panel: Open, page: Any) -> None:
    panel = open_panel()
    by_hand(panel)
    panel.click("Send A: long")
    panel.until("panel.querySelector('[data-label=A]')?.dataset.state === 'done'")
    page.keyboard.press("Control+s")
    page.wait_for_timeout(1500)
    page.reload()
    page.wait_for_selector(".labkit-panel [data-label=A]", timeout=60_000)
    assert panel.state().startswith("ready")
    no_error_box(page)
    stopped(panel)


def test_a_closed_page_leaves_no_server(open_panel: Open, page: Any) -> None:
    panel = open_panel()
    by_hand(panel)
    assert engines()
    page.goto("about:blank")
    for _ in range(60):
        page.wait_for_timeout(500)
        if not engines():
            return
    pytest.fail("30 s after its page was closed the server still runs")


@pytest.mark.parametrize("end", ["restart", "shutdown"])
def test_the_end_of_the_kernel_is_the_end_of_the_server(
    open_panel: Open, page: Any, lab_address: str, end: str
) -> None:
    panel = open_panel()
    by_hand(panel)
    pids = engines()
    if end == "restart":
        page.get_by_role("menuitem", name="Kernel", exact=True).click()
        page.locator(".lm-Menu-item", has_text=re.compile("^Restart Kernel…")).first.click()
        page.locator(".jp-Dialog button.jp-mod-accept").click()
    else:
        shut_down_kernels(page, lab_address)
    for _ in range(40):
        page.wait_for_timeout(250)
        if not any(psutil.pid_exists(pid) for pid in pids):
            break
    assert engines() == []


def test_an_interrupt_of_the_kernel_spares_the_panels_server(open_panel: Open, page: Any) -> None:
    panel = open_panel()
    by_hand(panel)
    page.get_by_role("menuitem", name="Kernel", exact=True).click()
    page.locator(".lm-Menu-item", has_text=re.compile("^Interrupt Kernel")).first.click()
    page.wait_for_timeout(1000)
    panel.click("Send A: short")
    panel.until("panel.querySelector('[data-label=A]')?.dataset.state === 'done'")
    no_error_box(page)
    stopped(panel)
