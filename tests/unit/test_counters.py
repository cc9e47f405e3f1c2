"""Arithmetic of /metrics: growth, rates, windows, rounding, resets, and what each build exposes."""

from __future__ import annotations

import pytest

from labkit.analyze.metrics_and_gpu.counters import (
    METRICS,
    NO_VALUE,
    NOT_EXPOSED,
    WENT_DOWN,
    Scrape,
    busy_slots_per_decode,
    counting_rules,
    growth,
    rate,
    rounding_error,
    went_down,
    why_missing,
)
from labkit.measure.metrics import parse_metrics
from tests.conftest import DATA

BUILDS = ("b9093", "b10068", "b10156", "b10229", "b11549")
NEWER = {"prompt_tokens_cached_total"}
GONE = {"kv_cache_usage_ratio", "kv_cache_tokens"}


def test_growth_is_the_difference_and_a_rate_is_growth_by_time() -> None:
    grown = growth({"n": 10.0}, {"n": 25.0}, "n")
    assert (grown.amount, grown.error, grown.missing) == (15.0, 0.0, "")
    assert rate(grown, 3.0) == 5.0
    assert rate(grown, 0.0) is None


@pytest.mark.parametrize(
    ("before", "after", "missing"),
    [
        ({}, {"n": 1.0}, NOT_EXPOSED),
        ({"n": 1.0}, {}, NOT_EXPOSED),
        ({"n": None}, {"n": 1.0}, NO_VALUE),
        ({"n": 5.0}, {"n": 3.0}, WENT_DOWN),
    ],
    ids=["absent before", "absent after", "NaN", "reset"],
)
def test_what_has_no_growth_says_why_and_is_never_zero(
    before: dict[str, float | None], after: dict[str, float | None], missing: str
) -> None:
    grown = growth(before, after, "n")
    assert (grown.amount, grown.missing) == (None, missing)
    assert rate(grown, 1.0) is None
    assert not grown.agrees(0)


@pytest.mark.parametrize(
    ("value", "whole", "error"),
    [
        (0, True, 0.0),
        (999_999, True, 0.0),
        (1_234_570, True, 5.0),
        (98_765_400, True, 50.0),
        (1.88235, False, 0.5e-5),
        (2, False, 0.5e-5),
        (385.542, False, 0.5e-3),
    ],
)
def test_six_significant_digits_are_all_that_is_printed(value: float, whole: bool, error: float) -> None:
    assert rounding_error(value, whole=whole) == pytest.approx(error)
    # what the server prints is never further off than that
    assert abs(float(f"{value:.6g}") - value) <= error + 1e-12


def test_a_counter_above_a_million_agrees_within_its_last_printed_digit() -> None:
    before, after = float(f"{1_234_567:.6g}"), float(f"{1_234_567 + 576:.6g}")
    grown = growth({"n": before}, {"n": after}, "n")
    assert grown.amount == 570
    assert grown.error == pytest.approx(10)
    assert grown.agrees(576)
    assert not grown.agrees(600)


def test_a_window_of_an_average_comes_from_the_sum_behind_it() -> None:
    # 100 calls with 1 slot busy, then 50 with 2: the average since the start says 1.33
    before = {"n_decode_total": 100.0, "n_busy_slots_per_decode": 1.0}
    after = {"n_decode_total": 150.0, "n_busy_slots_per_decode": 1.33333}
    window = busy_slots_per_decode(before, after)
    assert window.amount == pytest.approx(2.0, abs=window.error)
    assert 0 < window.error < 1e-3


def test_the_window_from_the_first_call_on_takes_no_value_for_none() -> None:
    fresh: dict[str, float | None] = {"n_decode_total": 0.0, "n_busy_slots_per_decode": None}
    after: dict[str, float | None] = {"n_decode_total": 10.0, "n_busy_slots_per_decode": 1.5}
    assert busy_slots_per_decode(fresh, after).amount == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("after", "missing"),
    [
        ({"n_decode_total": 10.0, "n_busy_slots_per_decode": 2.0}, "no call in between"),
        ({"n_decode_total": 20.0}, NOT_EXPOSED),
        ({"n_decode_total": 20.0, "n_busy_slots_per_decode": None}, NO_VALUE),
        ({"n_decode_total": 5.0, "n_busy_slots_per_decode": 2.0}, WENT_DOWN),
        ({"n_busy_slots_per_decode": 2.0}, NOT_EXPOSED),
    ],
)
def test_a_window_without_calls_or_without_the_average_has_no_value(
    after: dict[str, float | None], missing: str
) -> None:
    before: dict[str, float | None] = {"n_decode_total": 10.0, "n_busy_slots_per_decode": 1.5}
    window = busy_slots_per_decode(before, after)
    assert (window.amount, window.missing) == (None, missing)


def test_a_counter_that_goes_down_is_found_and_a_gauge_may() -> None:
    def scrapes(*values: dict[str, float | None]) -> list[Scrape]:
        return [Scrape(float(i), i + 0.1, value) for i, value in enumerate(values)]

    grows = scrapes({"a_total": 1.0, "g": 5.0}, {"a_total": 1.0, "g": 2.0}, {"a_total": 9.0, "g": 0.0})
    assert went_down(grows) is None
    assert went_down([*grows, *scrapes({"a_total": 3.0})]) == "a_total"


@pytest.mark.parametrize("build", BUILDS)
def test_names_of_real_builds_are_those_we_look_for(build: str) -> None:
    values = parse_metrics((DATA / build / "metrics.txt").read_text())
    missing = {name for name in METRICS if why_missing(values, name) == NOT_EXPOSED}
    assert missing == GONE | (NEWER if build != "b11549" else set())


@pytest.mark.parametrize("build", BUILDS)
def test_real_bodies_give_a_window(build: str) -> None:
    before, after = (parse_metrics((DATA / build / name).read_text()) for name in ("metrics_fresh.txt", "metrics.txt"))
    tokens, calls = growth(before, after, "tokens_predicted_total"), growth(before, after, "n_decode_total")
    assert tokens.amount == 32
    # two answers of 16 tokens, beside each other or not
    assert calls.amount is not None
    assert 16 <= calls.amount <= 34
    busy = busy_slots_per_decode(before, after)
    assert busy.amount is not None
    assert 1 <= busy.amount <= 2


@pytest.mark.parametrize(
    ("number", "lossy"),
    [(9093, True), (10156, True), (10229, True), (11434, False), (11549, False), (10300, None), (4000, None),
     (None, None)],
)  # fmt: skip
def test_what_a_build_counts_when_is_known_or_said_not_to_be(number: int | None, lossy: bool | None) -> None:
    rules = counting_rules(number)
    assert (rules.lossy if rules else None) is lossy
