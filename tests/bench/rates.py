"""What is missing to the ceiling, and to whom: decode rates of the kit, of plain curl, and of llama-batched-bench.

python -m tests.bench.rates [--engine build] [--model smollm2-135m] [--slots 1 4 32] [--tokens 256] [--rounds 4]
    [--blocks 3] [--bench /path/to/llama-batched-bench] [--seconds 500]

One server for each block and slot count, as many equal requests as slots. On it, in rotating order: the kit's load
alone ("kit"), the same as notebooks send it, watched ("lab"), as many `curl -N` processes ("curl"), and these
once more ("again": the noise). With the server gone, llama-batched-bench of the same build, where there is one.
A rate is the sum over streams of tokens by the time from the first byte of the answer to its end, each on its
client's own clock: what it costs to start a process does not count. Both times hold the prompt, and so does the
bench's. What curl lacks to the bench is the server's HTTP and sampling; what the kit lacks to curl is the kit's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import resource
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import labkit as lab
from labkit.engine.batched_bench import bench_argv, beside, run_bench
from labkit.measure.client import PATHS, request_body
from labkit.measure.experiment import Arm
from labkit.measure.load import Load, prompt_tokens
from labkit.measure.stream import RequestRecord
from labkit.settings.context import padded
from labkit.settings.values import Setting
from tests.bench.client_limit import interval, plan
from tests.live.lab import quiet

PROMPT_CELLS = 64
RATIOS = (("kit", "curl"), ("lab", "curl"), ("again", "curl"), ("kit", "bench"), ("lab", "bench"), ("curl", "bench"))


@dataclass(frozen=True)
class Found:
    """One load as one client saw it: tokens/s of all streams, its CPU seconds, and how long it was busy with it."""

    tokens_per_s: float
    cpu_s: float
    wall_s: float


def cpu_s(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def kit_rate(records: list[RequestRecord]) -> float:
    """Return the rate in tokens/s."""
    rate = 0.0
    for record in records:
        counted = (record.timings or {}).get("predicted_n")
        if record.outcome != "completed" or counted != record.max_tokens or record.headers_s is None:
            raise SystemExit(f"{record.label} {record.outcome}, {counted} tokens: {record.error}")
        assert record.end_s is not None
        rate += counted / (record.end_s - record.headers_s)
    return rate


async def by_kit(server: lab.Server, load_plan: lab.LoadPlan, run: lab.Run) -> Found:
    """The load alone, every token kept."""
    load = Load(load_plan, arm="kit", clock=run.clock, keep=run.append)
    return await timed(lambda: load.run(server.address))


async def by_lab(server: lab.Server, load_plan: lab.LoadPlan, run: lab.Run) -> Found:
    """What measure_arm() does: warm-up, then the load with /slots, /metrics and memory watched."""
    arm = Arm(server, run, "lab", lab.SampleSettings(), quiet)
    arm.begin()
    async with arm.watched(load_plan):
        return await timed(lambda: arm.send(load_plan, keep_text=False))


async def timed(send: Callable[[], Awaitable[list[RequestRecord]]]) -> Found:
    used_s, start_s = cpu_s(resource.RUSAGE_SELF), time.perf_counter()
    records = await send()
    used_s, wall_s = cpu_s(resource.RUSAGE_SELF) - used_s, time.perf_counter() - start_s
    return Found(kit_rate(records), used_s, wall_s)


async def by_curl(server: lab.Server, load_plan: lab.LoadPlan, _run: lab.Run) -> Found:
    """As many curl processes as requests; each writes a file and tells its own times."""
    used_s, start_s = cpu_s(resource.RUSAGE_CHILDREN), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        rates = await asyncio.gather(
            *[one_curl(server, request, Path(folder) / request.label) for request in load_plan.requests]
        )
    used_s, wall_s = cpu_s(resource.RUSAGE_CHILDREN) - used_s, time.perf_counter() - start_s
    return Found(sum(rates), used_s, wall_s)


async def one_curl(server: lab.Server, request: lab.RequestPlan, answer: Path) -> float:
    """Return the rate of one curl in tokens/s."""
    body = json.dumps(request_body(request, server.model_id))
    command = ["curl", "-sN", "--noproxy", "*", "-o", str(answer), "-w", "%{time_starttransfer} %{time_total}"]
    command += [server.base_url + PATHS[request.endpoint], "-H", "Content-Type: application/json", "-d", body]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    said, _ = await process.communicate()
    counted = re.findall(r'"predicted_n":(\d+)', answer.read_text(encoding="utf-8"))
    if process.returncode != 0 or not counted or int(counted[-1]) != request.max_tokens:
        raise SystemExit(f"curl ended with {process.returncode}, {counted[-1:]} tokens")
    first_s, end_s = map(float, said.split())
    return request.max_tokens / (end_s - first_s)


CLIENTS = {"kit": by_kit, "lab": by_lab, "curl": by_curl, "again": by_curl}


class Bench(Setting):
    """What is measured; the fields are the command line's."""

    engine: str
    model: str
    slots: tuple[int, ...]
    tokens: int
    rounds: int
    blocks: int
    bench: Path | None
    seconds: float

    def server(self, slots: int) -> lab.ServerSettings:
        cells = slots * padded(PROMPT_CELLS + self.tokens)
        return lab.ServerSettings(engine=self.engine, model=self.model, parallel=slots, ctx_size=cells)


async def one_block(bench: Bench, slots: int, block: int, folder: Path) -> tuple[list[dict[str, Found]], lab.Server]:
    """Return what each round found on one server, which has ended then."""
    log = folder / f"{slots}-{block}.log"
    rounds = []
    async with lab.open_server(bench.server(slots), log_path=log, lock_timeout_s=60, say=quiet) as server:
        run = lab.open_run("bench", lab.LateArrival(), outputs=str(folder / log.stem))
        try:
            await by_kit(server, plan(16, 1, slots), run)
            for number in range(bench.rounds):
                rounds.append(await one_round(server, run, bench.tokens, slots, block * bench.rounds + number))
        finally:
            run.close()
    return rounds, server


async def one_round(server: lab.Server, run: lab.Run, tokens: int, slots: int, number: int) -> dict[str, Found]:
    names = list(CLIENTS)
    first = number % len(names)
    found = {}
    for name in names[first:] + names[:first]:
        found[name] = await CLIENTS[name](server, plan(tokens, 1000 * number + 100, slots), run)
    said = ", ".join(f"{name} {found[name].tokens_per_s:.1f}" for name in names)
    print(f"{slots} slots, round {number + 1}: {said} tokens/s", flush=True)
    return found


async def ceiling(bench: Bench, server: lab.Server, prompt: int, slots: int, folder: Path) -> float:
    """Return the rate of llama-batched-bench in tokens/s; NaN where there is none."""
    tool = bench.bench or beside(server.argv[0])
    if tool is None:
        return float("nan")
    argv = bench_argv(
        tool, server.asked, model_path=str(server.model.path), prompt_tokens=prompt, output_tokens=bench.tokens,
        counts=[slots],
    )  # fmt: skip
    rows = await run_bench(argv, log_path=folder / "bench.log", say=quiet)
    print(f"{slots} slots, {tool.name}: {rows[0].tokens_per_s:.1f} tokens/s", flush=True)
    return rows[0].tokens_per_s


async def measure(bench: Bench) -> dict[str, Any]:
    started_s = time.monotonic()
    found: dict[int, list[dict[str, Any]]] = {slots: [] for slots in bench.slots}
    conditions: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for block in range(bench.blocks):
            turn = block % len(bench.slots)
            for slots in bench.slots[turn:] + bench.slots[:turn]:
                if conditions and time.monotonic() - started_s > bench.seconds:
                    print(f"{bench.seconds:g} s are over: block {block + 1}, {slots} slots left out", flush=True)
                    continue
                if not conditions:
                    prompt, conditions = await look(bench, folder)
                rounds, server = await one_block(bench, slots, block, folder)
                rate = await ceiling(bench, server, prompt, slots, folder)
                found[slots] += [one | {"bench": Found(rate, float("nan"), float("nan"))} for one in rounds]
    return {"conditions": conditions, "slots": {slots: reduced(rows, slots, bench) for slots, rows in found.items()}}


async def look(bench: Bench, folder: Path) -> tuple[int, dict[str, Any]]:
    """Return the prompt's length in tokens and the conditions that every number needs."""
    async with lab.open_server(bench.server(1), log_path=folder / "look.log", lock_timeout_s=60, say=quiet) as server:
        lengths = await prompt_tokens(server.address, plan(bench.tokens, 1, 1))
    from labkit.engine.toolchain import survey

    here = survey(folder)
    model = server.model
    return max(lengths.values()), {
        "build": server.build, "model": model.name, "quantisation": model.facts.quantisation, "sha256": model.sha256,
        "gpus": here.gpus, "cpus": here.cpus, "threads": server.asked["threads"],
        "prompt_tokens": max(lengths.values()), "tokens": bench.tokens,
    }  # fmt: skip


def reduced(rows: list[dict[str, Any]], slots: int, bench: Bench) -> dict[str, Any]:
    """Return medians and ratios with 95 % intervals, of all rounds at one slot count."""
    if not rows:
        return {"rounds": 0}
    rates = {name: [row[name].tokens_per_s for row in rows] for name in (*CLIENTS, "bench")}
    tokens = slots * bench.tokens
    return {
        "rounds": len(rows),
        "tokens_per_s": {
            name: round(float(np.median(values)), 1) for name, values in rates.items() if np.isfinite(values).all()
        },
        "ratios": {
            f"{above}/{below}": interval([a / b for a, b in zip(rates[above], rates[below], strict=True)])
            for above, below in RATIOS
            if np.isfinite(rates[below]).all()
        },
        "cpu_ms_per_1000_tokens": {
            name: round(float(np.median([row[name].cpu_s for row in rows])) * 1e6 / tokens, 1) for name in CLIENTS
        },
        "client_busy": {
            name: round(float(np.median([row[name].cpu_s / row[name].wall_s for row in rows])), 3)
            for name in ("kit", "lab")
        },
    }


def show(found: dict[str, Any]) -> None:
    for slots, row in found["slots"].items():
        for name, (median, low, high) in row.get("ratios", {}).items():
            print(f"{slots:>3} slots  {name:<10} {median:.3f} ({low:.3f} to {high:.3f})")
        for name, spent in row.get("cpu_ms_per_1000_tokens", {}).items():
            rate = row["tokens_per_s"][name]
            print(f"{slots:>3} slots  {name:<5} {rate:>8.1f} tokens/s, {spent:.0f} ms of CPU per 1,000 tokens")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="embedded")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--slots", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=4, help="on each server")
    parser.add_argument("--blocks", type=int, default=3, help="servers for each slot count")
    parser.add_argument("--bench", type=Path, help="a llama-batched-bench, for an engine that has none beside it")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no further server after this")
    found = asyncio.run(measure(Bench(**vars(parser.parse_args()))))
    show(found)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
