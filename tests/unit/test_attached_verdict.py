"""Verdicts on servers that aren't ours: what one address may hide, and what is not claimed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import labkit as lab
from labkit.measure.record import RunData
from tests.synthetic import SEEDS, Scenario, recorded


def attached(change: Callable[[list[dict[str, Any]]], None] = lambda polls: None, **scenario: Any) -> lab.Verdict:
    data: RunData = recorded(treatment=Scenario(**scenario))
    data.run["parameters"]["control"] = True
    server = data.run["arms"]["treatment"]["server"]
    server |= {"attached": True, "asked": dict.fromkeys(server["asked"])}
    change(data.slots)
    return lab.judge_late_arrival(data)


def shown(polls: list[dict[str, Any]], label: str, when: Callable[[int], bool]) -> None:
    """Let only these polls show a request; the others show its slot idle."""
    for number, poll in enumerate(polls):
        for slot in poll["slots"]:
            if slot["seed"] == SEEDS[label] and not when(number):
                slot |= {"busy": False, "seed": 7, "id_task": 1}


def test_what_joined_is_supported_and_the_cause_is_not_tested_and_says_why() -> None:
    verdict = attached()
    assert verdict.status == "supported"
    assert verdict.checks[1].status == "not_tested"
    assert "never restarted" in verdict.checks[1].why


def test_two_servers_behind_one_address_never_make_a_joining() -> None:
    # a balancer: A runs on one, B on the other, and polls go to one or the other
    def balanced(polls: list[dict[str, Any]]) -> None:
        shown(polls, "A", lambda n: n % 2 == 0)
        shown(polls, "B", lambda n: n % 2 == 1)

    verdict = attached(balanced)
    assert verdict.status == "inconclusive"
    assert "several" in verdict.checks[0].why or "contradict" in verdict.checks[0].why


def test_polls_of_a_third_server_decide_nothing() -> None:
    def elsewhere(polls: list[dict[str, Any]]) -> None:
        shown(polls, "A", lambda n: False)
        shown(polls, "B", lambda n: False)

    assert attached(elsewhere).status == "inconclusive"


def test_a_hidden_slots_endpoint_leaves_the_order_of_tokens_undecided() -> None:
    verdict = attached(slots_error="/slots: 404")
    assert verdict.status == "inconclusive"
    assert "can't be read" in verdict.checks[0].why
    assert "offers /slots" in verdict.checks[0].hint


def test_an_answer_from_another_slot_than_slots_shows_is_another_server() -> None:
    data = recorded(treatment=Scenario())
    data.run["arms"]["treatment"]["server"] |= {"attached": True}
    for row in data.requests:
        row["id_slot"] = 0
    check = lab.judge_late_arrival(data).checks[0]
    assert check.status == "inconclusive"
    assert "another slot than its own answer names" in check.why


def test_a_slot_count_that_changes_is_several_servers() -> None:
    def fewer(polls: list[dict[str, Any]]) -> None:
        polls[-1]["slots"] = polls[-1]["slots"][:1]

    verdict = attached(fewer)
    assert verdict.status == "inconclusive"
    assert "several servers answer it" in verdict.checks[0].why


def test_a_first_token_that_a_proxy_made_up_is_not_a_joining() -> None:
    # without batching B waits on its slot; something sends B's first piece of text at once
    data = recorded(treatment=Scenario(joins=False))
    data.run["arms"]["treatment"]["server"] |= {"attached": True}
    b = next(row for row in data.requests if row["label"] == "B")
    early_s = b["sent_s"] + 0.05
    b["first_token_s"] = early_s
    tokens = [row for row in data.tokens if row["label"] == "B"]
    tokens[0]["at_s"] = early_s
    assert lab.judge_late_arrival(data).status != "supported"


def test_without_timings_nothing_is_refuted() -> None:
    data = recorded(treatment=Scenario(joins=False))
    for row in data.requests:
        row["timings"] = None
    verdict = lab.judge_late_arrival(data)
    assert verdict.status == "inconclusive"
    assert "no timings" in verdict.checks[0].why


def test_one_poll_that_shows_both_progress_is_enough() -> None:
    def once(polls: list[dict[str, Any]]) -> None:
        def progressing(poll: dict[str, Any]) -> bool:
            return {SEEDS["A"], SEEDS["B"]} <= {s["seed"] for s in poll["slots"] if s["busy"] and s["n_decoded"] < 16}

        both = [n for n, poll in enumerate(polls) if progressing(poll)]
        shown(polls, "B", lambda n: n in both[:1])

    # few polls fall into B's life: the other witness may have missed it, as long as it does not hide it
    verdict = attached(once, a_tokens=14, trigger=2, b_tokens=5)
    assert verdict.checks[0].numbers["B"]["polls_joined"] == 1
    assert verdict.status == "supported"


@pytest.mark.parametrize("joins", [True, False])
def test_a_foreign_client_makes_it_inconclusive_whatever_happened(joins: bool) -> None:
    verdict = attached(foreign=True, slots=3, joins=joins)
    assert verdict.status == "inconclusive"
    assert "another client uses this server" in verdict.checks[0].why


def test_an_attached_server_without_batching_is_refuted() -> None:
    assert attached(joins=False).status == "refuted"


def test_its_settings_are_told_apart_from_what_is_not_known() -> None:
    data = recorded(treatment=Scenario())
    server = data.run["arms"]["treatment"]["server"]
    unknown = dict.fromkeys(server["effective"]) | {"slots": 2, "slot_cells": 4096}
    server |= {"attached": True, "asked": dict.fromkeys(server["asked"]), "effective": unknown}
    table = lab.settings_table(server).set_index("setting")
    assert set(table["asked"]) <= {"not known", ""}
    assert table.loc["slots (--parallel)", "effective"] == "2"
    assert table.loc["KV cache", "effective"] == "unknown"
    facts = lab.readings.run_facts(lab.RunFrames(data))
    assert "KV mode unknown" in facts
    assert "its machine is not known" in facts
