"""The table of bad servers and engines, and the sentence or verdict that each gets.

python -m tests.bench.bad_servers          (a few minutes; starts real servers and ends them badly)
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import labkit as lab
from labkit.engine import attach
from labkit.engine.binary import probe
from labkit.errors import LabError
from tests.fake.bad_engines import BAD_ENGINES
from tests.fake.bad_servers import BAD_SERVERS, BadServer
from tests.live.lab import quiet, run_late_arrival
from tests.live.shim import make_shim

Row = tuple[str, str]


def sentence(what: Callable[[], Any]) -> str:
    """Return the one sentence of what goes wrong."""
    try:
        return str(what())
    except LabError as error:
        return f"{type(error).__name__}: {error}"


def engines(folder: Path) -> Iterator[Row]:
    for bad in BAD_ENGINES:
        place = folder / bad.name.replace(" ", "_")
        place.mkdir()
        yield f"engine: {bad.name}", sentence(lambda b=bad, p=place: probe(str(b.make(p))))  # type: ignore[misc]


async def visit(bad: BadServer) -> str:
    said: list[str] = []
    async with bad.open() as url, lab.attach_server(url, load_timeout_s=1.0, say=said.append):
        return "attached; " + "; ".join(said)


def urls() -> Iterator[Row]:
    attach.LOOK_LIMIT_S = 0.6
    for bad in BAD_SERVERS:
        yield f"URL: {bad.name}", sentence(lambda b=bad: asyncio.run(visit(b)))  # type: ignore[misc]


def struck(folder: Path, how: int, tokens: int, *, wakes_after_s: float = 0.0, **parameters: Any) -> str:
    """Run 03 and strike its server when A has got so many tokens."""

    def watch(server: lab.Server) -> None:
        stream, pid = server.process.command.log_path.parent / "tokens.jsonl", server.process.pid or 0
        while not (stream.is_file() and stream.read_text().count('"label": "A"') >= tokens):
            time.sleep(0.002)
        os.kill(pid, how)
        if wakes_after_s:
            time.sleep(wakes_after_s)
            os.kill(pid, signal.SIGCONT)

    def after_start(server: lab.Server) -> None:
        threading.Thread(target=watch, args=(server,), daemon=True).start()

    _, verdict = run_late_arrival(folder, after_start=after_start, control=False, **parameters)
    return f"{verdict.status}: {verdict.checks[0].why}"


def dying(folder: Path) -> Iterator[Row]:
    last = 1490  # of A's 1500
    yield "dies at A's first token", sentence(lambda: struck(folder, signal.SIGKILL, 1))
    yield "dies in the middle", sentence(lambda: struck(folder, signal.SIGKILL, 300))
    yield "dies at A's last tokens", sentence(lambda: struck(folder, signal.SIGKILL, last))
    yield "SIGSTOP for 20 s, then goes on", sentence(lambda: struck(folder, signal.SIGSTOP, 300, wakes_after_s=20.0))
    yield "SIGSTOP for ever", sentence(lambda: struck(folder, signal.SIGSTOP, 300, stall_timeout_s=4.0))


async def opened(folder: Path, **settings: Any) -> str:
    server_settings = lab.ServerSettings(**{"model": "toy"} | settings)
    async with lab.open_server(server_settings, log_path=folder / "s.log", lock_timeout_s=1, say=quiet):
        return "started"


async def twice(folder: Path, **second: Any) -> str:
    server_settings = lab.ServerSettings(model="toy")
    async with lab.open_server(server_settings, log_path=folder / "1.log", lock_timeout_s=60, say=quiet) as server:
        port = int(server.base_url.rsplit(":", 1)[1])
        return await opened(folder, **{name: port if value == "taken" else value for name, value in second.items()})


def starting(folder: Path) -> Iterator[Row]:
    def start(**settings: Any) -> str:
        return sentence(lambda: asyncio.run(opened(folder, **settings)))

    crash = folder / "crash"
    crash.mkdir()
    shim = make_shim(crash)
    shim.write_text(shim.read_text().replace("main()", "main() if len(sys.argv) < 3 else os.abort()"))
    yield "dies at load", start(engine=str(shim))
    other = folder / "other"
    other.mkdir()
    yield "another slot count than asked", start(engine=str(make_shim(other, SHIM_SLOTS="4")), parallel=1)
    (folder / "cut.gguf").write_bytes(lab.resolve_model("toy").path.read_bytes()[:200_000])  # type: ignore[union-attr]
    yield "a model cut short", start(model=str(folder / "cut.gguf"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield "a port that somebody has", start(port=taken.getsockname()[1])
    yield "two kits on one port", sentence(lambda: asyncio.run(twice(folder, port="taken")))
    yield "two kits on one machine", sentence(lambda: asyncio.run(twice(folder)))


def main() -> None:
    number = 0
    print("| # | server or engine | sentence or verdict |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as name, suppress(BrokenPipeError):
        folder = Path(name)
        for part in (engines(folder), urls(), starting(folder), dying(folder)):
            for what, found in part:
                number += 1
                text = " ".join(found.replace(name, "…").replace("|", "\\|").split())
                print(f"| {number} | {what} | {text[:420]} |", flush=True)


if __name__ == "__main__":
    main()
