"""The predicted time of one call: which model says so, and the bounds of the published one.

The bounds are max and sum of T_math and T_mem of an implementation's counts, which take every tensor once a call. The
calibrated model goes kernel by kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tflabench.problem import Problem
from tflabench.theory import calibrated
from tflabench.theory.cost import Cost
from tflabench.theory.hardware import Gpu
from tflabench.theory.launches import Chip, Modelled
from tflabench.theory.roofline import TimeBounds, time_bounds

Source = Literal["calibrated model", "published bound", "measured"]


@dataclass(frozen=True)
class Prediction:
    """The prediction of theory for one call.

    Attributes:
        seconds, source: the time, and which model says so.
        bounds: of the published model, in seconds.
        terms: what the time is the sum of, in seconds; empty of a published bound.
    """

    seconds: float
    source: Source
    bounds: TimeBounds
    terms: Mapping[str, float] = field(default_factory=dict[str, float])


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
    terms = calibrated.predict(problem, modelled, Chip.of(gpu))
    return Prediction(sum(terms.values()), "calibrated model", bounds, terms)
