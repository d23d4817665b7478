"""The gradients of q, k and the gates: a program for some channels of a tile, from the states around it.

S is the state before a tile, dS the gradient of the state after it, b the sum of g from the tile's first step on, Z and
dV those of `walks`, w the weights of `tiles`:

    dP_ij = scale (dO Z^T)_ij, j <= i        dG_ij = -(dV Z^T)_ij, j < i
    dq_i = scale exp(b_i) (dO S^T)_i + sum over j <= i of dP_ij k_j w_ij
    r_i = -exp(b_i) (dV S^T)_i + sum over j < i of dG_ij k_j w_ij
    w_j = exp(b_63 - b_j) (Z dS^T)_j + sum over i >= j of (dP_ij q_i + dG_ij k_i) w_ij
    dk = r + w        db = q dq + k (r - w), for each channel
    dg_i = sum of db_t over t >= i in the tile + exp(b_63) <S, dS> over columns + sum of k exp(b_63 - b) (Z dS^T)

A pair (i, j) is added to db at i and taken from it at j, and nothing of it may be left where both are in the sum. So
db is made of the rounded operands of the products, and both times of the same; and pairs i = j, which have no gate
between them, are left out of it.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false
# (Triton's language looks like Python, but its types are its own.)

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from tflabench.kernels.common import device
from tflabench.kernels.common.cover import cdiv
from tflabench.kernels.common.launching import enqueue
from tflabench.kernels.common.rows import empty_rows, load_matrix, load_rows, rows, store_rows
from tflabench.kernels.delta.call import DeltaSizes
from tflabench.kernels.gla.tiles import load_gates

from .decays import as_blocks, as_tile, decays_in_runs, decays_of, pair_decays
from .plan import STAGES, KdaCall
from .tiles import KdaTileConfig, root_strengths


class KdaGradientInputs(NamedTuple):
    """Name what the kernel reads: `rows.Rows`, and states before tiles and gradients of those after them."""

    q: Any
    k: Any
    g: Any
    errors: Any
    do: Any
    dv: Any
    states: Any
    d_states: Any


@triton.jit
def kda_tile_gradients(inputs, beta, dq_rows, dk_rows, dg_rows, sizes, config: tl.constexpr, COLUMNS: tl.constexpr):  # noqa: PLR0915
    """Write dq, dk and dg, `rows.Rows`, of a tile and some channels of a head; beta: (B * H, T) float32."""
    TILE: tl.constexpr = config.tile
    CHANNELS: tl.constexpr = config.channels
    STEPS: tl.constexpr = config.steps
    PRECISION: tl.constexpr = config.precision
    dtype: tl.constexpr = inputs.q.data.dtype.element_ty
    wide: tl.constexpr = tl.float32 if dtype == tl.float16 else dtype  # float16 has not the range of weights
    T, d_qk, d_hv = sizes.T, sizes.d_qk, sizes.d_hv
    tiles, blocks = tl.cdiv(T, TILE), tl.cdiv(d_qk, CHANNELS)
    c = tl.program_id(0) % blocks * CHANNELS + tl.arange(0, CHANNELS)  # neighbours share values through L2
    tile, bh = tl.program_id(0) // blocks % tiles, tl.program_id(0) // blocks // tiles
    b, h = bh // sizes.heads, bh % sizes.heads
    r = tl.arange(0, TILE)
    t = tile * TILE + r
    s = root_strengths(beta, bh, t, T, dtype)[:, None]
    dp = tl.zeros([TILE, TILE], tl.float32)
    da = tl.zeros([TILE, TILE], tl.float32)
    dq = tl.zeros([TILE, CHANNELS], tl.float32)
    reads = tl.zeros([TILE, CHANNELS], tl.float32)
    writes = tl.zeros([TILE, CHANNELS], tl.float32)
    passing = tl.zeros([CHANNELS], tl.float32)
    for e in range(0, d_hv, COLUMNS):
        column = e + tl.arange(0, COLUMNS)
        do = load_rows(inputs.do, b, h, t, column, T, d_hv)
        dv = load_rows(inputs.dv, b, h, t, column, T, d_hv)
        z = (load_rows(inputs.errors, b, h, t, column, T, d_hv).to(tl.float32) * (s * s)).to(dtype)
        state = load_matrix(inputs.states, bh * tiles + tile, c, column, d_qk, d_hv)
        d_state = load_matrix(inputs.d_states, bh * tiles + tile, c, column, d_qk, d_hv)
        # [tile, columns] @ [columns, tile or channels]
        dp = tl.dot(do, z.T, dp, input_precision=PRECISION)
        da = tl.dot(dv, z.T, da, input_precision=PRECISION)
        dq = tl.dot(do, state.T, dq, input_precision=PRECISION)
        reads = tl.dot(dv, state.T, reads, input_precision=PRECISION)
        writes = tl.dot(z, d_state.T, writes, input_precision=PRECISION)
        passing += tl.sum(state.to(tl.float32) * d_state.to(tl.float32), 1)

    dp *= sizes.scale
    diagonal = tl.sum(tl.where(r[:, None] == r[None, :], dp, 0.0), 1)[:, None]
    dp, da = dp.to(wide), (-da).to(wide)
    decays = decays_of(load_gates(inputs.g, b, h, t, c, T, d_qk), c < d_qk, config)
    since, until = decays_in_runs(decays, TILE // STEPS)
    q_tile, k_tile = load_rows(inputs.q, b, h, t, c, T, d_qk), load_rows(inputs.k, b, h, t, c, T, d_qk)
    q, k = q_tile.to(tl.float32), k_tile.to(tl.float32)
    dq *= as_tile(tl.exp2(since)) * sizes.scale
    reads *= -as_tile(tl.exp2(since))
    writes *= as_tile(tl.exp2(until))
    added = k * writes
    passing = passing * tl.exp2(tl.sum(decays.totals, 0)) + tl.sum(added, 0)
    db = q * dq + k * reads - added
    dq += diagonal * k
    dk = reads + writes + diagonal * q

    q_tile, k_tile = as_blocks(q_tile, STEPS), as_blocks(k_tile, STEPS)
    for level in tl.range(config.levels, disable_licm=True):  # else -near and addresses are kept and spilled
        since, until, pairs = pair_decays(decays, level, config)
        up, down = tl.exp2(since), tl.exp2(until)
        later_q, later_k = as_tile((q_tile * up).to(wide)), as_tile((k_tile * up).to(wide))
        earlier = as_tile((k_tile * down).to(wide))
        of_q, of_k = tl.where(pairs, dp, 0.0), tl.where(pairs, da, 0.0)
        # [tile, tile] @ [tile, channels] -> [tile, channels]
        x = tl.dot(of_q, earlier, input_precision=PRECISION)
        dq += as_tile(up) * x
        db += later_q.to(tl.float32) * x
        x = tl.dot(of_k, earlier, input_precision=PRECISION)
        dk += as_tile(up) * x
        db += later_k.to(tl.float32) * x
        x = tl.dot(of_q.T, later_q, input_precision=PRECISION)
        x = tl.dot(of_k.T, later_k, x, input_precision=PRECISION)
        dk += as_tile(down) * x
        db -= earlier.to(tl.float32) * x

    store_rows(dq_rows, dq, b, h, t, c, T, d_qk)
    store_rows(dk_rows, dk, b, h, t, c, T, d_qk)
    dg = tl.cumsum(db, 0, reverse=True) + passing[None, :]
    shut = load_gates(inputs.g, b, h, t, c, T, d_qk) < config.floor
    store_rows(dg_rows, tl.where(shut, 0.0, dg), b, h, t, c, T, d_qk)


def gradients_of_channels(
    call: KdaCall, inputs: tuple[Tensor, ...], beta: Tensor, states: tuple[Tensor, Tensor]
) -> tuple[Tensor, ...]:
    """Return dq, dk and dg.

    Args:
        inputs: q, k, g (B, H, T, d_qk), and R, dO, dV (B, H, T, d_hv); beta: (B, H, T) float32.
        states: before tiles, and gradients of those after them, (B * H * tiles, d_qk, d_hv).
    """
    plan, q = call.plan, inputs[0]
    batch, heads, _, T, d_qk, d_hv = plan.sizes
    grads = tuple(map(empty_rows, inputs[:3]))
    # ptxas 13.4 gives it 32 registers on Ampere, and spills 36 KB a thread, unless it is told how many there are.
    registers = {"maxnreg": 255} if device.figures(q.device).architecture < 90 else {}
    enqueue(
        kda_tile_gradients, batch * heads * plan.tiles * cdiv(d_qk, plan.channels),
        KdaGradientInputs(*map(rows, inputs), *states), beta, *map(rows, grads),
        DeltaSizes(heads, 1, T, d_qk, d_hv, 1, call.scale, 1),
        config=KdaTileConfig.of(call, q.dtype), COLUMNS=plan.columns,
        num_warps=8, num_stages=STAGES if q.dtype != torch.float32 else 1, **registers,
    )  # fmt: skip
    return grads
