"""Parameters of notebook 04_metrics_and_gpu."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from labkit.settings.lab import Lab
from labkit.settings.load import SampleSettings
from labkit.settings.values import Positive, Switch, Whole, not_bool, takes

_Hertz = Annotated[
    float,
    BeforeValidator(not_bool),
    Field(gt=0, le=100, allow_inf_nan=False, json_schema_extra=takes("samples per second, above 0 and up to 100")),
]


class MetricsAndGpu(Lab):
    """Parameters of notebook 04_metrics_and_gpu."""

    n_requests: Annotated[Whole, Field(ge=2, le=26)] = Field(
        6,
        description="requests of the load: more than slots, so that some wait",
        json_schema_extra=takes("a whole number from 2 to 26"),
    )
    answer_tokens: Annotated[Whole, Field(ge=4)] = Field(
        128,
        description="tokens of the longest answer; the others get fewer, down to half",
        json_schema_extra=takes("a whole number from 4"),
    )
    prompt_words: Positive = Field(200, description="words of each prompt")
    one_by_one: Switch = Field(True, description="send the same requests once more, one after another")
    metrics_hz: _Hertz = Field(10.0, description="scrapes of /metrics per second")
    memory_hz: _Hertz = Field(10.0, description="samples of memory, and of a GPU, per second")
    memory_tolerance_mib: Annotated[float, BeforeValidator(not_bool)] = Field(
        8.0,
        gt=0,
        allow_inf_nan=False,
        description="memory may grow by so many MiB during the load and still be called flat",
        json_schema_extra=takes("MiB above 0"),
    )
    predicted_calls: Annotated[Whole, Field(ge=0)] = Field(
        300,
        description="your prediction: calls of llama_decode that all the answers together take",
        json_schema_extra=takes("a whole number from 0"),
    )

    def sampling(self) -> SampleSettings:
        """Return how the server is watched."""
        return SampleSettings(poll_hz=self.poll_hz, metrics_hz=self.metrics_hz, memory_hz=self.memory_hz)
