"""What is sent to a server and how it is watched."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from labkit.settings.values import Positive, Seconds, Setting, Whole


class After(Setting):
    """The moment a request waits for: another request has decoded so many tokens (a state, not a time)."""

    label: str = Field(description="label of the request to watch")
    tokens: Positive = Field(description="tokens of its stream")


class RequestPlan(Setting):
    """One request of a load.

    Args:
        label: its name in tables and pictures.
        prompt: the user's message, or the raw prompt for the completion endpoint.
        max_tokens: tokens to decode.
        seed: sent with the request and found again in /slots: unique within a run.
        ignore_eos: decode all max_tokens even if the model wants to stop.
        cache_prompt: reuse a slot's cached prefix; off, so that every run prefills the same.
        id_slot: pin to this slot; none: the server chooses.
        after: send when another request's stream has come so far; none: at once.
        at_s: send so many seconds after the load's start; none: at once.
        endpoint: "chat" for /v1/chat/completions, "completion" for /completion.
    """

    label: str
    prompt: str
    max_tokens: Positive
    seed: Annotated[Whole, Field(ge=0, lt=2**32 - 1)]
    ignore_eos: bool = True
    temperature: float = Field(0.0, ge=0, allow_inf_nan=False)
    cache_prompt: bool = False
    id_slot: Annotated[Whole, Field(ge=0)] | None = None
    after: After | None = None
    at_s: float | None = Field(None, ge=0, allow_inf_nan=False)
    endpoint: Literal["chat", "completion"] = "chat"

    @model_validator(mode="before")
    @classmethod
    def _one_answer(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.pop("n", 1) != 1:
            raise ValueError("n above 1 claims that many slots for one request: plan separate requests instead")
        return data


class LoadPlan(Setting):
    """A set of requests and the limits on waiting for them.

    Args:
        requests: in the order they are sent when nothing else says when.
        start_timeout_s: for a request that others wait for: its first token must come within this.
        stall_timeout_s: the load is given up when for so long no stream has brought an event and /slots
            has not changed. Not a limit on total time.
        max_connections: size of the client's connection pool; none: one per request. A smaller pool
            makes the client the queue; the wait is recorded apart.
    """

    requests: tuple[RequestPlan, ...] = Field(min_length=1)
    start_timeout_s: Seconds = 30.0
    stall_timeout_s: Seconds = 120.0
    max_connections: Positive | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        labels = [request.label for request in self.requests]
        if len(set(labels)) < len(labels):
            raise ValueError("two requests carry the same label")
        if len({request.seed for request in self.requests}) < len(labels):
            raise ValueError("two requests carry the same seed: they could not be told apart in /slots")
        for position, request in enumerate(self.requests):
            if request.after and request.after.label not in labels[:position]:
                raise ValueError(f"{request.label} waits for {request.after.label!r}, which is not planned before it")
        return self


class SampleSettings(Setting):
    """How the server is watched.

    Args:
        poll_hz: polls of /slots per second.
        timeout_s: limit for one poll; until b10156 a reply waits for the end of the current decode step.
        metrics_hz: scrapes of /metrics per second; 0: none.
        memory_hz: samples of the server's memory per second.
    """

    poll_hz: float = Field(20.0, gt=0, le=1000, allow_inf_nan=False)
    timeout_s: Seconds = 5.0
    metrics_hz: float = Field(2.0, ge=0, le=100, allow_inf_nan=False)
    memory_hz: float = Field(2.0, gt=0, le=100, allow_inf_nan=False)
