"""What to run: server settings, load plans, sampling, and each notebook's parameters.

Everything here is a frozen value that checks itself. A value that can't be used raises ParameterError
with the name, the value and what would be accepted.
"""

from __future__ import annotations

import json
import secrets
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from labkit.errors import ParameterError

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
MAX_SLOTS = 256  # LLAMA_MAX_SEQ, src/llama-cparams.h


def _not_bool(value: Any) -> Any:
    # pydantic takes True for 1: `-p parallel True` would silently mean one slot
    if isinstance(value, bool):
        raise ValueError("a truth value is not a number")
    return value


def _list_from_json(value: Any) -> Any:
    # papermill's -p hands over '[1, 2, 4]' as a string
    if isinstance(value, str) and value.strip().startswith("["):
        return json.loads(value)
    return value


def _takes(accepted: str) -> dict[str, Any]:
    return {"takes": accepted}


Whole = Annotated[int, BeforeValidator(_not_bool)]
Positive = Annotated[int, BeforeValidator(_not_bool), Field(ge=1, json_schema_extra=_takes("a whole number from 1"))]
Seconds = Annotated[
    float,
    BeforeValidator(_not_bool),
    Field(gt=0, allow_inf_nan=False, json_schema_extra=_takes("seconds above 0")),
]
Switch = Annotated[bool, Field(json_schema_extra=_takes("true or false"))]
Texts = Annotated[
    tuple[str, ...], BeforeValidator(_list_from_json), Field(json_schema_extra=_takes("a list of strings"))
]
CacheType = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"]


class Setting(BaseModel):
    """Base of the frozen values below: unknown names and bad values raise ParameterError."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise ParameterError(describe(error, type(self))) from None


def describe(error: ValidationError, model: type[BaseModel]) -> str:
    """Turn pydantic's errors into one sentence: names, values, and what would be accepted."""
    found: dict[str, str] = {}
    for item in error.errors(include_url=False):
        name = str(item["loc"][0]) if item["loc"] else ""
        found.setdefault(name, _sentence(name, item, model))
    return "; ".join(found.values())


def _sentence(name: str, item: Any, model: type[BaseModel]) -> str:
    if not name:
        return str(item["msg"]).removeprefix("Value error, ")
    if item["type"] == "extra_forbidden":
        return f"{name} is not a parameter of {model.__name__}"
    if item["type"] == "missing":
        return f"{name} is missing"
    field = model.model_fields.get(name)
    takes = dict(field.json_schema_extra or {}) if field and isinstance(field.json_schema_extra, dict) else {}
    value = item["input"] if len(item["loc"]) < 2 or isinstance(item["input"], str | int | float) else "…"
    reason = f"it takes {takes['takes']}" if "takes" in takes else str(item["msg"]).removeprefix("Value error, ")
    return f"{name} = {value!r} can't be used: {reason}"


class ServerSettings(Setting):
    """How a llama-server is started; one field per flag that matters here.

    The flags themselves are spelled in engine/flags.py. Defaults are this kit's own, always passed
    explicitly: llama-server's autos mean other things than the same values given (facts on
    `--parallel` and `--kv-unified`: tools/server/server.cpp).
    """

    engine: str = Field(
        "embedded", description="the wheel's own llama.cpp server, a path to a llama-server, or a server's URL"
    )
    model: str = Field("smollm2-135m", description="smollm2-135m, toy, a path to a GGUF file, or hf:org/repo/file.gguf")
    parallel: Annotated[Whole, Field(ge=1, le=MAX_SLOTS)] | Literal["auto"] = Field(
        2,
        description="slots: requests that own a slot at once",
        json_schema_extra=_takes(f'a whole number from 1 to {MAX_SLOTS}, or "auto"'),
    )
    ctx_size: Positive = Field(4096, description="KV cells in all, shared (unified) or divided (split)")
    kv_unified: Switch = Field(True, description="one KV pool for all slots; false: a box for each")
    cont_batching: Switch = Field(True, description="may a prompt join while other slots decode?")
    batch_size: Positive = Field(2048, description="logical batch: tokens per step at most")
    ubatch_size: Positive = Field(512, description="physical batch: tokens per pass through the backend")
    threads: Positive | None = Field(None, description="compute threads; none: the physical cores")
    threads_http: Positive | None = Field(None, description="HTTP threads, which are not slots")
    cache_type_k: CacheType = Field(
        "f16", description="type of the K cache", json_schema_extra=_takes("one of " + ", ".join(CACHE_TYPES))
    )
    cache_type_v: CacheType = Field(
        "f16", description="type of the V cache", json_schema_extra=_takes("one of " + ", ".join(CACHE_TYPES))
    )
    flash_attn: Literal["auto", "on", "off"] = Field(
        "auto", description="flash attention", json_schema_extra=_takes('"auto", "on" or "off"')
    )
    cache_ram: Annotated[Whole, Field(ge=-1)] = Field(
        0,
        description="MiB of RAM for idle prompts; 0: off",
        json_schema_extra=_takes("MiB, or -1 for no limit"),
    )
    gpu_layers: Annotated[Whole, Field(ge=0)] | Literal["auto"] = Field(
        "auto", description="layers on the GPU", json_schema_extra=_takes('a whole number from 0, or "auto"')
    )
    extra_args: Texts = Field((), description="more flags for a llama-server binary, recorded as they are")
    host: str = Field("127.0.0.1", description="address to listen on")
    port: Annotated[Whole, Field(ge=1, le=65535)] | None = Field(
        None, description="port; none: a free one", json_schema_extra=_takes("a port from 1 to 65535")
    )
    slots_endpoint: Switch = Field(True, description="offer /slots")
    metrics_endpoint: Switch = Field(True, description="offer /metrics")


class AttachSettings(Setting):
    """What is allowed, and known, of a server that somebody else started; of no account for any other."""

    allow_load: Switch = Field(False, description="may requests be sent to a server behind a URL?")
    max_requests: Positive = Field(8, description="requests sent to it at most")
    max_total_tokens: Positive = Field(4096, description="tokens it has to process at most, prompts and answers")
    server_argv: str = Field("", description="its command line, if you know it: what its API does not tell")


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
    """

    poll_hz: float = Field(20.0, gt=0, le=1000, allow_inf_nan=False)
    timeout_s: Seconds = 5.0
    metrics_hz: float = Field(2.0, ge=0, le=100, allow_inf_nan=False)


class LateArrival(ServerSettings, AttachSettings):
    """Parameters of notebook 03_late_arrival."""

    a_tokens: Positive = Field(256, description="tokens that A, the early request, decodes")
    b_tokens: Positive = Field(32, description="tokens that each late request decodes")
    trigger_tokens: Positive = Field(8, description="B is sent when A has decoded this many tokens")
    n_late: Annotated[Whole, Field(ge=1, le=8)] = Field(
        1, description="late requests: B, C, ...", json_schema_extra=_takes("a whole number from 1 to 8")
    )
    late_prompt_tokens: Annotated[Whole, Field(ge=16)] | None = Field(
        None,
        description="tokens of each late prompt, about; none: one short sentence",
        json_schema_extra=_takes("a whole number from 16, or None"),
    )
    control: Switch = Field(True, description="run the same plan without continuous batching")
    predicted_tokens_left: Annotated[Whole, Field(ge=0)] = Field(
        200,
        description="your prediction: tokens A still gets after B's first one",
        json_schema_extra=_takes("a whole number from 0"),
    )
    poll_hz: Annotated[float, BeforeValidator(_not_bool)] = Field(
        20.0,
        gt=0,
        le=1000,
        allow_inf_nan=False,
        description="polls of /slots per second",
        json_schema_extra=_takes("polls per second, above 0 and up to 1000"),
    )
    start_timeout_s: Seconds = Field(30.0, description="A's first token must come within this")
    stall_timeout_s: Seconds = Field(120.0, description="give up when nothing moves for this long")
    load_timeout_s: Seconds = Field(120.0, description="the model must be loaded within this")
    seed: Annotated[Whole, Field(ge=0, lt=2**31)] | None = Field(
        None,
        description="seed that the requests' seeds are drawn from; none: drawn now, and recorded",
        json_schema_extra=_takes("a whole number from 0, or None"),
    )
    keep_text: Switch = Field(False, description="keep prompts and answers in the record")
    strict: Switch = Field(False, description="fail the notebook unless the verdict is supported")
    outputs: str = Field("", description="where the run folder goes; empty: the project's outputs/")

    @model_validator(mode="before")
    @classmethod
    def _draw_seed(cls, data: Any) -> Any:
        # drawn here, so that the record and the command to repeat the run have it
        return data if data.get("seed") is not None else data | {"seed": secrets.randbits(31)}

    @model_validator(mode="after")
    def _late_enough(self) -> Self:
        if self.trigger_tokens > self.a_tokens:
            raise ValueError(
                f"trigger_tokens = {self.trigger_tokens} is above a_tokens = {self.a_tokens}: B would never be sent"
            )
        return self

    def server(self, **changes: Any) -> ServerSettings:
        """Return the server's part of the parameters, with `changes` for another arm."""
        values = self.model_dump(include=set(ServerSettings.model_fields)) | changes
        return ServerSettings(**values)

    @property
    def attached(self) -> bool:
        """Whether the engine is a URL: a server that somebody else started."""
        return self.engine.lower().startswith(("http://", "https://"))

    def limits(self) -> dict[str, Any]:
        """Return the limits on starting, or attaching to, a server, as arguments of open_server()."""
        attach = AttachSettings(**self.model_dump(include=set(AttachSettings.model_fields)))
        return {"load_timeout_s": self.load_timeout_s, "attach": attach}

    def sampling(self) -> SampleSettings:
        """Return how the server is watched."""
        return SampleSettings(poll_hz=self.poll_hz)
