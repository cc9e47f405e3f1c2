"""How smoothly the panel's lanes move, and what that costs the kernel: frames a second with 1, 4, 8 and 16 slots.

    python -m tests.bench.panel_frames [--seconds 10] [--slots 1 4 8 16] [--model toy]

Drives JupyterLab in Chromium as tests/browser does. For each slot count a server is started from the panel, as many
long answers are sent by hand, and for some seconds the page's own counts are read (frames that came from the kernel,
pictures drawn) and the kernel process's CPU time. The same again without a page in front of it is not measured: a
server runs only as long as a page shows it.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from playwright.sync_api import sync_playwright

from tests.browser.conftest import CHROMIUM, write_notebook
from tests.browser.jupyter import NotebookPage, jupyterlab
from tests.conftest import PROJECT


def kernel_process() -> psutil.Process:
    """Return the newest kernel on this machine."""
    kernels = [
        process
        for process in psutil.process_iter(["cmdline", "create_time"])
        if "ipykernel_launcher" in " ".join(process.info["cmdline"] or [])
    ]
    return max(kernels, key=lambda process: process.info["create_time"])


def measured(page: Any, address: str, folder: Path, slots: int, args: argparse.Namespace) -> dict[str, float]:
    """Run one panel with so many slots, and return what was counted."""
    values = {"model": args.model, "parallel": slots, "ctx_size": 1024 * slots, "a_tokens": 900, "outputs": str(folder)}
    write_notebook(folder / "notebooks" / f"bench{slots}.ipynb", "03_late_arrival", values | {"interactive": True})
    panel = NotebookPage(page, address, f"bench{slots}")
    panel.run_all()
    panel.panel.get_by_role("tab", name="Send requests by hand").click()
    panel.click("Start server")
    panel.until_state("ready")
    panel.page.evaluate("() => document.querySelector('.labkit-stage').scrollIntoView()")
    for _ in range(slots):
        panel.button("Send").first.click()
    panel.until("panel.querySelector('.labkit-stage').dataset.busy.includes('decode')")
    kernel = kernel_process()
    cpu_s, start_s = sum(kernel.cpu_times()[:2]), time.monotonic()
    drawn, frames, busy = [], [], 0
    while time.monotonic() - start_s < args.seconds:
        page.wait_for_timeout(1000)
        drawn.append(int(panel.stage("fps") or 0))
        frames.append(int(panel.stage("frames-per-second") or 0))
        busy = max(busy, len(panel.stage("busy").split()))
    share = (sum(kernel.cpu_times()[:2]) - cpu_s) / (time.monotonic() - start_s)
    panel.click("Stop")
    panel.until_state("nothing runs")
    return {
        "slots": slots,
        "busy": busy,
        "frames_per_s": sum(frames) / len(frames),
        "drawn_per_s": sum(drawn) / len(drawn),
        "least_frames_per_s": min(frames),
        "kernel_share_of_a_core": share,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--slots", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--model", default="toy")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    chromium = shutil.which("chromium")
    with jupyterlab(folder, PROJECT / "notebooks") as address, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=CHROMIUM)
        for slots in args.slots:
            page = browser.new_page(viewport={"width": 1280, "height": 1000})
            found = measured(page, address, folder, slots, args)
            print("  ".join(f"{name} {value:.2f}" for name, value in found.items()), flush=True)
            page.close()


if __name__ == "__main__":
    main()
