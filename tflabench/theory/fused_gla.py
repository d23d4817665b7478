"""The fused kernels of Gated Linear Attention for Hopper (gla/hopper): what each launch computes and moves.

Walks carry one head's state on chip over tiles of 64 steps, so FLOPs are those of the chunkwise form with chunks of one
tile, whatever L is. Counted are the launches that usual gates need: where a channel closes by 120 powers of 2 or more
within a tile, a sequence is walked again, or instead.
"""

from __future__ import annotations

from tflabench.kernels.common.sizes import USUAL, Device
from tflabench.kernels.gla.hopper_plan import TILE, GlaWalks, default_chunk_size, pieces_of, planned
from tflabench.problem import Problem
from tflabench.theory.cost import flop_polynomial
from tflabench.theory.fused_delta import LaunchCounts, state_bytes
from tflabench.theory.launches import sizes

FLOAT = 4  # bytes of gates, and of what their gradients are made of


def launches(problem: Problem) -> dict[str, LaunchCounts]:
    """Return by name what the launches of one call compute and move: the matrix products alone, tensors once each."""
    p, width = problem, problem.element_bytes
    qk, hv, gates, pieces = p.d_qk * width, p.d_hv * width, p.d_qk * FLOAT, pieces_of(p.d_hv)
    through_state, of_qk, of_hv = 2 * p.d_qk * p.d_hv, TILE * p.d_qk, TILE * p.d_hv  # half of the pairs of a tile
    plan, backward = plan_of(p), p.pass_ == "fwbw"
    made = {"o": LaunchCounts(flop_polynomial("chunkwise", "gla", p.d_qk, p.d_hv)(TILE) / TILE, 2 * (qk + hv) + gates)}
    passes = {"": plan.states, "gradients of ": plan.state_gradients if backward else None}
    for name, walk in passes.items():
        if walk is not None:
            walked = plan.cut.tiles_of(walk.segments) / plan.cut.tiles
            moved = walked * (qk + hv + gates) + state_bytes(p, plan.cut.count, p.d_hv)
            made[f"{name}states"] = LaunchCounts(walked * through_state, moved)
            made[f"{name}states joined"] = LaunchCounts(0, state_bytes(p, plan.cut.count, 3 * p.d_hv))
    if not backward:
        return made
    # Rows of the state are read in two parts of 16 bits. All launches but the first add to what is there.
    flops, moved = 3 * through_state + pieces * of_qk + of_hv, 2 * hv + pieces * (2 * qk + gates)
    written, terms = qk * (3 * pieces - 2), p.d_qk * FLOAT  # the last walk writes dg in place of terms
    return made | {
        "dv": LaunchCounts(2 * through_state + of_qk + of_hv, 2 * (qk + hv) + gates),
        "dq": LaunchCounts(flops, moved + written + terms * (2 * pieces - 1)),
        "dk": LaunchCounts(flops, moved + written + terms * (2 * pieces - 1) + gates),
    }


def plan_of(problem: Problem, device: Device = USUAL) -> GlaWalks:
    """Return what a call launches on a device."""
    of = sizes(problem, problem.group)
    chunk_size = problem.chunk_size or default_chunk_size(of, device)
    return planned(of, device, chunk_size, backward=problem.pass_ == "fwbw")
