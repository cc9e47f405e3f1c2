"""Charts by their specification, and a few as pixels."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import vl_convert
from PIL import Image

import labkit as lab
from labkit.analyze.palette import FOREIGN_COLOUR, WIDTH
from labkit.measure.record import RunData
from labkit.present.show import png
from tests.synthetic import Scenario, recorded
from tests.synthetic_slots import Load, add_load, empty_run

CHARTS = [lab.slot_lanes, lab.tokens_over_time, lab.inter_token_gaps]


def both(**more: Any) -> lab.RunFrames:
    return lab.RunFrames(recorded(treatment=Scenario(**more), control=Scenario(joins=False, **more)))


def spec(draw: Callable[..., Any], frames: lab.RunFrames, *, validate: bool = False) -> dict[str, Any]:
    # Altair takes three times as long when it validates
    return draw(frames, title="Title", subtitle=["facts"]).to_dict(validate=validate)  # type: ignore[no-any-return]


def words(specification: dict[str, Any]) -> str:
    return json.dumps(specification, ensure_ascii=False)


def ink(image: bytes) -> float:
    """Return the share of pixels that are not white."""
    picture = Image.open(io.BytesIO(image)).convert("L")
    histogram = picture.histogram()
    return 1 - histogram[255] / sum(histogram)


def drawn(specification: dict[str, Any]) -> bool:
    """Whether the rows leave ink: more than the same chart without any."""
    bare = specification | {"datasets": {name: [] for name in specification["datasets"]}}
    full, empty = (ink(vl_convert.vegalite_to_png(one, scale=0.5)) for one in (specification, bare))
    return full > empty + 0.002


@pytest.mark.parametrize("draw", CHARTS)
def test_charts_are_valid_vega_lite_with_title_units_and_facts(draw: Callable[..., Any]) -> None:
    specification = spec(draw, both(), validate=True)
    assert specification["title"]["text"] == "Title"
    assert specification["title"]["subtitle"][0] == "facts"
    assert "time since A was sent (s)" in words(specification)


def test_lanes_show_every_request_on_its_slot_and_name_the_stall() -> None:
    text = words(spec(lab.slot_lanes, both()))
    assert "'slot 0'" in text
    assert "'slot 1'" in text
    assert "A stalls 200 ms" in text
    assert "B owns the slot, waits" in text
    assert "B sent, first token after" in text


def test_deferred_requests_wait_in_a_row_of_their_own() -> None:
    assert "C waits" in words(spec(lab.slot_lanes, both(late=2)))
    assert "for a slot" not in words(spec(lab.slot_lanes, both()))


def test_a_crowd_of_waiting_requests_stands_in_lower_rows() -> None:
    heights = {}
    for requests in (6, 32):
        data = empty_run()
        add_load(data, Load(1, requests))
        picture = spec(lambda *a, **k: lab.slot_lanes(*a, early=None, **k), lab.RunFrames(data))
        heights[requests] = picture["vconcat"][0]["height"]
        rows = [row for rows in picture["datasets"].values() for row in rows if "text" in row]
        waits = [row for row in rows if re.fullmatch(r"\w+ (waits )?[\d.]+ m?s( for a slot)?", row["text"])]
        assert len(waits) == requests - 1
        # in a low row a wait has no room for words
        ends = [row["x2"] for rows in picture["datasets"].values() for row in rows if "x2" in row]
        assert requests == 6 or all(min(abs(row["x"] - end) for end in ends) < 1e-6 for row in waits)
    assert heights[6] == 30 + 5 * 30 + 84
    assert heights[32] == 30 + 31 * 14 + 84


def test_a_picture_names_the_gpu_that_holds_the_kv_cache() -> None:
    data = recorded(treatment=Scenario())
    data.run["provenance"]["gpus"] = [{"name": "NVIDIA H200"}, {"name": "NVIDIA H200"}]
    assert "H200" not in lab.readings.run_facts(lab.RunFrames(data))
    data.run["arms"]["treatment"]["server"]["effective"]["kv_devices"] = ["CUDA0", "CUDA1"]
    assert lab.readings.run_facts(lab.RunFrames(data)).endswith("NVIDIA H200, 2 CPU cores")


def test_several_stalls_are_named_by_their_length_alone_and_one_in_full() -> None:
    said = words(spec(lab.inter_token_gaps, both(late=3)))
    assert said.count('"text": "200 ms"') == 3
    assert "200 ms while B is prefilled: 10 times the median" in words(spec(lab.inter_token_gaps, both()))


@pytest.mark.parametrize("apart_s", [0.0, 0.005, 0.012, 0.03, 0.06, 0.1, 0.3])
def test_words_of_arrivals_lie_on_no_mark_and_follow_their_last(apart_s: float) -> None:
    data = empty_run()
    add_load(data, Load(2, 6, arrivals=[apart_s * i for i in range(6)]))
    frames = lab.RunFrames(data)
    picture = lab.slot_lanes(frames, title="T", subtitle=[], early=None).to_dict(validate=False)
    rows = [row for rows in picture["datasets"].values() for row in rows]
    px = WIDTH / float(frames.phases["end_s"].max())
    marks = [row["x"] * px for row in rows if row.keys() == {"x", "y", "label"}]
    spans = [(row["x"] * px + 9, row["x"] * px + 9 + 6 * len(row["text"])) for row in rows if "ttft_s" in row]
    assert len(marks) == 6
    assert spans
    assert all(not start - 8 < mark < end for mark in marks for start, end in spans)
    assert all(any(abs(start - 9 - mark) < 0.1 for mark in marks) for start, _ in spans)


def test_somebody_elses_tasks_are_grey_bars_of_their_own() -> None:
    crowded = spec(lab.slot_lanes, lab.RunFrames(recorded(treatment=Scenario(foreign=True, slots=3))))
    grey = [
        layer["data"]["name"]
        for layer in crowded["vconcat"][0]["layer"]
        if layer["mark"].get("color") == FOREIGN_COLOUR and layer["mark"]["type"] == "rect"
    ]
    (bars,) = (crowded["datasets"][name] for name in grey)
    assert bars
    assert all(bar["x"] < bar["x2"] for bar in bars)
    end_s = max(bar["x2"] for bar in bars)
    assert all(row["x"] <= end_s for rows in crowded["datasets"].values() for row in rows if "fresh" in row)
    assert "another client" in words(crowded)
    assert "another client" not in words(spec(lab.slot_lanes, both()))


def test_a_request_has_one_colour_everywhere() -> None:
    scales = [spec(draw, both(late=2)) for draw in CHARTS]
    assert all("#D55E00" in words(specification) for specification in scales)


@pytest.mark.parametrize("draw", CHARTS)
@pytest.mark.parametrize("empty", [RunData({"arms": {"treatment": {}}, "provenance": {"cores": 2}})])
def test_a_run_that_saw_nothing_is_a_chart_that_says_so(draw: Callable[..., Any], empty: RunData) -> None:
    specification = spec(draw, lab.RunFrames(empty))
    assert "nothing to draw" in words(specification)
    assert drawn(specification)


@pytest.mark.parametrize("outcome", ["disconnected", "server_error", "stalled"])
@pytest.mark.parametrize("draw", CHARTS)
def test_a_request_that_failed_is_drawn_as_far_as_it_came(draw: Callable[..., Any], outcome: str) -> None:
    data = recorded(treatment=Scenario())
    data.requests[1] |= {"outcome": outcome, "timings": None, "first_token_s": None, "last_token_s": None}
    data.tokens[:] = [token for token in data.tokens if token["label"] == "A"]
    assert drawn(spec(draw, lab.RunFrames(data)))


@pytest.mark.parametrize("draw", CHARTS)
def test_charts_without_slots_are_drawn(draw: Callable[..., Any]) -> None:
    frames = lab.RunFrames(recorded(treatment=Scenario(slots_error="disabled")))
    assert drawn(spec(draw, frames))


def crowd(requests: int, tokens: int, polls: int, slots: int) -> lab.RunFrames:
    """Return a run of 64 requests, 12,800 tokens and 24,000 slot rows, as case D03 asks."""
    data = recorded(treatment=Scenario(slots=slots))
    a, server_polls = data.requests[0], [p for p in data.slots if p["sent_s"] > 0]
    data.requests[:] = [a | {"label": f"r{i:02d}", "seed": 1000 + i, "id_slot": i % slots} for i in range(requests)]
    data.requests[0]["label"] = "A"
    data.tokens[:] = [
        {"arm": "treatment", "label": row["label"], "warm_up": False, "i": i, "at_s": 0.3 + i * 0.05 + n * 0.001}
        for n, row in enumerate(data.requests)
        for i in range(1, tokens + 1)
    ]
    data.slots[:] = [
        server_polls[i % len(server_polls)] | {"sent_s": i * 0.2, "received_s": i * 0.2 + 0.01} for i in range(polls)
    ]
    return lab.RunFrames(data)


@pytest.mark.parametrize("draw", CHARTS)
def test_large_runs_are_thinned_never_refused_or_cut(draw: Callable[..., Any]) -> None:
    frames = crowd(requests=64, tokens=200, polls=3000, slots=8)
    assert len(frames.tokens) == 12_800
    assert len(frames.slots) == 24_000
    specification = spec(draw, frames)
    assert sum(len(rows) for rows in specification["datasets"].values()) < 12_000
    ends = [row["x"] for rows in specification["datasets"].values() for row in rows if isinstance(row.get("x"), float)]
    assert max(ends) > 10  # the end of the run is in the picture
    assert "12,800 tokens" in words(specification)  # and the picture says so


def test_small_runs_say_nothing_of_thinning() -> None:
    assert "one mark a pixel" not in words(spec(lab.slot_lanes, both()))


def test_arms_are_named_by_what_they_ran_with() -> None:
    data = recorded(treatment=Scenario(joins=False))
    data.run["arms"]["treatment"]["server"]["asked"]["cont_batching"] = False
    assert "continuous batching off" in words(spec(lab.slot_lanes, lab.RunFrames(data)))
    assert "continuous batching on" not in words(spec(lab.slot_lanes, lab.RunFrames(data)))


@pytest.mark.parametrize("names", [("llamacpp:requests", "params.temperature", "slot[0]"), ("a'b", 'x"y', "ünï")])
@pytest.mark.parametrize("draw", CHARTS)
def test_odd_names_are_drawn_as_they_are(draw: Callable[..., Any], names: tuple[str, ...]) -> None:
    data = recorded(treatment=Scenario(late=3))
    odd = dict(zip("BCD", names, strict=True))
    for rows in (data.requests, data.tokens):
        for row in rows:
            row["label"] = odd.get(row["label"], row["label"])
    specification = spec(draw, lab.RunFrames(data))
    for label in odd.values():
        assert json.dumps(label, ensure_ascii=False)[1:-1] in words(specification)
    assert drawn(specification)


def test_pictures_are_small_and_twice_their_size() -> None:
    image = png(spec(lab.slot_lanes, both(late=2)))
    width, _ = Image.open(io.BytesIO(image)).size
    assert 1800 < width < 2200
    assert len(image) < 150_000


def test_text_needs_no_font_of_the_machine() -> None:
    # the renderer brings its fonts; a font set by us might not be there
    assert '"font"' not in words(spec(lab.slot_lanes, both()))


def test_grey_prints_keep_prefill_and_decode_apart() -> None:
    picture = Image.open(io.BytesIO(png(spec(lab.slot_lanes, both())))).convert("L")
    shades = {value for value, count in enumerate(picture.histogram()) if count > 3000}
    assert min(shades) < 130  # solid prefill
    assert any(180 < shade < 230 for shade in shades)  # tinted decode
