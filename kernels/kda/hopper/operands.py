# type: ignore   # Gluon: what runs on the device has no types that a Python checker knows
"""Operands of the walks: weighted q and k, scores and the inverse of each tile of 64 steps, a program a tile.

b_i is for each channel the sum of log2 gates from the tile's first step to step i, and s = sqrt(beta):

    query = scale q 2^b        key = k 2^b        written key = s k 2^(b_63 - b)        decays = 2^b_63, s
    P_ij = scale s_j sum over c of q_ic k_jc 2^(b_ic - b_jc), j <= i
    A_ij = s_i s_j sum over c of k_ic k_jc 2^(b_ic - b_jc), j < i        X = (I + A)^-1

P and A come by 4 x 4 blocks of 16 steps. Let w_i be the sum from the first step of a block on, and t the total of a
block. Between blocks J < I both factors are at most 1, whatever the gates:

    (x_i 2^w_i) . (k_j 2^(t_J - w_j + totals of the blocks between))

Within a block the reference r lies in the middle between the first and the last w, and a gate below 2^-16 counts as
that: it lets through less than bfloat16 rounds off. (x_i 2^(w_i - r)) . (k_j 2^(r - w_j)) is in range for j <= i, as
factors are within 2^-120 and 2^120; what is above the diagonal may overflow, and is not used. The diagonal of P, most
of it where gates are strong, is the product of q and k as they are.

Without the delta rule (Gated Linear Attention) there is P alone, with an s of 1.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma

from tflabench.kernels.common.cover import cdiv
from tflabench.kernels.common.launching import enqueue
from tflabench.kernels.common.sizes import Sizes
from tflabench.kernels.delta.hopper.inverses import (
    OF_WARPS,
    OF_WARPS_COLUMN,
    OF_WARPS_LEFT,
    OF_WARPS_RIGHT,
    OF_WARPS_ROW,
    SQUARE,
    VECTORS,
    invert,
    invert_blocks,
    put_blocks,
    take_blocks,
)
from tflabench.kernels.delta.hopper.tiles import STEP_OF_EACH_WARP, DeltaGates, divide_by_norms, load_steps
from tflabench.kernels.delta.hopper_plan import TILE
from tflabench.kernels.kda.hopper_plan import VALUES
from tflabench.kernels.scalar.hopper.conversions import nearest, remainder, widened
from tflabench.kernels.scalar.hopper.launch import descriptor
from tflabench.kernels.scalar.hopper.schedule import encode_counts
from tflabench.kernels.scalar.hopper.tiles import ACC, ACC_COLUMN, ACC_ROW, BLOCK_BYTES, VECTOR, block
from tflabench.kernels.scalar.hopper.workarounds import (
    ASSEMBLY,
    HOISTS,
    barrier,
    reinterpret,
    tma_load,
    tma_store,
    wait_for_products,
)

from .tiles import (
    BLOCKS_BY_CHANNEL,
    BY_CHANNEL,
    CHANNELS,
    LEAST_WITHIN,
    as_bfloat16,
    as_blocks,
    as_steps,
    by_blocks,
    log2_gates,
    sums_of_blocks,
    sums_within_blocks,
)

VALUES_OF_TILE = gl.constexpr(VALUES)


class WalkOperands(NamedTuple):
    """The outputs of `make_operands`.

    Attributes:
        query, key, written_key: (B, H, tiles * 64, d_qk), in the dtype of q.
        p, x: P (B, H, tiles * 64, 64), and X (B, H, tiles * 64, parts * 64), whose parts add up to it.
        decays: (B, H, tiles * 192) float32: of a tile 2^b_63 of 128 channels, 1 beyond d_qk, and s of 64 steps.
    """

    query: Tensor
    key: Tensor
    written_key: Tensor
    p: Tensor
    x: Tensor
    decays: Tensor


class OperandTensors(NamedTuple):
    """Tensors without descriptors; on the device, pointers.

    Attributes:
        gates: strengths.  decays: see `WalkOperands`.
        closed: (B * H,) int32, without the delta rule: 0 for sequences of a head that are left out.
    """

    gates: Any
    decays: Any
    closed: Any


class OperandCounts(NamedTuple):
    """Steps and tiles of a sequence, heads, and how many of these share a head of q and k (`encode_counts`)."""

    num_steps: Any
    num_tiles: Any
    num_heads: Any
    heads_per_qk: Any


@gluon.jit
def load_left(lefts, i):
    """Return an operand of products of blocks, [4, 16, 64], of a block [64, 64] in shared memory."""
    return block(lefts, i).reshape([4, 16, 64]).load(OF_WARPS_LEFT)


@gluon.jit
def load_right(right):
    """Return the other operand, [4, 64, 16], of a block [64, 64] in shared memory."""
    return right.reshape([4, 16, 64]).permute((0, 2, 1)).load(OF_WARPS_RIGHT)


@gluon.jit
def steps_of_blocks():
    """Return the rows and the columns of blocks [4, 16, 16]."""
    i = gl.arange(0, 16, layout=gl.SliceLayout(0, OF_WARPS_ROW))[None, :, None]
    return i, gl.arange(0, 16, layout=gl.SliceLayout(0, OF_WARPS_COLUMN))[None, None, :]


@gluon.jit
def weigh(tile, operands, totals, decay_ptr, scale, root, scores, DELTA: gl.constexpr):
    """Add to the diagonal blocks of P and A what 64 channels make of them, and prepare the products between blocks.

    Args:
        tile: q, k, g, which query, key and (DELTA) written key take the place of, and a block for that.
        operands: left ones, a block of q and one of k; right ones, [4, 64, 64]: k as it is taken by steps of the same
            block of 16, and by those 1, 2 and 3 blocks after.
        totals: [4, 64] float32 in shared memory.  decay_ptr: where decay goes.  root: s, [64] in shared memory.
        scores: of P and A the blocks [4, 16, 16] on the diagonal.
    """
    q_block, k_block, g_block, written_block = tile
    lefts, rights = operands
    p, a = scores
    dtype: gl.constexpr = q_block.dtype
    g = log2_gates(g_block)
    w = sums_within_blocks(gl.maximum(g, LEAST_WITHIN))
    w -= 0.5 * (gl.min(w, axis=1) + gl.max(w, axis=1))[:, None, :]
    up = gl.exp2(w)
    k = as_blocks(widened(k_block.load(BY_CHANNEL)))
    block(lefts, 0).store(as_steps(nearest(as_blocks(widened(q_block.load(BY_CHANNEL))) * up, dtype)))
    if DELTA:
        block(lefts, 1).store(as_steps(nearest(k * up, dtype)))
    rights.index(0).store(as_steps(nearest(k * gl.exp2(-w), dtype)))
    t = gl.sum(g, axis=1)
    before, after, following, following_two, total = sums_of_blocks(t, totals)  # a barrier in it
    if DELTA:
        gl.store(decay_ptr + gl.arange(0, 64, layout=CHANNELS), gl.exp2(total))
    right = load_right(rights.index(0))
    zeros = gl.zeros([4, 16, 16], gl.float32, layout=OF_WARPS)
    as_they_are = mma_v2(q_block.reshape([4, 16, 64]).load(OF_WARPS_LEFT), load_right(k_block), zeros)
    i, j = steps_of_blocks()
    p += gl.where(i == j, as_they_are, mma_v2(load_left(lefts, 0), right, zeros))
    if DELTA:
        a = mma_v2(load_left(lefts, 1), right, a)
    barrier()

    w = sums_within_blocks(log2_gates(g_block))  # made again, for registers
    up = gl.exp2(w)
    before = gl.exp2(before)[:, None, :]
    q = as_blocks(widened(q_block.load(BY_CHANNEL))) * up
    block(lefts, 0).store(as_steps(nearest(q, dtype)))
    k = as_blocks(widened(k_block.load(BY_CHANNEL)))
    if DELTA:
        q_block.store(as_steps(nearest(q * (before * scale), dtype)))
        block(lefts, 1).store(as_steps(nearest(k * up, dtype)))
        k_block.store(as_steps(nearest(k * up * before, dtype)))
    k *= gl.exp2(gl.minimum(t[:, None, :] - w, 0.0))  # sums in another order may differ
    rights.index(1).store(as_steps(nearest(k, dtype)))
    rights.index(2).store(as_steps(nearest(k * gl.exp2(following)[:, None, :], dtype)))
    rights.index(3).store(as_steps(nearest(k * gl.exp2(following_two)[:, None, :], dtype)))
    if DELTA:
        s = by_blocks(root).load(gl.SliceLayout(2, BLOCKS_BY_CHANNEL))[:, :, None]
        written_block.store(as_steps(nearest(k * gl.exp2(after)[:, None, :] * s, dtype)))
    fence_async_shared()  # before copies read what is stored
    barrier()
    return p, a


@gluon.jit
def multiply_between_blocks(lefts, rights, below, LEFT: gl.constexpr):
    """Add to the blocks [4, 16, 16] 1, 2 and 3 below the diagonal what 64 channels make of them."""
    left = load_left(lefts, LEFT)
    blocks = reinterpret(rights, rights.dtype, [16, 16, 64], SQUARE)
    added = ()
    for d in gl.static_range(1, 4):
        if HOISTS:  # there is no view of four blocks from any block on: select what is needed of all products
            x = gl.zeros([64, 64], gl.float32, layout=ACC)
            right = rights.index(d).permute((1, 0))
            x = warpgroup_mma(block(lefts, LEFT), right, x, use_acc=False, is_async=True)
            added += (below[d - 1] + take_blocks(wait_for_products(0, deps=(x,)), d),)
        else:  # block i and what stands d blocks before it
            right = reinterpret(blocks.index(3 * d), rights.dtype, [64, 64], SQUARE)
            added += (mma_v2(left, load_right(right), below[d - 1]),)
    return added


@gluon.jit
def put_below(below, tile):
    """Return a tile [64, 64] with the blocks below its diagonal."""
    for d in gl.static_range(3):
        tile = put_blocks(below[d], tile, d + 1)
    return tile


@gluon.jit
def load_channels(descs, at, qk_head, buffers, c: gl.constexpr, full):
    """Start the copies of 64 channels of a tile of q, k and g."""
    q_desc, k_desc, g_desc = descs
    q_blocks, k_blocks, g_blocks = buffers
    batch, head, step = at
    G_BYTES: gl.constexpr = BLOCK_BYTES * (2 if g_desc.dtype == gl.float32 else 1)
    mbarrier.init(full, count=1)
    mbarrier.expect(full, 2 * BLOCK_BYTES + G_BYTES)
    tma_load(g_desc, [batch, head, step, 64 * c], full, g_blocks.index(c))
    tma_load(k_desc, [batch, qk_head, step, 64 * c], full, k_blocks.index(c))
    tma_load(q_desc, [batch, qk_head, step, 64 * c], full, q_blocks.index(c))


@gluon.jit
def solve(a, below, root, scratch):
    """Return X of a tile, [64, 64] float32, of the blocks [4, 16, 16] of A on and below the diagonal, without s.

    Args:
        root: s, [64] in shared memory.  scratch: see `invert`.
    """
    i, j = steps_of_blocks()
    s = by_blocks(root)
    a *= s.load(OF_WARPS_ROW)[:, :, None] * s.load(OF_WARPS_COLUMN)[:, None, :]
    a = nearest(gl.where(i > j, a, 0.0), gl.float16)
    aT = gl.convert_layout(a.permute((0, 2, 1)), OF_WARPS)
    d = put_blocks(invert_blocks(a, aT), gl.zeros([64, 64], gl.float16, layout=ACC))
    rest = put_below(below, gl.zeros([64, 64], gl.float32, layout=ACC))
    rest *= root.load(ACC_ROW)[:, None] * root.load(ACC_COLUMN)[None, :]
    return invert(nearest(rest, gl.float16), d, scratch)


@gluon.jit
def make_operands(  # noqa: C901, PLR0913, PLR0915  one tile, in its order
    q_desc, k_desc, g_desc, query_desc, key_desc, written_desc, p_desc, x_desc, tensors, scale, counts,
    PARTS: gl.constexpr, NORMALIZES: gl.constexpr,
):  # fmt: skip
    """Write `WalkOperands` of a tile or, without the delta rule, P alone.

    Tiles of all heads go side by side: in memory their steps may be neighbours.

    Args:
        PARTS: of X, 0 without the delta rule.
        NORMALIZES: q and k come as they are, and are divided by their norms.
    """
    DELTA: gl.constexpr = PARTS > 0
    dtype: gl.constexpr = q_desc.dtype
    num_steps, num_tiles = counts.num_steps >> 1, counts.num_tiles >> 1
    num_heads, heads_per_qk = counts.num_heads >> 1, counts.heads_per_qk >> 1
    batch, tile = gl.program_id(0) // num_heads // num_tiles, gl.program_id(0) // num_heads % num_tiles
    head = gl.program_id(0) % num_heads
    row = batch * num_heads + head
    if not DELTA:  # noqa: SIM102  a constant decides alone
        if gl.load(tensors.closed + row) == 0:
            return
    decays = tensors.decays + (row * num_tiles + tile) * VALUES_OF_TILE
    q_blocks = gl.allocate_shared_memory(dtype, [2, 1, 1, 64, 64], q_desc.layout)
    k_blocks = gl.allocate_shared_memory(dtype, [2, 1, 1, 64, 64], k_desc.layout)
    g_blocks = gl.allocate_shared_memory(g_desc.dtype, [2, 1, 1, 64, 64], g_desc.layout)
    lefts = gl.allocate_shared_memory(dtype, [2, 1, 1, 64, 64], p_desc.layout)  # then P and X
    rights = gl.allocate_shared_memory(dtype, [4, 64, 64], SQUARE)  # then what X is made with
    totals = reinterpret(rights.index(3), gl.float32, [4, 64], VECTORS)  # before k is there
    root = gl.allocate_shared_memory(gl.float32, [64], VECTOR)
    loaded = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    descs, buffers = (q_desc, k_desc, g_desc), (q_blocks, k_blocks, g_blocks)
    for c in gl.static_range(2):
        load_channels(descs, (batch, head, tile * 64), head // heads_per_qk, buffers, c, loaded.index(c))
    if DELTA:
        _g, s = load_steps(tensors.gates, row, tile, num_steps, False)
        root.store(s)
        gl.store(decays + 128 + gl.arange(0, 64, layout=STEP_OF_EACH_WARP), s)
    if NORMALIZES:
        for c in gl.static_range(2):
            mbarrier.wait(loaded.index(c), 0)
        divide_by_norms(q_blocks)
        divide_by_norms(k_blocks)
        barrier()
    p = gl.zeros([4, 16, 16], gl.float32, layout=OF_WARPS)
    a, p_below, a_below = p, (p, p, p), (p, p, p)
    for c in gl.static_range(2):
        mbarrier.wait(loaded.index(c), 0)
        g_block = g_blocks.index(c)
        written = as_bfloat16(g_block)
        blocks = block(q_blocks, c), block(k_blocks, c), g_block.reshape([64, 64]), written.reshape([64, 64])
        p, a = weigh(blocks, (lefts, rights), totals, decays + 64 * c, scale, root, (p, a), DELTA)
        p_below = multiply_between_blocks(lefts, rights, p_below, 0)
        if DELTA:
            tma_store(query_desc, [batch, head, tile * 64, 64 * c], q_blocks.index(c))
            tma_store(key_desc, [batch, head, tile * 64, 64 * c], k_blocks.index(c))
            tma_store(written_desc, [batch, head, tile * 64, 64 * c], written)
            a_below = multiply_between_blocks(lefts, rights, a_below, 1)
        barrier()

    i, j = steps_of_blocks()
    p = put_blocks(gl.where(i >= j, p, 0.0), gl.zeros([64, 64], gl.float32, layout=ACC))
    p = put_below(p_below, p) * scale
    if DELTA:
        p *= root.load(ACC_COLUMN)[None, :]
    block(lefts, 0).store(nearest(p, dtype))
    if DELTA:
        scratch = reinterpret(rights, gl.float16, [4, 64, 64], SQUARE)
        x = solve(a, a_below, root, scratch)
        block(lefts, 1).store(nearest(x, dtype))
        rest = reinterpret(scratch.index(2), dtype, [1, 1, 64, 64], p_desc.layout)
        if PARTS > 1:
            rest.reshape([64, 64]).store(remainder(x, dtype))
    fence_async_shared()
    barrier()
    tma_store(p_desc, [batch, head, tile * 64, 0], lefts.index(0))
    if DELTA:
        tma_store(x_desc, [batch, head, tile * 64, 0], lefts.index(1))
    if PARTS > 1:
        tma_store(x_desc, [batch, head, tile * 64, 64], rest)
    tma.store_wait(pendings=0)


def empty_operands(q: Tensor, sizes: Sizes, parts: int) -> WalkOperands:
    """Return operands, uninitialised; parts: of X."""
    B, H, _, T, d_qk, _ = sizes
    tiles = cdiv(T, TILE)

    def empty(columns: int) -> Tensor:
        return q.new_empty((B, H, tiles * TILE, columns))

    decays = q.new_empty((B, H, tiles * VALUES), dtype=torch.float32)
    return WalkOperands(empty(d_qk), empty(d_qk), empty(d_qk), empty(TILE), empty(parts * TILE), decays)


def launch_operands(
    q: Tensor, k: Tensor, g: Tensor, beta: Tensor, *, sizes: Sizes, scale: float, parts: int, normalizes: bool = False
) -> WalkOperands:
    """Return the operands of all tiles of q and k (B, H or fewer, T, d_qk), as TMA takes them.

    Args:
        g: log decays (B, H, T, d_qk), float32 or bfloat16, as TMA takes them.
        beta: strengths (B, H, T) float32, contiguous.
        parts: numbers in the dtype of q that an element of X is the sum of.
        normalizes: q and k come as they are, and are divided by their norms.
    """
    B, H, group, T, _, _ = sizes
    tiles, made = cdiv(T, TILE), empty_operands(q, sizes, parts)
    tensors = OperandTensors(DeltaGates(beta, beta), made.decays, made.decays)
    counts = encode_counts(OperandCounts(T, tiles, H, group))
    enqueue(
        make_operands, B * H * tiles, *map(descriptor, (q, k, g, *made[:5])), tensors, scale, counts,
        PARTS=parts, NORMALIZES=normalizes, num_warps=4, **ASSEMBLY,
    )  # fmt: skip
    return made


def launch_scores(q: Tensor, k: Tensor, g: Tensor, closed: Tensor, *, sizes: Sizes, scale: float) -> Tensor:
    """Return P (B, H, tiles * 64, 64), see `WalkOperands`, of the sequences of a head that have closed, and no other.

    Args:
        closed: (B * H,) int32, 0 for those that have not.
    """
    B, H, group, T, _, _ = sizes
    tiles = cdiv(T, TILE)
    p = q.new_empty((B, H, tiles * TILE, TILE))
    counts = encode_counts(OperandCounts(T, tiles, H, group))
    enqueue(
        make_operands, B * H * tiles, *map(descriptor, (q, k, g, *[p] * 5)),
        OperandTensors(DeltaGates(closed, closed), closed, closed), scale, counts,
        PARTS=0, NORMALIZES=False, num_warps=4, **ASSEMBLY,
    )  # fmt: skip
    return p
