"""Can two recorded runs be compared? Every difference between them, and what it means for that.

A comparison says something about one change only if nothing else differs that could matter: model,
requests, machine, settings. What is not known on both sides is said, not assumed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from labkit.analyze.rows import RunRows

CHANGED, FOLLOWS, BLOCKS, NOTE = "changed on purpose", "follows from it", "not comparable", "to be known"
PRIMARY = ("parallel", "kv_unified", "ctx_size", "build")
# effective values that change with what was changed on purpose
CONSEQUENCES = {
    "parallel": {"slots", "slot_cells", "pool_cells", "kv_unified", "kv_bytes", "compute_bytes"},
    "kv_unified": {"kv_unified", "slot_cells", "pool_cells", "kv_bytes", "compute_bytes"},
    "ctx_size": {"slot_cells", "pool_cells", "kv_bytes", "compute_bytes", "batch_size", "ubatch_size", "fitted"},
    "build": {"engine", "package", "kv_bytes", "compute_bytes", "fitted", "slots_endpoint", "metrics_endpoint"},
}
# of no account for speed, or compared elsewhere
_IGNORED = {
    "host", "port", "model", "engine", "sources", "cont_batching_source", "compute_by_device", *PRIMARY,
}  # fmt: skip
_PLAN = ("max_tokens", "endpoint", "cache_prompt", "ignore_eos", "temperature", "id_slot", "after", "at_s")
_MACHINE = ("cpu", "cores", "threads", "architecture")
_SYSTEM = ("os", "kernel", "python", "labkit")
MEMORY_SHARE, PROMPT_TOKENS, PROMPT_SHARE = 0.02, 4, 0.02


@dataclass(frozen=True)
class Difference:
    """One thing that isn't the same on both sides.

    Args:
        what: name of it.
        before: its value before, in words.
        after: its value after.
        meaning: CHANGED, FOLLOWS, BLOCKS or NOTE.
        arms: the arms in which it was seen; empty: of the whole run.
    """

    what: str
    before: str
    after: str
    meaning: str
    arms: tuple[str, ...] = ()


def common_arms(before: RunRows, after: RunRows) -> list[str]:
    """Return the arms that put a load on a server in both runs, in the order of the earlier one.

    An arm whose client had fewer connections than requests is left out: there the client was the queue.
    """
    held_back = {arm for data in (before, after) for arm in _loaded(data) if _client_queues(data, arm)}
    return [arm for arm in _loaded(before) if arm in set(_loaded(after)) - held_back]


def _client_queues(data: RunRows, arm: str) -> bool:
    planned = data.run["arms"][arm].get("planned") or {}
    connections = planned.get("max_connections")
    return connections is not None and connections < len(planned.get("requests") or ())


def _loaded(data: RunRows) -> list[str]:
    sent = {row["arm"] for row in data.requests if not row["warm_up"]}
    return [arm for arm in data.run.get("arms", {}) if arm in sent]


def named_change(before: RunRows, after: RunRows) -> list[str]:
    """Return which of PRIMARY differ between the arms that both runs have.

    Args:
        before: the earlier run.
        after: the later run.
    """
    arms = common_arms(before, after)
    return [name for name in PRIMARY if any(_primary(before, arm)[name] != _primary(after, arm)[name] for arm in arms)]


def differences(before: RunRows, after: RunRows, changed: str) -> list[Difference]:
    """Return every difference between two runs, each once.

    Args:
        before: the earlier run.
        after: the later run.
        changed: what differs on purpose, one of PRIMARY; "": nothing does.
    """
    found = [*_of_runs(before, after)]
    for arm in common_arms(before, after):
        found += [replace(difference, arms=(arm,)) for difference in _of_arms(before, after, arm, changed)]
    return _merged(found)


def _merged(found: list[Difference]) -> list[Difference]:
    arms: dict[Difference, tuple[str, ...]] = {}
    for difference in found:
        key = replace(difference, arms=())
        arms[key] = arms.get(key, ()) + difference.arms
    merged = [replace(difference, arms=where) for difference, where in arms.items()]
    order = [BLOCKS, CHANGED, FOLLOWS, NOTE]
    return sorted(merged, key=lambda difference: order.index(difference.meaning))


# --- of the whole run ---------------------------------------------------------------------------------


def _of_runs(before: RunRows, after: RunRows) -> Iterator[Difference]:
    one, other = before.run, after.run
    if one.get("notebook") != other.get("notebook"):
        yield Difference("notebook", str(one.get("notebook")), str(other.get("notebook")), BLOCKS)
    yield from _of_machines(one.get("provenance") or {}, other.get("provenance") or {})
    rates = [(data.run.get("parameters") or {}).get("poll_hz") for data in (before, after)]
    if rates[0] != rates[1]:
        yield Difference("polls of /slots per second", str(rates[0]), str(rates[1]), BLOCKS)
    if _seeds(before) != _seeds(after):
        why = "the prompts differ in their tags and random draws; their lengths are compared below"
        yield Difference("seed", "one", f"another: {why}", NOTE)
    for data, side in ((before, 0), (after, 1)):
        for text in _state(data):
            yield Difference("state of the run", "" if side else text, text if side else "", BLOCKS)
    common = common_arms(before, after)
    rest = [[arm for arm in _loaded(data) if arm not in common] for data in (before, after)]
    if any(rest):
        yield Difference(
            "arms left out: in one run only, or the client was the queue", _list(rest[0]), _list(rest[1]), NOTE
        )


def _of_machines(one: dict[str, Any], other: dict[str, Any]) -> Iterator[Difference]:
    for names, meaning in ((_MACHINE, BLOCKS), (_SYSTEM, NOTE)):
        for name in names:
            if one.get(name) != other.get(name):
                yield Difference(name, _text(one.get(name)), _text(other.get(name)), meaning)
    cards = [
        [f"{gpu.get('name')}, driver {gpu.get('driver')}" for gpu in side.get("gpus") or ()] for side in (one, other)
    ]
    if cards[0] != cards[1]:
        yield Difference("GPUs", ", ".join(cards[0]) or "none", ", ".join(cards[1]) or "none", BLOCKS)
    memory = [side.get("memory_bytes") or 0 for side in (one, other)]
    if abs(memory[0] - memory[1]) > MEMORY_SHARE * max(memory):
        yield Difference("memory", _gib(memory[0]), _gib(memory[1]), BLOCKS)


def _seeds(data: RunRows) -> set[tuple[str, int]]:
    return {(row["arm"], row["seed"]) for row in data.requests if not row["warm_up"]}


def _state(data: RunRows) -> Iterator[str]:
    """Say why a run's figures mean little, whatever it is compared with."""
    if data.run.get("verdict", {}).get("status", "not_run") == "not_run":
        yield "it did not come to a verdict: it was stopped, or a cell failed"
    for arm in _loaded(data):
        facts = data.run["arms"][arm]
        if not facts.get("server_alive", True):
            yield f"{arm}: the server {facts.get('server_exit') or 'ended'} in the middle"
        yield from _unready(data, arm, facts)
        ours = {row["seed"] for row in data.requests if row["arm"] == arm}
        start_s, end_s = facts.get("load_start_s"), facts.get("load_end_s")
        polls = [row for row in data.slots if row["arm"] == arm and row["slots"] is not None]
        during = [p for p in polls if start_s is not None and end_s is not None and start_s <= p["sent_s"] <= end_s]
        seeds = {slot["seed"] for poll in during for slot in poll["slots"] if slot["busy"]}
        if seeds - ours - {None}:
            yield f"{arm}: another client used the server"


def _unready(data: RunRows, arm: str, facts: dict[str, Any]) -> Iterator[str]:
    planned = {request["label"] for request in (facts.get("planned") or {}).get("requests") or []}
    sent = {row["label"] for row in data.requests if row["arm"] == arm and not row["warm_up"]}
    if facts.get("load_end_s") is None or planned - sent:
        yield f"{arm}: it did not run to its end"
    if facts.get("quiet_after_s") is None and any(row["arm"] == arm and row["slots"] is not None for row in data.slots):
        yield f"{arm}: the server was not idle before the load"


# --- of one arm ---------------------------------------------------------------------------------------


def _of_arms(before: RunRows, after: RunRows, arm: str, changed: str) -> Iterator[Difference]:
    facts = [data.run["arms"][arm] for data in (before, after)]
    servers = [fact.get("server") or {} for fact in facts]
    primary = [_primary(data, arm) for data in (before, after)]
    for name in PRIMARY:
        if primary[0][name] != primary[1][name]:
            meaning = CHANGED if name == changed else BLOCKS
            yield Difference(name, _text(primary[0][name]), _text(primary[1][name]), meaning)
    yield from _of_models(servers)
    yield from _of_settings(servers, changed)
    yield from _of_plans(facts, before, after, arm)


def _primary(data: RunRows, arm: str) -> dict[str, Any]:
    """Return what the four settings are in an arm: as asked, else as the server says."""
    server = data.run["arms"][arm].get("server") or {}
    asked, effective, build = server.get("asked") or {}, server.get("effective") or {}, server.get("build") or {}

    def first(*values: Any) -> Any:
        return next((value for value in values if value is not None), None)

    return {
        "parallel": first(asked.get("parallel"), effective.get("slots")),
        "kv_unified": first(asked.get("kv_unified"), effective.get("kv_unified")),
        "ctx_size": first(asked.get("ctx_size"), effective.get("pool_cells")),
        "build": _build(build),
    }


def _build(build: dict[str, Any]) -> Any:
    """Return what names a build: what it reports; with its path where it has one, since options may differ."""
    package = build.get("package")
    named = next((name for name in (_reported(build), build.get("number"), package) if name is not None), None)
    by_path = str(package or "").startswith("llama-server ")
    return f"{named}, {package}" if by_path and named != package else named


def _reported(build: dict[str, Any]) -> str | None:
    """Return what a server says of its build, commit included; wheels say that they don't know (b0-unknown)."""
    reported = build.get("reported")
    return str(reported) if reported and not str(reported).startswith("b0-") else None


def _of_models(servers: list[dict[str, Any]]) -> Iterator[Difference]:
    hashes = [(server.get("model") or {}).get("sha256") for server in servers]
    names = [(server.get("model") or {}).get("name") for server in servers]
    if hashes[0] != hashes[1] or (hashes[0] is None and names[0] != names[1]):
        words = [f"{name}, sha256 {str(digest or 'unknown')[:12]}" for name, digest in zip(names, hashes, strict=True)]
        yield Difference("model", words[0], words[1], BLOCKS)
    elif hashes[0] is None:
        yield Difference("model", "hash not known", "hash not known", NOTE)
    attached = [bool(server.get("attached")) for server in servers]
    if attached[0] != attached[1]:
        words = ["attached" if a else "started by labkit" for a in attached]
        yield Difference("server", words[0], words[1], BLOCKS)
    elif attached[0]:
        hosts = [urlsplit(str(server.get("base_url") or "")).hostname or "not known" for server in servers]
        # behind one name there may be one machine; behind two names there may be two
        meaning = NOTE if hosts[0] == hosts[1] else BLOCKS
        yield Difference("the server's machine, not known but for its name", hosts[0], hosts[1], meaning)


def _of_settings(servers: list[dict[str, Any]], changed: str) -> Iterator[Difference]:
    follows = CONSEQUENCES.get(changed, set())
    for part in ("asked", "effective"):
        one, other = ((server.get(part) or {}) for server in servers)
        ignored = _IGNORED if part == "asked" else _IGNORED - {"kv_unified"}
        for name in sorted({*one, *other} - ignored):
            values = [_plain(one.get(name)), _plain(other.get(name))]
            if values[0] == values[1]:
                continue
            meaning = FOLLOWS if part == "effective" and name in follows else BLOCKS
            if None in values or name in ("compute_bytes", "fitted"):
                meaning = FOLLOWS if meaning == FOLLOWS else NOTE
            if part == "asked" and None in values and name in one and name in other:
                meaning = BLOCKS  # asked for on one side, left to the server on the other
            yield Difference(f"{name} ({part})", _text(values[0]), _text(values[1]), meaning)


def _of_plans(facts: list[dict[str, Any]], before: RunRows, after: RunRows, arm: str) -> Iterator[Difference]:
    plans = [{r["label"]: r for r in (fact.get("planned") or {}).get("requests") or []} for fact in facts]
    if set(plans[0]) != set(plans[1]):
        yield Difference("requests", ", ".join(plans[0]) or "none", ", ".join(plans[1]) or "none", BLOCKS)
    pools = [(fact.get("planned") or {}).get("max_connections") for fact in facts]
    if pools[0] != pools[1]:
        yield Difference("the client's connections", _text(pools[0]), _text(pools[1]), BLOCKS)
    prompts = [fact.get("prompt_tokens") or {} for fact in facts]
    for label in sorted(set(plans[0]) & set(plans[1])):
        for name in _PLAN:
            values = [plan[label].get(name) for plan in plans]
            if values[0] != values[1] and not (name == "at_s" and None not in values and _near_s(values)):
                yield Difference(f"{label}: {name}", _text(values[0]), _text(values[1]), BLOCKS)
        yield from _of_prompts(label, [lengths.get(label) for lengths in prompts])
    yield from _of_texts(before, after, arm)


def _near_s(values: list[Any]) -> bool:
    return bool(abs(values[0] - values[1]) < 1e-6)


def _of_prompts(label: str, lengths: list[int | None]) -> Iterator[Difference]:
    if lengths[0] == lengths[1]:
        return
    words = [_text(length) + " tokens" for length in lengths]
    near = None not in lengths and abs((lengths[0] or 0) - (lengths[1] or 0)) <= max(
        PROMPT_TOKENS, PROMPT_SHARE * max(lengths[0] or 0, lengths[1] or 0)
    )
    yield Difference(f"{label}: prompt", words[0], words[1], NOTE if near else BLOCKS)


def _of_texts(before: RunRows, after: RunRows, arm: str) -> Iterator[Difference]:
    """Compare the prompts themselves where both records keep them and the seeds say that they are the same."""
    texts = [
        {row["label"]: row["prompt"] for row in data.requests if row["arm"] == arm and row.get("prompt") is not None}
        for data in (before, after)
    ]
    if _seeds(before) == _seeds(after):
        for label in sorted(set(texts[0]) & set(texts[1])):
            if texts[0][label] != texts[1][label]:
                yield Difference(f"{label}: prompt text", "one", "another", BLOCKS)


def _list(names: list[str]) -> str:
    return ", ".join(names) or "-"


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _text(value: Any) -> str:
    if value is None:
        return "not known"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
