"""Fetches a GGUF file of a Hugging Face hub with the optional library huggingface_hub.

Cache, locks, endpoint and token are the library's own: HF_HOME or HF_HUB_CACHE, HF_ENDPOINT, and HF_TOKEN or
`hf auth login` hold. It works in a process of its own, which reads these anew at each fetch and can be ended at
any moment. The token reaches it in the environment alone; of an error, only what can't hold a token is told.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.engine.fetch import FETCH_LIMIT_S
from labkit.engine.hub_child import ELSE, FORM
from labkit.errors import ModelError

PREFIX = "hf:"
_PROGRESS_EVERY_S, _END_GRACE_S = 2.0, 1.0
_REFERENCE = re.compile(r"hf:([\w.-]+/[\w.-]+)/([^@\\]+\.gguf)(?:@([^\s@\\]+))?")


@dataclass(frozen=True)
class HubFile:
    """A file in the library's cache; `revision` is the commit it is of."""

    path: Path
    repo_id: str
    filename: str
    revision: str

    @property
    def source(self) -> str:
        """The reference that will always mean this very file."""
        return f"{PREFIX}{self.repo_id}/{self.filename}@{self.revision}"

    @property
    def blob(self) -> Path:
        """Where the cache keeps its bytes, under the name of the hub's ETag."""
        return self.path.parent / self.path.readlink() if self.path.is_symlink() else self.path

    @property
    def announced_sha256(self) -> str | None:
        """The sha256 that the hub has announced: the ETag of every large file."""
        return self.blob.name if re.fullmatch("[0-9a-f]{64}", self.blob.name) else None


def fetch_from_hub(reference: str, say: Callable[[str], None], stop: threading.Event) -> HubFile:
    """Return a file of a hub, fetching it if the library's cache hasn't got it.

    Safe when two runs fetch at once and when one is killed half-way. Without a network, the cache has to do.

    Args:
        reference: hf:org/repo/file.gguf, with @revision at its end if it isn't on the main branch.
        say: gets progress lines.
        stop: ends the fetch when it is set.

    Raises:
        ModelError: no such file, no access to it, no network, not done in time, or no huggingface_hub.
    """
    repo, file, revision = _parts(reference)
    if importlib.util.find_spec("huggingface_hub") is None:
        raise ModelError("hf: needs huggingface_hub", hint="pip install -e '.[hub]' in the project's folder")
    told = _told_by_child(repo, file, revision, say, stop)
    if "path" not in told:
        raise ModelError(told["what"], why=told["why"], hint=told["hint"])
    path = Path(told["path"])
    found = HubFile(path, repo, file, revision=path.parents[file.count("/")].name)
    if "unasked" in told:
        say(f"the hub can't be asked ({told['unasked']}): using the cached {found.source}")
    return found


def _parts(reference: str) -> tuple[str, str, str]:
    match = _REFERENCE.fullmatch(reference)
    # the library makes folders of all of it
    if match is None or {"", ".", ".."} & set("/".join(filter(None, match.groups())).split("/")):
        raise ModelError(f"{reference!r} names no GGUF file of a hub", hint=FORM)
    return match[1], match[2], match[3] or "main"


def _told_by_child(
    repo: str, file: str, revision: str, say: Callable[[str], None], stop: threading.Event
) -> dict[str, Any]:
    told: dict[str, Any] = {
        "what": f"{file} was not fetched",
        "why": "its process was ended",
        "hint": f"again, {ELSE}",
    }
    # without Xet every endpoint will do; stderr could name signed addresses
    with subprocess.Popen(
        [sys.executable, "-m", "labkit.engine.hub_child", repo, file, revision],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"},
        start_new_session=True,  # an interrupt of the kernel goes to its whole process group
    ) as child:
        listener = threading.Thread(target=_listen, args=(child, told), daemon=True)
        listener.start()
        try:
            _wait(child, told, f"{Path(file).name} from {repo}", say, stop)
        finally:
            _end(child)
            listener.join()
    return told


def _listen(child: subprocess.Popen[bytes], told: dict[str, Any]) -> None:
    for line in child.stdout or ():
        told.update(json.loads(line))


def _wait(
    child: subprocess.Popen[bytes], told: dict[str, Any], what: str, say: Callable[[str], None], stop: threading.Event
) -> None:
    started, said_s = time.monotonic(), 0.0
    while child.poll() is None:
        elapsed_s = time.monotonic() - started
        if stop.is_set() or elapsed_s > FETCH_LIMIT_S:
            why = "interrupted" if stop.is_set() else f"not done within {FETCH_LIMIT_S:.0f} s"
            raise ModelError(f"{what} was not fetched", why=why, hint=f"again, {ELSE}")
        if elapsed_s - said_s >= _PROGRESS_EVERY_S:
            said_s = elapsed_s
            size = (
                f"{told['n_done'] / 1e6:.0f} of {told['n_bytes'] / 1e6:.0f} MB" if "n_done" in told else "no bytes yet"
            )
            say(f"fetching {what}: {size}, {elapsed_s:.0f} s")
        stop.wait(0.05)


def _end(child: subprocess.Popen[bytes]) -> None:
    assert child.stdin is not None
    child.stdin.close()  # told so, it takes its half of a file away; the time to look up a name may be in its way
    with suppress(subprocess.TimeoutExpired):
        child.wait(_END_GRACE_S)
    child.kill()
