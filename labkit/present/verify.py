"""Recomputes what a record says from its raw lines, and says in plain words what differs.

Whether the raw lines themselves are what a server sent can't be told: who rewrites all of them consistently, and
the manifest too, is not found out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import labkit as lab
from labkit.analyze.agreement import disagreements
from labkit.analyze.verdict import Check, Verdict
from labkit.errors import AlteredError, LabError
from labkit.measure.kv_exhaustion import count_log_lines
from labkit.measure.kv_modes import count_reprocessed
from labkit.measure.record import STREAMS, RunData, finite, read_run
from labkit.present.judges import judge_of
from labkit.present.shown import notebook_findings, painted, same_text
from labkit.present.unpack import MANIFEST, opened, packed_sides

# one machine's arithmetic may differ from another's in the last digits
RELATIVE = 1e-6
_MOST = 20


@dataclass(frozen=True)
class Verification:
    """What came out of verifying a run or a pack.

    Args:
        checked: what was recomputed or compared, a sentence each.
        differences: what differs, a sentence each.
    """

    checked: tuple[str, ...]
    differences: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing differs."""
        return not self.differences

    def and_side(self, name: str, side: Verification) -> Verification:
        """Return this with what came out for one of the runs that were compared.

        Args:
            name: of its pack.
            side: what came out.
        """
        differences = tuple(f"{name}: {text}" for text in side.differences)
        return Verification((*self.checked, f"{name}:", *side.checked), (*self.differences, *differences))

    @property
    def lines(self) -> list[str]:
        """All of it, for a person."""
        more = len(self.differences) - _MOST
        rest = [f"DIFFERS: and {more} more"] if more > 0 else []
        return [*self.checked, *(f"DIFFERS: {text}" for text in self.differences[:_MOST]), *rest]


def verify_run(path: Path | str) -> Verification:
    """Recompute every number and verdict of a run from its raw lines, and compare.

    Args:
        path: a run folder, or a pack.

    Raises:
        ParameterError: there is neither.
    """
    try:
        with opened(path) as folder:
            found = _verified(folder)
            for inner, side in packed_sides(folder):
                found = found.and_side(inner.name, _verified(side))
            return found
    except AlteredError as error:
        return Verification((f"{error.what}: refused",), tuple(error.why.split("; ")))


def _verified(folder: Path) -> Verification:
    data = read_run(folder)
    checked = [_about(folder, data), _rows_text(data)]
    if (data.run.get("verdict") or {}).get("status") == "not_run":  # it broke off, perhaps in the middle of a line
        checked.append("it came to no verdict, and says so: nothing was judged")
        return Verification(tuple(checked), tuple(painted(folder)))
    differences = [*_broken_lines(folder), *_or_why(lambda: disagreements(data), "the rows can't be compared")]
    found, why = _judged(data, folder)
    if found is None:
        return Verification(tuple(checked), (*differences, why))
    checked += [f"verdict recomputed: {found.status}", *(f"  {check.name}: {check.status}" for check in found.checks)]
    differences += _or_why(lambda: verdict_differences(data.run["verdict"], found), "its verdict can't be compared")
    seen, more = notebook_findings(folder, found)
    noted = _or_why(lambda: noted_differences(data, folder), "what was noted can't be recomputed")
    return Verification((*checked, *seen), (*differences, *more, *noted))


def _about(folder: Path, data: RunData) -> str:
    files = [path for path in folder.iterdir() if path.name != MANIFEST]
    packed = (folder / MANIFEST).is_file()
    held = f"{len(files)} files are what their {MANIFEST} says" if packed else f"a run folder, without a {MANIFEST}"
    return f"run {data.run.get('run_id')} of {data.run.get('notebook')}: {held}"


def _rows_text(data: RunData) -> str:
    counts = [f"{len(getattr(data, stream)):,} of {stream}" for stream in STREAMS if getattr(data, stream)]
    return "rows: " + (", ".join(counts) or "none of its own")


def _or_why(compute: Any, otherwise: str) -> list[str]:
    """Return what is computed; a record that was tampered with may break it anywhere, and that is an answer too."""
    try:
        return list(compute())
    except Exception as error:
        return [f"{otherwise}: {type(error).__name__}: {error}"]


def _judged(data: RunData, folder: Path) -> tuple[Verdict | None, str]:
    try:
        judge = judge_of(str(data.run.get("notebook")))
        # runs that were compared are looked for beside the record first
        return judge.judge(data, judge.model(**data.run["parameters"] | {"replay": str(folder)})), ""
    except LabError as error:
        return None, f"the verdict can't be recomputed: {error}"
    except Exception as error:  # the rows may say anything
        return None, f"the verdict can't be recomputed: {type(error).__name__}: {error}"


def _broken_lines(folder: Path) -> Iterator[str]:
    """Yield lines that are no rows: read_run() stops at one, as behind a crash."""
    for stream in STREAMS:
        path = folder / f"{stream}.jsonl"
        lines = path.read_bytes().splitlines() if path.is_file() else []
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if not isinstance(row, dict):
                yield f"line {number} of {path.name} is no row: nothing after it was read"
                break


# --- the verdict --------------------------------------------------------------------------------------


def verdict_differences(said: dict[str, Any], found: Verdict) -> list[str]:
    """Return how the verdict in run.json differs from the one recomputed.

    Args:
        said: `verdict` of run.json.
        found: recomputed from the rows.
    """
    differences = []
    if said.get("status") != found.status:
        differences.append(f"run.json says {said.get('status')}, its rows say {found.status}")
    checks = {check.get("name"): check for check in said.get("checks", [])}
    names = [check.name for check in found.checks]
    differences += [f"check {name} is not in run.json" for name in names if name not in checks]
    differences += [f"check {name} of run.json is none that its rows give" for name in checks if name not in names]
    if len(checks) != len(said.get("checks", [])):
        differences.append("a check is in run.json twice")
    return differences + [text for c in found.checks if c.name in checks for text in _of_check(checks[c.name], c)]


def _of_check(said: dict[str, Any], check: Check) -> Iterator[str]:
    found = json.loads(json.dumps(finite(vars(check))))  # as run.json would keep it
    for field in sorted(set(said) | set(found)):
        yield from _unlike(f"{check.name}.{field}", said.get(field), found.get(field))


def _unlike(where: str, said: Any, found: Any) -> Iterator[str]:
    """Yield each place in which two JSON values differ."""
    if isinstance(said, dict) and isinstance(found, dict):
        for name in sorted(set(said) | set(found)):
            yield from _unlike(f"{where}.{name}", said.get(name), found.get(name))
    elif isinstance(said, list) and isinstance(found, list) and len(said) == len(found):
        for number, pair in enumerate(zip(said, found, strict=True)):
            yield from _unlike(f"{where}[{number}]", *pair)
    elif not _alike(said, found):
        yield f"{where}: run.json has {said!r}, its rows give {found!r}"


def _alike(said: Any, found: Any) -> bool:
    if isinstance(said, str) and isinstance(found, str):
        return same_text(said, found)
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (said, found))
    return bool(abs(said - found) <= RELATIVE * max(abs(said), abs(found)) if numbers else said == found)


# --- what was noted beside it ---------------------------------------------------------------------------


def noted_differences(data: RunData, folder: Path) -> list[str]:
    """Return how facts in run.json that were counted differ from the rows and logs that they were counted from.

    Args:
        data: the run.
        folder: with its logs.
    """
    differences = [*_log_differences(data, folder)]
    if "recommendation" in data.run:
        found = json.loads(json.dumps(finite(lab.recommend_slots(lab.RunFrames(data)).to_dict())))
        differences += _unlike("recommendation", data.run["recommendation"], found)
    return differences


def _log_differences(data: RunData, folder: Path) -> Iterator[str]:
    """Several arms may share a log, and what it says between two arms belongs to none: it may say more, never less."""
    noted = [arm["log_lines"] for arm in data.run["arms"].values() if arm.get("log_lines")]
    logs = [count_log_lines(path) or {} for path in folder.glob("server-*.log")]
    for arm, facts in data.run["arms"].items():
        counted = count_reprocessed(folder / f"server-{arm}.log")
        if facts.get("reprocessed_prompts") is not None and counted not in (None, facts["reprocessed_prompts"]):
            yield f"{arm}.reprocessed_prompts: run.json has {facts['reprocessed_prompts']}, the log has {counted}"
    for name in {name for lines in noted for name in lines} if logs else ():
        said, found = (sum(lines.get(name, 0) for lines in side) for side in (noted, logs))
        if said > found or (found and not said):
            yield f"log_lines.{name}: run.json counted {said}, the logs have {found}"
