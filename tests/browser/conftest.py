"""One JupyterLab and one Chromium for all tests of this folder; screenshots go to outputs/browser/."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.browser.jupyter import NotebookPage, engines_left, jupyterlab
from tests.conftest import PROJECT

CHROMIUM = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
SCREENSHOTS = PROJECT / "outputs" / "browser"

Open = Callable[..., NotebookPage]


@pytest.fixture(scope="session")
def lab_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jupyter")


@pytest.fixture(scope="session")
def lab_address(lab_folder: Path) -> Iterator[str]:
    with jupyterlab(lab_folder, PROJECT / "notebooks") as address:
        yield address


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="the browser tests need playwright")
    path = shutil.which("chromium")
    if path is None:
        pytest.fail("there is no chromium: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=CHROMIUM)
        yield browser
        browser.close()


@pytest.fixture
def page(chromium: Any) -> Iterator[Any]:
    """A page that lets nothing out but to this machine, and fails its test when its own scripts fail."""
    page = chromium.new_page(viewport={"width": 1280, "height": 1000})
    page.outside, page.failures = [], []
    page.on("request", lambda request: _note_outside(page, request.url))
    page.on("pageerror", lambda error: page.failures.append(str(error)))
    yield page
    page.close()
    assert page.outside == []
    assert page.failures == []


def _note_outside(page: Any, url: str) -> None:
    if not url.startswith(("http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:")):
        page.outside.append(url)


@pytest.fixture
def open_panel(page: Any, lab_folder: Path, lab_address: str, tmp_path: Path) -> Iterator[Open]:
    """Open a notebook that has a panel alone, run it, and leave nothing running after the test."""

    def opened(notebook: str = "03_late_arrival", **parameters: Any) -> NotebookPage:
        name = f"panel_{tmp_path.name}"
        values = {"model": "toy", "outputs": str(tmp_path), "interactive": True} | parameters
        write_notebook(lab_folder / "notebooks" / f"{name}.ipynb", notebook, values)
        found = NotebookPage(page, lab_address, name)
        found.run_all()
        assert found.errors() == []
        found.until("panel.querySelector('.labkit-stage canvas')")
        return found

    yield opened
    shut_down_kernels(page, lab_address)
    assert engines_left() == []


def write_notebook(path: Path, notebook: str, values: dict[str, Any]) -> None:
    """Write a notebook that has one panel and nothing else.

    Args:
        path: where to.
        notebook: whose panel.
        values: its parameters.
    """
    model = {"03_late_arrival": "LateArrival", "05_kv_exhaustion": "KvExhaustion", "02_kv_unified_vs_split": "KvModes"}
    cells = [
        "import labkit as lab",
        f"params = lab.{model[notebook]}(**{values!r})",
        f'lab.panel("{notebook}", params)',
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    book = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell) for cell in cells], metadata={"kernelspec": kernel}
    )
    nbformat.write(book, path)


def shut_down_kernels(page: Any, address: str) -> None:
    """End every kernel of this JupyterLab, as its own menu would."""
    base, _, token = address.partition("/lab?token=")
    headers = {"Authorization": f"token {token.removesuffix('&reset')}"}
    for kernel in page.request.get(f"{base}/api/kernels", headers=headers).json():
        page.request.delete(f"{base}/api/kernels/{kernel['id']}", headers=headers)


@pytest.fixture
def screenshot(request: pytest.FixtureRequest) -> Callable[[NotebookPage, str], Path]:
    """Keep a picture of the page as it is."""

    def taken(notebook: NotebookPage, name: str) -> Path:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        path = SCREENSHOTS / f"{request.node.name.split('[')[0]}-{name}.png"
        notebook.page.screenshot(path=str(path))
        return path

    return taken
