"""Records of notebook 02 made to fool its verdict, which is to call none supported or refuted that does not show it."""

from __future__ import annotations

import random
from typing import Any

import pytest

import labkit as lab
from labkit.settings.context import effective_context
from tests.kv_recorded import TRAIN, kv_run, put_on
from tests.unit.test_kv_modes import has, row, statuses


def status(data: Any, name: str) -> str:
    return statuses(data)[name]


def test_a_mode_that_was_started_and_not_loaded_is_not_left_out_of_the_fates() -> None:
    data = kv_run()
    data.requests[:] = [r for r in data.requests if r["arm"] != "split_roomy"]
    assert status(data, "fates") == "inconclusive"
    del data.run["arms"]["split_roomy"]  # equal_per_slot off
    assert status(data, "fates") == "supported"


@pytest.mark.parametrize("arm", ["unified_long", "split_long"])
def test_a_stream_that_the_client_ended_is_no_fate(arm: str) -> None:
    data = kv_run()
    row(data, arm, "A").update(outcome="overrun", status=200, error="the client hung up")
    assert status(data, "long") == "inconclusive"
    row(data, "unified", "B").update(outcome="overrun", error="the client hung up")
    assert status(data, "fates") == "inconclusive"


def test_a_cut_answer_is_known_also_where_the_build_does_not_say_truncated() -> None:
    data = kv_run(lengths={"A": 2040, "B": 100}, counts_cells=False)
    for request in data.requests:  # b9093's chat answers name neither slot nor truncation
        request.update(truncated=None, id_slot=None)
        request["outcome"] = "completed" if request["outcome"] == "slot_limit" else request["outcome"]
    assert row(data, "split", "A")["tokens"] == 8
    assert status(data, "fates") == "supported"


def test_an_answer_that_ended_by_itself_before_its_slot_did_is_no_contradiction() -> None:
    data = kv_run(lengths={"A": 2040, "B": 100})
    request = row(data, "split", "A")
    request.update(outcome="completed", finish_reason="stop", truncated=False, tokens=3)
    request["timings"]["predicted_n"] = 3
    assert status(data, "fates") == "supported"


def test_counts_that_contradict_each_other_do_not_refute() -> None:
    data = kv_run()
    row(data, "unified_long", "A")["timings"] |= {"prompt_n": 4, "cache_n": None}
    assert status(data, "not_reserved") == "inconclusive"
    row(data, "unified_long", "A")["timings"] |= {"prompt_n": 10**9, "cache_n": 0}
    assert status(data, "not_reserved") == "inconclusive"


def test_kv_that_moves_is_held_against_no_model_whose_layers_are_not_known() -> None:
    data = kv_run()
    for arm in data.run["arms"].values():
        arm["server"]["model"]["facts"] |= {"architecture": "gemma4", "sliding_window": 512}
    has(data, "other_ubatch")["kv_bytes"] -= 2**20
    assert status(data, "kv_bytes") == "not_tested"
    assert status(data, "ubatch") == "not_tested"


def test_four_slots_by_themselves_with_another_total_are_not_what_was_claimed() -> None:
    data = kv_run()
    for name in ("auto", "auto_asked_split"):
        has(data, name).update(pool_cells=TRAIN, slot_cells=TRAIN)
    assert status(data, "auto") == "refuted"


@pytest.mark.parametrize("ctx_size", [1000, 4096, 4352, 6000])
def test_boxes_that_were_padded_are_the_same_total(ctx_size: int) -> None:
    assert effective_context(ctx_size, 4, False, n_ctx_train=TRAIN).pool_cells >= ctx_size
    assert status(kv_run(ctx_size), "auto") == "supported"


def test_totals_that_differ_are_not_called_the_same() -> None:
    data = kv_run(1000, 3, load=False)
    for mode in ("unified", "split"):
        data.run["arms"][f"{mode}_long"] = {"server": data.run["arms"][mode]["server"]}
        put_on(data, f"{mode}_long", {"A": 600})
    found = next(c for c in lab.judge_kv_modes(data).checks if c.name == "long")
    assert found.status == "supported"
    assert "same total" not in found.why


def test_a_busy_slot_whose_task_is_not_named_may_be_anybodys() -> None:
    data = kv_run()
    poll = next(p for p in data.slots if p["arm"] == "split" and p["sent_s"] > 0)
    poll["slots"][0] |= {"busy": True, "seed": None}
    assert status(data, "fates") == "inconclusive"


def test_cells_that_nobody_can_predict_are_not_refuted() -> None:
    data = kv_run()
    for name in ("unified", "split"):
        data.run["arms"][name]["server"]["asked"] |= {"kv_unified": None}
    assert status(data, "effective") == "inconclusive"


def test_a_load_without_times_is_no_traceback() -> None:
    data = kv_run()
    for arm in data.run["arms"].values():
        arm |= {"load_start_s": None, "load_end_s": None}
    assert status(data, "fates") == "inconclusive"


@pytest.mark.parametrize("seed", range(8))
def test_no_loss_of_rows_refutes_what_went_by_the_rule_or_supports_what_did_not(seed: int) -> None:
    draw = random.Random(seed)
    right, wrong = kv_run(), kv_run()
    row(wrong, "split_long", "A").update(outcome="completed", status=200)
    row(wrong, "split", "B").update(outcome="does_not_fit", status=400)
    for data in (right, wrong):
        for rows in (data.slots, data.tokens, data.requests):
            share = draw.choice([0.0, 0.0, 0.1, 0.6])
            rows[:] = [one for one in rows if draw.random() >= share]
        for request in data.requests:
            request |= dict.fromkeys(draw.sample(["headers_s", "id_slot", "timings", "truncated", "finish_reason"], 2))
        for server in draw.sample(sorted(data.run["arms"]), 2):
            data.run["arms"][server]["server"]["effective"][
                draw.choice(["slot_cells", "kv_bytes", "compute_bytes"])
            ] = None
        lab.kv_readings.ledger_reading(lab.RunFrames(data))
    assert "refuted" not in statuses(right).values()
    assert "supported" not in (status(wrong, "long"), status(wrong, "fates"))
