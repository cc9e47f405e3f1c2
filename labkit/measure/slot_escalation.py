"""The order in which notebook 01 measures: a step is a fresh server with so many slots and every load on it."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from labkit.engine.batched_bench import NAME, bench_argv, beside, run_bench
from labkit.engine.flags import from_argv, to_argv
from labkit.engine.server import Server
from labkit.errors import EngineError, PlanError, RecordError, ServerError
from labkit.measure.experiment import measure_arm
from labkit.measure.record import Run
from labkit.measure.slot_loads import Loads, Say, step_server
from labkit.measure.stream import RequestRecord
from labkit.settings import LoadPlan, SlotEscalation

_PORT = 8080  # llama-server's usual one, for the command line that a reader copies


@dataclass(frozen=True)
class _Part:
    """One load of a step: its arm's name, size and plan, and what kind of measurement it is."""

    name: str
    size: int
    plan: LoadPlan
    kind: str


async def measure_step(
    params: SlotEscalation,
    loads: Loads,
    slots: int | None,
    *,
    run: Run,
    repeat: int = 1,
    again: bool = False,
    say: Say = print,
) -> RequestRecord | None:
    """Start a fresh server with so many slots and put the loads on it, one after another.

    The first time a single request goes first: its answer is what this server gives when nobody else is
    there. A step whose server fails is noted as failed and ends there; the first step's failure is raised.

    Args:
        params: of the notebook.
        loads: of plan_loads().
        slots: of this step; for a server that isn't ours its own.
        run: where everything goes.
        repeat: number of the measurement, from 1.
        again: the A/A arm: the largest load alone, a second time in this repeat.
        say: gets progress lines.

    Returns:
        The single request's record with its text, the first time; the text is kept with keep_text alone.

    Raises:
        LabError: the first step failed, or it isn't the server's doing (a parameter, a full disk).
    """
    sizes = list(loads) if repeat == 1 else [size for size in loads if size > 1] or list(loads)
    if again:
        sizes = sizes[-1:]
    if repeat % 2 == 0:  # drifts of the machine must not always meet the same load
        sizes.reverse()
    kind = "again" if again else "step"
    tail = "-again" if again else ""
    parts = [_Part(f"slots{slots}-requests{size}-run{repeat}{tail}", size, loads[size], kind) for size in sizes]
    return await _measure(params, slots, parts, run, repeat, f"slots{slots}-run{repeat}{tail}", say)


async def measure_small_pool(
    params: SlotEscalation, loads: Loads, slots: int, *, run: Run, say: Say = print
) -> str | None:
    """Run the largest load with a client whose connection pool is too small for it: the wrong way.

    Args:
        params: client_pool is its size.
        loads: of plan_loads().
        slots: of the server.
        run: where everything goes.
        say: gets progress lines.

    Returns:
        The arm's name; None where the pool is not smaller than slots and requests, or the server isn't ours.
    """
    size = max(loads)
    if params.attached or params.client_pool >= min(size, slots):
        return None
    plan = loads[size].model_copy(update={"max_connections": params.client_pool})
    name = "small-client-pool"
    await _measure(params, slots, [_Part(name, size, plan, "wrong_way")], run, 1, name, say)
    return name


async def _measure(
    params: SlotEscalation, slots: int | None, parts: list[_Part], run: Run, repeat: int, log_name: str, say: Say
) -> RequestRecord | None:
    single = None
    try:
        async with step_server(params, slots, run, log_name, say) as server:
            for part in parts:
                step = {"slots": slots, "requests": part.size, "repeat": repeat, "kind": part.kind}
                run.note(part.name, step=step | {"command": plain_command(server)})
                records = await measure_arm(
                    server, part.plan, run=run, arm=part.name, title=_title(part, slots, repeat),
                    sampling=params.sampling(), keep_text=params.keep_text, show_text=part.size == 1, say=say,
                )  # fmt: skip
                if part.size == 1:
                    single = records[0]
                    run.note(part.name, answer_sha256=_digest(single.text))
    except RecordError:
        raise
    except (ServerError, EngineError, PlanError) as error:
        if slots == params.slots_list[0] or params.attached:
            raise
        failures = run.fields.get("step_failures", {})
        run.update(step_failures=failures | {str(slots): {"kind": type(error).__name__, "text": str(error)}})
        say(f"the step with {slots} slots failed: {error}")
    return single


def _digest(text: str | None) -> str | None:
    # tells whether two servers gave the same answer, without keeping it
    return hashlib.sha256(text.encode()).hexdigest() if text else None


def _title(part: _Part, slots: int | None, repeat: int) -> str:
    more = {"again": ", once more", "wrong_way": f", a client pool of {part.plan.max_connections}"}.get(part.kind, "")
    requests = f"{part.size} request{'s' * (part.size > 1)}"
    return (
        f"{slots or 'unknown'} slot{'' if slots == 1 else 's'}, {requests}{f', repeat {repeat}' * (repeat > 1)}{more}"
    )


def plain_command(server: Server) -> str:
    """Return the command line that starts such a server elsewhere; empty for one that isn't ours.

    What only this kit needs is left out: its log level, the run's alias and port.

    Args:
        server: running.
    """
    if server.attached:
        return ""
    words = shlex.split(server.llama_server_command)
    values, rest = from_argv(words[1:])
    for_a_reader = {"alias": "local", "port": _PORT, "verbosity": None, "ui": None, "extra_args": tuple(rest)}
    argv, _ = to_argv(values | for_a_reader, binary=words[0], known=frozenset(words))
    return shlex.join(argv)


def repeat_order(params: SlotEscalation, passed: Sequence[int]) -> list[tuple[int, int, bool]]:
    """Return what is measured after the first pass: (slots, repeat, again), steps interleaved.

    Every other pass runs backwards, so that a machine that warms up or slows down does not favour a step.
    Each pass has the smallest step twice: how much its two measurements differ is noise (A/A).

    Args:
        params: repeats.
        passed: slot counts of the steps that passed.
    """
    if params.attached or params.repeats == 1 or not passed:
        return []
    order = []
    for repeat in range(1, params.repeats + 1):
        steps = [(slots, repeat, False) for slots in passed] if repeat > 1 else []
        one_pass = [*steps, (passed[0], repeat, True)]
        order += one_pass if repeat % 2 else one_pass[::-1]
    return order


async def measure_ceiling(params: SlotEscalation, slots: Sequence[int], *, run: Run, say: Say = print) -> bool:
    """Run llama-batched-bench for the same build, model and batch, if it lies beside the server's binary.

    Args:
        params: of the notebook.
        slots: slot counts to measure it for.
        run: gets `ceiling`: its command and rows, or why there is none.
        say: gets progress lines.

    Returns:
        Whether there is a ceiling to draw.

    Raises:
        EngineBusyError: another lab decodes on this machine.
    """
    server = next((arm["server"] for arm in run.fields["arms"].values() if "server" in arm), None)
    tool = beside(server["argv"][0]) if server and server["argv"] else None
    if not slots or server is None or tool is None:
        run.update(ceiling={"rows": [], "missing": f"no {NAME} lies beside the server's binary"})
        return False
    needs = [need for load in run.fields["needs"]["loads"].values() for need in load.values()]
    prompt = max(need["input"] + need["history"] for need in needs)
    argv = bench_argv(
        tool, server["asked"], model_path=str(server["model"]["path"]), prompt_tokens=prompt,
        output_tokens=params.max_tokens, counts=slots,
    )  # fmt: skip
    try:
        rows = await run_bench(argv, log_path=run.folder / "batched-bench.log", say=say)
    except (ServerError, EngineError) as error:  # a ceiling is context: without it the run goes on
        run.update(ceiling={"argv": argv, "rows": [], "missing": str(error)})
        say(str(error))
        return False
    found = [asdict(row) | {"tokens_per_s": row.tokens_per_s} for row in rows]
    run.update(ceiling={"argv": argv, "rows": found, "missing": ""})
    return True
