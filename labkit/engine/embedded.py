"""The embedded engine: llama.cpp's server from the xllamacpp wheel, in a process of its own.

The parent side says what to run; `python -m labkit.engine.embedded` is the process itself. It reads one
JSON line from stdin (attributes and API keys, so that no key is ever in argv or the environment) and
serves until stdin ends. Some builds' servers survive SIGTERM inside a Python host, so the end of stdin
is the way to stop it.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
from typing import Any

from labkit.errors import EngineError

PACKAGE = "xllamacpp"


def embedded_argv() -> list[str]:
    """Return the command that runs the embedded engine."""
    return [sys.executable, "-m", "labkit.engine.embedded"]


def embedded_build() -> dict[str, Any]:
    """Return what is known of the embedded build: the wheel's version and the build number in it.

    The wheel's own build_info says b0-unknown; its version ends in llama.cpp's build number.

    Raises:
        EngineError: the wheel isn't installed.
    """
    try:
        version = importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise EngineError(
            "the embedded engine is not installed",
            why=f"no {PACKAGE} in {sys.prefix}",
            hint="pip install -r requirements.txt",
        ) from None
    return {
        "package": f"{PACKAGE} {version}",
        "number": int(version.split(".")[2]),
        "number_source": f"version of the {PACKAGE} wheel",
    }


def _apply(params: Any, names: list[str], value: Any, *, optional: bool) -> None:
    """Set the first attribute of `names` that this build has."""
    for name in names:
        *path, leaf = name.split(".")
        owner = params
        for part in path:
            owner = getattr(owner, part, None)
        if hasattr(owner, leaf):
            setattr(owner, leaf, _native(value, like=getattr(owner, leaf)))
            return
    if not optional:
        raise SystemExit(f"labkit: this xllamacpp build has none of the attributes {', '.join(names)}")


def _native(value: Any, *, like: Any) -> Any:
    """Turn JSON data into what the attribute holds now: an enum member, a set, a list."""
    import xllamacpp

    if isinstance(value, dict) and "ggml_type" in value:
        return getattr(xllamacpp.ggml_type, f"GGML_TYPE_{value['ggml_type'].upper()}")
    if isinstance(value, dict) and "flash_attn" in value:
        mode = {"auto": "AUTO", "on": "ENABLED", "off": "DISABLED"}[value["flash_attn"]]
        return getattr(xllamacpp.llama_flash_attn_type, f"LLAMA_FLASH_ATTN_TYPE_{mode}")
    if isinstance(like, set | list):
        return type(like)(value if isinstance(value, list) else [value])
    return value


def main() -> None:
    """Serve until stdin ends."""
    try:
        import xllamacpp
    except ImportError as error:
        raise SystemExit(f"labkit: the engine can't be loaded: {error} (on Debian: apt install libgomp1)") from None
    order = json.loads(sys.stdin.readline())
    params = xllamacpp.CommonParams()
    for attribute in order["attributes"]:
        _apply(params, attribute["names"], attribute["value"], optional=attribute["optional"])
    if order["api_keys"]:
        params.api_keys = order["api_keys"]
    try:
        server = xllamacpp.Server(params)
    except RuntimeError as error:  # its reason is in the log above, whatever it says itself
        raise SystemExit(f"labkit: {error}") from None
    sys.stdin.read()
    del server
    # llama.cpp's threads may still run: leave without waiting for them
    os._exit(0)


if __name__ == "__main__":
    main()
