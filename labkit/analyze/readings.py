"""Sentences that read a picture or a table out, with the numbers of this very run."""

from __future__ import annotations

from typing import Any

from labkit.analyze.frames import RunFrames, known
from labkit.analyze.lanes import seconds_text
from labkit.analyze.late_view import ArmRows
from labkit.analyze.naive import NaiveCriteria


def run_facts(frames: RunFrames) -> str:
    """Return the line that every picture's subtitle carries: slots, KV, model, build, cores."""
    servers = (frames.facts(arm).get("server") for arm in frames.arms)
    server: dict[str, Any] = next(filter(None, servers), {})
    effective, model = server.get("effective") or {}, server.get("model", {})
    mode = {True: "unified KV", False: "split KV", None: "KV mode unknown"}[effective.get("kv_unified")]
    cells = f"{effective['pool_cells']:,} cells" if effective.get("pool_cells") else "cells unknown"
    machine = frames.data.run["provenance"]
    return " · ".join(
        [
            f"{effective.get('slots', '?')} slots, {mode}, {cells}",
            f"batch {effective.get('batch_size', '?')}",
            f"{model.get('name', 'model unknown')} {(model.get('facts') or {}).get('quantisation') or ''}".strip(),
            f"llama.cpp b{server.get('build', {}).get('number', '?')}",
            "attached, its machine is not known" if server.get("attached") else f"{machine['cores']} CPU cores",
        ]
    )


def lanes_reading(frames: RunFrames) -> str:
    """Say, for each arm, when the late requests got their first token and what A did by then."""
    sentences = []
    for arm in frames.arms:
        rows, name = frames.rows(arm), frames.arm_name(arm)
        for label, request in rows.requests.items():
            if label != "A":
                sentences.append(_late_sentence(rows, name, label, request))
    return " ".join(sentences) or "No request was sent."


def _late_sentence(rows: ArmRows, name: str, label: str, request: dict[str, Any]) -> str:
    where = name[0].upper() + name[1:]
    if request["first_token_s"] is None or request["sent_s"] is None:
        return f"{where}: {label} got no token ({request['outcome']})."
    wait = seconds_text(request["first_token_s"] - request["sent_s"])
    left = rows.tokens_after(request["first_token_s"])
    rest = f"A still got {left} tokens after it" if left else "A had got its last token before"
    return f"{where}: {label}'s first token came {wait} after it was sent; {rest}."


def tokens_reading(frames: RunFrames) -> str:
    """Say how many tokens each request got, and between when and when."""
    sentences = []
    for (arm, label), stream in frames.tokens.groupby(["arm", "label"], sort=False):
        span = f"{float(stream['t_s'].min()):.2f} s to {float(stream['t_s'].max()):.2f} s"
        sentences.append(f"{label} got {len(stream)} tokens from {span} with {frames.arm_name(arm)}.")
    return " ".join(sentences) or "No request got a token."


def gaps_reading(frames: RunFrames) -> str:
    """Say how long A stalled, and for whom."""
    sentences = []
    for arm in frames.arms:
        stalls = frames.stalls[(frames.stalls["arm"] == arm) & (frames.stalls["label"] == "A")]
        name = frames.arm_name(arm)
        of_a = frames.tokens[(frames.tokens["arm"] == arm) & (frames.tokens["label"] == "A")]
        if len(of_a) > 1 and of_a["gap_s"].median() <= 0:
            sentences.append(f"With {name}, A's tokens came bunched, several in one read: single gaps can't be told.")
            continue
        if stalls.empty:
            sentences.append(f"With {name}, no prefill of another request falls into A's stream.")
        for cause, group in stalls.groupby("cause"):
            worst = group.loc[group["gap_s"].idxmax()]
            times = worst["gap_s"] / worst["median_gap_s"]
            sentences.append(
                f"With {name}, the prefill of {cause} makes {len(group)} long gap{'s' * (len(group) > 1)}"
                f" in A's stream, the longest {seconds_text(worst['gap_s'])}: {times:.0f} times A's median gap."
            )
    return " ".join(sentences) or "No request got a token."


def naive_reading(naive: NaiveCriteria | None) -> str:
    """Say what the naive criteria claimed where nothing had joined."""
    if naive is None or not naive.polls:
        return "No control arm ran to its end with batching off and polls: nothing to try the naive criteria on."
    share = f"{naive.other_progress / naive.polls:.0%}"
    said = (
        f'The article\'s criterion says "batched" in {naive.other_progress} ({share}): this build still shows the'
        " previous task's counters on a slot whose new task waits."
        if naive.other_progress
        else "The article's criterion says \"batched\" in none: this build clears a finished task's counters."
    )
    return (
        f"Without continuous batching, in {naive.polls} polls in which no late request had a token:"
        f' "two slots are busy" is true in {naive.two_busy} ({naive.two_busy / naive.polls:.0%}). {said}'
        " Busy is not batched."
    )


def prediction_reading(frames: RunFrames, predicted: int) -> str:
    """Compare the prediction with what was measured.

    Args:
        frames: the run.
        predicted: tokens that A would still get after B's first one.
    """
    measured = []
    for arm in frames.arms:
        rows = frames.rows(arm)
        first_s = rows.requests.get("B", {}).get("first_token_s")
        if first_s is not None and rows.requests.get("A", {}).get("outcome") not in ("completed", "slot_limit"):
            measured.append(f"cut short with {frames.arm_name(arm)}")
        elif first_s is not None:
            measured.append(f"{rows.tokens_after(first_s)} with {frames.arm_name(arm)}")
    found = ", ".join(measured) or "nothing: B got no token"
    return f"Predicted: A gets {predicted} tokens after B's first one. Measured: {found}."


def concurrency_reading(frames: RunFrames, arm: str) -> str:
    """Say how many requests were really in flight at once, and how many slots were busy.

    A client that waits for each answer before it sends the next looks like a server that uses one slot.

    Args:
        frames: the run.
        arm: the arm.
    """
    requests = frames.requests[(frames.requests["arm"] == arm) & frames.requests["sent_s"].notna()]
    in_flight = max_overlap([(r.sent_s, r.end_s) for r in requests.itertuples() if known(r.end_s)])
    slots = frames.slots[frames.slots["arm"] == arm]
    busy = int(slots.groupby("poll")["busy"].sum().max()) if len(slots) else 0
    text = f"{len(requests)} requests sent, at most {in_flight} in flight at once, at most {busy} slots busy in a poll."
    if len(requests) > 1 and in_flight == 1:
        return f"{text} The client sent one at a time: this says nothing about the server's slots."
    more = (_deferred_sentence, _cells_sentence, _pinned_sentences, _http_sentence)
    return " ".join([text, *(sentence for part in more for sentence in part(frames, arm))])


def _deferred_sentence(frames: RunFrames, arm: str) -> list[str]:
    """Say how many requests waited without a slot at once, as /metrics counts them."""
    counted = frames.metrics[(frames.metrics["arm"] == arm) & (frames.metrics["name"] == "requests_deferred")]
    most = counted["value"].max()
    if not known(most):
        return ["How many requests waited without a slot is not known: /metrics did not tell."]
    return [f"/metrics counted at most {most:.0f} waiting without a slot."]


def _http_sentence(frames: RunFrames, arm: str) -> list[str]:
    """Suspect the HTTP layer when requests wait outside the server's own queue, which it can't count.

    Every open request holds an HTTP thread, a deferred one too (tools/server/server-http.cpp): with too
    few of them requests are in flight for the client and unknown to the server, which stops answering
    /slots as well.
    """
    server = frames.facts(arm).get("server") or {}
    threads = (server.get("asked") or {}).get("threads_http")
    requests = frames.requests[(frames.requests["arm"] == arm) & frames.requests["sent_s"].notna()]
    in_flight = max_overlap([(r.sent_s, r.end_s) for r in requests.itertuples() if known(r.end_s)])
    if not threads or in_flight <= threads:
        return []
    return [
        f"Each open request holds an HTTP thread, the server was given {threads}, and {in_flight} requests were open:"
        " suspect the HTTP layer (threads_http) for waits and late polls, not the slots."
    ]


def _cells_sentence(frames: RunFrames, arm: str) -> list[str]:
    """Say how many KV cells the busy slots held at most, beside the pool; builds before b10156 don't tell."""
    slots = frames.slots[(frames.slots["arm"] == arm) & frames.slots["busy"].fillna(False)]
    most = slots.groupby("poll")["n_cells"].sum(min_count=1).max()
    if not known(most):
        return []
    effective = (frames.facts(arm).get("server") or {}).get("effective") or {}
    pool = f" of {effective['pool_cells']:,}" if effective.get("pool_cells") else ""
    return [f"Busy slots held at most {int(most):,}{pool} KV cells."]


def _pinned_sentences(frames: RunFrames, arm: str) -> list[str]:
    """Explain requests that waited for the slot they were pinned to while others were idle."""
    pins = {row["label"]: row["id_slot_asked"] for row in frames.data.requests if row["arm"] == arm}
    waits = frames.phases[(frames.phases["arm"] == arm) & (frames.phases["phase"] == "deferred")]
    slots = frames.slots[frames.slots["arm"] == arm]
    sentences = []
    for wait in waits.itertuples():
        during = slots[(slots["sent_s"] >= wait.start_s) & (slots["received_s"] <= wait.end_s)]
        idle = int((~during["busy"]).groupby(during["poll"]).sum().median()) if len(during) else 0
        if pins.get(wait.label) is not None and idle:
            waited = seconds_text(wait.end_s - wait.start_s)
            sentences.append(
                f"{wait.label} was pinned to slot {pins[wait.label]} and waited {waited} for it"
                f" while {idle} slots were idle."
            )
    return sentences


def max_overlap(spans: list[tuple[float, float]]) -> int:
    """Return how many of these (start, end) spans overlap at most."""
    edges = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    running = most = 0
    for _, step in edges:
        running += step
        most = max(most, running)
    return most
