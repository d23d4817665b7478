# type: ignore   # Gluon: what runs on the device has no types that a Python checker knows
"""The walk for o, which writes errors Z for backward too, and the states before and after it: see walk.py."""

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma, warpgroup_mma

from tflabench.kernels.delta.hopper_plan import DeltaWalk, outputs_shape
from tflabench.kernels.scalar.hopper.conversions import nearest, widened
from tflabench.kernels.scalar.hopper.launch import descriptor
from tflabench.kernels.scalar.hopper.schedule import get_step
from tflabench.kernels.scalar.hopper.tiles import ACC, ACC_COLUMN, ACC_OPERAND, VECTOR, block, send
from tflabench.kernels.scalar.hopper.workarounds import barrier, opaque_zero, wait_for_products

from .config import DeltaWalkConfig
from .schedule import DocumentTables, get_item_of_walk, get_items, get_schedule, is_edge
from .tiles import DeltaGates
from .walk import (
    OPERAND_COLUMN,
    DeltaWalkStates,
    allocate_program,
    decay_state,
    enqueue_walk,
    load_partition,
    load_root,
    load_state,
    score_partition,
    send_state,
    start_reading,
    state_operands,
    store_state,
)


@gluon.jit
def errors_operand(reads, vT, scores, slot, CHANNELS: gl.constexpr):
    """Return (s (V - 2^b K S))^T, a left operand [64, 64]; reads: S^T K^T, float32; vT [64, 64] in shared memory.

    With channels 2^b is in what has been read.
    """
    reads = gl.convert_layout(reads, ACC_OPERAND, assert_trivial=True)
    if not CHANNELS:
        reads *= scores.decay.index(slot).load(OPERAND_COLUMN)[None, :]
    e = widened(vT.load(ACC_OPERAND)) - reads
    return nearest(e * load_root(scores, slot, OPERAND_COLUMN, CHANNELS)[None, :], vT.dtype)


@gluon.jit
def walk_tile(program, descs, buffers, work, turn, places, state, HALF: gl.constexpr):  # noqa: PLR0915
    """Write 64 columns of o of a tile, and of Z if it is kept, and as many rows of the transposed state before it.

    Args:
        descs: of o, Z and states.  buffers: blocks in shared memory on their way out, of o and two of the state.
        places: the stages of k and of v, the slot of scores, and the number of the block of o.

    Returns: the state after the tile.
    """
    config: gl.constexpr = program.config
    PARTS: gl.constexpr = config.parts
    inputs, scores = program.inputs, program.scores
    dtype: gl.constexpr = inputs.key.dtype
    o_desc, z_desc, state_desc = descs
    out_smem, state_smem = buffers
    key, stage, slot, out_slot = places
    column = 128 * work.piece + 64 * HALF
    at = [work.batch, work.head, get_step(work, turn, config), column]
    edge = is_edge(work, turn)
    if config.keeps_states:
        send_state(state_desc, program, work, turn, column, state, state_smem)
    operands = state_operands(state, dtype)
    reads = start_reading(operands, inputs.key, key.slot + opaque_zero(turn, 0))
    out = reads
    if not config.states_only:
        out = start_reading(operands, inputs.query, key.slot + opaque_zero(turn, 1))
    reads, out, _left, _right = wait_for_products(0, deps=(reads, out, operands[0], operands[1]))
    zero = opaque_zero(turn, 2)
    valueT = block(inputs.value, 2 * stage + HALF + zero).permute((1, 0))
    e = errors_operand(reads, valueT, scores, slot + zero, config.channels)
    z = gl.zeros([64, 64], gl.float32, layout=ACC)
    for part in gl.static_range(PARTS):
        # [64, 64] @ [64, 64] -> [64, 64]
        xT = block(inputs.inverse, PARTS * (stage + zero) + part).permute((1, 0))
        z = warpgroup_mma(e, xT, z, use_acc=part > 0, is_async=True)
    z, e = wait_for_products(0, deps=(z, e))
    valueT.store(nearest(z, dtype))  # Z takes the place of V
    fence_async_shared()
    tma.store_wait(pendings=config.num_outputs - 1 + 2 * config.keeps_states)
    barrier()  # Z is there, q and k have been read, and a block for o is free
    inputs.keys.consumer_release(key)
    if config.keeps_errors:
        send(z_desc, at, inputs.value.index(2 * stage + HALF), False, config.documents, edge)

    if not config.states_only:
        # O^T = (scale 2^b Q S)^T + Z^T P^T
        zero = opaque_zero(turn, 3)
        if not config.channels:
            out *= scores.query_decay.index(slot + zero).load(ACC_COLUMN)[None, :]
        zT = block(inputs.value, 2 * stage + HALF + zero).permute((1, 0))
        pT = scores.p.index(slot + zero).reshape([64, 64]).permute((1, 0))
        out = warpgroup_mma(zT, pT, out, is_async=True)

    # S^T = 2^b_63 S^T + Z^T (s 2^(b_63 - b) K)
    zero = opaque_zero(turn, 4)
    zT = block(inputs.value, 2 * stage + HALF + zero).permute((1, 0))
    left, right = decay_state(state, scores, slot, config.channels)
    # [64, 64] @ [64, 64] -> [64, 64]
    left = warpgroup_mma(zT, block(scores.written_key, 2 * (slot + zero)), left, is_async=True)
    right = warpgroup_mma(zT, block(scores.written_key, 2 * (slot + zero) + 1), right, is_async=True)
    if not config.states_only:
        out = wait_for_products(2, deps=(out,))  # the state is updated while o is written
        out_block = out_smem.index(out_slot)
        out_block.reshape([64, 64]).permute((1, 0)).store(nearest(out, dtype))
        fence_async_shared()
        barrier()
        send(o_desc, at, out_block, False, config.documents, edge)
    left, right = wait_for_products(0, deps=(left, right))
    if config.keeps_errors:
        tma.store_wait(pendings=1)  # Z has been read, and the state
    return left, right


@gluon.jit
def state_partition(program, descs, buffers, HALF: gl.constexpr):
    """Carry 64 rows of the transposed state as float32 accumulators, and write as many columns of o, and of Z."""
    config: gl.constexpr = program.config
    schedule, inputs, scores = program.schedule, program.inputs, program.scores
    key, value, slot = inputs.keys.begin(), inputs.values.begin(), scores.ring.begin()
    out_slot = 0
    first, end, stride = get_items(schedule, config.pieces, config.documents)
    for item in range(first, end, stride):
        work = get_item_of_walk(schedule, item, config)
        state = load_state(program, work, HALF)
        for turn in range(work.first_tile, work.end_tile):
            scores.ring.consumer_wait(slot)
            inputs.keys.consumer_wait(key)
            inputs.values.consumer_wait(value)
            places = key, value.slot, slot.slot, out_slot
            state = walk_tile(program, descs, buffers, work, turn, places, state, HALF)
            barrier()
            inputs.values.consumer_release(value)
            scores.ring.consumer_release(slot)
            key = inputs.keys.next(key)
            value = inputs.values.next(value)
            slot = scores.ring.next(slot)
            out_slot = (out_slot + 1) % config.num_outputs
        store_state(program, work, state, HALF)
    tma.store_wait(pendings=0)


@gluon.jit
def walk_outputs(
    q_desc, k_desc, v_desc, x_desc, o_desc, z_desc, gates, states, scale, counts, config: gl.constexpr
):  # fmt: skip
    """Compute o of all work items, Z if it is kept, and the states after them; 4 warps and maxnreg=128."""
    REGISTERS: gl.constexpr = config.state_registers
    SCORE_REGISTERS: gl.constexpr = config.score_registers
    schedule = get_schedule(counts)
    program = allocate_program(schedule, gates, states, config, q_desc)
    out_smem0 = gl.allocate_shared_memory(q_desc.dtype, [2, 1, 1, 64, 64], q_desc.layout)
    out_smem1 = gl.allocate_shared_memory(q_desc.dtype, [2, 1, 1, 64, 64], q_desc.layout)
    prefix = gl.allocate_shared_memory(gl.float32, [64], VECTOR)
    gl.warp_specialize(
        [
            (state_partition, (program, (o_desc, z_desc, o_desc), (out_smem0, out_smem0), 0)),
            (state_partition, (program, (o_desc, z_desc, o_desc), (out_smem1, out_smem1), 1)),
            (score_partition, (program, scale, prefix)),
            (load_partition, (program, (q_desc, k_desc, v_desc, x_desc))),
        ],
        [4, 4, 1],
        [REGISTERS, SCORE_REGISTERS, 24],
    )


def launch_outputs(
    walk: DeltaWalk, inputs: tuple[Tensor, Tensor, Tensor, Tensor], o: Tensor | None, z: Tensor | None, *,
    gates: DeltaGates, gated: bool, states: DeltaWalkStates, scale: float, parts: int,
    tables: DocumentTables | None = None, spans: Tensor | None = None,
) -> None:  # fmt: skip
    """Write o (B, H, T, d_hv), Z like it if it is given, and the state after the last step if there is room for it.

    Args:
        inputs: q, k, v and X.
        o: None for a pass, which writes states alone.
        tables: of documents, each of which has states of its own; o and z are then added to where these begin and end.
        spans: of segments, for a pass (`joins.spans_of`).
    """
    config = DeltaWalkConfig.of(
        outputs_shape(parts), d_qk=walk.sizes.d_qk, d_hv=walk.sizes.d_hv, gated=gated, states_only=o is None,
        keeps_errors=z is not None, loads=states.initial is not None, stores=states.final is not None,
        documents=tables is not None, spans=o is None and spans is not None,
    )  # fmt: skip
    unused = inputs[2]
    descs = map(descriptor, (*inputs, unused if o is None else o, unused if z is None else z))
    enqueue_walk(walk_outputs, tuple(descs), gates, states, scale, walk, config, tables, spans)
