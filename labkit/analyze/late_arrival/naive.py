"""Two criteria that look right and aren't: what "busy" in /slots does not prove.

Both are applied to an arm during the time in which the late request had not got a single token, so that
every "yes" they give is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from labkit.analyze.late_arrival.view import LateRows
from labkit.analyze.rows import RunRows


@dataclass(frozen=True)
class NaiveCriteria:
    """How often each criterion said "batched" while the late request had no token.

    Args:
        arm: the arm looked at.
        polls: readable polls between the late request's sending and A's last token.
        two_busy: polls with two slots `is_processing`.
        other_progress: polls in which, beside a decoding slot, another busy slot shows
            n_prompt_tokens_processed or n_decoded above 0: the criterion of the article.
    """

    arm: str
    polls: int
    two_busy: int
    other_progress: int


def naive_criteria(data: RunRows, arm: str = "control") -> NaiveCriteria | None:
    """Count what the naive criteria say in one arm; None if the arm is none to count in: it can't be
    judged (a failed warm-up, say), or continuous batching was on in it.

    Args:
        data: the recorded run.
        arm: the arm; the point is the control, where nothing joined.
    """
    rows = LateRows(data, arm)
    late = [row for label, row in rows.requests.items() if label != "A" and row["sent_s"] is not None]
    if rows.view().trouble or rows.asked.get("cont_batching") is not False or not late:
        return None
    first_tokens = [row["first_token_s"] for row in late if row["first_token_s"] is not None]
    until_s = min([rows.times["A"][-1], *first_tokens])
    since_s = min(row["sent_s"] for row in late)
    polls = [p for p in rows.polls if p["sent_s"] >= since_s and p["received_s"] <= until_s]
    return NaiveCriteria(
        arm=arm,
        polls=len(polls),
        two_busy=sum(sum(slot["busy"] for slot in poll["slots"]) >= 2 for poll in polls),
        other_progress=sum(_other_progress(poll["slots"]) for poll in polls),
    )


def _other_progress(slots: list[dict[str, Any]]) -> bool:
    decoding = next((slot["id"] for slot in slots if slot["busy"] and (slot["n_decoded"] or 0) > 0), None)
    others = [slot for slot in slots if slot["busy"] and slot["id"] != decoding]
    return decoding is not None and any((s["n_prefilled"] or 0) > 0 or (s["n_decoded"] or 0) > 0 for s in others)
