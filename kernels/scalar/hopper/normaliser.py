# type: ignore   # Gluon: what runs on the device has no types that a Python checker knows
"""The normaliser n of a forward walk, and the denominators by which H is divided.

    denominator_i = max(|2^x_i Q_i . n + sum_j P_ij|, exp(-m_i))
    n <- 2^g n + sum_j 2^(y_j + g) K_j                      after every tile of 64 steps

Partitions, and what they hand to each other in a tile:

    normaliser   n and k_decay as parts                     -> parts_ready
    score        Q n, K^T k_decay, and sums of rows of P    -> sums_ready
    normaliser   1 / denominator                            -> denominator_ready, for whoever divides

Two products of `score` have n and k_decay as an operand of 8 columns, which costs the tensor cores next to nothing
(docs/decisions/2026-11-22-normaliser.md).
"""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma

from tflabench.kernels.scalar.gates import SMALLEST_DENOMINATOR

from .conversions import upper
from .pipeline import Cursor, Signal, aggregate, allocate_signal
from .schedule import get_items, get_work_item, loads_state, stores_state, stores_state_after
from .state import split_decay
from .tiles import VECTOR, operands
from .workarounds import barrier, uniform, wait_for_products

LOG2_E = gl.constexpr(1.4426950408889634)
SMALLEST = gl.constexpr(SMALLEST_DENOMINATOR.value)
NARROW = gl.constexpr(gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 8, 16]))
PARTS = gl.constexpr(gl.BlockedLayout([1, 8], [32, 1], [2, 1], [1, 0]))
PARTIAL_SUMS = gl.constexpr(gl.BlockedLayout([1, 4], [32, 1], [2, 1], [1, 0]))
VALUE_OF_THREAD = gl.constexpr(gl.SliceLayout(1, PARTS))  # a step or columns of n, a thread of 2 warps


class NormaliserTensors(NamedTuple):
    """Tensors that a forward walk with a normaliser reads and writes, float32; on the device, pointers.

    Attributes:
        m: running maximum, (B, H, T).
        x_backward: x less log2 of the denominator, for the backward pass, (B, H, tiles * 64).
        initial, final: n before and after each segment, (B, H, segments, d_qk), or None.
    """

    m: Any
    x_backward: Any
    initial: Any
    final: Any


@aggregate
class Normaliser:
    """Buffers of a program in shared memory, float32 but for parts.

    Fields:
        gates: [3 * stages, 64]: x, y and m of a tile; the three of a stage lie side by side.
        n_parts: n, [1, 8, d_qk / operands] each.  k_decay_parts: [1, 8, 64]. See `split_float32`.
        qn: [64], Q n.  ks: [d_qk / operands, 4] each, K^T k_decay, what a tile adds to n, as partial sums.
        denominator: [slots, 64]: sums of the rows of P, then 1 / denominator.
        parts_ready, sums_ready, denominator_ready: what a partition waits for, see above.
    """

    gates: gl.shared_memory_descriptor
    n_parts: gl.tuple
    k_decay_parts: gl.shared_memory_descriptor
    qn: gl.shared_memory_descriptor
    ks: gl.tuple
    denominator: gl.shared_memory_descriptor
    parts_ready: Signal
    sums_ready: Signal
    denominator_ready: Signal

    @gluon.jit
    def x(self, stage):
        """Return x of a stage, [64]."""
        return self.gates.index(3 * stage)

    @gluon.jit
    def y(self, stage):
        """Return y of a stage, [64]."""
        return self.gates.index(3 * stage + 1)

    @gluon.jit
    def m(self, stage):
        """Return m of a stage, [64]."""
        return self.gates.index(3 * stage + 2)


@gluon.jit
def allocate_normaliser(config: gl.constexpr, dtype: gl.constexpr):
    """Return the buffers of a program; dtype is that of Q and K."""
    OPERANDS: gl.constexpr = config.score_operands
    WIDTH: gl.constexpr = 64 * config.blocks_key // OPERANDS
    STAGES: gl.constexpr = config.num_stages
    SLOTS: gl.constexpr = config.num_slots
    parts_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([8, 64], dtype)
    rows: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, order=[1, 0])
    n_parts, ks = (), ()
    for _ in gl.static_range(OPERANDS):
        n_parts += (gl.allocate_shared_memory(dtype, [1, 8, WIDTH], parts_layout),)
        ks += (gl.allocate_shared_memory(gl.float32, [WIDTH, 4], rows),)
    return Normaliser(
        # One allocation for x, y and m: with three of them, and a base address each, h takes 5% longer at 256/512.
        gates=gl.allocate_shared_memory(gl.float32, [3 * STAGES, 64], VECTOR),
        n_parts=n_parts,
        k_decay_parts=gl.allocate_shared_memory(dtype, [1, 8, 64], parts_layout),
        qn=gl.allocate_shared_memory(gl.float32, [64], VECTOR),
        ks=ks,
        denominator=gl.allocate_shared_memory(gl.float32, [SLOTS, 64], VECTOR),
        parts_ready=allocate_signal(1),
        sums_ready=allocate_signal(1),
        denominator_ready=allocate_signal(SLOTS),
    )


@gluon.jit
def split_float32(x, dtype: gl.constexpr):
    """Split float32 x [n] into an operand [n, 8] of dtype: the sum of a product's columns is the product with x.

    A column takes the leading bits of the remainder: three of bfloat16 have all of a float32. Four of float16, each
    2**10 times as large as its place, have them from 2**-14 on and steps of 2**-38 below, where a weight is at most 1,
    and reach as far as the sum of 65,536 of the largest keys.
    """
    column = gl.arange(0, 8, layout=gl.SliceLayout(0, PARTS))
    parts = gl.zeros([x.shape[0], 8], dtype, layout=PARTS)
    if dtype == gl.float16:
        x *= 2.0**-16
    for c in gl.static_range(4 if dtype == gl.float16 else 3):
        part = upper(x, dtype)
        parts = gl.where(column[None, :] == c, part[:, None], parts)
        x -= part.to(gl.float32)
        if dtype == gl.float16:
            x *= 2.0**10
    return parts


@gluon.jit
def unscale_parts(products, dtype: gl.constexpr):
    """Undo, in products [n, 8] with an operand of `split_float32`, what its columns of float16 are larger by."""
    if dtype == gl.float16:
        column = gl.arange(0, 8, layout=gl.SliceLayout(0, NARROW))
        products *= gl.exp2(16.0 - 10.0 * column.to(gl.float32))[None, :]
    return products


@gluon.jit
def multiply_by_normaliser(program, stage, zero, turn, OPERANDS: gl.constexpr):
    """Compute Q n, [64], and K^T k_decay, [d_qk, 4] as sums of pairs of columns, and signal that they are there.

    Args:
        stage: of Q and K.  zero: 0, in a form that keeps addresses out of registers.
        turn: the cursor of a signal that has one slot.
    """
    inputs, norm = program.inputs, program.norm
    dtype: gl.constexpr = inputs.query.dtype
    BLOCKS: gl.constexpr = program.config.blocks_key
    WIDTH: gl.constexpr = 64 * BLOCKS // OPERANDS
    q = operands(inputs.query, inputs.ring.num_slots, BLOCKS, OPERANDS)
    k = operands(inputs.key, inputs.ring.num_slots, BLOCKS, OPERANDS)
    norm.parts_ready.wait(turn)
    qn = gl.zeros([64, 8], gl.float32, layout=NARROW)
    for b in gl.static_range(OPERANDS):
        # [64, d_qk / OPERANDS] @ [d_qk / OPERANDS, 8] -> [64, 8]
        n_parts = norm.n_parts[b].index(zero).permute((1, 0))
        qn = warpgroup_mma(q.index(uniform(stage) * OPERANDS + b), n_parts, qn, use_acc=(b > 0), is_async=True)
    products = (qn,)
    for b in gl.static_range(OPERANDS):
        # [d_qk / OPERANDS, 64] @ [64, 8] -> [d_qk / OPERANDS, 8]
        ks = gl.zeros([WIDTH, 8], gl.float32, layout=NARROW)
        kT = k.index(uniform(stage) * OPERANDS + b).permute((1, 0))
        k_decay_parts = norm.k_decay_parts.index(zero).permute((1, 0))
        products += (warpgroup_mma(kT, k_decay_parts, ks, use_acc=False, is_async=True),)
    products = wait_for_products(0, deps=products)
    norm.qn.store(gl.sum(unscale_parts(products[0], dtype), axis=1))
    for b in gl.static_range(OPERANDS):
        norm.ks[b].store(gl.sum(unscale_parts(products[1 + b], dtype).reshape([WIDTH, 4, 2]), axis=2))
    barrier()
    norm.sums_ready.arrive(turn)


@gluon.jit
def load_initial_normaliser(pointers, at, loads, config: gl.constexpr):
    """Return n before a segment as vectors [d_qk / operands]; loads: of `loads_state`."""
    OPERANDS: gl.constexpr = config.score_operands
    WIDTH: gl.constexpr = 64 * config.blocks_key // OPERANDS
    n = ()
    for b in gl.static_range(OPERANDS):
        n += (gl.load(pointers.initial + at + WIDTH * b, mask=(at >= 0) & loads, other=0.0),)
    return n


@gluon.jit
def store_parts(program, n, stage, turn):
    """Write n and k_decay of a tile as parts of 16 bits, and signal that they are there."""
    inputs, scores, norm = program.inputs, program.scores, program.norm
    dtype: gl.constexpr = inputs.query.dtype
    for b in gl.static_range(len(n)):
        norm.n_parts[b].index(0).permute((1, 0)).store(split_float32(n[b], dtype))
    inputs.ring.consumer_wait(stage)
    k_decay = scores.key_decay.index(stage.slot).load(VALUE_OF_THREAD)
    norm.k_decay_parts.index(0).permute((1, 0)).store(split_float32(k_decay, dtype))
    fence_async_shared()
    barrier()
    norm.parts_ready.arrive(turn)


@gluon.jit
def store_denominators(program, stage, slot, turn):
    """Make the denominators of a tile, write their inverses, and signal that they are there.

    Returns:
        x, and the denominators, [64] each.
    """
    scores, norm = program.scores, program.norm
    x = norm.x(stage.slot).load(VALUE_OF_THREAD)
    q_decay = scores.query_decay.index(stage.slot).load(VALUE_OF_THREAD)
    lowest = gl.exp2(-LOG2_E * norm.m(stage.slot).load(VALUE_OF_THREAD))
    lowest = gl.maximum(lowest, SMALLEST)
    norm.sums_ready.wait(turn)
    total = q_decay * norm.qn.load(VALUE_OF_THREAD) + norm.denominator.index(slot.slot).load(VALUE_OF_THREAD)
    denominator = gl.maximum(gl.abs(total), lowest)
    norm.denominator.index(slot.slot).store(1.0 / denominator)
    barrier()
    norm.denominator_ready.arrive(slot)
    return x, denominator


@gluon.jit
def normaliser_partition(program, pointers):
    """Carry n and make the denominators (2 warps): a thread has a step, or columns of n, so nothing is done twice."""
    config: gl.constexpr = program.config
    schedule, inputs, scores, norm = program.schedule, program.inputs, program.scores, program.norm
    OPERANDS: gl.constexpr = config.score_operands
    WIDTH: gl.constexpr = 64 * config.blocks_key // OPERANDS
    t = gl.arange(0, 64, layout=VALUE_OF_THREAD)
    stage, slot = inputs.ring.begin(), scores.ring.begin()
    phase = 0
    first, end, stride = get_items(schedule, config)
    for item in range(first, end, stride):
        work = get_work_item(schedule, item, config)
        at_n = work.state_index * config.d_qk + gl.arange(0, WIDTH, layout=VALUE_OF_THREAD)
        pending = 0.0
        n = load_initial_normaliser(pointers, at_n, loads_state(schedule, phase), config)
        for tile in range(work.first_tile, work.end_tile):
            tile_index = work.row * schedule.num_tiles + tile
            turn = Cursor(gl.to_tensor(0), gl.to_tensor(phase))
            g = gl.load(program.gates.g + tile_index)
            if config.defer_decay:
                flush = stores_state_after(schedule, work, tile, config.keep_states)
                decay, pending = split_decay(pending, g, flush)
            else:
                decay = gl.exp2(g)
            store_parts(program, n, stage, turn)
            x, denominator = store_denominators(program, stage, slot, turn)
            inputs.ring.consumer_release(stage)
            if work.piece == 0:
                gl.store(pointers.x_backward + tile_index * 64 + t, x - gl.log2(denominator))
            new_n = ()
            for b in gl.static_range(OPERANDS):
                added = gl.convert_layout(gl.sum(norm.ks[b].load(PARTIAL_SUMS), axis=1), VALUE_OF_THREAD)
                new_n += (n[b] * decay + added,)
            n = new_n
            stage = inputs.ring.next(stage)
            slot = scores.ring.next(slot)
            phase ^= 1
        if (work.piece == 0) & stores_state(schedule, phase):
            for b in gl.static_range(OPERANDS):
                gl.store(pointers.final + at_n + WIDTH * b, n[b])
