"""The loads of notebook 04: more requests than slots, the same one after another, and a server without /metrics."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Literal

from labkit.engine.http import Answer, http_client, look
from labkit.engine.open import open_server
from labkit.engine.server import Server
from labkit.measure.load import Load
from labkit.measure.record import Run
from labkit.settings import LoadPlan, MetricsAndGpu, RequestPlan

# the samplers see the idle server for so long before the first request is sent
LEAD_S = 0.5
ARM, ARM_WITHOUT = "at_once", "metrics_off"
_QUESTION = "Write about a lighthouse keeper who learns to sail."
_WORDS = ("the", "keeper", "lights", "a", "lamp", "and", "counts", "ships", "at", "sea")


def metrics_and_gpu_plan(params: MetricsAndGpu, server: Server) -> LoadPlan:
    """Return requests that are sent at once, with answers of different lengths and seeds drawn for this run.

    The lengths differ so that slots fall free one by one. Every prompt starts with a tag of its own: a
    shared prefix could be served from a slot's cache, and the server doesn't count what it takes from there.

    Args:
        params: how many, and how long.
        server: its model decides the endpoint.
    """
    draw = random.Random(params.seed)  # noqa: S311
    endpoint: Literal["chat", "completion"] = "chat" if server.model.facts.has_chat_template else "completion"
    seeds = draw.sample(range(1, 2**31), params.n_requests)
    words = " ".join(_WORDS[i % len(_WORDS)] for i in range(params.prompt_words))
    requests = tuple(
        RequestPlan(
            label=chr(ord("A") + i),
            prompt=f"[{draw.randrange(16**6):06x}] {words}. {_QUESTION}",
            max_tokens=_answer_tokens(i, params),
            seed=seed,
            at_s=LEAD_S,
            endpoint=endpoint,
        )
        for i, seed in enumerate(seeds)
    )
    return LoadPlan(requests=requests, stall_timeout_s=params.stall_timeout_s)


def _answer_tokens(number: int, params: MetricsAndGpu) -> int:
    shorter_by = 0.5 * number / (params.n_requests - 1)
    return max(1, round(params.answer_tokens * (1 - shorter_by)))


async def rehearse(server: Server, plan: LoadPlan, run: Run, *, say: Callable[[str], None] = print) -> None:
    """Send prompts like the load's, one a slot, at once, so that what a full batch needs is in memory before it.

    The compute buffers are allocated at the start, but the system gives them memory when they are first
    written to: a short warm-up leaves most of them untouched, and the load would seem to grow.

    Args:
        server: running and idle; one that isn't ours is left alone.
        plan: the load that follows.
        run: keeps the requests, as warm-up of the arm "at_once".
        say: gets progress lines.
    """
    if server.attached:
        return
    slots = (server.effective.slots if server.effective else None) or 1
    say(f"rehearsing: {slots} prompts like the load's")
    taken = {request.seed for request in plan.requests}
    seeds = (seed for seed in range(1, 2**31) if seed not in taken)
    requests = tuple(
        plan.requests[i % len(plan.requests)].model_copy(
            update={"label": f"rehearsal {i + 1}", "seed": next(seeds), "max_tokens": 2, "at_s": None}
        )
        for i in range(slots)
    )
    small = LoadPlan(requests=requests, stall_timeout_s=plan.stall_timeout_s)
    await Load(small, arm=ARM, clock=run.clock, keep=run.append, warm_up=True).run(server.address)


def one_after_another(plan: LoadPlan) -> LoadPlan:
    """Return the same load over a single connection: each request is sent when the one before has ended.

    Args:
        plan: the load.
    """
    return plan.model_copy(update={"max_connections": 1})


async def ask_without_metrics(params: MetricsAndGpu, run: Run, *, say: Callable[[str], None] = print) -> None:
    """Start the server once more without --metrics, ask it for /metrics, and record what it answers.

    Args:
        params: the same server otherwise.
        run: gets the answer, as facts of the arm "metrics_off".
        say: gets progress lines.

    Raises:
        LabError: the server can't be started.
    """
    settings = params.server(metrics_endpoint=False)
    async with open_server(settings, log_path=run.log_path(ARM_WITHOUT), say=say, **params.limits()) as server:
        if server.key:
            run.hide(server.key.reveal())
        async with http_client(server.address, timeout_s=10.0) as client:
            answer = await look(client, "/metrics")
        run.note(ARM_WITHOUT, server=server.describe(), answer={"status": answer.status, "said": _said(answer)})
    say(f"without --metrics, /metrics answers {answer.text}: {_said(answer)}")


def _said(answer: Answer) -> str:
    """Return the message in an error's body, or the body's beginning."""
    text = answer.body.decode("utf-8", "replace")
    try:
        return str(json.loads(text)["error"]["message"])[:300]
    except (ValueError, KeyError, TypeError):
        return text[:300] or answer.problem
