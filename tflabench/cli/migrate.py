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
    """Bring rows of an older schema to this version's; they belong to no comparison, so no ratio is taken of them."""
    from tflabench.problem import InputError
    from tflabench.rows.load import results_folders
    from tflabench.rows.migrate import migrate as migrate_folder

    folders = results_folders(directory)
    if not folders:
        raise InputError(f"{directory} holds no results (no journal.jsonl in it or below): name a results folder")
    for folder in folders:
        print(f"{folder}: {migrate_folder(folder)} rows migrated")
