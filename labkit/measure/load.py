"""Puts a planned load on a server: at once, at a time, or when another request has come so far."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx

from labkit.engine.http import Address, http_client
from labkit.errors import ParameterError, PlanError
from labkit.measure.client import count_tokens, stream_request
from labkit.measure.stream import Clock, RequestRecord, Stream
from labkit.measure.wire import StampingTransport
from labkit.settings import After, AttachSettings, LoadPlan, RequestPlan

_WATCH_EVERY_S = 0.25
PINGS_ALONE = 5  # times the stall limit for which pings alone keep a load going


class Progress:
    """How far each request's stream has come, and who waits for that."""

    def __init__(self) -> None:
        self._tokens: dict[str, int] = {}
        self._over: set[str] = set()
        self._waiting: list[tuple[After, asyncio.Event]] = []

    def token(self, label: str) -> None:
        """Count one token of `label` and wake who waited for it."""
        self._tokens[label] = self._tokens.get(label, 0) + 1
        if self._waiting:
            self._wake()

    def over(self, label: str) -> None:
        """Note that `label` has ended, however it did."""
        self._over.add(label)
        self._wake()

    async def reached(self, after: After) -> bool:
        """Wait until the state is reached; False if it can't be any more."""
        event = asyncio.Event()
        self._waiting.append((after, event))
        self._wake()
        await event.wait()
        return self._tokens.get(after.label, 0) >= after.tokens

    def _wake(self) -> None:
        for item in list(self._waiting):
            after, event = item
            if self._tokens.get(after.label, 0) >= after.tokens or after.label in self._over:
                event.set()
                self._waiting.remove(item)


class Load:
    """One load in flight.

    Args:
        plan: what to send and when.
        arm: name of the arm, kept in every row.
        clock: seconds on the run's clock.
        keep: called with ("tokens" or "requests", row) as they happen.
        tell: called with ("sent" or "text", row), for who watches; nothing of it is kept.
        keep_text: keep prompts and answers too.
        show_text: put them into the records that run() returns, for showing, and keep nothing of them.
        warm_up: mark the rows as warm-up, which no result counts.
    """

    def __init__(
        self,
        plan: LoadPlan,
        *,
        arm: str,
        clock: Clock,
        keep: Callable[[str, dict[str, Any]], None],
        tell: Callable[[str, dict[str, Any]], None] = lambda _stream, _row: None,
        keep_text: bool = False,
        show_text: bool = False,
        warm_up: bool = False,
    ) -> None:
        self.plan, self.arm, self.clock, self.keep, self.tell = plan, arm, clock, keep, tell
        self.keep_text, self.show_text, self.warm_up = keep_text, show_text, warm_up
        self._progress = Progress()
        self._last_seen = ""
        self._moved_s = clock()
        self._alive_s = clock()
        self._start_s = clock()

    async def run(self, address: Address) -> list[RequestRecord]:
        """Send everything and return the records, in the plan's order; a failure is a record."""
        size = self.plan.max_connections or len(self.plan.requests)
        transport = StampingTransport(connections=size, clock=self.clock, tls=address.tls)
        # no read or pool limit: a request may wait long for a slot; the watch below looks at progress
        timeout = httpx.Timeout(None, connect=10.0)
        async with http_client(address, timeout_s=timeout, transport=transport) as client:
            self._alive_s = self._moved_s = self._start_s = self.clock()
            model = address.model_id
            tasks = [asyncio.create_task(self._one(client, request, model)) for request in self.plan.requests]
            watch = asyncio.create_task(self._watch(tasks))
            try:
                return await _all(tasks)
            finally:
                watch.cancel()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(watch, *tasks, return_exceptions=True)

    async def _one(self, client: httpx.AsyncClient, request: RequestPlan, model: str) -> RequestRecord:
        record = RequestRecord(
            arm=self.arm,
            label=request.label,
            seed=request.seed,
            max_tokens=request.max_tokens,
            warm_up=self.warm_up,
            id_slot_asked=request.id_slot,
        )
        told = self.keep_text or self.show_text
        stream = Stream(request, record, self.clock, self._on_token, self.note_alive, keep_text=told)
        try:
            if await self._due(request, record):
                record.planned_s = self.clock()
                self._tell_sent(record)
                await stream_request(client, stream, model=model)
        except asyncio.CancelledError:
            if not self._stalled():
                record.outcome = "cancelled"
                raise
            record.outcome = "stalled"
            record.error = (
                f"server not making progress: nothing in any stream and no change in /slots"
                f" for {self.plan.stall_timeout_s:g} s, after {record.tokens} tokens of this one;"
                f" /slots last said: {self._last_seen or 'nothing'}"
            )
        finally:
            self._progress.over(request.label)
            self.keep("requests", record.row() | ({} if self.keep_text else {"prompt": None, "text": None}))
        return record

    def _tell_sent(self, record: RequestRecord) -> None:
        row = {"label": record.label, "seed": record.seed, "max_tokens": record.max_tokens}
        self.tell("sent", row | {"at_s": record.planned_s, "warm_up": self.warm_up})

    async def _due(self, request: RequestPlan, record: RequestRecord) -> bool:
        """Wait for the request's moment; False if it will not come."""
        if request.at_s is not None:
            await asyncio.sleep(max(0.0, self._start_s + request.at_s - self.clock()))
        if request.after is None:
            return True
        if not await self._reached_in_time(request.after):
            record.error = (
                f"{request.after.label} was over, or had not started in time, before its token {request.after.tokens}"
            )
            return False
        return True

    async def _reached_in_time(self, after: After) -> bool:
        """Wait for a state; the limit is on the watched request's first token, then on progress alone."""
        first = After(label=after.label, tokens=1)
        try:
            async with asyncio.timeout(self.plan.start_timeout_s):
                started = await self._progress.reached(first)
        except TimeoutError:
            return False
        return started and await self._progress.reached(after)

    def _on_token(self, record: RequestRecord, at_s: float, text: str) -> None:
        row = {
            "arm": self.arm,
            "label": record.label,
            "warm_up": self.warm_up,
            "i": record.tokens,
            "at_s": at_s,
        }
        self._moved_s = at_s
        self.keep("tokens", row | {"text": text} if self.keep_text else row)
        self.tell("text", {"label": record.label, "text": text, "warm_up": self.warm_up})
        self._progress.token(record.label)

    def note_alive(self) -> None:
        """Note that an event of any stream came."""
        self._alive_s = self.clock()

    def note_slots(self, said: str) -> None:
        """Note that something moved in /slots, and what it said, in words."""
        self._alive_s = self._moved_s = self.clock()
        self._last_seen = said

    def _stalled(self) -> bool:
        # pings are signs of life while a long prompt is prefilled, but not for ever
        now_s, limit_s = self.clock(), self.plan.stall_timeout_s
        return now_s - self._alive_s > limit_s or now_s - self._moved_s > PINGS_ALONE * limit_s

    async def _watch(self, tasks: list[asyncio.Task[RequestRecord]]) -> None:
        """Give the load up when nothing at all has come for too long."""
        while True:
            await asyncio.sleep(_WATCH_EVERY_S)
            if self._stalled():
                for task in tasks:
                    task.cancel()
                return


async def _all(tasks: list[asyncio.Task[RequestRecord]]) -> list[RequestRecord]:
    """Wait for all tasks; the first error of our own (a full disk) ends the wait."""
    await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    return [await task for task in tasks]


# --- does the plan fit? -------------------------------------------------------------------------------


async def prompt_tokens(address: Address, plan: LoadPlan) -> dict[str, int]:
    """Return each request's prompt length in tokens, as the server counts them, by label.

    Raises:
        ServerError: it doesn't count.
    """
    async with http_client(address, timeout_s=30.0) as client:
        return {request.label: await count_tokens(client, request, address.model_id) for request in plan.requests}


def check_fit(
    plan: LoadPlan,
    prompts: dict[str, int],
    *,
    slots: int | None,
    slot_cells: int | None,
    pool_cells: int | None,
    kv_unified: bool | None,
) -> None:
    """Refuse a plan that can't run as planned: a request larger than a slot, or all together larger than the pool.

    A slot ends an answer when prompt and answer reach its cells; a unified pool that overflows ends
    every running request (tools/server/server-context.cpp).

    Args:
        plan: the load.
        prompts: prompt length in tokens by label.
        slots: slots of the server; None: unknown, not checked. The same for the others.
        slot_cells: KV cells one slot may use.
        pool_cells: KV cells in all.
        kv_unified: whether the slots share them.

    Raises:
        ParameterError: a request is pinned to a slot that isn't there.
        PlanError: it doesn't fit.
    """
    _check_pins(plan, slots)
    need = {request.label: prompts[request.label] + request.max_tokens for request in plan.requests}
    label, cells = max(need.items(), key=lambda item: item[1])
    if slot_cells is not None and cells > slot_cells:
        raise PlanError(
            f"request {label} needs {cells} KV cells, a slot has {slot_cells}",
            why=f"{prompts[label]} for its prompt and {cells - prompts[label]} for its answer",
            hint=_more_context(cells, slots, kv_unified),
        )
    at_once = sum(sorted(need.values())[-(slots or len(need)) :])
    if kv_unified and pool_cells is not None and at_once > pool_cells:
        raise PlanError(
            f"the requests that run at once need {at_once} KV cells, the unified pool has {pool_cells}",
            why="an overflow would end every running request",
            hint=f"ctx_size = {_padded(at_once)}, or fewer tokens",
        )


def check_allowed(plan: LoadPlan, prompts: dict[str, int], limits: AttachSettings) -> None:
    """Refuse a load that is larger than what its user allowed on a server that isn't ours.

    Args:
        plan: the load.
        prompts: prompt length in tokens by label.
        limits: what is allowed.

    Raises:
        ParameterError: it is larger.
    """
    tokens = sum(prompts[request.label] + request.max_tokens for request in plan.requests)
    for name, needed in (("max_requests", len(plan.requests)), ("max_total_tokens", tokens)):
        if needed > getattr(limits, name):
            raise ParameterError(
                f"the load needs {name} = {needed}, {getattr(limits, name)} are allowed on a server that isn't ours",
                hint=f"{name} = {needed}, or a smaller load",
            )


def _check_pins(plan: LoadPlan, slots: int | None) -> None:
    for request in plan.requests:
        if request.id_slot is not None and slots is not None and request.id_slot >= slots:
            raise ParameterError(
                f"{request.label} is pinned to slot {request.id_slot}, the server has slots 0 to {slots - 1}",
                why="llama-server would quietly take it modulo the slot count",
            )


def _padded(cells: int) -> int:
    return -(-cells // 256) * 256


def _more_context(cells: int, slots: int | None, kv_unified: bool | None) -> str:
    total = _padded(cells) * (1 if kv_unified else slots or 1)
    return f"ctx_size = {total} or more (a slot never has more than the model's training context), or fewer tokens"
