"""Source by git: one commit of a repository on disk; what is there already is kept, or refused."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from labkit.engine.git import NOT_LOOKED_UP, commit_count, is_own_repository, name_by_surroundings
from labkit.engine.source import Source, git_source, tree_source
from labkit.errors import EngineError
from tests.toy_tree import git, make_repository, make_tree

Fetch = Callable[..., Source]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return make_repository(make_tree(tmp_path / "upstream"), commits=3)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "build" / "source"


@pytest.fixture
def fetch(repository: Path, place: Path, tmp_path: Path, said: list[str]) -> Fetch:
    def run(**changes: Any) -> Source:
        url, folder = changes.get("url", f"file://{repository}"), changes.get("folder", place)
        commit = changes.get("commit") or git(repository, "rev-parse", "HEAD")
        return git_source(url, commit, folder, log_path=tmp_path / "git.log", say=said.append)

    return run


def test_the_commit_is_checked_out_and_named(fetch: Fetch, repository: Path, place: Path, said: list[str]) -> None:
    older = git(repository, "rev-parse", "HEAD~1")
    source = fetch(commit=older)
    assert (source.kind, source.folder, source.commit) == ("git", place, older)
    assert source.number == 2  # commits from the first: what llama.cpp numbers its builds by
    assert source.facts["head"] == older
    assert source.facts["upstream_head"] == git(repository, "rev-parse", "HEAD")
    assert (place / "NOTES").read_text() == "1\n"
    assert [line.split(":")[0] for line in said] == ["cloning", "checking out"]
    assert sorted(path.name for path in place.parent.iterdir()) == ["source"]


@pytest.mark.full
def test_the_same_commit_is_not_fetched_again(fetch: Fetch, repository: Path, said: list[str]) -> None:
    first = fetch()
    said.clear()
    shutil.move(repository, repository.with_name("gone"))
    again = fetch(commit=first.commit)
    assert again.commit == first.commit
    assert again.facts["upstream_head"] == NOT_LOOKED_UP
    assert said == [f"{again.folder} holds {str(first.commit)[:12]} already"]


def test_another_commit_at_the_destination_is_refused_and_left_alone(
    fetch: Fetch, repository: Path, place: Path
) -> None:
    head = fetch().commit
    with pytest.raises(EngineError, match=rf"holds the commit {head}, not .* another `destination`"):
        fetch(commit=git(repository, "rev-parse", "HEAD~2"))
    assert git(place, "rev-parse", "HEAD") == head


@pytest.mark.full
@pytest.mark.parametrize("name", ["NOTES", "new.c"], ids=["changed", "added"])
def test_changes_that_are_in_no_commit_are_refused_and_left_alone(fetch: Fetch, place: Path, name: str) -> None:
    fetch()
    (place / name).write_text("mine\n")
    with pytest.raises(EngineError, match=rf"changes that are in no commit: git status names {name}"):
        fetch()
    assert (place / name).read_text() == "mine\n"


@pytest.mark.full
def test_a_folder_that_is_no_checkout_is_refused_also_inside_a_repository(
    fetch: Fetch, repository: Path, tmp_path: Path
) -> None:
    inside = tmp_path / "upstream" / "inside"
    inside.mkdir()
    (inside / "file").write_text("mine\n")
    with pytest.raises(EngineError, match="is there, and is no checkout of its own"):
        fetch(folder=inside)
    assert (inside / "file").read_text() == "mine\n"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"commit": "0" * 40}, r"the commit 0{40} can't be checked out: .*is it a commit of"),
        ({"url": "file:///no/such/repository"}, r"can't be cloned: fatal: .*source = \"sdist\""),
        ({"url": "ext::sh -c true"}, r"can't be cloned: fatal: .*not allowed"),
    ],
    ids=["no such commit", "no such repository", "a command as address"],
)
def test_what_cannot_be_had_leaves_nothing(fetch: Fetch, place: Path, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(EngineError, match=sentence):
        fetch(**changes)
    assert not list(place.parent.iterdir())


@pytest.mark.full
def test_no_git_is_one_sentence(fetch: Fetch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = "1" * 40
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match=r"there is no git here. Try: apt install git, or source = \"sdist\""):
        git_source("file:///x", commit, tmp_path / "s", log_path=tmp_path / "log", say=print)


@pytest.mark.full
def test_a_repository_that_is_no_llama_cpp_is_refused(fetch: Fetch, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = make_repository(tmp_path / "other")
    with pytest.raises(EngineError, match=r"is not llama.cpp's source: no CMakeLists\.txt"):
        fetch(url=f"file://{other}", commit=git(other, "rev-parse", "HEAD"))


@pytest.mark.full
def test_a_variable_of_git_does_not_mislead(
    fetch: Fetch, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = git(repository, "rev-parse", "HEAD~1")
    monkeypatch.setenv("GIT_DIR", str(repository / ".git"))
    assert fetch(commit=commit).facts["head"] == commit
    assert os.environ["GIT_DIR"]


@pytest.mark.full
def test_a_cut_history_gives_no_number(repository: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "--quiet", "--depth", "1", f"file://{repository}", "shallow")
    assert (commit_count(repository), commit_count(tmp_path / "shallow")) == (3, None)


@pytest.mark.full
def test_a_tree_inside_another_repository_has_no_name_of_its_own(repository: Path) -> None:
    tree = make_tree(repository / "vendored")
    source = tree_source(tree, None)
    assert (source.number, source.commit, source.facts["changed"]) == (None, None, None)
    assert not is_own_repository(tree)
    # what llama.cpp's own build would take for its name
    assert name_by_surroundings(tree) == f"b3-{git(repository, 'rev-parse', '--short', 'HEAD')}"


@pytest.mark.full
def test_a_tree_says_what_its_own_repository_says(repository: Path, tmp_path: Path) -> None:
    source = tree_source(repository, None)
    assert (source.number, source.commit) == (3, git(repository, "rev-parse", "HEAD"))
    assert source.facts["changed"] is False
    (repository / "NOTES").write_text("mine\n")
    changed = tree_source(repository, 77)
    assert (changed.number, changed.facts["changed"]) == (77, True)
    with pytest.raises(EngineError, match="does not exist"):
        tree_source(tmp_path / "nowhere", None)
