"""Tables of notebook 04: what /metrics exposes, what a call of llama_decode yields, and the run's record."""

from __future__ import annotations

import textwrap
from collections import Counter
from typing import TYPE_CHECKING, Any

from labkit.analyze.frames import Column, RunFrames, tidy
from labkit.analyze.metrics_and_gpu.counters import METRICS, NO_VALUE, NOT_EXPOSED, Growth, counting_rules, rate
from labkit.analyze.metrics_and_gpu.memory_checks import MIB, memory_change
from labkit.analyze.metrics_and_gpu.view import AT_ONCE, OFF, CounterArm
from labkit.analyze.readings import max_overlap

if TYPE_CHECKING:
    import pandas as pd

COUNTERS = {
    "metric": Column("str", "", "name, without llamacpp:"),
    "before": Column("str", "", "last scrape before the load"),
    "after": Column("str", "", "first scrape after it"),
    "growth": Column("str", "", "of a counter, over the load"),
    "per second": Column("str", "1/s", "growth by the time between the two scrapes"),
    "the streams say": Column("str", "", "the same, from the answers"),
    "meaning": Column("str", "", "what it counts, by this build's rules where they are known"),
}
SHARED = {
    "load": Column("str", "", "the arm"),
    "tokens streamed": Column("Int64", "tokens", "pieces of text that the client got"),
    "calls of llama_decode": Column("Int64", "", "growth of n_decode_total"),
    "tokens a call": Column("Float64", "", "the first by the second"),
    "busy slots a call": Column("Float64", "", "over the load: differences of the average's sum"),
    "the same since start": Column("Float64", "", "n_busy_slots_per_decode as exposed after the load"),
}
RECORD = {
    "what": Column("str", "", "what a report on a run has to hold"),
    "value": Column("str", "", "as recorded"),
    "source": Column("str", "", "who said so"),
}
# averages and maxima: a difference of theirs means nothing
_NO_DIFFERENCE = (
    "requests_processing", "requests_deferred", "n_busy_slots_per_decode", "n_tokens_max", "prompt_tokens_seconds",
    "predicted_tokens_seconds", "kv_cache_usage_ratio", "kv_cache_tokens",
)  # fmt: skip


def counters_table(frames: RunFrames, arm: str = AT_ONCE) -> pd.DataFrame:
    """Return one row a metric: before, after, growth, and what the streams say of the same thing.

    A name that builds have had and this one hasn't says so; it is never 0 and never blank.

    Args:
        frames: the run.
        arm: the arm.
    """
    view = CounterArm(frames.data, arm)
    if view.window is None:
        why = view.not_scraped() or (OFF if view.off else "no scrape before or after the load could be read")
        return tidy([dict.fromkeys(COUNTERS, "") | {"metric": "/metrics", "meaning": why}], COUNTERS)
    exposed = {name for scrape in view.window for name in scrape.values}
    # what builds have had, then what this one adds; labelled ones and drafts only if they count something
    names = [*METRICS, *sorted(name for name in exposed - set(METRICS) if view.window[1].values.get(name))]
    return tidy([_counter_row(view, name) for name in names], COUNTERS)


def _counter_row(view: CounterArm, name: str) -> dict[str, str]:
    before, after = view.window or (None, None)
    row = {"metric": name, "meaning": _meaning(view, name), "growth": "", "per second": ""}
    row["before"], row["after"] = (_shown(scrape.values, name) if scrape else "" for scrape in (before, after))
    if before and after and name not in _NO_DIFFERENCE and name in after.values:
        grown = view.grown(name)
        per_second = rate(grown, after.received_s - before.received_s)
        row["growth"] = _amount(grown)
        row["per second"] = "" if per_second is None else f"{per_second:,.1f}"
    return row | {"the streams say": _streams(view, name)}


def _shown(values: Any, name: str) -> str:
    if name not in values:
        return NOT_EXPOSED
    return NO_VALUE if values[name] is None else _number(values[name])


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) or value >= 1e6 else f"{value:,.6g}"


def _amount(grown: Growth) -> str:
    if grown.amount is None:
        return grown.missing
    return _number(grown.amount) + (f" ± {grown.error:,.0f}" if grown.error >= 0.5 else "")


def _meaning(view: CounterArm, name: str) -> str:
    text, rules = METRICS.get(name, ""), counting_rules(view.build)
    if rules is None:
        return text
    said = {
        "prompt_tokens_total": rules.prompt,
        "tokens_predicted_total": rules.predicted,
        "n_decode_total": rules.calls,
        "prompt_tokens_seconds": f"over {rules.averages}",
        "predicted_tokens_seconds": f"over {rules.averages}",
    }
    return f"{text}; {said[name]}" if name in said else text


def _streams(view: CounterArm, name: str) -> str:
    sums = {"prompt_tokens_total": "prompt_n", "tokens_predicted_total": "predicted_n"}
    if name in sums:
        total = view.timed(sums[name])
        return "no timings" if total is None else f"{total:,.0f}"
    seconds = {"prompt_seconds_total": "prompt_ms", "tokens_predicted_seconds_total": "predicted_ms"}
    if name in seconds:
        total = view.timed(seconds[name])
        return "no timings" if total is None else f"{total / 1e3:,.3f}"
    return f"{view.streamed:,} tokens" if name == "n_decode_total" else ""


def shared_calls_table(frames: RunFrames) -> pd.DataFrame:
    """Return one row an arm: tokens, calls of llama_decode, and busy slots in the same window."""
    rows = []
    for arm in frames.arms:
        view = CounterArm(frames.data, arm)
        calls, busy = view.grown("n_decode_total").amount, view.busy_per_call.amount
        since_start = view.window[1].values.get("n_busy_slots_per_decode") if view.window else None
        a_call = view.streamed / calls if calls else None
        values = (frames.arm_name(arm), view.streamed, calls, a_call, busy, since_start)
        rows.append(dict(zip(SHARED, values, strict=True)))
    return tidy(rows, SHARED)


# --- the record -----------------------------------------------------------------------------------------


def record_table(frames: RunFrames, arm: str = AT_ONCE) -> pd.DataFrame:
    """Return what a report on a run has to hold, filled from the record.

    Args:
        frames: the run.
        arm: the arm.
    """
    view = CounterArm(frames.data, arm)
    server = view.facts.get("server") or {}
    rows = [*_identity(server), *_load_rows(view), *_server_rows(view), *_memory_rows(view), _errors(view)]
    return tidy([dict(zip(RECORD, row, strict=True)) for row in rows], RECORD)


def _identity(server: dict[str, Any]) -> list[tuple[str, str, str]]:
    build, model = server.get("build") or {}, server.get("model") or {}
    number = f"b{build['number']}" if build.get("number") else "not known"
    facts = model.get("facts") or {}
    name = f"{model.get('name', 'not known')} {facts.get('quantisation') or ''}".strip()
    argv = server.get("llama_server_command") or "not known: somebody else started it"
    # a table's cell doesn't wrap
    first, *more = textwrap.wrap(argv, 110, break_on_hyphens=False, break_long_words=False)
    return [
        ("llama.cpp build", f"{number}; it reports {build.get('reported') or 'nothing'}", _source(build)),
        ("model", name, "GGUF header"),
        ("model's sha256", model.get("sha256") or "not known", "the file" if model.get("sha256") else ""),
        ("arguments", first, "as a llama-server command line"),
        *(("", line, "") for line in more),
    ]


def _source(build: dict[str, Any]) -> str:
    return str(build.get("number_source") or build.get("package") or "")


def _load_rows(view: CounterArm) -> list[tuple[str, str, str]]:
    requests = view.requests
    spans = [(r["sent_s"], r["end_s"]) for r in requests if None not in (r["sent_s"], r["end_s"])]
    statuses = Counter(str(row["status"] or "none") for row in requests)
    return [
        ("concurrency", f"{len(requests)} requests, at most {max_overlap(spans)} in flight at once", "client"),
        ("input tokens", _sum_and_span(view, "prompt_n"), "the answers' timings"),
        ("output tokens", _sum_and_span(view, "predicted_n"), "the answers' timings"),
        ("HTTP status", ", ".join(f"{status} for {n}" for status, n in statuses.items()) or "nothing sent", "client"),
    ]


def _sum_and_span(view: CounterArm, name: str) -> str:
    values = [(row["timings"] or {}).get(name) for row in view.requests]
    numbers = [int(value) for value in values if isinstance(value, int | float)]
    if not numbers:
        return "not known: no timings"
    lacking = f", {len(values) - len(numbers)} not known" if len(numbers) < len(values) else ""
    return f"{sum(numbers):,} in all, {min(numbers):,} to {max(numbers):,} a request{lacking}"


def _server_rows(view: CounterArm) -> list[tuple[str, str, str]]:
    rows = []
    for what, name in (("processing", "requests_processing"), ("deferred", "requests_deferred")):
        said = view.said(name)
        why = view.not_scraped() or (OFF if view.off else view.missing(name) or "not scraped during the load")
        rows.append((what, f"at most {max(said):.0f} in {len(said)} scrapes" if said else why, "/metrics"))
    effective = view.rows.effective
    mode = {True: "unified", False: "split", None: "mode not known"}[effective.get("kv_unified")]
    pool = f"{effective['pool_cells']:,}" if effective.get("pool_cells") else "a number not known"
    return [
        *rows,
        ("KV cells of busy slots, peak", f"{_peak_cells(view)} of {pool} ({mode})", "an estimate: polls of /slots"),
    ]


def _peak_cells(view: CounterArm) -> str:
    held = [
        sum(slot["n_cells"] for slot in poll["slots"] if slot["busy"] and slot["n_cells"] is not None)
        for poll in view.rows.polls
        if any(slot["n_cells"] is not None for slot in poll["slots"])
    ]
    return f"{max(held):,}" if held else "not exposed by this build"


def _memory_rows(view: CounterArm) -> list[tuple[str, str, str]]:
    rows = []
    kinds = (("resident memory", "resident_bytes", "psutil"), ("GPU memory", "gpu_used_bytes", "NVML, all processes"))
    for what, kind, source in kinds:
        change = memory_change(view, kind)
        if change:
            text = f"{change.before_bytes / MIB:,.0f} MiB before the load, {change.most_bytes / MIB:,.0f} MiB at most"
        else:
            no_gpu = not view.attached and kind == "gpu_used_bytes" and not any(r["gpus"] for r in view.memory)
            text = "no NVIDIA GPU" if no_gpu else "not sampled" + (": not our machine" if view.attached else "")
        rows.append((what, text, source))
    return rows


def _errors(view: CounterArm) -> tuple[str, str, str]:
    bad = [f"{row['label']}: {row['outcome']}, {row['error']}" for row in view.requests if row["error"]]
    return "errors", "; ".join(bad) or "none", "client"
