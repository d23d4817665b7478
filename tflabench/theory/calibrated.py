"""The calibrated model: seconds of a call, kernel by kernel as they are launched (`launches`, `tfla`, `fused`).

Its constants, and where each is from: `constants`. Of the other linear RNNs on the bundled kernels it is the model of
mLSTMsig, which reads a gate more (a hundredth of the bytes), with what their gates and shared heads leave out
(`Modelled`). `tools/model_error.py` holds it, and the paper's model, to measured rows.

Known to be missing: exp's online maximum and second loop over Q in mlstm_kernels (modelled 20 to 45% too fast), the
chain between the roles of the fused kernels (see `fused`), starting a kernel, clocks that fall under load.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from tflabench.kernels.common.sizes import USUAL, Device
from tflabench.problem import InputError, Problem
from tflabench.theory import fused, tfla
from tflabench.theory.constants import NXAI_STATE_BYTES, TFLA_STATE_BYTES
from tflabench.theory.cost import Cost
from tflabench.theory.hardware import Gpu
from tflabench.theory.launches import Chip, Launch, Modelled, total
from tflabench.theory.roofline import TimeBounds, time_bounds

STATE_BYTES = {"tfla": TFLA_STATE_BYTES, "unpipelined": NXAI_STATE_BYTES}  # of an element of the chunk states
Source = Literal["calibrated model", "published bound"]


def launches(problem: Problem, kernel: Modelled, device: Device = USUAL) -> list[Launch]:
    """Return the kernels of a call at `problem.chunk_size` on a device; InputError for calls that it knows none of."""
    if problem.chunk_size is None:
        raise InputError("chunk_size is not given: the calibrated model needs the one that ran")
    if problem.pass_ == "decode":
        raise InputError("pass is 'decode': the calibrated model knows fw and fwbw")
    if problem.element_bytes != 2:
        raise InputError(f"dtype is {problem.dtype!r}: the calibrated model knows the kernels of bfloat16 and float16")
    if kernel.algorithm == "fused":
        return fused.launches(problem, kernel, problem.chunk_size, device)
    return tfla.launches(problem, kernel, problem.chunk_size, STATE_BYTES[kernel.algorithm], device)


def term_seconds(problem: Problem, kernel: Modelled, chip: Chip) -> dict[str, float]:
    """Return the seconds by term (see `launches.TERMS`) at `problem.chunk_size`; their sum is the predicted time."""
    return total(launches(problem, kernel, chip.device), chip)


class Prediction(NamedTuple):
    """The seconds of one call, which model says so, and the bounds of the published model."""

    seconds: float
    source: Source
    bounds: TimeBounds


def predict(modelled: Modelled | None, counted: Cost, problem: Problem, gpu: Gpu) -> Prediction:
    """Predict one call: by the calibrated model where it knows kernel and GPU, else by the published upper bound.

    Args:
        modelled: what the kernel is to the calibrated model.
        counted: FLOPs and bytes that the bounds are made of.
    """
    bounds = time_bounds(counted, gpu.ceilings)
    calibratable = gpu.float32_flops_per_s and gpu.clock_hz and gpu.multiprocessors
    if not (modelled and calibratable and problem.element_bytes == 2):
        return Prediction(float(bounds.upper), "published bound", bounds)
    return Prediction(sum(term_seconds(problem, modelled, Chip.of(gpu)).values()), "calibrated model", bounds)
