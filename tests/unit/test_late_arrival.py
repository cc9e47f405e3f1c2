"""Verdicts of notebook 03 on runs whose truth is known."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import labkit as lab
from labkit.analyze.freshness import fresh_progress
from labkit.measure.record import RunData
from tests.synthetic import OLD, SEEDS, Scenario, recorded

ON, OFF = Scenario(), Scenario(joins=False)


def statuses(data: RunData) -> dict[str, str]:
    verdict = lab.judge_late_arrival(data)
    return {"all": verdict.status} | {check.name: check.status for check in verdict.checks}


def both() -> RunData:
    return recorded(treatment=Scenario(), control=Scenario(joins=False))


def changed(change: Callable[[RunData], None]) -> RunData:
    data = copy.deepcopy(both())
    change(data)
    return data


def request(data: RunData, label: str, arm: str = "treatment") -> dict[str, Any]:
    return next(row for row in data.requests if (row["arm"], row["label"]) == (arm, label))


def test_joining_with_a_control_that_does_not_is_supported() -> None:
    assert statuses(both()) == {"all": "supported", "joined": "supported", "because": "supported"}


def test_a_treatment_that_secretly_does_not_batch_is_refuted() -> None:
    data = recorded(treatment=Scenario(joins=False), control=Scenario(joins=False))
    assert statuses(data) == {"all": "refuted", "joined": "refuted", "because": "not_tested"}


def test_the_naive_criteria_would_have_passed_it() -> None:
    # the guard of the test above: its arm is one that fools them
    naive = lab.naive_criteria(recorded(control=Scenario(joins=False)))
    assert naive is not None
    assert naive.polls > 10
    assert naive.two_busy == naive.other_progress == naive.polls
    cleared = lab.naive_criteria(recorded(control=Scenario(joins=False, stale=False)))
    assert cleared is not None
    assert (cleared.two_busy, cleared.other_progress) == (cleared.polls, 0)


def test_joining_without_continuous_batching_too_refutes_the_cause() -> None:
    data = recorded(treatment=Scenario(), control=Scenario())
    assert statuses(data) == {"all": "refuted", "joined": "supported", "because": "refuted"}


def test_without_a_control_the_cause_is_not_tested() -> None:
    assert statuses(recorded(treatment=Scenario())) == {
        "all": "supported",
        "joined": "supported",
        "because": "not_tested",
    }


@pytest.mark.parametrize("joins", [True, False])
@pytest.mark.parametrize("a_tokens", [8, 9, 10])
def test_an_a_that_ends_before_b_had_its_chance_decides_nothing(joins: bool, a_tokens: int) -> None:
    verdict = lab.judge_late_arrival(recorded(treatment=Scenario(joins=joins, a_tokens=a_tokens)))
    assert verdict.checks[0].status == "inconclusive"
    assert "a_tokens" in verdict.checks[0].hint


def drop_b(data: RunData) -> None:
    row = request(data, "B")
    row |= {"outcome": "not_sent", "sent_s": None, "first_token_s": None, "tokens": 0, "error": "A was over"}
    data.tokens[:] = [t for t in data.tokens if (t["arm"], t["label"]) != ("treatment", "B")]


def fail_b(data: RunData) -> None:
    request(data, "B").update(outcome="server_error", error="Context size has been exceeded.")


def kill_server(data: RunData) -> None:
    data.run["arms"]["treatment"].update(server_alive=False, server_exit="was ended by signal 9")


def stop_half_way(data: RunData) -> None:
    del data.run["arms"]["treatment"]["load_end_s"]


def one_slot(data: RunData) -> None:
    data.run["arms"]["treatment"]["server"]["effective"]["slots"] = 1


def never_quiet(data: RunData) -> None:
    data.run["arms"]["treatment"]["quiet_after_s"] = None


def fail_warm_up(data: RunData) -> None:
    data.requests.append(request(data, "A") | {"label": "warm-up 1", "warm_up": True, "outcome": "server_error"})


def no_token_of_a(data: RunData) -> None:
    data.tokens[:] = [t for t in data.tokens if (t["arm"], t["label"]) != ("treatment", "A")]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (drop_b, "B was never sent: A was over"),
        (fail_b, "B ended as server_error: Context size"),
        (kill_server, "was ended by signal 9 in the middle of the run"),
        (stop_half_way, "did not run to its end"),
        (one_slot, "slots = 1"),
        (never_quiet, "not idle before the load"),
        (no_token_of_a, "A got no token"),
        (fail_warm_up, "1 of 1 warm-up requests failed"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_spoils_a_run_makes_it_inconclusive_and_says_why(change: Callable[[RunData], None], why: str) -> None:
    check = lab.judge_late_arrival(changed(change)).checks[0]
    assert check.status == "inconclusive"
    assert why in check.why
    assert check.hint


def test_a_stranger_on_the_server_makes_it_inconclusive() -> None:
    check = lab.judge_late_arrival(recorded(treatment=Scenario(foreign=True, slots=3))).checks[0]
    assert (check.status, check.hint) == ("inconclusive", "a quiet server")


@pytest.mark.parametrize(("joins", "status"), [(True, "supported"), (False, "inconclusive")])
def test_streams_alone_can_show_joining_but_not_that_a_slot_was_free(joins: bool, status: str) -> None:
    scenario = Scenario(joins=joins, slots_error="disabled", a_tokens=120)
    check = lab.judge_late_arrival(recorded(treatment=scenario)).checks[0]
    assert check.status == status
    assert "/slots does not tell" in check.observed


@pytest.mark.parametrize("joins", [True, False])
@pytest.mark.parametrize("timings", [None, {}, {"predicted_ms": 0.0, "predicted_n": 60}, {"predicted_ms": None}])
def test_without_the_servers_durations_the_order_of_arrival_proves_nothing(joins: bool, timings: Any) -> None:
    data = recorded(treatment=Scenario(joins=joins, slots_error="disabled", a_tokens=120))
    lag(data, 1.0)
    request(data, "A")["timings"] = timings
    assert lab.judge_late_arrival(data).checks[0].status == "inconclusive"


def test_a_prompt_that_was_in_the_batch_when_a_ended_is_not_kept_out() -> None:
    # a prompt of many small steps: A ended before B's first token, with counters still of the task before
    data = recorded(treatment=Scenario(joins=False, a_tokens=60))
    request(data, "B")["timings"]["prompt_ms"] = 700.0
    check = lab.judge_late_arrival(data).checks[0]
    assert check.status == "inconclusive"
    assert "was being processed when A ended" in check.why


def hide_b_in_slots(data: RunData) -> None:
    for poll in data.slots:
        for slot in poll["slots"]:
            if slot["seed"] == SEEDS["B"]:
                slot |= {"busy": False, "seed": 7, "id_task": 1, "n_prefilled": OLD[0], "n_decoded": OLD[1]}


def freeze_b_in_slots(data: RunData) -> None:
    for poll in data.slots:
        for slot in poll["slots"]:
            if slot["seed"] == SEEDS["B"]:
                slot |= {"n_prefilled": OLD[0], "n_decoded": OLD[1]}


@pytest.mark.parametrize("change", [hide_b_in_slots, freeze_b_in_slots])
def test_slots_that_contradict_a_joining_stream_make_it_inconclusive(change: Callable[[RunData], None]) -> None:
    data = recorded(treatment=Scenario(b_tokens=30))
    change(data)
    check = lab.judge_late_arrival(data).checks[0]
    assert check.status == "inconclusive"
    assert "contradict" in check.why


def test_slots_that_show_joining_where_the_streams_do_not_make_it_inconclusive() -> None:
    data = recorded(treatment=Scenario(joins=False))
    for poll in data.slots:
        for slot in poll["slots"]:
            if slot["seed"] == SEEDS["B"] and 0.5 < poll["sent_s"] < 0.8:
                slot["n_decoded"] = int(poll["sent_s"] * 100)
    check = lab.judge_late_arrival(data).checks[0]
    assert check.status == "inconclusive"
    assert "contradict" in check.why


def test_a_late_request_that_reached_no_slot_is_not_held_against_batching() -> None:
    data = recorded(treatment=Scenario(joins=False))
    a_last_s = request(data, "A")["last_token_s"]
    for poll in data.slots:
        if poll["sent_s"] < a_last_s:
            for slot in poll["slots"]:
                if slot["seed"] == SEEDS["B"]:
                    slot |= {"busy": False, "seed": 7, "id_task": 1}
    check = lab.judge_late_arrival(data).checks[0]
    assert check.status == "inconclusive"
    assert "something held it before" in check.why


def lag(data: RunData, most_s: float) -> None:
    """Let the client fall behind A's stream, more and more: its tokens come late, each in a read of its own."""
    a = request(data, "A")
    tokens = [token for token in data.tokens if token["label"] == "A"]
    for token in tokens:
        token["at_s"] += most_s * token["i"] / len(tokens)
    a |= {"last_token_s": tokens[-1]["at_s"], "first_token_s": tokens[0]["at_s"], "end_s": tokens[-1]["at_s"]}


@pytest.mark.parametrize("without_timings", [True, False])
def test_a_client_that_stalls_cannot_fake_joining(without_timings: bool) -> None:
    # a stalled client reads B's first token before A's last ones, which then come in one read
    data = recorded(treatment=Scenario(joins=False))
    first_s = request(data, "B")["first_token_s"]
    for token in data.tokens:
        if token["label"] == "A" and token["at_s"] > first_s - 0.5:
            token["at_s"] = first_s + 0.0001
    if without_timings:
        request(data, "A")["timings"] = None
    assert lab.judge_late_arrival(data).checks[0].status == ("inconclusive" if without_timings else "refuted")


def test_a_client_that_falls_behind_cannot_fake_joining() -> None:
    # seen live with a toy of 900 tokens/s: 631 of A's tokens were read after B's first one
    data = recorded(treatment=Scenario(joins=False, a_tokens=120))
    lag(data, 1.0)
    late = [t for t in data.tokens if t["label"] == "A" and t["at_s"] > request(data, "B")["first_token_s"]]
    assert len(late) > 20  # the guard: by the order of arrival alone B would have joined
    assert lab.judge_late_arrival(data).checks[0].status == "refuted"


def test_a_client_that_falls_behind_does_not_hide_joining() -> None:
    data = recorded(treatment=Scenario(a_tokens=120))
    lag(data, 1.0)
    assert lab.judge_late_arrival(data).checks[0].status == "supported"


@pytest.mark.parametrize(("joins", "status"), [(True, "supported"), (False, "refuted")])
@pytest.mark.parametrize("late", [2, 3])
def test_of_several_late_requests_only_those_with_a_slot_are_judged(joins: bool, status: str, late: int) -> None:
    assert lab.judge_late_arrival(recorded(treatment=Scenario(joins=joins, late=late))).checks[0].status == status


def ask(name: str, arm: str, value: Any) -> Callable[[RunData], None]:
    return lambda data: data.run["arms"][arm]["server"]["asked"].update({name: value})


@pytest.mark.parametrize(
    "change",
    [ask("cont_batching", "control", True), ask("cont_batching", "treatment", False), ask("threads", "control", 9)],
)
def test_arms_that_were_not_asked_as_they_should_prove_no_cause(change: Callable[[RunData], None]) -> None:
    assert lab.judge_late_arrival(changed(change)).checks[1].status == "inconclusive"


def test_a_port_of_its_own_is_no_difference() -> None:
    assert lab.judge_late_arrival(changed(ask("port", "control", 9))).status == "supported"


def holes() -> list[Callable[[RunData], None]]:
    """Return changes that leave holes in a record, as crashes and odd servers do."""
    requests = [(key, value) for key in ("sent_s", "first_token_s", "timings", "id_slot") for value in (None,)]
    made = [lambda data, k=key, v=value: request(data, "A").update({k: v}) for key, value in requests]
    made += [lambda data, k=key, v=value: request(data, "B").update({k: v}) for key, value in requests]
    for timing in ("predicted_n", "predicted_ms", "prompt_ms", "cache_n"):
        made += [lambda data, t=timing: request(data, "A")["timings"].update({t: None})]
        made += [lambda data, t=timing: request(data, "A")["timings"].update({t: float("nan")})]
    for fact in ("load_start_s", "load_end_s", "server", "prompt_tokens", "planned"):
        made += [lambda data, f=fact: data.run["arms"]["treatment"].pop(f)]
        made += [lambda data, f=fact: data.run["arms"]["control"].pop(f)]
    made += [lambda data: data.run["arms"]["treatment"].update(prompt_tokens=None)]
    made += [lambda data: data.requests.remove(request(data, "A"))]
    made += [lambda data: data.requests.clear(), lambda data: data.slots.clear(), lambda data: data.tokens.clear()]
    made += [lambda data: data.run["arms"].clear(), lambda data: data.tokens[3].update(at_s=None)]
    made += [lambda data: data.slots[5].update(received_s=None)]
    return made


@pytest.mark.parametrize("change", holes())
def test_a_record_with_holes_is_judged_and_drawn_never_a_crash(change: Callable[[RunData], None]) -> None:
    data = changed(change)
    assert lab.judge_late_arrival(data).status in ("supported", "inconclusive")
    frames = lab.RunFrames(data)
    lab.naive_criteria(data)
    for reading in (lab.late_readings.lanes_reading, lab.late_readings.gaps_reading, lab.readings.run_facts):
        assert reading(frames)
    assert lab.late_readings.prediction_reading(frames, 1)
    for draw in (lab.slot_lanes, lab.tokens_over_time, lab.inter_token_gaps):
        draw(frames, title="t", subtitle=[])


def test_arms_that_differ_in_more_than_batching_are_not_compared() -> None:
    data = both()
    data.run["arms"]["control"]["server"]["effective"]["batch_size"] = 64
    check = lab.judge_late_arrival(data).checks[1]
    assert check.status == "inconclusive"
    assert "effective settings" in check.why


def test_a_control_that_cannot_be_judged_leaves_the_cause_open() -> None:
    data = recorded(treatment=Scenario(), control=Scenario(joins=False, a_tokens=9))
    data.run["arms"]["control"]["planned"] = data.run["arms"]["treatment"]["planned"]
    assert statuses(data) == {"all": "inconclusive", "joined": "supported", "because": "inconclusive"}


def test_builds_without_prompt_counters_are_judged_too() -> None:
    data = recorded(treatment=Scenario(prompt_counters=False), control=Scenario(joins=False, prompt_counters=False))
    assert statuses(data)["all"] == "supported"


@settings(max_examples=400, deadline=None)
@given(
    joins=st.booleans(),
    a_tokens=st.integers(8, 120),
    b_tokens=st.integers(1, 40),
    late=st.integers(1, 3),
    slots=st.integers(2, 4),
    stale=st.booleans(),
    poll_s=st.floats(0.003, 1.0),
    prompt_counters=st.booleans(),
    blind=st.booleans(),
    behind_s=st.sampled_from([0.0, 0.0, 0.05, 0.5, 3.0]),
)
def test_no_verdict_is_ever_the_opposite_of_the_truth(joins: bool, blind: bool, behind_s: float, **more: Any) -> None:
    data = recorded(treatment=Scenario(joins=joins, slots_error="disabled" if blind else None, **more))
    lag(data, behind_s)
    status = lab.judge_late_arrival(data).checks[0].status
    assert status in ({"supported", "inconclusive"} if joins else {"refuted", "inconclusive"})


# --- freshness ----------------------------------------------------------------------------------------


def poll(busy: bool, task: int, prefilled: int | None, decoded: int | None) -> dict[str, Any]:
    slot = {"id": 0, "busy": busy, "id_task": task, "seed": task, "n_prefilled": prefilled, "n_decoded": decoded}
    return {"slots": [slot]}


def fresh(*polls: dict[str, Any]) -> list[bool]:
    return [bool(seeds) for seeds in fresh_progress(list(polls))]


def test_old_counters_on_a_new_task_are_not_progress() -> None:
    assert fresh(poll(False, 1, 37, 16), poll(True, 2, 37, 16), poll(True, 2, 37, 16)) == [False] * 3


def test_counters_that_differ_from_the_finished_task_are_progress() -> None:
    assert fresh(poll(False, 1, 37, 16), poll(True, 2, 50, 1)) == [False, True]


def test_counters_that_change_under_the_same_task_are_progress() -> None:
    assert fresh(poll(True, 2, 37, 16), poll(True, 2, 50, 1), poll(True, 2, 50, 1)) == [False, True, True]


def test_the_last_value_seen_of_a_running_task_is_no_reference() -> None:
    # task 1 was last seen at 5 tokens and ended unseen at 16: what task 2 shows first is task 1's end
    assert fresh(poll(False, 0, 9, 9), poll(True, 1, 37, 5), poll(True, 2, 37, 16))[-1] is False


def test_a_slot_never_used_has_no_counters_and_any_is_progress() -> None:
    assert fresh(poll(False, 0, None, None), poll(True, 1, 0, 0), poll(True, 1, 50, 1)) == [False, False, True]


def test_zeros_are_never_progress() -> None:
    assert fresh(poll(False, 1, 37, 16), poll(True, 2, 0, 0)) == [False, False]


def test_after_zeros_at_release_old_counters_are_no_problem() -> None:
    assert fresh(poll(False, 1, 0, 0), poll(True, 2, 0, 0), poll(True, 2, 50, 1)) == [False, False, True]


def test_a_coincidence_of_counters_costs_an_observation_never_invents_one() -> None:
    assert fresh(poll(False, 1, 50, 3), poll(True, 2, 50, 3), poll(True, 2, 50, 4)) == [False, False, True]
