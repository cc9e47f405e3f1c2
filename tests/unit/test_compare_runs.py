"""06 on scripted runs: what can be compared, what the pairs say, and what is advised; both ways."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import labkit as lab
from labkit.analyze.compare_runs.claims import Comparison
from labkit.analyze.compare_runs.comparable import BLOCKS, CHANGED, FOLLOWS, NOTE, differences, named_change
from labkit.analyze.compare_runs.counters_compared import changed_meanings
from labkit.analyze.compare_runs.paired import METRICS, request_changes
from labkit.errors import ParameterError
from labkit.measure.record import STREAMS, RunData
from tests.synthetic import Scenario, recorded

LOADS = 6
NUMBERS = itertools.count(1)


def run(slower: float = 1.0, wait_s: float = 0.0, loads: int = LOADS) -> RunData:
    """A run of several loads; `slower` stretches its times, `wait_s` makes its late request wait."""
    data = recorded(**{f"load{i}": Scenario(a_tokens=40 + i) for i in range(loads)})
    data.run.update(verdict={"status": "supported"}, run_id=f"run {next(NUMBERS)}", notebook="01_slot_escalation")
    data.run["provenance"] |= {"threads": 4, "architecture": "x86_64", "python": "3.11"}
    data.run["parameters"]["poll_hz"] = 20.0
    for facts in data.run["arms"].values():
        labels = list(facts["prompt_tokens"])
        facts["planned"] = {"requests": [{"label": label, "max_tokens": 60} for label in labels]}
    for row in data.requests:
        stretch(row, slower, wait_s if row["label"] == "B" else 0.0)
    return data


def stretch(row: dict[str, Any], factor: float, wait_s: float) -> None:
    sent_s = row["sent_s"]
    for name in ("headers_s", "first_event_s", "first_token_s", "first_answer_s", "last_token_s", "end_s"):
        row[name] = sent_s + factor * (row[name] - sent_s) + wait_s
    row["timings"]["prompt_ms"] *= factor


def compared(one: RunData, other: RunData, **more: Any) -> Comparison:
    return lab.compared([one], [other], **{"changed": "auto", "tolerance_percent": 10.0} | more)


def with_settings(data: RunData, part: str, **values: Any) -> RunData:
    changed = copy.deepcopy(data)
    for facts in changed.run["arms"].values():
        facts["server"][part] |= values
    return changed


def newer(data: RunData) -> RunData:
    return with_settings(data, "build", number=10156)


def check(verdict: lab.Verdict, name: str) -> lab.Check:
    return next(one for one in verdict.checks if one.name == name)


# --- can they be compared? ----------------------------------------------------------------------------


def test_the_same_run_twice_differs_in_nothing_and_is_kept() -> None:
    comparison = compared(run(), run())
    verdict = lab.judge_compare_runs(comparison)
    assert comparison.differences == []
    assert verdict.status == "supported"
    assert "noise" in check(verdict, "comparable").why
    assert lab.compare_readings.decision_reading(comparison, verdict).startswith("Keep")


@pytest.mark.parametrize(
    ("changed", "asked", "effective"),
    [
        ("parallel", {"parallel": 4}, {"slots": 4}),
        ("kv_unified", {"kv_unified": False}, {"kv_unified": False, "slot_cells": 2048}),
        ("ctx_size", {"ctx_size": 8192}, {"pool_cells": 8192, "slot_cells": 8192, "kv_bytes": 2 * 94371840}),
    ],
)
def test_one_change_is_named_from_the_records_with_what_follows_from_it(
    changed: str, asked: dict[str, Any], effective: dict[str, Any]
) -> None:
    after = with_settings(with_settings(run(), "asked", **asked), "effective", **effective)
    assert named_change(run(), after) == [changed]
    found = {item.what: item.meaning for item in compared(run(), after).differences}
    assert found.pop(changed) == CHANGED
    assert set(found.values()) == {FOLLOWS}
    assert check(lab.judge_compare_runs(compared(run(), after)), "comparable").status == "supported"


def test_a_new_build_may_have_another_engine() -> None:
    after = with_settings(with_settings(run(), "build", number=11549), "asked", engine="/new/llama-server")
    assert named_change(run(), after) == ["build"]
    assert compared(run(), after).blocking == []


def test_two_changes_at_once_are_not_comparable() -> None:
    after = with_settings(run(), "asked", parallel=4, ctx_size=8192)
    verdict = lab.judge_compare_runs(compared(run(), after))
    assert verdict.status == "inconclusive"
    assert "parallel and ctx_size differ" in check(verdict, "comparable").observed
    assert {one.status for one in verdict.checks[1:]} == {"not_tested"}


def test_a_change_that_is_not_there_is_said() -> None:
    found = check(lab.judge_compare_runs(compared(run(), run(), changed="build")), "comparable")
    assert found.status == "inconclusive"
    assert "build was to differ" in found.why


def _model(data: RunData) -> None:
    for facts in data.run["arms"].values():
        facts["server"]["model"]["sha256"] = "cd" * 32


def _answers(data: RunData) -> None:
    for facts in data.run["arms"].values():
        facts["planned"]["requests"][0]["max_tokens"] = 61


def _prompts(data: RunData) -> None:
    data.run["arms"]["load0"]["prompt_tokens"]["A"] = 500


def _stranger(data: RunData) -> None:
    row = next(row for row in data.slots if row["arm"] == "load0" and row["sent_s"] > 0.1)
    row["slots"][0] |= {"busy": True, "seed": 999}


def _batch(data: RunData) -> None:
    for facts in data.run["arms"].values():
        facts["server"]["asked"]["batch_size"] = 128


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (_model, "model"),
        (_answers, "A: max_tokens"),
        (_prompts, "A: prompt"),
        (_stranger, "state of the run"),
        (_batch, "batch_size (asked)"),
        (lambda data: data.run["provenance"].update(cpu="another"), "cpu"),
        (lambda data: data.run["provenance"].update(memory_bytes=2**35), "memory"),
        (lambda data: data.run["provenance"].update(gpus=[{"name": "a GPU", "driver": "1"}]), "GPUs"),
        (lambda data: data.run["parameters"].update(poll_hz=50.0), "polls of /slots per second"),
        (lambda data: data.run.update(verdict={"status": "not_run"}), "state of the run"),
        (lambda data: data.run.update(notebook="03_late_arrival"), "notebook"),
        (lambda data: data.run["arms"]["load0"].update(server_alive=False), "state of the run"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_any_other_difference_is_listed_and_forbids_the_comparison(spoil: Callable[[RunData], None], what: str) -> None:
    after = run()
    spoil(after)
    comparison = compared(run(), after)
    assert [item.what for item in comparison.blocking] == [what]
    verdict = lab.judge_compare_runs(comparison)
    assert verdict.status == "inconclusive"
    assert what in check(verdict, "comparable").why
    assert "Not comparable" in lab.compare_readings.decision_reading(comparison, verdict)
    assert "say nothing about the change" in lab.compare_readings.change_reading(comparison)
    assert "NOT COMPARABLE" in lab.compare_readings.sides_text(comparison)
    assert what in list(lab.compare_readings.differences_table(comparison)["what"])


def test_what_does_not_matter_enough_is_a_note() -> None:
    after = run()
    after.run["provenance"]["python"] = "3.12"
    after.run["arms"]["load0"]["prompt_tokens"]["A"] = 52
    for slot in (slot for poll in after.slots for slot in poll["slots"]):
        slot["seed"] += 1000
    for row in after.requests:
        row["seed"] += 1000
    found = differences(run(), after, "")
    assert {item.what for item in found} == {"python", "A: prompt", "seed"}
    assert {item.meaning for item in found} == {NOTE}


def test_other_runs_and_arms_of_one_run_alone_are_left_out() -> None:
    comparison = compared(run(), run(loads=LOADS - 1))
    assert comparison.blocking == []
    assert set(comparison.pairs["arm"]) == {f"load{i}" for i in range(LOADS - 1)}
    nothing = compared(run(), RunData({"arms": {}, "verdict": {"status": "supported"}}))
    assert lab.judge_compare_runs(nothing).status == "inconclusive"


def test_an_arm_whose_client_was_the_queue_is_no_pair() -> None:
    sides = [run(), run()]
    for side in sides:
        side.run["arms"]["load0"]["planned"]["max_connections"] = 1
    assert "load0" not in set(compared(*sides).pairs["arm"])


def test_runs_of_one_side_must_be_alike() -> None:
    odd = run()
    _batch(odd)
    comparison = lab.compared([run(), odd], [run(), run()], changed="auto", tolerance_percent=10.0)
    assert comparison.blocking[0].what == "batch_size (asked), run 1 and 2 before"


# --- what the pairs say -------------------------------------------------------------------------------


def test_a_slower_side_means_go_back_and_a_faster_one_keep() -> None:
    slower = lab.judge_compare_runs(compared(run(), newer(run(slower=1.5))))
    assert slower.status == "refuted"
    assert {check(slower, name).status for name in ("ttft", "itl", "rate")} == {"refuted"}
    assert "+50.0 %" in check(slower, "itl").observed
    assert "-33.3 %" in check(slower, "rate").observed
    comparison = compared(run(slower=1.5), run())
    faster = lab.judge_compare_runs(comparison)
    assert faster.status == "supported"
    assert comparison.changes["ttft"].percent == pytest.approx(-100 / 3)


def test_a_wait_is_kept_apart_and_named() -> None:
    comparison = compared(run(), newer(run(wait_s=1.0)))
    verdict = lab.judge_compare_runs(comparison)
    assert check(verdict, "wait").status == "refuted"
    assert check(verdict, "itl").status == "supported"
    assert "B in load" in check(verdict, "ttft").observed
    assert "longest wait at the server" in lab.compare_readings.requests_reading(comparison)


def test_noise_that_holds_the_limit_can_not_tell() -> None:
    noisy = run()
    for row in noisy.requests:
        stretch(row, 2.0 if row["arm"] in ("load0", "load2", "load4") else 0.5, 0.0)
    verdict = lab.judge_compare_runs(compared(run(), noisy))
    assert verdict.status == "inconclusive"
    assert "the interval holds the limit" in check(verdict, "ttft").why
    assert "by turns" in check(verdict, "ttft").hint


def test_few_loads_give_a_figure_without_an_interval() -> None:
    comparison = compared(run(loads=2), run(slower=3.0, loads=2))
    assert comparison.changes["ttft"].low is None
    assert "no interval" in comparison.changes["ttft"].text
    assert lab.judge_compare_runs(comparison).status == "inconclusive"


def test_sets_of_runs_give_the_interval_that_one_run_can_not() -> None:
    before, after = [run(loads=2) for _ in range(3)], [newer(run(slower=3.0, loads=2)) for _ in range(3)]
    comparison = lab.compared(before, after, changed="auto", tolerance_percent=10.0)
    assert comparison.changes["ttft"].loads == 6
    assert lab.judge_compare_runs(comparison).status == "refuted"


def test_a_request_that_is_no_longer_answered_means_go_back() -> None:
    after = run()
    row = next(row for row in after.requests if row["label"] == "B" and row["arm"] == "load1")
    row |= {"outcome": "server_error"}
    verdict = lab.judge_compare_runs(compared(run(), newer(after)))
    assert check(verdict, "answered").status == "refuted"
    assert "B in load1: server_error" in check(verdict, "answered").why
    assert lab.judge_compare_runs(compared(after, run())).status == "supported"


def test_pairs_that_say_nothing_are_left_out_with_the_reason() -> None:
    after = run()
    for row in after.requests:
        if row["arm"] == "load0":
            row["timings"]["cache_n"] = 20
        if row["arm"] == "load1":
            row["outcome"] = "stalled"
    pairs = compared(run(), after).pairs
    reasons = dict(zip(pairs["arm"], pairs["left_out"], strict=True))
    assert reasons["load0"] == "some of its prompt came from a cache after only"
    assert reasons["load1"] == "ended as completed before, stalled after"
    assert reasons["load2"] == ""


def test_a_figure_that_no_request_has_is_not_tested() -> None:
    sides = [run(), run()]
    for row in [row for side in sides for row in side.requests]:
        row["timings"] = None
    verdict = lab.judge_compare_runs(compared(*sides))
    assert check(verdict, "wait").status == "not_tested"
    assert check(verdict, "ttft").status == "supported"


def test_a_wait_of_nothing_has_a_change() -> None:
    pairs = compared(run(), run(wait_s=0.5)).pairs
    wait = next(metric for metric in METRICS if metric.name == "wait")
    found = request_changes(pairs[pairs["label"] == "B"], wait)
    assert found.notna().all()
    assert (found > 0).all()


# --- what must not pass for a decision ----------------------------------------------------------------


def decided(one: RunData, other: RunData) -> lab.Verdict:
    return lab.judge_compare_runs(compared(one, other))


def _from_a_cache(row: dict[str, Any]) -> None:
    row["timings"]["cache_n"] = 20


def _no_times(row: dict[str, Any]) -> None:
    row |= {"first_token_s": None, "last_token_s": None}


@pytest.mark.parametrize(
    ("spoil", "why"), [(_from_a_cache, "12 of 12 pairs are left out"), (_no_times, "on one side only")]
)
def test_nothing_measured_is_no_reason_to_keep(spoil: Callable[[dict[str, Any]], None], why: str) -> None:
    after = newer(run())
    for row in after.requests:
        spoil(row)
    verdict = decided(run(), after)
    assert verdict.status == "inconclusive"
    assert why in check(verdict, "ttft").why


def test_all_failing_on_both_sides_is_no_reason_to_keep() -> None:
    sides = [run(), newer(run())]
    for row in [row for side in sides for row in side.requests]:
        row |= {"outcome": "server_error", "timings": None, "first_token_s": None, "last_token_s": None}
    assert decided(*sides).status == "inconclusive"


def test_answers_that_came_to_nothing_are_not_left_out_of_the_figures_unsaid() -> None:
    after = newer(run())
    for row in after.requests:
        if row["label"] == "B":
            row |= {"tokens": 0, "first_token_s": None, "last_token_s": None}
    found = check(decided(run(), after), "ttft")
    assert (found.status, found.why) == ("inconclusive", "6 requests have it on one side only")


def test_an_answer_that_its_slot_cuts_short_now_is_worse_than_before() -> None:
    after = with_settings(with_settings(run(), "asked", kv_unified=False), "effective", kv_unified=False)
    for row in after.requests:
        if row["label"] == "B":
            row |= {"outcome": "slot_limit", "truncated": True}
    found = check(decided(run(), after), "answered")
    assert found.status == "refuted"
    assert "B in load0: slot_limit" in found.why


def test_an_arm_that_was_not_run_after_is_not_answered_after() -> None:
    after = newer(run(loads=LOADS - 1))
    after.run["arms"]["load5"] = {"skipped": "it does not fit"}
    found = check(decided(run(), after), "answered")
    assert found.status == "inconclusive"
    assert "not run after: load5" in found.why
    assert check(decided(after, run()), "answered").status == "supported"


def test_runs_without_a_partner_are_not_dropped() -> None:
    failing = newer(run())
    for row in failing.requests:
        row["outcome"] = "server_error"
    comparison = lab.compared([run()], [newer(run()), failing], changed="auto", tolerance_percent=10.0)
    assert [item.what for item in comparison.blocking] == ["number of runs"]


def test_a_run_counts_once() -> None:
    one, other = run(loads=1), newer(run(loads=1))
    comparison = lab.compared([one] * LOADS, [other] * LOADS, changed="auto", tolerance_percent=10.0)
    assert "the same run twice" in [item.what for item in comparison.blocking]
    same = run()
    assert decided(same, copy.deepcopy(same)).status == "inconclusive"


def test_nobody_is_sent_back_from_a_configuration_to_itself() -> None:
    found = check(decided(run(), run(slower=1.5)), "itl")
    assert found.status == "inconclusive"
    assert "nothing was changed: so much comes from the machine" in found.why
    after = run()
    after.requests[0]["outcome"] = "server_error"
    assert decided(run(), after).status == "inconclusive"


def test_a_mean_does_not_hide_a_request_that_is_worse_in_every_load() -> None:
    after = newer(run())
    for row in after.requests:
        stretch(row, 1.6 if row["label"] == "B" else 0.55, 0.0)
    found = check(decided(run(), after), "itl")
    assert found.status == "inconclusive"
    assert "but B is, by at least 60.0 %" in found.why


def test_tokens_that_come_in_fewer_pieces_are_not_slower() -> None:
    after = newer(run())
    for row in after.requests:
        row["tokens"] = row["tokens"] * 2 // 3
    assert decided(run(), after).status == "supported"
    assert decided(after, run()).status == "supported"
    for row in after.requests:
        row["timings"]["predicted_n"] = None  # then pieces are compared with pieces
    assert check(decided(run(), after), "rate").status == "refuted"


def attached_to(url: str) -> RunData:
    data = run()
    for facts in data.run["arms"].values():
        facts["server"] |= {"attached": True, "base_url": url}
    return data


def test_servers_on_two_hosts_may_be_on_two_machines() -> None:
    two = compared(attached_to("http://a:8080"), attached_to("http://b:8080"))
    assert [item.before for item in two.blocking] == ["a"]
    assert compared(attached_to("http://a:8080"), attached_to("http://a:8081")).blocking == []


def test_one_build_at_two_places_may_be_two() -> None:
    sides = [run(), run()]
    for side, folder in zip(sides, "ab", strict=True):
        for facts in side.run["arms"].values():
            facts["server"]["build"] |= {
                "reported": "b10156-8161641",
                "package": f"llama-server /{folder}/llama-server",
            }
    assert named_change(*sides) == ["build"]
    assert named_change(sides[0], sides[0]) == []


def _cut(data: RunData) -> None:
    del data.run["arms"]["load0"]["load_end_s"]


def _rows_lost(data: RunData) -> None:
    data.requests[:] = [row for row in data.requests if (row["arm"], row["label"]) != ("load0", "B")]
    data.slots.clear()


def _busy_before(data: RunData) -> None:
    data.run["arms"]["load0"]["quiet_after_s"] = None


@pytest.mark.parametrize(("spoil", "why"), [(_cut, "its end"), (_rows_lost, "its end"), (_busy_before, "not idle")])
def test_a_load_that_can_not_be_judged_can_not_be_compared(spoil: Callable[[RunData], None], why: str) -> None:
    after = newer(run())
    spoil(after)
    assert why in compared(run(), after).blocking[0].after


@pytest.mark.parametrize("first_s", [-5.0, 0.0])
def test_times_that_can_not_be_are_no_figures_and_no_traceback(first_s: float) -> None:
    after = newer(run())
    after.requests[0]["first_token_s"] = after.requests[0]["sent_s"] + first_s
    for one, other in ((run(), after), (after, run())):
        assert check(decided(one, other), "ttft").status == "inconclusive"


# --- counters, words, pictures, folders ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "left_out"),
    [(10229, 10229, 0), (9093, 10156, 0), (10229, 11549, 6), (10229, 10500, 6), (None, 10229, 6), (None, None, 6)],
)
def test_counters_that_changed_their_meaning_are_left_out(one: int | None, other: int | None, left_out: int) -> None:
    assert len(changed_meanings(one, other)) == left_out


def test_counters_are_growth_and_only_those_that_mean_the_same() -> None:
    sides = [run(), run()]
    for side in sides:
        for scrape, value in enumerate((10.0, 42.0)):
            side.metrics.append(
                {"arm": "load0", "sent_s": scrape, "received_s": scrape, "values": {"n_decode_total": value}}
            )
    table = lab.counters_compared(*sides)
    assert table[["counter", "before", "after"]].to_numpy().tolist() == [["n_decode_total", 32.0, 32.0]]
    newer = with_settings(sides[1], "build", number=11549)
    assert lab.counters_compared(sides[0], newer).empty
    assert "n_decode_total (every attempt" in lab.compare_readings.counters_reading(compared(sides[0], newer))


def test_readings_and_pictures_carry_the_numbers() -> None:
    comparison = compared(run(), run(slower=1.5))
    said = lab.compare_readings
    assert "inter-token latency +50.0 %" in said.change_reading(comparison)
    assert "50.0 % worse, say the averages" in said.averages_reading(comparison)
    assert "Measured: +50.0 %" in said.predicted_change_reading(comparison, -20)
    intervals = str(lab.change_intervals(comparison, title="T", subtitle=["f"]).to_dict())
    assert "inter-token latency" in intervals
    assert "50.0 % worse" in intervals
    bars = str(lab.ttft_before_after(comparison, title="T", subtitle=["f"]).to_dict())
    assert "B · load0" in bars
    assert "→" in bars


def test_two_runs_without_a_common_request_still_draw() -> None:
    nothing = compared(run(), RunData({"arms": {}, "verdict": {"status": "supported"}}))
    for draw in (lab.change_intervals, lab.ttft_before_after):
        assert "nothing to draw" in str(draw(nothing, title="T", subtitle=[]).to_dict())
    assert "no figure" in lab.compare_readings.change_reading(nothing)


def saved(data: RunData, folder: Path, status: str = "supported") -> Path:
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(data.run | {"schema_version": 1, "verdict": {"status": status}}))
    for stream in STREAMS:
        lines = "".join(json.dumps(row) + "\n" for row in getattr(data, stream))
        (folder / f"{stream}.jsonl").write_text(lines)
    return folder


def test_the_two_newest_finished_runs_of_the_notebook_that_ran_last_are_found(tmp_path: Path) -> None:
    names = ["20260101T000000Z-a", "20260102T000000Z-a", "20260103T000000Z-a"]
    folders = [saved(run(loads=1), tmp_path / "01_slot_escalation" / name) for name in names]
    saved(run(loads=1), tmp_path / "01_slot_escalation" / "20260104T000000Z-a", status="not_run")
    saved(run(loads=1), tmp_path / "03_late_arrival" / "20260105T000000Z-a")
    params = lab.CompareRuns(outputs=str(tmp_path))
    sides = lab.read_sides(params)
    assert (sides.before_folders, sides.after_folders) == ((folders[1],), (folders[2],))
    assert sides.named(params).before == str(folders[1])
    given = lab.read_sides(lab.CompareRuns(after=str(folders[0])))
    assert given.before_folders == (folders[2],)
    sets = lab.read_sides(lab.CompareRuns(before=str(folders[0].parent), after=str(folders[2])))
    assert len(sets.before) == 4


def test_missing_folders_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="no two finished run folders of one notebook"):
        lab.read_sides(lab.CompareRuns(outputs=str(tmp_path)))
    with pytest.raises(ParameterError, match="is not a run folder, and holds none"):
        lab.read_sides(lab.CompareRuns(before=str(tmp_path / "no"), after=str(tmp_path)))
    alone = saved(run(loads=1), tmp_path / "03_late_arrival" / "20260105T000000Z-a")
    with pytest.raises(ParameterError, match="no other finished run"):
        lab.read_sides(lab.CompareRuns(before=str(alone)))
    with pytest.raises(ParameterError, match="the same folder"):
        lab.CompareRuns(before=str(alone), after=str(alone))


def test_blocking_comes_first() -> None:
    after = run(loads=LOADS - 1)
    _batch(after)
    assert compared(run(), after).differences[0].meaning == BLOCKS
