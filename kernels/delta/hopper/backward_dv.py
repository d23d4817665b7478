# type: ignore   # Gluon: what runs on the device has no types that a Python checker knows
"""The walk backward in time for dv, which writes D, the gradient of the state, after every tile: see walk.py.

dV = s X^T (P^T dO + s 2^(b_63 - b) K D)        D <- 2^b_63 D + Q^T (scale 2^b dO) - K^T (2^b dV)
"""

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma, warpgroup_mma

from tflabench.kernels.delta.hopper_plan import DeltaWalk, DeltaWalkShape
from tflabench.kernels.scalar.hopper.conversions import nearest, nearest_of_negative, widened
from tflabench.kernels.scalar.hopper.launch import descriptor
from tflabench.kernels.scalar.hopper.schedule import get_step
from tflabench.kernels.scalar.hopper.tiles import ACC, ACC_COLUMN, ACC_OPERAND, VECTOR, block, send
from tflabench.kernels.scalar.hopper.workarounds import barrier, opaque_zero, wait_for_products

from .config import DeltaWalkConfig
from .schedule import DocumentTables, get_item_of_walk, get_items, get_schedule, get_tile, is_edge
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
def state_partition_back(program, descs, buffers, HALF: gl.constexpr):
    """Carry 64 rows of the transposed D as float32 accumulators, and write them and as many columns of dv."""
    config: gl.constexpr = program.config
    schedule, inputs, scores = program.schedule, program.inputs, program.scores
    stage, slot = inputs.keys.begin(), scores.ring.begin()
    first, end, stride = get_items(schedule, config.pieces, config.documents)
    for item in range(first, end, stride):
        work = get_item_of_walk(schedule, item, config)
        state = load_state(program, work, HALF)
        for turn in range(work.first_tile, work.end_tile):
            scores.ring.consumer_wait(slot)
            inputs.keys.consumer_wait(stage)
            inputs.values.consumer_wait(stage)  # as many stages
            places = stage.slot, slot.slot
            state = walk_tile_back(program, descs, buffers, work, turn, places, state, HALF)
            barrier()
            inputs.keys.consumer_release(stage)
            inputs.values.consumer_release(stage)
            scores.ring.consumer_release(slot)
            stage = inputs.keys.next(stage)
            slot = scores.ring.next(slot)
        store_state(program, work, state, HALF)
    tma.store_wait(pendings=0)


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
            (state_partition_back, (program, (dv_desc, state_desc), (dv_smem0, state_smem0), 0)),
            (state_partition_back, (program, (dv_desc, state_desc), (dv_smem1, state_smem1), 1)),
            (score_partition, (program, scale, prefix)),
            (load_partition, (program, (q_desc, k_desc, do_desc, x_desc))),
        ],
        [4, 4, 1],
        [REGISTERS, SCORE_REGISTERS, 24],
    )


def launch_values(
    walk: DeltaWalk, inputs: tuple[Tensor, Tensor, Tensor, Tensor], dv: Tensor | None, D: Tensor | None, *,
    gates: DeltaGates, gated: bool, states: DeltaWalkStates, scale: float, parts: int,
    tables: DocumentTables | None = None, spans: Tensor | None = None,
) -> None:  # fmt: skip
    """Write dv (B, H, T, d_hv), D after every tile, and before the first one if there is room for it.

    Args:
        inputs: q, k, do and X.
        dv: of float16 dv / s, see `hopper_plan.LEAST_STRENGTH`.
        D: (1, B * H * tiles, d_hv, d_qk), in the dtype of q; dv and it are None for a pass, which writes states alone.
        states: gradients of states: initial after segments, final before them.
    """
    config = DeltaWalkConfig.of(
        DeltaWalkShape(parts), d_qk=walk.sizes.d_qk, d_hv=walk.sizes.d_hv, gated=gated, reverse=True,
        states_only=dv is None, loads=states.initial is not None, stores=states.final is not None,
        documents=tables is not None, spans=dv is None and spans is not None,
    )  # fmt: skip
    unused = inputs[2]
    descs = map(descriptor, (*inputs, unused if dv is None else dv, unused if D is None else D))
    enqueue_walk(walk_values, tuple(descs), gates, states, scale, walk, config, tables, spans)
