"""The claims of notebook 01, for each step: slots as asked, all answered, busy and deferred as they should be.

What this shows is slots, not continuous batching: requests that start together share a batch either way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from labkit.analyze.frames import RunFrames
from labkit.analyze.rows import RunRows
from labkit.analyze.slot_escalation.findings import CLAIMS, NOBODY_WAITS, Finding, found
from labkit.analyze.slot_escalation.planner import StepContext, context_plan, room_hint
from labkit.analyze.slot_escalation.speed import speed_check
from labkit.analyze.slot_escalation.view import LoadView, step_of
from labkit.analyze.verdict import INCONCLUSIVE, NOT_TESTED, REFUTED, SUPPORTED, Check, Verdict

_ORDER = (REFUTED, INCONCLUSIVE, NOT_TESTED, SUPPORTED)
_EXPECTED = {
    "slots": "{slots}",
    "answered": "all",
    "concurrency": "all of a load at once",
    "busy": "min(requests, slots)",
    "deferred": "above 0 only with more requests than slots",
}


def step_checks(data: RunRows, step: StepContext) -> tuple[Check, ...]:
    """Judge one step from all its loads and repeats.

    Args:
        data: the recorded run.
        step: as planned.
    """
    arms = [arm for arm in data.run["arms"] if _is_of(data.run, arm, step.slots)]
    views = [LoadView(data, arm) for arm in arms if "planned" in data.run["arms"][arm]]
    failure = (data.run.get("step_failures") or {}).get(str(step.slots))
    if failure:
        return (_failed(step, failure), *_claims(step, views, but="slots"))
    if not views:
        return ()
    missing = {int(size) for size in data.run["needs"]["loads"]} - {v.step.requests for v in views}
    return (*_claims(step, views), *([_broken_off(step)] if missing else []))


def _is_of(run: dict[str, Any], arm: str, slots: int | None) -> bool:
    step = step_of(run, arm)
    return step is not None and step.kind in ("step", "again") and step.slots == slots


def _claims(step: StepContext, views: list[LoadView], but: str = "") -> list[Check]:
    return [_claim(step, name, views) for name in CLAIMS if name != but and views]


def _claim(step: StepContext, name: str, views: list[LoadView]) -> Check:
    all_found = [(view, found(view, name)) for view in views]
    worst = _worst(all_found)
    return Check(
        name=f"{name}_{step.slots}",
        claim=f"{_slots_text(step.slots)}: {_claimed(name, views)}",
        status=worst.status,
        observed=_observed(all_found),
        expected=_on_time_expected(views) if name == "concurrency" else _EXPECTED[name].format(slots=step.slots),
        why=worst.why,
        hint=worst.hint,
        numbers={view.arm: finding.observed for view, finding in all_found},
    )


def _claimed(name: str, views: list[LoadView]) -> str:
    """Claim no more than the loads can show: where none outnumbers the slots, nobody had to wait."""
    outnumbered = any(view.step.requests > view.slots for view in views)
    return CLAIMS[name][0] if name != "deferred" or outnumbered else NOBODY_WAITS


def _worst(all_found: list[tuple[LoadView, Finding]]) -> Finding:
    """Return the finding that decides; of equal ones the largest load's says most."""
    view, worst = min(all_found, key=lambda item: (_ORDER.index(item[1].status), -item[0].step.requests))
    if worst.status == NOT_TESTED and not view.open_loop and any(one.status == SUPPORTED for _, one in all_found):
        return replace(worst, status=INCONCLUSIVE, why=f"{worst.why} in this load, in others it could")
    return worst


def _on_time_expected(views: list[LoadView]) -> str:
    return "each sent at its time" if any(view.open_loop for view in views) else _EXPECTED["concurrency"]


def _observed(all_found: list[tuple[LoadView, Finding]]) -> str:
    """Say what was seen, load by load; repeats that saw the same are said once."""
    said: dict[str, list[int]] = {}
    for view, finding in all_found:
        sizes = said.setdefault(finding.observed, [])
        if view.step.requests not in sizes:
            sizes.append(view.step.requests)
    if len(said) == 1:
        return next(iter(said))
    return "; ".join(f"{_requests_text(sorted(sizes))}: {text}" for text, sizes in said.items())


def _requests_text(sizes: list[int]) -> str:
    return f"{' and '.join(map(str, sizes))} request{'' if sizes == [1] else 's'}"


def _slots_text(slots: int | None) -> str:
    return f"{slots or 'unknown'} slot{'' if slots == 1 else 's'}"


def _failed(step: StepContext, failure: dict[str, str]) -> Check:
    return Check(
        name=f"slots_{step.slots}",
        claim=f"{_slots_text(step.slots)}: {CLAIMS['slots'][0]}",
        # other slots than asked for are a finding; a server that can't be had may have any reason
        status=REFUTED if failure["kind"] == "SlotCountError" else INCONCLUSIVE,
        observed="the step's server failed",
        expected=str(step.slots),
        why=failure["text"],
        hint="the server's log says more",
    )


def _not_started(step: StepContext, params: dict[str, Any]) -> Check:
    return Check(
        name=f"fits_{step.slots}",
        claim=f"{_slots_text(step.slots)}: the context holds what the requests bring",
        status=INCONCLUSIVE,
        observed=f"{step.headroom_cells:,} cells to spare" if step.headroom_cells is not None else "unknown",
        expected="0 or more",
        why=step.note,
        hint=room_hint(step, params),
    )


def _left_out(step: StepContext, why: str) -> Check:
    claim = f"{_slots_text(step.slots)}: works as the steps before"
    return Check(f"step_{step.slots}", claim, NOT_TESTED, "not run", "all claims", why)


# --- the run ----------------------------------------------------------------------------------------------


def judge_slot_escalation(data: RunRows) -> Verdict:
    """Judge every step of 01, up to the one that stopped the escalation.

    Args:
        data: the recorded run.
    """
    if "needs" not in data.run:
        why = "the run ended before its loads were planned"
        return Verdict((Check("ran", "the loads were run", INCONCLUSIVE, "nothing", "all steps", why, "run it again"),))
    checks: list[Check] = []
    stopped = ""
    for step in context_plan(data):
        mine = step_checks(data, step)
        if not mine and not stopped and not step.fits:
            mine = (_not_started(step, data.run["parameters"]),)
        if not mine:
            # a run that was broken off has not shown what it set out to show
            mine = (_left_out(step, f"the escalation stopped at {stopped}") if stopped else _broken_off(step),)
        checks += mine
        stopped = stopped or ("" if passed(mine) else _slots_text(step.slots))
    if data.run["needs"]["attached"]:
        checks.append(_one_step_only())
    speed = speed_check(RunFrames(data))
    return Verdict((*checks, *([speed] if speed else [])))


def _broken_off(step: StepContext) -> Check:
    claim = f"{_slots_text(step.slots)}: works as the steps before"
    why = "the run ended before all loads of this step were run"
    return Check(f"step_{step.slots}", claim, INCONCLUSIVE, "not run", "all claims", why, "run it again")


def _one_step_only() -> Check:
    why = "a server that isn't ours is never restarted: its own slot count is the one step that can be seen"
    return Check("escalation", "more slots work too", NOT_TESTED, "one step", "every step of slots_list", why)


def passed(checks: tuple[Check, ...]) -> bool:
    """Whether a step's checks let the escalation go on: something supported, nothing refuted or undecided."""
    return Verdict(checks).status == SUPPORTED


@dataclass(frozen=True)
class StepOutcome:
    """How one step came out.

    Args:
        slots: its slots.
        passed: the escalation may go on.
        text: the same as a sentence, with the configuration to go back to.
    """

    slots: int | None
    passed: bool
    text: str


def step_outcome(data: RunRows, slots: int | None) -> StepOutcome:
    """Say whether a step passed; if not, what failed and which configuration to go back to.

    Args:
        data: the recorded run, this step in it.
        slots: of the step.
    """
    plan = context_plan(data)
    step = next(step for step in plan if step.slots == slots)
    checks = step_checks(data, step) or (_not_started(step, data.run["parameters"]),)
    name = _slots_text(slots)
    if passed(checks):
        note = f" ({step.note})" if step.note else ""
        left = ", ".join(untested(checks))
        holds = f"every claim that was tested holds{note}; not tested: {left}" if left else f"every claim holds{note}"
        return StepOutcome(slots, True, f"{name}: {holds}.")
    verdict = Verdict(checks)
    worst = next((check for check in checks if check.status == verdict.status), checks[0])
    how = "failed" if verdict.status == REFUTED else "can't be decided"
    hint = f" To decide it: {worst.hint}." if worst.hint else ""
    why = f"{name}: {how} ({worst.claim.partition(': ')[2]}: {worst.why}).{hint}"
    return StepOutcome(slots, False, f"{why} The escalation stops here. {_go_back(data, slots)}")


def untested(checks: tuple[Check, ...]) -> list[str]:
    """Return the names of a step's claims that were not tested, without its slot count.

    Args:
        checks: of step_checks().
    """
    return [check.name.rpartition("_")[0] for check in checks if check.status == NOT_TESTED]


def _go_back(data: RunRows, slots: int | None) -> str:
    before = [step for step in passed_steps(data) if slots is None or step < slots]
    if not before:
        return "No step before it passed: there is no configuration to go back to."
    command = step_command(data, before[-1])
    return f"Go back to {_slots_text(before[-1])}" + (f": {command}" if command else ".")


def passed_steps(data: RunRows) -> list[int]:
    """Return the slot counts of the steps that passed, up to the first that did not.

    Args:
        data: the recorded run.
    """
    found: list[int] = []
    for step in context_plan(data):
        if step.slots is None or not passed(step_checks(data, step)):
            break
        found.append(step.slots)
    return found


def step_command(data: RunRows, slots: int) -> str:
    """Return the command line of a step's server, without what only this kit needs; empty if not ours.

    Args:
        data: the recorded run.
        slots: of the step.
    """
    steps = [step_of(data.run, arm) for arm in data.run["arms"] if _is_of(data.run, arm, slots)]
    return next((step.command for step in steps if step and step.command), "")
