"""Sentences that hold for any run: what was set up, and how many requests really ran at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labkit.analyze.frames import RunFrames, known
from labkit.analyze.lanes import seconds_text
from labkit.analyze.rows import in_main_memory, kv_devices


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
            "attached, its machine is not known" if server.get("attached") else _computes_on(effective, machine),
            *recorded_facts(frames.data.run),
        ]
    )


def _computes_on(effective: Mapping[str, Any], machine: Mapping[str, Any]) -> str:
    cores = f"{machine['cores']} CPU cores"
    on_gpu = not all(map(in_main_memory, kv_devices(effective)))
    gpus = dict.fromkeys(gpu["name"] for gpu in machine.get("gpus") or [] if on_gpu)
    return ", ".join([*gpus, cores])


def recorded_facts(run: Mapping[str, Any]) -> list[str]:
    """Return what a picture of a replay says of itself; nothing for a run of its own.

    Args:
        run: run.json.
    """
    recorded = run.get("recorded")
    return [f"recorded {recorded['started_at'][:10]}"] if recorded else []


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
