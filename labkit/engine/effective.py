"""What a server really runs with, put together from everything that tells of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from labkit.engine.log import LogFacts
from labkit.engine.untrusted import mapping, switch, whole
from labkit.errors import IdentityError
from labkit.settings.context import effective_context

COMMAND_LINE = "the command line given as server_argv"


@dataclass(frozen=True)
class Effective:
    """What the server really runs with, as far as anything tells; None where nothing does.

    Args:
        slots: requests that own a slot at once.
        slot_cells: KV cells one slot may use.
        kv_unified: one KV pool for all slots.
        pool_cells: KV cells in all.
        batch_size: logical batch in tokens; ubatch_size: physical.
        kv_bytes: size of the KV buffers; compute_bytes: of the compute buffers.
        compute_by_device: size of the compute buffers of each device.
        kv_devices: names of the devices that hold KV.
        slots_endpoint: whether /slots is on; metrics_endpoint: whether /metrics is.
        fitted: whether llama.cpp's fit step (`--fit`, on by default) ran.
        cont_batching: no endpoint and no log tells; only a command line does.
        sources: where each of the values above is from.
    """

    slots: int | None = None
    slot_cells: int | None = None
    kv_unified: bool | None = None
    pool_cells: int | None = None
    batch_size: int | None = None
    ubatch_size: int | None = None
    kv_bytes: int | None = None
    compute_bytes: int | None = None
    compute_by_device: dict[str, int] | None = None
    kv_devices: tuple[str, ...] | None = None
    slots_endpoint: bool | None = None
    metrics_endpoint: bool | None = None
    fitted: bool | None = None
    cont_batching: bool | None = None
    sources: dict[str, str] = field(default_factory=dict)


def effective_values(
    props: dict[str, Any],
    slots: list[dict[str, Any]],
    *,
    facts: LogFacts | None = None,
    said: Mapping[str, Any] | None = None,
) -> Effective:
    """Combine what tells of a server; what it says of itself wins over its log, that over its command line.

    Args:
        props: /props.
        slots: /slots; empty where it can't be had.
        facts: of the log, for a server of our own.
        said: by the command line, for any other: values of flags.from_argv().

    Raises:
        IdentityError: /slots and /props contradict each other.
    """
    by_slots = {"slots": len(slots), "slot_cells": whole(slots[0].get("n_ctx"))} if slots else {}
    by_props = {
        "slots": whole(props.get("total_slots"), least=1),
        "slot_cells": whole(mapping(props.get("default_generation_settings")).get("n_ctx"), least=1),
        "slots_endpoint": switch(props.get("endpoint_slots")),
        "metrics_endpoint": switch(props.get("endpoint_metrics")),
    }
    _refuse_contradiction(by_slots, by_props)
    tellers = {"/props": by_props, "/slots": by_slots, "the log": _by_log(facts), COMMAND_LINE: _by_argv(said)}
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for teller, told in tellers.items():
        new = {name: value for name, value in told.items() if value is not None and name not in values}
        values |= new
        sources |= dict.fromkeys(new, teller)
    return Effective(**values, sources=sources)


def _refuse_contradiction(by_slots: dict[str, Any], by_props: dict[str, Any]) -> None:
    what = {"slots": "slots", "slot_cells": "KV cells a slot"}
    for name, value in by_slots.items():
        if None not in (value, by_props[name]) and value != by_props[name]:
            raise IdentityError(
                f"/slots says {value} {what[name]}, /props says {by_props[name]}",
                why="two servers seem to answer there",
                hint="the address of one llama-server, without a balancer between",
            )


def _by_log(facts: LogFacts | None) -> dict[str, Any]:
    if facts is None:
        return {}
    return {
        "slots": facts.n_slots,
        "slot_cells": facts.slot_cells,
        "kv_unified": facts.kv_unified,
        "pool_cells": facts.pool_cells,
        "batch_size": facts.batch_size,
        "ubatch_size": facts.ubatch_size,
        "kv_bytes": facts.kv_bytes,
        "compute_bytes": facts.compute_bytes,
        "compute_by_device": facts.compute_by_device,
        "kv_devices": facts.devices or None,
        "fitted": facts.fitted,
    }


def _by_argv(said: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what a command line means; what it leaves to defaults that differ by build is left out.

    Batches are limited to the context (src/llama-context.cpp).
    """
    if said is None:
        return {}
    parallel, ctx_size = said.get("parallel", -1), said.get("ctx_size")
    known_ctx = ctx_size if isinstance(ctx_size, int) and ctx_size > 0 else None
    batch = _at_most(said.get("batch_size"), known_ctx)
    return _cells_by_argv(said, parallel, known_ctx) | {
        "batch_size": batch,
        "ubatch_size": _at_most(said.get("ubatch_size"), batch),
        "cont_batching": bool(said.get("cont_batching", True)),
    }


def _cells_by_argv(said: Mapping[str, Any], parallel: Any, ctx_size: int | None) -> dict[str, Any]:
    if not isinstance(parallel, int) or parallel == 0:  # llama-server refuses both: it isn't its command line
        return {}
    context = effective_context(ctx_size or 0, parallel, bool(said.get("kv_unified", False)))
    # the pool of a context that is left to the model, or fitted to the memory, can't be told from here
    return {"kv_unified": context.kv_unified, "pool_cells": context.pool_cells if ctx_size else None}


def _at_most(value: Any, limit: int | None) -> int | None:
    if not isinstance(value, int):
        return None
    return value if limit is None else min(value, limit)
