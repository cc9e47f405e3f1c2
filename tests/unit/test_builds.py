"""What builds do otherwise: by rule, by looking, or not known."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.measure.builds import Trait, traits_of


def slot(**changes: Any) -> dict[str, Any]:
    return {"id_task": 3, "busy": False, "n_decoded": 16, "n_prefilled": 37} | changes


@pytest.mark.parametrize(
    ("number", "clears", "mid_decode", "resets"),
    [(9093, False, False, False), (10229, False, False, False), (11434, True, True, True), (11549, True, True, True)],
)
def test_builds_that_were_looked_at_are_known_by_rule(
    number: int, clears: bool, mid_decode: bool, resets: bool
) -> None:
    traits = traits_of(number, [])
    assert traits.clears_counters == Trait(clears, "rule")
    assert traits.answers_mid_decode == Trait(mid_decode, "rule")
    assert traits.scrape_resets_gauges == Trait(resets, "rule")


@pytest.mark.parametrize("number", [None, 10800])
def test_a_build_between_or_without_a_number_is_not_known_by_rule(number: int | None) -> None:
    assert traits_of(number, []).clears_counters == Trait(None, "unknown")


def test_what_used_idle_slots_show_wins_over_the_rule() -> None:
    assert traits_of(11549, [slot()]).clears_counters == Trait(False, "seen")
    assert traits_of(9093, [slot(n_decoded=0, n_prefilled=0)]).clears_counters == Trait(True, "seen")
    assert traits_of(10229, [slot(n_prefilled=None)]).prompt_counters == Trait(False, "seen")
    assert traits_of(None, [slot()]).prompt_counters == Trait(True, "seen")


def test_slots_that_were_never_used_or_are_busy_show_nothing() -> None:
    unused = slot(id_task=None, n_decoded=None, n_prefilled=None)
    traits = traits_of(9093, [unused, slot(busy=True)])
    assert traits.prompt_counters == Trait(False, "rule")
    assert traits_of(9093, [slot(n_decoded=None)]).clears_counters == Trait(False, "rule")


def test_the_record_gets_them_as_plain_data() -> None:
    assert traits_of(10229, []).describe()["prompt_counters"] == {"holds": True, "known_by": "rule"}
