"""What notebook 00 found, as tables and sentences: the machine, the engine, what it does unasked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labkit.analyze.build.claims import DEFAULTS, SMOKE, passed_flags
from labkit.analyze.frames import Column, tidy
from labkit.analyze.readings import recorded_facts

if TYPE_CHECKING:
    import pandas as pd

NOT_HERE = "not here"
ARM_NAMES = {DEFAULTS: "told nothing but its model", SMOKE: "as labkit starts it"}
MACHINE = {
    "what": Column("str", "", "what was looked for"),
    "found": Column("str", "", "what this machine has"),
    "for": Column("str", "", "what it is needed for"),
}
ENGINE = {
    "what": Column("str", "", "a fact about the engine"),
    "found": Column("str", "", "what it is"),
    "says": Column("str", "", "who says so"),
}
UNASKED = {
    "what": Column("str", "", "a setting in effect"),
    "told nothing": Column("str", "", "of a server that was told nothing but its model"),
    "as labkit starts it": Column("str", "", "of a server that was told everything"),
}


def machine_table(run: dict[str, Any]) -> pd.DataFrame:
    """Return what this machine has to build and run a llama-server with.

    Args:
        run: run.json.
    """
    tools, machine = run["toolchain"], run["provenance"]
    gpus = machine["gpus"]
    memory = f"{_gib(machine['memory_bytes'])}, {_gib(tools['memory_available_bytes'])} of it available"
    rows = [
        ("system", f"{machine['os']}, kernel {machine['kernel']}, {machine['architecture']}", ""),
        ("CPU", f"{machine['cpu']}, {tools['cpus']} CPUs usable", "compilers at once: one a CPU"),
        ("CPU features", " ".join(tools["cpu_features"]) or "not told", "what the CPU backend may use"),
        ("memory", memory, "about 2 GiB a compiler"),
        ("disk", f"{_gib(tools['disk_free_bytes'])} free", "about 1 GiB, with CUDA 6 GiB"),
        ("GPU", ", ".join(f"{gpu['name']}, {_gib(gpu['memory_bytes'])}" for gpu in gpus) or NOT_HERE, "backend cuda"),
        ("GPU driver", gpus[0]["driver"] if gpus else NOT_HERE, "backend cuda"),
        ("CUDA toolkit (nvcc)", _tool(tools["nvcc"]), "building for CUDA"),
        ("C++ compiler", _tool(tools["cxx"]), "building"),
        ("cmake", _tool(tools["cmake"]), "building"),
        ("ninja", _tool(tools["ninja"]), "building"),
        ("git", _tool(tools["git"]), "source = git"),
    ]
    return tidy([dict(zip(MACHINE, row, strict=True)) for row in rows], MACHINE)


def engine_table(run: dict[str, Any]) -> pd.DataFrame:
    """Return what is known of the engine, and who says so.

    Args:
        run: run.json.
    """
    rows = _built(run["build"]) if run.get("build") else _found(run["engine"])
    reported = ((run["arms"].get(SMOKE) or {}).get("server") or {}).get("build", {}).get("reported")
    later = run["later_notebooks"]
    rows += [
        ("it calls itself", reported or "not started", "/props"),
        ("the other notebooks use", "the wheel", 'unless engine = "build" or a path'),
        ('with engine = "build"', later["build"] or "nothing: none is built", "labkit's cache folder"),
    ]
    return tidy([dict(zip(ENGINE, row, strict=True)) for row in rows], ENGINE)


def _found(engine: dict[str, Any]) -> list[tuple[str, str, str]]:
    if engine["kind"] == "embedded":
        number = f"b{engine['number']}" if engine["number"] else "unknown"
        return [
            ("engine", f"{engine['package']}, from a wheel", "its metadata"),
            ("build number", number, engine["number_source"]),
            ("commit", "unknown: the wheel does not say", "nobody"),
        ]
    return [
        ("engine", engine["path"], "you"),
        ("build number", f"b{engine['number']}" if engine["number"] else "unknown", "its --version"),
        ("commit", engine["commit"] or "unknown", "its --version"),
        ("backend", engine["recorded_backend"] or "unknown until it runs", "the record beside it"),
    ]


def _built(build: dict[str, Any]) -> list[tuple[str, str, str]]:
    tools, seconds = build["tools"], build["seconds"]
    compiler = f"{tools['cxx']['path']} {tools['cxx']['version']}"
    if tools.get("nvcc"):
        compiler += f", nvcc {tools['nvcc']['version']}"
    spent = f"{seconds['configure_s']:.0f} s to configure, {seconds['compile_s']:.0f} s to compile"
    return [
        *_source_rows(build["source"]),
        ("build number", str(build["number"] or "unknown"), "passed in"),
        ("backend", build["backend"], "cmake's arguments"),
        ("cmake", " ".join(build["cmake_arguments"]), "as passed"),
        ("compiler", compiler, "this machine"),
        ("time", f"{spent}, {build['jobs']} jobs", "the run that finished it"),
        ("binary", build["binary"], f"{build['binary_bytes'] / 1e6:.1f} MB"),
        ("its sha256", build["binary_sha256"], "this machine"),
    ]


def _source_rows(source: dict[str, Any]) -> list[tuple[str, str, str]]:
    if source["kind"] == "git":
        same = "the same" if source["upstream_head"] == source["head"] else source["upstream_head"]
        return [
            ("source", source["repo_url"], "git"),
            ("commit asked for", source["asked_commit"], "you, or the pin"),
            ("HEAD", source["head"], "the checkout"),
            ("upstream_head", same, "the repository now; other than the pin is normal"),
        ]
    if source["kind"] == "sdist":
        return [("source", source["package"], "pip's index"), ("sha256 of the sdist", source["sha256"], "the file")]
    return [
        ("source", source["folder"], "you"),
        ("commit", source["commit"] or "unknown", "its own repository" if source["commit"] else "nobody"),
    ]


def unasked_table(run: dict[str, Any]) -> pd.DataFrame:
    """Return what an engine does unasked, beside what it does as labkit starts it.

    Args:
        run: run.json.
    """
    arms = [run["arms"].get(arm) or {} for arm in (DEFAULTS, SMOKE)]
    rows = [
        ("slots", *(_number(_effective(arm).get("slots")) for arm in arms)),
        ("KV cache", *(_mode(_effective(arm).get("kv_unified")) for arm in arms)),
        ("KV cells in all", *(_number(_effective(arm).get("pool_cells")) for arm in arms)),
        ("KV cells a slot may use", *(_number(_effective(arm).get("slot_cells")) for arm in arms)),
        ("logical batch", *(_number(_effective(arm).get("batch_size")) for arm in arms)),
        ("physical batch", *(_number(_effective(arm).get("ubatch_size")) for arm in arms)),
        ("/slots", *(_endpoint(arm, "slots") for arm in arms)),
        ("/metrics", *(_endpoint(arm, "metrics") for arm in arms)),
    ]
    return tidy([dict(zip(UNASKED, row, strict=True)) for row in rows], UNASKED)


def _endpoint(arm: dict[str, Any], name: str) -> str:
    on = {True: "on", False: "off", None: "unknown"}[_effective(arm).get(f"{name}_endpoint")]
    status = (arm.get("endpoints") or {}).get(f"/{name}")
    return f"{on} ({status})" if status else on


def _effective(arm: dict[str, Any]) -> dict[str, Any]:
    return (arm.get("server") or {}).get("effective") or {}


def flags_reading(run: dict[str, Any]) -> str:
    """Say which flags of this kit the engine knows."""
    engine = run["engine"]
    if engine["kind"] == "embedded":
        return "The wheel has no command line: settings reach it as values. It starts only if it has each of them."
    passed = passed_flags(engine)
    unknown = [flag["flag"] for flag in passed if flag["known_as"] is None]
    absent = [flag["flag"] for flag in engine["flags"] if flag["known_as"] is None and not flag["always"]]
    other = [f"{flag['flag']} as {flag['known_as']}" for flag in passed if flag["known_as"] not in (None, flag["flag"])]
    words = [f"{len(passed) - len(unknown)} of the {len(passed)} flags that labkit always passes exist."]
    if unknown:
        words.append(f"Left out, since this build lacks them: {', '.join(unknown)}.")
    if absent:
        words.append(f"Not in this build, and refused if you ask for it: {', '.join(absent)}.")
    if other:
        words.append(f"Spelled otherwise: {', '.join(other)}.")
    return " ".join(words)


def name_reading(run: dict[str, Any]) -> str:
    """Say what it would have led to to ask the engine, or the tree's surroundings, for its name."""
    reported = ((run["arms"].get(SMOKE) or {}).get("server") or {}).get("build", {}).get("reported") or "nothing"
    build = run.get("build")
    if build:
        around, passed = build["name_by_surroundings"], build["number"]
        head = f"Left alone, this build would have called itself {around}: that is what git answers in its folder."
        if str(around).startswith(f"b{passed}-"):
            return f"{head} Here that is right, because the tree is a repository of its own, with all its history."
        return f"{head} It is b{passed}; the number was passed in, and /props now says {reported}."
    number = run["engine"].get("number")
    if number and str(reported).startswith(f"b{number}-"):
        return f"Asked for its name, the server says {reported}, and its --version says b{number}: here they agree."
    return (
        f"Asked for its name, the server says {reported}. Whoever writes that into a ticket has written down build "
        f"{str(reported).split('-')[0].removeprefix('b')}. "
        + (f"It is b{number}: the package says so." if number else "Nothing else tells either.")
    )


def prediction_reading(run: dict[str, Any], predicted_slots: int) -> str:
    """Compare the prediction with what the engine did unasked."""
    found = _effective(run["arms"].get(DEFAULTS) or {}).get("slots")
    if found is None:
        return "Nothing to compare your prediction with: the engine was not seen without settings."
    whose = "the wheel's own default" if run["engine"]["kind"] == "embedded" else "llama-server's own default"
    return f"You predicted {predicted_slots} slots; {found} is {whose}. " + (
        "Right." if found == predicted_slots else "What is left unsaid is decided by whoever wrote the program."
    )


def build_facts(run: dict[str, Any]) -> str:
    """Return the line under a picture: which build, for what."""
    build, engine = run.get("build"), run["engine"]
    if build:
        what = f"b{build['number'] or '?'} from {build['source']['kind']}, {build['backend']}, {build['jobs']} jobs"
    else:
        what = f"b{engine['number'] or '?'}, {engine.get('package') or engine.get('path')}"
    return " · ".join([what, *recorded_facts(run)])


def _tool(tool: dict[str, Any] | None) -> str:
    return f"{tool['version'] or 'version unknown'}, {tool['path']}" if tool else NOT_HERE


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"


def _mode(kv_unified: bool | None) -> str:
    return {True: "unified", False: "split", None: "unknown"}[kv_unified]


def _number(value: int | None) -> str:
    return "unknown" if value is None else f"{value:,}"
