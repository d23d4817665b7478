"""Theoretical runtime, arithmetic intensity and roofline, eqs. (112)-(119) of the TFLA paper; the bound of a problem.

The bound of a problem is how long its forward and backward passes take at least, whichever kernel computes them:
docs/how-it-measures.md has the formulas. A pass reads each input once, writes each output once, and makes each product
of the chunkwise form with tiles of `TILE` steps once:

    forward     update and read the state; S = QK^T and S V
    backward    update C and dC, read them for dq, dk and dv; S = QK^T, dh V^T, S^T dh, dS K, dS^T Q
    delta rule  and K C; K K^T, errors of a tile, and backward K dC, K^T dV, dV C^T; K K^T, their gradients

Heads of v that share a head of q and k read these once, write their gradients once, and have one QK^T.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from tflabench.problem import Problem, one_of
from tflabench.theory.cost import Cost
from tflabench.theory.hardware import Ceilings

Number = Any  # float or numpy array
# What a problem computes, as far as its bound depends on that: softmax attention, or a linear recurrence without gates,
# with one or two gates a step and head, or with a gate a step and key channel; with one gate, and q and k that all
# heads share (Mamba 2); or a delta rule, without decay, with one a step, or with one a step and key channel.
Bounded = Literal[
    "attention", "ungated", "one_gate", "two_gates", "channel_gates", "shared_keys",
    "delta_rule", "gated_delta_rule", "channel_delta_rule",
]  # fmt: skip
TILE = 64  # steps: the smallest that tensor cores take well


class TimeBounds(NamedTuple):
    """Theoretical runtime in seconds: computing and moving fully overlapped, and not at all."""

    lower: Number
    upper: Number


def time_bounds(cost: Cost, ceilings: Ceilings) -> TimeBounds:
    """Return tau_lower = max(FLOPs / alpha, bytes / beta) and tau_upper = their sum, in seconds (eqs. 112-116)."""
    compute, move = cost.flops / ceilings.flops_per_s, cost.bytes / ceilings.bytes_per_s
    return TimeBounds(lower=np.maximum(compute, move), upper=compute + move)


def attainable(ceilings: Ceilings, intensity: Number) -> Number:
    """Return the FLOP/s at an arithmetic intensity: min(beta * I, alpha) (eq. 119)."""
    return np.minimum(ceilings.bytes_per_s * intensity, ceilings.flops_per_s)


def compute_bound(cost: Cost, ceilings: Ceilings) -> Any:
    """Return whether I_algo > I_acc (eqs. 117-118)."""
    return cost.intensity > ceilings.intensity


def pass_bounds(bounded: Bounded, problem: Problem) -> tuple[Cost, ...] | None:
    """Return the least FLOPs and bytes of every pass, over batch and heads: the forward, then the backward pass.

    Returns:
        None for a decode step, for which there is no formula.
    """
    one_of("bounded", bounded, get_args(Bounded))
    if problem.pass_ == "decode":
        return None
    d_qk, d_hv, e = problem.d_qk, problem.d_hv, problem.element_bytes
    delta = bounded.endswith("delta_rule")
    counts = {"one_gate": 1, "shared_keys": 1, "delta_rule": 1, "two_gates": 2, "gated_delta_rule": 2}
    counts |= {"channel_gates": d_qk, "channel_delta_rule": d_qk + 1}
    gates = e * counts.get(bounded, 0)
    recurrent = bounded != "attention"
    state = d_qk * d_hv if recurrent else 0
    t = min(TILE, problem.seq_len) if recurrent else problem.seq_len
    tokens = problem.tokens * problem.heads
    group = problem.heads if bounded == "shared_keys" else problem.group
    d_k = d_qk / group if group > 1 else d_qk  # what is read, and multiplied for scores, once a group
    read = e * (2 * d_k + 2 * d_hv) + gates  # backward, dh is read in place of h, which forward writes
    flops = 4 * state + t * (d_k + d_hv)
    flops_back = 10 * state + t * (2 * d_qk + d_k + 2 * d_hv)
    if delta:
        flops += 2 * state + t * (d_k + d_hv)
        flops_back += 6 * state + t * (2 * d_qk + d_k + 2 * d_hv)
    forward = Cost(flops=tokens * flops, bytes=tokens * read)
    written = e * (2 * d_k + d_hv) + gates
    backward = Cost(flops=tokens * flops_back, bytes=tokens * (read + written))
    return (forward, backward) if problem.pass_ == "fwbw" else (forward,)


def bound_s(bounded: Bounded | None, problem: Problem, ceilings: Ceilings) -> float | None:
    """Return the bound of a problem in seconds, None where there is no formula.

    Args:
        bounded: None for what no formula covers: Mamba, and Mamba 2 with its convolution.
    """
    costs = pass_bounds(bounded, problem) if bounded else None
    return sum(float(time_bounds(cost, ceilings).lower) for cost in costs) if costs else None
