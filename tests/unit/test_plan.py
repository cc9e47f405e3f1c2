"""The load of 03, and the key: what needs no server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import labkit as lab
from labkit.engine.key import Secret, api_key
from labkit.errors import ParameterError


def plan(endpoint: str = "chat", **parameters: Any) -> lab.LoadPlan:
    server = SimpleNamespace(endpoint=endpoint, require_load_allowed=lambda: None, attached=False)
    return asyncio.run(lab.late_arrival_plan(lab.LateArrival(**parameters), server))  # type: ignore[arg-type]


def test_every_prompt_starts_with_a_tag_of_its_own() -> None:
    tags = [request.prompt.split(" ")[0] for request in (*plan(n_late=3).requests, *plan(n_late=3).requests)]
    assert len(set(tags)) == 8


def test_a_seed_repeats_the_plan_and_none_draws_a_new_one() -> None:
    assert plan(seed=5) == plan(seed=5)
    assert plan(seed=5) != plan(seed=6)
    assert plan() != plan()


def test_the_late_ones_wait_for_a_state_of_a() -> None:
    a, b, c = plan(n_late=2, trigger_tokens=5, a_tokens=50, b_tokens=7).requests
    assert a.after is None
    assert (b.after, c.after) == (lab.settings.After(label="A", tokens=5),) * 2
    assert (a.max_tokens, b.max_tokens, a.cache_prompt, a.ignore_eos) == (50, 7, False, True)


def test_a_model_without_a_chat_template_gets_raw_prompts() -> None:
    assert {request.endpoint for request in plan(endpoint="completion").requests} == {"completion"}
    assert {request.endpoint for request in plan().requests} == {"chat"}


def test_a_key_comes_from_the_environment_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert api_key() is None
    (tmp_path / "key").write_text("from-file\n")
    monkeypatch.setenv("LABKIT_API_KEY_FILE", str(tmp_path / "key"))
    assert (found := api_key()) is not None
    assert found.reveal() == "from-file"
    monkeypatch.setenv("LABKIT_API_KEY", "from-environment")
    assert (found := api_key()) is not None
    assert found.reveal() == "from-environment"


def test_a_key_file_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_API_KEY_FILE", "/no/such/key")
    with pytest.raises(ParameterError, match="LABKIT_API_KEY_FILE = /no/such/key can't be read"):
        api_key()


def test_a_key_does_not_show_itself() -> None:
    assert "s3cret" not in f"{Secret('s3cret')!r} {Secret('s3cret')}"
