"""Measured ceilings of a machine: asked of the worker, stored for the GPU or CPU that they belong to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tflabench.bench.machine import Machine
from tflabench.problem import InputError
from tflabench.theory import hardware
from tflabench.theory.hardware import Ceilings

RunJob = Callable[[dict[str, Any], float], dict[str, Any]]  # a job and its seconds -> its result
CALIBRATED_DTYPES = {"cuda": ("bfloat16", "float16", "float32"), "cpu": ("bfloat16", "float32", "float64")}


def ceilings_of(machine: Machine, dtypes: Iterable[str], run: RunJob) -> dict[str, Ceilings]:
    """Return ceilings by dtype: calibrated ones, else the datasheet's, else measured now, quickly, and stored."""
    dtypes = sorted(set(dtypes))
    missing = [dtype for dtype in dtypes if hardware.ceilings_for(machine.name, dtype) is None]
    if missing:
        calibrate(machine, missing, run, seconds=1.5)
    return {dtype: hardware.ceilings_for(machine.name, dtype) for dtype in dtypes}  # type: ignore[misc]


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
