"""A server that somebody else started: looked at, never stopped, never reconfigured, loaded only when told to."""

from __future__ import annotations

import asyncio
import re
import shlex
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from labkit.engine.awake import awake
from labkit.engine.binary import number_of
from labkit.engine.effective import effective_values
from labkit.engine.flags import from_argv
from labkit.engine.gguf_facts import GgufFacts
from labkit.engine.http import Address, Answer, http_client, look
from labkit.engine.key import KEY_FILE_VARIABLE, KEY_VARIABLE, api_key, key_header
from labkit.engine.models import DEFAULT, ModelFile
from labkit.engine.server import Server
from labkit.engine.untrusted import items, mapping, text, texts, whole
from labkit.errors import EngineError, ParameterError, ServerNotReadyError
from labkit.settings import AttachSettings, ServerSettings

LOOK_LIMIT_S = 10.0
_RETRY_EVERY_S = 0.5
_PROGRESS_EVERY_S = 5.0


@asynccontextmanager
async def attach_server(
    url: str,
    *,
    model: str = DEFAULT,
    attach: AttachSettings | None = None,
    load_timeout_s: float = 120.0,
    say: Callable[[str], None] = print,
) -> AsyncIterator[Server]:
    """Look at a server that is there already; leaving the block does nothing to it.

    Only endpoints that cost it nothing are asked: a sleeping server stays asleep, a router loads no model.

    Args:
        url: where it answers; http or https, a path before the endpoints is kept.
        model: which model of a router; of no account for a server with one model.
        attach: whether load may be put on it, its limits, and its command line if it is known.
        load_timeout_s: how long to wait while it loads its model.
        say: gets progress lines and what should be known of it.

    Raises:
        ParameterError: the URL or the command line can't be used, or a router needs a model's name.
        EngineError: nothing answers, what answers is no llama-server, or it refuses us.
        ServerNotReadyError: it loads its model for too long.
        IdentityError: /slots and /props contradict each other.
    """
    attach = attach or AttachSettings()
    said = _said(attach.server_argv)
    base_url, key = _base(url), api_key()
    async with http_client(Address(base_url, key_header(key)), timeout_s=LOOK_LIMIT_S) as client:
        visit = _Visit(client, base_url, has_key=key is not None)
        await visit.until_ready(load_timeout_s, say)
        seen = await visit.look_around(model)
    server = Server(
        base_url=base_url,
        asked={name: (said or {}).get(name) for name in ServerSettings.model_fields},
        model=seen.model,
        model_id=seen.model_id,
        key=key,
        effective=effective_values(seen.props, seen.slots, said=said),
        build=seen.build,
        llama_server_command=attach.server_argv,
        attach=attach,
        query=seen.query,
        notes=seen.notes,
        slots_readable=visit.slots_readable,
    )
    for note in server.notes:
        say(note)
    async with awake():
        yield server


def _base(url: str) -> str:
    # the settings have refused what may be a secret in it; even so it is not repeated
    try:
        parsed = httpx.URL(url)
        host = parsed.host  # decoded now
    except (httpx.InvalidURL, UnicodeError):
        raise ParameterError("engine is no URL that can be used", hint="http://127.0.0.1:8080") from None
    if not host:
        raise ParameterError("engine is a URL without a host", hint="http://127.0.0.1:8080")
    # OpenAI clients are given the URL with /v1; llama-server's own endpoints lie beside it
    return re.sub(r"/v1$", "", str(parsed).rstrip("/"))


def _said(server_argv: str) -> dict[str, Any] | None:
    """Return what a typed command line sets, by field; None where there is none.

    Raises:
        ParameterError: it can't be split, or is no single command.
    """
    if not server_argv:
        return None
    try:
        words = shlex.split(server_argv)
    except ValueError as error:
        raise ParameterError("server_argv is no command line", why=str(error)) from None
    return from_argv(words)[0]


@dataclass(frozen=True)
class _Seen:
    """What a visit found out."""

    props: dict[str, Any]
    slots: list[dict[str, Any]]
    model: ModelFile
    model_id: str
    build: dict[str, Any]
    query: dict[str, str]
    notes: list[str]


class _Visit:
    """One look around at an address."""

    def __init__(self, client: httpx.AsyncClient, base_url: str, *, has_key: bool) -> None:
        self._client, self._base_url, self._has_key = client, base_url, has_key
        self._notes: list[str] = []
        self.slots_readable = False

    async def until_ready(self, limit_s: float, say: Callable[[str], None]) -> None:
        """Wait while it says that it loads its model; anything else is decided at once."""
        started_s, said_s = time.monotonic(), 0.0
        while True:
            health = await look(self._client, "/health")
            elapsed_s = time.monotonic() - started_s
            if health.status != 503:
                break
            if elapsed_s > limit_s:
                raise ServerNotReadyError(
                    f"{self._base_url} was not ready within {limit_s:.0f} s",
                    why="/health answers 503: loading the model",
                    hint="a larger load_timeout_s, or a look at the server's own log",
                )
            if elapsed_s - said_s >= _PROGRESS_EVERY_S:
                said_s = elapsed_s
                say(f"{self._base_url} is loading its model, {elapsed_s:.0f} s")
            await asyncio.sleep(_RETRY_EVERY_S)
        # a proxy may hide /health: what answers is decided by the other endpoints
        if health.problem:
            raise EngineError(f"{self._base_url} can't be used", why=health.problem, hint=_remedy(health.problem))
        self._refuse_elsewhere(health)

    def _refuse_elsewhere(self, answer: Answer) -> None:
        if answer.location:
            raise EngineError(
                f"{self._base_url} sends us elsewhere",
                why=f"it answers {answer.status} to {answer.location[:200]}",
                hint="the address of the server itself",
            )

    async def look_around(self, model: str) -> _Seen:
        listed = await look(self._client, "/v1/models")
        root = await look(self._client, "/props")
        entries = _entries(listed.json)
        self._refuse_stranger(root, listed, entries)
        query, entry = self._route(root, entries, model)
        props = await self._props(root, query)
        slots = await self._slots(props, query)
        self._note_metrics(props)
        build_info = text(props.get("build_info"))
        return _Seen(
            props=props,
            slots=slots,
            model=_remote_model(props, entry),
            model_id=query.get("model") or entry.get("id") or text(props.get("model_alias")) or "unknown",
            build={
                "reported": build_info,
                "package": f"a server at {self._base_url}",
                "number": number_of(build_info),
                "number_source": "build_info in /props" if number_of(build_info) else None,
            },
            query=query,
            notes=self._notes,
        )

    def _refuse_stranger(self, root: Answer, listed: Answer, entries: list[dict[str, Any]]) -> None:
        """Make sure that this is a llama-server, or a router or a proxy before one."""
        for answer in (root, listed):
            self._refuse_unauthorised(answer)
            self._refuse_elsewhere(answer)
        owners = {text(entry.get("owned_by")) or "nobody" for entry in entries}
        props = mapping(root.json)
        if "llamacpp" in owners or "build_info" in props or "total_slots" in props or "llama.cpp" in root.server:
            return
        found = f"its models are owned by {', '.join(sorted(owners))[:100]}" if owners else f"/props: {root.text}"
        raise EngineError(
            f"what answers at {self._base_url} is not a llama-server",
            why=f"{found}; /v1/models: {listed.text}",
            hint="the URL of a llama-server, with any path that stands before its endpoints",
        )

    def _refuse_unauthorised(self, answer: Answer) -> None:
        if answer.status == 401:
            said = "refuses this API key" if self._has_key else "wants an API key"
            raise EngineError(
                f"{self._base_url} {said}",
                why="401: a key is needed for /props, /slots and /metrics; /health alone is open",
                hint=f"the server's key in the environment variable {KEY_VARIABLE}, or a file in {KEY_FILE_VARIABLE}",
            )
        if answer.status == 403:
            raise EngineError(
                f"{self._base_url} refuses us",
                why=f"403, which llama-server itself never answers: from {answer.server or 'a proxy'}",
                hint="the address of the server itself, or a rule in the proxy",
            )

    def _route(self, root: Answer, entries: list[dict[str, Any]], model: str) -> tuple[dict[str, str], dict[str, Any]]:
        """Return what every request must carry to find the model behind a router, and the model's entry."""
        props = mapping(root.json)
        router = props.get("role") == "router" or any(entry["status"] for entry in entries)
        if not router and "model name is missing" not in root.body.decode("utf-8", "replace"):
            return {}, entries[0] if entries else {}
        names = [entry["id"] for entry in entries]
        entry = next((e for e in entries if model == e["id"] or model in e["aliases"]), None)
        if entry is None:
            raise ParameterError(
                f"{self._base_url} is a router with {len(names)} models, and model = {model!r} is none of them",
                hint=f"model = one of: {', '.join(names)[:500]}" if names else "load a model there first",
            )
        state = text(entry["status"].get("value")) or "unknown"
        if state != "loaded":
            raise EngineError(
                f"the router at {self._base_url} has not loaded {entry['id']}",
                why=f"its state is {state}, and looking at it would load it",
                hint="load it yourself first, or choose another model",
            )
        self._notes.append(f"{self._base_url} is a router; what is measured is its model {entry['id']}")
        return {"model": entry["id"], "autoload": "false"}, entry

    async def _props(self, root: Answer, query: dict[str, str]) -> dict[str, Any]:
        answer = await look(self._client, "/props", query) if query else root
        self._refuse_unauthorised(answer)
        if isinstance(answer.json, dict):
            return answer.json
        self._notes.append(f"/props: {answer.text}: slots, context and build are not known from it")
        return {}

    async def _slots(self, props: dict[str, Any], query: dict[str, str]) -> list[dict[str, Any]]:
        if props.get("is_sleeping"):
            self._notes.append("the server is asleep: /slots was not asked, since that would wake it")
            return []
        if props.get("endpoint_slots") is False:
            self._notes.append("the server was started without /slots (--no-slots): it can't be seen who owns a slot")
            return []
        answer = await look(self._client, "/slots", query)
        slots = answer.json
        if isinstance(slots, list) and all(isinstance(slot, dict) for slot in slots):
            self.slots_readable = True
            return slots
        what = f"{answer.text}, but no list of slots" if slots is not None else answer.text
        hidden = "; a proxy may hide it" if answer.status in (200, 403, 404) else ""
        self._notes.append(f"/slots: {what}{hidden}: it can't be seen who owns a slot")
        return []

    def _note_metrics(self, props: dict[str, Any]) -> None:
        if props.get("endpoint_metrics") is False:
            self._notes.append("the server was started without --metrics: requests without a slot are not counted")


def _remedy(problem: str) -> str:
    if "certificate" in problem:
        return "a certificate that this machine trusts; a private authority's in the file that SSL_CERT_FILE names"
    if "TLS" in problem or "HTTP" in problem:
        return "http:// instead of https://, or the other way round"
    return "is the server running, and is this its address and port?"


def _entries(models: Any) -> list[dict[str, Any]]:
    """Return the models of /v1/models that have a name, with what is used of each in its expected type."""
    named = [entry for entry in items(mapping(models).get("data")) if text(entry.get("id"))]
    return [entry | {name: kind(entry.get(name)) for name, kind in _ENTRY_TYPES.items()} for entry in named]


_ENTRY_TYPES: dict[str, Callable[[Any], Any]] = {"aliases": texts, "status": mapping, "meta": mapping}


def _remote_model(props: dict[str, Any], entry: dict[str, Any]) -> ModelFile:
    """Return what a server says of its model; the file itself can't be seen from here, so it has no hash."""
    meta = mapping(entry.get("meta"))
    name = entry.get("id") or text(props.get("model_alias")) or "unknown"
    facts = GgufFacts(
        architecture="unknown",
        name=name,
        n_layers=None,
        n_heads=None,
        n_kv_heads=None,
        head_size_k=None,
        head_size_v=None,
        n_embd=whole(meta.get("n_embd")),
        n_ctx_train=whole(meta.get("n_ctx_train"), least=1),
        quantisation=text(props.get("model_ftype")) or text(meta.get("ftype")),
        sliding_window=None,
        # without /props the chat endpoint is the better guess: it is what proxies let through
        has_chat_template=bool(props.get("chat_template", True)),
    )
    return ModelFile(name, None, None, None, "as its server says", "unknown", facts)
