"""Arithmetic of /metrics: what a counter grew by between two scrapes, how exactly that is known, and what
each build counts when.

Sources: tools/server/server-context.cpp (b9093, b10156, b11434) and live runs of b9093, b10068, b10229 and
b11549. Values are printed with six significant digits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

NOT_EXPOSED = "not exposed by this build"
NO_VALUE = "no value yet"
WENT_DOWN = "went down: the server was started anew, or another one answers"
SIGNIFICANT_DIGITS = 6

# oldest build looked at, last one seen with the old rules, first one with the new rules
_OLDEST, _LAST_OLD, _FIRST_NEW = 9093, 10229, 11434

# names that builds have had, in the order in which a reader wants them
METRICS = {
    "requests_processing": "requests that own a slot, waiting ones included",
    "requests_deferred": "requests that wait for a slot",
    "prompt_tokens_total": "prompt tokens that went through the model",
    "prompt_tokens_cached_total": "prompt tokens taken from a slot's cache",
    "tokens_predicted_total": "tokens decoded",
    "n_decode_total": "calls of llama_decode",
    "n_busy_slots_per_decode": "busy slots per call, on average since the start",
    "n_tokens_max": "longest context of a slot so far",
    "prompt_seconds_total": "seconds of prefill, all requests added up",
    "tokens_predicted_seconds_total": "seconds of decoding, all requests added up",
    "prompt_tokens_seconds": "an average",
    "predicted_tokens_seconds": "an average",
    "kv_cache_usage_ratio": "share of the KV cache in use; older builds had it",
    "kv_cache_tokens": "KV cells in use; older builds had it",
}

Values = Mapping[str, float | None]


@dataclass(frozen=True)
class Scrape:
    """One readable answer of /metrics.

    Args:
        sent_s: when it was asked for; received_s: when it came (run's clock).
        values: by name; None is no value yet (NaN), a missing name isn't exposed by the build.
    """

    sent_s: float
    received_s: float
    values: Values


@dataclass(frozen=True)
class Growth:
    """What a counter grew by.

    Args:
        amount: None if it can't be said.
        error: it may be off by so much, for the digits that aren't printed.
        missing: why there is no amount.
    """

    amount: float | None
    error: float = 0.0
    missing: str = ""

    def agrees(self, expected: float) -> bool:
        """Whether the amount is `expected`, as far as the printed digits tell."""
        return self.amount is not None and abs(self.amount - expected) <= self.error


def rounding_error(value: float, *, whole: bool = True) -> float:
    """Return how far a printed value may be from the true one: half a unit of its sixth digit.

    Args:
        value: as printed.
        whole: it counts something: below a million it is exact then.
    """
    if value == 0 or not math.isfinite(value) or (whole and abs(value) < 10**SIGNIFICANT_DIGITS):
        return 0.0
    return 0.5 * 10.0 ** (math.floor(math.log10(abs(value))) - SIGNIFICANT_DIGITS + 1)


def why_missing(values: Values, name: str) -> str:
    """Return why a metric has no number; empty if it has one."""
    if name not in values:
        return NOT_EXPOSED
    return NO_VALUE if values[name] is None else ""


def growth(before: Values, after: Values, name: str) -> Growth:
    """Return what a counter grew by between two scrapes.

    Args:
        before: values of the first scrape.
        after: values of a later one.
        name: the counter, without llamacpp:.
    """
    if missing := why_missing(before, name) or why_missing(after, name):
        return Growth(None, missing=missing)
    old, new = before[name] or 0.0, after[name] or 0.0
    if new < old:
        return Growth(None, missing=WENT_DOWN)
    return Growth(new - old, rounding_error(old) + rounding_error(new))


def rate(grown: Growth, seconds: float) -> float | None:
    """Return growth per second; None if there is no growth, or no time, to speak of."""
    return grown.amount / seconds if grown.amount is not None and seconds > 0 else None


def busy_slots_per_decode(before: Values, after: Values) -> Growth:
    """Return the busy slots per call of llama_decode between two scrapes.

    The server exposes the average since its start; its product with n_decode_total is the sum behind it.
    "Busy" counts slots that own a task, also while the task waits: it does not show batching.

    Args:
        before: values of the first scrape.
        after: values of a later one.
    """
    calls = growth(before, after, "n_decode_total")
    if calls.missing:
        return Growth(None, missing=calls.missing)
    if not calls.amount:
        return Growth(None, missing="no call in between")
    # before the first call the average is NaN, 0 or missing for want of a value: the sum behind it is 0
    old_calls, new_calls = before["n_decode_total"] or 0.0, after["n_decode_total"] or 0.0
    missing = why_missing(after, _BUSY) or (why_missing(before, _BUSY) if old_calls else "")
    if missing:
        return Growth(None, missing=missing)
    old, new = (before.get(_BUSY) or 0.0) if old_calls else 0.0, after[_BUSY] or 0.0
    total = new * new_calls - old * old_calls
    unsure = rounding_error(new, whole=False) * new_calls + rounding_error(old, whole=False) * old_calls
    return Growth(total / calls.amount, (unsure + new * calls.error) / calls.amount)


_BUSY = "n_busy_slots_per_decode"


def went_down(scrapes: Sequence[Scrape]) -> str | None:
    """Return the name of a counter that went down from one scrape to the next, None if all only grew."""
    for old, new in pairwise(scrapes):
        for name in old.values:
            if name.endswith("_total") and growth(old.values, new.values, name).missing == WENT_DOWN:
                return name
    return None


# --- what each build counts when ------------------------------------------------------------------------


@dataclass(frozen=True)
class CountingRules:
    """What a build's counters count, and when, in words.

    Args:
        builds: the builds it is known of.
        prompt: prompt_tokens_total; predicted: tokens_predicted_total; calls: n_decode_total.
        averages: what the two tokens-per-second gauges cover.
        lossy: tokens of answers that end with an error, or whose client leaves, are never counted.
    """

    builds: str
    prompt: str
    predicted: str
    calls: str
    averages: str
    lossy: bool


_OLD = CountingRules(
    builds=f"b{_OLDEST} to b{_LAST_OLD}",
    prompt="added when a request gets its first token",
    predicted="added when an answer ends normally",
    calls="every call, one that failed and is tried again included",
    averages="the time since the server's start, finished answers only",
    lossy=True,
)
_NEW = CountingRules(
    builds=f"b{_FIRST_NEW} and later",
    prompt="added step by step",
    predicted="added when an answer ends, however it ends",
    calls="calls that succeeded",
    averages="the time since anybody's last scrape",
    lossy=False,
)


def counting_rules(number: int | None) -> CountingRules | None:
    """Return what a build counts when; None if it was not looked at.

    Args:
        number: its build number, if known.
    """
    if number is None or number < _OLDEST or _LAST_OLD < number < _FIRST_NEW:
        return None
    return _NEW if number >= _FIRST_NEW else _OLD
