"""The same experiments on four builds of llama.cpp, each wheel in an environment of its own: pytest -m matrix."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import httpx
import pytest

import labkit as lab
from labkit.analyze.kv_modes import areas as kv_areas
from labkit.engine.models import cache_folder
from tests.live.lab import attached_arrival, quiet, run_late_arrival
from tests.live.test_kv_modes import experiment as kv_experiment

pytestmark = pytest.mark.matrix

# twice as long as elsewhere: on a machine that is busy with something else too, a poll may take a third of a second
LONG = {"a_tokens": 3000}

VERSIONS = ("2026.5.9093", "2026.7.10068", "2026.8.10229", "2026.10.11549")


@pytest.fixture(scope="module", params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def engine(version: str) -> str:
    """An environment with this wheel and nothing else, kept in the cache folder."""
    folder = cache_folder() / "matrix" / version
    if not (folder / "ready").is_file():
        venv.create(folder, clear=True)
        pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "--quiet"]
        subprocess.run([*pip, "--no-deps", f"xllamacpp=={version}"], check=True, timeout=600)
        (folder / "ready").touch()
    return f"embedded:{folder}"


@pytest.fixture
def build(version: str) -> int:
    return int(version.rsplit(".", 1)[1])


def treatment(run: lab.Run) -> dict[str, Any]:
    return lab.read_run(run.folder).run["arms"]["treatment"]  # type: ignore[no-any-return]


def test_a_late_request_joins_and_the_record_names_the_build_and_its_ways(
    engine: str, build: int, tmp_path: Path
) -> None:
    run, verdict = run_late_arrival(tmp_path, engine=engine, **LONG)
    assert verdict.status == "supported", verdict
    arm = treatment(run)
    assert arm["server"]["build"]["number"] == build
    assert arm["traits"]["prompt_counters"] == {"holds": build != 9093, "known_by": "seen"}
    assert arm["traits"]["clears_counters"] == {"holds": build > 11433, "known_by": "seen"}
    assert arm["traits"]["scrape_resets_gauges"] == {"holds": build > 11433, "known_by": "rule"}
    data = lab.read_run(run.folder)
    assert any(row["values"] for row in data.metrics)
    assert all(row["timings"] for row in data.requests)


def test_batching_secretly_off_on_used_slots_is_refuted(engine: str, tmp_path: Path) -> None:
    _, verdict = run_late_arrival(tmp_path, engine=engine, really_on=False, control=False, **LONG)
    assert verdict.status == "refuted", verdict


def test_an_a_that_is_over_first_is_inconclusive(engine: str, tmp_path: Path) -> None:
    _, verdict = run_late_arrival(tmp_path, engine=engine, a_tokens=8, trigger_tokens=8, control=False)
    assert verdict.status == "inconclusive", verdict


def test_without_slots_nothing_is_refuted(engine: str, tmp_path: Path) -> None:
    _, verdict = run_late_arrival(
        tmp_path, engine=engine, really_on=False, control=False, slots_endpoint=False, metrics_endpoint=False
    )
    assert verdict.status == "inconclusive", verdict


async def with_server(engine: str, tmp_path: Path, use: Any, **settings: Any) -> Any:
    server_settings = lab.ServerSettings(engine=engine, model="toy", **settings)
    async with lab.open_server(server_settings, log_path=tmp_path / "s.log", lock_timeout_s=60, say=quiet) as server:
        return await use(server)


@pytest.mark.parametrize("really_on", [True, False])
def test_attached_with_a_foreign_client_the_verdict_never_contradicts_the_truth(
    engine: str, tmp_path: Path, really_on: bool
) -> None:
    async def use(server: lab.Server) -> list[str]:
        found = []
        for foreign in (False, True, True):
            _, verdict = await attached_arrival(server, tmp_path, foreign=foreign, **LONG)
            found.append(verdict.status)
        return found

    alone, *crowded = asyncio.run(with_server(engine, tmp_path, use, cont_batching=really_on, parallel=3))
    assert alone == ("supported" if really_on else "refuted")
    assert ("refuted" if really_on else "supported") not in crowded


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"parallel": 3, "ctx_size": 1000, "kv_unified": False}, (3, 512, 1536, False)),
        ({"parallel": 3, "ctx_size": 1000, "kv_unified": True}, (3, 1024, 1024, True)),
        ({"parallel": "auto", "ctx_size": 1024, "kv_unified": False}, (4, 1024, 1024, True)),
    ],
)
def test_effective_values_are_read_on_every_build(
    engine: str, tmp_path: Path, settings: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    async def use(server: lab.Server) -> Any:
        return server.effective

    found = asyncio.run(with_server(engine, tmp_path, use, **settings))
    assert (found.slots, found.slot_cells, found.pool_cells, found.kv_unified) == expected


def test_a_key_is_asked_for_and_is_in_no_log(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_API_KEY", "matrix-key-5d1c")

    async def use(server: lab.Server) -> int:
        async with httpx.AsyncClient(trust_env=False) as client:
            return (await client.get(f"{server.base_url}/slots")).status_code

    assert asyncio.run(with_server(engine, tmp_path, use)) == 401
    assert "key-5d1c" not in (tmp_path / "s.log").read_text()


def test_the_doctor_says_what_is_offered(engine: str, build: int, capsys: pytest.CaptureFixture[str]) -> None:
    lab.doctor(engine)
    page = capsys.readouterr().out
    assert f"b{build}, from version of the xllamacpp wheel" in page
    assert ("counts prompt tokens in /slots               no" in page) == (build == 9093)
    assert page.splitlines()[-1].endswith("can be judged")


def test_one_pool_and_boxes_are_told_apart_and_every_claim_holds(engine: str, build: int, tmp_path: Path) -> None:
    frames, verdict = asyncio.run(kv_experiment(tmp_path, engine=engine, ctx_size=1024))
    assert verdict.status == "supported", verdict
    source = (kv_areas.cell_use(frames, "unified") or kv_areas.CellUse(0, 1.0, "nothing")).source
    assert (source == "/slots") == (build != 9093)  # that build does not count cells there


def test_a_cap_for_each_slot_is_heeded_or_refused_by_name(engine: str, build: int, tmp_path: Path) -> None:
    settings = lab.ServerSettings(model="toy", engine=engine, parallel=4, ctx_size=1024, kv_unified_per_slot=256)

    async def scene() -> Any:
        async with lab.open_server(settings, log_path=tmp_path / "log", lock_timeout_s=60, say=quiet) as server:
            return server.effective

    if build > 11433:
        has = asyncio.run(scene())
        assert (has.slot_cells, has.pool_cells, has.kv_unified) == (256, 1024, True)
    else:
        with pytest.raises(lab.LabError, match="does not know kv_unified_per_slot"):
            asyncio.run(scene())
