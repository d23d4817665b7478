# type: ignore   # Gluon: what runs on the device has no types that a Python checker knows
"""The walk for o, which writes Z for backward too, and that backward in time for dv, which writes D: see walk.py.

D is the gradient of the state after a tile:

    dV = s X^T (P^T dO + s 2^(b_63 - b) K D)        D <- 2^b_63 D + Q^T (scale 2^b dO) - K^T (2^b dV)
"""

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma, warpgroup_mma

from tflabench.kernels.common.launching import enqueue
from tflabench.kernels.delta.hopper_plan import DeltaWalk, DeltaWalkShape, outputs_shape
from tflabench.kernels.scalar.hopper.conversions import nearest, nearest_of_negative, widened
from tflabench.kernels.scalar.hopper.documents import WalkPlaces
from tflabench.kernels.scalar.hopper.launch import descriptor, pointers
from tflabench.kernels.scalar.hopper.schedule import get_step
from tflabench.kernels.scalar.hopper.tiles import ACC, ACC_COLUMN, ACC_OPERAND, VECTOR, block, send
from tflabench.kernels.scalar.hopper.workarounds import ASSEMBLY, barrier, opaque_zero, wait_for_products

from .config import DeltaWalkConfig
from .schedule import DeltaCounts, get_item_of_walk, get_items, get_schedule, get_tile, is_edge
from .tiles import DeltaGates, NormalizedGates
from .walk import (
    OPERAND_COLUMN,
    DeltaWalkStates,
    allocate_program,
    decay_state,
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
def errors_operand(reads, vT, scores, slot, config: gl.constexpr):
    """Return (s (V - 2^b K S))^T, a left operand [64, 64]; reads: S^T K^T, float32; vT [64, 64] in shared memory.

    With channels 2^b is in what has been read; where the walk normalises, V is multiplied by the norms of k.
    """
    reads = gl.convert_layout(reads, ACC_OPERAND, assert_trivial=True)
    if not config.channels:
        reads *= scores.decay.index(slot).load(OPERAND_COLUMN)[None, :]
    v = widened(vT.load(ACC_OPERAND))
    if config.normalizes:
        v *= scores.norms.index(slot).load(OPERAND_COLUMN)[None, :]
    return nearest((v - reads) * load_root(scores, slot, OPERAND_COLUMN, config.channels)[None, :], vT.dtype)


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
    e = errors_operand(reads, valueT, scores, slot + zero, config)
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
def start_solving(du, inverses, first, PARTS: gl.constexpr, dtype: gl.constexpr):
    """Start (X^T dU)^T of du = dU^T, [64, 64] float32; first: the first block of X, of PARTS, in shared memory."""
    operand = gl.convert_layout(nearest(du, dtype), ACC_OPERAND)
    dv = gl.zeros([64, 64], gl.float32, layout=ACC)
    for part in gl.static_range(PARTS):
        # [64, 64] @ [64, 64] -> [64, 64]
        dv = warpgroup_mma(operand, block(inverses, first + part), dv, use_acc=part > 0, is_async=True)
    return dv, operand


@gluon.jit
def walk_tile_back(program, descs, buffers, work, turn, places, state, HALF: gl.constexpr):  # noqa: PLR0915
    """Write 64 columns of dv of a tile, and as many rows of the transposed D after it.

    Args:
        descs: of dv and D.  buffers: blocks in shared memory, of dv and two of D.
        places: the stage and the slot of the tile.

    Returns: D before the tile.
    """
    config: gl.constexpr = program.config
    inputs, scores = program.inputs, program.scores
    dtype: gl.constexpr = inputs.key.dtype
    dv_desc, state_desc = descs
    dv_smem, state_smem = buffers
    stage, slot = places
    tile = get_tile(work, turn, True)
    column = 128 * work.piece + 64 * HALF
    if not config.states_only:
        tma.store_wait(pendings=1)
        barrier()  # D of the tile before has been read
        send_state(state_desc, program, work, tile, column, state, state_smem)

    # dU^T = (s 2^(b_63 - b) K D)^T + dO^T P; D <- 2^b_63 D + Q^T (scale 2^b dO) is added to meanwhile
    operands = state_operands(state, dtype)
    zero = opaque_zero(turn, 1)
    doT = block(inputs.value, 2 * stage + HALF + zero).permute((1, 0))
    p = scores.p.index(slot + zero).reshape([64, 64])
    if config.channels:
        du = start_reading(operands, scores.written_key, slot + opaque_zero(turn, 0))
        du = warpgroup_mma(doT, p, du, is_async=True)
        du, _left, _right = wait_for_products(0, deps=(du, operands[0], operands[1]))
        left, right = decay_state(state, scores, slot, True)
    else:
        reads = start_reading(operands, inputs.key, stage + opaque_zero(turn, 0))
        du = gl.zeros([64, 64], gl.float32, layout=ACC)
        du = warpgroup_mma(doT, p, du, use_acc=False, is_async=True)
        reads, du, _left, _right = wait_for_products(0, deps=(reads, du, operands[0], operands[1]))
        left, right = decay_state(state, scores, slot, False)
        du += reads * scores.write_decay.index(slot + zero).load(ACC_COLUMN)[None, :]
    dv, solved = start_solving(du, inputs.inverse, config.parts * (stage + zero), config.parts, dtype)
    zero = opaque_zero(turn, 2)
    decayed_do = block(inputs.value, 2 * stage + HALF + zero).permute((1, 0))
    if not config.channels:
        query_decay = scores.query_decay.index(slot + zero).load(OPERAND_COLUMN)[None, :]
        decayed_do = nearest(widened(decayed_do.load(ACC_OPERAND)) * query_decay, dtype)
    # [64, 64] @ [64, 64] -> [64, 64]
    left = warpgroup_mma(decayed_do, block(inputs.query, 2 * (stage + zero)), left, is_async=True)
    right = warpgroup_mma(decayed_do, block(inputs.query, 2 * (stage + zero) + 1), right, is_async=True)
    dv, solved = wait_for_products(2, deps=(dv, solved))
    root = load_root(scores, slot + zero, ACC_COLUMN, config.channels)[None, :]
    if dtype != gl.float16:
        dv *= root

    # D^T <- D^T - (2^b dV)^T K
    zero = opaque_zero(turn, 3)
    read_dv = dv
    if not config.channels:
        decay = scores.decay.index(slot + zero).load(ACC_COLUMN)[None, :]
        read_dv = dv * (decay * root if dtype == gl.float16 else decay)
    read_dv = nearest_of_negative(read_dv, dtype)
    read_dv = gl.convert_layout(read_dv, ACC_OPERAND)
    left = warpgroup_mma(read_dv, block(inputs.key, 2 * (stage + zero)), left, is_async=True)
    right = warpgroup_mma(read_dv, block(inputs.key, 2 * (stage + zero) + 1), right, is_async=True)
    if not config.states_only:
        tma.store_wait(pendings=2)
        barrier()  # dv of the tile before has been read
        block(dv_smem, 0).permute((1, 0)).store(nearest(dv, dtype))
        fence_async_shared()
        barrier()
        at = [work.batch, work.head, get_step(work, tile, config), column]
        send(dv_desc, at, dv_smem.index(0), False, config.documents, is_edge(work, tile))
    if config.channels:
        left, right, read_dv = wait_for_products(0, deps=(left, right, read_dv))
    else:
        left, right, decayed_do, read_dv = wait_for_products(0, deps=(left, right, decayed_do, read_dv))
    return left, right


@gluon.jit
def state_partition(program, descs, buffers, HALF: gl.constexpr):
    """Carry 64 rows of the transposed state, or D, as float32 accumulators, and write as many columns of o, or dv."""
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
            if config.reverse:
                value = key  # there are as many stages
            inputs.values.consumer_wait(value)
            if config.reverse:
                places = key.slot, slot.slot
                state = walk_tile_back(program, descs, buffers, work, turn, places, state, HALF)
                barrier()
                inputs.keys.consumer_release(key)
            else:
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


@gluon.jit
def walk_values(
    q_desc, k_desc, do_desc, x_desc, dv_desc, state_desc, gates, states, scale, counts, config: gl.constexpr
):  # fmt: skip
    """Compute dv of all work items, and D after every tile and before the first; 4 warps and maxnreg=128."""
    REGISTERS: gl.constexpr = config.state_registers
    SCORE_REGISTERS: gl.constexpr = config.score_registers
    dtype: gl.constexpr = q_desc.dtype
    schedule = get_schedule(counts)
    program = allocate_program(schedule, gates, states, config, q_desc)
    dv_smem0 = gl.allocate_shared_memory(dtype, [1, 1, 1, 64, 64], q_desc.layout)
    dv_smem1 = gl.allocate_shared_memory(dtype, [1, 1, 1, 64, 64], q_desc.layout)
    state_smem0 = gl.allocate_shared_memory(dtype, [2, 1, 1, 64, 64], q_desc.layout)
    state_smem1 = gl.allocate_shared_memory(dtype, [2, 1, 1, 64, 64], q_desc.layout)
    prefix = gl.allocate_shared_memory(gl.float32, [64], VECTOR)
    gl.warp_specialize(
        [
            (state_partition, (program, (dv_desc, state_desc), (dv_smem0, state_smem0), 0)),
            (state_partition, (program, (dv_desc, state_desc), (dv_smem1, state_smem1), 1)),
            (score_partition, (program, scale, prefix)),
            (load_partition, (program, (q_desc, k_desc, do_desc, x_desc))),
        ],
        [4, 4, 1],
        [REGISTERS, SCORE_REGISTERS, 24],
    )


def launch_walk(
    walk: DeltaWalk, outputs: tuple[Tensor | None, Tensor | None], inputs: tuple[Tensor, ...], *, reverse: bool,
    gates: DeltaGates | NormalizedGates, gated: bool, states: DeltaWalkStates, scale: float, parts: int,
    places: WalkPlaces | None = None, spans: Tensor | None = None,
) -> None:  # fmt: skip
    """Write o and Z, or reversed dv and D, and the state after the walk if there is room for it.

    Args:
        outputs: o (B, H, T, d_hv), and Z like it if it is kept. Reversed dv like o, of float16 dv / s (see
            `LEAST_STRENGTH`), and D (1, B * H * tiles, d_hv, d_qk), in the dtype of q. None for a pass, which writes
            states alone.
        inputs: q, k, v, or reversed do, and X.
        states: reversed their gradients, initial after segments, final before them.
        places: of documents, each with states of its own: outputs are added to where these begin and end.
        spans: of segments, for a pass (`joins.spans_of`).
    """
    of_pass = outputs[0] is None
    config = DeltaWalkConfig.of(
        DeltaWalkShape(parts) if reverse else outputs_shape(parts), d_qk=walk.sizes.d_qk, d_hv=walk.sizes.d_hv,
        gated=gated, reverse=reverse, states_only=of_pass, keeps_errors=not reverse and outputs[1] is not None,
        loads=states.initial is not None, stores=states.final is not None,
        documents=places is not None, spans=of_pass and spans is not None,
        normalizes=isinstance(gates, NormalizedGates),
    )  # fmt: skip
    descs = map(descriptor, (*inputs, *(inputs[2] if x is None else x for x in outputs)))
    enqueue(
        walk_values if reverse else walk_outputs, walk.programs, *descs, gates, pointers(states, gates.beta), scale,
        DeltaCounts.of(walk, places=places, spans=spans if config.spans else None),
        config=config, num_warps=4, maxnreg=128, **ASSEMBLY,
    )  # fmt: skip
