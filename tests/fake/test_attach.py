"""Attaching to a URL: what is looked at, what is refused, and what is never done."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import labkit as lab
from labkit.engine import attach, http
from labkit.errors import LabError, ParameterError
from tests.fake.bad_servers import BAD_SERVERS, ROUTER_PROPS, BadServer, entry, error, says
from tests.fake.server import MODEL, PROPS, Exchange, FakeServer


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attach, "LOOK_LIMIT_S", 0.6)


async def visit(url: str, then: Any = None, **more: Any) -> tuple[lab.Server, list[str]]:
    """Attach, do `then(server)`, and leave; returns the server and what was said."""
    said: list[str] = []
    async with lab.attach_server(url, load_timeout_s=1.0, say=said.append, **more) as server:
        if then:
            await then(server)
    return server, said


def at_fake(scene: Callable[[FakeServer], Awaitable[Any]], **routes: Any) -> Any:
    async def run() -> Any:
        async with FakeServer(**routes) as server:
            return await scene(server)

    return asyncio.run(run())


@pytest.mark.parametrize("bad", BAD_SERVERS, ids=lambda bad: bad.name)
def test_every_bad_server_gets_one_clear_sentence(bad: BadServer) -> None:
    async def scene() -> str:
        async with bad.open() as url:
            if bad.attaches:
                return "\n".join((await visit(url))[1])
            with pytest.raises(LabError) as raised:
                await visit(url)
            return str(raised.value)

    sentence = asyncio.run(scene())
    assert re.search(bad.says, sentence, re.DOTALL), sentence
    assert "Traceback" not in sentence
    assert len(sentence) < 700


def test_a_good_server_is_known_by_what_it_says() -> None:
    server, said = at_fake(lambda fake: visit(fake.base_url + "/v1/"))
    assert said == []
    assert server.attached
    assert server.alive
    assert server.stop() == "not ours"
    assert server.build | {"package": ""} == {
        "reported": "b10156-abc", "number": 10156, "number_source": "build_info in /props", "package": "",
    }  # fmt: skip
    assert (server.effective.slots, server.effective.slot_cells, server.effective.kv_unified) == (2, 4096, None)
    assert (server.model.name, server.model.sha256, server.model.facts.n_ctx_train) == ("m", None, 8192)
    assert server.describe()["asked"]["parallel"] is None


def test_looking_asks_only_what_costs_nothing() -> None:
    async def scene(fake: FakeServer) -> list[str]:
        await visit(fake.base_url)
        return fake.seen

    assert at_fake(scene) == ["/health", "/v1/models", "/props", "/slots"]
    asleep = at_fake(scene, props=says(PROPS | {"is_sleeping": True}))
    assert asleep == ["/health", "/v1/models", "/props"]


def test_a_server_that_loads_is_waited_for_and_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attach, "_RETRY_EVERY_S", 0.05)
    monkeypatch.setattr(attach, "_PROGRESS_EVERY_S", 0.1)
    left = [6]

    async def loading(exchange: Exchange) -> None:
        left[0] -= 1
        await (exchange.error(503, "Loading model") if left[0] > 0 else exchange.answer({"status": "ok"}))

    _, said = at_fake(lambda fake: visit(fake.base_url), health=loading)
    assert "is loading its model" in said[0]


# --- addresses ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("http://user:secret-9@127.0.0.1:1", "carries more than an address"),
        ("http://127.0.0.1:1/?api_key=secret-9", "carries more than an address"),
        ("http://", "names no host"),
        ("http://127.0.0.1:port", "is no URL"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_without_repeating_a_secret(url: str, sentence: str) -> None:
    with pytest.raises(ParameterError, match=sentence) as raised:
        asyncio.run(visit(url))
    assert "secret-9" not in str(raised.value)


def test_a_server_on_ipv6_alone_is_reached_and_measured(tmp_path: Path) -> None:
    async def scene(fake: FakeServer) -> lab.Run:
        return await measured(fake, tmp_path)

    run = lab.read_run(at_fake(scene, host="::1").folder)
    assert run.requests[0]["outcome"] == "completed"
    assert run.run["arms"]["a"]["server"]["base_url"].startswith("http://[::1]:")


def test_a_private_authority_is_trusted_when_told_and_streams_work_over_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import trustme

    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    http.trusted.cache_clear()

    async def scene(fake: FakeServer) -> list[str]:
        run = await measured(fake, tmp_path)
        return [row["outcome"] for row in lab.read_run(run.folder).requests]

    try:
        assert at_fake(scene, tls=context) == ["completed"]
    finally:
        http.trusted.cache_clear()


# --- keys ---------------------------------------------------------------------------------------------


async def locked(exchange: Exchange) -> None:
    await (exchange.answer(PROPS) if "Bearer right" in exchange.head_text else exchange.error(401, "Invalid API Key"))


def test_a_wrong_key_is_told_from_none_and_the_right_one_goes_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_API_KEY", "wrong-key")
    with pytest.raises(LabError, match="refuses this API key") as raised:
        at_fake(lambda fake: visit(fake.base_url), props=locked)
    assert "wrong-key" not in str(raised.value)
    monkeypatch.setenv("LABKIT_API_KEY", "right")
    server, _ = at_fake(lambda fake: visit(fake.base_url), props=locked)
    assert "right" not in repr(server) + str(server.describe())


# --- load ---------------------------------------------------------------------------------------------


def plan(requests: int = 1) -> lab.LoadPlan:
    made = [lab.RequestPlan(label="ABCDEFGH"[i], prompt="hi", max_tokens=4, seed=i + 1) for i in range(requests)]
    return lab.LoadPlan(requests=tuple(made), stall_timeout_s=2)


async def measured(fake: FakeServer, tmp_path: Path, requests: int = 1, model: str = "m", **limits: Any) -> lab.Run:
    run = lab.open_run("x", lab.LateArrival(), outputs=str(tmp_path))

    async def load(server: lab.Server) -> None:
        sampling = lab.SampleSettings(poll_hz=50)
        await lab.measure_arm(server, plan(requests), run=run, arm="a", sampling=sampling, say=lambda _: None)

    try:
        settings = lab.AttachSettings(**{"allow_load": True} | limits)
        await visit(fake.base_url, load, attach=settings, model=model)
    finally:
        run.close()
    return run


@pytest.mark.parametrize(
    ("requests", "limits", "sentence"),
    [
        (1, {"allow_load": False}, r"no request was sent to http.*allow_load = True"),
        (3, {"max_requests": 2}, r"needs max_requests = 3, 2 are allowed.*Try: max_requests = 3"),
        (2, {"max_total_tokens": 13}, r"needs max_total_tokens = 14, 13 are allowed"),
    ],
)
def test_no_load_without_leave_and_none_above_the_limits(
    tmp_path: Path, requests: int, limits: dict[str, Any], sentence: str
) -> None:
    async def scene(fake: FakeServer) -> list[str]:
        with pytest.raises(ParameterError, match=sentence):
            await measured(fake, tmp_path, requests, **limits)
        return fake.seen

    seen = at_fake(scene)
    assert not [path for path in seen if path.startswith("/v1/chat")]
    if not limits.get("allow_load", True):
        assert "/tokenize" not in seen  # that would wake a sleeping server


def test_an_allowed_load_has_no_warm_up_and_stays_within_its_number(tmp_path: Path) -> None:
    async def scene(fake: FakeServer) -> tuple[list[str], lab.Run]:
        run = await measured(fake, tmp_path, 2, max_requests=2, max_total_tokens=14)
        return fake.seen, run

    seen, run = at_fake(scene)
    assert seen.count("/v1/chat/completions") == 2
    data = lab.read_run(run.folder)
    assert data.run["arms"]["a"]["server"]["attached"] is True
    assert not [row for row in data.requests if row["warm_up"]]
    assert data.run["arms"]["a"]["traits"]["scrape_resets_gauges"] == {"holds": False, "known_by": "rule"}
    assert data.metrics[0]["values"] == {"requests_deferred": 0.0}


def test_somebody_elses_gauges_are_not_reset(tmp_path: Path) -> None:
    async def scene(fake: FakeServer) -> list[str]:
        await measured(fake, tmp_path)
        return fake.seen

    for build in ("b11549-x", "unknown"):
        assert "/metrics" not in at_fake(scene, props=says(PROPS | {"build_info": build}))


# --- routers ------------------------------------------------------------------------------------------


async def routed_props(exchange: Exchange) -> None:
    await exchange.answer(
        PROPS | {"model_alias": exchange.query["model"]} if "model" in exchange.query else ROUTER_PROPS
    )


async def routed_slots(exchange: Exchange) -> None:
    slot = {"id": 0, "n_ctx": 4096, "is_processing": False}
    if "model" not in exchange.query:
        await exchange.error(400, "model name is missing from the request")
    else:
        await exchange.answer([slot, slot | {"id": 1}])


def test_a_routers_model_is_named_in_every_request_and_nothing_is_loaded_by_looking(tmp_path: Path) -> None:
    name = "org/name:Q4_K_M"
    bodies: list[Any] = []

    async def chat(exchange: Exchange) -> None:
        bodies.append(exchange.json["model"])
        await exchange.head()
        await exchange.token()
        await exchange.finish()

    async def scene(fake: FakeServer) -> tuple[list[str], lab.Run]:
        run = await measured(fake, tmp_path, model=name)
        return fake.seen, run

    routes = {"models": says({"data": [entry("other", "unloaded"), entry(name, "loaded")]}), "chat": chat}
    seen, run = at_fake(scene, props=routed_props, slots=routed_slots, **routes)
    unrouted = ("/health", "/v1/models", "/props")
    routed = [path for path in seen if path not in unrouted]
    assert all("model=org%2Fname%3AQ4_K_M" in path and "autoload=false" in path for path in routed), routed
    assert bodies == [name]
    server = lab.read_run(run.folder).run["arms"]["a"]["server"]
    assert server["model_id"] == name
    assert name in server["notes"][0]


def test_an_old_router_is_known_by_its_complaint() -> None:
    complaint = error(400, "model name is missing from the request")
    with pytest.raises(LabError, match="router with 1 models"):
        at_fake(lambda fake: visit(fake.base_url), props=complaint, slots=complaint)
    server, _ = at_fake(lambda fake: visit(fake.base_url), models=says({"data": [MODEL]}))
    assert server.query == {}


# --- a command line that the user knows ---------------------------------------------------------------


def known(argv: str) -> Any:
    server, _ = at_fake(lambda fake: visit(fake.base_url, attach=lab.AttachSettings(server_argv=argv)))
    return server


def test_a_command_line_fills_in_what_the_api_does_not_tell() -> None:
    server = known(
        "LLAMA_ARG_UBATCH=128 /opt/llama-server -m x.gguf -np 2 -c 5000 -b 1024 --no-cont-batching --temp 0.7"
    )
    got = server.effective
    assert (got.kv_unified, got.pool_cells, got.batch_size, got.ubatch_size) == (False, 5120, 1024, 128)
    assert (got.slots, got.cont_batching) == (2, False)
    assert got.sources["slots"] == "/props"
    assert got.sources["kv_unified"] == "the command line given as server_argv"
    assert server.asked["parallel"] == 2


def test_without_a_slot_count_the_cache_is_unified_whatever_the_flag_says() -> None:
    assert known("llama-server -c 2048 --no-kv-unified").effective.kv_unified is True
    assert known("llama-server -np 2 -kvu -c 2048").effective.pool_cells == 2048


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ("llama-server --api-key secret-9", "make a new key"),
        ("llama-server --api-key=secret-9", "make a new key"),
        ("llama-server -c", "-c stands without its value"),
        ("llama-server 'x", "is no command line"),
    ],
)
def test_a_command_line_that_cannot_be_used_is_refused(argv: str, sentence: str) -> None:
    with pytest.raises(ParameterError, match=sentence) as raised:
        known(argv)
    assert "secret-9" not in str(raised.value)
