"""GLA's fused chunks as published: five steps, four kernels and a sum (docs/gla-walk-through.md has them in order).

They are what flash-linear-attention had as `fused_chunk_gla` before it deleted it: chunks of BT = 16 steps, blocks of
BK channels of q and k and BV of v, all of them at most 64. Grids, loops and names are those of the walk-through.

What they are not: right where a gate all but closes. Sums of log decays run from a chunk's start, and pairs of steps
take the difference of two. Behind a gate of -inf that is inf - inf, and o is NaN. Behind a very small one, such as
-1e5, the sum has lost the digits of the gates that follow in its chunk, and o is wrong.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false
# (Triton's language looks like Python, but its types are its own.)

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import pad

from tflabench.kernels.common.contract import Arguments, KernelOptions
from tflabench.kernels.common.cover import cdiv, next_power_of_2
from tflabench.kernels.common.device import float32_precision
from tflabench.kernels.common.launching import enqueue
from tflabench.kernels.gla import chunkwise
from tflabench.kernels.gla.gating import GLA

CHUNK = 16  # BT
LARGEST_GRID = 65535  # of CUDA's second and third axis
BLOCK = 64  # BK and BV, at most
INVERSE_LN2 = tl.constexpr(1.4426950408889634)


class GlaLengths(NamedTuple):
    """Steps (a multiple of BT), d_qk and d_hv."""

    T: Any
    d_qk: Any
    d_hv: Any


@dataclass(frozen=True)
class WalkthroughConfig:
    """Tell what the kernels are compiled for.

    Attributes:
        BT, BK, BV: steps of a chunk, channels of q and k, and columns of v, of a program.
        initial: there is a state before the first step.
        precision: Triton's input_precision of products.
    """

    BT: int
    BK: int
    BV: int
    initial: bool
    precision: str


@triton.jit
def place(sizes, config: tl.constexpr):
    """Return the channels of program (i_k, i_c, i_bh), which of them there are, and where its chunk's first step is."""
    BK: tl.constexpr = config.BK
    i_k, i_c, i_bh = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    o_k = i_k * BK + tl.arange(0, BK)
    return o_k, o_k < sizes.d_qk, (i_bh * sizes.T + i_c * config.BT) * sizes.d_qk


@triton.jit
def fwd_decay_cumsum(g, g_o, sizes, config: tl.constexpr):
    """Write sums of log2 decays within chunks: one step after the other, all chunks at once.

    Args:
        g: (B, H, T, d_qk), natural logarithms; g_o: the same shape, float32.
    """
    BT: tl.constexpr = config.BT
    BK: tl.constexpr = config.BK
    o_k, m_k, start = place(sizes, config)
    b_sum = tl.zeros([BK], tl.float32)
    for i in range(BT):
        p = start + i * sizes.d_qk + o_k
        b_sum += tl.load(g + p, mask=m_k, other=0.0).to(tl.float32) * INVERSE_LN2
        tl.store(g_o + p, b_sum, mask=m_k)


@triton.jit
def prepare_qg_kg(q, k, g, q_g, k_g, scale, sizes, config: tl.constexpr):
    """Write q weighted from the chunk's start, with scale, and k weighted to the chunk's end; all (B, H, T, d_qk)."""
    BT: tl.constexpr = config.BT
    o_k, m_k, start = place(sizes, config)
    last_decay = tl.load(g + start + (BT - 1) * sizes.d_qk + o_k, mask=m_k, other=0.0)
    for i in range(BT):
        p = start + i * sizes.d_qk + o_k
        b_g = tl.load(g + p, mask=m_k, other=0.0)
        b_q = tl.load(q + p, mask=m_k, other=0.0).to(tl.float32) * tl.exp2(b_g) * scale
        b_k = tl.load(k + p, mask=m_k, other=0.0).to(tl.float32) * tl.exp2(last_decay - b_g)
        tl.store(q_g + p, b_q.to(q_g.dtype.element_ty), mask=m_k)
        tl.store(k_g + p, b_k.to(k_g.dtype.element_ty), mask=m_k)


@triton.jit
def fused_chunk_gla_fwd_kernel(q_g, k_g, v, g, o, h_0, h_t, sizes, config: tl.constexpr):
    """Walk over a sequence with a block [BK, BV] of the state on chip: o reads it, then k and v update it.

    Args:
        q_g, k_g, g: (B, H, T, d_qk); v: (B, H, T, d_hv).
        o: (NK, B, H, T, d_hv) float32, a part for each block of channels.
        h_0, h_t: (B, H, d_qk, d_hv) float32, the state before and after; h_0 may be None.
    """
    BT: tl.constexpr = config.BT
    BK: tl.constexpr = config.BK
    BV: tl.constexpr = config.BV
    T, d_qk, d_hv = sizes.T, sizes.d_qk, sizes.d_hv
    i_v, i_k, i_bh = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    o_k, o_v, o_t = i_k * BK + tl.arange(0, BK), i_v * BV + tl.arange(0, BV), tl.arange(0, BT)
    m_k, m_v = o_k < d_qk, o_v < d_hv
    p_h, m_h = (i_bh * d_qk + o_k[:, None]) * d_hv + o_v[None, :], m_k[:, None] & m_v[None, :]
    b_h = tl.zeros([BK, BV], tl.float32)
    if config.initial:
        b_h = tl.load(h_0 + p_h, mask=m_h, other=0.0)
    part = (i_k * tl.num_programs(2) + i_bh) * T
    for i in range(T // BT):
        t = i_bh * T + i * BT + o_t
        b_q = tl.load(q_g + t[:, None] * d_qk + o_k[None, :], mask=m_k[None, :], other=0.0)
        b_k = tl.load(k_g + t[None, :] * d_qk + o_k[:, None], mask=m_k[:, None], other=0.0)
        b_v = tl.load(v + t[:, None] * d_hv + o_v[None, :], mask=m_v[None, :], other=0.0)
        d_b = tl.load(g + (i_bh * T + i * BT + BT - 1) * d_qk + o_k, mask=m_k, other=0.0)
        # [BT, BK] @ [BK, BV] -> [BT, BV]
        b_o = tl.dot(b_q, b_h.to(b_q.dtype), input_precision=config.precision)
        # [BK, BT] @ [BT, BV] -> [BK, BV]
        b_h = tl.dot(b_k, b_v, b_h * tl.exp2(d_b)[:, None], input_precision=config.precision)
        tl.store(o + (part + i * BT + o_t)[:, None] * d_hv + o_v[None, :], b_o, mask=m_v[None, :])
    tl.store(h_t + p_h, b_h, mask=m_h)


@triton.jit
def fwd_inner_chunk(q, k, g, A, scale, sizes, config: tl.constexpr):
    """Write scores within chunks, one query after the other: sums of products, no tensor cores.

    Args:
        q, k, g: (B, H, T, d_qk).
        A: (NK, B, H, T, BT) float32, a part for each block of channels.
    """
    BT: tl.constexpr = config.BT
    o_k, m_k, start = place(sizes, config)
    o_i = tl.arange(0, BT)
    p_k = start + o_i[:, None] * sizes.d_qk + o_k[None, :]
    b_k = tl.load(k + p_k, mask=m_k[None, :], other=0.0).to(tl.float32)
    b_g = tl.load(g + p_k, mask=m_k[None, :], other=0.0)
    row = (tl.program_id(0) * tl.num_programs(2) + tl.program_id(2).to(tl.int64)) * sizes.T + tl.program_id(1) * BT
    for i in range(BT):
        p = start + i * sizes.d_qk + o_k
        _q = tl.load(q + p, mask=m_k, other=0.0).to(tl.float32) * scale
        gq = tl.load(g + p, mask=m_k, other=0.0)
        s = _q[None, :] * b_k * tl.exp2(gq[None, :] - b_g)  # [BT, BK]
        score = tl.where(o_i <= i, tl.sum(s, 1), 0.0)
        tl.store(A + (row + i) * BT + o_i, score)


def combine(o: Tensor, A: Tensor, v: Tensor) -> Tensor:
    """Return o (B, H, T, d_hv) float32: parts of o between chunks, and of A @ v within them, added up.

    Args:
        o: (NK, B, H, T, d_hv); A: (NK, B, H, T, BT); v: (B, H, T, d_hv).
    """
    B, H, T, d_hv = v.shape
    A = A.sum(0).view(B, H, -1, A.shape[-1], A.shape[-1])
    o2 = A.to(v.dtype) @ v.view(B, H, -1, A.shape[-1], d_hv)
    return o.sum(0).add_(o2.view(B, H, T, d_hv))


def refuses(q: Tensor, v: Tensor) -> str | None:
    """Return why these kernels, or `chunkwise` for their backward pass, cannot run on q and v, or None if they can."""
    if q.shape[2] > CHUNK * LARGEST_GRID or q.shape[0] * q.shape[1] > LARGEST_GRID:
        return f"takes at most {CHUNK * LARGEST_GRID:,} steps, and {LARGEST_GRID:,} heads in a batch"
    return chunkwise.refuses(q, v, gate=GLA, chunk_size=CHUNK)


def forward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, initial: Tensor | None, *, scale: float
) -> tuple[Tensor, Tensor]:
    """Return o like v (B, H, T, d_hv), and the last state (B, H, d_qk, d_hv) float32.

    Args:
        q, k: (B, H, T, d_qk), of the dtype of v; g: the same shape, natural log decays.
        initial: the state before the first step, or None for zero.

    A sequence whose length is no multiple of 16 is padded; strided tensors are copied.
    """
    (B, H, given, d_qk), d_hv, like = q.shape, v.shape[-1], v
    missing = -given % CHUNK
    if missing:  # padding by nothing would copy too
        q, k, v, g = (pad(x, (0, 0, 0, missing)) for x in (q, k, v, g))
    q, k, v, g = (x.contiguous() for x in (q, k, v, g))
    T = given + missing
    h_0 = None if initial is None else initial.float().contiguous()
    BK, BV = (min(BLOCK, next_power_of_2(d)) for d in (d_qk, d_hv))
    NK, NV = cdiv(d_qk, BK), cdiv(d_hv, BV)

    def empty(*shape: int) -> Tensor:
        return q.new_empty(shape, dtype=torch.float32)

    q_g, k_g, g_o = torch.empty_like(q), torch.empty_like(k), empty(*q.shape)
    o, A, h_t = empty(NK, B, H, T, d_hv), empty(NK, B, H, T, CHUNK), empty(B, H, d_qk, d_hv)
    sizes = GlaLengths(T, d_qk, d_hv)
    config = WalkthroughConfig(CHUNK, BK, BV, h_0 is not None, float32_precision(q.dtype))
    chunks = (NK, T // CHUNK, B * H)
    enqueue(fwd_decay_cumsum, chunks, g, g_o, sizes, config=config, num_warps=1)
    enqueue(prepare_qg_kg, chunks, q, k, g_o, q_g, k_g, scale, sizes, config=config, num_warps=1)
    enqueue(
        fused_chunk_gla_fwd_kernel, (NV, NK, B * H), q_g, k_g, v, g_o, o, h_0, h_t, sizes, config=config, num_warps=2
    )
    enqueue(fwd_inner_chunk, chunks, q, k, g_o, A, scale, sizes, config=config, num_warps=4)
    out = torch.empty_like(like)
    return out.copy_(combine(o, A, v)[:, :, :given]), h_t


class FusedChunks(torch.autograd.Function):
    """The output of `forward` with the backward pass of TFLA, whose chunk size is given."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, g: Tensor, scale: float, chunk_size: int) -> Tensor:
        """Return o (B, H, T, d_hv)."""
        ctx.save_for_backward(q, k, v, g)
        ctx.options = KernelOptions(GLA, scale, chunk_size)
        return forward(q, k, v, g, None, scale=scale)[0]

    @staticmethod
    def backward(ctx: Any, do: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the gradients of q, k, v and g."""
        options = ctx.options._replace(gate_gradients=ctx.needs_input_grad[3])
        grads = chunkwise.backward(do, None, Arguments(*ctx.saved_tensors), (), options)
        return *grads[:4], None, None
