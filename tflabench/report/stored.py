"""The rows that a page is about: of one results folder, or of all below a folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from tflabench.figures.looks import looks
from tflabench.figures.quantities import AXES, Rows, drawable
from tflabench.figures.source import Source
from tflabench.rows.load import Results, find_results
from tflabench.rows.table import frame

# What charts and look-ups read. Fewer columns, of two types, make pandas ten times as fast.
WORDS = (
    "implementation", "title", "family", "gate", "package", "package_version", "pass", "dtype", "device", "status",
    "reason", "chunk_asked", "run_id", "started_at", "ceilings",
)  # fmt: skip
NUMBERS = (
    "ms_median", "ms_p20", "ms_p80", "peak_bytes", "model_ms_lower", "model_ms_upper", "model_flops", "model_bytes",
    "percent_of_bound",
)  # fmt: skip
FLAGS = ("timed", "noisy", "throttled")


@dataclass(frozen=True)
class Stored:
    """All rows of a page.

    Attributes:
        results: the folders that hold them.
        names: of the folders, as the page calls them.
        source: their rows as figures draw them, counted through all folders; `folder` is the name of each row's.
    """

    results: list[Results]
    names: list[str]
    source: Source


def read(directory: Path) -> Stored:
    """Return what lies in and below a folder.

    Raises:
        InputError: no folder, no results in it, or results that cannot be read.
    """
    results = find_results(directory)
    names = [
        one.folder.relative_to(directory).as_posix() if one.folder != directory else directory.resolve().name
        for one in results
    ]
    records = [row for one in results for row in one.rows]
    folders = [name for one, name in zip(results, names, strict=True) for _ in one.rows]
    wide = drawable(frame(records))
    columns = {name: wide[name].to_numpy(object) for name in WORDS}
    columns |= {name: wide[name].to_numpy(float) for name in (*NUMBERS, *AXES) if name != "dtype"}
    columns |= {name: wide[name].to_numpy(bool) for name in FLAGS} | {"folder": folders}
    rows: Rows = pd.DataFrame(columns).astype(dict.fromkeys((*WORDS, "folder"), object)).copy()
    rows.columns = rows.columns.astype(object)  # found faster than names that are strings of Arrow
    runs = {run: said for one in results for run, said in one.runs.items()}
    return Stored(results, names, Source(rows, records, runs, looks(rows)))
