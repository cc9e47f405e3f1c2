"""Colours and chart settings that every picture shares: one colour for one request everywhere.

Okabe and Ito's palette: told apart by colour-blind readers; dark first, so that grey prints keep order.
"""

from __future__ import annotations

import re
from typing import Any

REQUEST_COLOURS = {
    "A": "#0072B2",
    "B": "#D55E00",
    "C": "#009E73",
    "D": "#AA4499",
    "E": "#B38600",
    "F": "#4477AA",
    "G": "#882255",
    "H": "#117733",
    "I": "#5B3A29",
}
# the tenth request and those after it take the nine hues again, darker, then lighter: names beside the marks
# tell them apart where colours can't
_ROUNDS = ((0, 0.0), (0, 0.45), (255, 0.30))
FOREIGN_COLOUR = "#8C8C8C"
INK, QUIET_INK, RULE = "#1A1A1A", "#5F6368", "#E3E5E8"
FAILED_COLOUR = "#B3261E"
CROSS = "M-.7,-.7L.7,.7M-.7,.7L.7,-.7"  # a mark's shape
WIDTH = 900


def colour(label: str) -> str:
    """Return a request's colour; grey for a foreign task.

    Args:
        label: A to I have colours of their own; J to Z, Z27, Z28, ... take shades of these.
    """
    found = re.fullmatch(r"([A-Z])|Z(\d\d)", label)
    if found is None:
        return FOREIGN_COLOUR
    number = ord(label) - ord("A") if found[1] else int(found[2]) - 1
    turn, hue = divmod(number, len(REQUEST_COLOURS))
    shade, share = _ROUNDS[turn % len(_ROUNDS)]
    base = list(REQUEST_COLOURS.values())[hue]
    parts = [int(base[i : i + 2], 16) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(part + (shade - part) * share):02X}" for part in parts)


def colours(alt: Any, labels: list[str]) -> Any:
    """Return a colour scale for these requests."""
    return alt.Scale(domain=labels, range=[colour(label) for label in labels])


class Datasets(dict[str, list[dict[str, Any]]]):
    """The rows of a chart's layers, kept beside the layers: Altair copies what is inside them many times."""

    def chart(self, alt: Any, rows: list[dict[str, Any]]) -> Any:
        """Return a chart that draws these rows."""
        name = f"rows-{len(self)}"
        self[name] = rows
        return alt.Chart(alt.NamedData(name))

    def words(self, alt: Any, rows: list[dict[str, Any]], **mark: Any) -> Any:
        """Return a chart that writes each row's `text`, to the right of its place unless `mark` says otherwise."""
        style = {"align": "left", "baseline": "middle", "fontSize": 12, "color": INK} | mark
        return self.chart(alt, rows).mark_text(**style).encode(alt.Text("text:N"))

    def drawn(self, layers: list[Any]) -> list[Any]:
        """Return the layers that have rows to draw; one of none would be left."""
        return [layer for layer in layers if self[layer.data.name]] or layers[:1]


def numbers_if(last: bool) -> dict[str, bool]:
    """Return the arguments of an axis that has its numbers below the last of several panels alone."""
    return {} if last else {"labels": False, "ticks": False, "domain": False}


def finish(title: str, subtitle: list[str]) -> dict[str, Any]:
    """Return the arguments of a chart that give it its title and the look all pictures share.

    Arguments, not methods: every method of an Altair chart copies the whole chart.
    """
    return {
        "title": {
            "text": title,
            "subtitle": subtitle,
            "anchor": "start",
            "frame": "bounds",
            "fontSize": 18,
            "subtitleFontSize": 12.5,
            "subtitleColor": QUIET_INK,
            "color": INK,
            "offset": 14,
            "subtitlePadding": 5,
            "subtitleLineHeight": 17,
        },
        "background": "white",
        "padding": {"left": 12, "top": 12, "right": 16, "bottom": 10},
        "config": {
            "view": {"stroke": None},
            "axis": {
                "labelFontSize": 12,
                "titleFontSize": 12.5,
                "labelColor": INK,
                "labelFlush": False,  # a first or last number stands under its tick like all others
                "titleColor": QUIET_INK,
                "titleFontWeight": "normal",
                "gridColor": RULE,
                "domainColor": "#9AA0A6",
                "tickColor": "#9AA0A6",
            },
            "title": {"fontSize": 14, "color": INK},
        },
    }


def nothing_to_draw(
    alt: Any, title: str, subtitle: list[str], *, text: str = "no request got a token: nothing to draw"
) -> Any:
    """Return a chart that says that there is nothing to draw, for a run that ended before its first token."""
    datasets = Datasets()
    words = datasets.chart(alt, [{"text": text}]).mark_text(fontSize=15, color=QUIET_INK).encode(text="text:N")
    return alt.layer(words, width=WIDTH, height=80, datasets=dict(datasets), **finish(title, subtitle))
