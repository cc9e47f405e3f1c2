"""Records of notebook 01 made to fool its verdict, which is to call none supported or refuted that does not show it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

import labkit as lab
from labkit.measure.record import RunData
from tests.synthetic_slots import Load, Task, add_load, empty_run, escalated
from tests.unit.test_slot_escalation import check, one_load, rows_of, statuses

HEAVY = "slots2-requests4-run1"


def mine(rows: list[dict[str, Any]], arm: str = HEAVY) -> list[dict[str, Any]]:
    return [row for row in rows if row["arm"] == arm]


def attached(**load: Any) -> RunData:
    data = empty_run(attached=True)
    for requests in (1, 2, 4):
        arm = add_load(data, Load(**{"slots": 2, "requests": requests} | load))
        data.run["arms"][arm]["server"]["attached"] = True
    return data


# --- what one load shows says nothing of another ----------------------------------------------------------


def test_a_load_in_which_nothing_could_be_read_is_not_carried_by_the_single_request() -> None:
    data = one_load()
    for poll in mine(data.slots):
        poll["slots"] = None
    for scrape in mine(data.metrics):
        scrape["values"] = None
    assert statuses(data)["busy_2"] == statuses(data)["deferred_2"] == statuses(data)["all"] == "inconclusive"
    assert lab.passed_steps(data) == []


def test_arrivals_whose_waits_were_too_short_to_see_leave_the_claim_untested() -> None:
    data = one_load(arrivals=[0.0, 0.01, 0.02, 0.03])
    data.run["parameters"]["arrival_rate"] = 5.0
    seen = mine(data.metrics)[:2]
    for row in seen:
        row |= {"sent_s": -0.009, "received_s": -0.005}
    data.metrics[:] = seen + mine(data.metrics, "slots2-requests1-run1")
    assert statuses(data)["deferred_2"] == "not_tested"
    assert lab.step_outcome(data, 2).text == "2 slots: every claim that was tested holds; not tested: deferred."


@pytest.mark.parametrize(("offered", "status"), [(False, "not_tested"), (True, "inconclusive")])
def test_without_both_nothing_is_tested_unless_they_were_offered(offered: bool, status: str) -> None:
    data = one_load(slots_error=True, metrics_error=True)
    for arm in data.run["arms"].values():
        arm["server"]["effective"] |= {"slots_endpoint": offered, "metrics_endpoint": offered}
    for poll in data.slots:
        poll["slots"] = None
    for scrape in data.metrics:
        scrape["values"] = None
    assert statuses(data)["deferred_2"] == statuses(data)["busy_2"] == status


# --- /metrics ---------------------------------------------------------------------------------------------


def test_scrapes_before_and_after_a_load_do_not_show_that_nobody_waited_in_it() -> None:
    data = one_load(requests=2, works=1)
    arm = "slots2-requests2-run1"
    ends = [row["end_s"] for row in mine(data.requests, arm)]
    facts = data.run["arms"][arm]
    kept = [row for row in mine(data.metrics, arm) if row["sent_s"] < 0 or row["sent_s"] > max(ends)]
    kept[0] |= {"sent_s": facts["load_start_s"], "received_s": facts["load_start_s"] + 0.001}
    kept[-1] |= {"sent_s": max(ends) + 0.01, "received_s": max(ends) + 0.011}
    data.metrics[:] = [row for row in data.metrics if row["arm"] != arm] + [kept[0], kept[-1]]
    assert check(data, "deferred_2").status == "inconclusive"


def test_metrics_that_came_only_once_the_first_answer_was_over_do_not_show_it_either() -> None:
    data = one_load(requests=2, works=1)
    arm = "slots2-requests2-run1"
    first_end_s = min(row["end_s"] for row in mine(data.requests, arm))
    data.metrics[:] = [row for row in data.metrics if row["arm"] != arm or row["sent_s"] > first_end_s]
    assert check(data, "deferred_2").status == "inconclusive"


def test_waits_counted_only_when_no_more_were_in_flight_than_slots_are_not_those_of_the_claim() -> None:
    data = one_load()
    spans = [(row["sent_s"], row["end_s"]) for row in rows_of(data)]
    for row in mine(data.metrics):
        open_now = sum(start <= row["received_s"] and row["sent_s"] <= end for start, end in spans)
        row["values"]["requests_deferred"] = 1.0 if 0 < open_now <= 2 else 0.0
    for poll in mine(data.slots):
        poll["slots"] = None
    assert check(data, "deferred_2").status == "refuted"


def test_a_wait_behind_a_request_that_only_the_client_gave_up_is_no_finding() -> None:
    data = one_load(arrivals=[0.0, 0.1, 0.5, 3.0])
    data.run["parameters"]["arrival_rate"] = 2.0
    first = rows_of(data)[0]
    first |= {"outcome": "disconnected", "error": "ReadError", "end_s": 0.45, "last_token_s": 0.44}
    assert check(data, "deferred_2").status != "refuted"


def test_where_no_load_outnumbers_the_slots_it_is_not_claimed_that_any_would_wait() -> None:
    data = escalated(steps=(1, 2, 4))
    assert check(data, "deferred_2").claim.endswith("exactly when they outnumber the slots")
    assert check(data, "deferred_4").claim == "4 slots: no request waits without a slot while there is one for each"


def test_slots_and_metrics_that_contradict_each_other_decide_nothing() -> None:
    data = one_load(works=1)
    for row in mine(data.metrics):
        row["values"]["requests_processing"] = 2.0
    found = check(data, "busy_2")
    assert found.status == "inconclusive"
    assert "/metrics counts 2" in found.why


# --- whose tasks are they? --------------------------------------------------------------------------------


def test_a_busy_slot_whose_task_is_not_named_is_not_one_of_ours() -> None:
    data = one_load(works=1)
    for poll in mine(data.slots):
        if 0 < poll["sent_s"] < 1:
            poll["slots"][0] |= {"busy": True, "seed": None}
    assert check(data, "busy_2").status == "inconclusive"
    assert check(data, "deferred_2").status == "inconclusive"


def test_a_server_that_is_not_ours_and_hides_its_slots_may_serve_others_beside_us() -> None:
    data = attached(works=1, slots_error=True)
    for row in data.metrics:
        row["values"]["requests_processing"] = min(2.0, 2 * row["values"]["requests_processing"])
        row["values"]["requests_deferred"] = 0.0 if "requests2" in row["arm"] else row["values"]["requests_deferred"]
    assert check(data, "busy_2").status == check(data, "deferred_2").status == "inconclusive"


def test_more_busy_slots_than_were_ever_in_flight_do_not_support_arrivals_by_chance() -> None:
    data = one_load(arrivals=[0.0, 3.0, 6.0, 9.0])
    data.run["parameters"]["arrival_rate"] = 0.3
    for poll in mine(data.slots):
        if any(slot["busy"] for slot in poll["slots"]):
            poll["slots"] = [slot | {"busy": True, "seed": 100 + slot["id"]} for slot in poll["slots"]]
    assert check(data, "busy_2").status == "inconclusive"


def test_answers_of_several_servers_say_nothing_of_the_slots_asked_for() -> None:
    data = one_load()
    next(p for p in mine(data.slots) if p["sent_s"] > 0.1)["slots"].pop()
    assert check(data, "slots_2").status == "inconclusive"


class LongStep(Load):
    """A decodes, B's prompt takes a step of a second, and C comes in the middle of it; A ends with it."""

    def tasks(self) -> list[Task]:
        a, b, c = (Task("ABC"[i], self.seed + i, DUE[i], DUE[i]) for i in range(3))
        a.slot, a.owned_s, a.times = 3, 0.001, [0.06 + 0.02 * n for n in range(12)] + [1.3]
        b.slot, b.owned_s, b.times = 2, 0.31, [1.3 + 0.02 * n for n in range(40)]
        c.slot, c.owned_s, c.times = 1, 1.305, [1.4 + 0.02 * n for n in range(40)]
        return [a, b, c]


DUE = (0.0, 0.3, 0.5)


def test_a_request_that_waits_for_the_end_of_a_step_is_not_held_against_the_slots() -> None:
    data = empty_run(slots_list=[4], requests_list=[3], arrival_rate=2.0)
    add_load(data, Load(4, 1))
    add_load(data, LongStep(4, 3, arrivals=list(DUE)))
    assert check(data, "busy_4").status == "supported"


# --- a step that failed -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "http://127.0.0.1:4711/props gives no usable answer. ReadTimeout.",
        "another server answers at http://127.0.0.1:4711. its alias is 'local', not 'labkit-1'.",
    ],
)
def test_a_server_that_can_not_be_identified_is_no_server_with_other_slots(text: str) -> None:
    data = escalated(steps=(1, 2))
    data.run["parameters"]["slots_list"] = [1, 2, 4]
    data.run["step_failures"] = {"4": {"kind": "IdentityError", "text": text}}
    assert statuses(data)["slots_4"] == "inconclusive"


# --- the recommendation -----------------------------------------------------------------------------------


def more_slots_than_requests(**params: Any) -> lab.RunFrames:
    data = escalated(steps=(1, 2, 4, 8))
    data.run["parameters"] |= params
    return lab.RunFrames(data)


def test_slots_that_were_never_all_busy_are_not_recommended_for_so_many() -> None:
    choice = lab.recommend_slots(more_slots_than_requests(peak_concurrency=8))
    assert choice.slots == 4
    assert "requests_list" in choice.text


def test_limits_kept_by_slots_that_stayed_empty_do_not_make_the_highest_count() -> None:
    choice = lab.recommend_slots(more_slots_than_requests(slo_ttft_s=5.0))
    assert choice.slots == 4


def test_an_answer_without_a_token_keeps_no_limit() -> None:
    data = escalated(steps=(1, 2))
    data.run["parameters"] |= {"slo_ttft_s": 60.0}
    for row in data.requests:
        if row["label"] == "B":
            row |= {"first_token_s": None, "last_token_s": None, "tokens": 0}
    assert lab.recommend_slots(lab.RunFrames(data)).slots is None


# --- mutations --------------------------------------------------------------------------------------------


def mutated(data: RunData, draw: random.Random) -> None:
    """Lose rows, answers and counters here and there, as slow servers, proxies and odd builds do."""
    for rows in (data.slots, data.metrics, data.tokens):
        share = draw.choice([0.0, 0.0, 0.2, 0.8])
        rows[:] = [row for row in rows if draw.random() >= share]
    for poll in data.slots:
        poll["slots"] = poll["slots"] if draw.random() < 0.8 else None
        for slot in poll["slots"] or ():
            slot |= dict.fromkeys(draw.sample(["id_task", "n_ctx", "n_decoded", "n_prefilled", "n_cells"], 2))
    for scrape in data.metrics:
        scrape["values"] |= {draw.choice(list(scrape["values"])): None} if draw.random() < 0.3 else {}
    for row in data.requests:
        row |= dict.fromkeys(draw.sample(["headers_s", "id_slot", "timings", "truncated", "finish_reason"], 2))


@pytest.mark.parametrize("seed", range(8))
def test_no_loss_of_rows_makes_a_server_that_uses_one_slot_look_as_if_it_used_two_or_the_other_way_round(
    seed: int,
) -> None:
    draw = random.Random(seed)
    lazy, right = one_load(works=1), one_load()
    mutated(lazy, draw)
    mutated(right, draw)
    found, holds = statuses(lazy), statuses(right)
    assert found["busy_2"] in ("refuted", "inconclusive")
    assert found["all"] != "supported"
    assert lab.recommend_slots(lab.RunFrames(lazy)).slots is None
    assert "refuted" not in holds.values()


# --- anything may be missing ------------------------------------------------------------------------------


def no_times(data: RunData) -> None:
    for row in data.requests:
        row |= {"planned_s": None, "sent_s": None, "end_s": None}


def no_tokens(data: RunData) -> None:
    for row in data.requests:
        row |= {"first_token_s": None, "last_token_s": None, "tokens": 0, "timings": None}


def no_load_times(data: RunData) -> None:
    for arm in data.run["arms"].values():
        arm |= {"load_start_s": None, "load_end_s": None}


def no_requests(data: RunData) -> None:
    data.requests.clear()


@pytest.mark.parametrize("spoil", [no_times, no_tokens, no_load_times, no_requests])
def test_what_is_missing_is_never_a_traceback_and_never_supports(spoil: Callable[[RunData], None]) -> None:
    data = one_load()
    spoil(data)
    frames = lab.RunFrames(data)
    lab.recommend_slots(frames)
    lab.step_outcome(data, 2)
    lab.step_table(frames)
    if spoil is not no_tokens:
        assert lab.judge_slot_escalation(data).status == "inconclusive"
