"""FLOPs and bytes of one call of an implementation, whichever formulation it computes."""

from __future__ import annotations

from tflabench.problem import Problem
from tflabench.theory import fused
from tflabench.theory.cost import (
    DEFAULT_CHUNK_SIZE,
    Cost,
    Formulation,
    Gate,
    byte_polynomial,
    flop_polynomial,
    over_sequence,
)
from tflabench.theory.launches import Modelled


def call_cost(problem: Problem, formulation: Formulation, gate: Gate | None, *, state_bytes: float = 4) -> Cost:
    """Return the FLOPs and bytes of one call of an implementation on `problem`, over batch and heads.

    Counts are the exact ones, with half of the quadratic work. Heads that share one of q and k count its bytes once.

    Args:
        problem: pass_ "fwbw" counts forward and backward; "decode" is one recurrent step (Table 13), whatever the
            formulation, except for attention. A chunk_size of None counts DEFAULT_CHUNK_SIZE.
        formulation: which algorithm is counted.
        gate: one of `cost.Gate`; None (a recurrence without input gate, or attention) is counted as "sig".
        state_bytes: of one element of C, n and m.
    """
    if problem.pass_ == "decode" and formulation != "attention":
        formulation = "recurrent"
    if formulation == "fused":
        kernel = Modelled("fused", gate or "sig", shared=problem.group == problem.heads)
        return fused.cost(problem, kernel, problem.chunk_size or problem.seq_len)
    dims = (formulation, gate or "sig", problem.d_qk, problem.d_hv)
    width = problem.element_bytes
    flops = flop_polynomial(*dims, pass_=problem.pass_, counts="exact")
    moved = byte_polynomial(
        *dims, element_bytes=width, gate_bytes=width, state_bytes=state_bytes, group=problem.group, pass_=problem.pass_
    )
    unit = (problem.chunk_size or DEFAULT_CHUNK_SIZE) if formulation == "chunkwise" else problem.seq_len
    heads = problem.batch * problem.heads
    return Cost(
        flops=heads * over_sequence(flops, problem.seq_len, unit),
        bytes=heads * over_sequence(moved, problem.seq_len, unit),
    )
