"""The time of one GPU kernel, term by term: what a chip does with the work that a launch brings.

A launch is a grid of programs. Its work goes to three resources, each at its own rate:

    matrix   FLOPs of matrix products / alpha
    vector   pointwise operations / rate of the vector lanes
    memory   bytes / beta

With r workers on a multiprocessor at once (resident programs, times the roles that divide a program's work), one's
waiting is another's work: the busiest resource counts in full and 1/r of the others, so r = 1 is the paper's upper
bound (nothing overlaps, eq. 116) and many are its lower bound (all overlaps). On top come round trips to memory that a
program waits out one after the other, and a last wave of programs that leaves multiprocessors idle. How long a round
trip takes is the one constant that is fitted (`constants`).

Every second of the sum belongs to one of TERMS, so that a stacked bar of them is the predicted time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tflabench.kernels.common.sizes import Device, Sizes
from tflabench.problem import InputError, Problem
from tflabench.theory.constants import ROUND_TRIP_S
from tflabench.theory.cost import Gate
from tflabench.theory.hardware import HOPPER, Capability, Ceilings, Gpu

Algorithm = Literal["tfla", "unpipelined", "fused"]
# Term -> what its seconds are spent on, in the order of stacked bars. The first four are all that the published model
# knows; the others, in this order, turn it into the calibrated one.
TERMS = {
    "inputs and outputs": "q, k, v, h, gates and their gradients through memory",
    "states": "chunk states through memory",
    "between chunks": "matrix products with states: the same at every L",
    "within chunks": "matrix products of the causal half of every chunk: grow with L",
    "causal waste": "the masked part of tiles on the diagonal",
    "recomputation": "scores computed again for every block of the output dimension, or by another kernel",
    "pointwise": "gates, masks, weights and conversions on the vector lanes",
    "waiting": "round trips to memory that nothing hides",
    "idle multiprocessors": "the last wave of programs",
}
RESOURCES = {
    "matrix": ("between chunks", "within chunks", "causal waste", "recomputation"),
    "vector": ("pointwise",),
    "memory": ("inputs and outputs", "states"),
}


@dataclass(frozen=True)
class Chip:
    """Rates of a GPU.

    Attributes:
        vector_ops_per_s: pointwise operations, half the datasheet's float32 rate, which counts a multiply-add as two.
        round_trip_s: of one dependent access to memory.
        capability: compute capability, for which kernels choose their tiles; where it is not known, Hopper's.
    """

    ceilings: Ceilings
    vector_ops_per_s: float
    multiprocessors: int
    round_trip_s: float = ROUND_TRIP_S
    capability: Capability = HOPPER

    @classmethod
    def of(cls, gpu: Gpu, ceilings: Ceilings | None = None) -> Chip:
        """Return the chip of a GPU, with other ceilings where given; InputError where too little is known of it."""
        if not gpu.float32_flops_per_s or not gpu.multiprocessors:
            raise InputError(
                f"the calibrated model knows too little of {gpu.name}: it needs float32_tflops and multiprocessors "
                "of it, in a .toml file (docs/theory.md)"
            )
        vector = gpu.float32_flops_per_s / 2
        return cls(ceilings or gpu.ceilings, vector, gpu.multiprocessors, capability=gpu.capability or HOPPER)

    @property
    def device(self) -> Device:
        """Return the figures that kernels are planned by."""
        major, minor = self.capability
        return Device(10 * major + minor, self.multiprocessors)


@dataclass(frozen=True)
class Modelled:
    """An implementation as the model sees it.

    Attributes:
        algorithm: "tfla": the paper's kernels as bundled, tiles fetched ahead, chunk states in the inputs' type;
            "unpipelined": mlstm_kernels, every tile waited for, chunk states in float32; "fused": those for Hopper.
        gate: "exp" with stabiliser and normaliser, "sig" without.
        gate_gradients: False where decays are constants: what passes ask for none.
        shared: all heads have the same q and k.
    """

    algorithm: Algorithm
    gate: Gate
    gate_gradients: bool = True
    shared: bool = False

    def group(self, problem: Problem) -> int:
        """Return how many heads share one of q and k."""
        return problem.heads if self.shared else problem.group


def sizes(problem: Problem, group: int) -> Sizes:
    """Return the sizes of a call, of which `group` heads share one of q and k."""
    return Sizes(problem.batch, problem.heads, group, problem.seq_len, problem.d_qk, problem.d_hv)


@dataclass(frozen=True)
class Launch:
    """One GPU kernel, as the model sees it; counts are sums over its whole grid.

    Attributes:
        name: as figures and tables call it.
        programs: its grid.
        resident: programs that fit on a multiprocessor at once.
        flops: of matrix products, by term.
        moved: bytes through memory, by term.
        vector_ops: pointwise operations.
        trips: round trips to memory that a program waits out, one after the other.
        roles: groups of warps in a program that fetch, weigh and multiply at the same time.
    """

    name: str
    programs: float
    resident: int
    flops: Mapping[str, float]
    moved: Mapping[str, float]
    vector_ops: float = 0.0
    trips: float = 0.0
    roles: int = 1

    def waves(self, chip: Chip) -> float:
        """Return how often the grid fills the chip; below 1, part of the chip has nothing to do."""
        return self.programs / (chip.multiprocessors * self.resident)

    def times(self, chip: Chip) -> dict[str, float]:
        """Return the seconds by term; their sum is the predicted time. See the module's text."""
        alpha, beta = chip.ceilings.flops_per_s, chip.ceilings.bytes_per_s
        busy = {term: flops / alpha for term, flops in self.flops.items()}
        busy["pointwise"] = self.vector_ops / chip.vector_ops_per_s
        busy |= {term: moved / beta for term, moved in self.moved.items()}
        used = {name: sum(busy.get(term, 0.0) for term in terms) for name, terms in RESOURCES.items()}
        longest, workers = max(used, key=used.__getitem__), self.resident * self.roles
        for name, terms in RESOURCES.items():
            if name != longest:
                busy |= {term: busy[term] / workers for term in terms if term in busy}
        waves = self.waves(chip)
        busy["waiting"] = waves * self.trips * chip.round_trip_s
        # Memory serves the programs that are left as fast as all of them: an SM can take more than its share.
        uneven = sum(busy.values()) - sum(busy.get(term, 0.0) for term in RESOURCES["memory"])
        busy["idle multiprocessors"] = uneven * (math.ceil(waves) / waves - 1)
        return busy


def total(launches: list[Launch], chip: Chip) -> dict[str, float]:
    """Return the seconds of launches one after the other, by term, in the order of TERMS."""
    times = [launch.times(chip) for launch in launches]
    return {term: sum(time.get(term, 0.0) for time in times) for term in TERMS}
