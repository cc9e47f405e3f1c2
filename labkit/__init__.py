"""A lab kit that shows what llama-server's slots, continuous batching and KV cache really do.

    import labkit as lab

Names are loaded when they are first used, so that the import itself stays quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.analyze.charts import inter_token_gaps, slot_lanes, tokens_over_time
    from labkit.analyze.frames import RunFrames
    from labkit.analyze.verdict import Check, Verdict, judge_late_arrival
    from labkit.engine.models import resolve_model
    from labkit.engine.server import Server, start_server
    from labkit.errors import LabError
    from labkit.measure.experiment import measure_arm
    from labkit.measure.record import Run, open_run, read_run
    from labkit.present.headline import Headline
    from labkit.present.parameters import parameters
    from labkit.present.show import show
    from labkit.settings import LateArrival, LoadPlan, RequestPlan, SampleSettings, ServerSettings

_HOME = {
    "Check": "analyze.verdict",
    "Headline": "present.headline",
    "LabError": "errors",
    "LateArrival": "settings",
    "LoadPlan": "settings",
    "RequestPlan": "settings",
    "Run": "measure.record",
    "RunFrames": "analyze.frames",
    "SampleSettings": "settings",
    "Server": "engine.server",
    "ServerSettings": "settings",
    "Verdict": "analyze.verdict",
    "inter_token_gaps": "analyze.charts",
    "judge_late_arrival": "analyze.verdict",
    "measure_arm": "measure.experiment",
    "open_run": "measure.record",
    "parameters": "present.parameters",
    "read_run": "measure.record",
    "resolve_model": "engine.models",
    "show": "present.show",
    "slot_lanes": "analyze.charts",
    "start_server": "engine.server",
    "tokens_over_time": "analyze.charts",
}

__all__ = [
    "Check",
    "Headline",
    "LabError",
    "LateArrival",
    "LoadPlan",
    "RequestPlan",
    "Run",
    "RunFrames",
    "SampleSettings",
    "Server",
    "ServerSettings",
    "Verdict",
    "inter_token_gaps",
    "judge_late_arrival",
    "measure_arm",
    "open_run",
    "parameters",
    "read_run",
    "resolve_model",
    "show",
    "slot_lanes",
    "start_server",
    "tokens_over_time",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'labkit' has no attribute {name!r}")
    value = getattr(import_module(f"labkit.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
