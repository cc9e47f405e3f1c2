"""Finds and reads the two sides of a comparison: run folders, or folders of several."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.errors import ParameterError
from labkit.measure.record import SAMPLES, Run, RunData, outputs_folder, read_run, recorded_folder
from labkit.settings import CompareRuns

OWN = "06_compare_runs"


@dataclass(frozen=True)
class Sides:
    """Recorded runs before and after a change, oldest first, and the folders that they are from."""

    before: tuple[RunData, ...]
    after: tuple[RunData, ...]
    before_folders: tuple[Path, ...]
    after_folders: tuple[Path, ...]

    def named(self, params: CompareRuns) -> CompareRuns:
        """Return the parameters with the folders that were found, so that the comparison can be repeated."""
        before, after = str(self.before_folders[0]), str(self.after_folders[0])
        return params.model_copy(update={"before": params.before or before, "after": params.after or after})


def read_sides(params: CompareRuns, *, run: Run | None = None) -> Sides:
    """Return the runs to compare; what isn't given is the newest that fits. A replay has those of its record.

    Args:
        params: the notebook's.
        run: the comparison's own run folder, which notes what was compared.

    Raises:
        ParameterError: a folder isn't there, is no run folder, or there are no two runs to compare.
    """
    if run and run.recorded:
        return recorded_sides(run.fields, params)
    before, after = _folders(params)
    sides = Sides(tuple(map(read_run, before)), tuple(map(read_run, after)), tuple(before), tuple(after))
    if run:
        for name, folders, runs in (("before", before, sides.before), ("after", after, sides.after)):
            servers = [arm["server"] for arm in runs[0].run.get("arms", {}).values() if arm.get("server")]
            run.note(
                name,
                folders=[str(folder.resolve()) for folder in folders],
                **({"server": servers[0]} if servers else {}),
            )
    return sides


def recorded_sides(fields: dict[str, Any], params: CompareRuns) -> Sides:
    """Return the runs that a recorded comparison compared.

    Args:
        fields: the comparison's run.json.
        params: `outputs` is where they are looked for too, if they lie elsewhere by now.

    Raises:
        ParameterError: one of them isn't there any more.
    """
    noted = [fields["arms"][name]["folders"] for name in ("before", "after")]
    before, after = ([_still_there(Path(folder), params) for folder in side] for side in noted)
    return Sides(tuple(map(read_run, before)), tuple(map(read_run, after)), tuple(before), tuple(after))


def _still_there(noted: Path, params: CompareRuns) -> Path:
    below = Path(noted.parent.name, noted.name)
    beside = [recorded_folder(params.replay).parents[1]] if params.replay else []
    places = [*beside, outputs_folder(params.outputs), outputs_folder("")]
    for folder in (noted.expanduser(), *(place / below for place in places)):
        if (folder / "run.json").is_file():
            return folder
    raise ParameterError(
        f"the run {noted} that was compared isn't here any more", hint=f"put it into {outputs_folder('') / below}"
    )


def _folders(params: CompareRuns) -> tuple[list[Path], list[Path]]:
    if params.before and params.after:
        return _runs_in(params.before), _runs_in(params.after)
    outputs = outputs_folder(params.outputs)
    if not params.before and not params.after:
        return _newest_two(outputs)
    given = _runs_in(params.before or params.after)
    notebook = given[0].parent.name
    others = [folder for folder in _finished(given[0].parent) if folder.resolve() not in {g.resolve() for g in given}]
    if not others:
        raise ParameterError(
            f"there is no other finished run beside {given[0]} to compare it with",
            hint=f"run {notebook} again, or give both before and after",
        )
    partners = others[-len(given) :]
    return (given, partners) if params.before else (partners, given)


def _newest_two(outputs: Path) -> tuple[list[Path], list[Path]]:
    """Return the two newest finished runs of one notebook, of the notebook that ran last."""
    notebooks = [folder for folder in outputs.glob("*") if folder.is_dir() and folder.name not in (OWN, SAMPLES)]
    found = [runs[-2:] for folder in notebooks if len(runs := _finished(folder)) >= 2]
    if not found:
        raise ParameterError(
            f"there are no two finished run folders of one notebook in {outputs}",
            hint="run a notebook twice, say 01_slot_escalation, or give both folders as before and after",
        )
    newest = max(found, key=lambda runs: runs[-1].name)
    return newest[:1], newest[1:]


def _finished(folder: Path) -> list[Path]:
    """Return the run folders in a notebook's folder that came to a verdict on requests, oldest first."""
    runs = []
    for path in sorted(folder.glob("*/run.json")):
        if not (path.parent / "requests.jsonl").is_file():
            continue
        try:
            recorded = read_run(path.parent)
        except ParameterError:
            continue
        # a replay measured nothing of its own
        if recorded.run.get("verdict", {}).get("status", "not_run") != "not_run" and "recorded" not in recorded.run:
            runs.append(path.parent)
    return runs  # a run's name starts with its time


def _runs_in(given: str) -> list[Path]:
    """Return a run folder, or the run folders in a folder, oldest first."""
    folder = Path(given).expanduser()
    if (folder / "run.json").is_file():
        return [folder]
    runs = sorted(path.parent for path in folder.glob("*/run.json")) if folder.is_dir() else []
    if not runs:
        raise ParameterError(
            f"{given} is not a run folder, and holds none",
            why="there is no run.json" if folder.is_dir() else "there is no such folder",
            hint="outputs/<notebook>/<run>",
        )
    return runs
