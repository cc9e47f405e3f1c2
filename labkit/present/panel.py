"""The door to a notebook's panel: shown to a person, left out where nobody sits in front of the notebook."""

from __future__ import annotations

from typing import Any

from IPython import get_ipython
from IPython.display import display

from labkit.settings import Setting
from labkit.settings.values import Shown

_PLAIN = "The panel needs the kernel it was made in: run this cell again in JupyterLab."


def panel(notebook: str, params: Setting) -> Any:
    """Display the notebook's panel and return it; without a person in front of the notebook display nothing.

    Args:
        notebook: its name without ending.
        params: what the knobs start with; `interactive` decides, and None means: where somebody is there.
    """
    if not wanted(params):
        return None
    from labkit.present.controls.panel import Panel

    made = Panel(notebook, params)
    # the text is what an executed copy shows where there is no kernel behind it any more
    display({**made.widget._repr_mimebundle_(), "text/plain": _PLAIN}, raw=True)
    return None


def wanted(params: Setting) -> bool:
    """Whether a panel should be shown.

    A front-end with a person in front of it lets the kernel ask for input; papermill and nbclient don't
    (`allow_stdin` in Jupyter's messaging protocol).

    Args:
        params: of the notebook.
    """
    chosen = params.interactive if isinstance(params, Shown) else None
    if isinstance(params, Shown) and params.replay:
        return False  # a panel runs engines
    if chosen is not None:
        return chosen
    kernel = getattr(get_ipython(), "kernel", None)
    request = kernel.get_parent("shell") if kernel else {}
    return bool(request.get("content", {}).get("allow_stdin"))
