"""Does the verdict follow the truth? Runs of 03 whose truth is known, and the confusion table.

python -m tests.bench.soundness [--engine embedded] [--model smollm2-135m] [--runs 20] [--a-tokens 128] [--attached]

With --attached the runs go to the URL of one server that runs all the time, its slots used before, and
two more rows have a second client on it: then only a verdict against the truth is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import labkit as lab
from tests.live.lab import attached_arrival, quiet, run_late_arrival

VERDICTS = ("supported", "refuted", "inconclusive")
# row: batching really on, A long enough, another client, verdicts that are right
ROWS: dict[str, tuple[bool, bool, bool, set[str]]] = {
    "on": (True, True, False, {"supported"}),
    "off, used slots": (False, True, False, {"refuted"}),
    "A over first": (True, False, False, {"inconclusive"}),
    "on, two clients": (True, True, True, {"supported", "inconclusive"}),
    "off, two clients": (False, True, True, {"refuted", "inconclusive"}),
}


def parameters(row: str, b_tokens: int, options: argparse.Namespace) -> dict[str, Any]:
    on, long, _, _ = ROWS[row]
    common = {"model": options.model, "b_tokens": b_tokens, "poll_hz": 20.0, "a_tokens": options.a_tokens}
    common["control"] = on and long
    return common if long else common | {"a_tokens": 8, "trigger_tokens": 8}


def started(row: str, draws: Iterator[int], options: argparse.Namespace) -> Iterator[tuple[lab.Run, lab.Verdict]]:
    """Each run on servers of its own."""
    for b_tokens in draws:
        with tempfile.TemporaryDirectory() as folder:
            values = parameters(row, b_tokens, options)
            yield run_late_arrival(Path(folder), engine=options.engine, really_on=ROWS[row][0], **values)


def attached(row: str, draws: Iterator[int], options: argparse.Namespace) -> Iterator[tuple[lab.Run, lab.Verdict]]:
    """All runs on one server that was there before."""
    on, _, foreign, _ = ROWS[row]
    settings = lab.ServerSettings(engine=options.engine, model=options.model, cont_batching=on, parallel=3)

    async def one(server: lab.Server, b_tokens: int, folder: str) -> tuple[lab.Run, lab.Verdict]:
        values = parameters(row, b_tokens, options) | {"parallel": 3}
        return await attached_arrival(server, Path(folder), foreign=foreign, **values)

    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:
        opened = lab.open_server(settings, log_path=Path(folder) / "server.log", lock_timeout_s=60, say=quiet)
        server = runner.run(opened.__aenter__())
        try:
            runner.run(one(server, 16, folder))  # uses the slots
            for b_tokens in draws:
                yield runner.run(one(server, b_tokens, folder))
        finally:
            runner.run(opened.__aexit__(None, None, None))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="embedded")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--a-tokens", type=int, default=128)
    parser.add_argument("--attached", action="store_true")
    options = parser.parse_args()
    draw, begun = random.Random(3), time.monotonic()
    table: dict[str, Counter[str]] = {row: Counter() for row in ROWS if options.attached or not ROWS[row][2]}
    wrong = fooled = looked = 0
    for row, counts in table.items():
        number = options.runs if ROWS[row][1] else (options.runs + 1) // 2
        draws = iter([draw.randint(4, 32) for _ in range(number)])
        for run, verdict in (attached if options.attached else started)(row, draws, options):
            counts[verdict.status] += 1
            if row.startswith("off") and (naive := lab.naive_criteria(lab.read_run(run.folder), "treatment")):
                looked, fooled = looked + 1, fooled + (naive.other_progress > 0)
            print(f"{time.monotonic() - begun:5.0f} s  {row}: {verdict.status}", flush=True)
            if verdict.status not in ROWS[row][3]:
                wrong += 1
                print(json.dumps(verdict.to_dict(), indent=1))
    print(f"\n{'truth':>17} | " + " | ".join(f"{status:>12}" for status in VERDICTS))
    for row, counts in table.items():
        print(f"{row:>17} | " + " | ".join(f"{counts[status]:>12}" for status in VERDICTS))
    print(f"wrong: {wrong}; the article's criterion was fooled in {fooled} of {looked} runs without batching")
    found = {row: dict(counts) for row, counts in table.items()}
    print(json.dumps(found | {"wrong": wrong, "naive_fooled": fooled, "naive_runs": looked}))


if __name__ == "__main__":
    main()
