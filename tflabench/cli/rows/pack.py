"""The command that keeps finished results folders small: pack."""

from __future__ import annotations

from typing import Annotated

import typer

from tflabench.cli.common.app import rows
from tflabench.cli.common.paths import Results


@rows.command()
def pack(
    directory: Results,
    closed: Annotated[bool, typer.Option("--closed", help="Keep only rows of comparisons that ended.")] = False,
) -> None:
    """Keep finished results folders small: rows.parquet, without journal.jsonl and rows.csv.

    times.csv has the columns that matter most, to look at. Every command reads packed folders. A sweep or `merge` that
    adds rows to one unpacks it first.
    """
    from tflabench.rows.load import folders_below
    from tflabench.rows.packed import pack as pack_folder

    for folder in folders_below(directory):
        before, after = pack_folder(folder, closed)
        print(f"{folder}: {before / 1e3:,.0f} kB before, {after / 1e3:,.0f} kB now")
