"""The command line that a server would be started with, before anything starts."""

from __future__ import annotations

import shlex

from labkit.engine.build import NAME as BUILD
from labkit.engine.build import newest_build
from labkit.engine.embedded import is_embedded
from labkit.engine.flags import start_values, to_argv
from labkit.engine.start import physical_cores
from labkit.settings import ServerSettings

USUAL_PORT = 8080  # llama-server's own default; a free one is drawn at the start unless one is asked for


def preview_command(settings: ServerSettings, model_path: str) -> str:
    """Return the llama-server command line for these settings; the run's own alias and port are drawn at its start.

    A binary is not asked for its flags here: one that lacks some is started without them, and says so then.

    Args:
        settings: of the server.
        model_path: the GGUF file.

    Raises:
        EngineError: extra_args sets a flag that a parameter is for, or there is no build yet.
    """
    if settings.attached:
        return ""
    settings = settings.model_copy(update={"threads": settings.threads or physical_cores()})
    values = start_values(settings, model_path=model_path, alias="labkit", port=settings.port or USUAL_PORT)
    argv, _ = to_argv(values, binary=_binary(settings.engine))
    return shlex.join(argv)


def _binary(engine: str) -> str:
    if is_embedded(engine):
        return "llama-server"
    return str(newest_build()) if engine == BUILD else engine
