"""Tables, sentences and pictures of 04 made from recorded runs."""

from __future__ import annotations

import json
from typing import Any

import altair as alt
import pytest

import labkit as lab
from labkit.analyze.metrics_and_gpu import readings as counter_readings
from labkit.analyze.metrics_and_gpu.charts import MOST_DOTS, PANEL_PX, _line_of, steps_of, thinned_steps
from labkit.analyze.palette import Datasets
from labkit.measure.record import RunData
from tests.counted import Counted, counted, full

CHARTS = (lab.processing_and_deferred, lab.tokens_per_call, lab.memory_over_time)


def frames(data: RunData | None = None) -> lab.RunFrames:
    return lab.RunFrames(data or full())


def cell(table: Any, key: str, column: str) -> str:
    return str(table.set_index(table.columns[0]).loc[key, column])


# --- tables ---------------------------------------------------------------------------------------------


def test_a_metric_the_build_lacks_says_so_and_one_without_a_value_too() -> None:
    data = full(absent=("requests_deferred",), no_value=("n_busy_slots_per_decode",))
    table = lab.counters_table(frames(data))
    assert cell(table, "requests_deferred", "before") == "not exposed by this build"
    assert cell(table, "kv_cache_usage_ratio", "after") == "not exposed by this build"
    assert cell(table, "n_busy_slots_per_decode", "after") == "no value yet"
    assert not table["before"].isin(["", "0.0", "nan"]).any()


def test_a_metric_that_is_there_again_is_taken_up() -> None:
    data = full()
    for row in data.metrics:
        row["values"] |= {"kv_cache_usage_ratio": 0.25, "something_new_total": 7.0}
    table = lab.counters_table(frames(data))
    assert cell(table, "kv_cache_usage_ratio", "after") == "0.25"
    assert cell(table, "something_new_total", "after") == "7"


def test_counters_stand_beside_what_the_streams_say() -> None:
    table = lab.counters_table(frames())
    assert cell(table, "prompt_tokens_total", "growth") == "1,800"
    assert cell(table, "prompt_tokens_total", "the streams say") == "1,800"
    assert cell(table, "tokens_predicted_total", "growth") == cell(table, "tokens_predicted_total", "the streams say")
    assert float(cell(table, "n_decode_total", "per second")) > 0
    assert cell(table, "predicted_tokens_seconds", "growth") == ""  # a difference of averages means nothing


def test_without_metrics_the_table_is_one_sentence() -> None:
    data = full()
    data.metrics.clear()
    data.run["arms"]["at_once"]["server"]["effective"]["metrics_endpoint"] = False
    table = lab.counters_table(frames(data))
    assert table["meaning"].tolist() == ["the server was started without --metrics"]


def test_busy_slots_and_tokens_a_call_tell_two_stories() -> None:
    shared = lab.shared_calls_table(frames())
    assert shared["load"].tolist() == ["all at once", "one after another"]
    assert shared["tokens a call"][0] > 1.7 > 1.1 > shared["tokens a call"][1]
    unshared = lab.shared_calls_table(frames(full(shares=False)))
    assert unshared["tokens a call"][0] == 1.0
    assert unshared["busy slots a call"][0] > 1.7


def test_the_record_is_filled_and_fits_a_page() -> None:
    table = lab.record_table(frames())
    said = dict(zip(table["what"], table["value"], strict=True))
    assert said["llama.cpp build"] == "b10229; it reports b0-unknown"
    assert said["model's sha256"] == "ab" * 32
    assert said["concurrency"] == "6 requests, at most 6 in flight at once"
    assert said["input tokens"] == "1,800 in all, 300 to 300 a request"
    assert said["HTTP status"] == "200 for 6"
    assert said["deferred"].startswith("at most 4 in ")
    assert "of 4,096 (unified)" in said["KV cells of busy slots, peak"]
    assert said["GPU memory"] == "no NVIDIA GPU"
    assert said["errors"] == "none"
    assert table["value"].str.len().max() < 130


def test_the_record_of_a_failed_attached_run_says_what_is_not_known() -> None:
    data = full(attached=True, build=None)
    data.metrics.clear()
    data.memory.clear()
    data.requests[0] |= {"status": 500, "outcome": "server_error", "error": "boom", "timings": None}
    data.run["arms"]["at_once"]["server"] |= {"model": {}, "effective": None, "llama_server_command": ""}
    table = lab.record_table(frames(data))
    said = dict(zip(table["what"], table["value"], strict=True))
    assert said["model's sha256"] == "not known"
    assert "not scraped" in said["processing"]
    assert said["errors"] == "A: server_error, boom"
    assert "1 not known" in said["input tokens"]
    assert "not our machine" in said["resident memory"]


# --- sentences ------------------------------------------------------------------------------------------


def test_the_gauge_that_stands_still_is_called_that() -> None:
    text = counter_readings.gauge_reading(frames())
    assert "stood still at 33" in text
    assert "2 streams brought" in text


def test_the_gauge_that_a_scrape_empties_is_called_that() -> None:
    data = full(build=11549)
    first_end = min(row["end_s"] for row in data.requests if row["arm"] == "at_once")
    rows = [row for row in data.metrics if row["arm"] == "at_once"]
    for row in rows:
        row["values"]["predicted_tokens_seconds"] = 0.0
    next(row for row in rows if row["sent_s"] > first_end)["values"]["predicted_tokens_seconds"] = 50.0
    text = counter_readings.gauge_reading(frames(data))
    assert "said 0 in" in text
    assert "the next scrape, ours, had set it back to 0" in text


@pytest.mark.parametrize(
    ("value", "word"), [(None, "had no value yet"), ("moving", "said 32 to 4"), ("absent", "not exposed")]
)
def test_the_gauge_is_read_as_it_is(value: Any, word: str) -> None:
    data = full()
    for i, row in enumerate(row for row in data.metrics if row["arm"] == "at_once"):
        row["values"]["predicted_tokens_seconds"] = 20.0 + i % 40 if value == "moving" else None
        if value == "absent":
            del row["values"]["predicted_tokens_seconds"]
    assert word in counter_readings.gauge_reading(frames(data))


def test_readings_carry_this_runs_numbers() -> None:
    view = frames()
    assert "at most 2 processing and 4 deferred" in counter_readings.queue_reading(view)
    assert "1.00 tokens a call" in counter_readings.calls_reading(view)
    assert "+0.5 MiB" in counter_readings.memory_reading(view)
    assert "kv_cache_usage_ratio" in counter_readings.names_reading(view)
    assert "answers 501" in counter_readings.off_reading(view)
    assert "Predicted: 9 calls" in counter_readings.calls_prediction_reading(view, 9)


def test_a_queue_that_is_partly_held_before_the_server_is_told() -> None:
    data = full()
    for row in data.metrics:
        row["values"]["requests_deferred"] = min(1.0, row["values"]["requests_deferred"])
    assert "suspect the HTTP layer" in counter_readings.queue_reading(frames(data))


def bare(data: RunData) -> RunData:
    """The run of an attached server that was not scraped."""
    data.metrics.clear()
    data.memory.clear()
    return data


READINGS = (
    counter_readings.queue_reading, counter_readings.calls_reading, counter_readings.memory_reading,
    counter_readings.names_reading, counter_readings.gauge_reading,
)  # fmt: skip


@pytest.mark.parametrize("reading", READINGS)
def test_without_scrapes_a_reading_says_why(reading: Any) -> None:
    text = reading(frames(bare(full(attached=True, build=11549))))
    assert "not scraped" in text or "isn't ours" in text


# --- pictures -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chart", CHARTS)
@pytest.mark.parametrize("kind", ["plain", "gpu", "alone", "attached", "failed", "nothing"])
def test_every_picture_can_be_drawn_of_any_run(chart: Any, kind: str) -> None:
    data = {
        "gpu": lambda: full(gpu_grows_mib=1.0),
        "alone": lambda: counted(Counted(), None),
        "attached": lambda: bare(full(attached=True, build=11549)),
    }.get(kind, full)()
    if kind == "failed":
        data.requests[0] |= {"first_token_s": None, "last_token_s": None, "timings": None, "outcome": "stalled"}
    if kind == "nothing":
        for rows in (data.requests, data.tokens, data.slots, data.metrics, data.memory):
            rows.clear()
    specification = chart(frames(data), title="T", subtitle=["S"]).to_dict(validate=False)
    assert specification["title"]["text"] == "T"
    assert any(specification["datasets"].values())
    assert "NaN" not in json.dumps(specification)
    if kind == "nothing":
        assert "othing to draw" in json.dumps(specification)


def test_the_queue_names_its_columns_on_one_height_and_ends_with_its_last_scrape() -> None:
    chart = lab.processing_and_deferred(frames(full()), title="T", subtitle=[]).to_dict(validate=False)
    uppers = [column["vconcat"][0] for column in chart["hconcat"]]
    assert [upper["title"]["text"] for upper in uppers] == ["all at once", "one after another"]
    last_s = max(row["x"] for rows in chart["datasets"].values() for row in rows)
    assert all(upper["encoding"]["x"]["scale"]["domain"][1] >= last_s for upper in uppers)


def test_the_queue_of_many_slots_is_no_taller_and_has_few_numbers() -> None:
    data = full()
    for row in data.metrics:
        if row.get("values", {}).get("requests_processing"):
            row["values"]["requests_processing"] = 40
    panel = lab.processing_and_deferred(frames(data), title="T", subtitle=[]).to_dict(validate=False)["hconcat"][0]
    upper = panel["vconcat"][0]
    assert upper["height"] == PANEL_PX
    assert upper["encoding"]["y"]["axis"]["values"] == list(range(0, 41, 5))


@pytest.mark.parametrize(("most_calls", "align"), [(100, "right"), (5000, "left")])
def test_the_name_of_a_steep_line_stands_behind_its_end(most_calls: float, align: str) -> None:
    rows = [{"x": float(i), "y": 10 * i} for i in range(101)]
    chart = _line_of(alt, Datasets(), rows, "blue", "all at once", above=True, most_calls=most_calls)[-1]
    assert chart.mark.align == align


def test_a_gpu_gets_rows_of_its_own() -> None:
    rows = [
        len(lab.memory_over_time(frames(data), title="T", subtitle=[]).to_dict(validate=False)["vconcat"])
        for data in (full(), full(gpu_grows_mib=1.0))
    ]
    assert rows == [1, 3]


def test_steps_count_what_is_open_and_leave_out_what_is_too_short() -> None:
    edges = [(0.0, 1), (1.0, 1), (2.0, -1), (3.0, -1)]
    assert [(corner["x"], corner["y"]) for corner in steps_of(edges)] == [(0.0, 1), (1.0, 2), (2.0, 1), (3.0, 0)]
    short = steps_of([(0.0, 1), (1.0, 1), (1.001, -1), (3.0, -1)], shortest_s=0.01)
    assert max(corner["y"] for corner in short) == 1


def test_long_runs_are_thinned_and_keep_their_changes() -> None:
    rows = [{"x": float(i), "y": float(i > 5000)} for i in range(10_000)]
    thin = thinned_steps(rows)
    assert len(thin) < 2 * MOST_DOTS
    assert thin[0] == rows[0]
    assert thin[-1] == rows[-1]
    assert {"x": 5001.0, "y": 1.0} in thin
