"""Figures of stored rows: runtime and memory over every swept axis, the chunk-size trade-off, the roofline. No torch.

A figure is a value of `figures.model`, made by a function from rows or theory; renderers draw it. A new figure is one
more such function. An implementation looks the same in every figure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tflabench.figures import curves, facets, roofline
from tflabench.figures.files import check_formats, write_figures
from tflabench.figures.highlights import require
from tflabench.figures.model import Figure
from tflabench.figures.quantities import AXES, QUANTITIES, Rows
from tflabench.figures.source import Source
from tflabench.implementations.registry import nearest
from tflabench.problem import InputError, one_of
from tflabench.rows.load import Results, find_results
from tflabench.rows.table import rows_of

WHAT = ("runtime", "memory", "chunk", "gates", "roofline")


def draw_all(
    directory: Path | str,
    out: Path | str | None = None,
    formats: Sequence[str] = ("png", "svg"),
    what: Sequence[str] = WHAT,
    highlight: Sequence[str] = (),
) -> list[Path]:
    """Draw the figures of every results folder at and below `directory`; return the files written.

    Every figure comes in each of `formats`, with its caption and the rows it shows: `runtime-seq_len.png`, `.txt`,
    `.csv`.

    Args:
        out: where they go: those of `directory` itself into it, those of folders below into folders of the same name.
            Default: the folder `figures` in each results folder.
        what: which figures, of WHAT.
        highlight: patterns of the implementations to highlight and name, at most seven; empty for each figure's choice.

    Raises:
        InputError: no results folder, no rows, an unknown figure or format, rows that make none of these figures, no
            implementation to highlight, or a folder that cannot be written.
    """
    directory = Path(directory)
    check_formats(formats)
    for word in what:
        one_of("--what", word, WHAT)
    folders = find_results(directory)
    names = {row.implementation for results in folders for row in results.rows}
    require(highlight, names, "--highlight")
    written: list[Path] = []
    for results in folders:
        folder = Path(out) / results.folder.relative_to(directory) if out else results.folder / "figures"
        written += write_figures(figures(Source.of(results, highlight), what), folder, formats)
    if not written:
        raise InputError(
            f"no figure of {' and '.join(what)} in {directory}: chunk needs rows of several chunk sizes, gates of "
            "several strengths; `--what runtime` draws these"
        )
    return written


def figures(source: Source, what: Sequence[str] = WHAT) -> Iterator[Figure]:
    """Yield every figure that the rows of a source make."""
    rows = source.rows
    axes, parts = facets.swept_axes(rows), facets.slices(rows)
    for name in filter(QUANTITIES.__contains__, what):
        for part in parts:
            yield curves.draw(f"{name}-{part.stem}", source, part, QUANTITIES[name])
    if "chunk" in what and "chunk_size" in axes:
        yield from curves.tradeoffs("chunk", source)
    if "gates" in what and "gates" in axes:
        yield from curves.over_gates("gates", source)
    if "roofline" in what:
        for dtype, of_dtype in rows.groupby("dtype"):
            yield roofline.draw(f"roofline-{dtype}", source, of_dtype)


def largest(table: Rows, axis: str | None, quantity: str, highlight: Sequence[str] = ()) -> Figure:
    """Return the figure of a quantity over an axis, or over the first that varies, that shows most rows of a table.

    The table is one that `rows.table.frame` made; of every point the last row counts. InputError as `plot` has it.
    """
    last = {row.point: row for row in sorted(rows_of(table), key=lambda row: row.started_at)}
    if not last:
        raise InputError("the table has no rows: give some that tflabench.load or tflabench.sweep returned")
    devices = sorted({row.device for row in last.values()})
    if len(devices) > 1:
        raise InputError(f"the table has rows of {' and '.join(devices)}: give those of one, df[df['device'] == ...]")
    require(highlight, dict.fromkeys(row.implementation for row in last.values()), "highlight")
    source = Source.of(Results(Path(), tuple(last.values()), {}), highlight)
    axes = facets.swept_axes(source.rows)
    axis = one_of("axis", axis or next(iter(axes), "seq_len"), AXES)
    one_of("quantity", quantity, QUANTITIES)
    if source.rows[axis].isna().all():
        raise InputError(f"axis is {axis!r}, which no row has: {nearest(axis, axes)}")
    part = max(facets.split(source.rows, axis), key=lambda part: len(part.rows))
    return curves.draw(f"{quantity}-{part.stem}", source, part, QUANTITIES[quantity])
