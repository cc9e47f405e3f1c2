"""The shapes of /slots that builds have had, and what goes wrong with polls."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.measure.observe import UnknownShapeError, parse_slots

NEXT = {"has_next_token": True, "has_new_line": False, "n_remain": 22, "n_decoded": 10}
BUSY = {"id": 1, "n_ctx": 2048, "speculative": False, "is_processing": True, "id_task": 5, "params": {"seed": 7}}


@pytest.mark.parametrize("following", [NEXT, [NEXT]], ids=["object", "list"])
def test_next_token_is_read_as_object_and_as_list(following: Any) -> None:
    (slot,) = parse_slots([BUSY | {"next_token": following, "n_prompt_tokens_processed": 40, "n_prompt_tokens": 50}])
    assert (slot["n_decoded"], slot["n_prefilled"], slot["n_cells"], slot["seed"], slot["busy"]) == (
        10,
        40,
        50,
        7,
        True,
    )


def test_a_slot_never_used_is_idle_with_nothing_known() -> None:
    (slot,) = parse_slots([{"id": 0, "n_ctx": 2048, "speculative": False, "is_processing": False}])
    assert slot["busy"] is False
    assert slot["id_task"] is slot["seed"] is slot["n_decoded"] is slot["n_prefilled"] is None


def test_unknown_keys_are_ignored_and_missing_counters_stay_unknown() -> None:
    (slot,) = parse_slots([BUSY | {"next_token": [], "brand_new": {"a": 1}}])
    assert slot["n_decoded"] is None
    assert "brand_new" not in slot


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ([{"id": 0, "state": 1}], "a build before b4027"),
        ([{"id": 0}], "no is_processing"),
        ({"error": "x"}, "answered dict"),
        ([1, 2], "answered list"),
        (None, "answered NoneType"),
    ],
)
def test_a_shape_that_cannot_be_read_is_named(body: Any, complaint: str) -> None:
    with pytest.raises(UnknownShapeError, match=complaint):
        parse_slots(body)
