"""The one table from a setting to llama-server's flag and to the embedded engine's attribute.

A flag is spelled nowhere else. Every flag that matters is always passed, since llama-server's autos
mean other things than the same values given: without `--parallel` it takes 4 slots and a unified KV
cache whatever `--no-kv-unified` says (tools/server/server.cpp, seen live on b10229).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from labkit.errors import EngineError
from labkit.settings import ServerSettings


@dataclass(frozen=True)
class Option:
    """One setting in both engines' words.

    Args:
        field: name in ServerSettings, or of a start-up fact (model_path, alias, port, ...).
        flag: llama-server's flag.
        attributes: names in xllamacpp's CommonParams, by build; the first that exists is set.
        switch: the flag takes no value; it is there or `off_flag` is.
        off_flag: the flag that says no; empty where leaving `flag` out says it.
        encode: from our value to the attribute's value.
    """

    field: str
    flag: str
    attributes: tuple[str, ...]
    switch: bool = False
    off_flag: str = ""
    encode: Callable[[Any], Any] = lambda value: value


def _minus_one_if_auto(value: Any) -> Any:
    return -1 if value == "auto" else value


OPTIONS = (
    Option("model_path", "--model", ("model.path",)),
    Option("alias", "--alias", ("model_alias",), encode=lambda alias: [alias]),
    Option("host", "--host", ("hostname", "hostnames")),
    Option("port", "--port", ("port",)),
    Option("gpu_layers", "--n-gpu-layers", ("n_gpu_layers",), encode=_minus_one_if_auto),
    Option("ctx_size", "--ctx-size", ("n_ctx",)),
    Option("parallel", "--parallel", ("n_parallel",), encode=_minus_one_if_auto),
    Option("kv_unified", "--kv-unified", ("kv_unified",), switch=True, off_flag="--no-kv-unified"),
    Option("cont_batching", "--cont-batching", ("cont_batching",), switch=True, off_flag="--no-cont-batching"),
    Option("batch_size", "--batch-size", ("n_batch",)),
    Option("ubatch_size", "--ubatch-size", ("n_ubatch",)),
    Option("threads", "--threads", ("cpuparams.n_threads",)),
    Option("threads", "--threads-batch", ("cpuparams_batch.n_threads",)),
    Option("threads_http", "--threads-http", ("n_threads_http",)),
    Option("cache_type_k", "--cache-type-k", ("cache_type_k",), encode=lambda name: {"ggml_type": name}),
    Option("cache_type_v", "--cache-type-v", ("cache_type_v",), encode=lambda name: {"ggml_type": name}),
    Option("flash_attn", "--flash-attn", ("flash_attn_type",), encode=lambda mode: {"flash_attn": mode}),
    Option("cache_ram", "--cache-ram", ("cache_ram_mib",)),
    Option("slots_endpoint", "--slots", ("endpoint_slots",), switch=True, off_flag="--no-slots"),
    Option("metrics_endpoint", "--metrics", ("endpoint_metrics",), switch=True),
    Option("cors_origins", "--cors-origins", ("cors_origins",)),
    Option("ui", "--ui", ("ui", "webui"), switch=True, off_flag="--no-ui"),
    Option("verbosity", "-lv", ("verbosity",)),
)

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


def to_argv(values: dict[str, Any], *, binary: str = "llama-server") -> list[str]:
    """Return the llama-server command line for start_values(), an argument each.

    Raises:
        EngineError: extra_args repeats a flag of the table.
    """
    argv = [binary]
    for option in OPTIONS:
        value = values.get(option.field)
        if value is None:
            continue
        if option.switch:
            argv += [flag for flag in [option.flag if value else option.off_flag] if flag]
        else:
            argv += [option.flag, str(value)]
    return argv + _extra(values.get("extra_args", ()))


def _extra(extra_args: tuple[str, ...]) -> list[str]:
    known = {flag for option in OPTIONS for flag in (option.flag, option.off_flag)}
    taken = sorted({arg.split("=")[0].replace("_", "-") for arg in extra_args} & known)
    if taken:
        raise EngineError(
            f"extra_args can't set {', '.join(taken)}",
            why="labkit passes it itself",
            hint="the parameter of that name",
        )
    return list(extra_args)


def to_attributes(values: dict[str, Any]) -> list[dict[str, Any]]:
    """Return start_values() for the embedded engine: attribute names to try and the value, as JSON data.

    Raises:
        EngineError: extra_args is set, which only a binary can take.
    """
    if values.get("extra_args"):
        raise EngineError(
            "the embedded engine takes no extra_args",
            why="it has no command line",
            hint="engine = a path to llama-server",
        )
    attributes = []
    for option in OPTIONS:
        value = values.get(option.field)
        if value is None and option.field != "parallel":
            continue
        attributes.append(
            {
                "names": list(option.attributes),
                "value": option.encode("auto" if value is None else value),
                "optional": option.field in OPTIONAL_FIELDS,
            }
        )
    return attributes
