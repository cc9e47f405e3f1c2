"""Verdicts of notebook 01 on runs whose truth is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import labkit as lab
from labkit.analyze.slot_escalation.view import LoadView
from labkit.measure.record import RunData
from tests.synthetic_slots import Load, add_load, empty_run, escalated

CLAIMS = ("slots", "answered", "concurrency", "busy", "deferred")


def statuses(data: RunData) -> dict[str, str]:
    verdict = lab.judge_slot_escalation(data)
    return {"all": verdict.status} | {check.name: check.status for check in verdict.checks}


def check(data: RunData, name: str) -> lab.Check:
    return next(check for check in lab.judge_slot_escalation(data).checks if check.name == name)


def one_load(**load: Any) -> RunData:
    """Return a run of 2 slots whose largest load is the given one."""
    data = empty_run(slots_list=[2], requests_list=[load.get("requests", 4)])
    add_load(data, Load(2, 1))
    add_load(data, Load(**{"slots": 2, "requests": 4} | load))
    return data


def rows_of(data: RunData, requests: int = 4) -> list[dict[str, Any]]:
    return [row for row in data.requests if f"requests{requests}-" in row["arm"]]


# --- what should be ---------------------------------------------------------------------------------------


def test_every_claim_of_every_step_holds() -> None:
    found = statuses(escalated())
    assert found.pop("all") == "supported"
    assert found.pop("speed") == "not_tested"
    assert found == {f"{claim}_{slots}": "supported" for slots in (1, 2, 4) for claim in CLAIMS}


def test_peaks_and_waits_are_counted_load_by_load() -> None:
    data = escalated()
    assert check(data, "busy_2").observed == "1 request: 1 of 1; 2 and 4 requests: 2 of 2"
    assert check(data, "deferred_2").observed == "1 and 2 requests: at most 0 deferred; 4 requests: at most 2 deferred"
    assert check(data, "deferred_4").observed == "at most 0 deferred"
    assert check(data, "busy_4").numbers["slots4-requests4-run1"] == "4 of 4"


def test_repeats_and_the_second_measurement_of_a_step_are_judged_too() -> None:
    data = escalated(repeats=3)
    assert statuses(data)["all"] == "supported"
    again = next(row for row in data.requests if row["arm"].endswith("-run2-again"))
    again |= {"outcome": "server_error", "error": "Compute error.", "status": 500}
    assert statuses(data)["answered_1"] == "refuted"


# --- what a server or a client does wrong -----------------------------------------------------------------


def test_a_server_that_uses_fewer_slots_than_it_has_is_refuted() -> None:
    found = check(one_load(works=1), "busy_2")
    assert (found.status, found.observed) == ("refuted", "1 request: 1 of 1; 4 requests: 1 of 2")
    assert "at most 1 slots were busy" in found.why


def test_another_slot_count_than_asked_is_refuted() -> None:
    data = one_load()
    data.run["arms"]["slots2-requests4-run1"]["server"]["effective"]["slots"] = 4
    found = check(data, "slots_2")
    assert (found.status, found.why) == ("refuted", "asked for 2, the server has 2 and 4")


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"outcome": "server_error", "status": 200, "error": "Context size has been exceeded."}, "refuted"),
        ({"outcome": "refused", "status": 503, "error": "no slot"}, "refuted"),
        ({"outcome": "does_not_fit", "status": 400, "error": "exceeds"}, "refuted"),
        ({"outcome": "disconnected", "error": "the stream ended"}, "inconclusive"),
        ({"outcome": "stalled", "error": "nothing moves"}, "inconclusive"),
    ],
)
def test_what_the_server_refuses_counts_against_it_and_a_broken_line_decides_nothing(
    change: dict[str, Any], status: str
) -> None:
    data = one_load()
    rows_of(data)[2].update(change)
    found = check(data, "answered_2")
    assert (found.status, found.observed) == (status, "1 request: 1 of 1; 4 requests: 3 of 4")
    assert str(change["error"]) in found.why


def test_waiting_though_there_is_a_slot_for_each_is_refuted() -> None:
    found = check(one_load(requests=2, works=1), "deferred_2")
    assert found.status == "refuted"
    assert "2 in flight had 2 slots" in found.why


def test_nobody_waiting_though_requests_outnumber_the_slots_is_refuted() -> None:
    data = one_load()
    for poll in data.slots:  # /slots does not contradict: it can't be read
        poll["slots"] = None
    for scrape in data.metrics:
        scrape["values"] |= {"requests_deferred": 0.0}
    assert check(data, "deferred_2").status == "refuted"


def test_requests_held_before_the_server_are_a_contradiction_not_a_finding() -> None:
    found = check(one_load(held=True), "deferred_2")
    assert found.status == "inconclusive"
    assert "something holds them before the server" in found.why


def test_few_http_threads_are_suspected_and_not_the_slots() -> None:
    data = one_load(works=1, held=True)
    data.run["arms"]["slots2-requests4-run1"]["server"]["asked"]["threads_http"] = 2
    for name in ("busy_2", "deferred_2"):
        found = check(data, name)
        assert (found.status, found.hint) == ("inconclusive", "a larger threads_http, or none")


def test_a_client_that_is_the_queue_is_named_and_the_server_is_not_blamed() -> None:
    data = one_load(pool=1)
    found = check(data, "concurrency_2")
    assert (found.status, found.observed) == ("refuted", "1 request: 1 of 1; 4 requests: 1 of 4")
    assert "the client sent 1 at a time" in found.why
    assert "nothing about the server's slots" in found.why
    assert check(data, "busy_2").status == check(data, "deferred_2").status == "inconclusive"


def test_a_loop_that_awaits_each_answer_is_a_client_that_sends_one_at_a_time() -> None:
    data = one_load(pool=1)
    for row in rows_of(data):
        row["planned_s"] = row["sent_s"]
    assert check(data, "concurrency_2").status == "refuted"
    assert check(data, "busy_2").status == "inconclusive"
    assert "the client sent 1 at a time" in check(data, "busy_2").why


def test_answers_over_before_all_are_sent_say_nothing_of_the_client() -> None:
    found = check(one_load(pool=1, tokens=1, slow=0.2), "concurrency_2")
    assert found.status == "inconclusive"
    assert "max_tokens" in found.hint


def test_answers_over_within_two_polls_decide_nothing_and_max_tokens_is_to_be_raised() -> None:
    data = one_load(tokens=2, works=1, slow=0.2)
    found = check(data, "busy_2")
    assert found.status == "inconclusive"
    assert "max_tokens" in found.hint


# --- what spoils a run ------------------------------------------------------------------------------------


def stranger(data: RunData) -> None:
    poll = next(p for p in data.slots if p["arm"] == "slots2-requests4-run1" and p["sent_s"] > 0.1)
    poll["slots"][0] |= {"busy": True, "seed": 999}


def killed(data: RunData) -> None:
    data.run["arms"]["slots2-requests4-run1"].update(server_alive=False, server_exit="was ended by signal 9")


def broken_off(data: RunData) -> None:
    del data.run["arms"]["slots2-requests4-run1"]["load_end_s"]


def never_quiet(data: RunData) -> None:
    data.run["arms"]["slots2-requests4-run1"]["quiet_after_s"] = None


def two_servers(data: RunData) -> None:
    next(p for p in data.slots if p["arm"] == "slots2-requests4-run1" and p["sent_s"] > 0.1)["slots"].pop()


def failed_warm_up(data: RunData) -> None:
    data.requests.append(rows_of(data)[0] | {"label": "warm-up 1", "warm_up": True, "outcome": "server_error"})


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (stranger, "another client uses this server"),
        (killed, "was ended by signal 9 in the middle of the load"),
        (broken_off, "did not run to its end"),
        (never_quiet, "not idle before the load"),
        (two_servers, "several servers answer it"),
        (failed_warm_up, "warm-up requests failed"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_spoils_a_load_makes_its_step_inconclusive(spoil: Callable[[RunData], None], why: str) -> None:
    data = one_load()
    assert statuses(data)["all"] == "supported"
    spoil(data)
    for claim in CLAIMS[1:]:
        found = check(data, f"{claim}_2")
        assert found.status == "inconclusive"
        assert why in found.why
        assert found.hint


def test_a_request_that_was_lost_is_not_counted_as_answered() -> None:
    data = one_load()
    data.requests.remove(rows_of(data)[-1])
    assert check(data, "answered_2").status == "inconclusive"


def test_a_step_without_all_its_loads_is_not_a_step_that_passed() -> None:
    data = empty_run(slots_list=[2])
    add_load(data, Load(2, 1))
    assert statuses(data)["all"] == "inconclusive"
    assert lab.passed_steps(data) == []


# --- a source that is missing -----------------------------------------------------------------------------


def test_without_metrics_slots_and_streams_tell_who_waits() -> None:
    assert check(one_load(metrics_error=True), "deferred_2").status == "supported"
    assert "in 0 polls" not in check(one_load(metrics_error=True), "deferred_2").numbers["slots2-requests4-run1"]
    assert check(one_load(metrics_error=True, requests=2), "deferred_2").status == "supported"
    assert check(one_load(metrics_error=True, works=1, requests=2), "deferred_2").status == "inconclusive"


def test_without_slots_metrics_count_what_is_busy() -> None:
    found = check(one_load(slots_error=True), "busy_2")
    assert found.status == "supported"
    assert "/metrics counted them" in found.why


def test_an_unknown_slot_count_is_not_taken_for_one() -> None:
    data = one_load(slots_error=True)
    for arm in data.run["arms"].values():
        arm["server"]["effective"]["slots"] = None
    for poll in data.slots:
        poll["slots"] = None
    assert check(data, "deferred_2").status == check(data, "busy_2").status == "inconclusive"


def test_more_processing_than_slots_is_another_server() -> None:
    data = one_load()
    for scrape in data.metrics:
        scrape["values"] |= {"requests_processing": 3.0}
    found = check(data, "busy_2")
    assert (found.status, found.hint) == ("inconclusive", "the address of one server")


# --- arrivals by chance -----------------------------------------------------------------------------------


def test_arrivals_by_chance_are_judged_by_what_was_in_flight() -> None:
    data = one_load(arrivals=[0.0, 0.3, 0.5, 3.0])
    data.run["parameters"]["arrival_rate"] = 2.0
    found = statuses(data)
    assert {found[f"{claim}_2"] for claim in CLAIMS} == {"supported"}
    assert check(data, "concurrency_2").expected == "each sent at its time"
    assert LoadView(data, "slots2-requests4-run1").expected_busy == 2


def test_a_client_too_slow_for_its_arrivals_is_not_the_load_that_was_planned() -> None:
    data = one_load(arrivals=[0.0, 0.3, 0.5, 0.6], pool=1)
    data.run["parameters"]["arrival_rate"] = 2.0
    found = check(data, "concurrency_2")
    assert found.status == "refuted"
    assert "could not keep the arrival times" in found.why


def test_arrivals_that_were_hardly_polled_decide_nothing() -> None:
    data = one_load(arrivals=[0.0, 0.1, 0.2, 0.3], tokens=1, slow=0.1)
    assert check(data, "busy_2").status == "inconclusive"


def test_arrivals_so_sparse_that_nobody_waits_support_the_claim() -> None:
    data = one_load(arrivals=[0.0, 3.0, 6.0, 9.0])
    data.run["parameters"]["arrival_rate"] = 0.3
    assert check(data, "deferred_2").status == "supported"
    assert check(data, "busy_2").status == "supported"


# --- the escalation ---------------------------------------------------------------------------------------


def test_a_step_that_fails_stops_and_names_the_configuration_to_go_back_to() -> None:
    data = empty_run()
    for slots in (1, 2):
        for requests in (1, 2, 4):
            add_load(data, Load(slots, requests, works=1))
    found = statuses(data)
    assert (found["busy_1"], found["busy_2"], found["step_4"]) == ("supported", "refuted", "not_tested")
    assert lab.passed_steps(data) == [1]
    outcome = lab.step_outcome(data, 2)
    assert not outcome.passed
    assert "2 slots: failed" in outcome.text
    assert "Go back to 1 slot: llama-server --parallel 1" in outcome.text


def test_a_first_step_that_fails_has_nothing_to_go_back_to() -> None:
    data = one_load(works=1)
    assert "no configuration to go back to" in lab.step_outcome(data, 2).text


def test_a_step_that_passes_says_so() -> None:
    outcome = lab.step_outcome(escalated(), 4)
    assert (outcome.passed, outcome.text) == (True, "4 slots: every claim holds.")


@pytest.mark.parametrize(("kind", "status"), [("SlotCountError", "refuted"), ("ServerDiedError", "inconclusive")])
def test_a_server_that_did_not_come_up_stops_the_escalation(kind: str, status: str) -> None:
    data = escalated(steps=(1, 2))
    data.run["parameters"]["slots_list"] = [1, 2, 4, 8]
    data.run["step_failures"] = {"4": {"kind": kind, "text": "asked for 4 slots, the server has 1."}}
    found = statuses(data)
    assert (found["slots_4"], found["step_8"], found["all"]) == (status, "not_tested", status)
    assert lab.passed_steps(data) == [1, 2]


def test_a_step_whose_context_does_not_fit_is_not_started_and_says_what_to_change() -> None:
    data = escalated(steps=(1, 2))
    data.run["parameters"] |= {"slots_list": [1, 2, 4], "context_rule": "total", "ctx_size": 256}
    found = check(data, "fits_4")
    assert found.status == "inconclusive"
    assert "ctx_size = 512" in found.hint
    assert "the unified pool has 256 cells, 320 are needed" in found.why
    assert "not started" in lab.step_outcome(data, 4).text


def test_a_run_that_ended_early_is_inconclusive() -> None:
    assert statuses(RunData({"arms": {}})) == {"all": "inconclusive", "ran": "inconclusive"}
    data = escalated(steps=(1,))
    data.run["parameters"]["slots_list"] = [1, 2]
    assert statuses(data)["step_2"] == "inconclusive"


def test_a_server_that_is_not_ours_is_one_step_and_the_escalation_is_not_tested() -> None:
    data = empty_run(attached=True)
    for requests in (1, 2, 4):
        arm = add_load(data, Load(2, requests))
        data.run["arms"][arm]["server"]["attached"] = True
    found = statuses(data)
    assert (found["all"], found["slots_2"], found["escalation"]) == ("supported", "not_tested", "not_tested")
    assert "never restarted" in check(data, "escalation").why


def test_several_servers_behind_one_address_are_not_held_against_one() -> None:
    data = empty_run(attached=True)
    for requests in (1, 2, 4):
        arm = add_load(data, Load(2, requests, works=1))
        data.run["arms"][arm]["server"]["attached"] = True
    for name in ("busy_2", "deferred_2"):
        found = check(data, name)
        assert found.status == "inconclusive"
        assert "there may be several servers" in found.why


# --- speed is reported ------------------------------------------------------------------------------------


def test_slower_together_is_said_of_the_setup_and_never_of_batching() -> None:
    data = escalated(repeats=3, slow=lambda slots, repeat, kind: slots**2 * (1 + 0.01 * repeat))
    for poll in data.slots:
        for slot in poll["slots"]:
            slot["speculative"] = True
    found = check(data, "speed")
    assert found.status == "not_tested"
    assert "slower on this setup in this run (llama.cpp b10229, toy Q4_1, speculative decoding on)" in found.why
    assert "says nothing of slots or continuous batching" in found.why
    assert lab.judge_slot_escalation(data).status == "supported"


def test_the_rate_of_arrivals_is_not_the_servers() -> None:
    data = escalated(repeats=3, slow=lambda slots, repeat, kind: slots**2 * (1 + 0.01 * repeat))
    data.run["parameters"]["arrival_rate"] = 2.0
    assert "arrived by chance" in check(data, "speed").why
    frames = lab.RunFrames(data)
    assert "Requests arrived by chance" in lab.slot_readings.scaling_reading(frames, 2.0)
    assert lab.recommend_slots(frames).slots == 4


def test_faster_together_still_belongs_to_its_setup() -> None:
    found = check(escalated(repeats=3), "speed")
    assert found.why.startswith("a rate belongs to its setup")
    assert found.numbers["ratio"] > 2
