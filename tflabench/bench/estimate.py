"""About how long a point takes and how much memory it needs, and whether it can run, before it runs; no GPU needed."""

from __future__ import annotations

from dataclasses import dataclass

from tflabench.bench.machine import Machine
from tflabench.bench.protocol import Protocol
from tflabench.bench.rows_of_run import modelled
from tflabench.problem import DeviceKind, Problem
from tflabench.selection.points import Point
from tflabench.theory import hardware
from tflabench.theory.hardware import Ceilings, Gpu

# Seconds a point takes besides its samples (process, build, check, memory, tuning), and how far plain code stays below
# the roofline: rough, for the estimate of --dry-run and the progress bar.
OVERHEAD_S = {"cuda": 1.5, "cpu": 0.3}
TUNING_S = 8.0
SLOWDOWN = {"cuda": 3.0, "cpu": 10.0}
CONTEXT_BYTES = 600 << 20  # of GPU memory, of a process that holds no tensors
PEAK = 2.0  # peak memory of a first call, relative to its inputs and their gradients


@dataclass(frozen=True)
class Target:
    """A device that points are selected for, here or not.

    Attributes:
        capability: compute capability; None for a CPU, or where it is not known.
        gpu: what is known of it, with its ceilings, where it is not here; all packages are then taken as installed.
    """

    kind: DeviceKind
    name: str
    memory_bytes: int
    capability: tuple[int, int] | None = None
    gpu: Gpu | None = None

    @classmethod
    def of_machine(cls, machine: Machine) -> Target:
        """Return this machine's device."""
        gpu = hardware.from_device_name(machine.name)
        return cls(machine.kind, machine.name, machine.memory_bytes, gpu.capability if gpu else None)

    @classmethod
    def of_gpu(cls, gpu: Gpu) -> Target:
        """Return a GPU by what is known of it, as if every library were installed there."""
        return cls("cuda", gpu.name, int(gpu.memory_bytes or 0), gpu.capability, gpu)

    def refusal(self, point: Point) -> str | None:
        """Return why a point cannot run on it, or None."""
        if self.gpu:
            return point.implementation.refusal_on(point.problem, self.gpu)
        return point.implementation.refusal(point.problem, self.kind, self.capability)

    def ceilings(self, dtype: str) -> Ceilings | None:
        """Return the ceilings known of it."""
        return self.gpu.ceilings if self.gpu else hardware.ceilings_for(self.name, dtype)


@dataclass(frozen=True)
class Estimate:
    """Before a point runs: about how many seconds it takes, and how many bytes it needs at least."""

    seconds: float
    bytes: int


def needed_bytes(problem: Problem) -> int:
    """Return the bytes of inputs and output, and of their gradients where the pass has any."""
    copies = 2 if problem.pass_ == "fwbw" else 1
    return copies * problem.tokens * problem.heads * 2 * (problem.d_qk + problem.d_hv) * problem.element_bytes


def first_call_bytes(point: Point) -> int:
    """Return about how much memory of a GPU a process takes for the first call of a point."""
    return int(PEAK * needed_bytes(point.problem.part)) + CONTEXT_BYTES


def estimate(point: Point, target: Target, protocol: Protocol) -> Estimate:
    """Return an estimate from the cost model and the ceilings known so far; refused points take nothing."""
    impl, problem = point.implementation, point.problem.part
    if target.refusal(point):
        return Estimate(0.0, 0)
    turn_s = protocol.budget_s
    if ceilings := target.ceilings(problem.dtype):
        call_s = modelled(impl, problem, ceilings, None)["model_ms_upper"] / 1e3 * SLOWDOWN[target.kind]
        calls = protocol.warmup_iterations + protocol.min_samples
        turn_s = min(call_s * calls, protocol.cap_s) + min(protocol.budget_s, call_s * protocol.max_samples)
        turn_s += protocol.warmup_s
    overhead_s = OVERHEAD_S[target.kind] + (TUNING_S if impl.tunes else 0.0)
    return Estimate(overhead_s + protocol.min_rounds * turn_s, needed_bytes(problem))
