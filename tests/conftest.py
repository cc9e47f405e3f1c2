"""What all tests share: no keys and no LLAMA_* variables from the machine. Proxies stay: pip may need them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

import labkit

DATA = Path(__file__).parent / "data"
PROJECT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("LLAMA_", "LABKIT_API_KEY", "LABKIT_MODEL")):
            monkeypatch.delenv(name)


def heed_interrupts() -> None:
    """As preexec_fn: a shell's background jobs ignore SIGINT, and their children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def ended(pid: int) -> bool:
    """Whether a process has ended, reaped or not."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def project() -> Path:
    return PROJECT


@pytest.fixture
def said() -> list[str]:
    """A list that collects progress lines: pass `say=said.append`."""
    return []


def pytest_report_header() -> str:
    return f"labkit {labkit.__version__}"
