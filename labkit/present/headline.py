"""The verdict at the top of an executed notebook, and the sentences that pictures and tables carry."""

from __future__ import annotations

import html
import shlex
from typing import Any

from IPython.display import HTML, display

from labkit.analyze.verdict import Check, Verdict
from labkit.errors import VerdictError
from labkit.measure.record import Run, recorded_text
from labkit.settings import Setting
from labkit.settings.values import Shown, free_in_replay

MARKS = {"supported": "✔", "refuted": "✘", "inconclusive": "?", "not_tested": "-", "not_run": "…"}
COLOURS = {
    "supported": "#1B7F4B",
    "refuted": "#B3261E",
    "inconclusive": "#8A5A00",
    "not_tested": "#5F6368",
    "not_run": "#5F6368",
}
_STRICT_EXIT = {"refuted": 1, "inconclusive": 4}


class Headline:
    """A display near the notebook's top that the last cell fills.

    Args:
        question: what the notebook asks; shown until there is an answer.
    """

    def __init__(self, question: str) -> None:
        self._display = display(
            HTML(f"<p><em>{html.escape(question)}</em> No verdict yet: it appears here when the notebook has run.</p>"),
            display_id=True,
        )

    def conclude(self, run: Run, verdict: Verdict, *, command: str, strict: bool = False) -> None:
        """Put verdict and summary at the top and here, save the verdict, and close the run.

        Args:
            run: the open run.
            verdict: what came out.
            command: the command that repeats the run.
            strict: raise unless the verdict is "supported".

        Raises:
            VerdictError: strict, and the verdict is another one; all is saved by then.
        """
        run.update(verdict=verdict.to_dict())
        run.close()
        page = HTML(verdict_html(verdict, summary(run.fields, command), recorded=run.recorded))
        if self._display:
            self._display.update(page)
        display(page)
        if strict and verdict.status != "supported":
            raise strict_error(verdict, run)


def strict_error(verdict: Verdict, run: Run) -> VerdictError:
    """Return the error that strict=True raises, with the exit code that belongs to the verdict."""
    worst = next((check for check in verdict.checks if check.status == verdict.status), verdict.checks[0])
    error = VerdictError(
        f"the verdict is {verdict.status}, and strict is on",
        why=f"{worst.claim}: {worst.why}",
        hint=worst.hint or str(run.folder),
    )
    error.exit_code = _STRICT_EXIT[verdict.status]
    return error


def summary(fields: dict[str, Any], command: str) -> list[tuple[str, str]]:
    """Return the three lines a reader of a ticket needs: build and model, hardware, how to repeat it."""
    server: dict[str, Any] = next((arm["server"] for arm in fields["arms"].values() if "server" in arm), {})
    build, model, machine = server.get("build", {}), server.get("model", {}), fields["provenance"]
    engine = f"llama.cpp b{build.get('number', '?')} ({build.get('package', 'unknown')})"
    facts = model.get("facts", {})
    digest = f"{model['sha256'][:12]}…" if model.get("sha256") else "unknown"
    file = f"{facts.get('name')} {facts.get('quantisation') or ''}, sha256 {digest}".replace(" ,", ",")
    memory = machine["memory_bytes"] / 2**30
    gpus = ", ".join(gpu["name"] for gpu in machine["gpus"]) or "no NVIDIA GPU"
    hardware = f"{machine['cpu']}, {machine['cores']} cores, {memory:.0f} GiB, {gpus}; {machine['os']}"
    where = "Hardware of the client" if server.get("attached") else "Hardware"
    lines = [("Engine and model", f"{engine} · {file}"), (where, hardware), ("Repeat it", command)]
    if recorded := fields.get("recorded"):
        text = f"{recorded_text(recorded)}. No engine was started for this page, and nothing was measured"
        lines.insert(0, ("Recorded", text))
    return lines


def verdict_html(verdict: Verdict, lines: list[tuple[str, str]], *, recorded: bool = False) -> str:
    """Return verdict, checks and summary as HTML with inline styles (GitHub and nbconvert keep those).

    Args:
        verdict: with its checks.
        lines: of summary().
        recorded: it was judged from a recorded run.
    """
    colour = COLOURS[verdict.status]
    head = "".join(f'<th style="text-align:left">{name}</th>' for name in ("", "claim", "expected", "observed", "why"))
    rows = "".join(_check_row(check) for check in verdict.checks)
    facts = "<br>".join(f"<b>{html.escape(name)}:</b> {_value(name, text)}" for name, text in lines)
    return (
        f'<div style="border-left:6px solid {colour};padding:4px 14px">'
        f'<p style="font-size:130%;margin:4px 0"><b style="color:{colour}">{MARKS[verdict.status]} '
        f"Verdict: {html.escape(verdict.status)}</b>{' · <b>recorded</b>' * recorded}</p>"
        f"<table><thead><tr>{head}</tr></thead>"
        f"<tbody>{rows}</tbody></table><p>{facts}</p></div>"
    )


def _value(name: str, text: str) -> str:
    escaped = html.escape(text)
    return f"<code>{escaped}</code>" if name == "Repeat it" else escaped


def _check_row(check: Check) -> str:
    # observed and why may quote a server's words, which are untrusted
    why = f"{check.why}. To decide it: {check.hint}" if check.hint else check.why
    cells = [check.claim, check.expected, check.observed, why]
    status = f'<b style="color:{COLOURS[check.status]}">{MARKS[check.status]} {check.status.replace("_", " ")}</b>'
    texts = "".join(f'<td style="text-align:left">{html.escape(cell)}</td>' for cell in cells)
    return f'<tr><td style="text-align:left;white-space:nowrap">{status}</td>{texts}</tr>'


def repeat_command(notebook: str, parameters: Setting) -> str:
    """Return the papermill command that repeats a run, or its replay: what differs from the defaults, spelled out.

    Args:
        notebook: its name without ending.
        parameters: what the run had.
    """
    words = ["papermill", f"notebooks/{notebook}.ipynb", f"outputs/{notebook}.again.ipynb"]
    replaying = isinstance(parameters, Shown) and bool(parameters.replay)
    for name, field in type(parameters).model_fields.items():
        value = getattr(parameters, name)
        if value != field.default and (free_in_replay(name) or not replaying):
            words += ["-y", f"{name}: {list(value)}"] if isinstance(value, tuple) else ["-p", name, str(value)]
    return shlex.join(words)
