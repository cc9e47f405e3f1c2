"""Is the client the limit? Decode rates on one server: the kit, `curl -sN`, and a bare httpx loop.

Arms are interleaved in random order; every ratio has an A/A ratio of the reference beside it.

    python -m tests.bench.client_limit curl  [--pairs 10] [--tokens 64]    4 curl processes, default model
    python -m tests.bench.client_limit httpx [--pairs 10] [--tokens 1000]  bare aiter_raw loop, toy model
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import numpy as np
from scipy.stats import bootstrap

import labkit as lab
from labkit.measure.client import PATHS, request_body
from labkit.measure.load import Load
from tests.live.lab import quiet

STREAMS = 4
Rate = Callable[[lab.Server, lab.LoadPlan], Awaitable[tuple[float, float]]]


def plan(tokens: int, seed: int, streams: int = STREAMS) -> lab.LoadPlan:
    requests = [
        lab.RequestPlan(
            label=f"r{i}", prompt=f"[{seed + i:06x}] Tell me about the sea.", max_tokens=tokens, seed=seed + i
        )
        for i in range(streams)
    ]
    return lab.LoadPlan(requests=tuple(requests))


async def by_kit(server: lab.Server, load_plan: lab.LoadPlan) -> tuple[float, float]:
    """Return decode rate in tokens/s and client CPU seconds per token."""
    with tempfile.TemporaryDirectory() as folder:
        run = lab.open_run("bench", lab.LateArrival(), outputs=folder)
        cpu_s = time.process_time()
        load = Load(load_plan, arm="kit", clock=run.clock, keep=run.append)
        records = await load.run(server.address)
        cpu_s = time.process_time() - cpu_s
        run.close()
    tokens = sum(record.tokens for record in records)
    first_s = min(record.first_token_s or 0.0 for record in records)
    return tokens / (max(record.last_token_s or 0.0 for record in records) - first_s), cpu_s / tokens


async def by_httpx(server: lab.Server, load_plan: lab.LoadPlan) -> tuple[float, float]:
    """The bare loop: one timestamp a chunk, nothing else."""

    async def one(client: httpx.AsyncClient, request: lab.RequestPlan) -> list[float]:
        stamps = []
        body = request_body(request, server.model_id)
        async with client.stream("POST", PATHS["chat"], json=body) as response:
            async for _ in response.aiter_raw():
                stamps.append(time.perf_counter())
        return stamps

    cpu_s = time.process_time()
    async with httpx.AsyncClient(base_url=server.base_url, timeout=None, trust_env=False) as client:
        streams = await asyncio.gather(*[one(client, request) for request in load_plan.requests])
    cpu_s = time.process_time() - cpu_s
    tokens = sum(request.max_tokens for request in load_plan.requests)
    return tokens / (max(s[-1] for s in streams) - min(s[0] for s in streams)), cpu_s / tokens


async def by_curl(server: lab.Server, load_plan: lab.LoadPlan) -> tuple[float, float]:
    """Four curl processes; the time from the first to the last byte that any of them got."""

    async def one(request: lab.RequestPlan) -> tuple[float, float]:
        body = json.dumps(request_body(request, server.model_id))
        url = server.base_url + PATHS["chat"]
        command = ["curl", "-sN", "--noproxy", "*", url, "-H", "Content-Type: application/json", "-d", body]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        await process.stdout.read(1)
        first_s = time.perf_counter()
        await process.stdout.read()
        await process.wait()
        return first_s, time.perf_counter()

    times = await asyncio.gather(*[one(request) for request in load_plan.requests])
    tokens = sum(request.max_tokens for request in load_plan.requests)
    return tokens / (max(end for _, end in times) - min(start for start, _ in times)), float("nan")


def interval(ratios: list[float]) -> list[float]:
    """Return the median of ratios with its 95 % bootstrap interval."""
    found = bootstrap(
        (np.array(ratios),), np.median, n_resamples=5000, rng=np.random.default_rng(1), method="percentile"
    )
    low, high = found.confidence_interval
    return [round(float(value), 4) for value in (np.median(ratios), low, high)]


async def compare(reference: Rate, model: str, pairs: int, tokens: int) -> dict[str, object]:
    settings = lab.ServerSettings(model=model, parallel=STREAMS, ctx_size=8192)
    draw = random.Random(5)
    ratios, aa, rates = [], [], []
    cpu: dict[str, list[float]] = {"kit": [], "reference": []}
    with tempfile.TemporaryDirectory() as folder:
        async with lab.start_server(settings, log_path=Path(folder) / "s.log", lock_timeout_s=60, say=quiet) as server:
            await by_kit(server, plan(32, 1))
            for number in range(pairs):
                order = ["kit", "one", "two"]
                draw.shuffle(order)
                found = {}
                for arm in order:
                    method = by_kit if arm == "kit" else reference
                    found[arm], cpu_s = await method(server, plan(tokens, 1000 * number + 10))
                    cpu["kit" if arm == "kit" else "reference"].append(cpu_s * 1e6)
                ratios.append(found["kit"] / found["one"])
                aa.append(found["two"] / found["one"])
                rates.append(found["kit"])
                print("  ".join(f"{arm} {found[arm]:.1f}" for arm in ("kit", "one", "two")), "tokens/s", flush=True)
    return {
        "kit_over_reference": interval(ratios),
        "reference_over_itself": interval(aa),
        "kit_tokens_per_s": round(float(np.median(rates)), 1),
        "kit_cpu_ms_per_1000_tokens": round(float(np.median(cpu["kit"])), 1),
        "reference_cpu_ms_per_1000_tokens": round(float(np.nanmedian(cpu["reference"])), 1)
        if reference is by_httpx
        else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reference", choices=["curl", "httpx"])
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--tokens", type=int)
    options = parser.parse_args()
    reference, model, tokens = (by_curl, "smollm2-135m", 64) if options.reference == "curl" else (by_httpx, "toy", 1000)
    print(json.dumps(asyncio.run(compare(reference, model, options.pairs, options.tokens or tokens))))


if __name__ == "__main__":
    main()
