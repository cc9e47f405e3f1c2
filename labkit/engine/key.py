"""The API key: from the environment or a file, never from a parameter, never shown."""

from __future__ import annotations

import os
from pathlib import Path

from labkit.errors import ParameterError

KEY_VARIABLE, KEY_FILE_VARIABLE = "LABKIT_API_KEY", "LABKIT_API_KEY_FILE"


class Secret:
    """An API key that shows itself nowhere by accident."""

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the key itself."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(…)"


def key_header(key: Secret | None) -> dict[str, str]:
    """Return the request header that carries a key, if there is one."""
    return {"Authorization": f"Bearer {key.reveal()}"} if key else {}


def api_key() -> Secret | None:
    """Return the key from $LABKIT_API_KEY or the file that $LABKIT_API_KEY_FILE names, if any.

    Raises:
        ParameterError: the file can't be read.
    """
    value = os.environ.get(KEY_VARIABLE, "")
    path = os.environ.get(KEY_FILE_VARIABLE)
    if not value and path:
        try:
            value = Path(path).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ParameterError(f"{KEY_FILE_VARIABLE} = {path} can't be read", why=str(error.strerror)) from None
    return Secret(value) if value else None


def scrubbed_environment() -> dict[str, str]:
    """Return the environment without LLAMA_ARG_* (they act as flags) and without keys."""
    unwanted = ("LLAMA_ARG_", "LLAMA_API_KEY", "HF_TOKEN", KEY_VARIABLE)
    return {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
