"""The fused kernels of Kimi Delta Attention for Hopper (kda/hopper): what each launch computes and moves.

FLOPs are those of the chunkwise form with chunks of one tile, whatever L is. Operands of tiles lie in memory between
launches, and so do, for backward, the states before tiles and the gradients of those after them.
"""

from __future__ import annotations

from tflabench.kernels.common.sizes import USUAL
from tflabench.kernels.delta.hopper_plan import TILE, pieces_of
from tflabench.kernels.kda.hopper_plan import DECAY_BYTES, VALUES
from tflabench.problem import Problem
from tflabench.theory.cost import DELTA_TILE
from tflabench.theory.fused_delta import GATE_BYTES, LaunchCounts, plan_of, state_bytes


def launches(problem: Problem) -> dict[str, LaunchCounts]:
    """Return by name what the launches of one call compute and move: the matrix products alone, tensors once each."""
    p, width = problem, problem.element_bytes
    qk, kv, hv, gates = p.d_qk / p.group * width, p.d_qk * width, p.d_hv * width, p.d_qk * width
    square, S, pieces = TILE * width, p.d_qk * p.d_hv / TILE * width, pieces_of(p.d_hv)
    decays = VALUES / TILE * DECAY_BYTES
    through_state, of_qk, of_hv = 2 * p.d_qk * p.d_hv, TILE * p.d_qk, TILE * p.d_hv  # half of the pairs of a tile
    operands, backward, plan = 3 * kv + 2 * square + decays, p.pass_ == "fwbw", plan_of(p, USUAL)
    made = {
        "operands": LaunchCounts(2 * of_qk + DELTA_TILE**2 / 3, 2 * qk + gates + GATE_BYTES + operands),
        "o": LaunchCounts(3 * through_state + 2 * of_hv, operands + 2 * hv + backward * (hv + S)),
    }
    if plan.states:
        walked = plan.cut.tiles_of(plan.states.segments) / plan.cut.tiles
        flops = walked * (2 * (through_state + 2 * p.d_qk**2) + of_hv + of_qk)
        moved = walked * (2 * kv + square + decays + hv) + state_bytes(p, plan.cut.count, p.d_hv + p.d_qk)
        made["states"] = LaunchCounts(flops, moved)
        made["states joined"] = LaunchCounts(0, state_bytes(p, plan.cut.count, 3 * p.d_hv + p.d_qk))
    if not backward:
        return made
    if plan.state_gradients:
        walked = plan.cut.tiles_of(plan.state_gradients.segments) / plan.cut.tiles
        flops, moved = walked * (3 * through_state + 2 * of_hv), walked * (operands + hv)
        made["gradients of states"] = LaunchCounts(flops, moved + state_bytes(p, plan.cut.count, p.d_hv))
        joined = state_bytes(p, plan.cut.count, 3 * p.d_hv + p.d_qk)
        made["gradients of states joined"] = LaunchCounts(0, joined)
    # Either half of the channels has its program, which makes the scores of all pairs; all pieces of v but the first
    # add to what is there.
    moved = 3 * hv + 2 * S + pieces * (2 * qk + gates + GATE_BYTES)
    dg = p.d_qk * GATE_BYTES if pieces > 1 else gates
    written = (2 * pieces - 1) * (2 * kv + dg + GATE_BYTES) + 2 * (kv + qk) * (p.group > 1)
    return made | {
        "dv": LaunchCounts(3 * through_state + 2 * of_hv, operands + 2 * hv + S),
        "dq, dk, dg": LaunchCounts(3 * through_state + 4 * of_hv + pieces * 4 * of_qk, moved + written),
    }
