"""The GPU that a question of theory is about: by name, by its ceilings, or this machine's."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from tflabench.problem import DTYPE_BYTES, InputError, one_of

if TYPE_CHECKING:
    from tflabench.theory.hardware import Gpu

LEAST_CEILING, LARGEST_CEILING = 0.0001, 1_000_000  # TFLOP/s or TB/s


def chosen_gpu(
    name: str | None, dtype: str, peak_tflops: float | None = None, bandwidth_tbs: float | None = None
) -> Gpu:
    """Return the GPU asked for: by name, by its ceilings, or by name with a ceiling replaced.

    With none of these, return this machine's GPU, or an H100 where there is none.

    Raises:
        InputError: an unknown name or dtype, one ceiling without the other, or one that no chip has.
    """
    from tflabench.theory import hardware  # here: help texts are shown without it

    one_of("dtype", dtype, tuple(DTYPE_BYTES))  # before any note of its rate
    _check_plausible("--peak-tflops", peak_tflops, "TFLOP/s")
    _check_plausible("--bandwidth-tbs", bandwidth_tbs, "TB/s")
    if name is None and (peak_tflops is None) != (bandwidth_tbs is None):
        given, lacking = (
            ("--peak-tflops", "--bandwidth-tbs") if bandwidth_tbs is None else ("--bandwidth-tbs", "--peak-tflops")
        )
        raise InputError(f"{given} is given without {lacking}: give both, or a --gpu that has the other")
    if name is None and peak_tflops is not None and bandwidth_tbs is not None:
        return hardware.custom(peak_tflops, bandwidth_tbs)
    chip = hardware.find(name) if name is not None else own_gpu(dtype) or hardware.find("H100")
    if peak_tflops is None and chip.ceilings.provenance != "measured" and dtype not in hardware.DATASHEET_DTYPES:
        print(f"note: the rate of {chip.name} is that of bfloat16; give --peak-tflops for {dtype}", file=sys.stderr)
    if peak_tflops is None and bandwidth_tbs is None:
        return chip
    ceilings = hardware.custom(
        chip.ceilings.flops_per_s / 1e12 if peak_tflops is None else peak_tflops,
        chip.ceilings.bytes_per_s / 1e12 if bandwidth_tbs is None else bandwidth_tbs,
    ).ceilings
    return replace(chip, ceilings=ceilings)


def _check_plausible(option: str, value: float | None, unit: str) -> None:
    """Raise InputError unless a ceiling that is given is one that a chip may have."""
    if value is not None and not LEAST_CEILING <= value <= LARGEST_CEILING:
        raise InputError(f"{option} is {value:g}: it must lie between {LEAST_CEILING} and {LARGEST_CEILING} {unit}")


def own_gpu(dtype: str) -> Gpu | None:
    """Return this machine's GPU, with ceilings measured by `tflabench calibrate` or known; None where it has none."""
    from tflabench.bench import machine
    from tflabench.theory import hardware

    here = machine.detect("auto")
    ceilings = hardware.ceilings_for(here.name, dtype) if here.kind == "cuda" else None
    if ceilings is None:
        return None
    gpu = hardware.from_device_name(here.name) or hardware.Gpu(here.name, ceilings, here.memory_bytes)
    return replace(gpu, ceilings=ceilings)
