# type: ignore   # Gluon: what runs on the device has no types that a Python checker knows
"""The state that a program carries as float32 accumulators: in memory, its decay, its update.

    S <- 2^g S + sum_j weight_j Z_j W_j^T           after every tile of 64 steps

A partition has 64 rows of it (128 with 8 warps) at a time, in blocks of 64 columns. Forward S = C^T, Z = V, W = K.
"""

from typing import Any, NamedTuple

from triton import constexpr_function
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma

from .conversions import lower, upper, widened
from .tiles import block, join_columns, split_columns
from .workarounds import wait_for_products, zero_from_here


class States(NamedTuple):
    """Matrix memories (B, H, segments, d_qk, d_hv) float32, or None; on the device, pointers.

    Attributes:
        initial, final: C before and after each segment.
        kept: C before each segment of another cut.
    """

    initial: Any = None
    final: Any = None
    kept: Any = None


class Matrices(NamedTuple):
    """C and n of states, float32, or where they go: (B, H, ..., d_qk, d_hv) and (B, H, ..., d_qk), or None."""

    C: Any = None
    n: Any = None


MOST_DEFERRED = gl.constexpr(-40.0)  # what is added to the accumulators, up to 2**40 times as large, stays finite


@constexpr_function
def accumulators(blocks):
    """Return into how many accumulators `blocks` blocks of state are cut for their update, of one block or two each.

    Of four ptxas has not enough registers (C7602); of one of 128 columns it serialises products (C7512, Triton 3.9).
    """
    return 2 if blocks == 4 else blocks


@gluon.jit
def split_decay(pending, g, flush):
    """Split the decay of a tile into a factor for the accumulators and an exponent that stays pending.

    The state is 2^pending times its accumulators. To multiply 128 of them a thread at every tile is dear, while
    2^pending can go into vectors until it gets too small: what is read from the state is multiplied by it as it stands
    before the tile, what is added is divided by it as it stands after the tile.

    Args:
        pending: the exponent before the tile, 0 to MOST_DEFERRED.
        g: log2 of the decay of the tile.
        flush: whether nothing may stay pending, for the state is stored after this tile.
    """
    due = pending + g
    if due >= MOST_DEFERRED and not flush:
        return 1.0, due
    else:
        return gl.exp2(due), 0.0


@gluon.jit
def state_pointers(
    ptr, z, w, Z_STRIDE: gl.constexpr, W_STRIDE: gl.constexpr, layout: gl.constexpr, ROWS: gl.constexpr = 64
):  # fmt: skip
    """Return pointers to a block [ROWS, 64] of a state in memory, from row z and column w on, and the rows' numbers."""
    rows = gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))[:, None]
    columns = gl.arange(0, 64, layout=gl.SliceLayout(0, layout))[None, :]
    # In this order: constants added to one pointer a thread.
    return (ptr + (z * Z_STRIDE + w * W_STRIDE) + rows * Z_STRIDE) + columns * W_STRIDE, z + rows


@gluon.jit
def start_state_update(blocks, zT, weights, w, tile, ACCUMULATORS: gl.constexpr):
    """Start S + (weights Z)^T W for the blocks of some rows of the state; `finish_state_update` takes what comes of it.

    From 3.7 on Triton copies an operand for every product that it is part of (its pull request 9514): with an operand
    of four products there are too few registers to have any two in flight (ptxas C7512).

    Args:
        blocks: of the state, [rows, 64] each, already multiplied by their decay.
        zT: [rows, 64 steps] in shared memory.  weights: [64] in shared memory.
        w: tiles in shared memory as `operands`, ACCUMULATORS of them a tile; `tile` is the one to take.

    Returns:
        The accumulators in flight and the operands, which must be kept until they have been waited for.
    """
    in_flight = ()
    for j in gl.static_range(ACCUMULATORS):
        if len(blocks) > ACCUMULATORS:
            in_flight += (join_columns(blocks[2 * j], blocks[2 * j + 1]),)
        else:
            in_flight += (blocks[j],)
    layout: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=in_flight[0].type.layout, k_width=2)
    kept = ()
    for half in gl.static_range(2):  # of the steps: half the registers on their way to an operand
        z = widened(zT.slice(32 * half, 32, dim=1).load(layout))
        z = (z * weights.slice(32 * half, 32).load(gl.SliceLayout(0, layout))[None, :]).to(zT.dtype)
        kept += (z,)
        started = ()
        for j in gl.static_range(ACCUMULATORS):
            # [rows, 32] @ [32, columns / ACCUMULATORS] -> [rows, columns / ACCUMULATORS]
            w_half = w.index(tile * ACCUMULATORS + j + zero_from_here(tile)).slice(32 * half, 32, dim=0)
            started += (warpgroup_mma(z, w_half, in_flight[j], is_async=True),)
        in_flight = started
    return in_flight, kept


@gluon.jit
def finish_state_update(done, BLOCKS: gl.constexpr):
    """Return the BLOCKS blocks of the state out of what `start_state_update` started, once that has been waited for."""
    blocks = ()
    for j in gl.static_range(accumulators(BLOCKS)):
        if accumulators(BLOCKS) < BLOCKS:
            blocks += split_columns(done[j])
        else:
            blocks += (done[j],)
    return blocks


@gluon.jit
def read_both_parts(blocks, query, first_block, BLOCKS: gl.constexpr):
    """Return S query^T of rows of the state, [rows, columns] @ [columns, 64] -> [rows, 64] float32.

    The state takes part with twice the bits of an operand, as `upper` and `lower`, 16 columns at a time: there are no
    registers for larger operands of three products, two in flight and one that is made.
    """
    dtype: gl.constexpr = query.dtype
    ROWS: gl.constexpr = blocks[0].shape[0]
    layout: gl.constexpr = blocks[0].type.layout
    operand: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=layout, k_width=2)
    out = gl.zeros([ROWS, 64], gl.float32, layout=layout)
    in_flight = ()
    for j in gl.static_range(BLOCKS):
        queryT = block(query, first_block + j + zero_from_here(first_block)).permute((1, 0))
        left, right = split_columns(blocks[j])
        pieces = split_columns(left) + split_columns(right)
        for k in gl.static_range(4):
            for part in gl.static_range(2):
                # [rows, 16] @ [16, 64] -> [rows, 64]
                s = lower(pieces[k], dtype) if part else upper(pieces[k], dtype)
                s = gl.convert_layout(s, operand)
                out = warpgroup_mma(
                    s, queryT.slice(16 * k, 16, dim=0), out, use_acc=(j + k + part > 0), is_async=True
                )  # fmt: skip
                if len(in_flight) == 2:
                    wait_for_products(2, deps=(in_flight[0],))
                    in_flight = (in_flight[1], s)
                else:  # waits for nothing; but ptxas would for the state (C7517), from Triton 3.9 on
                    in_flight += (wait_for_products(len(in_flight) + 1, deps=(s,)),)
    out, _, _ = wait_for_products(0, deps=(out, in_flight[0], in_flight[1]))
    return out
