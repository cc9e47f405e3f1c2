"""Samplers that watch a server on the run's clock: /slots here.

Each poll is a row with the time it was sent and the time the answer came; a slow answer is itself
information, since until b10156 the server answers between two decode steps only.
"""

from __future__ import annotations

import asyncio
from typing import Any

from labkit.engine.http import NOBODY, Address, Answer
from labkit.engine.untrusted import items, mapping, switch, whole
from labkit.measure.poller import Poller
from labkit.measure.stream import Clock
from labkit.settings import SampleSettings


class UnknownShapeError(ValueError):
    """A /slots reply that this kit can't read."""


def parse_slots(body: Any) -> list[dict[str, Any]]:
    """Turn a /slots reply of any build into rows of the same keys; a counter the build lacks is None.

    Args:
        body: the decoded JSON. `next_token` is a one-element list on every build seen, an object in
            llama.cpp's README; a slot never used has four keys only.

    Raises:
        UnknownShapeError: it isn't a list of slots, or comes from a build older than b4027.
    """
    if not isinstance(body, list) or not all(isinstance(slot, dict) for slot in body):
        raise UnknownShapeError(f"/slots answered {type(body).__name__}, not a list of slots")
    slots = [_parse_slot(slot) for slot in body]
    if len({slot["id"] for slot in slots}) < len(slots):
        raise UnknownShapeError("/slots names one slot twice: the slots of several servers?")
    return slots


def _parse_slot(slot: dict[str, Any]) -> dict[str, Any]:
    if "is_processing" not in slot or "id" not in slot:
        age = " (it has `state`: a build before b4027)" if "state" in slot else ""
        raise UnknownShapeError(f"unknown shape of /slots: no is_processing{age}")
    number, busy = whole(slot["id"]), switch(slot["is_processing"])
    if number is None or busy is None:
        raise UnknownShapeError("unknown shape of /slots: an id or an is_processing of an odd type")
    following = slot.get("next_token")
    next_token = items(following)[0] if items(following) else mapping(following)
    return {
        "id": number,
        "busy": busy,
        "id_task": whole(slot.get("id_task")),
        "seed": whole(mapping(slot.get("params")).get("seed")),
        "n_ctx": whole(slot.get("n_ctx")),
        "speculative": switch(slot.get("speculative")),
        "n_decoded": whole(next_token.get("n_decoded")),
        "n_prefilled": whole(slot.get("n_prompt_tokens_processed")),
        # its name says prompt, but it is all the slot holds: prompt and generated (server-context.cpp)
        "n_cells": whole(slot.get("n_prompt_tokens")),
    }


def slots_in_words(slots: list[dict[str, Any]]) -> str:
    """Return what rows of parse_slots() say, for a person."""
    return ", ".join(
        f"slot {slot['id']} " + (f"busy, {slot['n_decoded'] or 0} tokens decoded" if slot["busy"] else "idle")
        for slot in slots
    )


class SlotSampler:
    """Polls /slots with a client of its own, so that watching never waits for the load's connections.

    Args:
        address: of the server.
        settings: rate and limit of a poll.
        clock: seconds on the run's clock.
        keep: gets each poll's row.
    """

    def __init__(self, address: Address, settings: SampleSettings, clock: Clock, keep: Any) -> None:
        self._poller = Poller(address, "/slots", settings.timeout_s, clock)
        self._interval_s = 1.0 / settings.poll_hz
        self._clock, self._keep = clock, keep

    async def __aenter__(self) -> SlotSampler:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._poller.aclose()

    async def poll(self) -> dict[str, Any]:
        """Poll once; the row says what went wrong instead of raising."""
        row: dict[str, Any] = {
            "sent_s": self._clock(),
            "received_s": None,
            "status": None,
            "error": None,
            "slots": None,
        }
        answer, arrived_s = await self._poller.get()
        row |= {"received_s": arrived_s, "status": answer.status}
        if answer.json is None:
            row["error"] = _text(answer)
        else:
            try:
                row["slots"] = parse_slots(answer.json)
            except UnknownShapeError as error:
                row["error"] = str(error)
        self._keep(row)
        return row

    async def run(self) -> None:
        """Poll at the rate asked for until cancelled; a slow answer delays the next poll, never doubles it."""
        while True:
            due_s = self._clock() + self._interval_s
            await self.poll()
            await asyncio.sleep(max(0.0, due_s - self._clock()))

    async def until_idle(self, limit_s: float) -> float | None:
        """Poll until no slot is busy; return the seconds it took, None if it never was or /slots can't tell."""
        started_s = self._clock()
        while self._clock() - started_s < limit_s:
            row = await self.poll()
            if row["slots"] is not None and not any(slot["busy"] for slot in row["slots"]):
                return self._clock() - started_s
            if row["slots"] is None and (row["status"] is not None or row["error"] == NOBODY):
                return None  # disabled, unreadable or gone: waiting would not help
            await asyncio.sleep(self._interval_s)
        return None


def _text(answer: Answer) -> str:
    if answer.status == 501:
        return "/slots is disabled on this server (started with --no-slots)"
    if answer.status in (401, 403):
        return f"{answer.status}: a key is needed for /slots"
    return answer.problem or f"/slots: {answer.text}"
