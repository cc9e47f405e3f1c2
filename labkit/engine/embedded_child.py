"""The embedded engine's own process: `python -m labkit.engine.embedded_child`.

It reads one JSON line from stdin (attributes and API keys, so that no key is ever in argv or the
environment) and serves until stdin ends. Some builds' servers survive SIGTERM inside a Python host, so
the end of stdin is the way to stop it. It may run in an environment that has nothing but the wheel:
nothing else of this kit is imported.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


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
