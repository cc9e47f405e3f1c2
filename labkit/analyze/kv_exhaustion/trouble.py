"""Why an arm of notebook 05 can't be judged, and how its requests ended, in words."""

from __future__ import annotations

from typing import Any

from labkit.analyze.kv_exhaustion.cells import ANSWERED, ENDS, SLOT_LIMIT, ArmCells, ending_text
from labkit.analyze.verdict import INCONCLUSIVE, NOT_TESTED

AGAIN = "run it again; the run folder says how far it came"

Said = tuple[str, str, str, str]  # status, observed, why, hint


def trouble(arm: ArmCells) -> Said | None:
    """Return why an arm can't be judged, or None."""
    if arm.skipped:
        return NOT_TESTED, "left out", arm.skipped, ""
    if not arm.rows.facts:
        return NOT_TESTED, "left out", "this arm was not asked for", ""
    for look in (_incomplete, _disturbed, _other_ends):
        reason, hint = look(arm)
        if reason:
            return INCONCLUSIVE, ended_text(arm), reason, hint
    return None


def _incomplete(arm: ArmCells) -> tuple[str, str]:
    planned = (arm.rows.facts.get("planned") or {}).get("requests") or []
    cut = "load_end_s" not in arm.rows.facts or arm.rows.tokens_lost
    if not arm.ran or cut or len(arm.rows.requests) < len(planned):
        return f"the arm {arm.title!r} did not run to its end", AGAIN
    if not arm.rows.facts.get("server_alive", True):
        how = arm.rows.facts.get("server_exit") or "ended"
        return f"the server {how} in the middle of the arm", f"{AGAIN}; its log is there too"
    if not arm.pool or not arm.slot_cells or not set(arm.rows.requests) <= set(arm.prompts):
        return "the size of the pool or of the prompts is not known", "an engine that tells it: embedded, or a path"
    return "", ""


def _disturbed(arm: ArmCells) -> tuple[str, str]:
    rows = arm.rows
    failed = [row for row in rows.warm_up if row["outcome"] not in (ANSWERED, SLOT_LIMIT)]
    if failed:
        return f"{len(failed)} of {len(rows.warm_up)} warm-up requests failed", "the server's log says more"
    ours = {request["seed"] for request in rows.requests.values()}
    start_s, end_s = rows.facts.get("load_start_s", 0.0), rows.facts["load_end_s"]
    during = [poll for poll in rows.polls if start_s <= poll["sent_s"] <= end_s]
    seeds = {slot["seed"] for poll in during for slot in poll["slots"] if slot["busy"] and slot["seed"] is not None}
    if seeds - ours:
        return "another client uses this server: its requests hold cells too", "a quiet server"
    if rows.polls and rows.facts.get("quiet_after_s") is None:
        return "the server was not idle before the load", "a quiet server"
    return "", ""


def _other_ends(arm: ArmCells) -> tuple[str, str]:
    """Name requests whose end says nothing about cells: a lost connection, another error."""
    odd = {label: end for label, end in arm.ends.items() if end not in ENDS}
    if not odd:
        return "", ""
    label, end = next(iter(odd.items()))
    error = arm.rows.requests[label]["error"]
    return f"{names(odd)} ended otherwise ({end}: {error})", "the server's log says more"


def ended_text(arm: ArmCells) -> str:
    """Say how each request ended, those that ended alike together."""
    alike: dict[str, list[str]] = {}
    for label, request in sorted(arm.rows.requests.items()):
        alike.setdefault(ending_text(request), []).append(label)
    return "; ".join(f"{names(labels)}: {text}" for text, labels in alike.items())


def names(labels: Any) -> str:
    *first, last = list(labels) or [""]
    return f"{', '.join(first)} and {last}" if first else str(last)
