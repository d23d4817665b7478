"""About how long a point takes and how much memory it needs, before it runs."""

from __future__ import annotations

from dataclasses import dataclass

from tflabench.bench.machine import Machine
from tflabench.bench.protocol import Protocol
from tflabench.bench.theory_columns import modelled
from tflabench.selection.points import Point
from tflabench.theory import hardware

# Seconds a point takes besides its samples (build, compile, verify, memory pass), and how far plain code stays below
# the roofline: rough, for the estimate of --dry-run and the progress bar.
OVERHEAD_S = {"cuda": 3.0, "cpu": 0.4}
SLOWDOWN = {"cuda": 3.0, "cpu": 10.0}


@dataclass(frozen=True)
class Estimate:
    """Before a point runs: about how many seconds it takes, and how many bytes it needs at least."""

    seconds: float
    bytes: int


def estimate(point: Point, machine: Machine, protocol: Protocol) -> Estimate:
    """From the cost model and the ceilings known so far; refused points take nothing."""
    impl, problem = point.implementation, point.problem
    if impl.refuses(problem, machine.kind):
        return Estimate(0.0, 0)
    tokens = problem.tokens * problem.heads
    copies = 2 if problem.pass_ == "fwbw" else 1  # gradients of the inputs and of the output beside them
    needed = copies * tokens * 2 * (problem.d_qk + problem.d_hv) * problem.element_bytes
    seconds = protocol.budget_s
    if ceilings := hardware.ceilings_for(machine.name, problem.dtype):
        call_s = modelled(impl, problem, ceilings, None)["model_ms_upper"] / 1e3 * SLOWDOWN[machine.kind]
        calls = protocol.warmup_iterations + protocol.min_samples
        seconds = call_s * calls + min(protocol.budget_s, call_s * protocol.max_samples)
    return Estimate(OVERHEAD_S[machine.kind] + seconds, needed)
