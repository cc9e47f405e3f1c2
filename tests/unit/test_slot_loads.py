"""Notebook 01's parameters, prompts, loads and order, and llama-batched-bench's output: no server needed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import labkit as lab
from labkit.engine.batched_bench import BenchRow, bench_argv, beside, parse_bench
from labkit.errors import ParameterError
from labkit.measure.prompts import read_prompts
from labkit.measure.slot_escalation import plain_command
from labkit.measure.slot_loads import _Draw, _requests

# --- parameters -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["[1, 2, 4]", [1, 2, 4], (1, 2, 4), "[1,2,4]"])
def test_lists_come_typed_by_y_or_as_a_string_by_p(given: object) -> None:
    assert lab.SlotEscalation(slots_list=given).slots_list == (1, 2, 4)


@pytest.mark.parametrize(
    ("name", "given", "sentence"),
    [
        ("slots_list", "[1, 2", "slots_list = '[1, 2' can't be used: it takes a list of whole numbers from 1"),
        ("slots_list", [], "it takes a list of whole numbers from 1"),
        ("slots_list", 4, "slots_list = 4 can't be used"),
        ("slots_list", [1, True], "slots_list = True can't be used"),
        ("slots_list", [0, 1], "slots_list = 0 can't be used"),
        ("slots_list", [4, 2], "must rise: each number once, the smallest first"),
        ("slots_list", [1, 300], "goes above 256"),
        ("requests_list", [2, 2], "must rise"),
        ("requests_list", [65], "goes above 64"),
        ("requests_list", ["two"], "requests_list = 'two' can't be used"),
        ("parallel", 4, "slots_list says how many slots each step has"),
        ("context_rule", "both", 'it takes "per_slot" or "total"'),
        ("arrival_rate", 0, "it takes requests per second above 0, or None"),
        ("arrival_rate", True, "it takes requests per second above 0, or None"),
        ("repeats", 0, "it takes a whole number from 1 to 50"),
        ("slo_ttft_s", -1, "it takes seconds above 0, or None"),
        ("predicted_gain", "much", "it takes a number above 0"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(name: str, given: object, sentence: str) -> None:
    with pytest.raises(ParameterError) as caught:
        lab.SlotEscalation(**{name: given})
    assert sentence in str(caught.value)


def test_a_single_request_always_goes_first_and_once() -> None:
    assert lab.SlotEscalation().loads == (1, 2, 4)
    assert lab.SlotEscalation(requests_list=[1, 3]).loads == (1, 3)
    assert lab.SlotEscalation(requests_list=[1]).loads == (1,)


@pytest.mark.parametrize(("rule", "cells"), [("per_slot", 4096), ("total", 1024)])
def test_the_rule_says_what_a_steps_server_is_asked_for(rule: str, cells: int) -> None:
    params = lab.SlotEscalation(context_rule=rule)
    assert params.ctx_for(4) == cells
    assert params.server(parallel=4, ctx_size=params.ctx_for(4)).ctx_size == cells


def test_waiting_is_scraped_more_often_than_elsewhere_and_never_faster_than_slots() -> None:
    assert lab.SlotEscalation().sampling().metrics_hz == 10
    assert lab.SlotEscalation(poll_hz=4).sampling().metrics_hz == 4


# --- prompts of the user's own ----------------------------------------------------------------------------


def prompts(tmp_path: Path, text: str | bytes) -> list[str]:
    path = tmp_path / "prompts.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_prompts(str(path))


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("one\n\n  two  \n", ["one", "two"]),
        ("\ufeffone\r\ntwo", ["one", "two"]),
        ("{a brace starts it\nand 17\n42", ["{a brace starts it", "and 17", "42"]),
        ('"one"\n"two\\nlines"', ["one", "two\nlines"]),
        ('{"prompt": "one", "tag": 1}\n{"prompt": "two"}', ["one", "two"]),
        ('{"prompt": "one"}\n"two"', ["one", "two"]),
    ],
)
def test_prompts_are_lines_or_json_lines(tmp_path: Path, text: str, meant: list[str]) -> None:
    assert prompts(tmp_path, text) == meant


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("\n \n", "has no prompt in it"),
        ('{"prompt": "one"}\n{"prompt": "tw', "line 2 of"),
        ('{"prompt": "one"}\n\n{"text": "two"}', "line 3 of"),
        ('{"prompt": 7}', "is no prompt"),
        ('{"prompt": " "}', "is no prompt"),
        (b"\xff\xfe\x00", "is not UTF-8 text"),
    ],
)
def test_a_file_that_is_no_prompts_is_refused_by_line(tmp_path: Path, text: str | bytes, sentence: str) -> None:
    with pytest.raises(ParameterError) as caught:
        prompts(tmp_path, text)
    assert sentence in str(caught.value)


def test_a_file_that_is_not_there_or_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ParameterError, match="can't be read: No such file"):
        read_prompts(str(tmp_path / "none.txt"))
    monkeypatch.setattr("labkit.measure.given_file.MAX_BYTES", 3)
    with pytest.raises(ParameterError, match="is larger than"):
        prompts(tmp_path, "four")


# --- loads ------------------------------------------------------------------------------------------------


def drawn(size: int, texts: list[str] | None = None, **parameters: Any) -> list[lab.RequestPlan]:
    params = lab.SlotEscalation(seed=5, **parameters)
    server: Any = SimpleNamespace(endpoint="chat")
    draw = _Draw(params)
    loads = {s: _requests(s, texts or ["go", "stop"], params, draw, server) for s in params.loads}
    return loads[size]


def test_every_prompt_starts_with_a_tag_of_its_own_and_prompts_are_used_in_turn() -> None:
    requests = drawn(4)
    tags = {request.prompt.split(" ")[0] for request in requests}
    assert len(tags) == 4
    assert [request.prompt.split(" ")[1] for request in requests] == ["go", "stop", "go", "stop"]
    assert [request.label for request in requests] == ["A", "B", "C", "D"]
    assert all(request.at_s is None and not request.cache_prompt for request in requests)


def test_seeds_are_unique_in_the_whole_run_and_the_same_in_the_next_one() -> None:
    seeds = [request.seed for size in (1, 2, 4) for request in drawn(size)]
    assert len(set(seeds)) == 7
    assert drawn(4) == drawn(4)


def test_arrivals_are_drawn_at_the_rate_asked_for_and_start_at_once() -> None:
    requests = drawn(64, requests_list=[64], arrival_rate=4.0)
    times = [request.at_s for request in requests]
    assert times[0] == 0
    known = [time for time in times if time is not None]
    assert known == sorted(known)
    assert 63 / 4 / 2 < known[-1] < 63 / 4 * 2
    assert drawn(1, requests_list=[64], arrival_rate=4.0)[0].at_s is None


# --- order ------------------------------------------------------------------------------------------------


def test_passes_alternate_and_each_has_the_first_step_twice() -> None:
    order = lab.repeat_order(lab.SlotEscalation(repeats=3), [1, 2, 4])
    assert order == [
        (1, 1, True),
        (1, 2, True), (4, 2, False), (2, 2, False), (1, 2, False),
        (1, 3, False), (2, 3, False), (4, 3, False), (1, 3, True),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("parameters", "passed"),
    [({"repeats": 1}, [1, 2]), ({"repeats": 3}, []), ({"engine": "http://127.0.0.1:1"}, [2])],
)
def test_nothing_is_repeated_where_it_would_say_nothing(parameters: dict[str, Any], passed: list[int]) -> None:
    assert lab.repeat_order(lab.SlotEscalation(**parameters), passed) == []


def test_the_command_to_copy_leaves_out_what_only_this_kit_needs() -> None:
    command = (
        "llama-server --model '/m/a b.gguf' --alias labkit-1 --host 127.0.0.1 --port 40123 --ctx-size 2048"
        " --parallel 2 --kv-unified --cont-batching --batch-size 2048 --ubatch-size 512 --slots --metrics --no-ui -lv 4"
        " --mlock"
    )
    server: Any = SimpleNamespace(attached=False, llama_server_command=command)
    plain = plain_command(server)
    assert plain.startswith("llama-server --model '/m/a b.gguf' --alias local --host 127.0.0.1 --port 8080")
    assert plain.endswith("--mlock")
    for word in ("labkit", "40123", "-lv", "--no-ui"):
        assert word not in plain
    assert plain_command(SimpleNamespace(attached=True)) == ""  # type: ignore[arg-type]


# --- llama-batched-bench ----------------------------------------------------------------------------------

JSONL = """
{"n_kv_max": 2048, "n_batch": 2048, "n_ubatch": 512, "flash_attn": -1, "is_pp_shared": 0, "n_gpu_layers": -1, \
"n_threads": 2, "n_threads_batch": 2, "pp": 50, "tg": 32, "pl": 1, "n_kv": 82, "t_pp": 0.200000, \
"speed_pp": 250.0, "t_tg": 0.600000, "speed_tg": 53.3, "t": 0.8, "speed": 102.5}
{"pp": 50, "tg": 32, "pl": 4, "n_kv": 328, "t_pp": 0.8, "t_tg": 1.2, "t": 2.0}
llama_perf_context_print:        load time =      95.55 ms
{"half a line
{"pp": 1}
"""
TABLE = """
main: n_kv_max = 2048, n_batch = 2048, n_ubatch = 512, flash_attn = -1, is_pp_shared = 0, is_tg_separate = 0

|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |
|-------|--------|------|--------|----------|----------|----------|----------|----------|----------|
|    50 |     32 |    1 |     82 |    0.200 |   250.00 |    0.600 |    53.33 |    0.800 |   102.50 |
|    50 |     32 |    4 |    328 |    0.800 |   250.00 |    1.200 |   106.67 |    2.000 |   164.00 |
"""


@pytest.mark.parametrize("text", [JSONL, TABLE])
def test_its_rows_are_read_from_json_lines_and_from_its_table(text: str) -> None:
    rows = parse_bench(text)
    assert rows == [BenchRow(1, 50, 32, 0.2, 0.6), BenchRow(4, 50, 32, 0.8, 1.2)]
    # what a load of requests gets: output tokens over the time that the prompts took as well
    assert [row.tokens_per_s for row in rows] == pytest.approx([40.0, 64.0])


@pytest.mark.parametrize(
    "text", ["", "error: invalid argument", "|  |", '{"pl": 0, "pp": 1, "tg": 1, "t_pp": 0, "t_tg": 0}']
)
def test_anything_else_is_no_row(text: str) -> None:
    assert parse_bench(text) == []


def test_it_is_looked_for_beside_a_llama_server_and_nowhere_else(tmp_path: Path) -> None:
    assert beside(str(tmp_path / "llama-server")) is None
    (tmp_path / "llama-batched-bench").touch()
    assert beside(str(tmp_path / "llama-server")) == tmp_path / "llama-batched-bench"
    assert beside(str(tmp_path / Path(sys.executable).name)) is None


def test_it_gets_the_servers_settings_and_room_for_all_sequences() -> None:
    asked = lab.ServerSettings(batch_size=1024, threads=2, kv_unified=False, cache_type_k="q8_0").model_dump()
    argv = bench_argv(
        Path("/b/llama-batched-bench"), asked, model_path="/m.gguf", prompt_tokens=50, output_tokens=32, counts=[1, 4]
    )
    text = " ".join(argv)
    assert text.startswith("/b/llama-batched-bench --model /m.gguf --n-gpu-layers auto --ctx-size 1024 --no-kv-unified")
    for part in ("--batch-size 1024", "--threads 2", "--cache-type-k q8_0", "-npp 50 -ntg 32 -npl 1,4"):
        assert part in text
    assert text.endswith("--output-format jsonl")
    assert "--port" not in text
    assert json.loads(json.dumps(argv)) == argv
