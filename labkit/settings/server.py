"""How a server is started, and what is allowed on one that somebody else started."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from labkit.settings.values import CACHE_TYPES, CacheType, Positive, Setting, Switch, Texts, Whole, no_secret, takes

MAX_SLOTS = 256  # LLAMA_MAX_SEQ, src/llama-cparams.h


class ServerSettings(Setting):
    """How a llama-server is started; one field per flag that matters here.

    The flags themselves are spelled in engine/flags.py. Defaults are this kit's own, always passed
    explicitly: llama-server's autos mean other things than the same values given (facts on
    `--parallel` and `--kv-unified`: tools/server/server.cpp).
    """

    engine: Annotated[str, AfterValidator(no_secret)] = Field(
        "embedded",
        min_length=1,
        json_schema_extra=takes("a name, a path or a URL"),
        description="embedded (the wheel), build (notebook 00's), a path to a llama-server, or a server's URL",
    )
    model: str = Field("smollm2-135m", description="smollm2-135m, toy, a path to a GGUF file, or hf:org/repo/file.gguf")
    parallel: Annotated[Whole, Field(ge=1, le=MAX_SLOTS)] | Literal["auto"] = Field(
        2,
        description="slots: requests that own a slot at once",
        json_schema_extra=takes(f'a whole number from 1 to {MAX_SLOTS}, or "auto"'),
    )
    ctx_size: Positive = Field(4096, description="KV cells in all, shared (unified) or divided (split)")
    kv_unified: Switch = Field(True, description="one KV pool for all slots; false: a box for each")
    cont_batching: Switch = Field(True, description="may a prompt join while other slots decode?")
    batch_size: Positive = Field(2048, description="logical batch: tokens per step at most")
    ubatch_size: Positive = Field(512, description="physical batch: tokens per pass through the backend")
    threads: Positive | None = Field(None, description="compute threads; none: the physical cores")
    threads_http: Positive | None = Field(None, description="HTTP threads, which are not slots")
    cache_type_k: CacheType = Field(
        "f16", description="type of the K cache", json_schema_extra=takes("one of " + ", ".join(CACHE_TYPES))
    )
    cache_type_v: CacheType = Field(
        "f16", description="type of the V cache", json_schema_extra=takes("one of " + ", ".join(CACHE_TYPES))
    )
    flash_attn: Literal["auto", "on", "off"] = Field(
        "auto", description="flash attention", json_schema_extra=takes('"auto", "on" or "off"')
    )
    cache_ram: Annotated[Whole, Field(ge=-1)] = Field(
        0,
        description="MiB of RAM for idle prompts; 0: off",
        json_schema_extra=takes("MiB, or -1 for no limit"),
    )
    gpu_layers: Annotated[Whole, Field(ge=0)] | Literal["auto"] = Field(
        "auto", description="layers on the GPU", json_schema_extra=takes('a whole number from 0, or "auto"')
    )
    extra_args: Annotated[Texts, AfterValidator(no_secret)] = Field(
        (), description="more flags for a llama-server binary, recorded as they are"
    )
    host: str = Field("127.0.0.1", description="address to listen on")
    port: Annotated[Whole, Field(ge=1, le=65535)] | None = Field(
        None, description="port; none: a free one", json_schema_extra=takes("a port from 1 to 65535")
    )
    kv_unified_per_slot: Positive | None = Field(
        None, description="cells of a unified pool that one slot may use at most, on builds that know it; none: no cap"
    )
    slots_endpoint: Switch = Field(True, description="offer /slots")
    metrics_endpoint: Switch = Field(True, description="offer /metrics")

    @property
    def attached(self) -> bool:
        """Whether the engine is a URL: a server that somebody else started."""
        return self.engine.lower().startswith(("http://", "https://"))


class AttachSettings(Setting):
    """What is allowed, and known, of a server that somebody else started; of no account for any other."""

    allow_load: Switch = Field(False, description="may requests be sent to a server behind a URL?")
    max_requests: Positive = Field(8, description="requests sent to it at most")
    max_total_tokens: Positive = Field(4096, description="tokens it has to process at most, prompts and answers")
    server_argv: Annotated[str, AfterValidator(no_secret)] = Field(
        "", description="its command line, if you know it: what its API does not tell"
    )
