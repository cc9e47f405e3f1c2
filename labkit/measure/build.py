"""What notebook 00 records of an engine: how it came about, what it says of itself, what it does unasked."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from labkit.engine import build, git
from labkit.engine.binary import probe
from labkit.engine.embedded import NAME as EMBEDDED
from labkit.engine.embedded import embedded_launch, is_embedded
from labkit.engine.flags import ESSENTIAL_FIELDS, FIXED, OPTIONS, Option, start_values
from labkit.engine.http import http_client, look
from labkit.engine.server import Server
from labkit.engine.toolchain import Toolchain, survey
from labkit.measure.record import Run
from labkit.settings import Build, LoadPlan, RequestPlan, ServerSettings

PROMPT = "What is a lighthouse for?"


def look_at_machine(params: Build, run: Run) -> Toolchain:
    """Look what this machine has to build with, and record it.

    Args:
        params: of the notebook.
        run: where it is recorded.
    """
    tools = survey(Path(params.destination or build.builds_folder()).expanduser())
    run.update(toolchain=tools.describe())
    return tools


def prepare_engine(params: Build, run: Run, tools: Toolchain, *, say: Callable[[str], None] = print) -> str:
    """Find the engine, or build it, and record where it is from; return what open_server() takes for it.

    Where a build is asked for and there is no compiler, the wheel is looked at in its place, and the record
    says so.

    Args:
        params: of the notebook.
        run: where it is recorded.
        tools: of look_at_machine().
        say: gets progress lines.

    Raises:
        EngineError: there is no such engine, or it can't be built.
        EngineBusyError: a lab is running.
    """
    engine = params.engine
    if engine == build.NAME and tools.lacking:
        run.update(build_lacking=tools.lacking)
        say(f"nothing can be built here (no {', no '.join(tools.lacking)}): looking at the wheel in its place")
        engine = EMBEDDED
    elif engine == build.NAME:
        record = build.build_server(params, say=say, tools=tools)
        run.update(build=record | {"name_by_surroundings": git.name_by_surroundings(Path(record["source"]["folder"]))})
        engine = str(record["binary"])
    run.update(engine=_identity(engine), later_notebooks=_later())
    return engine


def _identity(engine: str) -> dict[str, Any]:
    """Return what an engine says of itself before it serves."""
    if is_embedded(engine):
        values = start_values(ServerSettings(), model_path="", alias="", port=1)
        return {"kind": "embedded"} | embedded_launch(engine, values, []).build
    binary = probe(engine)
    record = build.read_record(binary.path)
    return {
        "kind": "binary",
        "path": str(binary.path),
        "number": binary.number,
        "commit": binary.commit,
        "flags": _flags(binary.flags),
        "recorded_backend": record["backend"] if record else None,
    }


def _flags(known: frozenset[str]) -> list[dict[str, Any]]:
    """Return every flag that the kit may pass, and the spelling of it that the binary knows."""
    values = start_values(ServerSettings(threads=1), model_path="m", alias="a", port=1)
    passed = [(option, side) for option in OPTIONS for side in _sides(option)]
    return [
        {
            "flag": side[0],
            "known_as": next((flag for flag in side if flag in known), None),
            "essential": option.field in ESSENTIAL_FIELDS,
            "always": values.get(option.field) is not None,
        }
        for option, side in passed
    ]


def _sides(option: Option) -> list[tuple[str, ...]]:
    """Return the spellings of what is passed: yes, no, or, where an experiment and its control differ in it, both."""
    off_alone = FIXED.get(option.field) is False
    sides = [] if off_alone else [option.on]
    return sides + ([option.off] if off_alone or (option.off and option.field in ESSENTIAL_FIELDS) else [])


def _later() -> dict[str, Any]:
    """Return what the other notebooks take: the wheel, and, told to, the newest build."""
    builds = build.finished_builds()
    return {"default": EMBEDDED, "build": str(builds[0][0]) if builds else None}


def smoke_plan(params: Build, server: Server) -> LoadPlan:
    """Return one request: does the engine answer at all?

    Args:
        params: of the notebook.
        server: its model decides how it is asked.
    """
    endpoint: Literal["chat", "completion"] = "chat" if server.model.facts.has_chat_template else "completion"
    seed = secrets.randbelow(2**31 - 2) + 1
    request = RequestPlan(label="A", prompt=PROMPT, max_tokens=params.smoke_tokens, seed=seed, endpoint=endpoint)
    return LoadPlan(requests=(request,), start_timeout_s=params.load_timeout_s)


async def note_defaults(server: Server, run: Run) -> None:
    """Record what an engine that was told nothing offers.

    Args:
        server: of start_bare().
        run: where it is recorded.
    """
    async with http_client(server.address, timeout_s=10.0) as client:
        endpoints = {path: (await look(client, path)).status for path in ("/slots", "/metrics")}
    run.note("defaults", server=server.describe(), endpoints=endpoints)
