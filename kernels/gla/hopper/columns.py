# type: ignore   # Gluon: what runs on the device has no types that a Python checker knows
"""The walks for o and, backward in time, for dv, with the states before and after them: see walk.py.

    o  = q' A + P V          A <- 2^(half the totals) A + k'^T V
    dv = k' D + P^T dO       D <- 2^(half the totals) D + q'^T dO

Partitions of a program, and what connects them:

    load         1 warp    copies tiles of q, k, g, v (or do) by TMA        -> GlaTiles, three rings
    gate         4 warps   q' and k' in place of q and k, P, decays         -> GlaScores, a ring of slots
    state 0, 1   4 warps   half of the rows of the transposed state each    -> the output, by TMA

The state is transposed, rows of v by columns of k, so that it is the left operand in registers of the product that
reads it, and its factors are one a column.
"""

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma, warpgroup_mma

from tflabench.kernels.common.launching import enqueue
from tflabench.kernels.delta.hopper.schedule import (
    DeltaCounts,
    get_schedule,
    get_state_index,
    get_tile,
)
from tflabench.kernels.delta.hopper.walk import acquire_stage, read_state, state_block
from tflabench.kernels.delta.hopper_plan import DeltaWalk
from tflabench.kernels.gla.hopper_plan import LEAST_TOTAL, columns_shape
from tflabench.kernels.kda.hopper.tiles import CHANNELS
from tflabench.kernels.scalar.hopper.conversions import nearest
from tflabench.kernels.scalar.hopper.launch import descriptor, pointers
from tflabench.kernels.scalar.hopper.pipeline import Ring, aggregate, allocate_ring
from tflabench.kernels.scalar.hopper.tiles import (
    ACC,
    ACC_COLUMN,
    ACC_ROW,
    block,
    join_columns,
    load_blocks,
    operands,
    split_columns,
)
from tflabench.kernels.scalar.hopper.workarounds import ASSEMBLY, barrier, tma_store, wait_for_products

from .config import GlaWalkConfig
from .walk import GlaProgram, GlaTensors, allocate_scores, exponents, get_item, opaque_zeros, scaled, sums_of_tile

LEAST = gl.constexpr(LEAST_TOTAL)
TOTALS = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, order=[1, 0]))


# --- What partitions share --------------------------------------------------------------------------------------------


@aggregate
class GlaTiles:
    """Three rings of stages in shared memory, in blocks of 64 steps by 64 columns.

    Fields:
        keys: of query and key, a block for each 64 channels, [blocks * stages, 1, 1, 64, 64] each, 16 bits.
        values: of value, the same, which is v of o, and do of dv.
        gates: of gate, log gates, a block a slot, [slots, 1, 1, 64, 64], in their dtype.
    """

    keys: Ring
    query: gl.shared_memory_descriptor
    key: gl.shared_memory_descriptor
    values: Ring
    value: gl.shared_memory_descriptor
    gates: Ring
    gate: gl.shared_memory_descriptor


@gluon.jit
def allocate_program(schedule, tensors, config: gl.constexpr, desc, gate_desc):
    """Return what all partitions share; desc describes blocks of q, gate_desc those of g."""
    dtype: gl.constexpr = desc.dtype
    KEY_BLOCKS: gl.constexpr = config.channel_blocks * config.num_stages
    VALUE_BLOCKS: gl.constexpr = 2 * config.blocks * config.num_value_stages
    CHANNEL_COUNT: gl.constexpr = 64 * config.channel_blocks
    GATE_SLOTS: gl.constexpr = config.num_gate_slots
    inputs = GlaTiles(
        keys=allocate_ring(config.num_stages, 2),
        query=gl.allocate_shared_memory(dtype, [KEY_BLOCKS, 1, 1, 64, 64], desc.layout),
        key=gl.allocate_shared_memory(dtype, [KEY_BLOCKS, 1, 1, 64, 64], desc.layout),
        values=allocate_ring(config.num_value_stages, 2),
        value=gl.allocate_shared_memory(dtype, [VALUE_BLOCKS, 1, 1, 64, 64], desc.layout),
        gates=allocate_ring(GATE_SLOTS, 1),
        gate=gl.allocate_shared_memory(gate_desc.dtype, [GATE_SLOTS, 1, 1, 64, 64], gate_desc.layout),
    )
    scores = allocate_scores(config, desc, CHANNEL_COUNT, 2 if config.reads_scores else 1)
    return GlaProgram(config, schedule, tensors, inputs, scores)


# --- Load partition ---------------------------------------------------------------------------------------------------


@gluon.jit
def load_partition(program, descs):
    """Copy all tiles to shared memory, in the order in which they are met; descs: of q, k, g, v or do, and P."""
    config: gl.constexpr = program.config
    CHANNEL_BLOCKS: gl.constexpr = config.channel_blocks
    COLUMN_BLOCKS: gl.constexpr = 2 * config.blocks
    KEY_BLOCKS: gl.constexpr = CHANNEL_BLOCKS * (config.takes_queries + config.takes_keys)
    schedule, inputs, scores = program.schedule, program.inputs, program.scores
    q_desc, k_desc, g_desc, v_desc, p_desc = descs
    GATE_BLOCKS: gl.constexpr = 2 if g_desc.dtype == gl.float32 else 1
    key, value, gate = inputs.keys.begin(), inputs.values.begin(), inputs.gates.begin()
    slot = scores.ring.begin()
    for item in range(gl.program_id(0), schedule.num_items, gl.num_programs(0)):
        work = get_item(schedule, program.tensors.closed, item, config)
        for turn in range(work.first_tile, work.end_tile):
            step = get_tile(work, turn, config.reverse) * 64
            at = (work.batch, work.head, step, 0)
            full = acquire_stage(inputs.keys, key, KEY_BLOCKS)
            if config.takes_queries:
                load_blocks(q_desc, at, inputs.query, CHANNEL_BLOCKS * key.slot, CHANNEL_BLOCKS, full)
            if config.takes_keys:
                load_blocks(k_desc, at, inputs.key, CHANNEL_BLOCKS * key.slot, CHANNEL_BLOCKS, full)
            key = inputs.keys.next(key)
            for c in gl.static_range(CHANNEL_BLOCKS):
                full = acquire_stage(inputs.gates, gate, GATE_BLOCKS)
                load_blocks(g_desc, (work.batch, work.head, step, 64 * c), inputs.gate, gate.slot, 1, full)
                gate = inputs.gates.next(gate)
            full = acquire_stage(inputs.values, value, COLUMN_BLOCKS)
            at = (work.batch, work.head, step, 64 * COLUMN_BLOCKS * work.piece)
            load_blocks(v_desc, at, inputs.value, COLUMN_BLOCKS * value.slot, COLUMN_BLOCKS, full)
            value = inputs.values.next(value)
            if config.reads_scores:
                full = acquire_stage(scores.ring, slot, 1)
                load_blocks(p_desc, (work.batch, work.head, step, 0), scores.p, slot.slot, 1, full)
                slot = scores.ring.next(slot)


# --- Gate partition ---------------------------------------------------------------------------------------------------


@gluon.jit
def scores_of_tile(query, key, first, COUNT: gl.constexpr):
    """Return tril(q' k'^T) of a tile, COUNT blocks wide from block `first` on, [64, 64] float32."""
    p = gl.zeros([64, 64], gl.float32, layout=ACC)
    for c in gl.static_range(COUNT):
        # [64, 64] @ [64, 64] -> [64, 64]
        keyT = block(key, first + c).permute((1, 0))
        p = warpgroup_mma(block(query, first + c), keyT, p, use_acc=c > 0, is_async=True)
    p = wait_for_products(0, deps=(p,))
    i = gl.arange(0, 64, layout=ACC_ROW)[:, None]
    j = gl.arange(0, 64, layout=ACC_COLUMN)[None, :]
    return gl.where(i >= j, p, 0.0)


@gluon.jit
def scale_tile(program, scale_log2, totals, places, seen):
    """Scale q and k of a tile where they lie, and write the factors of the state.

    Args:
        totals: [2, 4, 64] float32 in shared memory.
        places: the stage of q and k, the first slot of gates, the slot of scores.
        seen: for each block of channels, of the tiles before, [64] float32 each: the reference of the last one, the
            least total, the sum of the totals.

    Returns: the slot after those of gates, and `seen` of the next tile.
    """
    config: gl.constexpr = program.config
    CHANNEL_BLOCKS: gl.constexpr = config.channel_blocks
    inputs, scores = program.inputs, program.scores
    stage, gate, slot = places
    now_seen = ()
    for c in gl.static_range(CHANNEL_BLOCKS):
        before, least, sums = seen[c]
        inputs.gates.consumer_wait(gate)
        b, total = sums_of_tile(block(inputs.gate, gate.slot), totals.index(c))
        inputs.gates.consumer_release(gate)
        gate = inputs.gates.next(gate)
        if c == 0:
            inputs.keys.consumer_wait(stage)
            scores.ring.producer_acquire(slot)
        of_q, of_k, reference = exponents(b, total, scale_log2, config.exact)
        if config.takes_queries:
            query = block(inputs.query, CHANNEL_BLOCKS * stage.slot + c)
            query.store(scaled(query, of_q))
        if config.takes_keys:
            key = block(inputs.key, CHANNEL_BLOCKS * stage.slot + c)
            key.store(scaled(key, of_k))
        scores.decay.index(slot.slot).slice(64 * c, 64).store(gl.exp2(before + reference))
        if config.exact:
            reference = before  # zero
        now_seen += ((reference, gl.minimum(least, total), sums + total),)
    fence_async_shared()
    barrier()
    return gate, now_seen


@gluon.jit
def store_seen(program, work, seen):
    """Write the decays of a segment, and whether one of its tiles has closed, if they are asked for."""
    config: gl.constexpr = program.config
    CHANNEL_BLOCKS: gl.constexpr = config.channel_blocks
    D_QK: gl.constexpr = config.d_qk
    tensors = program.tensors
    for c in gl.static_range(CHANNEL_BLOCKS):
        _before, least, sums = seen[c]
        if config.flags:
            has_closed = gl.min(least, axis=0) <= LEAST
            gl.store(tensors.flags + work.row, has_closed.to(gl.int32), mask=has_closed)
        if config.stores_decays:
            channel = 64 * c + gl.arange(0, 64, layout=CHANNELS)
            at = tensors.decays + get_state_index(program.schedule, work) * D_QK + channel
            gl.store(at, gl.exp2(sums), mask=(channel < D_QK) & (work.first_tile < work.end_tile))


@gluon.jit
def gate_partition(program, scale_log2, totals):
    """Scale q and k, make P and the factors of the state, and see whether a tile has closed; see `scale_tile`."""
    config: gl.constexpr = program.config
    CHANNEL_BLOCKS: gl.constexpr = config.channel_blocks
    dtype: gl.constexpr = program.inputs.key.dtype
    schedule, inputs, scores = program.schedule, program.inputs, program.scores
    stage, gate, slot = inputs.keys.begin(), inputs.gates.begin(), scores.ring.begin()
    for item in range(gl.program_id(0), schedule.num_items, gl.num_programs(0)):
        work = get_item(schedule, program.tensors.closed, item, config)
        nothing = gl.zeros([64], gl.float32, layout=CHANNELS)
        seen = ()
        for _c in gl.static_range(CHANNEL_BLOCKS):
            seen += ((nothing, nothing, nothing),)
        for _turn in range(work.first_tile, work.end_tile):
            gate, seen = scale_tile(program, scale_log2, totals, (stage, gate, slot), seen)
            if config.makes_scores:
                p = scores_of_tile(inputs.query, inputs.key, CHANNEL_BLOCKS * stage.slot, CHANNEL_BLOCKS)
                block(scores.p, slot.slot).store(nearest(p, dtype))
                fence_async_shared()
                barrier()
            scores.ring.producer_commit(slot)
            stage = inputs.keys.next(stage)
            slot = scores.ring.next(slot)
        if config.finishes:
            scores.ring.producer_acquire(slot)
            for c in gl.static_range(CHANNEL_BLOCKS):
                scores.decay.index(slot.slot).slice(64 * c, 64).store(gl.exp2(seen[c][0]))
            barrier()
            scores.ring.producer_commit(slot)
            slot = scores.ring.next(slot)
        store_seen(program, work, seen)


# --- State partitions -------------------------------------------------------------------------------------------------


@gluon.jit
def column_blocks(x):
    """Return the blocks of 64 columns of an accumulator [64, 64] or [64, 128]: the same registers."""
    if x.shape[1] == 64:
        return (x,)
    else:
        return split_columns(x)


@gluon.jit
def decayed(state, decay):
    """Return 64 rows of the transposed state times a factor for each column, in shared memory."""
    blocks = column_blocks(state)
    left = blocks[0] * decay.slice(0, 64).load(ACC_COLUMN)[None, :]
    if len(blocks) == 1:
        return left
    else:
        return join_columns(left, blocks[1] * decay.slice(64, 64).load(ACC_COLUMN)[None, :])


@gluon.jit
def first_column(program, work, HALF: gl.constexpr, z: gl.constexpr):
    """Return the first of the 64 columns of v of a part of a state partition's state."""
    BLOCKS: gl.constexpr = program.config.blocks
    return 64 * (2 * BLOCKS * work.piece + BLOCKS * HALF + z)


@gluon.jit
def load_states(program, work, HALF: gl.constexpr):
    """Return the rows of the transposed state that a state partition carries, 64 in each accumulator."""
    config: gl.constexpr = program.config
    D_QK: gl.constexpr = config.d_qk
    D_HV: gl.constexpr = config.d_hv
    BLOCKS: gl.constexpr = config.blocks
    CHANNEL_BLOCKS: gl.constexpr = config.channel_blocks
    state = ()
    for z in gl.static_range(BLOCKS):
        parts = ()
        for c in gl.static_range(CHANNEL_BLOCKS):
            if config.loads:
                ptr = program.tensors.initial + get_state_index(program.schedule, work) * (D_QK * D_HV)
                at, exist = state_block(ptr, first_column(program, work, HALF, z), 64 * c, D_HV, D_QK)
                parts += (gl.load(at, mask=exist, other=0.0),)
            else:
                parts += (opaque_zeros(work.row),)
        if CHANNEL_BLOCKS == 1:
            state += parts
        else:
            state += (join_columns(parts[0], parts[1]),)
    return state


@gluon.jit
def store_states(program, work, state, HALF: gl.constexpr):
    """Write the rows of the state that a state partition carries to memory, if they are asked for."""
    config: gl.constexpr = program.config
    D_QK: gl.constexpr = config.d_qk
    D_HV: gl.constexpr = config.d_hv
    BLOCKS: gl.constexpr = config.blocks
    CHANNEL_BLOCKS: gl.constexpr = config.channel_blocks
    schedule = program.schedule
    walked = work.first_tile < work.end_tile
    if config.states_only:
        index = get_state_index(schedule, work)
    else:
        index = work.row.to(gl.int64)
        walked = walked & (work.segment == (0 if config.reverse else schedule.num_segments - 1))
    for z in gl.static_range(BLOCKS):
        blocks = column_blocks(state[z])
        for c in gl.static_range(CHANNEL_BLOCKS):
            ptr = program.tensors.final + index * (D_QK * D_HV)
            at, exist = state_block(ptr, first_column(program, work, HALF, z), 64 * c, D_HV, D_QK)
            gl.store(at, blocks[c], mask=exist & walked)


@gluon.jit
def walk_tile(program, o_desc, out_smem, work, tile, places, state, HALF: gl.constexpr):
    """Write a half of the columns of o, or dv, of a tile.

    Args:
        out_smem: [outputs, 1, 1, 64, 64], blocks of o on their way out.
        places: the stages of q and k and of v, the slot of scores, and the number of the block of o.

    Returns: the state after the tile, and the number of the next block of o.
    """
    config: gl.constexpr = program.config
    BLOCKS: gl.constexpr = config.blocks
    CHANNEL_BLOCKS: gl.constexpr = config.channel_blocks
    STAGES: gl.constexpr = config.num_stages
    OUTPUTS: gl.constexpr = config.num_outputs
    inputs, scores = program.inputs, program.scores
    dtype: gl.constexpr = inputs.key.dtype
    stage, value, slot, out_slot = places
    if config.reverse:
        reads, writes = inputs.key, inputs.query
    else:
        reads, writes = inputs.query, inputs.key
    written = operands(writes, STAGES, CHANNEL_BLOCKS, 1).index(stage)
    decay = scores.decay.index(slot)
    after = ()
    for z in gl.static_range(BLOCKS):
        valueT = block(inputs.value, BLOCKS * (2 * value + HALF) + z).permute((1, 0))
        rows = state[z]
        if not config.exact:
            rows = decayed(rows, decay)
        if not config.states_only:
            # O^T = A^T q'^T + V^T P^T    or    dV^T = D^T k'^T + dO^T P
            out = read_state(column_blocks(rows), reads, stage)
            p = block(scores.p, slot)
            if not config.reverse:
                p = p.permute((1, 0))
            out = warpgroup_mma(valueT, p, out, is_async=True)
        if config.exact:
            rows = decayed(rows, decay)
        # [64, 64] @ [64, 128] -> [64, 128]
        rows = warpgroup_mma(valueT, written, rows, is_async=True)
        if not config.states_only:
            tma.store_wait(pendings=OUTPUTS - 1)
            barrier()  # a block for o is free
            out = wait_for_products(1, deps=(out,))
            out_block = out_smem.index(out_slot)
            out_block.reshape([64, 64]).permute((1, 0)).store(nearest(out, dtype))
            fence_async_shared()
            barrier()
            at = [work.batch, work.head, tile * 64, first_column(program, work, HALF, z)]
            tma_store(o_desc, at, out_block)
            out_slot = (out_slot + 1) % OUTPUTS
        after += (wait_for_products(0, deps=(rows,)),)
    return after, out_slot


@gluon.jit
def state_partition(program, o_desc, out_smem, HALF: gl.constexpr):
    """Carry half of the transposed state as float32 accumulators, and write as many columns of o, or dv."""
    config: gl.constexpr = program.config
    BLOCKS: gl.constexpr = config.blocks
    schedule, inputs, scores = program.schedule, program.inputs, program.scores
    stage, value, slot = inputs.keys.begin(), inputs.values.begin(), scores.ring.begin()
    out_slot = 0
    for item in range(gl.program_id(0), schedule.num_items, gl.num_programs(0)):
        work = get_item(schedule, program.tensors.closed, item, config)
        state = load_states(program, work, HALF)
        for turn in range(work.first_tile, work.end_tile):
            scores.ring.consumer_wait(slot)
            inputs.values.consumer_wait(value)
            tile = get_tile(work, turn, config.reverse)
            places = stage.slot, value.slot, slot.slot, out_slot
            state, out_slot = walk_tile(program, o_desc, out_smem, work, tile, places, state, HALF)
            barrier()
            inputs.keys.consumer_release(stage)
            inputs.values.consumer_release(value)
            scores.ring.consumer_release(slot)
            stage = inputs.keys.next(stage)
            value = inputs.values.next(value)
            slot = scores.ring.next(slot)
        if config.finishes:
            scores.ring.consumer_wait(slot)
            finished = ()
            for z in gl.static_range(BLOCKS):
                finished += (decayed(state[z], scores.decay.index(slot.slot)),)
            barrier()
            scores.ring.consumer_release(slot)
            slot = scores.ring.next(slot)
            store_states(program, work, finished, HALF)
        elif config.stores or config.states_only:
            store_states(program, work, state, HALF)
    tma.store_wait(pendings=0)


@gluon.jit
def walk_columns(
    q_desc, k_desc, g_desc, v_desc, p_desc, o_desc, tensors, scale_log2, counts, config: gl.constexpr
):  # fmt: skip
    """Compute o or dv of all work items, and the states after them; 4 warps and maxnreg=128."""
    REGISTERS: gl.constexpr = config.state_registers
    GATE_REGISTERS: gl.constexpr = config.gate_registers
    OUTPUTS: gl.constexpr = config.num_outputs
    schedule = get_schedule(counts)
    program = allocate_program(schedule, tensors, config, q_desc, g_desc)
    out_smem0 = gl.allocate_shared_memory(q_desc.dtype, [OUTPUTS, 1, 1, 64, 64], q_desc.layout)
    out_smem1 = gl.allocate_shared_memory(q_desc.dtype, [OUTPUTS, 1, 1, 64, 64], q_desc.layout)
    totals = gl.allocate_shared_memory(gl.float32, [2, 4, 64], TOTALS)
    gl.warp_specialize(
        [
            (state_partition, (program, o_desc, out_smem0, 0)),
            (state_partition, (program, o_desc, out_smem1, 1)),
            (gate_partition, (program, scale_log2, totals)),
            (load_partition, (program, (q_desc, k_desc, g_desc, v_desc, p_desc))),
        ],
        [4, 4, 1],
        [REGISTERS, GATE_REGISTERS, 24],
    )


# --- Host -------------------------------------------------------------------------------------------------------------


def launch_columns(
    walk: DeltaWalk, inputs: tuple[Tensor, Tensor, Tensor, Tensor], p: Tensor | None, o: Tensor | None,
    tensors: GlaTensors, *, scale_log2: float, reverse: bool = False, exact: bool = False,
) -> None:  # fmt: skip
    """Write o like v or, in reverse, dv, and the state after the last step if there is room for it.

    Args:
        p: (B, H, T, 64), the scores of sequences that have closed, if the walk is exact and no pass.
        o: None for a pass, which writes states alone.
    """
    q, _, g, v = inputs
    config = GlaWalkConfig.of(
        columns_shape(v.shape[-1], g.element_size()), d_qk=q.shape[-1], d_hv=v.shape[-1], reverse=reverse,
        exact=exact, flags=tensors.flags is not None, states_only=o is None, loads=tensors.initial is not None,
        stores=tensors.final is not None,
    )  # fmt: skip
    descs = map(descriptor, (*inputs[:3], v, v if p is None else p, v if o is None else o))
    enqueue(
        walk_columns, walk.programs, *descs, pointers(tensors, tensors.closed), scale_log2, DeltaCounts.of(walk),
        config=config, num_warps=4, maxnreg=128, **ASSEMBLY,
    )  # fmt: skip
