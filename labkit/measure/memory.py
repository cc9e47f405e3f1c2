"""Memory on the run's clock: what the server's process holds, and each NVIDIA GPU of this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psutil

from labkit.measure.stream import Clock


class MemorySampler:
    """Samples the resident memory of one process, and NVIDIA GPUs through NVML where there are any.

    Args:
        pid: the server's process.
        hz: samples a second.
        clock: seconds on the run's clock.
        keep: gets each sample's row.
    """

    def __init__(self, pid: int | None, hz: float, clock: Clock, keep: Callable[[dict[str, Any]], None]) -> None:
        self._pid, self._interval_s, self._clock, self._keep = pid, 1.0 / hz, clock, keep
        self._gpus: list[Any] = []

    def __enter__(self) -> MemorySampler:
        import pynvml

        with suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            self._gpus = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return self

    def __exit__(self, *_: object) -> None:
        import pynvml

        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()

    def sample(self) -> None:
        """Take one sample; what can't be read is None."""
        row: dict[str, Any] = {"at_s": self._clock(), "resident_bytes": None}
        with suppress(psutil.Error):
            row["resident_bytes"] = psutil.Process(self._pid).memory_info().rss if self._pid else None
        self._keep(row | {"gpus": [_gpu(handle, self._pid) for handle in self._gpus]})

    async def run(self) -> None:
        """Sample at the rate asked for until cancelled."""
        while True:
            due_s = self._clock() + self._interval_s
            self.sample()
            await asyncio.sleep(max(0.0, due_s - self._clock()))


def _gpu(handle: Any, pid: int | None) -> dict[str, Any]:
    import pynvml

    facts: dict[str, Any] = dict.fromkeys(("used_bytes", "utilisation_percent", "processes", "process_bytes"))
    with suppress(pynvml.NVMLError):
        facts["used_bytes"] = int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
        facts["utilisation_percent"] = int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        # the memory above is that of all of them
        computing = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        facts["processes"] = len(computing)
        # in a container its pid there is often another, or the figure isn't told
        facts["process_bytes"] = next((one.usedGpuMemory for one in computing if one.pid == pid), None)
    return facts
