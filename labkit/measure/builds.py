"""What builds of llama-server do differently, by rule where the build number decides, else by looking.

The rules come from three source trees (b9093, b10156, b11434) and live runs of b9093, b10068, b10229 and
b11549; where a change happened between two of them, the builds between are not known by rule.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

# last build seen to behave the old way, first seen to behave the new way
_PROMPT_COUNTERS = (9093, 10068)
_CLEARED = (10229, 11434)
_MID_DECODE = (10229, 11434)
_RESET_BY_SCRAPE = (10229, 11434)


@dataclass(frozen=True)
class Trait:
    """One way in which builds differ.

    Args:
        holds: whether this server does it; None: not known.
        known_by: "rule" (the build number), "seen" (in this server's answers) or "unknown".
    """

    holds: bool | None
    known_by: str


@dataclass(frozen=True)
class Traits:
    """What this server does, of the things that builds do differently.

    Args:
        prompt_counters: /slots counts prompt tokens (n_prompt_tokens and so on).
        clears_counters: a slot's counters are zeroed when its task ends; otherwise a waiting task shows
            the counters of the task before (tools/server/server-context.cpp).
        answers_mid_decode: /slots and /metrics answer during a decode step, not only between two.
        scrape_resets_gauges: the two tokens-per-second gauges cover the time since anybody's last scrape.
    """

    prompt_counters: Trait
    clears_counters: Trait
    answers_mid_decode: Trait
    scrape_resets_gauges: Trait

    def describe(self) -> dict[str, Any]:
        """Return them for the record."""
        return asdict(self)


def traits_of(number: int | None, idle_slots: list[dict[str, Any]]) -> Traits:
    """Work out a server's traits.

    Args:
        number: build number, if known.
        idle_slots: rows of observe.parse_slots() of slots that have served a task and are idle; what they
            show wins over the rules.
    """
    used = [slot for slot in idle_slots if slot["id_task"] is not None and not slot["busy"]]
    counting = [slot for slot in used if slot["n_decoded"] is not None]
    return Traits(
        prompt_counters=_seen(any(s["n_prefilled"] is not None for s in used), used) or _rule(number, _PROMPT_COUNTERS),
        clears_counters=_seen(not any(s["n_decoded"] for s in counting), counting) or _rule(number, _CLEARED),
        answers_mid_decode=_rule(number, _MID_DECODE),
        scrape_resets_gauges=_rule(number, _RESET_BY_SCRAPE),
    )


def _seen(holds: bool, among: list[dict[str, Any]]) -> Trait | None:
    return Trait(holds, "seen") if among else None


def _rule(number: int | None, change: tuple[int, int]) -> Trait:
    before, after = change
    if number is not None and (number <= before or number >= after):
        return Trait(number >= after, "rule")
    return Trait(None, "unknown")
