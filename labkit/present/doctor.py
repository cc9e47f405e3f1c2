"""What the server at hand offers, and what that means for the labs."""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from labkit.engine.effective import Effective
from labkit.engine.http import http_client, look
from labkit.engine.open import open_server
from labkit.engine.server import Server
from labkit.measure.builds import Trait, traits_of
from labkit.measure.experiment import warm_up_plan
from labkit.measure.load import Load, check_allowed, prompt_tokens
from labkit.measure.observe import SlotSampler
from labkit.measure.stream import RequestRecord
from labkit.settings import MAX_SLOTS, AttachSettings, LoadPlan, RequestPlan, SampleSettings, ServerSettings

Finding = tuple[str, str]
UNKNOWN = "not known"
_END_LIMIT_S = 15.0  # for what it has started to be ended after an interrupt


def doctor(
    engine: str = "embedded", *, model: str = "toy", attach: AttachSettings | None = None, **settings: Any
) -> None:
    """Print what a server offers: its build, its endpoints, what it does otherwise than other builds.

    A server that is started here is asked to answer one short request a slot; one behind a URL is only
    looked at, unless `attach` allows load. Works in a notebook and in a script.

    Args:
        engine: "embedded", a path to a llama-server, or a URL.
        model: what to load; of a router, which model.
        attach: for a URL: whether the short requests may be sent, and at most how many.
        settings: more of ServerSettings.

    Raises:
        LabError: there is no such server, or it can't be used.
    """
    findings = _finished(_examine(ServerSettings(engine=engine, model=model, **settings), attach or AttachSettings()))
    width = max(len(name) for name, _ in findings)
    for name, found in findings:
        print(f"{name:{width}}  {found}")  # noqa: T201


def _finished(work: Coroutine[Any, Any, list[Finding]]) -> list[Finding]:
    """Run a coroutine to its end, also where an event loop runs already (a notebook); an interrupt ends it."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(work)
    over = threading.Event()

    def run() -> None:
        with suppress(BaseException):  # the task keeps it
            loop.run_until_complete(task)
        loop.close()
        over.set()

    threading.Thread(target=run, name="labkit-doctor", daemon=True).start()
    try:
        # short waits: an interrupt is noticed between them. Not join(): interrupted, it takes the thread for ended
        while not over.wait(0.1):
            pass
    except BaseException:
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(task.cancel)
        over.wait(_END_LIMIT_S)
        raise
    return task.result()


async def _examine(settings: ServerSettings, attach: AttachSettings) -> list[Finding]:
    notes: list[str] = []
    with tempfile.TemporaryDirectory(prefix="labkit-doctor-") as folder:
        log_path = Path(folder) / "server.log"
        async with open_server(settings, log_path=log_path, attach=attach, say=notes.append) as server:
            records = await _short_requests(server) if attach.allow_load or not server.attached else []
            slots = await _idle_slots(server)
            endpoints = await _endpoints(server)
    return [
        *_identity(server),
        *_effective(server),
        *endpoints,
        *_streams(records),
        *_traits(server, slots),
        *(("note", note) for note in dict.fromkeys([*server.notes, *notes])),
        ("03_late_arrival", _judgeable(slots, records, server)),
    ]


async def _short_requests(server: Server) -> list[RequestRecord]:
    endpoint: Literal["chat", "completion"] = "chat" if server.model.facts.has_chat_template else "completion"
    sample = RequestPlan(label="A", prompt="hi", max_tokens=1, seed=1, endpoint=endpoint)
    slots = min((server.effective.slots if server.effective else None) or 1, MAX_SLOTS)
    if server.attach:
        slots = min(slots, server.attach.max_requests)
    plan = warm_up_plan(slots, LoadPlan(requests=(sample,), stall_timeout_s=30))
    if server.attach:
        check_allowed(plan, await prompt_tokens(server.address, plan), server.attach)
    return await Load(plan, arm="doctor", clock=time.perf_counter, keep=lambda *_: None).run(server.address)


async def _idle_slots(server: Server) -> list[dict[str, Any]] | None:
    """Return the slots when they are idle again; None where /slots can't be read or mustn't be asked."""
    if not server.slots_readable:
        return None
    rows: list[dict[str, Any]] = []
    async with SlotSampler(server.address, SampleSettings(), time.perf_counter, rows.append) as sampler:
        await sampler.until_idle(5.0)
    return rows[-1]["slots"] if rows else None


async def _endpoints(server: Server) -> list[Finding]:
    effective = server.effective or Effective()
    offered = (("/slots", effective.slots_endpoint), ("/metrics", effective.metrics_endpoint))
    found = [(path, {True: "on", False: "off", None: UNKNOWN}[on]) for path, on in offered]
    async with http_client(server.address, timeout_s=5.0) as client:
        found += [(path, (await look(client, path)).text) for path in ("/health", "/props")]
    return found


def _identity(server: Server) -> list[Finding]:
    build = server.build
    number = f"b{build['number']}, from {build['number_source']}" if build.get("number") else UNKNOWN
    reported = build.get("reported") or UNKNOWN
    return [
        ("server", f"{build.get('package')} at {server.base_url}"),
        ("build", f"{number}; it reports {reported} of itself"),
        ("model", f"{server.model.name}, {server.model.source}"),
        ("started by", "somebody else: never stopped by labkit" if server.attached else "labkit"),
    ]


def _effective(server: Server) -> list[Finding]:
    effective = server.effective
    if effective is None:
        return []
    mode = {True: "unified", False: "split", None: UNKNOWN}[effective.kv_unified]
    return [
        ("slots", _or_unknown(effective.slots)),
        ("KV cache", f"{mode}, {_or_unknown(effective.pool_cells)} cells, {_or_unknown(effective.slot_cells)} a slot"),
        ("batch", f"{_or_unknown(effective.batch_size)} logical, {_or_unknown(effective.ubatch_size)} physical"),
    ]


def _streams(records: list[RequestRecord]) -> list[Finding]:
    if not records:
        return [("answers", "not asked for: attach=AttachSettings(allow_load=True) sends one short request a slot")]
    done = [record for record in records if record.outcome in ("completed", "slot_limit")]
    timed = sum(record.timings is not None for record in done)
    named = sum(record.id_slot is not None for record in done)
    return [
        ("answers", f"{len(done)} of {len(records)} came, {timed} with the server's timings, {named} name their slot")
    ]


def _traits(server: Server, slots: list[dict[str, Any]] | None) -> list[Finding]:
    traits = traits_of(server.build.get("number"), slots or [])
    return [
        ("counts prompt tokens in /slots", _said(traits.prompt_counters)),
        ("clears a slot's counters when its task ends", _said(traits.clears_counters)),
        ("answers /slots in the middle of a decode", _said(traits.answers_mid_decode)),
        ("a scrape of /metrics resets two gauges", _said(traits.scrape_resets_gauges)),
    ]


def _said(trait: Trait) -> str:
    if trait.holds is None:
        return UNKNOWN
    how = "seen here" if trait.known_by == "seen" else "by its build number"
    return f"{'yes' if trait.holds else 'no'}, {how}"


def _judgeable(slots: list[dict[str, Any]] | None, records: list[RequestRecord], server: Server) -> str:
    """Say whether notebook 03 could come to a verdict on this server, and what would be missing."""
    if slots is None and server.attached:
        return "can't be decided: /slots does not say that both requests are on one server"
    if server.attached and (server.effective is None or (server.effective.slots or 2) < 2):
        return "can't be decided: one slot"
    if records and not any(record.timings for record in records):
        return "can't be decided: no timings in the answers"
    if slots is not None and not any(slot["seed"] is not None for slot in slots) and records:
        return "joining can be seen in the streams; /slots names no seeds, so being kept out can't"
    return "can be judged" + ("; its control can't be run on a server that isn't ours" if server.attached else "")


def _or_unknown(value: Any) -> str:
    return UNKNOWN if value is None else f"{value:,}"
