"""Hold the paper's and the calibrated model to measured rows, and say how far either is off.

    python tools/model_error.py results/h200 results/h100          # median and worst error, by GPU and kernels
    python tools/model_error.py results/h200 results/h100 --fit    # the fitted constant anew, judged on other rows
    python tools/model_error.py results --write                    # tflabench/theory/held_out.json anew

Errors are predicted over measured time, less 1: the median of their sizes, and the worst with its sign, + for predicted
too slow. Rows that the constant was fitted on stand apart from those that are held out. Rows of older versions of our
kernels are left out, and of a point that a device measured twice the second.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np

from tflabench.implementations import registry
from tflabench.problem import InputError, Problem
from tflabench.rows.load import Results, find_results
from tflabench.theory import calibrated, fused
from tflabench.theory.chunk_size import Tradeoff
from tflabench.theory.constants import FITTED_GPU, FITTED_HEADS
from tflabench.theory.hardware import Ceilings, Gpu, described
from tflabench.theory.held_out import TABLE, ModelError
from tflabench.theory.launches import Algorithm, Chip, Modelled

SHORTEST, LONGEST = 1e-8, 1e-5  # seconds between which a round trip is looked for
MANY_TOKENS = 32768  # of a call: terms of the model were chosen on rows of as many and more, none on rows of fewer
PRECISION = 1e-3  # relative, to which it is fitted


@dataclass(frozen=True)
class JudgedRow:
    """A measured row and what the models say of it: seconds, and by term for the calibrated one.

    `gpu` has the datasheet's roofs, `chip` those of the calibrated model.
    """

    title: str
    point: str
    gpu: Gpu
    chip: Chip
    kernel: Modelled
    problem: Problem
    measured: float
    published: float
    terms: dict[str, float]

    @property
    def error(self) -> float:
        """Return the error of the calibrated model."""
        return sum(self.terms.values()) / self.measured - 1

    @property
    def group(self) -> tuple[object, ...]:
        """Return what it shares with rows that differ in length and batch alone; fused kernels choose L by these."""
        p, fused_kernels = self.problem, self.kernel.algorithm == "fused"
        return self.title, p.pass_, p.heads, p.d_qk, p.d_hv, None if fused_kernels else p.chunk_size

    @property
    def held_out(self) -> bool:
        """Return whether no constant was fitted on rows of this GPU and head size."""
        return (self.gpu.name, (self.problem.d_qk, self.problem.d_hv)) != (FITTED_GPU, FITTED_HEADS)


def published(problem: Problem, kernel: Modelled, gpu: Gpu) -> float:
    """Return the seconds by eq. 116 at `problem.chunk_size`, on the datasheet's roofs; it knows no shared heads."""
    if kernel.algorithm == "fused":
        cost = fused.cost(problem, kernel, problem.chunk_size or problem.seq_len)
        return cost.flops / gpu.ceilings.flops_per_s + cost.bytes / gpu.ceilings.bytes_per_s
    return float(Tradeoff(problem, kernel.gate, gpu.ceilings).time(problem.chunk_size).upper)


def judge(folders: Iterable[Results]) -> tuple[list[JudgedRow], Counter[str]]:
    """Return the rows that the calibrated model describes, and how many others there are by what they are."""
    judged: list[JudgedRow] = []
    undescribed: Counter[str] = Counter()
    seen: set[tuple[str, int | None, str]] = set()
    for results in folders:
        for row in results.rows:
            key = (row.device, row.kernel_version, row.point)
            if row.status != "ok" or row.ms_median is None or key in seen:
                continue
            seen.add(key)
            kernel = impl.modelled if (impl := registry.find(row.implementation)) else None
            on_one = not row.ranks and row.dtype in ("bfloat16", "float16")
            if kernel is None or row.chunk_size is None or not on_one:
                undescribed[row.implementation] += 1
                continue
            if not registry.is_current(row.implementation, row.kernel_version):
                undescribed[f"{row.implementation}, an older version"] += 1
                continue
            ceilings = results.runs.get(row.run_id, {}).get("ceilings", {}).get(row.dtype)
            gpu = described(row.device, row.dtype)
            chip = Chip.of(gpu, Ceilings(**ceilings) if ceilings else None)
            problem = row.problem
            terms = calibrated.term_seconds(problem, kernel, chip)
            seconds = published(problem, kernel, gpu)
            judged.append(
                JudgedRow(row.title, row.point, gpu, chip, kernel, problem, row.ms_median / 1e3, seconds, terms)
            )
    return judged, undescribed


def median_and_worst(errors: Iterable[float]) -> tuple[float, float]:
    """Return the median of absolute errors, and the error of largest size with its sign."""
    errors = list(errors)
    return median(map(abs, errors)), max(errors, key=abs)


def errors_by_gpu(judged: Iterable[JudgedRow]) -> list[ModelError]:
    """Return what `held_out.json` holds: errors by GPU kind and algorithm, in the order of their names."""
    judged = list(judged)
    by_point: dict[str, list[JudgedRow]] = {}
    parts: dict[tuple[str, Algorithm], list[JudgedRow]] = {}
    few: dict[tuple[str, Algorithm], list[float]] = defaultdict(list)
    for row in judged:
        by_point.setdefault(row.point, []).append(row)
        if row.problem.tokens < MANY_TOKENS:
            few[row.gpu.name, row.kernel.algorithm].append(row.error)
        else:
            parts.setdefault((row.gpu.name, row.kernel.algorithm), []).append(row)
    errors = []
    for (gpu, algorithm), part in sorted(parts.items(), key=lambda item: item[0]):
        middle, worst = median_and_worst(row.error for row in part)
        groups: dict[object, list[float]] = {}
        for row in part:
            groups.setdefault(row.group, []).append(row.error)
        rule = [(row, twin) for row in part for twin in by_point[row.point] if twin.gpu.name != gpu]
        moved = [counterpart.chip.ceilings.bytes_per_s / row.chip.ceilings.bytes_per_s for row, counterpart in rule]
        by_rule = median_size(b.measured * times / a.measured - 1 for (a, b), times in zip(rule, moved, strict=True))
        errors.append(
            ModelError(
                gpu, algorithm, len(part), round(middle, 4), round(worst, 4), gpu != FITTED_GPU, len(groups),
                median_size(median(group) for group in groups.values()), by_rule,
                median_size(row.error for row, _ in rule), len(few[gpu, algorithm]), median_size(few[gpu, algorithm]),
            )
        )  # fmt: skip
    return errors


def median_size(errors: Iterable[float]) -> float | None:
    """Return the median of absolute errors, rounded; None of none."""
    sizes = [abs(error) for error in errors]
    return round(median(sizes), 4) if sizes else None


class RoundTripFit:
    """Predicted times as functions of the round trip, in which all of them are straight lines."""

    def __init__(self, rows: Iterable[JudgedRow]) -> None:
        self.lines = []
        for row in rows:
            at_0, at_1 = (
                sum(calibrated.term_seconds(row.problem, row.kernel, replace(row.chip, round_trip_s=seconds)).values())
                for seconds in (0.0, 1.0)
            )
            self.lines.append((at_0, at_1 - at_0, row.measured))

    def errors(self, round_trip_s: float) -> list[float]:
        """Return predicted over measured time, less 1."""
        return [(start + slope * round_trip_s) / measured - 1 for start, slope, measured in self.lines]

    def loss(self, round_trip_s: float) -> float:
        """Return mean absolute logarithm of predicted over measured time."""
        return sum(abs(math.log1p(error)) for error in self.errors(round_trip_s)) / len(self.lines)

    def best(self) -> float:
        """Return the round trip of least loss in seconds, of those that are PRECISION apart."""
        count = math.ceil(math.log(LONGEST / SHORTEST) / PRECISION)
        return float(min(np.geomspace(SHORTEST, LONGEST, count), key=self.loss))


def print_errors(judged: Sequence[JudgedRow], undescribed: Counter[str]) -> None:
    """Print the errors of both models by GPU and kernels, fitted and held-out rows apart, and the rows furthest off."""
    groups: dict[tuple[str, str], list[JudgedRow]] = {}
    for row in judged:
        for kernels in (f"{row.kernel.algorithm} {row.kernel.gate}", "| all"):
            groups.setdefault((row.gpu.name, kernels), []).append(row)
    print(f"{'':28}{'fitted on':24}{'held out':24}paper's model, held out")
    for (gpu, kernels), rows in sorted(groups.items()):
        fitted = [row.error for row in rows if not row.held_out]
        held_out = [row.error for row in rows if row.held_out]
        paper = [row.published / row.measured - 1 for row in rows if row.held_out]
        print(f"{gpu} {kernels}".ljust(28) + "".join(_errors(errors).ljust(24) for errors in (fitted, held_out, paper)))
    print("Furthest off:")
    for row in sorted(judged, key=lambda row: -abs(row.error))[:5]:
        p = row.problem
        size = f"{p.pass_} B={p.batch} T={p.seq_len} heads {p.heads}x{p.d_qk}/{p.d_hv} L={p.chunk_size}"
        longest = max(row.terms, key=row.terms.__getitem__)
        print(f"  {row.title} {size}: {row.measured * 1e3:.3g} ms, {row.error:+.0%}, most of it {longest}")
    print("Not described:", ", ".join(f"{name} ({count})" for name, count in undescribed.items()) or "none")


def _errors(errors: Sequence[float]) -> str:
    return "{} rows: {:.1%}, {:+.0%}".format(len(errors), *median_and_worst(errors)) if errors else "-"


def print_fits(judged: Sequence[JudgedRow]) -> None:
    """Print the round trip fitted on the rows of FITTED_GPU and FITTED_HEADS and on each GPU, judged on all groups."""
    groups: dict[str, list[JudgedRow]] = {}
    for row in judged:
        heads = f"{row.problem.d_qk}/{row.problem.d_hv}"
        for name in (row.gpu.name, *([f"{row.gpu.name}, {heads}"] if row.gpu.name == FITTED_GPU else [])):
            groups.setdefault(name, []).append(row)
    lines = {name: RoundTripFit(rows) for name, rows in groups.items()}
    stored = f"{FITTED_GPU}, {FITTED_HEADS[0]}/{FITTED_HEADS[1]}"
    for fitted_on in (name for name in lines if name == stored or "," not in name):
        seconds = lines[fitted_on].best()
        print(f"fitted on {fitted_on}: {seconds * 1e6:.2f} us")
        for name, line in lines.items():
            print(f"  {name:24} {_errors(line.errors(seconds))}")


def main() -> None:
    """Read the folders and do what the options say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    try:
        judged, undescribed = judge(results for folder in arguments.folders for results in find_results(folder))
    except InputError as error:
        parser.error(str(error))
    if not judged:
        parser.error("no row that the calibrated model describes: 16-bit, of our kernels or of mlstm_kernels")
    print_errors(judged, undescribed)
    if arguments.fit:
        print_fits(judged)
    if arguments.write:
        lines = ",\n".join(f" {json.dumps(asdict(error))}" for error in errors_by_gpu(judged))
        TABLE.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
