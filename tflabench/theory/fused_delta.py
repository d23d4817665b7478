"""The fused kernels of the delta rules for Hopper (delta/hopper): what each launch computes and moves.

Walks carry one head's state on chip over tiles of 64 steps, so FLOPs are those of the chunkwise form with chunks of one
tile, whatever L is. Forward saves inverses and errors, and the gradients of states of every tile lie in memory between
the two walks of backward. Segments take a state pass forward and one backward, and their states are joined in order.
"""

from __future__ import annotations

from typing import NamedTuple

from tflabench.kernels.common.sizes import USUAL, Device
from tflabench.kernels.delta.hopper_plan import (
    STATE_BYTES,
    SUM_BYTES,
    SUMS,
    TILE,
    DeltaPlan,
    default_chunk_size,
    pieces_of,
    planned,
)
from tflabench.problem import Problem
from tflabench.theory.cost import DELTA_TILE, Cost, Gate, flop_polynomial, gate_elements
from tflabench.theory.launches import sizes

GATE_BYTES = 4  # float32, whatever the inputs are


class LaunchCounts(NamedTuple):
    """FLOPs and bytes a step and head of one launch."""

    flops: float
    bytes: float


def launches(problem: Problem, gate: Gate) -> dict[str, LaunchCounts]:
    """Return by name what the launches of one call compute and move: the matrix products alone, tensors once each."""
    p, width = problem, problem.element_bytes
    qk, kv, hv = p.d_qk / p.group * width, p.d_qk * width, p.d_hv * width
    gates = gate_elements(gate, p.d_qk) * GATE_BYTES
    x, D, pieces = TILE * width, p.d_qk * p.d_hv / TILE * width, pieces_of(p.d_hv)
    through_state, of_qk, of_hv = 2 * p.d_qk * p.d_hv, TILE * p.d_qk, TILE * p.d_hv  # half of the pairs of a tile
    backward = p.pass_ == "fwbw"
    inverse = of_qk + DELTA_TILE**2 / 3
    forward = flop_polynomial("chunkwise", gate, p.d_qk, p.d_hv)(TILE) / TILE
    made = {
        "inverses": LaunchCounts(inverse, qk + gates + x),
        "o": LaunchCounts(forward - inverse, 2 * qk + hv + x + gates + hv * (1 + backward)),
    }
    plan = plan_of(p)
    if plan.states:
        walked = plan.cut.tiles_of(plan.states.segments) / plan.cut.tiles
        flops = walked * (2 * (through_state + 2 * p.d_qk**2) + of_hv + TILE * p.d_qk)
        made["states"] = LaunchCounts(
            flops, walked * (qk + hv + x + gates) + state_bytes(p, plan.cut.count, p.d_hv + p.d_qk)
        )
        made["states joined"] = LaunchCounts(0, state_bytes(p, plan.cut.count, 3 * p.d_hv + p.d_qk))
    if not backward:
        return made
    if plan.state_gradients:
        walked = plan.cut.tiles_of(plan.state_gradients.segments) / plan.cut.tiles
        flops = walked * (3 * through_state + of_qk + 2 * of_hv)
        moved = walked * (2 * qk + hv + x + gates) + state_bytes(p, plan.cut.count, p.d_hv)
        made["gradients of states"] = LaunchCounts(flops, moved)
        made["gradients of states joined"] = LaunchCounts(0, state_bytes(p, plan.cut.count, 4 * p.d_hv + p.d_qk))
    sums = SUMS * SUM_BYTES * pieces
    members = plan.queries_keys.members
    added = 2 * kv * (2 * pieces - 1 / members)  # of pieces, and of heads that share q and k
    added += 2 * (kv + qk) * (p.group > members)
    return made | {
        "dv": LaunchCounts(3 * through_state + of_qk + 2 * of_hv, 2 * qk + hv + x + gates + hv + D),
        "dq, dk": LaunchCounts(
            4 * through_state + pieces * 4 * of_qk + 2 * of_hv,
            3 * hv + D + pieces * (2 * qk + gates) + added + sums,
        ),
        "gates": LaunchCounts(0, sums + 2 * gates),
    }


def plan_of(problem: Problem, device: Device = USUAL) -> DeltaPlan:
    """Return what a call launches on a device."""
    of = sizes(problem, problem.group)
    chunk_size = problem.chunk_size or default_chunk_size(of, device)
    return planned(of, device, chunk_size, beta_max=1, backward=problem.pass_ == "fwbw")


def state_bytes(problem: Problem, segments: int, columns: int) -> float:
    """Return the bytes a step of so many columns of the states of all segments."""
    return segments * problem.d_qk * columns * STATE_BYTES / problem.seq_len


def summed(problem: Problem, made: dict[str, LaunchCounts]) -> Cost:
    """Return FLOPs and bytes of one call over batch and heads; of the last state nobody asks."""
    steps = problem.batch * problem.heads * problem.seq_len
    return Cost(steps * sum(x.flops for x in made.values()), steps * sum(x.bytes for x in made.values()))
