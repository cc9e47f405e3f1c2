"""Does GPU memory follow the KV rule? It is judged on a GPU alone, can be refuted, and says when it can't tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import labkit as lab
from labkit.analyze.verdict import Check
from tests.kv_recorded import kv_run

MIB = 2**20
WEIGHTS = 14_000 * MIB
Edit = Callable[[dict[str, Any]], None]


def on_gpu(ctx_size: int = 16384, slots: int = 4, *, told: bool = True, others: int = 0) -> Any:
    """Return a run on a GPU whose memory is weights, KV and the compute buffers that its log places there."""
    data = kv_run(ctx_size, slots, load=False)
    for arm in data.run["arms"].values():
        has = arm["server"]["effective"]
        has["kv_devices"] = ["CUDA0"]
        own = WEIGHTS + has["kv_bytes"] + has["compute_by_device"]["CUDA0"]
        before = {"used_bytes": 600 * MIB + others, "processes": int(others > 0), "process_bytes": None}
        after = {"used_bytes": before["used_bytes"] + own, "processes": 1 + int(others > 0)}
        arm["memory_before_start"] = {"resident_bytes": None, "gpus": [before]}
        arm["memory_at_start"]["gpus"] = [after | {"process_bytes": own if told else None}]
    return data


def judged(data: Any) -> Check:
    return next(check for check in lab.judge_kv_modes(data).checks if check.name == "gpu_memory")


@pytest.mark.parametrize("told", [True, False])
def test_memory_by_the_rule_is_supported_by_either_witness(told: bool) -> None:
    check = judged(on_gpu(told=told))
    assert check.status == "supported"
    assert "split +0 MiB beside unified, +0.0 by rule" in check.observed
    assert "split_roomy +360 MiB beside unified, +360.0 by rule" in check.observed


def test_compute_buffers_in_main_memory_do_not_count() -> None:
    data = on_gpu()
    for size, arm in enumerate(data.run["arms"].values()):
        arm["server"]["effective"]["compute_by_device"]["CUDA_Host"] = size * 100 * MIB
    assert judged(data).status == "supported"


def grown(arm: str, mib: int) -> Edit:
    def edit(arms: dict[str, Any]) -> None:
        arms[arm]["memory_at_start"]["gpus"][0]["process_bytes"] += mib * MIB

    return edit


@pytest.mark.parametrize(
    ("edit", "status"),
    [
        (grown("split_roomy", 6), "supported"), (grown("split_roomy", 9), "refuted"),
        (grown("split", 6), "supported"), (grown("split", 9), "refuted"),
        (grown("unified", -20), "refuted"), (grown("other_ubatch", 400), "supported"),
    ],
)  # fmt: skip
def test_what_differs_by_more_than_two_per_cent_of_the_kv_refutes(edit: Edit, status: str) -> None:
    data = on_gpu()
    edit(data.run["arms"])
    assert judged(data).status == status


def test_another_process_on_the_gpu_is_told_apart_or_makes_it_inconclusive() -> None:
    assert judged(on_gpu(others=5000 * MIB)).status == "supported"
    check = judged(on_gpu(told=False, others=5000 * MIB))
    assert (check.status, check.hint) == ("inconclusive", "a GPU that nobody else uses")


def test_a_log_without_buffers_is_inconclusive() -> None:
    data = on_gpu()
    data.run["arms"]["split"]["server"]["effective"]["compute_by_device"] = None
    assert judged(data).status == "inconclusive"


def no_gpu(arms: dict[str, Any]) -> None:
    for arm in arms.values():
        arm["memory_at_start"]["gpus"] = []


def in_main_memory(arms: dict[str, Any]) -> None:
    for arm in arms.values():
        arm["server"]["effective"]["kv_devices"] = ["CPU"]


def not_predicted(arms: dict[str, Any]) -> None:
    for arm in arms.values():
        arm["server"]["model"]["facts"]["architecture"] = "mamba2"


@pytest.mark.parametrize("edit", [no_gpu, in_main_memory, not_predicted, dict.clear])
def test_where_there_is_nothing_to_judge_it_is_not_tested(edit: Edit) -> None:
    data = on_gpu()
    edit(data.run["arms"])
    check = judged(data)
    assert check.status == "not_tested"
    assert check.why


def test_a_difference_of_a_few_pages_is_not_judged() -> None:
    check = judged(on_gpu(4096, 2))
    assert (check.status, "2 MiB" in check.why) == ("not_tested", True)
