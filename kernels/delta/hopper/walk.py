# type: ignore   # Gluon: what runs on the device has no types that a Python checker knows
"""Partitions and buffers of the walks for o and for dv (walks.py).

A tile has 64 steps, b are the sums of its log2 gates from its first step on, s = sqrt(beta), S is the state before it:

    X = (I + A)^-1        A_ij = s_i s_j 2^(b_i - b_j) k_i . k_j, j < i
    Z = X (s (V - 2^b K S))
    O = scale 2^b Q S + P Z        P_ij = scale s_j 2^(b_i - b_j) q_i . k_j, j <= i
    S <- 2^b_63 S + K^T (s 2^(b_63 - b) Z)

The strength goes half to either side of A. So the errors Z = s R come from products with X that are right relative to
themselves however small beta is, and so are gradients: that of beta is a quotient of them.

Partitions of a program, and what connects them:

    load         1 warp    copies tiles of q, k, v (or do) and X by TMA     -> DeltaTiles, two rings of stages
    score        4 warps   P and the decays of a tile                       -> DeltaScores, a ring of slots
    state 0, 1   4 warps   64 rows each of the transposed state             -> the output, by TMA

The state is transposed, rows of v by columns of k, so that it and what is made of it are left operands in registers:
the two state partitions share nothing, and never wait for one another. A program has 128 columns of v, and all 128 of
q and k: TMA pads with zeros beyond the last step or column, and loses what is written there.

A walk that normalises reads q and k as they come: it divides s by the norms of k and multiplies v by them, and divides
the rows of P, and what q reads of S, by the norms of q. So all that is rounded is as large as if they had norm 1.

With a decay a channel (`config.channels`) a kernel before has made P, and q and k with their decays, of which s 2^(b_63
- b) K is one: then there is no score partition, and `load` copies all that. So 2^b and scale stand in what is read.
"""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, warpgroup_mma

from tflabench.kernels.scalar.hopper.conversions import nearest, nearest_of_negative, widened
from tflabench.kernels.scalar.hopper.launch import EXPONENTS_LAYOUT
from tflabench.kernels.scalar.hopper.pipeline import Ring, aggregate, allocate_ring
from tflabench.kernels.scalar.hopper.schedule import get_step
from tflabench.kernels.scalar.hopper.state import state_pointers
from tflabench.kernels.scalar.hopper.tiles import (
    ACC,
    ACC_COLUMN,
    ACC_OPERAND,
    ACC_ROW,
    BLOCK_BYTES,
    VECTOR,
    block,
    load_blocks,
)
from tflabench.kernels.scalar.hopper.workarounds import (
    barrier,
    reinterpret,
    tma_load,
    tma_store,
    wait_for_products,
)

from .schedule import DeltaSchedule, get_item_of_walk, get_items, get_state_index, get_tile
from .tiles import BEYOND, STEP_OF_EACH_WARP, begin_products, decayed, load_steps, norms_of, steps_of, sums_of_gates

FLOATS = gl.constexpr(EXPONENTS_LAYOUT)
OPERAND_COLUMN = gl.constexpr(gl.SliceLayout(0, ACC_OPERAND))  # a value for each column of a left operand


class DeltaWalkStates(NamedTuple):
    """States (B, H, segments, d_qk, d_hv) float32, or None; on the device, pointers.

    Attributes:
        initial: before each segment.
        final: after the last segment, in the direction of the walk, (B, H, d_qk, d_hv); of a pass, after each segment.
        transitions: of a forward pass, (B, H, segments, d_qk, d_qk): what a segment makes of the state before it.
    """

    initial: Any = None
    final: Any = None
    transitions: Any = None


# --- What partitions share --------------------------------------------------------------------------------------------


@aggregate
class DeltaTiles:
    """Two rings of stages in shared memory, each a tile in blocks of 64 steps by 64 columns, 16 bits.

    Fields:
        keys: of query and key, [2 * stages, 1, 1, 64, 64] each.
        values: of value, the same, which is v of o, and do of dv, and inverse, X, [parts * stages, 1, 1, 64, 64].
    """

    keys: Ring
    query: gl.shared_memory_descriptor
    key: gl.shared_memory_descriptor
    values: Ring
    value: gl.shared_memory_descriptor
    inverse: gl.shared_memory_descriptor


@aggregate
class DeltaScores:
    """A ring of slots in shared memory, each the P of a tile, and what it and the state are multiplied by.

    Fields:
        p: [slots, 64, 64], 16 bits.
        written_key: of the walk for o, and of channels, s 2^(b_63 - b) K, [2 * slots, 1, 1, 64, 64], 16 bits: what K
            is rounded to as Z is written by it. Where the state is made again, in backward, it must be written by the
            same numbers: errors correct what rounding did to this state, and to no other.
        norms: of k, where the walk normalises, [slots, 64] float32.
        decay: 2^b, by which k reads the state; the last one is that of the state.  query_decay: scale 2^b, by which q
            does.  write_decay: s 2^(b_63 - b), by which steps write to it.  root: s.  [slots, 64] float32 each. With
            channels all are [3 * slots, 1, 64], of a slot 2^b_63 of 128 channels, then s.
    """

    ring: Ring
    p: gl.shared_memory_descriptor
    written_key: gl.shared_memory_descriptor
    norms: gl.shared_memory_descriptor
    decay: gl.shared_memory_descriptor
    query_decay: gl.shared_memory_descriptor
    write_decay: gl.shared_memory_descriptor
    root: gl.shared_memory_descriptor


@aggregate
class DeltaProgram:
    """Buffers, pointers and counts that all partitions of a program share."""

    config: gl.constexpr
    schedule: DeltaSchedule
    gates: gl.tuple
    states: gl.tuple
    inputs: DeltaTiles
    scores: DeltaScores


@gluon.jit
def allocate_scores(config: gl.constexpr, desc):
    """Return a ring of scores; desc describes blocks of q."""
    dtype: gl.constexpr = desc.dtype
    SLOTS: gl.constexpr = config.num_slots
    if config.channels:
        decay = gl.allocate_shared_memory(gl.float32, [3 * SLOTS, 1, 64], FLOATS)
        return DeltaScores(
            ring=allocate_ring(SLOTS, 2),
            p=gl.allocate_shared_memory(dtype, [SLOTS, 1, 1, 64, 64], desc.layout),
            written_key=gl.allocate_shared_memory(dtype, [2 * SLOTS, 1, 1, 64, 64], desc.layout),
            norms=decay,
            decay=decay,
            query_decay=decay,
            write_decay=decay,
            root=decay,
        )
    else:
        layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, 64], dtype)
        p = gl.allocate_shared_memory(dtype, [SLOTS, 64, 64], layout)
        written_key = p
        if not config.reverse:
            written_key = gl.allocate_shared_memory(dtype, [2 * SLOTS, 1, 1, 64, 64], desc.layout)
        decay = gl.allocate_shared_memory(gl.float32, [SLOTS, 64], VECTOR)
        norms = decay
        if config.normalizes:
            norms = gl.allocate_shared_memory(gl.float32, [SLOTS, 64], VECTOR)
        return DeltaScores(
            ring=allocate_ring(SLOTS, 2),
            p=p,
            written_key=written_key,
            norms=norms,
            decay=decay,
            query_decay=gl.allocate_shared_memory(gl.float32, [SLOTS, 64], VECTOR),
            write_decay=gl.allocate_shared_memory(gl.float32, [SLOTS, 64], VECTOR),
            root=gl.allocate_shared_memory(gl.float32, [SLOTS, 64], VECTOR),
        )


@gluon.jit
def allocate_program(schedule, gates, states, config: gl.constexpr, desc):
    """Return what all partitions share; desc describes blocks of q."""
    dtype: gl.constexpr = desc.dtype
    STAGES: gl.constexpr = config.num_stages
    VALUE_STAGES: gl.constexpr = config.num_value_stages
    inputs = DeltaTiles(
        keys=allocate_ring(STAGES, 2 if config.channels else 3),
        query=gl.allocate_shared_memory(dtype, [2 * STAGES, 1, 1, 64, 64], desc.layout),
        key=gl.allocate_shared_memory(dtype, [2 * STAGES, 1, 1, 64, 64], desc.layout),
        values=allocate_ring(VALUE_STAGES, 2),
        value=gl.allocate_shared_memory(dtype, [2 * VALUE_STAGES, 1, 1, 64, 64], desc.layout),
        inverse=gl.allocate_shared_memory(dtype, [config.parts * VALUE_STAGES, 1, 1, 64, 64], desc.layout),
    )
    scores = allocate_scores(config, desc)
    return DeltaProgram(config, schedule, gates, states, inputs, scores)


# --- Load partition ---------------------------------------------------------------------------------------------------


@gluon.jit
def acquire_stage(ring, stage, BLOCKS: gl.constexpr, MORE: gl.constexpr = 0):
    """Wait until a stage is free, and return the barrier that counts the bytes to come, of blocks and MORE."""
    ring.producer_acquire(stage)
    fence_async_shared()  # consumers' reads of the stage, before the copies write there
    full = ring.full.index(stage.slot)
    mbarrier.expect(full, BLOCKS * BLOCK_BYTES + MORE)
    return full


@gluon.jit
def load_partition(program, descs):
    """Copy all tiles to shared memory, in the order in which they are met.

    Args:
        descs: of q, k, v or do, and X; with channels also of s 2^(b_63 - b) K, P and the decays of tiles.
    """
    config: gl.constexpr = program.config
    PARTS: gl.constexpr = config.parts
    BLOCKS: gl.constexpr = 4 if config.reads_queries else 2
    schedule, inputs = program.schedule, program.inputs
    q_desc, k_desc, v_desc, x_desc = descs[0], descs[1], descs[2], descs[3]
    key, value, slot = inputs.keys.begin(), inputs.values.begin(), program.scores.ring.begin()
    first, end, stride = get_items(schedule, config.pieces, config.documents)
    for item in range(first, end, stride):
        work = get_item_of_walk(schedule, item, config)
        for turn in range(work.first_tile, work.end_tile):
            tile = get_tile(work, turn, config.reverse)
            place, step = tile * 64, get_step(work, tile, config)
            if config.channels:
                if config.reverse:  # reads P and the written key first
                    load_scores(program, descs, work, place, slot)
                head = work.head
            else:
                head = work.qk_head
            full = acquire_stage(inputs.keys, key, BLOCKS)
            load_blocks(k_desc, (work.batch, head, step, 0), inputs.key, 2 * key.slot, 2, full)
            if config.reads_queries:
                load_blocks(q_desc, (work.batch, head, step, 0), inputs.query, 2 * key.slot, 2, full)
            full = acquire_stage(inputs.values, value, 2 + PARTS)
            load_blocks(x_desc, (work.batch, work.head, place, 0), inputs.inverse, PARTS * value.slot, PARTS, full)
            # Of a transition these are beyond the last column, where v is 0.
            at = (work.batch, work.head, step, 128 * work.piece)
            load_blocks(v_desc, at, inputs.value, 2 * value.slot, 2, full)
            if config.channels:
                if not config.reverse:
                    load_scores(program, descs, work, place, slot)
                slot = program.scores.ring.next(slot)
            key = inputs.keys.next(key)
            value = inputs.values.next(value)


@gluon.jit
def load_scores(program, descs, work, step, slot):
    """Copy P, the written key and the decays of channels of a tile, from a step on, to a slot."""
    config: gl.constexpr = program.config
    written_desc, p_desc, decays_desc = descs[4], descs[5], descs[6]
    scores, schedule = program.scores, program.schedule
    full = acquire_stage(scores.ring, slot, 3 if config.reads_queries else 2, 3 * 64 * 4)
    at = (work.batch, work.head, step, 0)
    load_blocks(written_desc, at, scores.written_key, 2 * slot.slot, 2, full)
    if config.reads_queries:
        load_blocks(p_desc, at, scores.p, slot.slot, 1, full)
    for j in gl.static_range(3):
        place = 3 * (work.row * schedule.num_tiles + step // 64) + j
        tma_load(decays_desc, [place, 0], full, scores.decay.index(3 * slot.slot + j))


# --- Score partition --------------------------------------------------------------------------------------------------


@gluon.jit
def load_steps_of(schedule, gates, work, tile, config: gl.constexpr):
    """Return what `load_steps` does of a tile of a work item."""
    return load_steps(gates, work.row, tile, schedule.num_steps, config.gated, schedule.steps, config.documents)


@gluon.jit
def load_norms_of(schedule, gates, work, tile, config: gl.constexpr):
    """Return the norms of k of a tile of a work item, [64]; ones where the walk does not normalise."""
    if config.normalizes:
        at, there = steps_of(work.row, tile, schedule.num_steps, schedule.steps, config.documents)
        return gl.load(gates.norms + at, mask=there, other=1.0)
    else:
        return gl.full([64], 1.0, gl.float32, layout=STEP_OF_EACH_WARP)


@gluon.jit
def store_decays(scores, slot, prefix, b, s, norms, scale, config: gl.constexpr):
    """Write what a tile and the state are multiplied by, all but `query_decay` where that waits for the norms of q."""
    if config.normalizes:
        scores.norms.index(slot).store(norms)
        s /= norms
    decay = gl.exp2(b)
    prefix.store(gl.where(s > 0, b, BEYOND))
    scores.decay.index(slot).store(decay)
    if not config.normalizes:
        scores.query_decay.index(slot).store(gl.where(s > 0, decay * scale, 0.0))
    scores.write_decay.index(slot).store(s * gl.exp2(gl.min(b, axis=0) - b))  # the last is the least
    scores.root.index(slot).store(s)


@gluon.jit
def score_partition(program, scale, prefix):
    """Compute P of every tile, and the decays of its steps.

    Args:
        prefix: [64] float32 in shared memory, for b.
    """
    config: gl.constexpr = program.config
    dtype: gl.constexpr = program.inputs.key.dtype
    schedule, inputs, scores, gates = program.schedule, program.inputs, program.scores, program.gates
    stage, slot = inputs.keys.begin(), scores.ring.begin()
    first, end, stride = get_items(schedule, config.pieces, config.documents)
    for item in range(first, end, stride):
        work = get_item_of_walk(schedule, item, config)
        tile = get_tile(work, work.first_tile, config.reverse)
        next_g, next_root = load_steps_of(schedule, gates, work, tile, config)
        next_norms = load_norms_of(schedule, gates, work, tile, config)
        for turn in range(work.first_tile, work.end_tile):
            b, s, norms = sums_of_gates(next_g), next_root, next_norms
            tile = get_tile(work, gl.minimum(turn + 1, work.end_tile - 1), config.reverse)
            next_g, next_root = load_steps_of(schedule, gates, work, tile, config)
            next_norms = load_norms_of(schedule, gates, work, tile, config)
            scores.ring.producer_acquire(slot)
            store_decays(scores, slot.slot, prefix, b, s, norms, scale, config)
            barrier()
            inputs.keys.consumer_wait(stage)
            if config.reads_queries:
                qk = begin_products(inputs.query, stage.slot, inputs.key, stage.slot)
                row_scale = scale
                if config.normalizes:  # while the products run
                    scales = scale / norms_of(inputs.query, stage.slot)
                    row_scale = scales[:, None]
                    decay, root = scores.decay.index(slot.slot), scores.root.index(slot.slot)
                    reads = gl.where(root.load(ACC_ROW) > 0, decay.load(ACC_ROW) * scales, 0.0)
                    scores.query_decay.index(slot.slot).store(reads)
                qk = wait_for_products(0, deps=(qk,))
                i = gl.arange(0, 64, layout=ACC_ROW)[:, None]
                j = gl.arange(0, 64, layout=ACC_COLUMN)[None, :]
                p = gl.where(i >= j, decayed(qk * row_scale, prefix, scores.root.index(slot.slot)), 0.0)
                scores.p.index(slot.slot).store(nearest(p, dtype))
            if not config.reverse:
                write_decay = scores.write_decay.index(slot.slot).load(ACC_ROW)[:, None]
                for j in gl.static_range(2):
                    k = widened(block(inputs.key, 2 * stage.slot + j).load(ACC)) * write_decay
                    block(scores.written_key, 2 * slot.slot + j).store(nearest(k, dtype))
            fence_async_shared()
            barrier()
            scores.ring.producer_commit(slot)
            inputs.keys.consumer_release(stage)
            stage = inputs.keys.next(stage)
            slot = scores.ring.next(slot)


# --- State partitions -------------------------------------------------------------------------------------------------


@gluon.jit
def state_block(ptr, row, column, ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    """Return pointers to a block of a transposed state (COLUMNS, ROWS) in memory, and which of its elements exist."""
    at, rows = state_pointers(ptr, row, column, 1, ROWS, ACC)
    columns = column + gl.arange(0, 64, layout=ACC_COLUMN)[None, :]
    return at, (rows < ROWS) & (columns < COLUMNS)


@gluon.jit
def load_state(program, work, HALF: gl.constexpr):
    """Return the rows of the transposed state that a state partition carries, as two accumulators [64, 64]."""
    config: gl.constexpr = program.config
    D_QK: gl.constexpr = config.d_qk
    D_HV: gl.constexpr = config.d_hv
    state = ()
    for j in gl.static_range(2):
        if config.loads:
            ptr = program.states.initial + get_state_index(program.schedule, work) * (D_QK * D_HV)
            at, exist = state_block(ptr, 128 * work.piece + 64 * HALF, 64 * j, D_HV, D_QK)
            state += (gl.load(at, mask=exist, other=0.0),)
        elif config.pieces > config.value_pieces and j == HALF:
            rows = gl.arange(0, 64, layout=ACC_ROW)[:, None]
            columns = gl.arange(0, 64, layout=ACC_COLUMN)[None, :]
            identity = (work.piece == config.value_pieces) & (work.first_tile < work.end_tile)
            state += (gl.where((rows == columns) & identity, 1.0, 0.0),)
        else:
            state += (gl.zeros([64, 64], gl.float32, layout=ACC),)
    return state


@gluon.jit
def store_state(program, work, state, HALF: gl.constexpr):
    """Write the rows of the state that a state partition carries to memory, if they are asked for."""
    config: gl.constexpr = program.config
    D_QK: gl.constexpr = config.d_qk
    D_HV: gl.constexpr = config.d_hv
    schedule, states = program.schedule, program.states
    row = 128 * work.piece + 64 * HALF
    if config.states_only:
        index = get_state_index(schedule, work)
        for j in gl.static_range(2):
            at, exist = state_block(states.final + index * (D_QK * D_HV), row, 64 * j, D_HV, D_QK)
            gl.store(at, state[j], mask=exist)
            if config.pieces > config.value_pieces:
                of_piece = row - 128 * config.value_pieces
                at, exist = state_block(states.transitions + index * (D_QK * D_QK), of_piece, 64 * j, D_QK, D_QK)
                gl.store(at, state[j], mask=exist & (of_piece >= 0))
    elif config.stores:
        last = 0 if config.reverse else schedule.num_segments - 1
        index = get_state_index(schedule, work) if config.documents else work.row.to(gl.int64)
        for j in gl.static_range(2):
            at, exist = state_block(states.final + index * (D_QK * D_HV), row, 64 * j, D_HV, D_QK)
            gl.store(at, state[j], mask=exist & (config.documents | (work.segment == last)))


@gluon.jit
def state_operands(state, dtype: gl.constexpr):
    """Return the two halves of 64 rows of a transposed state as left operands [64, 64]."""
    left = gl.convert_layout(nearest(state[0], dtype), ACC_OPERAND)
    return left, gl.convert_layout(nearest(state[1], dtype), ACC_OPERAND)


@gluon.jit
def start_reading(operands, x_blocks, x_tile):
    """Start S^T x^T of `state_operands`, which must be kept until it is complete, and a tile x of 128 columns."""
    out = gl.zeros([64, 64], gl.float32, layout=ACC)
    for j in gl.static_range(2):
        # [64, 64] @ [64, 64] -> [64, 64]
        xT = block(x_blocks, 2 * x_tile + j).permute((1, 0))
        out = warpgroup_mma(operands[j], xT, out, use_acc=j > 0, is_async=True)
    return out


@gluon.jit
def read_state(state, x_blocks, x_tile, NEGATIVE: gl.constexpr = False):
    """Return S^T x^T, [64, 64] float32, of rows of S^T [64, 64] each and a tile x as many blocks wide; or -S^T x^T.

    Where the state is read twice, once should be negative: see `nearest_of_negative`.
    """
    dtype: gl.constexpr = x_blocks.dtype
    BLOCKS: gl.constexpr = len(state)
    out = gl.zeros([64, 64], gl.float32, layout=ACC)
    for j in gl.static_range(BLOCKS):
        # [64, 64] @ [64, 64] -> [64, 64]
        s = nearest_of_negative(state[j], dtype) if NEGATIVE else nearest(state[j], dtype)
        s = gl.convert_layout(s, ACC_OPERAND)
        xT = block(x_blocks, BLOCKS * x_tile + j).permute((1, 0))
        out = warpgroup_mma(s, xT, out, use_acc=j > 0, is_async=True)
        out, s = wait_for_products(0, deps=(out, s))
    return out


@gluon.jit
def load_root(scores, slot, layout: gl.constexpr, CHANNELS: gl.constexpr):
    """Return s of the steps of a tile, [64]."""
    if CHANNELS:
        return reinterpret(scores.root.index(3 * slot + 2), gl.float32, [64], VECTOR).load(layout)
    else:
        return scores.root.index(slot).load(layout)


@gluon.jit
def decay_state(state, scores, slot, CHANNELS: gl.constexpr):
    """Return the two halves of 64 rows of a transposed state, multiplied by 2^b_63."""
    if CHANNELS:
        left = reinterpret(scores.decay.index(3 * slot), gl.float32, [64], VECTOR).load(ACC_COLUMN)
        right = reinterpret(scores.decay.index(3 * slot + 1), gl.float32, [64], VECTOR).load(ACC_COLUMN)
        return state[0] * left[None, :], state[1] * right[None, :]
    else:
        decay = gl.sum(scores.decay.index(slot).slice(63, 1).load(STEP_OF_EACH_WARP), axis=0)
        return state[0] * decay, state[1] * decay


@gluon.jit
def send_state(desc, program, work, tile, column, state, smem):
    """Write 64 rows of a transposed state to those of a tile, in 16 bits; smem: two blocks, which are free."""
    dtype: gl.constexpr = smem.dtype
    for j in gl.static_range(2):
        block(smem, j).store(nearest(state[j], dtype))
    fence_async_shared()
    barrier()
    for j in gl.static_range(2):
        tma_store(desc, [0, work.row * program.schedule.num_tiles + tile, column, 64 * j], smem.index(j))
