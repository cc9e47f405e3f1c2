"""Where the source of a build comes from: a commit of a repository, an sdist, or a folder that is there.

Whatever lies at the destination already is used if it is the same, and refused if it isn't; it is never
overwritten.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.engine import git
from labkit.errors import EngineError

_LISTS = "CMakeLists.txt"


@dataclass(frozen=True)
class Source:
    """A source tree that is there and known.

    Args:
        kind: "git", "sdist" or "tree".
        folder: with llama.cpp's CMakeLists.txt.
        number: build number to pass in; None: not known.
        commit: commit to pass in; None: not known.
        facts: what the record keeps of it: asked and found.
    """

    kind: str
    folder: Path
    number: int | None
    commit: str | None
    facts: dict[str, Any] = field(default_factory=dict)

    def describe(self) -> dict[str, Any]:
        """Return it as the record keeps it."""
        return {
            "kind": self.kind, "folder": str(self.folder), "number": self.number, "commit": self.commit
        } | self.facts  # fmt: skip


def git_source(
    url: str, commit: str, folder: Path, *, log_path: Path, say: Callable[[str], None], silence_limit_s: float = 600.0
) -> Source:
    """Check out one commit, without the files of any other, and make sure that HEAD is that commit.

    Args:
        url: of the repository.
        commit: 40 digits.
        folder: where the checkout goes, or is.
        log_path: file for what git prints.
        say: gets progress lines.
        silence_limit_s: a clone that says nothing for so long is given up.

    Raises:
        EngineError: there is no git, the repository or the commit can't be had, or the folder holds
            something else.
    """
    git.require_git()
    if not _is_empty(folder):
        _refuse_other_checkout(folder, commit)
        say(f"{folder} holds {commit[:12]} already")
    else:
        git.clone(url, commit, folder, log_path=log_path, say=say, silence_limit_s=silence_limit_s)
    head = git.ask(folder, "rev-parse", "HEAD")
    facts = {"repo_url": url, "asked_commit": commit, "head": head, "upstream_head": git.upstream_head(url)}
    return Source("git", _with_lists(folder), git.commit_count(folder), head, facts)


def _refuse_other_checkout(folder: Path, commit: str) -> None:
    another = "another `destination`, or remove it yourself"
    if not git.is_own_repository(folder):
        raise EngineError(f"{folder} is there, and is no checkout of its own", hint=another)
    head = git.ask(folder, "rev-parse", "HEAD")
    if head != commit:
        raise EngineError(f"{folder} holds the commit {head}, not {commit}", hint=another)
    changed = git.ask(folder, "status", "--porcelain")
    if changed:
        files = ", ".join(line[3:] for line in changed.splitlines()[:3])
        raise EngineError(
            f"{folder} holds changes that are in no commit",
            why=f"git status names {files}",
            hint=f'{another}; for a tree of your own: source = "tree"',
        )


def tree_source(folder: Path, number: int | None) -> Source:
    """Take a folder as it is; it is only read.

    Args:
        folder: with llama.cpp's CMakeLists.txt.
        number: its build number, if the user knows it; otherwise its own repository may tell.

    Raises:
        EngineError: there is no such folder, or no llama.cpp in it.
    """
    folder = folder.expanduser().resolve()
    if not folder.is_dir():
        raise EngineError(f"the source tree {folder} does not exist", hint="`tree` = a folder with llama.cpp in it")
    commit, changed = None, None
    if git.is_own_repository(folder):
        commit, changed = git.ask(folder, "rev-parse", "HEAD"), bool(git.ask(folder, "status", "--porcelain"))
        number = number if number is not None else git.commit_count(folder)
    return Source("tree", _with_lists(folder), number, commit, {"changed": changed})


def _with_lists(folder: Path) -> Path:
    if not (folder / _LISTS).is_file() or not (folder / "tools" / "server").is_dir():
        raise EngineError(
            f"{folder} is not llama.cpp's source", why=f"no {_LISTS} and tools/server in it", hint="its top folder"
        )
    return folder


def _is_empty(folder: Path) -> bool:
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
