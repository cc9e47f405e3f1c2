"""What a panel has running: at most one thing, as a task of the kernel's own event loop."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from labkit.analyze.live import Live
from labkit.analyze.verdict import Verdict
from labkit.engine.open import open_server
from labkit.engine.process import log_tail
from labkit.engine.server import Server
from labkit.errors import LabError
from labkit.measure.by_hand import ByHand, by_hand
from labkit.measure.record import Run, open_run, read_run
from labkit.present.controls.experiments import Experiment, Shown
from labkit.settings import SampleSettings, ServerSettings, Setting

OFF, STARTING, READY, MEASURING, STOPPING = "off", "starting", "ready", "measuring", "stopping"
FRAMES_PER_S = 12.0
FIRST_LEASE_S = 60.0  # for a page that is still being drawn
NEXT_LEASE_S = 10.0  # for one that renews its lease every 5 s
GONE = "stopped: no page has shown this panel for a while"


class Session:
    """Runs servers and experiments for a panel, and tells it what changes.

    Args:
        notebook: its name without ending.
        experiment: what its Run button does.
        show: gets each frame of the moving picture, and whether time goes on.
        changed: called when the state, the lines or the result have changed.
    """

    def __init__(
        self,
        notebook: str,
        experiment: Experiment,
        *,
        show: Callable[[dict[str, Any], bool], None],
        changed: Callable[[], None],
    ) -> None:
        self.notebook, self.experiment = notebook, experiment
        self._show, self._changed = show, changed
        self.state = OFF
        self.live = Live()
        self.run: Run | None = None
        self.server: Server | None = None
        self.hand: ByHand | None = None
        self.lines: list[str] = []
        self.trouble, self.log_tail = "", ""
        self._task: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._lease_until_s: float | None = None  # no page has shown it yet

    # --- what a person does ---------------------------------------------------------------------------

    def start(self, params: Setting, settings: ServerSettings, limits: dict[str, Any]) -> bool:
        """Start a server for requests sent by hand; False if something runs already.

        Args:
            params: the notebook's, for the record.
            settings: of the server.
            limits: arguments of open_server().
        """
        return self._begin(STARTING, params, lambda run: self._by_hand(run, settings, limits))

    def measure(self, params: Setting, done: Callable[[Run, Verdict, Shown], None]) -> bool:
        """Run the notebook's experiment; False if something runs already.

        Args:
            params: the notebook's.
            done: gets the run, its verdict and what else is shown.
        """
        return self._begin(MEASURING, params, lambda run: self._experiment(run, params, done))

    def stop(self) -> None:
        """End what runs; its record is kept."""
        if self.state == READY:
            self._set(STOPPING)
            self._stop.set()
        elif self.state in (STARTING, MEASURING) and self._task:
            self._set(STOPPING)
            self._task.cancel()

    def lease(self, seconds: float) -> None:
        """Note that a page shows this panel, and will for so long."""
        self._lease_until_s = time.monotonic() + seconds

    def say(self, text: str) -> None:
        """Take in a progress line."""
        self.lines.append(text)
        self._changed()

    def hello(self) -> None:
        """Show everything to a page that has nothing to show yet."""
        self._show(self.live.everything(self._now_s()), self._moving)

    # --- one thing at a time --------------------------------------------------------------------------

    def _begin(self, state: str, params: Setting, work: Callable[[Run], Awaitable[None]]) -> bool:
        if self.state != OFF:
            return False
        self.lines, self.trouble, self.log_tail = [], "", ""
        self._stop.clear()
        first_s = FIRST_LEASE_S if self._lease_until_s is None else NEXT_LEASE_S
        self._lease_until_s = max(self._lease_until_s or 0.0, time.monotonic() + first_s)
        self._set(state)
        self._task = asyncio.get_running_loop().create_task(self._guarded(params, work))
        return True

    async def _guarded(self, params: Setting, work: Callable[[Run], Awaitable[None]]) -> None:
        """Run `work` with the moving picture beside it; whatever goes wrong is shown, nothing is left behind."""
        moving = asyncio.create_task(self._move())
        try:
            self.run = open_run(self.notebook, params, outputs=getattr(params, "outputs", ""))
            self.live = Live()
            self.run.listen(self.live.take)
            self.say(f"everything goes to {self.run.folder}")
            await work(self.run)
        except asyncio.CancelledError:
            self.say("stopped")
        except LabError as error:
            self.fail(str(error))
        except Exception as error:
            self.fail(unexpected(error))
        finally:
            moving.cancel()
            self.server = self.hand = None
            if self.run:
                self.run.close()
            self._set(OFF)
            self._show(self.live.frame(), False)

    async def _by_hand(self, run: Run, settings: ServerSettings, limits: dict[str, Any]) -> None:
        arm = self.experiment.by_hand
        async with open_server(settings, log_path=run.log_path(arm), say=self.say, **limits) as server:
            self.server = server
            seed = run.fields["parameters"].get("seed")
            keep = bool(run.fields["parameters"].get("keep_text"))
            async with by_hand(
                server,
                run=run,
                arm=arm,
                sampling=SampleSettings(metrics_hz=5.0),
                keep_text=keep,
                seed=seed,
                say=self.say,
            ) as hand:
                self.hand = hand
                self._set(READY)
                await self._until_stopped(server)
                self._set(STOPPING)
        self.say("the server has ended")

    async def _until_stopped(self, server: Server) -> None:
        while not self._stop.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), 0.25)
            if not server.alive:
                self.fail(f"the server {server.exit_text}")
                return

    async def _experiment(self, run: Run, params: Setting, done: Callable[[Run, Verdict, Shown], None]) -> None:
        await self.experiment.measure(params, run, self.say)
        data = read_run(run.folder)
        verdict = self.experiment.judge.judge(data, params)
        run.update(verdict=verdict.to_dict())
        done(run, verdict, self.experiment.show(data, params))

    # --- the moving picture ---------------------------------------------------------------------------

    async def _move(self) -> None:
        while True:
            await asyncio.sleep(1.0 / FRAMES_PER_S)
            self._show(self.live.frame(self._now_s()), self._moving)
            if time.monotonic() > (self._lease_until_s or 0.0) and self.state != STOPPING:
                self.say(GONE)
                self.stop()

    @property
    def _moving(self) -> bool:
        return self.state in (READY, MEASURING)

    def _now_s(self) -> float | None:
        return self.run.clock() if self.run and self.state != OFF else None

    def _set(self, state: str) -> None:
        self.state = state
        self._changed()

    def fail(self, text: str) -> None:
        """Show what went wrong, with the end of the server's log."""
        self.trouble = text
        self.log_tail = _tail(self.run.folder) if self.run else ""
        self._changed()


def unexpected(error: Exception) -> str:
    """Return an error that this kit didn't foresee, with the place where it came up, and without any values."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error}\n{Path(frame.filename).name}, line {frame.lineno}, in {frame.name}"


def _tail(folder: Path) -> str:
    """Return the last lines of the newest server log in a run folder."""
    logs = sorted(folder.glob("server-*.log"), key=lambda path: path.stat().st_mtime)
    return log_tail(logs[-1]) if logs else ""
