"""05's verdict on scripted runs: who ended how, by cells; both ways for every check."""

from __future__ import annotations

from typing import Any

import pytest

import labkit as lab
from labkit.analyze.kv_exhaustion.cells import ArmCells, lockstep
from labkit.errors import ParameterError
from labkit.measure.kv_exhaustion import count_log_lines, exhaustion_sizes
from labkit.measure.record import RunData
from tests.unit.exhausted import ERROR, Arm, exhausted_run


def check(data: RunData, name: str) -> lab.Check:
    (found,) = [check for check in lab.judge_kv_exhaustion(data).checks if check.name == name]
    return found


def rows(data: RunData, arm: str) -> dict[str, dict[str, Any]]:
    return {row["label"]: row for row in data.requests if row["arm"] == arm and not row["warm_up"]}


# --- arithmetic ---------------------------------------------------------------------------------------


def test_sizes_fit_alone_overflow_together_and_every_remedy_fits() -> None:
    for slots, pool in ((2, 512), (3, 768), (4, 1024), (4, 512), (9, 2304)):
        sizes = exhaustion_sizes(pool, pool, slots)
        assert not isinstance(sizes, str)
        assert sizes.total < pool < slots * sizes.total
        assert slots * sizes.prompt < pool
        answer = sizes.total - sizes.prompt
        assert slots * (sizes.short_prompt + answer) <= pool
        assert slots * (sizes.prompt + sizes.short_answer) <= pool


def test_a_cap_that_keeps_the_pool_from_filling_is_a_reason_not_a_plan() -> None:
    assert "can't fill a pool of 8,192" in str(exhaustion_sizes(8192, 4096, 2))
    assert not isinstance(exhaustion_sizes(8192, 6000, 2), str)
    assert "one slot" in str(exhaustion_sizes(512, 512, 1))


def test_a_prompt_that_leaves_no_answer_is_refused_by_number() -> None:
    with pytest.raises(ParameterError, match="prompt of 500 tokens leaves no room"):
        exhaustion_sizes(512, 512, 2, 500)


@pytest.mark.parametrize(
    ("answers", "victims", "peak"),
    [
        ([70, 70, 70, 70], "ABCD", 256),
        ([80, 40, 80, 80], "", 240),
        ([90, 90, 40, 90], "ABD", 255),
    ],
)
def test_the_lengths_alone_tell_who_would_run_into_it(answers: list[int], victims: str, peak: int) -> None:
    labels = dict(zip("ABCD", answers, strict=True))
    found = lockstep(dict.fromkeys("ABCD", 1), labels, 4, 256)
    assert "".join(found.victims) == victims
    assert found.peak == peak


def test_deferred_requests_start_when_the_victims_are_gone() -> None:
    found = lockstep(dict.fromkeys("ABC", 100), {"A": 60, "B": 60, "C": 60}, 2, 256)
    assert found.victims == ("A", "B")


def test_log_lines_are_counted_from_where_the_arm_began(tmp_path: Any) -> None:
    log = tmp_path / "server.log"
    old = "W decode: failed to find free space in the KV cache, retrying\n"
    new = "E decode: Context size has been exceeded. off = 1\nE send_error: Context size has been exceeded.\n"
    log.write_text(old + old + new + "W purging slot 0 with 347 tokens\n")
    assert count_log_lines(log) == {"smaller_batch": 2, "purged_slots": 1, "exceeded": 1}
    assert count_log_lines(log, len(old) * 2) == {"smaller_batch": 0, "purged_slots": 1, "exceeded": 1}
    assert count_log_lines(None) is None


# --- the pool -----------------------------------------------------------------------------------------


def test_a_whole_run_is_supported_and_names_victims_and_sums() -> None:
    verdict = lab.judge_kv_exhaustion(exhausted_run())
    assert verdict.status == "supported", [vars(check) for check in verdict.checks]
    assert all(check.status == "supported" for check in verdict.checks)
    pool = verdict.checks[0]
    assert "shared KV pool exhausted" in pool.claim
    assert "A and B ended with an error, holding 512 of 512 cells (A 256 + B 256)" in pool.observed
    assert pool.numbers["moments"][0]["wanted"] == 514
    assert "too long" not in pool.claim + pool.observed + pool.expected
    assert "no request was too long" in pool.why


def test_a_request_that_ran_on_refutes_that_all_end() -> None:
    data = exhausted_run(together=Arm(answers=[115, 115], spared="B"))
    found = check(data, "pool")
    assert found.status == "refuted"
    assert "B ran at that moment and went on" in found.why


def test_an_error_with_cells_to_spare_is_refuted_where_slots_speak_and_open_where_they_do_not() -> None:
    early = Arm(answers=[115, 115], prompt=150, error_at=340)
    assert check(exhausted_run(together=early), "pool").status == "refuted"
    mute = check(exhausted_run(together=Arm(answers=[115, 115], prompt=150, error_at=340, slots_speak=False)), "pool")
    assert mute.status == "inconclusive"
    assert "not accounted for" in mute.why


def test_no_error_over_a_full_pool_is_refuted() -> None:
    found = check(exhausted_run(together=Arm(answers=[115, 115], fails=False)), "pool")
    assert found.status == "refuted"
    assert "held more than the pool" in found.why


def test_a_plan_that_did_not_overlap_is_inconclusive() -> None:
    found = check(exhausted_run(together=Arm(answers=[115, 115], fails=False, one_by_one=True)), "pool")
    assert found.status == "inconclusive"
    assert "overlap" in found.why


@pytest.mark.parametrize(
    ("answers", "victims"), [([70, 70, 70, 70], "A, B, C and D"), ([90, 90, 40, 90], "A, B and D")]
)
def test_given_answers_that_fail_name_every_victim(answers: list[int], victims: str) -> None:
    arm = Arm(answers=answers, prompt=1, pool=256, slots=4)
    found = check(exhausted_run(together=arm, given=answers), "pool")
    assert found.status == "supported"
    assert found.observed.startswith(f"{victims} ended with an error")
    assert f"runs out under {victims}" in found.expected


def test_given_answers_that_pass_are_passed_and_not_called_enough() -> None:
    arm = Arm(answers=[80, 40, 80, 80], prompt=1, pool=256, slots=4)
    found = check(exhausted_run(together=arm, given=[80, 40, 80, 80]), "pool")
    assert found.status == "supported"
    assert "passed because some left early" in found.why
    assert "not enough" in found.why
    small = Arm(answers=[10, 10], prompt=1, pool=256)
    assert check(exhausted_run(together=small, given=[10, 10]), "pool").status == "inconclusive"


def test_two_moments_are_told_apart() -> None:
    data = exhausted_run(together=Arm(answers=[115, 115]))
    late = Arm(answers=[115, 115], labels="CD", start_s=9.0).record(data, "together")
    assert late
    cells = ArmCells(data, "together")
    assert [moment.victims for moment in cells.moments()] == [("A", "B"), ("C", "D")]
    assert check(data, "pool").status == "supported"


def test_a_stale_count_of_the_task_before_adds_no_cells() -> None:
    cells = ArmCells(exhausted_run(), "together")
    first_s = cells.rows.times["A"][0]
    assert cells.decoded("A", first_s) == 1
    assert cells.held("A", first_s) == 205


# --- trouble ------------------------------------------------------------------------------------------


def test_a_skipped_pool_leaves_nothing_to_judge() -> None:
    data = RunData({"arms": {"together": {"skipped": "2 slots can't fill it"}}, "parameters": {}})
    verdict = lab.judge_kv_exhaustion(data)
    assert verdict.status == "inconclusive"
    assert {check.status for check in verdict.checks} == {"not_tested"}
    assert verdict.checks[0].why == "2 slots can't fill it"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"server_alive": False, "server_exit": "was killed by signal 9"}, "was killed by signal 9"),
        ({"quiet_after_s": None}, "not idle"),
        ({"prompt_tokens": {}}, "not known"),
    ],
)
def test_trouble_is_inconclusive(change: dict[str, Any], why: str) -> None:
    data = exhausted_run()
    data.run["arms"]["together"] |= change
    found = check(data, "pool")
    assert found.status == "inconclusive"
    assert why in found.why
    assert check(data, "lives").status == "not_tested"


def test_a_record_whose_tokens_were_cut_off_frees_no_cells() -> None:
    data = exhausted_run(together=Arm([200, 200], prompt=120))
    data.tokens[:] = [row for row in data.tokens if row["arm"] != "together" or row["i"] < 5]
    data.slots[:] = [row for row in data.slots if row["arm"] != "together" or row["sent_s"] < 0.5]
    assert check(data, "pool").status == "inconclusive"


def test_an_arm_cut_short_a_stranger_a_cold_start_and_another_error_are_inconclusive() -> None:
    cut = exhausted_run()
    del cut.run["arms"]["together"]["load_end_s"]
    stranger = exhausted_run()
    polls = [row for row in stranger.slots if row["arm"] == "together"]
    polls[len(polls) // 2]["slots"][0] |= {"busy": True, "seed": 999}
    cold = exhausted_run()
    next(row for row in cold.requests if row["warm_up"] and row["arm"] == "together")["outcome"] = "server_error"
    other = exhausted_run()
    rows(other, "together")["A"]["error"] = '{"message": "Compute error."}'
    found = [check(data, "pool") for data in (cut, stranger, cold, other)]
    assert [one.status for one in found] == ["inconclusive"] * 4
    words = ("did not run to its end", "another client", "warm-up", "Compute error")
    assert all(word in one.why for word, one in zip(words, found, strict=True))


# --- after it, and what helps -------------------------------------------------------------------------


def test_the_next_requests_need_the_same_process() -> None:
    data = exhausted_run()
    data.run["arms"]["one_by_one"]["server"]["pid"] = 2
    assert check(data, "lives").status == "inconclusive"
    deaf = exhausted_run()
    rows(deaf, "one_by_one")["A"] |= {"outcome": "server_error", "error": ERROR}
    assert check(deaf, "lives").status == "refuted"
    assert check(deaf, "alone").status == "refuted"


def test_one_after_another_must_have_been_one_at_a_time() -> None:
    data = exhausted_run(one_by_one=Arm(answers=[50, 50]))
    found = check(data, "alone")
    assert found.status == "inconclusive"
    assert "2 requests were in flight" in found.why


def test_another_batch_size_must_fail_at_the_same_sum() -> None:
    assert check(exhausted_run(), "batch").observed == (
        "batch 64: error at 512 of 512 cells; batch 512: error at 512 of 512 cells"
    )
    apart = exhausted_run(other_batch=Arm(answers=[115, 115], batch=512, error_at=490))
    assert check(apart, "batch").status == "refuted"
    full = exhausted_run(other_batch=Arm(answers=[115, 115], batch=512, fails=False))
    assert check(full, "batch").status == "refuted"
    alike = exhausted_run(other_batch=Arm(answers=[115, 115], batch=64))
    assert check(alike, "batch").status == "inconclusive"


def test_a_split_box_ends_its_own_request_alone() -> None:
    assert check(exhausted_run(), "split").status == "supported"
    ended = exhausted_run()
    rows(ended, "split")["B"] |= {"outcome": "server_error", "error": ERROR}
    assert check(ended, "split").status == "refuted"
    whole = exhausted_run()
    rows(whole, "split")["B"]["outcome"] = "completed"
    assert check(whole, "split").status == "refuted"
    short = exhausted_run()
    rows(short, "split")["A"]["timings"]["predicted_n"] = 20
    assert check(short, "split").status == "inconclusive"


def test_a_remedy_that_failed_is_refuted_and_one_that_was_luck_is_open() -> None:
    failed = exhausted_run()
    rows(failed, "larger_pool")["A"] |= {"outcome": "server_error", "error": ERROR}
    assert check(failed, "larger_pool").status == "refuted"
    lucky = exhausted_run()
    lucky.run["arms"]["larger_pool"]["server"]["effective"]["pool_cells"] = 600
    found = check(lucky, "larger_pool")
    assert found.status == "inconclusive"
    assert "luck" in found.why


def told(data: RunData, arm: str, **effective: Any) -> RunData:
    """Return the run with other effective settings in one arm."""
    data.run["arms"][arm]["server"]["effective"] |= effective
    return data


def test_a_remedy_needs_an_illness() -> None:
    data = exhausted_run(together=Arm([115, 115], fails=False, one_by_one=True))
    assert {check(data, name).status for name in ("larger_pool", "fewer_slots", "shorter_input")} == {"not_tested"}


@pytest.mark.parametrize(
    ("name", "arm"),
    [
        ("larger_pool", Arm([115, 115], pool=512)),  # the same pool fails again
        ("larger_pool", Arm([20, 20], pool=768)),  # other requests
        ("fewer_slots", Arm([115, 115], pool=768)),  # as many slots, a larger pool
        ("shorter_input", Arm([115, 115], pool=768)),
        ("shorter_output", Arm([115, 115], pool=768)),
        ("split_with_room", Arm([115, 115], pool=1024)),  # one pool
        ("split_with_room", Arm([115, 115], unified=False)),  # no room
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_arm_that_is_not_the_remedy_of_its_name_decides_nothing(name: str, arm: Arm) -> None:
    assert check(exhausted_run(**{name: arm}), name).status == "inconclusive"


@pytest.mark.parametrize("name", ["larger_pool", "one_by_one", "split"])
def test_answers_that_ended_by_themselves_fill_nothing(name: str) -> None:
    few = Arm(
        [3, 3], one_by_one=name == "one_by_one", unified=name != "split", pool=768 if name == "larger_pool" else 512
    )
    data = exhausted_run(**{name: few})
    for row in rows(data, name).values():
        row |= {"max_tokens": 115, "finish_reason": "stop"}
    found = check(data, "alone" if name == "one_by_one" else name)
    assert found.status == "inconclusive"
    assert "A and B ended before" in found.why


def test_a_pool_larger_than_it_says_is_no_proof() -> None:
    found = check(told(exhausted_run(together=Arm([400, 400], pool=1024)), "together", pool_cells=512), "pool")
    assert found.status == "inconclusive"
    assert "its size is not what it says" in found.why


@pytest.mark.parametrize("unified", [False, None])
def test_without_one_pool_there_is_no_shared_pool_to_exhaust(unified: bool | None) -> None:
    assert check(told(exhausted_run(), "together", kv_unified=unified), "pool").status == "inconclusive"


def test_a_request_that_owned_a_slot_and_began_after_the_error_is_not_overlooked() -> None:
    data = exhausted_run(together=Arm([115, 115], slots=3))
    Arm([30], labels="C", start_s=9.0).record(data, "together")
    rows(data, "together")["C"]["sent_s"] = 0.01
    waiting = {"id": 2, "busy": True, "id_task": 103, "seed": 103, "n_ctx": 512, "n_cells": 41, "n_decoded": 16}
    for poll in data.slots:
        if poll["arm"] == "together" and 0.05 < poll["sent_s"] < 9.0:
            poll["slots"][2:] = [waiting | {"n_prefilled": 26}]
    found = check(data, "pool")
    assert found.status == "inconclusive"
    assert "C may have owned a slot before it" in found.why


def test_a_deferred_request_whose_tokens_are_read_before_late_errors_was_not_spared() -> None:
    # a client that was held up reads C, which got a victim's slot, and only then the errors of A and B
    data = exhausted_run(together=Arm([115, 115]))
    error_s = max(row["end_s"] for row in rows(data, "together").values())
    Arm([30], labels="C", prompt=100, start_s=error_s + 0.01).record(data, "together")
    stalled_s = rows(data, "together")["C"]["first_token_s"] + 0.15
    for token in data.tokens:
        if (token["arm"], token["label"]) == ("together", "C"):
            token["at_s"] = max(token["at_s"], stalled_s)
    for label in "AB":
        rows(data, "together")[label]["end_s"] = stalled_s + 0.001
    found = check(data, "pool")
    assert found.status == "inconclusive", found
    assert "C may have owned a slot before it" in found.why


def test_an_answer_whose_last_token_fills_its_box_may_be_called_either() -> None:
    data = exhausted_run(split=Arm([51, 51], unified=False))
    assert check(data, "split").status == "supported"
    for row in rows(data, "split").values():
        row |= {"outcome": "slot_limit", "truncated": True}
    assert check(data, "split").status == "supported"


def test_a_prompt_that_fits_no_box_says_nothing_of_boxes() -> None:
    data = told(exhausted_run(), "split", slot_cells=200)
    for row in rows(data, "split").values():
        row |= {"outcome": "does_not_fit", "status": 400}
    assert check(data, "split").status == "inconclusive"


def test_ends_that_were_not_seen_are_not_told_apart() -> None:
    busy = exhausted_run()
    busy.run["arms"]["split"]["quiet_after_s"] = None
    assert check(busy, "apart").status == "inconclusive"
    absent = exhausted_run()
    absent.run["arms"]["split"] = {"skipped": "split boxes are padded"}
    absent.requests[:] = [row for row in absent.requests if row["arm"] != "split"]
    found = check(absent, "apart")
    assert found.status == "supported"
    assert found.claim.startswith("two ends are told apart")
    short = exhausted_run()
    short.run["arms"]["too_long"]["prompt_tokens"]["A"] = 10
    assert check(short, "apart").status == "inconclusive"


def test_the_three_ends_are_told_apart() -> None:
    assert check(exhausted_run(), "apart").status == "supported"
    wrong = exhausted_run()
    rows(wrong, "too_long")["A"] |= {"outcome": "server_error", "error": ERROR, "status": 500}
    assert check(wrong, "apart").status == "refuted"


def test_arms_that_were_not_asked_for_are_one_row_with_the_reason() -> None:
    data = exhausted_run(only=("together", "one_by_one"), remedies=False)
    verdict = lab.judge_kv_exhaustion(data)
    assert verdict.status == "supported"
    assert verdict.checks[-1].why == "remedies = False"
    assert len(verdict.checks) == 4


# --- words and pictures -------------------------------------------------------------------------------


def test_readings_carry_the_numbers() -> None:
    frames = lab.RunFrames(exhausted_run())
    said = lab.exhaustion_readings
    assert "512 of 512 cells (256 + 256) held and 514 wanted: A, B ended" in said.cells_reading(frames)
    assert "2 of 2 requests succeeded (200). In truth 0" in said.status_reading(frames)
    assert "Predicted: 1 of 2 requests end with an error. Measured: 2." in said.victims_reading(frames, 1)
    assert "The pool ran out in: together; other_batch" in said.peaks_reading(frames)
    assert said.log_reading(frames) == "The server's log was not read."
    table = lab.exhaustion_table(frames)
    assert list(table["held at most"])[:2] == [512, 319]
    assert "shared KV pool exhausted (inside a 200 stream)" in table["ended"][0]


def test_pictures_show_pool_boxes_and_failure_and_survive_an_empty_run() -> None:
    frames = lab.RunFrames(exhausted_run())
    over_time = str(lab.kv_cells_over_time(frames, title="T", subtitle=["f"]).to_dict())
    for words in ("one pool of 512 cells", "2 boxes of 256 cells", "A, B end with an error: 512 of 512 cells held"):
        assert words in over_time
    assert "A, B: stopped at the slot's limit" in str(lab.kv_peaks(frames, title="T", subtitle=[]).to_dict())
    empty = lab.RunFrames(RunData({"arms": {}}))
    for draw in (lab.kv_cells_over_time, lab.kv_peaks):
        assert "nothing to draw" in str(draw(empty, title="T", subtitle=[]).to_dict())
    assert "did not run" in lab.exhaustion_readings.cells_reading(empty)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"engine": "http://127.0.0.1:8080"}, "would end the running requests of everybody"),
        ({"parallel": 1}, "it takes 2 to 9 slots"),
        ({"kv_unified": False}, "no common pool"),
        ({"answers": [70, 0]}, "a list of whole numbers from 1"),
    ],
)
def test_parameters_that_can_not_be_used_are_refused(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ParameterError, match=sentence):
        lab.KvExhaustion(**values)
    assert lab.KvExhaustion(answers="[70, 70]").answers == (70, 70)


def test_an_error_that_is_read_late_belongs_to_the_moment_it_was_made() -> None:
    # a client that was held up gets B's error half a second after A's: no token came in between
    late = exhausted_run()
    rows(late, "other_batch")["B"]["end_s"] += 0.5
    assert check(late, "batch").status == "supported"


def test_an_answer_cut_by_its_box_is_known_where_the_build_does_not_say_so() -> None:
    data = exhausted_run()
    for row in rows(data, "split").values():
        row |= {"outcome": "completed", "truncated": None, "finish_reason": "length"}
    assert check(data, "split").status == "supported"
    assert check(data, "apart").claim.startswith("three ends")
