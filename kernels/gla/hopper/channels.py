# type: ignore   # Gluon: what runs on the device has no types that a Python checker knows
"""The walks for dq and, backward in time, for dk, and what dg is made of: see walk.py.

With `target` the tensor whose gradient it is, `source` the other one, and both scaled (q', k'),

    of dq: G = dO A^T + dP k'          A <- 2^(half the totals) A + k'^T V         dq = scale 2^(b - total / 2) G
    of dk: G = V D^T + dP^T q'         D <- 2^(half the totals) D + q'^T dO        dk = 2^(total / 2 - b) G

dg of a step is the sum, over it and all later ones, of the terms q' G of dq - k' G of dk. Over a long sequence that
must cancel but for what crosses the step. So both walks take the same rounded q', k' and dP, and read the state in two
parts of 16 bits; nothing else is rounded (docs/decisions/2026-11-28-gla-on-hopper.md). The walk for dk, which is the
last, sums them up: within a tile they are multiplied by a triangle of ones, in two parts of 16 bits, and what later
tiles of the segment add stands at the last step. Beyond the segment that is <S, D> at its end.

    load         1 warp    copies tiles of do, v, source, g and target by TMA        -> GlaGradientTiles, three rings
    gate         4 warps   dP, scaled source and target, the factors of G            -> GlaScores
    state 0, 1   4 warps   64 rows each of the state, channels of G                  -> dq, or dk and dg, by TMA

Where a tile has closed its pairs of steps are left to pairs.py.
"""

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma, warpgroup_mma

from tflabench.kernels.common.launching import enqueue
from tflabench.kernels.common.rows import rows
from tflabench.kernels.delta.hopper.inverses import VECTORS
from tflabench.kernels.delta.hopper.schedule import (
    DeltaCounts,
    get_schedule,
    get_state_index,
    get_tile,
)
from tflabench.kernels.delta.hopper.walk import acquire_stage
from tflabench.kernels.delta.hopper_plan import DeltaWalk
from tflabench.kernels.gla.hopper_plan import channels_shape
from tflabench.kernels.kda.hopper.tiles import BY_CHANNEL, CHANNELS, as_blocks, as_steps
from tflabench.kernels.scalar.hopper.conversions import nearest, remainder, widened
from tflabench.kernels.scalar.hopper.launch import descriptor, pointers
from tflabench.kernels.scalar.hopper.pipeline import Cursor, Ring, aggregate, allocate_ring
from tflabench.kernels.scalar.hopper.state import read_both_parts, state_pointers
from tflabench.kernels.scalar.hopper.tiles import (
    ACC,
    ACC_COLUMN,
    ACC_ROW,
    block,
    join_columns,
    load_blocks,
    operands,
    send,
    split_columns,
)
from tflabench.kernels.scalar.hopper.workarounds import (
    ASSEMBLY,
    barrier,
    opaque_zero,
    prefetch,
    reinterpret,
    wait_for_products,
)

from .columns import scores_of_tile
from .config import GlaGradientConfig
from .walk import GlaProgram, GlaTensors, allocate_scores, exponents, get_item, opaque_zeros, scaled, sums_of_tile

# Of a product by mma.sync: beside one more of wgmma ptxas serialises them all (C7512).
SUMS = gl.constexpr(gl.NVMMADistributedLayout(version=[2, 0], warps_per_cta=[4, 1], instr_shape=[16, 8]))
TRIANGLE = gl.constexpr(gl.DotOperandLayout(operand_index=0, parent=SUMS, k_width=2))
TERMS = gl.constexpr(gl.DotOperandLayout(operand_index=1, parent=SUMS, k_width=2))


# --- What partitions share --------------------------------------------------------------------------------------------


@aggregate
class GlaGradientTiles:
    """Three rings of tiles in shared memory, in blocks of 64 steps by 64 columns, 16 bits.

    Fields:
        values: of do and v, [2 * blocks * stages, 1, 1, 64, 64] each, and source, [2 * stages, 1, 1, 64, 64].
        gates: of 64 channels of log gates, which take two blocks, or the first one if they are of 16 bits. What G is
            multiplied by, and then the gradient, take the place of the first one, scaled target, then terms, of the
            second.
        targets: of 64 channels of target.
    """

    values: Ring
    do: gl.shared_memory_descriptor
    v: gl.shared_memory_descriptor
    source: gl.shared_memory_descriptor
    gates: Ring
    gate: gl.shared_memory_descriptor
    targets: Ring
    target: gl.shared_memory_descriptor


@gluon.jit
def allocate_gradient_program(schedule, tensors, config: gl.constexpr, desc):
    """Return what all partitions share; desc describes blocks of q."""
    dtype: gl.constexpr = desc.dtype
    VALUE_BLOCKS: gl.constexpr = 2 * config.blocks * config.num_stages
    SOURCE_BLOCKS: gl.constexpr = 2 * config.num_stages
    GATE_SLOTS: gl.constexpr = config.num_gate_slots
    inputs = GlaGradientTiles(
        values=allocate_ring(config.num_stages, 2),
        do=gl.allocate_shared_memory(dtype, [VALUE_BLOCKS, 1, 1, 64, 64], desc.layout),
        v=gl.allocate_shared_memory(dtype, [VALUE_BLOCKS, 1, 1, 64, 64], desc.layout),
        source=gl.allocate_shared_memory(dtype, [SOURCE_BLOCKS, 1, 1, 64, 64], desc.layout),
        gates=allocate_ring(GATE_SLOTS, 1),
        gate=gl.allocate_shared_memory(dtype, [2 * GATE_SLOTS, 1, 1, 64, 64], desc.layout),
        targets=allocate_ring(1, 1),
        target=gl.allocate_shared_memory(dtype, [1, 1, 1, 64, 64], desc.layout),
    )
    return GlaProgram(config, schedule, tensors, inputs, allocate_scores(config, desc, 128, 1))


@gluon.jit
def gate_blocks(program, desc):
    """View the memory of gates as they are: [n, 1, 1, 64, 64], of which slot s is s times the other result."""
    SLOTS: gl.constexpr = program.config.num_gate_slots
    WIDE: gl.constexpr = desc.dtype == gl.float32
    COUNT: gl.constexpr = SLOTS if WIDE else 2 * SLOTS
    return reinterpret(program.inputs.gate, desc.dtype, [COUNT, 1, 1, 64, 64], desc.layout)


# --- Load partition ---------------------------------------------------------------------------------------------------


@gluon.jit
def load_gradient_tiles(program, descs):
    """Copy all tiles to shared memory, in the order in which they are met; descs: of do, v, source, g and target."""
    config: gl.constexpr = program.config
    COLUMN_BLOCKS: gl.constexpr = 2 * config.blocks
    COLUMN: gl.constexpr = 64 * COLUMN_BLOCKS * config.piece
    schedule, inputs = program.schedule, program.inputs
    do_desc, v_desc, source_desc, g_desc, target_desc = descs
    PER_SLOT: gl.constexpr = 1 if g_desc.dtype == gl.float32 else 2
    gate_view = gate_blocks(program, g_desc)
    value, gate, target = inputs.values.begin(), inputs.gates.begin(), inputs.targets.begin()
    for item in range(gl.program_id(0), schedule.num_items, gl.num_programs(0)):
        work = get_item(schedule, program.tensors.closed, item, config)
        for turn in range(work.first_tile, work.end_tile):
            tile = get_tile(work, turn, config.reverse)
            step = tile * 64
            if config.adds_terms:
                at = (work.row * schedule.num_tiles + tile).to(gl.int64) * (128 * 64)
                prefetch(program.tensors.terms + at, 128 * 64 * 4)
            full = acquire_stage(inputs.values, value, 2 * COLUMN_BLOCKS + 2)
            at = (work.batch, work.head, step, COLUMN)
            load_blocks(do_desc, at, inputs.do, COLUMN_BLOCKS * value.slot, COLUMN_BLOCKS, full)
            load_blocks(v_desc, at, inputs.v, COLUMN_BLOCKS * value.slot, COLUMN_BLOCKS, full)
            load_blocks(source_desc, (work.batch, work.head, step, 0), inputs.source, 2 * value.slot, 2, full)
            value = inputs.values.next(value)
            for c in gl.static_range(2):
                at = (work.batch, work.head, step, 64 * c)
                full = acquire_stage(inputs.gates, gate, 3 - PER_SLOT)
                load_blocks(g_desc, at, gate_view, PER_SLOT * gate.slot, 1, full)
                gate = inputs.gates.next(gate)
                full = acquire_stage(inputs.targets, target, 1)
                load_blocks(target_desc, at, inputs.target, target.slot, 1, full)
                target = inputs.targets.next(target)


# --- Gate partition ---------------------------------------------------------------------------------------------------


@gluon.jit
def gradient_gate_partition(program, g_desc, scale_log2, totals):
    """Make dP, scale source and target, and write what G and the state are multiplied by.

    Args:
        totals: [4, 64] float32 in shared memory.
    """
    config: gl.constexpr = program.config
    COLUMN_BLOCKS: gl.constexpr = 2 * config.blocks
    PER_SLOT: gl.constexpr = 1 if g_desc.dtype == gl.float32 else 2
    dtype: gl.constexpr = program.inputs.v.dtype
    schedule, inputs, scores = program.schedule, program.inputs, program.scores
    gate_view = gate_blocks(program, g_desc)
    value, gate, target = inputs.values.begin(), inputs.gates.begin(), inputs.targets.begin()
    slot = scores.ring.begin()
    for item in range(gl.program_id(0), schedule.num_items, gl.num_programs(0)):
        work = get_item(schedule, program.tensors.closed, item, config)
        nothing = gl.zeros([64], gl.float32, layout=CHANNELS)
        before = (nothing, nothing)
        for _turn in range(work.first_tile, work.end_tile):
            inputs.values.consumer_wait(value)
            if config.exact:
                scores.ring.producer_acquire(slot)
            else:
                dp = scores_of_tile(inputs.do, inputs.v, COLUMN_BLOCKS * value.slot, COLUMN_BLOCKS)
                scores.ring.producer_acquire(slot)
                block(scores.p, slot.slot).store(nearest(dp, dtype))
            references = ()
            for c in gl.static_range(2):
                inputs.gates.consumer_wait(gate)
                b, total = sums_of_tile(block(gate_view, PER_SLOT * gate.slot), totals)
                of_q, of_k, reference = exponents(b, total, scale_log2, config.exact)
                of_source, of_target = (of_q, of_k) if config.reverse else (of_k, of_q)
                source = block(inputs.source, 2 * value.slot + c)
                source.store(scaled(source, of_source))
                factor = gl.exp2(of_target)
                block(inputs.gate, 2 * gate.slot).store(as_steps(nearest(factor, dtype)))
                inputs.targets.consumer_wait(target)
                x = as_blocks(widened(block(inputs.target, target.slot).load(BY_CHANNEL))) * factor
                block(inputs.gate, 2 * gate.slot + 1).store(as_steps(nearest(x, dtype)))
                scores.decay.index(slot.slot).slice(64 * c, 64).store(gl.exp2(before[c] + reference))
                barrier()  # target has been read
                inputs.targets.consumer_release(target)
                references += (nothing if config.exact else reference,)
                gate = inputs.gates.next(gate)
                target = inputs.targets.next(target)
            before = references
            fence_async_shared()
            barrier()
            scores.ring.producer_commit(slot)
            value = inputs.values.next(value)
            slot = scores.ring.next(slot)


# --- State partitions -------------------------------------------------------------------------------------------------


@gluon.jit
def load_rows(program, work, HALF: gl.constexpr):
    """Return the rows of the state that a state partition carries, as accumulators [64, 128]."""
    config: gl.constexpr = program.config
    BLOCKS: gl.constexpr = config.blocks
    D_QK: gl.constexpr = config.d_qk
    D_HV: gl.constexpr = config.d_hv
    state = ()
    for z in gl.static_range(BLOCKS):
        halves = ()
        for j in gl.static_range(2):
            if config.loads:
                ptr = program.tensors.initial + get_state_index(program.schedule, work) * (D_QK * D_HV)
                zero = opaque_zero(work.row, 2 * z + j)  # else addresses are kept in registers from item to item
                column = 64 * (2 * BLOCKS * config.piece + 2 * z + j) + zero
                at, rows = state_pointers(ptr, 64 * HALF + zero, column, D_HV, 1, ACC)
                columns = column + gl.arange(0, 64, layout=ACC_COLUMN)[None, :]
                halves += (gl.load(at, mask=(rows < D_QK) & (columns < D_HV), other=0.0),)
            else:
                halves += (opaque_zeros(work.row),)
        state += (join_columns(halves[0], halves[1]),)
    return state


@gluon.jit
def decayed_rows(state, decay):
    """Return the rows of a state, accumulators [64, 128], times a factor for each, [64] in shared memory."""
    factors = decay.load(ACC_ROW)[:, None]
    BLOCKS: gl.constexpr = len(state)
    rows = ()
    for z in gl.static_range(BLOCKS):
        left, right = split_columns(state[z])
        rows += (join_columns(left * factors, right * factors),)
    return rows


@gluon.jit
def read_rows(state, x_blocks, first):
    """Return S x^T of rows of a state and a tile x, as wide as it, from block `first` on: [64, 64] float32."""
    BLOCKS: gl.constexpr = len(state)
    blocks = ()
    for z in gl.static_range(BLOCKS):
        blocks += split_columns(state[z])
    return read_both_parts(blocks, x_blocks, first, 2 * BLOCKS)


@gluon.jit
def add_terms(program, work, tile, terms, HALF: gl.constexpr):
    """Return the terms of 64 channels of a tile, by steps: q' G, or less k' G, [64, 64], and those that there are.

    All but the last walk write them to memory.
    """
    config: gl.constexpr = program.config
    index = (work.row * program.schedule.num_tiles + tile).to(gl.int64) * 128 + 64 * HALF
    rows = gl.arange(0, 64, layout=ACC_ROW)[:, None]
    at = program.tensors.terms + index * 64 + rows * 64 + gl.arange(0, 64, layout=ACC_COLUMN)[None, :]
    if config.adds_terms:
        terms = gl.load(at) - terms if config.reverse else gl.load(at) + terms
    if not config.sums_terms:
        gl.store(at, terms)
    return terms


@gluon.jit
def sums_from_here(parts, i):
    """Return of terms the sums over a step and those after it in a tile, steps by channels, [64, 64] float32.

    Args:
        parts: two blocks [64, 64], whose sum the terms are, steps by channels.
        i: a counter, of which the triangle is made: it is not to stay in registers.
    """
    row = gl.arange(0, 64, layout=gl.SliceLayout(1, TRIANGLE))[:, None] + opaque_zero(i)
    column = gl.arange(0, 16, layout=gl.SliceLayout(0, TRIANGLE))[None, :]
    x = gl.zeros([64, 64], gl.float32, layout=SUMS)
    for j in gl.static_range(4):
        ones = gl.where(column + 16 * j >= row, 1.0, 0.0).to(parts[0].dtype)
        for part in gl.static_range(2):
            # [64, 16] @ [16, 64] -> [64, 64]
            x = mma_v2(ones, parts[part].slice(16 * j, 16, dim=0).load(TERMS), x)
    return x


@gluon.jit
def write_gate_gradients(program, dg, work, tile, terms, later, places, HALF: gl.constexpr):
    """Write 64 channels of dg, `rows.Rows`, of a tile; return `later` of the tile before it.

    Args:
        terms: of the tile, channels by steps, [64, 64].
        later: sums of terms over the steps after the tile, [64].
        places: the stage of values, the slot of gates.
    """
    D_QK: gl.constexpr = program.config.d_qk
    inputs = program.inputs
    dtype: gl.constexpr = inputs.v.dtype
    value, gate = places
    before = later + gl.sum(terms, axis=1)
    terms = gl.where(gl.arange(0, 64, layout=ACC_COLUMN)[None, :] == 63, terms + later[:, None], terms)
    parts = block(inputs.gate, 2 * gate + 1), block(inputs.source, 2 * value + HALF)
    parts[0].permute((1, 0)).store(nearest(terms, dtype))
    parts[1].permute((1, 0)).store(remainder(terms, dtype))
    fence_async_shared()
    barrier()
    step = tile * 64 + gl.arange(0, 64, layout=gl.SliceLayout(1, SUMS))[:, None]
    channel = 64 * HALF + gl.arange(0, 64, layout=gl.SliceLayout(0, SUMS))[None, :]
    at = dg.data + (work.batch.to(gl.int64) * dg.b + work.head.to(gl.int64) * dg.h)
    at += step.to(gl.int64) * dg.t + channel
    gl.store(at, sums_from_here(parts, gate), mask=(step < program.schedule.num_steps) & (channel < D_QK))
    return before


@gluon.jit
def walk_gradient_tile(program, outputs, work, tile, places, state, later, HALF: gl.constexpr):
    """Write 64 channels of dq, or dk, of a tile, and their terms or dg; return the state and `later` after it.

    Args:
        outputs: dq or dk, described, and dg, `rows.Rows`.
        places: the stage of values, the slots of gates and of scores.
        later: see `write_gate_gradients`.
    """
    config: gl.constexpr = program.config
    BLOCKS: gl.constexpr = config.blocks
    STAGES: gl.constexpr = config.num_stages
    ADD: gl.constexpr = config.piece > 0
    inputs, scores = program.inputs, program.scores
    dtype: gl.constexpr = inputs.v.dtype
    value, gate, slot = places
    if config.reverse:
        reads, writes = inputs.v, inputs.do
    else:
        reads, writes = inputs.do, inputs.v
    decay = scores.decay.index(slot).slice(64 * HALF, 64)
    sourceT = block(inputs.source, 2 * value + HALF).permute((1, 0))
    if config.exact:
        out = read_rows(state, reads, 2 * BLOCKS * value)
        rows = decayed_rows(state, decay)
    else:
        rows = decayed_rows(state, decay)
        out = read_rows(rows, reads, 2 * BLOCKS * value)
        dp = block(scores.p, slot)
        if not config.reverse:
            dp = dp.permute((1, 0))
        out = warpgroup_mma(sourceT, dp, out, is_async=True)
    written = operands(writes, STAGES, 2 * BLOCKS, BLOCKS)
    in_flight = ()
    for z in gl.static_range(BLOCKS):
        # [64, 64] @ [64, 128] -> [64, 128]
        in_flight += (warpgroup_mma(sourceT, written.index(BLOCKS * value + z), rows[z], is_async=True),)
    if not config.exact:
        out = wait_for_products(BLOCKS, deps=(out,))
    if BLOCKS == 1:
        after = (wait_for_products(0, deps=in_flight),)
    else:
        after = wait_for_products(0, deps=in_flight)
    desc, dg = outputs
    at = [work.batch, work.head, tile * 64, 64 * HALF]
    factorT = block(inputs.gate, 2 * gate).permute((1, 0))
    factorT.store(nearest(out * widened(factorT.load(ACC)), dtype))
    fence_async_shared()
    barrier()
    send(desc, at, inputs.gate.index(2 * gate), ADD)
    targetT = block(inputs.gate, 2 * gate + 1).permute((1, 0))
    terms = add_terms(program, work, tile, out * widened(targetT.load(ACC)), HALF)
    if config.sums_terms:
        later = write_gate_gradients(program, dg, work, tile, terms, later, (value, gate), HALF)
    tma.store_wait(pendings=0)
    return after, later


@gluon.jit
def load_later(program, work, HALF: gl.constexpr):
    """Return the sums of terms over the steps after a segment, of 64 channels."""
    config: gl.constexpr = program.config
    D_QK: gl.constexpr = config.d_qk
    channel = 64 * HALF + gl.arange(0, 64, layout=ACC_ROW)
    if config.crosses:
        at = program.tensors.crossing + get_state_index(program.schedule, work) * D_QK + channel
        return gl.load(at, mask=channel < D_QK, other=0.0)
    else:
        return gl.zeros([64], gl.float32, layout=ACC_ROW)


@gluon.jit
def gradient_state_partition(program, outputs, HALF: gl.constexpr):
    """Carry 64 rows of the state as float32 accumulators, and write as many channels of dq, or dk and dg."""
    config: gl.constexpr = program.config
    GATE_SLOTS: gl.constexpr = config.num_gate_slots
    schedule, inputs, scores = program.schedule, program.inputs, program.scores
    value, slot = inputs.values.begin(), scores.ring.begin()
    gate = gl.to_tensor(HALF)
    for item in range(gl.program_id(0), schedule.num_items, gl.num_programs(0)):
        work = get_item(schedule, program.tensors.closed, item, config)
        state, later = load_rows(program, work, HALF), load_later(program, work, HALF)
        for turn in range(work.first_tile, work.end_tile):
            scores.ring.consumer_wait(slot)
            tile = get_tile(work, turn, config.reverse)
            places = value.slot, gate, slot.slot
            state, later = walk_gradient_tile(program, outputs, work, tile, places, state, later, HALF)
            barrier()
            inputs.gates.consumer_release(Cursor(gate, gate))
            inputs.values.consumer_release(value)
            scores.ring.consumer_release(slot)
            value = inputs.values.next(value)
            slot = scores.ring.next(slot)
            gate = (gate + 2) % GATE_SLOTS
    tma.store_wait(pendings=0)


@gluon.jit
def walk_channels(
    do_desc, v_desc, source_desc, g_desc, target_desc, out_desc, dg, tensors, scale_log2, counts,
    config: gl.constexpr,
):  # fmt: skip
    """Compute dq, or dk and dg, of all heads; 4 warps and maxnreg=128."""
    REGISTERS: gl.constexpr = config.state_registers
    GATE_REGISTERS: gl.constexpr = config.gate_registers
    schedule = get_schedule(counts)
    program = allocate_gradient_program(schedule, tensors, config, source_desc)
    totals = gl.allocate_shared_memory(gl.float32, [4, 64], VECTORS)
    gl.warp_specialize(
        [
            (gradient_state_partition, (program, (out_desc, dg), 0)),
            (gradient_state_partition, (program, (out_desc, dg), 1)),
            (gradient_gate_partition, (program, g_desc, scale_log2, totals)),
            (load_gradient_tiles, (program, (do_desc, v_desc, source_desc, g_desc, target_desc))),
        ],
        [4, 4, 1],
        [REGISTERS, GATE_REGISTERS, 24],
    )


# --- Host -------------------------------------------------------------------------------------------------------------


def launch_channels(
    walk: DeltaWalk, inputs: tuple[Tensor, ...], out: Tensor, dg: Tensor, tensors: GlaTensors, *,
    scale_log2: float, reverse: bool, exact: bool, pieces: int,
) -> None:  # fmt: skip
    """Write dq and the terms of dg or, in reverse, dk and dg.

    Args:
        reverse, exact: see `GlaGradientConfig`.
        pieces: launches, one for some columns of v each; all but the first add to what is there.
    """
    q, k, g, v, do = inputs
    source, target = (q, k) if reverse else (k, q)
    descs = tuple(map(descriptor, (do, v, source, g, target, out)))
    for piece in range(pieces):
        config = GlaGradientConfig.of(
            channels_shape(v.shape[-1]), d_qk=q.shape[-1], d_hv=v.shape[-1], piece=piece, reverse=reverse, exact=exact,
            sums_terms=reverse and piece == pieces - 1, loads=tensors.initial is not None,
            crosses=tensors.crossing is not None,
        )  # fmt: skip
        enqueue(
            walk_channels, walk.programs, *descs, rows(dg), pointers(tensors, tensors.closed), scale_log2,
            DeltaCounts.of(walk), config=config, num_warps=4, maxnreg=128, **ASSEMBLY,
        )  # fmt: skip
