"""What a panel's Run button does, a notebook each: the notebook's own steps, its judge, and one picture."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import labkit as lab
from labkit.measure.compare_runs import recorded_sides
from labkit.measure.record import Run, RunData
from labkit.present.controls.knobs import Knob, choice, switch
from labkit.present.judges import JUDGES, Judge
from labkit.settings import Setting

Say = Callable[[str], None]


@dataclass(frozen=True)
class Shown:
    """What a panel shows of a run beside its verdict.

    Args:
        guess: the guess beside what was measured, in words.
        picture: an Altair chart, and what it says.
        parameters: what repeats the run, where that is more than was chosen.
    """

    guess: str
    picture: tuple[Any, str]
    parameters: Setting | None = None


@dataclass(frozen=True)
class Experiment:
    """One notebook's experiment.

    Args:
        judge: the notebook's, with its parameters.
        guess: the parameter that holds the prediction.
        knobs: its own parameters to turn.
        measure: runs everything and records it.
        show: reads the record.
        by_hand: name of the arm for requests sent by hand; empty: the notebook runs no server of its own.
    """

    judge: Judge
    guess: str
    knobs: tuple[Knob, ...]
    measure: Callable[[Any, Run, Say], Awaitable[None]]
    show: Callable[[RunData, Any], Shown]
    by_hand: str = "by_hand"


# --- 00 -----------------------------------------------------------------------------------------------


async def _build(params: lab.Build, run: Run, say: Say) -> None:
    engine = lab.prepare_engine(params, run, lab.look_at_machine(params, run), say=say)
    async with lab.open_server(
        params.server(engine), log_path=run.log_path("smoke"), say=say, **params.limits()
    ) as server:
        plan, sampling = lab.smoke_plan(params, server), lab.SampleSettings()
        await lab.measure_arm(
            server, plan, run=run, arm="smoke", sampling=sampling, title="as labkit starts it", say=say
        )
    bare = lab.start_bare(
        engine, model=params.model, log_path=run.log_path("defaults"), load_timeout_s=params.load_timeout_s
    )
    async with bare as server:
        await lab.note_defaults(server, run)


def _shown_build(data: RunData, params: lab.Build) -> Shown:
    view, charts = lab.build_view, lab.build_charts
    chart = charts.slots_and_cells(data.run, title="What each slot may use", subtitle=[view.build_facts(data.run)])
    guess = view.prediction_reading(data.run, params.predicted_slots)
    return Shown(guess, (chart, charts.slots_reading(data.run)))


# --- 01 -----------------------------------------------------------------------------------------------


async def _slot_escalation(params: lab.SlotEscalation, run: Run, say: Say) -> None:
    loads = await lab.plan_loads(params, run=run, say=say)
    for step in lab.context_plan(lab.read_run(run.folder)):
        if step.fits:
            await lab.measure_step(params, loads, step.slots, run=run, say=say)
        outcome = lab.step_outcome(lab.read_run(run.folder), step.slots)
        say(outcome.text)
        if not outcome.passed:
            break
    passed = lab.passed_steps(lab.read_run(run.folder))
    for slots, repeat, again in lab.repeat_order(params, passed):
        await lab.measure_step(params, loads, slots, run=run, repeat=repeat, again=again, say=say)
    await lab.measure_ceiling(params, passed, run=run, say=say)


def _shown_slot_escalation(data: RunData, params: lab.SlotEscalation) -> Shown:
    frames, readings = lab.RunFrames(data), lab.slot_readings
    guess = readings.scaling_reading(frames, params.predicted_gain)
    title = "Rates and first tokens against slots"
    chart = lab.scaling_chart(frames, title=title, subtitle=[readings.setup_facts(frames)])
    return Shown(guess, (chart, guess))


# --- 02 -----------------------------------------------------------------------------------------------


async def _kv_modes(params: lab.KvModes, run: Run, say: Say) -> None:
    await lab.start_kv_servers(params, run, say=say)
    stop = lab.kv_stop_reason(lab.read_run(run.folder))
    if stop:
        say(f"stopped before the load: {stop[0]}. Try: {stop[1]}.")
    else:
        await lab.load_kv_servers(params, run, say=say)


def _shown_kv_modes(data: RunData, params: lab.KvModes) -> Shown:
    frames, readings = lab.RunFrames(data), lab.kv_readings
    title = "One pool and a box for each slot, filled over time"
    chart = lab.kv_ledger(frames, title=title, subtitle=[readings.kv_facts(frames)])
    guess = readings.refused_prediction_reading(data, params.predicted_refused)
    return Shown(guess, (chart, readings.ledger_reading(frames)))


# --- 03 -----------------------------------------------------------------------------------------------


async def _late_arrival(params: lab.LateArrival, run: Run, say: Say) -> None:
    plan = None
    arms = {"treatment": params.server()}
    if params.control and not params.attached:
        arms["control"] = params.server(cont_batching=False)
    for arm, settings in arms.items():
        async with lab.open_server(settings, log_path=run.log_path(arm), say=say, **params.limits()) as server:
            plan = plan or await lab.late_arrival_plan(params, server)
            how: dict[str, Any] = {"sampling": params.sampling(), "keep_text": params.keep_text}
            await lab.measure_arm(server, plan, run=run, arm=arm, say=say, **how)


def _shown_late_arrival(data: RunData, params: lab.LateArrival) -> Shown:
    frames, readings = lab.RunFrames(data), lab.late_readings
    chart = lab.slot_lanes(frames, title="Who held which slot, and when", subtitle=[lab.readings.run_facts(frames)])
    guess = readings.prediction_reading(frames, params.predicted_tokens_left)
    return Shown(guess, (chart, readings.lanes_reading(frames)))


# --- 04 -----------------------------------------------------------------------------------------------


async def _metrics_and_gpu(params: lab.MetricsAndGpu, run: Run, say: Say) -> None:
    how: dict[str, Any] = {"run": run, "sampling": params.sampling(), "keep_text": params.keep_text, "say": say}
    async with lab.open_server(params.server(), log_path=run.log_path("at_once"), say=say, **params.limits()) as server:
        plan = lab.metrics_and_gpu_plan(params, server)
        await lab.rehearse(server, plan, run, say=say)
        await lab.measure_arm(server, plan, arm="at_once", title="all at once", **how)
        if params.one_by_one and not params.attached:
            plan = lab.one_after_another(plan)
            await lab.measure_arm(server, plan, arm="one_by_one", title="one after another", **how)
    if not params.attached:
        await lab.ask_without_metrics(params, run, say=say)


def _shown_metrics_and_gpu(data: RunData, params: lab.MetricsAndGpu) -> Shown:
    frames, readings = lab.RunFrames(data), lab.counter_readings
    title, facts = "Requests processing and deferred", [lab.readings.run_facts(frames)]
    chart = lab.processing_and_deferred(frames, title=title, subtitle=facts)
    guess = readings.calls_prediction_reading(frames, params.predicted_calls)
    return Shown(guess, (chart, readings.queue_reading(frames)))


# --- 05 -----------------------------------------------------------------------------------------------


async def _kv_exhaustion(params: lab.KvExhaustion, run: Run, say: Say) -> None:
    async with lab.open_server(params.server(), log_path=run.log_path("pool"), say=say, **params.limits()) as server:
        plan = await lab.exhaustion_plan(params, server, run=run, say=say)
        await lab.measure_exhaustion(server, plan.first, run=run, params=params, say=say)
    for settings, arm in plan.others:
        async with lab.open_server(settings, log_path=run.log_path(arm.name), say=say, **params.limits()) as server:
            await lab.measure_exhaustion(server, [arm], run=run, params=params, say=say)


def _shown_kv_exhaustion(data: RunData, params: lab.KvExhaustion) -> Shown:
    frames, readings = lab.RunFrames(data), lab.exhaustion_readings
    chart = lab.kv_cells_over_time(frames, title="Who holds the cells", subtitle=[lab.readings.run_facts(frames)])
    guess = readings.victims_reading(frames, params.predicted_victims)
    return Shown(guess, (chart, readings.cells_reading(frames)))


# --- 06 -----------------------------------------------------------------------------------------------


async def _compare_runs(params: lab.CompareRuns, run: Run, say: Say) -> None:
    sides = lab.read_sides(params, run=run)
    say(f"before: {', '.join(map(str, sides.before_folders))}; after: {', '.join(map(str, sides.after_folders))}")


def _shown_compare_runs(data: RunData, params: lab.CompareRuns) -> Shown:
    sides, readings = recorded_sides(data.run, params), lab.compare_readings
    comparison = lab.compared(
        sides.before, sides.after, changed=params.changed, tolerance_percent=params.tolerance_percent
    )
    facts = readings.sides_text(comparison)
    chart = lab.change_intervals(comparison, title="What changed, and how surely", subtitle=[facts])
    guess = readings.predicted_change_reading(comparison, params.predicted_change_percent)
    picture = (chart, readings.change_reading(comparison))
    return Shown(guess, picture, sides.named(params))


EXPERIMENTS = {
    "00_build": Experiment(
        JUDGES["00_build"],
        "predicted_slots",
        (
            choice("source", "git", "sdist", "tree"),
            choice("backend", "auto", "cpu", "cuda"),
            Knob("smoke_tokens", 4, 256),
        ),
        _build,
        _shown_build,
    ),
    "01_slot_escalation": Experiment(
        JUDGES["01_slot_escalation"],
        "predicted_gain",
        (
            Knob("slots_list", form="list"),
            Knob("requests_list", form="list"),
            choice("context_rule", "per_slot", "total"),
            Knob("max_tokens", 8, 512, 8),
            Knob("repeats", 1, 5),
        ),
        _slot_escalation,
        _shown_slot_escalation,
    ),
    "02_kv_unified_vs_split": Experiment(
        JUDGES["02_kv_unified_vs_split"],
        "predicted_refused",
        (Knob("prompt_tokens", form="list"), Knob("max_tokens", 4, 256, 4), switch("equal_per_slot")),
        _kv_modes,
        _shown_kv_modes,
    ),
    "03_late_arrival": Experiment(
        JUDGES["03_late_arrival"],
        "predicted_tokens_left",
        (
            Knob("trigger_tokens", 1, 256),
            Knob("a_tokens", 16, 1024, 8),
            Knob("b_tokens", 4, 256, 4),
            Knob("n_late", 1, 8),
            Knob("late_prompt_tokens", form="number"),
            switch("control"),
        ),
        _late_arrival,
        _shown_late_arrival,
        by_hand="treatment",
    ),
    "04_metrics_and_gpu": Experiment(
        JUDGES["04_metrics_and_gpu"],
        "predicted_calls",
        (
            Knob("n_requests", 2, 16),
            Knob("answer_tokens", 8, 512, 8),
            Knob("prompt_words", 1, 1000),
            switch("one_by_one"),
        ),
        _metrics_and_gpu,
        _shown_metrics_and_gpu,
    ),
    "05_kv_exhaustion": Experiment(
        JUDGES["05_kv_exhaustion"],
        "predicted_victims",
        (Knob("answers", form="list"), Knob("prompt_tokens", form="number"), switch("remedies")),
        _kv_exhaustion,
        _shown_kv_exhaustion,
    ),
    "06_compare_runs": Experiment(
        JUDGES["06_compare_runs"],
        "predicted_change_percent",
        (
            choice("changed", "auto", "parallel", "kv_unified", "ctx_size", "build"),
            Knob("tolerance_percent", form="number"),
        ),
        _compare_runs,
        _shown_compare_runs,
        by_hand="",
    ),
}  # fmt: skip
