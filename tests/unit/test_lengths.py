"""The user's own lengths, from a CSV, and the mixture made without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import labkit as lab
from labkit.errors import ParameterError, PlanError
from labkit.measure.kv_modes import kv_servers, long_prompt, mixed_lengths
from labkit.measure.lengths import Length, read_lengths


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("300\n1200\n", [Length(300, 24), Length(1200, 24)]),
        ("prompt_tokens\n300\n\n", [Length(300, 24)]),
        ("id,prompt_tokens,max_tokens\na,300,64\nb, 1200 ,8\n", [Length(300, 64), Length(1200, 8)]),
        ("﻿prompt_tokens;\n", None),
    ],
)
def test_lengths_are_read_from_a_column_or_a_plain_list(
    tmp_path: Path, text: str, lengths: list[Length] | None
) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text(text, encoding="utf-8")
    if lengths is None:
        with pytest.raises(ParameterError, match="has no column prompt_tokens"):
            read_lengths(str(path), answer=24)
    else:
        assert read_lengths(str(path), answer=24) == lengths


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "has no length in it"),
        (b"prompt_tokens\n", "has no length in it"),
        (b"prompt_tokens\n-3\n", "row 1 of .* has no length: '-3'"),
        (b"prompt_tokens,max_tokens\n300\n", "row 1 of .* has no length: ''"),
        (b"prompt_tokens\n99999999999999\n", "has no length"),
        (b"words\n300\n", "its columns are words"),
        (b"\xff\xfe\x00", "is not UTF-8 text"),
    ],
)
def test_a_file_that_can_not_be_used_is_refused_in_one_sentence(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "lengths.csv"
    path.write_bytes(content)
    with pytest.raises(ParameterError, match=sentence):
        read_lengths(str(path), answer=24)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ParameterError, match=r"'nowhere.csv' can't be read: No such file"):
        read_lengths("nowhere.csv", answer=24)


def modes(**values: Any) -> lab.KvModes:
    return lab.KvModes(seed=1, **values)


@pytest.mark.parametrize(("pool", "box"), [(512, 256), (4096, 2048), (8192, 4096), (8192, 1024), (2304, 2048)])
def test_the_long_prompt_fits_the_pool_with_its_answer_and_no_box(pool: int, box: int) -> None:
    long = long_prompt(modes(), pool, box)
    assert box < long < long + 24 < pool


def test_a_long_prompt_that_can_not_be_is_refused_with_what_to_change() -> None:
    with pytest.raises(PlanError, match="max_tokens = 224 or less"):
        long_prompt(modes(max_tokens=250), 512, 256)


@pytest.mark.parametrize(("slots", "box"), [(2, 256), (2, 2048), (3, 1024), (4, 512), (8, 256)])
def test_the_mixture_has_one_long_prompt_and_never_overflows_the_pool(slots: int, box: int) -> None:
    pool = slots * box
    long = long_prompt(modes(), pool, box)
    lengths = mixed_lengths(modes(), long, box)
    assert [length.prompt > box for length in lengths].count(True) == 1
    assert sum(sorted(length.prompt + length.answer for length in lengths)[-slots:]) < pool


def test_own_lengths_are_drawn_by_the_seed(tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text("\n".join(str(100 + i) for i in range(50)))
    drawn = [mixed_lengths(modes(lengths_csv=str(path), lengths_drawn=5), 2304, 2048) for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert len(drawn[0]) == 5
    assert mixed_lengths(modes(prompt_tokens=[7, 8]), 2304, 2048) == [Length(7, 24), Length(8, 24)]


def test_the_servers_differ_in_what_their_names_say() -> None:
    servers = kv_servers(modes(ctx_size=16384, parallel=4), n_ctx_train=8192)
    asked = {name: (s.ctx_size, s.parallel, s.kv_unified, s.ubatch_size) for name, s in servers.items()}
    assert asked["unified"] == (16384, 4, True, 512)
    assert asked["split"] == (16384, 4, False, 512)
    assert asked["split_roomy"] == (32768, 4, False, 512)  # as much for each as a slot of the pool may use: 8,192
    assert asked["other_ubatch"] == (16384, 4, True, 128)
    assert asked["four_split"][1:3] == (4, False)
    assert (asked["auto"][1:3], asked["auto_asked_split"][1:3]) == (("auto", True), ("auto", False))
    assert "split_roomy" not in kv_servers(modes(equal_per_slot=False), n_ctx_train=8192)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"parallel": "auto"}, "auto is never split"),
        ({"parallel": 17}, "up to 16"),
        ({"engine": "http://127.0.0.1:8080"}, "somebody else started"),
        ({"prompt_tokens": [1], "lengths_csv": "x.csv"}, "are both given"),
        ({"other_ubatch_size": 512}, "nothing to compare"),
        ({"prompt_tokens": "[1, 0]"}, "prompt_tokens"),
    ],
)
def test_parameters_that_make_no_comparison_are_refused(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ParameterError, match=sentence):
        modes(**values)
