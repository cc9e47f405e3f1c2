"""The labkit command: each subcommand is a few lines over a function of the library.

Exit codes: 0 supported (or done), 1 refuted, 2 wrong arguments, 3 this environment can't, 4 inconclusive,
5 the server or a notebook crashed, 130 interrupted.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import click

import labkit
from labkit.errors import LabError
from labkit.present.outcome import INTERRUPTED, Outcome
from labkit.present.progress import Progress

_PARAMETERS = click.option("-p", "pairs", nargs=2, multiple=True, metavar="NAME VALUE", help="A parameter.")
_QUIET = click.option("--quiet", is_flag=True, help="No progress lines.")


class _Kit(click.Group):
    """A group whose commands end with the error's own exit code, and one sentence."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except LabError as error:
            click.echo(f"{type(error).__name__}: {error}", err=True)
            raise click.exceptions.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None


@click.group(cls=_Kit, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(labkit.__version__, prog_name="labkit")
def main() -> None:
    """Run the llama-server batching lab's notebooks, and make evidence of them that one can attach."""


@main.command()
@click.argument("engine", default="embedded")
@click.option("--model", default="toy", show_default=True, help="What to load; of a router, which model.")
def doctor(engine: str, model: str) -> None:
    """Say what this machine can run and what is missing, then start ENGINE (or look at a URL) and ask it."""
    from labkit.present.machine import machine_findings

    for name, found in machine_findings():
        click.echo(f"{name:{_WIDTH}}  {found}")
    labkit.doctor(engine, model=model)


_WIDTH = 45  # of doctor's longest name
_CRASHED = 5


@main.command()
@click.argument("notebook")
@_PARAMETERS
@click.option("-f", "files", multiple=True, type=click.Path(path_type=Path), help="A YAML file of parameters.")
@click.option("-y", "texts", multiple=True, help="Parameters as YAML.")
@_QUIET
def run(notebook: str, pairs: Any, files: tuple[Path, ...], texts: tuple[str, ...], quiet: bool) -> None:
    """Run NOTEBOOK (a path, a name, or its number) and print its verdict; the last line is JSON."""
    from labkit.present.execute import find_notebook, parse_parameters, read_parameters

    given: dict[str, Any] = {}
    for text in texts:
        given |= parse_parameters(text, "-y")
    for file in files:
        given |= read_parameters(file)
    _run(find_notebook(notebook), given | _typed(pairs), quiet)


@main.command()
@click.argument("before")
@click.argument("after")
@_PARAMETERS
@_QUIET
def compare(before: str, after: str, pairs: Any, quiet: bool) -> None:
    """Compare two runs, or two folders of several: keep the change, or go back? (notebook 06)"""
    from labkit.present.execute import find_notebook
    from labkit.present.report import side_of

    sides = {"before": side_of(before), "after": side_of(after)}
    _run(find_notebook("06_compare_runs"), sides | _typed(pairs), quiet)


def _run(notebook: Path, parameters: dict[str, Any], quiet: bool) -> None:
    from labkit.present.execute import execute
    from labkit.present.report import with_evidence

    outcome = execute(notebook, parameters, progress=Progress(notebook.stem, quiet=quiet))
    _conclude(with_evidence(outcome))


def _conclude(outcome: Outcome) -> None:
    for line in outcome.lines():
        click.echo(line)
    click.echo(outcome.json_line())
    raise click.exceptions.Exit(outcome.exit_code)


@main.command()
@click.argument("notebooks", nargs=-1)
@click.option("--full", is_flag=True, help="The full parameters, which take minutes each.")
@click.option("--to", "folder", type=click.Path(path_type=Path), help="A folder; otherwise outputs/<date>.")
@_PARAMETERS
@_QUIET
def report(notebooks: tuple[str, ...], full: bool, folder: Path | None, pairs: Any, quiet: bool) -> None:
    """Run every notebook (or NOTEBOOKS) with its quick parameters, and make one page of all verdicts."""
    from labkit.present import execute, report

    chosen = [execute.find_notebook(name) for name in notebooks] or execute.notebooks()
    target = report.given_folder(folder) if folder else report.dated_folder()
    rows = report.report(
        chosen, target, size="full" if full else "quick", changes=_typed(pairs),
        progress=lambda title: Progress(title, quiet=quiet),
    )  # fmt: skip
    for row in rows:
        click.echo(f"{row.outcome.status.replace('_', ' '):13} {row.name}  {report.reason(row.outcome)}")
    click.echo(target / "index.html")
    raise click.exceptions.Exit(report.exit_code(rows))


@main.command()
@click.argument("name", metavar="RUN")
@click.option("-o", "target", type=click.Path(path_type=Path), help="The zip; otherwise in outputs/.")
@click.option("--with-text", is_flag=True, help="Keep prompts and answers.")
def pack(name: str, target: Path | None, with_text: bool) -> None:
    """Make one redacted zip of RUN (a run folder, its name, or an executed notebook) for a ticket."""
    from labkit.present import pack

    notebook = Path(name).expanduser() if name.endswith(".ipynb") else None
    made, skipped = pack.pack(pack.find_run(name), target, notebook=notebook, with_text=with_text)
    for left in skipped:
        click.echo(f"left out: {left}", err=True)
    click.echo(made)


@main.command()
@click.argument("name", metavar="RUN_OR_PACK", type=click.Path(exists=True, path_type=Path))
def verify(name: Path) -> None:
    """Recompute every number and verdict of RUN_OR_PACK from its raw lines, and compare."""
    found = import_module("labkit.present.verify").verify_run(name)
    for line in found.lines:
        click.echo(line)
    raise click.exceptions.Exit(0 if found.ok else 1)


@main.command()
@click.argument("name", metavar="RUN", type=click.Path(exists=True, path_type=Path))
@click.option("-o", "target", type=click.Path(path_type=Path), help="The executed notebook.")
def replay(name: Path, target: Path | None) -> None:
    """Show a recorded RUN in its notebook, without an engine."""
    from papermill.exceptions import PapermillExecutionError

    target = target or Path.cwd() / f"{name.resolve().stem}.replay.ipynb"
    try:
        click.echo(import_module("labkit.present.replay").replay(name, target))
    except PapermillExecutionError as error:
        click.echo(f"{error.ename}: {error.evalue}\n{target}", err=True)
        raise click.exceptions.Exit(_CRASHED) from None


@main.command()
@click.option("--to", "folder", required=True, type=click.Path(path_type=Path), help="A folder, on a stick say.")
@_QUIET
def fetch(folder: Path, quiet: bool) -> None:
    """Fetch model and wheels for a room without a network."""
    from labkit.present.clean import size_text
    from labkit.present.stick import fetch_to

    progress = Progress("fetch", quiet=quiet)
    stick = fetch_to(folder.expanduser().resolve(), progress.say)
    progress.done()
    click.echo(f"{stick.wheels} wheels, {size_text(stick.size_bytes)}; what to do with them: {stick.folder}/README.txt")


@main.command()
@click.argument("names", nargs=-1)
def clean(names: tuple[str, ...]) -> None:
    """List what outputs/ and the cache hold; with NAMES, remove these and nothing else."""
    from labkit.present.clean import age_text, holdings, remove, size_text

    items = remove(list(names)) if names else holdings()
    for item in items:
        click.echo(f"{size_text(item.size_bytes):>8}  {age_text(item.age_s):>11}  {item.name}")
    total = size_text(sum(item.size_bytes for item in items))
    click.echo(f"{total:>8}  {'removed' if names else 'in all':>11}")


def _typed(pairs: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    """Return NAME VALUE pairs typed as papermill types them."""
    return {name: _value(text) for name, text in pairs}


def _value(text: str) -> Any:
    words = {"True": True, "False": False, "None": None}
    if text in words:
        return words[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
