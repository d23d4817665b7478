"""Tables that fit a width: names are cut, then columns dropped, the last first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

ELLIPSIS = "…"


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        cells: one a row; all columns of a table have as many.
        right: whether cells are flush right.
        least: how many characters of a cell are enough to know it by; None where a cell is shown whole or not at all.
        spare: whether the column goes before any name is cut.
    """

    title: str
    cells: Sequence[Text]
    right: bool = False
    least: int | None = None
    spare: bool = False

    @property
    def width(self) -> int:
        """Return how many characters its longest cell needs."""
        return max(Text(self.title).cell_len, *(cell.cell_len for cell in self.cells))

    @property
    def floor(self) -> int:
        """Return how narrow it can be."""
        return self.width if self.least is None else min(self.width, self.least)


def plain(text: object) -> str:
    """Return text in one line, with nothing in it that a terminal obeys."""
    return " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())


def cut(text: Text | str, width: int) -> Text:
    """Return a line of at most `width` characters, with an ellipsis where it was longer."""
    line = text.copy() if isinstance(text, Text) else Text(text)
    line.no_wrap = True
    line.truncate(width, overflow="ellipsis")
    return line


def table_lines(columns: Sequence[Column], width: int) -> list[Text]:
    """Return the lines of a table, its titles first: none is longer than `width` characters."""
    shown, widths, gap = _fit(columns, width)
    lines = [_joined([_cell(Text(c.title, "bold"), w, c.right) for c, w in zip(shown, widths, strict=True)], gap)]
    for number in range(len(shown[0].cells)):
        cells = [_cell(c.cells[number], w, c.right) for c, w in zip(shown, widths, strict=True)]
        lines.append(_joined(cells, gap))
    return lines


def _fit(columns: Sequence[Column], width: int) -> tuple[list[Column], list[int], int]:
    """Return the columns that have room, their widths, and the spaces between them."""
    shown = list(columns)
    for gap in (2, 1):
        if _total([c.width for c in shown], gap) <= width:
            return shown, [c.width for c in shown], gap
    whole = [c for c in shown if not c.spare]
    if _total([c.width for c in whole], 1) <= width:
        return whole, [c.width for c in whole], 1
    while len(whole) > 1 and _total([c.floor for c in whole], 1) > width:
        whole.pop()
    widths = [c.width for c in whole]
    while _total(widths, 1) > width:
        longest = max(range(len(whole)), key=lambda n: widths[n] - whole[n].floor)
        if widths[longest] == whole[longest].floor:
            return whole, [width], 1  # a single column
        widths[longest] -= 1
    return whole, widths, 1


def _total(widths: Sequence[int], gap: int) -> int:
    return sum(widths) + gap * (len(widths) - 1)


def _cell(text: Text, width: int, right: bool) -> Text:
    cell = cut(text, width)
    cell.align("right" if right else "left", width)
    return cell


def _joined(cells: Sequence[Text], gap: int) -> Text:
    line = Text(" " * gap, no_wrap=True).join(cells)
    line.rstrip()
    return line
