"""The predicted time of one call: which model says so, the bounds of the published one, and why it is outside of them.

The bounds are max and sum of T_math and T_mem of an implementation's counts, which take every tensor once a call. The
calibrated model goes kernel by kernel, so most of what it adds is in no count: see `Prediction.outside`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from tflabench.problem import Problem
from tflabench.theory import calibrated
from tflabench.theory.calibrated import PUBLISHED_TERMS
from tflabench.theory.cost import Cost
from tflabench.theory.hardware import Gpu
from tflabench.theory.launches import Algorithm, Chip, Launch, Modelled
from tflabench.theory.roofline import TimeBounds, time_bounds

Source = Literal["calibrated model", "published bound", "measured"]

AGAIN = "tensors and states that kernel after kernel reads"  # which a count takes once a call
MORE_PRODUCTS = "products that several kernels make"


@dataclass(frozen=True)
class AdvisedKernel:
    """A chunkwise kernel as advice names it.

    Attributes:
        name: of the implementation.
        gate: "exp" or "sig" of the mLSTM, or which other linear RNN it computes.
        modelled: what it is to the calibrated model; None for what that does not know.
        count: FLOPs and bytes of a call.
        counts: which gates of `theory.cost` it is counted as.
        workspace_bytes: problem -> memory beside what every kernel takes; None for nothing.
    """

    name: str
    gate: str
    modelled: Modelled | None
    count: Callable[[Problem], Cost] = field(compare=False)
    counts: str = "sig"
    workspace_bytes: Callable[[Problem], float] | None = field(default=None, compare=False)

    @property
    def algorithm(self) -> Algorithm | None:
        """Return the algorithm that the calibrated model takes it for; None for none."""
        return self.modelled.algorithm if self.modelled else None


@dataclass(frozen=True)
class Prediction:
    """The prediction of theory for one call.

    Attributes:
        seconds, source: the time, and which model says so.
        bounds: of the published model, in seconds.
        outside: why the time is not between them, as a part of a sentence; None where it is.
        terms: what the time is the sum of, in seconds; empty of a published bound.
    """

    seconds: float
    source: Source
    bounds: TimeBounds
    outside: str | None = None
    terms: Mapping[str, float] = field(default_factory=dict[str, float])


def predict(kernel: AdvisedKernel, problem: Problem, gpu: Gpu) -> Prediction:
    """Predict one call: by the calibrated model where it knows kernel and GPU, else by the published upper bound."""
    counted = kernel.count(problem)
    bounds = time_bounds(counted, gpu.ceilings)
    known = gpu.float32_flops_per_s and gpu.clock_hz and gpu.multiprocessors
    if not (kernel.modelled and known and problem.element_bytes == 2):
        return Prediction(float(bounds.upper), "published bound", bounds)
    chip = Chip.of(gpu)
    terms = calibrated.predict(problem, kernel.modelled, chip)
    launches = calibrated.launches(problem, kernel.modelled, chip.device)
    outside = why_outside(terms, launches, counted, gpu)
    return Prediction(sum(terms.values()), "calibrated model", bounds, outside, terms)


def why_outside(terms: dict[str, float], launches: list[Launch], counted: Cost, gpu: Gpu) -> str | None:
    """Say why the sum of the calibrated model's terms is not between the published bounds; None where it is.

    Above the upper bound it names what the bounds leave out, most seconds first, until that accounts for the excess:
    terms of the calibrated model alone, and work of the launches beyond the counts. Below the lower one the launches do
    less than is counted, for the model never goes below the larger of its own two times.

    Args:
        terms: seconds by term; launches: that they are of.
        counted: FLOPs and bytes that the bounds are made of.
    """
    bounds, roofs = time_bounds(counted, gpu.ceilings), gpu.ceilings
    seconds, lower, upper = sum(terms.values()), float(bounds.lower), float(bounds.upper)
    moved = sum(sum(launch.moved.values()) for launch in launches)
    if seconds > upper:
        products = sum(launch.flops.get(term, 0.0) for launch in launches for term in PUBLISHED_TERMS)
        extra = {term: value for term, value in terms.items() if term not in PUBLISHED_TERMS}
        extra[AGAIN] = (moved - float(counted.bytes)) / roofs.bytes_per_s
        extra[MORE_PRODUCTS] = (products - float(counted.flops)) / roofs.flops_per_s
        named: list[str] = []
        covered = 0.0
        for name in sorted(extra, key=extra.__getitem__, reverse=True):
            if covered < seconds - upper and extra[name] > 0:
                named.append(name)
                covered += extra[name]
        return f"{seconds / upper - 1:.0%} above its upper bound, which leaves out {_listed(named)}"
    if seconds < lower:
        by_memory = float(counted.bytes) / roofs.bytes_per_s >= float(counted.flops) / roofs.flops_per_s
        flops = sum(sum(launch.flops.values()) for launch in launches)
        what, ratio = ("bytes", counted.bytes / moved) if by_memory else ("FLOPs", counted.flops / flops)
        times = f"{float(ratio):.2f} times the {what} of its kernels"
        return f"{1 - seconds / lower:.0%} below its lower bound, which counts {times}"
    return None


def _listed(names: list[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
