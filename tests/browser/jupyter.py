"""JupyterLab on loopback and Chromium in front of it, for tests that need a real page."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil
from playwright.sync_api import Error

START_LIMIT_S = 60.0
CELLS_LIMIT_MS = 240_000
LIGHT, DARK = "JupyterLab Light", "JupyterLab Dark"


@contextmanager
def jupyterlab(folder: Path, notebooks: Path, *, theme: str = LIGHT) -> Iterator[str]:
    """Start JupyterLab over a copy of the notebooks, and end it with all that it has started.

    Args:
        folder: an empty one, for notebooks, settings and runtime files.
        notebooks: where they are copied from.
        theme: of the page.

    Yields:
        The address of its page, token included.
    """
    root = folder / "notebooks"
    shutil.copytree(notebooks, root, ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    _write_settings(folder / "settings", theme)
    port, token = _free_port(), secrets.token_hex(16)
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}",
        f"--ServerApp.root_dir={root}", f"--IdentityProvider.token={token}", "--LabApp.extension_manager=readonly",
        "--ServerApp.port_retries=0",
    ]  # fmt: skip
    with (folder / "jupyter.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=root, env=_environment(folder), stdout=log, stderr=log)
        try:
            _wait_for(f"http://127.0.0.1:{port}/api", process, folder / "jupyter.log")
            yield f"http://127.0.0.1:{port}/lab?token={token}&reset"
        finally:
            _end(process)


def _environment(folder: Path) -> dict[str, str]:
    names = {f"JUPYTER_{what}_DIR": str(folder / what.lower()) for what in ("CONFIG", "DATA", "RUNTIME")}
    settings = {"JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"), "IPYTHONDIR": str(folder / "ipython")}
    workspaces = {"JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces")}
    return os.environ | names | settings | workspaces


def _write_settings(folder: Path, theme: str) -> None:
    wanted = {
        "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
        "apputils-extension/themes": {"theme": theme},
        "docmanager-extension/plugin": {"autosave": False},
        "notebook-extension/tracker": {"windowingMode": "none"},  # cells out of sight are in the page too
    }
    for name, values in wanted.items():
        path = folder / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + START_LIMIT_S
    while time.monotonic() < until:
        if process.poll() is not None:
            break
        with suppress(OSError), urlopen(url, timeout=2):
            return
        time.sleep(0.2)
    raise RuntimeError(f"JupyterLab did not start:\n{log.read_text()[-2000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    mine = psutil.Process(process.pid)
    children = mine.children(recursive=True)
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(10)
    for left in [*children, mine]:
        with suppress(psutil.NoSuchProcess):
            left.kill()


def engines() -> list[int]:
    """Return the pids of all servers of this kit that run now."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = " ".join(process.info["cmdline"] or [])
        if "labkit.engine.embedded_child" in words or "labkit.engine.supervise" in words:
            found.append(process.pid)
    return found


def engines_left(limit_s: float = 15.0) -> list[int]:
    """Return the pids of servers that still run after `limit_s`: one that was told to end may take a moment."""
    until_s = time.monotonic() + limit_s
    while (found := engines()) and time.monotonic() < until_s:
        time.sleep(0.2)
    return found


def _accept(dialog: Any) -> None:
    # it may go away by itself in the meantime
    with suppress(Error):
        dialog.locator("button.jp-mod-accept").first.click(timeout=3000)


class NotebookPage:
    """One notebook, open in JupyterLab.

    Args:
        page: playwright's.
        address: of JupyterLab's page, token included.
        name: of the notebook, without ending.
    """

    def __init__(self, page: Any, address: str, name: str) -> None:
        self.page = page
        base, query = address.split("?")
        # while the first kernel of a fresh JupyterLab comes up, the page may ask which one to take
        asked = page.locator(".jp-Dialog", has_text="Select Kernel")
        page.add_locator_handler(asked, lambda: _accept(asked), no_wait_after=True)
        page.goto(f"{base}/tree/{name}.ipynb?{query}")
        page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
        self._until_kernel_idle()

    def _until_kernel_idle(self, limit_ms: int = 60_000) -> None:
        self.page.wait_for_selector(
            '.jp-Notebook-ExecutionIndicator[data-status="idle"]', timeout=limit_ms, state="attached"
        )

    def set_parameters(self, **values: Any) -> None:
        """Append values to the parameters cell, as a person would type them."""
        lines = "\\n".join(f"{name} = {value!r}" for name, value in values.items())
        cell = self.page.locator(".jp-CodeCell", has_text="# parameters").first
        cell.locator(".cm-content").click()
        self.page.keyboard.press("Control+End")
        self.page.keyboard.insert_text("\n" + lines.replace("\\n", "\n"))

    def run_all(self, limit_ms: int = CELLS_LIMIT_MS) -> None:
        """Run all cells and wait until the last one has run."""
        prompts = self.page.locator(".jp-CodeCell .jp-InputPrompt")
        self._start_cells(prompts)
        for _ in range(limit_ms // 500):
            if re.fullmatch(r"\[\d+\]:", prompts.last.text_content().strip()) or self.errors():
                return
            self.page.wait_for_timeout(500)
        raise AssertionError(f"the last cell has not run after {limit_ms / 1000:.0f} s")

    def _start_cells(self, prompts: Any) -> None:
        # what is run in the moment in which JupyterLab connects to a fresh kernel is lost without a word
        for _ in range(6):
            self.page.get_by_role("menuitem", name="Run", exact=True).click()
            self.page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
            self.page.wait_for_timeout(2000)
            if any(text.strip() != "[ ]:" for text in prompts.all_text_contents()):
                return
        raise AssertionError("Run All Cells starts nothing")

    def errors(self) -> list[str]:
        """Return what cells have put out as errors."""
        found = self.page.locator('.jp-OutputArea-output[data-mime-type="application/vnd.jupyter.error"]')
        return [str(text) for text in found.all_text_contents()]

    def pictures(self) -> int:
        """Return how many pictures of cells are there and drawn."""
        script = (
            "() => [...document.querySelectorAll('.jp-RenderedImage img')].filter((i) => i.naturalWidth > 99).length"
        )
        return int(self.page.evaluate(script))

    @property
    def panel(self) -> Any:
        """The panel's element."""
        return self.page.locator(".labkit-panel").last

    def button(self, text: str) -> Any:
        """Return a button of the panel, by the beginning of its text."""
        return self.panel.locator("button", has_text=re.compile(f"^\\s*{re.escape(text)}"))

    def click(self, text: str) -> None:
        """Wait until a button can be clicked, and click it."""
        self.button(text).click(timeout=30_000)

    def until(self, script: str, limit_ms: int = 60_000) -> None:
        """Wait until a JavaScript expression over `panel` is true."""
        self.page.wait_for_function(
            f"() => {{ const all = document.querySelectorAll('.labkit-panel');"
            f" const panel = all[all.length - 1]; return panel && ({script}); }}",
            timeout=limit_ms,
        )

    def state(self) -> str:
        """Return the panel's state line."""
        return str(self.panel.locator(".labkit-state").text_content())

    def until_state(self, text: str, limit_ms: int = 60_000) -> None:
        """Wait until the state line begins with this."""
        self.until(f"panel.querySelector('.labkit-state').textContent.startsWith({text!r})", limit_ms)

    def stage(self, name: str) -> str:
        """Return a data attribute of the moving picture."""
        return str(self.panel.locator(".labkit-stage").get_attribute(f"data-{name}") or "")
