"""Errors of the calibrated model on rows of a GPU on which its constant was not fitted, and where it ever ran.

They are stored in `held_out.json`, next to this file, so that advice on any machine needs no results folder. It is made
from the rows stored in the repository: `python tools/model_error.py results --write`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tflabench.theory.hardware import Gpu, find
from tflabench.theory.launches import Algorithm

TABLE = Path(__file__).with_name("held_out.json")


@dataclass(frozen=True)
class ModelError:
    """Errors of the calibrated model on the rows of one GPU kind.

    Attributes:
        gpu: name in `tflabench.theory.hardware.KNOWN`.
        median: of absolute errors, predicted over measured time less 1.
        worst: of largest size, with its sign: + is predicted too slow.
        held_out: whether no constant was fitted on rows of that GPU kind.
        groups: of rows that differ in length and batch alone: a kernel, pass, head size and chunk size each.
        of_groups: median over the groups of the size of their median error: rows of one are no independent samples.
        by_rule: median error of a rule instead: the time that another GPU takes for the same point, times the ratio of
            their bandwidths; None without such rows.
        beside_rule: median error of the model on the same rows.
        few: rows of fewer tokens than any on which a term was chosen, which are none of the others.
        of_few: median error on them.
    """

    gpu: str
    algorithm: Algorithm
    rows: int
    median: float
    worst: float
    held_out: bool
    groups: int = 0
    of_groups: float | None = None
    by_rule: float | None = None
    beside_rule: float | None = None
    few: int = 0
    of_few: float | None = None


@cache
def stored() -> tuple[ModelError, ...]:
    """Return the table that comes with the package."""
    return tuple(ModelError(**row) for row in json.loads(TABLE.read_text()))


def held_out_error(algorithm: Algorithm, gpu: Gpu) -> ModelError | None:
    """Return the error on held-out rows of this GPU kind, else of the one with most of them; None without any."""
    errors = [error for error in stored() if error.held_out and error.algorithm == algorithm]
    of_gpu = [error for error in errors if error.gpu == _kind(gpu)]
    return max(of_gpu or errors, key=lambda error: error.rows, default=None)


def has_run_on(gpu: Gpu) -> bool:
    """Return whether there are rows of any kernel that the calibrated model describes on this GPU kind."""
    return any(error.gpu == _kind(gpu) for error in stored())


def with_article(gpu: str) -> str:
    """Return "an H100 SXM", "a B200": the article is that of the first letter as spoken; of a word, "a My GPU"."""
    return f"{'an' if gpu[0] in 'AHLMR' and not gpu[1:2].islower() else 'a'} {gpu}"


def _kind(gpu: Gpu) -> str:
    """Return the name in the table of GPUs; "paper-H100", a row of the paper's Table 18, is an H100 SXM."""
    return find(gpu.name.removeprefix("paper-")).name if gpu.name.startswith("paper-") else gpu.name
