"""What every setting is made of: checked types, and errors that say what would be accepted."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from labkit.errors import ParameterError

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")


def not_bool(value: Any) -> Any:
    # pydantic takes True for 1: `-p parallel True` would silently mean one slot
    if isinstance(value, bool):
        raise ValueError("a truth value is not a number")
    return value


def list_from_json(value: Any) -> Any:
    # papermill's -p hands over '[1, 2, 4]' as a string
    if isinstance(value, str) and value.strip().startswith("["):
        return json.loads(value)
    return value


def takes(accepted: str) -> dict[str, Any]:
    """Return what a field says it accepts, for the sentence that refuses a value."""
    return {"takes": accepted}


Whole = Annotated[int, BeforeValidator(not_bool)]
Positive = Annotated[int, BeforeValidator(not_bool), Field(ge=1, json_schema_extra=takes("a whole number from 1"))]
Seconds = Annotated[
    float,
    BeforeValidator(not_bool),
    Field(gt=0, allow_inf_nan=False, json_schema_extra=takes("seconds above 0")),
]
Switch = Annotated[bool, Field(json_schema_extra=takes("true or false"))]
Texts = Annotated[tuple[str, ...], BeforeValidator(list_from_json), Field(json_schema_extra=takes("a list of strings"))]
Wholes = Annotated[
    tuple[Positive, ...],
    BeforeValidator(list_from_json),
    Field(min_length=1, json_schema_extra=takes("a list of whole numbers from 1")),
]
CacheType = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"]


# a flag that carries a secret, a variable that does, an address with a user or parameters in it
_SECRET_FLAG = re.compile(r"--?[\w-]*(api[-_]?key|[-_]token$|password|secret)|-hft$", re.IGNORECASE)
_SECRET_VARIABLE = re.compile(r"\b[A-Z][A-Z0-9_]*(API_?KEY|TOKEN|SECRET|PASSWORD)[A-Z0-9_]*=")
_SECRET_ADDRESS = re.compile(r"://[^/\s]*@|://\S*[?#]")


def no_secret(value: Any) -> Any:
    """Refuse what looks like a secret, without repeating it: papermill writes parameters into the notebook.

    Raises:
        ParameterError: it does.
    """
    words = value.split() if isinstance(value, str) else value if isinstance(value, list | tuple) else ()
    for word in map(str, words):
        flag = word.partition("=")[0]
        if _SECRET_FLAG.fullmatch(flag):
            raise _written(flag)
        if found := _SECRET_VARIABLE.search(word):
            raise _written(found[0])
        if _SECRET_ADDRESS.search(word):
            raise _written("an address with a user, or parameters, in it")
    return value


def _written(what: str) -> ParameterError:
    return ParameterError(
        f"a parameter seems to carry a secret: {what}",
        why="papermill has already written it into the notebook",
        hint="make a new key, leave it out here, and pass it in the environment variable LABKIT_API_KEY",
    )


class Setting(BaseModel):
    """Base of the frozen values below: unknown names and bad values raise ParameterError."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise ParameterError(describe(error, type(self))) from None


class Shown(Setting):
    """What every notebook has: a panel at its end, for a person, and a recorded run in place of a measurement."""

    interactive: Switch | None = Field(
        None,
        description="show the panel at the end; none: where somebody sits in front of it",
        json_schema_extra=takes("true, false or None"),
    )
    replay: str = Field("", description="a recorded run's folder: its tables, pictures and verdict; empty: measure")


def free_in_replay(name: str) -> bool:
    """Whether a parameter may be given beside `replay`: it changes nothing of what was recorded, nor its judging.

    Args:
        name: of the parameter.
    """
    return name in ("interactive", "replay", "strict", "outputs") or name.startswith("predicted_")


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
