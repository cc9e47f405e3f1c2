"""The configuration that a slot escalation recommends, with its reasons, or why it recommends none."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from labkit.analyze.frames import RunFrames, known
from labkit.analyze.lanes import seconds_text
from labkit.analyze.slot_escalation.claims import passed_steps, step_checks, step_command, untested
from labkit.analyze.slot_escalation.planner import context_plan
from labkit.analyze.slot_escalation.scaling import figure, load_figures, ratio

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Recommendation:
    """What to start, or nothing.

    Args:
        slots: of the step recommended; None: none is.
        command: its command line.
        reasons: why, or why none, a sentence each.
    """

    slots: int | None
    command: str
    reasons: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return it as run.json keeps it."""
        return asdict(self)

    @property
    def text(self) -> str:
        """The same as a paragraph."""
        head = (
            f"Recommended by this run: {_slots(self.slots)}." if self.slots else "This run recommends no command line."
        )
        return " ".join([head, *self.reasons])


def recommend_slots(frames: RunFrames) -> Recommendation:
    """Choose among the steps that passed: by the limits given, else by the requests you have at once.

    Args:
        frames: the run.
    """
    data = frames.data
    if "needs" not in data.run:
        return Recommendation(None, "", ("It ended before its loads were planned.",))
    if data.run["needs"]["attached"]:
        return Recommendation(None, "", ("One step was seen, on a server whose command line is its owner's.",))
    passed = passed_steps(data)
    if not passed:
        return Recommendation(None, "", ("No step passed: the verdict says why.",))
    loads, params = load_figures(frames), data.run["parameters"]
    limited = params.get("slo_ttft_s") is not None or params.get("slo_itl_s") is not None
    slots, reasons = (_by_limits if limited else _by_demand)(loads, passed, params)
    if slots is None:
        return Recommendation(None, "", tuple(reasons))
    more = [
        _rate_reason(loads, slots, passed[0]), *_room_reason(frames, slots), *_untested_reason(frames, slots),
        *_stop_reason(params, passed),
    ]  # fmt: skip
    return Recommendation(slots, step_command(data, slots), tuple(filter(None, [*reasons, *more])))


def _by_limits(loads: pd.DataFrame, passed: list[int], params: dict[str, Any]) -> tuple[int | None, list[str]]:
    """The highest slot count whose slowest request kept the limits, under the largest load, in every repeat."""
    size = int(loads["requests"].max())
    said = {slots: _kept(loads, slots, size, params) for slots in passed}
    reasons = [text for _, text in said.values()]
    kept = [slots for slots, (holds, _) in said.items() if holds]
    if not kept:
        return None, [f"No step kept the limits with {size} requests.", *reasons]
    # slots that no request of the largest load ever had show nothing more
    most = min([slots for slots in kept if slots >= size], default=max(kept))
    return most, [f"It is the highest slot count in use that kept the limits with {size} requests.", *reasons]


def _kept(loads: pd.DataFrame, slots: int, size: int, params: dict[str, Any]) -> tuple[bool, str]:
    mine = loads[(loads["slots"] == slots) & (loads["requests"] == size) & (loads["kind"] == "step")]
    parts, holds = [], True
    limits = (
        ("slo_ttft_s", "slowest_ttft_s", "slowest first token after"),
        ("slo_itl_s", "slowest_itl_s", "slowest stream"),
    )
    for limit, column, name in limits:
        if params.get(limit) is None:
            continue
        worst = mine[column].max()
        holds = holds and known(worst) and not mine[column].isna().any() and float(worst) <= params[limit]
        found = seconds_text(float(worst)) if known(worst) else "unknown"
        unit = " a token" if column == "slowest_itl_s" else ""
        parts.append(f"{name} {found}{unit} of {seconds_text(params[limit])} allowed")
    return holds, f"{_slots(slots)}: {', '.join(parts)}."


def _by_demand(loads: pd.DataFrame, passed: list[int], params: dict[str, Any]) -> tuple[int | None, list[str]]:
    """The fewest slots that leave nobody waiting; fewer, where more are slower together beyond the noise."""
    peak = params.get("peak_concurrency")
    size = int(loads["requests"].max())
    demand = int(peak or size)
    if demand > size and max(passed) > size:
        return _never_full([slots for slots in passed if slots <= size], size, demand)
    whose = "you have at once at most" if peak else "of the largest load"
    enough = [slots for slots in passed if slots >= demand]
    slots = min(enough) if enough else max(passed)
    reasons = [
        f"It is the smallest tested step with a slot for each of the {demand} requests {whose}."
        if enough
        else f"It is the largest step that passed; of the {demand} requests {whose} {demand - slots} wait for a slot."
    ]
    # with arrivals by chance the rate is that of the arrivals
    smaller = [] if params.get("arrival_rate") else [step for step in passed if step < slots]
    for fewer in reversed(smaller):
        change = ratio(loads, slots, fewer)
        if change and change.high is not None and change.high < 1:
            reasons = [
                f"{_slots(slots)} would leave fewer waiting, but are slower together on this setup:"
                f" {change.text('.2f')} times the rate of {_slots(fewer)}."
            ]
            slots = fewer
    return slots, reasons


def _never_full(full: list[int], size: int, demand: int) -> tuple[int | None, list[str]]:
    """Steps with more slots than the largest load had requests were never full: how they do then is not known."""
    why = (
        f"Steps with more slots were never full: the largest load had {size} requests; try requests_list = [{demand}]."
    )
    if not full:
        return None, [why]
    waiting = demand - max(full)
    text = f"It is the largest step that was seen full; of the {demand} requests you have at once {waiting} wait."
    return max(full), [text, why]


def _rate_reason(loads: pd.DataFrame, slots: int, base: int) -> str:
    size = int(loads["requests"].max())
    here = figure(loads, "aggregate_tokens_per_s", slots, size)
    if here is None:
        return ""
    text = f"With {size} requests it gave {here.text()} tokens/s together"
    change = ratio(loads, slots, base) if slots != base else None
    return f"{text}, {change.text('.2f')} times the rate of {_slots(base)}." if change else f"{text}."


def _room_reason(frames: RunFrames, slots: int) -> list[str]:
    step = next(step for step in context_plan(frames.data) if step.slots == slots)
    if step.headroom_cells is None or step.headroom_share is None:
        return []
    tight = " That is tight." if step.note.startswith("warning") else ""
    return [f"Its context leaves {step.headroom_cells:,} cells ({step.headroom_share:.0%}) to spare.{tight}"]


def _untested_reason(frames: RunFrames, slots: int) -> list[str]:
    step = next(step for step in context_plan(frames.data) if step.slots == slots)
    left = untested(step_checks(frames.data, step))
    return [f"Not tested: {', '.join(left)}."] if left else []


def _stop_reason(params: dict[str, Any], passed: list[int]) -> list[str]:
    left = [slots for slots in params["slots_list"] if slots > passed[-1]]
    return [f"The step with {_slots(left[0])} did not pass."] if left else []


def _slots(slots: int | None) -> str:
    return f"{slots} slot{'' if slots == 1 else 's'}"
