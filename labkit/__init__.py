"""A lab kit that shows what llama-server's slots, continuous batching and KV cache really do.

    import labkit as lab

Names are loaded when they are first used, so that the import itself stays quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.analyze import readings
    from labkit.analyze.charts import inter_token_gaps, tokens_over_time
    from labkit.analyze.effective import settings_table
    from labkit.analyze.frames import RunFrames
    from labkit.analyze.lanes import slot_lanes
    from labkit.analyze.late_arrival import judge_late_arrival
    from labkit.analyze.naive import naive_criteria
    from labkit.analyze.verdict import Check, Verdict
    from labkit.engine.attach import attach_server
    from labkit.engine.models import resolve_model
    from labkit.engine.open import open_server
    from labkit.engine.server import Server
    from labkit.engine.start import start_server
    from labkit.errors import LabError
    from labkit.measure.experiment import measure_arm
    from labkit.measure.late_arrival import late_arrival_plan
    from labkit.measure.record import Run, open_run, read_run
    from labkit.present.doctor import doctor
    from labkit.present.headline import Headline, repeat_command
    from labkit.present.parameters import parameters
    from labkit.present.show import read_out, show, table
    from labkit.settings import AttachSettings, LateArrival, LoadPlan, RequestPlan, SampleSettings, ServerSettings

# name: module that has it; a colon at the end: the module itself
_HOME = {
    "AttachSettings": "settings",
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
    "attach_server": "engine.attach",
    "doctor": "present.doctor",
    "inter_token_gaps": "analyze.charts",
    "judge_late_arrival": "analyze.late_arrival",
    "late_arrival_plan": "measure.late_arrival",
    "measure_arm": "measure.experiment",
    "naive_criteria": "analyze.naive",
    "open_run": "measure.record",
    "open_server": "engine.open",
    "parameters": "present.parameters",
    "read_out": "present.show",
    "read_run": "measure.record",
    "readings": "analyze.readings:",
    "repeat_command": "present.headline",
    "resolve_model": "engine.models",
    "settings_table": "analyze.effective",
    "show": "present.show",
    "slot_lanes": "analyze.lanes",
    "start_server": "engine.start",
    "table": "present.show",
    "tokens_over_time": "analyze.charts",
}

__all__ = [
    "AttachSettings",
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
    "attach_server",
    "doctor",
    "inter_token_gaps",
    "judge_late_arrival",
    "late_arrival_plan",
    "measure_arm",
    "naive_criteria",
    "open_run",
    "open_server",
    "parameters",
    "read_out",
    "read_run",
    "readings",
    "repeat_command",
    "resolve_model",
    "settings_table",
    "show",
    "slot_lanes",
    "start_server",
    "table",
    "tokens_over_time",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'labkit' has no attribute {name!r}")
    module, is_module = _HOME[name].removesuffix(":"), _HOME[name].endswith(":")
    value = import_module(f"labkit.{module}")
    if not is_module:
        value = getattr(value, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
