"""Sentences that read notebook 01's pictures and tables out, with the numbers of this very run."""

from __future__ import annotations

from collections.abc import Iterable

from labkit.analyze.frames import RunFrames, known
from labkit.analyze.lanes import seconds_text
from labkit.analyze.readings import run_facts
from labkit.analyze.slot_escalation.scaling import MIN_RUNS, figure, load_figures, ratio
from labkit.analyze.slot_escalation.speed import BY_CHANCE, setup_text
from labkit.analyze.slot_escalation.view import LoadView, step_of

_SHOWN = 300
_SHOWN_WAIT = 0.05  # of the load's length


def load_arms(frames: RunFrames, slots: Iterable[int] | None = None) -> list[str]:
    """Return the arm with the largest load of each step, first measurement, for pictures of what happened.

    Args:
        frames: the run.
        slots: of the steps wanted; none: all.
    """
    wanted = None if slots is None else set(slots)
    best: dict[int | None, tuple[int, str]] = {}
    for arm in frames.arms:
        step = step_of(frames.data.run, arm)
        if step and step.kind == "step" and step.repeat == 1 and (wanted is None or step.slots in wanted):
            best[step.slots] = max(best.get(step.slots, (0, "")), (step.requests, arm))
    return [arm for _, arm in best.values()]


def setup_facts(frames: RunFrames) -> str:
    """Return the line that every picture's subtitle carries: KV, model, build, cores; slots differ here.

    Args:
        frames: the run.
    """
    facts = run_facts(frames).split(" · ")
    rule = frames.data.run["parameters"]["context_rule"]
    cells = f"{frames.data.run['parameters']['ctx_size']:,} cells {'a slot' if rule == 'per_slot' else 'in all'}"
    mode = facts[0].split(", ")[1] if ", " in facts[0] else facts[0]
    attached = (frames.data.run.get("needs") or {}).get("attached")
    # a batch is limited to the context, and so differs from step to step
    rest = [fact for fact in facts[1:] if not fact.startswith("batch ")]
    return " · ".join([facts[0] if attached else f"{mode}, {cells}", *rest])


def lanes_reading(frames: RunFrames) -> str:
    """Say, load by load, how many slots were busy at once and how many requests waited without one.

    Args:
        frames: the run, or some arms of it.
    """
    sentences = []
    for arm in frames.arms:
        view = LoadView(frames.data, arm, frames.rows(arm))
        busy = "unknown" if view.peak_busy is None else view.peak_busy
        waits = frames.phases[(frames.phases["arm"] == arm) & (frames.phases["phase"] == "deferred")]
        name = frames.arm_name(arm)
        if waits.empty:
            sentences.append(f"{name}: {busy} busy at once, and nobody waited for a slot.")
            continue
        longest_s = float((waits["end_s"] - waits["start_s"]).max())
        sentences.append(
            f"{name}: at most {busy} busy at once; {len(waits)} waited for a slot, up to {seconds_text(longest_s)}."
        )
    return " ".join(sentences) or "No request was sent."


def answer_reading(text: str | None, slots: int | None) -> str:
    """Quote what a single request was answered; a model's words are untrusted, so only printable ones are shown.

    Args:
        text: the answer.
        slots: of the server.
    """
    if not text:
        return f"A single request on {_slots(slots)} got no text."
    clean = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * _SHOWN]).split())
    more = " …" if len(clean) > _SHOWN or len(text) > 4 * _SHOWN else ""
    return f"A single request on {_slots(slots)} was answered: “{clean[:_SHOWN]}{more}”"


def baseline_reading(frames: RunFrames) -> str:
    """Say whether the single request got the same answer on every step's server.

    Args:
        frames: the run.
    """
    steps = {arm: step_of(frames.data.run, arm) for arm in frames.arms}
    digests = [frames.facts(arm).get("answer_sha256") for arm, step in steps.items() if step and step.requests == 1]
    given = [digest for digest in digests if digest]
    if len(given) < 2:
        return "The single request's answer can't be compared between steps: fewer than two steps have one."
    if len(set(given)) == 1:
        return (
            f"The single request got the same text on all {len(given)} servers: the slot count alone changed nothing."
        )
    return (
        f"The single request got {len(set(given))} different texts on {len(given)} servers: with another layout of the"
        " cache the same numbers may be rounded otherwise. Read them before you go on."
    )


def waiting_reading(frames: RunFrames) -> str:
    """Say, load by load, who waited how long and where.

    Args:
        frames: the run, or some arms of it.
    """
    return " ".join(_waiting(frames, arm) for arm in frames.arms) or "No request was sent."


def _waiting(frames: RunFrames, arm: str) -> str:
    requests = frames.requests[frames.requests["arm"] == arm]
    name = frames.arm_name(arm)
    client, server = requests["client_wait_s"].max(), requests["server_wait_s"].max()
    if not known(server):
        return f"{name}: waits are not known."
    slowest = requests.loc[requests["server_wait_s"].idxmax()]
    text = f"{name}: the longest wait in the server is {seconds_text(float(server))} ({slowest['label']})"
    # opening connections takes milliseconds: only a wait that shows in the picture is one
    waits_in_client = known(client) and float(client) > _SHOWN_WAIT * float(requests["end_s"].max())
    return f"{text}, in the client {seconds_text(float(client))}." if waits_in_client else f"{text}."


def small_pool_arm(frames: RunFrames) -> str | None:
    """Return the arm of the client whose pool was too small; None where there is none.

    Args:
        frames: the run.
    """
    steps = ((arm, step_of(frames.data.run, arm)) for arm in frames.arms)
    return next((arm for arm, step in steps if step and step.kind == "wrong_way"), None)


def small_pool_reading(frames: RunFrames, arm: str | None) -> str:
    """Say what a client with too small a pool made of a server with slots to spare.

    Args:
        frames: the run.
        arm: of small_pool_arm().
    """
    if arm is None or arm not in frames.arms:
        return "Not shown: it wants a server of our own with more slots, and more requests, than client_pool."
    view = LoadView(frames.data, arm, frames.rows(arm))
    deferred = "unknown" if view.peak_deferred is None else f"{view.peak_deferred:.0f}"
    return (
        f"{view.step.requests} requests on {view.slots} slots, yet at most {view.peak_busy} slots were ever busy and"
        f" {deferred} requests deferred: as if the server used {view.peak_busy} slots only. But the client had at most"
        f" {view.in_flight} in flight, since its pool has {view.pool} connections; the others waited in the client, up"
        f" to {seconds_text(view.client_wait_s)}. The server never saw them."
    )


def scaling_reading(frames: RunFrames, predicted_gain: float) -> str:
    """Say how the rates changed from the first step to the last, against the noise and the prediction.

    Args:
        frames: the run.
        predicted_gain: the prediction, a multiple of the first step's aggregate rate.
    """
    loads = load_figures(frames)
    steps = sorted(set(loads[loads["kind"] == "step"]["slots"].dropna().astype(int))) if len(loads) else []
    if len(steps) < 2:
        return f"Predicted: {predicted_gain:g} times. Fewer than two steps were measured: nothing to compare."
    size, base, last = int(loads["requests"].max()), steps[0], steps[-1]
    change = ratio(loads, last, base)
    if change is None:
        return f"Predicted: {predicted_gain:g} times. A step has no rate: a request of its failed."
    noise = ratio(loads, base, base, kind="again")
    sentences = [
        f"With {size} requests, {_slots(last)} gave {change.text('.2f')} times the aggregate rate of {_slots(base)};"
        f" predicted: {predicted_gain:g} times.",
        f"The same step measured twice gave {noise.text('.2f')} times: that much is noise." if noise else
        "No step was measured twice (repeats = 1): how much of it is noise is not known.",
        *_stream_sentence(frames, base, last, size),
        f"All this on {setup_text(frames)}.",
    ]  # fmt: skip
    if change.runs < MIN_RUNS:
        sentences.insert(
            2, f"{change.runs} run{'s' * (change.runs > 1)} can't carry an interval: repeats = {MIN_RUNS}."
        )
    if frames.data.run["parameters"].get("arrival_rate"):
        sentences.append(f"{BY_CHANCE[0].upper()}{BY_CHANCE[1:]}.")
    if loads["warm"].any():
        sentences.append("Some prompts came from a slot's cache: those loads are not comparable with the others.")
    return " ".join(sentences)


def _stream_sentence(frames: RunFrames, base: int, last: int, size: int) -> list[str]:
    loads = load_figures(frames)
    pairs = [figure(loads, "stream_tokens_per_s", slots, size) for slots in (base, last)]
    waits = [figure(loads, "slowest_ttft_s", slots, size) for slots in (base, last)]
    if None in pairs or None in waits:
        return []
    before, after = (value.mean for value in pairs if value)
    first, then = (value.mean for value in waits if value)
    return [
        f"A stream once it runs: {before:.1f} tokens/s with {_slots(base)}, {after:.1f} with {_slots(last)}."
        f" The slowest first token: {seconds_text(first)}, then {seconds_text(then)}."
    ]


def ceiling_reading(frames: RunFrames) -> str:
    """Say what llama-batched-bench reached with the same build, model and batch, or why there is no ceiling.

    Args:
        frames: the run.
    """
    ceiling = frames.data.run.get("ceiling") or {}
    if not ceiling.get("rows"):
        return f"No ceiling is drawn: {ceiling.get('missing') or 'it was not measured'}."
    rates = ", ".join(f"{row['tokens_per_s']:.0f} with {row['sequences']}" for row in ceiling["rows"])
    return (
        f"llama-batched-bench, the same build and model without HTTP and slots, gave (tokens/s by sequences): {rates}."
    )


def _slots(slots: int | None) -> str:
    return f"{slots or 'unknown'} slot{'' if slots == 1 else 's'}"
