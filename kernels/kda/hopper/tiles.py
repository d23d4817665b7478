# type: ignore   # Gluon: what runs on the device has no types that a Python checker knows
"""A tile of 64 steps with gates of channels, in blocks of 16 steps: layouts, sums of gates.

A warp has a block, and a thread two channels of all its steps, so that a sum over steps is one within a thread.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tflabench.kernels.delta.hopper.inverses import VECTORS
from tflabench.kernels.delta.hopper.tiles import LEAST_GATE, LOG2E, add
from tflabench.kernels.scalar.hopper.conversions import widened
from tflabench.kernels.scalar.hopper.launch import LAYOUT
from tflabench.kernels.scalar.hopper.workarounds import barrier, reinterpret

LEAST_WITHIN = gl.constexpr(-16.0)  # a log2 gate below counts as this between two steps of one block
BLOCK_LAYOUT = gl.constexpr(LAYOUT)
BY_CHANNEL = gl.constexpr(gl.BlockedLayout([16, 2], [1, 32], [4, 1], [1, 0]))  # [64, 64]
BLOCKS_BY_CHANNEL = gl.constexpr(gl.BlockedLayout([1, 16, 2], [1, 1, 32], [4, 1, 1], [2, 1, 0]))  # [4, 16, 64]
CHANNELS_OF_BLOCKS = gl.constexpr(gl.SliceLayout(1, BLOCKS_BY_CHANNEL))  # [4, 64]
CHANNELS = gl.constexpr(gl.SliceLayout(0, gl.SliceLayout(1, BLOCKS_BY_CHANNEL)))  # [64]
CHANNELS_OF_EACH_WARP = gl.constexpr(gl.BlockedLayout([1, 2], [1, 32], [4, 1], [1, 0]))  # [1, 64], in every warp


@gluon.jit
def as_blocks(x):
    """View x [64, 64] in registers as [4, 16, 64]."""
    return gl.convert_layout(x.reshape([4, 16, 64]), BLOCKS_BY_CHANNEL, assert_trivial=True)


@gluon.jit
def as_steps(x):
    """View x [4, 16, 64] in registers as [64, 64]."""
    return gl.convert_layout(x.reshape([64, 64]), BY_CHANNEL, assert_trivial=True)


@gluon.jit
def as_bfloat16(g_block):
    """Return a block of gates in shared memory, of float32 the first half of its memory, as a block of bfloat16."""
    if g_block.dtype == gl.bfloat16:
        return g_block
    else:
        return reinterpret(g_block, gl.bfloat16, [1, 1, 64, 64], BLOCK_LAYOUT)


@gluon.jit
def by_blocks(vector):
    """View a vector of 64 steps in shared memory as [4, 16]."""
    return reinterpret(vector, gl.float32, [4, 16], VECTORS)


@gluon.jit
def log2_gates(g_block):
    """Return the log2 gates [4, 16, 64] of natural logarithms in shared memory, [64, 64]."""
    g = g_block.load(BY_CHANNEL)
    if g.dtype != gl.float32:
        g = widened(g)
    return as_blocks(gl.maximum(g * LOG2E, LEAST_GATE))


@gluon.jit
def sums_of_blocks(x, smem):
    """Return of x [4, 64], a value for each block, the sums over the blocks that stand otherwise to each.

    Args:
        smem: [4, 64] float32 in shared memory, which nothing else reads until the next barrier.

    Returns: the sums over the blocks before and after it, over the next one and the next two, [4, 64] each; over all,
        [64].
    """
    smem.store(x)
    barrier()
    i = gl.arange(0, 4, layout=gl.SliceLayout(1, CHANNELS_OF_BLOCKS))[:, None]
    before = gl.zeros([4, 64], gl.float32, layout=CHANNELS_OF_BLOCKS)
    after = gl.zeros([4, 64], gl.float32, layout=CHANNELS_OF_BLOCKS)
    following = gl.zeros([4, 64], gl.float32, layout=CHANNELS_OF_BLOCKS)
    following_two = gl.zeros([4, 64], gl.float32, layout=CHANNELS_OF_BLOCKS)
    total = gl.zeros([64], gl.float32, layout=CHANNELS)
    for j in gl.static_range(4):
        of_block = gl.sum(smem.slice(j, 1, dim=0).load(CHANNELS_OF_EACH_WARP), axis=0)
        of_block = gl.convert_layout(of_block, CHANNELS)
        total += of_block
        of_block = of_block[None, :]
        before += gl.where(i > j, of_block, 0.0)
        after += gl.where(i < j, of_block, 0.0)
        following += gl.where(i + 1 == j, of_block, 0.0)
        following_two += gl.where((i + 1 == j) | (i + 2 == j), of_block, 0.0)
    return before, after, following, following_two, total


@gluon.jit
def sums_within_blocks(g):
    """Return the sums of log2 gates from the first step of a block to each of its steps, [4, 16, 64]."""
    return gl.associative_scan(g, 1, add)
