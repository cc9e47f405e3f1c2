"""What a build asks of git: clone one commit, say what a folder holds, and what a repository has at its head."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from labkit.engine.steps import Step, run_step
from labkit.errors import EngineError

ASK_LIMIT_S = 60.0
LOOK_UP_LIMIT_S = 20.0
NOT_LOOKED_UP = "not looked up"
# set by git for its hooks, and by people; each would make git look at another repository than the one named
_MISLEADING = (
    "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR", "GIT_NAMESPACE",
)  # fmt: skip
_ENVIRONMENT = dict.fromkeys(_MISLEADING, "") | {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "true",
    "GIT_SSH_COMMAND": "ssh -o BatchMode=yes",
    "GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh",
    "LC_ALL": "C",
}


def require_git() -> None:
    """Make sure that there is a git.

    Raises:
        EngineError: there is none.
    """
    try:
        subprocess.run(["git", "--version"], capture_output=True, timeout=ASK_LIMIT_S, check=True)  # noqa: S607
    except (OSError, subprocess.SubprocessError):
        raise EngineError(
            "there is no git here", hint='apt install git, or source = "sdist", which needs a package index alone'
        ) from None


def clone(
    url: str, commit: str, folder: Path, *, log_path: Path, say: Callable[[str], None], silence_limit_s: float
) -> None:
    """Check out one commit into a new folder, without the files of any other commit.

    Args:
        url: of the repository.
        commit: 40 digits.
        folder: not there, or empty.
        log_path: file for what git prints.
        say: gets progress lines.
        silence_limit_s: a step that says nothing for so long is given up.

    Raises:
        EngineError: the repository or the commit can't be had.
    """
    # under a name of its own until it is complete: an interrupted clone is no checkout
    staging = folder.with_name(f"{folder.name}.cloning-{os.getpid()}")
    options = ["-c", "core.hooksPath=/dev/null", "-c", "core.autocrlf=false", "-c", "advice.detachedHead=false"]
    cloning = ["git", *options, "clone", "--filter=blob:none", "--no-checkout", "--no-tags", "--progress", "--", url]
    checking = ["git", *options, "-C", str(staging), "checkout", "--detach", "--progress", commit, "--"]
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        ended = run_step(_step("cloning", [*cloning, str(staging)], log_path, silence_limit_s), say)
        if ended.returncode != 0:
            raise EngineError(
                f"{url} can't be cloned",
                why=_reason(ended.text) or ended.last_words,
                hint='is the address right, and is there a network? source = "sdist" needs a package index alone',
            )
        ended = run_step(_step("checking out", checking, log_path, silence_limit_s), say)
        if ended.returncode != 0:
            raise EngineError(
                f"the commit {commit} can't be checked out",
                why=_reason(ended.text) or ended.last_words,
                hint=f"is it a commit of {url}?",
            )
        folder.rmdir() if folder.is_dir() else None
        staging.rename(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _step(name: str, argv: list[str], log_path: Path, silence_limit_s: float) -> Step:
    return Step(name, argv, log_path, env=_ENVIRONMENT, silence_limit_s=silence_limit_s)


def _reason(text: str) -> str:
    """Return what git calls fatal; the remote's own words come before it."""
    lines = text.replace("\r", "\n").splitlines()
    return " ".join(line.strip() for line in lines if line.startswith(("fatal:", "error:", "remote: error")))[:300]


def is_own_repository(folder: Path) -> bool:
    """Whether a folder is the top of a repository; one inside another repository is not."""
    try:
        return Path(ask(folder, "rev-parse", "--show-toplevel")).resolve() == folder.resolve()
    except EngineError:
        return False


def commit_count(folder: Path) -> int | None:
    """Return the build number of a checkout: its commits from the first; None for one with a cut history."""
    if ask(folder, "rev-parse", "--is-shallow-repository") == "true":
        return None
    return int(ask(folder, "rev-list", "--count", "HEAD"))


def upstream_head(url: str) -> str:
    """Return the commit at the head of a repository now; "not looked up" if it can't be asked."""
    try:
        told = ask(Path.cwd(), "ls-remote", "--symref", "--", url, "HEAD", limit_s=LOOK_UP_LIMIT_S)
    except EngineError:
        return NOT_LOOKED_UP
    heads = [line.split()[0] for line in told.splitlines() if line.endswith("\tHEAD") and not line.startswith("ref:")]
    return heads[0] if heads else NOT_LOOKED_UP


def name_by_surroundings(folder: Path) -> str:
    """Return what llama.cpp's build would call itself if nothing were passed in.

    It asks git in the source folder, and git answers for any repository around it (cmake/build-info.cmake).
    """
    try:
        return f"b{ask(folder, 'rev-list', '--count', 'HEAD')}-{ask(folder, 'rev-parse', '--short', 'HEAD')}"
    except EngineError:
        return "b0-unknown"


def ask(folder: Path, *arguments: str, limit_s: float = ASK_LIMIT_S) -> str:
    """Ask git something about a folder and return its answer.

    Args:
        folder: where.
        arguments: of git.
        limit_s: how long it may take.

    Raises:
        EngineError: it fails or gives no answer.
    """
    environment = {name: value for name, value in (os.environ | _ENVIRONMENT).items() if value}
    try:
        asked = subprocess.run(
            ["git", "-C", str(folder), *arguments],  # noqa: S607
            capture_output=True, text=True, errors="replace", timeout=limit_s, env=environment,
            stdin=subprocess.DEVNULL, start_new_session=True, check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise EngineError(f"git {arguments[0]} in {folder} gives no answer", why=type(error).__name__) from None
    if asked.returncode != 0:
        raise EngineError(f"git {arguments[0]} in {folder} failed", why=_reason(asked.stderr))
    return asked.stdout.rstrip()
