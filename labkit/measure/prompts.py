"""The user's own prompts, from a file: one a line, or JSON lines."""

from __future__ import annotations

import json

from labkit.errors import ParameterError
from labkit.measure.given_file import given_text


def read_prompts(path: str) -> list[str]:
    """Return the prompts of a file, empty lines left out.

    Args:
        path: a text file with one prompt a line, or JSON lines, each a string or an object with "prompt";
            relative to the working folder.

    Raises:
        ParameterError: it can't be read, is too large, has no prompt, or a line of it is no prompt.
    """
    lines = [
        (number, line.strip()) for number, line in enumerate(given_text(path, "prompts_file").splitlines(), start=1)
    ]
    lines = [(number, line) for number, line in lines if line]
    if not lines:
        raise ParameterError(f"prompts_file = {path!r} has no prompt in it")
    decoded = [_decoded(line) for _, line in lines]
    # one object makes it JSON lines, so that a damaged line of such a file isn't sent as it stands
    if not any(isinstance(value, dict) for value in decoded) and not all(isinstance(value, str) for value in decoded):
        return [line for _, line in lines]
    return [_prompt(value, number, path) for (number, _), value in zip(lines, decoded, strict=True)]


def _decoded(line: str) -> object:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _prompt(value: object, number: int, path: str) -> str:
    prompt = value.get("prompt") if isinstance(value, dict) else value
    if not isinstance(prompt, str) or not prompt.strip():
        raise ParameterError(
            f"line {number} of prompts_file = {path!r} is no prompt", hint='a string, or {"prompt": "a string"}'
        )
    return prompt
