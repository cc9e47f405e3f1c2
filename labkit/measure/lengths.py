"""The user's own request lengths, from a CSV file."""

from __future__ import annotations

import csv
from dataclasses import dataclass

from labkit.errors import ParameterError
from labkit.measure.given_file import given_text

PROMPT_COLUMN, ANSWER_COLUMN = "prompt_tokens", "max_tokens"


@dataclass(frozen=True)
class Length:
    """How long one request is: tokens of its prompt and of its answer."""

    prompt: int
    answer: int


def read_lengths(path: str, *, answer: int) -> list[Length]:
    """Return the lengths that a CSV file lists.

    Args:
        path: a file with a header that names prompt_tokens and perhaps max_tokens, or with one number a line;
            relative to the working folder.
        answer: tokens of an answer, where the file does not say.

    Raises:
        ParameterError: it can't be read, is too large, or has a line without a length.
    """
    rows = [
        row for row in csv.reader(given_text(path, "lengths_csv").splitlines()) if any(cell.strip() for cell in row)
    ]
    names = [cell.strip() for cell in rows[0]] if rows else []
    header = bool(names) and not names[0].isdigit()
    if header and PROMPT_COLUMN not in names:
        raise ParameterError(
            f"lengths_csv = {path!r} has no column {PROMPT_COLUMN}", why=f"its columns are {', '.join(names)[:120]}"
        )
    columns = (
        names.index(PROMPT_COLUMN) if header else 0,
        names.index(ANSWER_COLUMN) if header and ANSWER_COLUMN in names else None,
    )
    lengths = [_length(row, columns, answer, f"row {i} of {path!r}") for i, row in enumerate(rows[header:], start=1)]
    if not lengths:
        raise ParameterError(f"lengths_csv = {path!r} has no length in it")
    return lengths


def _length(row: list[str], columns: tuple[int, int | None], answer: int, where: str) -> Length:
    prompt_at, answer_at = columns
    prompt = _tokens(row, prompt_at, where)
    return Length(prompt, answer if answer_at is None else _tokens(row, answer_at, where))


def _tokens(row: list[str], at: int, where: str) -> int:
    text = row[at].strip() if at < len(row) else ""
    if not text.isascii() or not text.isdigit() or not 0 < int(text[:12]) < 10**7:
        raise ParameterError(f"{where} has no length: {text[:40]!r}", hint="whole numbers of tokens from 1")
    return int(text)
