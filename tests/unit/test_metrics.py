"""/metrics as text: names and values that builds have had, and what is no value."""

from __future__ import annotations

import pytest

from labkit.measure.metrics import parse_metrics
from tests.conftest import DATA

BODY = """# HELP llamacpp:requests_deferred Number of requests deferred.
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 3
# TYPE llamacpp:n_busy_slots_per_decode counter
llamacpp:n_busy_slots_per_decode -nan
llamacpp:prompt_tokens_seconds nan
llamacpp:predicted_tokens_seconds +Inf
llamacpp:tokens_predicted_total 1.23457e+06
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="2"} 5
"""


def test_names_lose_their_prefix_and_keep_their_labels() -> None:
    values = parse_metrics(BODY)
    assert values["requests_deferred"] == 3.0
    assert values["tokens_predicted_total"] == 1234570.0  # six significant digits is all the server gives
    assert values["spec_decode_num_accepted_tokens_per_pos_total{position=2}"] == 5.0


def test_nan_and_infinity_are_no_value_yet_and_never_zero() -> None:
    values = parse_metrics(BODY)
    for name in ("n_busy_slots_per_decode", "prompt_tokens_seconds", "predicted_tokens_seconds"):
        assert name in values
        assert values[name] is None


def test_what_a_build_does_not_expose_is_missing_and_is_taken_up_when_it_is_there() -> None:
    assert "kv_cache_usage_ratio" not in parse_metrics(BODY)
    again = BODY + "# TYPE llamacpp:kv_cache_usage_ratio gauge\nllamacpp:kv_cache_usage_ratio 0.25\n"
    assert parse_metrics(again)["kv_cache_usage_ratio"] == 0.25


def test_a_real_servers_metrics_are_read() -> None:
    values = parse_metrics((DATA / "b10229" / "metrics.txt").read_text())
    assert {"requests_processing", "requests_deferred", "n_decode_total", "prompt_tokens_total"} <= set(values)


@pytest.mark.parametrize("text", ["<html><body>", "a b c d\n"])
def test_text_that_is_no_metrics_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"invalid|could not|not enough"):
        parse_metrics(text)
