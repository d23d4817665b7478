"""The command that fills in the theory of stored rows anew: recount."""

from __future__ import annotations

from tflabench.cli.common.app import rows
from tflabench.cli.common.help import Command
from tflabench.cli.common.paths import Results


@rows.command(cls=Command)
def recount(
    directory: Results,
) -> None:
    """Fill in the theory of stored rows anew (FLOPs, bytes, bounds, percentages), by the counts of this version.

    Times stay as they were measured, and ceilings those of the run that a row is from. Rows whose run has recorded
    none, whose implementation is gone, or whose kernels were others are left as they are.
    """
    from tflabench.bench import theory_columns
    from tflabench.implementations import registry
    from tflabench.rows import journal as store
    from tflabench.rows import load
    from tflabench.theory.hardware import Ceilings

    known = {impl.name for impl in registry.implementations()}
    for results in load.find_results(directory):
        left = 0
        changed = []
        for row in results.rows:
            ceilings = results.runs.get(row.run_id, {}).get("ceilings", {}).get(row.dtype)
            if (
                ceilings is None
                or row.implementation not in known
                or not registry.is_current(row.implementation, row.kernel_version)
            ):
                left += 1
            elif (found := theory_columns.recounted(row, Ceilings(**ceilings))) != row:
                changed.append(found)
        if changed:
            opened = store.Store(results.folder, results.rows[0].device)
            for row in changed:
                opened.append(row)
            opened.export()
        told = f", {left} left as they are" if left else ""
        print(f"{results.folder}: {len(changed)} of {len(results.rows)} rows changed{told}")
