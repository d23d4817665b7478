"""The sheet a figure is laid out on: sizes in inches, so that type and panels are the same size in every figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

from tflabench.plots.style import FOOTER_SIZE, NOTE_SIZE, TICK_SIZE, TITLE_SIZE

COLUMN_WIDTH, PAGE_WIDTH = 3.5, 7.0  # inches: one and two columns of a paper
PANEL_HEIGHT = 2.0
LEFT, RIGHT, GAP, EDGE = 0.58, 0.1, 0.5, 0.07
X_LABEL_HEIGHT = 0.42  # of tick labels and label under a panel


class Sheet:
    """A figure of panels side by side: caption above; legend, notes and provenance below, never over the data."""

    def __init__(
        self,
        panels: int,
        *,
        height: float = PANEL_HEIGHT,
        left: float = LEFT,
        right: float = RIGHT,
        gap: float = GAP,
        wide: bool = False,
    ) -> None:
        self.width = COLUMN_WIDTH if panels == 1 and not wide else PAGE_WIDTH * max(1.0, panels / 2)
        self.panel_height = height
        panel = (self.width - left - right - gap * (panels - 1)) / panels
        self.figure = Figure(figsize=(self.width, height), facecolor="white")
        self.axes = [
            self.figure.add_axes(((left + n * (panel + gap)) / self.width, 0, panel / self.width, 1))
            for n in range(panels)
        ]

    def finish(
        self, title: str, handles: Sequence[Any], keys: Sequence[Any], notes: Sequence[str], footer: str
    ) -> None:
        """Place everything and give the figure the height it takes; `keys` are legend entries of their own row."""
        room = self.width - 2 * EDGE
        titles = _wrap(title, room, TITLE_SIZE)
        lines = [line for note in notes for line in _wrap(note, room, NOTE_SIZE)]
        footers = _wrap(footer, room, FOOTER_SIZE)
        legends = [(entries, *_grid(entries, room)) for entries in (handles, keys) if entries]

        top = 0.14 * len(titles) + 0.26
        legend_height = 0.13 * sum(rows for _, rows, _ in legends) + 0.02 * len(legends)
        note_height = 0.1 * len(lines) + 0.04 * bool(lines)
        bottom = X_LABEL_HEIGHT + legend_height + note_height + 0.09 * len(footers) + EDGE
        height = top + self.panel_height + bottom
        self.figure.set_size_inches(self.width, height)
        for ax in self.figure.axes:
            box = ax.get_position()
            ax.set_position((box.x0, bottom / height, box.width, self.panel_height / height))

        def put(words: list[str], y: float, size: float, colour: str) -> None:
            place = (EDGE / self.width, y / height)
            self.figure.text(*place, "\n".join(words), fontsize=size, color=colour, va="top", linespacing=1.2)

        put(titles, height - EDGE, TITLE_SIZE, "black")
        y = bottom - X_LABEL_HEIGHT
        for entries, rows, columns in legends:
            self.figure.legend(
                handles=entries,
                loc="upper left",
                bbox_to_anchor=(EDGE / self.width, y / height),
                ncols=columns,
                handlelength=2.6,
                columnspacing=1.2,
                handletextpad=0.5,
                labelspacing=0.35,
                borderpad=0,
                borderaxespad=0,
            )
            y -= 0.13 * rows + 0.02
        put(lines, y, NOTE_SIZE, "0.25")
        put(footers, y - note_height, FOOTER_SIZE, "0.5")


def _grid(entries: Sequence[Any], room: float) -> tuple[int, int]:
    """(rows, columns) of a legend that fits into `room` inches; no more columns than its rows need."""
    widest = max(text_width(entry.get_label(), TICK_SIZE) for entry in entries) + 0.42
    rows = math.ceil(len(entries) / max(1, int(room / widest)))
    return rows, math.ceil(len(entries) / rows)


@cache
def text_width(text: str, size: float) -> float:
    """Inches a text takes at a type size in points."""
    if not text.strip():
        return 0.0
    return TextPath((0, 0), text, size=size, prop=FontProperties(family="DejaVu Sans")).get_extents().width / 72


def _wrap(text: str, width: float, size: float) -> list[str]:
    lines = [""]
    for word in text.split():
        grown = f"{lines[-1]} {word}".strip()
        if lines[-1] and text_width(grown, size) > width:
            lines.append(f"{word}")
        else:
            lines[-1] = grown
    return lines
