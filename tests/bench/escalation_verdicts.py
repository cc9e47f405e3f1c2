"""Are notebook 01's counts the same in every run? Peak busy and deferred, load by load, over several runs.

python -m tests.bench.escalation_verdicts [--engine embedded] [--model toy] [--runs 10] [--max-tokens 700]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from pathlib import Path

import labkit as lab
from labkit.analyze.slot_escalation.view import LoadView
from tests.live.escalation import run_slot_escalation, verdict_of

STEPS, LOADS = (1, 2, 4), (1, 2, 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="embedded")
    parser.add_argument("--model", default="toy")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--max-tokens", type=int, default=700)
    options = parser.parse_args()
    begun = time.monotonic()
    seen: dict[tuple[int, int], Counter[tuple[int | None, int | None]]] = {}
    statuses: Counter[str] = Counter()
    for number in range(options.runs):
        with tempfile.TemporaryDirectory() as folder:
            run = run_slot_escalation(
                Path(folder), engine=options.engine, model=options.model, max_tokens=options.max_tokens,
                slots_list=STEPS, requests_list=LOADS,
            )  # fmt: skip
            data, verdict = lab.read_run(run.folder), verdict_of(run)
            statuses[verdict.status] += 1
            for view in [LoadView(data, arm) for arm in data.run["arms"]]:
                deferred = None if view.peak_deferred is None else int(view.peak_deferred)
                at = (view.slots, view.step.requests)
                seen.setdefault(at, Counter())[(view.peak_busy, deferred)] += 1
        print(f"{time.monotonic() - begun:5.0f} s  run {number + 1}: {verdict.status}", flush=True)
        if verdict.status != "supported":
            print(json.dumps([c.why for c in verdict.checks if c.status not in ("supported", "not_tested")], indent=1))
    _print(seen, statuses)


def _print(seen: dict[tuple[int, int], Counter[tuple[int | None, int | None]]], statuses: Counter[str]) -> None:
    print("\nslots | requests | expected busy, deferred | seen busy, deferred (runs)")
    for (slots, requests), counts in sorted(seen.items()):
        expected = (min(slots, requests), max(0, requests - slots))
        found = "; ".join(f"{busy}, {deferred} ({n})" for (busy, deferred), n in counts.most_common())
        print(f"{slots:>5} | {requests:>8} | {expected[0]:>13}, {expected[1]:<9} | {found}")
    print(f"verdicts: {dict(statuses)}")
    off = sum(
        n
        for (slots, requests), counts in seen.items()
        for (busy, deferred), n in counts.items()
        if (busy, deferred) != (min(slots, requests), max(0, requests - slots))
    )
    print(json.dumps({"verdicts": dict(statuses), "loads": sum(sum(c.values()) for c in seen.values()), "off": off}))


if __name__ == "__main__":
    main()
