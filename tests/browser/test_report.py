"""The one-file page as a reader opens it: from disk, with the network off, on a screen and on paper."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from labkit.present.page import page_of
from tests.recorded import write_run

pytestmark = pytest.mark.browser


@pytest.fixture
def opened(chromium: Any, tmp_path: Path) -> Any:
    folder = write_run(tmp_path, printed="x" * 3000, log="<script>document.title='ran'</script>")
    run = json.loads((folder / "run.json").read_text())
    (tmp_path / "page.html").write_text(page_of(folder / "03_late_arrival.ipynb", run, folder))
    context = chromium.new_context(offline=True, viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.asked, page.complaints = [], []
    page.on("request", lambda request: page.asked.append(request.url))
    page.on("console", lambda message: page.complaints.append(message.text))
    page.goto((tmp_path / "page.html").as_uri())
    yield page
    context.close()


def test_it_opens_from_disk_and_asks_for_nothing(opened: Any) -> None:
    assert [url for url in opened.asked if not url.startswith(("file:", "data:"))] == []
    assert opened.complaints == []
    assert opened.evaluate("[...document.images].map(image => image.naturalWidth > 0)") == [True]


def test_the_verdict_is_on_the_first_screen_and_code_is_folded(opened: Any) -> None:
    assert opened.get_by_text("Verdict: supported").bounding_box()["y"] < 300
    assert not opened.locator("details.code .highlight").first.is_visible()
    opened.locator("details.code summary").first.click()
    assert opened.locator("details.code .highlight").first.is_visible()


@pytest.mark.parametrize("width", [1280, 794, 390])
def test_nothing_runs_out_of_the_page(opened: Any, width: int) -> None:
    opened.set_viewport_size({"width": width, "height": 900})
    assert opened.evaluate("document.documentElement.scrollWidth") <= width


def test_on_paper_there_is_no_code(opened: Any) -> None:
    opened.emulate_media(media="print")
    assert not opened.locator("details.code summary").first.is_visible()
    assert len(opened.pdf(prefer_css_page_size=True)) > 5000
