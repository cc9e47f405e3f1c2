"""The ledger and its picture: cells are those of the request that runs, nothing is drawn outside its box."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import labkit as lab
from labkit.analyze.kv_modes.areas import Area, areas, cell_use, stacked
from labkit.analyze.kv_modes.charts import colour_of
from labkit.analyze.ledger import BY_STREAMS, ledger
from tests.kv_recorded import LENGTHS, kv_run


@pytest.fixture(scope="module")
def frames() -> lab.RunFrames:
    return lab.RunFrames(kv_run())


def test_cells_belong_to_the_request_that_holds_them(frames: lab.RunFrames) -> None:
    rows = ledger(frames, "unified")
    most = rows.dropna(subset=["label"]).groupby("label")["cells"].max()
    for label, prompt in LENGTHS.items():
        assert prompt <= most[label] <= prompt + 24
    assert (rows["cells"] >= 0).all()


def test_a_waiting_task_does_not_get_the_cells_of_the_one_before() -> None:
    data = kv_run(lengths={"A": 600, "B": 150, "C": 700})
    first_end = min(r["end_s"] for r in data.requests if r["arm"] == "unified" and r["label"] in "AB")
    seed = next(r["seed"] for r in data.requests if r["arm"] == "unified" and r["label"] == "C")
    polls = [p for p in data.slots if p["arm"] == "unified" and p["received_s"] > first_end]
    slot = next(r["id_slot"] for r in data.requests if r["arm"] == "unified" and r["label"] == "C")
    stale = polls[0]["slots"][slot]
    stale |= {"busy": True, "seed": seed, "id_task": seed}  # the counters are still the old task's
    rows = ledger(lab.RunFrames(data), "unified")
    shown = rows[(rows["slot"] == slot) & (rows["at_s"] == polls[0]["received_s"])]
    assert shown["label"].isna().all()
    assert shown["cells"].tolist() == [stale["n_cells"]]


def test_a_build_that_does_not_count_cells_is_read_from_the_streams() -> None:
    counted, data = lab.RunFrames(kv_run()), kv_run(counts_cells=False)
    for request in data.requests:
        request["id_slot"] = None  # nor does it name the slot in its answers
    not_counted = lab.RunFrames(data)
    one, other = cell_use(counted, "split"), cell_use(not_counted, "split")
    assert one is not None
    assert other is not None
    assert other.source == BY_STREAMS
    # both look at the moments of the polls alone, and one of them draws a prefill as a line
    assert other.peak_cells == pytest.approx(one.peak_cells, rel=0.1)
    assert other.idle_share == pytest.approx(one.idle_share, abs=0.05)


def test_use_is_between_nothing_and_all(frames: lab.RunFrames) -> None:
    uses = {arm: cell_use(frames, arm) for arm in ("unified", "split", "split_roomy")}
    for use in uses.values():
        assert use is not None
        assert 0 < use.idle_share < 1
    assert uses["unified"].peak_cells == pytest.approx(2304 + 23 + 300, abs=30)  # type: ignore[union-attr]
    assert uses["split_roomy"].idle_share > uses["unified"].idle_share  # type: ignore[union-attr]


def test_an_area_is_a_line_between_its_knots() -> None:
    area = Area(0, "A", [(1.0, 0.0), (2.0, 100.0), (3.0, 100.0)])
    assert [area.at(t) for t in (0.5, 1.0, 1.5, 2.5, 3.0, 3.1)] == [0, 0, 50, 100, 100, 0]


@settings(max_examples=60)
@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0.1, 5), st.integers(1, 900)), min_size=1, max_size=6))
def test_stacked_areas_never_overlap_and_keep_their_height(spans: list[tuple[float, float, int]]) -> None:
    pile = [Area(i, f"R{i}", [(s, 0.0), (s + d / 2, c), (s + d, c)]) for i, (s, d, c) in enumerate(spans)]
    outlines = stacked(pile)
    for area, outline in zip(pile, outlines, strict=True):
        for point in outline:
            assert point["y2"] - point["y"] == pytest.approx(area.at(point["x"]))
            below = sum(other.at(point["x"]) for other in pile[: pile.index(area)])
            assert point["y"] == pytest.approx(below)


def test_areas_follow_one_another_on_a_slot(frames: lab.RunFrames) -> None:
    for arm in ("unified", "split", "split_roomy"):
        found = areas(frames, arm)
        for slot in {area.slot for area in found}:
            mine = [area for area in found if area.slot == slot]
            assert all(one.end_s <= other.start_s + 1e-5 for one, other in pairwise(mine))
        running = [area.label for area in found if area.label]
        assert len(running) == len(set(running))


# --- the pictures -------------------------------------------------------------------------------------


def rows_of(chart: Any) -> list[dict[str, Any]]:
    return [row for rows in chart.to_dict()["datasets"].values() for row in rows]


def texts(chart: Any) -> str:
    return " | ".join(str(row["text"]) for row in rows_of(chart) if "text" in row)


def test_the_ledger_names_boxes_refusals_and_the_peak(frames: lab.RunFrames) -> None:
    chart = lab.kv_ledger(frames, title="t", subtitle=["s"])
    said = texts(chart) + str(chart.to_dict()["hconcat"])
    for part in (
        "unified: one pool, 4,096 cells in all",
        "split: 2 boxes, 4,096 cells in all",
        "split: 2 boxes, 8,192 cells in all",
        "C refused: 2,304 tokens",
        "2,048 cells, slot 0",
        "3 of 4 served, 1 refused",
    ):
        assert part in said
    assert "peak 2,6" in said


def test_nothing_is_filled_outside_its_box(frames: lab.RunFrames) -> None:
    areas_drawn = [row for row in rows_of(lab.kv_ledger(frames, title="t", subtitle=["s"])) if "part" in row]
    assert areas_drawn
    assert max(row["y2"] for row in areas_drawn) <= 8192
    assert min(row["y"] for row in areas_drawn) >= 0


def test_columns_share_one_scale(frames: lab.RunFrames) -> None:
    spec = lab.kv_ledger(frames, title="t", subtitle=["s"]).to_dict()
    columns = spec["hconcat"]
    assert len({(c["height"], c["width"]) for c in columns}) == 1
    cells = [column["encoding"]["y"] for column in columns]
    assert [y.get("title") for y in cells] == ["KV cells", None, None]
    assert all(y["axis"]["values"] == [0, 2048, 4096, 6144, 8192] for y in cells)
    assert len({y["scale"]["domain"][1] for y in cells}) == 1


def test_lengths_show_where_a_slot_ends_and_who_was_refused(frames: lab.RunFrames) -> None:
    said = texts(lab.lengths_that_fit(frames, title="t", subtitle=["s"]))
    assert "a slot ends at 2,048" in said
    assert "C refused" in said


def test_names_on_the_two_sides_of_a_slots_end_are_kept_apart() -> None:
    frames = lab.RunFrames(kv_run(lengths={"A": 2000, "B": 2090, "C": 2095, "D": 2005}))
    rows = rows_of(lab.lengths_that_fit(frames, title="t", subtitle=["s"]))
    split = [(row["text"], row["good"]) for row in rows if row["row"] == "split, same total" and "start" in row]
    assert sorted(split) == [("A D", True), ("B refused C refused", False)]


def test_memory_shows_rule_log_and_process(frames: lab.RunFrames) -> None:
    said = texts(lab.kv_memory(frames, title="t", subtitle=["s"]))
    for part in (
        "KV 90.0",
        "KV 180.0",
        "rule 90.0",
        "compute 16.0 (ubatch 512)",
        "compute 4.0 (ubatch 128)",
        "230",
        "320",
    ):
        assert part in said


def test_gpu_memory_takes_the_place_of_the_process() -> None:
    data = kv_run(load=False)
    for arm in data.run["arms"].values():
        arm["memory_at_start"]["gpus"] = [{"used_bytes": 3 * 2**30, "utilisation_percent": 0}]
    spec = str(lab.kv_memory(lab.RunFrames(data), title="t", subtitle=["s"]).to_dict())
    assert "GPU memory in use (MiB)" in spec
    assert "3,072" in spec


def test_more_requests_than_colours_still_have_one_each() -> None:
    labels = [f"R{i}" for i in range(30)]
    assert all(colour_of(label, labels).startswith("#") for label in labels)
    lengths = {label: 40 + i for i, label in enumerate(labels)}
    chart = lab.kv_ledger(lab.RunFrames(kv_run(lengths=lengths)), title="t", subtitle=["s"])
    assert rows_of(chart)
