"""An arm whose requests are sent by a person, one by one, and recorded like a planned load's."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from labkit.engine.server import Server
from labkit.errors import LabError
from labkit.measure.experiment import Arm, planned
from labkit.measure.late_arrival import A_PROMPT, LATE_PROMPT, lengthened
from labkit.measure.load import check_allowed, prompt_tokens
from labkit.measure.record import Run
from labkit.measure.slot_loads import label_of
from labkit.settings import After, LoadPlan, RequestPlan, SampleSettings


class ByHand:
    """What a person's buttons do on one arm.

    Args:
        arm: begun and watched.
        stall_timeout_s: a request is given up when nothing moves for so long.
        keep_text: keep prompts and answers in the record.
        seed: the requests' seeds are drawn from it.
    """

    def __init__(self, arm: Arm, *, stall_timeout_s: float, keep_text: bool, seed: int | None) -> None:
        self._arm, self._keep_text, self._stall_timeout_s = arm, keep_text, stall_timeout_s
        self._draw = random.Random(seed)  # noqa: S311
        self._sent: dict[str, RequestPlan] = {}
        self._prompts: dict[str, int] = {}
        self._decoded_by_a = 0
        self._tasks: dict[str, asyncio.Task[None]] = {}
        arm.run.listen(self._count)

    @property
    def next_label(self) -> str:
        """What the next request will be called."""
        return label_of(len(self._tasks))

    @property
    def running(self) -> list[str]:
        """Labels of the requests that haven't ended."""
        return [label for label, task in self._tasks.items() if not task.done()]

    @property
    def sent(self) -> tuple[RequestPlan, ...]:
        """Every request sent, each after the first with what A had decoded when it left."""
        return tuple(self._sent.values())

    def send(self, *, max_tokens: int, question: str = "", prompt_length: int | None = None) -> str:
        """Send one request and return its label at once.

        Args:
            max_tokens: tokens of its answer.
            question: its prompt; empty: a question of ours.
            prompt_length: tokens of its prompt, about; None: as it is.
        """
        label = self.next_label
        # the tag comes first: a shared beginning could be served from a slot's cache
        asked = question.strip() or (A_PROMPT if label == "A" else LATE_PROMPT)
        prompt = f"[{self._draw.randrange(16**6):06x}] {asked}"
        seed = self._draw.randrange(1, 2**31)
        request = RequestPlan(
            label=label, prompt=prompt, max_tokens=max_tokens, seed=seed, endpoint=self._arm.server.endpoint
        )
        after = After(label="A", tokens=self._decoded_by_a) if self._decoded_by_a else None
        self._sent[label] = request.model_copy(update={"after": after})
        self._tasks[label] = asyncio.create_task(self._run(request, prompt_length))
        return label

    def cancel(self, label: str) -> None:
        """Hang up on one request; the server notices and frees its slot."""
        if label in self._tasks:
            self._tasks[label].cancel()

    async def _run(self, request: RequestPlan, prompt_length: int | None) -> None:
        server = self._arm.server
        try:
            if prompt_length:
                request = await lengthened(request, prompt_length, server)
            plan = LoadPlan(requests=(request,), stall_timeout_s=self._stall_timeout_s)
            self._prompts |= await prompt_tokens(server.address, plan)
            if server.attach:
                check_allowed(self._plan(), self._prompts, server.attach)
            self._arm.run.note(self._arm.name, prompt_tokens=dict(self._prompts))
            await self._arm.send(plan, keep_text=self._keep_text)
        except LabError as error:
            self._arm.say(f"{request.label}: {error}")
            self._sent.pop(request.label)

    def _plan(self) -> LoadPlan:
        """Return everything that was sent, and is counted already, as one load."""
        counted = tuple(request for request in self.sent if request.label in self._prompts)
        return LoadPlan.model_construct(requests=counted, stall_timeout_s=self._stall_timeout_s)

    def _count(self, stream: str, row: dict[str, object]) -> None:
        self._decoded_by_a += stream == "tokens" and row["label"] == "A"

    async def finish(self) -> None:
        """Hang up on what still runs, and note what was sent."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        if self._sent:
            self._arm.run.note(self._arm.name, planned=planned(self._plan(), keep_text=self._keep_text))


@asynccontextmanager
async def by_hand(
    server: Server,
    *,
    run: Run,
    arm: str,
    sampling: SampleSettings,
    stall_timeout_s: float = 120.0,
    keep_text: bool = False,
    seed: int | None = None,
    say: Callable[[str], None] = print,
) -> AsyncIterator[ByHand]:
    """Warm and watch a server as measure_arm() does, and let requests be sent one by one while the block runs.

    Args:
        server: running and idle.
        run: where everything goes.
        arm: name of this arm in every row.
        sampling: how the server is watched.
        stall_timeout_s: a request is given up when nothing moves for so long.
        keep_text: keep prompts and answers.
        seed: the requests' seeds are drawn from it.
        say: gets progress lines.

    Raises:
        ParameterError: no load may be put on the server.
        RecordError: the run folder can't be written.
    """
    watched = Arm(server, run, arm, sampling, say)
    watched.begin(by_hand=True, title="by hand")
    any_seed = secrets.randbelow(2**30) + 1
    first = RequestPlan(label="A", prompt=A_PROMPT, max_tokens=1, seed=any_seed, endpoint=server.endpoint)
    async with watched.watched(LoadPlan(requests=(first,), stall_timeout_s=stall_timeout_s)):
        hand = ByHand(watched, stall_timeout_s=stall_timeout_s, keep_text=keep_text, seed=seed)
        try:
            yield hand
        finally:
            await hand.finish()
