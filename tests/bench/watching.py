"""What watching costs: decode rate with /slots polled over without, in interleaved triples off, on, off again.

python -m tests.bench.watching [--model smollm2-135m] [--triples 20] [--hz 5 20] [--slots 4] [--tokens 96]

on/off compares the middle arm with the mean of its neighbours; off/off, the two neighbours, is the noise
that the first ratio has to be read against.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import bootstrap

import labkit as lab
from labkit.measure.load import Load
from labkit.measure.observe import SlotSampler
from tests.live.lab import quiet


def interval(ratios: list[float]) -> dict[str, float]:
    """Return median and 95 % bootstrap interval."""
    found = bootstrap((np.array(ratios),), np.median, n_resamples=5000, rng=np.random.default_rng(1))
    low, high = found.confidence_interval
    return {"median": float(np.median(ratios)), "low": float(low), "high": float(high)}


def load_plan(slots: int, tokens: int, draw: random.Random) -> lab.LoadPlan:
    requests = [
        lab.RequestPlan(label=f"R{i}", prompt=f"[{draw.randrange(16**6):06x}] Tell a story.", max_tokens=tokens, seed=s)
        for i, s in enumerate(draw.sample(range(1, 2**31), slots))
    ]
    return lab.LoadPlan(requests=tuple(requests))


async def arm(server: lab.Server, plan: lab.LoadPlan, hz: float) -> dict[str, float]:
    """Return the decode rate of one load, and the client's CPU seconds and polls in it."""
    polls: list[dict[str, Any]] = []
    clock = time.perf_counter
    sampling = lab.SampleSettings(poll_hz=hz or 1)
    async with SlotSampler(server.address, sampling, clock, polls.append) as sampler:
        watching = asyncio.create_task(sampler.run()) if hz else None
        before = resource.getrusage(resource.RUSAGE_SELF)
        records = await Load(plan, arm="x", clock=clock, keep=lambda *_: None).run(server.address)
        after = resource.getrusage(resource.RUSAGE_SELF)
        if watching:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
    assert all(record.outcome == "completed" for record in records), records
    # from the last first token to the first last one all slots decode
    since, until = max(r.first_token_s for r in records), min(r.last_token_s for r in records)
    decoded = sum(r.timings["predicted_n"] for r in records)
    whole = max(r.last_token_s for r in records) - min(r.first_token_s for r in records)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    answer = [row["received_s"] - row["sent_s"] for row in polls if row["received_s"]]
    return {
        "rate": decoded / whole, "cpu_s": cpu, "span_s": until - since, "whole_s": whole, "polls": len(answer),
        "answer_s": float(np.median(answer)) if answer else 0.0,
    }  # fmt: skip


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    draw, found = random.Random(5), {}
    settings = lab.ServerSettings(engine=options.engine, model=options.model, parallel=options.slots, ctx_size=8192)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        async with lab.open_server(settings, log_path=log, lock_timeout_s=60, say=quiet) as server:
            await arm(server, load_plan(options.slots, 16, draw), 0)
            for hz in options.hz:
                triples = []
                for number in range(options.triples):
                    triples.append(
                        [await arm(server, load_plan(options.slots, options.tokens, draw), h) for h in (0, hz, 0)]
                    )
                    print(f"{hz:g} Hz {number + 1}: " + ", ".join(f"{a['rate']:.1f}" for a in triples[-1]), flush=True)
                found[f"{hz:g}"] = reduced(triples)
    return found


def reduced(triples: list[list[dict[str, float]]]) -> dict[str, Any]:
    on_off = [on["rate"] / ((a["rate"] + b["rate"]) / 2) for a, on, b in triples]
    off_off = [b["rate"] / a["rate"] for a, _, b in triples]
    polls = sum(on["polls"] for _, on, _ in triples)
    extra = sum(on["cpu_s"] - (a["cpu_s"] + b["cpu_s"]) / 2 for a, on, b in triples)
    return {
        "on_off": interval(on_off), "off_off": interval(off_off), "polls": polls,
        "client_cpu_ms_per_poll": extra / polls * 1e3,
        "answer_ms": float(np.median([on["answer_s"] for _, on, _ in triples])) * 1e3,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="embedded")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--triples", type=int, default=20)
    parser.add_argument("--hz", type=float, nargs="+", default=[5.0, 20.0])
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=96)
    found = asyncio.run(measure(parser.parse_args()))
    for hz, row in found.items():
        for name in ("on_off", "off_off"):
            print(f"{hz:>4} Hz {name}: {row[name]['median']:.3f} ({row[name]['low']:.3f} to {row[name]['high']:.3f})")
        print(f"{hz:>4} Hz client CPU {row['client_cpu_ms_per_poll']:.2f} ms a poll, answer {row['answer_ms']:.1f} ms")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
