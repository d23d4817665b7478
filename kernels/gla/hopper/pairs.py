# type: ignore   # Gluon: what runs on the device has no types that a Python checker knows
"""Gradients of pairs of steps of a tile, of sequences of a head that have closed: a program for 64 channels of tiles.

    dP = scale tril(dO V^T)        dq_i += sum over j <= i of dP_ij k_j 2^(b_i - b_j)        dk_j: likewise of q_i

They go by blocks of 16 steps, as in kda/hopper/gradients.py. What the pairs j < i <= t of a tile add to the terms of dg
(channels.py) is 0 in sum, so dg of no other tile takes part in it. A gate that is shut has no gradient.
"""

import triton.language as tl
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from tflabench.kernels.common.cover import cdiv
from tflabench.kernels.common.launching import enqueue
from tflabench.kernels.common.sizes import Sizes
from tflabench.kernels.delta.hopper.backward_dqk import send
from tflabench.kernels.delta.hopper.tiles import products
from tflabench.kernels.gla.hopper_plan import PAIR_TILES, TILE, blocks_of, pieces_of
from tflabench.kernels.kda.hopper.gradients import (
    DP_BETWEEN,
    DP_WITHIN,
    K,
    Q,
    add_between_blocks,
    add_within_blocks,
    allocate_tile,
    diagonal_of,
    split_scores,
    sum_from_here,
    sum_gates,
    where_open,
)
from tflabench.kernels.kda.hopper.operands import OperandCounts
from tflabench.kernels.kda.hopper.tiles import BY_CHANNEL, CHANNELS, as_blocks, as_steps
from tflabench.kernels.scalar.hopper.conversions import nearest, widened
from tflabench.kernels.scalar.hopper.launch import descriptor
from tflabench.kernels.scalar.hopper.schedule import encode_counts
from tflabench.kernels.scalar.hopper.tiles import ACC, BLOCK_BYTES, block
from tflabench.kernels.scalar.hopper.workarounds import ASSEMBLY, barrier, reinterpret, tma_load, tma_store

TOGETHER = gl.constexpr(PAIR_TILES)


@gluon.jit
def start_loads(descs, at, pool, g_block, loaded, channel, column, BLOCKS: gl.constexpr):
    """Start the copies of a tile: of q, k and g 64 channels, and of do and v BLOCKS blocks of columns."""
    q_desc, k_desc, g_desc, do_desc, v_desc = descs
    batch, head, step = at
    mbarrier.expect(loaded.index(0), BLOCK_BYTES * (2 if g_desc.dtype == gl.float32 else 1))
    tma_load(g_desc, [batch, head, step, channel], loaded.index(0), g_block)
    full = loaded.index(1)
    mbarrier.expect(full, (2 * BLOCKS + 2) * BLOCK_BYTES)
    for j in gl.static_range(BLOCKS):
        tma_load(do_desc, [batch, head, step, column + 64 * j], full, pool.index(j))
        tma_load(v_desc, [batch, head, step, column + 64 * j], full, pool.index(4 + j))
    tma_load(q_desc, [batch, head, step, channel], full, pool.index(Q))
    tma_load(k_desc, [batch, head, step, channel], full, pool.index(K))


@gluon.jit
def add_pairs_of_tiles(  # noqa: PLR0913, PLR0915  descriptors, which Triton does not take in a tuple; some tiles
    q_desc, k_desc, g_desc, do_desc, v_desc, dq_desc, dk_desc, dg_desc, closed, scale, counts, BLOCKS: gl.constexpr,
    PIECE: gl.constexpr,
):  # fmt: skip
    """Add to dq, dk and dg of 64 channels of some tiles what their pairs of steps give.

    Args:
        BLOCKS, PIECE: 64 columns of v each, 2 or 4, and which of them.
    """
    num_tiles, num_heads = counts.num_tiles >> 1, counts.num_heads >> 1
    half, number = gl.program_id(0) % 2, gl.program_id(0) // 2  # the halves side by side, for the L2
    groups = (num_tiles + TOGETHER - 1) // TOGETHER
    row, first = number // groups, number % groups * TOGETHER
    if gl.load(closed + row) == 0:
        return
    batch, head, channel = row // num_heads, row % num_heads, 64 * half
    tile = allocate_tile(q_desc)
    pool = tile.pool
    g_block = reinterpret(tile.sums_block, g_desc.dtype, [1, 1, 64, 64], g_desc.layout)
    WIDE: gl.constexpr = g_desc.dtype == gl.float32
    dg_blocks = reinterpret(pool, g_desc.dtype, [5 if WIDE else 10, 1, 1, 64, 64], g_desc.layout)
    loaded = gl.allocate_shared_memory(gl.int64, [3, 1], mbarrier.MBarrierLayout())
    for n in gl.static_range(3):
        mbarrier.init(loaded.index(n), count=1)
    # Else addresses stay in registers from tile to tile, and 848 bytes are spilled, not 16.
    for number in tl.range(gl.minimum(TOGETHER, num_tiles - first), disable_licm=True):
        step, phase = (first + number) * 64, number & 1
        at = [batch, head, step, channel]
        descs = q_desc, k_desc, g_desc, do_desc, v_desc
        start_loads(descs, (batch, head, step), pool, g_block, loaded, channel, 64 * BLOCKS * PIECE, BLOCKS)
        mbarrier.wait(loaded.index(0), phase)
        shut = sum_gates(tile, g_block.reshape([64, 64]))
        mbarrier.wait(loaded.index(1), phase)
        dp = products(pool, 0, pool, 2)
        if BLOCKS == 4:
            dp += products(pool, 1, pool, 3)
        dp *= scale
        fence_async_shared()
        barrier()  # do and v have been read
        mbarrier.expect(loaded.index(2), BLOCK_BYTES * (2 if WIDE else 1))
        tma_load(dg_desc, at, loaded.index(2), dg_blocks.index(0))
        split_scores(pool, dp, DP_WITHIN, DP_BETWEEN)
        diagonal = diagonal_of(dp)[:, None]
        dq, dk = diagonal * widened(block(pool, K).load(ACC)), diagonal * widened(block(pool, Q).load(ACC))
        dq, dk, db = add_within_blocks(tile, dq, dk, gl.zeros([64, 64], gl.float32, layout=ACC), False)
        dk, db = add_between_blocks(tile, dq, dk, db, False)
        block(pool, K).store(nearest(dk, q_desc.dtype))
        barrier()  # b has been read
        tile.sums.store(db)
        fence_async_shared()
        barrier()
        send(dq_desc, at, pool.index(Q), True)
        send(dk_desc, at, pool.index(K), True)
        dg = sum_from_here(tile, tile.sums, gl.zeros([64], gl.float32, layout=CHANNELS))
        mbarrier.wait(loaded.index(2), phase)
        dg_block = dg_blocks.index(0).reshape([64, 64])
        before = dg_block.load(BY_CHANNEL)
        dg = where_open(dg + as_blocks(before if WIDE else widened(before)), shut)
        dg_block.store(as_steps(dg if WIDE else nearest(dg, g_desc.dtype)))
        fence_async_shared()
        barrier()
        tma_store(dg_desc, at, dg_blocks.index(0))
        tma.store_wait(pendings=0)
        barrier()


def launch_pairs(
    inputs: tuple[Tensor, ...], dq: Tensor, dk: Tensor, dg: Tensor, closed: Tensor, *, sizes: Sizes, scale: float
) -> None:
    """Add to dq, dk and dg what pairs of steps of a tile give where a sequence has closed; closed: of `GlaTensors`."""
    tiles = cdiv(sizes.steps, TILE)
    descs = tuple(map(descriptor, (*inputs, dq, dk, dg)))
    counts = encode_counts(OperandCounts(sizes.steps, tiles, sizes.heads, 1))
    for piece in range(pieces_of(sizes.d_hv)):
        enqueue(
            add_pairs_of_tiles, 2 * sizes.rows * cdiv(tiles, PAIR_TILES), *descs, closed, scale, counts,
            BLOCKS=2 * blocks_of(sizes.d_hv), PIECE=piece, num_warps=4, **ASSEMBLY,
        )  # fmt: skip
