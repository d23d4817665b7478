"""Tables of records that fit a width: where it is short they have fewer columns, never fewer digits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table

UNLIMITED = 10_000  # characters: no table is as wide


def plain(text: str) -> str:
    """Return text in one line, with nothing in it that a terminal obeys."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


@dataclass(frozen=True)
class TableColumn:
    """A column of a table of records.

    Attributes:
        head: title, of one line or several.
        value: what a cell shows of a record: one of its keys, or a function of it. None is shown as "-".
        form: format of the value, such as ".3g"; columns with one take one line, flush right but for "<".
        drop: which columns are left out first where the width is short: those of the largest number. 0 always stays.
        enough: how many characters of text are enough room: longer text takes several lines.
    """

    head: str
    value: str | Callable[[Any], object]
    form: str = ""
    drop: int = 0
    enough: int = UNLIMITED

    @property
    def name(self) -> str:
        """Return the title in one line."""
        return " ".join(self.head.replace("-\n", "").split())

    def cell(self, record: Any) -> str:
        """Return the text of one cell."""
        value = record[self.value] if isinstance(self.value, str) else self.value(record)
        return "-" if value is None else plain(format(value, self.form))


class FittedTable:
    """A table with a line a record, which Rich prints at any width.

    Args:
        style: the style of Rich that a record's line has.
    """

    def __init__(
        self, columns: Sequence[TableColumn], records: Iterable[Any], style: Callable[[Any], str] = lambda record: ""
    ) -> None:
        records = list(records)
        self._columns = columns
        self._lines = [[column.cell(record) for column in columns] for record in records]
        self._styles = [style(record) for record in records]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table with the columns that have room, and the names of the others."""
        from rich.text import Text

        shown = list(range(len(self._columns)))
        while self._width(shown, console, options) > options.max_width:
            last = max(shown, key=lambda n: (self._columns[n].drop, n))
            if not self._columns[last].drop:
                break
            shown.remove(last)
        yield self._table(shown)
        if missing := [column.name for n, column in enumerate(self._columns) if n not in shown and column.name]:
            yield Text(f"Not shown, as the terminal is too narrow: {', '.join(missing)}.", style="dim")

    def _width(self, shown: Sequence[int], console: Console, options: ConsoleOptions) -> int:
        """Return how wide the table with some of its columns must be."""
        table = self._table(shown)
        for n, column in zip(shown, table.columns, strict=True):
            column.max_width = self._columns[n].enough
        return console.measure(table, options=options.update(width=UNLIMITED)).maximum

    def _table(self, shown: Sequence[int]) -> Table:
        """Return the table with some of its columns; text may take several lines, numbers may not."""
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for n in shown:
            column = self._columns[n]
            right = bool(column.form) and not column.form.startswith("<")
            table.add_column(
                column.head, justify="right" if right else "left", no_wrap=bool(column.form), overflow="fold"
            )
        for line, style in zip(self._lines, self._styles, strict=True):
            table.add_row(*(Text(line[n]) for n in shown), style=style)
        return table
