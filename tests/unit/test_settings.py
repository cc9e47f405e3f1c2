import math

import pytest

import labkit as lab
from labkit.errors import ParameterError
from labkit.settings import After

REQUEST = {"label": "A", "prompt": "hi", "max_tokens": 4, "seed": 1}


@pytest.mark.parametrize(
    ("name", "given", "meant"),
    [
        ("parallel", 4, 4),
        ("parallel", "4", 4),
        ("parallel", "auto", "auto"),
        ("kv_unified", "true", True),
        ("kv_unified", "false", False),
        ("kv_unified", "no", False),
        ("kv_unified", "off", False),
        ("kv_unified", False, False),
        ("ctx_size", "1_000", 1000),
        ("ctx_size", 7.0, 7),
        ("extra_args", '["--mlock"]', ("--mlock",)),
        ("extra_args", ["--mlock"], ("--mlock",)),
        ("threads", None, None),
    ],
)
def test_what_papermill_hands_over_is_normalised(name: str, given: object, meant: object) -> None:
    assert getattr(lab.ServerSettings(**{name: given}), name) == meant


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("parallel", 0),
        ("parallel", "two"),
        ("parallel", True),
        ("parallel", 2.5),
        ("parallel", 257),
        ("kv_unified", "maybe"),
        ("kv_unified", 2),
        ("ctx_size", -5),
        ("ctx_size", math.nan),
        ("model", 7),
        ("port", 70000),
        ("cache_type_k", "f15"),
        ("extra_args", "--mlock"),
        ("flash_attn", "maybe"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(name: str, given: object) -> None:
    with pytest.raises(ParameterError, match=rf"^{name} = .* can't be used"):
        lab.ServerSettings(**{name: given})


@pytest.mark.parametrize("poll_hz", [math.nan, math.inf, 0, -1, "fast", True])
def test_a_poll_rate_that_is_no_rate_is_refused(poll_hz: object) -> None:
    with pytest.raises(ParameterError, match="poll_hz"):
        lab.LateArrival(poll_hz=poll_hz)


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(ParameterError, match=r"parallel = 0 .*; ctx_size = -5 "):
        lab.ServerSettings(parallel=0, ctx_size=-5)


def test_settings_are_frozen_values() -> None:
    settings = lab.ServerSettings()
    assert settings == lab.ServerSettings()
    with pytest.raises(Exception, match="frozen"):
        settings.parallel = 3  # type: ignore[misc]


def test_another_arm_differs_in_the_named_setting_alone() -> None:
    params = lab.LateArrival(parallel=3, a_tokens=9)
    one, other = params.server(), params.server(cont_batching=False)
    assert one.model_copy(update={"cont_batching": False}) == other
    assert one.parallel == 3


def test_a_trigger_that_never_comes_is_refused() -> None:
    with pytest.raises(ParameterError, match="B would never be sent"):
        lab.LateArrival(a_tokens=4, trigger_tokens=5)


def test_two_answers_for_one_request_are_refused_by_name() -> None:
    with pytest.raises(ParameterError, match="n above 1 claims that many slots"):
        lab.RequestPlan(**REQUEST, n=2)
    assert lab.RequestPlan(**REQUEST, n=1).label == "A"


@pytest.mark.parametrize(
    ("second", "complaint"),
    [
        ({"label": "A", "seed": 2}, "same label"),
        ({"label": "B", "seed": 1}, "same seed"),
        ({"label": "B", "seed": 2, "after": After(label="C", tokens=1)}, "'C', which is not planned before it"),
    ],
)
def test_inconsistent_plans_are_refused(second: dict[str, object], complaint: str) -> None:
    with pytest.raises(ParameterError, match=complaint):
        lab.LoadPlan(requests=(lab.RequestPlan(**REQUEST), lab.RequestPlan(**{**REQUEST, **second})))


@pytest.mark.parametrize("kind", ["embedded", "build", "path", "URL"])
def test_the_help_of_engine_names_every_kind(kind: str) -> None:
    assert kind in str(lab.ServerSettings.model_fields["engine"].description)
