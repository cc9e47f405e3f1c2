"""Notebook 00 on real engines: the wheel, a binary by its path, and one that was just built from a tiny tree."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

import labkit as lab
from labkit.engine.toolchain import Toolchain
from tests.conftest import PROJECT
from tests.live.lab import quiet
from tests.live.shim import make_shim
from tests.live.test_papermill import ALLOWED, outputs, papermill, record
from tests.toy_tree import make_tree

pytestmark = pytest.mark.live
NOTEBOOK = PROJECT / "notebooks" / "00_build.ipynb"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path / "cache"))


async def build_lab(tmp_path: Path, *, blind: bool = False, **parameters: Any) -> tuple[lab.Run, lab.Verdict]:
    """Do what the notebook does; blind: as if this machine had no compiler."""
    params = lab.Build(**{"model": "toy", "smoke_tokens": 8} | parameters)
    run = lab.open_run("00_build", params, outputs=str(tmp_path))
    tools = lab.look_at_machine(params, run)
    if blind:
        tools = Toolchain(**vars(tools) | {"cxx": None})
    engine = lab.prepare_engine(params, run, tools, say=quiet)
    try:
        limits = params.limits() | {"lock_timeout_s": 60, "say": quiet}
        async with lab.open_server(params.server(engine), log_path=run.log_path("smoke"), **limits) as server:
            plan, sampling = lab.smoke_plan(params, server), lab.SampleSettings()
            await lab.measure_arm(server, plan, run=run, arm="smoke", sampling=sampling, say=quiet)
        bare = lab.start_bare(engine, model="toy", log_path=run.log_path("defaults"), lock_timeout_s=60, say=quiet)
        async with bare as server:
            await lab.note_defaults(server, run)
    finally:
        run.close()
    return run, lab.judge_build(lab.read_run(run.folder))


def build(tmp_path: Path, **changes: Any) -> tuple[dict[str, Any], lab.Verdict]:
    run, verdict = asyncio.run(build_lab(tmp_path, **changes))
    return lab.read_run(run.folder).run, verdict


def defaults(run: dict[str, Any]) -> tuple[Any, ...]:
    arm = run["arms"]["defaults"]
    effective = arm["server"]["effective"]
    return effective["slots"], effective["kv_unified"], arm["endpoints"]["/slots"], arm["endpoints"]["/metrics"]


def test_the_wheel_is_named_and_its_own_defaults_are_one_slot_split(tmp_path: Path) -> None:
    run, verdict = build(tmp_path)
    assert verdict.status == "supported", verdict
    assert run["engine"]["number"] == 10229
    assert run["arms"]["smoke"]["server"]["build"]["reported"] == "b0-unknown"
    assert defaults(run) == (1, False, 200, 501)
    assert run["later_notebooks"] == {"default": "embedded", "build": None}


@pytest.mark.full
def test_a_binary_that_was_told_nothing_takes_four_slots_and_one_pool(tmp_path: Path) -> None:
    shim = make_shim(tmp_path)
    run, verdict = build(tmp_path, engine=str(shim))
    assert verdict.status == "supported", verdict
    assert defaults(run) == (4, True, 200, 501)
    argv = run["arms"]["defaults"]["server"]["argv"]
    assert [word for word in argv if word.startswith("-")] == ["--model", "--alias", "--host", "--port", "-lv"]


@pytest.mark.full
def test_what_was_built_is_run_and_its_wrong_name_is_seen(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    tree = make_tree(tmp_path / "tree", shim=make_shim(tmp_path / "bin"))
    asked = {"engine": "build", "source": "tree", "tree": str(tree), "build_number": 4711, "backend": "cpu"}
    run, verdict = build(tmp_path, **asked)
    found = {check.name: check.status for check in verdict.checks}
    # the program says 4711 of itself, but what serves is the wheel, which says b0-unknown: two witnesses, one lie
    assert found == {"source": "not_tested", "flags": "supported", "backend": "supported", "answered": "supported"} | {
        "number": "refuted"
    }
    assert run["engine"]["path"] == run["build"]["binary"] == run["later_notebooks"]["build"]
    assert run["arms"]["smoke"]["server"]["argv"][0] == run["build"]["binary"]
    # and the other notebooks find it
    again, _ = asyncio.run(build_and_open(tmp_path))
    assert again.argv[0] == run["build"]["binary"]


async def build_and_open(tmp_path: Path) -> tuple[lab.Server, None]:
    settings = lab.ServerSettings(engine="build", model="toy")
    async with lab.open_server(settings, log_path=tmp_path / "s.log", lock_timeout_s=60, say=quiet) as server:
        return server, None


def test_without_a_compiler_the_wheel_is_looked_at_and_the_verdict_says_so(tmp_path: Path) -> None:
    run, verdict = build(tmp_path, blind=True, engine="build", source="sdist")
    assert run["build_lacking"] == ["a C++ compiler"]
    assert run["engine"]["kind"] == "embedded"
    assert verdict.status == "inconclusive"
    assert verdict.checks[0].hint == "apt install g++, pip install cmake ninja"


@pytest.mark.notebook
def test_the_notebook_runs_with_its_quick_parameters(tmp_path: Path) -> None:
    quick = PROJECT / "params" / "00_build.quick.yaml"
    out = tmp_path / "out.ipynb"
    run = papermill(str(out), "-f", str(quick), "-p", "model", "toy", "-p", "outputs", str(tmp_path), notebook=NOTEBOOK)
    assert run.returncode == 0, run.stderr[-2000:]
    found = record(tmp_path / "00_build")
    assert found["verdict"]["status"] == "supported"
    assert found["parameters"]["predicted_slots"] == yaml.safe_load(quick.read_text())["predicted_slots"]
    for shown in outputs(out):
        assert shown.output_type == "stream" or set(shown["data"]) <= ALLOWED
    pages = [shown["data"]["text/html"] for shown in outputs(out) if "text/html" in shown.get("data", {})]
    assert "Verdict: supported" in pages[0] == pages[-1]
    assert sum("image/png" in shown.get("data", {}) for shown in outputs(out)) == 1
