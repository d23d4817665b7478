"""Figures of stored rows: runtime and memory over every swept axis, the chunk-size trade-off, the roofline. No torch.

A figure is one file: an axis and one setting of everything else, with a panel a pass. An implementation looks the same
in every figure. What was not measured is marked and listed, never left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from tflabench.figures import curves, facets, roofline, tradeoff
from tflabench.figures.captions import provenance
from tflabench.figures.layout import FORMATS, write
from tflabench.figures.quantities import MEMORY, RUNTIME, Rows, drawable
from tflabench.figures.style import looks
from tflabench.implementations.registry import nearest
from tflabench.problem import InputError
from tflabench.rows.load import Results, find_results
from tflabench.rows.table import flat, frame

WHAT = ("runtime", "memory", "chunk", "roofline")


def draw_all(
    directory: Path | str,
    out: Path | str | None = None,
    formats: Sequence[str] = ("png", "svg"),
    what: Sequence[str] = WHAT,
) -> list[Path]:
    """Draw the figures of every results folder at and below `directory`; returns the files written.

    Every figure comes in each of `formats`, with the rows it shows beside it as CSV: `runtime-seq_len.png`, ....

    Args:
        out: where they go: those of `directory` itself into it, those of folders below into folders of the same name.
            Default: the folder `figures` beside the rows of each.

    Raises:
        InputError: no results folder, no rows, an unknown figure or format, or a folder that cannot be written.
    """
    directory = Path(directory)
    for kind, given, known in (("figure", what, WHAT), ("format", formats, FORMATS)):
        for word in given:
            if word not in known:
                raise InputError(f"no {kind} is called {word!r}; {nearest(word, known)}")
    written: list[Path] = []
    for results in find_results(directory):
        folder = Path(out) / results.folder.relative_to(directory) if out else results.folder / "figures"
        written += _draw(results, folder, formats, what)
    return written


def _draw(results: Results, out: Path, formats: Sequence[str], what: Sequence[str]) -> list[Path]:
    """Draw the figures of one results folder into `out`; returns the files written."""
    rows = drawable(frame(results.rows))
    written: list[Path] = []
    try:
        out.mkdir(parents=True, exist_ok=True)
        for stem, figure, shown in figures(rows, results.runs, what):
            for format_ in formats:
                written.append(out / f"{stem}.{format_}")
                write(figure, written[-1])
            written.append(out / f"{stem}.csv")
            flat(shown.drop(columns=["chunk_asked", "timed"])).to_csv(written[-1], index=False)
    except OSError as error:
        raise InputError(f"{out} cannot be written ({error.strerror}): give another folder with --out") from None
    return written


def figures(rows: Rows, runs: Mapping[str, Any], what: Sequence[str] = WHAT) -> Iterator[tuple[str, Figure, Rows]]:
    """(stem of the file names, figure, the rows it shows) of every figure that `drawable` rows make.

    `runs`: run_id -> what environment.json says of that run.
    """
    table, footer = looks(rows), provenance(rows, runs)
    axes = facets.swept_axes(rows) or ["seq_len"]
    for name, quantity in (("runtime", RUNTIME), ("memory", MEMORY)):
        for axis in axes if name in what else ():
            for part in facets.split(rows, axis):
                yield f"{name}-{part.stem}", curves.draw(part, quantity, table, footer), part.rows
    if "chunk" in what and "chunk_size" in axes:
        for part in facets.split(rows, "chunk_size"):
            for name in table:
                own = part.rows[part.rows["implementation"] == name]
                if own["chunk_size"].nunique() > 1:
                    yield "-".join(["chunk", name, *part.tags]), tradeoff.draw(part, name, table, footer), own
    if "roofline" in what:
        for dtype, own in rows.groupby("dtype"):
            yield f"roofline-{dtype}", roofline.draw(own, roofline.roofs(own, runs), table, footer), own
