# type: ignore   # Gluon: what runs on the device has no types that a Python checker knows
"""Tiles of 64 steps: their layouts in registers and in shared memory, and how they get there.

A block is 64 steps by 64 columns of 16 bits, the unit of copies by TMA. Every operand of a product lies in shared
memory as blocks side by side, so one code takes every head dimension that is a multiple of 64.
"""

from triton import constexpr_function
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .workarounds import WIDEST_OPERAND, reinterpret, tma_add, tma_load, tma_store

BLOCK_BYTES = gl.constexpr(64 * 64 * 2)

# Of a partition of 4 warps, unless they say otherwise.
ACC = gl.constexpr(gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16]))
ACC_ROW = gl.constexpr(gl.SliceLayout(1, ACC))  # a value for each row of an accumulator [64, 64]
ACC_COLUMN = gl.constexpr(gl.SliceLayout(0, ACC))  # a value for each column
ACC_OPERAND = gl.constexpr(gl.DotOperandLayout(operand_index=0, parent=ACC, k_width=2))  # left operand of a product
STEP = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))  # a value for each step of a tile
STEP_OF_WARP = gl.constexpr(gl.BlockedLayout([2], [32], [1], [0]))  # the same in one warp
VECTOR = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, order=[0]))  # in shared memory

# Of a partition of 8 warps: an accumulator [128, 64], a value for each row and column of it, a left operand.
WIDE = gl.constexpr(gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[8, 1], instr_shape=[16, 64, 16]))
WIDE_ROW = gl.constexpr(gl.SliceLayout(1, WIDE))
WIDE_COLUMN = gl.constexpr(gl.SliceLayout(0, WIDE))
WIDE_OPERAND = gl.constexpr(gl.DotOperandLayout(operand_index=0, parent=WIDE, k_width=2))


@gluon.jit
def block(buffer, i):
    """Return the i-th block of a buffer [blocks, 1, 1, 64, 64] as a matrix [64, 64]: steps by columns."""
    return buffer.index(i).reshape([64, 64])


@gluon.jit
def operands(buffer, NUM_TILES: gl.constexpr, BLOCKS: gl.constexpr, OPERANDS: gl.constexpr):
    """View a buffer of tiles, BLOCKS blocks wide, as matrices [64, 64 * BLOCKS / OPERANDS], OPERANDS of them a tile.

    From one base the addresses within an operand are constants.
    """
    WIDTH: gl.constexpr = 64 * BLOCKS // OPERANDS
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, WIDTH], buffer.dtype)
    return reinterpret(buffer, buffer.dtype, [NUM_TILES * OPERANDS, 64, WIDTH], layout)


@constexpr_function
def score_operands(blocks):
    """Return into how many operands a tile of Q or K, blocks * 64 wide, is cut for a product: powers of two wide."""
    return 3 if blocks == 3 else max(1, blocks // int(WIDEST_OPERAND))


@gluon.jit
def load_blocks(desc, coords, buffer, first_block, COUNT: gl.constexpr, full):
    """Start the copies of COUNT blocks side by side to a buffer [blocks, 1, 1, 64, 64].

    Args:
        coords: (batch, head, step, column) of the first block.
        full: the mbarrier that counts their bytes.
    """
    batch, head, step, column = coords
    for j in gl.static_range(COUNT):
        tma_load(desc, [batch, head, step, column + 64 * j], full, buffer.index(first_block + j))


@gluon.jit
def send(desc, at, source, ADD: gl.constexpr, DOCUMENTS: gl.constexpr = False, edge=0):
    """Start the copy of a block to memory, or add it to what is there.

    The last tile of a document ends in the next ones, where it is 0. So it is added, as is the first tile, to zeros.

    Args:
        edge: whether it is of such a tile.
    """
    if ADD:
        tma_add(desc, at, source)
    elif DOCUMENTS:
        if edge:
            tma_add(desc, at, source)
        else:
            tma_store(desc, at, source)
    else:
        tma_store(desc, at, source)


@constexpr_function
def wide(layout, columns):
    """Return the layout of an accumulator that has `columns` columns."""
    return gl.NVMMADistributedLayout(layout.version, layout.warps_per_cta, [16, columns, 16])


@gluon.jit
def join_columns(left, right):
    """Join two accumulators [n, w] to [left | right], [n, 2 w]: the same registers."""
    COLUMNS: gl.constexpr = 2 * left.shape[1]
    x = gl.join(left, right).permute((0, 2, 1)).reshape([left.shape[0], COLUMNS])
    return gl.convert_layout(x, wide(left.type.layout, COLUMNS), assert_trivial=True)


@gluon.jit
def split_columns(x):
    """Split an accumulator [n, 2 w] into its left and right half, [n, w] each: the same registers."""
    COLUMNS: gl.constexpr = x.shape[1] // 2
    layout: gl.constexpr = wide(x.type.layout, COLUMNS)
    left, right = x.reshape([x.shape[0], 2, COLUMNS]).permute((0, 2, 1)).split()
    return (
        gl.convert_layout(left, layout, assert_trivial=True),
        gl.convert_layout(right, layout, assert_trivial=True),
    )
