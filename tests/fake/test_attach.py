"""Attaching to a URL: what is looked at, what is refused, and what is never done."""

from __future__ import annotations

import asyncio
import re
import signal
import ssl
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import labkit as lab
from labkit.engine import attach, http
from labkit.errors import LabError, ParameterError
from labkit.measure import load as loading
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
        ("http://", "a URL without a host"),
        ("http://127.0.0.1:port-secret-9", "is no URL"),
        ("http://[::1", "is no URL"),
        ("http://xn--/", "is no URL|can't be used"),
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
    assert known("LLAMA_ARG_NO_CONT_BATCHING=1 llama-server").effective.cont_batching is False
    assert known("llama-server -np 2").effective.batch_size is None
    assert got.sources["slots"] == "/props"
    assert got.sources["kv_unified"] == "the command line given as server_argv"
    assert server.asked["parallel"] == 2


@pytest.mark.parametrize(
    ("argv", "unified", "pool"),
    [
        ("llama-server -np 0 -c 512", None, None),
        ("llama-server -np ² -c 512", None, None),
        ("llama-server -np auto -c 512", None, None),
        ("llama-server -np -1 -c 512", True, 512),
        ("llama-server -np 2 -kvu -c 0", True, None),
        ("llama-server -np 2 -kvu -c 8k", True, None),
        ("llama-server -np 2 -c " + "9" * 5000, False, None),
        ("LLAMA_ARG_NO_KV_UNIFIED=0 llama-server -np 2 -c 512", False, 512),
        ("llama-server -np 2 -c 512 LLAMA_ARG_KV_UNIFIED=1", False, 512),
        ("LLAMA_ARG_FOO llama-server -np 2 -c 512 --temp 0.7", False, 512),
    ],
)
def test_what_a_command_line_does_not_tell_stays_unknown(argv: str, unified: bool | None, pool: int | None) -> None:
    got = known(argv).effective
    assert (got.kv_unified, got.pool_cells) == (unified, pool)


def test_without_a_slot_count_the_cache_is_unified_whatever_the_flag_says() -> None:
    assert known("llama-server -c 2048 --no-kv-unified").effective.kv_unified is True
    assert known("llama-server -np 2 -kvu -c 2048").effective.pool_cells == 2048


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ("llama-server -c", "-c stands without its value"),
        ("llama-server -c --parallel 2", "-c stands without its value"),
        ("llama-server 'x", "is no command line"),
        ("llama-server --parallel=4", "does not take --parallel=4: a value stands after a space"),
        ("llama-server -np4 -c8192", "does not take -np4"),
        ("llama-server -np 4; llama-server -np 8", "does not belong into one command line|stands without"),
        ("llama-server -cb && rm -rf x", "does not belong into one command line"),
        ("export LLAMA_ARG_N_PARALLEL=4", "does not belong into one command line"),
        ('Environment="LLAMA_ARG_N_PARALLEL=4" llama-server', "does not belong into one command line"),
    ],
)
def test_a_command_line_that_cannot_be_used_is_refused(argv: str, sentence: str) -> None:
    with pytest.raises(ParameterError, match=sentence) as raised:
        known(argv)
    assert "secret-9" not in str(raised.value)


# --- slow, endless and greedy -------------------------------------------------------------------------


async def drip(exchange: Exchange) -> None:
    await exchange.head(200, "application/json")
    for _ in range(600):  # each byte comes well within the limit of a read
        await exchange.send(b" ")
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("endpoint", ["health", "props", "models", "slots"])
def test_an_answer_that_drips_for_ever_is_given_up(endpoint: str) -> None:
    async def scene(fake: FakeServer) -> str:
        try:
            return "\n".join((await visit(fake.base_url))[1])
        except LabError as problem:
            return str(problem)

    assert "no answer within the limit" in at_fake(scene, **{endpoint: drip}) or endpoint == "models"


def test_a_server_that_ignores_max_tokens_is_left(tmp_path: Path) -> None:
    sent = [0]

    async def endless(exchange: Exchange) -> None:
        await exchange.head()
        while True:
            sent[0] += 1
            await exchange.token()
            await asyncio.sleep(0.001)

    run = lab.read_run(at_fake(lambda fake: measured(fake, tmp_path), chat=endless).folder)
    assert (run.requests[0]["outcome"], run.requests[0]["tokens"]) == ("overrun", 4 + 8 + 1)
    assert "did not stop at max_tokens = 4" in run.requests[0]["error"]
    assert sent[0] < 200


def test_pings_alone_do_not_keep_a_load_going_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "PINGS_ALONE", 0.4)

    async def pings(exchange: Exchange) -> None:
        await exchange.head()
        while True:
            await exchange.send(b":\n\n")
            await asyncio.sleep(0.05)

    run = lab.read_run(at_fake(lambda fake: measured(fake, tmp_path), chat=pings).folder)
    assert run.requests[0]["outcome"] == "stalled"


# --- the doctor ---------------------------------------------------------------------------------------


def told(fake: FakeServer, **more: Any) -> Awaitable[None]:
    return asyncio.to_thread(lab.doctor, fake.base_url, **more)


def test_the_doctor_wakes_nobody_and_says_what_follows(capsys: pytest.CaptureFixture[str]) -> None:
    async def scene(fake: FakeServer) -> list[str]:
        await told(fake)
        return fake.seen

    seen = at_fake(scene, props=says(PROPS | {"is_sleeping": True}))
    page = capsys.readouterr().out
    assert set(seen) <= {"/health", "/v1/models", "/props"}
    assert "the server is asleep" in page
    assert "can't be decided: /slots does not say" in page.splitlines()[-1]


def test_the_doctor_keeps_to_the_limits_on_load(capsys: pytest.CaptureFixture[str]) -> None:
    async def scene(fake: FakeServer) -> int:
        limits = lab.AttachSettings(allow_load=True, max_requests=3)
        await told(fake, attach=limits)
        return fake.seen.count("/v1/chat/completions")

    assert at_fake(scene, props=says(PROPS | {"total_slots": 300}), slots=error(404)) == 3
    assert "of 3 came" in capsys.readouterr().out


def test_the_doctor_works_where_a_loop_runs_and_an_interrupt_ends_it(capsys: pytest.CaptureFixture[str]) -> None:
    from labkit.present.doctor import _finished

    async def in_a_notebook() -> None:
        async def quick() -> list[tuple[str, str]]:
            return [("a", "b")]

        assert _finished(quick()) == [("a", "b")]
        ended = []

        async def slow() -> list[tuple[str, str]]:
            try:
                await asyncio.sleep(60)
            finally:
                ended.append(True)
            return []

        threading.Timer(0.3, signal.raise_signal, [signal.SIGINT]).start()
        with pytest.raises(KeyboardInterrupt):
            _finished(slow())
        assert ended

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(in_a_notebook())
        loop.close()
    finally:
        signal.signal(signal.SIGINT, before)


# --- secrets ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"engine": "http://user:secret-9@127.0.0.1:1"},
        {"engine": "http://127.0.0.1:1/?api_key=secret-9"},
        {"server_argv": "llama-server --api-key secret-9"},
        {"server_argv": "llama-server --api_key=secret-9"},
        {"server_argv": "llama-server --hf_token secret-9"},
        {"server_argv": "LLAMA_API_KEY=secret-9 llama-server"},
        {"server_argv": "docker run -e HF_TOKEN=secret-9 llama"},
        {"server_argv": "docker run --env=LLAMA_API_KEY=secret-9 llama"},
        {"server_argv": "llama-server --model-url https://u:secret-9@host/m.gguf"},
        {"extra_args": ["--api-key", "secret-9"]},
        {"extra_args": '["-hft", "secret-9"]'},
        {"extra_args": ["--model-url", "https://u:secret-9@host/m.gguf"]},
    ],
    ids=str,
)
def test_a_secret_in_a_parameter_is_refused_before_anything_is_written(settings: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=r"seems to carry a secret.*make a new key") as raised:
        lab.LateArrival(**settings)
    assert "secret-9" not in str(raised.value)


def test_paths_and_counts_are_no_secrets() -> None:
    lab.LateArrival(engine="/home/me/api-key-test/llama-server", extra_args=["--checkpoint-every-n-tokens", "5"])
    lab.LateArrival(server_argv="llama-server -m /secret/token.gguf --temp 0.7 --spm-infill")


@pytest.mark.parametrize("key", ["sécret-9", "two words", "a\tb"])
def test_a_key_that_no_header_can_carry_is_refused_without_repeating_it(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABKIT_API_KEY", key)
    with pytest.raises(ParameterError, match="can't be sent in a request header") as raised:
        asyncio.run(visit("http://127.0.0.1:1"))
    assert key not in str(raised.value)


def test_a_key_file_that_is_no_text_is_refused_and_blanks_around_a_key_do_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_bytes(b"\xff\xfe\x00")
    monkeypatch.setenv("LABKIT_API_KEY_FILE", str(tmp_path / "key"))
    with pytest.raises(ParameterError, match="can't be sent"):
        asyncio.run(visit("http://127.0.0.1:1"))
    monkeypatch.setenv("LABKIT_API_KEY", " right\n")
    at_fake(lambda fake: visit(fake.base_url), props=locked)
