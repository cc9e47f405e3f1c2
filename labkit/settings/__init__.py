"""What to run: server settings, load plans, sampling, and each notebook's parameters.

Everything here is a frozen value that checks itself. A value that can't be used raises ParameterError
with the name, the value and what would be accepted.
"""

from labkit.settings.context import Context, effective_context
from labkit.settings.lab import Lab
from labkit.settings.late_arrival import LateArrival
from labkit.settings.load import After, LoadPlan, RequestPlan, SampleSettings
from labkit.settings.server import MAX_SLOTS, AttachSettings, ServerSettings
from labkit.settings.values import CACHE_TYPES, Setting

__all__ = [
    "CACHE_TYPES",
    "MAX_SLOTS",
    "After",
    "AttachSettings",
    "Context",
    "Lab",
    "LateArrival",
    "LoadPlan",
    "RequestPlan",
    "SampleSettings",
    "ServerSettings",
    "Setting",
    "effective_context",
]
