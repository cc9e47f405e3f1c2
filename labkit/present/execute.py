"""Runs a notebook as papermill does, keeps what was seen whatever happens, and says what came of it."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

from labkit.errors import ParameterError
from labkit.measure.record import outputs_folder, project_folder
from labkit.present.outcome import Outcome
from labkit.present.progress import Progress

_FOLDER = re.compile(r"^everything goes to (.+)$", re.MULTILINE)


def notebooks() -> list[Path]:
    """Return the kit's notebooks in their order."""
    return sorted((project_folder() / "notebooks").glob("[0-9][0-9]_*.ipynb"))


def find_notebook(name: str) -> Path:
    """Return the notebook that a person means.

    Args:
        name: a path, a name with or without its ending, or the beginning of one: "03".

    Raises:
        ParameterError: there is none, or several.
    """
    if (path := Path(name).expanduser()).is_file():
        return path.resolve()
    found = [path for path in notebooks() if path.stem == Path(name).name.removesuffix(".ipynb")]
    found = found or [path for path in notebooks() if path.stem.startswith(name)]
    if len(found) != 1:
        names = ", ".join(path.stem for path in found or notebooks())
        raise ParameterError(f"{name} names {'several notebooks' if found else 'no notebook'}", hint=f"one of {names}")
    return found[0]


def quick_parameters(notebook: Path, size: str = "quick") -> dict[str, Any]:
    """Return what params/ has for a notebook: "quick" or "full"; where there is no such file, nothing."""
    path = project_folder() / "params" / f"{notebook.stem}.{size}.yaml"
    return read_parameters(path) if path.is_file() else {}


def read_parameters(path: Path) -> dict[str, Any]:
    """Return the parameters in a YAML file.

    Raises:
        ParameterError: it can't be read, or isn't names with values.
    """
    try:
        return parse_parameters(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise ParameterError(f"{path} can't be read", why=str(error.strerror)) from None


def parse_parameters(text: str, whence: str) -> dict[str, Any]:
    """Return the parameters in a YAML text.

    Raises:
        ParameterError: it isn't names with values.
    """
    import yaml

    with suppress(yaml.YAMLError):
        values = yaml.safe_load(text) or {}
        if isinstance(values, dict):
            return {str(name): value for name, value in values.items()}
    raise ParameterError(f"{whence} does not hold names with values", hint="parallel: 2")


def execute(
    notebook: Path,
    parameters: dict[str, Any],
    *,
    progress: Progress,
    copy: Path | None = None,
) -> Outcome:
    """Run a notebook; its executed copy is saved as it goes, also when it fails or is interrupted.

    Args:
        notebook: the source.
        parameters: by name.
        progress: gets what the notebook prints.
        copy: where the executed copy goes; None: into its run folder, or outputs/ where it came to none.

    Raises:
        ParameterError: the copy can't be written.
    """
    started = time.monotonic()
    target = copy or _scratch_copy(notebook, str(parameters.get("outputs") or ""))
    error = _run(notebook, target, parameters, progress)
    progress.done()
    folder = folder_of(target)
    if folder and not copy:
        target = target.replace(folder / f"{notebook.stem}.ipynb")
    return Outcome(target, folder, _run_json(folder), error, time.monotonic() - started)


def _scratch_copy(notebook: Path, outputs: str) -> Path:
    folder = outputs_folder(outputs)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ParameterError(f"the folder {folder} can't be made", why=str(error.strerror)) from None
    return folder / f"{notebook.stem}.{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{os.getpid()}.ipynb"


def _run(notebook: Path, target: Path, parameters: dict[str, Any], progress: Progress) -> tuple[str, str]:
    """Run it and return name and sentence of the error that ended it."""
    import papermill
    from nbclient.exceptions import DeadKernelError
    from papermill.exceptions import PapermillExecutionError

    # labkit refuses an unknown name itself, and says which was meant
    logging.getLogger("papermill").setLevel(logging.ERROR)
    logging.getLogger("traitlets").setLevel(logging.CRITICAL)
    total = _cells_in(notebook)
    with _interruptible() as (kernels, signals):

        def cell_starts(cell_index: int, **_: Any) -> None:
            if signals:  # it came between two cells, where no kernel heeds it
                raise KeyboardInterrupt
            progress.count(cell_index + 1, total)

        try:
            papermill.execute_notebook(
                notebook, target, parameters, progress_bar=False, stdout_file=progress, on_cell_start=cell_starts,
                kernel_manager_class=kernels, **_kernel(notebook),
            )  # fmt: skip
        except PapermillExecutionError as error:
            return (error.ename, _plain(error.evalue)) if not signals else _interrupted()
        except KeyboardInterrupt:
            return _interrupted()
        except DeadKernelError:
            return ("DeadKernelError", "the notebook's kernel ended") if not signals else _interrupted()
    return "", ""


def _cells_in(notebook: Path) -> int:
    try:
        return len(json.loads(notebook.read_text(encoding="utf-8"))["cells"])
    except (OSError, ValueError, KeyError, TypeError):
        raise ParameterError(f"{notebook} is not a notebook", hint="a .ipynb file of version 4") from None


def _kernel(notebook: Path) -> dict[str, str]:
    """Return kernel and language for a notebook that names none: papermill would refuse it."""
    named = json.loads(notebook.read_text(encoding="utf-8")).get("metadata", {}).get("kernelspec", {}).get("name")
    return {} if named else {"kernel_name": "python3", "language": "python"}


def _interrupted() -> tuple[str, str]:
    return "KeyboardInterrupt", "interrupted; what was seen until then is kept"


def quiet_kernels() -> type:
    """Return a manager of kernels that don't warn, on each start, that their loopback sockets are plain text."""
    from jupyter_client.manager import AsyncKernelManager

    class Quiet(AsyncKernelManager):  # type: ignore[misc]
        def format_kernel_cmd(self, extra_arguments: list[str] | None = None) -> list[str]:
            quiet = ["--log-level=ERROR"] if self.kernel_name == "python3" else []
            return list(super().format_kernel_cmd([*(extra_arguments or []), *quiet]))

    return Quiet


@contextmanager
def _interruptible() -> Iterator[tuple[type, list[int]]]:
    """Hand Ctrl-C on to the kernel, so that its cell ends as it does in JupyterLab; a second one ends the kernel."""
    made: list[Any] = []
    signals: list[int] = []

    class Kernels(quiet_kernels()):  # type: ignore[misc]
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            made.append(self)

    def heard(number: int, _frame: FrameType | None) -> None:
        signals.append(number)
        pid = getattr(made[-1].provisioner, "pid", None) if made else None
        if len(signals) > 1 or not pid:
            raise KeyboardInterrupt
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGINT)

    before = {number: signal.signal(number, heard) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield Kernels, signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def folder_of(notebook: Path) -> Path | None:
    """Return the run folder that an executed notebook names; None where it came to none, or it has gone."""
    try:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    except (OSError, ValueError, KeyError):
        return None
    for output in (output for cell in cells for output in cell.get("outputs", [])):
        if found := _FOLDER.search("".join(output.get("text", ""))):
            return folder if (folder := Path(found[1])).is_dir() else None
    return None


def _run_json(folder: Path | None) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        return json.loads((folder / "run.json").read_text(encoding="utf-8")) if folder else {}
    return {}
