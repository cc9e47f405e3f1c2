"""Whether a record's parts agree with each other: the same fact stands in two places, and both must say the same."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from labkit.analyze.rows import RunRows, timing

_Key = tuple[str, str, bool]


def disagreements(data: RunRows) -> list[str]:
    """Return what two parts of a record say differently, a sentence each.

    Args:
        data: the recorded run.
    """
    arms = data.run.get("arms") or {}
    tokens = _tokens(data)
    found = [f"{stream}.jsonl has rows of {arm}, an arm that run.json doesn't know" for stream, arm in _strangers(data)]
    for request in data.requests:
        found += _of_request(request, tokens.pop(_key(request), []))
        if not request["warm_up"]:
            found += _of_plan(request, arms.get(request["arm"]) or {})
    found += [f"{_name(*key)} has tokens in tokens.jsonl and no line in requests.jsonl" for key in tokens]
    return found + [text for stream in ("slots", "metrics") for text in _of_polls(stream, getattr(data, stream))]


def _key(row: dict[str, Any]) -> _Key:
    return row["arm"], row["label"], bool(row["warm_up"])


def _name(arm: str, label: str, _warm_up: bool = False) -> str:
    return f"{label} of {arm}"


def _tokens(data: RunRows) -> dict[_Key, list[dict[str, Any]]]:
    found: dict[_Key, list[dict[str, Any]]] = defaultdict(list)
    for row in data.tokens:
        found[_key(row)].append(row)
    return found


def _strangers(data: RunRows) -> list[tuple[str, str]]:
    streams = ("requests", "tokens", "slots", "metrics", "memory")
    seen = {(stream, row["arm"]): None for stream in streams for row in getattr(data, stream)}
    return [pair for pair in seen if pair[1] not in (data.run.get("arms") or {})]


def _of_request(request: dict[str, Any], tokens: list[dict[str, Any]]) -> Iterator[str]:
    """A request's line counts its tokens and keeps two of their times; each token has a line of its own."""
    name = _name(*_key(request))
    if request["tokens"] != len(tokens):
        yield f"{name} has {request['tokens']} tokens in requests.jsonl and {len(tokens)} in tokens.jsonl"
    elif [row["i"] for row in tokens] != list(range(1, len(tokens) + 1)):
        yield f"{name}: its tokens are not numbered from 1 in tokens.jsonl"
    elif tokens:
        times = [row["at_s"] for row in tokens]
        for which, at_s in (("first", times[0]), ("last", times[-1])):
            if request[f"{which}_token_s"] != at_s:
                yield f"{name}: its {which} token came at {request[f'{which}_token_s']} s, or at {at_s} s"
        if times != sorted(times):
            yield f"{name}: its tokens run backwards in tokens.jsonl"
    counted = timing(request, "predicted_n")
    if counted is not None and counted < request["tokens"]:
        yield f"{name}: the server counted {counted:.0f} tokens, fewer than the {request['tokens']} that came"


def _of_plan(request: dict[str, Any], arm: dict[str, Any]) -> Iterator[str]:
    """run.json keeps what was planned, how long each prompt is, and when the load ran."""
    name = _name(*_key(request))
    planned = {plan["label"]: plan for plan in (arm.get("planned") or {}).get("requests") or []}
    if planned and request["label"] not in planned:
        yield f"{name} was never planned"
    for field in ("seed", "max_tokens"):
        wanted = planned.get(request["label"], {}).get(field)
        if wanted is not None and wanted != request[field]:
            yield f"{name} was planned with {field} {wanted} and sent with {request[field]}"
    prompt, cached = timing(request, "prompt_n"), timing(request, "cache_n")
    noted = (arm.get("prompt_tokens") or {}).get(request["label"])
    if noted is not None and prompt is not None and cached is not None and prompt + cached != noted:
        yield f"{name} has a prompt of {noted} tokens in run.json, and the server processed {prompt + cached:.0f}"
    start_s, end_s = arm.get("load_start_s"), arm.get("load_end_s")
    outside = (start_s is not None and request["sent_s"] is not None and request["sent_s"] < start_s) or (
        end_s is not None and request["end_s"] is not None and request["end_s"] > end_s
    )
    if outside:
        yield f"{name} ran outside the time in which its load ran"


def _of_polls(stream: str, rows: list[dict[str, Any]]) -> Iterator[str]:
    last: dict[str, float] = {}
    for number, row in enumerate(rows, 1):
        if row["sent_s"] < last.get(row["arm"], row["sent_s"]) or (row["received_s"] or row["sent_s"]) < row["sent_s"]:
            yield f"line {number} of {stream}.jsonl runs backwards in time"
            return
        last[row["arm"]] = row["sent_s"]
