"""Checks and verdicts: what was claimed, what was seen, and what that decides."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

SUPPORTED, REFUTED, INCONCLUSIVE, NOT_TESTED = "supported", "refuted", "inconclusive", "not_tested"


@dataclass(frozen=True)
class Check:
    """One claim and what became of it.

    Args:
        name: short name of the claim, stable between versions.
        claim: what is claimed.
        status: supported, refuted, inconclusive or not_tested.
        observed: what was seen, with numbers.
        expected: what the claim predicts.
        why: the reason for the status.
        hint: what to change, for a check that could not be decided.
        numbers: the figures behind `observed`.
    """

    name: str
    claim: str
    status: str
    observed: str
    expected: str
    why: str
    hint: str = ""
    numbers: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """All checks of a run; the worst decides: refuted, then inconclusive, then supported."""

    checks: tuple[Check, ...]

    @property
    def status(self) -> str:
        """The overall status; what was not tested is left out."""
        statuses = {check.status for check in self.checks} - {NOT_TESTED}
        for status in (REFUTED, INCONCLUSIVE, SUPPORTED):
            if status in statuses:
                return status
        return INCONCLUSIVE

    def to_dict(self) -> dict[str, Any]:
        """Return it as run.json keeps it."""
        return {"status": self.status, "checks": [asdict(check) for check in self.checks]}
