"""A panel without a page: what its knobs say, what its buttons may do, what it shows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import labkit as lab
from labkit.analyze.verdict import SUPPORTED, Check, Verdict
from labkit.engine.models import ModelFile
from labkit.errors import LabError, ServerError
from labkit.measure.record import Run, RunData
from labkit.present import panel as door
from labkit.present.controls import panel as panels
from labkit.present.controls import session as sessions
from labkit.present.controls.experiments import EXPERIMENTS, Experiment, Shown
from labkit.present.controls.panel import Panel
from labkit.present.controls.session import OFF, Session
from labkit.present.judges import Judge
from labkit.settings import Setting

PLAIN = {name: experiment.judge.model() for name, experiment in EXPERIMENTS.items()}


@pytest.fixture(autouse=True)
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model's header without a model."""
    from labkit.engine.gguf_facts import GgufFacts

    facts = GgufFacts.__new__(GgufFacts)
    for name in GgufFacts.__dataclass_fields__:
        object.__setattr__(facts, name, None)
    for name, value in {"architecture": "llama", "n_layers": 30, "n_kv_heads": 3, "n_ctx_train": 8192}.items():
        object.__setattr__(facts, name, value)
    for name in ("head_size_k", "head_size_v"):
        object.__setattr__(facts, name, 64)
    model = ModelFile("m", Path("/m.gguf"), 1, "0" * 64, "", "", facts)
    monkeypatch.setattr(panels, "resolve_model", lambda name, **_: model)


def panel(notebook: str = "03_late_arrival", **changes: Any) -> Panel:
    return Panel(notebook, EXPERIMENTS[notebook].judge.model(**changes))


def turn(made: Panel, **values: Any) -> None:
    for name, value in values.items():
        parts = made.server_knobs._parts | made.own_knobs._parts
        parts[name].main.value = value


@pytest.mark.parametrize("notebook", EXPERIMENTS)
def test_untouched_knobs_say_what_the_notebook_ran_with(notebook: str) -> None:
    params = PLAIN[notebook]
    assert Panel(notebook, params).values() == params


@pytest.mark.parametrize("notebook", [name for name in EXPERIMENTS if EXPERIMENTS[name].by_hand])
def test_every_panel_with_a_server_shows_its_command_at_once(notebook: str) -> None:
    assert "--ctx-size" in panel(notebook).preview.value


def test_a_turned_knob_changes_command_cells_bytes_and_warnings() -> None:
    made = panel()
    turn(made, parallel=4, kv_unified=False, ctx_size=1000)
    text = made.preview.value
    assert "--parallel 4 --no-kv-unified" in text
    assert "1,024" in text
    assert "The cells are divided: a request longer than 256 tokens" in text
    assert made.values().parallel == 4  # type: ignore[attr-defined]


def test_a_model_on_a_hub_is_not_fetched_by_a_knob(monkeypatch: pytest.MonkeyPatch) -> None:
    made = panel()
    monkeypatch.setattr(panels, "resolve_model", lambda *_, **__: pytest.fail("fetched"))
    turn(made, model="hf:org/repo/file.gguf")
    assert "--model hf:org/repo/file.gguf" in made.preview.value
    assert "not predicted" in made.preview.value


def test_auto_is_a_box_beside_the_slider() -> None:
    made = panel()
    made.server_knobs._parts["parallel"].auto.value = True
    assert made.server_settings().parallel == "auto"
    assert "--parallel" not in made.preview.value.split("labkit-facts")[0]


def test_a_value_that_cannot_be_used_is_refused_in_words_and_nothing_is_lost() -> None:
    made = panel()
    turn(made, late_prompt_tokens="many")
    with pytest.raises(LabError, match="late_prompt_tokens = 'many' can't be used"):
        made.values()
    made.guess.value = "100"
    made.go.click()
    assert "late_prompt_tokens = &#x27;many&#x27;" in made.state.value
    assert made.session.state == OFF


def test_the_experiment_waits_for_a_prediction() -> None:
    made = panel()
    assert made.go.disabled
    made.guess.value = "a lot"
    assert made.go.disabled
    made.guess.value = "200"
    assert not made.go.disabled


def test_an_error_in_a_button_is_shown_in_the_panel(monkeypatch: pytest.MonkeyPatch) -> None:
    made = panel()
    monkeypatch.setattr(made.session, "start", lambda *_: {}["no such key"])
    made.start.click()
    assert "KeyError" in made.state.value


def test_buttons_for_requests_wait_for_a_server() -> None:
    made = panel()
    assert all(button.disabled for button in (made.send_long, made.send_short, made.send_four, made.cancel, made.stop))
    assert not made.start.disabled


def test_06_offers_the_recorded_runs(tmp_path: Path) -> None:
    for name in ("a", "b"):
        folder = tmp_path / "03_late_arrival" / name
        folder.mkdir(parents=True)
        (folder / "run.json").write_text("{}")
    made = panel("06_compare_runs", outputs=str(tmp_path))
    offered = made.own_knobs._parts["before"].main.options
    assert [Path(path).name for path in offered] == ["", "b", "a"]


def test_the_first_running_request_is_offered_for_cancelling_and_a_choice_stays() -> None:
    made = panel()
    made.offer(["A"])
    assert made.running.value == "A"
    made.offer(["A", "B", "C"])
    made.running.value = "B"
    made.offer(["B", "C"])
    assert made.running.value == "B"
    made.offer(["C"])
    assert made.running.value == "C"
    made.offer([])
    assert made.running.value is None


# --- sessions -----------------------------------------------------------------------------------------


class Watched:
    """A session with a scripted experiment, and what it told its panel."""

    def __init__(self, tmp_path: Path, measure: Callable[[Any, Run, Any], Awaitable[None]]) -> None:
        self.frames: list[tuple[dict[str, Any], bool]] = []
        self.verdicts: list[Verdict] = []
        experiment = Experiment(
            Judge(lab.LateArrival, self.judge), "predicted_tokens_left", (), measure, lambda *_: Shown("", (None, ""))
        )
        self.params = lab.LateArrival(outputs=str(tmp_path))
        self.session = Session(
            "03_late_arrival",
            experiment,
            show=lambda frame, running: self.frames.append((frame, running)),
            changed=lambda: None,
        )

    def judge(self, _data: RunData, _params: Setting) -> Verdict:
        return Verdict((Check("c", "claim", SUPPORTED, "seen", "expected", "why"),))

    def measure(self) -> bool:
        return self.session.measure(self.params, lambda _run, verdict, _shown: self.verdicts.append(verdict))

    async def ended(self) -> None:
        async with asyncio.timeout(5):
            while self.session.state != OFF:
                await asyncio.sleep(0.01)


async def nothing(_params: Any, _run: Run, _say: Any) -> None:
    await asyncio.sleep(0.2)


def test_an_experiment_leaves_a_run_folder_with_its_verdict(tmp_path: Path) -> None:
    async def scenario() -> Watched:
        watched = Watched(tmp_path, nothing)
        assert watched.measure()
        await watched.ended()
        return watched

    watched = asyncio.run(scenario())
    assert watched.session.run is not None
    data = lab.read_run(watched.session.run.folder)
    assert data.run["verdict"]["status"] == SUPPORTED
    assert len(watched.verdicts) == 1
    assert watched.frames[0][1]
    assert not watched.frames[-1][1]


def test_a_second_click_while_something_runs_does_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        watched = Watched(tmp_path, nothing)
        assert watched.measure()
        assert not watched.measure()
        assert not watched.session.start(watched.params, lab.ServerSettings(), {})
        await watched.ended()
        assert len(list((tmp_path / "03_late_arrival").iterdir())) == 1

    asyncio.run(scenario())


def test_stop_ends_an_experiment_and_keeps_its_record(tmp_path: Path) -> None:
    async def forever(_params: Any, run: Run, _say: Any) -> None:
        run.append("tokens", {"i": 1, "label": "A", "at_s": 0.0, "warm_up": False})
        await asyncio.sleep(60)

    async def scenario() -> Watched:
        watched = Watched(tmp_path, forever)
        watched.measure()
        await asyncio.sleep(0.05)
        watched.session.stop()
        watched.session.stop()
        await watched.ended()
        return watched

    watched = asyncio.run(scenario())
    assert watched.session.run is not None
    data = lab.read_run(watched.session.run.folder)
    assert (len(data.tokens), data.run["verdict"]["status"]) == (1, "not_run")
    assert watched.session.lines[-1] == "stopped"
    assert not watched.verdicts


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ServerError("the server died", why="no memory"), "the server died: no memory."),
        (ZeroDivisionError("division by zero"), "ZeroDivisionError: division by zero\ntest_panel.py, line"),
    ],
)
def test_whatever_goes_wrong_is_shown_with_the_end_of_the_log(tmp_path: Path, error: Exception, words: str) -> None:
    async def fails(_params: Any, run: Run, _say: Any) -> None:
        run.log_path("treatment").write_text("first\nlast <line>\n")
        raise error

    async def scenario() -> Session:
        watched = Watched(tmp_path, fails)
        watched.measure()
        await watched.ended()
        return watched.session

    session = asyncio.run(scenario())
    assert session.trouble.startswith(words)
    page = panels.state_html(session)
    assert "last &lt;line&gt;" in page


def test_without_a_page_what_runs_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def forever(_params: Any, _run: Run, _say: Any) -> None:
        await asyncio.sleep(60)

    async def scenario() -> Session:
        monkeypatch.setattr(sessions, "FIRST_LEASE_S", 0.3)
        watched = Watched(tmp_path, forever)
        watched.measure()
        watched.session.lease(0.1)
        await watched.ended()
        return watched.session

    assert sessions.GONE in asyncio.run(scenario()).lines


def test_a_page_that_is_loaded_in_mid_run_gets_everything(tmp_path: Path) -> None:
    async def scenario() -> list[tuple[dict[str, Any], bool]]:
        watched = Watched(tmp_path, nothing)
        watched.measure()
        await asyncio.sleep(0.05)
        watched.frames.clear()
        watched.session.hello()
        found = list(watched.frames)
        await watched.ended()
        return found

    ((frame, running),) = asyncio.run(scenario())
    assert frame["all"]
    assert running


# --- the door -----------------------------------------------------------------------------------------


class Kernel:
    def __init__(self, allow_stdin: bool) -> None:
        self.kernel = self
        self.allow_stdin = allow_stdin

    def get_parent(self, _channel: str) -> dict[str, Any]:
        return {"content": {"allow_stdin": self.allow_stdin}}


@pytest.mark.parametrize(
    ("interactive", "shell", "shown"),
    [
        (None, None, False),
        (None, Kernel(allow_stdin=False), False),
        (None, Kernel(allow_stdin=True), True),
        (False, Kernel(allow_stdin=True), False),
        (True, None, True),
    ],
)
def test_a_panel_is_shown_where_somebody_is_there(
    monkeypatch: pytest.MonkeyPatch, interactive: bool | None, shell: Any, shown: bool
) -> None:
    monkeypatch.setattr(door, "get_ipython", lambda: shell)
    assert door.wanted(lab.LateArrival(interactive=interactive)) is shown


def test_headless_nothing_is_displayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "display", lambda *_, **__: pytest.fail("a widget in a headless run"))
    assert lab.panel("03_late_arrival", lab.LateArrival()) is None
