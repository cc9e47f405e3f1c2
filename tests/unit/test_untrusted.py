"""What a server says may be of any type: it becomes what was expected, or nothing, and never a crash."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

import labkit as lab
from labkit.engine.attach import _entries, _remote_model
from labkit.engine.binary import number_of
from labkit.engine.effective import effective_values
from labkit.engine.http import Answer
from labkit.engine.untrusted import finite, items, mapping, place, shown, switch, text, texts, whole
from labkit.measure.observe import UnknownShapeError, parse_slots
from labkit.measure.stream import RequestRecord, Stream

ODD: list[Any] = [None, "2", 2.5, math.nan, math.inf, 10**400, -1, True, [], {}, [1], {"a": 1}, "\ud800", "\x1b[1m"]


@pytest.mark.parametrize("value", ODD, ids=repr)
def test_every_reader_takes_everything(value: Any) -> None:
    assert whole(value) is None
    assert finite(value) in (None, 2.5, -1)
    assert mapping(value) == (value if isinstance(value, dict) else {})
    assert items(value) == []
    assert texts(value) == []
    assert switch(value) in (None, True)
    assert text(value) in (None, "2")


def test_readers_keep_what_is_right() -> None:
    assert (whole(0), whole(7, least=1), whole(0, least=1), finite(0.5), text("ä b")) == (0, 7, None, 0.5, "ä b")
    assert items([{"a": 1}, 2]) == [{"a": 1}]
    assert texts(["a", 1]) == ["a"]


def test_words_and_places_are_shown_without_tricks_and_secrets() -> None:
    assert shown("nginx\x1b[31m" + "x" * 500) == "nginx?[31m" + "x" * 190
    assert place("https://user:hunter2@host:8443/path?token=abc#x") == "https://host:8443/path"
    assert place("/login?next=secret") == "/login"
    assert place("http://[::1") == "an address that is none"


SLOT = {
    "id": 0, "n_ctx": 512, "is_processing": True, "id_task": 3, "params": {"seed": 7}, "n_prompt_tokens": 9,
    "n_prompt_tokens_processed": 8, "next_token": [{"n_decoded": 5}],
}  # fmt: skip


@pytest.mark.parametrize("value", ODD, ids=repr)
@pytest.mark.parametrize(
    "name", ["n_ctx", "id_task", "params", "n_prompt_tokens", "n_prompt_tokens_processed", "next_token"]
)
def test_a_slot_with_an_odd_value_is_read_without_it(name: str, value: Any) -> None:
    (slot,) = parse_slots([SLOT | {name: value}])
    assert all(isinstance(v, int | bool | None) for v in slot.values())
    assert slot["busy"] is True
    (inside,) = parse_slots([SLOT | {"params": {"seed": value}, "next_token": [{"n_decoded": value}]}])
    assert (inside["seed"], inside["n_decoded"]) == (None, None)


@pytest.mark.parametrize("value", [*ODD[:-2], "false", 1], ids=repr)
@pytest.mark.parametrize("name", ["id", "is_processing"])
def test_a_slot_that_cannot_be_told_apart_or_is_neither_busy_nor_idle_is_refused(name: str, value: Any) -> None:
    if (name, value) in (("is_processing", True), ("id", 1)):
        return
    with pytest.raises(UnknownShapeError, match="odd type"):
        parse_slots([SLOT | {name: value}])


def test_one_slot_named_twice_is_several_servers() -> None:
    with pytest.raises(UnknownShapeError, match="names one slot twice"):
        parse_slots([SLOT, SLOT])


@pytest.mark.parametrize("value", ODD, ids=repr)
@pytest.mark.parametrize("name", ["timings", "__verbose", "choices", "error"])
def test_a_chunk_with_an_odd_value_ends_in_the_record(name: str, value: Any) -> None:
    plan = lab.RequestPlan(label="A", prompt="x", max_tokens=4, seed=1)
    record = RequestRecord(arm="a", label="A", seed=1, max_tokens=4)
    stream = Stream(plan, record, lambda: 0.0, lambda *_: None)
    chunk = {"choices": [{"delta": {"content": "x"}, "finish_reason": "length"}], name: value}
    stream.event("data", json.dumps(chunk).encode(), 1.0)
    nested = {"choices": [], "timings": {"prompt_ms": value, "predicted_n": value}}
    stream.event("data", json.dumps(nested).encode(), 1.0)
    stream.close()
    assert record.outcome in ("completed", "server_error", "disconnected")
    json.dumps(record.row(), allow_nan=False)
    for number in (record.timings or {}).values():
        assert number in (None, 2.5, -1)


@pytest.mark.parametrize("value", ODD, ids=repr)
def test_props_and_models_with_odd_values_leave_things_unknown(value: Any) -> None:
    odd_props = {"total_slots": value, "default_generation_settings": value, "endpoint_slots": value}
    found = effective_values(odd_props, [{"n_ctx": value}])
    assert (found.slots, found.slot_cells) == (1, None)
    effective_values({"default_generation_settings": {"n_ctx": value}}, [])
    (entry,) = _entries({"data": [{"id": "m", "meta": value, "status": value, "aliases": value}, value]})
    assert (entry["status"], entry["aliases"]) == (mapping(value), [])
    assert (
        _entries({"data": value}) == _entries(value) == _entries({"data": [{"id": value if value != "2" else 2}]}) == []
    )
    model = _remote_model({"model_alias": value, "model_ftype": value}, {"id": "m", "meta": {"n_ctx_train": value}})
    assert model.facts.n_ctx_train is None


def test_deep_and_long_answers_are_no_answers() -> None:
    assert Answer(200, b"[" * 100_000).json is None
    assert number_of("b" + "9" * 5000) is None
