"""Fill in the theory of stored rows anew, by today's counts: FLOPs, bytes, bounds and percentages.

    python tools/recount.py results

Times stay as they were measured, and ceilings those of the run that a row is from. Rows whose run has recorded none,
whose implementation is gone, or which are of older kernels stay as they are. A changed packed folder is unpacked.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tflabench.bench.rows_of_run import modelled
from tflabench.implementations import registry
from tflabench.rows.journal import Store
from tflabench.rows.load import Results, find_results
from tflabench.rows.schema import Row
from tflabench.theory.hardware import Ceilings


def recounted(results: Results, row: Row) -> Row | None:
    """Return a row as this version would have measured it, None where that cannot be told."""
    ceilings = results.runs.get(row.run_id, {}).get("ceilings", {}).get(row.dtype)
    implementation = registry.find(row.implementation)
    if ceilings is None or not implementation or not registry.is_current(row.implementation, row.kernel_version):
        return None
    return row.model_copy(update=modelled(implementation, row.problem, Ceilings(**ceilings), row.ms_median))


def main() -> None:
    """Recount every folder at and below those that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    for results in find_results(parser.parse_args().folder):
        rows = [(row, recounted(results, row)) for row in results.rows]
        changed = [after for before, after in rows if after and after != before]
        if changed:
            store = Store(results.folder, results.rows[0].device)
            for row in changed:
                store.append(row)
            store.export()
        unchanged = sum(after is None for _, after in rows)
        print(f"{results.folder}: {len(changed)} of {len(rows)} rows changed, {unchanged} left as they are")


if __name__ == "__main__":
    main()
