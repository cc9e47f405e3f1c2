"""One run as one HTML file: verdict, pictures, record, then the notebook with its code folded.

Nothing in it is loaded from anywhere: pictures are inside, there is no script, and a content security policy in
its head forbids both, whatever a server's words may contain.
"""

from __future__ import annotations

import base64
import html
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import nbformat

from labkit.analyze.verdict import Check, Verdict
from labkit.present.headline import repeat_command, summary, verdict_html
from labkit.present.judges import judge_of

TEMPLATES = Path(__file__).parent / "template"
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_SHOWN = ("image/png", "text/html", "text/plain")
SVG_LIMIT_BYTES = 500_000
_ARMS_SHOWN = 4
_TITLE = re.compile(r"^# (.+)$", re.MULTILINE)


def page_of(notebook: Path, run: dict[str, Any], folder: Path | None) -> str:
    """Return the page of one executed notebook.

    Args:
        notebook: the executed copy.
        run: its run.json; empty where there is none.
        folder: with the pictures' specifications; where one is missing, the notebook's own picture is taken.
    """
    node = nbformat.read(notebook, as_version=4)
    title = title_of(node, notebook.stem)
    figures = _take_pictures(node, folder)
    parts = [
        f"<h1>{html.escape(title)}</h1>{_lead(run)}",
        f'<div class="verdict">{_verdict(run) or _no_verdict(node)}</div>',
        _section("Pictures", "".join(figures)),
        _section("The record", _record(run, folder)),
        _section("The notebook, cell by cell", _cells(node, drop_verdict=bool(_verdict(run)))),
    ]
    return document(title, "".join(parts))


def document(title: str, body: str) -> str:
    """Return a whole HTML page with our style and no way out.

    Args:
        title: of the window.
        body: HTML.
    """
    from pygments.formatters import HtmlFormatter

    style = (TEMPLATES / "page.css").read_text(encoding="utf-8") + HtmlFormatter().get_style_defs(".highlight")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{style}</style></head><body>{body}</body></html>\n"
    )


def title_of(node: Any, otherwise: str) -> str:
    """Return a notebook's first heading."""
    texts = (_TITLE.search(cell.source) for cell in node.cells if cell.cell_type == "markdown")
    return next((found[1] for found in texts if found), otherwise)


def command_of(run: dict[str, Any]) -> str:
    """Return the command that repeats a run; empty where its parameters are not those of a notebook of ours."""
    with suppress(Exception):  # a record of another version may have other parameters
        return repeat_command(run["notebook"], judge_of(run["notebook"]).model(**run["parameters"]))
    return ""


def facts_of(run: dict[str, Any]) -> list[tuple[str, str]]:
    """Return engine and model, hardware and the command that repeats it; what a record lacks is left out."""
    with suppress(KeyError, TypeError):
        facts = summary(run, command_of(run))
        servers = any("server" in arm for arm in run["arms"].values())
        return [(name, text) for name, text in facts if text and (servers or name != "Engine and model")]
    return []


def recorded_of(run: dict[str, Any]) -> str:
    """Return the sentence that marks a replay; empty for a run that was measured."""
    first = run.get("recorded")
    if not first:
        return ""
    what = f"replayed from run {first.get('run_id')}, measured {first.get('started_at')}"
    return f"Recorded: {what}; nothing was measured now"


def _lead(run: dict[str, Any]) -> str:
    if not run:
        return ""
    when = f"{run.get('started_at', '')} · run {run.get('run_id')}"
    recorded = f'<p class="recorded">{html.escape(text)}</p>' if (text := recorded_of(run)) else ""
    return f'<p class="lead">{html.escape(when)}</p>{recorded}'


def _verdict(run: dict[str, Any]) -> str:
    checks = run.get("verdict", {}).get("checks")
    if not checks:
        return ""
    return verdict_html(Verdict(tuple(Check(**check) for check in checks)), facts_of(run))


def _no_verdict(node: Any) -> str:
    errors = [out for cell in node.cells for out in cell.get("outputs", []) if out.output_type == "error"]
    why = f"{errors[-1].ename}: {errors[-1].evalue}" if errors else "it was not run to its end"
    return f"<div><p><b>No verdict.</b> {html.escape(why)}</p></div>"


def _section(title: str, body: str) -> str:
    return f"<h2>{title}</h2>{body}" if body else ""


def _take_pictures(node: Any, folder: Path | None) -> list[str]:
    """Return the pictures as figures, and leave their numbers in the notebook."""
    figures: list[str] = []
    for output in (output for cell in node.cells for output in cell.get("outputs", [])):
        if "image/png" not in output.get("data", {}):
            continue
        number = len(figures) + 1
        alt = output.metadata.get("image/png", {}).get("alt", "")
        source = _drawn(output, folder) or f"data:image/png;base64,{output.data['image/png'].strip()}"
        output.metadata.setdefault("labkit", {})["number"] = number
        figures.append(_figure(number, source, alt))
    return figures


def _figure(number: int, source: str, alt: str) -> str:
    text = html.escape(alt)
    image = f'<img alt="{text}" src="{source}">'
    return f'<figure id="picture-{number}">{image}<figcaption><b>{number}</b> {text}</figcaption></figure>'


def _drawn(output: Any, folder: Path | None) -> str:
    """Draw a picture anew as SVG: sharp on any screen and on paper. As an image, nothing in it can run."""
    name = output.metadata.get("labkit", {}).get("chart")
    path = folder / f"{Path(name).name}.vl.json" if folder and name else None
    if path is None or not path.is_file():
        return ""
    import vl_convert

    with suppress(ValueError):  # a specification that a newer Altair wrote
        svg = vl_convert.vegalite_to_svg(json.loads(path.read_text(encoding="utf-8")))
        # thousands of marks: the image that is there is as sharp on a screen, and a tenth of the size
        if len(svg) < SVG_LIMIT_BYTES:
            return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
    return ""


def _record(run: dict[str, Any], folder: Path | None) -> str:
    if not run:
        return ""
    from labkit.analyze.effective import settings_table
    from labkit.present.show import table_html

    arms = [(name, arm) for name, arm in run.get("arms", {}).items() if arm.get("server")]
    parts = []
    for name, arm in arms[:_ARMS_SHOWN]:
        with suppress(KeyError, TypeError):  # a record of another version
            parts.append(_arm(name, arm, table_html(settings_table(arm["server"]))[0]))
    return "".join([*parts, _more_arms(len(arms) - _ARMS_SHOWN), _files(folder)])


def _arm(name: str, arm: dict[str, Any], table: str) -> str:
    command = html.escape(arm["server"].get("llama_server_command") or "")
    title = html.escape(f"{name}: {arm['title']}" if arm.get("title") else name)
    return f'<h3>{title}</h3><div class="wide">{table}</div><p><code>{command}</code></p>'


def _more_arms(more: int) -> str:
    return f'<p class="pale">and {more} servers more: see run.json</p>' if more > 0 else ""


def _files(folder: Path | None) -> str:
    if folder is None:
        return ""
    sizes = [f"{path.name} ({path.stat().st_size / 1024:.0f} KB)" for path in sorted(folder.iterdir())]
    return f'<p class="pale">Files of the run: {html.escape(", ".join(sizes))}</p>'


def _cells(node: Any, *, drop_verdict: bool) -> str:
    from nbconvert import HTMLExporter

    for cell in node.cells:
        if cell.cell_type != "code":
            continue
        at_the_top = drop_verdict and ("lab.Headline(" in cell.source or ".conclude(" in cell.source)
        cell.outputs = [_kept(output) for output in cell.outputs if not (at_the_top and "data" in output)]
    exporter = HTMLExporter(template_name="labkit", extra_template_basedirs=[str(TEMPLATES)])
    body, _ = exporter.from_notebook_node(node)
    return str(body)


def _kept(output: Any) -> Any:
    """Leave what can be seen without a kernel and without a script."""
    if "data" in output:
        output.data = {kind: output.data[kind] for kind in _SHOWN if kind in output.data}
    return output
