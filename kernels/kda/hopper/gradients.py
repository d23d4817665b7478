# type: ignore   # Gluon: what runs on the device has no types that a Python checker knows
"""The gradients of q, k and the gates: a program for every 64 channels of a tile, from the states around it.

S is the state before a tile, D the gradient of the state after it, b, s, Z and dV those of operands.py and the walks:

    dP_ij = scale s_j (dO Z^T)_ij, j <= i        dA_ij = -s_j (dV Z^T)_ij, j < i        dbeta_i = dV_i . Z_i / s_i^3
    dq_i = 2^b_i scale (dO S^T)_i + sum over j <= i of dP_ij k_j 2^(b_i - b_j)
    R_i = -2^b_i (dV S^T)_i + sum over j < i of dA_ij k_j 2^(b_i - b_j)
    W_j = s_j 2^(b_63 - b_j) (Z D^T)_j + sum over i >= j of (dP_ij q_i + dA_ij k_i) 2^(b_i - b_j)
    dk = R + W        db = q dq + k (R - W), for each channel
    dg_i = sum of db_t over t >= i in the tile + 2^b_63 <S, D> over columns of v + sum of k s 2^(b_63 - b) (Z D^T)

Sums over pairs of steps go by blocks of 16 steps, as in operands.py: from one block to another with the sum of gates
before the later one as reference, both factors at most 1; within a block with one in the middle.

A pair (i, j) is added to db at i and taken from it at j, and nothing of it may be left where both are in the sum. So
db is made of the rounded operands of the products, and both times of the same; and pairs i = j, which have no gate
between them, are left out of it. A gate below 2^-16 counts as that here, and has no gradient.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma

from tflabench.kernels.common.launching import enqueue
from tflabench.kernels.delta.hopper.inverses import VECTORS
from tflabench.kernels.delta.hopper.tiles import DeltaGates, load_steps, products
from tflabench.kernels.delta.hopper_plan import DeltaPlan
from tflabench.kernels.scalar.hopper.conversions import nearest, widened
from tflabench.kernels.scalar.hopper.launch import FLOATS_LAYOUT, descriptor
from tflabench.kernels.scalar.hopper.pipeline import aggregate
from tflabench.kernels.scalar.hopper.schedule import encode_counts
from tflabench.kernels.scalar.hopper.tiles import (
    ACC,
    ACC_COLUMN,
    ACC_OPERAND,
    ACC_ROW,
    BLOCK_BYTES,
    VECTOR,
    block,
    send,
)
from tflabench.kernels.scalar.hopper.workarounds import (
    ASSEMBLY,
    HOISTS,
    barrier,
    pinned,
    reinterpret,
    tma_load,
    wait_for_products,
)

from .operands import OperandCounts
from .tiles import (
    BLOCKS_BY_CHANNEL,
    BY_CHANNEL,
    CHANNELS,
    LEAST_WITHIN,
    as_bfloat16,
    as_blocks,
    as_steps,
    log2_gates,
    sums_of_blocks,
    sums_within_blocks,
)

FLOAT_BLOCK = gl.constexpr(FLOATS_LAYOUT)
STEP_OF_BLOCK = gl.constexpr(gl.SliceLayout(0, gl.SliceLayout(2, BLOCKS_BY_CHANNEL)))

# Blocks of the pool: what is loaded first, two each,
DO, Z, DV, S, D = (gl.constexpr(2 * i) for i in range(5))
# and what takes their place: gradients of scores within blocks of 16 steps and between them, q and k as they are (then
# dq and dk), scaled as a later step has them, and k as an earlier one, three times where it is for blocks 1, 2 and 3.
DA_WITHIN, DA_BETWEEN, LATER_Q, LATER_K, EARLIER_K = (gl.constexpr(i) for i in range(5))
DP_WITHIN, DP_BETWEEN, Q, K = (gl.constexpr(i) for i in range(6, 10))
# Vectors of 64 channels, but for the first, of steps: s, b_63, 2^b_63 <S, D>, sums of k s 2^(b_63 - b) (Z D^T).
ROOT, TOTAL, STATES, WRITES = (gl.constexpr(i) for i in range(4))


class GateGradientTensors(NamedTuple):
    """Tensors without descriptors; on the device, pointers: strengths, and dbeta (B, H, T) float32."""

    gates: Any
    dbeta: Any


@aggregate
class GradientTile:
    """Shared memory of a program.

    Fields:
        pool: [10, 1, 1, 64, 64] in 16 bits.
        sums: b, then db, [64, 64] float32.  sums_block: the same as [1, 1, 64, 64], where g comes and dg goes.
        starts, middles, ends: [4, 64] float32, b before a block, in the middle of its range, and at its end.
        to_third, to_fourth: [4, 64] float32, decays between a block and the third or fourth, 1 if it is not before it.
        totals: [4, 64] float32, for sums over blocks.  vectors: [4, 64] float32.
    """

    pool: gl.shared_memory_descriptor
    sums: gl.shared_memory_descriptor
    sums_block: gl.shared_memory_descriptor
    starts: gl.shared_memory_descriptor
    middles: gl.shared_memory_descriptor
    ends: gl.shared_memory_descriptor
    to_third: gl.shared_memory_descriptor
    to_fourth: gl.shared_memory_descriptor
    totals: gl.shared_memory_descriptor
    vectors: gl.shared_memory_descriptor


# --- Products ---------------------------------------------------------------------------------------------------------


@gluon.jit
def multiply_two(a, b, c, d):
    """Return a b + c d of matrices in shared memory, [64, 64] float32."""
    x = gl.zeros([64, 64], gl.float32, layout=ACC)
    x = warpgroup_mma(a, b, x, use_acc=False, is_async=True)
    x = warpgroup_mma(c, d, x, is_async=True)
    return wait_for_products(0, deps=(x,))


@gluon.jit
def multiply_pair(pool, x, y):
    """Return the product of a pair of blocks side by side and one of blocks below each other."""
    return multiply_two(block(pool, x), block(pool, y), block(pool, x + 1), block(pool, y + 1))


@gluon.jit
def multiply_later(scores, pool):
    """Return of each step the sum over earlier blocks of the scores times k as its block takes it, [64, 64]."""
    s = scores.load(ACC_OPERAND)
    of = gl.arange(0, 64, layout=gl.SliceLayout(1, ACC_OPERAND))[:, None] >> 4
    none = gl.zeros([64, 64], s.dtype, layout=ACC_OPERAND)
    one, two, three = gl.where(of == 1, s, none), gl.where(of == 2, s, none), gl.where(of == 3, s, none)
    x = gl.zeros([64, 64], gl.float32, layout=ACC)
    x = warpgroup_mma(one, block(pool, EARLIER_K), x, use_acc=False, is_async=True)
    x = warpgroup_mma(two, block(pool, EARLIER_K + 1), x, is_async=True)
    x = warpgroup_mma(three, block(pool, EARLIER_K + 2), x, is_async=True)
    x, one, two, three = wait_for_products(0, deps=(x, one, two, three))
    return x


@gluon.jit
def multiply_earlier(pool, BLOCK: gl.constexpr, DELTA: gl.constexpr):
    """Return dP^T q and (DELTA) dA^T k over the steps of a block, [64, 64]."""
    dpT = block(pool, DP_BETWEEN).permute((1, 0)).slice(16 * BLOCK, 16, dim=1).load(ACC_OPERAND)
    x = gl.zeros([64, 64], gl.float32, layout=ACC)
    x = warpgroup_mma(dpT, block(pool, LATER_Q).slice(16 * BLOCK, 16, dim=0), x, use_acc=False, is_async=True)
    if DELTA:
        daT = block(pool, DA_BETWEEN).permute((1, 0)).slice(16 * BLOCK, 16, dim=1).load(ACC_OPERAND)
        x = warpgroup_mma(daT, block(pool, LATER_K).slice(16 * BLOCK, 16, dim=0), x, is_async=True)
        x, dpT, daT = wait_for_products(0, deps=(x, dpT, daT))
    else:
        x, dpT = wait_for_products(0, deps=(x, dpT))
    return x


# --- Gates ------------------------------------------------------------------------------------------------------------


@gluon.jit
def by_block(references):
    """View [4, 64] float32 in shared memory as a matrix."""
    return reinterpret(references, gl.float32, [4, 64], VECTORS)


@gluon.jit
def sum_gates(tile, g_block):
    """Write b and what belongs to it.

    Returns: for each block and channel in 16 bits, which steps have gates that are too small for a gradient, [4, 64].
    """
    g = log2_gates(g_block)
    bit = gl.arange(0, 16, layout=STEP_OF_BLOCK)[None, :, None]
    shut = gl.sum(gl.where(g < LEAST_WITHIN, (bit * 0 + 1) << bit, 0), axis=1)
    if HOISTS:  # else later LLVMs keep g, of which the sum is made, and not the sum
        shut = pinned(shut)
    w = sums_within_blocks(gl.maximum(g, LEAST_WITHIN))
    first, last = gl.max(w, axis=1), gl.min(w, axis=1)
    before, _after, following, following_two, total = sums_of_blocks(last, tile.totals)
    by_block(tile.starts).store(before)
    by_block(tile.ends).store(before + last)
    i = gl.arange(0, 4, layout=gl.SliceLayout(1, following.type.layout))[:, None]
    by_block(tile.to_third).store(gl.where(i == 0, gl.exp2(following), 1.0))
    by_block(tile.to_fourth).store(gl.where(i == 0, gl.exp2(following_two), gl.where(i == 1, gl.exp2(following), 1.0)))
    by_block(tile.middles).store(before + 0.5 * (first + last))
    tile.vectors.index(TOTAL).store(total)
    tile.sums.store(as_steps(w + before[:, None, :]))
    barrier()
    return shut


@gluon.jit
def since(tile, references):
    """Return b less the reference of a step's block, [64, 64]."""
    b = tile.sums.load(ACC).reshape([4, 16, 64])
    reference = by_block(references).load(gl.SliceLayout(1, b.type.layout))
    return gl.convert_layout((b - reference[:, None, :]).reshape([64, 64]), ACC, assert_trivial=True)


@gluon.jit
def until(tile):
    """Return 2^(b at the end of a step's block - b), [64, 64]."""
    return gl.exp2(gl.minimum(-since(tile, tile.ends), 0.0))


@gluon.jit
def over_blocks(x, factors):
    """Return x [64, 64] times a factor of each block and channel, [4, 64] in shared memory."""
    y = x.reshape([4, 16, 64])
    y *= by_block(factors).load(gl.SliceLayout(1, y.type.layout))[:, None, :]
    return gl.convert_layout(y.reshape([64, 64]), ACC, assert_trivial=True)


@gluon.jit
def sum_from_here(tile, db, passing):
    """Return dg [4, 16, 64] of db in shared memory: its sums over the steps from each on, and what passes the tile."""
    d = as_blocks(db.load(BY_CHANNEL))
    of_block = gl.sum(d, axis=1)
    d += of_block[:, None, :] - sums_within_blocks(d)
    _before, after, _following, _following_two, _total = sums_of_blocks(of_block, tile.totals)
    return d + (after + passing[None, :])[:, None, :]


@gluon.jit
def where_open(dg, shut):
    """Return dg [4, 16, 64], and 0 for gates that are too small for a gradient, see `sum_gates`."""
    bit = gl.arange(0, 16, layout=STEP_OF_BLOCK)[None, :, None]
    return gl.where(((shut[:, None, :] >> bit) & 1) == 1, 0.0, dg)


# --- Parts of the gradients -------------------------------------------------------------------------------------------


@gluon.jit
def split_scores(pool, scores, WITHIN: gl.constexpr, BETWEEN: gl.constexpr):
    """Write scores of pairs within a block of 16 steps to one block of the pool, and of others to another."""
    row = gl.arange(0, 64, layout=ACC_ROW)[:, None]
    column = gl.arange(0, 64, layout=ACC_COLUMN)[None, :]
    own = (row >> 4) == (column >> 4)
    scores = nearest(gl.where(row > column, scores, 0.0), pool.dtype)
    none = gl.zeros([64, 64], pool.dtype, layout=ACC)
    block(pool, WITHIN).store(gl.where(own, scores, none))
    block(pool, BETWEEN).store(gl.where(own, none, scores))


@gluon.jit
def diagonal_of(x):
    """Return the diagonal of x [64, 64]."""
    row = gl.arange(0, 64, layout=ACC_ROW)[:, None]
    column = gl.arange(0, 64, layout=ACC_COLUMN)[None, :]
    return gl.sum(gl.where(row == column, x, 0.0), axis=1)


@gluon.jit
def make_scores(tile, scale):
    """Write dP and dA below their diagonals. Returns: the diagonal of dP, and dbeta, [64] each."""
    pool = tile.pool
    s_row, s_column = tile.vectors.index(ROOT).load(ACC_ROW), tile.vectors.index(ROOT).load(ACC_COLUMN)[None, :]
    x = products(pool, DO // 2, pool, Z // 2)
    diagonal = diagonal_of(x) * s_row * scale
    split_scores(pool, x * s_column * scale, DP_WITHIN, DP_BETWEEN)
    x = products(pool, DV // 2, pool, Z // 2)
    dbeta = diagonal_of(x) / (s_row * s_row * s_row)
    barrier()  # do, Z and dv have been read
    split_scores(pool, x * -s_column, DA_WITHIN, DA_BETWEEN)
    return diagonal, dbeta


@gluon.jit
def add_states(tile, of_states, diagonal, scale):
    """Return dq, dk and db without pairs of steps but i = j, [64, 64] each.

    Args:
        of_states: dO S^T, dV S^T and Z D^T.
    """
    dq, reads, writes = of_states
    q, k = widened(block(tile.pool, Q).load(ACC)), widened(block(tile.pool, K).load(ACC))
    total = tile.vectors.index(TOTAL).load(ACC_COLUMN)[None, :]
    s = tile.vectors.index(ROOT).load(ACC_ROW)[:, None]
    writes = pinned(writes * gl.exp2(gl.minimum(total - tile.sums.load(ACC), 0.0)) * s)
    written = pinned(k * writes)
    tile.vectors.index(WRITES).store(gl.sum(written, axis=0))
    decay = gl.exp2(tile.sums.load(ACC))
    dq = pinned(dq * (decay * scale))
    reads = pinned(reads * -decay)
    db = pinned(q * dq + k * reads - written)
    dk = pinned(reads + writes + diagonal[:, None] * q)
    return pinned(dq + diagonal[:, None] * k), dk, db


@gluon.jit
def add_within_blocks(tile, dq, dk, db, DELTA: gl.constexpr):
    """Add the pairs of steps of one block to dq, dk and db; DELTA: those of dA too."""
    pool = tile.pool
    dtype: gl.constexpr = pool.dtype
    near = since(tile, tile.middles)
    up = gl.exp2(near)
    k = widened(block(pool, K).load(ACC))
    block(pool, LATER_Q).store(nearest(widened(block(pool, Q).load(ACC)) * up, dtype))
    if DELTA:
        block(pool, LATER_K).store(nearest(k * up, dtype))
    block(pool, EARLIER_K).store(nearest(k * gl.exp2(-near), dtype))
    fence_async_shared()
    barrier()
    x = multiply_once(block(pool, DP_WITHIN), block(pool, EARLIER_K))
    db = pinned(db + widened(block(pool, LATER_Q).load(ACC)) * x)
    dq = pinned(dq + gl.exp2(since(tile, tile.middles)) * x)
    dpT = block(pool, DP_WITHIN).permute((1, 0))
    if DELTA:
        x = multiply_once(block(pool, DA_WITHIN), block(pool, EARLIER_K))
        db = pinned(db + widened(block(pool, LATER_K).load(ACC)) * x)
        dk = pinned(dk + gl.exp2(since(tile, tile.middles)) * x)
        daT = block(pool, DA_WITHIN).permute((1, 0))
        x = multiply_two(dpT, block(pool, LATER_Q), daT, block(pool, LATER_K))
    else:
        x = multiply_once(dpT, block(pool, LATER_Q))
    db = pinned(db - widened(block(pool, EARLIER_K).load(ACC)) * x)
    dk = pinned(dk + gl.exp2(-since(tile, tile.middles)) * x)
    barrier()  # the pool has been read
    return dq, dk, db


@gluon.jit
def multiply_once(a, b):
    """Return a b of matrices in shared memory, [64, 64] float32."""
    x = gl.zeros([64, 64], gl.float32, layout=ACC)
    x = warpgroup_mma(a, b, x, use_acc=False, is_async=True)
    return wait_for_products(0, deps=(x,))


@gluon.jit
def add_between_blocks(tile, dq, dk, db, DELTA: gl.constexpr):
    """Add the pairs of steps of different blocks to dq, which takes the place of q, and to dk and db.

    DELTA: those of dA too.
    """
    pool = tile.pool
    dtype: gl.constexpr = pool.dtype
    up = gl.exp2(since(tile, tile.starts))
    block(pool, LATER_Q).store(nearest(widened(block(pool, Q).load(ACC)) * up, dtype))
    k = widened(block(pool, K).load(ACC))
    if DELTA:
        block(pool, LATER_K).store(nearest(k * up, dtype))
    k *= until(tile)
    block(pool, EARLIER_K).store(nearest(k, dtype))
    block(pool, EARLIER_K + 1).store(nearest(over_blocks(k, tile.to_third), dtype))
    block(pool, EARLIER_K + 2).store(nearest(over_blocks(k, tile.to_fourth), dtype))
    fence_async_shared()
    barrier()
    x = multiply_later(block(pool, DP_BETWEEN), pool)
    db = pinned(db + widened(block(pool, LATER_Q).load(ACC)) * x)
    up = gl.exp2(since(tile, tile.starts))
    dq = pinned(dq + up * x)
    block(pool, Q).store(nearest(dq, dtype))
    if DELTA:
        x = multiply_later(block(pool, DA_BETWEEN), pool)
        db = pinned(db + widened(block(pool, LATER_K).load(ACC)) * x)
        dk = pinned(dk + up * x)
    total = multiply_earlier(pool, 1, DELTA)
    db = pinned(db - widened(block(pool, EARLIER_K).load(ACC)) * total)
    x = multiply_earlier(pool, 2, DELTA)
    db = pinned(db - widened(block(pool, EARLIER_K + 1).load(ACC)) * x)
    total = pinned(total + over_blocks(x, tile.to_third))
    x = multiply_earlier(pool, 3, DELTA)
    db = pinned(db - widened(block(pool, EARLIER_K + 2).load(ACC)) * x)
    total = pinned(total + over_blocks(x, tile.to_fourth))
    return pinned(dk + until(tile) * total), db


# --- Kernel -----------------------------------------------------------------------------------------------------------


@gluon.jit
def allocate_tile(desc):
    """Return the shared memory of a program; desc describes blocks of q."""
    sums = gl.allocate_shared_memory(gl.float32, [1, 1, 1, 64, 64], FLOAT_BLOCK).index(0)
    return GradientTile(
        pool=gl.allocate_shared_memory(desc.dtype, [10, 1, 1, 64, 64], desc.layout),
        sums=sums.reshape([64, 64]),
        sums_block=sums,
        starts=gl.allocate_shared_memory(gl.float32, [4, 64], VECTOR),
        middles=gl.allocate_shared_memory(gl.float32, [4, 64], VECTOR),
        ends=gl.allocate_shared_memory(gl.float32, [4, 64], VECTOR),
        to_third=gl.allocate_shared_memory(gl.float32, [4, 64], VECTOR),
        to_fourth=gl.allocate_shared_memory(gl.float32, [4, 64], VECTOR),
        totals=gl.allocate_shared_memory(gl.float32, [4, 64], VECTORS),
        vectors=gl.allocate_shared_memory(gl.float32, [4, 64], VECTOR),
    )


@gluon.jit
def gradients_of_tiles(  # noqa: PLR0913, PLR0915  descriptors, which Triton does not take in a tuple; one tile
    q_desc, k_desc, g_desc, do_desc, z_desc, dv_desc, s_desc, d_desc, dq_desc, dk_desc, dg_desc, tensors, scale, counts,
    PIECE: gl.constexpr,
):  # fmt: skip
    """Write dq, dk and dg of 64 channels of a tile and, with the first of them, dbeta.

    PIECE: which 128 columns of v; all but the first add to what is there.
    """
    num_steps, num_tiles = counts.num_steps >> 1, counts.num_tiles >> 1
    num_heads, heads_per_qk = counts.num_heads >> 1, counts.heads_per_qk >> 1
    half, number = gl.program_id(0) % 2, gl.program_id(0) // 2  # the halves side by side, for the L2
    batch, tile_number, head = number // num_heads // num_tiles, number // num_heads % num_tiles, number % num_heads
    row = batch * num_heads + head
    step, channel, column = tile_number * 64, 64 * half, 128 * PIECE
    tile = allocate_tile(q_desc)
    g_block = tile.sums_block
    if g_desc.dtype == gl.bfloat16:
        g_block = as_bfloat16(g_block)
    loaded = gl.allocate_shared_memory(gl.int64, [3, 1], mbarrier.MBarrierLayout())
    for n in gl.static_range(3):
        mbarrier.init(loaded.index(n), count=1)
    mbarrier.expect(loaded.index(0), BLOCK_BYTES * (2 if g_desc.dtype == gl.float32 else 1))
    tma_load(g_desc, [batch, head, step, channel], loaded.index(0), g_block)
    full = loaded.index(1)
    mbarrier.expect(full, 10 * BLOCK_BYTES)
    for h in gl.static_range(2):
        tma_load(s_desc, [0, row * num_tiles + tile_number, column + 64 * h, channel], full, tile.pool.index(S + h))
        tma_load(d_desc, [0, row * num_tiles + tile_number, column + 64 * h, channel], full, tile.pool.index(D + h))
        tma_load(do_desc, [batch, head, step, column + 64 * h], full, tile.pool.index(DO + h))
        tma_load(z_desc, [batch, head, step, column + 64 * h], full, tile.pool.index(Z + h))
        tma_load(dv_desc, [batch, head, step, column + 64 * h], full, tile.pool.index(DV + h))
    _g, root = load_steps(tensors.gates, row, tile_number, num_steps, False)
    tile.vectors.index(ROOT).store(root)
    mbarrier.wait(loaded.index(0), 0)
    shut = sum_gates(tile, g_block.reshape([64, 64]))

    mbarrier.wait(full, 0)
    sd = widened(block(tile.pool, S).load(ACC)) * widened(block(tile.pool, D).load(ACC))
    sd += widened(block(tile.pool, S + 1).load(ACC)) * widened(block(tile.pool, D + 1).load(ACC))
    decay = gl.exp2(tile.vectors.index(TOTAL).load(ACC_COLUMN))
    tile.vectors.index(STATES).store(gl.sum(sd, axis=0) * decay)
    dq = multiply_pair(tile.pool, DO, S)
    reads = multiply_pair(tile.pool, DV, S)
    writes = multiply_pair(tile.pool, Z, D)
    fence_async_shared()
    barrier()  # S and D have been read
    full = loaded.index(2)
    mbarrier.expect(full, 2 * BLOCK_BYTES)
    tma_load(q_desc, [batch, head // heads_per_qk, step, channel], full, tile.pool.index(Q))
    tma_load(k_desc, [batch, head // heads_per_qk, step, channel], full, tile.pool.index(K))
    diagonal, dbeta = make_scores(tile, scale)
    if half == 0:
        t = step + gl.arange(0, 64, layout=ACC_ROW)
        at = tensors.dbeta + row * num_steps + t
        if PIECE > 0:
            dbeta += gl.load(at, mask=t < num_steps, other=0.0)
        gl.store(at, dbeta, mask=t < num_steps)
    mbarrier.wait(full, 0)
    dq, dk, db = add_states(tile, (dq, reads, writes), diagonal, scale)
    dq, dk, db = add_within_blocks(tile, dq, dk, db, True)
    dk, db = add_between_blocks(tile, dq, dk, db, True)
    block(tile.pool, K).store(nearest(dk, q_desc.dtype))
    barrier()  # b has been read
    tile.sums.store(db)
    fence_async_shared()
    barrier()
    send(dq_desc, [batch, head, step, channel], tile.pool.index(Q), PIECE > 0)
    send(dk_desc, [batch, head, step, channel], tile.pool.index(K), PIECE > 0)
    passing = tile.vectors.index(STATES).load(CHANNELS) + tile.vectors.index(WRITES).load(CHANNELS)
    dg = as_steps(where_open(sum_from_here(tile, tile.sums, passing), shut))
    dg_block = tile.sums_block
    if dg_desc.dtype == gl.bfloat16:
        dg_block = as_bfloat16(dg_block)
        dg = nearest(dg, gl.bfloat16)
    dg_block.reshape([64, 64]).store(dg)
    fence_async_shared()
    barrier()
    send(dg_desc, [batch, head, step, channel], dg_block, PIECE > 0)
    tma.store_wait(pendings=0)


def launch_gradients(inputs: tuple[Tensor, ...], beta: Tensor, *, scale: float, plan: DeltaPlan) -> tuple[Tensor, ...]:
    """Return dq, dk, of every head of v, and dg (B, H, T, d_qk), and dbeta.

    Args:
        inputs: q, k, g, do, Z, dv, and S before tiles and D after them, (1, B * H * tiles, d_hv, d_qk).
    """
    q, _, g = inputs[:3]
    B, H, group, T, d_qk, _ = plan.sizes
    if group == 1:  # with their strides, so that nobody copies
        dq, dk = (torch.empty_like(x) for x in inputs[:2])
    else:
        dq, dk = (q.new_empty((B, H, T, d_qk)) for _ in range(2))
    dg = torch.empty_like(g, dtype=torch.float32 if plan.pieces > 1 else g.dtype)
    dbeta = torch.empty_like(beta)
    descs = tuple(map(descriptor, (*inputs, dq, dk, dg)))
    tensors = GateGradientTensors(DeltaGates(beta, beta), dbeta)
    counts = encode_counts(OperandCounts(T, plan.cut.tiles, H, group))
    for piece in range(plan.pieces):
        enqueue(
            gradients_of_tiles, 2 * B * H * plan.cut.tiles, *descs, tensors, scale, counts,
            PIECE=piece, num_warps=4, **ASSEMBLY,
        )  # fmt: skip
    return dq, dk, dg, dbeta
