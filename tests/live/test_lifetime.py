"""No server outlives its kernel by more than 5 s: real kernels, real papermill, real signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from jupyter_client import KernelManager

from tests.conftest import ended, heed_interrupts

pytestmark = pytest.mark.live
PROMISE_S = 5.0

SERVE = """
import asyncio, labkit as lab
from pathlib import Path
async with lab.start_server(lab.ServerSettings(model="toy"), log_path=Path({log!r}), lock_timeout_s=60) as server:
    Path({pid!r} + ".tmp").write_text(str(server.process.pid))
    Path({pid!r} + ".tmp").rename({pid!r})
    await asyncio.sleep(120)
"""


def serving_cell(folder: Path) -> str:
    return SERVE.format(log=str(folder / "server.log"), pid=str(folder / "pid"))


def server_pid(folder: Path, limit_s: float = 60.0) -> int:
    deadline = time.monotonic() + limit_s
    while not (folder / "pid").exists():
        assert time.monotonic() < deadline, "no server was started"
        time.sleep(0.05)
    pid = int((folder / "pid").read_text())
    assert psutil.Process(pid).is_running()
    return pid


def outlived_s(pid: int) -> float:
    """Return how long a server went on; fails after twice the promise."""
    started = time.monotonic()
    while not ended(pid):
        assert time.monotonic() - started < 2 * PROMISE_S, f"server {pid} still runs"
        time.sleep(0.02)
    return time.monotonic() - started


@pytest.fixture
def kernel() -> Iterator[KernelManager]:
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    yield manager
    manager.shutdown_kernel(now=True)
    manager.cleanup_resources()


@pytest.fixture
def client(kernel: KernelManager) -> Iterator[Any]:
    client = kernel.client()
    client.start_channels()
    client.wait_for_ready(timeout=60)
    yield client
    client.stop_channels()


def test_an_interrupt_ends_the_server_and_leaves_the_kernel(kernel: KernelManager, client: Any, tmp_path: Path) -> None:
    client.execute(serving_cell(tmp_path))
    pid = server_pid(tmp_path)
    kernel.interrupt_kernel()
    assert outlived_s(pid) < PROMISE_S
    # what is sent while the interrupted cell still ends is aborted by Jupyter itself
    for _ in range(20):
        reply = client.execute_interactive("1 + 1", timeout=30, output_hook=lambda message: None)
        if reply["content"]["status"] != "aborted":
            break
        time.sleep(0.2)
    assert reply["content"]["status"] == "ok"


def test_a_restart_ends_the_server(kernel: KernelManager, client: Any, tmp_path: Path) -> None:
    client.execute(serving_cell(tmp_path))
    pid = server_pid(tmp_path)
    kernel.restart_kernel(now=True)
    assert outlived_s(pid) < PROMISE_S


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_the_kernel_ends_the_server(
    kernel: KernelManager, client: Any, tmp_path: Path, how: signal.Signals
) -> None:
    client.execute(serving_cell(tmp_path))
    pid = server_pid(tmp_path)
    os.kill(kernel.provisioner.pid, how)
    assert outlived_s(pid) < PROMISE_S


def test_a_cell_that_raises_ends_the_server(client: Any, tmp_path: Path) -> None:
    client.execute(serving_cell(tmp_path).replace("await asyncio.sleep(120)", "raise RuntimeError('no')"))
    deadline = time.monotonic() + 60
    while not (tmp_path / "pid").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert outlived_s(int((tmp_path / "pid").read_text())) < PROMISE_S


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_a_signal_to_papermill_ends_the_server(tmp_path: Path, how: signal.Signals) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(serving_cell(tmp_path))])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, tmp_path / "in.ipynb")
    command = [sys.executable, "-m", "papermill", str(tmp_path / "in.ipynb"), str(tmp_path / "out.ipynb")]
    papermill = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=heed_interrupts
    )
    try:
        pid = server_pid(tmp_path)
        papermill.send_signal(how)
        assert outlived_s(pid) < PROMISE_S
    finally:
        papermill.kill()
        papermill.wait(10)
