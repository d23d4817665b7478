"""FLOPs and bytes of a chunkwise linear attention, counted as `tflabench.theory.cost` counts the mLSTM.

A count is what one chunk of L steps takes, per head, summed over the chunks of a sequence. Matrix products only, a
multiply-add counting 2, triangular ones half; of the backward pass each product once, with states and scores computed
again. Every kernel reads its inputs and writes its outputs once.

    linear attention     C += K^T V, O = (Q K^T * D) V + Q C;  Q, K (L, d_qk), V, O (L, d_hv), C (d_qk, d_hv)
    with the delta rule  V* = U - W C for V;  U = X V, W = X K, X = (I + A)^-1, A what K K^T * D has below its diagonal
    Mamba 2 (SSD)        the first with q = C, k = B, v = dt x; heads share q and k, and what is made of these alone
"""

from __future__ import annotations

from tflabench.problem import Problem
from tflabench.theory.cost import Cost, Polynomial, Terms, over_sequence, sum_of

STATE_BYTES = 4  # of an element of a state between chunks: float32, where a kernel does not say


def cost(
    problem: Problem,
    *,
    decays: int,
    chunk_size: int,
    delta: bool = False,
    group: int = 1,
    state_bytes: tuple[int, int] = (STATE_BYTES, STATE_BYTES),
) -> Cost:
    """Return the cost of one call, over batch and heads.

    Args:
        decays: decay values read a step and head: 0 where they are constants, 1, or d_qk.
        delta: whether it has the delta rule, with a step size a step and head.
        group: heads that share q and k.
        state_bytes: of an element of a state between chunks, in the forward and in the backward pass.
    """
    passes = ("forward", "backward") if problem.pass_ == "fwbw" else ("forward",)
    flops, moved = Polynomial(), Polynomial()
    for pass_, width in zip(passes, state_bytes, strict=False):
        flops += sum_of(flop_terms(pass_, problem.d_qk, problem.d_hv, delta, chunk_size, group))
        moved += sum_of(byte_terms(pass_, problem, decays, delta, group, width))
    heads = problem.batch * problem.heads
    return Cost(
        flops=heads * over_sequence(flops, problem.seq_len, chunk_size),
        bytes=heads * over_sequence(moved, problem.seq_len, chunk_size),
    )


def flop_terms(pass_: str, d_qk: int, d_hv: int, delta: bool, chunk_size: int, group: int) -> Terms:
    """Return the FLOPs of a pass by name, per head and chunk; `chunk_size` is for what is cubic in L."""
    dd, L = d_qk * d_hv, chunk_size
    if pass_ == "forward":
        terms = {
            "K^T V": Polynomial(linear=2 * dd),
            "Q K^T": Polynomial(square=d_qk / group),
            "(Q K^T * D) V": Polynomial(square=d_hv),
            "Q C": Polynomial(linear=2 * dd),
        }
        delta_terms = {
            "A": Polynomial(square=d_qk),
            "(I + A)^-1": Polynomial(linear=L * L / 3),
            "U, W": Polynomial(square=d_hv + d_qk),
            "W C": Polynomial(linear=2 * dd),
        }
    else:
        terms = {
            "K^T V, recomputed": Polynomial(linear=2 * dd),
            "dC += Q^T dO": Polynomial(linear=2 * dd),
            "Q K^T, recomputed": Polynomial(square=d_qk / group),
            "dS = dO V^T": Polynomial(square=d_hv),
            "dQ += dS K, dK += dS^T Q": Polynomial(square=2 * d_qk / group),
            "dV += (Q K^T * D)^T dO": Polynomial(square=d_hv),
            "dQ += dO C^T, dK += V dC^T, dV += K dC": Polynomial(linear=6 * dd),
        }
        delta_terms = {
            "U, W, recomputed": Polynomial(square=d_hv + d_qk),
            "W C, recomputed": Polynomial(linear=2 * dd),
            "dW, dC through W C": Polynomial(linear=4 * dd),
            "dX": Polynomial(square=d_hv + d_qk),
            "dV, dK through U, W": Polynomial(square=d_hv + d_qk),
            "dA": Polynomial(linear=2 * L * L),
            "dK through A": Polynomial(square=2 * d_qk),
        }
    return terms | delta_terms if delta else terms


def byte_terms(pass_: str, problem: Problem, decays: int, delta: bool, group: int, state_bytes: int) -> Terms:
    """Return the bytes of a pass by kernel, per head and chunk."""
    size = problem.element_bytes
    k = Polynomial(linear=problem.d_qk * size / group)  # q alike
    v = Polynomial(linear=problem.d_hv * size)  # o alike
    gates = Polynomial(linear=(decays + delta) * size)
    C = Polynomial(constant=problem.d_qk * problem.d_hv * state_bytes)
    if pass_ == "forward":
        terms = {"states": k + v + gates + C, "outputs": k * 2 + v * 2 + gates + C}
        return terms | {"U, W": (k + v) * 2 + gates, "V*": k + v} if delta else terms
    terms = {
        "states, recomputed": k + v + gates + C,
        "state gradients": k + v + gates + C,
        "gradients": k * 4 + v * 3 + gates * 2 + C * 2,
    }
    return terms | {"U, W, recomputed": (k + v) * 2 + gates, "dU, dW": (k + v) * 4 + gates * 2} if delta else terms
