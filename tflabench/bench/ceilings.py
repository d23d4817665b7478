"""Measured ceilings of a machine: asked of the worker, stored for the GPU or CPU that they belong to."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tflabench.bench.machine import Machine
from tflabench.problem import InputError
from tflabench.theory import hardware
from tflabench.theory.hardware import Ceilings

QUICKLY_S = 1.5  # of which samples take about half: each kind has enough of them before its time is up
RunJob = Callable[[dict[str, Any], float], dict[str, Any]]  # a job and its seconds -> its result
CALIBRATED_DTYPES = {"cuda": ("bfloat16", "float16", "float32"), "cpu": ("bfloat16", "float32", "float64")}


def ceilings_of(machine: Machine, dtypes: Iterable[str], run: RunJob) -> dict[str, Ceilings]:
    """Return ceilings by dtype: calibrated ones, else the datasheet's, else measured now, quickly, and stored."""
    dtypes = sorted(set(dtypes))
    missing = [dtype for dtype in dtypes if hardware.ceilings_for(machine.name, dtype) is None]
    if missing:
        calibrate(machine, missing, run, QUICKLY_S)
    return {dtype: hardware.ceilings_for(machine.name, dtype) for dtype in dtypes}  # type: ignore[misc]


def measured_instead(machine: Machine, known: Mapping[str, Ceilings], run: RunJob) -> dict[str, Ceilings]:
    """Return ceilings by dtype with those measured, quickly, that are a datasheet's, and store them.

    Where they cannot be measured or stored, warn and return `known`.
    """
    missing = sorted(dtype for dtype, found in known.items() if found.provenance != "measured")
    try:
        return {**known, **(calibrate(machine, missing, run, QUICKLY_S) if missing else {})}
    except InputError as error:
        warnings.warn(f"percentages are of the datasheet's ceilings: {error}", stacklevel=2)
        return dict(known)


def calibrate(machine: Machine, dtypes: Sequence[str], run: RunJob, seconds: float) -> dict[str, Ceilings]:
    """Measure the ceilings of a machine by dtype and store them for it.

    Raises:
        InputError: the measurement failed, with its reason.
    """
    result = run({"kind": "calibrate", "dtypes": list(dtypes), "seconds": seconds}, 60 + 10 * seconds)
    if result["status"] != "ok":
        raise InputError(f"{machine.name} cannot be calibrated: {result['reason']}")
    source = f"tflabench calibrate, {seconds:g} s: copy of a large buffer (read + write), square matrix products"
    measured = {
        dtype: Ceilings(flops_per_s, bytes_per_s, "measured", source)
        for dtype, (flops_per_s, bytes_per_s) in result["ceilings"].items()
    }
    for dtype, ceilings in measured.items():
        hardware.store_ceilings(machine.name, dtype, ceilings)
    return measured
