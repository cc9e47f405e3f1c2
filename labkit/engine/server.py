"""A llama-server to measure: started here or attached to, with what is known of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from labkit.engine.effective import Effective
from labkit.engine.http import Address
from labkit.engine.key import Secret, key_header
from labkit.engine.models import ModelFile
from labkit.engine.process import ServerProcess
from labkit.errors import ParameterError
from labkit.settings import AttachSettings


@dataclass
class Server:
    """A running llama-server.

    Args:
        base_url: where it answers, without a slash at the end.
        asked: settings by name, as passed to it or as its command line says; None: not known.
        effective: what it runs with.
        model: the model's file, hash and header facts.
        model_id: what requests call the model.
        key: the API key it asks for, if any.
        build: reported (by /props), package, number and number_source.
        argv: what was executed; llama_server_command: the same as a command line, to copy.
        process: its supervised process; None for a server that isn't ours.
        attach: the limits on load, for a server that isn't ours.
        query: what a router wants with every request, to find the model behind it.
        notes: what a reader of the record should know: flags left out, what an endpoint hides.
        startup_s: seconds from the order to readiness.
        slots_readable: whether /slots may be asked, and could be read when it was.
    """

    base_url: str
    asked: dict[str, Any]
    model: ModelFile
    model_id: str
    key: Secret | None = field(repr=False)
    effective: Effective | None = None
    build: dict[str, Any] = field(default_factory=dict)
    argv: list[str] = field(default_factory=list)
    llama_server_command: str = ""
    process: ServerProcess | None = None
    attach: AttachSettings | None = None
    query: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    startup_s: float = 0.0
    slots_readable: bool = True

    @property
    def address(self) -> Address:
        """Where it answers, and what every request to it carries."""
        return Address(self.base_url, key_header(self.key), self.query, self.model_id)

    @property
    def attached(self) -> bool:
        """Whether somebody else started it: never stopped, never reconfigured."""
        return self.process is None

    @property
    def endpoint(self) -> Literal["chat", "completion"]:
        """How it is asked: a model without a chat template takes raw prompts only."""
        return "chat" if self.model.facts.has_chat_template else "completion"

    @property
    def alive(self) -> bool:
        """Whether its process still runs; of an attached server nothing is known but its answers."""
        return self.process is None or self.process.alive

    @property
    def exit_text(self) -> str:
        """How its process ended, in words."""
        return self.process.exit_text if self.process else "stopped answering"

    @property
    def log_path(self) -> Path | None:
        """The file that its log goes to; None for a server that isn't ours."""
        return self.process.command.log_path if self.process else None

    def require_load_allowed(self) -> None:
        """Make sure that requests may be sent to it.

        Raises:
            ParameterError: it isn't ours, and allow_load is off.
        """
        if self.attach and not self.attach.allow_load:
            raise ParameterError(
                f"no request was sent to {self.base_url}",
                why="labkit puts load on a server that it did not start only when told to",
                hint="allow_load = True, with max_requests and max_total_tokens as its limits",
            )

    def stop(self) -> str:
        """End it if it is ours; return what it took ("TERM", "KILL", "ended by itself", "not ours")."""
        return self.process.stop() if self.process else "not ours"

    def describe(self) -> dict[str, Any]:
        """Return what the record keeps of it; holds no secret."""
        return {
            "attached": self.attached,
            "base_url": self.base_url,
            "asked": self.asked,
            "effective": asdict(self.effective) if self.effective else None,
            "build": self.build,
            "model": asdict(self.model) | {"path": self.model.path and str(self.model.path)},
            "model_id": self.model_id,
            "argv": self.argv,
            "llama_server_command": self.llama_server_command,
            "notes": self.notes,
            "pid": self.process and self.process.pid,
            "startup_s": round(self.startup_s, 3),
        }
