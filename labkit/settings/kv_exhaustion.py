"""Parameters of notebook 05_kv_exhaustion."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator

from labkit.settings.lab import Lab
from labkit.settings.values import Positive, Switch, Whole, list_from_json, takes


class KvExhaustion(Lab):
    """Parameters of notebook 05_kv_exhaustion."""

    ctx_size: Positive = Field(512, description="KV cells of the pool that is to run out")
    batch_size: Positive = Field(64, description="logical batch: tokens per step at most")
    other_batch_size: Positive = Field(2048, description="batch size of the arm that shows that it is no remedy")
    prompt_tokens: Annotated[Whole, Field(ge=16)] | None = Field(
        None,
        description="tokens of each prompt, about; none: computed from the pool",
        json_schema_extra=takes("a whole number from 16, or None"),
    )
    answers: Annotated[tuple[Positive, ...], BeforeValidator(list_from_json)] = Field(
        (),
        description="tokens of each answer, a request each with a prompt of one word; empty: computed from the pool",
        json_schema_extra=takes("a list of whole numbers from 1, up to 9 of them"),
        max_length=9,
    )
    remedies: Switch = Field(True, description="also run the arms that pass, and the other batch size")
    predicted_victims: Annotated[Whole, Field(ge=0)] = Field(
        1,
        description="your prediction: requests that end with an error when the pool runs out",
        json_schema_extra=takes("a whole number from 0"),
    )

    @model_validator(mode="after")
    def _ours_alone(self) -> Self:
        if self.attached:
            raise ValueError(
                f"this notebook runs on no server that somebody else started ({self.engine}): filling its KV pool"
                " would end the running requests of everybody who uses it; use engine = embedded, or a path"
            )
        return self

    @model_validator(mode="after")
    def _can_fill_up(self) -> Self:
        if not self.kv_unified and self.parallel != "auto":
            raise ValueError("kv_unified = False has no common pool that could run out; the split arms are run anyway")
        if self.parallel != "auto" and (self.parallel < 2 or (not self.answers and self.parallel > 9)):
            raise ValueError(f"parallel = {self.parallel} can't be used here: it takes 2 to 9 slots, or auto")
        return self
