"""How each notebook's run is judged: its parameters, and from a record to a verdict. No widgets, no engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import labkit as lab
from labkit.analyze.verdict import Verdict
from labkit.errors import ParameterError
from labkit.measure.compare_runs import recorded_sides
from labkit.measure.record import RunData
from labkit.settings import (
    Build,
    CompareRuns,
    KvExhaustion,
    KvModes,
    LateArrival,
    MetricsAndGpu,
    Setting,
    SlotEscalation,
)


@dataclass(frozen=True)
class Judge:
    """One notebook's judge.

    Args:
        model: the notebook's parameters.
        judge: reads the record; gets the parameters as well.
    """

    model: type[Setting]
    judge: Callable[[RunData, Any], Verdict]


def _compare_runs(data: RunData, params: CompareRuns) -> Verdict:
    sides = recorded_sides(data.run, params)
    tolerance = params.tolerance_percent
    return lab.judge_compare_runs(
        lab.compared(sides.before, sides.after, changed=params.changed, tolerance_percent=tolerance)
    )


# the names are looked up when a run is judged: analysis is slow to import
JUDGES = {
    "00_build": Judge(Build, lambda data, _: lab.judge_build(data)),
    "01_slot_escalation": Judge(SlotEscalation, lambda data, _: lab.judge_slot_escalation(data)),
    "02_kv_unified_vs_split": Judge(KvModes, lambda data, _: lab.judge_kv_modes(data)),
    "03_late_arrival": Judge(LateArrival, lambda data, _: lab.judge_late_arrival(data)),
    "04_metrics_and_gpu": Judge(MetricsAndGpu, lambda data, _: lab.judge_metrics_and_gpu(data)),
    "05_kv_exhaustion": Judge(KvExhaustion, lambda data, _: lab.judge_kv_exhaustion(data)),
    "06_compare_runs": Judge(CompareRuns, _compare_runs),
}


def judge_of(notebook: str) -> Judge:
    """Return a notebook's judge.

    Args:
        notebook: its name without ending.

    Raises:
        ParameterError: no notebook of this kit has this name.
    """
    if notebook not in JUDGES:
        raise ParameterError(f"{notebook!r} is no notebook of this kit", hint=", ".join(JUDGES))
    return JUDGES[notebook]
