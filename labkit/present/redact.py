"""Takes out of a text what must not leave this machine. Pure: what to hide is handed over (see hidden.py).

Two layers: known words (this machine's home folder, host, user and keys, in every spelling that a file may have
them in), and shapes that are secret wherever they come from.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import quote, quote_plus

GONE = "[redacted]"
_NAME_LENGTH = 48
# fields of a record that hold what people wrote and models answered
TEXT_FIELDS = frozenset({"prompt", "text", "content", "answer", "history", "messages"})

# what notebook 01 reads out (labkit/analyze/slot_escalation/readings.py); the answer is in no record to know it from
_QUOTED_ANSWER = re.compile(r"(was answered: )“.*”", re.DOTALL)
_PIXELS = frozenset({"image/png", "image/jpeg"})


@dataclass(frozen=True)
class Hide:
    """One thing to hide.

    Args:
        text: the thing.
        stand_in: what stands in its place.
        word: only where no letter or digit touches it: a name, which may be part of another word.
    """

    text: str
    stand_in: str = GONE
    word: bool = False


_NAME_OF_ONE = r"(?:api[-_]?key|passw(?:or)?d|secret|(?:access|auth|hf|refresh)[-_]token)"
_SHAPES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S), GONE),
    (re.compile(r"(?<=://)[^/\s\"'<>\\]+@"), f"{GONE}@"),
    (re.compile(r"\b(bearer|basic)(\s+)(?=\S*[\d=._-])[\w.~+/=-]{6,}", re.I), rf"\1\2{GONE}"),
    (re.compile(r"\b(?:hf_\w{16,}|sk-[\w-]{16,}|gh[pousr]_\w{20,}|glpat-[\w-]{16,}|AKIA[0-9A-Z]{16})"), GONE),
    (re.compile(rf"(--?[\w-]*(?:{_NAME_OF_ONE}|-token)[ =]+)(?!\[)[^\s\"'\\]+", re.I), rf"\1{GONE}"),
    (re.compile(r"\b([A-Z][A-Z0-9_]*(?:API_?KEY|TOKEN|SECRET|PASSWORD)[A-Z0-9_]*=)(?!\[)[^\s\"'\\]+"), rf"\1{GONE}"),
    (re.compile(rf"([?&][\w-]*(?:{_NAME_OF_ONE}|key|token|sig|signature)=)(?!\[)[^&\s\"'#\\]+", re.I), rf"\1{GONE}"),
    (re.compile(rf"([\"']{_NAME_OF_ONE}\\?[\"']\s*:\s*\\?[\"'])(?!\[)[^\"'\\]+", re.I), rf"\1{GONE}"),
    (re.compile(r"(?<![\w.])/(?:home|Users)/[^/\s\"'<>:;,)\\]+|(?<![\w.])/root(?=[/\s\"']|$)"), "~"),
)


def redact(text: str, hides: Iterable[Hide]) -> str:
    """Return `text` without what is hidden.

    Args:
        text: of any file.
        hides: known things; longer ones go first, so that none is cut by a shorter one.
    """
    # the names of a record's fields come again on each of its hundred thousand lines
    return (_of_a_name if len(text) <= _NAME_LENGTH else _redact)(text, tuple(hides))


def _redact(text: str, hides: tuple[Hide, ...]) -> str:
    for hide in sorted(hides, key=lambda hide: -len(hide.text)):
        for form in forms(hide):
            text = _without(text, form, hide)
    for shape, stand_in in _SHAPES:
        text = shape.sub(stand_in, text)
    return text


_of_a_name = lru_cache(maxsize=2**14)(_redact)


@lru_cache(maxsize=1024)
def forms(hide: Hide) -> tuple[str, ...]:
    """Return the spellings in which a thing may stand in a file: plain, in JSON, HTML, a URL, base64."""
    text = hide.text
    if hide.word:
        return (text,)
    spelled = [text, json.dumps(text)[1:-1], html.escape(text), quote(text, safe=""), quote_plus(text)]
    spelled += [base64.b64encode(text.encode()).decode()] if len(text) >= 6 else []
    return tuple(sorted(set(spelled), key=lambda form: -len(form)))


def _without(text: str, form: str, hide: Hide) -> str:
    if not hide.word:
        return text.replace(form, hide.stand_in)
    pattern = rf"(?<![^\W_]){re.escape(form)}(?![^\W_])"
    return re.sub(pattern, lambda _: hide.stand_in, text, flags=re.IGNORECASE)


def redact_json(
    value: Any, hides: Sequence[Hide], *, drop_text: bool = False, fields: frozenset[str] = TEXT_FIELDS
) -> Any:
    """Return a JSON value redacted, before anything is escaped in it.

    Args:
        value: parsed.
        hides: known things; a field's plain name keeps what is hidden as a word: a user may be called like a field.
        drop_text: leave prompts and answers out: what a notebook quotes, and
        fields: what stands in these; none, where such names mean something else.
    """
    if isinstance(value, str):
        return redact(without_quotes(value) if drop_text else value, hides)
    if isinstance(value, list):
        return [redact_json(item, hides, drop_text=drop_text, fields=fields) for item in value]
    if not isinstance(value, dict):
        return value
    return {_key(key, hides): _item(key, item, hides, drop_text, fields) for key, item in value.items()}


def _key(key: str, hides: Sequence[Hide]) -> str:
    return redact(key, [hide for hide in hides if not hide.word] if key.isidentifier() else hides)


def _item(key: str, item: Any, hides: Sequence[Hide], drop_text: bool, fields: frozenset[str]) -> Any:
    # 04 keeps what /metrics answered as facts of that name; a text stands in a string or a list
    if drop_text and key in fields and item and not isinstance(item, dict):
        return left_out(item)
    if key in _PIXELS and isinstance(item, str):  # base64, in which a short name can stand by chance
        return item
    return redact_json(item, hides, drop_text=drop_text, fields=fields)


def without_quotes(text: str) -> str:
    """Return what a notebook shows without the answer that it quotes."""
    return _QUOTED_ANSWER.sub(r"\1[left out]", text)


def left_out(value: Any) -> str:
    """Return what stands in the place of a prompt or an answer."""
    return f"[left out: {len(value)} characters]" if isinstance(value, str) else "[left out]"


def texts_in(value: Any) -> list[str]:
    """Return the prompts and answers in a JSON value, to be hidden wherever else they are quoted."""
    if isinstance(value, list):
        return [text for item in value for text in texts_in(item)]
    if not isinstance(value, dict):
        return []
    own = [item for key, item in value.items() if key in TEXT_FIELDS and isinstance(item, str)]
    return own + [text for item in value.values() for text in texts_in(item)]
