"""The API key: from the environment or a file, never from a parameter, never shown."""

from __future__ import annotations

import os
import re
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
        ParameterError: the file can't be read, or the key can't travel in a header.
    """
    value = os.environ.get(KEY_VARIABLE, "").strip()
    path = os.environ.get(KEY_FILE_VARIABLE)
    if not value and path:
        try:
            value = Path(path).read_text(encoding="utf-8", errors="replace").strip()
        except OSError as error:
            raise ParameterError(f"{KEY_FILE_VARIABLE} = {path} can't be read", why=str(error.strerror)) from None
    if not re.fullmatch(r"[\x21-\x7e]*", value):  # never repeated: an encoder's own error would hold it
        raise ParameterError(
            "the API key can't be sent in a request header",
            why="it has blanks, control characters or letters outside ASCII in it",
            hint=f"the key alone in {KEY_VARIABLE}, or in the file that {KEY_FILE_VARIABLE} names",
        )
    return Secret(value) if value else None


def scrubbed_environment() -> dict[str, str]:
    """Return the environment for other programs: without LLAMA_ARG_* (they act as flags) and without secrets."""
    return {name: value for name, value in os.environ.items() if not _UNWANTED.search(name)}


_UNWANTED = re.compile(r"^LLAMA_ARG_|API_?KEY|TOKEN|SECRET|PASSWORD", re.IGNORECASE)
