import copy
from importlib import import_module
from pkgutil import walk_packages

import pandas as pd
import pytest

import labkit as lab
from labkit import analyze
from labkit.analyze import frames as schemas
from labkit.analyze import readings
from labkit.analyze.readings import max_overlap
from labkit.measure.record import RunData
from tests.synthetic import OLD, PREFILL_S, STEP_S, Scenario, recorded, request_row


def both(**more: object) -> lab.RunFrames:
    return lab.RunFrames(recorded(treatment=Scenario(**more), control=Scenario(joins=False, **more)))


def nothing() -> lab.RunFrames:
    return lab.RunFrames(RunData({"arms": {}, "provenance": {"cores": 2}}))


@pytest.mark.parametrize("frames", [both(), nothing()], ids=["a run", "an empty run"])
@pytest.mark.parametrize("name", ["requests", "tokens", "slots", "metrics", "memory", "phases", "stalls"])
def test_frames_have_their_written_columns_and_dtypes(frames: lab.RunFrames, name: str) -> None:
    schema = getattr(schemas, name.upper())
    frame = getattr(frames, name)
    assert {column: str(dtype) for column, dtype in frame.dtypes.items()} == {
        column: spec.dtype for column, spec in schema.items()
    }


def test_every_column_of_every_frame_has_a_meaning() -> None:
    modules = [import_module(found.name) for found in walk_packages(analyze.__path__, "labkit.analyze.")]
    columns = [
        (module.__name__, name, column.meaning)
        for module in modules
        for schema in vars(module).values()
        if isinstance(schema, dict)
        for name, column in schema.items()
        if isinstance(column, schemas.Column)
    ]
    assert len(columns) > 100
    assert not [place for place in columns if not place[2]]


def test_times_count_from_the_first_request_of_the_arm() -> None:
    requests = both().requests
    assert requests[requests["label"] == "A"]["sent_s"].tolist() == [0.0, 0.0]


def test_a_request_is_split_into_waiting_prefill_and_decode() -> None:
    frames = both()
    b = frames.requests[frames.requests["label"] == "B"].set_index("arm")
    assert b.loc["treatment", "prefill_s"] == pytest.approx(PREFILL_S)
    assert b.loc["treatment", "server_wait_s"] < STEP_S
    assert b.loc["control", "server_wait_s"] == pytest.approx(52 * STEP_S, abs=0.01)
    assert b.loc["control", "ttft_s"] == pytest.approx(b.loc["control", "server_wait_s"] + PREFILL_S)


def test_phases_cover_a_request_without_gap_or_overlap() -> None:
    phases = both().phases
    for _, of_request in phases.groupby(["arm", "label"]):
        starts, ends = of_request["start_s"].tolist(), of_request["end_s"].tolist()
        assert starts[1:] == pytest.approx(ends[:-1])
        assert all(end > start for start, end in zip(starts, ends, strict=True))


def test_a_request_without_a_slot_is_deferred_one_on_a_slot_waits() -> None:
    frames = both(late=2)
    phases = frames.phases.set_index(["arm", "label", "phase"]).sort_index()
    control = [phases.loc[("control", label)] for label in "BC"]
    assert sorted("deferred" in rows.index for rows in control) == [False, True]
    assert ("treatment", "B", "deferred") not in phases.index
    assert pd.isna(phases.loc[("treatment", "C", "deferred"), "slot"])


def test_a_stall_is_a_gap_that_anothers_prefill_makes() -> None:
    (stall,) = both().stalls.to_dict("records")
    assert (stall["arm"], stall["label"], stall["cause"]) == ("treatment", "A", "B")
    assert stall["gap_s"] == pytest.approx(PREFILL_S)
    assert stall["median_gap_s"] == pytest.approx(STEP_S)


def test_a_stream_that_comes_bunched_has_no_single_gaps() -> None:
    data = recorded(treatment=Scenario())
    for number, token in enumerate(data.tokens):
        token["at_s"] = 0.5 * (number // 20)
    frames = lab.RunFrames(data)
    assert frames.stalls.empty
    assert "came bunched" in lab.late_readings.gaps_reading(frames)


def test_a_stream_that_was_cut_short_is_not_held_against_the_prediction() -> None:
    data = recorded(treatment=Scenario())
    data.requests[0]["outcome"] = "disconnected"
    assert "cut short with continuous batching on" in lab.late_readings.prediction_reading(lab.RunFrames(data), 40)


def test_slots_are_named_by_the_request_on_them() -> None:
    slots = lab.RunFrames(recorded(treatment=Scenario(foreign=True, slots=3))).slots
    assert set(slots["label"].dropna()) == {"A", "B", "foreign"}
    slots = both().slots
    waiting = slots[(slots["arm"] == "control") & (slots["label"] == "B") & (slots["n_decoded"] == OLD[1])]
    assert len(waiting) > 5
    assert not waiting["fresh"].any()


def test_a_request_that_failed_has_no_rate_and_no_invented_zero() -> None:
    data = recorded(treatment=Scenario())
    row = next(r for r in data.requests if r["label"] == "B")
    row |= {"outcome": "server_error", "timings": None, "first_token_s": None, "last_token_s": None}
    b = lab.RunFrames(data).requests.set_index("label").loc["B"]
    assert b[["ttft_s", "prefill_s", "decode_s", "decode_tokens_per_s", "cache_n", "warm"]].isna().all()


def test_requests_that_used_a_cache_are_marked_warm() -> None:
    data = recorded(treatment=Scenario())
    data.requests[0]["timings"]["cache_n"] = 12
    assert lab.RunFrames(data).requests["warm"].tolist() == [True, False]


def test_warm_up_rows_are_left_out() -> None:
    data = recorded(treatment=Scenario())
    data.requests.append(data.requests[0] | {"label": "warm-up 1", "warm_up": True, "sent_s": -9.0})
    data.tokens.append(data.tokens[0] | {"label": "warm-up 1", "warm_up": True})
    frames = lab.RunFrames(data)
    assert set(frames.requests["label"]) == set(frames.tokens["label"]) == {"A", "B"}
    assert frames.requests["sent_s"].min() == 0.0


# --- sentences ----------------------------------------------------------------------------------------


def test_a_sequential_client_is_told_from_a_server_that_does_not_batch() -> None:
    data = recorded(treatment=Scenario())
    first = data.requests[0]
    data.requests[1] |= {"sent_s": first["end_s"] + 1, "end_s": first["end_s"] + 2}
    text = readings.concurrency_reading(lab.RunFrames(data), "treatment")
    assert "at most 1 in flight" in text
    assert "client sent one at a time" in text
    assert "one at a time" not in readings.concurrency_reading(both(), "treatment")


def test_the_peak_of_live_cells_stands_beside_the_pool() -> None:
    data = recorded(treatment=Scenario())
    assert "Busy slots held at most 100 of 4,096 KV cells." in readings.concurrency_reading(
        lab.RunFrames(data), "treatment"
    )
    for poll in data.slots:
        for slot in poll["slots"]:
            slot["n_cells"] = None
    assert "KV cells" not in readings.concurrency_reading(lab.RunFrames(data), "treatment")


def scraped(*deferred: float | None, threads_http: int | None = None) -> lab.RunFrames:
    data = recorded(treatment=Scenario())
    data.run["arms"]["treatment"]["server"]["asked"]["threads_http"] = threads_http
    row = {"arm": "treatment", "sent_s": 0.1, "received_s": 0.2, "status": 200, "error": None}
    data.metrics.extend(row | {"values": {"requests_deferred": value}} for value in deferred)
    data.metrics.append(row | {"status": 501, "error": "off", "values": None})
    return lab.RunFrames(data)


def test_metrics_are_one_row_each_and_no_value_stays_none() -> None:
    metrics = scraped(1.0, None, 4.0).metrics
    assert metrics["scrape"].tolist() == [0, 1, 2]
    assert metrics["value"].isna().tolist() == [False, True, False]


def test_memory_of_several_gpus_is_added_and_none_stays_none() -> None:
    data = recorded(treatment=Scenario())
    gpu = {"used_bytes": 100, "utilisation_percent": 5}
    row = {"arm": "treatment", "at_s": 1.0, "resident_bytes": 7}
    data.memory.extend([row | {"gpus": []}, row | {"gpus": [gpu, gpu | {"utilisation_percent": 9}]}])
    memory = lab.RunFrames(data).memory
    assert memory["gpu_used_bytes"].isna().tolist() == [True, False]
    assert memory.loc[1, ["gpu_used_bytes", "gpu_utilisation_percent"]].tolist() == [200, 9]


def test_waiting_without_a_slot_is_counted_or_said_to_be_unknown() -> None:
    assert "at most 4 waiting without a slot" in readings.concurrency_reading(scraped(1.0, 4.0), "treatment")
    for frames in (scraped(), scraped(None)):
        assert "waited without a slot is not known" in readings.concurrency_reading(frames, "treatment")


def test_few_http_threads_are_suspected_only_when_more_requests_were_open() -> None:
    assert "suspect the HTTP layer" in readings.concurrency_reading(scraped(0.0, threads_http=1), "treatment")
    for threads in (None, 2, 8):
        assert "HTTP" not in readings.concurrency_reading(scraped(0.0, threads_http=threads), "treatment")


def test_overlap_counts_spans_that_touch_as_one_after_the_other() -> None:
    assert max_overlap([(0, 1), (1, 2)]) == 1
    assert max_overlap([(0, 2), (1, 3), (1.5, 4)]) == 3
    assert max_overlap([]) == 0


def test_readings_speak_in_this_runs_numbers() -> None:
    frames = both()
    lanes = lab.late_readings.lanes_reading(frames)
    assert "A still got 50 tokens after it" in lanes
    assert "A had got its last token before" in lanes
    assert "Predicted: A gets 40 tokens" in (text := lab.late_readings.prediction_reading(frames, 40))
    assert "50 with continuous batching on, 0 with" in text
    assert "200 ms: 10 times A's median gap" in lab.late_readings.gaps_reading(frames)


def test_the_naive_reading_is_worded_from_what_was_measured() -> None:
    stale = lab.naive_criteria(recorded(control=Scenario(joins=False)))
    cleared = lab.naive_criteria(recorded(control=Scenario(joins=False, stale=False)))
    assert "(100%): this build still shows" in lab.late_readings.naive_reading(stale)
    assert "in none: this build clears" in lab.late_readings.naive_reading(cleared)
    assert "No control arm" in lab.late_readings.naive_reading(None)


def test_readings_of_a_run_that_saw_nothing_say_so() -> None:
    assert lab.late_readings.lanes_reading(nothing()) == "No request was sent."
    data = copy.deepcopy(recorded(treatment=Scenario()))
    data.requests[1] |= {"first_token_s": None, "outcome": "disconnected"}
    assert "B got no token (disconnected)" in lab.late_readings.lanes_reading(lab.RunFrames(data))


def test_the_synthetic_rows_have_the_columns_of_real_ones() -> None:
    # the guard of this file: a field that real records lack would test nothing
    from labkit.measure.stream import RequestRecord

    tasks, _ = Scenario().run()
    assert set(request_row("treatment", tasks[0])) == set(RequestRecord("a", "A", 1, 1).row())
