# type: ignore   # Gluon: what runs on the device has no types that a Python checker knows
"""Fused forward pass like forward.py, with several heads in a program: for heads that share q and k, 64 x 64 states.

Q K^T of a tile is computed once and weighted by the gates of each head; V, H and the state are a head's own. The heads
of a program, a pack, come in pairs: one head of a pair for either state partition.

Partitions of a program, and what connects them:

    score      8 warps   copies tiles of Q, K, V to shared memory     -> InputTiles, a ring of stages
                         P and the decays of a tile, pair by pair     -> Scores, a ring with a slot for each pair
    state 0    4 warps   C^T and H of the first head of every pair    -> H, by TMA
    state 1    4 warps   C^T and H of the second head of every pair   -> H, by TMA

A state partition takes its heads one after the other: each has the 64 rows that its accumulators have. Pairs have slots
and output buffers of their own, so a state partition starts on one pair while `score` is at the next.

The state partitions would wait for `score`, so it has eight warps, each with half the columns of 16 rows of P. It also
starts the copies: a warp for these alone would make twenty warps of sixteen, and leave 96 registers a thread at launch.
"""

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma

from tflabench.kernels.common.launching import enqueue
from tflabench.kernels.scalar.plan.hopper import Walk
from tflabench.kernels.scalar.plan.hopper_shapes import PACK

from .config import PackedHeadsConfig
from .launch import WalkInputs, descriptor, pointers
from .pipeline import Cursor, allocate_ring, begin_kernel
from .schedule import Counts, Schedule, encode_counts, get_segment, get_state_index
from .state import States, start_state_update, state_pointers
from .state_walk import InputTiles, Program, Scores
from .tiles import ACC, ACC_ROW, BLOCK_BYTES, VECTOR, operands
from .workarounds import ASSEMBLY, barrier, opaque_zero, reinterpret, tma_load, tma_store, wait_for_products

# Of `score`, a partition of 8 warps.
PROB = gl.constexpr(gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 2], instr_shape=[16, 32, 16]))
PROB_ROW = gl.constexpr(gl.SliceLayout(1, PROB))
PROB_COLUMN = gl.constexpr(gl.SliceLayout(0, PROB))
STEP_OF_HEAD = gl.constexpr(gl.BlockedLayout([1, 1], [1, 32], [4, 2], [1, 0]))  # a value for each head and step
MATRIX = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, order=[1, 0]))  # in shared memory

# --- What partitions share --------------------------------------------------------------------------------------------
#
# A stage of `InputTiles` has Q, K and the V of every head; heads of `Schedule` are packs. `Scores` has a slot for each
# pair, filled once a tile, with P of the first and of the second head, [pairs, 64, 64] each: one buffer for both would
# take more barriers, which the compiler puts between stores that it cannot tell apart. Decays, [2 * heads, 64], come in
# two sets, for even and for odd tiles: when `score` writes one, the state partitions may still read the other, while
# the set that is overwritten served them two tiles ago.


@gluon.jit
def by_head(buffer, SETS: gl.constexpr, HEADS: gl.constexpr):
    """View a buffer [SETS * HEADS, 64] as SETS matrices [HEADS, 64]."""
    return reinterpret(buffer, gl.float32, [SETS, HEADS, 64], MATRIX)


# --- Score partition --------------------------------------------------------------------------------------------------


@gluon.jit
def load_tile(program, descs, work, tile, stage):
    """Start the copies of a tile: Q and K, which all heads of the program share, and V of each head."""
    HEADS: gl.constexpr = program.config.num_heads
    inputs, ring = program.inputs, program.inputs.ring
    q_desc, k_desc, v_desc = descs
    ring.producer_acquire(stage)
    full = ring.full.index(stage.slot)
    mbarrier.expect(full, BLOCK_BYTES * (2 + HEADS))
    tma_load(q_desc, [work.batch, work.qk_head, tile * 64, 0], full, inputs.query.index(stage.slot))
    tma_load(k_desc, [work.batch, work.qk_head, tile * 64, 0], full, inputs.key.index(stage.slot))
    tma_load(v_desc, [work.batch, work.head * HEADS, tile * 64, 0], full, inputs.value.index(stage.slot))


@gluon.jit
def load_gates(program, work, tile):
    """Return x, y and g of a tile, [heads, 64] each, g with 64 copies."""
    HEADS: gl.constexpr = program.config.num_heads
    gates = program.gates
    head = gl.arange(0, HEADS, layout=gl.SliceLayout(1, STEP_OF_HEAD))[:, None]
    t = gl.arange(0, 64, layout=gl.SliceLayout(0, STEP_OF_HEAD))[None, :]
    at = (work.row * HEADS + head) * program.schedule.num_tiles + tile
    return gl.load(gates.x + (at * 64 + t)), gl.load(gates.y + (at * 64 + t)), gl.load(gates.g + (at + 0 * t))


@gluon.jit
def store_decays(program, x, y, g, turn):
    """Write the decays of a tile, made of x, y and g as `load_gates` returns them, to the set of its turn, 0 or 1."""
    HEADS: gl.constexpr = program.config.num_heads
    scores = program.scores
    by_head(scores.query_decay, 2, HEADS).index(turn).store(gl.exp2(x))
    by_head(scores.key_decay, 2, HEADS).index(turn).store(gl.exp2(y + g))
    by_head(scores.state_decay, 2, HEADS).index(turn).store(gl.exp2(g))


@gluon.jit
def multiply_qk(inputs, stage):
    """Return Q K^T of a tile, [64, 64] @ [64, 64] -> [64, 64] float32."""
    q = operands(inputs.query, inputs.ring.num_slots, 1, 1)
    k = operands(inputs.key, inputs.ring.num_slots, 1, 1)
    qk = gl.zeros([64, 64], gl.float32, layout=PROB)
    qk = warpgroup_mma(q.index(stage.slot), k.index(stage.slot).permute((1, 0)), qk, is_async=True)
    return wait_for_products(0, deps=(qk,))


@gluon.jit
def weigh_scores(qk, x, y, skip_ptr, SKIP: gl.constexpr):
    """Return P of a head, with its skip on the diagonal if SKIP, [64, 64]; x, y: [64] in shared memory."""
    row = gl.arange(0, 64, layout=PROB_ROW)
    column = gl.arange(0, 64, layout=PROB_COLUMN)
    x = x.load(PROB_ROW)
    y = y.load(PROB_COLUMN)
    prob = gl.where(row[:, None] >= column[None, :], qk * gl.exp2(x[:, None] + y[None, :]), 0.0)
    if SKIP:
        prob += gl.where(row[:, None] == column[None, :], gl.load(skip_ptr), 0.0)
    return prob


@gluon.jit
def score_partition(program, descs, skip_ptr, x_smem, y_smem):
    """Compute P and the decays of every tile and head, and start the copies of the tiles.

    Exponents are loaded a tile ahead, as in `state_walk.score_partition`; x_smem, y_smem: [heads, 64] float32.
    """
    config: gl.constexpr = program.config
    HEADS: gl.constexpr = config.num_heads
    PAIRS: gl.constexpr = config.num_pairs
    schedule, inputs, scores = program.schedule, program.inputs, program.scores
    dtype: gl.constexpr = inputs.query.dtype
    i = 0
    stage = inputs.ring.begin()
    for item in range(gl.program_id(0), schedule.num_items, gl.num_programs(0)):
        work = get_segment(schedule, item, config)
        load_tile(program, descs, work, work.first_tile, stage)
        next_x, next_y, next_g = load_gates(program, work, work.first_tile)
        for tile in range(work.first_tile, work.end_tile):
            by_head(x_smem, 1, HEADS).index(0).store(next_x)
            by_head(y_smem, 1, HEADS).index(0).store(next_y)
            store_decays(program, next_x, next_y, next_g, i & 1)
            barrier()  # before other warps read x and y; the state partitions read decays once they have P
            next_tile = gl.minimum(tile + 1, work.end_tile - 1)
            next_x, next_y, next_g = load_gates(program, work, next_tile)
            inputs.ring.consumer_wait(stage)
            qk = multiply_qk(inputs, stage)
            for pair in range(PAIRS):
                # By now the state partitions leave the tile before, whose stage the next one takes.
                if (pair == PAIRS - 1) & (tile + 1 < work.end_tile):
                    load_tile(program, descs, work, next_tile, inputs.ring.next(stage))
                probs = ()
                for half in gl.static_range(2):
                    head = 2 * pair + half
                    skip = skip_ptr + work.head * HEADS + head
                    probs += (weigh_scores(qk, x_smem.index(head), y_smem.index(head), skip, config.skip),)
                slot = Cursor(pair, i & 1)
                scores.ring.producer_acquire(slot)
                scores.p[0].index(pair).store(probs[0].to(dtype))
                scores.p[1].index(pair).store(probs[1].to(dtype))
                fence_async_shared()
                barrier()  # every warp has written its part of P, and read x and y
                scores.ring.producer_commit(slot)
            stage = inputs.ring.next(stage)
            i += 1


# --- State partitions -------------------------------------------------------------------------------------------------


@gluon.jit
def get_state_pointers(program, ptr, work, head):
    """Return pointers to C^T, [64, 64], of a head of the program's pack; ptr has C (B, H, segments, 64, 64)."""
    index = get_state_index(program.schedule, work, head, program.config.num_heads)
    at, _ = state_pointers(ptr + index * (64 * 64), 0, 0, 1, 64, ACC)
    return at


@gluon.jit
def load_states(program, work, HALF: gl.constexpr):
    """Return C^T of a state partition's heads before a segment, a tuple of [64, 64]."""
    PAIRS: gl.constexpr = program.config.num_pairs
    states = ()
    for pair in gl.static_range(PAIRS):
        if program.config.load_initial_state:
            states += (gl.load(get_state_pointers(program, program.states.initial, work, 2 * pair + HALF)),)
        else:
            states += (gl.zeros([64, 64], gl.float32, layout=ACC),)
    return states


@gluon.jit
def store_states(program, work, states, HALF: gl.constexpr):
    """Write C^T of a state partition's heads after a segment."""
    PAIRS: gl.constexpr = program.config.num_pairs
    for pair in gl.static_range(PAIRS):
        gl.store(get_state_pointers(program, program.states.final, work, 2 * pair + HALF), states[pair])


@gluon.jit
def walk_tile(program, output, work, tile, i, state, PAIR: gl.constexpr, HALF: gl.constexpr):
    """Write H of the i-th tile of this program for one head of a pair.

    Args:
        output: the descriptor of H; buffers for C^T in 16 bits, [1, 64, 64], and for H, [pairs, 1, 1, 64, 64].
        state: C^T of the head before the tile, [64, 64] float32; what is returned is C^T after it.
    """
    config: gl.constexpr = program.config
    HEADS: gl.constexpr = config.num_heads
    PAIRS: gl.constexpr = config.num_pairs
    inputs, scores = program.inputs, program.scores
    h_desc, state_smem, h_smem = output
    dtype: gl.constexpr = inputs.query.dtype
    head = 2 * PAIR + HALF
    zero = opaque_zero(i, PAIR)  # spelled anew for each pair: keeps addresses out of registers
    stage = inputs.ring.at(i).slot + zero
    q = operands(inputs.query, config.num_stages, 1, 1).index(stage)
    k = operands(inputs.key, config.num_stages, 1, 1)
    v = operands(inputs.value, config.num_stages, HEADS, HEADS).index(stage * HEADS + head)
    decays = (i & 1) * HEADS + head

    # H = query_decay * (Q C) + P V, [64, 64]
    tma.store_wait(pendings=PAIRS - 1)
    state_smem.index(zero).store(state.to(dtype))
    fence_async_shared()
    barrier()  # C^T is in shared memory; this pair's buffer for H is free
    h = gl.zeros([64, 64], gl.float32, layout=ACC)
    h = warpgroup_mma(q, state_smem.index(zero).permute((1, 0)), h, is_async=True)  # [64, 64] @ [64, 64] -> [64, 64]
    h = wait_for_products(0, deps=(h,))
    slot = Cursor(gl.to_tensor(PAIR), i & 1)
    scores.ring.consumer_wait(slot)
    query_decay = scores.query_decay.index(decays).load(ACC_ROW)
    state_decay = scores.state_decay.index(decays).load(ACC_ROW)
    h = h * query_decay[:, None]
    h = warpgroup_mma(scores.p[HALF].index(PAIR), v, h, is_async=True)  # [64, 64] @ [64, 64] -> [64, 64]

    # C^T = state_decay * C^T + (key_decay V)^T K, [64, 64]
    in_flight, kept = start_state_update(
        (state * state_decay[:, None],), v.permute((1, 0)), scores.key_decay.index(decays), k, stage, 1
    )
    h = wait_for_products(2, deps=(h,))  # the state is updated while H is written
    out = h_smem.index(PAIR)
    out.reshape([64, 64]).store(h.to(dtype))
    fence_async_shared()
    barrier()  # every warp has read C^T, P and its decays, and written its part of H
    tma_store(h_desc, [work.batch, work.head * HEADS + head, tile * 64, 0], out)
    scores.ring.consumer_release(slot)
    return wait_for_products(0, deps=in_flight + kept)[0]


@gluon.jit
def state_partition(program, output, HALF: gl.constexpr):
    """Carry C^T of one head of every pair as float32 accumulators, and write the H of these heads."""
    config: gl.constexpr = program.config
    PAIRS: gl.constexpr = config.num_pairs
    schedule, ring = program.schedule, program.inputs.ring
    i = 0
    for item in range(gl.program_id(0), schedule.num_items, gl.num_programs(0)):
        work = get_segment(schedule, item, config)
        states = load_states(program, work, HALF)
        for tile in range(work.first_tile, work.end_tile):
            stage = ring.at(i)
            ring.consumer_wait(stage)
            new_states = ()
            for pair in gl.static_range(PAIRS):
                new_states += (walk_tile(program, output, work, tile, i, states[pair], pair, HALF),)
            states = new_states
            fence_async_shared()
            barrier()  # every warp has read the stage
            ring.consumer_release(stage)
            i += 1
        if config.store_final_state:
            store_states(program, work, states, HALF)
    tma.store_wait(pendings=0)


# --- Kernel -----------------------------------------------------------------------------------------------------------


@gluon.jit
def allocate_output(config: gl.constexpr, desc):
    """Return a state partition's buffers for C^T in 16 bits, [1, 64, 64], and for H, [pairs, 1, 1, 64, 64]."""
    PAIRS: gl.constexpr = config.num_pairs
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, 64], desc.dtype)
    state = gl.allocate_shared_memory(desc.dtype, [1, 64, 64], layout)
    h = gl.allocate_shared_memory(desc.dtype, [PAIRS, 1, 1, 64, 64], desc.layout)
    return state, h


@gluon.jit(do_not_specialize=["num_items", "num_steps", "num_tiles"])
def walk_heads(
    q_desc, k_desc, v_desc, h_desc, gates, states, skip_ptr, num_items, num_steps, num_tiles, counts,
    config: gl.constexpr,
):  # fmt: skip
    """Compute H of all work items, and the states after them; launched with 4 warps and maxnreg=128.

    Args:
        v_desc: of `config.num_heads` blocks side by side of v (B, H, T, 64).
        counts: heads are packs of `config.num_heads`.  The others are as of `forward.walk_forward`.
    """
    STAGES: gl.constexpr = config.num_stages
    HEADS: gl.constexpr = config.num_heads
    PAIRS: gl.constexpr = config.num_pairs
    dtype: gl.constexpr = q_desc.dtype
    matrix: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, 64], dtype)
    q = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, 64, 64], q_desc.layout)
    k = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, 64, 64], q_desc.layout)
    v = gl.allocate_shared_memory(dtype, [STAGES, 1, HEADS, 64, 64], q_desc.layout)
    state_smem0, h_smem0 = allocate_output(config, q_desc)
    state_smem1, h_smem1 = allocate_output(config, q_desc)
    p0 = gl.allocate_shared_memory(dtype, [PAIRS, 64, 64], matrix)
    p1 = gl.allocate_shared_memory(dtype, [PAIRS, 64, 64], matrix)
    x_smem = gl.allocate_shared_memory(gl.float32, [HEADS, 64], VECTOR)
    y_smem = gl.allocate_shared_memory(gl.float32, [HEADS, 64], VECTOR)
    query_decay = gl.allocate_shared_memory(gl.float32, [2 * HEADS, 64], VECTOR)
    key_decay = gl.allocate_shared_memory(gl.float32, [2 * HEADS, 64], VECTOR)
    state_decay = gl.allocate_shared_memory(gl.float32, [2 * HEADS, 64], VECTOR)
    inputs = InputTiles(
        allocate_ring(STAGES, 2), q, k, v, None
    )  # `score` has read a stage before both state partitions have
    scores = Scores(allocate_ring(PAIRS, 2), (p0, p1), query_decay, key_decay, state_decay)
    schedule = Schedule(num_items, num_steps, num_tiles, counts)
    program = Program(config, schedule, gates, states, inputs, scores, None)
    begin_kernel(independent=False)
    gl.warp_specialize(
        [
            (state_partition, (program, (h_desc, state_smem0, h_smem0), 0)),
            (state_partition, (program, (h_desc, state_smem1, h_smem1), 1)),
            (score_partition, (program, (q_desc, k_desc, v_desc), skip_ptr, x_smem, y_smem)),
        ],
        [4, 8],
        [config.state_registers, config.score_registers],
    )


# --- Host -------------------------------------------------------------------------------------------------------------


def launch_packed_heads(inputs: WalkInputs, h: Tensor, walk: Walk, states: States) -> None:
    """Write h (B, H, T, 64) without a normaliser, PACK heads a program, and the states that are asked for.

    d_qk and d_hv are 64, and PACK or more heads of v share one of q and k.
    """
    q, k, v, gates, skip, _ = inputs
    cut, sizes = walk.cut, walk.sizes
    config = PackedHeadsConfig.of(
        walk.shape,
        load_initial_state=states.initial is not None,
        store_final_state=states.final is not None,
        skip=skip is not None,
    )
    packs = sizes.heads // PACK
    counts = encode_counts(Counts(packs, sizes.group // PACK, cut.segment_tiles, cut.count, cut.count, cut.count))
    unused = gates.g
    enqueue(
        walk_heads, walk.programs,
        descriptor(q), descriptor(k), descriptor(v, PACK), descriptor(h),
        gates, pointers(states, unused), unused if skip is None else skip,
        walk.items, sizes.steps, cut.tiles, counts, config=config,
        num_warps=4, maxnreg=128, launch_pdl=True, **ASSEMBLY,
    )  # fmt: skip
