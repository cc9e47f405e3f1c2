"""A llama-server executable without a build: real argv and environment, read by the table, run by the wheel.

It behaves as common/arg.cpp and tools/server/server.cpp do, as far as the tests look: --help, --version,
unknown flags, LLAMA_ARG_* acting as flags, LLAMA_API_KEY, the server's own defaults, exit codes.
SHIM_LACKS names flags that this "build" doesn't know; SHIM_SLOTS is a slot count that it takes instead.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from labkit.engine.embedded_child import _apply
from labkit.engine.flags import OPTIONS, from_argv, from_environment, to_attributes

# llama-server's own: a slot count that is auto takes 4 and a unified cache; /metrics is off
DEFAULTS: dict[str, Any] = {"parallel": "auto", "slots_endpoint": True, "metrics_endpoint": False}


def make_shim(folder: Path, **behaviour: str) -> Path:
    """Write an executable llama-server into `folder`; behaviour: SHIM_LACKS="--cors-origins", say."""
    path = folder / "llama-server"
    settings = "".join(f"os.environ[{name!r}] = {value!r}\n" for name, value in behaviour.items())
    path.write_text(
        f"#!{sys.executable}\nimport os, sys\nsys.path.insert(0, {str(Path(__file__).parents[2])!r})\n{settings}"
        "from tests.live.shim import main\nmain()\n"
    )
    path.chmod(0o755)
    return path


def lacks() -> set[str]:
    return set(filter(None, os.environ.get("SHIM_LACKS", "").split(",")))


def usage() -> str:
    lines = []
    for option in OPTIONS:
        known = [flag for flag in option.on + option.off if flag not in lacks()]
        if known:
            lines.append(f"{', '.join(known)}{'' if option.switch else ' N':40} sets {option.field}")
    return "----- server-specific params -----\n" + "\n".join(lines)


def main() -> None:
    """Be llama-server."""
    argv = sys.argv[1:]
    if "--help" in argv:
        print(usage())
        return
    if "--version" in argv:
        print("version: 10229 (5e3f1d2)\nbuilt with GNU 12.2.0 for Linux x86_64", file=sys.stderr)
        return
    unknown = next((word for word in argv if word in lacks()), None)
    values, rest = from_argv(argv)
    if unknown or rest:
        print(f"error: invalid argument: {unknown or rest[0]}", file=sys.stderr)
        raise SystemExit(1)
    serve(DEFAULTS | from_environment(os.environ) | values)


def serve(values: dict[str, Any]) -> None:
    import xllamacpp

    if "SHIM_SLOTS" in os.environ:
        values["parallel"] = int(os.environ["SHIM_SLOTS"])
    params = xllamacpp.CommonParams()
    for attribute in to_attributes(values):
        _apply(params, attribute["names"], attribute["value"], optional=attribute["optional"])
    params.api_keys = [key for key in os.environ.get("LLAMA_API_KEY", "").split(",") if key]
    try:
        server = xllamacpp.Server(params)
    except RuntimeError as error:
        print(f"E {error}", file=sys.stderr)
        raise SystemExit(1) from None
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    while server is not None:
        signal.pause()
