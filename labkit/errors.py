"""Every error that labkit raises on purpose.

LabError                     what went wrong, why, and what to try: one sentence in a notebook
├── ParameterError           a parameter is unknown or can't be used               (exit code 2)
│   └── AlteredError         a pack is not what was packed
├── UnfitError               this machine can't run it as it stands                (exit code 3)
│   ├── ModelError           no such model, not GGUF, truncated, wrong checksum
│   ├── EngineError          the engine is missing or refuses the settings
│   ├── EngineBusyError      another lab decodes on this machine
│   ├── PortInUseError       the port asked for is taken
│   └── PlanError            the load does not fit the server's slots or KV pool
├── VerdictError             strict=True and the verdict isn't "supported"         (exit code 1 or 4)
└── ServerError              a server was there and failed                         (exit code 5)
    ├── ServerDiedError      its process ended
    ├── ServerNotReadyError  it never became ready
    ├── IdentityError        something else answers in its place
    │   └── SlotCountError   it has another number of slots than asked
    └── RecordError          the run folder can't be written
"""

from __future__ import annotations


class LabError(Exception):
    """Base of all; catch this one.

    Args:
        what: what went wrong, a clause without a full stop.
        why: the reason, if known.
        hint: what to try.
    """

    exit_code = 5

    def __init__(self, what: str, *, why: str = "", hint: str = "") -> None:
        super().__init__(what, why, hint)
        self.what, self.why, self.hint = what, why, hint

    def __str__(self) -> str:
        reason = f": {self.why}" if self.why else ""
        remedy = f" Try: {self.hint}" if self.hint else ""
        sentence = f"{self.what}{reason}"
        return sentence + ("" if sentence.endswith("?") else ".") + remedy

    def __reduce__(self) -> tuple[object, ...]:
        # keyword-only arguments don't survive the default pickling of exceptions
        return (_rebuild, (type(self), self.what, self.why, self.hint))

    def _render_traceback_(self) -> list[str]:
        """What IPython shows instead of a traceback: frames could hold request headers."""
        return [f"{type(self).__name__}: {self}"]


def _rebuild(kind: type[LabError], what: str, why: str, hint: str) -> LabError:
    return kind(what, why=why, hint=hint)


class ParameterError(LabError):
    """A parameter is unknown or has a value that can't be used."""

    exit_code = 2


class AlteredError(ParameterError):
    """A pack is not what was packed."""


class UnfitError(LabError):
    """This machine or environment can't run it as it stands."""

    exit_code = 3


class ModelError(UnfitError):
    """The model file is missing, isn't GGUF, is truncated, or has the wrong checksum."""


class EngineError(UnfitError):
    """The engine is missing or refuses the settings."""


class EngineBusyError(UnfitError):
    """Another lab decodes on this machine: two at once distort each other's times."""


class PortInUseError(UnfitError):
    """The port asked for is taken."""


class PlanError(UnfitError):
    """The planned load does not fit the server's slots or KV pool."""


class VerdictError(LabError):
    """strict=True, and the verdict isn't "supported"."""

    exit_code = 1


class ServerError(LabError):
    """A server was there and failed."""


class ServerDiedError(ServerError):
    """The server's process ended."""


class ServerNotReadyError(ServerError):
    """The server never became ready within the limit."""


class IdentityError(ServerError):
    """Something else answers where our server should, or it isn't set as asked."""


class SlotCountError(IdentityError):
    """Our server has another number of slots than asked."""


class RecordError(ServerError):
    """The run folder can't be written."""
