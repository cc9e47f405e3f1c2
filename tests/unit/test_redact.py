"""What a pack leaves out, and what only looks like it."""

from __future__ import annotations

from labkit.present.redact import redact_json


def test_facts_that_are_called_like_a_text_are_kept() -> None:
    kept = redact_json({"answer": {"status": 501, "said": "off"}}, [], drop_text=True, fields=frozenset({"answer"}))
    assert kept == {"answer": {"status": 501, "said": "off"}}
