# type: ignore   # Gluon: what runs on the device has no types that a Python checker knows
"""The walk forward in time for dq, dk, and what dg and dbeta are made of.

S is the state before a tile, D the gradient of the state after it, Z the errors of walk.py. Z, D and dV are read from
memory, S is made again:

    dP = scale L (dO Z^T)        dA = -L (dV Z^T), strictly lower        L_ij = s_j 2^(b_i - b_j), j <= i
    dQ = scale 2^b dO S^T + dP K
    dK = R + W        R = dA K - 2^b dV S^T        W = s 2^(b_63 - b) Z D^T + dP^T Q + dA^T K
    S <- 2^b_63 S + (s 2^(b_63 - b) K)^T Z

R comes of what k reads, W of what is written for it. With db = q . dq + k . (R - W) for each step,

    dbeta_i = dV_i . Z_i / s_i^3
    dg_i = sum of db_t over t >= i in the tile + 2^b_63 <S, D> + sum of k . (s 2^(b_63 - b) Z D^T)

so a gradient of a gate is a sum within its tile, and nothing has to cancel over a sequence.

    load         1 warp    copies tiles of do, Z, dv, D, k and q by TMA     -> DeltaGradientTiles, three rings
    score        4 warps   dP, dA and the decays of a tile, dbeta           -> DeltaGradientScores, a ring of slots
    state 0, 1   4 warps   64 rows each of S, columns of dq and dk          -> dq and dk, in the place of q and k

The state is not transposed here, rows of q by columns of v: dq and dk come out whole. A launch has 128 columns of v,
and maybe one of the heads of v that share one of q and k; all but the first add to dq and dk.
"""

from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma, warpgroup_mma

from tflabench.kernels.common.launching import enqueue
from tflabench.kernels.delta.hopper_plan import SUMS, TILE, DeltaPlan
from tflabench.kernels.scalar.hopper.conversions import nearest, widened
from tflabench.kernels.scalar.hopper.documents import WalkPlaces
from tflabench.kernels.scalar.hopper.launch import descriptor
from tflabench.kernels.scalar.hopper.pipeline import Cursor, Ring, aggregate, allocate_ring
from tflabench.kernels.scalar.hopper.schedule import get_step
from tflabench.kernels.scalar.hopper.state import state_pointers
from tflabench.kernels.scalar.hopper.tiles import (
    ACC,
    ACC_COLUMN,
    ACC_OPERAND,
    ACC_ROW,
    VECTOR,
    block,
    load_blocks,
    send,
)
from tflabench.kernels.scalar.hopper.workarounds import ASSEMBLY, barrier, opaque_zero, wait_for_products

from .config import DeltaGradientsConfig
from .gates import finish_gates
from .schedule import (
    DeltaCounts,
    DeltaSchedule,
    get_items,
    get_schedule,
    get_state_index,
    get_work_item,
    is_edge,
)
from .tiles import BEYOND, STEP_OF_EACH_WARP, DeltaGates, decayed, products, sums_of_gates
from .walk import OPERAND_COLUMN, acquire_stage, load_steps_of, read_state

SUMS_OF_TILE = gl.constexpr(SUMS)


class DeltaGradientTensors(NamedTuple):
    """Tensors without descriptors; on the device, pointers.

    Attributes:
        gates: see `DeltaGates`.
        initial: the states before segments, (B, H, segments, d_qk, d_hv) float32, if there are any.
        sums: (B * H, tiles, SUMS, 64) float32 of 128 columns of v.
    """

    gates: Any
    initial: Any
    sums: Any


# --- What partitions share --------------------------------------------------------------------------------------------


@aggregate
class DeltaGradientTiles:
    """Tiles in shared memory, in blocks of 64 by 64, 16 bits.

    Fields:
        values: a ring of do, z and dv, [2 * stages, 1, 1, 64, 64] each.
        states: a ring of one slot, of D transposed, [4, 1, 1, 64, 64]: the blocks of a state partition are consecutive.
        keys: a ring of q and k, [2 * stages, 1, 1, 64, 64] each, which dq and dk take the place of.
    """

    values: Ring
    do: gl.shared_memory_descriptor
    z: gl.shared_memory_descriptor
    dv: gl.shared_memory_descriptor
    states: Ring
    D: gl.shared_memory_descriptor
    keys: Ring
    q: gl.shared_memory_descriptor
    k: gl.shared_memory_descriptor


@aggregate
class DeltaGradientScores:
    """A ring of slots in shared memory, of dP, dA and decays of a tile.

    Fields:
        dp: [slots + 1, 64, 64], by turns: that of a tile has been read when dA of the next is stored.
        da: [slots, 64, 64].
        decay, query_decay, write_decay: see `walk.DeltaScores`; 0 beyond the last step.
        total: 2^b_63, [slots, 64] float32, all alike.
    """

    ring: Ring
    dp: gl.shared_memory_descriptor
    da: gl.shared_memory_descriptor
    decay: gl.shared_memory_descriptor
    query_decay: gl.shared_memory_descriptor
    write_decay: gl.shared_memory_descriptor
    total: gl.shared_memory_descriptor


@aggregate
class GradientProgram:
    """Buffers, pointers and counts that all partitions of a program share."""

    config: gl.constexpr
    schedule: DeltaSchedule
    tensors: gl.tuple
    inputs: DeltaGradientTiles
    scores: DeltaGradientScores


@gluon.jit
def allocate_gradient_program(schedule, tensors, config: gl.constexpr, desc):
    """Return what all partitions share; desc describes blocks of q."""
    dtype: gl.constexpr = desc.dtype
    BLOCKS: gl.constexpr = 2 * config.num_stages
    SLOTS: gl.constexpr = config.num_slots
    inputs = DeltaGradientTiles(
        values=allocate_ring(config.num_stages, 3),
        do=gl.allocate_shared_memory(dtype, [BLOCKS, 1, 1, 64, 64], desc.layout),
        z=gl.allocate_shared_memory(dtype, [BLOCKS, 1, 1, 64, 64], desc.layout),
        dv=gl.allocate_shared_memory(dtype, [BLOCKS, 1, 1, 64, 64], desc.layout),
        states=allocate_ring(1, 2),
        D=gl.allocate_shared_memory(dtype, [4, 1, 1, 64, 64], desc.layout),
        keys=allocate_ring(config.num_stages, 2),
        q=gl.allocate_shared_memory(dtype, [BLOCKS, 1, 1, 64, 64], desc.layout),
        k=gl.allocate_shared_memory(dtype, [BLOCKS, 1, 1, 64, 64], desc.layout),
    )
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, 64], dtype)
    scores = DeltaGradientScores(
        ring=allocate_ring(SLOTS, 2),
        dp=gl.allocate_shared_memory(dtype, [SLOTS + 1, 64, 64], layout),
        da=gl.allocate_shared_memory(dtype, [SLOTS, 64, 64], layout),
        decay=gl.allocate_shared_memory(gl.float32, [SLOTS, 64], VECTOR),
        query_decay=gl.allocate_shared_memory(gl.float32, [SLOTS, 64], VECTOR),
        write_decay=gl.allocate_shared_memory(gl.float32, [SLOTS, 64], VECTOR),
        total=gl.allocate_shared_memory(gl.float32, [SLOTS, 64], VECTOR),
    )
    return GradientProgram(config, schedule, tensors, inputs, scores)


# --- Load partition ---------------------------------------------------------------------------------------------------


@gluon.jit
def load_gradient_tiles(program, descs):
    """Copy all tiles to shared memory, in the order in which they are met; descs: of q, k, do, Z, dv and D."""
    config: gl.constexpr = program.config
    COLUMN: gl.constexpr = 128 * config.piece
    schedule, inputs = program.schedule, program.inputs
    q_desc, k_desc, do_desc, z_desc, dv_desc, state_desc = descs
    value, state, key = inputs.values.begin(), inputs.states.begin(), inputs.keys.begin()
    first, end, stride = get_items(schedule, 1, config.documents)
    for item in range(first, end, stride):
        work = get_work_item(schedule, item, 1, config.members, config.documents)
        for tile in range(work.first_tile, work.end_tile):
            step = get_step(work, tile, config)
            at = (work.batch, work.head, step, COLUMN)
            full = acquire_stage(inputs.values, value, 6)
            load_blocks(do_desc, at, inputs.do, 2 * value.slot, 2, full)
            load_blocks(z_desc, at, inputs.z, 2 * value.slot, 2, full)
            load_blocks(dv_desc, at, inputs.dv, 2 * value.slot, 2, full)
            value = inputs.values.next(value)
            full = acquire_stage(inputs.states, state, 4)
            index = work.row * schedule.num_tiles + tile
            for half in gl.static_range(2):
                for j in gl.static_range(2):
                    at = (0, index, COLUMN + 64 * j, 64 * half)
                    load_blocks(state_desc, at, inputs.D, 4 * state.slot + 2 * half + j, 1, full)
            state = inputs.states.next(state)
            at = (work.batch, work.qk_head, step, 0)
            full = acquire_stage(inputs.keys, key, 4)
            load_blocks(k_desc, at, inputs.k, 2 * key.slot, 2, full)
            load_blocks(q_desc, at, inputs.q, 2 * key.slot, 2, full)
            key = inputs.keys.next(key)


# --- Score partition --------------------------------------------------------------------------------------------------


@gluon.jit
def sums_of_tile(program, work, tile, n: gl.constexpr):
    """Return where a vector of the sums of a tile begins."""
    row = work.row * program.schedule.num_tiles + tile
    return program.tensors.sums + (row * SUMS_OF_TILE + n) * 64


@gluon.jit
def gradient_score_partition(program, scale, prefix, root):
    """Compute dP, dA, the decays and dbeta of every tile.

    Args:
        prefix, root: [64] float32 in shared memory, for b and s.
    """
    config: gl.constexpr = program.config
    dtype: gl.constexpr = program.inputs.k.dtype
    schedule, inputs, scores, gates = program.schedule, program.inputs, program.scores, program.tensors.gates
    value, slot = inputs.values.begin(), scores.ring.begin()
    turn = 0
    first, end, stride = get_items(schedule, 1, config.documents)
    for item in range(first, end, stride):
        work = get_work_item(schedule, item, 1, config.members, config.documents)
        next_g, next_root = load_steps_of(schedule, gates, work, work.first_tile, config)
        for tile in range(work.first_tile, work.end_tile):
            b, s = sums_of_gates(next_g), next_root
            prefix.store(gl.where(s > 0, b, BEYOND))
            root.store(s)
            after = gl.minimum(tile + 1, work.end_tile - 1)
            next_g, next_root = load_steps_of(schedule, gates, work, after, config)
            barrier()
            # Made anew for every tile, as masks would be kept in registers.
            row = gl.arange(0, 64, layout=ACC_ROW)[:, None] + opaque_zero(tile)
            column = gl.arange(0, 64, layout=ACC_COLUMN)[None, :]
            inputs.values.consumer_wait(value)
            do_z = products(inputs.do, value.slot, inputs.z, value.slot)
            dp = gl.where(row >= column, decayed(do_z * scale, prefix, root), 0.0)
            scores.dp.index(turn).store(nearest(dp, dtype))
            dv_z = products(inputs.dv, value.slot, inputs.z, value.slot)
            s = root.load(ACC_ROW)
            if dtype == gl.float16:
                dv_z *= s[:, None]
            dbeta = gl.sum(gl.where(row == column, dv_z, 0.0), axis=1) / (s * s * s)
            da = nearest(gl.where(row > column, -decayed(dv_z, prefix, root), 0.0), dtype)
            scores.ring.producer_acquire(slot)  # late, for there is but one slot
            scores.da.index(slot.slot).store(da)
            s, b = root.load(STEP_OF_EACH_WARP), prefix.load(STEP_OF_EACH_WARP)
            decay = gl.exp2(b)  # 0 beyond the last step
            total = gl.min(gl.where(s > 0, b, 0.0), axis=0)
            scores.total.index(slot.slot).store(gl.exp2(total + gl.zeros([64], gl.float32, layout=STEP_OF_EACH_WARP)))
            scores.decay.index(slot.slot).store(decay * s if dtype == gl.float16 else decay)
            scores.query_decay.index(slot.slot).store(decay * scale)
            scores.write_decay.index(slot.slot).store(gl.where(s > 0, s * gl.exp2(total - b), 0.0))
            fence_async_shared()
            barrier()
            scores.ring.producer_commit(slot)
            inputs.values.consumer_release(value)
            gl.store(sums_of_tile(program, work, tile, 4) + gl.arange(0, 64, layout=ACC_ROW), dbeta)
            value = inputs.values.next(value)
            slot = scores.ring.next(slot)
            turn ^= 1


# --- State partitions -------------------------------------------------------------------------------------------------


@gluon.jit
def load_rows_of_state(program, work, HALF: gl.constexpr):
    """Return the rows of S that a state partition carries, as two accumulators [64, 64]."""
    config: gl.constexpr = program.config
    D_QK: gl.constexpr = config.d_qk
    D_HV: gl.constexpr = config.d_hv
    state = ()
    for j in gl.static_range(2):
        if config.loads:
            ptr = program.tensors.initial + get_state_index(program.schedule, work) * (D_QK * D_HV)
            zero = opaque_zero(work.row, j)  # else addresses are kept in registers from item to item
            column = 128 * config.piece + 64 * j + zero
            at, rows = state_pointers(ptr, 64 * HALF + zero, column, D_HV, 1, ACC)
            columns = column + gl.arange(0, 64, layout=ACC_COLUMN)[None, :]
            state += (gl.load(at, mask=(rows < D_QK) & (columns < D_HV), other=0.0),)
        else:
            state += (gl.zeros([64, 64], gl.float32, layout=ACC),)
    return state


@gluon.jit
def fold_rows(x):
    """Return the sums over the two rows that a thread has of x [64, 64]: [4, 8, 64]."""
    return gl.sum(x.reshape([4, 2, 8, 64]), axis=1)


@gluon.jit
def sum_folded(x):
    """Return the sums over all rows of what `fold_rows` has left, [64]."""
    return gl.sum(gl.sum(x, axis=1), axis=0)


@gluon.jit
def multiply_states(state, D, first):
    """Return the products of S with D, summed over two rows of S of a thread each: [4, 8, 64]."""
    left = fold_rows(state[0] * widened(block(D, first).permute((1, 0)).load(ACC)))
    return left + fold_rows(state[1] * widened(block(D, first + 1).permute((1, 0)).load(ACC)))


@gluon.jit
def gradients_of_writes(program, places, state, HALF: gl.constexpr):
    """Return W^T = (Z D)^T s 2^(b_63 - b) + Q^T dP + K^T dA, [64, 64] float32, and what passes the tile, [64].

    D is given back. Products of k with D count for dg before those within the tile are added.
    """
    inputs, scores = program.inputs, program.scores
    value, slot, dp_slot, D_place, key, zero = places
    passing = multiply_states(state, inputs.D, 4 * D_place.slot + 2 * HALF + zero)
    written = gl.zeros([64, 64], gl.float32, layout=ACC)
    for j in gl.static_range(2):
        # [64, 64] @ [64, 64] -> [64, 64]
        D = block(inputs.D, 4 * D_place.slot + 2 * HALF + j + zero).permute((1, 0))
        zT = block(inputs.z, 2 * value + j + zero).permute((1, 0))
        written = warpgroup_mma(D, zT, written, use_acc=j > 0, is_async=True)
    written = wait_for_products(0, deps=(written,))
    barrier()
    inputs.states.consumer_release(D_place)
    total = gl.sum(scores.total.index(slot).slice(63, 1).load(STEP_OF_EACH_WARP), axis=0)
    written *= scores.write_decay.index(slot + zero).load(ACC_COLUMN)[None, :]
    kT = block(inputs.k, 2 * key + HALF + zero).permute((1, 0))
    qT = block(inputs.q, 2 * key + HALF + zero).permute((1, 0))
    passing = sum_folded(passing * total + fold_rows(widened(kT.load(ACC)) * written))
    written = warpgroup_mma(qT, scores.dp.index(dp_slot + zero), written, is_async=True)
    written = warpgroup_mma(kT, scores.da.index(slot + zero), written, is_async=True)
    written = wait_for_products(0, deps=(written,))
    return written, passing, total


@gluon.jit
def walk_gradient_tile(program, descs, work, tile, places, state, HALF: gl.constexpr):  # noqa: PLR0915
    """Write 64 columns of dq and dk of a tile, and the sums of these channels.

    Args:
        descs: of dq and dk.
        places: the stages of values and keys, the slots of scores and of dP, the place of D, and whether a tile came
            before this one.

    Returns: S after the tile.
    """
    config: gl.constexpr = program.config
    ADD: gl.constexpr = config.adds
    STAGES: gl.constexpr = config.num_stages
    inputs, scores = program.inputs, program.scores
    dtype: gl.constexpr = inputs.k.dtype
    dq_desc, dk_desc = descs
    value, key, slot, dp_slot, D_place, later = places
    at = [work.batch, work.head if config.of_each else work.qk_head, get_step(work, tile, config), 64 * HALF]
    edge = is_edge(work, tile)
    of_writes = value, slot, dp_slot, D_place, key, opaque_zero(tile, 0)
    written, passing, total = gradients_of_writes(program, of_writes, state, HALF)
    kT = block(inputs.k, 2 * key + HALF + opaque_zero(tile, 0)).permute((1, 0))
    db = fold_rows(widened(kT.load(ACC)) * (written * -2.0))

    # dQ^T = (dO S^T)^T scale 2^b + K^T dP^T
    zero = opaque_zero(tile, 1)
    dq = read_state(state, inputs.do, value + zero)
    dq *= scores.query_decay.index(slot + zero).load(ACC_COLUMN)[None, :]
    kT = block(inputs.k, 2 * key + HALF + zero).permute((1, 0))
    qT = block(inputs.q, 2 * key + HALF + zero).permute((1, 0))
    dq = warpgroup_mma(kT, scores.dp.index(dp_slot + zero).permute((1, 0)), dq, is_async=True)
    dq = wait_for_products(0, deps=(dq,))
    db += fold_rows(widened(qT.load(ACC)) * dq)
    tma.store_wait(pendings=0)
    barrier()  # q has been read, and dq and dk of the tile before
    if later:
        inputs.keys.consumer_release(Cursor((key + STAGES - 1) % STAGES, key))
    qT.store(nearest(dq, dtype))
    fence_async_shared()
    barrier()
    send(dq_desc, at, inputs.q.index(2 * key + HALF), ADD, config.documents, edge)

    # dK^T = W^T - (dV S^T)^T 2^b + K^T dA^T; db has k . (dk - 2 W)
    zero = opaque_zero(tile, 2)
    dk = read_state(state, inputs.dv, value + zero, True)
    dk = dk * scores.decay.index(slot + zero).load(ACC_COLUMN)[None, :] + written
    kT = block(inputs.k, 2 * key + HALF + zero).permute((1, 0))
    dk = warpgroup_mma(kT, scores.da.index(slot + zero).permute((1, 0)), dk, is_async=True)
    dk = wait_for_products(0, deps=(dk,))
    db += fold_rows(widened(kT.load(ACC)) * dk)

    # S = 2^b_63 S + (s 2^(b_63 - b) K)^T Z
    zero = opaque_zero(tile, 3)
    write_decay = scores.write_decay.index(slot + zero).load(OPERAND_COLUMN)[None, :]
    kT = block(inputs.k, 2 * key + HALF + zero).permute((1, 0))
    weighted = nearest(widened(kT.load(ACC_OPERAND)) * write_decay, dtype)
    left, right = state[0] * total, state[1] * total
    # [64, 64] @ [64, 64] -> [64, 64]
    left = warpgroup_mma(weighted, block(inputs.z, 2 * (value + zero)), left, is_async=True)
    right = warpgroup_mma(weighted, block(inputs.z, 2 * (value + zero) + 1), right, is_async=True)
    barrier()  # k has been read
    kT.store(nearest(dk, dtype))
    fence_async_shared()
    barrier()
    send(dk_desc, at, inputs.k.index(2 * key + HALF), ADD, config.documents, edge)
    db = sum_folded(db)
    t = gl.arange(0, 64, layout=db.type.layout)
    gl.store(sums_of_tile(program, work, tile, 2 * HALF) + t, db)
    gl.store(sums_of_tile(program, work, tile, 2 * HALF + 1) + t, passing)
    left, right, weighted = wait_for_products(0, deps=(left, right, weighted))
    return left, right


@gluon.jit
def gradient_state_partition(program, descs, HALF: gl.constexpr):
    """Carry 64 rows of S as float32 accumulators, and write as many columns of dq and dk."""
    config: gl.constexpr = program.config
    schedule, inputs, scores = program.schedule, program.inputs, program.scores
    value, D_place, key = inputs.values.begin(), inputs.states.begin(), inputs.keys.begin()
    slot = scores.ring.begin()
    count, turn = 0, 0
    first, end, stride = get_items(schedule, 1, config.documents)
    for item in range(first, end, stride):
        work = get_work_item(schedule, item, 1, config.members, config.documents)
        state = load_rows_of_state(program, work, HALF)
        for tile in range(work.first_tile, work.end_tile):
            inputs.values.consumer_wait(value)
            inputs.states.consumer_wait(D_place)
            inputs.keys.consumer_wait(key)
            scores.ring.consumer_wait(slot)
            places = value.slot, key.slot, slot.slot, turn, D_place, count > 0
            state = walk_gradient_tile(program, descs, work, tile, places, state, HALF)
            barrier()
            inputs.values.consumer_release(value)
            scores.ring.consumer_release(slot)
            count += 1
            turn ^= 1
            value = inputs.values.next(value)
            D_place = inputs.states.next(D_place)
            key = inputs.keys.next(key)
            slot = scores.ring.next(slot)
    tma.store_wait(pendings=0)


# --- Kernels ----------------------------------------------------------------------------------------------------------


@gluon.jit
def walk_queries_keys(
    q_desc, k_desc, do_desc, z_desc, dv_desc, state_desc, dq_desc, dk_desc, tensors, scale, counts,
    config: gl.constexpr,
):  # fmt: skip
    """Compute dq and dk of all heads, and the sums of `DeltaGradientTensors`; 4 warps and maxnreg=128."""
    REGISTERS: gl.constexpr = config.state_registers
    SCORE_REGISTERS: gl.constexpr = config.score_registers
    schedule = get_schedule(counts)
    program = allocate_gradient_program(schedule, tensors, config, q_desc)
    prefix = gl.allocate_shared_memory(gl.float32, [64], VECTOR)
    root = gl.allocate_shared_memory(gl.float32, [64], VECTOR)
    gl.warp_specialize(
        [
            (gradient_state_partition, (program, (dq_desc, dk_desc), 0)),
            (gradient_state_partition, (program, (dq_desc, dk_desc), 1)),
            (gradient_score_partition, (program, scale, prefix, root)),
            (load_gradient_tiles, (program, (q_desc, k_desc, do_desc, z_desc, dv_desc, state_desc))),
        ],
        [4, 4, 1],
        [REGISTERS, SCORE_REGISTERS, 24],
    )


# --- Host -------------------------------------------------------------------------------------------------------------


def launch_queries_keys(
    inputs: tuple[Tensor, ...], *, gates: DeltaGates, gated: bool, initial: Tensor | None, scale: float,
    plan: DeltaPlan, places: WalkPlaces | None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:  # fmt: skip
    """Return dq, dk (.., T, d_qk) of heads of q or of v, dg, None without a decay, and dbeta (B, H, T) float32.

    Args:
        inputs: q, k, do, Z, dv and D, see `walks.launch_walk`.
        initial: the states before segments, (B, H, segments, d_qk, d_hv) float32, or None for zero.
        places: of documents.
    """
    q, beta = inputs[0], gates.beta
    B, H, _, T, d_qk, d_hv = plan.sizes
    walk = plan.queries_keys
    of_each = q.shape[1] * walk.members < H
    if of_each:
        dq, dk = (torch.empty((B, H, T, d_qk), dtype=q.dtype, device=q.device) for _ in range(2))
    else:  # with the strides of q and k, so that nobody copies
        dq, dk = (torch.empty_like(x) for x in inputs[:2])
    if places is not None:
        places.clear(dq)
        places.clear(dk)
    sums = beta.new_empty((plan.pieces, B * H, plan.cut.tiles, SUMS, TILE))
    descs = tuple(map(descriptor, (*inputs, dq, dk)))
    for member, piece in product(range(walk.members), range(plan.pieces)):
        config = DeltaGradientsConfig.of(
            d_qk=d_qk, d_hv=d_hv, gated=gated, piece=piece, members=walk.members,
            adds=member + piece > 0, of_each=of_each, loads=initial is not None, documents=places is not None,
        )  # fmt: skip
        tensors = DeltaGradientTensors(gates, beta if initial is None else initial, sums[piece])
        enqueue(
            walk_queries_keys, walk.programs, *descs, tensors, scale, DeltaCounts.of(walk, member, places),
            config=config, num_warps=4, maxnreg=128, **ASSEMBLY,
        )  # fmt: skip
    dg, dbeta = torch.empty_like(beta) if gated else None, torch.empty_like(beta)
    steps = None if places is None else places.steps
    given = sums, gates.g, dbeta if dg is None else dg, dbeta, steps, T, plan.cut.tiles
    enqueue(finish_gates, B * H * plan.cut.tiles, *given, PIECES=plan.pieces, GATED=gated, num_warps=1)
    return dq, dk, dg, dbeta
