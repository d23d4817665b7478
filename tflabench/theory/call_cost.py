"""FLOPs and bytes of one call of an implementation, whichever formulation it computes."""

from __future__ import annotations

from tflabench.problem import Problem
from tflabench.theory import fused
from tflabench.theory.cost import (
    DEFAULT_CHUNK_SIZE,
    Cost,
    Counts,
    Formulation,
    Gate,
    OpCosts,
    byte_polynomial,
    flop_polynomial,
    over_sequence,
    unit_length,
)
from tflabench.theory.launches import Modelled


def call_cost(
    problem: Problem,
    formulation: Formulation,
    gate: Gate | None,
    *,
    causal_factor: float = 0.5,
    state_bytes: float = 4,
    gate_bytes: float | None = None,
    counts: Counts = "exact",
    ops: OpCosts = OpCosts(),  # noqa: B008  frozen
    group: int | None = None,
) -> Cost:
    """FLOPs and bytes of one call of an implementation on `problem`, over batch and heads: the bench's entry point.

    Args:
        problem: pass_ "fwbw" counts forward and backward; "decode" is one recurrent step (Table 13), whatever the
            formulation, except for attention. A chunk_size of None counts DEFAULT_CHUNK_SIZE.
        formulation: which algorithm is counted.
        gate: one of `cost.Gate`; None (a recurrence without input gate, or attention) is counted as "sig".
        causal_factor: F_causal, the part of the quadratic work done: 0.5 ideal, 1 everything.
        state_bytes: of one element of C, n and m.
        gate_bytes: of one gate pre-activation; default: as q, k and v.
        group: heads that share one of q and k, whose bytes count once; default: the problem's. Products count a head.

    Raises:
        InputError: an unknown formulation, gate or count, or a causal factor outside [0.5, 1].
    """
    group = problem.group if group is None else group
    if problem.pass_ == "decode" and formulation != "attention":
        formulation = "recurrent"
    if formulation == "fused":
        kernel = Modelled("fused", gate or "sig", shared=group == problem.heads)
        return fused.cost(problem, kernel, problem.chunk_size or problem.seq_len, causal_factor)
    dims = (formulation, gate or "sig", problem.d_qk, problem.d_hv)
    flops = flop_polynomial(*dims, causal_factor=causal_factor, pass_=problem.pass_, counts=counts, ops=ops)
    moved = byte_polynomial(
        *dims,
        element_bytes=problem.element_bytes,
        gate_bytes=problem.element_bytes if gate_bytes is None else gate_bytes,
        state_bytes=state_bytes,
        group=group,
        pass_=problem.pass_,
    )
    unit = unit_length(formulation, problem.seq_len, problem.chunk_size or DEFAULT_CHUNK_SIZE)
    heads = problem.batch * problem.heads
    return Cost(
        flops=heads * over_sequence(flops, problem.seq_len, unit),
        bytes=heads * over_sequence(moved, problem.seq_len, unit),
    )
