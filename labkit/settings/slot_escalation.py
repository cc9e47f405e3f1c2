"""Parameters of notebook 01_slot_escalation."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from labkit.settings.lab import Lab
from labkit.settings.load import SampleSettings
from labkit.settings.server import MAX_SLOTS
from labkit.settings.values import Positive, Seconds, Whole, Wholes, not_bool, takes

MAX_REQUESTS = 64  # more lanes and labels than a picture can show
_METRICS_HZ = 10.0


class SlotEscalation(Lab):
    """Parameters of notebook 01_slot_escalation."""

    parallel: None = Field(  # type: ignore[assignment]
        None,
        description="not used here: slots_list says how many slots each step has",
        json_schema_extra=takes("nothing in this notebook: slots_list says how many slots each step has"),
    )
    slots_list: Wholes = Field((1, 2, 4), description="steps: slots of each server, rising")
    requests_list: Wholes = Field((2, 4), description="loads: so many requests at once, after a single one")
    ctx_size: Positive = Field(1024, description="KV cells: for each slot, or in all, as context_rule says")
    context_rule: Literal["per_slot", "total"] = Field(
        "per_slot",
        description="what stays as slots grow: per_slot (total grows) or total (each slot's share shrinks)",
        json_schema_extra=takes('"per_slot" or "total"'),
    )
    max_tokens: Positive = Field(64, description="tokens that each request decodes")
    history_tokens: Annotated[Whole, Field(ge=0)] = Field(
        0,
        description="tokens of earlier conversation in each prompt, about",
        json_schema_extra=takes("a whole number from 0"),
    )
    prompts_file: str = Field("", description="your own prompts, one a line or JSON lines; empty: built-in ones")
    repeats: Annotated[Whole, Field(ge=1, le=50)] = Field(
        3,
        description="times that each step is measured; intervals want 3",
        json_schema_extra=takes("a whole number from 1 to 50"),
    )
    arrival_rate: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)] | None = Field(
        None,
        description="requests per second, arriving by chance (Poisson); none: all at once",
        json_schema_extra=takes("requests per second above 0, or None"),
    )
    peak_concurrency: Positive | None = Field(
        None,
        description="requests you really have at once; none: not judged",
        json_schema_extra=takes("a whole number from 1, or None"),
    )
    slo_ttft_s: Seconds | None = Field(
        None,
        description="the slowest first token may take so long; none: no limit",
        json_schema_extra=takes("seconds above 0, or None"),
    )
    slo_itl_s: Seconds | None = Field(
        None,
        description="the slowest stream's time per token may be so long; none: no limit",
        json_schema_extra=takes("seconds above 0, or None"),
    )
    client_pool: Positive = Field(2, description="connections of the client in the wrong way, shown once")
    predicted_gain: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        2.0,
        description="your prediction: aggregate rate of the last step, as a multiple of the first's",
        json_schema_extra=takes("a number above 0"),
    )

    @field_validator("arrival_rate", "predicted_gain", mode="before")
    @classmethod
    def _a_number(cls, value: Any) -> Any:
        return not_bool(value)

    @model_validator(mode="after")
    def _usable(self) -> Self:
        for name, most in (("slots_list", MAX_SLOTS), ("requests_list", MAX_REQUESTS)):
            values = getattr(self, name)
            if max(values) > most:
                raise ValueError(f"{name} = {list(values)} goes above {most}")
            if any(later <= earlier for earlier, later in pairwise(values)):
                raise ValueError(f"{name} = {list(values)} must rise: each number once, the smallest first")
        return self

    @property
    def loads(self) -> tuple[int, ...]:
        """Requests of each load, the single one first."""
        return (1, *(requests for requests in self.requests_list if requests > 1))

    def ctx_for(self, slots: int) -> int:
        """Return the KV cells that a step's server is asked for.

        Args:
            slots: slots of the step.
        """
        return self.ctx_size * slots if self.context_rule == "per_slot" else self.ctx_size

    def sampling(self) -> SampleSettings:
        """Return how the server is watched; waiting requests come and go between slow scrapes of /metrics."""
        return SampleSettings(poll_hz=self.poll_hz, metrics_hz=min(_METRICS_HZ, self.poll_hz))
