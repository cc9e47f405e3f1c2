"""What to run: server settings, load plans, sampling, and each notebook's parameters.

Everything here is a frozen value that checks itself. A value that can't be used raises ParameterError
with the name, the value and what would be accepted.
"""

from labkit.settings.build import PINNED_COMMIT, Build
from labkit.settings.compare_runs import CompareRuns
from labkit.settings.context import Context, effective_context
from labkit.settings.kv_exhaustion import KvExhaustion
from labkit.settings.kv_modes import KvModes
from labkit.settings.lab import Lab
from labkit.settings.late_arrival import LateArrival
from labkit.settings.load import After, LoadPlan, RequestPlan, SampleSettings
from labkit.settings.metrics_and_gpu import MetricsAndGpu
from labkit.settings.server import MAX_SLOTS, AttachSettings, ServerSettings
from labkit.settings.slot_escalation import SlotEscalation
from labkit.settings.values import CACHE_TYPES, Setting

__all__ = [
    "CACHE_TYPES",
    "MAX_SLOTS",
    "PINNED_COMMIT",
    "After",
    "AttachSettings",
    "Build",
    "CompareRuns",
    "Context",
    "KvExhaustion",
    "KvModes",
    "Lab",
    "LateArrival",
    "LoadPlan",
    "MetricsAndGpu",
    "RequestPlan",
    "SampleSettings",
    "ServerSettings",
    "Setting",
    "SlotEscalation",
    "effective_context",
]
