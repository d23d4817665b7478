"""FLOPs and bytes of the recurrences that baselines compute, counted as `tflabench.theory.cost` counts the mLSTM.

A count is what one chunk of L steps takes, per head, summed over the chunks of a sequence. Matrix products only, a
multiply-add counting 2, triangular ones half; of the backward pass each product once, with states and scores computed
again. Every kernel reads its inputs and writes its outputs once.

    linear attention     C += K^T V, O = (Q K^T * D) V + Q C;  Q, K (L, d_qk), V, O (L, d_hv), C (d_qk, d_hv)
    with the delta rule  V* = U - W C for V;  U = X V, W = X K, X = (I + A)^-1, A what K K^T * D has below its diagonal
    Mamba 2 (SSD)        the first with q = C, k = B, v = dt x; heads share q and k, and what is made of these alone
    Mamba                neither chunks nor products: N states a channel, in registers
"""

from __future__ import annotations

from tflabench.problem import Problem
from tflabench.theory.cost import Cost, Polynomial, Terms, over_sequence

FLA_CHUNK_SIZE = 64  # what fla uses by itself
STATE_BYTES = 4  # between chunks: float32, where a kernel does not say
SCAN_FLOPS = 7  # Mamba, a state and step: exp(dt A) 2, its product with h 1, + dt u B 2, C h 2
# dh = C dy + exp(dt A) dh 4, dC 2, dB 2, du 2, ddt 4, dA 3, with h again 5
SCAN_BACKWARD_FLOPS = 22


def linear_attention(
    problem: Problem,
    *,
    decays: int,
    delta: bool = False,
    chunk_size: int = FLA_CHUNK_SIZE,
    group: int = 1,
    state_bytes: tuple[int, int] = (STATE_BYTES, STATE_BYTES),
    on_chip: int | None = None,
) -> Cost:
    """Cost of one call of a chunkwise linear attention, over batch and heads.

    Args:
        decays: decay values read a step and head: 0 where they are constants, 1, or d_qk.
        delta: whether it has the delta rule, with a step size a step and head.
        group: heads that share q and k: 1, or Mamba 2's.
        state_bytes: of an element of a state between chunks, in the forward and in the backward pass.
        on_chip: rows and columns of the blocks of a state, if these stay on chip and what blocks add up to is summed.
    """
    passes = ("forward", "backward") if problem.pass_ == "fwbw" else ("forward",)
    flops, moved = Polynomial(), Polynomial()
    for pass_, width in zip(passes, state_bytes, strict=False):
        for term in flop_terms(pass_, problem.d_qk, problem.d_hv, delta, chunk_size, group).values():
            flops += term
        terms = (
            byte_terms(pass_, problem, decays, delta, group, width)
            if on_chip is None
            else byte_terms_on_chip(pass_, problem, decays, on_chip)
        )
        for term in terms.values():
            moved += term
    heads = problem.batch * problem.heads
    return Cost(
        flops=heads * over_sequence(flops, problem.seq_len, chunk_size),
        bytes=heads * over_sequence(moved, problem.seq_len, chunk_size),
    )


def flop_terms(pass_: str, d_qk: int, d_hv: int, delta: bool, chunk_size: int, group: int) -> Terms:
    """FLOPs of the forward or the backward pass by name, per head and chunk; `chunk_size` for what is cubic in L."""
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
    """Bytes of the forward or the backward pass by kernel, per head and chunk."""
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


def byte_terms_on_chip(pass_: str, problem: Problem, decays: int, block: int) -> Terms:
    """Return the bytes of the forward or the backward pass by kernel, per head and chunk.

    Programs walk over a sequence with a block of the state each. What several of them add up to is written in
    float32, one part each, and summed.
    """
    size = problem.element_bytes
    k, v = Polynomial(linear=problem.d_qk * size), Polynomial(linear=problem.d_hv * size)  # q and o alike
    gates = Polynomial(linear=decays * size)

    def written(d: int, blocks: int) -> Polynomial:
        """Return the bytes of d columns in the dtype of the inputs, or of parts, their sum and that in this dtype."""
        return Polynomial(linear=d * size if blocks == 1 else d * (4 * (2 * blocks + 2) + size))

    rows, columns = -(-problem.d_qk // block), -(-problem.d_hv // block)
    if pass_ == "forward":
        return {"outputs": k * 2 + v + gates + written(problem.d_hv, rows)}
    dk = written(problem.d_qk, columns)  # dq alike
    return {
        "dQ": k * (1 + decays) + v * 2 + gates + dk,
        "dK, dV": k * 2 + v * 2 + gates + dk + written(problem.d_hv, rows),
        "gates' gradients": Polynomial(linear=decays * (4 * (4 * rows * columns + 1) + size)),
    }


def lightning_attention_2(problem: Problem) -> Cost:
    """Return the cost of one call of LightningAttention-2, which keeps the state of a head on chip.

    Of q and k of more than 128 columns each slice of 64 is a call of its own, which reads v and writes an o. Copies of
    slices and sums of their o are not counted.
    """
    size, backward = problem.element_bytes, problem.pass_ == "fwbw"
    slices = 1 if problem.d_qk <= 128 else -(-problem.d_qk // 64)
    # Forward: q, k, v -> o. Backward within blocks of 64 steps: q, k, v, do -> dq, dk, dv. Between them: the same and
    # dq, dk, dv again, all of which it adds to.
    of_keys, of_values = 2 + backward * (4 + 6), 2 + backward * (3 + 4)
    a_step = problem.d_qk * size * of_keys + slices * problem.d_hv * size * of_values
    return Cost(
        flops=linear_attention(problem, decays=0).flops,
        bytes=problem.tokens * problem.heads * a_step,
    )


def selective_scan(problem: Problem) -> Cost:
    """Cost of one call of Mamba's scan over heads * d_hv channels of d_qk states."""
    channels, states, size = problem.heads * problem.d_hv, problem.d_qk, problem.element_bytes
    backward = problem.pass_ == "fwbw"
    # u, dt -> y, with B and C of all channels; u, dt, dy -> du, ddt, with B, C and their gradients.
    elements = 3 * channels + 2 * states + backward * (5 * channels + 4 * states)
    return Cost(
        flops=problem.tokens * channels * states * (SCAN_FLOPS + backward * SCAN_BACKWARD_FLOPS),
        bytes=problem.tokens * elements * size,
    )
