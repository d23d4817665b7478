# type: ignore   # Gluon: what runs on the device has no types that a Python checker knows
"""All gradients of states of 64 by 64 (Mamba 2): dq, dk and dv of a tile in one program, and tiles side by side.

C before every tile and dC after it are written down first (docs/kernels.md). The state of a head of 32 is 32 by 32 in
memory. TMA reads zeros beyond its last row and column.

With the exponents x, y and g of exponents.py, and matrices of a tile with steps j as rows and steps i as columns,

    E_ji = 2^(y_j + x_i) for j <= i, else 0        S = K Q^T        P = S * E        dP = V dH^T * E

    dV = P dH + 2^(y + g) (K dC)        dK = dP Q + 2^(y + g) (V dC^T)        dQ = dP^T K + 2^x (dH C^T)

A work item is a tile of several heads that share Q and K, one after the other. Their dV and row sums are written, and
the sum of their dQ and dK, in float32 until the last of them is in it.

Row sums (`gates.gate_gradients`) are of pairs within the tile, from one float32 matrix S * dP by its rows and by its
columns, so that they cancel; of others q . dq and k . dk as far as these come through a state; and 2^g <C, dC>, which
passes the whole tile.

Partitions of a program, a head at a time, and what connects them:

    load          1 warp    copies tiles to shared memory by TMA                -> SharedTiles, HeadTiles
    score         4 warps   P and dP, and row sums of pairs within the tile     -> GradientScores
    value         4 warps   dV, and the gradient of a skip connection's weight  -> dV, by TMA
    accumulate    4 warps   dK and dQ over all heads of an item, and <C, dC>    -> over Q and K, by TMA
"""

from typing import Any, NamedTuple

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma

from tflabench.kernels.common.launching import enqueue
from tflabench.kernels.scalar.plan.hopper import TileGradients

from .backward_dkdv import GradientScores, load_exponents
from .config import TileGradientsConfig
from .conversions import nearest, widened
from .launch import WalkInputs, descriptor, exponents_descriptor, pointers, states_descriptor
from .pipeline import Ring, Signal, aggregate, allocate_ring, allocate_signal, begin_kernel
from .row_sums import store_warp_sums, write_sums
from .schedule import decode_count, encode_counts, read_count
from .tiles import ACC, ACC_COLUMN, ACC_ROW, BLOCK_BYTES, STEP, VECTOR, block
from .workarounds import ASSEMBLY, barrier, tma_load, tma_store, wait_for_products

VALUES_OF_WARP = gl.constexpr(gl.BlockedLayout([2], [32], [4], [0]))  # 64 values, all of them in every warp

# --- What partitions share --------------------------------------------------------------------------------------------


class TileTensors(NamedTuple):
    """Tensors that partitions read and write without TMA, float32, or None; on the device, pointers.

    Attributes:
        g: (B, H, tiles), exponents of tiles.
        skip: (H,), dV has skip dH added.
        skip_dots: (B, H, tiles), sums of dh_t . v_t over a tile; only with `skip`.
        row_sums: (4, B, H, T): q . dq through the state, q . dq within the tile, and the same of k . dk.
        through: (B, H, tiles), 2^g <C, dC>, what passes a whole tile; only with `row_sums`.
    """

    g: Any
    skip: Any
    skip_dots: Any
    row_sums: Any
    through: Any


class TileCounts(NamedTuple):
    """Numbers that all partitions need, see `schedule.encode_counts`.

    They are decoded once and kept: worked out anew for every item they would spill 8 B (Triton 3.9). Only heads_per_qk,
    which `load` alone needs, spills where it is kept (20 B, Triton 3.6).

    Attributes:
        num_steps, num_tiles: of a sequence.  num_items: work items of the launch.
        sums: row sums of a kind, B * H * T.
    """

    num_heads: int
    heads_per_qk: int
    num_steps: int
    num_tiles: int
    num_items: int
    sums: int


class TileArguments(NamedTuple):
    """All arguments of a launch except descriptors, which Triton 3.6 takes in no tuple; counts are encoded."""

    tensors: Any
    counts: Any
    config: Any


@aggregate
class SharedTiles:
    """A ring of stages in shared memory, each the Q and K of a work item, and later its dQ and dK.

    Fields:
        q, k: [stages, 1, 1, 64, 64], 16 bits.
        read: a signal of a stage, that `score` and `value` have read it for the last time.
    """

    ring: Ring
    q: gl.shared_memory_descriptor
    k: gl.shared_memory_descriptor
    read: Signal


@aggregate
class HeadTiles:
    """A ring of stages in shared memory, each what a tile of one head has of its own.

    Fields:
        v, dh: [stages, 1, 1, 64, 64], 16 bits.  C, dC: [stages, 1, 1, 1, 64, 64], 16 bits.
        x, y: [stages, 1, 64] float32.
    """

    ring: Ring
    v: gl.shared_memory_descriptor
    dh: gl.shared_memory_descriptor
    C: gl.shared_memory_descriptor
    dC: gl.shared_memory_descriptor
    x: gl.shared_memory_descriptor
    y: gl.shared_memory_descriptor


@aggregate
class TileProgram:
    """The part of a program that all partitions share; counts are `TileCounts`, encoded, tensors pointers."""

    config: gl.constexpr
    num_items: gl.tensor
    counts: gl.tuple
    tensors: gl.tuple
    shared: SharedTiles
    heads: HeadTiles
    scores: GradientScores


@aggregate
class TileItem:
    """A tile of `config.num_heads` consecutive heads.

    Fields:
        pack: the number of these heads among as many others, a head of dQ and dK.
        first_head: the first of these heads.
    """

    batch: gl.tensor
    pack: gl.tensor
    tile: gl.tensor
    first_head: gl.tensor
    first_row: gl.tensor
    turn: gl.tensor


@gluon.jit
def get_work_item(program, item):
    """Return a work item by its number: heads that share Q and K one after the other, for the L2 cache."""
    HEADS: gl.constexpr = program.config.num_heads
    num_heads = decode_count(program.counts.num_heads)
    num_tiles = decode_count(program.counts.num_tiles)
    packs = num_heads // HEADS
    pack = item % packs
    batch = item // packs // num_tiles
    return TileItem(
        batch=batch,
        pack=pack,
        tile=item // packs % num_tiles,
        first_head=pack * HEADS,
        first_row=batch * num_heads + pack * HEADS,
        turn=item // gl.num_programs(0),
    )


@gluon.jit
def start_product(a, b):
    """Start a @ b of blocks in shared memory, [64, 64] @ [64, 64] -> [64, 64]."""
    return warpgroup_mma(a, b, gl.zeros([64, 64], gl.float32, layout=ACC), use_acc=False, is_async=True)


@gluon.jit
def add_up(smem):
    """Return the sum of 64 numbers in shared memory: every warp adds up all of them, and waits for no other."""
    return gl.sum(smem.load(VALUES_OF_WARP), axis=0)


# --- Load partition ---------------------------------------------------------------------------------------------------


@gluon.jit
def load_partition(program, q_desc, k_desc, v_desc, dh_desc, C_desc, dC_desc, x_desc, y_desc):
    """Copy what work items read to shared memory: Q and K of an item, then all else head by head."""
    config: gl.constexpr = program.config
    shared, heads = program.shared, program.heads
    i = 0
    for item in range(gl.program_id(0), program.num_items, gl.num_programs(0)):
        work = get_work_item(program, item)
        num_tiles = decode_count(program.counts.num_tiles)
        qk_head = work.first_head // read_count(program.counts.heads_per_qk, item)
        step = work.tile * 64
        place = shared.ring.at(work.turn)
        shared.ring.producer_acquire(place)
        fence_async_shared()  # what has been read there, before the copies write
        full = shared.ring.full.index(place.slot)
        mbarrier.expect(full, 2 * BLOCK_BYTES)
        tma_load(q_desc, [work.batch, qk_head, step, 0], full, shared.q.index(place.slot))
        tma_load(k_desc, [work.batch, qk_head, step, 0], full, shared.k.index(place.slot))
        for n in range(config.num_heads):
            stage = heads.ring.at(i)
            s = stage.slot
            heads.ring.producer_acquire(stage)
            fence_async_shared()
            full = heads.ring.full.index(s)
            mbarrier.expect(full, 4 * BLOCK_BYTES + 2 * 64 * 4)
            head = work.first_head + n
            tma_load(C_desc, [work.batch, head, work.tile, 0, 0], full, heads.C.index(s))
            tma_load(dC_desc, [work.batch, head, work.tile, 0, 0], full, heads.dC.index(s))
            tma_load(v_desc, [work.batch, head, step, 0], full, heads.v.index(s))
            tma_load(dh_desc, [work.batch, head, step, 0], full, heads.dh.index(s))
            exponents = (work.first_row + n) * num_tiles + work.tile
            tma_load(x_desc, [exponents, 0], full, heads.x.index(s))
            tma_load(y_desc, [exponents, 0], full, heads.y.index(s))
            i += 1


# --- Score partition --------------------------------------------------------------------------------------------------


@gluon.jit
def start_scores(program, place, stage):
    """Start S = K Q^T and V dH^T of a head, [64, 64] each, once its tiles are there."""
    shared, heads = program.shared, program.heads
    shared.ring.consumer_wait(place)
    heads.ring.consumer_wait(stage)
    # [64, 64] @ [64, 64] -> [64, 64]
    scores = start_product(block(shared.k, place.slot), block(shared.q, place.slot).permute((1, 0)))
    dp = start_product(block(heads.v, stage.slot), block(heads.dh, stage.slot).permute((1, 0)))
    return scores, dp


@gluon.jit
def decay_matrix(heads, stage):
    """Return E, [64, 64], j by i: E_ji = 2^(y_j + x_i) for j <= i, else 0."""
    j = gl.arange(0, 64, layout=ACC_ROW)
    i = gl.arange(0, 64, layout=ACC_COLUMN)
    y = load_exponents(heads.y, stage, ACC_ROW)
    decay = gl.exp2(y[:, None] + load_exponents(heads.x, stage, ACC_COLUMN)[None, :])
    return gl.where(j[:, None] <= i[None, :], decay, 0.0)


@gluon.jit
def score_partition(program, sums_smem):
    """Compute P and dP of every head, and the row sums of pairs within the tile.

    Args:
        sums_smem: [4, 64] float32, column sums as each warp has them.
    """
    config: gl.constexpr = program.config
    HEADS: gl.constexpr = config.num_heads
    shared, heads, scores = program.shared, program.heads, program.scores
    num_items = program.num_items
    row = gl.arange(0, 64, layout=ACC_ROW)
    t = gl.arange(0, 64, layout=STEP)
    last = HEADS * (1 + (num_items - 1 - gl.program_id(0)) // gl.num_programs(0)) - 1  # head of all items
    s, dp = start_scores(program, shared.ring.begin(), heads.ring.begin())
    i = 0
    for item in range(gl.program_id(0), num_items, gl.num_programs(0)):
        work = get_work_item(program, item)
        num_steps = decode_count(program.counts.num_steps)
        sums = decode_count(program.counts.sums)
        steps_left = num_steps - work.tile * 64
        for n in range(HEADS):
            stage, slot = heads.ring.at(i), scores.ring.at(i)
            decay = decay_matrix(heads, stage.slot)
            s, dp = wait_for_products(0, deps=(s, dp))
            at = (work.first_row + n).to(gl.int64) * num_steps + work.tile * 64
            dp *= decay
            if config.row_sums:
                pairs = s * dp
                k_sums = program.tensors.row_sums + at + 3 * sums
                gl.store(k_sums + row, gl.sum(pairs, axis=1), mask=row < steps_left)
                store_warp_sums(pairs, sums_smem, 0, 4)
            s *= decay
            scores.ring.producer_acquire(slot)
            scores.p.index(slot.slot).store(nearest(s, scores.p.dtype))
            scores.dp.index(slot.slot).store(nearest(dp, scores.p.dtype))
            fence_async_shared()
            barrier()  # P, dP and the sums are in shared memory, everything else has been read
            scores.ring.producer_commit(slot)
            # The next head's products run while this one's last sums are made; at the end this head's once more.
            i += 1
            following = gl.minimum(i, last)
            s, dp = start_scores(program, shared.ring.at(following // HEADS), heads.ring.at(following))
            heads.ring.consumer_release(stage)
            if config.row_sums:
                write_sums(sums_smem, program.tensors.row_sums + at + sums, steps_left, t, STEP)
                barrier()  # read
        shared.read.arrive(shared.ring.at(work.turn))
    wait_for_products(0, deps=(s, dp))


# --- Value partition --------------------------------------------------------------------------------------------------


@gluon.jit
def load_g(program, work, n):
    """Return g of the n-th head of a work item."""
    num_tiles = decode_count(program.counts.num_tiles)
    return gl.load(program.tensors.g + (work.first_row + n) * num_tiles + work.tile)


@gluon.jit
def value_partition(program, dv_desc, dv_smem, sums_smem):  # noqa: PLR0915  one tile, in its order
    """Compute dV of every head, its row sums, and sums of dh_t . v_t for the gradient of the skip connection.

    Args:
        dv_smem: [2, 1, 1, 64, 64], blocks of dV on their way out.
        sums_smem: [2, 64] float32, sums over rows, of one head while another's are read.
    """
    config: gl.constexpr = program.config
    HEADS: gl.constexpr = config.num_heads
    shared, heads, scores = program.shared, program.heads, program.scores
    row = gl.arange(0, 64, layout=ACC_ROW)
    i = 0
    for item in range(gl.program_id(0), program.num_items, gl.num_programs(0)):
        work = get_work_item(program, item)
        num_steps = decode_count(program.counts.num_steps)
        num_tiles = decode_count(program.counts.num_tiles)
        place = shared.ring.at(work.turn)
        shared.ring.consumer_wait(place)
        k = block(shared.k, place.slot)
        next_g = load_g(program, work, 0)
        for n in range(HEADS):
            g = next_g
            next_g = load_g(program, work, gl.minimum(n + 1, HEADS - 1))
            stage, slot = heads.ring.at(i), scores.ring.at(i)
            heads.ring.consumer_wait(stage)

            # dV = 2^(y + g) (K dC) + P dH + skip dH, [64, 64]
            dv = start_product(k, block(heads.dC, stage.slot))  # [64, 64] @ [64, 64] -> [64, 64]
            k_decay = gl.exp2(load_exponents(heads.y, stage.slot, ACC_ROW) + g)
            if config.row_sums or config.skip:
                v = widened(block(heads.v, stage.slot).load(ACC))
            if config.skip:
                dh = widened(block(heads.dh, stage.slot).load(ACC))
                sums_smem.index(i % 2).store(gl.sum(v * dh, axis=1))
            dv = wait_for_products(0, deps=(dv,))
            dv *= k_decay[:, None]
            if config.row_sums:
                k_dk = gl.sum(v * dv, axis=1)  # the same number as sums of k * dk through the state
                at = (work.first_row + n).to(gl.int64) * num_steps + work.tile * 64
                k_sums = program.tensors.row_sums + at + 2 * decode_count(program.counts.sums)
                gl.store(k_sums + row, k_dk, mask=row < num_steps - work.tile * 64)
            if config.skip:
                dv += gl.load(program.tensors.skip + work.first_head + n) * dh
            scores.ring.consumer_wait(slot)
            # [64, 64] @ [64, 64] -> [64, 64]
            dv = warpgroup_mma(scores.p.index(slot.slot), block(heads.dh, stage.slot), dv, is_async=True)
            dv = wait_for_products(0, deps=(dv,))
            tma.store_wait(pendings=1)
            barrier()  # a buffer for dV is free, everything else has been read
            scores.ring.consumer_release(slot)
            heads.ring.consumer_release(stage)
            if config.skip:
                skip_dots = program.tensors.skip_dots + (work.first_row + n) * num_tiles + work.tile
                gl.store(skip_dots, add_up(sums_smem.index(i % 2)))
            out = dv_smem.index(i % 2)
            out.reshape([64, 64]).store(nearest(dv, out.dtype))
            fence_async_shared()
            barrier()
            tma_store(dv_desc, [work.batch, work.first_head + n, work.tile * 64, 0], out)
            i += 1
        shared.read.arrive(place)
    tma.store_wait(pendings=0)


# --- Accumulate partition ---------------------------------------------------------------------------------------------


@gluon.jit
def read_states(heads, stage):
    """Start dH C^T and V dC^T of a head, [64, 64] each."""
    # [64, 64] @ [64, 64] -> [64, 64]
    dq = start_product(block(heads.dh, stage), block(heads.C, stage).permute((1, 0)))
    dk = start_product(block(heads.v, stage), block(heads.dC, stage).permute((1, 0)))
    return dq, dk


@gluon.jit
def add_head(program, work, n, i, dq, dk, g, sums_smem):
    """Add dQ and dK of the n-th head of a work item, the i-th of this program, and write its row sums.

    Args:
        dq, dk: [64, 64] float32 accumulators.
        sums_smem: [2, 64] float32, sums over rows, of one head while another's are read.
    """
    config: gl.constexpr = program.config
    shared, heads, scores = program.shared, program.heads, program.scores
    row = gl.arange(0, 64, layout=ACC_ROW)
    place = shared.ring.at(work.turn)
    q, k = block(shared.q, place.slot), block(shared.k, place.slot)
    stage, slot = heads.ring.at(i), scores.ring.at(i)
    s = stage.slot
    heads.ring.consumer_wait(stage)
    dq_state, dk_state = read_states(heads, s)
    q_decay = gl.exp2(load_exponents(heads.x, s, ACC_ROW))[:, None]
    k_decay = gl.exp2(load_exponents(heads.y, s, ACC_ROW) + g)[:, None]
    if config.row_sums:
        both = widened(block(heads.C, s).load(ACC)) * widened(block(heads.dC, s).load(ACC))
        sums_smem.index(i % 2).store(gl.sum(both, axis=1))
    dq_state, dk_state = wait_for_products(0, deps=(dq_state, dk_state))

    # dQ += 2^x (dH C^T) + dP^T K, dK += 2^(y + g) (V dC^T) + dP Q, [64, 64] @ [64, 64] -> [64, 64]
    dq_state *= q_decay
    dq += dq_state
    dk += dk_state * k_decay
    scores.ring.consumer_wait(slot)
    dk = warpgroup_mma(scores.dp.index(slot.slot), q, dk, is_async=True)
    dq = warpgroup_mma(scores.dp.index(slot.slot).permute((1, 0)), k, dq, is_async=True)
    if config.row_sums:
        num_steps = decode_count(program.counts.num_steps)
        q_dq = gl.sum(widened(q.load(ACC)) * dq_state, axis=1)
        at = (work.first_row + n).to(gl.int64) * num_steps + work.tile * 64
        gl.store(program.tensors.row_sums + at + row, q_dq, mask=row < num_steps - work.tile * 64)
    dk, dq = wait_for_products(0, deps=(dk, dq))
    barrier()  # everything has been read
    scores.ring.consumer_release(slot)
    heads.ring.consumer_release(stage)
    if config.row_sums:
        through = program.tensors.through + (work.first_row + n) * decode_count(program.counts.num_tiles) + work.tile
        gl.store(through, gl.exp2(g) * add_up(sums_smem.index(i % 2)))
    return dq, dk


@gluon.jit
def store_sums_of_heads(program, dq_desc, dk_desc, work, dq, dk):
    """Write dQ and dK of a work item over its Q and K, and from there to memory; give their places back in time."""
    shared = program.shared
    place = shared.ring.at(work.turn)
    shared.read.wait(place)
    block(shared.q, place.slot).store(nearest(dq, shared.q.dtype))
    block(shared.k, place.slot).store(nearest(dk, shared.k.dtype))
    fence_async_shared()
    barrier()
    tma_store(dq_desc, [work.batch, work.pack, work.tile * 64, 0], shared.q.index(place.slot))
    tma_store(dk_desc, [work.batch, work.pack, work.tile * 64, 0], shared.k.index(place.slot))
    tma.store_wait(pendings=0)
    shared.ring.consumer_release(place)


@gluon.jit
def accumulate_partition(program, dq_desc, dk_desc, sums_smem):
    """Compute dQ and dK, added up over the heads of a work item, and <C, dC> of every head; see `add_head`."""
    HEADS: gl.constexpr = program.config.num_heads
    shared = program.shared
    i = 0
    for item in range(gl.program_id(0), program.num_items, gl.num_programs(0)):
        work = get_work_item(program, item)
        place = shared.ring.at(work.turn)
        shared.ring.consumer_wait(place)
        dq = gl.zeros([64, 64], gl.float32, layout=ACC)
        dk = gl.zeros([64, 64], gl.float32, layout=ACC)
        next_g = load_g(program, work, 0)
        for n in range(HEADS):
            g = next_g
            next_g = load_g(program, work, gl.minimum(n + 1, HEADS - 1))
            dq, dk = add_head(program, work, n, i, dq, dk, g, sums_smem)
            i += 1
        store_sums_of_heads(program, dq_desc, dk_desc, work, dq, dk)
    tma.store_wait(pendings=0)


# --- Kernel -----------------------------------------------------------------------------------------------------------


@gluon.jit
def allocate_tiles(desc, NUM: gl.constexpr):
    """Return a buffer of tiles as desc describes them: of tensors, states or exponents, [NUM, *block]."""
    shape: gl.constexpr = [NUM] + desc.block_type.shape  # noqa: RUF005  Gluon unpacks no lists
    return gl.allocate_shared_memory(desc.dtype, shape, desc.layout)


@gluon.jit
def allocate_program(call, desc, states_desc, exponents_desc):
    """Return what all partitions share; desc is of tiles of Q, K, V or dH, states_desc of C or dC."""
    config: gl.constexpr = call.config
    dtype: gl.constexpr = desc.dtype
    SHARED: gl.constexpr = 2  # tiles of Q and K in shared memory
    STAGES: gl.constexpr = config.num_stages
    SLOTS: gl.constexpr = config.num_slots
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, 64], dtype)
    q, k = allocate_tiles(desc, SHARED), allocate_tiles(desc, SHARED)
    v, dh = allocate_tiles(desc, STAGES), allocate_tiles(desc, STAGES)
    C, dC = allocate_tiles(states_desc, STAGES), allocate_tiles(states_desc, STAGES)
    x, y = allocate_tiles(exponents_desc, STAGES), allocate_tiles(exponents_desc, STAGES)
    p = gl.allocate_shared_memory(dtype, [SLOTS, 64, 64], layout)
    dp = gl.allocate_shared_memory(dtype, [SLOTS, 64, 64], layout)
    # `score` and `value` say that they have read Q and K; all three read what a head has of its own; `value` and
    # `accumulate` read scores.
    shared = SharedTiles(allocate_ring(SHARED, 1), q, k, allocate_signal(SHARED, 2))
    heads = HeadTiles(allocate_ring(STAGES, 3), v, dh, C, dC, x, y)
    scores = GradientScores(allocate_ring(SLOTS, 2), p, dp)
    num_items = decode_count(call.counts.num_items)
    return TileProgram(config, num_items, call.counts, call.tensors, shared, heads, scores)


@gluon.jit
def gradients(
    q_desc, k_desc, v_desc, dh_desc, C_desc, dC_desc, x_desc, y_desc, dq_desc, dk_desc, dv_desc, call
):  # fmt: skip
    """Compute the gradients of all work items; launched with 4 warps and maxnreg=128.

    Args:
        C_desc, dC_desc: of C before and dC after every tile, (B, H, tiles, d_qk, d_hv), 16 bits.
        dq_desc, dk_desc: of blocks of dq, dk (B, H / call.config.num_heads, T, 64), 16 bits.
    """
    program = allocate_program(call, q_desc, C_desc, x_desc)
    dv_smem = allocate_tiles(q_desc, 2)
    score_sums = gl.allocate_shared_memory(gl.float32, [4, 64], VECTOR)
    accumulate_sums = gl.allocate_shared_memory(gl.float32, [2, 64], VECTOR)
    value_sums = gl.allocate_shared_memory(gl.float32, [2, 64], VECTOR)
    begin_kernel(independent=False)
    gl.warp_specialize(
        [
            (accumulate_partition, (program, dq_desc, dk_desc, accumulate_sums)),
            (score_partition, (program, score_sums)),
            (value_partition, (program, dv_desc, dv_smem, value_sums)),
            (load_partition, (program, q_desc, k_desc, v_desc, dh_desc, C_desc, dC_desc, x_desc, y_desc)),
        ],
        [4, 4, 1],
        [160, 144, 24],
    )


# --- Host -------------------------------------------------------------------------------------------------------------


class GradientOutputs(NamedTuple):
    """Gradients to be written, (B, H, T, 64), 16 bits, as TMA takes them; dq, dk: each the sum over some heads."""

    dq: Tensor
    dk: Tensor
    dv: Tensor


def launch_gradients(
    inputs: WalkInputs, dh: Tensor, states: tuple[Tensor, Tensor], outputs: GradientOutputs, of: TileGradients, *,
    skip_dots: Tensor | None = None, row_sums: Tensor | None = None, through: Tensor | None = None,
) -> None:  # fmt: skip
    """Write dq, dk and dv tile by tile.

    Args:
        inputs: of the walk for h, with head dimensions of 64; dv_t has skip dh_t added, if there is a skip.
        states: C before and dC after every tile, as `launch_kept_states` makes them; dC may lie where dv goes.
    """
    q, k, v, exponents, skip, _ = inputs
    dq, dk, dv = outputs
    B, H, group, T, _, _ = of.sizes
    num_tiles = exponents.g.shape[-1]
    config = TileGradientsConfig.of(of.shape, row_sums=row_sums is not None, skip=skip is not None)
    unused = exponents.g  # in place of None, and not read
    tensors = pointers(TileTensors(exponents.g, skip, skip_dots, row_sums, through), unused)
    counts = encode_counts(TileCounts(H, group, T, num_tiles, of.items, B * H * T))
    enqueue(
        gradients, of.programs,
        *map(descriptor, (q, k, v, dh)), *map(states_descriptor, states), *map(exponents_descriptor, exponents[:2]),
        *map(descriptor, (dq, dk, dv)), TileArguments(tensors, counts, gl.constexpr(config)),
        num_warps=4, maxnreg=128, launch_pdl=True, **ASSEMBLY,
    )  # fmt: skip
