"""What five real builds answered (3 slots, split, 1,000 cells asked), read by this kit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from labkit.engine.effective import effective_values
from labkit.engine.log import parse_log
from labkit.measure.builds import traits_of
from labkit.measure.metrics import parse_metrics
from labkit.measure.observe import parse_slots
from tests.conftest import DATA

BUILDS = (9093, 10068, 10156, 10229, 11549)


@pytest.fixture(params=BUILDS, ids=lambda number: f"b{number}")
def build(request: pytest.FixtureRequest) -> int:
    return request.param  # type: ignore[no-any-return]


def read(build: int, name: str) -> str:
    return (DATA / f"b{build}" / name).read_text()


def data(build: int, name: str) -> Any:
    return json.loads(read(build, name))


def test_data_is_there_for_every_build() -> None:
    assert {f"b{number}" for number in BUILDS} == {path.name for path in Path(DATA).iterdir()}


def test_never_used_slots_are_idle_and_have_no_task(build: int) -> None:
    slots = parse_slots(data(build, "slots_fresh.json"))
    assert [(slot["busy"], slot["id_task"], slot["n_decoded"]) for slot in slots] == [(False, None, None)] * 3


def test_used_slots_show_their_seed_and_what_the_build_keeps(build: int) -> None:
    used = [slot for slot in parse_slots(data(build, "slots_used.json")) if slot["id_task"] is not None]
    assert used
    assert all(slot["seed"] for slot in used)
    assert {slot["n_decoded"] for slot in used} == {0 if build > 11433 else 16}
    assert {slot["n_prefilled"] is None for slot in used} == {build == 9093}


def test_rules_and_eyes_agree_on_what_the_build_does(build: int) -> None:
    seen, ruled = traits_of(build, parse_slots(data(build, "slots_used.json"))), traits_of(build, [])
    assert seen.clears_counters.known_by == seen.prompt_counters.known_by == "seen"
    assert seen.clears_counters.holds == ruled.clears_counters.holds
    assert seen.prompt_counters.holds == ruled.prompt_counters.holds


def test_effective_values_are_the_same_on_every_build(build: int) -> None:
    facts = parse_log(read(build, "start_split.log"))
    found = effective_values(data(build, "props.json"), data(build, "slots_fresh.json"), facts=facts)
    assert (found.slots, found.slot_cells, found.pool_cells, found.kv_unified) == (3, 512, 1536, False)
    assert (found.batch_size, found.ubatch_size, found.slots_endpoint, found.metrics_endpoint) == (
        1000,
        512,
        True,
        True,
    )
    assert found.kv_bytes is not None
    assert found.sources["slots"] == "/props"


@pytest.mark.parametrize("name", ["metrics_fresh.txt", "metrics.txt"])
def test_metrics_have_the_names_that_are_relied_on(build: int, name: str) -> None:
    values = parse_metrics(read(build, name))
    relied_on = {"requests_processing", "requests_deferred", "n_decode_total", "tokens_predicted_total", "n_tokens_max"}
    assert relied_on <= set(values)
    assert all(values[metric] is not None for metric in relied_on)
    assert "n_busy_slots_per_decode" in values
    assert not [metric for metric in values if metric.startswith("kv_cache")]
    assert ("prompt_tokens_cached_total" in values) == (build == 11549)
