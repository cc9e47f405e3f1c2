"""Shows charts and tables so that they are seen everywhere: JupyterLab, GitHub, VS Code, plain HTML.

A chart becomes a PNG (rendered here, no browser, no network) beside its text summary; its Vega-Lite
specification goes to the run folder. Altair's own renderers would need a CDN or a front-end extension.
"""

from __future__ import annotations

import html
import io
import json
from typing import Any

from IPython.display import display
from PIL import Image

from labkit.measure.record import Run

SCALE = 2
COLOURS = 256


def png(specification: dict[str, Any]) -> bytes:
    """Render a chart at twice its size, as a small PNG.

    Args:
        specification: Vega-Lite, from an Altair chart's to_dict().
    """
    import vl_convert

    raw = vl_convert.vegalite_to_png(specification, scale=SCALE)
    # flat colours survive a palette; vl-convert's own files are 15 times larger
    image = Image.open(io.BytesIO(raw)).convert("RGB")
    packed = io.BytesIO()
    fast = Image.Quantize.MAXCOVERAGE
    image.quantize(COLOURS, method=fast, dither=Image.Dither.NONE).save(packed, "PNG", compress_level=9)
    return packed.getvalue()


def show(chart: Any, reading: str, *, run: Run | None = None, name: str = "chart") -> None:
    """Display a chart in the notebook as image and text, and its reading under it.

    Args:
        chart: an Altair chart.
        reading: what the picture says, in words with numbers; its alt text too.
        run: keeps its specification, as `name`.vl.json, if given.
        name: file name without ending.

    Raises:
        RecordError: the run folder can't be written.
    """
    specification = chart.to_dict(validate=False)
    image = png(specification)
    width, height = Image.open(io.BytesIO(image)).size
    size = {"width": width // SCALE, "height": height // SCALE}
    if run:
        run.save(f"{name}.vl.json", json.dumps(specification))
    bundle = {"image/png": image, "text/plain": reading}
    # the name of the specification lets a report draw the picture anew, without limits of resolution
    display(bundle, raw=True, metadata={"image/png": size | {"alt": reading}, "labkit": {"chart": name}})
    read_out(reading)


def read_out(text: str) -> None:
    """Display a sentence; it may quote a server, so it is escaped."""
    page = f'<p style="max-width:60em">{html.escape(text)}</p>'
    display({"text/html": page, "text/plain": text}, raw=True)


def table(frame: Any) -> None:
    """Display a frame as a plain table, missing values as a dash, numbers to three digits."""
    page, text = table_html(frame)
    display({"text/html": page, "text/plain": text}, raw=True)


def table_html(frame: Any) -> tuple[str, str]:
    """Return a frame as that table, in HTML and in plain text."""
    shown = frame.astype(object).where(frame.notna(), "-")
    shown = shown.map(lambda value: f"{value:.3f}" if isinstance(value, float) else str(value))
    numeric = [column for column in frame if frame[column].dtype.kind in "iuf"]
    style = "text-align:{};white-space:nowrap;padding:2px 12px"
    align = {column: style.format("right" if column in numeric else "left") for column in frame}
    head = "".join(f'<th style="{align[c]}">{html.escape(str(c))}</th>' for c in frame)
    rows = ["".join(f'<td style="{align[c]}">{html.escape(row[c])}</td>' for c in frame) for _, row in shown.iterrows()]
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>", shown.to_string(index=False)
