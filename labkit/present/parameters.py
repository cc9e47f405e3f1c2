"""From a notebook's parameters cells to one checked value.

papermill only warns about a name that the notebook doesn't have, and runs with the default. Here a typo
is an error. Names come from the source of the parameters cells in the kernel's history, values from the
namespace: so running the cells again in a used kernel works, and other variables don't matter.
"""

from __future__ import annotations

import ast
import difflib
import re
from typing import Any, TypeVar

from labkit.errors import ParameterError
from labkit.measure.record import read_run_json, recorded_folder
from labkit.present.judges import judge_of
from labkit.settings import Setting
from labkit.settings.values import Shown, free_in_replay

Model = TypeVar("Model", bound=Setting)

# the tagged cell starts with this comment; papermill's injected cell starts with "# Parameters"
_TAGGED = re.compile(r"\s*# parameters\b")
_INJECTED = re.compile(r"\s*# Parameters\b")
_SECRET = re.compile(r"key|token$|secret|password", re.IGNORECASE)


def parameters(model: type[Model], namespace: dict[str, Any]) -> Model:
    """Return the notebook's parameters, checked; those of the recorded run where one is replayed.

    Args:
        model: what the notebook takes.
        namespace: `globals()` in a notebook; elsewhere a plain dict of the parameters themselves.

    Raises:
        ParameterError: a name or a value can't be used, there is no parameters cell, or there is nothing to replay.
    """
    history = namespace.get("In")
    if not isinstance(history, list):
        values, given = dict(namespace), set(namespace)
    else:
        cells = parameter_cells(history)
        values = {name: namespace[name] for name in assigned_names(cells) if name in namespace}
        given = set(assigned_names(cells[1:]))
    chosen = _checked(model, values)
    if not isinstance(chosen, Shown) or not chosen.replay:
        return chosen
    # in JupyterLab the tagged cell itself is edited: what isn't a default there was chosen too
    given |= {name for name, field in model.model_fields.items() if values.get(name) is not None
              and getattr(chosen, name) != field.default}  # fmt: skip
    return _recorded(chosen, given)


def _recorded(chosen: Model, given: set[str]) -> Model:
    """Return the recorded run's parameters with what may be chosen beside `replay`; refuse the rest by name."""
    run = read_run_json(recorded_folder(chosen.replay))  # type: ignore[attr-defined]
    if judge_of(run["notebook"]).model is not type(chosen):
        raise ParameterError(
            f"{chosen.replay} is a run of {run['notebook']}, and not of this notebook"  # type: ignore[attr-defined]
        )
    recorded = type(chosen)(**{name: value for name, value in run["parameters"].items() if not _here(name)})
    changed = [n for n in sorted(given) if not free_in_replay(n) and getattr(chosen, n) != getattr(recorded, n)]
    if changed:
        words = [f"{name} = {getattr(recorded, name)!r}" for name in changed]
        raise ParameterError(
            f"{', '.join(changed)} can't be changed in a replay",
            why=f"the recorded run had {', '.join(words)}, and nothing is measured again",
            hint="leave it out, or leave out `replay` to measure",
        )
    mine = {name for name in type(chosen).model_fields if _here(name) or (free_in_replay(name) and name in given)}
    return recorded.model_copy(update={name: getattr(chosen, name) for name in mine})


def _here(name: str) -> bool:
    """Whether a parameter belongs to the replay itself, and not to what was recorded."""
    return free_in_replay(name) and not name.startswith("predicted_")


def parameter_cells(history: list[str]) -> list[str]:
    """Return the source of the latest tagged cell and of the injected ones run after it.

    Args:
        history: sources of all cells run in this kernel, in order.

    Raises:
        ParameterError: no tagged cell was run.
    """
    tagged = [number for number, source in enumerate(history) if _TAGGED.match(source)]
    if not tagged:
        raise ParameterError(
            "no parameters cell was run in this kernel",
            hint="run the notebook from its top; the cell starts with `# parameters`",
        )
    return [history[tagged[-1]], *(source for source in history[tagged[-1] :] if _INJECTED.match(source))]


def assigned_names(sources: list[str]) -> list[str]:
    """Return the names that these cells assign, in order.

    Raises:
        ParameterError: a cell does more than `name = value`, where a typo could hide.
    """
    names: dict[str, None] = {}
    for node in (node for source in sources for node in ast.parse(source).body):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if len(targets) != 1 or not isinstance(targets[0], ast.Name):
            raise ParameterError(
                f"line {node.lineno} of a parameters cell is not `name = value`",
                why=ast.unparse(node)[:80],
                hint="one name a line",
            )
        names[targets[0].id] = None
    return list(names)


def _checked(model: type[Model], values: dict[str, Any]) -> Model:
    unknown = [name for name in values if name not in model.model_fields]
    if unknown:
        raise ParameterError("; ".join(_unknown(name, model) for name in unknown))
    return model(**values)


def _unknown(name: str, model: type[Setting]) -> str:
    if _SECRET.search(name):
        return (
            f"{name} is not a parameter, and papermill has already written its value into the notebook:"
            " make a new key, and pass it in the environment variable LABKIT_API_KEY"
        )
    near = difflib.get_close_matches(name, model.model_fields, n=1)
    return f"{name} is not a parameter of this notebook" + (f", did you mean {near[0]}?" if near else "")
