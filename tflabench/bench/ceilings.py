"""Measured ceilings of a machine: asked of the worker, stored by the UUID of the GPU, and by the name of its kind."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from tflabench.bench.machine import Machine
from tflabench.problem import InputError
from tflabench.theory import hardware
from tflabench.theory.hardware import Ceilings

CLOSE = 0.1  # of a ceiling: measurements nearer to each other are of one machine in one state
QUICKLY_S = 1.5  # of which samples take about half: each kind has enough of them before its time is up
RunJob = Callable[[dict[str, Any], float], dict[str, Any]]  # a job and its seconds -> its result
CALIBRATED_DTYPES = {"cuda": ("bfloat16", "float16", "float32"), "cpu": ("bfloat16", "float32", "float64")}


def ceilings_of(machine: Machine, dtypes: Iterable[str], run: RunJob) -> dict[str, Ceilings]:
    """Return ceilings by dtype: those measured on this very device, or now, quickly, which stores them.

    Where they cannot be measured, warn and return those of its kind.

    Raises:
        InputError: they cannot be measured, and none of its kind are known.
    """
    known = {dtype: hardware.measured_ceilings(machine.uuid or machine.name, dtype) for dtype in sorted(set(dtypes))}
    found = {dtype: ceilings for dtype, ceilings in known.items() if ceilings}
    if missing := [dtype for dtype in known if dtype not in found]:
        try:
            found |= _quickly(machine, missing, run)
        except InputError as error:
            of_kind = {dtype: hardware.ceilings_for(machine.name, dtype) for dtype in missing}
            found |= {dtype: ceilings for dtype, ceilings in of_kind.items() if ceilings}
            if found.keys() != known.keys():
                raise
            warnings.warn(f"percentages are not of ceilings measured on this device: {error}", stacklevel=2)
    return found


def calibrate(
    machine: Machine, dtypes: Sequence[str], run: RunJob, seconds: float, force: bool = False
) -> dict[str, Ceilings]:
    """Measure the ceilings of a machine by dtype, and store them for it and for its kind.

    A rate or bandwidth that differs from a stored one by more than CLOSE is warned of, and the better of the two kept:
    what else runs on a machine makes it slower, and nothing makes it faster. With `force` what is measured is stored.

    Raises:
        InputError: the measurement failed, with its reason, or it cannot be stored.
    """
    measured = _measured(machine, dtypes, run, seconds)
    for dtype, new in measured.items():
        stored = hardware.measured_ceilings(machine.uuid or machine.name, dtype)
        if stored and not force:
            measured[dtype] = _better(dtype, stored, new)
        for device in filter(None, (machine.uuid, machine.name)):
            hardware.store_ceilings(device, dtype, measured[dtype])
    return measured


def _better(dtype: str, stored: Ceilings, new: Ceilings) -> Ceilings:
    """Return new ceilings with the better of both wherever they differ much from those stored, with a warning."""
    for field, title, unit in (("flops_per_s", "matrix rate", "TFLOP/s"), ("bytes_per_s", "copy bandwidth", "TB/s")):
        before, now = getattr(stored, field), getattr(new, field)
        if abs(now / before - 1) > CLOSE:
            kept = "that is kept, --force stores the new one" if now < before else "the new one is stored"
            rates = f"{now / 1e12:.3g} {unit} measured, {before / 1e12:.3g} stored"
            warnings.warn(f"{title} of {dtype}: {rates}: {kept}", stacklevel=3)
            new = replace(new, **{field: max(before, now)})
    return new


def _quickly(machine: Machine, dtypes: Sequence[str], run: RunJob) -> dict[str, Ceilings]:
    """Measure and store ceilings in passing: they are those of its kind only where that has none.

    Where they cannot be stored there is a warning, and the next sweep measures them again.
    """
    of_kind = [d for d in dtypes if machine.uuid is None or not hardware.measured_ceilings(machine.name, d)]
    measured = _measured(machine, dtypes, run, QUICKLY_S)
    try:
        for dtype, ceilings in measured.items():
            for device in filter(None, (machine.uuid, machine.name if dtype in of_kind else None)):
                hardware.store_ceilings(device, dtype, ceilings)
    except InputError as error:
        warnings.warn(f"{error}; until then every sweep measures ceilings anew", stacklevel=3)
    return measured


def _measured(machine: Machine, dtypes: Sequence[str], run: RunJob, seconds: float) -> dict[str, Ceilings]:
    result = run({"kind": "calibrate", "dtypes": list(dtypes), "seconds": seconds}, 60 + 10 * seconds)
    if result["status"] != "ok":
        raise InputError(f"{machine.name} cannot be calibrated: {result['reason']}")
    source = f"tflabench calibrate, {seconds:g} s: copy of a large buffer (read + write), square matrix products"
    rates: dict[str, tuple[float, float]] = result["ceilings"]
    return {dtype: Ceilings(flops, bandwidth, "measured", source) for dtype, (flops, bandwidth) in rates.items()}
