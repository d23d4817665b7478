"""The sheet a figure is laid out on: sizes in inches, so that type and panels are the same size in every figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.textpath import TextPath

from tflabench.figures.style import FOOTER_SIZE, NOTE_SIZE, TICK_SIZE, TITLE_SIZE, styled

FORMATS = ("png", "svg", "pdf")
UNDATED: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}

COLUMN_WIDTH, PAGE_WIDTH = 3.5, 7.0  # inches: one and two columns of a paper
PANEL_HEIGHT = 2.0
LEFT, RIGHT, GAP, EDGE = 0.58, 0.1, 0.5, 0.07
HANDLE_GAP, COLUMN_GAP = 0.5, 1.2  # in a legend, in units of its type
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
        """Place everything and give the figure the height it takes; `keys` begin a row unless one row holds all."""
        room = self.width - 2 * EDGE
        titles = _wrap(title, room, TITLE_SIZE)
        lines = [line for note in notes for line in _wrap(note, room, NOTE_SIZE)]
        footers = _wrap(footer, room, FOOTER_SIZE)
        groups = [[*handles, *keys]] if _grid([*handles, *keys], room)[0] == 1 else [handles, keys]
        legends = [(entries, *_grid(entries, room)) for entries in groups if entries]

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
                handlelength=_handle_length(entries),
                columnspacing=COLUMN_GAP,
                handletextpad=HANDLE_GAP,
                labelspacing=0.35,
                borderpad=0,
                borderaxespad=0,
            )
            y -= 0.13 * rows + 0.02
        put(lines, y, NOTE_SIZE, "0.25")
        put(footers, y - note_height, FOOTER_SIZE, "0.5")


def _handle_length(entries: Sequence[Any]) -> float:
    """Lines and patches need some length; markers alone do not."""
    alone = all(isinstance(entry, Line2D) and entry.get_linestyle() == "None" for entry in entries)
    return 1.0 if alone else 2.6


def _grid(entries: Sequence[Any], room: float) -> tuple[int, int]:
    """(rows, columns) of the legend of fewest rows that fits into `room` inches; it fills column by column."""
    handle = (_handle_length(entries) + HANDLE_GAP + COLUMN_GAP) * TICK_SIZE / 72
    for rows in range(1, len(entries) + 1):
        columns = math.ceil(len(entries) / rows)
        parts = np.array_split(np.arange(len(entries)), columns)
        widths = [max(text_width(entries[i].get_label(), TICK_SIZE) for i in part) + handle for part in parts]
        if sum(widths) <= room:
            return rows, columns
    return len(entries), 1


@styled
def write(figure: Figure, path: Path) -> None:
    """Write a figure in the format that its suffix names, one of FORMATS; the same figure gives the same file."""
    figure.savefig(path, metadata=UNDATED.get(path.suffix.lstrip(".")))


@cache
def text_width(text: str, size: float) -> float:
    """Inches a text takes at a type size in points."""
    if not text.strip():
        return 0.0
    return TextPath((0, 0), text, size=size, prop=FontProperties(family="DejaVu Sans")).get_extents().width / 72


def _wrap(text: str, width: float, size: float) -> list[str]:
    """Lines of at most `width` inches; measured word by word, for figures share most of their words."""
    lines, taken = [""], 0.0
    for word in text.split():
        own, space = _advance(word, size), _advance(" ", size)
        if lines[-1] and taken + space + own > width:
            lines.append(word)
            taken = own
        else:
            taken += own + (space if lines[-1] else 0.0)
            lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def _advance(text: str, size: float) -> float:
    """Inches that a text takes between others: its ink and the room at its sides."""
    return text_width(f"x{text}x", size) - text_width("xx", size)
