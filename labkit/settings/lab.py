"""What every notebook's parameters have in common."""

from __future__ import annotations

import secrets
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from labkit.settings.load import SampleSettings
from labkit.settings.server import AttachSettings, ServerSettings
from labkit.settings.values import Seconds, Shown, Switch, Whole, not_bool, takes


class Lab(ServerSettings, AttachSettings, Shown):
    """Base of the parameters of a notebook that runs a server: engine, limits, seed, record."""

    poll_hz: Annotated[float, BeforeValidator(not_bool)] = Field(
        20.0,
        gt=0,
        le=1000,
        allow_inf_nan=False,
        description="polls of /slots per second",
        json_schema_extra=takes("polls per second, above 0 and up to 1000"),
    )
    start_timeout_s: Seconds = Field(30.0, description="A's first token must come within this")
    stall_timeout_s: Seconds = Field(120.0, description="give up when nothing moves for this long")
    load_timeout_s: Seconds = Field(120.0, description="the model must be loaded within this")
    seed: Annotated[Whole, Field(ge=0, lt=2**31)] | None = Field(
        None,
        description="seed that the requests' seeds are drawn from; none: drawn now, and recorded",
        json_schema_extra=takes("a whole number from 0, or None"),
    )
    keep_text: Switch = Field(False, description="keep prompts and answers in the record")
    strict: Switch = Field(False, description="fail the notebook unless the verdict is supported")
    outputs: str = Field("", description="where the run folder goes; empty: the project's outputs/")

    @model_validator(mode="before")
    @classmethod
    def _draw_seed(cls, data: Any) -> Any:
        # drawn here, so that the record and the command to repeat the run have it
        return data if data.get("seed") is not None else data | {"seed": secrets.randbits(31)}

    def server(self, **changes: Any) -> ServerSettings:
        """Return the server's part of the parameters, with `changes` for another arm."""
        values = self.model_dump(include=set(ServerSettings.model_fields)) | changes
        return ServerSettings(**values)

    def limits(self) -> dict[str, Any]:
        """Return the limits on starting, or attaching to, a server, as arguments of open_server()."""
        attach = AttachSettings(**self.model_dump(include=set(AttachSettings.model_fields)))
        return {"load_timeout_s": self.load_timeout_s, "attach": attach}

    def sampling(self) -> SampleSettings:
        """Return how the server is watched."""
        return SampleSettings(poll_hz=self.poll_hz)
