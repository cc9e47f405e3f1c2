"""The run folder: append-only files that a crash can't take back, and one run.json replaced atomically."""

from __future__ import annotations

import json
import math
import re
import secrets
import shutil
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Any

from pydantic import BaseModel

import labkit
from labkit.errors import ParameterError, RecordError
from labkit.measure.provenance import provenance

SCHEMA_VERSION = 1
STREAMS = ("requests", "tokens", "slots", "metrics", "memory")
REDACTED = "[redacted]"
SAMPLES = "samples"  # folder in outputs/ with the recorded runs that come with the kit
# what a replay takes over from the run that was recorded
ROWS = (*(f"{stream}.jsonl" for stream in STREAMS), "server-*.log")
Listener = Callable[[str, dict[str, Any]], None]


def project_folder() -> Path:
    """Return the folder with notebooks/ in it; the working folder where labkit is installed without them."""
    project = Path(labkit.__file__).resolve().parents[1]
    return project if (project / "notebooks").is_dir() else Path.cwd()


def outputs_folder(given: str) -> Path:
    """Return where run folders go: `given`, relative to the working folder, else the project's outputs/.

    Args:
        given: a path, or "" for the default.
    """
    return Path(given).expanduser().resolve() if given else project_folder() / "outputs"


class Run:
    """An open run folder.

    Args:
        folder: the run's own folder, which is there.
        fields: what run.json starts with.
        clock: a monotonic clock in seconds; injected so that tests can script it.
    """

    def __init__(self, folder: Path, fields: dict[str, Any], clock: Callable[[], float] = time.perf_counter) -> None:
        self.folder = folder
        self.fields = fields
        self._start = clock()
        self._clock = clock
        self._files: dict[str, FileIO] = {}
        self._secrets: list[str] = []
        self._listeners: list[Listener] = []
        self.update()

    @property
    def recorded(self) -> bool:
        """Whether this run is a replay: an earlier run measured its rows, and nothing is measured now."""
        return "recorded" in self.fields

    def opening(self) -> str:
        """Return what a notebook prints first: where everything goes, and what runs it or what was recorded."""
        here = f"everything goes to {self.folder}\nkernel: {sys.executable}, labkit {labkit.__version__}"
        if not self.recorded:
            return here
        return f"{here}\n{recorded_text(self.fields['recorded'])}: no engine is started, nothing is measured"

    def clock(self) -> float:
        """Return the seconds since the run's start."""
        return self._clock() - self._start

    def log_path(self, arm: str) -> Path:
        """Return the file for the log of an arm's server."""
        return self.folder / f"server-{arm}.log"

    def hide(self, secret: str) -> None:
        """Never write this text, whoever hands it over."""
        self._secrets.append(secret)

    def append(self, stream: str, row: dict[str, Any]) -> None:
        """Write one line to `stream`.jsonl, at once.

        Raises:
            RecordError: the disk is full or the folder has gone.
        """
        row = self._hidden(row)
        line = _json(row) + "\n"
        try:
            file = self._files.get(stream)
            if file is None:
                # unbuffered: what was seen is with the system before the next line comes
                file = self._files[stream] = (self.folder / f"{stream}.jsonl").open("ab", buffering=0)
            file.write(line.encode())
        except OSError as error:
            raise self._unwritable(error) from None
        self._heard(stream, row)

    def listen(self, listener: Listener) -> None:
        """Hand every row that is written or told from now on to `listener` as well, secrets taken out.

        Args:
            listener: gets the stream's name ("arm" for what note() adds) and the row. One that fails is told
                nothing more: watching must not end a measurement.
        """
        self._listeners.append(listener)

    def tell(self, stream: str, row: dict[str, Any]) -> None:
        """Hand a row to the listeners, and write it nowhere: what is for the eye alone.

        Args:
            stream: "sent", a request that leaves, or "text", a piece of an answer.
            row: the row.
        """
        if self._listeners:
            self._heard(stream, self._hidden(row))

    def _heard(self, stream: str, row: dict[str, Any]) -> None:
        for listener in list(self._listeners):
            try:
                listener(stream, row)
            except Exception as error:
                self._listeners.remove(listener)
                warnings.warn(f"a watcher of this run failed and sees no more of it: {error!r}", stacklevel=3)

    def update(self, **fields: Any) -> None:
        """Set fields of run.json and replace the file in one step.

        Raises:
            RecordError: the disk is full or the folder has gone.
        """
        self.fields |= fields
        scratch = self.folder / "run.json.tmp"
        try:
            scratch.write_text(_json(self._hidden(self.fields), indent=1), encoding="utf-8")
            scratch.replace(self.folder / "run.json")
        except OSError as error:
            raise self._unwritable(error) from None

    def save(self, name: str, text: str) -> None:
        """Write a file of its own into the run folder.

        Raises:
            RecordError: the disk is full or the folder has gone.
        """
        try:
            (self.folder / name).write_text(self._hidden(text), encoding="utf-8")
        except OSError as error:
            raise self._unwritable(error) from None

    def note(self, arm: str, **facts: Any) -> None:
        """Add facts to one arm's part of run.json."""
        arms = self.fields["arms"]
        self.update(arms=arms | {arm: arms.get(arm, {}) | facts})
        self.tell("arm", {"arm": arm} | facts)

    def close(self) -> None:
        """Close the files; the run can still be read."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _hidden(self, value: Any) -> Any:
        """Return `value` with secrets taken out of every text in it, before JSON could escape them."""
        if not self._secrets:
            return value
        if isinstance(value, str):
            for secret in self._secrets:
                value = value.replace(secret, REDACTED)
            return value
        if isinstance(value, dict):
            return {key: self._hidden(item) for key, item in value.items()}
        return [self._hidden(item) for item in value] if isinstance(value, list | tuple) else value

    def _unwritable(self, error: OSError) -> RecordError:
        self.close()
        return RecordError(
            f"the run folder {self.folder} can't be written",
            why=str(error.strerror),
            hint="free disk space, or the parameter `outputs` = a folder elsewhere; what was seen until now is in it",
        )


def _json(value: Any, indent: int | None = None) -> str:
    try:
        return json.dumps(value, indent=indent, allow_nan=False)
    except ValueError:  # rare, and looking for it beforehand would cost more than the rest
        return json.dumps(finite(value), indent=indent)


def finite(value: Any) -> Any:
    """Return `value` with NaN and infinities as None: bare NaN is not JSON."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def open_run(
    notebook: str,
    parameters: BaseModel,
    *,
    outputs: str = "",
    replay: str = "",
    clock: Callable[[], float] = time.perf_counter,
) -> Run:
    """Make a run folder and write run.json with `verdict.status` = not_run.

    Args:
        notebook: the notebook's name without its ending.
        parameters: what it runs with; kept in the record.
        outputs: a folder; empty: the project's outputs/.
        replay: a recorded run of this notebook, whose rows and facts are taken over; empty: none.
        clock: a monotonic clock in seconds.

    Raises:
        ParameterError: the folder can't be made, or there is nothing to replay.
        RecordError: it can't be written.
    """
    if not re.fullmatch(r"\w[\w.-]*", notebook):
        raise ParameterError(f"{notebook!r} can't name a folder", hint="letters, digits, dots, dashes")
    source = recorded_folder(replay) if replay else None
    recorded = recorded_run(source, notebook) if source else {}
    started = datetime.now(UTC)
    run_id = f"{started:%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
    folder = outputs_folder(outputs) / notebook / run_id
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise ParameterError(
            f"the run folder {folder} can't be made",
            why=str(error.strerror),
            hint="`outputs` = a folder you can write",
        ) from None
    if source:
        _take_rows(source, folder)
    fields = {
        "schema_version": SCHEMA_VERSION,
        "notebook": notebook,
        "run_id": run_id,
        "started_at": started.isoformat(timespec="seconds"),
        "parameters": parameters.model_dump(),
        "verdict": {"status": "not_run", "checks": []},
        "arms": {},
    }
    # of a replay, what was recorded is kept but for what this folder says of itself
    kept = {name: value for name, value in recorded.items() if name == "arms" or name not in fields}
    return Run(folder, fields | (kept if recorded else {"provenance": provenance()}), clock)


# --- recorded runs --------------------------------------------------------------------------------------


def recorded_folder(given: str | Path) -> Path:
    """Return the folder of a recorded run: as it stands, else below the project, wherever the notebook runs.

    Args:
        given: a path.

    Raises:
        ParameterError: there is no run there.
    """
    path = Path(given).expanduser()
    for folder in (path, project_folder() / path):
        if (folder / "run.json").is_file():
            return folder.resolve()
    raise ParameterError(
        f"there is no recorded run in {given}",
        why="no run.json",
        hint="outputs/samples/<one>, outputs/<notebook>/<run>",
    )


def recorded_run(folder: Path, notebook: str) -> dict[str, Any]:
    """Return a recorded run's run.json for a replay, with `recorded`, which says what it was.

    Args:
        folder: of the run.
        notebook: that wants to replay it.

    Raises:
        ParameterError: it is no run of this notebook, or came to no verdict.
    """
    run = read_run_json(folder)
    if run["notebook"] != notebook:
        raise ParameterError(
            f"{folder} is a run of {run['notebook']}", why=f"this is {notebook}", hint="the notebook that recorded it"
        )
    if run["verdict"]["status"] == "not_run":
        raise ParameterError(f"{folder} can't be replayed", why="this run came to no verdict", hint="a finished run")
    of_itself = {name: run[name] for name in ("run_id", "started_at")} | {"verdict": run["verdict"]["status"]}
    return {"recorded": of_itself} | run  # a replay's own replay says what was measured, and when


def recorded_text(recorded: dict[str, Any]) -> str:
    """Say which run is replayed.

    Args:
        recorded: as run.json has it.
    """
    return f"recorded run {recorded['run_id']}, measured {recorded['started_at']}, {recorded['verdict']} then"


def _take_rows(source: Path, folder: Path) -> None:
    for path in (path for pattern in ROWS for path in source.glob(pattern)):
        shutil.copyfile(path, folder / path.name)


@dataclass(frozen=True)
class RunData:
    """A recorded run as plain rows; what charts and verdicts are made from."""

    run: dict[str, Any]
    requests: list[dict[str, Any]] = field(default_factory=list)
    tokens: list[dict[str, Any]] = field(default_factory=list)
    slots: list[dict[str, Any]] = field(default_factory=list)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    memory: list[dict[str, Any]] = field(default_factory=list)


def read_run(folder: Path | str) -> RunData:
    """Read a run folder, also one whose run crashed: a half-written last line is left out.

    Raises:
        ParameterError: there is no run.json, or a schema that this version can't read.
    """
    path, run = Path(folder), read_run_json(folder)
    return RunData(run, **{stream: _read_lines(path / f"{stream}.jsonl") for stream in STREAMS})


def read_run_json(folder: Path | str) -> dict[str, Any]:
    """Read what a run folder says of its run, without the rows of its streams, which may be a hundred thousand.

    Raises:
        ParameterError: there is no run.json, or a schema that this version can't read.
    """
    path = Path(folder)
    try:
        run = json.loads((path / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ParameterError(
            f"{path} is not a run folder", why=type(error).__name__, hint="outputs/<notebook>/<run>"
        ) from None
    schema = run.get("schema_version") if isinstance(run, dict) else None
    if schema != SCHEMA_VERSION:
        raise ParameterError(f"{path} has schema {schema}", why=f"this kit reads {SCHEMA_VERSION}")
    return dict(run)


def _read_lines(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break  # the writer was killed in the middle of its last line
    return rows
