"""One arm of an experiment: warm every slot, find the server quiet, then load and watch on one clock."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from labkit.engine.http import http_client, look
from labkit.engine.server import Server
from labkit.measure.builds import traits_of
from labkit.measure.load import Load, check_allowed, check_fit, prompt_tokens
from labkit.measure.memory import MemorySampler
from labkit.measure.metrics import MetricsSampler
from labkit.measure.observe import SlotSampler, slots_in_words
from labkit.measure.record import Run
from labkit.measure.stream import RequestRecord
from labkit.settings import LoadPlan, RequestPlan, SampleSettings

WARM_UP_TOKENS = 16
IDLE_LIMIT_S = 30.0


async def measure_arm(
    server: Server,
    plan: LoadPlan,
    *,
    run: Run,
    arm: str,
    sampling: SampleSettings,
    title: str = "",
    keep_text: bool = False,
    show_text: bool = False,
    must_fit: bool = True,
    say: Callable[[str], None] = print,
) -> list[RequestRecord]:
    """Run `plan` on `server` and record everything under the name `arm`.

    The warm-up gives every slot a finished task: on many builds a slot shows its previous task's
    counters while a new one waits, and a fair check has to cope with that. The last poll before the
    load is the reference for what is stale.

    Args:
        server: running and idle.
        plan: the load.
        run: where everything goes.
        arm: name of this arm in every row.
        sampling: how /slots is watched.
        title: what pictures and tables call this arm; empty: continuous batching on or off.
        keep_text: keep prompts and answers.
        show_text: put them into the returned records, for showing; kept they are with keep_text alone.
        must_fit: refuse a plan that overflows a slot or the pool; off where the overflow is the experiment.
        say: gets progress lines.

    Raises:
        ParameterError: no load, or less load, may be put on the server.
        PlanError: the plan does not fit the server.
        RecordError: the run folder can't be written.
    """
    if title:
        run.note(arm, title=title)
    texts = {"keep_text": keep_text, "show_text": show_text}
    return await Arm(server, run, arm, sampling, say).measure(plan, must_fit=must_fit, **texts)


class Arm:
    """One arm on a running server: what surrounds a load, whoever sends it.

    Args:
        server: running and idle.
        run: where everything goes.
        name: of the arm.
        sampling: how the server is watched.
        say: gets progress lines.
    """

    def __init__(
        self, server: Server, run: Run, name: str, sampling: SampleSettings, say: Callable[[str], None]
    ) -> None:
        self.server, self.run, self.name, self.sampling = server, run, name, sampling
        self._say = say
        self.slots = (server.effective.slots if server.effective else None) or 1
        self._loads: list[Load] = []
        self.traits = traits_of(None, [])
        self._last_slots: Any = None

    def say(self, text: str) -> None:
        """Say a progress line."""
        self._say(f"{self.name}: {text}")

    async def measure(
        self, plan: LoadPlan, *, keep_text: bool, show_text: bool = False, must_fit: bool = True
    ) -> list[RequestRecord]:
        """Put one plan on the server; see measure_arm()."""
        self.begin(planned=planned(plan, keep_text=keep_text))
        await self._check_fit(plan, must_fit=must_fit)
        async with self.watched(plan):
            count = len(plan.requests)
            self.say(f"sending {count} request{'s' * (count != 1)}, watching /slots at {self.sampling.poll_hz:g} Hz")
            records = await self.send(plan, keep_text=keep_text, show_text=show_text)
        self.say(", ".join(f"{record.label} {record.outcome}" for record in records))
        return records

    def begin(self, **facts: Any) -> None:
        """Note what the arm runs on.

        Args:
            facts: what else is known before it starts.

        Raises:
            ParameterError: no load may be put on the server.
        """
        self.server.require_load_allowed()
        if self.server.key:
            self.run.hide(self.server.key.reveal())
        self.run.note(self.name, server=self.server.describe(), **facts)

    async def send(self, plan: LoadPlan, *, keep_text: bool, show_text: bool = False) -> list[RequestRecord]:
        """Send a plan's requests inside watched(); several may be under way at once."""
        load = Load(plan, keep_text=keep_text, show_text=show_text, **self._load_arguments())
        if self._last_slots is not None:  # a poll may have come before the load did
            load.note_slots(slots_in_words(self._last_slots))
        self._loads.append(load)
        try:
            return await load.run(self.server.address)
        finally:
            self._loads.remove(load)

    @asynccontextmanager
    async def watched(self, plan: LoadPlan) -> AsyncIterator[None]:
        """Warm every slot, find the server quiet, watch it while the block runs, and until it is quiet again.

        Args:
            plan: the load that follows, or its first part.
        """
        if not self.server.attached:  # a server in use is warm, and every request on it needs a reason
            self.say(f"warming {self.slots} slot{'s' * (self.slots != 1)}")
            warm_up = Load(warm_up_plan(self.slots, plan), warm_up=True, **self._load_arguments())
            await warm_up.run(self.server.address)
        async with SlotSampler(self.server.address, self.sampling, self.run.clock, self._keep_poll) as sampler:
            quiet_after_s = await sampler.until_idle(IDLE_LIMIT_S)
            self._note_traits()
            self.run.note(self.name, load_start_s=self.run.clock(), quiet_after_s=quiet_after_s)
            async with self._watching(sampler):
                yield
            alive = await self._alive()
            self.run.note(self.name, load_end_s=self.run.clock(), server_alive=alive)
            if not alive:
                self._note_death()
            # the next arm must not start while this one's tasks still run
            idle_after_s = await sampler.until_idle(IDLE_LIMIT_S if alive else 0.0)
            self.run.note(self.name, idle_after_s=idle_after_s)

    def _note_death(self) -> None:
        self.run.note(self.name, server_exit=self.server.exit_text)
        where = f"; its log: {self.server.log_path}" if self.server.log_path else ""
        self.say(f"the server {self.server.exit_text} in the middle of the run{where}")

    async def _alive(self) -> bool:
        """Whether the server is still there: its process if it is ours, else its /health."""
        if not self.server.attached:
            return self.server.alive
        async with http_client(self.server.address, timeout_s=IDLE_LIMIT_S) as client:
            return (await look(client, "/health")).status is not None

    def _note_traits(self) -> None:
        """Note what this build does otherwise than others, as far as rules and the idle slots tell."""
        self.traits = traits_of(self.server.build.get("number"), self._last_slots or [])
        self.run.note(self.name, traits=self.traits.describe())

    def _load_arguments(self) -> dict[str, Any]:
        return {
            "arm": self.name,
            "clock": self.run.clock,
            "keep": self.run.append,
            "tell": self.run.tell,
        }

    def _keep_poll(self, row: dict[str, Any]) -> None:
        self.run.append("slots", {"arm": self.name} | row)
        if row["slots"] is not None and row["slots"] != self._last_slots:
            self._last_slots = row["slots"]
            for load in self._loads:
                load.note_slots(slots_in_words(row["slots"]))

    @asynccontextmanager
    async def _watching(self, sampler: SlotSampler) -> AsyncIterator[None]:
        """Run the samplers beside the block; one that fails (a full disk) fails the arm."""
        async with self._metrics() as metrics, self._memory() as memory:
            watching = [asyncio.create_task(sampler.run())]
            if memory:
                watching.append(asyncio.create_task(memory.run()))
            scraping = metrics and await metrics.scrape()  # the state before, and whether it answers at all
            if metrics and scraping:
                watching.append(asyncio.create_task(metrics.run()))
            try:
                yield
            finally:
                for task in watching:
                    task.cancel()
                for result in await asyncio.gather(*watching, return_exceptions=True):
                    if isinstance(result, Exception):
                        raise result
                if memory:
                    memory.sample()
                if metrics and scraping:
                    await metrics.scrape()

    @asynccontextmanager
    async def _metrics(self) -> AsyncIterator[MetricsSampler | None]:
        if not self._may_scrape():
            yield None
            return
        hz, clock = self.sampling.metrics_hz, self.run.clock
        async with MetricsSampler(self.server.address, hz, clock, self._keeper("metrics")) as metrics:
            yield metrics

    @asynccontextmanager
    async def _memory(self) -> AsyncIterator[MemorySampler | None]:
        if self.server.process is None:  # its machine may be another
            yield None
            return
        with MemorySampler(
            self.server.process.pid, self.sampling.memory_hz, self.run.clock, self._keeper("memory")
        ) as memory:
            yield memory

    def _keeper(self, stream: str) -> Callable[[dict[str, Any]], None]:
        return lambda row: self.run.append(stream, {"arm": self.name} | row)

    def _may_scrape(self) -> bool:
        """Whether /metrics may be asked: somebody else's monitoring must not lose what a scrape resets."""
        effective = self.server.effective
        offered = self.sampling.metrics_hz > 0 and not (effective and effective.metrics_endpoint is False)
        return offered and (not self.server.attached or self.traits.scrape_resets_gauges.holds is False)

    async def _check_fit(self, plan: LoadPlan, *, must_fit: bool) -> None:
        prompts = await prompt_tokens(self.server.address, plan)
        self.run.note(self.name, prompt_tokens=prompts)
        if self.server.attach:
            check_allowed(plan, prompts, self.server.attach)
        if must_fit and (effective := self.server.effective) is not None:
            check_fit(
                plan,
                prompts,
                slots=effective.slots,
                slot_cells=effective.slot_cells,
                pool_cells=effective.pool_cells,
                kv_unified=effective.kv_unified,
            )


def planned(plan: LoadPlan, *, keep_text: bool) -> dict[str, Any]:
    """Return a plan as the record keeps it.

    Args:
        plan: the load.
        keep_text: with its prompts.
    """
    kept = plan.model_dump()
    if not keep_text:
        for request in kept["requests"]:
            del request["prompt"]
    return kept


def warm_up_plan(slots: int, plan: LoadPlan) -> LoadPlan:
    """Return one short request for each slot, all at once, so that every slot has been used.

    Args:
        slots: how many.
        plan: the load that follows; its seeds and endpoint are respected.
    """
    taken = {request.seed for request in plan.requests}
    draw = random.Random(sum(taken))  # noqa: S311
    seeds = [seed for seed in draw.sample(range(1, 2**31), slots + len(taken)) if seed not in taken][:slots]
    requests = tuple(
        RequestPlan(
            label=f"warm-up {i + 1}",
            prompt=f"[warm-up {i + 1}] Count to ten.",
            max_tokens=WARM_UP_TOKENS,
            seed=seed,
            endpoint=plan.requests[0].endpoint,
        )
        for i, seed in enumerate(seeds)
    )
    return LoadPlan(requests=requests, stall_timeout_s=plan.stall_timeout_s)
