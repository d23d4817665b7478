"""The fused kernels of the delta rules, GLA and KDA for Hopper: what each launch computes and moves.

Walks carry one head's state on chip over tiles of 64 steps, so FLOPs are those of the chunkwise form with chunks of one
tile, whatever L is. Segments take a state pass forward and one backward, and their states are joined in order.

- Delta rules (delta/hopper): forward saves inverses and errors, and the gradients of states of every tile lie in memory
  between the two walks of backward. A pass is counted whole: how many tiles it leaves out depends on the gates.
- GLA (gla/hopper): counted are the launches that usual gates need. Where a channel closes by 120 powers of 2 or more
  within a tile, a sequence is walked again, or instead.
- KDA (kda/hopper): operands of tiles lie in memory between launches, and so do, for backward, the states before tiles
  and the gradients of those after them.
"""

from __future__ import annotations

from tflabench.kernels.common.sizes import USUAL, Device
from tflabench.kernels.delta.hopper_plan import (
    STATE_BYTES,
    SUM_BYTES,
    SUMS,
    TILE,
    DeltaPlan,
    DeltaWalk,
    default_chunk_size,
    pieces_of,
    planned,
)
from tflabench.kernels.gla.hopper_plan import GlaWalks
from tflabench.kernels.gla.hopper_plan import default_chunk_size as gla_chunk_size
from tflabench.kernels.gla.hopper_plan import pieces_of as gla_pieces_of
from tflabench.kernels.gla.hopper_plan import planned as gla_planned
from tflabench.kernels.kda.hopper_plan import DECAY_BYTES, VALUES
from tflabench.problem import Problem
from tflabench.theory.cost import DELTA_TILE, GATES, Cost, Gate, flop_polynomial
from tflabench.theory.launches import sizes

FLOAT = 4  # bytes of gates in float32, and of what their gradients are made of


def delta_launches(problem: Problem, gate: Gate) -> dict[str, Cost]:
    """Return by name what the launches of one call compute and move, a step and head.

    These are matrix products alone, and tensors once each.
    """
    p, width = problem, problem.element_bytes
    qk, kv, hv = p.d_qk / p.group * width, p.d_qk * width, p.d_hv * width
    gates = GATES[gate].gate_elements(p.d_qk) * FLOAT
    x, D, pieces = TILE * width, p.d_qk * p.d_hv / TILE * width, pieces_of(p.d_hv)
    through_state, of_qk, of_hv = 2 * p.d_qk * p.d_hv, TILE * p.d_qk, TILE * p.d_hv  # half of the pairs of a tile
    plan, backward = _delta_plan(p), p.pass_ == "fwbw"
    inverse = of_qk + DELTA_TILE**2 / 3
    forward = flop_polynomial("chunkwise", gate, p.d_qk, p.d_hv)(TILE) / TILE
    made = {
        "inverses": Cost(inverse, qk + gates + x),
        "o": Cost(forward - inverse, 2 * qk + hv + x + gates + hv * (1 + backward)),
    }
    columns, joined = p.d_hv + p.d_qk, 3 * p.d_hv + p.d_qk
    of_pass = Cost(2 * (through_state + 2 * p.d_qk**2) + of_hv + of_qk, qk + hv + x + gates)
    made |= _state_pass("states", p, plan, plan.states, of_pass, columns, joined)
    if not backward:
        return made
    of_pass = Cost(3 * through_state + of_qk + 2 * of_hv, 2 * qk + hv + x + gates)
    made |= _state_pass("gradients of states", p, plan, plan.state_gradients, of_pass, p.d_hv, joined + p.d_hv)
    sums = SUMS * SUM_BYTES * pieces
    members = plan.queries_keys.members
    added = 2 * kv * (2 * pieces - 1 / members)  # of pieces, and of heads that share q and k
    added += 2 * (kv + qk) * (p.group > members)
    return made | {
        "dv": Cost(3 * through_state + of_qk + 2 * of_hv, 2 * qk + hv + x + gates + hv + D),
        "dq, dk": Cost(
            4 * through_state + pieces * 4 * of_qk + 2 * of_hv, 3 * hv + D + pieces * (2 * qk + gates) + added + sums
        ),
        "gates": Cost(0, sums + 2 * gates),
    }


def gla_launches(problem: Problem) -> dict[str, Cost]:
    """Return the same of GLA."""
    p, width = problem, problem.element_bytes
    qk, hv, gates, pieces = p.d_qk * width, p.d_hv * width, p.d_qk * width, gla_pieces_of(p.d_hv)
    through_state, of_qk, of_hv = 2 * p.d_qk * p.d_hv, TILE * p.d_qk, TILE * p.d_hv  # half of the pairs of a tile
    of, backward = sizes(p, p.group), p.pass_ == "fwbw"
    chunk_size = p.chunk_size or gla_chunk_size(of, USUAL)
    plan = gla_planned(of, USUAL, chunk_size, backward=backward)
    made = {"o": Cost(flop_polynomial("chunkwise", "gla", p.d_qk, p.d_hv)(TILE) / TILE, 2 * (qk + hv) + gates)}
    of_pass = Cost(through_state, qk + hv + gates)
    made |= _state_pass("states", p, plan, plan.states, of_pass, p.d_hv, 3 * p.d_hv)
    if not backward:
        return made
    made |= _state_pass("gradients of states", p, plan, plan.state_gradients, of_pass, p.d_hv, 3 * p.d_hv)
    # Rows of the state are read in two parts of 16 bits. All launches but the first add to what is there.
    flops, moved = 3 * through_state + pieces * of_qk + of_hv, 2 * hv + pieces * (2 * qk + gates)
    written, terms = qk * (3 * pieces - 2), p.d_qk * FLOAT  # the last walk writes dg in place of terms
    return made | {
        "dv": Cost(2 * through_state + of_qk + of_hv, 2 * (qk + hv) + gates),
        "dq": Cost(flops, moved + written + terms * (2 * pieces - 1)),
        "dk": Cost(flops, moved + written + terms * (2 * pieces - 1) + gates),
    }


def kda_launches(problem: Problem) -> dict[str, Cost]:
    """Return the same of KDA."""
    p, width = problem, problem.element_bytes
    qk, kv, hv, gates = p.d_qk / p.group * width, p.d_qk * width, p.d_hv * width, p.d_qk * width
    square, S, pieces = TILE * width, p.d_qk * p.d_hv / TILE * width, pieces_of(p.d_hv)
    decays = VALUES / TILE * DECAY_BYTES
    through_state, of_qk, of_hv = 2 * p.d_qk * p.d_hv, TILE * p.d_qk, TILE * p.d_hv  # half of the pairs of a tile
    operands, backward, plan = 3 * kv + 2 * square + decays, p.pass_ == "fwbw", _delta_plan(p)
    made = {
        "operands": Cost(2 * of_qk + DELTA_TILE**2 / 3, 2 * qk + gates + FLOAT + operands),
        "o": Cost(3 * through_state + 2 * of_hv, operands + 2 * hv + backward * (hv + S)),
    }
    joined = 3 * p.d_hv + p.d_qk
    of_pass = Cost(2 * (through_state + 2 * p.d_qk**2) + of_hv + of_qk, 2 * kv + square + decays + hv)
    made |= _state_pass("states", p, plan, plan.states, of_pass, p.d_hv + p.d_qk, joined)
    if not backward:
        return made
    of_pass = Cost(3 * through_state + 2 * of_hv, operands + hv)
    made |= _state_pass("gradients of states", p, plan, plan.state_gradients, of_pass, p.d_hv, joined)
    # Either half of the channels has its program, which makes the scores of all pairs; all pieces of v but the first
    # add to what is there.
    moved = 3 * hv + 2 * S + pieces * (2 * qk + gates + FLOAT)
    dg = p.d_qk * FLOAT if pieces > 1 else gates
    written = (2 * pieces - 1) * (2 * kv + dg + FLOAT) + 2 * (kv + qk) * (p.group > 1)
    return made | {
        "dv": Cost(3 * through_state + 2 * of_hv, operands + 2 * hv + S),
        "dq, dk, dg": Cost(3 * through_state + 4 * of_hv + pieces * 4 * of_qk, moved + written),
    }


def chosen_chunk_size(problem: Problem, gate: str, device: Device) -> int:
    """Return the steps of segments that the kernels choose on a device."""
    choose = {"gla": gla_chunk_size}.get(gate, default_chunk_size)
    return choose(sizes(problem, problem.group), device)


def summed(problem: Problem, made: dict[str, Cost]) -> Cost:
    """Return FLOPs and bytes of one call over batch and heads; of the last state nobody asks."""
    steps = problem.batch * problem.heads * problem.seq_len
    return Cost(steps * sum(x.flops for x in made.values()), steps * sum(x.bytes for x in made.values()))


def _delta_plan(problem: Problem) -> DeltaPlan:
    """Return what a call of a delta rule, or of KDA, launches on a usual device."""
    of = sizes(problem, problem.group)
    chunk_size = problem.chunk_size or default_chunk_size(of, USUAL)
    return planned(of, USUAL, chunk_size, beta_max=1, backward=problem.pass_ == "fwbw")


def _state_pass(
    name: str, p: Problem, plan: DeltaPlan | GlaWalks, walk: DeltaWalk | None, of_pass: Cost, columns: int, joined: int
) -> dict[str, Cost]:
    """Return the pass over segments that makes columns of their states, and what joins these; nothing where none runs.

    Args:
        of_pass: a step of the pass, which does not walk over all segments.
        columns, joined: of a state that either of them moves.
    """
    if walk is None:
        return {}
    walked = plan.cut.tiles_of(walk.segments) / plan.cut.tiles
    column = plan.cut.count * p.d_qk * STATE_BYTES / p.seq_len
    return {
        name: Cost(walked * of_pass.flops, walked * of_pass.bytes + column * columns),
        f"{name} joined": Cost(0, column * joined),
    }
