"""Memory samples of a process that is there and of one that isn't."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from labkit.measure import memory
from labkit.measure.memory import MemorySampler


def sampled(pid: int | None) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    ticks = iter(range(100))
    with MemorySampler(pid, 2.0, lambda: float(next(ticks)), rows.append) as sampler:
        sampler.sample()
        sampler.sample()
    return rows


def test_a_process_has_resident_memory_at_each_time() -> None:
    rows = sampled(os.getpid())
    assert [row["at_s"] for row in rows] == [0.0, 1.0]
    assert all(row["resident_bytes"] > 1_000_000 for row in rows)


@pytest.mark.parametrize("pid", [None, 2**22 + 1])
def test_a_process_that_is_not_there_has_none_and_never_zero(pid: int | None) -> None:
    assert [row["resident_bytes"] for row in sampled(pid)] == [None, None]


def test_gpus_are_read_through_nvml_and_a_failing_one_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    import pynvml

    class Memory:
        used = 7 * 2**30

    def info(handle: str) -> Memory:
        if handle == "broken":
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return Memory()

    class Rates:
        gpu = 93

    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", info)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUtilizationRates", lambda handle: Rates())
    computing = [SimpleNamespace(pid=4, usedGpuMemory=2**30), SimpleNamespace(pid=5, usedGpuMemory=6 * 2**30)]
    monkeypatch.setattr(pynvml, "nvmlDeviceGetComputeRunningProcesses", lambda handle: computing)
    fine = {"used_bytes": 7 * 2**30, "utilisation_percent": 93, "processes": 2}
    assert memory._gpu("fine", 5) == fine | {"process_bytes": 6 * 2**30}
    assert memory._gpu("fine", 6) == fine | {"process_bytes": None}
    assert memory._gpu("broken", 5) == dict.fromkeys([*fine, "process_bytes"])
