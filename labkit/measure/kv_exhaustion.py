"""The loads of notebook 05: requests that fit one by one and overflow the KV pool together, and what helps.

Cells of a request: its prompt and its answer, less one, since the last token is never written
(tools/server/server-context.cpp). Every length is counted by the server itself, so that any model will do.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from labkit.engine.http import http_client
from labkit.engine.server import Server
from labkit.errors import ParameterError
from labkit.measure.client import count_tokens
from labkit.measure.experiment import measure_arm
from labkit.measure.record import Run
from labkit.settings import KvExhaustion, LoadPlan, RequestPlan, ServerSettings, effective_context

# All requests together want 1.15 of the pool, their prompts 0.8 of it: the pool runs out in mid-answer,
# early in it, since decoding is what takes time.
WANTED, PROMPTS, ROOM = 1.15, 0.8, 0.92
MIN_PROMPT_TOKENS, MIN_ANSWER_TOKENS = 24, 8
LABELS = "ABCDEFGHI"
_FILLER = ("a", "pool", "of", "cells", "is", "shared", "by", "all", "slots", "here")

# what the server's log says on the way (tools/server/server-context.cpp); counted, never shown
LOG_LINES = {
    "smaller_batch": r"failed to find free space in the KV cache",
    "purged_slots": r"purging slot \d",
    # the step's own line, not those of the requests that it ended
    "exceeded": r"Context size has been exceeded\. (?:off|i) =",
}


@dataclass(frozen=True)
class ExhaustionArm:
    """One load of the experiment: its name in the record, what pictures call it, and its requests."""

    name: str
    title: str
    plan: LoadPlan


@dataclass(frozen=True)
class ExhaustionPlan:
    """All loads of the experiment.

    Args:
        first: arms for the server that it was planned on, in order.
        others: arms that need a server of their own, with its settings.
        skipped: arms that can't be run, with the reason.
    """

    first: tuple[ExhaustionArm, ...]
    others: tuple[tuple[ServerSettings, ExhaustionArm], ...] = ()
    skipped: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Sizes:
    """Lengths in tokens, a pool in cells: each request fits alone, all together don't.

    Args:
        slots: requests that run at once.
        pool_cells: cells in all.
        slot_cells: cells one slot may use.
        prompt: tokens of each prompt.
        total: tokens of each prompt with its answer.
    """

    slots: int
    pool_cells: int
    slot_cells: int
    prompt: int
    total: int

    @property
    def short_prompt(self) -> int:
        """Prompt with which all fit, answers as they are."""
        return self._fair_share - (self.total - self.prompt)

    @property
    def short_answer(self) -> int:
        """Answer with which all fit, prompts as they are."""
        return self._fair_share - self.prompt

    @property
    def _fair_share(self) -> int:
        return int(ROOM * self.pool_cells) // self.slots


def exhaustion_sizes(pool_cells: int, slot_cells: int, slots: int, prompt_tokens: int | None = None) -> Sizes | str:
    """Return lengths that overflow the pool together, or why there are none.

    Args:
        pool_cells: cells in all.
        slot_cells: cells one slot may use, which the model's training context may cap.
        slots: requests that run at once.
        prompt_tokens: tokens of each prompt; None: from the pool.

    Raises:
        ParameterError: such a prompt fits no slot.
    """
    prompt = prompt_tokens or max(MIN_PROMPT_TOKENS, int(PROMPTS * pool_cells) // slots)
    most = int(0.95 * slot_cells)
    total = min(most, max(int(WANTED * pool_cells) // slots, prompt + MIN_ANSWER_TOKENS))
    if slots < 2:
        return "one slot can't overflow the pool: each request fits alone"
    if slots * total <= 1.05 * pool_cells:
        return (
            f"{slots} slots of at most {slot_cells:,} cells each can't fill a pool of {pool_cells:,}:"
            " each slot is capped below its share (by the model's training context, or by a flag)"
        )
    if total - prompt < MIN_ANSWER_TOKENS:
        raise ParameterError(
            f"a prompt of {prompt} tokens leaves no room for an answer in a slot of {slot_cells:,} cells",
            hint=f"prompt_tokens = {max(1, most - MIN_ANSWER_TOKENS)} or less, or a larger ctx_size",
        )
    return Sizes(slots, pool_cells, slot_cells, prompt, total)


async def exhaustion_plan(
    params: KvExhaustion, server: Server, *, run: Run, say: Callable[[str], None] = print
) -> ExhaustionPlan:
    """Return every load, sized for the pool that this server really has; note what can't be run, and why.

    Args:
        params: the notebook's.
        server: running, with a unified KV cache; counts tokens.
        run: keeps what is left out.
        say: gets progress lines.

    Raises:
        ParameterError: it has no unified pool, or the lengths asked for fit no slot.
        ServerError: it does not count tokens.
    """
    effective = server.effective
    if effective is None or not effective.kv_unified or not effective.pool_cells or not effective.slots:
        raise ParameterError("there is no unified KV pool to exhaust", why="the server does not say that it has one")
    plan = await _planned(params, server, effective.slots, effective.pool_cells, effective.slot_cells)
    for arm, reason in plan.skipped.items():
        run.note(arm, skipped=reason)
        say(f"{arm}: left out: {reason}")
    return plan


async def _planned(
    params: KvExhaustion, server: Server, slots: int, pool_cells: int, slot_cells: int | None
) -> ExhaustionPlan:
    planner = _Planner(params, server)
    if params.answers:
        return await planner.given(pool_cells, slot_cells or pool_cells)
    sizes = exhaustion_sizes(pool_cells, slot_cells or pool_cells, slots, params.prompt_tokens)
    if isinstance(sizes, str):
        return ExhaustionPlan((), skipped={"together": sizes})
    return await planner.computed(sizes)


class _Planner:
    def __init__(self, params: KvExhaustion, server: Server) -> None:
        self.params, self.server = params, server
        self.draw = random.Random(params.seed)  # noqa: S311

    async def given(self, pool_cells: int, slot_cells: int) -> ExhaustionPlan:
        """Plan the answers that the user gave, a one-word prompt each."""
        answers = self.params.answers
        lengths = [(LABELS[i], answer) for i, answer in enumerate(answers)]
        too_long = [answer for answer in answers if answer + 8 > slot_cells]
        if too_long:
            raise ParameterError(
                f"answers of {too_long} tokens do not fit a slot of {slot_cells:,} cells even alone",
                hint="shorter answers, or a larger ctx_size",
            )
        plan = self._load([self._request(label, label, answer) for label, answer in lengths])
        first = (ExhaustionArm("together", "together", plan), self._one_by_one(plan))
        need = sum(answers) + 8 * len(answers)
        if need <= pool_cells or not self.params.remedies:
            return ExhaustionPlan(first)
        roomy = self._settings(ctx_size=effective_context(need, self._slots, True).pool_cells)
        return ExhaustionPlan(first, ((roomy, ExhaustionArm("larger_pool", "a larger pool", plan)),))

    async def computed(self, sizes: Sizes) -> ExhaustionPlan:
        """Plan every arm from the pool's size."""
        answer = sizes.total - sizes.prompt
        plan = await self._requests(sizes.slots, sizes.prompt, answer)
        first = [ExhaustionArm("together", "together", plan), self._one_by_one(plan)]
        if not self.params.remedies:
            return ExhaustionPlan(tuple(first))
        skipped: dict[str, str] = {}
        if sizes.short_prompt < MIN_PROMPT_TOKENS:
            skipped["shorter_input"] = "the answers alone fill the pool: no shorter prompt would help"
        else:
            shorter = await self._requests(sizes.slots, sizes.short_prompt, answer)
            first.append(ExhaustionArm("shorter_input", "shorter input", shorter))
        if sizes.short_answer < MIN_ANSWER_TOKENS:
            skipped["shorter_output"] = "the prompts alone fill the pool: no shorter answer would help"
        else:
            shorter = await self._requests(sizes.slots, sizes.prompt, sizes.short_answer)
            first.append(ExhaustionArm("shorter_output", "shorter output", shorter))
        first.append(ExhaustionArm("too_long", "a prompt longer than a slot", await self._too_long(sizes)))
        return ExhaustionPlan(tuple(first), self._others(sizes, plan, skipped), skipped)

    def _others(
        self, sizes: Sizes, plan: LoadPlan, skipped: dict[str, str]
    ) -> tuple[tuple[ServerSettings, ExhaustionArm], ...]:
        """Return the arms that differ in the server, each with the same requests."""
        slots, pool = sizes.slots, sizes.pool_cells
        share = effective_context(pool, slots, False).share_cells
        arms = [
            (self._settings(batch_size=self.params.other_batch_size),
             ExhaustionArm("other_batch", f"together, batch_size {self.params.other_batch_size}", plan)),
            (self._settings(kv_unified=False), ExhaustionArm("split", "split, same size", plan)),
            (self._settings(ctx_size=effective_context(slots * sizes.total, slots, True).pool_cells),
             ExhaustionArm("larger_pool", "a larger pool", plan)),
            (self._settings(kv_unified=False, ctx_size=slots * effective_context(sizes.total, 1, False).share_cells),
             ExhaustionArm("split_with_room", "split, with room", plan)),
            (self._settings(parallel=pool // sizes.total), ExhaustionArm("fewer_slots", "fewer slots", plan)),
        ]  # fmt: skip
        if share * slots != pool:
            skipped["split"] = (
                f"split boxes are padded to 256 cells: {slots} of {share:,} would be {share * slots:,}, not {pool:,};"
                f" ctx_size = {256 * slots} or a multiple has the same size in both modes"
            )
        return tuple(arm for arm in arms if arm[1].name not in skipped)

    @property
    def _slots(self) -> int:
        return (self.server.effective.slots if self.server.effective else None) or 2

    def _settings(self, **changes: object) -> ServerSettings:
        # with parallel = auto the server would ignore the KV mode; a cap on slots is one of a unified pool
        base: dict[str, object] = {"parallel": self._slots}
        if changes.get("kv_unified") is False:
            base["kv_unified_per_slot"] = None
        return self.params.server(**base | changes)

    def _one_by_one(self, plan: LoadPlan) -> ExhaustionArm:
        alone = plan.model_copy(update={"max_connections": 1})
        return ExhaustionArm("one_by_one", "one after another, same server", alone)

    def _load(self, requests: Sequence[RequestPlan]) -> LoadPlan:
        return LoadPlan(requests=tuple(requests), stall_timeout_s=self.params.stall_timeout_s)

    def _request(self, label: str, prompt: str, answer: int) -> RequestPlan:
        return RequestPlan(
            label=label,
            prompt=prompt,
            max_tokens=answer,
            seed=self.draw.randrange(1, 2**31),
            endpoint="completion",
        )

    async def _requests(self, number: int, prompt: int, answer: int) -> LoadPlan:
        """Return so many requests of a prompt and an answer of these lengths each."""
        return self._load([await self._sized(LABELS[i], prompt, answer) for i in range(number)])

    async def _too_long(self, sizes: Sizes) -> LoadPlan:
        return self._load([await self._sized("A", sizes.slot_cells + MIN_PROMPT_TOKENS, MIN_ANSWER_TOKENS)])

    async def _sized(self, label: str, tokens: int, answer: int) -> RequestPlan:
        """Return a request whose prompt has about so many tokens; its answer makes up for what is missing."""
        tag = f"[{self.draw.randrange(16**6):06x}]"  # first, so that no prefix is shared
        async with http_client(self.server.address, timeout_s=30.0) as client:

            async def count(words: int) -> int:
                request = self._request(label, _words(tag, words), answer)
                return await count_tokens(client, request, self.server.model_id)

            words, counted = await _fitting(count, tokens)
        return self._request(label, _words(tag, words), max(1, answer + tokens - counted))


async def _fitting(count: Callable[[int], Awaitable[int]], tokens: int) -> tuple[int, int]:
    """Return the number of words whose prompt is nearest to, and not above, so many tokens, and its tokens."""
    bare, sample = await count(0), await count(100)
    per_word = (sample - bare) / 100
    if per_word <= 0:
        raise ParameterError("prompts can't be sized: this model's tokenizer swallows words")
    words = max(0, math.floor((tokens - bare) / per_word))
    for _ in range(8):
        counted = await count(words)
        step = math.floor((tokens - counted) / per_word) or (-1 if counted > tokens else 0)
        if step == 0 or words + step < 0:
            break
        words += step
    return words, await count(words)


def _words(tag: str, words: int) -> str:
    return " ".join([tag, *(_FILLER[i % len(_FILLER)] for i in range(words))])


async def measure_exhaustion(
    server: Server,
    arms: Sequence[ExhaustionArm],
    *,
    run: Run,
    params: KvExhaustion,
    say: Callable[[str], None] = print,
) -> None:
    """Run arms on a server one after another, and count what its log says in each of them.

    Args:
        server: running and idle.
        arms: of exhaustion_plan().
        run: where everything goes.
        params: the notebook's.
        say: gets progress lines.

    Raises:
        LabError: what measure_arm() raises; a pool that runs out is a result, no error.
    """
    for arm in arms:
        seen = _log_size(server.log_path)
        await measure_arm(
            server,
            arm.plan,
            run=run,
            arm=arm.name,
            sampling=params.sampling(),
            title=arm.title,
            keep_text=params.keep_text,
            must_fit=False,
            say=say,
        )
        run.note(arm.name, log_lines=count_log_lines(server.log_path, seen))


def count_log_lines(log_path: Path | None, start: int = 0) -> dict[str, int] | None:
    """Return how often the log says what it says when the pool runs out; None without a log.

    Args:
        log_path: the server's log.
        start: bytes to leave out, an earlier arm's.
    """
    if log_path is None or not log_path.is_file():
        return None
    with log_path.open("rb") as file:
        file.seek(start)
        text = file.read().decode("utf-8", "replace")
    return {name: len(re.findall(pattern, text)) for name, pattern in LOG_LINES.items()}


def _log_size(log_path: Path | None) -> int:
    return log_path.stat().st_size if log_path and log_path.is_file() else 0
