"""Widgets for parameters: one knob a parameter, and back from knobs to values that a model checks."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ipywidgets as widgets

from labkit.settings import Setting

_STYLE = {"description_width": "126px"}
_LAYOUT = {"width": "auto", "max_width": "420px"}


@dataclass(frozen=True)
class Knob:
    """One parameter as something to turn.

    Args:
        name: of the parameter.
        low: smallest value of a slider; high: largest; step: between two.
        options: values to choose from; words: what they are called, where that is something else.
        free: another value than the options may be typed.
        auto: the parameter also takes "auto", by a box beside the slider.
        form: "slider", "choice", "text", "number" (one that may be empty) or "list".
    """

    name: str
    low: int = 0
    high: int = 0
    step: int = 1
    options: tuple[Any, ...] = ()
    words: tuple[str, ...] = ()
    free: bool = False
    auto: bool = False
    form: str = "slider"


def choice(name: str, *options: Any, words: tuple[str, ...] = (), free: bool = False) -> Knob:
    """Return a knob with a few values; `free` lets others be typed."""
    return Knob(name, options=options, words=words, free=free, form="choice")


def switch(name: str, on: str = "yes", off: str = "no") -> Knob:
    """Return a knob for true or false."""
    return choice(name, True, False, words=(on, off))


_POWERS = tuple(2**n for n in range(5, 13))
SERVER = (
    choice("engine", "embedded", "build", free=True),
    choice("model", "smollm2-135m", "toy", free=True),
    Knob("parallel", 1, 16, auto=True),
    Knob("ctx_size", 256, 16384, 8),
    choice("kv_unified", True, False, words=("one pool", "a box each")),
    choice("cont_batching", True, False, words=("on", "off")),
    choice("batch_size", *_POWERS),
    choice("ubatch_size", *_POWERS),
)
_LABELS = {
    "parallel": "slots (parallel)",
    "ctx_size": "KV cells (ctx_size)",
    "kv_unified": "KV cache",
    "cont_batching": "continuous batching",
}


class Knobs:
    """A group of knobs.

    Args:
        knobs: what to show.
        values: what they start with; the model's own defaults are there for what is missing.
        model: the parameters' model; its descriptions are the tooltips.
        on_change: called after a knob was turned.
    """

    def __init__(
        self, knobs: tuple[Knob, ...], values: Setting, on_change: Callable[[], None], *, model: type[Setting]
    ) -> None:
        self._parts = {knob.name: _Part(knob, getattr(values, knob.name), model, on_change) for knob in knobs}
        self.widget = widgets.Box([part.widget for part in self._parts.values()])
        self.widget.add_class("labkit-knobs")

    def values(self) -> dict[str, Any]:
        """Return what the knobs say, by parameter, unchecked; an empty list is left to the model's default."""
        said = {name: part.value() for name, part in self._parts.items()}
        return {
            name: value for name, value in said.items() if value is not None or self._parts[name].knob.form != "list"
        }

    def enable(self, on: bool) -> None:
        """Let the knobs be turned, or not."""
        for part in self._parts.values():
            part.enable(on)


class _Part:
    def __init__(self, knob: Knob, value: Any, model: type[Setting], on_change: Callable[[], None]) -> None:
        self.knob = knob
        description = model.model_fields[knob.name].description or ""
        look = {
            "description": _LABELS.get(knob.name, knob.name),
            "tooltip": description,
            "style": _STYLE,
            "layout": widgets.Layout(**_LAYOUT),
        }
        self.main = _FORMS[knob.form](knob, value, look)
        self.auto: Any = None
        self.widget = self.main
        self.main.observe(lambda _: on_change(), "value")
        if knob.auto:
            self.auto = widgets.Checkbox(value == "auto", description="auto", indent=False)
            self.auto.layout.width = "64px"
            self.auto.observe(lambda _: on_change(), "value")
            self.main.layout.flex = "1 1 auto"
            self.widget = widgets.HBox([self.main, self.auto], layout=widgets.Layout(**_LAYOUT))
        self.widget.add_class(f"labkit-knob-{knob.name}")

    def value(self) -> Any:
        if self.auto is not None and self.auto.value:
            return "auto"
        if self.knob.form in ("list", "number"):
            return _typed(self.main.value)
        return self.main.value

    def enable(self, on: bool) -> None:
        for part in filter(None, (self.main, self.auto)):
            part.disabled = not on


def _typed(text: str) -> Any:
    """Return what was typed as a value; what is no value is left for the model to refuse by name."""
    if not text.strip():
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text


def _slider(knob: Knob, value: Any, look: dict[str, Any]) -> Any:
    start = value if isinstance(value, int) else knob.low
    low, high = min(knob.low, start), max(knob.high, start)
    return widgets.IntSlider(start, low, high, knob.step, continuous_update=True, **look)


def _choice(knob: Knob, value: Any, look: dict[str, Any]) -> Any:
    options = knob.options if value in knob.options else (*knob.options, value)
    if knob.free:
        # read when it is left or Enter is pressed: half a path is no engine
        return widgets.Combobox(value=value, options=knob.options, continuous_update=False, **look)
    if knob.words:
        shown = list(zip(knob.words, knob.options, strict=True))
        look = {**look, "style": {**_STYLE, "button_width": "auto"}}
        return widgets.ToggleButtons(value=value, options=shown, **look)
    ordered = sorted(options) if all(isinstance(option, int) for option in options) else options
    return widgets.Dropdown(value=value, options=ordered, **look)


def _text(_knob: Knob, value: Any, look: dict[str, Any]) -> Any:
    return widgets.Text(value=str(value), continuous_update=False, **look)


def _number(_knob: Knob, value: Any, look: dict[str, Any]) -> Any:
    shown = "" if value is None else str(value)
    return widgets.Text(value=shown, placeholder="none", continuous_update=False, **look)


def _list(_knob: Knob, value: Any, look: dict[str, Any]) -> Any:
    shown = json.dumps(list(value)) if value else ""
    return widgets.Text(value=shown, placeholder="computed", continuous_update=False, **look)


_FORMS: dict[str, Callable[[Knob, Any, dict[str, Any]], Any]] = {
    "slider": _slider, "choice": _choice, "text": _text, "number": _number, "list": _list,
}  # fmt: skip
