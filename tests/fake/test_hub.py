"""Models of a hub: fetched with the real huggingface_hub from a small real endpoint that misbehaves as told."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest

import labkit as lab
from labkit.engine import hub as hub_module
from labkit.engine.toy import toy_gguf
from labkit.errors import ModelError
from tests.conftest import ended, heed_interrupts

COMMIT, TOKEN = "0123456789" * 4, "hf_plantedPlantedPlanted"
TOY = "hf:org/repo/sub/toy.gguf"


class Hub(ThreadingHTTPServer):
    """An endpoint with one file, in every repository and at every revision."""

    daemon_threads = True

    def __init__(self, gguf: bytes) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.gguf, self.etag, self.size = gguf, hashlib.sha256(gguf).hexdigest(), len(gguf)
        self.commit: str | None = COMMIT
        self.refusal: tuple[int, str] | None = None
        self.cdn = True  # else the hub gives the bytes itself, as it does for small files
        self.xet: dict[str, str] = {}  # headers of a file in Xet storage
        self.n_cuts = 0  # answers to break off half-way
        self.held: str = ""  # "HEAD": answer nothing; "GET": half of the bytes; until `release`
        self.release = threading.Event()
        self.requests: list[tuple[str, str, dict[str, str]]] = []

    def asked(self, method: str) -> list[dict[str, str]]:
        """Return the headers of the requests with this method, redirects aside."""
        return [
            headers for verb, path, headers in self.requests if verb == method and ("/cdn/" in path or not self.cdn)
        ]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that has hung up."""


class Answer(BaseHTTPRequestHandler):
    """What the hub answers."""

    server: Hub

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self._note()
        if self.server.held == "HEAD":
            self.server.release.wait(30)
        if self.server.refusal:
            self._head(self.server.refusal[0], {"X-Error-Code": self.server.refusal[1]})
        else:
            commit = self.server.xet | ({"X-Repo-Commit": self.server.commit} if self.server.commit else {})
            place = f"http://localhost:{self.server.server_port}/cdn/{self.server.etag}?signature=x"
            here = {"ETag": f'"{self.server.etag}"', "Content-Length": str(self.server.size)}
            linked = {
                "Location": place,
                "X-Linked-Etag": f'"{self.server.etag}"',
                "X-Linked-Size": str(self.server.size),
            }
            self._head(*((302, commit | linked) if self.server.cdn else (200, commit | here)))

    def do_GET(self) -> None:
        self._note()
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        body = self.server.gguf[start:]
        span = {"Content-Range": f"bytes {start}-{len(self.server.gguf) - 1}/{len(self.server.gguf)}"} if start else {}
        self._head(206 if start else 200, {"Content-Length": str(len(body))} | span)
        self.wfile.write(body[: len(body) // 2])
        if self.server.n_cuts:
            self.server.n_cuts -= 1
            return
        if self.server.held == "GET":
            self.server.release.wait(30)
        self.wfile.write(body[len(body) // 2 :])

    def _note(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.requests.append((self.command, self.path, headers))

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return toy_gguf(tmp_path_factory.mktemp("toy")).read_bytes()


@pytest.fixture
def hub(gguf: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    for name in [name for name in os.environ if name.startswith(("HF_", "HUGGING"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    with Hub(gguf) as server:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.release.set()
        server.shutdown()
        thread.join()


def halves(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "hf").rglob("*.incomplete"))


def fetcher(parent_pid: int) -> psutil.Process:
    children = [child for child in psutil.Process(parent_pid).children() if not ended(child.pid)]
    return next(child for child in children if "labkit.engine.hub_child" in child.cmdline())


def until(condition: Any, limit_s: float = 10.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_file_is_fetched_pinned_to_its_commit_and_kept(hub: Hub, tmp_path: Path, said: list[str]) -> None:
    model = lab.resolve_model(TOY, say=said.append)
    assert (model.name, model.source, model.licence) == ("toy", f"{TOY}@{COMMIT}", "unknown")
    assert (model.sha256, model.size_bytes) == (hub.etag, len(hub.gguf))
    assert model.path is not None
    assert model.path.is_relative_to(tmp_path / "hf")
    assert model.path.name == "toy.gguf"
    assert len(hub.asked("GET")) == 1
    assert lab.resolve_model(TOY, say=said.append) == model
    assert len(hub.asked("GET")) == 1
    assert said == []


@pytest.mark.full
def test_what_is_pinned_and_kept_asks_nobody(hub: Hub, said: list[str]) -> None:
    model = lab.resolve_model(f"{TOY}@{COMMIT}", say=said.append)
    hub.requests.clear()
    assert lab.resolve_model(model.source, say=said.append) == model
    assert (hub.requests, said) == ([], [])


@pytest.mark.parametrize("store", ["CDN", "Xet", "the hub itself"])
def test_a_branch_is_resolved_to_the_commit_it_is_at(hub: Hub, store: str) -> None:
    hub.cdn = store != "the hub itself"
    hub.xet = {"X-Xet-Hash": "f" * 64, "X-Xet-Refresh-Route": "/api/xet"} if store == "Xet" else {}
    assert lab.resolve_model("hf:org/repo/toy.gguf@refs/pr/7").source == f"hf:org/repo/toy.gguf@{COMMIT}"
    assert hub.requests[0][1] == "/org/repo/resolve/refs%2Fpr%2F7/toy.gguf"


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [("gone", "Connection refused"), ("503", "it answers 503"), ("forbidden", "HF_HUB_OFFLINE is set")],
)
def test_without_a_hub_the_cache_is_used_and_named(
    hub: Hub, trouble: str, reason: str, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    model = lab.resolve_model(TOY)
    if trouble == "gone":
        hub.socket.close()
    elif trouble == "503":
        hub.refusal = (503, "")
    else:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert lab.resolve_model(TOY, say=said.append) == model
    assert said == [f"the hub can't be asked ({reason}): using the cached {TOY}@{COMMIT}"]


@pytest.mark.parametrize(
    ("refusal", "sentence"),
    [
        ((404, "RepoNotFound"), r"org/repo is not on 127\.0\.0\.1:\d+, or private\. Try: its spelling.*HF_TOKEN"),
        ((404, "EntryNotFound"), r"org/repo has no sub/toy\.gguf at main\. Try: a name"),
        ((404, "RevisionNotFound"), r"org/repo has no revision main\. Try: a branch"),
        ((401, "GatedRepo"), r"org/repo is gated\. Try: ask for access.*HF_TOKEN"),
        ((403, "GatedRepo"), r"org/repo is gated"),
        ((401, ""), r"refuses to give sub/toy\.gguf of org/repo: it answers 401\. Try: an account"),
        ((404, ""), r"does not give sub/toy\.gguf of org/repo: it answers 404\. Try: another HF_ENDPOINT"),
        ((429, ""), r"can't give sub/toy\.gguf of org/repo now: it answers 429\. Try: again later"),
        ((503, ""), r"now: it answers 503\. Try: again later, or give a path"),
    ],
    ids=str,
)
def test_each_refusal_has_its_sentence(hub: Hub, refusal: tuple[int, str], sentence: str) -> None:
    hub.refusal = refusal
    with pytest.raises(ModelError, match=sentence):
        lab.resolve_model(TOY)


@pytest.mark.full
def test_what_is_no_hub_is_called_so(hub: Hub) -> None:
    hub.commit = None
    with pytest.raises(ModelError, match=r"127\.0\.0\.1:\d+ is not a hub: it tells no commit.*HF_ENDPOINT"):
        lab.resolve_model(TOY)


@pytest.mark.full
def test_a_hub_that_is_not_there_is_named(hub: Hub) -> None:
    hub.socket.close()
    with pytest.raises(ModelError, match=r"can't be fetched from 127\.0\.0\.1:\d+: Connection refused\. Try: the netw"):
        lab.resolve_model(TOY)


@pytest.mark.full
def test_a_cache_that_cannot_be_written_is_named(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "hf").write_text("a file where the folder should be")
    with pytest.raises(ModelError, match=r"can't be kept in the library's cache: Not a directory\. Try: HF_HOME"):
        lab.resolve_model(TOY)


@pytest.mark.full
def test_another_size_than_announced_is_refused(hub: Hub, tmp_path: Path) -> None:
    hub.size += 1
    with pytest.raises(ModelError, match=r"sub/toy\.gguf came with another size than 127.* announced"):
        lab.resolve_model(TOY)
    assert halves(tmp_path) == []


@pytest.mark.full
def test_other_bytes_than_announced_are_fetched_once_more_then_refused(hub: Hub, said: list[str]) -> None:
    hub.gguf = hub.gguf[:-1] + b"!"
    with pytest.raises(ModelError, match=r"arrives damaged: its sha256 is another"):
        lab.resolve_model(TOY, say=said.append)
    assert len(hub.asked("GET")) == 2
    assert "is not what the hub announced" in said[0]


@pytest.mark.full
def test_a_cached_file_that_was_truncated_is_fetched_again(hub: Hub, said: list[str]) -> None:
    model = lab.resolve_model(f"{TOY}@{COMMIT}")
    assert model.path is not None
    model.path.write_bytes(hub.gguf[:-1000])
    assert lab.resolve_model(f"{TOY}@{COMMIT}", say=said.append) == model
    assert len(said) == 1
    assert model.path.read_bytes() == hub.gguf


@pytest.mark.full
def test_a_broken_connection_is_taken_up_where_it_broke(hub: Hub) -> None:
    hub.gguf *= 10  # some MB
    hub.size, hub.n_cuts = len(hub.gguf), 1
    found = hub_module.fetch_from_hub(TOY, print, threading.Event())
    assert found.path.read_bytes() == hub.gguf
    assert [headers.get("range") for headers in hub.asked("GET")] == [None, "bytes=2097152-"]


@pytest.mark.full
def test_progress_is_told(hub: Hub, monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    monkeypatch.setattr(hub_module, "_PROGRESS_EVERY_S", 0.05)
    hub.gguf *= 10  # some MB
    hub.size, hub.held = len(hub.gguf), "GET"

    def say(line: str) -> None:
        said.append(line)
        if f" of {hub.size / 1e6:.0f} MB" in line and ": 0 of" not in line:
            hub.release.set()

    hub_module.fetch_from_hub(TOY, say, threading.Event())
    assert said[0].startswith("fetching toy.gguf from org/repo: no bytes yet, 0 s")
    assert said[-1].startswith("fetching toy.gguf from org/repo: ")


@pytest.mark.parametrize("held", ["HEAD", "GET"])
def test_stop_ends_a_fetch_that_hangs(hub: Hub, held: str, tmp_path: Path) -> None:
    hub.held, stop = held, threading.Event()
    with ThreadPoolExecutor() as pool:
        fetch = pool.submit(lab.resolve_model, TOY, stop=stop)
        until(lambda: held in {method for method, _, _ in hub.requests})
        asked = time.monotonic()
        stop.set()
        with pytest.raises(ModelError, match=r"toy\.gguf from org/repo was not fetched: interrupted"):
            fetch.result(10)
    assert time.monotonic() - asked < 1.0
    assert halves(tmp_path) == []


@pytest.mark.full
def test_a_fetch_has_a_limit(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "FETCH_LIMIT_S", 0.2)
    hub.held = "HEAD"
    with pytest.raises(ModelError, match=r"was not fetched: not done within 0 s"):
        lab.resolve_model(TOY)


@pytest.mark.full
def test_two_fetches_at_once_download_once(hub: Hub) -> None:
    hub.held = "GET"
    with ThreadPoolExecutor() as pool:
        fetches = [pool.submit(lab.resolve_model, TOY) for _ in range(2)]
        until(lambda: sum(method == "HEAD" for method, _, _ in hub.requests) == 4)
        hub.release.set()
        assert len({fetch.result(10).path for fetch in fetches}) == 1
    assert len(hub.asked("GET")) == 1


@pytest.mark.full
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_a_fetch_ended_half_way_leaves_no_trap(hub: Hub, how: signal.Signals, tmp_path: Path) -> None:
    hub.held = "GET"
    script = f"import labkit; labkit.resolve_model({TOY!r})"
    run = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL, preexec_fn=heed_interrupts)
    until(lambda: hub.asked("GET"))
    child = fetcher(run.pid)
    run.send_signal(how)
    run.wait(10)
    until(lambda: ended(child.pid))
    assert halves(tmp_path) == []
    hub.held = ""
    assert lab.resolve_model(TOY).sha256 == hub.etag


def test_the_token_reaches_the_hub_and_nothing_else(hub: Hub, monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(hub_module, "_PROGRESS_EVERY_S", 0.05)
    hub.held = "GET"
    with ThreadPoolExecutor() as pool:
        fetch = pool.submit(lab.resolve_model, TOY, say=said.append)
        until(lambda: hub.asked("GET"))
        child = fetcher(os.getpid())
        assert TOKEN not in " ".join(child.cmdline())
        hub.release.set()
        assert TOKEN not in repr(fetch.result(10))
    assert hub.requests[0][2]["authorization"] == f"Bearer {TOKEN}"
    assert "authorization" not in hub.asked("GET")[0]
    assert said
    assert TOKEN not in "".join(said)


@pytest.mark.parametrize("token", [TOKEN, f"{TOKEN}\x00", f"{TOKEN}é"], ids=["good", "control", "not ASCII"])
def test_the_token_is_in_no_error(hub: Hub, token: str, tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "token").write_text(token, encoding="utf-8")  # as `hf auth login` leaves it
    hub.refusal = (401, "")
    with pytest.raises(ModelError) as caught:
        lab.resolve_model(TOY)
    assert TOKEN not in repr(caught.value) + str(caught.value)
    assert {headers.get("authorization") for _, _, headers in hub.requests} <= {f"Bearer {TOKEN}"}


@pytest.mark.full
def test_a_password_in_the_endpoint_is_in_no_error(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", f"http://me:sesame@127.0.0.1:{hub.server_port}")
    hub.refusal = (404, "RepoNotFound")
    with pytest.raises(ModelError, match=r"org/repo is not on 127\.0\.0\.1") as caught:
        lab.resolve_model(TOY)
    assert "sesame" not in str(caught.value)


@pytest.mark.parametrize(
    "reference",
    [
        "hf:",
        "hf:toy.gguf",
        "hf:repo/toy.gguf",
        "hf:org/repo/",
        "hf:org/repo/model.safetensors",
        "hf:org/repo/../toy.gguf",
        "hf:../repo/toy.gguf",
        "hf:org/repo/sub//toy.gguf",
        "hf:org/repo/sub\\toy.gguf",
        "hf:org/repo/toy.gguf@",
        "hf:org/repo/toy.gguf@../../main",
        "hf:org/repo/toy.gguf@a@b",
        "hf://org/repo/toy.gguf",
    ],
)
def test_what_is_no_reference_is_told_the_form(reference: str) -> None:
    with pytest.raises(ModelError, match=r"names no GGUF file of a hub\. Try: hf:org/repo/folder/file\.gguf"):
        lab.resolve_model(reference)


def test_a_name_that_no_repository_can_have_is_told_the_form(hub: Hub) -> None:
    with pytest.raises(ModelError, match=r"org/a--b can't be a repository's name"):
        lab.resolve_model("hf:org/a--b/toy.gguf")
    assert hub.requests == []


def test_without_the_library_there_is_a_way_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelError, match=r"needs huggingface_hub.*pip install -e '\.\[hub\]'"):
        lab.resolve_model(TOY)
