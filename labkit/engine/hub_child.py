"""The process that fetches from a hub: `python -m labkit.engine.hub_child REPO FILE REVISION`.

Tells its parent, a JSON line each, how far it has come and how it ended; ends when its stdin does.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

FORM = "hf:org/repo/folder/file.gguf, with @ and a branch, tag or commit at its end if it isn't on main"
ELSE, _LOGIN = "or give a path to a GGUF file as `model`", "`hf auth login` or HF_TOKEN in the environment"
# by the library's exceptions and _kind(): what, why, and what to try
_SENTENCES = {
    "GatedRepoError": ("{repo} is gated", "", f"ask for access on its page, then {_LOGIN}"),
    "RepositoryNotFoundError": ("{repo} is not on {host}, or private", "", f"its spelling, or {_LOGIN}"),
    "RevisionNotFoundError": ("{repo} has no revision {revision}", "", "a branch, tag or commit of it after the @"),
    "RemoteEntryNotFoundError": ("{repo} has no {file} at {revision}", "", "a name from the list of files on its page"),
    "FileMetadataError": ("{host} is not a hub", "it tells no commit or no ETag", f"another HF_ENDPOINT, {ELSE}"),
    "OfflineModeIsEnabled": ("{file} of {repo} is not in the cache", "HF_HUB_OFFLINE is set", f"unset it, {ELSE}"),
    "HFValidationError": ("{repo} can't be a repository's name", "", FORM),
    "ImportError": ("huggingface_hub can't be used", "{reason}", "the version that requirements.txt pins"),
    "refused": ("{host} refuses to give {file} of {repo}", "{reason}", f"an account that may read it: {_LOGIN}"),
    "answer": ("{host} does not give {file} of {repo}", "{reason}", f"another HF_ENDPOINT, {ELSE}"),
    "busy": ("{host} can't give {file} of {repo} now", "{reason}", f"again later, {ELSE}"),
    "size": ("{file} came with another size than {host} announced", "", f"again, {ELSE}"),
    "disk": ("{file} can't be kept in the library's cache", "{reason}", "HF_HOME = a folder you can write, with space"),
    "unreached": ("{file} can't be fetched from {host}", "{reason}", f"the network, a proxy, HF_ENDPOINT, {ELSE}"),
}


class _Progress:
    """Stands in for the library's progress bar."""

    def __init__(self, *, total: int | None = None, initial: int = 0, **_: Any) -> None:
        self.n_bytes, self.n_done = total or 0, initial
        self.update(0)

    def update(self, n_more: int) -> None:
        self.n_done += n_more
        _tell({"n_done": self.n_done, "n_bytes": self.n_bytes})

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _tell(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def _fetch(repo: str, file: str, revision: str) -> dict[str, str]:
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_download, hf_hub_url, try_to_load_from_cache

    constants.DOWNLOAD_CHUNK_SIZE = 1 << 20  # 10 MB at a time are seldom progress
    kept = try_to_load_from_cache(repo, file, revision=revision)
    if isinstance(kept, str) and re.fullmatch("[0-9a-f]{40}", revision):
        return {"path": kept}
    try:
        # asked beforehand: hf_hub_download tries an endpoint that is down for half a minute
        get_hf_file_metadata(hf_hub_url(repo, file, revision=revision))
    except Exception as error:
        if isinstance(kept, str) and _kind(error) in ("busy", "unreached", "OfflineModeIsEnabled"):
            return {"path": kept, "unasked": _explained(error, repo, file, revision)["why"]}
        raise
    return {"path": hf_hub_download(repo, file, revision=revision, tqdm_class=_Progress)}


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _status(error: Exception) -> int | None:
    return next((link.response.status_code for link in _chain(error) if hasattr(link, "response")), None)


def _kind(error: Exception) -> str:
    names = (kind.__name__ for link in _chain(error) for kind in type(link).__mro__)
    named, status = next((name for name in names if name in _SENTENCES), None), _status(error)
    if named or status is None:
        own = "disk" if isinstance(error, OSError) and error.errno else "unreached"
        return named or ("size" if "Consistency check" in str(error) else own)
    return "refused" if status in (401, 403) else "busy" if status >= 500 or status in (408, 429) else "answer"


def _reason(error: Exception) -> str:
    # an exception's own text may hold a header: the reason of the operating system's can't
    strerrors = (link.strerror for link in _chain(error) if isinstance(link, OSError) and link.strerror)
    status = _status(error)
    return f"it answers {status}" if status else next(strerrors, type(error).__name__)


def _explained(error: Exception, repo: str, file: str, revision: str) -> dict[str, str]:
    # a mirror's address may hold a password in front of its @
    host = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co").netloc.rpartition("@")[2]
    names = {"repo": repo, "file": file, "revision": revision, "host": host or "HF_ENDPOINT", "reason": _reason(error)}
    sentence = (part.format(**names) for part in _SENTENCES[_kind(error)])
    return dict(zip(("what", "why", "hint"), sentence, strict=True))


def _end_with_parent() -> None:
    os.read(0, 1)  # nothing comes: it returns when the parent closes the pipe, or is gone
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def main() -> None:
    """Fetch what the command line names and tell the parent, for as long as it listens."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        _tell(_fetch(*sys.argv[1:]))
    except Exception as error:
        _tell(_explained(error, *sys.argv[1:]))


if __name__ == "__main__":
    main()
