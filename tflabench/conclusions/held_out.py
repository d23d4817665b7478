"""Errors of the calibrated model on rows of a GPU on which its constant was not fitted, and where it ever ran.

The answers come out of `held_out.json` in this folder, so that advice on any machine needs no results folder. It is
made of the rows stored in the repository, again after a change of the model or new rows:

    python -m tflabench.conclusions.held_out results
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from tflabench.theory.calibrated import Algorithm, Judged, median_and_worst
from tflabench.theory.constants import FITTED
from tflabench.theory.hardware import Gpu, find

TABLE = Path(__file__).with_name("held_out.json")
COMMAND = "python -m tflabench.conclusions.held_out results"
FITTED_ON = (FITTED.gpu,)  # the one fitted constant has seen rows of that kind


@dataclass(frozen=True)
class ModelError:
    """Errors of the calibrated model on the rows of one GPU kind.

    Attributes:
        gpu: name in `tflabench.theory.hardware.KNOWN`.
        algorithm: family of kernels, of `calibrated.ALGORITHMS`.
        rows: that were measured.
        median: of absolute errors, predicted over measured time less 1.
        worst: of largest size, with its sign: + is predicted too slow.
        held_out: whether no constant was fitted on rows of that GPU kind.
    """

    gpu: str
    algorithm: Algorithm
    rows: int
    median: float
    worst: float
    held_out: bool


def errors_of(judged: Iterable[Judged]) -> tuple[ModelError, ...]:
    """Return the errors of judged rows by GPU kind and family of kernels, in the order of their names."""
    groups: dict[tuple[str, Algorithm], list[float]] = {}
    for row in judged:
        groups.setdefault((row.gpu.name, row.kernel.algorithm), []).append(row.errors[1])
    found = []
    for gpu, algorithm in sorted(groups):
        median, worst = median_and_worst(groups[gpu, algorithm])
        rows = len(groups[gpu, algorithm])
        found.append(ModelError(gpu, algorithm, rows, round(median, 4), round(worst, 4), gpu not in FITTED_ON))
    return tuple(found)


@cache
def stored() -> tuple[ModelError, ...]:
    """Return the table that comes with the package."""
    return tuple(ModelError(**row) for row in json.loads(TABLE.read_text())["errors"])


def held_out_error(algorithm: Algorithm, gpu: Gpu) -> ModelError | None:
    """Return the error on held-out rows of this GPU kind, else of the one with most of them; None without any."""
    known = [row for row in stored() if row.held_out and row.algorithm == algorithm]
    own = [row for row in known if row.gpu == _kind(gpu)]
    return max(own or known, key=lambda row: row.rows, default=None)


def in_sample_error(algorithm: Algorithm) -> ModelError | None:
    """Return the error where the constant was fitted, on rows of more shapes; None where there are none."""
    known = [row for row in stored() if not row.held_out and row.algorithm == algorithm]
    return max(known, key=lambda row: row.rows, default=None)


def has_run_on(gpu: Gpu) -> bool:
    """Return whether there are rows of any kernel that the calibrated model describes on this GPU kind."""
    return any(row.gpu == _kind(gpu) for row in stored())


def with_article(gpu: str) -> str:
    """Return "an H100 SXM", "a B200": the article is that of the first letter as it is spoken."""
    return f"{'an' if gpu[0] in 'AHLMR' else 'a'} {gpu}"


def _kind(gpu: Gpu) -> str:
    """Return the name in the table of GPUs; "paper-H100", a row of the paper's Table 18, is an H100 SXM."""
    return find(gpu.name.removeprefix("paper-")).name if gpu.name.startswith("paper-") else gpu.name


def write(folder: Path) -> None:
    """Make the table out of all results folders below one."""
    from tflabench.conclusions.model_error import judge
    from tflabench.rows.load import find_results

    errors = errors_of(judge(find_results(folder)).judged)
    table = {"made_by": COMMAND, "errors": [asdict(row) for row in errors]}
    TABLE.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "results"))
