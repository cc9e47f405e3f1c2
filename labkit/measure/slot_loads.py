"""The loads of notebook 01: the same prompts, seeds and arrival times on every step, and what they need."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from labkit.engine.http import http_client
from labkit.engine.open import open_server
from labkit.engine.server import Server
from labkit.errors import ParameterError
from labkit.measure.client import count_tokens
from labkit.measure.late_arrival import lengthened
from labkit.measure.prompts import read_prompts
from labkit.measure.record import Run
from labkit.settings import LoadPlan, RequestPlan, SlotEscalation

PROMPTS = (
    "Explain in a few sentences why ships need lighthouses.",
    "List what a sailor packs for a week at sea.",
    "Describe a harbour in the early morning.",
    "Tell the story of a storm in a small port.",
    "Give advice to somebody who sails for the first time.",
)
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

Say = Callable[[str], None]
Loads = dict[int, LoadPlan]


def label_of(number: int) -> str:
    """Return the name of request `number`, counted from 0: A to Z, then Z27, Z28, ..., which sort as they count."""
    return _LETTERS[number] if number < len(_LETTERS) else f"Z{number + 1}"


async def plan_loads(params: SlotEscalation, *, run: Run, say: Say = print) -> Loads:
    """Return the load of each size, and note what each of its requests needs, as a server counts tokens.

    The first step's server is started for the counting alone; each step gets a fresh one. A load is the
    same on every step and in every repeat: same prompts, seeds and arrival times.

    Args:
        params: of the notebook.
        run: gets `needs`, from which the context is planned.
        say: gets progress lines.

    Raises:
        ParameterError: no prompts can be read, or the loads are more than is allowed on a server that isn't ours.
        LabError: the first step's server can't be had.
    """
    prompts = read_prompts(params.prompts_file) if params.prompts_file else list(PROMPTS)
    async with step_server(params, params.slots_list[0], run, "count", say) as server:
        server.require_load_allowed()
        loads, needs = {}, {}
        seeds = _Draw(params)
        for size in params.loads:
            bare = _requests(size, prompts, params, seeds, server)
            loads[size], needs[size] = await _counted(bare, params, server)
            say(
                f"load of {size}: {max(sum(need.values()) for need in needs[size].values())} KV cells at most a request"
            )
        run.update(needs={"loads": {str(size): need for size, need in needs.items()}} | _server_facts(server))
        if server.attach:
            _check_allowed_together(needs, server.attach.max_requests, server.attach.max_total_tokens)
    return loads


class _Draw:
    """Seeds, tags and arrival times, from the run's one seed."""

    def __init__(self, params: SlotEscalation) -> None:
        self._random = random.Random(params.seed)  # noqa: S311
        self._seeds = iter(self._random.sample(range(1, 2**31), sum(params.loads)))
        self._rate = params.arrival_rate

    def seed(self) -> int:
        return next(self._seeds)

    def tag(self) -> str:
        return f"[{self._random.randrange(16**6):06x}]"

    def arrivals(self, size: int) -> list[float | None]:
        """Return when each request of a load is sent: at once, or by chance at the rate asked for."""
        if self._rate is None or size == 1:
            return [None] * size
        times: list[float | None] = [0.0]
        at_s = 0.0
        for _ in range(size - 1):
            at_s += self._random.expovariate(self._rate)
            times.append(at_s)
        return times


def _requests(
    size: int, prompts: Sequence[str], params: SlotEscalation, draw: _Draw, server: Server
) -> list[RequestPlan]:
    endpoint: Literal["chat", "completion"] = "chat" if server.model.facts.has_chat_template else "completion"
    return [
        RequestPlan(
            label=label_of(i),
            # a tag of its own first: what a prompt shares with another could come from a slot's cache
            prompt=f"{draw.tag()} {prompts[i % len(prompts)]}",
            max_tokens=params.max_tokens,
            seed=draw.seed(),
            at_s=at_s,
            endpoint=endpoint,
        )
        for i, at_s in enumerate(draw.arrivals(size))
    ]


async def _counted(
    requests: list[RequestPlan], params: SlotEscalation, server: Server
) -> tuple[LoadPlan, dict[str, dict[str, int]]]:
    """Return the load with its history in it, and the cells each request needs: input, history, output."""
    needs, sent = {}, []
    async with http_client(server.address, timeout_s=30.0) as client:
        for request in requests:
            bare = await count_tokens(client, request, server.model_id)
            full, total = request, bare
            if params.history_tokens:
                full = await lengthened(request, bare + params.history_tokens, server)
                total = await count_tokens(client, full, server.model_id)
            sent.append(full)
            needs[request.label] = {"input": bare, "history": total - bare, "output": request.max_tokens}
    return LoadPlan(requests=tuple(sent), stall_timeout_s=params.stall_timeout_s), needs


def _server_facts(server: Server) -> dict[str, Any]:
    effective = server.effective
    return {
        "attached": server.attached,
        "n_ctx_train": server.model.facts.n_ctx_train,
        "slots": effective.slots if effective else None,
        "slot_cells": effective.slot_cells if effective else None,
        "pool_cells": effective.pool_cells if effective else None,
        "kv_unified": effective.kv_unified if effective else None,
    }


def _check_allowed_together(
    needs: Mapping[int, Mapping[str, Mapping[str, int]]], max_requests: int, max_total_tokens: int
) -> None:
    tokens = sum(sum(need.values()) for load in needs.values() for need in load.values())
    requests = sum(len(load) for load in needs.values())
    for name, needed, allowed in (
        ("max_requests", requests, max_requests),
        ("max_total_tokens", tokens, max_total_tokens),
    ):
        if needed > allowed:
            raise ParameterError(
                f"the loads together need {name} = {needed}, {allowed} are allowed on a server that isn't ours",
                hint=f"{name} = {needed}, or a shorter requests_list",
            )


def step_server(params: SlotEscalation, slots: int | None, run: Run, log_name: str, say: Say) -> Any:
    """Return a fresh server for a step, to be entered; for a URL the server that is there.

    Args:
        params: of the notebook.
        slots: of the step; None: of a server that isn't ours and doesn't tell.
        run: gets its log, under `log_name`.
        say: gets progress lines.
    """
    settings = params.server(parallel=slots or 1, ctx_size=params.ctx_for(slots or 1))
    return open_server(settings, log_path=run.log_path(log_name), say=say, **params.limits())
