"""How the panel looks: both themes, two widths; pictures to be judged by eyes, and what a script can judge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import SCREENSHOTS, shut_down_kernels, write_notebook
from tests.browser.jupyter import DARK, LIGHT, NotebookPage, jupyterlab
from tests.conftest import PROJECT

pytestmark = [pytest.mark.browser, pytest.mark.live, pytest.mark.timeout(300)]

OVERFLOW = """() => [...document.querySelectorAll('.labkit-panel, .labkit-panel .labkit-preview, .labkit-stage')]
  .filter((part) => part.scrollWidth > part.clientWidth + 1).map((part) => part.className)"""
# luminance of text and paper, as WCAG has it
CONTRAST = """() => {
  const light = (colour) => {
    const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map((v) => v / 255)
      .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const preview = getComputedStyle(document.querySelector('.labkit-preview'));
  const [a, b] = [light(preview.color), light(preview.backgroundColor)].sort((x, y) => y - x);
  return (a + 0.05) / (b + 0.05);
}"""


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_the_panel_at_two_widths(chromium: Any, tmp_path: Path, theme: str) -> None:
    folder = tmp_path / "lab"
    folder.mkdir()
    with jupyterlab(folder, PROJECT / "notebooks", theme=theme) as address:
        values = {"model": "smollm2-135m", "outputs": str(tmp_path), "interactive": True, "parallel": 4}
        write_notebook(folder / "notebooks" / "look.ipynb", "03_late_arrival", values)
        page = chromium.new_page(viewport={"width": 1280, "height": 1250})
        panel = NotebookPage(page, address, "look")
        panel.run_all()
        panel.panel.get_by_role("tab", name="Send requests by hand").click()
        panel.click("Start server")
        panel.until_state("ready")
        for label in "ABCDEF":
            panel.click(f"Send {label}: long")
        panel.until("panel.querySelector('.labkit-stage').dataset.busy.split('decode').length > 3")
        for width in (1280, 1920):
            page.set_viewport_size({"width": width, "height": 1250})
            page.wait_for_timeout(700)
            SCREENSHOTS.mkdir(parents=True, exist_ok=True)
            page.screenshot(path=str(SCREENSHOTS / f"look-{theme.split()[-1].lower()}-{width}.png"))
            assert page.evaluate(OVERFLOW) == []
            assert page.evaluate(CONTRAST) > 7
        panel.click("Stop")
        panel.until_state("nothing runs")
        shut_down_kernels(page, address)
        page.close()
