"""Some arms of a run, as if it had had no others: for pictures and tables of one experiment among several."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from labkit.analyze.frames import RunFrames
from labkit.analyze.rows import RunRows


@dataclass(frozen=True)
class ChosenRows:
    """Rows of the chosen arms.

    Args:
        data: the recorded run.
        arms: their names, in the order wanted.
    """

    data: RunRows
    arms: tuple[str, ...]

    @cached_property
    def run(self) -> dict[str, Any]:
        """run.json with these arms alone."""
        arms = self.data.run["arms"]
        return self.data.run | {"arms": {arm: arms[arm] for arm in self.arms if arm in arms}}

    @cached_property
    def requests(self) -> list[dict[str, Any]]:
        """Their requests."""
        return self._mine(self.data.requests)

    @cached_property
    def tokens(self) -> list[dict[str, Any]]:
        """Their tokens."""
        return self._mine(self.data.tokens)

    @cached_property
    def slots(self) -> list[dict[str, Any]]:
        """Their polls of /slots."""
        return self._mine(self.data.slots)

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """Their scrapes of /metrics."""
        return self._mine(self.data.metrics)

    @cached_property
    def memory(self) -> list[dict[str, Any]]:
        """Their samples of memory."""
        return self._mine(self.data.memory)

    def _mine(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [row for row in rows if row["arm"] in self.arms]


def chosen_arms(frames: RunFrames, arms: Iterable[str]) -> RunFrames:
    """Return the frames of some arms alone.

    Args:
        frames: the run.
        arms: their names, in the order wanted.
    """
    return RunFrames(ChosenRows(frames.data, tuple(arms)))
