# type: ignore   # Gluon: what runs on the device has no types that a Python checker knows
"""Fused backward pass of gated linear attention: dk and dv in one walk backward in time, with dC on chip.

dC is the gradient of the matrix memory C after a tile of 64 steps. With the exponents x, y and g of exponents.py,

    D_ij = 2^(x_i + y_j) for j <= i, else 0        P = Q K^T * D        dP = dH V^T * D        r_j = 2^(y_j + g)

    dK_j = sum_{i >= j} dP_ij Q_i + r_j dC V_j
    dV_j = sum_{i >= j} P_ij dH_i + dC^T (r_j K_j)
    dC  <- 2^g dC + sum_i 2^x_i Q_i dH_i^T                      after every tile

Partitions of a program, and what connects them:

    load       1 warp    copies tiles of Q, K, dH, x and y, and blocks of V, by TMA    -> DkdvTiles, ValueBlocks
    decays     1 warp    r, 2^x and 2^g of a tile; fences copies of dC for `value`     -> Decays, StateCopies
    value      4 warps   P and dP of a tile, then dV, 64 columns at a time             -> GradientScores, over V
    state      8 warps   dC, copies of it, 64 columns at a time; r K and dK            -> StateCopies, over K, over Q
    store      1 warp    writes dK and dV by TMA

`state` is one partition of 8 warps, for the instructions of two copies would not fit the cache. The partitions of one
warp wait for memory and for fences, so that the others need not.

Shared memory holds tiles to come in place of outputs: dK is written over the Q of its tile, dV over V and r K over K.

With `config.row_sums` there are row sums of K * dK, as far as dK comes through dC. Every pair of steps is the same
number here and in the walk for dq: r K is rounded as that walk rounds it for its state, and dC V is a product with
twice the bits of dC, `nearest` and `remainder`. `state` makes them, and `value` only adds up what its warps have.
"""

from typing import Any, NamedTuple

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma

from tflabench.kernels.common.launching import enqueue
from tflabench.kernels.scalar.plan.hopper import Walk

from .config import DkdvConfig
from .conversions import nearest, remainder, widened
from .launch import WalkInputs, descriptor, exponents_descriptor, pointers
from .pipeline import Ring, Signal, aggregate, allocate_ring, allocate_signal, begin_kernel, end_kernel
from .row_sums import store_warp_sums, write_sums
from .schedule import encode_counts, get_items_of_documents, get_step, read_count, read_document
from .state import finish_state_update, start_state_update, state_pointers
from .tiles import (
    ACC,
    ACC_COLUMN,
    ACC_ROW,
    BLOCK_BYTES,
    STEP,
    STEP_OF_WARP,
    VECTOR,
    WIDE,
    WIDE_COLUMN,
    WIDE_OPERAND,
    WIDE_ROW,
    block,
    load_blocks,
    operands,
    send,
)
from .workarounds import ASSEMBLY, barrier, opaque_zero, reinterpret, tma_load, wait_for_products

# Of `state`, 8 warps: half of the columns of an accumulator.
WIDE_HALF = gl.constexpr(gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[8, 1], instr_shape=[16, 32, 16]))
WIDE_HALF_COLUMN = gl.constexpr(gl.SliceLayout(0, WIDE_HALF))

# --- What partitions share --------------------------------------------------------------------------------------------


class DkdvTensors(NamedTuple):
    """Tensors that partitions read and write without TMA, float32, or None; on the device, pointers.

    Attributes:
        g: (B, H, tiles), exponents of tiles.
        initial, final: (B, H, segments, d_qk, d_hv), dC before and after each segment in the order of the walk: the
            gradient of the state at the end of the segment, and of the state at its start.
        skip: (H,), added to the diagonal of P.
        row_sums: (B, H, T), sums over the columns of K * dK as far as dK comes through dC.
    """

    g: Any
    initial: Any
    final: Any
    skip: Any
    row_sums: Any


class DkdvCounts(NamedTuple):
    """Numbers that a program reads once for a work item, encoded: of a sequence, the others as of `schedule.Counts`."""

    num_heads: int
    heads_per_qk: int
    num_steps: int
    num_tiles: int
    segment_tiles: int
    num_segments: int


class DkdvDocuments(NamedTuple):
    """Numbers of `DkdvCounts`, and the table of `WalkInputs`, that a program reads for a work item of documents."""

    num_heads: int
    heads_per_qk: int
    num_steps: int
    num_tiles: int
    table: Any


@aggregate
class DkdvTiles:
    """A ring of stages in shared memory, each a tile of Q, K and dH in blocks of 64 by 64, and its exponents x and y.

    `value` and `store` release a stage; `state` has read it when dK is written.

    Fields:
        q, k: [stages * 2, 1, 1, 64, 64], and later dK and r K.  dh: [stages * blocks_hv, 1, 1, 64, 64]. 16 bits.
        x, y: [stages, 1, 64] float32.
        k_read: a signal of one slot, that `value` has read K.
        dk_written: a signal of a stage, that dK lies where Q was.
    """

    ring: Ring
    q: gl.shared_memory_descriptor
    k: gl.shared_memory_descriptor
    dh: gl.shared_memory_descriptor
    x: gl.shared_memory_descriptor
    y: gl.shared_memory_descriptor
    k_read: Signal
    dk_written: Signal


@aggregate
class ValueBlocks:
    """A ring of slots in shared memory, each a block of 64 columns of V, and later of dV.

    Fields:
        v: [slots, 1, 1, 64, 64], 16 bits.
        dv_written: a signal of a slot, that dV lies where V was.
    """

    ring: Ring
    v: gl.shared_memory_descriptor
    dv_written: Signal


@aggregate
class StateCopies:
    """A ring of slots in shared memory, each a copy of 64 columns of dC for a product of `value`.

    Fields:
        dC: [slots, 128, 64], 16 bits.
        written: a signal of a slot, that the copy is there, for `decays` to pass on behind a fence.
    """

    ring: Ring
    dC: gl.shared_memory_descriptor
    written: Signal


@aggregate
class GradientScores:
    """P and dP of a tile in shared memory, one each.

    Fields:
        ring: of dP, which `state` reads.
        p, dp: [1, 64, 64], j by i, 16 bits.
    """

    ring: Ring
    p: gl.shared_memory_descriptor
    dp: gl.shared_memory_descriptor


@aggregate
class Decays:
    """A stage each of what a tile is multiplied by, float32 in shared memory.

    Fields:
        full: a signal of a stage, that all three are there.
        k_decay: [stages, 64], r_j = 2^(y_j + g), by which what step j takes from dC is multiplied.
        q_decay: [stages, 64], 2^x_i, by which what step i adds to dC is multiplied.
        state_decay: [stages, 128], copies of 2^g, the factor of dC.
    """

    full: Signal
    k_decay: gl.shared_memory_descriptor
    q_decay: gl.shared_memory_descriptor
    state_decay: gl.shared_memory_descriptor


@aggregate
class DkdvProgram:
    """The part of a program that all partitions share.

    Fields:
        counts: `DkdvCounts`, encoded, or `DkdvDocuments`.
        warp_sums: [8, 64] float32 in shared memory, row sums of a tile as each warp of `state` has them; only where
            `config.row_sums`.
    """

    config: gl.constexpr
    num_items: gl.tensor
    counts: gl.tuple
    tensors: gl.tuple
    inputs: DkdvTiles
    values: ValueBlocks
    copies: StateCopies
    scores: GradientScores
    decays: Decays
    warp_sums: gl.shared_memory_descriptor


@aggregate
class DkdvItem:
    """A segment of a (batch, head) row: num_tiles tiles before end_tile, the others as of `schedule.WorkItem`."""

    batch: gl.tensor
    head: gl.tensor
    qk_head: gl.tensor
    row: gl.tensor
    num_tiles: gl.tensor
    end_tile: gl.tensor
    state_index: gl.tensor
    shift: gl.tensor


@gluon.jit
def get_items(program):
    """Return the first work item of this program, the end of them, and how far they are from one another."""
    num_items = program.num_items
    if program.config.documents:
        return get_items_of_documents(program.counts.table, launched(num_items, "ctaid"))
    else:
        return launched(num_items, "ctaid"), num_items, launched(num_items, "nctaid")


@gluon.jit
def get_document(program, item):
    """Return the work item of a document of one head, by its number in the table."""
    counts, num_items = program.counts, program.num_items
    num_heads = read_count(counts.num_heads, item)
    table = counts.table + launched(num_items, "nctaid") + 1
    document, head, first_tile, end_tile, shift = read_document(table, num_items, item, num_heads)
    return DkdvItem(
        batch=item * 0,
        head=head,
        qk_head=head // read_count(counts.heads_per_qk, item),
        row=head,
        num_tiles=end_tile - first_tile,
        end_tile=end_tile,
        state_index=(document * num_heads + head).to(gl.int64),
        shift=shift,
    )


@gluon.jit
def get_work_item(program, item):
    """Return a work item by its number."""
    if program.config.documents:
        return get_document(program, item)
    else:
        return get_segment(program, item)


@gluon.jit
def get_segment(program, item):
    """Return the work item of a segment of one head.

    The number of tiles is worked out in the order that leaves the partitions most registers.
    """
    counts = program.counts
    num_heads = read_count(counts.num_heads, item)
    num_tiles = read_count(counts.num_tiles, item)
    segment_tiles = read_count(counts.segment_tiles, item)
    num_segments = read_count(counts.num_segments, item)
    segment = item % num_segments
    row = item // num_segments
    head = row % num_heads
    return DkdvItem(
        batch=row // num_heads,
        head=head,
        qk_head=head // read_count(counts.heads_per_qk, item),
        row=row,
        num_tiles=gl.minimum(num_tiles - (num_segments - segment) * segment_tiles, 0) + segment_tiles,
        end_tile=num_tiles - (num_segments - 1 - segment) * segment_tiles,
        state_index=(row * num_segments + segment).to(gl.int64),
        shift=item * 0,
    )


@gluon.jit
def launched(items, register: gl.constexpr):
    """Return the number of the program (ctaid) or how many there are (nctaid), read where it is used.

    As a value that partitions share it would lie on the stack for them.
    """
    asm: gl.constexpr = f"mov.u32 $0, %{register}.x;"
    return gl.inline_asm_elementwise(asm, "=r,r", [items], gl.int32, is_pure=False, pack=1)


@gluon.jit
def load_exponents(smem, stage, layout: gl.constexpr):
    """Return x or y of a tile, [64], from its stage [1, 64]."""
    return reinterpret(smem.index(stage), gl.float32, [64], VECTOR).load(layout)


# --- Load partition ---------------------------------------------------------------------------------------------------


@gluon.jit
def load_partition(program, q_desc, k_desc, v_desc, dh_desc, x_desc, y_desc):
    """Copy tiles of Q, K, dH, x and y, and blocks of V, to shared memory, in the order of the walk."""
    config: gl.constexpr = program.config
    BLOCKS_HV: gl.constexpr = config.blocks_hv
    inputs, values = program.inputs, program.values
    i = 0
    first, end, stride = get_items(program)
    for item in range(first, end, stride):
        work = get_work_item(program, item)
        num_tiles = read_count(program.counts.num_tiles, item)
        for t in range(work.num_tiles):
            tile = work.end_tile - 1 - t
            stage = inputs.ring.at(i)
            s = stage.slot
            inputs.ring.producer_acquire(stage)
            fence_async_shared()  # consumers' reads of the stage, before the copies write there
            full = inputs.ring.full.index(s)
            mbarrier.expect(full, BLOCK_BYTES * (4 + BLOCKS_HV) + 2 * 256)
            tma_load(x_desc, [work.row * num_tiles + tile, 0], full, inputs.x.index(s))
            tma_load(y_desc, [work.row * num_tiles + tile, 0], full, inputs.y.index(s))
            step = get_step(work, tile, config)
            at_qk = (work.batch, work.qk_head, step, 0)
            load_blocks(dh_desc, (work.batch, work.head, step, 0), inputs.dh, s * BLOCKS_HV, BLOCKS_HV, full)
            load_blocks(k_desc, at_qk, inputs.k, s * 2, 2, full)
            load_blocks(q_desc, at_qk, inputs.q, s * 2, 2, full)
            for c in gl.static_range(BLOCKS_HV):
                slot = values.ring.at(i * BLOCKS_HV + c)
                values.ring.producer_acquire(slot)
                full = values.ring.full.index(slot.slot)
                mbarrier.expect(full, BLOCK_BYTES)
                load_blocks(v_desc, (work.batch, work.head, step, 64 * c), values.v, slot.slot, 1, full)
            i += 1


# --- Decay partition --------------------------------------------------------------------------------------------------


@gluon.jit
def decay_partition(program):
    """Make the decays of every tile, and pass copies of dC on to `value` behind a fence."""
    config: gl.constexpr = program.config
    BLOCKS_HV: gl.constexpr = config.blocks_hv
    inputs, decays, copies = program.inputs, program.decays, program.copies
    i = 0
    first, end, stride = get_items(program)
    for item in range(first, end, stride):
        work = get_work_item(program, item)
        g_of_row = program.tensors.g + work.row * read_count(program.counts.num_tiles, item)
        next_g = gl.load(g_of_row + work.end_tile - 1)
        for t in range(work.num_tiles):
            tile = work.end_tile - 1 - t
            g = next_g
            next_g = gl.load(g_of_row + gl.maximum(tile - 1, 0))
            stage = inputs.ring.at(i)
            inputs.ring.consumer_wait(stage)
            y = load_exponents(inputs.y, stage.slot, STEP_OF_WARP)
            decays.k_decay.index(stage.slot).store(gl.exp2(y + g))
            decays.q_decay.index(stage.slot).store(gl.exp2(load_exponents(inputs.x, stage.slot, STEP_OF_WARP)))
            decays.state_decay.index(stage.slot).store(gl.full([128], gl.exp2(g), gl.float32, layout=STEP_OF_WARP))
            barrier()
            decays.full.arrive(stage)
            for c in range(BLOCKS_HV):
                copy = copies.ring.at(i * BLOCKS_HV + c)
                copies.written.wait(copy)
                fence_async_shared()
                copies.ring.producer_commit(copy)
            i += 1


# --- Value partition --------------------------------------------------------------------------------------------------


@gluon.jit
def apply_decay(scores, inputs, stage):
    """Return scores * D, [64, 64], j by i: D_ij = 2^(x_i + y_j) for j <= i, else 0."""
    j = gl.arange(0, 64, layout=ACC_ROW)[:, None]
    i = gl.arange(0, 64, layout=ACC_COLUMN)[None, :]
    x = load_exponents(inputs.x, stage, ACC_COLUMN)[None, :]
    y = load_exponents(inputs.y, stage, ACC_ROW)[:, None]
    return gl.where(i >= j, scores * gl.exp2(x + y), 0.0)


@gluon.jit
def make_p(program, stage, turn, skip, zero):
    """Write P of a tile, [64, 64], j by i, with `skip` added to its diagonal; K may be overwritten then.

    Args:
        zero: 0, in a form that keeps numbers of rows out of registers.
    """
    inputs, scores = program.inputs, program.scores
    STAGES: gl.constexpr = program.config.num_stages
    q, k = operands(inputs.q, STAGES, 2, 1), operands(inputs.k, STAGES, 2, 1)
    p = gl.zeros([64, 64], gl.float32, layout=ACC)
    # [64, 128] @ [128, 64] -> [64, 64]
    p = warpgroup_mma(k.index(stage), q.index(stage).permute((1, 0)), p, use_acc=False, is_async=True)
    p = wait_for_products(0, deps=(p,))
    barrier()  # every warp's product has read K
    inputs.k_read.arrive(turn)
    p = apply_decay(p, inputs, stage)
    if program.config.skip:
        row = gl.arange(0, 64, layout=ACC_ROW)[:, None] + zero
        p = gl.where(row == gl.arange(0, 64, layout=ACC_COLUMN)[None, :], p + skip, p)
    scores.p.index(0).store(nearest(p, scores.p.dtype))


@gluon.jit
def make_dp(program, stage, i):
    """Return dP of the i-th tile of this program, [64, 64], j by i, rounded."""
    config: gl.constexpr = program.config
    BLOCKS_HV: gl.constexpr = config.blocks_hv
    SLOTS: gl.constexpr = config.num_v_slots
    inputs, values = program.inputs, program.values
    for c in gl.static_range(BLOCKS_HV):
        values.ring.consumer_wait(values.ring.at(i * BLOCKS_HV + c))
    dp = gl.zeros([64, 64], gl.float32, layout=ACC)
    for c in gl.static_range(BLOCKS_HV):
        # [64, 64] @ [64, 64] -> [64, 64]
        v = block(values.v, (i * BLOCKS_HV + c) % SLOTS)
        dhT = block(inputs.dh, stage * BLOCKS_HV + c).permute((1, 0))
        dp = warpgroup_mma(v, dhT, dp, use_acc=(c > 0), is_async=True)
    dp = wait_for_products(0, deps=(dp,))
    return nearest(apply_decay(dp, inputs, stage), program.scores.dp.dtype)


@gluon.jit
def make_dv(program, stage, i):
    """Write dV of the i-th tile of this program over its V, 64 columns at a time, behind the copies of dC."""
    config: gl.constexpr = program.config
    BLOCKS_HV: gl.constexpr = config.blocks_hv
    inputs, values, copies = program.inputs, program.values, program.copies
    k = operands(inputs.k, config.num_stages, 2, 1)
    for c in range(BLOCKS_HV):
        v = i * BLOCKS_HV + c
        # Not of v, which would make it the same in every round: kept out of registers, addresses are worked out anew.
        zero = opaque_zero(3 * v)
        slot, copy = values.ring.at(v), copies.ring.at(v)
        dv = gl.zeros([64, 64], gl.float32, layout=ACC)
        # [64, 64] @ [64, 64] + [64, 128] @ [128, 64] -> [64, 64]
        dh = block(inputs.dh, stage * BLOCKS_HV + c)
        dv = warpgroup_mma(program.scores.p.index(zero), dh, dv, use_acc=False, is_async=True)
        copies.ring.consumer_wait(copy)  # at the first, r K is there as well
        dv = warpgroup_mma(k.index(stage + zero), copies.dC.index(copy.slot + zero), dv, is_async=True)
        dv = wait_for_products(0, deps=(dv,))
        # The copy of dC is there, hence the product of these columns of V with dC is done.
        values.v.index(slot.slot).reshape([64, 64]).store(dv.to(values.v.dtype))
        barrier()
        copies.ring.consumer_release(copy)
        values.dv_written.arrive(slot)


@gluon.jit
def value_partition(program):
    """Compute P, dP and dV of every tile, and store the row sums that `state` has left."""
    config: gl.constexpr = program.config
    inputs, scores = program.inputs, program.scores
    t_of_tile = gl.arange(0, 64, layout=STEP)
    row_sums = program.tensors.row_sums
    # Of the tile before: where its row sums go, and how many steps it has.
    at_before, left_before = gl.to_tensor(0).to(gl.int64), gl.to_tensor(0)
    i = 0
    first, end, stride = get_items(program)
    for item in range(first, end, stride):
        work = get_work_item(program, item)
        num_steps = read_count(program.counts.num_steps, item)
        skip = 0.0
        if config.skip:
            skip = gl.load(program.tensors.skip + work.head)
        for t in range(work.num_tiles):
            tile = work.end_tile - 1 - t
            stage, turn = inputs.ring.at(i), scores.ring.at(i)
            inputs.ring.consumer_wait(stage)
            make_p(program, stage.slot, turn, skip, opaque_zero(i))
            dp = make_dp(program, stage.slot, i)
            scores.ring.producer_acquire(turn)
            scores.dp.index(0).store(dp)
            if config.row_sums:
                write_sums(program.warp_sums, row_sums + at_before, left_before, t_of_tile, STEP)
                at_before = work.row.to(gl.int64) * num_steps + tile * 64
                left_before = num_steps - tile * 64
            fence_async_shared()
            barrier()
            scores.ring.producer_commit(turn)  # Q has been read as well, and may become dK
            make_dv(program, stage.slot, i)
            inputs.ring.consumer_release(stage)
            i += 1
    if config.row_sums:
        scores.ring.producer_acquire(scores.ring.at(i))
        write_sums(program.warp_sums, row_sums + at_before, left_before, t_of_tile, STEP)


# --- Store partition --------------------------------------------------------------------------------------------------


@gluon.jit
def send_block(program, desc, work, t, column, out):
    """Start the copy of a block of the t-th tile of a work item, or add it to zeros (`tiles.send`)."""
    at = [work.batch, work.head, get_step(work, work.end_tile - 1 - t, program.config), column]
    send(desc, at, out, False, program.config.documents, (t == 0) | (t == work.num_tiles - 1))


@gluon.jit
def store_partition(program, dk_desc, dv_desc):
    """Write dK and dV from where Q and V were, and give their places back."""
    config: gl.constexpr = program.config
    BLOCKS_HV: gl.constexpr = config.blocks_hv
    inputs, values = program.inputs, program.values
    i = 0
    first, end, stride = get_items(program)
    for item in range(first, end, stride):
        work = get_work_item(program, item)
        for t in range(work.num_tiles):
            for c in range(BLOCKS_HV):
                slot = values.ring.at(i * BLOCKS_HV + c)
                values.dv_written.wait(slot)
                fence_async_shared()
                send_block(program, dv_desc, work, t, 64 * c, values.v.index(slot.slot))
                tma.store_wait(pendings=0)
                values.ring.consumer_release(slot)
            stage = inputs.ring.at(i)
            inputs.dk_written.wait(stage)
            fence_async_shared()
            for half in gl.static_range(2):
                dk = inputs.q.index(stage.slot * 2 + half)
                send_block(program, dk_desc, work, t, 64 * half, dk)
            tma.store_wait(pendings=0)
            inputs.ring.consumer_release(stage)
            i += 1


# --- State partition --------------------------------------------------------------------------------------------------


@gluon.jit
def load_state(program, work, zero):
    """Return dC before a segment as blocks_hv accumulators [128, 64]; zero is of `opaque_zero`."""
    config: gl.constexpr = program.config
    D_HV: gl.constexpr = config.d_hv
    BLOCKS_HV: gl.constexpr = config.blocks_hv
    initial = program.tensors.initial + work.state_index * (config.d_qk * config.d_hv)
    dC = ()
    for c in gl.static_range(BLOCKS_HV):
        if config.load_initial_state:
            at, rows = state_pointers(initial, zero, 64 * c + zero, D_HV, 1, WIDE, 128)
            dC += (gl.load(at, mask=rows < config.d_qk, other=0.0),)
        else:
            dC += (gl.zeros([128, 64], gl.float32, layout=WIDE),)
    return dC


@gluon.jit
def store_state(program, work, dC, zero):
    """Write dC after a segment; zero is of `opaque_zero`."""
    config: gl.constexpr = program.config
    D_HV: gl.constexpr = config.d_hv
    BLOCKS_HV: gl.constexpr = config.blocks_hv
    final = program.tensors.final + work.state_index * (config.d_qk * config.d_hv)
    for c in gl.static_range(BLOCKS_HV):
        at, rows = state_pointers(final, zero, 64 * c + zero, D_HV, 1, WIDE, 128)
        gl.store(at, dC[c], mask=rows < config.d_qk)


@gluon.jit
def decay_keys(k, k_decay):
    """Write r K over K, [64, 128], rounded as the walk for dq rounds it; half of the steps at a time, for registers."""
    kT = k.permute((1, 0))
    for half in gl.static_range(2):
        kT_half = kT.slice(32 * half, 32, dim=1)
        r = k_decay.slice(32 * half, 32).load(WIDE_HALF_COLUMN)
        kT_half.store(nearest(widened(kT_half.load(WIDE_HALF)) * r[None, :], k.dtype))


@gluon.jit
def read_state(program, dC, i):
    """Return dC V^T of the i-th tile of this program, [128, 64] float32, and hand copies of dC and r K to `value`.

    The first `config.copies_ahead` copies are handed over with the next one and r K, so that none of them is late.
    """
    config: gl.constexpr = program.config
    BLOCKS_HV: gl.constexpr = config.blocks_hv
    AHEAD: gl.constexpr = config.copies_ahead
    inputs, values, copies, decays = program.inputs, program.values, program.copies, program.decays
    dtype: gl.constexpr = inputs.k.dtype
    stage, turn = inputs.ring.at(i), program.scores.ring.at(i)
    dk = gl.zeros([128, 64], gl.float32, layout=WIDE)
    for c in gl.static_range(BLOCKS_HV):
        v = i * BLOCKS_HV + c
        slot, copy = values.ring.at(v), copies.ring.at(v)
        values.ring.consumer_wait(slot)
        rounded = nearest(dC[c], dtype)
        a = gl.convert_layout(rounded, WIDE_OPERAND)
        vT = block(values.v, slot.slot).permute((1, 0))
        dk = warpgroup_mma(a, vT, dk, use_acc=(c > 0), is_async=True)  # [128, 64] @ [64, 64] -> [128, 64]
        copies.ring.producer_acquire(copy)
        copies.dC.index(copy.slot + opaque_zero(3 * v)).store(rounded)  # + 0 keeps addresses out of registers
        dk, a = wait_for_products(0, deps=(dk, a))
        if config.row_sums:
            a = gl.convert_layout(remainder(dC[c], dtype), WIDE_OPERAND)
            dk = warpgroup_mma(a, vT, dk, is_async=True)  # [128, 64] @ [64, 64] -> [128, 64]
            dk, a = wait_for_products(0, deps=(dk, a))
        if c == AHEAD:
            inputs.k_read.wait(turn)
            decays.full.wait(stage)
            k = operands(inputs.k, config.num_stages, 2, 1).index(stage.slot)
            decay_keys(k, decays.k_decay.index(stage.slot))
        if c >= AHEAD:
            barrier()
            copies.written.arrive(copy)
        if c == AHEAD:
            for before in gl.static_range(AHEAD):
                copies.written.arrive(copies.ring.at(i * BLOCKS_HV + before))
    return dk


@gluon.jit
def finish_tile(program, dC, dk, i):
    """Write dK of the i-th tile of this program over its Q, from dk = dC V^T, [128, 64], and return dC after it."""
    config: gl.constexpr = program.config
    BLOCKS_HV: gl.constexpr = config.blocks_hv
    ACCUMULATORS: gl.constexpr = config.accumulators
    inputs, scores, decays = program.inputs, program.scores, program.decays
    dh = operands(inputs.dh, config.num_stages, BLOCKS_HV, ACCUMULATORS)
    stage, turn = inputs.ring.at(i), scores.ring.at(i)
    s = stage.slot
    inputs.ring.consumer_wait(stage)
    scores.ring.consumer_wait(turn)
    if config.row_sums:
        rkT = operands(inputs.k, config.num_stages, 2, 1).index(s).permute((1, 0))
        store_warp_sums(widened(rkT.load(WIDE)) * dk, program.warp_sums, 0, 8)

    # dK^T = (dC V^T) r + Q^T dP^T, [128, 64] @ [64, 64] -> [128, 64]
    dk = dk * decays.k_decay.index(s).load(WIDE_COLUMN)[None, :]
    qT = operands(inputs.q, config.num_stages, 2, 1).index(s).permute((1, 0))
    dk = warpgroup_mma(qT, scores.dp.index(0).permute((1, 0)), dk, is_async=True)

    # dC = 2^g dC + (2^x Q)^T dH, [128, d_hv]. All blocks are multiplied before the first product starts: nothing may
    # touch accumulators that are in flight.
    state_decay = decays.state_decay.index(s).load(WIDE_ROW)[:, None]
    decayed = ()
    for c in gl.static_range(BLOCKS_HV):
        decayed += (dC[c] * state_decay,)
    in_flight, kept = start_state_update(decayed, qT, decays.q_decay.index(s), dh, s, ACCUMULATORS)
    dk = wait_for_products(2 * ACCUMULATORS, deps=(dk,))  # dC is updated while dK is written
    barrier()  # dP, the decays and Q have been read
    scores.ring.consumer_release(turn)
    qT.store(dk.to(qT.dtype))
    dC = finish_state_update(wait_for_products(0, deps=in_flight + kept), BLOCKS_HV)
    barrier()
    inputs.dk_written.arrive(stage)
    return dC


@gluon.jit
def state_partition(program):
    """Carry dC as float32 accumulators, [128, d_hv], and make what comes of it."""
    config: gl.constexpr = program.config
    i = 0
    first, end, stride = get_items(program)
    for item in range(first, end, stride):
        work = get_work_item(program, item)
        dC = load_state(program, work, opaque_zero(i))
        for _ in range(work.num_tiles):
            dk = read_state(program, dC, i)
            dC = finish_tile(program, dC, dk, i)
            i += 1
        if config.store_final_state:
            store_state(program, work, dC, opaque_zero(i))


# --- Kernel -----------------------------------------------------------------------------------------------------------


@gluon.jit
def allocate_program(num_items, counts, tensors, config: gl.constexpr, desc, exponents_desc):
    """Return what all partitions share; desc is of blocks of Q, K, V or dH, exponents_desc of tiles of x or y."""
    dtype: gl.constexpr = desc.dtype
    STAGES: gl.constexpr = config.num_stages
    SLOTS: gl.constexpr = config.num_v_slots
    COPIES: gl.constexpr = config.num_copies
    score: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, 64], dtype)
    copy: gl.constexpr = gl.NVMMASharedLayout.get_default_for([128, 64], dtype)
    q = gl.allocate_shared_memory(dtype, [STAGES * 2, 1, 1, 64, 64], desc.layout)
    k = gl.allocate_shared_memory(dtype, [STAGES * 2, 1, 1, 64, 64], desc.layout)
    dh = gl.allocate_shared_memory(dtype, [STAGES * config.blocks_hv, 1, 1, 64, 64], desc.layout)
    v = gl.allocate_shared_memory(dtype, [SLOTS, 1, 1, 64, 64], desc.layout)
    dC = gl.allocate_shared_memory(dtype, [COPIES, 128, 64], copy)
    dp = gl.allocate_shared_memory(dtype, [1, 64, 64], score)
    p = gl.allocate_shared_memory(dtype, [1, 64, 64], score)
    k_decay = gl.allocate_shared_memory(gl.float32, [STAGES, 64], VECTOR)
    q_decay = gl.allocate_shared_memory(gl.float32, [STAGES, 64], VECTOR)
    state_decay = gl.allocate_shared_memory(gl.float32, [STAGES, 128], VECTOR)
    warp_sums = k_decay
    if config.row_sums:
        warp_sums = gl.allocate_shared_memory(gl.float32, [8, 64], VECTOR)
    x = gl.allocate_shared_memory(gl.float32, [STAGES, 1, 64], exponents_desc.layout)
    y = gl.allocate_shared_memory(gl.float32, [STAGES, 1, 64], exponents_desc.layout)
    inputs = DkdvTiles(allocate_ring(STAGES, 2), q, k, dh, x, y, allocate_signal(1), allocate_signal(STAGES))
    values = ValueBlocks(allocate_ring(SLOTS, 1), v, allocate_signal(SLOTS))
    copies = StateCopies(allocate_ring(COPIES, 1), dC, allocate_signal(COPIES))
    scores = GradientScores(allocate_ring(1, 1), p, dp)
    decays = Decays(allocate_signal(STAGES), k_decay, q_decay, state_decay)
    return DkdvProgram(config, num_items, counts, tensors, inputs, values, copies, scores, decays, warp_sums)


@gluon.jit(do_not_specialize=["num_items"])
def pair(
    q_desc, k_desc, v_desc, dh_desc, dk_desc, dv_desc, x_desc, y_desc, tensors, num_items, counts,
    config: gl.constexpr,
):  # fmt: skip
    """Compute dK and dV of all work items, and dC after them; launched with 8 warps and maxnreg=128."""
    VALUE_REGISTERS: gl.constexpr = config.value_registers
    program = allocate_program(num_items, counts, tensors, config, q_desc, x_desc)
    begin_kernel(independent=True)  # the walk for dq, launched just before, makes nothing that this one reads
    gl.warp_specialize(
        [
            (state_partition, (program,)),
            (value_partition, (program,)),
            (load_partition, (program, q_desc, k_desc, v_desc, dh_desc, x_desc, y_desc)),
            (store_partition, (program, dk_desc, dv_desc)),
            (decay_partition, (program,)),
        ],
        [4, 1, 1, 1],
        [VALUE_REGISTERS, 24, 24, 24],
    )
    end_kernel(independent=True)


# --- Host -------------------------------------------------------------------------------------------------------------


def launch_dkdv(
    inputs: WalkInputs, dh: Tensor, dk: Tensor, dv: Tensor, walk: Walk, *,
    initial: Tensor | None = None, final: Tensor | None = None, row_sums: Tensor | None = None,
) -> None:  # fmt: skip
    """Write dk (B, H, T, d_qk <= 128) and dv (B, H, T, d_hv <= 256), 16 bits, as TMA takes them.

    Args:
        inputs: of the walk for h.
        initial, final, row_sums: see `DkdvTensors`; row sums go to the first of (parts, B, H, T).
    """
    q, k, v, exponents, skip, documents = inputs
    _, heads, group, steps, d_qk, d_hv = walk.sizes
    config = DkdvConfig.of(
        walk.shape, d_qk=d_qk, d_hv=d_hv, row_sums=row_sums is not None, skip=skip is not None,
        load_initial_state=initial is not None, store_final_state=final is not None,
        documents=documents is not None,
    )  # fmt: skip
    unused = exponents.g  # in place of None, and not read
    tensors = pointers(DkdvTensors(exponents.g, initial, final, skip, row_sums), unused)
    counts: Any = encode_counts(DkdvCounts(heads, group, steps, *walk.cut))
    if documents is not None:
        counts = DkdvDocuments(*counts[:4], documents)
    enqueue(
        pair, walk.programs,
        *map(descriptor, (q, k, v, dh, dk, dv)), *map(exponents_descriptor, exponents[:2]),
        tensors, walk.items, counts, config=config, num_warps=8, maxnreg=128, launch_pdl=True,
        **ASSEMBLY,
    )  # fmt: skip
