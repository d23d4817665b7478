"""The command that brings stored rows to the present schema: migrate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tflabench.cli.common.app import app


@app.command()
def migrate(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A results folder, or one that holds some.")],
) -> None:
    """Bring rows of an older schema to this version's: their columns, and their percentage of the problem's bound.

    Rows of schema 1 belong to no comparison, so no ratio is taken of them. Rows whose run has recorded no ceilings, or
    whose implementation is gone, have no percentage of the bound.
    """
    from tflabench.bench.theory_columns import with_bound
    from tflabench.problem import InputError
    from tflabench.rows.load import results_folders
    from tflabench.rows.migrate import migrate as migrate_folder

    folders = results_folders(directory)
    if not folders:
        raise InputError(f"{directory} holds no results (no journal.jsonl in it or below): name a results folder")
    for folder in folders:
        print(f"{folder}: {migrate_folder(folder, with_bound)} rows migrated")
