"""What came of a notebook's run, for a person, a pipeline and an exit code."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit import errors

INCONCLUSIVE, INTERRUPTED = 4, 130
_BY_VERDICT = {"supported": 0, "refuted": 1, "inconclusive": INCONCLUSIVE}
_CRASHED = 5
# which of several is the worst: one that says nothing of the machine's or the server's state is the mildest
_WORST_FIRST = (INTERRUPTED, 5, 3, 2, 1, 4, 0)


@dataclass(frozen=True)
class Outcome:
    """What came of one notebook.

    Args:
        notebook: the executed copy.
        folder: its run folder; None where it came to none.
        run: its run.json; empty where there is none.
        error: name and sentence of the error that ended it; empty where none did.
        seconds: how long it took.
        page, digest: the HTML and the Markdown of it, where they were made.
    """

    notebook: Path
    folder: Path | None = None
    run: dict[str, Any] = field(default_factory=dict)
    error: tuple[str, str] = ("", "")
    seconds: float = 0.0
    page: Path | None = None
    digest: Path | None = None

    @property
    def status(self) -> str:
        """The verdict, or "not_run" where it came to none."""
        return str(self.run.get("verdict", {}).get("status", "not_run"))

    @property
    def exit_code(self) -> int:
        """0 supported, 1 refuted, 2 parameters, 3 environment, 4 inconclusive, 5 crashed, 130 interrupted."""
        name = self.error[0]
        if name == "KeyboardInterrupt":
            return INTERRUPTED
        if name and name != errors.VerdictError.__name__:
            kind = getattr(errors, name, None)
            return kind.exit_code if isinstance(kind, type) and issubclass(kind, errors.LabError) else _CRASHED
        code = _BY_VERDICT.get(self.status, INCONCLUSIVE)
        return _CRASHED if code == INCONCLUSIVE and self._server_died() else code

    def _server_died(self) -> bool:
        return any(arm.get("server_alive") is False for arm in self.run.get("arms", {}).values())

    def lines(self) -> list[str]:
        """Return the verdict with its reasons, a line each."""
        checks = self.run.get("verdict", {}).get("checks", [])
        found = [f"Verdict: {self.status.replace('_', ' ')}"]
        for check in checks:
            found.append(f"  {check['status'].replace('_', ' ')}: {check['claim']}")
            found.append(f"    observed: {check['observed']}")
            found.append(f"    why: {check['why']}" + (f". Try: {check['hint']}" if check["hint"] else ""))
        if self.error[0]:
            found.append(f"{self.error[0]}: {self.error[1]}")
        return found

    def json_line(self) -> str:
        """Return the one line that a pipeline reads."""
        named = {"run": self.folder, "notebook": self.notebook, "page": self.page, "summary": self.digest}
        paths = {name: str(path) if path else None for name, path in named.items()}
        error = {"name": self.error[0], "says": self.error[1]} if self.error[0] else None
        line = {"verdict": self.status, "exit_code": self.exit_code, **paths, "error": error}
        return json.dumps(line | {"seconds": round(self.seconds, 1)})


def worst(codes: list[int]) -> int:
    """Return the exit code that stands for several."""
    return next((code for code in _WORST_FIRST if code in codes), _CRASHED if codes else 0)
