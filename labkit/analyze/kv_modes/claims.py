"""The claims of notebook 02: what unified and split KV make of the same cells, requests and bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from labkit.analyze.kv import TOLERANCE, agrees
from labkit.analyze.kv_modes.gpu_memory import gpu_check
from labkit.analyze.kv_modes.view import EXHAUSTED, REFUSED, SERVED, Fate, KvArm
from labkit.analyze.rows import RunRows
from labkit.analyze.verdict import INCONCLUSIVE, NOT_TESTED, REFUTED, SUPPORTED, Check, Verdict
from labkit.settings.context import PADDING_CELLS, Context

UNIFIED, SPLIT, SPLIT_ROOMY = "unified", "split", "split_roomy"
UNIFIED_LONG, SPLIT_LONG = "unified_long", "split_long"
OTHER_UBATCH, FOUR_SPLIT, AUTO, AUTO_ASKED_SPLIT = "other_ubatch", "four_split", "auto", "auto_asked_split"
STARTED = (UNIFIED, SPLIT, SPLIT_ROOMY, OTHER_UBATCH, FOUR_SPLIT, AUTO, AUTO_ASKED_SPLIT)
LOADED = (UNIFIED, SPLIT, SPLIT_ROOMY)
AGAIN = "run it again; the run folder says how far it came"


def kv_stop_reason(data: RunRows) -> tuple[str, str] | None:
    """Return why a load would tell nothing, and what to change; None: the modes differ.

    Args:
        data: a run whose servers were started.
    """
    arms = [KvArm(data, name) for name in (UNIFIED, SPLIT)]
    pool, box = (arm.measured for arm in arms)
    if pool is None or box is None:
        return "the servers do not say how many cells a slot has", "a newer build, or engine = embedded"
    if pool.slot_cells != box.slot_cells:
        return None
    cells, slots = pool.slot_cells, pool.slots
    why = f"both modes give a slot {cells:,} cells: no request could tell them apart"
    if slots == 1:
        return f"with one slot {why}", "parallel = 2"
    train = (arms[0].server.get("model") or {}).get("facts", {}).get("n_ctx_train")
    if cells == train:
        return f"{why}, since the model was trained with {train:,}", f"ctx_size = {train}, or any below it"
    return why, f"ctx_size = {2 * PADDING_CELLS * slots} or more"


def judge_kv_modes(data: RunRows) -> Verdict:
    """Judge the claims of 02.

    Args:
        data: the recorded run.
    """
    arms = {name: KvArm(data, name) for name in (*STARTED, UNIFIED_LONG, SPLIT_LONG)}
    stop = kv_stop_reason(data)
    return Verdict((
        _effective(arms), _auto(arms), _kv_bytes(arms), _ubatch(arms),
        gpu_check(arms[UNIFIED], [arms[SPLIT], arms[SPLIT_ROOMY]]),
        _not_reserved(arms, stop), _long(arms, stop), _fates(arms, stop),
    ))  # fmt: skip


# --- what the servers have ----------------------------------------------------------------------------


def _cells(context: Context | None) -> str:
    if context is None:
        return "unknown"
    boxes = "one pool" if context.kv_unified else f"{context.slots} boxes"
    return f"{context.slot_cells:,} a slot, {boxes}, {context.pool_cells:,} in all"


def _effective(arms: dict[str, KvArm]) -> Check:
    check = _Claim(
        "effective",
        "every slot has the cells that the rule gives it",
        "a slot: the pool (unified) or its share padded to 256 (split), never more than the model's training context",
    )
    missing = [name for name in (UNIFIED, SPLIT) if not arms[name].started]
    if missing:
        return check.is_(INCONCLUSIVE, "not all servers started", f"{' and '.join(missing)} did not start", AGAIN)
    started = [arms[name] for name in STARTED if arms[name].started]
    told = [arm for arm in started if None not in (arm.measured, arm.by_rule)]
    wrong = [arm for arm in told if arm.by_rule != arm.measured]
    unknown = [arm.name for arm in started if arm not in told]
    seen = "; ".join(f"{name}: {_cells(arms[name].measured)}" for name in LOADED if arms[name].started)
    if wrong:
        why = f"{wrong[0].name}: by rule {_cells(wrong[0].by_rule)}, measured {_cells(wrong[0].measured)}"
        return check.is_(REFUTED, seen, why)
    if unknown:
        why = f"of the server of {', '.join(unknown)} it is not known how many cells it has, or was asked for"
        return check.is_(INCONCLUSIVE, seen, why, "a newer build")
    return check.is_(SUPPORTED, seen, f"rule and server agree on all {len(started)} servers")


def _auto(arms: dict[str, KvArm]) -> Check:
    check = _Claim(
        "auto",
        "4 slots by themselves and 4 slots asked for are not the same",
        "asked for, and split: 4 boxes; left to the server: one pool of the same total, also if split is asked",
    )
    found = [arms[name].measured for name in (FOUR_SPLIT, AUTO, AUTO_ASKED_SPLIT)]
    if any(context is None for context in found):
        return check.is_(INCONCLUSIVE, "not all servers started", "one of the three did not say what it has", AGAIN)
    four, auto, ignored = (context for context in found if context is not None)
    seen = f"asked for: {_cells(four)}; auto: {_cells(auto)}; auto with split asked for: {_cells(ignored)}"
    if (four.slots, auto.slots, four.kv_unified, auto.kv_unified) != (4, 4, False, True) or ignored != auto:
        return check.is_(REFUTED, seen, "this build does otherwise")
    # each of the boxes may have been padded
    if not 0 <= four.pool_cells - auto.pool_cells < PADDING_CELLS * four.slots:
        return check.is_(REFUTED, seen, "this build gives another total")
    if four.slot_cells == auto.slot_cells:
        return check.is_(INCONCLUSIVE, seen, "a slot has the same cells in both", "another ctx_size")
    share = four.slot_cells / auto.slot_cells
    return check.is_(SUPPORTED, seen, f"the same number of slots, and {share:.0%} of the context for each")


def _kv_bytes(arms: dict[str, KvArm]) -> Check:
    check = _Claim(
        "kv_bytes",
        "the KV memory follows from the model's header, the cells and the cache type",
        f"the log's buffer size, within {TOLERANCE:.0%}",
    )
    started = [arms[name] for name in STARTED if arms[name].started]
    logged = [(arm, arm.effective.get("kv_bytes")) for arm in started if arm.effective.get("kv_bytes")]
    if not logged:
        return check.is_(INCONCLUSIVE, "no log with buffer sizes", "no server said how large its KV is", AGAIN)
    if why := next((arm.kv.why for arm in started if arm.kv.bytes is None), ""):
        return check.is_(NOT_TESTED, f"{_mib(logged[0][1])} in the log", f"not predicted: {why}")
    pairs = [(arm, arm.kv.bytes or 0, int(size or 0)) for arm, size in logged]
    worst = max(pairs, key=lambda pair: abs(pair[1] / pair[2] - 1))
    seen = "; ".join(f"{arm.name}: {_mib(rule)}, log {_mib(size)}" for arm, rule, size in pairs if arm.name in LOADED)
    if not all(agrees(rule, size) for _, rule, size in pairs):
        return check.is_(REFUTED, seen, f"{worst[0].name}: {_mib(worst[1])} by rule, {_mib(worst[2])} in the log")
    if len(pairs) < len(started):
        return check.is_(INCONCLUSIVE, seen, "some servers' logs give no buffer size", AGAIN)
    return check.is_(SUPPORTED, seen, f"the worst of {len(pairs)} is {abs(worst[1] / worst[2] - 1):.2%} off")


def _ubatch(arms: dict[str, KvArm]) -> Check:
    check = _Claim(
        "ubatch",
        "the physical batch moves the compute buffer, not the KV cache",
        "another compute buffer, the same KV buffer",
    )
    one, other = arms[UNIFIED], arms[OTHER_UBATCH]
    sizes = [arm.effective.get(name) for arm in (one, other) for name in ("compute_bytes", "kv_bytes", "ubatch_size")]
    if any(size is None for size in sizes):
        why = "the log of one of the two servers gives no buffer sizes"
        return check.is_(INCONCLUSIVE, "not known", why, "an engine that was started here, at its usual log level")
    compute, kv, ubatch, other_compute, other_kv, other_ubatch = (int(size or 0) for size in sizes)
    seen = (
        f"ubatch {ubatch}: compute {_mib(compute)}, KV {_mib(kv)};"
        f" ubatch {other_ubatch}: compute {_mib(other_compute)}, KV {_mib(other_kv)}"
    )
    if ubatch == other_ubatch:
        return check.is_(INCONCLUSIVE, seen, "both batches were limited to the same", "a larger ctx_size or batch_size")
    if one.kv.sliding_layers:
        why = "this model's sliding layers have room for one physical batch: its KV moves too, as predicted"
        return check.is_(NOT_TESTED, seen, why)
    if kv != other_kv and one.kv.bytes is None:
        return check.is_(NOT_TESTED, seen, f"the KV moved, as that of sliding layers may; not predicted: {one.kv.why}")
    if kv != other_kv or compute == other_compute:
        return check.is_(REFUTED, seen, "the KV buffer moved" if kv != other_kv else "the compute buffer did not move")
    return check.is_(
        SUPPORTED, seen, f"the compute buffer is {other_compute / compute:.2f} times as large, the KV equal"
    )


# --- what the requests met ----------------------------------------------------------------------------


def _not_reserved(arms: dict[str, KvArm], stop: tuple[str, str] | None) -> Check:
    check = _Claim(
        "not_reserved",
        "under unified the cells are not reserved for slots",
        "one request holds more than an equal share of the pool",
    )
    arm = arms[UNIFIED_LONG]
    if trouble := stop or arm.trouble:
        return check.is_(INCONCLUSIVE, "no load to judge", *trouble)
    (fate, *_), context = arm.fates, arm.measured
    assert context is not None  # else there was trouble
    share, held = context.pool_cells // context.slots, arm.cells_of(fate.label)
    seen = f"{fate.label} with {fate.prompt:,} prompt tokens: {fate.words}; an equal share is {share:,} cells"
    if fate.prompt <= share:
        return check.is_(INCONCLUSIVE, seen, "it was no longer than a share", "a larger long_prompt_tokens")
    if fate.outcome == REFUSED and fate.prompt < context.slot_cells:
        return check.is_(REFUTED, seen, f"it was refused although {context.slot_cells:,} cells were offered")
    if fate.outcome != SERVED or held is None:
        return check.is_(INCONCLUSIVE, seen, "it was not answered to its end", "a smaller long_prompt_tokens")
    seen = f"{fate.label} held {held:,} cells of a pool of {context.pool_cells:,}; an equal share is {share:,}"
    if not share < held <= context.slot_cells:
        return check.is_(INCONCLUSIVE, seen, "its own counts contradict the length of its prompt, or its slot", AGAIN)
    return check.is_(SUPPORTED, seen, f"one slot used {held / context.pool_cells:.0%} of the pool")


def _long(arms: dict[str, KvArm], stop: tuple[str, str] | None) -> Check:
    check = _Claim(
        "long",
        "a request that fits the pool but no box is served under unified and refused under split",
        "200 under unified; 400 exceed_context_size_error under split",
    )
    one, other = arms[UNIFIED_LONG], arms[SPLIT_LONG]
    if trouble := stop or one.trouble or other.trouble:
        return check.is_(INCONCLUSIVE, "no load to judge", *trouble)
    served, refused = one.fates[0], other.fates[0]
    pool, box = (int(arm.effective["slot_cells"]) for arm in (one, other))
    seen = (
        f"{served.prompt:,} prompt tokens and {served.answer} of answer: {served.words} by the pool of {pool:,}"
        f" cells, {refused.words} by the box of {box:,}"
    )
    if served.prompt != refused.prompt:
        return check.is_(INCONCLUSIVE, seen, "the two servers count its prompt differently", AGAIN)
    if not box <= served.prompt < served.prompt + served.answer < pool:
        why = "its length does not lie between box and pool"
        return check.is_(INCONCLUSIVE, seen, why, f"long_prompt_tokens between {box} and {pool - served.answer - 1}")
    if (served.outcome, refused.outcome) == (SERVED, REFUSED):
        return check.is_(SUPPORTED, seen, "the same prompt, the same ctx_size, another fate")
    return check.is_(REFUTED, seen, "it did not go by the rule")


def _fates(arms: dict[str, KvArm], stop: tuple[str, str] | None) -> Check:
    check = _Claim(
        "fates",
        "each mixed request's fate follows from its length and its slot's cells",
        "refused at a prompt as long as the slot, cut where prompt and answer don't fit, else served",
    )
    # split_roomy is left out on request: then it was not started either
    ran = [arms[name] for name in LOADED if arms[name].started]
    trouble = stop or next((arm.trouble for arm in (arms[UNIFIED], arms[SPLIT], *ran) if arm.trouble), None)
    if trouble:
        return check.is_(INCONCLUSIVE, "no load to judge", *trouble)
    seen = "; ".join(f"{arm.name}: {counted(arm.fates)}" for arm in ran)
    wrong = [(arm, fate) for arm in ran for fate in arm.fates if not fate.as_expected]
    if wrong:
        arm, fate = wrong[0]
        expected = " or ".join(sorted(fate.expected))
        length = f"{fate.prompt:,} + {fate.answer} tokens"
        why = f"{fate.label} in {arm.name}, {length}: {expected} by rule, {fate.outcome} seen"
        return check.is_(REFUTED, seen, why)
    if any(fate.outcome == EXHAUSTED for arm in ran for fate in arm.fates):
        why = "the pool ran out, which the sum of these lengths allows and their order decides"
        return check.is_(INCONCLUSIVE, seen, why, f"ctx_size = {arms[UNIFIED].worst_sum} or more, or fewer tokens")
    return check.is_(SUPPORTED, seen, f"all {sum(len(arm.fates) for arm in ran)} by the rule")


def counted(fates: list[Fate]) -> str:
    """Return how many requests were served, refused, cut and so on, in words."""
    words = [fate.words for fate in fates if fate.outcome != SERVED]
    others = [f", {words.count(word)} {word}" for word in dict.fromkeys(words)]
    return f"{len(fates) - len(words)} of {len(fates)} served{''.join(others)}"


def _mib(size: int | None) -> str:
    return "unknown" if size is None else f"{size / 2**20:,.2f} MiB"


@dataclass(frozen=True)
class _Claim:
    name: str
    claim: str
    expected: str

    def is_(self, status: str, observed: str, why: str, hint: str = "", **numbers: Any) -> Check:
        return Check(self.name, self.claim, status, observed, self.expected, why, hint, numbers)
