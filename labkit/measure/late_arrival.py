"""The load of notebook 03: A decodes, then late requests arrive."""

from __future__ import annotations

import random
import secrets
from typing import Literal

from labkit.engine.http import http_client
from labkit.engine.server import Server
from labkit.errors import ParameterError
from labkit.measure.client import count_tokens
from labkit.settings import After, LateArrival, LoadPlan, RequestPlan

A_PROMPT = "Write a long story about a lighthouse keeper who learns to sail."
LATE_PROMPT = "Say in one sentence what a lighthouse is for."
_FILLER = ("the", "keeper", "lights", "a", "lamp", "and", "counts", "ships", "at", "sea")
_WORDS_LIMIT = 200_000


async def late_arrival_plan(params: LateArrival, server: Server) -> LoadPlan:
    """Return A and its late requests B, C, ..., with seeds drawn for this run.

    Every prompt starts with a tag of its own: a shared prefix could be served from a slot's cache
    (a unique end would not prevent that).

    Args:
        params: lengths and trigger.
        server: counts the tokens of a long late prompt.

    Raises:
        ParameterError: no load may be put on the server.
        ServerError: it does not count tokens.
    """
    server.require_load_allowed()  # counting tokens wakes a sleeping server
    # on somebody else's server a repeated seed could be found in an old answer of /slots that a proxy kept
    nonce = secrets.token_hex(8) if server.attached else ""
    draw = random.Random(f"{params.seed}{nonce}" if nonce else params.seed)  # noqa: S311
    endpoint: Literal["chat", "completion"] = "chat" if server.model.facts.has_chat_template else "completion"
    labels = "ABCDEFGHI"[: params.n_late + 1]
    seeds = draw.sample(range(1, 2**31), len(labels))
    tags = [f"[{draw.randrange(16**6):06x}]" for _ in labels]
    late = After(label="A", tokens=params.trigger_tokens)
    requests = [
        RequestPlan(
            label=label,
            prompt=f"{tag} {A_PROMPT if label == 'A' else LATE_PROMPT}",
            max_tokens=params.a_tokens if label == "A" else params.b_tokens,
            seed=seed,
            after=None if label == "A" else late,
            endpoint=endpoint,
        )
        for label, tag, seed in zip(labels, tags, seeds, strict=True)
    ]
    if params.late_prompt_tokens:
        requests[1:] = [await lengthened(request, params.late_prompt_tokens, server) for request in requests[1:]]
    return LoadPlan(
        requests=tuple(requests), start_timeout_s=params.start_timeout_s, stall_timeout_s=params.stall_timeout_s
    )


async def lengthened(request: RequestPlan, tokens: int, server: Server) -> RequestPlan:
    """Return the request with filler words before its question, so that its prompt has about `tokens` tokens.

    Args:
        request: its prompt starts with a tag and a space.
        tokens: as the server counts them, chat template included.
        server: counts.

    Raises:
        ParameterError: this model's tokenizer swallows words.
        ServerError: the server does not count tokens.
    """
    async with http_client(server.address, timeout_s=30.0) as client:
        bare = await count_tokens(client, request, server.model_id)
        sample = await count_tokens(client, _filled(request, 200), server.model_id)
        per_word = (sample - bare) / 200
        if per_word <= 0:
            raise ParameterError("late_prompt_tokens can't be met: this model's tokenizer swallows words")
        return _filled(request, min(_WORDS_LIMIT, max(0, round((tokens - bare) / per_word))))


def _filled(request: RequestPlan, words: int) -> RequestPlan:
    tag, question = request.prompt.split(" ", 1)
    filler = " ".join(_FILLER[i % len(_FILLER)] for i in range(words))
    return request.model_copy(update={"prompt": f"{tag} {filler} {question}".replace("  ", " ")})
