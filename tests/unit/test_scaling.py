"""Numbers, pictures and words of notebook 01."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import labkit as lab
from labkit.analyze.palette import FOREIGN_COLOUR, REQUEST_COLOURS, colour
from labkit.analyze.placing import Room
from labkit.analyze.slot_escalation.scaling import figure, load_figures, measured, ratio, single_rate
from labkit.measure.record import RunData
from labkit.measure.slot_loads import label_of
from labkit.present.show import png
from tests.synthetic_slots import Load, add_load, empty_run, escalated

CHARTS = [lab.scaling_chart, lab.waiting_split, lab.slot_lanes]


def frames(**run: Any) -> lab.RunFrames:
    return lab.RunFrames(escalated(**run))


def jitter(slots: int, repeat: int, kind: str) -> float:
    """Steps take longer with more slots, and a little longer in later repeats."""
    return slots**0.5 * (1 + 0.02 * repeat + (0.01 if kind == "again" else 0))


# --- numbers ----------------------------------------------------------------------------------------------


def test_three_runs_carry_an_interval_and_fewer_do_not() -> None:
    three = measured([10.0, 11.0, 12.0])
    assert three
    assert three.low is not None
    assert three.high is not None
    assert 10.0 <= three.low < three.mean == 11.0 < three.high <= 12.0
    assert three.text().startswith("11.0 (")
    two = measured([10.0, 12.0])
    assert two
    assert (two.mean, two.low) == (11.0, None)
    assert two.text() == "11.0 (2 runs, no interval)"
    assert measured([]) is None


def test_the_aggregate_rate_counts_all_tokens_over_the_whole_load() -> None:
    loads = load_figures(frames(steps=(1,), tokens=50))
    four = figure(loads, "aggregate_tokens_per_s", 1, 4)
    assert four
    # each of 4 takes 0.06 s of prefill and 49 steps of 0.02 s, one after another
    assert four.mean == pytest.approx(200 / (4 * (0.06 + 49 * 0.02)), rel=0.01)
    stream = figure(loads, "stream_tokens_per_s", 1, 4)
    assert stream
    assert stream.mean == pytest.approx(1 / 0.02)


def test_a_load_with_a_failed_request_has_no_rate() -> None:
    data = escalated()
    next(row for row in data.requests if row["arm"] == "slots2-requests4-run1")["outcome"] = "server_error"
    loads = load_figures(lab.RunFrames(data))
    assert figure(loads, "aggregate_tokens_per_s", 2, 4) is None
    assert figure(loads, "aggregate_tokens_per_s", 2, 2) is not None


def test_ratios_are_paired_by_repeat_and_the_same_step_twice_is_the_noise() -> None:
    loads = load_figures(frames(repeats=3, slow=jitter))
    gain, noise = ratio(loads, 4, 1), ratio(loads, 1, 1, kind="again")
    assert gain
    assert noise
    # four times the slots at half the speed: pairing takes the drift out
    assert gain.mean == pytest.approx(2.0, rel=0.05)
    assert gain.high is not None
    assert gain.low is not None
    assert gain.high - gain.low < 0.01
    assert noise.mean == pytest.approx(1 / 1.01, rel=0.01)


def test_a_single_request_has_its_own_rate() -> None:
    assert single_rate(load_figures(frames())) == pytest.approx(40 / (0.06 + 0.78), rel=0.02)


def test_nothing_measured_gives_empty_tables() -> None:
    empty = lab.RunFrames(empty_run())
    assert load_figures(empty).empty
    assert lab.step_table(empty).empty
    assert lab.waits_table(empty).empty


def test_the_step_table_says_what_was_busy_who_waited_and_what_it_cost() -> None:
    table = lab.step_table(frames(repeats=3, slow=jitter)).set_index(["slots", "requests"])
    row = table.loc[(2, 4)]
    assert (row["runs"], row["busy"], row["deferred"], row["in_flight"]) == (3, 2, 2, 4)
    assert (row["pool_cells"], row["kv_mib"]) == (4096, 90.0)
    assert table.loc[(1, 1), "runs"] == 1


def test_warm_prompts_are_marked() -> None:
    data = escalated()
    for row in data.requests:
        if row["arm"] == "slots4-requests4-run1":
            row["timings"]["cache_n"] = 30
    found = lab.RunFrames(data)
    table = lab.step_table(found).set_index(["slots", "requests"])
    assert "warm" in table.loc[(4, 4), "note"]
    assert table.loc[(2, 4), "note"] == ""
    assert "came from a slot's cache" in lab.slot_readings.scaling_reading(found, 2.0)


def test_waits_are_split_request_by_request() -> None:
    table = lab.waits_table(lab.chosen_arms(frames(), ["slots1-requests4-run1"])).set_index("label")
    assert table.loc["A", "server_wait_s"] < 0.01
    assert table.loc["B", "server_wait_s"] == pytest.approx(0.84, rel=0.05)
    assert table.loc["B", "prefill_s"] == pytest.approx(0.06)
    assert table.loc["B", "gap_s"] == pytest.approx(0.02)


# --- arms, labels, colours --------------------------------------------------------------------------------


def test_chosen_arms_are_a_run_of_their_own() -> None:
    chosen = lab.chosen_arms(frames(), ["slots2-requests2-run1", "no-such-arm"])
    assert chosen.arms == ["slots2-requests2-run1"]
    assert set(chosen.requests["label"]) == {"A", "B"}
    assert set(chosen.slots["arm"]) == set(chosen.metrics["arm"]) == {"slots2-requests2-run1"}


def test_pictures_show_the_largest_load_of_each_step_once() -> None:
    arms = lab.slot_readings.load_arms(frames(repeats=3, slow=jitter))
    assert arms == ["slots1-requests4-run1", "slots2-requests4-run1", "slots4-requests4-run1"]
    assert lab.slot_readings.load_arms(frames(), [2]) == ["slots2-requests4-run1"]


def test_labels_sort_as_they_count_and_colours_repeat_in_shades() -> None:
    labels = [label_of(i) for i in range(64)]
    assert labels == sorted(set(labels))
    assert [colour(label) for label in labels[:9]] == list(REQUEST_COLOURS.values())
    assert len({colour(label) for label in labels[:27]}) == 27
    assert FOREIGN_COLOUR not in {colour(label) for label in labels}
    assert colour("foreign") == colour("r01") == FOREIGN_COLOUR


def not_taken_in(data: RunData, label: str, until_s: float) -> None:
    """Let /slots show a request's slot as free until then: the server takes requests in between two steps."""
    seed = next(row["seed"] for row in data.requests if row["label"] == label)
    for poll in data.slots:
        for slot in poll["slots"]:
            if slot["seed"] == seed and poll["sent_s"] < until_s:
                slot |= {"busy": False, "seed": None}


def test_a_request_that_is_not_taken_in_yet_does_not_wait_for_a_slot_while_one_is_free() -> None:
    data = empty_run(slots_list=[2], requests_list=[2])
    add_load(data, Load(2, 2, slow=10.0))
    not_taken_in(data, "B", until_s=0.4)
    assert "deferred" not in set(lab.RunFrames(data).phases["phase"])
    crowded = empty_run(slots_list=[1], requests_list=[2])
    add_load(crowded, Load(1, 2))
    waits = lab.RunFrames(crowded).phases.query("phase == 'deferred'")
    assert waits["label"].tolist() == ["B"]
    assert waits["end_s"].iloc[0] == pytest.approx(0.84, abs=0.06)


# --- words that don't lie on each other -------------------------------------------------------------------


def test_who_comes_first_has_the_room() -> None:
    room = Room(10.0)
    assert room.take({"x": 1.0, "y": 0.5, "text": "prefill 20 ms"})
    assert not room.take({"x": 1.2, "y": 0.5, "text": "prefill 20 ms"})
    assert room.take({"x": 1.2, "y": 0.7, "text": "prefill 20 ms"})
    assert room.take({"x": 5.0, "y": 0.5, "text": "prefill 20 ms"}, align="center")
    assert not room.take({"x": 0.3, "y": 0.9, "text": "too long for its place"}, align="right")


# --- pictures ---------------------------------------------------------------------------------------------


def spec(draw: Callable[..., Any], found: lab.RunFrames) -> dict[str, Any]:
    return draw(found, title="Title", subtitle=["facts"]).to_dict()  # type: ignore[no-any-return]


def words(specification: dict[str, Any]) -> str:
    return json.dumps(specification, ensure_ascii=False)


@pytest.mark.parametrize("draw", CHARTS)
def test_pictures_carry_title_facts_and_units(draw: Callable[..., Any]) -> None:
    found = lab.chosen_arms(frames(), lab.slot_readings.load_arms(frames()))
    specification = spec(draw, found)
    assert specification["title"]["text"] == "Title"
    assert specification["title"]["subtitle"][0] == "facts"
    assert "(s)" in words(specification)
    assert png(specification)[:4] == b"\x89PNG"


@pytest.mark.parametrize("draw", CHARTS)
def test_a_run_without_loads_is_a_picture_that_says_so(draw: Callable[..., Any]) -> None:
    assert "nothing to draw" in words(spec(draw, lab.RunFrames(empty_run())))


def test_intervals_and_the_ceiling_are_drawn_where_there_are_any() -> None:
    once = words(spec(lab.scaling_chart, frames()))
    assert "bootstrap" not in once
    assert "llama-batched-bench" not in once
    data = escalated(repeats=3, slow=jitter)
    data.run["ceiling"] = {"rows": [{"sequences": n, "tokens_per_s": 90.0 * n} for n in (1, 2, 4)], "missing": ""}
    often = words(spec(lab.scaling_chart, lab.RunFrames(data)))
    assert "95 % bootstrap interval" in often
    assert "dashed: llama-batched-bench" in often
    assert "360.0" in often
    assert "90 with 1, 180 with 2, 360 with 4" in lab.slot_readings.ceiling_reading(lab.RunFrames(data))


def test_the_wait_in_the_client_is_a_part_of_its_own() -> None:
    data = empty_run()
    arm = add_load(data, Load(4, 4, pool=2), kind="wrong_way", name="small-client-pool")
    found = lab.RunFrames(data)
    rows = spec(lab.waiting_split, found)["datasets"].values()
    parts = {(row["part"], row["label"]) for boxes in rows for row in boxes if "part" in row}
    assert {("client", "C"), ("client", "D"), ("prefill", "A")} <= parts
    reading = lab.slot_readings.small_pool_reading(found, arm)
    assert "4 requests on 4 slots, yet at most 2 slots were ever busy and 0 requests deferred" in reading
    assert "its pool has 2 connections" in reading
    assert "Not shown" in lab.slot_readings.small_pool_reading(found, None)


def test_many_requests_are_drawn_with_names_and_colours() -> None:
    data = empty_run(slots_list=[2], requests_list=[12])
    arm = add_load(data, Load(2, 12, tokens=6))
    text = words(spec(lab.slot_lanes, lab.chosen_arms(lab.RunFrames(data), [arm])))
    assert "J waits 637 ms for a slot" in text
    assert "L 796 ms" in text
    assert colour("L") in text
    assert "B to L sent, first tokens after" in text


def test_loads_that_start_together_have_no_early_request() -> None:
    found = lab.chosen_arms(frames(), ["slots2-requests4-run1"])
    chart = lab.slot_lanes(found, title="t", subtitle=[], early=None).to_dict()
    assert "last token" not in words(chart)
    assert "A to D sent" in words(chart)


# --- sentences --------------------------------------------------------------------------------------------


def test_the_scaling_is_read_out_against_noise_and_prediction() -> None:
    text = lab.slot_readings.scaling_reading(frames(repeats=3, slow=jitter), 3.0)
    assert "With 4 requests, 4 slots gave 2.0" in text
    assert "predicted: 3 times" in text
    assert "The same step measured twice gave 0.99" in text
    assert "llama.cpp b10229, toy Q4_1, speculative decoding off" in text
    once = lab.slot_readings.scaling_reading(frames(), 3.0)
    assert "1 run can't carry an interval" in once
    assert "how much of it is noise is not known" in once
    assert "nothing to compare" in lab.slot_readings.scaling_reading(frames(steps=(1,)), 3.0)


def test_an_answer_is_quoted_without_what_a_terminal_would_obey() -> None:
    text = lab.slot_readings.answer_reading("Hi\x1b[31m\x07 <script>\n there " + "x" * 2000, 2)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "2 slots was answered: “Hi [31m <script> there" in text
    assert text.endswith("…”")
    assert len(text) < 400
    assert "got no text" in lab.slot_readings.answer_reading(None, 1)


@pytest.mark.parametrize(("digest", "said"), [("ab", "the same text on all 3"), ("cd", "2 different texts on 3")])
def test_the_single_answers_are_compared_between_steps(digest: str, said: str) -> None:
    data = escalated()
    data.run["arms"]["slots4-requests1-run1"]["answer_sha256"] = digest
    assert said in lab.slot_readings.baseline_reading(lab.RunFrames(data))


def test_lanes_and_waits_are_read_out() -> None:
    found = lab.chosen_arms(frames(), lab.slot_readings.load_arms(frames()))
    text = lab.slot_readings.lanes_reading(found)
    assert "1 slots, 4 requests: at most 1 busy at once; 3 waited for a slot" in text
    assert "4 slots, 4 requests: 4 busy at once, and nobody waited for a slot." in text
    assert "the longest wait in the server is" in lab.slot_readings.waiting_reading(found)


def test_facts_leave_out_what_differs_from_step_to_step() -> None:
    facts = lab.slot_readings.setup_facts(frames())
    assert facts.startswith("unified KV, 1,024 cells a slot · toy")
    assert "batch" not in facts


def test_readings_of_an_empty_run_are_sentences_too() -> None:
    found = lab.RunFrames(empty_run())
    for reading in (lab.slot_readings.lanes_reading, lab.slot_readings.waiting_reading):
        assert reading(found) == "No request was sent."
    assert "No ceiling is drawn: it was not measured." in lab.slot_readings.ceiling_reading(found)
    assert "can't be compared" in lab.slot_readings.baseline_reading(found)


# --- the recommendation -----------------------------------------------------------------------------------


def choice(data: RunData, **changes: Any) -> Any:
    data.run["parameters"] |= changes
    return lab.recommend_slots(lab.RunFrames(data))


def test_without_limits_the_smallest_step_without_a_wait_is_recommended() -> None:
    found = choice(escalated())
    assert (found.slots, found.command) == (4, "llama-server --parallel 4")
    assert "the smallest tested step with a slot for each of the 4 requests of the largest load" in found.text
    assert "cells (" in found.text


def test_the_requests_one_has_at_once_decide() -> None:
    assert choice(escalated(), peak_concurrency=2).slots == 2
    found = choice(escalated(), peak_concurrency=6)
    assert found.slots == 4
    assert "2 wait for a slot" in found.text


def test_the_highest_step_that_kept_the_limits_is_recommended() -> None:
    data = escalated(slow=lambda slots, repeat, kind: float(slots))
    # a token every 20, 40, 80 ms; the slowest first token after 2.6, 1.8, 0.25 s
    found = choice(data, slo_itl_s=0.05)
    assert found.slots == 2
    assert "4 slots: slowest stream 80 ms a token of 50 ms allowed." in found.text
    assert choice(data, slo_itl_s=None, slo_ttft_s=1.0).slots == 4
    none = choice(data, slo_itl_s=0.05, slo_ttft_s=1.0)
    assert (none.slots, none.command) == (None, "")
    assert "No step kept the limits" in none.text


def test_more_slots_that_are_slower_together_are_not_recommended() -> None:
    data = escalated(repeats=3, slow=lambda slots, repeat, kind: slots**2 * (1 + 0.01 * repeat))
    found = choice(data)
    assert found.slots == 1
    assert "slower together on this setup" in found.text


def test_without_a_step_that_passed_none_is_recommended() -> None:
    assert "No step passed" in choice(empty_run()).text
    assert "its owner's" in choice(empty_run(attached=True)).text
    assert "loads were planned" in lab.recommend_slots(lab.RunFrames(RunData({"arms": {}}))).text


def test_a_step_that_did_not_pass_is_named() -> None:
    data = escalated(steps=(1, 2))
    assert "The step with 8 slots did not pass." in choice(data, slots_list=[1, 2, 8]).text
