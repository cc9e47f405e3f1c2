"""What a run says of speed, as a sentence that names the setup: reported, never claimed."""

from __future__ import annotations

from typing import Any

from labkit.analyze.frames import RunFrames
from labkit.analyze.slot_escalation.scaling import Measured, figure, load_figures, ratio, single_rate
from labkit.analyze.slot_escalation.view import step_of
from labkit.analyze.verdict import NOT_TESTED, Check

BY_CHANCE = "requests arrived by chance: this is the rate that was asked of the server, not the one it can give"


def setup_text(frames: RunFrames) -> str:
    """Return what a rate belongs to: build, model, and whether decoding was speculative.

    Args:
        frames: the run.
    """
    servers = (frames.facts(arm).get("server") for arm in frames.arms)
    server: dict[str, Any] = next(filter(None, servers), {})
    model = server.get("model") or {}
    quantisation = (model.get("facts") or {}).get("quantisation") or ""
    name = f"{model.get('name', 'model unknown')} {quantisation}".strip()
    build = (server.get("build") or {}).get("number")
    engine = f"llama.cpp b{build}" if build else "llama.cpp of an unknown build"
    return f"{engine}, {name}, speculative decoding {_speculative(frames)}"


def _speculative(frames: RunFrames) -> str:
    said = {slot.get("speculative") for row in frames.data.slots for slot in row["slots"] or ()}
    if True in said:
        return "on"
    return "off" if False in said else "unknown"


def speed_check(frames: RunFrames) -> Check | None:
    """Return the row of the verdict that reports speed; None where fewer than two steps have a rate.

    Args:
        frames: the run.
    """
    loads = load_figures(frames)
    steps = sorted({step.slots for arm in frames.arms if (step := step_of(frames.data.run, arm)) and step.slots})
    if loads.empty or len(steps) < 2:
        return None
    base, last = steps[0], steps[-1]
    size = int(loads["requests"].max())
    here, change = figure(loads, "aggregate_tokens_per_s", last, size), ratio(loads, last, base)
    if here is None or change is None:
        return None
    alone = single_rate(loads)
    observed = (
        f"{size} requests: {here.text()} tokens/s with {last} slots, {change.text('.2f')} times those with {base}"
    )
    observed += f"; a single request: {alone:.1f}" if alone else ""
    return Check(
        name="speed",
        claim="more slots raise the aggregate rate",
        status=NOT_TESTED,
        observed=observed,
        expected="reported, not claimed",
        why=_why(frames, change, here, alone),
        numbers={"ratio": change.mean, "aggregate_tokens_per_s": here.mean, "single_tokens_per_s": alone},
    )


def _why(frames: RunFrames, change: Measured, here: Measured, alone: float | None) -> str:
    setup = setup_text(frames)
    if frames.data.run["parameters"].get("arrival_rate"):
        return f"{BY_CHANCE} ({setup})"
    if change.mean < 1 or (alone is not None and here.mean < alone):
        return f"slower on this setup in this run ({setup}): it says nothing of slots or continuous batching elsewhere"
    return f"a rate belongs to its setup ({setup}) and machine"
