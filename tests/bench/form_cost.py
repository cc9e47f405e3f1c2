"""What the notebook form costs: a papermill run's wall time less its servers' start-up and its loads.

python -m tests.bench.form_cost [--runs 3]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.conftest import PROJECT


def measured_s(record: dict[str, Any], requests: list[dict[str, Any]]) -> float:
    """Return the seconds that servers took to start and requests (warm-up included) to be answered."""
    total = 0.0
    for name, arm in record["arms"].items():
        mine = [row for row in requests if row["arm"] == name and row["planned_s"] is not None]
        total += arm["server"]["startup_s"]
        total += max(row["end_s"] for row in mine) - min(row["planned_s"] for row in mine)
    return total


def one_run() -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "papermill", "notebooks/03_late_arrival.ipynb", f"{folder}/out.ipynb"]
        started = time.monotonic()
        subprocess.run([*command, "-p", "outputs", folder], cwd=PROJECT, check=True, capture_output=True)
        wall_s = time.monotonic() - started
        (path,) = Path(folder).rglob("run.json")
        requests = [json.loads(line) for line in (path.parent / "requests.jsonl").read_text().splitlines()]
        used_s = measured_s(json.loads(path.read_text()), requests)
        size_bytes = Path(folder, "out.ipynb").stat().st_size
    return {"wall_s": wall_s, "measured_s": used_s, "form_s": wall_s - used_s, "size_bytes": size_bytes}


def import_s() -> float:
    """Return the time of `import labkit`, less that of starting Python."""

    def best(code: str) -> float:
        times = []
        for _ in range(7):
            started = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True)
            times.append(time.perf_counter() - started)
        return min(times)

    return best("import labkit") - best("pass")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    runs = [one_run() for _ in range(parser.parse_args().runs)]
    for run in runs:
        print("  ".join(f"{name} {value:.1f}" for name, value in run.items()))
    result = {name: statistics.median(run[name] for run in runs) for name in runs[0]} | {"import_s": import_s()}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
