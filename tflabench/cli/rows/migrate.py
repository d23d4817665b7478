"""The command that brings stored rows to the present schema: migrate."""

from __future__ import annotations

from tflabench.cli.common.app import rows
from tflabench.cli.common.help import Command
from tflabench.cli.common.paths import Results


@rows.command(cls=Command)
def migrate(
    directory: Results,
) -> None:
    """Bring rows of an older schema to this version's: their columns, and their percentage of the problem's bound.

    Rows of schema 1 belong to no comparison, so no ratio is taken of them. Rows whose run has recorded no ceilings, or
    whose implementation is gone, have no percentage of the bound.
    """
    from tflabench.bench.theory_columns import with_bound
    from tflabench.rows.load import folders_below
    from tflabench.rows.migrate import migrate as migrate_folder

    for folder in folders_below(directory):
        print(f"{folder}: {migrate_folder(folder, with_bound)} rows migrated")
