"""What a server's settings mean, shown before anything starts: in a panel while knobs turn, and as a table."""

from __future__ import annotations

import html
from dataclasses import asdict
from typing import Any

from labkit.analyze.choices import choices, choices_table, kv_text
from labkit.engine.models import ModelFile, resolve_model
from labkit.engine.preview import preview_command
from labkit.measure.record import read_run_json, recorded_folder
from labkit.present.show import table
from labkit.settings import ServerSettings, Setting
from labkit.settings.values import Shown


def server_part(params: Setting) -> ServerSettings:
    """Return the server's settings among a notebook's parameters; what it doesn't have is the default.

    Args:
        params: of any notebook.
    """
    given = params.model_dump()
    return ServerSettings(**{name: given[name] for name in ServerSettings.model_fields if given.get(name) is not None})


def preview(params: Setting) -> None:
    """Display the command line, cells, bytes and warnings of a notebook's server, before it starts.

    This is what the panel shows while its knobs turn, for those who have no panel.

    Args:
        params: of the notebook.

    Raises:
        ModelError: there is no such model.
        EngineError: extra_args sets a flag that a parameter is for.
    """
    settings = server_part(params)
    if isinstance(params, Shown) and params.replay:
        _preview_recorded(settings, params.replay)
    elif not settings.attached:
        _preview(settings)


def _preview(settings: ServerSettings) -> None:
    model = resolve_model(settings.model)
    table(choices_table(choices(settings, asdict(model.facts)), preview_command(settings, str(model.path))))


def _preview_recorded(settings: ServerSettings, replay: str) -> None:
    """Display the same of a recorded run, from its record: there may be no model here, and no engine."""
    arms = read_run_json(recorded_folder(replay))["arms"].values()
    server: dict[str, Any] = next((arm["server"] for arm in arms if "server" in arm), {})
    if not server.get("attached") and (facts := server.get("model", {}).get("facts")):
        table(choices_table(choices(settings, facts), server["llama_server_command"]))


def preview_html(settings: ServerSettings, model: ModelFile | None) -> str:
    """Return the same as HTML for a panel.

    Args:
        settings: of the server.
        model: its file and header facts; None: they are known when it has been fetched.

    Raises:
        EngineError: extra_args sets a flag that a parameter is for, or there is no build yet.
    """
    found = choices(settings, asdict(model.facts) if model else {})
    facts = {
        "slots": str(found.context.slots),
        "KV cells in all": f"{found.context.pool_cells:,}",
        "KV cells a slot may use": f"{found.context.slot_cells:,}",
        "KV memory": kv_text(found.kv),
    }
    command = preview_command(settings, str((model and model.path) or settings.model))
    shown = "".join(f"<div><span>{html.escape(k)}</span><b>{html.escape(v)}</b></div>" for k, v in facts.items())
    mind = "".join(f'<div class="labkit-warning">{html.escape(text)}</div>' for text in found.warnings)
    return (
        f'<div class="labkit-preview"><code>{html.escape(command)}</code>'
        f'<div class="labkit-facts">{shown}</div>{mind}</div>'
    )
