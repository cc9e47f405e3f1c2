"""What a server says may be anything: these make of it what was expected, or nothing."""

from __future__ import annotations

import math
from typing import Any
from urllib.parse import urlsplit

_LARGEST = 2**63
_TEXT_LIMIT = 200


def whole(value: Any, *, least: int = 0) -> int | None:
    """Return a whole number from `least` up, as JSON gives it; None for anything else, a truth value too."""
    right = isinstance(value, int) and not isinstance(value, bool) and least <= value < _LARGEST
    return value if right else None


def finite(value: Any) -> float | int | None:
    """Return a number that can be reckoned with; None for anything else."""
    right = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST
    return value if right and math.isfinite(value) else None


def mapping(value: Any) -> dict[str, Any]:
    """Return an object; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def items(value: Any) -> list[dict[str, Any]]:
    """Return the objects of a list; none for anything else."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def text(value: Any) -> str | None:
    """Return a text that can be shown and sent; None for anything else."""
    if not isinstance(value, str) or not value.isprintable():
        return None
    return value


def texts(value: Any) -> list[str]:
    """Return the texts of a list; none for anything else."""
    return [item for item in value if text(item) is not None] if isinstance(value, list) else []


def switch(value: Any) -> bool | None:
    """Return a truth value; None for anything else."""
    return value if isinstance(value, bool) else None


def shown(value: str) -> str:
    """Return a server's words as they may stand in a sentence: short, without control characters."""
    return "".join(c if c.isprintable() else "?" for c in value[:_TEXT_LIMIT])


def place(location: str) -> str:
    """Return an address without what may be a secret in it: user, password, parameters."""
    try:
        parts = urlsplit(location)
        host = parts.hostname or ""
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "an address that is none"
    return shown(f"{parts.scheme}://{host}{port}{parts.path}" if host else parts.path)
