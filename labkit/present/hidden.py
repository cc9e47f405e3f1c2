"""What of this machine must not leave it: home folder, host, user and every key that can be found."""

from __future__ import annotations

import getpass
import os
import re
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from labkit.engine.key import KEY_FILE_VARIABLE, KEY_VARIABLE
from labkit.present.redact import Hide

_SECRET_VARIABLE = re.compile(r"API_?KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
_USER_VARIABLES = ("USER", "LOGNAME", "USERNAME", "SUDO_USER")
# of nobody in particular, or words of the record itself
_NOBODY = frozenset({"root", "user", "admin", "test", "build", "server", "control", "treatment", "localhost", "lab"})
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0", "::"})  # noqa: S104
_SHORTEST_NAME, _SHORTEST_SECRET = 2, 6


def hidden_here(run: dict[str, Any]) -> list[Hide]:
    """Return what to hide in a record made on this machine.

    Args:
        run: its run.json; the address of a server that somebody else started is hidden too.
    """
    return [*_homes(), *_hosts(run), *_users(), *_secrets()]


def _homes() -> list[Hide]:
    found = {os.environ.get("HOME", ""), str(Path.home()), str(Path.home().resolve())}
    return [Hide(home.rstrip("/"), "~") for home in found if len(home.rstrip("/")) > 1]


def _hosts(run: dict[str, Any]) -> list[Hide]:
    here = socket.gethostname()
    asked = str(run.get("parameters", {}).get("engine") or "")
    with suppress(ValueError):
        asked = urlsplit(asked).hostname or ""
    found = {here, here.split(".")[0], os.environ.get("HOSTNAME", ""), asked} - _LOOPBACK
    return [Hide(name, "[host]", word=True) for name in found if len(name) >= _SHORTEST_NAME]


def _users() -> list[Hide]:
    found = {os.environ.get(name, "") for name in _USER_VARIABLES}
    with suppress(OSError, KeyError):
        found.add(getpass.getuser())
    found.add(Path.home().name)
    names = (name for name in found if len(name) >= _SHORTEST_NAME and name.lower() not in _NOBODY)
    return [Hide(name, "[user]", word=True) for name in names]


def _secrets() -> list[Hide]:
    """Return keys: of the environment, of the files it names, and those in addresses in it."""
    found = {value for name, value in os.environ.items() if _SECRET_VARIABLE.search(name)}
    found |= {password for value in os.environ.values() for password in _in_address(value)}
    files = [os.environ.get(KEY_FILE_VARIABLE), _hub_token_file()]
    files += [value for name, value in os.environ.items() if _SECRET_VARIABLE.search(name)]
    found |= {text for path in files if path for text in _in_file(path)}
    long = {text.strip() for text in found if len(text.strip()) >= _SHORTEST_SECRET}
    short = {text for text in (os.environ.get(KEY_VARIABLE, "").strip(),) if 0 < len(text) < _SHORTEST_SECRET}
    return [*map(Hide, long), *(Hide(text, word=True) for text in short)]


def _hub_token_file() -> str:
    home = os.environ.get("HF_HOME")
    return str(Path(home) / "token" if home else Path.home() / ".cache" / "huggingface" / "token")


def _in_address(value: str) -> list[str]:
    with suppress(ValueError):
        address = urlsplit(value)
        if address.scheme and address.password:
            return [address.password, unquote(address.password)]
    return []


def _in_file(path: str) -> list[str]:
    with suppress(OSError, ValueError):
        if Path(path).is_file() and Path(path).stat().st_size < 1 << 16:
            return [Path(path).read_text(encoding="utf-8", errors="replace")]
    return []
