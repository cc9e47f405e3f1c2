"""A lab kit that shows what llama-server's slots, continuous batching and KV cache really do.

    import labkit as lab

Names are loaded when they are first used, so that the import itself stays quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.analyze import readings
    from labkit.analyze.build import charts as build_charts
    from labkit.analyze.build import view as build_view
    from labkit.analyze.build.claims import judge_build
    from labkit.analyze.charts import inter_token_gaps, tokens_over_time
    from labkit.analyze.chosen import chosen_arms
    from labkit.analyze.compare_runs import readings as compare_readings
    from labkit.analyze.compare_runs.charts import change_intervals, ttft_before_after
    from labkit.analyze.compare_runs.claims import compared, judge_compare_runs
    from labkit.analyze.compare_runs.counters_compared import counters_compared
    from labkit.analyze.effective import settings_table
    from labkit.analyze.frames import RunFrames
    from labkit.analyze.kv_exhaustion import readings as exhaustion_readings
    from labkit.analyze.kv_exhaustion.charts import kv_cells_over_time, kv_peaks
    from labkit.analyze.kv_exhaustion.claims import judge_kv_exhaustion
    from labkit.analyze.kv_exhaustion.readings import exhaustion_table
    from labkit.analyze.kv_modes import readings as kv_readings
    from labkit.analyze.kv_modes.charts import kv_ledger
    from labkit.analyze.kv_modes.claims import judge_kv_modes, kv_stop_reason
    from labkit.analyze.kv_modes.memory_charts import kv_memory, lengths_that_fit
    from labkit.analyze.kv_modes.tables import kv_fates_table, kv_servers_table
    from labkit.analyze.lanes import slot_lanes
    from labkit.analyze.late_arrival import readings as late_readings
    from labkit.analyze.late_arrival.claims import judge_late_arrival
    from labkit.analyze.late_arrival.naive import naive_criteria
    from labkit.analyze.metrics_and_gpu import readings as counter_readings
    from labkit.analyze.metrics_and_gpu.charts import memory_over_time, processing_and_deferred, tokens_per_call
    from labkit.analyze.metrics_and_gpu.claims import judge_metrics_and_gpu
    from labkit.analyze.metrics_and_gpu.tables import counters_table, record_table, shared_calls_table
    from labkit.analyze.slot_escalation import readings as slot_readings
    from labkit.analyze.slot_escalation.charts import scaling_chart, waiting_split
    from labkit.analyze.slot_escalation.claims import judge_slot_escalation, passed_steps, step_outcome
    from labkit.analyze.slot_escalation.planner import context_plan, context_table
    from labkit.analyze.slot_escalation.recommend import recommend_slots
    from labkit.analyze.slot_escalation.tables import step_table, waits_table
    from labkit.analyze.verdict import Check, Verdict
    from labkit.engine.attach import attach_server
    from labkit.engine.bare import start_bare
    from labkit.engine.models import resolve_model
    from labkit.engine.open import open_server
    from labkit.engine.server import Server
    from labkit.engine.start import start_server
    from labkit.errors import LabError
    from labkit.measure.build import look_at_machine, note_defaults, prepare_engine, smoke_plan
    from labkit.measure.compare_runs import read_sides
    from labkit.measure.experiment import measure_arm
    from labkit.measure.kv_exhaustion import exhaustion_plan, measure_exhaustion
    from labkit.measure.kv_modes import load_kv_servers, start_kv_servers
    from labkit.measure.late_arrival import late_arrival_plan
    from labkit.measure.metrics_and_gpu import ask_without_metrics, metrics_and_gpu_plan, one_after_another, rehearse
    from labkit.measure.record import Run, open_run, read_run
    from labkit.measure.slot_escalation import measure_ceiling, measure_small_pool, measure_step, repeat_order
    from labkit.measure.slot_loads import plan_loads
    from labkit.present.doctor import doctor
    from labkit.present.headline import Headline, repeat_command
    from labkit.present.panel import panel
    from labkit.present.parameters import parameters
    from labkit.present.preview import preview
    from labkit.present.replay import replay
    from labkit.present.show import read_out, show, table
    from labkit.present.verify import verify_run
    from labkit.settings import (
        AttachSettings,
        Build,
        CompareRuns,
        KvExhaustion,
        KvModes,
        LateArrival,
        LoadPlan,
        MetricsAndGpu,
        RequestPlan,
        SampleSettings,
        ServerSettings,
        SlotEscalation,
    )

# name: module that has it; a colon at the end: the module itself
_HOME = {
    "AttachSettings": "settings",
    "Build": "settings",
    "Check": "analyze.verdict",
    "CompareRuns": "settings",
    "Headline": "present.headline",
    "KvExhaustion": "settings",
    "KvModes": "settings",
    "LabError": "errors",
    "LateArrival": "settings",
    "LoadPlan": "settings",
    "MetricsAndGpu": "settings",
    "RequestPlan": "settings",
    "Run": "measure.record",
    "RunFrames": "analyze.frames",
    "SampleSettings": "settings",
    "Server": "engine.server",
    "ServerSettings": "settings",
    "SlotEscalation": "settings",
    "Verdict": "analyze.verdict",
    "ask_without_metrics": "measure.metrics_and_gpu",
    "attach_server": "engine.attach",
    "build_charts": "analyze.build.charts:",
    "build_view": "analyze.build.view:",
    "change_intervals": "analyze.compare_runs.charts",
    "chosen_arms": "analyze.chosen",
    "compare_readings": "analyze.compare_runs.readings:",
    "compared": "analyze.compare_runs.claims",
    "context_plan": "analyze.slot_escalation.planner",
    "context_table": "analyze.slot_escalation.planner",
    "counter_readings": "analyze.metrics_and_gpu.readings:",
    "counters_compared": "analyze.compare_runs.counters_compared",
    "counters_table": "analyze.metrics_and_gpu.tables",
    "doctor": "present.doctor",
    "exhaustion_plan": "measure.kv_exhaustion",
    "exhaustion_readings": "analyze.kv_exhaustion.readings:",
    "exhaustion_table": "analyze.kv_exhaustion.readings",
    "inter_token_gaps": "analyze.charts",
    "judge_build": "analyze.build.claims",
    "judge_compare_runs": "analyze.compare_runs.claims",
    "judge_kv_exhaustion": "analyze.kv_exhaustion.claims",
    "judge_kv_modes": "analyze.kv_modes.claims",
    "judge_late_arrival": "analyze.late_arrival.claims",
    "judge_metrics_and_gpu": "analyze.metrics_and_gpu.claims",
    "judge_slot_escalation": "analyze.slot_escalation.claims",
    "kv_cells_over_time": "analyze.kv_exhaustion.charts",
    "kv_fates_table": "analyze.kv_modes.tables",
    "kv_ledger": "analyze.kv_modes.charts",
    "kv_memory": "analyze.kv_modes.memory_charts",
    "kv_peaks": "analyze.kv_exhaustion.charts",
    "kv_readings": "analyze.kv_modes.readings:",
    "kv_servers_table": "analyze.kv_modes.tables",
    "kv_stop_reason": "analyze.kv_modes.claims",
    "late_arrival_plan": "measure.late_arrival",
    "late_readings": "analyze.late_arrival.readings:",
    "lengths_that_fit": "analyze.kv_modes.memory_charts",
    "load_kv_servers": "measure.kv_modes",
    "look_at_machine": "measure.build",
    "measure_arm": "measure.experiment",
    "measure_ceiling": "measure.slot_escalation",
    "measure_exhaustion": "measure.kv_exhaustion",
    "measure_small_pool": "measure.slot_escalation",
    "measure_step": "measure.slot_escalation",
    "memory_over_time": "analyze.metrics_and_gpu.charts",
    "metrics_and_gpu_plan": "measure.metrics_and_gpu",
    "naive_criteria": "analyze.late_arrival.naive",
    "note_defaults": "measure.build",
    "one_after_another": "measure.metrics_and_gpu",
    "open_run": "measure.record",
    "open_server": "engine.open",
    "panel": "present.panel",
    "parameters": "present.parameters",
    "passed_steps": "analyze.slot_escalation.claims",
    "plan_loads": "measure.slot_loads",
    "prepare_engine": "measure.build",
    "preview": "present.preview",
    "processing_and_deferred": "analyze.metrics_and_gpu.charts",
    "read_out": "present.show",
    "read_run": "measure.record",
    "read_sides": "measure.compare_runs",
    "readings": "analyze.readings:",
    "recommend_slots": "analyze.slot_escalation.recommend",
    "record_table": "analyze.metrics_and_gpu.tables",
    "rehearse": "measure.metrics_and_gpu",
    "repeat_command": "present.headline",
    "repeat_order": "measure.slot_escalation",
    "replay": "present.replay",
    "resolve_model": "engine.models",
    "scaling_chart": "analyze.slot_escalation.charts",
    "settings_table": "analyze.effective",
    "shared_calls_table": "analyze.metrics_and_gpu.tables",
    "show": "present.show",
    "slot_lanes": "analyze.lanes",
    "slot_readings": "analyze.slot_escalation.readings:",
    "smoke_plan": "measure.build",
    "start_bare": "engine.bare",
    "start_kv_servers": "measure.kv_modes",
    "start_server": "engine.start",
    "step_outcome": "analyze.slot_escalation.claims",
    "step_table": "analyze.slot_escalation.tables",
    "table": "present.show",
    "tokens_over_time": "analyze.charts",
    "tokens_per_call": "analyze.metrics_and_gpu.charts",
    "ttft_before_after": "analyze.compare_runs.charts",
    "verify_run": "present.verify",
    "waiting_split": "analyze.slot_escalation.charts",
    "waits_table": "analyze.slot_escalation.tables",
}

__all__ = [
    "AttachSettings",
    "Build",
    "Check",
    "CompareRuns",
    "Headline",
    "KvExhaustion",
    "KvModes",
    "LabError",
    "LateArrival",
    "LoadPlan",
    "MetricsAndGpu",
    "RequestPlan",
    "Run",
    "RunFrames",
    "SampleSettings",
    "Server",
    "ServerSettings",
    "SlotEscalation",
    "Verdict",
    "ask_without_metrics",
    "attach_server",
    "build_charts",
    "build_view",
    "change_intervals",
    "chosen_arms",
    "compare_readings",
    "compared",
    "context_plan",
    "context_table",
    "counter_readings",
    "counters_compared",
    "counters_table",
    "doctor",
    "exhaustion_plan",
    "exhaustion_readings",
    "exhaustion_table",
    "inter_token_gaps",
    "judge_build",
    "judge_compare_runs",
    "judge_kv_exhaustion",
    "judge_kv_modes",
    "judge_late_arrival",
    "judge_metrics_and_gpu",
    "judge_slot_escalation",
    "kv_cells_over_time",
    "kv_fates_table",
    "kv_ledger",
    "kv_memory",
    "kv_peaks",
    "kv_readings",
    "kv_servers_table",
    "kv_stop_reason",
    "late_arrival_plan",
    "late_readings",
    "lengths_that_fit",
    "load_kv_servers",
    "look_at_machine",
    "measure_arm",
    "measure_ceiling",
    "measure_exhaustion",
    "measure_small_pool",
    "measure_step",
    "memory_over_time",
    "metrics_and_gpu_plan",
    "naive_criteria",
    "note_defaults",
    "one_after_another",
    "open_run",
    "open_server",
    "panel",
    "parameters",
    "passed_steps",
    "plan_loads",
    "prepare_engine",
    "preview",
    "processing_and_deferred",
    "read_out",
    "read_run",
    "read_sides",
    "readings",
    "recommend_slots",
    "record_table",
    "rehearse",
    "repeat_command",
    "repeat_order",
    "replay",
    "resolve_model",
    "scaling_chart",
    "settings_table",
    "shared_calls_table",
    "show",
    "slot_lanes",
    "slot_readings",
    "smoke_plan",
    "start_bare",
    "start_kv_servers",
    "start_server",
    "step_outcome",
    "step_table",
    "table",
    "tokens_over_time",
    "tokens_per_call",
    "ttft_before_after",
    "verify_run",
    "waiting_split",
    "waits_table",
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
