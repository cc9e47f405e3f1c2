"""The two parts of a panel that draw in the page: bundled JavaScript, nothing is loaded from a network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anywidget
import traitlets

_HERE = Path(__file__).parent


class Stage(anywidget.AnyWidget):
    """Slot lanes, KV cells and answers that move while a run goes on.

    Args:
        on_heard: gets what a page says: {"hello": true} when it has nothing to show yet, {"here": seconds} for
            how long it promises to be there.
    """

    _esm = _HERE / "stage.js"
    _css = _HERE / "stage.css"

    def __init__(self, *, on_heard: Callable[[dict[str, Any]], None]) -> None:
        super().__init__()
        self._on_heard = on_heard
        self.on_msg(self._heard)

    def show(self, frame: dict[str, Any], *, running: bool) -> None:
        """Send one frame to every page.

        Args:
            frame: of Live.frame() or Live.everything().
            running: time moves on after it.
        """
        self.send(frame | {"kind": "frame", "running": running})

    def _heard(self, _widget: Any, message: Any, _buffers: Any) -> None:
        if isinstance(message, dict):
            self._on_heard(message)


class CommandLine(anywidget.AnyWidget):
    """A command with a button that copies it."""

    _esm = _HERE / "command.js"
    command = traitlets.Unicode("").tag(sync=True)
    copies = traitlets.Int(0).tag(sync=True)
