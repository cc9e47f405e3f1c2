"""The verdict of 02: it follows the truth, can be refuted in every claim, and says when it can't tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import labkit as lab
from labkit.analyze.kv_modes.readings import kv_choice
from labkit.analyze.kv_modes.view import KvArm, expected_outcomes
from tests.kv_recorded import EXCEEDED, LENGTHS, kv_run, server

CLAIMS = ["effective", "auto", "kv_bytes", "ubatch", "not_reserved", "long", "fates"]
NO_GPU = {"gpu_memory": "not_tested"}
Edit = Callable[[Any], None]


def statuses(data: Any) -> dict[str, str]:
    return {check.name: check.status for check in lab.judge_kv_modes(data).checks}


def has(data: Any, arm: str) -> dict[str, Any]:
    return data.run["arms"][arm]["server"]["effective"]  # type: ignore[no-any-return]


def row(data: Any, arm: str, label: str) -> dict[str, Any]:
    return next(r for r in data.requests if (r["arm"], r["label"]) == (arm, label))


def test_a_run_by_the_rule_is_supported_in_every_claim() -> None:
    assert statuses(kv_run()) == dict.fromkeys(CLAIMS, "supported") | NO_GPU


@pytest.mark.parametrize("slots", [2, 3, 4])
@pytest.mark.parametrize("ctx_size", [4096, 6000])
def test_so_is_one_of_other_sizes(slots: int, ctx_size: int) -> None:
    box = server(ctx_size, slots, False)["effective"]["slot_cells"]
    found = statuses(kv_run(ctx_size, slots, {"A": box // 3, "B": box + 40, "C": box // 4}))
    assert found["fates"] == found["effective"] == "supported"


# --- each claim can fail ------------------------------------------------------------------------------


def other_cells(data: Any) -> None:
    has(data, "split")["slot_cells"] = 1024


def auto_heeds_split(data: Any) -> None:
    data.run["arms"]["auto_asked_split"]["server"]["effective"] = server(4096, 4, False)["effective"]


def larger_buffer(data: Any) -> None:
    has(data, "unified")["kv_bytes"] = int(has(data, "unified")["kv_bytes"] * 1.03)


def kv_moves_with_ubatch(data: Any) -> None:
    has(data, "other_ubatch")["kv_bytes"] += 2**20


def compute_does_not_move(data: Any) -> None:
    has(data, "other_ubatch")["compute_bytes"] = has(data, "unified")["compute_bytes"]


def reserved(data: Any) -> None:
    row(data, "unified_long", "A").update(outcome="does_not_fit", status=400, tokens=0)


def boxes_lend(data: Any) -> None:
    row(data, "split_long", "A").update(outcome="completed", status=200)


def refused_though_it_fits(data: Any) -> None:
    row(data, "split", "B").update(outcome="does_not_fit", status=400)


def cut_though_it_fits(data: Any) -> None:
    row(data, "unified", "A").update(outcome="slot_limit")


def pool_out_though_it_fits(data: Any) -> None:
    row(data, "unified", "A").update(outcome="server_error", error=EXCEEDED)


@pytest.mark.parametrize(
    ("edit", "claim"),
    [
        (other_cells, "effective"), (auto_heeds_split, "auto"), (larger_buffer, "kv_bytes"),
        (kv_moves_with_ubatch, "ubatch"), (compute_does_not_move, "ubatch"), (reserved, "not_reserved"),
        (reserved, "long"), (boxes_lend, "long"), (refused_though_it_fits, "fates"), (cut_though_it_fits, "fates"),
        (pool_out_though_it_fits, "fates"),
    ],
)  # fmt: skip
def test_the_opposite_refutes(edit: Edit, claim: str) -> None:
    data = kv_run()
    edit(data)
    assert statuses(data)[claim] == "refuted"
    assert lab.judge_kv_modes(data).status == "refuted"


# --- and says when it can't tell ----------------------------------------------------------------------


def not_all_sent(data: Any) -> None:
    data.requests.remove(row(data, "split", "D"))


def died(data: Any) -> None:
    data.run["arms"]["unified"].update(server_alive=False, server_exit="was killed by SIGKILL")


def foreign(data: Any) -> None:
    poll = next(p for p in data.slots if p["arm"] == "split" and p["sent_s"] > 0)
    poll["slots"][0] |= {"busy": True, "seed": 999}


def never_quiet(data: Any) -> None:
    data.run["arms"]["split"]["quiet_after_s"] = None


def disconnected(data: Any) -> None:
    row(data, "unified", "B").update(outcome="disconnected", error="ReadError")


def other_error(data: Any) -> None:
    row(data, "split_roomy", "B").update(outcome="server_error", error="Compute error.")


def cold(data: Any) -> None:
    data.requests.append(row(data, "unified", "B") | {"warm_up": True, "outcome": "server_error"})


@pytest.mark.parametrize("edit", [not_all_sent, died, foreign, never_quiet, disconnected, other_error, cold])
def test_a_load_that_went_wrong_decides_nothing(edit: Edit) -> None:
    data = kv_run()
    edit(data)
    check = next(c for c in lab.judge_kv_modes(data).checks if c.name == "fates")
    assert check.status == "inconclusive"
    assert check.why
    assert check.hint
    assert statuses(data)["effective"] == "supported"


def test_equal_slots_stop_it_before_the_load_and_say_what_to_change() -> None:
    data = kv_run(16384, load=False)
    why, hint = lab.kv_stop_reason(data) or ("", "")
    assert "8,192 cells" in why
    assert hint == "ctx_size = 8192, or any below it"
    found = statuses(data)
    assert [found[name] for name in ("not_reserved", "long", "fates")] == ["inconclusive"] * 3
    assert lab.judge_kv_modes(data).status == "inconclusive"
    assert lab.kv_stop_reason(kv_run(16384, 4, load=False)) is None


@pytest.mark.parametrize(
    ("ctx_size", "slots", "hint"), [(4096, 1, "parallel = 2"), (256, 2, "ctx_size = 1024 or more")]
)
def test_other_equal_slots_name_another_remedy(ctx_size: int, slots: int, hint: str) -> None:
    assert (lab.kv_stop_reason(kv_run(ctx_size, slots, load=False)) or ("", ""))[1] == hint
    assert lab.kv_stop_reason(kv_run(1024, 2, load=False)) is None


def test_a_server_that_tells_nothing_is_not_judged() -> None:
    data = kv_run()
    for arm in data.run["arms"].values():
        arm["server"]["effective"] |= {"slot_cells": None, "kv_bytes": None, "compute_bytes": None}
    assert statuses(data) == dict.fromkeys(CLAIMS, "inconclusive") | NO_GPU


def test_a_run_of_nothing_is_inconclusive_and_can_be_drawn_and_read() -> None:
    data = kv_run()
    empty = type(data)({**data.run, "arms": {}})
    assert lab.judge_kv_modes(empty).status == "inconclusive"
    frames = lab.RunFrames(empty)
    for draw in (lab.kv_ledger, lab.lengths_that_fit, lab.kv_memory):
        assert "nothing to draw" in str(draw(frames, title="t", subtitle=["s"]).to_dict())
    assert lab.kv_readings.ledger_reading(frames) == "No load was put on."
    assert "unknown" in lab.kv_readings.choice_reading(frames)


def test_a_model_with_other_memory_is_not_tested_in_that_claim_alone() -> None:
    data = kv_run()
    for arm in data.run["arms"].values():
        arm["server"]["model"]["facts"] = {"architecture": "mamba2", "n_ctx_train": 8192}
    check = next(c for c in lab.judge_kv_modes(data).checks if c.name == "kv_bytes")
    assert (check.status, check.why) == (
        "not_tested",
        "not predicted: the architecture mamba2 keeps more than cells of K and V",
    )
    assert lab.judge_kv_modes(data).status == "supported"


def test_sliding_layers_may_move_with_the_physical_batch() -> None:
    data = kv_run()
    for name, arm in data.run["arms"].items():
        arm["server"]["model"]["facts"] |= {"architecture": "gemma3", "sliding_window": 512}
        arm["server"]["effective"]["kv_bytes"] = KvArm(data, name).kv.bytes
    found = statuses(data)
    assert (found["kv_bytes"], found["ubatch"]) == ("supported", "not_tested")


def test_a_pool_that_ran_out_where_it_could_is_no_contradiction() -> None:
    data = kv_run(lengths={"A": 2000, "B": 2090, "C": 100})
    row(data, "unified", "A").update(outcome="server_error", error=EXCEEDED)
    check = next(c for c in lab.judge_kv_modes(data).checks if c.name == "fates")
    assert check.status == "inconclusive"
    assert "the pool ran out" in check.why


@pytest.mark.parametrize(
    ("prompt", "outcomes"),
    [
        (2048, {"does_not_fit"}), (2047, {"slot_limit"}), (2025, {"completed", "slot_limit"}),
        (2024, {"completed", "slot_limit"}), (2022, {"completed"}), (3000, {"does_not_fit"}), (2026, {"slot_limit"}),
    ],
)  # fmt: skip
def test_fates_by_length(prompt: int, outcomes: set[str]) -> None:
    assert expected_outcomes(prompt, 24, 2048) == outcomes


# --- which mode ---------------------------------------------------------------------------------------


def test_the_choice_follows_from_what_was_served() -> None:
    assert kv_choice(lab.RunFrames(kv_run())).mode == "unified"
    assert kv_choice(lab.RunFrames(kv_run(lengths={"A": 300, "B": 200}))).mode == "either"
    out = kv_run(lengths={"A": 2000, "B": 2040, "C": 100})
    row(out, "unified", "A").update(outcome="server_error", error=EXCEEDED)
    row(out, "unified", "B").update(outcome="server_error", error=EXCEEDED)
    assert kv_choice(lab.RunFrames(out)).mode == "split"
    stopped = kv_choice(lab.RunFrames(kv_run(16384, load=False)))
    assert stopped.mode == "unknown"
    assert "ctx_size = 8192" in stopped.why


def test_the_choice_says_how_many_how_idle_and_how_high() -> None:
    why = kv_choice(lab.RunFrames(kv_run())).why
    assert "split refused 1 of 4 requests and served 3" in why
    assert "% of its cells idle on average" in why
    assert "of 4,096 cells" in why
    assert "split with as much for each slot served 4, for 2 times the KV memory" in why
    risky = kv_choice(lab.RunFrames(kv_run(lengths={"A": 2020, "B": 2090}))).why
    assert "the largest of these together would need 4,158 cells" in risky


def test_the_sentences_carry_this_runs_numbers() -> None:
    data = kv_run()
    frames, kr = lab.RunFrames(data), lab.kv_readings
    assert "4 slots of 1,024 cells" in kr.wrong_way_reading(data)
    assert "4 times the context" in kr.wrong_way_reading(data)
    assert "the flag was ignored" in kr.wrong_way_reading(data)
    assert "C refused (2,304 + 24 cells)" in kr.fits_reading(data)
    assert "the KV buffer does not move" in kr.memory_reading(data)
    assert "+90 MiB" in kr.memory_reading(data)
    assert "3 of 4 served, 1 refused" in kr.ledger_reading(frames)
    assert kr.refused_prediction_reading(data, 1).endswith("as predicted.")
    assert kr.refused_prediction_reading(data, 3).endswith("you predicted 3.")
    assert kr.kv_facts(frames).startswith("2 slots · batch 2048")
    assert kr.reuse_reading(data) == ""
    data.run["arms"]["unified"]["reprocessed_prompts"] = 3
    assert "3 times" in kr.reuse_reading(data)


def test_the_tables_show_rule_and_measurement_side_by_side() -> None:
    data = kv_run()
    servers = lab.kv_servers_table(data).set_index("server")
    assert servers.loc["split", ["slot by rule", "slot measured"]].tolist() == [2048, 2048]
    assert servers.loc["split_roomy", "KV MiB by rule"] == pytest.approx(180.0)
    fates = lab.kv_fates_table(data).set_index("request")
    assert fates.loc["C", ["unified", "split", "split_roomy"]].tolist() == ["completed", "does_not_fit", "completed"]
    assert list(fates.index) == list(LENGTHS)
