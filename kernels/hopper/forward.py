# type: ignore   # Gluon: what runs on the device has no types that a Python checker knows
"""Fused forward pass of gated linear attention: h, and the states before and after each segment.

A program walks over the tiles of a (batch, head) row, 64 steps each, and keeps the matrix memory C on chip:

    H_i = 2^x_i C^T Q_i + sum_{j <= i} P_ij V_j             P_ij = (Q_i . K_j) 2^(x_i + y_j)
    C  <- 2^g C + sum_j 2^(y_j + g) K_j V_j^T               after every tile

x and y (one value a step) and g (one a tile) are base-2 exponents that exponents.py has summed within each tile. Gates,
stabiliser and the scale of Q are all in them.

Partitions of a program, and what connects them:

    load         1 warp    copies tiles of Q, K, V to shared memory by TMA  -> InputTiles, a ring of stages
    score        4 warps   P and the decays of a tile                       -> Scores, a ring of slots
    state 0      4 warps   C^T and H^T, the upper half of their rows        -> H, by TMA
    state 1      4 warps   C^T and H^T, the lower half of their rows        -> H, by TMA
    normaliser   2 warps   n and denominators, see normaliser.py            -> whoever divides H by them

The state is kept transposed, [d_hv, d_qk], so that its rows are columns of V and H. A program holds 128 or 256 rows; a
wider d_hv takes several programs ("pieces"). TMA pads with zeros beyond the last step or column, and loses what is
written there.

A sequence of several segments takes a pass that makes the states they start from (segment_states.py), then a walk over
all of them side by side; the walk over a short first segment runs while that pass does. Where backward has other
segments, h writes down what these start from. Heads that share q and k may share a program too (packed_heads.py).
"""

from typing import Any

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma

from tflabench.kernels.gates import Exponents
from tflabench.kernels.launching import enqueue
from tflabench.kernels.state import State
from tflabench.kernels.tfla.device import multiprocessors
from tflabench.kernels.tfla.tiles import aligned
from tflabench.kernels.types import Gate

from .config import WalkConfig
from .conversions import nearest
from .cuts import Shape, chosen_for_forward
from .exponents import exponents
from .launch import Inputs, descriptor, pointers
from .normaliser import NormaliserTensors, allocate_normaliser, multiply_by_normaliser, normaliser_partition
from .packed_heads import launch_packed_heads
from .pipeline import Cursor, Ring, aggregate, allocate_ring, begin_kernel, end_kernel
from .schedule import (
    Counts,
    Schedule,
    get_kept_index,
    get_work_item,
    starts_kept_segment,
    stores_state_after,
)
from .segment_states import (
    ConcurrentFirstSegment,
    SegmentStates,
    StateInputs,
    first_segment_programs,
    launch_segment_states,
    skip_first_segment,
)
from .shapes import TILE, Segments, WalkShape, heads_together
from .state import Matrices, States, finish_state_update, split_decay, start_state_update, state_pointers
from .tiles import (
    ACC,
    ACC_COLUMN,
    ACC_OPERAND,
    ACC_ROW,
    BLOCK_BYTES,
    STEP,
    STEP_OF_WARP,
    VECTOR,
    block,
    load_blocks,
    operands,
)
from .workarounds import (
    ASSEMBLY,
    barrier,
    opaque_zero,
    tma_store,
    uniform,
    wait_for_kernel_before,
    wait_for_products,
    zero_in_round,
)

# --- What partitions share --------------------------------------------------------------------------------------------


@aggregate
class InputTiles:
    """A ring of stages in shared memory, each a tile of Q, K and V in blocks of 64 steps by 64 columns.

    Fields:
        q, k: [stages * blocks_qk, 1, 1, 64, 64].  v: [stages * 2 * blocks_hv, 1, 1, 64, 64]. 16 bits.
    """

    ring: Ring
    q: gl.shared_memory_descriptor
    k: gl.shared_memory_descriptor
    v: gl.shared_memory_descriptor


@aggregate
class Scores:
    """A ring of slots in shared memory, each the P of a tile and its decays.

    Without a normaliser `score` writes the decays, a slot each. With one `load` does, a stage each, but for q_decay
    where `score` divides it.

    Fields:
        p: [slots, 64, 64], i by j, 16 bits.
        q_decay: [slots or stages, 64] float32, by which what step i reads from the state is multiplied.
        k_decay: [slots or stages, 64] float32, by which what step j writes to the state is multiplied.
        state_decay: the same shape, copies of the factor of the state; only where `config.shares_decay`.
    """

    ring: Ring
    p: gl.shared_memory_descriptor
    q_decay: gl.shared_memory_descriptor
    k_decay: gl.shared_memory_descriptor
    state_decay: gl.shared_memory_descriptor


@aggregate
class Program:
    """Everything that all partitions of a program share.

    Fields:
        gates: pointers to x, y (B, H, tiles * 64) and g (B, H, tiles).
        norm: a `Normaliser`, or None.
    """

    config: gl.constexpr
    schedule: Schedule
    gates: gl.tuple
    states: gl.tuple
    inputs: InputTiles
    scores: Scores
    norm: object


@gluon.jit
def allocate_inputs(config: gl.constexpr, desc):
    """Return the ring of a program's input tiles; desc describes blocks of Q, K or V."""
    STAGES: gl.constexpr = config.num_stages
    BLOCKS_QK: gl.constexpr = config.blocks_qk
    BLOCKS_V: gl.constexpr = 2 * config.blocks_hv
    NORMALISED: gl.constexpr = 1 if config.normalise else 0
    # Both state partitions, `score` and `normaliser` read a stage; TMA and, for gates, `load` itself write it.
    ring = allocate_ring(STAGES, 3 + NORMALISED, 1 + NORMALISED)
    q = gl.allocate_shared_memory(desc.dtype, [STAGES * BLOCKS_QK, 1, 1, 64, 64], desc.layout)
    k = gl.allocate_shared_memory(desc.dtype, [STAGES * BLOCKS_QK, 1, 1, 64, 64], desc.layout)
    v = gl.allocate_shared_memory(desc.dtype, [STAGES * BLOCKS_V, 1, 1, 64, 64], desc.layout)
    return InputTiles(ring=ring, q=q, k=k, v=v)


@gluon.jit
def allocate_scores(config: gl.constexpr, dtype: gl.constexpr):
    """Return the ring of a program's scores; dtype is that of Q, K and V."""
    SLOTS: gl.constexpr = config.num_slots
    DECAYS: gl.constexpr = config.num_stages if config.normalise else SLOTS
    Q_DECAYS: gl.constexpr = config.num_stages if config.divide_late else SLOTS
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, 64], dtype)
    prob = gl.allocate_shared_memory(dtype, [SLOTS, 64, 64], layout)
    q_decay = gl.allocate_shared_memory(gl.float32, [Q_DECAYS, 64], VECTOR)
    k_decay = gl.allocate_shared_memory(gl.float32, [DECAYS, 64], VECTOR)
    state_decay = k_decay
    if config.shares_decay:
        state_decay = gl.allocate_shared_memory(gl.float32, [DECAYS, 64], VECTOR)
    ring = allocate_ring(SLOTS, 2)  # both state partitions read a slot
    return Scores(ring=ring, p=prob, q_decay=q_decay, k_decay=k_decay, state_decay=state_decay)


@gluon.jit
def load_gates(gates, row, tile, num_tiles, t):
    """Return x, y ([64] each) and g of a tile; t counts its steps."""
    at = (row * num_tiles + tile) * 64 + t
    return gl.load(gates.x + at), gl.load(gates.y + at), gl.load(gates.g + row * num_tiles + tile)


# --- Load partition ---------------------------------------------------------------------------------------------------


@gluon.jit
def stage_gates(program, pointers, work, tile, stage, pending):
    """Copy x, y and m of a tile, [64] each, to its stage, and the decays made of them.

    Returns:
        What of the decay stays pending, see `split_decay`.
    """
    config: gl.constexpr = program.config
    schedule, scores, norm = program.schedule, program.scores, program.norm
    t = gl.arange(0, 64, layout=STEP_OF_WARP)
    x, y, g = load_gates(program.gates, work.row, tile, schedule.num_tiles, t)
    step = tile * 64 + t
    m = gl.load(pointers.m + work.row * schedule.num_steps + step, mask=step < schedule.num_steps, other=0.0)
    norm.x(stage).store(x)
    norm.y(stage).store(y)
    norm.m(stage).store(m)
    if config.divide_late:
        scores.q_decay.index(stage).store(gl.exp2(x + pending))
    state_decay = 0.0
    if config.defer_decay:
        flush = stores_state_after(schedule, work, tile, config.keep_states)
        state_decay, pending = split_decay(pending, g, flush)
    elif config.shares_decay:
        state_decay = gl.exp2(g)
    scores.k_decay.index(stage).store(gl.exp2(y + (g - pending)))
    if config.shares_decay:
        scores.state_decay.index(stage).store(gl.full([64], state_decay, gl.float32, layout=STEP_OF_WARP))
    barrier()
    return pending


@gluon.jit
def load_partition(program, q_desc, k_desc, v_desc, norm_pointers):
    """Copy the tiles of Q, K and V to shared memory, in the order of the walk."""
    config: gl.constexpr = program.config
    schedule, inputs, ring = program.schedule, program.inputs, program.inputs.ring
    BLOCKS_QK: gl.constexpr = config.blocks_qk
    BLOCKS_V: gl.constexpr = 2 * config.blocks_hv
    i = 0
    for item in range(gl.program_id(0), schedule.num_items, gl.num_programs(0)):
        work = get_work_item(schedule, item, config)
        pending = 0.0
        for tile in range(work.first_tile, work.end_tile):
            stage = ring.at(i)
            ring.producer_acquire(stage)
            fence_async_shared()  # consumers' reads of the stage, before the copies write there
            full = ring.full.index(stage.slot)
            mbarrier.expect(full, BLOCK_BYTES * (2 * BLOCKS_QK + BLOCKS_V))
            at_qk = (work.batch, work.qk_head, tile * 64, 0)
            at_v = (work.batch, work.head, tile * 64, work.piece * (64 * BLOCKS_V))
            load_blocks(q_desc, at_qk, inputs.q, stage.slot * BLOCKS_QK, BLOCKS_QK, full)
            load_blocks(k_desc, at_qk, inputs.k, stage.slot * BLOCKS_QK, BLOCKS_QK, full)
            load_blocks(v_desc, at_v, inputs.v, stage.slot * BLOCKS_V, BLOCKS_V, full)
            if config.normalise:
                pending = stage_gates(program, norm_pointers, work, tile, stage.slot, pending)
                ring.producer_commit(stage)
            i += 1


# --- Score partition --------------------------------------------------------------------------------------------------


@gluon.jit
def multiply_qk(inputs, stage, BLOCKS: gl.constexpr, OPERANDS: gl.constexpr):
    """Return Q K^T of a tile, [64, 64] float32."""
    q = operands(inputs.q, inputs.ring.num_slots, BLOCKS, OPERANDS)
    k = operands(inputs.k, inputs.ring.num_slots, BLOCKS, OPERANDS)
    qk = gl.zeros([64, 64], gl.float32, layout=ACC)
    for b in gl.static_range(OPERANDS):
        # [64, d_qk / OPERANDS] @ [d_qk / OPERANDS, 64] -> [64, 64]
        at = uniform(stage.slot) * OPERANDS + b
        qk = warpgroup_mma(q.index(at), k.index(at).permute((1, 0)), qk, use_acc=(b > 0), is_async=True)
    return wait_for_products(0, deps=(qk,))


@gluon.jit
def apply_decay(qk, x, y):
    """Return P = (Q K^T) * D, [64, 64]: D_ij = 2^(x_i + y_j) for j <= i, else 0; x, y: [64]."""
    row = gl.arange(0, 64, layout=ACC_ROW)
    column = gl.arange(0, 64, layout=ACC_COLUMN)
    return gl.where(row[:, None] >= column[None, :], qk * gl.exp2(x[:, None] + y[None, :]), 0.0)


@gluon.jit
def add_to_diagonal(prob, value):
    """Add a number to the diagonal of P, [64, 64]."""
    row = gl.arange(0, 64, layout=ACC_ROW)
    column = gl.arange(0, 64, layout=ACC_COLUMN)
    return prob + gl.where(row[:, None] == column[None, :], value, 0.0)


@gluon.jit
def commit_scores(scores, slot, prob):
    """Write P to its slot, which has been acquired, and hand it to the state partitions."""
    scores.p.index(slot.slot).store(nearest(prob, scores.p.dtype))
    fence_async_shared()
    barrier()  # every warp has written its part of the slot; without a normaliser, every warp has read x and y
    scores.ring.producer_commit(slot)


@gluon.jit
def score_partition(program, skip_ptr, x_smem, y_smem):
    """Compute P = (Q K^T) * D and the decays of every tile, ahead of the state partitions.

    The exponents of a tile are loaded while the tile before it is at work, and spread through shared memory, [64] each.
    """
    config: gl.constexpr = program.config
    if config.load_early:
        begin_kernel(INDEPENDENT=False)
    schedule, inputs, scores = program.schedule, program.inputs, program.scores
    num_tiles = schedule.num_tiles
    t = gl.arange(0, 64, layout=STEP)
    stage, slot = inputs.ring.begin(), scores.ring.begin()
    for item in range(gl.program_id(0), schedule.num_items, gl.num_programs(0)):
        work = get_work_item(schedule, item, config)
        if config.skip:
            skip = gl.load(skip_ptr + work.head)
        pending = 0.0
        next_x, next_y, next_g = load_gates(program.gates, work.row, work.first_tile, num_tiles, t)
        for tile in range(work.first_tile, work.end_tile):
            x, y, g = next_x, next_y, next_g
            x_smem.store(x)
            y_smem.store(y)
            barrier()
            next_tile = gl.minimum(tile + 1, work.end_tile - 1)
            next_x, next_y, next_g = load_gates(program.gates, work.row, next_tile, num_tiles, t)

            inputs.ring.consumer_wait(stage)
            qk = multiply_qk(inputs, stage, config.blocks_qk, config.score_operands)
            # Exponents are read after the product: held in registers before it, they would serialise it (C7512).
            prob = apply_decay(qk, x_smem.load(ACC_ROW), y_smem.load(ACC_COLUMN))
            if config.skip:
                prob = add_to_diagonal(prob, skip)

            pending_before = pending
            if config.defer_decay:
                flush = stores_state_after(schedule, work, tile, config.keep_states)
                state_decay, pending = split_decay(pending, g, flush)
            else:
                state_decay = gl.exp2(g)
            scores.ring.producer_acquire(slot)
            scores.q_decay.index(slot.slot).store(gl.exp2(x + pending_before))
            scores.k_decay.index(slot.slot).store(gl.exp2(y + (g - pending)))
            if config.shares_decay:
                scores.state_decay.index(slot.slot).store(gl.full([64], state_decay, gl.float32, layout=STEP))
            commit_scores(scores, slot, prob)
            inputs.ring.consumer_release(stage)
            stage = inputs.ring.next(stage)
            slot = scores.ring.next(slot)


@gluon.jit
def normalised_score_partition(program):
    """Compute what `score_partition` does, and products that the normaliser needs. Exponents come with the tiles."""
    config: gl.constexpr = program.config
    schedule, inputs, scores, norm = program.schedule, program.inputs, program.scores, program.norm
    OPERANDS: gl.constexpr = config.score_operands
    stage, slot = inputs.ring.begin(), scores.ring.begin()
    phase = 0
    for item in range(gl.program_id(0), schedule.num_items, gl.num_programs(0)):
        work = get_work_item(schedule, item, config)
        for tile in range(work.first_tile, work.end_tile):
            inputs.ring.consumer_wait(stage)
            qk = multiply_qk(inputs, stage, config.blocks_qk, OPERANDS)
            x = norm.x(stage.slot).load(ACC_ROW)
            prob = apply_decay(qk, x, norm.y(stage.slot).load(ACC_COLUMN))
            if config.divide_late:
                scores.ring.producer_acquire(slot)
                commit_scores(scores, slot, prob)
            norm.denominator.index(slot.slot).store(gl.sum(prob, axis=1))
            zero = zero_in_round(tile)
            turn = Cursor(gl.to_tensor(0), gl.to_tensor(phase))
            multiply_by_normaliser(program, stage.slot + zero, zero, turn, OPERANDS)
            phase ^= 1
            if not config.divide_late:
                norm.denominator_ready.wait(slot)
                inverse = norm.denominator.index(slot.slot).load(ACC_ROW)
                prob = prob * inverse[:, None]
                scores.ring.producer_acquire(slot)
                scores.q_decay.index(slot.slot).store(gl.exp2(x) * inverse)
                commit_scores(scores, slot, prob)
            inputs.ring.consumer_release(stage)
            stage = inputs.ring.next(stage)
            slot = scores.ring.next(slot)


# --- State partitions -------------------------------------------------------------------------------------------------


@gluon.jit
def load_state(program, work, hv, i):
    """Return the rows of C^T from hv on that a state partition carries.

    Args:
        i: a counter, for `opaque_zero`: it keeps addresses out of registers during the walk. One zero for all
            columns would serialise the products at d_qk = 256 (C7512).

    Returns:
        blocks_hv rows of blocks_qk accumulators, [64, 64] each.
    """
    config: gl.constexpr = program.config
    D_HV: gl.constexpr = config.d_hv
    BLOCKS_HV: gl.constexpr = config.blocks_hv
    BLOCKS_QK: gl.constexpr = config.blocks_qk
    zero = opaque_zero(i)
    initial = program.states.initial + work.state_index * (config.d_qk * config.d_hv)
    state = ()
    for r in gl.static_range(BLOCKS_HV):
        blocks = ()
        for j in gl.static_range(BLOCKS_QK):
            if config.load_initial_state:
                at, rows = state_pointers(initial, hv + 64 * r + zero, 64 * j + opaque_zero(i, j), 1, D_HV, ACC)
                blocks += (gl.load(at, mask=rows < D_HV, other=0.0),)
            elif config.load_zeros:
                # Zeros from a load that never happens: of constants that nothing multiplies ptxas would serialise the
                # products (C7512).
                at, rows = state_pointers(program.states.initial, zero, zero, 1, D_HV, ACC)
                blocks += (gl.load(at, mask=(rows < D_HV) & (zero > 0), other=0.0),)
            else:
                blocks += (gl.zeros([64, 64], gl.float32, layout=ACC),)
        state += (blocks,)
    return state


@gluon.jit
def store_state(program, ptr, state, hv, zero):
    """Write the rows of C^T from hv on to the matrix C (d_qk, d_hv) at ptr; zero is of `opaque_zero`."""
    config: gl.constexpr = program.config
    D_HV: gl.constexpr = config.d_hv
    BLOCKS_HV: gl.constexpr = config.blocks_hv
    BLOCKS_QK: gl.constexpr = config.blocks_qk
    for i in gl.static_range(BLOCKS_HV):
        for j in gl.static_range(BLOCKS_QK):
            at, rows = state_pointers(ptr, hv + 64 * i + zero, 64 * j + zero, 1, D_HV, ACC)
            gl.store(at, state[i][j], mask=rows < D_HV)


@gluon.jit
def read_state(blocks, q, first_block, BLOCKS: gl.constexpr):
    """Return C^T Q^T of 64 rows of the state, [64, d_qk] @ [d_qk, 64] -> [64, 64] float32."""
    h = gl.zeros([64, 64], gl.float32, layout=ACC)
    for j in gl.static_range(BLOCKS):
        # [64, 64] @ [64, 64] -> [64, 64]
        c = gl.convert_layout(blocks[j].to(q.dtype), ACC_OPERAND)
        qT = block(q, first_block + j).permute((1, 0))
        h = warpgroup_mma(c, qT, h, use_acc=(j > 0), is_async=True)
        h, c = wait_for_products(0, deps=(h, c))
    return h


@gluon.jit
def scale_blocks(blocks, factor, BLOCKS: gl.constexpr):
    """Multiply all blocks of the state by a factor."""
    scaled = ()
    for j in gl.static_range(BLOCKS):
        scaled += (blocks[j] * factor,)
    return scaled


@gluon.jit
def apply_due_decay(blocks, scores, i, BLOCKS: gl.constexpr):
    """Multiply all blocks of the state by what of their decay is due, if anything, see `split_decay`."""
    factor = gl.sum(scores.state_decay.index(i).slice(0, 1).load(STEP), axis=0)
    if factor != 1.0:
        blocks = scale_blocks(blocks, factor, BLOCKS)
    return blocks


@gluon.jit
def walk_tile(program, output, work, tile, i, hv, state, HALF: gl.constexpr):
    """Write 64 * blocks_hv columns of H, from hv on, for the i-th tile of this program.

    Args:
        output: the descriptor of H, and a ring of blocks in shared memory on their way there.
        state: as `load_state` returns it.

    Returns:
        The state after the tile.
    """
    config: gl.constexpr = program.config
    h_desc, h_smem = output
    inputs, scores = program.inputs, program.scores
    BLOCKS_QK: gl.constexpr = config.blocks_qk
    BLOCKS_HV: gl.constexpr = config.blocks_hv
    ACCUMULATORS: gl.constexpr = config.accumulators
    NUM_H: gl.constexpr = config.num_slots
    k = operands(inputs.k, config.num_stages, BLOCKS_QK, ACCUMULATORS)
    stage, slot = inputs.ring.at(i), scores.ring.at(i)
    inputs.ring.consumer_wait(stage)
    if not config.shares_decay:
        state_decay = gl.exp2(gl.load(program.gates.g + work.row * program.schedule.num_tiles + tile))
    new_state = ()
    for r in gl.static_range(BLOCKS_HV):
        s, b = stage.slot, slot.slot
        if BLOCKS_QK < 4:  # addresses anew for each r: kept, they spill; with four blocks this serialises (C7512)
            s += opaque_zero(i, r)
            b += opaque_zero(i, r)
        vT = block(inputs.v, (s * 2 + HALF) * BLOCKS_HV + r).permute((1, 0))

        # H^T = q_decay * C^T Q^T + V^T P^T, [64, 64] for 64 columns of H
        h = read_state(state[r], inputs.q, s * BLOCKS_QK, BLOCKS_QK)
        tma.store_wait(pendings=NUM_H - 1)
        barrier()  # a buffer for H is free
        if r == 0:
            scores.ring.consumer_wait(slot)
        h = h * scores.q_decay.index(s if config.divide_late else b).load(ACC_COLUMN)[None, :]
        decays = s if config.normalise else b
        blocks = state[r]
        if config.defer_decay:
            blocks = apply_due_decay(blocks, scores, decays, BLOCKS_QK)
        h = warpgroup_mma(vT, scores.p.index(b).permute((1, 0)), h, is_async=True)  # [64, 64] @ [64, 64] -> [64, 64]

        # C^T = state_decay * C^T + (k_decay V)^T K, [64, d_qk]. All blocks are multiplied before the first product
        # starts: nothing may touch accumulators that are in flight.
        if not config.defer_decay:
            if config.shares_decay:
                state_decay = scores.state_decay.index(decays).load(ACC_ROW)[:, None]
            blocks = scale_blocks(blocks, state_decay, BLOCKS_QK)
        in_flight, kept = start_state_update(blocks, vT, scores.k_decay.index(decays), k, s, ACCUMULATORS)
        if BLOCKS_HV == 1:
            h = wait_for_products(2 * ACCUMULATORS, deps=(h,))  # the state is updated while H is written
        else:
            h = wait_for_products(0, deps=(h,))  # as above ptxas would serialise the products (C7512)
        if config.divide_late:
            if r == 0:
                program.norm.denominator_ready.wait(slot)
            h = h * program.norm.denominator.index(b).load(ACC_COLUMN)[None, :]

        out = h_smem.index((i * BLOCKS_HV + r) % NUM_H)
        out.reshape([64, 64]).permute((1, 0)).store(h.to(out.dtype))
        fence_async_shared()
        barrier()
        if r == BLOCKS_HV - 1:
            scores.ring.consumer_release(slot)
        tma_store(h_desc, [work.batch, work.head, tile * 64, hv + 64 * r], out)
        new_state += (finish_state_update(wait_for_products(0, deps=in_flight + kept), BLOCKS_QK),)
    barrier()
    inputs.ring.consumer_release(stage)
    return new_state


@gluon.jit
def state_partition(program, h_desc, h_smem, HALF: gl.constexpr):
    """Carry half of the rows of C^T as float32 accumulators, and write the columns of H that come of them.

    The two partitions of a program do not wait for one another, so one multiplies while the other stores.
    """
    config: gl.constexpr = program.config
    if config.load_early:
        wait_for_kernel_before()
    schedule, states = program.schedule, program.states
    i = 0
    for item in range(gl.program_id(0), schedule.num_items, gl.num_programs(0)):
        work = get_work_item(schedule, item, config)
        hv = (2 * work.piece + HALF) * (64 * config.blocks_hv)
        state = load_state(program, work, hv, i)
        for tile in range(work.first_tile, work.end_tile):
            if config.keep_states:  # noqa: SIM102
                if starts_kept_segment(schedule, tile):
                    kept_index = get_kept_index(schedule, work.row, tile)
                    kept = states.kept + kept_index * (config.d_qk * config.d_hv)
                    store_state(program, kept, state, hv, opaque_zero(i))
            state = walk_tile(program, (h_desc, h_smem), work, tile, i, hv, state, HALF)
            i += 1
        if config.store_final_state:
            final = states.final + work.state_index * (config.d_qk * config.d_hv)
            store_state(program, final, state, hv, opaque_zero(i))
    tma.store_wait(pendings=0)


# --- Kernels ----------------------------------------------------------------------------------------------------------


@gluon.jit
def allocate_program(schedule, gates, states, config: gl.constexpr, desc):
    """Return what all partitions share; desc describes blocks of Q, K or V."""
    inputs = allocate_inputs(config, desc)
    scores = allocate_scores(config, desc.dtype)
    norm = None
    if config.normalise:
        norm = allocate_normaliser(config, desc.dtype)
    return Program(config, schedule, gates, states, inputs, scores, norm)


@gluon.jit
def allocate_output(config: gl.constexpr, desc):
    """Return a ring of blocks of H, [slots, 1, 1, 64, 64], on their way out of a state partition."""
    return gl.allocate_shared_memory(desc.dtype, [config.num_slots, 1, 1, 64, 64], desc.layout)


@gluon.jit(do_not_specialize=["num_items", "num_steps", "num_tiles"])
def walk_forward(
    q_desc, k_desc, v_desc, h_desc, gates, states, skip_ptr, num_items, num_steps, num_tiles, counts,
    config: gl.constexpr,
):  # fmt: skip
    """Compute H of all work items, and the states after them; launched with 4 warps and maxnreg=128.

    Args:
        q_desc, k_desc, v_desc, h_desc: of blocks of q, k (B, heads, T, d_qk) and v, h (B, H, T, d_hv), 16 bits.
        gates: `Exponents`.  states: `States`.
        num_items, num_steps, num_tiles, counts: of a `Schedule`.
        skip_ptr: (H,) float32, read if `config.skip`.
    """
    REGISTERS: gl.constexpr = config.state_registers
    schedule = Schedule(num_items, num_steps, num_tiles, counts)
    program = allocate_program(schedule, gates, states, config, q_desc)
    h_smem0 = allocate_output(config, q_desc)
    h_smem1 = allocate_output(config, q_desc)
    x_smem = gl.allocate_shared_memory(gl.float32, [64], VECTOR)
    y_smem = gl.allocate_shared_memory(gl.float32, [64], VECTOR)
    if not config.load_early:
        begin_kernel(config.independent)
    gl.warp_specialize(
        [
            (state_partition, (program, h_desc, h_smem0, 0)),
            (state_partition, (program, h_desc, h_smem1, 1)),
            (score_partition, (program, skip_ptr, x_smem, y_smem)),
            (load_partition, (program, q_desc, k_desc, v_desc, None)),
        ],
        [4, 4, 1],
        [REGISTERS, 488 - 2 * REGISTERS, 24],
    )
    end_kernel(config.independent)


@gluon.jit(do_not_specialize=["num_items", "num_steps", "num_tiles"])
def walk_forward_normalised(
    q_desc, k_desc, v_desc, h_desc, gates, states, norm, num_items, num_steps, num_tiles, counts,
    config: gl.constexpr,
):  # fmt: skip
    """Compute what `walk_forward` does, divided by the denominators, and n after the work items.

    Args:
        norm: `NormaliserTensors`; the others as of `walk_forward`.
    """
    REGISTERS: gl.constexpr = config.state_registers
    schedule = Schedule(num_items, num_steps, num_tiles, counts)
    program = allocate_program(schedule, gates, states, config, q_desc)
    h_smem0 = allocate_output(config, q_desc)
    h_smem1 = allocate_output(config, q_desc)
    begin_kernel(config.independent)
    gl.warp_specialize(
        [
            (state_partition, (program, h_desc, h_smem0, 0)),
            (state_partition, (program, h_desc, h_smem1, 1)),
            (normalised_score_partition, (program,)),
            (load_partition, (program, q_desc, k_desc, v_desc, norm)),
            (normaliser_partition, (program, norm)),
        ],
        [4, 4, 1, 2],
        [REGISTERS, 488 - 2 * REGISTERS, 24, 24],
    )
    end_kernel(config.independent)


# --- Host -------------------------------------------------------------------------------------------------------------


def launch_walk(
    inputs: Inputs, h: Tensor, cut: Segments, *,
    states: States | None = None, norm: NormaliserTensors | None = None, kept_cut: Segments | None = None,
    segments: range | None = None, independent: bool = False,
) -> None:  # fmt: skip
    """Write h (B, H, T, d_hv), and the states that are asked for.

    Args:
        cut: where segments begin; with more than one, `states` has what each of them starts from.
        states: what is None is neither read nor written.
        norm: divide h by the denominators.
        kept_cut: the cut for whose segments states are kept, where `states.kept` is given.
        segments: write the part of h of these only.
        independent: the kernel launched just before makes nothing that this one reads, so it need not wait for it.
    """
    q, k, v, gates, skip = inputs
    B, H, T, d_hv = v.shape
    d_qk = q.shape[-1]
    states = states or States()
    segments = range(cut.count) if segments is None else segments
    chip = multiprocessors(q.device)
    rows = B * H * len(segments)
    config = WalkConfig.of(
        WalkShape.filling(d_qk, d_hv, rows, chip, sums=False, norm=norm is not None), d_qk, d_hv,
        bfloat16=q.dtype == torch.bfloat16, shared_heads=q.shape[1] < H, normalise=norm is not None,
        skip=skip is not None, load_initial_state=states.initial is not None,
        store_final_state=states.final is not None, keep_states=states.kept is not None, independent=independent,
    )  # fmt: skip
    items = rows * config.pieces
    kept = () if kept_cut is None else (kept_cut.segment_tiles, kept_cut.count)
    counts = Counts(H, H // q.shape[1], cut.segment_tiles, cut.count, segments.stop, len(segments), *kept).as_argument()
    # The pieces of a state run side by side, for the L2 cache, so they are to start together and not as the kernel
    # before leaves multiprocessors. A first segment takes those that the state pass leaves.
    programs = min(items, max(1, chip // config.pieces) * config.pieces)
    overlap = config.pieces == 1 or segments.stop < cut.count
    unused = gates.g
    if norm is None:
        kernel, more = walk_forward, unused if skip is None else skip
    else:
        kernel, more = walk_forward_normalised, pointers(norm, unused)
    enqueue(
        kernel, programs, *map(descriptor, (q, k, v, h)), gates, pointers(states, unused), more,
        items, T, cut.tiles, counts, config=config, num_warps=4, maxnreg=128, launch_pdl=overlap, **ASSEMBLY,
    )  # fmt: skip


def forward(
    q: Tensor, k: Tensor, v: Tensor, f: Tensor, i: Tensor | None, initial: State | None, *,
    gate: Gate, scale: float, chunk_size: int, state_dtype: torch.dtype = torch.float32, config: Any = None,
    skip: Tensor | None = None, return_last_state: bool = True, cut_freely: bool = False,
) -> tuple[Tensor, State | None, tuple[Tensor, ...]]:  # fmt: skip
    """Return h, the last state or None, and what `backward` needs in addition to the inputs (see `empty_saved`).

    Args:
        q, k: (B, H, T, d_qk), or fewer heads, each for consecutive ones of v: (B, H, T, d_hv); bfloat16 or float16, any
            strides (copied where TMA cannot take them).
        f, i: gates as `Gate` describes them; initial: state before the first step, float32.
        chunk_size: L, a multiple of 64: steps between two states in memory; nothing below T materialises none at all.
        state_dtype: without effect: states are float32, one every L steps.
        skip: (H,), for a gate without normaliser: h_t has skip v_t added.
        return_last_state: without it the last of several segments needs no state pass.
        cut_freely: chunk_size is that of backward, for which states are saved; forward may cut the sequence otherwise.
    """
    del state_dtype, config
    B, H, T, _ = v.shape
    together = not gate.normalize and heads_together(q, v) > 1
    cut = backward_cut = Segments.of(T, chunk_size)
    kept = kept_cut = None
    if cut_freely and cut.count > 1 and not together:
        cut = Segments.of(T, chosen_for_forward(Shape.of(q, v, gate)).chunk_size(T))
        if cut != backward_cut:
            kept_cut, kept = backward_cut, _empty_states(q, v, backward_cut.count)
    # First, for h may read copies before it waits for a kernel (`WalkConfig.load_early`).
    q, k, v_aligned, skip = aligned(-q if scale < 0 else q), aligned(k), aligned(v), weights(skip)
    log_f, m, e = exponents(f, i, gate, (B, H, T), None if initial is None else initial.m, abs(scale))
    h = torch.empty_like(v)
    out = h if aligned(h) is h else torch.empty(v.shape, dtype=v.dtype, device=v.device)
    norm = None
    if gate.normalize:
        lowest = torch.zeros((B, H, T), dtype=torch.float32, device=q.device) if m is None else m
        norm = NormaliserTensors(lowest, torch.empty_like(e.x), None, None)
    inputs = Inputs(q, k, v_aligned, e, skip)

    def walk(initial: Matrices, final: Matrices, **options: Any) -> None:
        """Write h, out of the states before segments, and the states after them."""
        states = States(initial.C, final.C, kept)
        if together:
            launch_packed_heads(inputs, out, cut, states)
            return
        n = None if norm is None else norm._replace(initial=initial.n, final=final.n)
        launch_walk(inputs, out, cut, states=states, norm=n, kept_cut=kept_cut, **options)

    before, end, saved = initial_matrices(initial), Matrices(), () if kept is None else (kept,)
    if cut.count > 1:
        states = _walk_segments(
            walk, inputs, cut, before,
            normalise=norm is not None, end=return_last_state, may_overlap=not together,
        )  # fmt: skip
        end, saved = states.end, saved or (states.starts.C,)
    else:
        if return_last_state:
            C = _empty_states(q, v, 1)[:, :, 0]
            end = Matrices(C, C.new_empty(C.shape[:3]) if gate.normalize else None)
        walk(before, end)
    if out is not h:
        h.copy_(out)
    state = State(*end, None if m is None else m[:, :, -1].contiguous()) if return_last_state else None
    log_gates = () if log_f is None else (log_f,)
    return h, state, (*log_gates, e.x if norm is None else norm.x_backward, e.y, e.g, *saved)


def _walk_segments(
    walk: Any, inputs: Inputs, cut: Segments, before: Matrices, *, normalise: bool, end: bool, may_overlap: bool
) -> SegmentStates:
    """Make the states that segments start from, and walk over the segments.

    Args:
        walk: takes the `Matrices` before and after segments, and options of `launch_walk`.
        before: the states before the first step.
        normalise: with n.
        end: with the states after the last step.
        may_overlap: walk over a short first segment while the state pass runs, where there is room.
    """
    q, k, v, e, _ = inputs
    B, H, _, d_hv = v.shape
    programs = 0
    if may_overlap:
        chip = multiprocessors(q.device)
        programs = first_segment_programs(q.shape[-1], d_hv, B * H, cut, chip, normalise=normalise)

    def walk_first(starts: Matrices) -> None:
        """Write h of the first segment, and the states that the second one starts from."""
        second = Matrices(*(None if x is None else skip_first_segment(x) for x in starts))
        walk(Matrices() if before.C is None else starts, second, segments=range(1), independent=True)

    states = launch_segment_states(
        StateInputs(k, v, e), cut, before=before, normalise=normalise, end=end,
        first_segment=ConcurrentFirstSegment(programs, walk_first) if programs else None,
    )  # fmt: skip
    walk(states.starts, Matrices(), segments=range(1 if programs else 0, cut.count))
    return states


def _empty_states(q: Tensor, v: Tensor, count: int) -> Tensor:
    """Return room for `count` matrices C a head, (B, H, count, d_qk, d_hv) float32."""
    B, H, _, d_hv = v.shape
    return torch.empty((B, H, count, q.shape[-1], d_hv), dtype=torch.float32, device=q.device)


def empty_saved(
    q: Tensor, v: Tensor, *, gate: Gate, chunk_size: int, state_dtype: torch.dtype = torch.float32, config: Any = None
) -> tuple[Tensor, ...]:
    """Return what `forward` saves, uninitialised, all float32.

    log f of a stabilised gate, exponents of backward (x less log2 of the denominator, y, g), and with several segments
    the state each starts from.
    """
    del state_dtype, config
    B, H, T, _ = v.shape
    cut = Segments.of(T, chunk_size)
    shapes = [*[(B, H, T)] * gate.stabilized, *[(B, H, cut.tiles * TILE)] * 2, (B, H, cut.tiles)]
    states = [(B, H, cut.count, q.shape[-1], v.shape[-1])] if cut.count > 1 else []
    return tuple(q.new_empty(shape, dtype=torch.float32) for shape in (*shapes, *states))


def initial_matrices(state: State | None) -> Matrices:
    """Return C and n as the kernels take them."""
    if state is None:
        return Matrices()
    return Matrices(*(None if x is None else x.float().contiguous() for x in state[:2]))


def weights(skip: Tensor | None) -> Tensor | None:
    """Return skip (H,) as the kernels take it."""
    return None if skip is None else skip.float().contiguous()


def restored(gate: Gate, saved: tuple[Tensor, ...]) -> tuple[Tensor | None, Exponents, Tensor | None]:
    """Return log f, the exponents of backward and the states of segments out of what `forward` saved."""
    log_f, (x, y, g, *states) = (saved[0], saved[1:]) if gate.stabilized else (None, saved)
    return log_f, Exponents(x, y, g), states[0] if states else None
