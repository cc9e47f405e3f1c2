"""Does the verdict follow the truth? Runs of 03 whose truth is known, and the confusion table.

python -m tests.bench.soundness [--model smollm2-135m] [--runs 20] [--a-tokens 128]
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import labkit as lab
from tests.live.lab import run_late_arrival

TRUTHS = ("supported", "refuted", "inconclusive")


def scenario(truth: str, b_tokens: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return the parameters of a run whose verdict must be `truth`."""
    common = {"model": options.model, "b_tokens": b_tokens, "poll_hz": 20.0, "a_tokens": options.a_tokens}
    if truth == "supported":
        return common
    if truth == "refuted":  # the warm-up has used every slot, so stale counters are there to fool it
        return common | {"really_on": False, "control": False}
    return common | {"a_tokens": 8, "trigger_tokens": 8, "control": False}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--a-tokens", type=int, default=128)
    options = parser.parse_args()
    draw = random.Random(3)
    table: dict[str, Counter[str]] = {truth: Counter() for truth in TRUTHS}
    naive = Counter[str]()
    started = time.monotonic()
    for truth in TRUTHS:
        for number in range(options.runs if truth != "inconclusive" else options.runs // 2):
            with tempfile.TemporaryDirectory() as folder:
                run, verdict = run_late_arrival(Path(folder), **scenario(truth, draw.randint(4, 32), options))
                found = lab.naive_criteria(lab.read_run(run.folder), "treatment") if truth == "refuted" else None
            table[truth][verdict.status] += 1
            if found is not None:
                naive["fooled"] += found.other_progress > 0
                naive["runs"] += 1
            print(f"{time.monotonic() - started:5.0f} s  {truth} {number + 1}: {verdict.status}", flush=True)
            if verdict.status != truth:
                print(json.dumps(verdict.to_dict(), indent=1))
    print(f"\n{'truth':>14} | " + " | ".join(f"{status:>12}" for status in TRUTHS))
    for truth in TRUTHS:
        print(f"{truth:>14} | " + " | ".join(f"{table[truth][status]:>12}" for status in TRUTHS))
    print(f"the article's criterion was fooled in {naive['fooled']} of {naive['runs']} runs without batching")
    print(json.dumps({truth: dict(counts) for truth, counts in table.items()} | {"naive": dict(naive)}))


if __name__ == "__main__":
    main()
