"""llama-batched-bench, llama.cpp's own measure of batched decoding: the ceiling of a build, model and batch.

It decodes without HTTP, slots or sampling (tools/batched-bench/batched-bench.cpp), so a server of the same
build can come near its figures and not pass them but by noise.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.engine.flags import to_argv
from labkit.engine.key import scrubbed_environment
from labkit.engine.process import Command, ServerProcess
from labkit.errors import ServerError
from labkit.settings.context import padded

NAME = "llama-batched-bench"
LIMIT_S = 180.0
_LOOK_EVERY_S, _SAY_EVERY_S = 0.2, 5.0
# settings that both programs take, by the one table of flags
_SHARED = (
    "kv_unified", "batch_size", "ubatch_size", "threads", "cache_type_k", "cache_type_v", "flash_attn", "gpu_layers",
)  # fmt: skip
_TABLE_ROW = re.compile(r"^\|(?:\s*[\d.]+\s*\|){10}\s*$")


@dataclass(frozen=True)
class BenchRow:
    """One line of its output.

    Args:
        sequences: decoded together (B in its table, pl in its JSON).
        prompt_tokens: of each sequence; output_tokens: of each.
        prefill_s: time for all prompts; decode_s: for all outputs.
    """

    sequences: int
    prompt_tokens: int
    output_tokens: int
    prefill_s: float
    decode_s: float

    @property
    def tokens_per_s(self) -> float:
        """Output tokens of all sequences over the whole time, prompts included: what a load of requests gets."""
        return self.sequences * self.output_tokens / (self.prefill_s + self.decode_s)


def beside(binary: str) -> Path | None:
    """Return the llama-batched-bench that lies beside a server's binary, None if there is none.

    Args:
        binary: what was executed.
    """
    path = Path(binary).parent / NAME
    return path if Path(binary).name.startswith("llama-server") and path.is_file() else None


def bench_argv(
    tool: Path, asked: dict[str, Any], *, model_path: str, prompt_tokens: int, output_tokens: int, counts: Sequence[int]
) -> list[str]:
    """Return its command line for the settings of a server.

    Args:
        tool: the program.
        asked: the server's settings by name.
        model_path: the GGUF file.
        prompt_tokens: of each sequence; output_tokens: of each.
        counts: numbers of sequences to try.
    """
    values = {name: asked[name] for name in _SHARED if name in asked}
    values |= {"model_path": model_path, "ctx_size": max(counts) * padded(prompt_tokens + output_tokens)}
    argv, _ = to_argv(values, binary=str(tool))
    sizes = ["-npp", str(prompt_tokens), "-ntg", str(output_tokens), "-npl", ",".join(map(str, counts))]
    return [*argv, *sizes, "--output-format", "jsonl"]


def parse_bench(text: str) -> list[BenchRow]:
    """Return the rows in its output, JSON lines or the table; what else it prints is passed over.

    Args:
        text: what it printed.
    """
    rows = [_row(line.strip()) for line in text.splitlines()]
    return [row for row in rows if row]


def _row(line: str) -> BenchRow | None:
    try:
        if line.startswith("{"):
            said = json.loads(line)
            row = BenchRow(*(said[name] for name in ("pl", "pp", "tg", "t_pp", "t_tg")))
        elif _TABLE_ROW.match(line):
            cells = [float(cell) for cell in line.strip("|").split("|")]
            row = BenchRow(int(cells[2]), int(cells[0]), int(cells[1]), cells[4], cells[6])
        else:
            return None
        return row if row.sequences > 0 and row.prefill_s + row.decode_s > 0 else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


async def run_bench(
    argv: list[str], *, log_path: Path, limit_s: float = LIMIT_S, say: Callable[[str], None] = print
) -> list[BenchRow]:
    """Run it to its end, as the one decoding program of this machine, and return its rows.

    Args:
        argv: of bench_argv().
        log_path: file for what it prints.
        limit_s: then it is ended.
        say: gets progress lines.

    Raises:
        ServerError: it failed, took too long, or printed no row.
        EngineError: it can't be executed.
        EngineBusyError: another lab decodes on this machine.
    """
    say(f"{NAME}: measuring the ceiling of this build and model")
    # supervised like a server: it doesn't outlive the kernel
    process = ServerProcess(Command(argv, scrubbed_environment(), "", log_path))
    try:
        await _until_ended(process, limit_s, say)
    finally:
        process.stop()
    ended, rows = process.exit_text, parse_bench(log_path.read_text(encoding="utf-8", errors="replace"))
    if not rows or "exit code 0" not in ended:
        why = f"it {ended}; its last words: {process.log_tail(1)[:200] or 'none'}"
        raise ServerError(f"{NAME} gave no ceiling", why=why, hint=str(log_path))
    return rows


async def _until_ended(process: ServerProcess, limit_s: float, say: Callable[[str], None]) -> None:
    started_s = said_s = time.monotonic()
    while process.alive:
        now_s = time.monotonic()
        if now_s - started_s > limit_s:
            raise ServerError(f"{NAME} took more than {limit_s:.0f} s", hint="a smaller max_tokens or slots_list")
        if now_s - said_s > _SAY_EVERY_S:
            said_s = now_s
            say(f"{NAME}: {now_s - started_s:.0f} s")
        await asyncio.sleep(_LOOK_EVERY_S)
