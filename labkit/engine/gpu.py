"""The NVIDIA GPUs of this machine, as the driver's own library (NVML) lists them."""

from __future__ import annotations

from typing import Any


def gpus() -> list[dict[str, Any]]:
    """Return name, driver, memory and compute capability ("9.0") of each; an empty list where there is none."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        driver = pynvml.nvmlSystemGetDriverVersion()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return [
            {
                "name": pynvml.nvmlDeviceGetName(handle),
                "driver": driver,
                "memory_bytes": pynvml.nvmlDeviceGetMemoryInfo(handle).total,
                "compute_capability": ".".join(map(str, pynvml.nvmlDeviceGetCudaComputeCapability(handle))),
            }
            for handle in handles
        ]
    finally:
        pynvml.nvmlShutdown()
