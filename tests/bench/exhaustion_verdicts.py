"""Does 05's verdict follow the truth? Ten runs of each kind whose truth is known, on the toy model.

python -m tests.bench.exhaustion_verdicts [--engine embedded] [--runs 10]

Rows: the computed plan (all fail), the plan with the cells of the pool doubled in secret (nobody can fail),
and the three given sets of answers on four slots and 256 cells.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from tests.live.exhaustion import run_exhaustion

FOUR = {"parallel": 4, "ctx_size": 256}
# row: parameters, cells of a secretly larger pool, victims by the lengths, verdicts that are right
ROWS: dict[str, tuple[dict[str, Any], int | None, set[str]]] = {
    "computed, exhausted": ({}, None, {"supported"}),
    "computed, pool secretly larger": ({}, 1024, {"inconclusive"}),
    "answers 70 70 70 70": (FOUR | {"answers": [70, 70, 70, 70]}, None, {"supported"}),
    "answers 80 40 80 80": (FOUR | {"answers": [80, 40, 80, 80]}, None, {"supported"}),
    "answers 90 90 40 90": (FOUR | {"answers": [90, 90, 40, 90]}, None, {"supported"}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="embedded")
    parser.add_argument("--runs", type=int, default=10)
    options = parser.parse_args()
    found: dict[str, Any] = {}
    for row, (parameters, secret, right) in ROWS.items():
        verdicts: Counter[str] = Counter()
        victims: Counter[str] = Counter()
        for _ in range(options.runs):
            with tempfile.TemporaryDirectory() as folder:
                values = {"engine": options.engine, "remedies": False} | parameters
                data, verdict = run_exhaustion(Path(folder), secret_ctx_size=secret, **values)
            pool = next(check for check in verdict.checks if check.name == "pool")
            verdicts[pool.status] += 1
            ended = [moment["victims"] for moment in pool.numbers["moments"]]
            victims["+".join(label for moment in ended for label in moment) or "nobody"] += 1
            if pool.status not in right:
                print(json.dumps(verdict.to_dict(), indent=1))
        wrong = sum(count for status, count in verdicts.items() if status not in right)
        found[row] = {"verdicts": dict(verdicts), "victims": dict(victims), "wrong": wrong}
        print(f"{row:>31} | {dict(verdicts)} | victims {dict(victims)} | wrong {wrong}", flush=True)
    print(json.dumps(found | {"build": data.run["arms"]["together"]["server"]["build"]["number"]}))


if __name__ == "__main__":
    main()
