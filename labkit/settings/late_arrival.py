"""Parameters of notebook 03_late_arrival."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from labkit.settings.lab import Lab
from labkit.settings.values import Positive, Switch, Whole, takes


class LateArrival(Lab):
    """Parameters of notebook 03_late_arrival."""

    a_tokens: Positive = Field(256, description="tokens that A, the early request, decodes")
    b_tokens: Positive = Field(32, description="tokens that each late request decodes")
    trigger_tokens: Positive = Field(8, description="B is sent when A has decoded this many tokens")
    n_late: Annotated[Whole, Field(ge=1, le=8)] = Field(
        1, description="late requests: B, C, ...", json_schema_extra=takes("a whole number from 1 to 8")
    )
    late_prompt_tokens: Annotated[Whole, Field(ge=16)] | None = Field(
        None,
        description="tokens of each late prompt, about; none: one short sentence",
        json_schema_extra=takes("a whole number from 16, or None"),
    )
    control: Switch = Field(True, description="run the same plan without continuous batching")
    predicted_tokens_left: Annotated[Whole, Field(ge=0)] = Field(
        200,
        description="your prediction: tokens A still gets after B's first one",
        json_schema_extra=takes("a whole number from 0"),
    )

    @model_validator(mode="after")
    def _late_enough(self) -> Self:
        if self.trigger_tokens > self.a_tokens:
            raise ValueError(
                f"trigger_tokens = {self.trigger_tokens} is above a_tokens = {self.a_tokens}: B would never be sent"
            )
        return self
