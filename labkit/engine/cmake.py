"""Configure and compile: cmake's arguments, ninja's counts, and what went wrong in words.

Only llama-server is built, without its web page and its tests, as one file, and without a network. Build
number and commit are always passed in: llama.cpp would ask git, which answers for any repository that
happens to lie around the tree (cmake/build-info.cmake).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.engine.source import Source
from labkit.engine.steps import Step, Watcher, run_step
from labkit.engine.toolchain import Toolchain
from labkit.errors import EngineError

TARGET, CEILING_TARGET = "llama-server", "llama-batched-bench"
MEMORY_A_JOB_BYTES = 2 * 2**30
_OFF = (
    "LLAMA_BUILD_TESTS", "LLAMA_BUILD_EXAMPLES", "LLAMA_BUILD_APP", "LLAMA_BUILD_UI", "LLAMA_USE_PREBUILT_UI",
    "LLAMA_BUILD_WEBUI", "LLAMA_OPENSSL", "BUILD_SHARED_LIBS",
)  # fmt: skip
_ON = ("LLAMA_BUILD_COMMON", "LLAMA_BUILD_TOOLS", "LLAMA_BUILD_SERVER", "FETCHCONTENT_FULLY_DISCONNECTED")
# a port that nothing listens on: whatever a build script tries to load fails at once
NO_NETWORK = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9") | {
    "no_proxy": "", "NO_PROXY": ""
}  # fmt: skip
_COUNT = re.compile(r"^\[(\d+)/(\d+)\] ?(.*)$", re.MULTILINE)
# a compiler's line, ninja's, or cmake's block: what follows its head is indented
_ERROR = re.compile(r"^(.*\b(?:fatal )?error: .*|ninja: error.*|CMake Error.*(?:\n(?:[ \t].*)?)*)", re.MULTILINE)
_HOME = re.compile(r"^CMAKE_HOME_DIRECTORY:INTERNAL=(.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Order:
    """What is compiled, and how.

    Args:
        source: the tree.
        folder: cmake's own, which may hold an earlier build of the same tree.
        backend: "cpu" or "cuda".
        architectures: CUDA architectures, "90" say; empty for the CPU.
        jobs: compilers at once.
        targets: what is built.
        log_folder: for the logs.
        silence_limit_s: a step that says nothing for so long is given up.
    """

    source: Source
    folder: Path
    backend: str
    architectures: str
    jobs: int
    targets: tuple[str, ...]
    log_folder: Path
    silence_limit_s: float


def cmake_arguments(order: Order, tools: Toolchain) -> list[str]:
    """Return cmake's -D arguments.

    Names that a build of llama.cpp doesn't know are warned of and do nothing: older ones call the web page
    WEBUI.

    Args:
        order: what is built.
        tools: of this machine.
    """
    cuda = order.backend == "cuda"
    values = {"CMAKE_BUILD_TYPE": "Release"} | dict.fromkeys(_OFF, "OFF") | dict.fromkeys(_ON, "ON")
    values |= {"LLAMA_BUILD_NUMBER": str(order.source.number or 0), "LLAMA_BUILD_COMMIT": commit_name(order.source)}
    # for the CPU of this machine; said outright, since a variable of packagers (SOURCE_DATE_EPOCH) turns it off
    values |= {"GGML_NATIVE": "ON", "GGML_CUDA": "ON" if cuda else "OFF"}
    if cuda and tools.nvcc:
        values |= {"CMAKE_CUDA_ARCHITECTURES": order.architectures, "CMAKE_CUDA_COMPILER": tools.nvcc.path}
    if tools.ninja:
        values["CMAKE_MAKE_PROGRAM"] = tools.ninja.path
    return [f"-D{name}={value}" for name, value in values.items()]


def commit_name(source: Source) -> str:
    """Return the commit as the binary will name it."""
    return source.commit[:9] if source.commit else "unknown"


def jobs_for(cpus: int, available_bytes: int) -> int:
    """Return how many compilers may run at once: one a CPU, and 2 GiB of memory for each."""
    return max(1, min(cpus, available_bytes // MEMORY_A_JOB_BYTES))


def refuse_other_build(folder: Path, source: Path) -> None:
    """Make sure that a build folder is free or was made from this very tree.

    Raises:
        EngineError: it holds something else.
    """
    if not folder.exists() or not any(folder.iterdir()):
        return
    try:
        home = _HOME.search((folder / "CMakeCache.txt").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        home = None
    if home is None or Path(home[1]).resolve() != source.resolve():
        holds = f"a build of {home[1]}" if home else "something that is no build"
        raise EngineError(f"{folder} holds {holds}", hint="another `destination`, or remove it yourself")


def configure(order: Order, tools: Toolchain, say: Callable[[str], None]) -> float:
    """Run cmake; return its seconds.

    Raises:
        EngineError: it failed.
    """
    refuse_other_build(order.folder, order.source.folder)
    argv = [_path(tools.cmake), "-S", str(order.source.folder), "-B", str(order.folder), "-G", "Ninja"]
    argv += cmake_arguments(order, tools)
    log_path = order.log_folder / "configure.log"
    ended = run_step(Step("configuring", argv, log_path, NO_NETWORK, order.silence_limit_s), say)
    if ended.returncode != 0:
        raise _failed("cmake could not configure the build", ended.text, log_path)
    return ended.seconds


class Compiling(Watcher):
    """ninja at work, by its own counts.

    Args:
        clock: monotonic seconds; injected so that tests can script it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._start = clock, clock()
        self._rest, self._state = "", ""
        self.progress: list[dict[str, Any]] = []

    def look(self, new_text: str) -> str:
        *lines, self._rest = (self._rest + new_text).split("\n")
        counts = [match.groups() for line in lines if (match := _COUNT.match(line))]
        if counts:
            done, total, what = counts[-1]
            self._note(round(self._clock() - self._start, 2), int(done), int(total))
            self._state = f"{done} of {total} ({what.split('/')[-1][:40]})"
        return self._state

    def _note(self, at_s: float, done: int, total: int) -> None:
        # one point a second will do for a picture
        if len(self.progress) > 1 and at_s - self.progress[-2]["at_s"] < 1:
            self.progress.pop()
        self.progress.append({"at_s": at_s, "done": done, "total": total})


def compile_targets(order: Order, tools: Toolchain, say: Callable[[str], None]) -> tuple[float, list[dict[str, Any]]]:
    """Run ninja; return its seconds, and how many steps were done when.

    It goes on where an earlier run was interrupted. No lab decodes meanwhile: it takes the whole machine.

    Raises:
        EngineError: it failed.
        EngineBusyError: a lab is running.
    """
    argv = [_path(tools.ninja), "-C", str(order.folder), "-j", str(order.jobs), *order.targets]
    log_path, watcher = order.log_folder / "build.log", Compiling()
    step = Step("compiling", argv, log_path, NO_NETWORK, order.silence_limit_s, exclusive=True)
    ended = run_step(step, say, watcher)
    if ended.returncode != 0:
        raise _failed("the build failed", ended.text, log_path)
    return ended.seconds, watcher.progress


def slowest_steps(folder: Path, count: int = 12) -> list[dict[str, Any]]:
    """Return the longest steps of a build, from ninja's own log: output and seconds.

    Args:
        folder: cmake's own.
        count: how many.
    """
    seconds: dict[str, float] = {}
    try:
        lines = (folder / ".ninja_log").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    for line in lines:
        parts = line.split("\t")
        if len(parts) == 5 and parts[0].isdigit() and parts[1].isdigit():
            seconds[parts[3]] = (int(parts[1]) - int(parts[0])) / 1000
    slow = sorted(seconds.items(), key=lambda item: -item[1])[:count]
    return [{"output": output, "seconds": spent} for output, spent in slow]


def _failed(what: str, text: str, log_path: Path) -> EngineError:
    found = _ERROR.search(text)
    last = next((line for line in reversed(text.splitlines()) if line.strip()), "it said nothing")
    why = " ".join((found[1] if found else last).split())[:400]
    return EngineError(what, why=why, hint=f"its log, {log_path}; run the notebook again to go on from there")


def _path(tool: Any) -> str:
    assert tool is not None  # the caller has looked at Toolchain.lacking
    return str(tool.path)
