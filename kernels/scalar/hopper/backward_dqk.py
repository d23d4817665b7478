# type: ignore   # Gluon: what runs on the device has no types that a Python checker knows
"""Backward pass of gated linear attention for q and k, and the row sums that gradients of gates are made of.

    dQ_i = 2^x_i C dH_i + sum_{j <= i} P_ij K_j             P_ij = (dH_i . V_j) 2^(x_i + y_j)
    C   <- 2^g C + sum_j 2^(y_j + g) K_j V_j^T              after every tile

    dK_j = 2^(y_j + g) dC V_j + sum_{i >= j} P_ji Q_i       P_ji = (V_j . dH_i) 2^(y_j + x_i)
    dC  <- 2^g dC + sum_i 2^x_i Q_i dH_i^T                  after every tile, from the last one on

Both are walks as state_walk.py has them, and without row sums its partitions are all there is to them: dq has a query
dH, a key V and a value K; dk has a query V, a key dH and a value Q. The primal, Q of dq and K of dk, is what the output
is the gradient of: row sums are those of primal * output. With them a program has these partitions:

    load         1 warp    copies tiles of query, key, value and primal     -> InputTiles, a ring of stages
    score        4 warps   P and the decays of a tile, row sums of dq       -> Scores, a ring of one slot
    state        8 warps   S and out^T, 128 rows; row sums through the state -> a ring of blocks of the output
    send         1 warp    copies blocks of the output to memory by TMA

A state of 512 columns takes two programs, side by side so that they share the primal and the value in the L2. The
second adds its output, by TMA, to what the first has stored: its `send` waits for a count of tiles that the first one's
writes. The first never waits, and has the lower number, so it runs no later.

One state partition has all rows, for instructions of two do not fit the cache. A warp of its own stores the output, so
that no warp of `state` waits for a store or a fence.

Both walks give every pair j < i of different tiles the same number (docs/kernels.md): (2^x_i Q_i) . (2^(y_j + g) K_j),
each rounded as the other walk rounds it for its state, and S query^T as a product with twice the bits of an operand
(`upper` and `lower`). Pairs within a tile are summed over either index from one matrix, while dq is made.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma, warpgroup_mma

from tflabench.kernels.common.cover import cdiv
from tflabench.kernels.common.launching import enqueue
from tflabench.kernels.scalar.gates import Exponents, RowSums
from tflabench.kernels.scalar.plan.hopper import Walk
from tflabench.kernels.scalar.plan.hopper_shapes import HEIGHT, WIDTH

from .config import WalkConfig
from .conversions import rounded, widened
from .launch import WalkInputs, descriptor, pointers
from .pipeline import Ring, aggregate, allocate_ring, begin_kernel, end_kernel, publish_stores, wait_for_stores
from .row_sums import store_warp_sums, write_sums
from .schedule import (
    Counts,
    Schedule,
    get_column_piece,
    get_items,
    get_part_offset,
    get_row_piece,
    get_tile,
    get_work_item,
    is_independent,
    stores_state,
)
from .state import States, finish_state_update, read_both_parts, start_state_update
from .state_walk import (
    allocate_program,
    commit_scores,
    load_gates,
    load_partition,
    load_state,
    run_walk,
    scale_blocks,
    score_tile,
    send_block,
    stage_exponents,
    store_decays,
    store_state,
)
from .tiles import (
    ACC,
    ACC_ROW,
    STEP,
    VECTOR,
    WIDE,
    WIDE_COLUMN,
    WIDE_ROW,
    block,
    operands,
)  # fmt: skip
from .workarounds import ASSEMBLY, barrier, opaque_zero, wait_for_products


class RowSumTensors(NamedTuple):
    """Row sums of primal * output, float32, (parts, B, H, T) each, or None; on the device, pointers.

    Attributes:
        through: as far as the output comes through the state, of each piece.
        rows, columns: of pairs of steps within a tile, added up over keys and over queries; only of dq.
    """

    through: Any = None
    rows: Any = None
    columns: Any = None


class DqkTensors(NamedTuple):
    """Tensors that a kernel reads and writes by pointers.

    Attributes:
        diagonal: (column pieces, B, H, T) float32, see `state_walk.score_partition`.
        stored: (B, H, segments, row pieces) int32, zeros, of a state with two column pieces: tiles of the output that
            the first one has stored.
    """

    gates: Exponents
    states: States
    sums: RowSumTensors
    diagonal: Any
    stored: Any


@aggregate
class Output:
    """A ring in shared memory of tiles of the output, 128 columns each, 16 bits, on their way to `send`."""

    ring: Ring
    blocks: gl.shared_memory_descriptor


@aggregate
class SumBuffers:
    """Row sums of a tile in shared memory, [warps, 64] float32, of the rows that each warp has.

    Fields:
        through: from `state` to `score`, handed over with the slot of P.
        pairs: within `score`, only of dq.
    """

    through: gl.shared_memory_descriptor
    pairs: object


# --- Score partition --------------------------------------------------------------------------------------------------


@gluon.jit
def write_pair_sums(program, sums, pairs_smem, stage, slot, at, steps_left):
    """Write the row sums of a tile that come of pairs of steps within it: M = P * (primal value^T), [64, 64]."""
    config: gl.constexpr = program.config
    inputs = program.inputs
    BLOCKS: gl.constexpr = 2 * config.blocks_value
    pairs = gl.zeros([64, 64], gl.float32, layout=ACC)
    for c in gl.static_range(BLOCKS):
        # [64, 64] @ [64, 64] -> [64, 64]
        valueT = block(inputs.value, stage.slot * BLOCKS + c).permute((1, 0))
        primal = block(inputs.primal, stage.slot * BLOCKS + c)
        pairs = warpgroup_mma(primal, valueT, pairs, use_acc=(c > 0), is_async=True)
    pairs = wait_for_products(0, deps=(pairs,))
    pairs *= widened(program.scores.p.index(slot.slot).load(ACC))
    row = gl.arange(0, 64, layout=ACC_ROW)
    gl.store(sums.rows + at + row, gl.sum(pairs, axis=1), mask=row < steps_left)
    # By hand: Triton 3.9 adds up over warps with seven barriers, and the state partition waits for this one.
    store_warp_sums(pairs, pairs_smem, 0, 4)
    barrier()  # the sums are there, and every warp has read its rows of primal and value
    write_sums(pairs_smem, sums.columns + at, steps_left, gl.arange(0, 64, layout=STEP), STEP)


@gluon.jit
def score_and_sum_partition(program, tensors, buffers, exponents_smem):
    """Compute P and the decays of every tile, as `score_partition` does, and write row sums.

    What the state partition has summed is written a tile later, once it has released the slot of P.
    """
    config: gl.constexpr = program.config
    schedule, inputs, scores, sums = program.schedule, program.inputs, program.scores, tensors.sums
    t = gl.arange(0, 64, layout=STEP)
    stage, slot = inputs.ring.begin(), scores.ring.begin()
    at, steps_left = (schedule.num_steps * 0).to(gl.int64), schedule.num_steps * 0  # of the tile before
    first, end, stride = get_items(schedule, config)
    for item in range(first, end, stride):
        work = get_work_item(schedule, item, config)
        first_tile = get_tile(work, work.first_tile, config)
        next_x, next_y, next_g = load_gates(program.gates, work.row, first_tile, schedule.num_tiles, t)
        for turn in range(work.first_tile, work.end_tile):
            tile = get_tile(work, turn, config)
            x, y, g = next_x, next_y, next_g
            stage_exponents(exponents_smem, x, y)
            next_tile = get_tile(work, gl.minimum(turn + 1, work.end_tile - 1), config)
            next_x, next_y, next_g = load_gates(program.gates, work.row, next_tile, schedule.num_tiles, t)
            prob = score_tile(program, work, tile, stage, exponents_smem, tensors.diagonal)
            scores.ring.producer_acquire(slot)
            store_decays(scores, slot, (x, y, g), (0.0, 0.0), gl.exp2(g), config)
            write_sums(buffers.through, sums.through + at, steps_left, t, STEP)
            at = get_part_offset(schedule, work, work.piece, config) + tile * 64
            steps_left = schedule.num_steps - tile * 64
            commit_scores(scores, slot, prob)
            if not config.reverse:
                write_pair_sums(program, sums, buffers.pairs, stage, slot, at, steps_left)
            inputs.ring.consumer_release(stage)
            stage = inputs.ring.next(stage)
            slot = scores.ring.next(slot)
    scores.ring.producer_acquire(slot)
    write_sums(buffers.through, sums.through + at, steps_left, t, STEP)


# --- State partition --------------------------------------------------------------------------------------------------


@gluon.jit
def walk_and_sum_tile(program, output, through_smem, i, blocks):
    """Hand 128 columns of the output of the i-th tile of this program to `send`, and its row sums to `score`.

    Return the blocks, 128 rows of the state, [128, 64] each, after the tile.
    """
    config: gl.constexpr = program.config
    inputs, scores = program.inputs, program.scores
    dtype: gl.constexpr = inputs.query.dtype
    STAGES: gl.constexpr = config.num_stages
    BLOCKS: gl.constexpr = config.blocks_key
    ACCUMULATORS: gl.constexpr = config.accumulators
    stage, slot, out_slot = inputs.ring.at(i), scores.ring.at(i), output.ring.at(i)
    inputs.ring.consumer_wait(stage)
    s, b = stage.slot + opaque_zero(i), slot.slot + opaque_zero(i)
    valueT = operands(inputs.value, STAGES, 2, 1).index(s).permute((1, 0))

    # out^T = query_decay * S query^T + value^T P^T, [128, 64]
    out = read_both_parts(blocks, inputs.query, s * BLOCKS, BLOCKS)
    scores.ring.consumer_wait(slot)
    query_decay = scores.query_decay.index(b).load(WIDE_COLUMN)
    primalT = widened(operands(inputs.primal, STAGES, 2, 1).index(s).permute((1, 0)).load(WIDE))
    store_warp_sums(rounded(primalT * query_decay[None, :], dtype) * out, through_smem, 0, 8)
    out = out * query_decay[None, :]
    out = warpgroup_mma(valueT, scores.p.index(b).permute((1, 0)), out, is_async=True)  # [128, 64] @ [64, 64]

    # S = state_decay * S + (key_decay value)^T key, [128, columns]. All blocks are multiplied before the first product
    # starts: nothing may touch accumulators that are in flight.
    state_decay = scores.state_decay.index(b).load(WIDE_ROW)[:, None]
    blocks = scale_blocks(blocks, state_decay, BLOCKS)
    key = operands(inputs.key, STAGES, BLOCKS, ACCUMULATORS)
    in_flight, kept = start_state_update(blocks, valueT, scores.key_decay.index(b), key, s, ACCUMULATORS)
    out = wait_for_products(2 * ACCUMULATORS, deps=(out,))  # the state is updated while the output is stored
    output.ring.producer_acquire(out_slot)
    out_tile = operands(output.blocks, config.num_slots, 2, 1).index(out_slot.slot)
    out_tile.permute((1, 0)).store(out.to(dtype))
    blocks = finish_state_update(wait_for_products(0, deps=in_flight + kept), BLOCKS)
    barrier()
    output.ring.producer_commit(out_slot)
    scores.ring.consumer_release(slot)
    inputs.ring.consumer_release(stage)
    return blocks


@gluon.jit
def state_and_sum_partition(program, output, through_smem):
    """Carry 128 rows of the state as float32 accumulators (8 warps)."""
    config: gl.constexpr = program.config
    schedule = program.schedule
    i = 0
    first, end, stride = get_items(schedule, config)
    for item in range(first, end, stride):
        work = get_work_item(schedule, item, config)
        first_row = 128 * get_row_piece(work, config)
        state = load_state(program, work, first_row, i, WIDE)
        blocks = state[0]
        for _ in range(work.first_tile, work.end_tile):
            blocks = walk_and_sum_tile(program, output, through_smem, i, blocks)
            i += 1
        if config.hands_on:
            final = program.states.final + work.state_index * (config.d_qk * config.d_hv)
            store_state(work, final, (blocks,), first_row, opaque_zero(i), config, WIDE, stores_state(schedule, i))


# --- Send partition ---------------------------------------------------------------------------------------------------


@gluon.jit
def send_tile(out_desc, work, tile, output, slot, config: gl.constexpr, ADD: gl.constexpr = False):
    """Start the copy of 128 columns of the output of a tile to memory, or add them to what is there."""
    first_block = 2 * get_row_piece(work, config)
    for half in gl.static_range(2):
        columns = output.blocks.index(slot.slot * 2 + half)
        send_block(out_desc, work, tile, 64 * (first_block + half), columns, config, ADD)


@gluon.jit
def send_partition(program, out_desc, output, stored_ptr):
    """Copy tiles of the output to memory, or add them to those of the program that has the first columns of the state.

    A fence is wanted between what threads write to shared memory and what TMA reads there. It may stand here, with the
    reader: anywhere along the path (PTX, causality order).
    """
    config: gl.constexpr = program.config
    schedule = program.schedule
    SHARED: gl.constexpr = config.column_pieces > 1
    i = 0
    first, end, stride = get_items(schedule, config)
    for item in range(first, end, stride):
        work = get_work_item(schedule, item, config)
        column_piece = get_column_piece(work, config)
        stored = stored_ptr + work.state_index * config.row_pieces + get_row_piece(work, config)
        for turn in range(work.first_tile, work.end_tile):
            tile = get_tile(work, turn, config)
            slot = output.ring.at(i)
            output.ring.consumer_wait(slot)
            fence_async_shared()
            if SHARED and column_piece > 0:
                wait_for_stores(stored, turn + 1 - work.first_tile)
                send_tile(out_desc, work, tile, output, slot, config, ADD=True)
            else:
                send_tile(out_desc, work, tile, output, slot, config)
            tma.store_wait(pendings=0)
            output.ring.consumer_release(slot)
            if SHARED and column_piece == 0:
                publish_stores(stored, turn + 1 - work.first_tile)
            i += 1


# --- Kernels ----------------------------------------------------------------------------------------------------------


@gluon.jit(do_not_specialize=["num_items", "num_steps", "num_tiles"])
def walk_backward_dqk(
    query_desc, key_desc, value_desc, out_desc, gates, states, diagonal_ptr, num_items, num_steps, num_tiles, counts,
    config: gl.constexpr,
):  # fmt: skip
    """Compute dQ or dK of all work items; launched with 4 warps and maxnreg=128.

    Args:
        query_desc, key_desc, value_desc, out_desc: of blocks of dh, v, k and dq, or of v, dh, q and dk.
        diagonal_ptr: (B, H, T) float32 where dh_t . v_t goes, if `config.store_diagonal`.
    """
    schedule = Schedule(num_items, num_steps, num_tiles, counts)
    run_walk(schedule, (query_desc, key_desc, value_desc), out_desc, gates, states, diagonal_ptr, config)


@gluon.jit(do_not_specialize=["num_items", "num_steps", "num_tiles"])
def walk_backward_dqk_with_sums(
    query_desc, key_desc, value_desc, primal_desc, out_desc, tensors, num_items, num_steps, num_tiles, counts,
    config: gl.constexpr,
):  # fmt: skip
    """Compute what `walk_backward_dqk` does, and row sums; launched with 8 warps and maxnreg=128."""
    SLOTS: gl.constexpr = config.num_slots
    gl.static_assert(SLOTS == 1, "row sums of a tile are handed over with P of the next")
    schedule = Schedule(num_items, num_steps, num_tiles, counts)
    program = allocate_program(schedule, tensors.gates, tensors.states, config, out_desc)
    blocks = gl.allocate_shared_memory(out_desc.dtype, [2 * SLOTS, 1, 1, 64, 64], out_desc.layout)
    output = Output(allocate_ring(SLOTS, 1), blocks)
    x_smem = gl.allocate_shared_memory(gl.float32, [64], VECTOR)
    y_smem = gl.allocate_shared_memory(gl.float32, [64], VECTOR)
    through_smem = gl.allocate_shared_memory(gl.float32, [8, 64], VECTOR)
    pairs_smem = None
    if not config.reverse:
        pairs_smem = gl.allocate_shared_memory(gl.float32, [4, 64], VECTOR)
    independent = is_independent(schedule)
    begin_kernel(independent)
    gl.warp_specialize(
        [
            (state_and_sum_partition, (program, output, through_smem)),
            (score_and_sum_partition, (program, tensors, SumBuffers(through_smem, pairs_smem), (x_smem, y_smem))),
            (load_partition, (program, (query_desc, key_desc, value_desc, primal_desc))),
            (send_partition, (program, out_desc, output, tensors.stored)),
        ],
        [4, 1, 1],
        [488 - 2 * config.state_registers, 24, 24],
    )
    end_kernel(independent)


# --- Host -------------------------------------------------------------------------------------------------------------


def empty_row_sums(q: Tensor, v: Tensor) -> tuple[RowSums, RowSums]:
    """Return room for q.dq and k.dk: first parts of what comes through the state, then as many of what does not."""
    parts = cdiv(q.shape[-1], HEIGHT) * cdiv(v.shape[-1], WIDTH)
    qdq = q.new_empty((2 * parts, *v.shape[:3]), dtype=torch.float32)
    kdk = torch.empty_like(qdq)
    return RowSums(qdq, qdq[parts:]), RowSums(kdk, kdk[parts:])


def launch_dqk(
    inputs: WalkInputs, dh: Tensor, out: Tensor, walk: Walk, *,
    states: States, reverse: bool, sums: RowSumTensors | None = None, diagonal: Tensor | None = None,
) -> None:  # fmt: skip
    """Write dq or, in reverse, dk, (B, H, T, d_qk), and the row sums of q * dq or k * dk that are asked for.

    dk does not wait for the kernel launched just before, which must make nothing that this one reads.

    Args:
        states: of C or dC.
        diagonal: (column pieces, B, H, T) float32, where dh_t . v_t of their columns goes; dq only.
    """
    q, k, v, exponents, *_ = inputs
    query, key, value, primal, of_out = map(descriptor, (v, dh, q, k, out) if reverse else (dh, v, k, q, out))
    sizes, unused = walk.sizes, exponents.g
    places = pointers(states, unused)
    config = WalkConfig.of(
        walk.shape, d_qk=sizes.d_qk, d_hv=sizes.d_hv,
        bfloat16=out.dtype == torch.bfloat16, transposed=False, reverse=reverse,
        row_sums=sums is not None, store_diagonal=diagonal is not None,
        documents=inputs.documents is not None,
    )  # fmt: skip
    diagonal = unused if diagonal is None else diagonal
    if sums is None:
        kernel, more = walk_backward_dqk, (value, of_out, exponents, places, diagonal)
    else:
        stored = unused
        if walk.column_pieces > 1:
            pieces = sizes.rows * walk.cut.count * walk.row_pieces
            stored = torch.zeros(pieces, dtype=torch.int32, device=out.device)
        tensors = DqkTensors(exponents, places, pointers(sums, unused), diagonal, stored)
        kernel, more = walk_backward_dqk_with_sums, (value, primal, of_out, tensors)
    enqueue(
        kernel, walk.programs, query, key, *more, walk.items, sizes.steps, walk.cut.tiles,
        Counts.of(walk, states, inputs.documents, independent=reverse),
        config=config, num_warps=8 if config.row_sums else 4, maxnreg=walk.shape.launch_registers,
        launch_pdl=walk.pieces == 1, **ASSEMBLY,
    )  # fmt: skip
