"""What each kind of engine makes of the settings: a command, and how keys reach it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Launch:
    """How one server is executed.

    Args:
        argv: the command, an argument each; holds no secret.
        command_line: the same as a llama-server command.
        build: package, number and number_source, as far as known before it runs.
        env: variables for it on top of the scrubbed environment; may hold the key.
        stdin: a line for its stdin; may hold the key.
        notes: what the user should know: flags left out, for one.
    """

    argv: list[str]
    command_line: list[str]
    build: dict[str, Any]
    env: dict[str, str] = field(default_factory=dict, repr=False)
    stdin: str = field(default="", repr=False)
    notes: list[str] = field(default_factory=list)
