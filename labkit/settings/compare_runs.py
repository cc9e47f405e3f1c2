"""Parameters of notebook 06_compare_runs."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from labkit.settings.values import Shown, Switch, not_bool, takes

CHANGES = ("parallel", "kv_unified", "ctx_size", "build")
Percent = Annotated[float, BeforeValidator(not_bool)]


class CompareRuns(Shown):
    """Parameters of notebook 06_compare_runs, which runs no engine."""

    before: str = Field("", description="run folder of the earlier configuration, or a folder of several; empty: found")
    after: str = Field("", description="run folder of the new configuration, or a folder of several; empty: found")
    changed: Literal["auto", "parallel", "kv_unified", "ctx_size", "build"] = Field(
        "auto",
        description="what differs on purpose: parallel, kv_unified, ctx_size, build; auto: what the records say",
        json_schema_extra=takes(f"auto, {', '.join(CHANGES)}"),
    )
    tolerance_percent: Percent = Field(
        10.0,
        ge=0,
        le=1000,
        allow_inf_nan=False,
        description="a figure may get worse by so much and still be kept",
        json_schema_extra=takes("per cent from 0 to 1000"),
    )
    predicted_change_percent: Percent = Field(
        0.0,
        ge=-100,
        allow_inf_nan=False,
        description="your prediction: change of TTFT in per cent, below 0: faster",
        json_schema_extra=takes("per cent from -100"),
    )
    strict: Switch = Field(False, description="fail the notebook unless the verdict is supported")
    outputs: str = Field("", description="where the run folder goes, and where runs are looked for; empty: outputs/")

    @model_validator(mode="after")
    def _two(self) -> Self:
        if self.before and self.before == self.after:
            raise ValueError(f"before and after are the same folder, {self.before}: nothing can differ")
        return self
