"""The command that brings packed results folders back: unpack."""

from __future__ import annotations

from tflabench.cli.common.app import rows
from tflabench.cli.common.help import Command
from tflabench.cli.common.paths import Results


@rows.command(cls=Command)
def unpack(
    directory: Results,
) -> None:
    """Write journal.jsonl and rows.csv of packed results folders again."""
    from tflabench.rows.load import folders_below
    from tflabench.rows.packed import unpack as unpack_folder

    for folder in folders_below(directory):
        unpack_folder(folder)
        print(f"{folder}: unpacked")
