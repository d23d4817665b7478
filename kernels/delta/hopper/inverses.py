# type: ignore   # Gluon: what runs on the device has no types that a Python checker knows
"""The inverses of tiles, X = (I + A)^-1 with A_ij = s_i s_j 2^(b_i - b_j) k_i . k_j for j < i: a program a tile.

Blocks of 16 on the diagonal are inverted by doubling, X <- X - X A X for pairs of blocks of 1, 2, 4 and 8, each in a
warp of its own. With D the inverse of all of them and N = D A of what is left of A, N^4 = 0 and

    (I + A)^-1 = D - N (D - N (D - N D))

All that comes up on the way is an entry of an inverse: keys that are alike do no harm, as they would to a series in
powers of A. Operands are float16, whose error is below that of the inverse in 16 bits.
"""

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma

from tflabench.kernels.common.launching import enqueue
from tflabench.kernels.delta.hopper_plan import TILE, DeltaPlan
from tflabench.kernels.scalar.hopper.conversions import nearest, remainder
from tflabench.kernels.scalar.hopper.documents import WalkPlaces
from tflabench.kernels.scalar.hopper.launch import descriptor
from tflabench.kernels.scalar.hopper.tiles import (
    ACC,
    ACC_COLUMN,
    ACC_ROW,
    BLOCK_BYTES,
    VECTOR,
    block,
    load_blocks,
)
from tflabench.kernels.scalar.hopper.workarounds import ASSEMBLY, barrier, reinterpret, tma_store, wait_for_products

from .tiles import (
    STEP_OF_EACH_WARP,
    DeltaGates,
    NormalizedGates,
    load_steps,
    norms_of,
    products,
    steps_of,
    sums_of_gates,
)

# Four blocks [16, 16], one a warp: an accumulator of mma.sync, and its operands.
OF_WARPS = gl.constexpr(gl.NVMMADistributedLayout(version=[2, 0], warps_per_cta=[4, 1, 1], instr_shape=[1, 16, 8]))
OF_WARPS_LEFT = gl.constexpr(gl.DotOperandLayout(operand_index=0, parent=OF_WARPS, k_width=2))
OF_WARPS_RIGHT = gl.constexpr(gl.DotOperandLayout(operand_index=1, parent=OF_WARPS, k_width=2))
OF_WARPS_ROW = gl.constexpr(gl.SliceLayout(2, OF_WARPS))
OF_WARPS_COLUMN = gl.constexpr(gl.SliceLayout(1, OF_WARPS))
VECTORS = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, order=[1, 0]))
SQUARE = gl.constexpr(gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2))


@gluon.jit
def multiply_blocks(x, yT):
    """Return x y of blocks [4, 16, 16]: the transpose of an accumulator has the layout of a right operand."""
    x = gl.convert_layout(x, OF_WARPS_LEFT, assert_trivial=True)
    y = gl.convert_layout(yT.permute((0, 2, 1)), OF_WARPS_RIGHT, assert_trivial=True)
    return mma_v2(x, y, gl.zeros([4, 16, 16], gl.float32, layout=OF_WARPS))


@gluon.jit
def invert_blocks(a, aT):
    """Return (I + a)^-1 of strictly lower blocks [4, 16, 16], float16; aT: their transposes."""
    i = gl.arange(0, 16, layout=gl.SliceLayout(0, OF_WARPS_ROW))[None, :, None]
    j = gl.arange(0, 16, layout=gl.SliceLayout(0, OF_WARPS_COLUMN))[None, None, :]
    one = gl.where(i == j, 1.0, 0.0).to(gl.float16)
    x = gl.where((i > j) & ((i ^ j) == 1), -a, one)
    xT = gl.where((i < j) & ((i ^ j) == 1), -aT, one)
    for level in gl.static_range(1, 4):
        axT = nearest(multiply_blocks(xT, a), gl.float16)
        pair = ((i ^ j) >> level) == 1
        xax, xaxT = multiply_blocks(x, axT), multiply_blocks(axT, x)
        x = gl.where((i > j) & pair, nearest(-xax, gl.float16), x)
        xT = gl.where((i < j) & pair, nearest(-xaxT, gl.float16), xT)
    return x


@gluon.jit
def block_places(layout: gl.constexpr):
    """Return the rows and the columns of blocks [16, 16] in a tile [4, 16, 4, 16]."""
    of_row: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(3, layout)))
    of_column: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(3, layout)))
    row = gl.arange(0, 4, layout=of_row)[:, None, None, None]
    return row, gl.arange(0, 4, layout=of_column)[None, None, :, None]


@gluon.jit
def put_blocks(blocks, tile, DISTANCE: gl.constexpr = 0):
    """Return a tile [64, 64] with blocks [4, 16, 16] on its diagonal, or so many blocks below that."""
    x = tile.reshape([4, 16, 4, 16])
    layout: gl.constexpr = x.type.layout
    row, column = block_places(layout)
    blocks = gl.convert_layout(blocks, gl.SliceLayout(2, layout), assert_trivial=True)[:, :, None, :]
    x = gl.where(row == column + DISTANCE, blocks, x).reshape([64, 64])
    return gl.convert_layout(x, ACC, assert_trivial=True)


@gluon.jit
def take_blocks(tile, DISTANCE: gl.constexpr = 0):
    """Return the blocks [4, 16, 16] on the diagonal of a tile [64, 64], or so many blocks below that."""
    blocks = tile.reshape([4, 16, 4, 16])
    layout: gl.constexpr = blocks.type.layout
    row, column = block_places(layout)
    blocks = gl.sum(gl.where(row == column + DISTANCE, blocks, 0.0), axis=2)
    return gl.convert_layout(blocks, OF_WARPS, assert_trivial=True)


@gluon.jit
def split_diagonal(kk, prefix, root):
    """Return A without its diagonal blocks, 16 by 16, and the inverse of these blocks of I + A: [64, 64] float16.

    Args:
        kk: k k^T, an accumulator.  prefix, root: b and s, [64] float32 in shared memory.
    """
    diagonal = take_blocks(kk)
    a = kk * gl.exp2(prefix.load(ACC_ROW)[:, None] - prefix.load(ACC_COLUMN)[None, :])
    a = a * root.load(ACC_ROW)[:, None] * root.load(ACC_COLUMN)[None, :]
    a = a.reshape([4, 16, 4, 16])
    layout: gl.constexpr = a.type.layout
    row, column = block_places(layout)
    a = gl.where(row > column, a, 0.0).reshape([64, 64])
    a = nearest(gl.convert_layout(a, ACC, assert_trivial=True), gl.float16)

    b = reinterpret(prefix, gl.float32, [4, 16], VECTORS)
    s = reinterpret(root, gl.float32, [4, 16], VECTORS)
    i = gl.arange(0, 16, layout=gl.SliceLayout(0, OF_WARPS_ROW))[None, :, None]
    j = gl.arange(0, 16, layout=gl.SliceLayout(0, OF_WARPS_COLUMN))[None, None, :]
    diagonal *= gl.exp2(-gl.abs(b.load(OF_WARPS_ROW)[:, :, None] - b.load(OF_WARPS_COLUMN)[:, None, :]))
    diagonal *= s.load(OF_WARPS_ROW)[:, :, None] * s.load(OF_WARPS_COLUMN)[:, None, :]
    below = nearest(gl.where(i > j, diagonal, 0.0), gl.float16)
    above = nearest(gl.where(i < j, diagonal, 0.0), gl.float16)
    return a, put_blocks(invert_blocks(below, above), gl.zeros([64, 64], gl.float16, layout=ACC))


@gluon.jit
def multiply(left, right, total, USE_TOTAL: gl.constexpr = True):
    """Return total + left right, [64, 64] float32, of operands that this partition has stored to shared memory."""
    fence_async_shared()
    barrier()
    total = warpgroup_mma(left, right, total, use_acc=USE_TOTAL, is_async=True)
    return wait_for_products(0, deps=(total,))


@gluon.jit
def invert(a, d, scratch):
    """Return (I + A)^-1 of a tile, [64, 64] float32.

    Args:
        a, d: as `split_diagonal` returns them.  scratch: four of [64, 64] float16 in shared memory; the third is not
            read by the last product.
    """
    a_smem, d_smem, x_smem, n_smem = scratch.index(0), scratch.index(1), scratch.index(2), scratch.index(3)
    a_smem.store(a)
    d_smem.store(d)
    n = multiply(d_smem, a_smem, gl.zeros([64, 64], gl.float32, layout=ACC), False)
    n_smem.store(nearest(-n, gl.float16))
    x = multiply(n_smem, d_smem, d_smem.load(ACC).to(gl.float32))
    x_smem.store(nearest(x, gl.float16))
    x = multiply(n_smem, x_smem, d_smem.load(ACC).to(gl.float32))
    a_smem.store(nearest(x, gl.float16))
    return multiply(n_smem, a_smem, d_smem.load(ACC).to(gl.float32))


@gluon.jit
def store_gain(at, kk, prefix, root):
    """Write log2 of the most by which a state grows in a tile: the norms of 2^g (I - beta k k^T), multiplied."""
    row, column = gl.arange(0, 64, layout=ACC_ROW)[:, None], gl.arange(0, 64, layout=ACC_COLUMN)[None, :]
    s = root.load(ACC_ROW)
    left = gl.abs(1.0 - s * s * gl.sum(gl.where(row == column, kk, 0.0), axis=1))
    gl.store(at, gl.min(prefix.load(ACC_ROW), axis=0) + gl.sum(gl.log2(gl.maximum(left, 1.0)), axis=0))


@gluon.jit(do_not_specialize=["num_steps", "num_tiles", "num_heads", "heads_per_qk"])
def make_inverses(  # noqa: PLR0913
    k_desc, x_desc, gates, steps, gains, num_steps, num_tiles, num_heads, heads_per_qk,
    GATED: gl.constexpr, PARTS: gl.constexpr, DOCUMENTS: gl.constexpr, GAINS: gl.constexpr,
    NORMALIZES: gl.constexpr,
):  # fmt: skip
    """Write X of a tile, (B, H, num_tiles * 64, PARTS * 64): itself rounded and, of two parts, what is left.

    Args:
        gains: (B, H, num_tiles) float32, written: see `store_gain`.
        NORMALIZES: see `DeltaWalkConfig`; the norms of k are written too.
    """
    dtype: gl.constexpr = k_desc.dtype
    row, tile = gl.program_id(0) // num_tiles, gl.program_id(0) % num_tiles
    batch, head = row // num_heads, row % num_heads
    step = tile * 64
    if DOCUMENTS:
        step = gl.maximum(gl.load(steps + step), 0)  # in a gap, where there is none, X is of no use
    scratch = gl.allocate_shared_memory(gl.float16, [4, 64, 64], SQUARE)
    blocks = reinterpret(scratch, dtype, [4, 1, 1, 64, 64], k_desc.layout)  # k in the last two, then X
    prefix = gl.allocate_shared_memory(gl.float32, [64], VECTOR)
    root = gl.allocate_shared_memory(gl.float32, [64], VECTOR)
    loaded = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(loaded, count=1)
    mbarrier.expect(loaded, 2 * BLOCK_BYTES)
    load_blocks(k_desc, (batch, head // heads_per_qk, step, 0), blocks, 2, 2, loaded)
    g, s = load_steps(gates, row, tile, num_steps, GATED, steps, DOCUMENTS)
    prefix.store(sums_of_gates(g))
    if NORMALIZES:
        mbarrier.wait(loaded, 0)
        root.store(norms_of(blocks, 1))
        barrier()
        norms = root.load(STEP_OF_EACH_WARP)
        at, there = steps_of(row, tile, num_steps, steps, DOCUMENTS)
        gl.store(gates.norms + at, norms, mask=there)
        s /= norms
        barrier()
    root.store(s)
    barrier()
    mbarrier.wait(loaded, 0)
    kk = products(blocks, 1, blocks, 1)
    if GAINS:
        store_gain(gains + gl.program_id(0), kk, prefix, root)
    a, d = split_diagonal(kk, prefix, root)
    x = invert(a, d, scratch)
    block(blocks, 2).store(nearest(x, dtype))
    if PARTS > 1:
        block(blocks, 1).store(remainder(x, dtype))
    fence_async_shared()
    barrier()
    tma_store(x_desc, [batch, head, tile * 64, 0], blocks.index(2))
    if PARTS > 1:
        tma_store(x_desc, [batch, head, tile * 64, 64], blocks.index(1))
    tma.store_wait(pendings=0)


def launch_inverses(
    k: Tensor, gates: DeltaGates | NormalizedGates, gated: bool, plan: DeltaPlan, places: WalkPlaces | None
) -> tuple[Tensor, Tensor | None]:
    """Return X of all tiles, (B, H, tiles * 64, parts * 64), in the dtype of k (B, H or fewer, T, d_qk), and gains.

    These are log2 of the most by which a state grows in a tile, (B, H, tiles), None where there is no pass.
    """
    steps = None if places is None else places.steps
    B, H, group, T, _, _ = plan.sizes
    x = torch.empty((B, H, plan.cut.tiles * TILE, plan.parts * TILE), dtype=k.dtype, device=k.device)
    gains = None if plan.states is None else gates.beta.new_empty((B, H, plan.cut.tiles))
    enqueue(
        make_inverses, B * H * plan.cut.tiles,
        descriptor(k), descriptor(x), gates, *(gates.beta if y is None else y for y in (steps, gains)),
        T, plan.cut.tiles, H, group,
        GATED=gated, PARTS=plan.parts, DOCUMENTS=steps is not None, GAINS=gains is not None,
        NORMALIZES=isinstance(gates, NormalizedGates), num_warps=4, **ASSEMBLY,
    )  # fmt: skip
    return x, gains
