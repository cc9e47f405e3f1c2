"""The verdict of notebook 00: is the engine what it was meant to be, judged from the record alone."""

from __future__ import annotations

import re
from typing import Any

from labkit.analyze.rows import RunRows, kv_devices
from labkit.analyze.verdict import INCONCLUSIVE, NOT_TESTED, REFUTED, SUPPORTED, Check, Verdict

SMOKE, DEFAULTS = "smoke", "defaults"
UNKNOWN = "unknown"
_ANSWERED = ("completed", "slot_limit")
_STARTED = "start the engine, by hand if need be: its command is in the record, and so is its log"


def judge_build(data: RunRows) -> Verdict:
    """Judge a recorded run of notebook 00.

    Args:
        data: from labkit.read_run.
    """
    record = _Record(data)
    return Verdict((_source(record), _number(record), _flags(record), _backend(record), _answered(record)))


class _Record:
    """What run.json says, with nothing missing that isn't named as missing."""

    def __init__(self, data: RunRows) -> None:
        self.build: dict[str, Any] | None = data.run.get("build")
        self.engine: dict[str, Any] = data.run.get("engine") or {}
        self.lacking: list[str] = data.run.get("build_lacking") or []
        self.asked_backend = str(data.run["parameters"].get("backend", "auto"))
        arm = data.run["arms"].get(SMOKE) or {}
        self.server: dict[str, Any] = arm.get("server") or {}
        self.requests = [row for row in data.requests if row["arm"] == SMOKE and not row["warm_up"]]

    @property
    def embedded(self) -> bool:
        return self.engine.get("kind") == "embedded"

    @property
    def source(self) -> dict[str, Any]:
        return (self.build or {}).get("source") or {}

    @property
    def reported(self) -> str | None:
        """What /props says of the build."""
        return (self.server.get("build") or {}).get("reported")

    @property
    def other_binary(self) -> str:
        """The binary that was asked or started, if it isn't the one that was built; else empty."""
        built, package = (
            str((self.build or {}).get("binary") or ""),
            str((self.server.get("build") or {}).get("package") or ""),
        )
        seen = [self.engine.get("path"), package.removeprefix("llama-server ")]
        return next((str(path) for path in seen if path and built.startswith("/") and path != built), "")

    @property
    def devices(self) -> list[str]:
        return kv_devices(self.server.get("effective") or {})


def build_name(number: int | None, commit: str | None) -> str:
    """Return how a llama-server names its build in /props."""
    return f"b{number or 0}-{commit or UNKNOWN}"


def _source(record: _Record) -> Check:
    if record.lacking:
        return Check(
            "source", "a llama-server was built from the source asked for", INCONCLUSIVE, "nothing was built",
            "a build", f"there is no {', no '.join(record.lacking)} here; the wheel was looked at in its place",
            hint="apt install g++, pip install cmake ninja",
        )  # fmt: skip
    if record.build is None:
        return _package(record)
    return {"git": _git, "sdist": _sdist}.get(record.source.get("kind", ""), _tree)(record)


def _git(record: _Record) -> Check:
    head, asked = record.source.get("head"), record.source.get("asked_commit")
    status, why = SUPPORTED, "git itself names its HEAD"
    if not head or not asked:
        status, why = INCONCLUSIVE, "one of the two is not known"
    elif head != asked:
        status, why = REFUTED, "another commit was built"
    return Check(
        "source", "the checkout is the commit asked for", status, f"HEAD is {head}", f"{asked}", why,
        numbers={"upstream_head": record.source.get("upstream_head")},
    )  # fmt: skip


def _sdist(record: _Record) -> Check:
    found, expected = record.source.get("sha256"), record.source.get("expected_sha256")
    claim = "the sdist is the file that is known for its version"
    observed = f"{record.source.get('package')}, sha256 {found}, build number {record.source.get('number')}"
    if expected is None:
        return Check(
            "source", claim, NOT_TESTED, observed, "no sha256 is known for this version",
            "pip compared it with its index, nothing else did", hint=f"next time: sdist_sha256 = {found}",
        )  # fmt: skip
    same = found == expected
    why = "byte for byte the same" if same else "another file than the one known"
    return Check("source", claim, SUPPORTED if same else REFUTED, observed, f"sha256 {expected}", why)


def _tree(record: _Record) -> Check:
    source = record.source
    changed = {True: ", with changes of its own", False: ", unchanged", None: ""}[source.get("changed")]
    commit = f"commit {source['commit']}{changed}" if source.get("commit") else "no commit known"
    number = source.get("number") or "not known"
    return Check(
        "source", "the tree is what it is meant to be", NOT_TESTED, f"{commit}; build number {number}",
        "nothing to compare with", f"a folder of yours: {source.get('folder')}",
    )  # fmt: skip


def _package(record: _Record) -> Check:
    """Say whether it can be told which build an engine is that was not built here."""
    what = "the wheel's version" if record.embedded else "its --version"
    number = record.engine.get("number")
    named = record.engine.get("package") or record.engine.get("path") or "no engine"
    commit = f"commit {record.engine['commit']}" if record.engine.get("commit") else "commit unknown"
    known, claim = number is not None, "it can be told which build of llama.cpp this is"
    serving = _number_in(record.reported)
    if known and serving and serving != number:
        observed = f"{named}: b{number}, {commit}; /props says {record.reported}"
        why = f"{what} and the server contradict each other: what was started is another program"
        return Check(
            "source", claim, INCONCLUSIVE, observed, "a build number", why, hint="no wrapper, the binary itself"
        )
    return Check(
        "source", claim, SUPPORTED if known else INCONCLUSIVE,
        f"{named}: b{number}, {commit}" if known else f"{named}: no build number", "a build number",
        f"{what} tells it" if known else f"{what} does not tell",
        hint="" if known else "an engine of which you know where it is from",
    )  # fmt: skip


def _number_in(reported: str | None) -> int:
    """Return the number in what /props says of a build, b10156-abcdef say; 0 if it tells none."""
    match = re.match(r"b(\d+)", reported or "")
    return int(match[1]) if match else 0


def _number(record: _Record) -> Check:
    claim = "the binary reports the build number and the commit that were passed in"
    if record.build is None:
        told = record.reported or "nothing, it was not started"
        return Check("number", claim, NOT_TESTED, f"/props says {told}", "nothing was passed in", "not built here")
    passed, commit = record.build.get("number"), record.build.get("commit_passed")
    if passed is None:
        return Check(
            "number", claim, NOT_TESTED, f"/props says {record.reported}", "no build number was known",
            "a tree without a history says none", hint="build_number = its number, if you know it",
        )  # fmt: skip
    expected = build_name(passed, commit)
    by_version = build_name(record.engine.get("number"), record.engine.get("commit"))
    observed = f"--version says {by_version}, /props says {record.reported or 'nothing'}"
    if record.reported is None:
        return Check("number", claim, INCONCLUSIVE, observed, expected, "it was not seen serving", hint=_STARTED)
    if other := record.other_binary:
        why = f"what was started is {other}, not the binary that was built"
        return Check("number", claim, INCONCLUSIVE, observed, expected, why, hint="engine = build")
    same = by_version == expected == record.reported
    why = "program and server say the same" if same else "it calls itself something else"
    return Check("number", claim, SUPPORTED if same else REFUTED, observed, expected, why)


def _flags(record: _Record) -> Check:
    claim = "every flag that this kit passes exists"
    if record.embedded:
        started = bool(record.server)
        return Check(
            "flags", "the wheel takes every setting that this kit passes", SUPPORTED if started else INCONCLUSIVE,
            "it started with all of them" if started else "it was not started", "it starts",
            "it starts only if it has each" if started else "nothing was seen", hint="" if started else _STARTED,
        )  # fmt: skip
    flags = passed_flags(record.engine)
    if not flags:
        return Check("flags", claim, INCONCLUSIVE, "its --help was not read", "all", "nothing was seen", hint=_STARTED)
    unknown = [flag for flag in flags if flag["known_as"] is None]
    names = ", ".join(flag["flag"] for flag in unknown)
    observed = f"{len(flags) - len(unknown)} of {len(flags)} are in its --help" + (f", not {names}" if names else "")
    if any(flag["essential"] for flag in unknown):
        return Check("flags", claim, REFUTED, observed, "all of them", "without it nothing here can be measured")
    why = "left out, and nothing measured depends on them" if unknown else "each in one of its spellings"
    return Check("flags", claim, SUPPORTED, observed, "all that an experiment depends on", why)


def passed_flags(engine: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the flags that are passed without being asked for.

    Args:
        engine: `engine` in run.json.
    """
    return [flag for flag in engine.get("flags") or [] if flag["always"]]


def _backend(record: _Record) -> Check:
    claim = "the backend asked for is the one in use"
    asked = (record.build or {}).get("backend") or record.engine.get("recorded_backend") or record.asked_backend
    if record.asked_backend != "auto":
        asked = record.asked_backend
    devices = record.devices
    observed = f"the log places the KV cache on {', '.join(devices)}" if devices else "the log names no device"
    if not devices:
        return Check(
            "backend", claim, INCONCLUSIVE, observed, asked, "the line that names it is missing", hint=_STARTED
        )
    if asked == "auto":
        return Check("backend", claim, SUPPORTED, observed, "any that is named", "nothing was asked for")
    on_cuda = [device for device in devices if device.upper().startswith("CUDA")]
    right = bool(on_cuda) if asked == "cuda" else all(device.upper().startswith("CPU") for device in devices)
    part = (
        ", though not all of it: the memory of the GPU may be short" if right and on_cuda != devices and on_cuda else ""
    )
    why = f"it is on the device asked for{part}" if right else "it computes on something else"
    return Check("backend", claim, SUPPORTED if right else REFUTED, observed, asked, why)


def _answered(record: _Record) -> Check:
    claim, expected = "it answers a request", "200 and at least one token"
    if not record.requests:
        return Check(
            "answered", claim, INCONCLUSIVE, "no request was sent", expected, "nothing was seen", hint=_STARTED
        )
    row = next((row for row in record.requests if row["outcome"] not in _ANSWERED), record.requests[0])
    observed = f"status {row['status']}, {row['tokens']} tokens, {row['outcome']}"
    if row["outcome"] in _ANSWERED and row["status"] == 200 and row["tokens"]:
        return Check("answered", claim, SUPPORTED, observed, expected, "it did")
    error = str(row.get("error") or "no error was told")[:300]
    if row["outcome"] in ("server_error", "refused", "does_not_fit"):
        return Check("answered", claim, REFUTED, observed, expected, error)
    return Check("answered", claim, INCONCLUSIVE, observed, expected, error, hint=_STARTED)
