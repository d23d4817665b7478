"""The calibrated and the published model: where the time of a measured row goes, and how wrong either model is.

    published    eq. 116: FLOPs / alpha + bytes / beta of the datasheet, Table 17, F_causal 0.5, states in float32
    calibrated   the kernels that run, launch by launch (`launches`, `tfla`, `fused`), under the measured roofs

Its constants, and where each is from: `constants`. One is fitted, on rows of one GPU and head size; `Judged.held_out`
tells the others. `steps` goes from one model to the other a term at a time and says which L each has as the best.

Of the other linear RNNs on the bundled kernels it is the model of mLSTMsig, which reads a gate more (a hundredth of the
bytes), with what their gates and shared heads leave out (`Modelled`).

Known to be missing: exp's online maximum and second loop over Q in mlstm_kernels (modelled 20 to 45% too fast), the
chain between the roles of the fused kernels (see `fused`), starting a kernel, clocks that fall under load.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from tflabench.kernels.common.sizes import USUAL, Device
from tflabench.problem import InputError, Problem
from tflabench.theory import fused, tfla
from tflabench.theory.chunk_size import Tradeoff
from tflabench.theory.constants import FITTED, NXAI_STATE_BYTES, TFLA_STATE_BYTES
from tflabench.theory.cost import Gate
from tflabench.theory.hardware import Gpu
from tflabench.theory.launches import TERMS, Chip, Launch, total

Algorithm = Literal["tfla", "unpipelined", "fused"]
ALGORITHMS: dict[Algorithm, str] = {
    "tfla": "the paper's kernels as bundled: tiles fetched ahead, chunk states in the inputs' type",
    "unpipelined": "the published mlstm_kernels: every tile waited for, chunk states in float32",
    "fused": "the fused kernels for Hopper: the state stays on chip",
}
STATE_BYTES = {"tfla": TFLA_STATE_BYTES, "unpipelined": NXAI_STATE_BYTES}  # of an element of the chunk states
PUBLISHED_TERMS = tuple(TERMS)[:4]  # what the published model knows too


@dataclass(frozen=True)
class Modelled:
    """An implementation as the model sees it.

    Attributes:
        algorithm: one of ALGORITHMS.
        gate: "exp" with stabiliser and normaliser, "sig" without.
        gate_gradients: False where decays are constants: what passes ask for none.
        shared: all heads have the same q and k.
    """

    algorithm: Algorithm
    gate: Gate
    gate_gradients: bool = True
    shared: bool = False

    def group(self, problem: Problem) -> int:
        """Heads that share one of q and k."""
        return problem.heads if self.shared else 1


def launches(problem: Problem, kernel: Modelled, device: Device = USUAL) -> list[Launch]:
    """Return the kernels of one call at `problem.chunk_size`, as planned for a device.

    Raises:
        InputError: no chunk size, a decode step, or inputs that are not 16 bits wide: those kernels are others.
    """
    if problem.chunk_size is None:
        raise InputError("chunk_size is not given: the calibrated model needs the one that ran")
    if problem.pass_ == "decode":
        raise InputError("pass is 'decode': the calibrated model knows fw and fwbw")
    if problem.element_bytes != 2:
        raise InputError(f"dtype is {problem.dtype!r}: the calibrated model knows the kernels of bfloat16 and float16")
    group = kernel.group(problem)
    if kernel.algorithm == "fused":
        return fused.launches(problem, kernel.gate, problem.chunk_size, kernel.gate_gradients, group, device)
    tiles = None if kernel.algorithm == "tfla" else tfla.UNPIPELINED
    state_bytes = STATE_BYTES[kernel.algorithm]
    return tfla.launches(
        problem, kernel.gate, problem.chunk_size, state_bytes, tiles, kernel.gate_gradients, group, device
    )


def predict(problem: Problem, kernel: Modelled, chip: Chip) -> dict[str, float]:
    """Seconds by term (see `launches.TERMS`) at `problem.chunk_size`; their sum is the predicted time."""
    return total(launches(problem, kernel, chip.device), chip)


def published(problem: Problem, kernel: Modelled, gpu: Gpu) -> float:
    """Seconds by eq. 116 at `problem.chunk_size`, on the datasheet's roofs; it knows no shared heads."""
    if kernel.algorithm == "fused":
        size = problem.chunk_size or problem.seq_len
        count = fused.cost(
            problem, kernel.gate, size, gate_gradients=kernel.gate_gradients, group=kernel.group(problem)
        )
        return count.flops / gpu.ceilings.flops_per_s + count.bytes / gpu.ceilings.bytes_per_s
    return float(Tradeoff(problem, kernel.gate, gpu.ceilings).time(problem.chunk_size).upper)


@dataclass(frozen=True)
class Judged:
    """A measured row and what the models say of it: seconds, and by term for the calibrated one.

    `gpu` has the datasheet's roofs, `chip` those of the calibrated model.
    """

    device: str
    gpu: Gpu
    chip: Chip
    implementation: str
    kernel: Modelled
    problem: Problem
    measured: float
    published: float
    terms: dict[str, float]

    @property
    def calibrated(self) -> float:
        """Return the time of the calibrated model, in seconds."""
        return sum(self.terms.values())

    @property
    def held_out(self) -> bool:
        """Return whether no constant was fitted on rows of this GPU and head size (`constants.FITTED`)."""
        return (self.gpu.name, self.problem.d_qk, self.problem.d_hv) != (FITTED.gpu, FITTED.d_qk, FITTED.d_hv)

    @property
    def errors(self) -> tuple[float, float]:
        """(published, calibrated): predicted over measured time, less 1."""
        return self.published / self.measured - 1, self.calibrated / self.measured - 1


def median_and_worst(errors: Iterable[float]) -> tuple[float, float]:
    """Return the median of absolute errors, and the error of largest size with its sign."""
    found = sorted(errors, key=abs)
    middle = len(found) // 2
    median = abs(found[middle]) if len(found) % 2 else (abs(found[middle - 1]) + abs(found[middle])) / 2
    return median, found[-1]


@dataclass(frozen=True)
class Step:
    """One step from the published to the calibrated model: what was added, the best L then, and those within 5%."""

    name: str
    best: int
    low: int
    high: int


def steps(problem: Problem, kernel: Modelled, gpu: Gpu, chip: Chip) -> list[Step]:
    """Return how the best L moves when terms are added one by one; L runs over the multiples of 64 up to T.

    Raises:
        InputError: the fused kernels, whose L trades nothing.
    """
    gate, state_bytes = kernel.gate, STATE_BYTES.get(kernel.algorithm)
    if state_bytes is None:
        raise InputError("the fused kernels have no trade-off over L to take apart: theirs is `fused.best_chunk_size`")
    sizes = [64 * n for n in range(1, min(problem.seq_len, 4096) // 64 + 1)] or [problem.seq_len]
    found = []
    for name, ceilings, width in (
        (f"published, {gpu.name.removeprefix('paper-').split()[0]} datasheet", gpu.ceilings, 4),
        ("measured roofs", chip.ceilings, 4),
        (f"states in {state_bytes} bytes", chip.ceilings, state_bytes),
    ):
        model = Tradeoff(problem, gate, ceilings, state_bytes=width)
        found.append(_step(name, sizes, [float(model.time(size).upper) for size in sizes]))
    terms = [predict(problem.with_(chunk_size=size), kernel, chip) for size in sizes]
    times = [sum(own[name] for name in PUBLISHED_TERMS) for own in terms]
    found.append(_step("kernel by kernel, overlapping", sizes, times))
    for name in list(TERMS)[len(PUBLISHED_TERMS) :]:
        times = [time + own[name] for time, own in zip(times, terms, strict=True)]
        found.append(_step(f"+ {name}", sizes, times))
    return found


def _step(name: str, sizes: Sequence[int], times: Sequence[float]) -> Step:
    least = min(times)
    near = [size for size, time in zip(sizes, times, strict=True) if time <= 1.05 * least]
    return Step(name, sizes[times.index(least)], near[0], near[-1])
