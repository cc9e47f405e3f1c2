"""What one load of a slot escalation says of each claim: supported, refuted or not to be decided, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from labkit.analyze.slot_escalation.view import MIN_POLLS, MIN_SCRAPES, SERVER_SAID_NO, LoadView
from labkit.analyze.verdict import INCONCLUSIVE, NOT_TESTED, REFUTED, SUPPORTED

LONGER = "a larger max_tokens, so that answers last many polls, or a larger poll_hz"


@dataclass(frozen=True)
class Finding:
    """What one load says of one claim."""

    status: str
    observed: str
    why: str
    hint: str = ""


def _slots(view: LoadView) -> Finding:
    asked, got = view.step.slots, view.rows.effective.get("slots")
    shown = {len(poll["slots"]) for poll in view.polls}
    if view.rows.attached:
        return Finding(NOT_TESTED, f"{got or 'unknown'} slots", "a server that isn't ours was asked for nothing")
    if got is None and not shown:
        return Finding(INCONCLUSIVE, "unknown", "neither /props nor /slots tells", "slots_endpoint = True")
    if len(shown) > 1:
        observed = " and ".join(map(str, sorted(shown)))
        return Finding(INCONCLUSIVE, observed, "several servers answer /slots", "the address of one server")
    told = sorted({*shown, *([got] if got is not None else [])})
    observed = " and ".join(map(str, told))
    if told != [asked]:
        return Finding(REFUTED, observed, f"asked for {asked}, the server has {observed}")
    return Finding(
        SUPPORTED, observed, "/props and /slots agree" if got and shown else "one of /props and /slots tells"
    )


def _answered(view: LoadView) -> Finding:
    done = len(view.requests) - len(view.undone)
    observed = f"{done} of {view.step.requests}"
    if not view.undone:
        return Finding(SUPPORTED, observed, "every stream ended without an error")
    worst = next((row for row in view.undone if row["outcome"] in SERVER_SAID_NO), view.undone[0])
    why = f"{worst['label']} ended as {worst['outcome']}: {worst['error']}"
    if worst["outcome"] in SERVER_SAID_NO:
        return Finding(REFUTED, observed, why)
    return Finding(INCONCLUSIVE, observed, why, "run it again; the server's log says more")


def _concurrency(view: LoadView) -> Finding:
    if view.open_loop:
        return _on_time(view)
    planned = view.step.requests
    observed = f"{view.in_flight} of {planned}"
    if view.in_flight >= planned:
        return Finding(SUPPORTED, observed, "all were in flight at once")
    if view.undone:
        return Finding(INCONCLUSIVE, observed, f"{len(view.undone)} requests were not answered", "see the claim above")
    if not view.brief:
        pool = f", whose pool has {view.pool} connections" if view.pool else ""
        waited = f": {view.held_back} waited in the client{pool}" if view.held_back else ""
        why = f"the client sent {view.in_flight} at a time{waited}; this says nothing about the server's slots"
        return Finding(REFUTED, observed, why)
    return Finding(INCONCLUSIVE, observed, "answers were over before all requests were sent", LONGER)


def _on_time(view: LoadView) -> Finding:
    observed = f"at most {view.late_s * 1e3:.0f} ms late"
    if view.undone:
        return Finding(INCONCLUSIVE, observed, f"{len(view.undone)} requests were not answered", "see the claim above")
    if view.late_s > view.late_limit_s:
        return Finding(
            REFUTED, observed, "the client could not keep the arrival times: the load is not the planned one"
        )
    return Finding(SUPPORTED, observed, "requests were sent at their times, whatever the answers did")


def _busy(view: LoadView) -> Finding:
    expected, peak = view.expected_busy, view.peak_busy
    counted = view.peak_processing
    observed = f"{'unknown' if peak is None else peak} of {expected}"
    if counted is not None and counted > view.slots:
        why = f"/metrics counts {counted:.0f} processing on {view.slots} slots: does another server answer it?"
        return Finding(INCONCLUSIVE, observed, why, "the address of one server")
    if peak is None and counted is None:
        return _unread(view, observed, "neither /slots nor /metrics can be read", "slots_endpoint = True")
    if view.open_loop and not expected:
        return Finding(INCONCLUSIVE, observed, "too few polls to tell", LONGER)
    seen = peak if peak is not None else int(counted or 0)
    if seen == expected:
        return Finding(SUPPORTED, observed if peak is not None else f"{seen} of {expected}", _told_by(view))
    if seen > expected and not view.open_loop:
        return Finding(REFUTED, observed, f"{seen} slots were busy with {view.step.requests} requests")
    if seen > view.in_flight:
        why = f"{seen} slots were busy and at most {view.in_flight} requests in flight: whose are the others?"
        return Finding(INCONCLUSIVE, observed, why, "a quiet server")
    if seen > expected:
        return Finding(SUPPORTED, f"{seen} of {expected}", "as many as the client had in flight, or more for a moment")
    return _too_few_busy(view, seen, observed)


def _unread(view: LoadView, observed: str, why: str, hint: str) -> Finding:
    """Tell a server that offers nothing to read from one that offered it and could not be read."""
    offered = [view.rows.effective.get(name) for name in ("slots_endpoint", "metrics_endpoint")]
    if any(offered) and not view.rows.attached:
        return Finding(INCONCLUSIVE, observed, f"{why}, though the server offers it", "run it again")
    return Finding(NOT_TESTED, observed, why, hint)


def _told_by(view: LoadView) -> str:
    if view.peak_busy is None:
        return "/metrics counted them; /slots could not be read"
    return "/slots showed them, each with a request of ours"


def _too_few_busy(view: LoadView, seen: int, observed: str) -> Finding:
    """Decide whether slots that were never busy had their chance to be."""
    if view.undone:
        return Finding(INCONCLUSIVE, observed, f"{len(view.undone)} requests were not answered", "see the claim above")
    if not view.open_loop and view.in_flight < min(view.step.requests, view.slots):
        return Finding(INCONCLUSIVE, observed, f"the client sent {view.in_flight} at a time", "a larger client pool")
    if view.shortest_polls < 2 or view.chance_polls < MIN_POLLS:
        return Finding(INCONCLUSIVE, observed, "an answer was over within two polls: more may have been busy", LONGER)
    if view.http_threads:
        return Finding(INCONCLUSIVE, observed, _http(view), "a larger threads_http, or none")
    if (view.peak_processing or 0) > seen:
        why = f"/metrics counts {view.peak_processing:.0f} processing, /slots never shows more than {seen} busy"
        return Finding(INCONCLUSIVE, observed, why, "run it again; the server's log says more")
    why = f"in {view.chance_polls} polls enough requests were in flight, and at most {seen} slots were busy"
    return Finding(REFUTED, observed, why)


def _http(view: LoadView) -> str:
    return (
        f"{view.in_flight} requests were open and the server was given {view.http_threads} HTTP threads:"
        " suspect the HTTP layer, not the slots"
    )


def _deferred(view: LoadView) -> Finding:
    if view.peak_deferred is None:
        return _deferred_by_slots(view)
    observed = f"at most {view.peak_deferred:.0f} deferred"
    if view.in_flight <= view.slots:
        return _none_deferred(view, observed)
    if view.vain_scrapes:
        return _waited_in_vain(view, observed)
    if view.deferred_in_turn > 0:
        return Finding(SUPPORTED, observed, "more requests in flight than slots, and /metrics counted who waited")
    if view.undone:
        return Finding(INCONCLUSIVE, observed, f"{len(view.undone)} requests were not answered", "see the claim above")
    if view.http_threads:
        return Finding(INCONCLUSIVE, observed, _http(view), "a larger threads_http, or none")
    if view.chance_scrapes < MIN_SCRAPES:
        status = NOT_TESTED if view.open_loop else INCONCLUSIVE
        return Finding(status, observed, "no time to see who waits: /metrics was read too seldom for it", LONGER)
    if view.waiting_polls:
        why = "/slots shows requests without a slot, /metrics counts none: something holds them before the server"
        return Finding(INCONCLUSIVE, observed, why, "look at what stands between client and server")
    return Finding(REFUTED, observed, f"{view.in_flight} requests in flight on {view.slots} slots, and none waited")


def _none_deferred(view: LoadView, observed: str) -> Finding:
    if not view.open_loop and view.in_flight < view.step.requests and view.step.requests > view.slots:
        why = f"the client sent {view.in_flight} at a time: nothing had to wait in the server"
        return Finding(INCONCLUSIVE, observed, why, "see the claim on the client's concurrency")
    if (view.peak_deferred or 0) > 0:
        return _waited_in_vain(view, observed)
    all_seen = view.in_flight == view.step.requests == view.peak_busy
    if view.peak_scrapes < MIN_SCRAPES and not all_seen:
        status = NOT_TESTED if view.open_loop else INCONCLUSIVE
        return Finding(status, observed, "/metrics was read too seldom while all were in flight", LONGER)
    return Finding(SUPPORTED, observed, "a slot for each request, and nobody waited")


def _waited_in_vain(view: LoadView, observed: str) -> Finding:
    if view.undone:  # the server may still have worked on what the client gave up
        return Finding(INCONCLUSIVE, observed, f"{len(view.undone)} requests were not answered", "see the claim above")
    if view.vain_scrapes < MIN_SCRAPES:
        return Finding(INCONCLUSIVE, observed, "one scrape alone counts a wait with slots to spare", "run it again")
    fewest = min(view.in_flight, view.slots)
    why = f"requests waited without a slot, though {fewest} in flight had {view.slots} slots"
    return Finding(REFUTED, observed, why)


def _deferred_by_slots(view: LoadView) -> Finding:
    """Without /metrics: requests in flight for the client and on no slot, as /slots tells."""
    if not view.polls:
        return _unread(view, "unknown", "neither /metrics nor /slots can be read", "metrics_endpoint = True")
    waited = view.waiting_polls >= MIN_SCRAPES
    observed = f"without a slot in {view.waiting_polls} polls (/metrics can't be read)"
    if view.in_flight > view.slots and waited:
        return Finding(SUPPORTED, observed, "all slots were taken while others were in flight")
    if view.in_flight <= view.slots and view.in_flight == view.step.requests and view.peak_busy == view.step.requests:
        return Finding(SUPPORTED, observed, "every request was seen on a slot")
    return Finding(INCONCLUSIVE, observed, "/slots alone can't tell here", "metrics_endpoint = True")


def found(view: LoadView, claim: str) -> Finding:
    """Return what a load says of a claim; nothing where the load is none to judge.

    Args:
        view: the load.
        claim: a key of CLAIMS.
    """
    if view.trouble and claim != "slots":
        return Finding(INCONCLUSIVE, "not to be judged", *view.trouble)
    if view.told_slots is None and claim in ("busy", "deferred"):
        why = "how many slots the server has is not known"
        return Finding(INCONCLUSIVE, "not to be judged", why, "a server whose /props or /slots can be read")
    finding = CLAIMS[claim][1](view)
    if view.rows.attached and finding.status == REFUTED and claim in ("busy", "deferred"):
        why = f"{finding.why}; but behind this address there may be several servers"
        return Finding(INCONCLUSIVE, finding.observed, why, "the address of one server, without a balancer between")
    if view.rows.attached and finding.status == SUPPORTED and claim in ("busy", "deferred") and not view.polls:
        why = f"{finding.why}; but without /slots it can't be seen whose requests these are"
        return Finding(INCONCLUSIVE, finding.observed, why, "a server whose /slots can be read")
    return finding


# all that a deferred count can show where no load has more requests than there are slots
NOBODY_WAITS = "no request waits without a slot while there is one for each"
CLAIMS: dict[str, tuple[str, Callable[[LoadView], Finding]]] = {
    "slots": ("as many as asked", _slots),
    "answered": ("every request is answered with 200 and no error in its stream", _answered),
    "concurrency": ("the client had as many in flight as planned", _concurrency),
    "busy": ("as many are busy at once as there are requests for them", _busy),
    "deferred": ("requests wait without a slot exactly when they outnumber the slots", _deferred),
}
