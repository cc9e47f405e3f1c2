"""The servers and loads of notebook 02: one pool of KV cells against a box for each slot.

First every server is started and asked what it has, without any load; then the same requests go to one server in
each mode.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.engine.open import open_server
from labkit.engine.server import Server
from labkit.errors import PlanError
from labkit.measure.experiment import measure_arm
from labkit.measure.late_arrival import lengthened
from labkit.measure.lengths import Length, read_lengths
from labkit.measure.memory import MemorySampler
from labkit.measure.record import Run
from labkit.settings import KvModes, LoadPlan, RequestPlan, ServerSettings, effective_context

UNIFIED, SPLIT, SPLIT_ROOMY = "unified", "split", "split_roomy"
LONG = {UNIFIED: "unified_long", SPLIT: "split_long"}
OTHER_UBATCH, FOUR_SPLIT, AUTO, AUTO_ASKED_SPLIT = "other_ubatch", "four_split", "auto", "auto_asked_split"

# the mixture, in parts of a box less an answer; None is the long prompt. Of each two that meet, both fit the pool.
MIXTURE = (0.3, 0.08, None, 0.15, 0.05, 0.12)
LABELS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdef"
# said when a model can't reuse a cached prompt (tools/server/server-context.cpp): then nothing here tells of reuse
REPROCESSED = "forcing full prompt re-processing"


def kv_servers(params: KvModes, n_ctx_train: int | None) -> dict[str, ServerSettings]:
    """Return the settings of every server that the notebook starts, by arm.

    Args:
        params: of the notebook.
        n_ctx_train: the model's training context in tokens, which caps a slot; None: not known.
    """
    slots = int(params.parallel)
    pool = effective_context(params.ctx_size, slots, kv_unified=True, n_ctx_train=n_ctx_train)
    servers = {
        UNIFIED: params.server(kv_unified=True),
        SPLIT: params.server(kv_unified=False),
        SPLIT_ROOMY: params.server(kv_unified=False, ctx_size=pool.slot_cells * slots),
        OTHER_UBATCH: params.server(kv_unified=True, ubatch_size=params.other_ubatch_size),
        FOUR_SPLIT: params.server(parallel=4, kv_unified=False),
        AUTO: params.server(parallel="auto", kv_unified=True),
        AUTO_ASKED_SPLIT: params.server(parallel="auto", kv_unified=False),
    }
    if not params.equal_per_slot:
        del servers[SPLIT_ROOMY]
    return servers


async def start_kv_servers(params: KvModes, run: Run, *, say: Callable[[str], None] = print) -> None:
    """Start every server once, note what it says it has and what its process holds, and end it: no load yet.

    Args:
        params: of the notebook.
        run: where it goes.
        say: gets a line for each server.

    Raises:
        LabError: what open_server() raises.
    """
    n_ctx_train = None
    for arm in kv_servers(params, None):
        settings = kv_servers(params, n_ctx_train)[arm]  # the first server tells the training context
        before = _memory(None)
        async with open_server(settings, log_path=run.log_path(f"{arm}-start"), say=say, **params.limits()) as server:
            n_ctx_train = server.model.facts.n_ctx_train
            run.note(arm, server=server.describe(), title=_title(server))
            run.note(arm, memory_before_start=before, memory_at_start=_memory(server))
            say(f"{arm}: {_title(server)}")


def _title(server: Server) -> str:
    has = server.effective
    if has is None or has.slot_cells is None or has.slots is None:
        return "cells unknown"
    if has.kv_unified:
        return f"unified: one pool of {has.pool_cells or 0:,} cells for {has.slots} slots"
    return f"split: {has.slots} boxes of {(has.pool_cells or 0) // has.slots:,} cells"


def _memory(server: Server | None) -> dict[str, Any]:
    """Return one sample of what the server's process and the GPUs hold; without a server, of the GPUs alone."""
    pid = server.process.pid if server and server.process else None
    rows: list[dict[str, Any]] = []
    with MemorySampler(pid, 1.0, lambda: 0.0, rows.append) as sampler:
        sampler.sample()
    return rows[0]


# --- the loads ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KvLoads:
    """The two loads that every mode gets: the long request alone, then the mixture."""

    long: LoadPlan
    mixed: LoadPlan


async def load_kv_servers(params: KvModes, run: Run, *, say: Callable[[str], None] = print) -> None:
    """Put the same requests on a server of each mode; what does not fit is sent all the same.

    Args:
        params: of the notebook.
        run: has what start_kv_servers() noted, and gets everything.
        say: gets progress lines.

    Raises:
        LabError: what open_server() and measure_arm() raise; PlanError: no prompt fits the pool and no box.
    """
    loads: KvLoads | None = None
    train = run.fields["arms"][UNIFIED]["server"]["model"]["facts"]["n_ctx_train"]
    servers = kv_servers(params, train)
    for arm in (UNIFIED, SPLIT, SPLIT_ROOMY):
        if arm not in servers:
            continue
        async with open_server(servers[arm], log_path=run.log_path(arm), say=say, **params.limits()) as server:
            loads = loads or await _loads(params, run, server)
            plans = ([(LONG[arm], loads.long)] if arm in LONG else []) + [(arm, loads.mixed)]
            for name, plan in plans:
                await measure_arm(
                    server, plan, run=run, arm=name, sampling=params.sampling(), title=_title(server),
                    keep_text=params.keep_text, must_fit=False, say=say,
                )  # fmt: skip
            run.note(arm, reprocessed_prompts=count_reprocessed(server.log_path))


def count_reprocessed(log_path: Path | None) -> int | None:
    """Return how often the log says that a prompt was processed anew in full; None without a log.

    Args:
        log_path: the server's log.
    """
    if log_path is None or not log_path.is_file():
        return None
    with log_path.open(encoding="utf-8", errors="replace") as log:
        return sum(REPROCESSED in line for line in log)


async def _loads(params: KvModes, run: Run, server: Server) -> KvLoads:
    """Plan both loads on the first server, which counts the tokens."""
    pool, box = (run.fields["arms"][arm]["server"]["effective"]["slot_cells"] for arm in (UNIFIED, SPLIT))
    long = long_prompt(params, pool, box)
    lengths = mixed_lengths(params, long, box)
    draw = random.Random(params.seed)  # noqa: S311
    seeds = draw.sample(range(1, 2**31), len(lengths) + 1)
    requests = [
        await _request(server, label, length, seed, f"[{draw.randrange(16**6):06x}]")
        for label, length, seed in zip(["A", *LABELS], [Length(long, params.max_tokens), *lengths], seeds, strict=False)
    ]
    limits = {"start_timeout_s": params.start_timeout_s, "stall_timeout_s": params.stall_timeout_s}
    return KvLoads(LoadPlan(requests=(requests[0],), **limits), LoadPlan(requests=tuple(requests[1:]), **limits))


async def _request(server: Server, label: str, length: Length, seed: int, tag: str) -> RequestPlan:
    # the tag comes first: a shared beginning could be served from a slot's cache
    prompt = f"{tag} Why?"
    request = RequestPlan(label=label, prompt=prompt, max_tokens=length.answer, seed=seed, endpoint=server.endpoint)
    return await lengthened(request, length.prompt, server)


def long_prompt(params: KvModes, pool: int, box: int) -> int:
    """Return the tokens of a prompt that fits the pool and no box, with its answer.

    Args:
        params: of the notebook.
        pool: cells that a slot may use under unified.
        box: cells that a slot may use under split.

    Raises:
        PlanError: there is no such length.
    """
    if params.long_prompt_tokens:
        return params.long_prompt_tokens
    room = pool - box - params.max_tokens
    if room < 16:  # a prompt's length is met by a few tokens only
        raise PlanError(
            f"no prompt fits a slot of {pool:,} cells with its answer and still none of the boxes of {box:,}",
            hint=f"max_tokens = {max(1, pool - box - 32)} or less",
        )
    return box + min(box // 8, room // 2)


def mixed_lengths(params: KvModes, long: int, box: int) -> list[Length]:
    """Return the lengths of the mixed load: the user's own, or a mixture with one long prompt.

    Args:
        params: of the notebook.
        long: tokens of the long prompt.
        box: cells of one box.

    Raises:
        ParameterError: lengths_csv can't be used.
    """
    if params.lengths_csv:
        found = read_lengths(params.lengths_csv, answer=params.max_tokens)
        drawn = random.Random(params.seed).sample(range(len(found)), min(len(found), params.lengths_drawn))  # noqa: S311
        return [found[i] for i in sorted(drawn)]
    room = max(1, box - params.max_tokens)
    prompts = params.prompt_tokens or [long if part is None else max(1, int(part * room)) for part in MIXTURE]
    return [Length(prompt, params.max_tokens) for prompt in prompts]
