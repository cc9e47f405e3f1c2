"""Paths that are no llama-server, and what a probe reads from those that are."""

from __future__ import annotations

import re
from pathlib import Path

import psutil
import pytest

import labkit as lab
from labkit.engine import binary
from labkit.engine.binary import number_of, probe
from labkit.errors import EngineError
from tests.fake.bad_engines import BAD_ENGINES, BadEngine, script

FLAGS = (
    "-c,    --ctx-size N    size\\n-kvu,  --kv-unified, -no-kvu, --no-kv-unified\\n"
    "                       see --not-a-flag\\n--cont-batching\\n"
)


@pytest.mark.parametrize("bad", BAD_ENGINES, ids=lambda bad: bad.name)
def test_every_bad_engine_gets_one_clear_sentence(
    bad: BadEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binary, "PROBE_LIMIT_S", 0.5 if "answers" in bad.name or "child" in bad.name else 20.0)
    with pytest.raises(EngineError) as raised:
        probe(str(bad.make(tmp_path)))
    assert re.search(bad.says, str(raised.value)), raised.value
    assert "Try: " in str(raised.value)
    # nothing that it has started is left
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(p.info["cmdline"] or ())]


@pytest.mark.parametrize(
    ("version", "number", "commit"),
    [
        ("version: 10156 (8161641)", 10156, "8161641"),
        ("version: 0.6.0-dev (build 11434, commit abc123)", 11434, "abc123"),
        ("version: 0 (unknown)", None, None),
        ("version 1", None, None),
    ],
)
def test_both_forms_of_a_version_are_read(tmp_path: Path, version: str, number: int | None, commit: str | None) -> None:
    path = script(f"[ $1 = --help ] && printf '%b' '{FLAGS}' || echo '{version}' >&2")(tmp_path)
    found = probe(str(path))
    assert (found.number, found.commit) == (number, commit)
    assert found.flags == {
        "-c", "--ctx-size", "-kvu", "--kv-unified", "-no-kvu", "--no-kv-unified", "--cont-batching",
    }  # fmt: skip


def test_a_probe_hands_over_no_secret_and_no_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LLAMA_ARG_PORT", "LLAMA_API_KEY", "LABKIT_API_KEY", "HF_TOKEN"):
        monkeypatch.setenv(name, "planted")
    path = script(f"env > {tmp_path}/env; [ $1 = --help ] && printf '%b' '{FLAGS}' || echo 'version: 1 (a)'")(tmp_path)
    probe(str(path))
    assert "planted" not in (tmp_path / "env").read_text()


def test_a_child_that_keeps_the_output_open_does_not_make_a_good_binary_bad(tmp_path: Path) -> None:
    path = script(f"sleep 60 & [ $1 = --help ] && printf '%b' '{FLAGS}' || echo 'version: 1 (a)'")(tmp_path)
    assert probe(str(path)).number == 1


@pytest.mark.parametrize("engine", ["~nosuchuser/x", "x" * 5000])
def test_a_path_that_is_none_is_refused(engine: str) -> None:
    with pytest.raises(EngineError, match="no path that can be used"):
        probe(engine)


def test_an_address_without_http_is_understood() -> None:
    with pytest.raises(EngineError, match=r"Try: http://localhost:8080, if it is a server's address"):
        probe("localhost:8080")


def test_a_build_number_is_read_from_build_info() -> None:
    assert [number_of(text) for text in ("b10156-816", "b0-unknown", None, "x")] == [10156, None, None, None]


def test_an_engine_that_is_not_built_yet_says_so() -> None:
    with pytest.raises(EngineError, match="build does not exist"):
        probe("build")


def test_another_environments_wheel_must_be_there(tmp_path: Path) -> None:
    from labkit.engine.embedded import embedded_launch

    with pytest.raises(EngineError, match="is not a virtual environment: it has no bin/python"):
        embedded_launch(f"embedded:{tmp_path}", {}, [])
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    values = {"model_path": "m"}
    with pytest.raises(EngineError, match=r"not installed: no xllamacpp in .*Try: .*python -m pip install xllamacpp"):
        embedded_launch(f"embedded:{tmp_path}", values, [])
    assert lab.ServerSettings(engine=f"embedded:{tmp_path}").engine.startswith("embedded:")
