"""A notebook's panel: knobs and what they mean, a server to start, requests to send, the experiment to run."""

from __future__ import annotations

import asyncio
import base64
import html
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from labkit.analyze.verdict import Verdict
from labkit.engine.hub import PREFIX as HUB
from labkit.engine.models import ModelFile, resolve_model
from labkit.errors import LabError, ParameterError
from labkit.measure.late_arrival import A_PROMPT, LATE_PROMPT
from labkit.measure.record import Run, outputs_folder
from labkit.present.controls.experiments import EXPERIMENTS, Shown
from labkit.present.controls.front import CommandLine, Stage
from labkit.present.controls.knobs import SERVER, Knobs, choice
from labkit.present.controls.session import MEASURING, OFF, READY, STARTING, STOPPING, Session, unexpected
from labkit.present.headline import repeat_command, summary, verdict_html
from labkit.present.preview import preview_html, server_part
from labkit.present.show import png
from labkit.settings import ServerSettings, Setting

_STATES = {
    OFF: "nothing runs",
    STARTING: "starting",
    READY: "ready: send requests",
    MEASURING: "the experiment runs",
    STOPPING: "stopping",
}
_SHOWN_LINES = 6
_QUESTIONS = (
    A_PROMPT,
    LATE_PROMPT,
    "List the planets of the solar system, with one fact each.",
)


class Panel:
    """The panel of one notebook.

    Args:
        notebook: its name without ending.
        params: what the knobs start with.
    """

    def __init__(self, notebook: str, params: Setting) -> None:
        self.notebook, self.params = notebook, params
        self.experiment = EXPERIMENTS[notebook]
        self._loop = _running_loop()
        self.session = Session(notebook, self.experiment, show=self._show, changed=self._changed)
        self.stage = Stage(on_heard=self._heard)
        self._models: dict[str, ModelFile] = {}
        self._last: Setting | None = None
        self._make_parts()
        self.widget = widgets.VBox([self._columns(), self.result, self.command])
        self.widget.add_class("labkit-panel")
        self._turned()
        self._changed()

    # --- parts ----------------------------------------------------------------------------------------

    def _make_parts(self) -> None:
        self.has_server = bool(self.experiment.by_hand)

        def turned() -> None:
            self._soon(self._turned)

        server = server_part(self.params) if self.has_server else self.params
        self.server_knobs = Knobs(SERVER if self.has_server else (), server, turned, model=ServerSettings)
        own = self.experiment.knobs if self.has_server else (*_run_knobs(self.params), *self.experiment.knobs)
        self.own_knobs = Knobs(own, self.params, turned, model=self.experiment.judge.model)
        self.preview, self.state, self.log = widgets.HTML(), widgets.HTML(), widgets.HTML()
        self.start = self._button("Start server", "play", self._start, "primary")
        self.stop = self._button("Stop", "stop", self._stop)
        self.long_tokens = widgets.IntSlider(256, 8, 2048, 8, description="long answer", style=_WIDE)
        self.short_tokens = widgets.IntSlider(32, 1, 512, 1, description="short answer", style=_WIDE)
        self.question = widgets.Combobox(options=_QUESTIONS, placeholder="a question of ours", description="prompt")
        self.filler = widgets.IntSlider(0, 0, 4000, 50, description="filler tokens", style=_WIDE)
        self.send_long = self._button("", "arrow-right", lambda: self._send(self.long_tokens.value))
        self.send_short = self._button("", "arrow-right", lambda: self._send(self.short_tokens.value))
        self.send_four = self._button("Send 4 short", "arrow-right", self._send_four)
        self.running = widgets.Dropdown(options=[], description="running", style={"description_width": "60px"})
        self.cancel = self._button("Cancel it", "times", self._cancel)
        self.guess = widgets.Text(placeholder="your number", layout={"width": "140px"}, continuous_update=True)
        self.guess.observe(lambda _: self._soon(self._changed), "value")
        self.go = self._button("Run the experiment", "flask", self._measure, "primary")
        self.result = widgets.HTML()
        self.command = CommandLine()

    def _button(self, text: str, icon: str, act: Callable[[], None], style: str = "") -> Any:
        button = widgets.Button(description=text, icon=icon, button_style=style, layout={"width": "auto"})
        button.on_click(lambda _: self._soon(lambda: self._acted(act)))
        return button

    def _soon(self, act: Callable[[], None]) -> None:
        """Do something on the loop in which this panel was made.

        JupyterLab sends widgets' messages to a subshell of the kernel: a thread with a loop of its own (JEP 91,
        ipykernel 7). Tasks, servers and the record belong to one loop.
        """
        if self._loop is None or self._loop is _running_loop():
            act()
        else:
            self._loop.call_soon_threadsafe(act)

    def _heard(self, message: dict[str, Any]) -> None:
        """Take in what a page says: that it has nothing to show yet, or how long it will be there."""
        if message.get("hello"):
            self._soon(self.session.hello)
        here = message.get("here")
        if isinstance(here, int | float):
            self._soon(lambda: self.session.lease(min(float(here), 600.0)))

    def _acted(self, act: Callable[[], None]) -> None:
        """Do what a button says; what goes wrong is shown in the panel, not lost in the kernel's log."""
        try:
            act()
        except LabError as error:
            self.session.fail(str(error))
        except Exception as error:
            self.session.fail(unexpected(error))

    def _columns(self) -> Any:
        """Return the controls and the moving picture: side by side where there is room."""
        status = _row(self.stop, self.state)
        controls = [self.server_knobs.widget, self.preview, self._tabs()] if self.has_server else [self._own()]
        columns = widgets.Box([widgets.VBox([*controls, status, self.log]), widgets.VBox([self.stage])])
        columns.add_class("labkit-columns")
        return columns

    def _own(self) -> Any:
        field = self.experiment.judge.model.model_fields[self.experiment.guess]
        ask = (field.description or "").removeprefix("your prediction: ")
        predict = widgets.HTML(f"<b>Predict first:</b> {html.escape(ask)}")
        return widgets.VBox([self.own_knobs.widget, _row(predict, self.guess, self.go)])

    def _tabs(self) -> Any:
        send = (self.start, self.send_long, self.send_short, self.send_four, self.running, self.cancel)
        by_hand = widgets.VBox([_row(self.long_tokens, self.short_tokens, self.filler, self.question), _row(*send)])
        return widgets.Tab([self._own(), by_hand], titles=["Run the experiment", "Send requests by hand"])

    # --- what the knobs say -----------------------------------------------------------------------------

    def values(self) -> Setting:
        """Return the notebook's parameters as the knobs say, checked.

        Raises:
            ParameterError: they can't be used.
        """
        turned = self.server_knobs.values() | self.own_knobs.values()
        return self._parameters(turned)

    def _parameters(self, changes: dict[str, Any]) -> Setting:
        """Return the notebook's parameters with changes, those that it doesn't have left out."""
        model = self.experiment.judge.model
        # 01 has its steps in slots_list; the slots knob is for a server that is started by hand
        known = set(model.model_fields) - ({"parallel"} if "slots_list" in model.model_fields else set())
        given = {name: value for name, value in self.params.model_dump().items() if name in known}
        return model(**(given | {name: value for name, value in changes.items() if name in known}))

    def server_settings(self) -> ServerSettings:
        """Return the server's settings as the knobs say, checked.

        Raises:
            ParameterError: they can't be used.
        """
        return ServerSettings(**(server_part(self.params).model_dump() | self.server_knobs.values()))

    def _turned(self) -> None:
        if not self.has_server:
            return
        try:
            settings = self.server_settings()
            self.preview.value = preview_html(settings, self._model(settings.model))
        except Exception as error:  # a callback's error would be lost in the kernel's log
            text = str(error) if isinstance(error, LabError) else unexpected(error)
            self.preview.value = f'<div class="labkit-preview labkit-error">{html.escape(text)}</div>'

    def _model(self, name: str) -> ModelFile | None:
        if name.startswith(HUB):  # a knob that is turned must not fetch anything
            return None
        if name not in self._models:
            self._models[name] = resolve_model(name, say=lambda _: None)
        return self._models[name]

    # --- buttons ----------------------------------------------------------------------------------------

    def _start(self) -> None:
        settings = self.server_settings()
        params = self._params_by_hand(settings)
        limits = params.limits()  # type: ignore[attr-defined]
        if self.session.start(params, settings, limits):
            self.result.value, self.command.command = "", ""

    def _params_by_hand(self, settings: ServerSettings) -> Setting:
        """Return the notebook's parameters for a record of requests sent by hand."""
        return self._parameters(settings.model_dump() | {"control": False})

    def _stop(self) -> None:
        self.session.stop()

    def _send(self, max_tokens: int) -> None:
        if self.session.hand and self.session.state == READY:
            self.session.hand.send(
                max_tokens=max_tokens, question=self.question.value, prompt_length=self.filler.value or None
            )
            self._changed()

    def _send_four(self) -> None:
        for _ in range(4):
            self._send(self.short_tokens.value)

    def _cancel(self) -> None:
        if self.session.hand and self.running.value:
            self.session.hand.cancel(self.running.value)

    def _measure(self) -> None:
        guess = _number(self.guess.value)
        if guess is None:
            raise ParameterError("your prediction is missing", hint="a number: what do you expect?")
        params = self.values()
        params = type(params)(**(params.model_dump() | {self.experiment.guess: guess}))
        self._last = params
        if self.session.measure(params, self._done):
            self.result.value, self.command.command = "", ""

    def _done(self, run: Run, verdict: Verdict, shown: Shown) -> None:
        command = repeat_command(self.notebook, shown.parameters or self._last or self.params)
        image = png(shown.picture[0].to_dict(validate=False))
        self.result.value = result_html(run, verdict, shown, command, image)
        self.command.command = command

    # --- what is shown ----------------------------------------------------------------------------------

    def _show(self, frame: dict[str, Any], running: bool) -> None:
        self.stage.show(frame, running=running)
        self.offer(self.session.hand.running if self.session.hand else [])

    def offer(self, labels: list[str]) -> None:
        """Let one of these requests be cancelled; a choice that still runs stays, else the first is chosen.

        Args:
            labels: of the requests that run.
        """
        if labels != list(self.running.options):
            chosen = self.running.value
            self.running.options = labels
            self.running.value = chosen if chosen in labels else next(iter(labels), None)
            self._changed()

    def _changed(self) -> None:
        state, session = self.session.state, self.session
        self.start.disabled = state != OFF
        self.stop.disabled = state in (OFF, STOPPING)
        self.go.disabled = state != OFF or _number(self.guess.value) is None
        ready = state == READY and session.hand is not None
        for button in (self.send_long, self.send_short, self.send_four):
            button.disabled = not ready
        self.cancel.disabled = not (ready and session.hand and session.hand.running)
        label = session.hand.next_label if session.hand else "A"
        self.send_long.description, self.send_short.description = f"Send {label}: long", f"Send {label}: short"
        self.server_knobs.enable(state == OFF)
        self.own_knobs.enable(state == OFF)
        self.state.value = state_html(session)
        self.log.value = log_html(session)


_WIDE = {"description_width": "90px"}


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _run_knobs(params: Setting) -> tuple[Any, ...]:
    """Return the two knobs that choose recorded runs, newest first."""
    found = outputs_folder(getattr(params, "outputs", "")).glob("*/*/run.json")
    runs = sorted((str(path.parent) for path in found if path.parents[1].name != "06_compare_runs"), reverse=True)
    return tuple(choice(name, "", *runs[:40]) for name in ("before", "after"))


def _row(*parts: Any) -> Any:
    return widgets.HBox(parts, layout={"flex_flow": "row wrap", "align_items": "center", "grid_gap": "4px 10px"})


def _number(text: str) -> float | int | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return int(value) if value.is_integer() else value


# --- HTML ---------------------------------------------------------------------------------------------


def state_html(session: Session) -> str:
    """Return the state in a line, and what went wrong."""
    where = f" at {session.server.base_url}" if session.server and session.state == READY else ""
    line = f'<div class="labkit-state"><b>{_STATES[session.state]}</b>{html.escape(where)}</div>'
    if not session.trouble:
        return line
    log = f'<div class="labkit-log">{html.escape(session.log_tail)}</div>' if session.log_tail else ""
    return f'{line}<div class="labkit-error">{html.escape(session.trouble)}</div>{log}'


def log_html(session: Session) -> str:
    """Return the last progress lines."""
    lines = "\n".join(session.lines[-_SHOWN_LINES:])
    return f'<div class="labkit-log">{html.escape(lines)}</div>' if lines else ""


def result_html(run: Run, verdict: Verdict, shown: Shown, command: str, image: bytes) -> str:
    """Return verdict, guess and picture of a finished experiment."""
    page = verdict_html(verdict, summary(run.fields, command)) if run.fields["arms"] else ""
    reading = shown.picture[1]
    data = base64.b64encode(image).decode()
    return (
        f'<div class="labkit-result"><p><b>Guess and result.</b> {html.escape(shown.guess)}</p>{page}'
        f'<img src="data:image/png;base64,{data}" alt="{html.escape(reading)}"><p>{html.escape(reading)}</p>'
        f"<p>Recorded in {html.escape(str(Path(run.folder)))}</p></div>"
    )
