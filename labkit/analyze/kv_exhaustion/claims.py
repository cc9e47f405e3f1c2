"""The claims of notebook 05: a unified KV pool that runs out ends every running request; what helps, and what doesn't.

Three ends are kept apart: a prompt that fits no slot (400), an answer that fills its slot (200, length),
and a pool that is full while every request is within its own limit (500, or an error inside a 200 stream;
tools/server/server-context.cpp, decode). A verdict counts cells from the streams and from /slots: it says
that the pool ran out only where the cells say so too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from labkit.analyze.kv_exhaustion.cells import (
    ANSWERED,
    ENDS,
    EXHAUSTED,
    SLOT_LIMIT,
    TOO_LONG,
    ArmCells,
    Moment,
    ending_text,
    lockstep,
)
from labkit.analyze.kv_exhaustion.trouble import AGAIN, Said, ended_text, names, trouble
from labkit.analyze.readings import max_overlap
from labkit.analyze.rows import RunRows
from labkit.analyze.verdict import INCONCLUSIVE, NOT_TESTED, REFUTED, SUPPORTED, Check, Verdict

TOGETHER, ALONE, OTHER_BATCH = "together", "one_by_one", "other_batch"
SPLIT, TOO_LONG_ARM = "split", "too_long"
# Where the failing step may be counted short by this share of the pool, /slots or not, the count decides nothing.
UNCLEAR_SHARE = 0.2
REMEDIES = {
    "larger_pool": "a larger pool is a remedy: the same requests are answered",
    "fewer_slots": "fewer slots are a remedy: the same requests are answered, some of them later",
    "shorter_input": "a shorter input is a remedy",
    "shorter_output": "a shorter output is a remedy",
    "split_with_room": "split boxes with room for each request: the same requests are answered",
}


def judge_kv_exhaustion(data: RunRows) -> Verdict:
    """Judge a recorded run of notebook 05.

    Args:
        data: the recorded run; not changed.
    """
    arms = {name: ArmCells(data, name) for name in (TOGETHER, ALONE, OTHER_BATCH, SPLIT, TOO_LONG_ARM, *REMEDIES)}
    given = bool((data.run.get("parameters") or {}).get("answers"))
    others: dict[str, Callable[[], Check]] = {
        OTHER_BATCH: lambda: _batch_check(arms[TOGETHER], arms[OTHER_BATCH]),
        SPLIT: lambda: _split_check(arms[SPLIT]),
        TOO_LONG_ARM: lambda: _apart_check(arms),
        **{name: partial(_remedy_check, arms[TOGETHER], arms[name], claim) for name, claim in REMEDIES.items()},
    }
    checks = [
        _pool_check(arms[TOGETHER], given=given),
        _lives_check(arms[TOGETHER], arms[ALONE]),
        _alone_check(arms[ALONE]),
        *(check() for name, check in others.items() if arms[name].rows.facts),
    ]
    if absent := [name for name in others if not arms[name].rows.facts]:
        checks.append(_left_out(absent, arms[TOGETHER], data.run.get("parameters") or {}))
    return Verdict(tuple(checks))


def _left_out(names: list[str], together: ArmCells, parameters: dict[str, Any]) -> Check:
    """Return one row for all arms that the run was not to have."""
    if together.skipped:
        why = "the pool can't be filled, so there is nothing to compare them with"
    elif parameters.get("answers"):
        why = "the answers were given: these arms are sized from the pool only"
    elif parameters.get("remedies") is False:
        why = "remedies = False"
    else:
        why = "the run did not come so far"
    said = NOT_TESTED, "", why, ""
    return _check("left_out", f"left out: {', '.join(names).replace('_', ' ')}", said, "")


# --- the pool -----------------------------------------------------------------------------------------


def _pool_check(arm: ArmCells, *, given: bool) -> Check:
    unfit = trouble(arm)
    status, observed, why, hint = unfit or _pool_said(arm, given=given)
    return Check(
        name="pool",
        claim="shared KV pool exhausted: when their cells cross the pool, every running request ends, and only then",
        status=status,
        observed=observed,
        expected="" if unfit else _pool_expected(arm),
        why=why,
        hint=hint,
        numbers={"moments": []} if unfit else _pool_numbers(arm),
    )


def _pool_numbers(arm: ArmCells) -> dict[str, Any]:
    moments = [
        {"victims": m.victims, "spared": m.spared, "held": m.held, "sum": m.total, "wanted": m.wanted}
        for m in arm.moments()
    ]
    return {"pool_cells": arm.pool, "moments": moments, "peak_cells": arm.peak()[0]}


def _pool_expected(arm: ArmCells) -> str:
    answers = {label: int(request["max_tokens"]) for label, request in arm.rows.requests.items()}
    prompts = {label: arm.prompts[label] for label in answers}
    predicted = lockstep(prompts, answers, arm.slots, arm.pool or 0)
    if predicted.victims:
        return f"by their lengths, started at once: the pool of {arm.pool:,} runs out under {names(predicted.victims)}"
    return f"by their lengths, started at once: at most {predicted.peak:,} of {arm.pool:,} cells, nobody fails"


def _pool_said(arm: ArmCells, *, given: bool) -> Said:
    if arm.unified is not True:
        return (
            INCONCLUSIVE,
            ended_text(arm),
            "the server does not say that its slots share one pool",
            "kv_unified = True",
        )
    moments = arm.moments()
    answers = [_moment_said(arm, moment) for moment in moments] or [_no_moment_said(arm, given=given)]
    for status in (REFUTED, INCONCLUSIVE):
        for said in answers:
            if said[0] == status:
                return said
    status, _, why, hint = answers[0]
    return status, "; ".join(observed for _, observed, _, _ in answers), why, hint


def _moment_said(arm: ArmCells, moment: Moment) -> Said:
    pool, slack = arm.pool or 0, _slack(moment.held)
    parts = " + ".join(f"{label} {cells}" for label, cells in moment.held.items())
    observed = (
        f"{names(moment.victims)} ended with an error, holding {moment.total:,} of {pool:,} cells ({parts});"
        f" the next step wanted {moment.wanted:,}"
    )
    if others := [label for label, end in arm.ends.items() if end == ANSWERED]:
        observed += f"; answered: {names(others)}"
    if moment.spared:
        return REFUTED, observed, f"{names(moment.spared)} ran at that moment and went on", ""
    if moment.beside:
        why = f"{names(moment.beside)} may have owned a slot before it, and went on after it"
        return INCONCLUSIVE, observed, why, "poll_hz = 50"
    if moment.total > pool + slack:
        return (
            INCONCLUSIVE,
            observed,
            "they held more than the pool is said to have: its size is not what it says",
            AGAIN,
        )
    if moment.wanted > pool - slack:
        each = max(arm.wants(label) for label in moment.victims)
        why = f"no request was too long: the largest wants {each:,} cells in all, and a slot may use {arm.slot_cells:,}"
        return SUPPORTED, observed, why, ""
    missing = pool - moment.wanted
    if arm.slots_speak and missing > UNCLEAR_SHARE * pool:
        return REFUTED, observed, f"{missing:,} cells were free by both counts when the error came", ""
    why = f"{missing:,} cells are not accounted for: tokens without text, or a client that fell behind"
    return INCONCLUSIVE, observed, why, "poll_hz = 50, or another model"


def _no_moment_said(arm: ArmCells, *, given: bool) -> Said:
    pool, (peak, held, _) = arm.pool or 0, arm.peak()
    observed = f"nobody failed; the running requests held at most {peak:,} of {pool:,} cells"
    if peak > pool + _slack(held):
        return REFUTED, observed, "they held more than the pool, and no error came", ""
    if given and arm.worst > pool:
        why = (
            f"it passed because some left early: at full length at once they would want {arm.worst:,} cells."
            f" This capacity is not enough for them in every order"
        )
        return SUPPORTED, observed, why, ""
    if given:
        return INCONCLUSIVE, observed, f"even at full length they want {arm.worst:,} cells only", "longer answers"
    return (
        INCONCLUSIVE,
        observed,
        "they did not overlap enough for the pool to run out",
        "a larger ctx_size, so that the answers are longer",
    )


def _slack(held: dict[str, int]) -> int:
    """Cells that a count may miss: for each request a token on its way, and one written in part of a step."""
    return 2 * max(1, len(held))


# --- after it, and without it -------------------------------------------------------------------------


def _lives_check(together: ArmCells, after: ArmCells) -> Check:
    expected = "the same process answers the next requests"
    claim = "the server lives: after the exhaustion the next request is answered"
    if trouble(together) or not together.moments():
        why = "nothing was exhausted before it" if not trouble(together) else "the exhaustion itself can't be judged"
        return _check("lives", claim, (NOT_TESTED, "", why, ""), expected)
    if (said := trouble(after)) and said[0] == NOT_TESTED:
        return _check("lives", claim, said, expected)
    pids = [(arm.rows.facts.get("server") or {}).get("pid") for arm in (together, after)]
    requests = [*after.rows.warm_up, *after.rows.requests.values()]
    answered = sum(request["outcome"] in (ANSWERED, SLOT_LIMIT) for request in requests)
    observed = f"{answered} of {len(requests)} requests after it were answered"
    if None in pids or pids[0] != pids[1]:
        return _check(
            "lives", claim, (INCONCLUSIVE, observed, "the next requests went to another process", AGAIN), expected
        )
    if answered and answered == len(requests):
        return _check("lives", claim, (SUPPORTED, observed, f"by the same process (pid {pids[0]})", ""), expected)
    if said:
        return _check("lives", claim, said, expected)
    return _check("lives", claim, (REFUTED, observed, ended_text(after), ""), expected)


def _alone_check(arm: ArmCells) -> Check:
    claim = "the same requests one after another are all answered: each fits alone"
    expected = "one in flight at a time, all answered in full"
    said = trouble(arm)
    if not said:
        spans = [(r["sent_s"], r["end_s"]) for r in arm.rows.requests.values() if None not in (r["sent_s"], r["end_s"])]
        if (at_once := max_overlap(spans)) > 1:
            said = INCONCLUSIVE, ended_text(arm), f"{at_once} requests were in flight at once", AGAIN
    return _check("alone", claim, said or _passed(arm), expected)


def _remedy_check(together: ArmCells, arm: ArmCells, claim: str) -> Check:
    said = trouble(arm)
    if not said and (trouble(together) or not together.moments()):
        said = NOT_TESTED, ended_text(arm), "nothing was surely exhausted without it: there is nothing to remedy", ""
    return _check(arm.name, claim, said or _not_it(together, arm) or _passed(arm), "all answered in full")


def _not_it(together: ArmCells, arm: ArmCells) -> Said | None:
    """Return why an arm isn't the remedy that it is named after, or None: what it has must be enough by the lengths."""
    lengths = [
        {label: (one.prompts[label], int(row["max_tokens"])) for label, row in one.rows.requests.items()}
        for one in (together, arm)
    ]
    both = zip(*(side.values() for side in lengths), strict=False)
    part = {"shorter_input": 0, "shorter_output": 1}.get(arm.name)
    is_it = {
        "larger_pool": (arm.pool or 0) > (together.pool or 0),
        "fewer_slots": arm.slots < together.slots and arm.pool == together.pool,
        "split_with_room": arm.unified is False,
    }.get(arm.name, all(new[part or 0] < old[part or 0] for old, new in both))
    if not is_it or (part is None and lengths[0] != lengths[1]):
        return INCONCLUSIVE, ended_text(arm), f"it is not {arm.title!r} of the same requests, by the record", AGAIN
    longest = max(map(arm.wants, arm.rows.requests))
    for limit, most, applies in (
        (arm.pool, arm.worst, arm.unified is not False),
        (arm.slot_cells, longest, not arm.unified),
    ):
        if applies and most > (limit or 0):
            luck = "passing was luck" if set(arm.ends.values()) == {ANSWERED} else "that is not enough"
            why = f"at full length they would want {most:,} of {limit:,} cells: {luck}"
            return INCONCLUSIVE, ended_text(arm), why, AGAIN
    return None


def _passed(arm: ArmCells) -> Said:
    if set(arm.ends.values()) != {ANSWERED}:
        return REFUTED, ended_text(arm), "not every answer came in full", ""
    if short := arm.cut_short():
        return INCONCLUSIVE, ended_text(arm), f"{names(short)} ended before the full length: cells stayed unused", AGAIN
    limit = f"{arm.pool:,}" if arm.unified else f"{arm.slots} boxes of {arm.slot_cells:,}"
    observed = f"{ended_text(arm)}; at most {arm.peak()[0]:,} live cells, {limit} there"
    return SUPPORTED, observed, "every answer came in full", ""


def _batch_check(one: ArmCells, other: ArmCells) -> Check:
    sizes = [arm.rows.effective.get("batch_size") for arm in (one, other)]
    claim = "batch size is no remedy: another one exhausts the pool at the same sum"
    said = trouble(one) or trouble(other) or _same_sum(one, other, sizes)
    return _check("batch", claim, said, "an error at the same sum of cells, give or take a step")


def _same_sum(one: ArmCells, other: ArmCells, sizes: list[Any]) -> Said:
    first, second = one.moments(), other.moments()
    sums = [moments[0].total if moments else None for moments in (first, second)]
    observed = "; ".join(
        f"batch {size}: " + ("no error" if cells is None else f"error at {cells:,} of {arm.pool:,} cells")
        for size, cells, arm in zip(sizes, sums, (one, other), strict=True)
    )
    if None in sizes or sizes[0] == sizes[1]:
        return INCONCLUSIVE, observed, "both arms ran with the same batch size", "another other_batch_size"
    if not first:
        return NOT_TESTED, observed, "nothing was exhausted with the first batch size", ""
    if one.pool != other.pool or one.prompts != other.prompts:
        return INCONCLUSIVE, observed, "the arms differ in more than the batch size", AGAIN
    if not second:
        return _spared_by_batch(other, observed)
    if any(not times for label, times in [*one.rows.times.items(), *other.rows.times.items()]):
        return (
            INCONCLUSIVE,
            observed,
            "the pool ran out while prompts were read: cells can't be counted",
            "shorter prompts",
        )
    apart = abs((sums[0] or 0) - (sums[1] or 0))
    if apart <= _slack(first[0].held):
        return SUPPORTED, observed, f"the sums are {apart} cells apart: less than a step", ""
    if len(first) > 1 or len(second) > 1:
        return INCONCLUSIVE, observed, "the errors of one arm came apart: a sum may count a part of its victims", AGAIN
    return REFUTED, observed, f"the sums are {apart} cells apart", ""


def _spared_by_batch(other: ArmCells, observed: str) -> Said:
    peak, held, _ = other.peak()
    if peak > (other.pool or 0) - _slack(held):
        return REFUTED, observed, "the pool was full, and no error came", ""
    return INCONCLUSIVE, observed, f"the pool was never full in the other arm ({peak:,} cells at most)", AGAIN


def _split_check(arm: ArmCells) -> Check:
    claim = "split, same size: a request can fill its own box only, and ends there; it ends nobody else"
    expected = ""
    if arm.slot_cells and set(arm.rows.requests) <= set(arm.prompts):
        long = [label for label in sorted(arm.rows.requests) if arm.wants(label) > arm.slot_cells]
        expected = f"{names(long) or 'nobody'} at the limit of {arm.slot_cells:,} cells (200, length), no error"
    return _check(SPLIT, claim, trouble(arm) or _split_said(arm), expected)


def _split_said(arm: ArmCells) -> Said:
    cells = arm.slot_cells or 0
    reached = {label: arm.reached(label) for label in sorted(arm.rows.requests)}
    observed = f"{ended_text(arm)}; cells filled: " + ", ".join(f"{label} {n}" for label, n in reached.items())
    if arm.unified is not False:
        return INCONCLUSIVE, observed, "the server did not split its KV cache", "parallel = 2"
    if EXHAUSTED in arm.ends.values():
        return REFUTED, observed, "a box of its own did not keep the pool's end away", ""
    if tight := [label for label, prompt in arm.prompts.items() if prompt >= cells]:
        return INCONCLUSIVE, observed, f"the prompt of {names(tight)} fits no box", "shorter prompts"
    if early := [label for label in arm.cut_short() if (reached[label] or 0) < cells - 1]:
        return INCONCLUSIVE, observed, f"{names(early)} ended before the box was full", AGAIN
    for label, end in arm.ends.items():
        fits = arm.wants(label) <= cells
        # an answer whose last token fills the box may be called either
        if end != (ANSWERED if fits else SLOT_LIMIT) and not (arm.wants(label) == cells and end == SLOT_LIMIT):
            return REFUTED, observed, f"{label} wants {arm.wants(label):,} cells of {cells:,} and was {ENDS[end]}", ""
        if not fits and abs((reached[label] or 0) - cells) > 1:
            return INCONCLUSIVE, observed, f"{label} stopped at {reached[label]} of {cells:,} cells", AGAIN
    return SUPPORTED, observed, "each ended within its own box, and none with an error", ""


def _apart_check(arms: dict[str, ArmCells]) -> Check:
    ends = ["does not fit (400)", "slot's limit (200, length)", "pool exhausted (an error)"]
    if not arms[SPLIT].ran:
        del ends[1]  # the arm that shows it was left out, with its reason
    claim = f"{'three' if len(ends) > 2 else 'two'} ends are told apart: {', '.join(ends)}"
    said = trouble(arms[TOO_LONG_ARM]) or _apart_said(arms)
    return _check("apart", claim, said, "a prompt longer than a slot is refused with 400 and its own error type")


def _apart_said(arms: dict[str, ArmCells]) -> Said:
    arm = arms[TOO_LONG_ARM]
    request = next(iter(arm.rows.requests.values()))
    seen = {ends: name for name, arm in arms.items() for ends in arm.ends.values() if not trouble(arm)}
    observed = f"prompt longer than a slot: status {request['status']}, {ending_text(request)}" + "".join(
        f"; {ENDS[end]}: seen in {arms[seen[end]].title!r}" for end in (SLOT_LIMIT, EXHAUSTED) if end in seen
    )
    if arm.prompts[request["label"]] < (arm.slot_cells or 0):
        return INCONCLUSIVE, observed, "the prompt was not longer than a slot", AGAIN
    if arm.ends[request["label"]] != TOO_LONG or request["status"] != 400:
        return REFUTED, observed, "it was not refused as too long", ""
    if EXHAUSTED not in seen:
        return INCONCLUSIVE, observed, "no pool was exhausted in this run, to compare it with", AGAIN
    if arms[SPLIT].ran and SLOT_LIMIT not in seen:
        return INCONCLUSIVE, observed, "no answer surely stopped at its slot's limit, to compare it with", AGAIN
    return SUPPORTED, observed, "each has a status and a text of its own", ""


# --- words --------------------------------------------------------------------------------------------


def _check(name: str, claim: str, said: Said, expected: str) -> Check:
    status, observed, why, hint = said
    return Check(name=name, claim=claim, status=status, observed=observed, expected=expected, why=why, hint=hint)
