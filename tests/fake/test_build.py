"""A build from a tiny tree: real cmake, ninja and compiler; failing, interrupted, resumed, refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import filelock
import psutil
import pytest

from labkit.engine import process
from labkit.engine.binary import _ask
from labkit.engine.build import build_server, finished_builds, newest_build, read_record
from labkit.engine.fetch import sha256_of
from labkit.engine.start import _launch
from labkit.engine.steps import Step, Watcher, run_step
from labkit.errors import EngineBusyError, EngineError
from labkit.settings import Build
from tests.conftest import heed_interrupts
from tests.toy_tree import git, make_repository, make_tree

Make = Callable[..., dict[str, Any]]
RUN = """
import sys
from labkit.engine import process
from labkit.engine.build import build_server
from labkit.settings import Build
process.lock_path = lambda: ""
build_server(Build(engine="build", source="tree", tree=sys.argv[1], destination=sys.argv[2], backend="cpu"))
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lock of the test's own: a lab that runs beside the tests must not matter."""
    monkeypatch.setattr(process, "lock_path", lambda: str(tmp_path / "engine.lock"))
    return tmp_path / "engine.lock"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "tree")


@pytest.fixture
def make(tree: Path, said: list[str]) -> Make:
    def run(**changes: Any) -> dict[str, Any]:
        parameters = {"engine": "build", "source": "tree", "tree": str(tree), "build_number": 4711, "backend": "cpu"}
        return build_server(Build(**parameters | changes), say=said.append)

    return run


def version(record: dict[str, Any]) -> str:
    return _ask(Path(record["binary"]), "--version").splitlines()[0]


def test_a_build_leaves_a_binary_and_a_record_beside_it(make: Make, tree: Path, said: list[str]) -> None:
    record = make()
    binary = Path(record["binary"])
    assert json.loads(binary.with_name("build.json").read_text()) == record
    assert record["binary_sha256"] == sha256_of(binary)
    assert record["source"] == {"kind": "tree", "folder": str(tree), "number": 4711, "commit": None, "changed": None}
    assert version(record) == "version: 4711 (unknown)"
    assert "-DLLAMA_BUILD_NUMBER=4711" in record["cmake_arguments"]
    assert record["tools"]["cxx"]["version"].startswith(("GNU ", "clang "))
    assert record["progress"][-1]["done"] == record["progress"][-1]["total"] >= 6
    assert {step["output"].split("/")[-1] for step in record["slowest_steps"]} >= {"llama-server", "main.c.o"}
    assert not binary.with_name("llama-batched-bench").exists()
    assert record["ceiling_binary"] is None
    assert any(line.startswith("compiling: done after") for line in said)


@pytest.mark.full
def test_the_ceiling_is_built_when_asked_for(make: Make) -> None:
    assert Path(make(ceiling=True)["ceiling_binary"]).is_file()


def test_a_step_that_leaves_the_binary_as_it_was_does_not_replace_the_record_of_its_build(make: Make) -> None:
    first = make()
    objects = next((Path(first["binary"]).parents[1]).rglob("main.c.o"))
    objects.unlink()  # one step of several to do again
    again = make()
    assert first["progress"][-1]["total"] > 2
    assert (again["progress"], again["seconds"]) == (first["progress"], first["seconds"])


@pytest.mark.full
def test_a_finished_build_is_not_made_again(make: Make) -> None:
    first = make()
    again = make()
    assert (again["binary_sha256"], again["progress"], again["seconds"]) == (
        first["binary_sha256"], first["progress"], first["seconds"],
    )  # fmt: skip
    assert len(finished_builds()) == 1


@pytest.mark.full
def test_another_number_is_built_in_at_the_same_place(make: Make) -> None:
    first, second = make(), make(build_number=4712)
    assert first["binary"] == second["binary"]
    assert (version(second), second["number"]) == ("version: 4712 (unknown)", 4712)


@pytest.mark.full
def test_a_tree_in_somebody_elses_repository_keeps_its_own_number(make: Make, tmp_path: Path) -> None:
    (tmp_path / "outer").mkdir()
    inside = make_tree(make_repository(tmp_path / "outer", commits=2) / "vendored")
    assert version(make(tree=str(inside))) == "version: 4711 (unknown)"
    unknown = make(tree=str(inside), build_number=None)
    assert unknown["number"] is None
    assert version(unknown) == "version: 0 (unknown)"  # not 2, as git says of the folder


@pytest.mark.full
def test_a_repository_is_built_under_its_own_name(make: Make, tmp_path: Path) -> None:
    upstream = make_repository(make_tree(tmp_path / "upstream"), commits=2)
    commit = git(upstream, "rev-parse", "HEAD")
    record = make(source="git", repo_url=f"file://{upstream}", commit=commit, build_number=None)
    assert version(record) == f"version: 2 ({commit[:9]})"
    assert Path(record["binary"]).parents[2].name == f"{commit[:12]}-cpu"
    assert record["source"]["head"] == commit


def test_the_newest_build_is_what_engine_build_means(make: Make, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"nothing is built yet: .*run notebook 00_build"):
        newest_build()
    make()
    elsewhere = make(destination=str(tmp_path / "elsewhere"))
    assert elsewhere["binary"] == str(tmp_path / "elsewhere" / "build" / "bin" / "llama-server")
    record_path = Path(elsewhere["binary"]).with_name("build.json")
    record_path.write_text(json.dumps(elsewhere | {"finished_at": "9999"}))
    assert newest_build() == Path(elsewhere["binary"])
    with pytest.raises(EngineError, match="llama-server --help ended with exit code 1"):
        _launch("build", {}, [])  # the toy knows no --help: it was the one asked
    Path(elsewhere["binary"]).write_bytes(b"other")
    with pytest.raises(EngineError, match="has changed since it was built"):
        newest_build()
    shutil.rmtree(tmp_path / "elsewhere")
    assert newest_build().is_relative_to(tmp_path / "cache")


@pytest.mark.full
def test_a_record_of_another_schema_is_no_build(make: Make) -> None:
    binary = Path(make()["binary"])
    binary.with_name("build.json").write_text('{"schema_version": 99}')
    assert read_record(binary) is None
    assert finished_builds() == []


def test_a_failing_compile_is_told_by_its_first_error_and_goes_on_when_mended(
    make: Make, tree: Path, said: list[str]
) -> None:
    part = tree / "tools" / "server" / "part2.c"
    good = part.read_text()
    part.write_text("int part2(void) { return nonsense; }\n")
    with pytest.raises(
        EngineError, match=r"the build failed: .*part2\.c:1:.*error: .*nonsense.*run the notebook again"
    ):
        make(jobs=1)
    assert finished_builds() == []
    part.write_text(good)
    record = make(jobs=1)
    assert version(record) == "version: 4711 (unknown)"
    done_before = 7 - record["progress"][-1]["total"]
    assert done_before > 0


@pytest.mark.full
def test_a_failing_configure_is_told_in_cmakes_words(make: Make, tree: Path) -> None:
    (tree / "CMakeLists.txt").write_text('cmake_minimum_required(VERSION 3.14)\nmessage(FATAL_ERROR "not today")\n')
    with pytest.raises(EngineError, match=r"could not configure the build: CMake Error at .*not today.*configure\.log"):
        make()


@pytest.mark.full
def test_a_destination_with_something_else_is_refused_and_left_alone(make: Make, tmp_path: Path) -> None:
    destination = tmp_path / "taken"
    make(destination=str(destination))
    other = make_tree(tmp_path / "other")
    with pytest.raises(EngineError, match=r"taken/build holds a build of .*/tree"):
        make(tree=str(other), destination=str(destination))
    mine = tmp_path / "mine" / "build" / "notes"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    with pytest.raises(EngineError, match=r"mine/build holds something that is no build"):
        make(destination=str(tmp_path / "mine"))
    assert mine.read_text() == "mine"


@pytest.mark.full
def test_two_runs_do_not_build_in_one_folder(make: Make, tmp_path: Path) -> None:
    destination = tmp_path / "shared"
    destination.mkdir()
    with filelock.FileLock(destination / ".lock"), pytest.raises(EngineError, match="another run is building in"):
        make(destination=str(destination))


@pytest.mark.full
def test_a_build_waits_for_no_lab_that_decodes(make: Make, lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process.ServerProcess.__init__, "__kwdefaults__", {"lock_timeout_s": 0.2, "exclusive": True})
    with filelock.FileLock(lock), pytest.raises(EngineBusyError, match="another lab is running"):
        make()


@pytest.fixture
def slow_build(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A build in a process of its own, in the middle of a step that takes 30 s."""
    tree, destination = make_tree(tmp_path / "slow", slow=True), tmp_path / "slow-build"
    command = [sys.executable, "-u", "-c", RUN, str(tree), str(destination)]
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=heed_interrupts,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    deadline = time.monotonic() + 30
    while not sleepers(destination):
        assert running.poll() is None, running.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    yield running, destination
    running.kill()
    running.communicate()


def sleepers(destination: Path) -> list[psutil.Process]:
    """Return every process of a build: what was started with its folder, or in it."""
    found = []
    for one in psutil.process_iter(["cmdline", "cwd"]):
        words = " ".join(one.info["cmdline"] or [])
        if "sleep 30" in words and str(one.info["cwd"]).startswith(str(destination)):
            found.append(one)
    return found


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["interrupt", "kernel killed"])
def test_nothing_of_a_build_outlives_its_kernel_and_the_next_run_goes_on(
    slow_build: tuple[subprocess.Popen[str], Path], number: signal.Signals, make: Make, tmp_path: Path
) -> None:
    running, destination = slow_build
    running.send_signal(number)
    running.wait(10)
    deadline = time.monotonic() + 6
    while sleepers(destination):
        assert time.monotonic() < deadline, "a step of the build still runs"
        time.sleep(0.05)
    make_tree(tmp_path / "slow")  # without the slow step
    record = make(tree=str(tmp_path / "slow"), destination=str(destination), build_number=None)
    assert version(record).startswith("version: 0 ")
    assert record["binary_sha256"] == sha256_of(Path(record["binary"]))


@pytest.mark.full
def test_a_step_that_says_nothing_is_given_up(tmp_path: Path) -> None:
    step = Step("waiting", ["sleep", "60"], tmp_path / "log", silence_limit_s=0.3)
    with pytest.raises(EngineError, match="waiting was given up: it has said nothing for 0 s"):
        run_step(step, print)


@pytest.mark.full
def test_a_step_that_has_done_enough_is_ended(tmp_path: Path, said: list[str]) -> None:
    class Enough(Watcher):
        text = ""

        def look(self, new_text: str) -> str:
            self.text += new_text
            return super().look(new_text)

        @property
        def enough(self) -> bool:
            return "enough" in self.text

    step = Step("talking", ["sh", "-c", "echo enough; sleep 60"], tmp_path / "log")
    ended = run_step(step, said.append, Enough())
    assert (ended.returncode, ended.text) == (None, "enough\n")
    assert said[-1].startswith("talking: done after")


@pytest.mark.full
def test_progress_is_told_every_few_seconds(tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from labkit.engine import steps

    monkeypatch.setattr(steps, "SAY_EVERY_S", 0.2)
    step = Step("counting", ["sh", "-c", "for i in 1 2 3; do echo $i; sleep 0.3; done; exit 3"], tmp_path / "log")
    ended = run_step(step, said.append)
    assert (ended.returncode, ended.last_words) == (3, "3")
    assert len(said) >= 3
    assert said[-1].startswith("counting: ended with exit code 3 after")
