"""The verdict of 04 on recorded runs: each claim can be supported and refuted, and says when it can't be decided."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.analyze.metrics_and_gpu.claims import judge_metrics_and_gpu
from labkit.analyze.verdict import Check
from labkit.errors import ParameterError
from labkit.measure.metrics_and_gpu import _answer_tokens, one_after_another
from labkit.measure.record import RunData
from labkit.settings import LoadPlan, MetricsAndGpu, RequestPlan
from tests.counted import Counted, counted, full

COUNTERS = ("processing", "deferred", "prompt_tokens_total", "tokens_predicted_total", "shared_steps")


def check(data: RunData, name: str) -> Check:
    (found,) = [check for check in judge_metrics_and_gpu(data).checks if check.name == name]
    return found


def status(data: RunData, name: str) -> str:
    return check(data, name).status


def test_a_plain_run_is_supported_and_without_a_gpu_that_check_is_left_out() -> None:
    verdict = judge_metrics_and_gpu(full())
    statuses = {check.name: check.status for check in verdict.checks}
    assert statuses.pop("gpu_memory") == "not_tested"
    assert set(statuses.values()) == {"supported"}
    assert verdict.status == "supported"


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"bias": {"requests_processing": 1}}, "processing"),
        ({"bias": {"prompt_tokens_total": 7}}, "prompt_tokens_total"),
        ({"bias": {"tokens_predicted_total": 3}}, "tokens_predicted_total"),
        ({"shares": False}, "shared_steps"),
        ({"grows_mib": 9.0}, "resident_memory"),
        ({"gpu_grows_mib": 9.0}, "gpu_memory"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_claim_can_be_refuted(changes: dict[str, Any], name: str) -> None:
    data = full(**changes)
    verdict = judge_metrics_and_gpu(data)
    assert status(data, name) == "refuted", check(data, name)
    assert verdict.status == "refuted"


def test_none_deferred_while_requests_wait_is_refuted() -> None:
    data = full()
    for row in data.metrics:
        row["values"]["requests_deferred"] = 0.0
    assert status(data, "deferred") == "refuted"


def test_more_text_than_the_server_counted_is_refuted() -> None:
    data = full()
    extra = [row | {"i": 99 + i} for i, row in enumerate(data.tokens[:3])]
    data.tokens.extend(extra)
    assert check(data, "tokens_predicted_total").why == "the client got more than was counted"


def test_deferred_with_nobody_waiting_is_refuted_too() -> None:
    data = full(tokens=60)
    for row in data.metrics:
        row["values"]["requests_deferred"] = 1.0 if row["sent_s"] > 1.0 else 0.0
    assert status(data, "deferred") == "refuted"


def test_a_stray_scrape_is_no_proof_against_the_queue() -> None:
    data = full()
    rows = [row for row in data.metrics if row["arm"] == "at_once" and row["values"]["requests_deferred"] == 4]
    rows[len(rows) // 2]["values"]["requests_deferred"] = 0.0
    found = check(data, "deferred")
    assert found.status == "inconclusive"
    assert "a delay on the way" in found.why


def test_scrapes_near_an_arrival_or_an_end_do_not_count() -> None:
    data = full()
    ends = {row["end_s"] for row in data.requests} | {row["sent_s"] for row in data.requests}
    for row in data.metrics:
        if any(abs(row["sent_s"] - end) < 0.03 for end in ends):
            row["values"]["requests_deferred"] = 0.0
    assert status(data, "deferred") == "supported"


def test_few_http_threads_make_the_queue_undecided() -> None:
    data = full()
    data.run["arms"]["at_once"]["server"]["asked"]["threads_http"] = 2
    for row in data.metrics:
        row["values"]["requests_deferred"] = 0.0
    found = check(data, "deferred")
    assert found.status == "inconclusive"
    assert "threads_http" in found.hint


def test_no_more_requests_than_slots_leaves_the_queue_undecided_alone() -> None:
    data = full(n=2)
    found = check(data, "deferred")
    assert (found.status, found.hint) == ("inconclusive", "n_requests = 5")
    assert status(data, "processing") == "supported"
    assert status(data, "shared_steps") == "supported"


def test_one_slot_can_share_nothing_and_says_so() -> None:
    found = check(full(slots=1), "shared_steps")
    assert (found.status, found.hint) == ("inconclusive", "parallel = 2")


def test_busy_slots_without_shared_steps_are_no_batching() -> None:
    found = check(full(shares=False), "shared_steps")
    assert found.status == "refuted"
    assert found.numbers["busy_slots_per_call"] > 1.7  # the average that is taken for batching


def test_calls_fewer_than_tokens_with_one_at_a_time_take_the_claim_with_them() -> None:
    alone = Counted(at_once=False)
    alone.calls = alone.calls[::2]  # a draft model: two tokens a call
    data = counted(Counted(), alone)
    assert status(data, "one_after_another") == "refuted"
    found = check(data, "shared_steps")
    assert found.status == "inconclusive"
    assert "speculative" in found.why


def test_far_more_calls_than_tokens_refute_the_contrast() -> None:
    alone = Counted(at_once=False)
    alone.calls += [(1.5, 1)] * 200
    assert status(counted(Counted(), alone), "one_after_another") == "refuted"


def test_a_contrast_that_overlapped_is_none() -> None:
    found = check(counted(Counted(), Counted()), "one_after_another")
    assert found.status == "inconclusive"
    assert "6 requests in flight" in found.observed


def test_without_the_contrast_the_claim_stands_alone() -> None:
    data = counted(Counted(), None)
    assert status(data, "one_after_another") == "not_tested"
    assert judge_metrics_and_gpu(data).status == "supported"


def test_a_contrast_that_was_asked_for_and_did_not_run_is_missing() -> None:
    assert status(counted(Counted(), None, one_by_one=True), "one_after_another") == "inconclusive"


def test_counters_above_a_million_are_compared_as_far_as_they_are_printed() -> None:
    data = full(start=4_321_000)
    for row in data.metrics:
        row["values"] = {name: v if v is None else float(f"{v:.6g}") for name, v in row["values"].items()}
    assert status(data, "prompt_tokens_total") == "supported"
    assert "±" in check(data, "prompt_tokens_total").observed


@pytest.mark.parametrize("number", [10300, None])
def test_a_build_whose_rules_are_not_known_is_not_judged_on_them(number: int | None) -> None:
    data = full(build=number)
    assert status(data, "prompt_tokens_total") == "not_tested"
    assert status(data, "tokens_predicted_total") == "not_tested"
    assert status(data, "shared_steps") == "supported"


@pytest.mark.parametrize(("build", "rule"), [(9093, "ends normally"), (11549, "however it ends")])
def test_the_rule_of_the_build_is_named(build: int, rule: str) -> None:
    data = full(build=build)
    found = check(data, "tokens_predicted_total")
    assert found.status == "supported"
    assert rule in found.expected


def test_a_name_that_is_missing_is_said_to_be_and_nan_is_no_value() -> None:
    found = check(full(absent=("requests_deferred",)), "deferred")
    assert found.status == "not_tested"
    assert "not exposed by this build" in found.why
    found = check(full(no_value=("requests_processing",)), "processing")
    assert found.status == "inconclusive"
    assert "no value yet" in found.why


# --- runs that can't be judged --------------------------------------------------------------------------


def off(data: RunData) -> None:
    data.run["arms"]["at_once"]["server"]["effective"]["metrics_endpoint"] = False
    data.metrics.clear()


def restarted(data: RunData) -> None:
    for row in data.metrics:
        if row["sent_s"] > 1.6:
            row["values"]["n_decode_total"] = 1.0


def busy_before(data: RunData) -> None:
    for row in data.metrics:
        if row["sent_s"] < 1.0:
            row["values"]["requests_processing"] = 1.0


def failed(data: RunData) -> None:
    data.requests[2] |= {"outcome": "server_error", "error": "<b>boom</b>"}


def killed(data: RunData) -> None:
    data.run["arms"]["at_once"] |= {"server_alive": False, "server_exit": "was killed"}


def strangers(data: RunData) -> None:
    row = next(row for row in data.slots if row["sent_s"] > 1.2)
    row["slots"][0] |= {"seed": 4711, "busy": True}


def no_scrape_after(data: RunData) -> None:
    data.metrics[:] = [row for row in data.metrics if row["sent_s"] < 1.8]


def unreadable(data: RunData) -> None:
    for row in data.metrics:
        row |= {"values": None, "status": 401, "error": "/metrics: 401"}


def cut_short(data: RunData) -> None:
    del data.run["arms"]["at_once"]["load_end_s"]


def never_ran(data: RunData) -> None:
    data.run["arms"].clear()
    for rows in (data.requests, data.tokens, data.slots, data.metrics, data.memory):
        rows.clear()


@pytest.mark.parametrize(
    ("harm", "word"),
    [
        (off, "without --metrics"), (restarted, "went down"), (busy_before, "somebody else's"), (failed, "boom"),
        (killed, "was killed"), (strangers, "not ours"), (no_scrape_after, "no scrape"), (unreadable, "401"),
        (cut_short, "did not run to its end"), (never_ran, "did not run to its end"),
    ],
)  # fmt: skip
def test_a_run_that_can_not_be_judged_is_inconclusive_and_says_why(harm: Any, word: str) -> None:
    data = full()
    harm(data)
    verdict = judge_metrics_and_gpu(data)
    assert verdict.status == "inconclusive", verdict
    for name in COUNTERS:
        found = check(data, name)
        assert found.status == "inconclusive"
        assert word in found.why
        assert found.hint


def test_an_answer_without_timings_leaves_the_counters_undecided() -> None:
    data = full()
    data.requests[0]["timings"] = None
    assert status(data, "prompt_tokens_total") == "inconclusive"
    assert status(data, "shared_steps") == "supported"


# --- a server that isn't ours -------------------------------------------------------------------------


@pytest.mark.parametrize(("build", "word"), [(11549, "resets two gauges"), (None, "the build isn't known")])
def test_an_attached_server_is_not_scraped_where_that_would_take_something_away(build: int | None, word: str) -> None:
    data = full(attached=True, build=build)
    data.metrics.clear()
    data.memory.clear()
    for name in (*COUNTERS, "resident_memory", "gpu_memory", "one_after_another", "metrics_off"):
        assert status(data, name) == "not_tested"
    assert word in check(data, "processing").why
    assert judge_metrics_and_gpu(data).status == "inconclusive"  # nothing was decided


def test_an_attached_server_whose_metrics_are_off_is_not_a_pass() -> None:
    data = full(attached=True)
    off(data)
    assert status(data, "processing") == "inconclusive"
    assert "--metrics" in check(data, "processing").hint


def test_an_attached_server_that_may_be_scraped_is_judged_within_limits() -> None:
    data = full(attached=True)
    assert {status(data, name) for name in COUNTERS} == {"supported"}
    assert "isn't ours" in check(data, "one_after_another").why
    data = full(attached=True, bias={"tokens_predicted_total": 11})  # another client, between two polls
    assert status(data, "tokens_predicted_total") == "inconclusive"


# --- memory and /metrics off ----------------------------------------------------------------------------


def test_flat_memory_says_something_of_the_kv_cache_only_if_its_cells_would_show() -> None:
    assert "KV is reserved at start" in check(full(), "resident_memory").why
    data = full()
    data.run["arms"]["at_once"]["server"]["effective"]["kv_bytes"] = 2**20
    assert "too little to tell" in check(data, "resident_memory").why
    data.run["arms"]["at_once"]["server"]["effective"]["kv_bytes"] = None
    assert "says nothing about them" in check(data, "resident_memory").why


def test_the_tolerance_is_the_runs_own() -> None:
    assert status(counted(Counted(grows_mib=5), None, memory_tolerance_mib=4.0), "resident_memory") == "refuted"
    assert status(counted(Counted(grows_mib=5), None, memory_tolerance_mib=6.0), "resident_memory") == "supported"


def test_memory_that_could_not_be_read_is_not_flat() -> None:
    data = full()
    for row in data.memory:
        row["resident_bytes"] = None
    assert status(data, "resident_memory") == "inconclusive"


@pytest.mark.parametrize(
    ("changes", "devices", "expected"),
    [
        ({"gpu_grows_mib": 1.0}, ["CUDA0"], "supported"),
        ({"gpu_grows_mib": 90.0}, ["CUDA0"], "refuted"),
        ({"gpu_grows_mib": 90.0, "gpu_processes": 3}, ["CUDA0"], "inconclusive"),
        ({"gpu_grows_mib": 90.0, "gpu_processes": None}, ["CUDA0"], "inconclusive"),
        ({"gpu_grows_mib": 1.0}, ["CPU"], "not_tested"),
    ],
)
def test_gpu_memory_is_judged_where_the_server_uses_the_gpu(
    changes: dict[str, Any], devices: list[str], expected: str
) -> None:
    data = full(**changes)
    data.run["arms"]["at_once"]["server"]["effective"]["kv_devices"] = devices
    assert status(data, "gpu_memory") == expected


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"status": 200, "said": "# HELP"}, "refuted"),
        ({"status": 501, "said": "nope"}, "refuted"),
        ({"status": None, "said": "nothing answers there"}, "inconclusive"),
        (None, "inconclusive"),
    ],
)
def test_metrics_off_has_to_say_so(answer: dict[str, Any] | None, expected: str) -> None:
    data = full()
    data.run["arms"]["metrics_off"]["answer"] = answer
    assert status(data, "metrics_off") == expected


# --- records that must not pass for proofs ------------------------------------------------------------


def test_more_deferred_than_wait_is_no_agreement() -> None:
    data = full()
    for row in data.metrics:
        row["values"]["requests_deferred"] += 3 if row["values"]["requests_deferred"] else 0
    assert status(data, "deferred") == "refuted"


def test_a_draft_model_takes_the_claim_of_shared_calls_with_it_where_no_contrast_ran() -> None:
    data = full(attached=True)
    for row in data.requests:
        row["timings"] |= {"draft_n": 30, "draft_n_accepted": 20}
    found = check(data, "shared_steps")
    assert (found.status, found.why) == ("inconclusive", "a draft model gives a request several tokens a call")


def test_requests_that_did_not_run_at_once_shared_nothing() -> None:
    load = Counted(at_once=False)
    load.calls = load.calls[::2]
    found = check(counted(load, None), "shared_steps")
    assert (found.status, found.why) == ("inconclusive", "no two requests ran at once")


def test_a_record_whose_tokens_were_cut_off_refutes_nothing() -> None:
    data = full()
    data.tokens[:] = [row for row in data.tokens if row["arm"] != "at_once" or row["i"] <= 17]
    found = check(data, "shared_steps")
    assert (found.status, found.why) == ("inconclusive", "the load at_once did not run to its end")


def test_tokens_without_text_are_not_taken_for_calls_that_nobody_shared() -> None:
    data = full()
    data.tokens[:] = [row for row in data.tokens if row["arm"] != "at_once" or row["i"] % 2]
    for row in data.requests:
        row["tokens"] = -(-row["tokens"] // 2)
    found = check(data, "shared_steps")
    assert found.status == "inconclusive"
    assert "tokens came without text" in found.why


def test_an_end_that_is_not_known_is_no_open_request() -> None:
    data = full()
    data.requests[0]["end_s"] = None
    assert status(data, "deferred") == "inconclusive"
    data = full()
    next(row for row in data.requests if row["arm"] == "one_by_one")["end_s"] = None
    assert status(data, "one_after_another") == "inconclusive"


def loaded(data: RunData) -> list[dict[str, Any]]:
    return [row for row in data.memory if row["arm"] == "at_once" and row["at_s"] > 1.01]


def test_memory_that_was_sampled_after_the_load_only_was_not_seen_in_it() -> None:
    data = full()
    end_s = max(row["end_s"] for row in data.requests if row["arm"] == "at_once")
    for i, row in enumerate(loaded(data)):
        row["at_s"] = end_s + 0.1 * (i + 1)
    found = check(data, "resident_memory")
    assert (found.status, found.observed) == ("inconclusive", "0 samples")


def test_memory_that_was_not_sampled_to_the_end_of_the_load_may_have_grown_later() -> None:
    data = full(grows_mib=9.0, gpu_grows_mib=9.0)
    data.memory[:] = [row for row in data.memory if row["arm"] != "at_once" or row["at_s"] < 2.0]
    for name in ("resident_memory", "gpu_memory"):
        found = check(data, name)
        assert (found.status, found.why[:15]) == ("inconclusive", "the last sample")


def test_memory_that_fell_is_not_flat() -> None:
    data = full()
    for row in loaded(data):
        row["resident_bytes"] -= 500 * 2**20
    assert "may hide what was taken" in check(data, "resident_memory").why
    data = full(gpu_grows_mib=1.0, gpu_processes=3)
    for row in loaded(data):
        row["gpus"] = [gpu | {"used_bytes": gpu["used_bytes"] - 3000 * 2**20} for gpu in row["gpus"]]
    assert status(data, "gpu_memory") == "inconclusive"


def test_a_gpu_that_can_not_be_read_any_more_does_not_free_memory() -> None:
    data = full(gpu_grows_mib=1.0)
    for row in data.memory:
        row["gpus"] = row["gpus"] * 2
    assert status(data, "gpu_memory") == "supported"
    for row in loaded(data):
        row["gpus"] = row["gpus"][:1]
    assert status(data, "gpu_memory") == "inconclusive"


def test_memory_without_the_kv_cache_says_nothing_of_it() -> None:
    data = full(gpu_grows_mib=1.0)
    assert "isn't known" in check(data, "gpu_memory").why
    data.run["arms"]["at_once"]["server"]["effective"]["kv_devices"] = ["CUDA0"]
    found = check(data, "resident_memory")
    assert (found.status, found.why) == ("not_tested", "the KV cache is on CUDA0, not in main memory")
    assert "KV is reserved at start" in check(data, "gpu_memory").why


# --- parameters and plan --------------------------------------------------------------------------------


def test_answers_get_shorter_down_to_half_so_that_slots_fall_free_one_by_one() -> None:
    params = MetricsAndGpu(n_requests=6, answer_tokens=128)
    tokens = [_answer_tokens(i, params) for i in range(6)]
    assert tokens == [128, 115, 102, 90, 77, 64]
    assert sum(tokens) == 576  # the notebook's text names it


def test_one_after_another_is_the_same_load_over_one_connection() -> None:
    requests = tuple(RequestPlan(label=label, prompt="x", max_tokens=4, seed=i) for i, label in enumerate("AB"))
    plan = LoadPlan(requests=requests)
    assert one_after_another(plan).requests == plan.requests
    assert one_after_another(plan).max_connections == 1


@pytest.mark.parametrize(
    "values", [{"n_requests": 1}, {"metrics_hz": 0}, {"memory_hz": True}, {"memory_tolerance_mib": -1}]
)
def test_values_that_can_not_be_used_are_refused_by_name(values: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=next(iter(values))):
        MetricsAndGpu(**values)


def test_the_samplers_get_their_rates() -> None:
    sampling = MetricsAndGpu(metrics_hz=7, memory_hz=3, poll_hz=9).sampling()
    assert (sampling.metrics_hz, sampling.memory_hz, sampling.poll_hz) == (7, 3, 9)
