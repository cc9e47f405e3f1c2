"""The one table from a setting to llama-server's flag and to the embedded engine's attribute.

A flag is spelled nowhere else. Every flag that matters is always passed, since llama-server's autos
mean other things than the same values given: without `--parallel` it takes 4 slots and a unified KV
cache whatever `--no-kv-unified` says (tools/server/server.cpp, seen live on b10229).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from labkit.errors import EngineError, ParameterError
from labkit.settings import ServerSettings


@dataclass(frozen=True)
class Option:
    """One setting in both engines' words.

    Args:
        field: name in ServerSettings, or of a start-up fact (model_path, alias, port, ...).
        flag: llama-server's flag.
        attributes: names in xllamacpp's CommonParams, by build; the first that exists is set.
        short: the flag's other spellings (common/arg.cpp).
        env: the environment variable that acts as the flag (common/arg.cpp).
        switch: the flag takes no value; it is there or `off_flag` is.
        off_flag: the flag that says no; empty where leaving `flag` out says it.
        off_short: the other spellings of `off_flag`.
        encode: from our value to the attribute's value.
    """

    field: str
    flag: str
    attributes: tuple[str, ...]
    short: tuple[str, ...] = ()
    env: str = ""
    switch: bool = False
    off_flag: str = ""
    off_short: tuple[str, ...] = ()
    encode: Callable[[Any], Any] = lambda value: value

    @property
    def on(self) -> tuple[str, ...]:
        """Every spelling that sets it."""
        return (self.flag, *self.short)

    @property
    def off(self) -> tuple[str, ...]:
        """Every spelling that says no."""
        return (self.off_flag, *self.off_short) if self.off_flag else ()


def _minus_one_if_auto(value: Any) -> Any:
    return -1 if value == "auto" else value


def _switch(field: str, flag: str, attributes: tuple[str, ...], **more: Any) -> Option:
    off = more.pop("off_flag", "--no-" + flag.removeprefix("--"))
    return Option(field, flag, attributes, switch=True, off_flag=off, **more)


OPTIONS = (
    Option("model_path", "--model", ("model.path",), ("-m",), "LLAMA_ARG_MODEL"),
    Option("alias", "--alias", ("model_alias",), ("-a",), "LLAMA_ARG_ALIAS", encode=lambda alias: [alias]),
    Option("host", "--host", ("hostname", "hostnames"), (), "LLAMA_ARG_HOST"),
    Option("port", "--port", ("port",), (), "LLAMA_ARG_PORT"),
    Option(
        "gpu_layers",
        "--n-gpu-layers",
        ("n_gpu_layers",),
        ("-ngl", "--gpu-layers"),
        "LLAMA_ARG_N_GPU_LAYERS",
        encode=_minus_one_if_auto,
    ),
    Option("ctx_size", "--ctx-size", ("n_ctx",), ("-c",), "LLAMA_ARG_CTX_SIZE"),
    Option("parallel", "--parallel", ("n_parallel",), ("-np",), "LLAMA_ARG_N_PARALLEL", encode=_minus_one_if_auto),
    _switch(
        "kv_unified",
        "--kv-unified",
        ("kv_unified",),
        short=("-kvu",),
        off_short=("-no-kvu",),
        env="LLAMA_ARG_KV_UNIFIED",
    ),
    Option("kv_unified_per_slot", "--kv-unified-per-slot", ("kv_unified_per_slot",)),
    _switch(
        "cont_batching",
        "--cont-batching",
        ("cont_batching",),
        short=("-cb",),
        off_short=("-nocb",),
        env="LLAMA_ARG_CONT_BATCHING",
    ),
    Option("batch_size", "--batch-size", ("n_batch",), ("-b",), "LLAMA_ARG_BATCH"),
    Option("ubatch_size", "--ubatch-size", ("n_ubatch",), ("-ub",), "LLAMA_ARG_UBATCH"),
    Option("threads", "--threads", ("cpuparams.n_threads",), ("-t",), "LLAMA_ARG_THREADS"),
    Option("threads", "--threads-batch", ("cpuparams_batch.n_threads",), ("-tb",)),
    Option("threads_http", "--threads-http", ("n_threads_http",), (), "LLAMA_ARG_THREADS_HTTP"),
    Option(
        "cache_type_k",
        "--cache-type-k",
        ("cache_type_k",),
        ("-ctk",),
        "LLAMA_ARG_CACHE_TYPE_K",
        encode=lambda name: {"ggml_type": name},
    ),
    Option(
        "cache_type_v",
        "--cache-type-v",
        ("cache_type_v",),
        ("-ctv",),
        "LLAMA_ARG_CACHE_TYPE_V",
        encode=lambda name: {"ggml_type": name},
    ),
    Option(
        "flash_attn",
        "--flash-attn",
        ("flash_attn_type",),
        ("-fa",),
        "LLAMA_ARG_FLASH_ATTN",
        encode=lambda mode: {"flash_attn": mode},
    ),
    Option("cache_ram", "--cache-ram", ("cache_ram_mib",), ("-cram",), "LLAMA_ARG_CACHE_RAM"),
    _switch("slots_endpoint", "--slots", ("endpoint_slots",), env="LLAMA_ARG_ENDPOINT_SLOTS"),
    _switch("metrics_endpoint", "--metrics", ("endpoint_metrics",), off_flag="", env="LLAMA_ARG_ENDPOINT_METRICS"),
    Option("cors_origins", "--cors-origins", ("cors_origins",), (), "LLAMA_ARG_CORS_ORIGINS"),
    _switch("ui", "--ui", ("ui", "webui"), short=("--webui",), off_short=("--no-webui",), env="LLAMA_ARG_UI"),
    Option("verbosity", "-lv", ("verbosity",), ("--verbosity", "--log-verbosity"), "LLAMA_ARG_LOG_VERBOSITY"),
)

# Without these nothing of what is asked for could be measured: a binary that lacks one is refused.
ESSENTIAL_FIELDS = {
    "model_path", "alias", "host", "port", "ctx_size", "parallel", "kv_unified", "cont_batching", "batch_size",
    "ubatch_size",
}  # fmt: skip

# A program that lists this flag is a llama-server; llama.cpp's other tools call it otherwise or lack it.
TELLTALE = "--cont-batching"

# Not for the user to set. Verbosity 4 is where llama.cpp says how large its KV buffer is
# (common/log.cpp); the origin limit keeps web pages from calling the server.
FIXED = {"cors_origins": "localhost", "ui": False, "verbosity": 4}

# Attributes that some builds lack and that change nothing measured.
OPTIONAL_FIELDS = {"cors_origins", "ui"}


def start_values(settings: ServerSettings, *, model_path: str, alias: str, port: int) -> dict[str, Any]:
    """Return every value a server is started with, by field; None means: the flag is left out."""
    values = settings.model_dump() | FIXED | {"model_path": model_path, "alias": alias, "port": port}
    if settings.parallel == "auto":
        # with the slot count left to the server it decides the KV mode as well
        values |= {"parallel": None, "kv_unified": None}
    return values


def to_argv(
    values: dict[str, Any], *, binary: str = "llama-server", known: frozenset[str] | None = None
) -> tuple[list[str], list[str]]:
    """Return the llama-server command line for start_values(), an argument each, and the flags left out.

    Args:
        values: of start_values().
        binary: the command.
        known: every flag that the binary knows; None: all. One that it doesn't know is left out.

    Raises:
        EngineError: extra_args sets a flag of the table, the binary lacks an essential flag, or one
            that was asked for with another value than the default.
    """
    argv, left_out = [binary], []
    for option in OPTIONS:
        value = values.get(option.field)
        spellings = option.off if option.switch and not value else option.on
        if value is None or not spellings:
            continue
        flag = next((flag for flag in spellings if known is None or flag in known), None)
        if flag is None:
            _refuse_if_needed(option, value, spellings[0])
            left_out.append(spellings[0])
        else:
            argv += [flag] if option.switch else [flag, str(value)]
    return argv + _extra(values.get("extra_args", ())), left_out


def _refuse_if_needed(option: Option, value: Any, flag: str) -> None:
    asked = option.field in ServerSettings.model_fields and value != ServerSettings.model_fields[option.field].default
    # threads are filled in by this kit, never asked for by their default
    if option.field in ESSENTIAL_FIELDS or (asked and option.field != "threads"):
        raise EngineError(
            f"this llama-server does not know {flag}",
            why=f"{option.field} = {value} can't be passed to it",
            hint="a newer build of llama-server" if option.field in ESSENTIAL_FIELDS else f"leave {option.field} out",
        )


def _extra(extra_args: tuple[str, ...]) -> list[str]:
    flags = {_spelled(arg) for arg in extra_args if arg.startswith("-")}
    if taken := sorted(flags & set(_BY_SPELLING)):
        raise EngineError(
            f"extra_args can't set {', '.join(taken)}",
            why="labkit passes it itself",
            hint="the parameter of that name",
        )
    return list(extra_args)


def _spelled(arg: str) -> str:
    # llama.cpp takes _ for - in long flags (common/arg.cpp)
    flag = arg.split("=")[0]
    return flag.replace("_", "-") if flag.startswith("--") else flag


def from_argv(words: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Read a llama-server command line by the table: values by field, and the words it doesn't know.

    LLAMA_ARG_* variables may stand before the first flag, as in a shell; a flag wins over its variable and
    a later flag over an earlier one (common/arg.cpp). Numbers become int; "auto" stays.

    Args:
        words: one command, a word each; with or without the command itself.

    Raises:
        ParameterError: a flag's value is missing, or this is no command that llama-server would take.
    """
    values: dict[str, Any] = {}
    rest: list[str] = []
    seen_flag = False
    following = iter(words)
    for word in following:
        _refuse_shell(word)
        option, on = _BY_SPELLING.get(_spelled(word), (None, True))
        seen_flag = seen_flag or word.startswith("-")
        if option is None:
            if not seen_flag and word.startswith("LLAMA_ARG_") and "=" in word:
                values |= from_environment(dict([word.split("=", 1)]))
            rest.append(word)
        elif option.switch:
            values[option.field] = on
        else:
            value = _value_after(word, next(following, None))
            if option.flag != "--threads-batch":
                values[option.field] = value
    return values, rest


def _refuse_shell(word: str) -> None:
    """Refuse what would make another command of it than the one that is read here."""
    flag, _, value = word.partition("=")
    joined = re.fullmatch(r"(-[a-z]+)(\d+)", word)
    if (value and _spelled(flag) in _BY_SPELLING) or (joined and joined[1] in _BY_SPELLING):
        raise ParameterError(f"llama-server does not take {word[:40]}", why="a value stands after a space", hint=flag)
    if word in ("&&", "||", "|", "#", "--", "export") or word.endswith(";") or word.startswith("Environment="):
        raise ParameterError(
            f"{word[:40]!r} does not belong into one command line",
            hint="LLAMA_ARG_* variables, the command and its flags alone, as they would stand in a shell",
        )


def _value_after(flag: str, value: str | None) -> int | str:
    if value is None or (value.startswith("-") and not re.fullmatch(r"-\d+", value)):
        raise ParameterError(f"{flag} stands without its value")
    _refuse_shell(value)
    return _number(value)


def from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return what LLAMA_ARG_* variables set, by field (common/arg.cpp: each acts as its flag).

    A variable with NO_ in it, LLAMA_ARG_NO_KV_UNIFIED say, switches off whatever its value is.

    Args:
        environment: variables by name.
    """
    values: dict[str, Any] = {}
    for option in OPTIONS:
        if option.env in environment:
            text = environment[option.env]
            values[option.field] = text.lower() in _TRUE if option.switch else _number(text)
        if option.switch and option.env.replace("LLAMA_ARG_", "LLAMA_ARG_NO_") in environment:
            values[option.field] = False
    return values


_TRUE = ("on", "enabled", "true", "1")
_BY_SPELLING = {word: (option, True) for option in OPTIONS for word in option.on} | {
    word: (option, False) for option in OPTIONS for word in option.off
}


def _number(text: str) -> int | str:
    return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else text


def to_attributes(values: dict[str, Any]) -> list[dict[str, Any]]:
    """Return values for the embedded engine: attribute names to try and the value, as JSON data.

    Args:
        values: of start_values(), or some of them. What isn't among them keeps CommonParams' own default; so does
            None, but for `parallel`: left to the server it is llama-server's auto, which is no default there.

    Raises:
        EngineError: extra_args is set, which only a binary can take.
    """
    if values.get("extra_args"):
        raise EngineError(
            "the embedded engine takes no extra_args",
            why="it has no command line",
            hint="engine = a path to llama-server",
        )
    told = {name: "auto" if name == "parallel" and value is None else value for name, value in values.items()}
    return [
        {
            "names": list(option.attributes),
            "value": option.encode(told[option.field]),
            "optional": option.field in OPTIONAL_FIELDS,
        }
        for option in OPTIONS
        if told.get(option.field) is not None
    ]
