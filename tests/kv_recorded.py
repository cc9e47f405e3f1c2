"""Recorded runs of notebook 02 made by rule: servers that have what was asked, requests that meet their fates."""

from __future__ import annotations

from typing import Any

from labkit.analyze.kv import kv_size
from labkit.measure.record import RunData
from labkit.settings import effective_context
from tests.synthetic import server as plain_server

TRAIN = 8192
FACTS = {"architecture": "llama", "n_layers": 30, "n_kv_heads": 3, "head_size_k": 64, "head_size_v": 64,
         "n_ctx_train": TRAIN, "name": "toy", "quantisation": "Q4_1"}  # fmt: skip
LENGTHS = {"A": 600, "B": 150, "C": 2304, "D": 300}
ANSWER, TOKEN_S, POLL_S = 24, 0.02, 0.05
EXCEEDED = '{"code": 500, "message": "Context size has been exceeded."}'


def server(ctx_size: int = 4096, parallel: Any = 2, unified: bool = True, ubatch: int = 512) -> dict[str, Any]:
    """Return a recorded server that has what the rule gives."""
    found = plain_server()
    found["asked"] |= {"ctx_size": ctx_size, "parallel": parallel, "kv_unified": unified, "ubatch_size": ubatch,
                       "cache_type_k": "f16", "cache_type_v": "f16"}  # fmt: skip
    context = effective_context(ctx_size, parallel, unified, n_ctx_train=TRAIN)
    found["model"]["facts"] = dict(FACTS)
    found["effective"] |= {
        "slots": context.slots, "slot_cells": context.slot_cells, "kv_unified": context.kv_unified,
        "pool_cells": context.pool_cells, "ubatch_size": ubatch, "compute_bytes": ubatch * 2**15,
        "compute_by_device": {"CUDA0": ubatch * 2**14, "CUDA_Host": ubatch * 2**14},
        "kv_bytes": kv_size(FACTS, context, ubatch_size=ubatch).bytes,
    }  # fmt: skip
    return found


def kv_run(
    ctx_size: int = 4096, slots: int = 2, lengths: dict[str, int] | None = None, *, load: bool = True,
    counts_cells: bool = True,
) -> RunData:  # fmt: skip
    """Return a whole run: seven servers, and the loads unless told otherwise."""
    pool = effective_context(ctx_size, slots, True, n_ctx_train=TRAIN)
    servers = {
        "unified": server(ctx_size, slots),
        "split": server(ctx_size, slots, False),
        "split_roomy": server(pool.slot_cells * slots, slots, False),
        "other_ubatch": server(ctx_size, slots, ubatch=128),
        "four_split": server(ctx_size, 4, False),
        "auto": server(ctx_size, "auto"),
        "auto_asked_split": server(ctx_size, "auto", False),
    }
    run: dict[str, Any] = {"notebook": "02_kv_unified_vs_split", "parameters": {}, "arms": {}}
    run["provenance"] = {"cores": 2, "cpu": "a CPU", "memory_bytes": 2**34, "gpus": [], "os": "an OS"}
    for name, one in servers.items():
        size = 140 * 2**20 + one["effective"]["kv_bytes"]
        run["arms"][name] = {"server": one, "title": name, "memory_at_start": {"resident_bytes": size, "gpus": []}}
    data = RunData(run)
    if load:
        for name in ("unified", "split"):
            run["arms"][f"{name}_long"] = {"server": servers[name], "title": name}
            put_on(data, f"{name}_long", {"A": 2304}, counts_cells=counts_cells)
        for name in ("unified", "split", "split_roomy"):
            put_on(data, name, lengths or LENGTHS, counts_cells=counts_cells)
    return data


def put_on(data: RunData, arm: str, lengths: dict[str, int], *, counts_cells: bool = True) -> None:
    """Run requests on an arm's slots, first come, first served, each in the time that its tokens take."""
    facts = data.run["arms"][arm]
    has = facts["server"]["effective"]
    free = dict.fromkeys(range(has["slots"]), 0.0)
    spans = []
    for seed, (label, prompt) in enumerate(lengths.items(), start=101):
        slot = min(free, key=lambda one: (free[one], -one))
        row, times = request(arm, label, seed, prompt, slot, free[slot], int(has["slot_cells"]))
        free[slot] = row["end_s"]
        spans.append((slot, row, times, prompt))
        data.requests.append(row)
        data.tokens.extend(
            {"arm": arm, "label": label, "warm_up": False, "i": i, "at_s": t} for i, t in enumerate(times, start=1)
        )
    end_s = max(free.values())
    facts |= {
        "planned": {"requests": [{"label": label} for label in lengths]}, "prompt_tokens": dict(lengths),
        "load_start_s": -0.05, "load_end_s": end_s + 0.2, "quiet_after_s": 0.01, "server_alive": True,
    }  # fmt: skip
    at_s = -0.1
    while at_s < end_s + 0.1:
        slots = [slot_row(slot, spans, at_s, counts_cells=counts_cells) for slot in range(has["slots"])]
        data.slots.append({"arm": arm, "sent_s": at_s - 0.002, "received_s": at_s, "status": 200, "error": None,
                           "slots": slots})  # fmt: skip
        at_s += POLL_S


def request(
    arm: str, label: str, seed: int, prompt: int, slot: int, start_s: float, cells: int
) -> tuple[dict[str, Any], list[float]]:
    """Return a request's row and token times: refused, cut or served, as its slot's cells want."""
    decoded = 0 if prompt >= cells else min(ANSWER, cells - prompt)
    first_s = start_s + prompt * 2e-4
    times = [first_s + i * TOKEN_S for i in range(decoded)]
    outcome = "does_not_fit" if not decoded else "completed" if decoded == ANSWER else "slot_limit"
    end_s = times[-1] + 0.001 if times else start_s + 0.01
    timings = {"cache_n": 0, "prompt_n": prompt, "prompt_ms": prompt * 0.2, "predicted_n": decoded}
    row = {
        "arm": arm, "label": label, "seed": seed, "max_tokens": ANSWER, "warm_up": False, "id_slot_asked": None,
        "planned_s": 0.0, "sent_s": 0.0, "headers_s": start_s, "first_event_s": times[0] if times else None,
        "first_token_s": times[0] if times else None, "first_answer_s": None,
        "last_token_s": times[-1] if times else None, "end_s": end_s, "status": 200 if times else 400,
        "outcome": outcome, "error": None if times else "exceed_context_size_error", "finish_reason": "length",
        "truncated": outcome == "slot_limit", "id_slot": slot if times else None, "tokens": decoded, "pings": 0,
        "timings": timings if times else None, "prompt": None, "text": None,
    }  # fmt: skip
    return row, times


def slot_row(slot: int, spans: list[Any], at_s: float, *, counts_cells: bool) -> dict[str, Any]:
    row = {
        "id": slot,
        "busy": False,
        "id_task": 1,
        "seed": 7,
        "n_ctx": 0,
        "n_cells": 0,
        "n_prefilled": 5,
        "n_decoded": 3,
    }
    for mine, request_row, times, prompt in spans:
        if mine != slot or not times or at_s < times[0]:
            continue
        decoded = sum(t <= at_s for t in times)
        row |= {"id_task": request_row["seed"], "seed": request_row["seed"], "busy": at_s < request_row["end_s"]}
        row |= {"n_prefilled": prompt, "n_decoded": decoded, "n_cells": prompt + decoded - 1}
    return row if counts_cells else row | {"n_cells": None, "n_prefilled": None}
