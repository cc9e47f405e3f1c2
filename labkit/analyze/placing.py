"""Keeps words of a picture from lying on each other: who comes first has the room, who finds none is left out."""

from __future__ import annotations

from typing import Any

from labkit.analyze.palette import WIDTH

_CHARACTER_EM = 0.53  # mean width of a character of the renderer's sans serif, in parts of its size
_GAP_PX = 4


class Room:
    """What is taken on each line of words.

    Args:
        end_s: what the picture's width stands for.
    """

    def __init__(self, end_s: float) -> None:
        self._px = WIDTH / end_s
        self._taken: dict[float, list[tuple[float, float]]] = {}

    def take(self, word: dict[str, Any], *, dx: float = 0.0, size: float = 11.5, align: str = "left") -> bool:
        """Take the room of a word if it is free and inside the picture; say whether it was.

        Args:
            word: a row with x in seconds, y, and text.
            dx: pixels it is moved to the right.
            size: of its letters in pixels.
            align: left, center or right of its place.
        """
        width = _CHARACTER_EM * size * len(word["text"])
        start = word["x"] * self._px + dx - {"left": 0.0, "center": width / 2, "right": width}[align]
        line = self._taken.setdefault(round(word["y"], 3), [])
        if start < -_GAP_PX or any(start < end + _GAP_PX and begin < start + width + _GAP_PX for begin, end in line):
            return False
        line.append((start, start + width))
        return True
