"""A text file that a parameter names."""

from __future__ import annotations

from pathlib import Path

from labkit.errors import ParameterError

MAX_BYTES = 10 * 2**20


def given_text(path: str, parameter: str) -> str:
    """Return what is in a file of the user's.

    Args:
        path: relative to the working folder.
        parameter: the parameter that names it, for the sentence that refuses it.

    Raises:
        ParameterError: it can't be read, is too large, or is no UTF-8.
    """
    file = Path(path).expanduser()
    try:
        if file.stat().st_size > MAX_BYTES:
            raise ParameterError(f"{parameter} = {path!r} is larger than {MAX_BYTES / 2**20:.0f} MiB")
        return file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ParameterError(
            f"{parameter} = {path!r} can't be read", why=str(error.strerror), hint="a path from the working folder"
        ) from None
    except UnicodeDecodeError:
        raise ParameterError(f"{parameter} = {path!r} is not UTF-8 text") from None
