import copy
from typing import Any

import pytest

import labkit as lab
from labkit.analyze.effective import mode_note, pool_note, slot_note
from labkit.engine.effective import effective_values
from labkit.engine.log import LogFacts
from labkit.errors import IdentityError
from tests.synthetic import server


def test_asked_and_effective_stand_side_by_side() -> None:
    table = lab.settings_table(server()).set_index("setting")
    assert table.loc["slots (--parallel)", ["asked", "effective"]].tolist() == ["2", "2"]
    assert table.loc["continuous batching", ["asked", "effective"]].tolist() == ["on", "unknown"]


def test_a_server_that_tells_nothing_is_unknown_everywhere() -> None:
    silent = copy.deepcopy(server()) | {"effective": None}
    assert set(lab.settings_table(silent)["effective"]) == {"unknown"}


@pytest.mark.parametrize(
    ("asked", "effective", "note"),
    [
        ({"ctx_size": 1024}, {"pool_cells": 1536}, "asked 1024, allocated 1,536 (+50% KV memory)"),
        ({"ctx_size": 1024}, {"pool_cells": 1024}, ""),
        ({"ctx_size": 1024}, {}, ""),
    ],
)
def test_padding_is_noted(asked: dict[str, Any], effective: dict[str, Any], note: str) -> None:
    assert pool_note(asked, effective).replace("1,024", "1024") == note


def test_an_ignored_kv_mode_is_noted() -> None:
    assert mode_note({"kv_unified": False}, {"kv_unified": True}) == "you asked for split, you got unified"
    assert mode_note({"kv_unified": False}, {}) == ""


def test_a_cap_to_the_training_context_is_noted() -> None:
    effective = {"slot_cells": 8192, "pool_cells": 16384, "slots": 2, "kv_unified": True}
    assert "capped to the model's training context" in slot_note(effective, 8192)
    assert slot_note(effective | {"slot_cells": 16384}, 32768) == "each slot may use the whole pool, all share it"
    assert slot_note(effective | {"kv_unified": False}, 8192) == "a box of its own: 16,384 / 2"


def test_props_win_over_the_log_where_both_speak() -> None:
    props = {"total_slots": 2, "default_generation_settings": {"n_ctx": 512}, "endpoint_slots": True}
    values = effective_values(props, [], facts=LogFacts(n_slots=4, slot_cells=256, pool_cells=1024))
    assert (values.slots, values.slot_cells, values.pool_cells, values.kv_unified) == (2, 512, 1024, None)
    assert effective_values({}, [], facts=LogFacts(n_slots=4)).slots == 4


def test_slots_that_contradict_props_are_refused() -> None:
    props = {"total_slots": 1, "default_generation_settings": {"n_ctx": 512}}
    assert effective_values(props, [{"n_ctx": 512}]).slot_cells == 512
    with pytest.raises(IdentityError, match="/slots says 256 KV cells a slot, /props says 512"):
        effective_values(props, [{"n_ctx": 256}])


def test_a_cap_inside_the_pool_is_not_called_the_whole_pool() -> None:
    capped = {"slots": 4, "kv_unified": True, "pool_cells": 1024, "slot_cells": 256}
    assert slot_note(capped, 4096) == "a cap of its own inside the shared pool of 1,024"
    assert "the whole pool" in slot_note(capped | {"slot_cells": 1024}, 4096)
