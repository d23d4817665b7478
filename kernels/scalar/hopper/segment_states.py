# type: ignore   # Gluon: what runs on the device has no types that a Python checker knows
"""Make the states that segments start from, so that programs can walk over the segments of a sequence side by side.

    C <- 2^g C + sum_j 2^(y_j + g) K_j V_j^T        forward, tile after tile of 64 steps
    dC <- 2^g dC + sum_i 2^x_i Q_i dH_i^T           backward, from the last tile to the first

Both lie in memory as (B, H, segments, d_qk, d_hv) float32. The code is one for both: "qk" is K and backward Q, "hv" is
V and backward dH. Two kernels make them:

    accumulate   the state that each part of a segment adds up from zero, and the normaliser n likewise (Gluon)
    carry        the state that each segment starts from, and the one after the last, out of these (Triton)

Where every tile needs a state (tile_gradients.py), `accumulate` writes that down too, in 16 bits.

Partitions of a program of `accumulate`, which has one work item:

    load       1 warp    copies tiles of qk and hv to shared memory by TMA   -> StatePassTiles, a ring of stages
    state 0    4 warps   half of the state
    state 1    4 warps   the other half

A program has 128 rows of the state, 64 for each state partition, and up to 256 columns. Of states of 64 rows each
partition has half of the columns, and of 64 by 64 states those of half the heads of a program.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import constexpr_function
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma

from tflabench.kernels.common.cover import next_power_of_2
from tflabench.kernels.common.launching import enqueue
from tflabench.kernels.scalar.gates import Exponents
from tflabench.kernels.scalar.plan.hopper import StatePass

from .config import CarryConfig, SegmentStatesConfig
from .conversions import nearest, widened
from .launch import descriptor, pointers, states_descriptor
from .pipeline import Ring, aggregate, allocate_ring, begin_kernel
from .schedule import Counts, Schedule, encode_counts, get_segment, get_state_index, read_count
from .state import Matrices, States, state_pointers
from .tiles import ACC, ACC_OPERAND, BLOCK_BYTES, block, load_blocks
from .workarounds import (
    ASSEMBLY,
    barrier,
    let_next_kernel_start,
    tma_store,
    wait_for_kernel_before,
    wait_for_products,
)

OPERAND_ROW = gl.constexpr(gl.SliceLayout(1, ACC_OPERAND))  # a value for each row of a left operand [64, 64]
OPERAND_COLUMN = gl.constexpr(gl.SliceLayout(0, ACC_OPERAND))  # a value for each column

# --- What partitions share --------------------------------------------------------------------------------------------


@aggregate
class StatePassTiles:
    """A ring of stages in shared memory, each a tile of qk and hv in blocks of 64 steps by 64 columns.

    Fields:
        qk: [stages * blocks_qk, 1, 1, 64, 64].  hv: [stages * blocks_hv, 1, 1, 64, 64]. 16 bits.
    """

    ring: Ring
    qk: gl.shared_memory_descriptor
    hv: gl.shared_memory_descriptor


@aggregate
class StatePassProgram:
    """Everything that all partitions of a program share.

    Fields:
        schedule: its heads are packs of `config.num_heads`.
        gates: pointers to x, y (B, H, tiles * 64) and g (B, H, tiles).
        n_ptr: (B, H, segments, d_qk), n after each segment, written if `config.normalise`.
    """

    config: gl.constexpr
    schedule: Schedule
    work: object
    gates: gl.tuple
    states: gl.tuple
    n_ptr: gl.tensor
    inputs: StatePassTiles


@gluon.jit
def get_tile(work, i, REVERSE: gl.constexpr):
    """Return the i-th tile of a segment in the direction of the walk."""
    if REVERSE:
        return work.end_tile - 1 - i
    else:
        return work.first_tile + i


@gluon.jit
def get_first_column(work, config: gl.constexpr):
    """Return the first column of hv that the program has."""
    return work.piece // config.pieces_qk * (64 * config.blocks_hv)


# --- Load partition ---------------------------------------------------------------------------------------------------


@gluon.jit
def load_partition(program, qk_desc, hv_desc):
    """Copy the tiles of qk and hv to shared memory, in the direction of the walk."""
    config: gl.constexpr = program.config
    work, inputs, ring = program.work, program.inputs, program.inputs.ring
    BLOCKS_QK: gl.constexpr = config.blocks_qk
    BLOCKS_HV: gl.constexpr = config.blocks_hv
    head = work.head * config.num_heads
    heads_per_qk = program.schedule.counts.heads_per_qk
    for i in range(work.end_tile - work.first_tile):
        stage = ring.at(i)
        ring.producer_acquire(stage)
        full = ring.full.index(stage.slot)
        step = get_tile(work, i, config.reverse) * 64
        mbarrier.expect(full, BLOCK_BYTES * (BLOCKS_QK + BLOCKS_HV))
        if config.num_heads == 1:
            at_qk = (work.batch, head // read_count(heads_per_qk, work.row), step, work.piece % config.pieces_qk * 128)
            at_hv = (work.batch, head, step, get_first_column(work, config))
            load_blocks(qk_desc, at_qk, inputs.qk, stage.slot * BLOCKS_QK, BLOCKS_QK, full)
            load_blocks(hv_desc, at_hv, inputs.hv, stage.slot * BLOCKS_HV, BLOCKS_HV, full)
        else:
            for h in gl.static_range(BLOCKS_QK):
                at_qk = (work.batch, (head + h) // read_count(heads_per_qk, work.row), step, 0)
                load_blocks(qk_desc, at_qk, inputs.qk, stage.slot * BLOCKS_QK + h, 1, full)
            for h in gl.static_range(BLOCKS_HV):
                at_hv = (work.batch, head + h, step, 0)
                load_blocks(hv_desc, at_hv, inputs.hv, stage.slot * BLOCKS_HV + h, 1, full)


# --- State partitions -------------------------------------------------------------------------------------------------


@constexpr_function
def first_hv_block(config, half):
    """Return the first block of hv in a tile that a state partition takes."""
    return 0 if config.divide_rows else half * config.accumulators


@constexpr_function
def first_qk_block(config, half):
    """Return the first block of qk in a tile that a state partition takes."""
    if config.divide_rows:
        return half
    return first_hv_block(config, half) if config.blocks_qk > 1 else 0


@constexpr_function
def first_head(config, half):
    """Return the first head of the program that a state partition takes."""
    return 0 if config.num_heads == 1 else first_hv_block(config, half)


@gluon.jit
def get_first_row(work, config: gl.constexpr, HALF: gl.constexpr):
    """Return the first row of the state that a state partition has."""
    row = work.piece % config.pieces_qk * 128
    if config.divide_rows:
        row += 64 * HALF
    return row


@gluon.jit
def get_block_pointers(program, ptr, b: gl.constexpr, HALF: gl.constexpr):
    """Return pointers to a state partition's b-th block [64, 64] of the state of its segment, and the rows' numbers."""
    config: gl.constexpr = program.config
    HEADS: gl.constexpr = config.num_heads
    D_HV: gl.constexpr = config.d_hv
    work = program.work
    head = first_head(config, HALF) + (b if HEADS > 1 else 0)
    index = get_state_index(program.schedule, work, head, HEADS)
    column = 0 if HEADS > 1 else get_first_column(work, config) + 64 * (first_hv_block(config, HALF) + b)
    ptr += index * (config.d_qk * D_HV)
    return state_pointers(ptr, get_first_row(work, config, HALF), column, D_HV, 1, ACC)


@gluon.jit
def load_state(program, HALF: gl.constexpr):
    """Return the blocks of the state before a segment that a state partition carries, a tuple of [64, 64]."""
    config: gl.constexpr = program.config
    BLOCKS: gl.constexpr = config.accumulators
    blocks = ()
    for b in gl.static_range(BLOCKS):
        if config.load_initial_state:
            at, rows = get_block_pointers(program, program.states.initial, b, HALF)
            blocks += (gl.load(at, mask=rows < config.d_qk, other=0.0),)
        else:
            blocks += (gl.zeros([64, 64], gl.float32, layout=ACC),)
    return blocks


@gluon.jit
def store_state(program, blocks, HALF: gl.constexpr):
    """Write a state partition's blocks of the state after a segment."""
    config: gl.constexpr = program.config
    BLOCKS: gl.constexpr = config.accumulators
    for b in gl.static_range(BLOCKS):
        at, rows = get_block_pointers(program, program.states.final, b, HALF)
        gl.store(at, blocks[b], mask=rows < config.d_qk)


@gluon.jit
def store_normaliser(program, n, HALF: gl.constexpr):
    """Write a state partition's rows of n after a segment, of each head, a tuple of [64]."""
    config: gl.constexpr = program.config
    OPERANDS: gl.constexpr = config.operands
    HEADS: gl.constexpr = config.num_heads
    row = get_first_row(program.work, config, HALF) + gl.arange(0, 64, layout=OPERAND_ROW)
    for h in gl.static_range(OPERANDS):
        index = get_state_index(program.schedule, program.work, first_head(config, HALF) + h, HEADS)
        gl.store(program.n_ptr + index * config.d_qk + row, n[h], mask=row < config.d_qk)


@gluon.jit
def store_kept_state(program, blocks, tile, kept_desc, kept_smem, HALF: gl.constexpr):
    """Write a state partition's blocks of the state before a tile in 16 bits, by TMA."""
    config: gl.constexpr = program.config
    BLOCKS: gl.constexpr = config.accumulators
    head = program.work.head * config.num_heads + first_head(config, HALF)
    tma.store_wait(pendings=0)
    barrier()  # the buffers are free
    for b in gl.static_range(BLOCKS):
        block(kept_smem, HALF * BLOCKS + b).store(nearest(blocks[b], kept_smem.dtype))
    fence_async_shared()
    barrier()
    for b in gl.static_range(BLOCKS):
        tma_store(kept_desc, [program.work.batch, head + b, tile, 0, 0], kept_smem.index(HALF * BLOCKS + b))


@gluon.jit
def load_gates(program, tile, HALF: gl.constexpr):
    """Return log2 of the weights of a tile's steps, less g forward, [64] each, and g: tuples, an element a head."""
    config: gl.constexpr = program.config
    OPERANDS: gl.constexpr = config.operands
    work, num_tiles = program.work, program.schedule.num_tiles
    gate_ptr = program.gates.x if config.reverse else program.gates.y
    row = work.row * config.num_heads + first_head(config, HALF)
    t = gl.arange(0, 64, layout=OPERAND_COLUMN)
    log2_weights, g = (), ()
    for h in gl.static_range(OPERANDS):
        at = (row + h) * num_tiles + tile
        log2_weights += (gl.load(gate_ptr + at * 64 + t),)
        g += (gl.load(program.gates.g + at),)
    return log2_weights, g


@gluon.jit
def weigh_tile(program, gates, stage, HALF: gl.constexpr):
    """Multiply the steps of a tile of qk, which has arrived, by their weights.

    Returns:
        Tuples, an element a head: the left operand (weights qk)^T, [64, 64 steps] of 16 bits; its sums over steps
        before it was rounded, [64]; the decay of the state.
    """
    config: gl.constexpr = program.config
    OPERANDS: gl.constexpr = config.operands
    qk = program.inputs.qk
    ONE_BLOCK: gl.constexpr = config.num_heads == 1 or config.blocks_qk == 1
    first_block = stage.slot * config.blocks_qk + first_qk_block(config, HALF)
    log2_weights, g = gates
    operands, sums, decays = (), (), ()
    for h in gl.static_range(OPERANDS):
        log2_weight = log2_weights[h]
        if not config.reverse:
            log2_weight += g[h]
        x = widened(block(qk, first_block + (0 if ONE_BLOCK else h)).permute((1, 0)).load(ACC_OPERAND))
        x = x * gl.exp2(log2_weight)[None, :]
        operands += (x.to(qk.dtype),)
        sums += (gl.sum(x, axis=1),)
        decays += (gl.exp2(g[h]),)
    return operands, sums, decays


@gluon.jit
def start_update(program, blocks, operands, decays, stage, HALF: gl.constexpr):
    """Start decay * S + (weights qk)^T hv for a state partition's blocks of the state.

    Returns:
        The accumulators in flight and the operands, which must be kept until they have been waited for.
    """
    config: gl.constexpr = program.config
    BLOCKS: gl.constexpr = config.accumulators
    HEADS: gl.constexpr = config.num_heads
    scaled, in_flight = (), ()
    for b in gl.static_range(BLOCKS):
        scaled += (blocks[b] * decays[b if HEADS > 1 else 0],)
    for b in gl.static_range(BLOCKS):
        # [64, 64] @ [64, 64] -> [64, 64]
        hv = block(program.inputs.hv, stage.slot * config.blocks_hv + first_hv_block(config, HALF) + b)
        in_flight += (warpgroup_mma(operands[b if HEADS > 1 else 0], hv, scaled[b], is_async=True),)
    return in_flight + operands


@gluon.jit
def state_partition(program, kept_desc, kept_smem, HALF: gl.constexpr):
    """Carry half of the program's states as float32 accumulators, and n.

    While the products of a tile run, the next one is multiplied by its weights, which were loaded a tile ahead. After
    the last tile that is the last one again.
    """
    config: gl.constexpr = program.config
    OPERANDS: gl.constexpr = config.operands
    BLOCKS: gl.constexpr = config.accumulators
    REVERSE: gl.constexpr = config.reverse
    # Of one head, state 1 has padding in place of the rows that are kept, or the same n as state 0.
    KEEPS: gl.constexpr = config.keep_states and (config.num_heads > 1 or HALF == 0)
    HAS_N: gl.constexpr = config.normalise and (config.num_heads > 1 or config.divide_rows or HALF == 0)
    work, ring = program.work, program.inputs.ring
    num_tiles = work.end_tile - work.first_tile
    state = load_state(program, HALF)
    n = ()
    for _ in gl.static_range(OPERANDS):
        n += (gl.zeros([64], gl.float32, layout=OPERAND_ROW),)
    gates = load_gates(program, get_tile(work, 0, REVERSE), HALF)
    stage = ring.begin()
    ring.consumer_wait(stage)
    operands, sums, decays = weigh_tile(program, gates, stage, HALF)
    gates = load_gates(program, get_tile(work, gl.minimum(1, num_tiles - 1), REVERSE), HALF)
    for i in range(num_tiles):
        stage = ring.at(i)
        if KEEPS:
            store_kept_state(program, state, get_tile(work, i, REVERSE), kept_desc, kept_smem, HALF)
        if config.normalise:
            new_n = ()
            for h in gl.static_range(OPERANDS):
                new_n += (n[h] * decays[h] + sums[h],)
            n = new_n
        in_flight = start_update(program, state, operands, decays, stage, HALF)
        next_stage = ring.at(gl.minimum(i + 1, num_tiles - 1))
        ring.consumer_wait(next_stage)
        operands, sums, decays = weigh_tile(program, gates, next_stage, HALF)
        gates = load_gates(program, get_tile(work, gl.minimum(i + 2, num_tiles - 1), REVERSE), HALF)
        done = wait_for_products(0, deps=in_flight)
        state = ()
        for b in gl.static_range(BLOCKS):
            state += (done[b],)
        fence_async_shared()
        barrier()  # every warp has read the stage
        ring.consumer_release(stage)
    if config.store_final_state:
        store_state(program, state, HALF)
    if KEEPS:
        tma.store_wait(pendings=0)
    if HAS_N:  # noqa: SIM102
        if get_first_column(work, config) == 0:
            store_normaliser(program, n, HALF)


# --- Kernels ----------------------------------------------------------------------------------------------------------


@gluon.jit(do_not_specialize=["num_items", "num_steps", "num_tiles"])
def accumulate(
    qk_desc, hv_desc, kept_desc, gates, states, n_ptr, num_items, num_steps, num_tiles, counts,
    config: gl.constexpr,
):  # fmt: skip
    """Add up the states of segments, one work item a program; launched with 4 warps and maxnreg=168.

    Args:
        kept_desc: of the states before every tile, (B, H, tiles, d_qk, d_hv) in the dtype of qk, written if
            `config.keep_states`.
        counts: heads are packs of `config.num_heads`.  The others are as of `forward.walk_forward`.
    """
    STAGES: gl.constexpr = config.num_stages
    BLOCKS_QK: gl.constexpr = config.blocks_qk
    BLOCKS_HV: gl.constexpr = config.blocks_hv
    dtype: gl.constexpr = qk_desc.dtype
    schedule = Schedule(num_items, num_steps, num_tiles, counts)
    work = get_segment(schedule, gl.program_id(0), config)
    qk = gl.allocate_shared_memory(dtype, [STAGES * BLOCKS_QK, 1, 1, 64, 64], qk_desc.layout)
    hv = gl.allocate_shared_memory(dtype, [STAGES * BLOCKS_HV, 1, 1, 64, 64], qk_desc.layout)
    kept_smem = qk
    if config.keep_states:
        kept_smem = gl.allocate_shared_memory(dtype, [BLOCKS_HV, 1, 1, 1, 64, 64], kept_desc.layout)
    inputs = StatePassTiles(allocate_ring(STAGES, 2), qk, hv)
    program = StatePassProgram(config, schedule, work, gates, states, n_ptr, inputs)
    begin_kernel(independent=False)
    gl.warp_specialize(
        [
            (state_partition, (program, kept_desc, kept_smem, 0)),
            (state_partition, (program, kept_desc, kept_smem, 1)),
            (load_partition, (program, qk_desc, hv_desc)),
        ],
        [4, 1],
        [240, 24],
    )


class CarriedStates(NamedTuple):
    """Tensors that `carry` reads and writes, float32; on the device, pointers.

    Attributes:
        added: what each part of a segment adds, (rows, parts, elements).
        starts: what each segment starts from, (rows, segments, elements). Where a segment has one part this may be
            `added` itself.
        before, after: the states before the first and after the last segment of the walk, (rows, elements), or None.
    """

    added: Any
    starts: Any
    before: Any
    after: Any


@triton.jit(
    do_not_specialize=[
        "num_tiles", "part_tiles", "num_parts", "num_segments", "parts_per_segment", "first_part", "added_parts"
    ]
)  # fmt: skip
def carry(
    states, g_ptr, elements, num_tiles, part_tiles, num_parts, num_segments, parts_per_segment, first_part, added_parts,
    config: tl.constexpr,
):  # fmt: skip
    """Make the states that segments start from out of what their parts add, segment after segment.

    Args:
        g_ptr: (rows, tiles).
        part_tiles, parts_per_segment: the first segment, and its first part, have what remains.
        first_part, added_parts: the lowest part that `added` has, and how many it has from there on; backward those are
            the last parts. A resumed walk begins with the second segment, whose first part is `first_part`.
    """
    BLOCK: tl.constexpr = config.block
    REVERSE: tl.constexpr = config.reverse
    if config.overlap:
        wait_for_kernel_before()
        let_next_kernel_start()
    blocks = tl.cdiv(elements, BLOCK)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    at = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    mask = at < elements
    first_start = states.starts + row * num_segments * elements + at
    if config.resumed:
        carried = tl.load(first_start + elements, mask=mask, other=0.0)
        if not config.load_initial_state:
            tl.store(first_start, tl.zeros([BLOCK], tl.float32), mask=mask)
    elif config.load_initial_state:
        carried = tl.load(states.before + row * elements + at, mask=mask, other=0.0)
    else:
        carried = tl.zeros([BLOCK], tl.float32)
    inside = tl.arange(0, config.tiles)
    part = num_parts - 1 if REVERSE else first_part
    parts_after = num_parts - 1 - part
    segment = num_segments - 1 - parts_after // parts_per_segment
    others = parts_after % parts_per_segment  # parts after this one in its segment
    adds = tl.load(states.added + (row * num_parts + part) * elements + at, mask=mask, other=0.0)
    for k in range(added_parts + 1 - config.store_final_state):
        beyond = states.added + (row * num_parts + part) * elements + at + (-elements if REVERSE else elements)
        following = tl.load(beyond, mask=at < elements * (k + 1 < added_parts), other=0.0)  # on its way meanwhile
        tile = num_tiles - (num_parts - part) * part_tiles + inside
        in_part = (inside < part_tiles) & (tile >= 0)
        log2_decay = tl.sum(tl.load(g_ptr + row * num_tiles + tile, mask=in_part, other=0.0), 0)
        begins = others == 0 if REVERSE else (others == parts_per_segment - 1) | (part == 0)
        start = states.starts + (row * num_segments + segment) * elements + at
        tl.store(start, carried, mask=at < elements * begins)
        carried = carried * tl.exp2(log2_decay) + adds
        adds = following
        if REVERSE:
            part -= 1
            ends = others == parts_per_segment - 1
            others = tl.where(ends, 0, others + 1)
            segment -= ends
        else:
            part += 1
            ends = others == 0
            others = tl.where(ends, parts_per_segment - 1, others - 1)
            segment += ends
    if config.store_final_state:
        tl.store(states.after + row * elements + at, carried, mask=mask)


# --- Host -------------------------------------------------------------------------------------------------------------


class StateInputs(NamedTuple):
    """Tensors that states are made of: qk is k or backward q, hv is v or backward dh, both as TMA takes them."""

    qk: Tensor
    hv: Tensor
    exponents: Exponents


class SegmentStates(NamedTuple):
    """States that a state pass makes.

    Attributes:
        starts: before each segment.
        end: those after the last segment of the walk, without a dimension for segments.
    """

    starts: Matrices
    end: Matrices


def skip_first_segment(states: Tensor) -> Tensor:
    """Return states (B, H, segments, ...) as a vector that begins with the second segment of the first head."""
    return states.view(-1)[states.shape[3:].numel() :]


def launch_segment_states(
    inputs: StateInputs, of: StatePass, *, before: Matrices, normalise: bool = False,
    first_segment: Callable[[Matrices], None] | None = None, exchange: Callable[[Matrices], Matrices] | None = None,
) -> SegmentStates:  # fmt: skip
    """Make the states that segments start from, and the one after the last of them if that is asked for.

    Args:
        before: the states (B, H, d_qk, d_hv) and (B, H, d_qk) before the first segment of the walk; None is zero.
        first_segment: launches the walk for h over a first segment, which runs while the pass goes over the others. It
            is given the `starts` of `SegmentStates`, in which the first segment's are there unless they are zero, and
            writes those of the second segment (`skip_first_segment`).
        exchange: is given the states after the last segment, and returns those to start from in place of `before`.
    """
    B, H, _, _, d_qk, d_hv = of.sizes
    cut, parts = of.cut, of.parts

    def empty(*segments: int) -> Matrices:
        """Return room for C and n of that many segments a head, or of none."""
        C = torch.empty((B, H, *segments, d_qk, d_hv), dtype=torch.float32, device=inputs.qk.device)
        return Matrices(C, C.new_empty((B, H, *segments, d_qk)) if normalise else None)

    added = empty(parts.cut.count)
    starts = empty(cut.count) if of.apart or exchange else added
    if of.resumed:
        for start, given in zip(starts, before, strict=True):
            if start is not None and given is not None:
                start[:, :, 0] = given
    launch_accumulate(inputs, of, States(final=added.C), n=added.n)
    if first_segment:
        first_segment(starts)
    after = empty() if of.end else Matrices()

    def join(before: Matrices) -> None:
        for states in map(CarriedStates, added, starts, before, after):
            if states.added is not None:
                launch_carry(states, inputs.exponents.g, of)

    join(before)
    if exchange is not None:
        join(exchange(after))
    return SegmentStates(starts, after)


def launch_kept_states(
    inputs: StateInputs, kept: Tensor, of: StatePass, *, initial: Tensor | None = None, final: Tensor | None = None
) -> None:
    """Write kept (B, H, tiles, d_qk, d_hv), of qk's dtype: the state before every tile, in the direction of the walk.

    d_qk and d_hv are 64 at most; initial and final are (B, H, segments, 64, 64) float32, as of `States`.
    """
    launch_accumulate(inputs, of, States(initial, final), kept=kept)


def launch_accumulate(
    inputs: StateInputs, of: StatePass, states: States, *, n: Tensor | None = None, kept: Tensor | None = None
) -> None:
    """Launch `accumulate` for the parts of a pass; what is None is neither read nor written."""
    qk, hv, gates = inputs
    _, heads, group, steps, d_qk, d_hv = of.sizes
    cut, _, added = of.parts
    config = SegmentStatesConfig.of(
        of.shape, d_qk=d_qk, d_hv=d_hv, reverse=of.reverse, normalise=n is not None,
        keep_states=kept is not None, load_initial_state=states.initial is not None,
        store_final_state=states.final is not None,
    )  # fmt: skip
    packs = heads // of.shape.num_heads
    counts = encode_counts(Counts(packs, group, cut.segment_tiles, cut.count, added.stop, len(added)))
    unused = gates.g
    enqueue(
        accumulate, of.items,
        descriptor(qk), descriptor(hv), descriptor(qk) if kept is None else states_descriptor(kept),
        gates, pointers(states, unused), unused if n is None else n,
        of.items, steps, cut.tiles, counts, config=config,
        num_warps=4, maxnreg=168, launch_pdl=config.pieces == 1, **ASSEMBLY,
    )  # fmt: skip


_carry_config = cache(CarryConfig)  # a launch costs the host less where it was made before


def launch_carry(states: CarriedStates, g: Tensor, of: StatePass) -> None:
    """Launch `carry` for C or for n."""
    elements = states.added.shape[3:].numel()
    parts = of.parts
    block, programs = of.carry(elements)
    config = _carry_config(
        tiles=next_power_of_2(parts.cut.segment_tiles), block=block, reverse=of.reverse, resumed=of.resumed,
        load_initial_state=states.before is not None, store_final_state=states.after is not None,
    )  # fmt: skip
    enqueue(
        carry, programs,
        pointers(states, states.starts), g, elements, *parts.cut, of.cut.count, parts.per_segment,
        parts.added.start, len(parts.added), config=config, launch_pdl=True,
    )  # fmt: skip
