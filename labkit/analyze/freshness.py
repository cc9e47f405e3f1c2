"""Tells a task's own progress in /slots from what its slot still shows of the task before."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def fresh_progress(polls: list[dict[str, Any]]) -> list[set[Any]]:
    """Return, for each poll, the seeds whose task has made progress of its own.

    Until a task's prompt is done, a slot may still show its previous task's counters (seen live on
    b9093 to b10229). Progress counts when the counters changed under the same id_task, or differ from
    the final ones of the task before, read while the slot was idle. (A task that came and went unseen
    between two polls would spoil the second rule; on a quiet server there is none, and the streams decide.)

    Args:
        polls: rows of slots.jsonl in order, the idle ones before the load included.
    """
    freshness = Freshness()
    return [freshness.progressed(poll["slots"] or ()) for poll in polls]


class Freshness:
    """The same for polls that come one by one."""

    def __init__(self) -> None:
        self._memory: dict[int, _SlotMemory] = {}

    def progressed(self, slots: Iterable[dict[str, Any]]) -> set[Any]:
        """Take in one poll and return the seeds whose task has made progress of its own.

        Args:
            slots: rows of parse_slots().
        """
        return {
            slot["seed"]
            for slot in slots
            if self._memory.setdefault(slot["id"], _SlotMemory()).progressed(slot) and slot["seed"] is not None
        }


class _SlotMemory:
    """What one slot showed before."""

    def __init__(self) -> None:
        self._final: tuple[Any, Any] | None = None
        self._task: Any = None
        self._first: tuple[Any, Any] | None = None
        self._fresh = False

    def progressed(self, slot: dict[str, Any]) -> bool:
        counters = (slot["n_prefilled"], slot["n_decoded"])
        if not slot["busy"]:
            self._final, self._task, self._fresh = counters, None, False
            return False
        if slot["id_task"] != self._task:
            if self._task is not None:
                self._final = None  # the task before ended unseen: its final counters are not known
            self._task, self._first, self._fresh = slot["id_task"], counters, False
        changed = counters != self._first or (self._final is not None and counters != self._final)
        self._fresh = self._fresh or (any(counters) and changed)
        return self._fresh
