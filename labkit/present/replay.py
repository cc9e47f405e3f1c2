"""Executes a notebook on a recorded run: its tables, pictures and verdict, with no engine and no model."""

from __future__ import annotations

from pathlib import Path

from labkit.errors import ParameterError
from labkit.measure.record import project_folder, read_run_json
from labkit.present.execute import quiet_kernels
from labkit.present.judges import judge_of
from labkit.present.unpack import opened


def replay(recorded: Path | str, out: Path | str) -> Path:
    """Execute the recorded run's notebook on it, through papermill; return the executed notebook.

    Its own run folder, with what was recorded and the pictures' specifications, goes into the folder of `out`.

    Args:
        recorded: a run folder, or a pack.
        out: the executed notebook, ending in .ipynb.

    Raises:
        ParameterError: there is no such run, or it can't be replayed.
        AlteredError: the pack is not what was packed.
        PapermillExecutionError: a cell failed; the notebook is saved by then.
    """
    import papermill

    out = Path(out).expanduser().resolve()
    with opened(recorded) as folder:
        notebook = str(read_run_json(folder).get("notebook"))
        judge_of(notebook)  # what names a file must be one of ours
        source = project_folder() / "notebooks" / f"{notebook}.ipynb"
        if not source.is_file():
            raise ParameterError(f"there is no {source}", hint="run it from the kit's own folder")
        out.parent.mkdir(parents=True, exist_ok=True)
        parameters = {"replay": str(folder), "outputs": str(out.parent)}
        papermill.execute_notebook(
            source, out, parameters, progress_bar=False, cwd=str(source.parent), kernel_manager_class=quiet_kernels()
        )
    return out
