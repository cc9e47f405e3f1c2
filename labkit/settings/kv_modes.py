"""Parameters of notebook 02_kv_unified_vs_split."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator

from labkit.settings.lab import Lab
from labkit.settings.values import Positive, Switch, Whole, list_from_json, takes

MAX_REQUESTS = 32  # more than a picture can name


class KvModes(Lab):
    """Parameters of notebook 02_kv_unified_vs_split."""

    prompt_tokens: Annotated[tuple[Positive, ...], BeforeValidator(list_from_json)] = Field(
        (),
        description="lengths of the mixed prompts in tokens, about; empty: a mixture made from ctx_size",
        json_schema_extra=takes(f"a list of whole numbers from 1, up to {MAX_REQUESTS} of them"),
        max_length=MAX_REQUESTS,
    )
    lengths_csv: str = Field("", description="a CSV of your own lengths, instead of prompt_tokens")
    lengths_drawn: Annotated[Whole, Field(ge=1, le=MAX_REQUESTS)] = Field(
        8,
        description="so many of them are drawn by chance",
        json_schema_extra=takes(f"a whole number from 1 to {MAX_REQUESTS}"),
    )
    long_prompt_tokens: Positive | None = Field(
        None, description="tokens of the long prompt, about; none: an eighth more than a box"
    )
    max_tokens: Positive = Field(24, description="tokens that each request decodes")
    equal_per_slot: Switch = Field(
        True, description="also run split with as much context per slot as unified: its memory is N times as large"
    )
    other_ubatch_size: Positive = Field(128, description="physical batch of a server that is started to compare memory")
    predicted_refused: Annotated[Whole, Field(ge=0)] = Field(
        0,
        description="your prediction: mixed requests that split refuses and unified serves",
        json_schema_extra=takes("a whole number from 0"),
    )

    @model_validator(mode="after")
    def _ours_alone(self) -> Self:
        if self.attached:
            raise ValueError(
                f"this notebook can't run on a server that somebody else started ({self.engine}): it compares servers"
                " in two KV modes, and such a server is never restarted; use engine = embedded, or a path"
            )
        return self

    @model_validator(mode="after")
    def _comparable(self) -> Self:
        if self.parallel == "auto":
            raise ValueError("parallel = 'auto' can't be used here: it takes a whole number, since auto is never split")
        if self.parallel > 16:
            raise ValueError(f"parallel = {self.parallel} can't be used here: it takes up to 16, one box each")
        if self.prompt_tokens and self.lengths_csv:
            raise ValueError("prompt_tokens and lengths_csv are both given: one of them says which lengths to send")
        if self.other_ubatch_size == self.ubatch_size:
            raise ValueError(f"other_ubatch_size = {self.ubatch_size} is ubatch_size itself: nothing to compare")
        return self
