"""Sentences of notebook 02, with the numbers of this very run."""

from __future__ import annotations

from dataclasses import dataclass

from labkit.analyze.frames import RunFrames
from labkit.analyze.kv_modes.areas import CellUse, cell_use
from labkit.analyze.kv_modes.claims import (
    AUTO,
    AUTO_ASKED_SPLIT,
    FOUR_SPLIT,
    LOADED,
    OTHER_UBATCH,
    SPLIT,
    SPLIT_ROOMY,
    STARTED,
    UNIFIED,
    counted,
    kv_stop_reason,
)
from labkit.analyze.kv_modes.tables import ROWS, gpu_bytes, mode_name, resident_bytes
from labkit.analyze.kv_modes.view import REFUSED, SERVED, KvArm
from labkit.analyze.readings import run_facts
from labkit.analyze.rows import RunRows

MIB = 2**20


def kv_facts(frames: RunFrames) -> str:
    """Return the line that the pictures' subtitles carry: what all arms have in common."""
    common = run_facts(frames).split(" · ")[1:]
    slots = KvArm(frames.data, UNIFIED).effective.get("slots", "?")
    return " · ".join([f"{slots} slots", *common])


# --- sentences ----------------------------------------------------------------------------------------


def wrong_way_reading(data: RunRows) -> str:
    """Say what 4 slots asked for and 4 slots left to the server give, and what became of the flag."""
    four, auto, ignored = (KvArm(data, name).effective for name in (FOUR_SPLIT, AUTO, AUTO_ASKED_SPLIT))
    cells = [int(has.get("slot_cells") or 0) for has in (four, auto, ignored)]
    if not all(cells):
        return "Not all three servers said what they have."
    text = (
        f"parallel = 4: {four['slots']} slots of {cells[0]:,} cells. parallel = auto: {auto['slots']} slots of"
        f" {cells[1]:,} cells: the same number of slots, and {cells[1] / cells[0]:.3g} times the context."
    )
    mode = mode_name(ignored.get("kv_unified"))
    got = "the flag was ignored" if mode == "unified" else "the flag was heeded"
    asked = f"parallel = auto with kv_unified = False: {ignored['slots']} slots of {cells[2]:,} cells, {mode}"
    return f"{text} {asked}: {got}."


def ledger_reading(frames: RunFrames) -> str:
    """Say how full each arm's cells were, and how many requests were served."""
    sentences = []
    for name in LOADED:
        arm = KvArm(frames.data, name)
        if not arm.loaded or name not in frames.arms:
            continue
        what, use = frames.arm_name(name), cell_use(frames, name)
        text = f"{what[0].upper()}{what[1:]}: {counted(arm.fates)}"
        if use:
            text += (
                f"; at most {use.peak_cells:,} of {arm.effective['pool_cells']:,} cells were in use at once,"
                f" {use.idle_share:.0%} were idle on average"
            )
            text += "" if use.source == "/slots" else f" (from {use.source})"
        sentences.append(f"{text}.")
    return " ".join(sentences) or "No load was put on."


def fits_reading(data: RunRows) -> str:
    """Say which requests a mode did not serve, and where its slots end."""
    sentences = []
    for name in LOADED:
        arm = KvArm(data, name)
        if not arm.loaded:
            continue
        lost = [fate for fate in arm.fates if fate.outcome != SERVED]
        cells = f"a slot of {arm.effective.get('slot_cells') or 0:,} cells"
        if lost:
            listed = ", ".join(f"{fate.label} {fate.words} ({fate.prompt:,} + {fate.answer} cells)" for fate in lost)
            sentences.append(f"{ROWS[name].capitalize()}, {cells}: {listed}.")
        else:
            sentences.append(f"{ROWS[name].capitalize()}, {cells}: all {len(arm.fates)} served.")
    return " ".join(sentences) or "No load was put on."


def memory_reading(data: RunRows) -> str:
    """Say what KV takes in each mode, and what the physical batch moves."""
    arms = {name: KvArm(data, name) for name in STARTED}
    one, other, roomy, ubatch = (arms[name].effective for name in (UNIFIED, SPLIT, SPLIT_ROOMY, OTHER_UBATCH))
    if not one.get("kv_bytes"):
        return "The servers' logs give no buffer sizes."
    sentences = [f"KV by the log: {one['kv_bytes'] / MIB:.2f} MiB unified"]
    if other.get("kv_bytes"):
        sentences[0] += f", {other['kv_bytes'] / MIB:.2f} MiB split with the same ctx_size"
    if roomy.get("kv_bytes"):
        times = roomy["kv_bytes"] / one["kv_bytes"]
        sentences[0] += f", {roomy['kv_bytes'] / MIB:.2f} MiB split with as much for each slot ({times:.2g} times)"
    if one.get("compute_bytes") and ubatch.get("compute_bytes"):
        kv_moves = "does not move" if ubatch.get("kv_bytes") == one["kv_bytes"] else "moves as well"
        sentences.append(
            f"From ubatch {one['ubatch_size']} to {ubatch['ubatch_size']} the compute buffer goes from"
            f" {one['compute_bytes'] / MIB:.2f} to {ubatch['compute_bytes'] / MIB:.2f} MiB; the KV buffer {kv_moves}"
        )
    for what, bytes_of in (("GPU", gpu_bytes), ("process", resident_bytes)):
        pool, boxes = (bytes_of(arms[name]) for name in (UNIFIED, SPLIT_ROOMY))
        if pool and boxes:
            more = (boxes - pool) / MIB
            sentences.append(f"The {what} with the larger boxes holds {more:+.0f} MiB beside the one with the pool")
            break
    return ". ".join(sentences) + "."


def reuse_reading(data: RunRows) -> str:
    """Say whether the model can't take up a cached prompt again; empty where nothing says so."""
    counts = [KvArm(data, name).facts.get("reprocessed_prompts") or 0 for name in LOADED]
    if not any(counts):
        return ""
    return (
        f"The server's log says {sum(counts)} times that it processed a prompt anew in full (sliding or recurrent"
        " layers): nothing here tells how cached prompts are reused with this model."
    )


# --- which mode ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """Which KV mode these lengths want, and why: unified, split, either or unknown."""

    mode: str
    why: str


def kv_choice(frames: RunFrames) -> Choice:
    """Return which mode served these lengths better, in words.

    Args:
        frames: the run.
    """
    pool, boxes = KvArm(frames.data, UNIFIED), KvArm(frames.data, SPLIT)
    if trouble := kv_stop_reason(frames.data) or pool.trouble or boxes.trouble:
        return Choice("unknown", f"{trouble[0]}; try {trouble[1]}")
    served = [sum(fate.outcome == SERVED for fate in arm.fates) for arm in (pool, boxes)]
    mode = "either" if served[0] == served[1] else "unified" if served[0] > served[1] else "split"
    return Choice(mode, _why(frames, pool, boxes, served))


def _why(frames: RunFrames, pool: KvArm, boxes: KvArm, served: list[int]) -> str:
    uses = [cell_use(frames, arm.name) for arm in (pool, boxes)]
    refused = sum(fate.outcome == REFUSED for fate in boxes.fates)
    sentences = [
        f"split refused {refused} of {len(boxes.fates)} requests and served {served[1]}{_idle(uses[1])}",
        f"unified served {served[0]} of {len(pool.fates)}{_peak(uses[0], pool)}",
    ]
    if pool.may_overflow:
        sentences.append(
            f"beware: the largest of these together would need {pool.worst_sum:,} cells, and a pool that runs out ends"
            " every running request"
        )
    roomy = KvArm(frames.data, SPLIT_ROOMY)
    if roomy.loaded and not roomy.trouble and (sizes := [arm.effective.get("kv_bytes") for arm in (roomy, pool)])[1]:
        done = sum(fate.outcome == SERVED for fate in roomy.fates)
        times = (sizes[0] or 0) / sizes[1]
        sentences.append(f"split with as much for each slot served {done}, for {times:.2g} times the KV memory")
    return "; ".join(sentences) + "."


def _idle(use: CellUse | None) -> str:
    return f", with {use.idle_share:.0%} of its cells idle on average" if use else ""


def _peak(use: CellUse | None, arm: KvArm) -> str:
    return (
        f", its running requests held at most {use.peak_cells:,} of {arm.effective['pool_cells']:,} cells"
        if use
        else ""
    )


def choice_reading(frames: RunFrames) -> str:
    """Say which mode these lengths want."""
    choice = kv_choice(frames)
    return f"For these lengths: {choice.mode}, because {choice.why}"


def refused_prediction_reading(data: RunRows, predicted: int) -> str:
    """Set the reader's prediction beside what split refused and unified served."""
    arms = {name: KvArm(data, name) for name in (UNIFIED, SPLIT)}
    if any(arm.trouble for arm in arms.values()):
        return f"You predicted {predicted} refused requests; this run can't say."
    served = {fate.label for fate in arms[UNIFIED].fates if fate.outcome == SERVED}
    lost = sum(fate.outcome == REFUSED and fate.label in served for fate in arms[SPLIT].fates)
    hit = "as predicted" if lost == predicted else f"you predicted {predicted}"
    return f"Split refused {lost} mixed request{'s' * (lost != 1)} that unified served: {hit}."
