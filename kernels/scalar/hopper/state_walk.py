# type: ignore   # Gluon: what runs on the device has no types that a Python checker knows
"""The walk that h, dv, dq and dk share: a state is carried on chip over the tiles of a segment, and read on the way.

    out_i = 2^x_i S q_i + sum_j P_ij v_j          P_ij = (q_i . k_j) 2^(x_i + y_j), masked to steps j that come first
    S    <- 2^g S + sum_j weight_j v_j k_j^T      after every tile of 64 steps

Here q, k and v are a query, a key and a value, whatever these are:

    out | query key value | direction | state S: rows of value, columns of key | file
    h   | q     k   v     | forward   | C^T                                     | forward.py
    dv  | k     q   dh    | backward  | dC^T                                    | backward_dv.py
    dq  | dh    v   k     | forward   | C                                       | backward_dqk.py
    dk  | v     dh  q     | backward  | dC                                      | backward_dqk.py

x and y (one value a step) and g (one a tile) are base-2 exponents that exponents.py has summed within each tile. Gates,
stabiliser, denominators and the scale of q are all in them, so nothing here knows which gate it runs.

Partitions of a program, and what connects them:

    load         1 warp    copies tiles of query, key and value by TMA      -> InputTiles, a ring of stages
    score        4 warps   P and the decays of a tile                       -> Scores, a ring of slots
    state 0      4 warps   S and out^T, the upper half of their rows        -> out, by TMA
    state 1      4 warps   S and out^T, the lower half of their rows        -> out, by TMA

A program holds 128 or 256 rows of S, and up to 256 columns. A larger S is divided among programs ("pieces"); those of
different columns add up their outputs. TMA pads with zeros beyond the last step or column, and loses what is written
there.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma

from .conversions import nearest
from .normaliser import allocate_normaliser
from .pipeline import Ring, aggregate, allocate_ring, begin_kernel, end_kernel
from .schedule import (
    Schedule,
    get_column_piece,
    get_first_column,
    get_items,
    get_kept_index,
    get_part_offset,
    get_row_piece,
    get_step,
    get_tile,
    get_work_item,
    is_independent,
    loads_state,
    starts_kept_segment,
    stores_state,
    stores_state_after,
)
from .state import finish_state_update, split_decay, start_state_update, state_pointers
from .tiles import (
    ACC,
    ACC_COLUMN,
    ACC_OPERAND,
    ACC_ROW,
    BLOCK_BYTES,
    STEP,
    VECTOR,
    block,
    load_blocks,
    operands,
    send,
)
from .workarounds import (
    barrier,
    opaque_zero,
    uniform,
    wait_for_kernel_before_unless,
    wait_for_products,
)

# --- What partitions share --------------------------------------------------------------------------------------------


@aggregate
class InputTiles:
    """A ring of stages in shared memory, each a tile of query, key and value in blocks of 64 steps by 64 columns.

    Fields:
        query, key: [stages * blocks_key, 1, 1, 64, 64], 16 bits.
        value: [stages * halves * blocks_value, 1, 1, 64, 64], 16 bits.
        primal: the same shape, only with row sums: q of dq, k of dk.
    """

    ring: Ring
    query: gl.shared_memory_descriptor
    key: gl.shared_memory_descriptor
    value: gl.shared_memory_descriptor
    primal: object


@aggregate
class Scores:
    """A ring of slots in shared memory, each the P of a tile and its decays.

    Without a normaliser `score` writes the decays, a slot each. With one `load` does, a stage each.

    Fields:
        p: [slots, 64, 64], steps of the query by steps of the key, 16 bits; of several heads a tuple (packed_heads.py).
        query_decay: [slots or stages, 64] float32, by which what a step reads from the state is multiplied.
        key_decay: [slots or stages, 64] float32, by which what a step writes to the state is multiplied.
        state_decay: [slots or stages, state_rows] float32, copies of the factor of the state; only where
            `config.shares_decay`.
    """

    ring: Ring
    p: object
    query_decay: gl.shared_memory_descriptor
    key_decay: gl.shared_memory_descriptor
    state_decay: gl.shared_memory_descriptor


@aggregate
class Program:
    """Buffers, pointers and counts that all partitions of a program share.

    Fields:
        gates: pointers to x, y (B, H, tiles * 64) and g (B, H, tiles).
        states: pointers of `States`.
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
    """Return the ring of a program's input tiles; desc describes blocks of a query, key or value."""
    STAGES: gl.constexpr = config.num_stages
    BLOCKS_KEY: gl.constexpr = config.blocks_key
    BLOCKS_VALUE: gl.constexpr = config.halves * config.blocks_value
    NORMALISED: gl.constexpr = 1 if config.normalise else 0
    # State partitions, `score` and `normaliser` read a stage; TMA and, for gates, `load` itself write it.
    ring = allocate_ring(STAGES, config.state_partitions + 1 + NORMALISED, 1 + NORMALISED)
    query = gl.allocate_shared_memory(desc.dtype, [STAGES * BLOCKS_KEY, 1, 1, 64, 64], desc.layout)
    key = gl.allocate_shared_memory(desc.dtype, [STAGES * BLOCKS_KEY, 1, 1, 64, 64], desc.layout)
    value = gl.allocate_shared_memory(desc.dtype, [STAGES * BLOCKS_VALUE, 1, 1, 64, 64], desc.layout)
    primal = None
    if config.row_sums:
        primal = gl.allocate_shared_memory(desc.dtype, [STAGES * BLOCKS_VALUE, 1, 1, 64, 64], desc.layout)
    return InputTiles(ring=ring, query=query, key=key, value=value, primal=primal)


@gluon.jit
def allocate_scores(config: gl.constexpr, dtype: gl.constexpr):
    """Return the ring of a program's scores; dtype is that of query, key and value."""
    SLOTS: gl.constexpr = config.num_slots
    DECAYS: gl.constexpr = config.num_stages if config.normalise else SLOTS
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, 64], dtype)
    prob = gl.allocate_shared_memory(dtype, [SLOTS, 64, 64], layout)
    query_decay = gl.allocate_shared_memory(gl.float32, [DECAYS, 64], VECTOR)
    key_decay = gl.allocate_shared_memory(gl.float32, [DECAYS, 64], VECTOR)
    state_decay = key_decay
    if config.shares_decay:
        state_decay = gl.allocate_shared_memory(gl.float32, [DECAYS, config.state_rows], VECTOR)
    ring = allocate_ring(SLOTS, config.state_partitions)
    return Scores(ring=ring, p=prob, query_decay=query_decay, key_decay=key_decay, state_decay=state_decay)


@gluon.jit
def allocate_program(schedule, gates, states, config: gl.constexpr, desc):
    """Return what all partitions share; desc describes blocks of a query, key or value."""
    inputs = allocate_inputs(config, desc)
    scores = allocate_scores(config, desc.dtype)
    norm = None
    if config.normalise:
        norm = allocate_normaliser(config, desc.dtype)
    return Program(config, schedule, gates, states, inputs, scores, norm)


@gluon.jit
def allocate_output(config: gl.constexpr, desc):
    """Return a ring of blocks, [slots, 1, 1, 64, 64], on their way out of a state partition."""
    return gl.allocate_shared_memory(desc.dtype, [config.num_slots, 1, 1, 64, 64], desc.layout)


@gluon.jit
def load_gates(gates, row, tile, num_tiles, t):
    """Return x, y ([64] each) and g of a tile; t counts its steps."""
    at = (row * num_tiles + tile) * 64 + t
    return gl.load(gates.x + at), gl.load(gates.y + at), gl.load(gates.g + row * num_tiles + tile)


# --- Load partition ---------------------------------------------------------------------------------------------------


@gluon.jit
def load_tile(program, descs, work, tile, stage):
    """Start the copies of a tile to its stage, once that is free; descs: of query, key, value and, if any, primal."""
    config: gl.constexpr = program.config
    inputs, ring = program.inputs, program.inputs.ring
    BLOCKS_KEY: gl.constexpr = config.blocks_key
    BLOCKS_VALUE: gl.constexpr = config.halves * config.blocks_value
    VALUES: gl.constexpr = 2 if config.row_sums else 1
    ring.producer_acquire(stage)
    fence_async_shared()  # consumers' reads of the stage, before the copies write there
    full = ring.full.index(stage.slot)
    mbarrier.expect(full, BLOCK_BYTES * (2 * BLOCKS_KEY + VALUES * BLOCKS_VALUE))
    step = get_step(work, tile, config)
    if config.transposed:
        at_key = (work.batch, work.qk_head, step, 0)
        at_value = (work.batch, work.head, step, work.piece * (64 * BLOCKS_VALUE))
    else:
        at_key = (work.batch, work.head, step, get_first_column(work, config))
        at_value = (work.batch, work.qk_head, step, get_row_piece(work, config) * (64 * BLOCKS_VALUE))
    load_blocks(descs[0], at_key, inputs.query, stage.slot * BLOCKS_KEY, BLOCKS_KEY, full)
    load_blocks(descs[1], at_key, inputs.key, stage.slot * BLOCKS_KEY, BLOCKS_KEY, full)
    load_blocks(descs[2], at_value, inputs.value, stage.slot * BLOCKS_VALUE, BLOCKS_VALUE, full)
    if config.row_sums:
        load_blocks(descs[3], at_value, inputs.primal, stage.slot * BLOCKS_VALUE, BLOCKS_VALUE, full)


@gluon.jit
def load_partition(program, descs):
    """Copy all tiles to shared memory, in the order in which they are met."""
    config: gl.constexpr = program.config
    schedule = program.schedule
    i = 0
    first, end, stride = get_items(schedule, config)
    for item in range(first, end, stride):
        work = get_work_item(schedule, item, config)
        for turn in range(work.first_tile, work.end_tile):
            load_tile(program, descs, work, get_tile(work, turn, config), program.inputs.ring.at(i))
            i += 1


# --- Score partition --------------------------------------------------------------------------------------------------


@gluon.jit
def multiply_query_key(inputs, stage, BLOCKS: gl.constexpr, OPERANDS: gl.constexpr):
    """Return query key^T of a tile, [64, 64] float32."""
    query = operands(inputs.query, inputs.ring.num_slots, BLOCKS, OPERANDS)
    key = operands(inputs.key, inputs.ring.num_slots, BLOCKS, OPERANDS)
    qk = gl.zeros([64, 64], gl.float32, layout=ACC)
    for b in gl.static_range(OPERANDS):
        # [64, columns / OPERANDS] @ [columns / OPERANDS, 64] -> [64, 64]
        at = uniform(stage.slot) * OPERANDS + b
        qk = warpgroup_mma(query.index(at), key.index(at).permute((1, 0)), qk, use_acc=(b > 0), is_async=True)
    return wait_for_products(0, deps=(qk,))


@gluon.jit
def apply_decay(qk, query_x, key_y, REVERSE: gl.constexpr = False):
    """Return P = (query key^T) * D, [64, 64].

    Args:
        query_x, key_y: [64]: D_ij = 2^(query_x_i + key_y_j) where the key is met first, or with the query, else 0.
    """
    row = gl.arange(0, 64, layout=ACC_ROW)
    column = gl.arange(0, 64, layout=ACC_COLUMN)
    if REVERSE:
        keep = column[None, :] >= row[:, None]
    else:
        keep = row[:, None] >= column[None, :]
    return gl.where(keep, qk * gl.exp2(query_x[:, None] + key_y[None, :]), 0.0)


@gluon.jit
def add_to_diagonal(prob, value):
    """Add a number to the diagonal of P, [64, 64]."""
    row = gl.arange(0, 64, layout=ACC_ROW)
    column = gl.arange(0, 64, layout=ACC_COLUMN)
    return prob + gl.where(row[:, None] == column[None, :], value, 0.0)


@gluon.jit
def store_diagonal(schedule, diagonal_ptr, work, tile, qk, config: gl.constexpr):
    """Write the diagonal of query key^T, [64, 64], to (column pieces, B, H, T) float32; whoever has the first rows."""
    if get_row_piece(work, config) == 0:
        row = gl.arange(0, 64, layout=ACC_ROW)
        column = gl.arange(0, 64, layout=ACC_COLUMN)
        step = tile * 64 + row
        diagonal = gl.sum(gl.where(row[:, None] == column[None, :], qk, 0.0), axis=1)
        at = diagonal_ptr + get_part_offset(schedule, work, get_column_piece(work, config), config) + step
        gl.store(at, diagonal, mask=step < schedule.num_steps)


@gluon.jit
def stage_exponents(exponents_smem, x, y):
    """Spread x and y of a tile, [64] each, through shared memory."""
    exponents_smem[0].store(x)
    exponents_smem[1].store(y)
    barrier()


@gluon.jit
def apply_staged_decay(qk, exponents_smem, config: gl.constexpr):
    """Return P of query key^T, [64, 64], and the exponents that `stage_exponents` has spread."""
    if config.reverse:  # the query is of the step that y belongs to
        return apply_decay(qk, exponents_smem[1].load(ACC_ROW), exponents_smem[0].load(ACC_COLUMN), REVERSE=True)
    else:
        return apply_decay(qk, exponents_smem[0].load(ACC_ROW), exponents_smem[1].load(ACC_COLUMN))


@gluon.jit
def score_tile(program, work, tile, stage, exponents_smem, diagonal_ptr):
    """Return P of a tile, [64, 64] float32, once it has arrived; for the arguments see `score_partition`."""
    config: gl.constexpr = program.config
    inputs = program.inputs
    inputs.ring.consumer_wait(stage)
    qk = multiply_query_key(inputs, stage, config.blocks_key, config.score_operands)
    if config.store_diagonal:
        store_diagonal(program.schedule, diagonal_ptr, work, tile, qk, config)
    # Exponents are read after the product: held in registers before it, they would serialise it (C7512).
    return apply_staged_decay(qk, exponents_smem, config)


@gluon.jit
def store_decays(scores, slot, gates, pending, state_decay, config: gl.constexpr):
    """Write the decays of a tile to its slot, which has been acquired.

    Args:
        gates: x, y ([64] each) and g of the tile.
        pending: of the decay of the state, before the tile and after it (`split_decay`).
        state_decay: the factor of the state.
    """
    x, y, g = gates
    before, after = pending
    if config.reverse:  # the query is of the step that y belongs to, and is read after g
        scores.query_decay.index(slot.slot).store(gl.exp2(y + (g + before)))
        scores.key_decay.index(slot.slot).store(gl.exp2(x - after))
    else:
        scores.query_decay.index(slot.slot).store(gl.exp2(x + before))
        scores.key_decay.index(slot.slot).store(gl.exp2(y + (g - after)))
    if config.shares_decay:
        copies = gl.full([config.state_rows], state_decay, gl.float32, layout=STEP)
        scores.state_decay.index(slot.slot).store(copies)


@gluon.jit
def commit_scores(scores, slot, prob):
    """Write P to its slot, which has been acquired, and hand it to the state partitions."""
    scores.p.index(slot.slot).store(nearest(prob, scores.p.dtype))
    fence_async_shared()
    barrier()  # every warp has written its part of the slot; without a normaliser, every warp has read x and y
    scores.ring.producer_commit(slot)


@gluon.jit
def score_partition(program, diagonal_ptr, exponents_smem):
    """Compute P and the decays of every tile, ahead of the state partitions.

    The exponents of a tile are loaded while the tile before it is at work, and spread through shared memory.

    Args:
        diagonal_ptr: (H,) numbers that are added to the diagonal of P if `config.skip`, or where the diagonal of query
            key^T goes if `config.store_diagonal`.
        exponents_smem: [64] twice.
    """
    config: gl.constexpr = program.config
    schedule, inputs, scores = program.schedule, program.inputs, program.scores
    if config.load_early:
        begin_kernel(is_independent(schedule))
    num_tiles = schedule.num_tiles
    t = gl.arange(0, 64, layout=STEP)
    stage, slot = inputs.ring.begin(), scores.ring.begin()
    first, end, stride = get_items(schedule, config)
    for item in range(first, end, stride):
        work = get_work_item(schedule, item, config)
        if config.skip:
            skip = gl.load(diagonal_ptr + work.head)
        pending = 0.0
        first_tile = get_tile(work, work.first_tile, config)
        next_x, next_y, next_g = load_gates(program.gates, work.row, first_tile, num_tiles, t)
        for turn in range(work.first_tile, work.end_tile):
            x, y, g = next_x, next_y, next_g
            stage_exponents(exponents_smem, x, y)
            next_tile = get_tile(work, gl.minimum(turn + 1, work.end_tile - 1), config)
            next_x, next_y, next_g = load_gates(program.gates, work.row, next_tile, num_tiles, t)

            tile = get_tile(work, turn, config)
            prob = score_tile(program, work, tile, stage, exponents_smem, diagonal_ptr)
            if config.skip:
                prob = add_to_diagonal(prob, skip)

            pending_before = pending
            if config.defer_decay:
                flush = stores_state_after(schedule, work, turn, config.keep_states)
                state_decay, pending = split_decay(pending, g, flush)
            else:
                state_decay = gl.exp2(g)
            scores.ring.producer_acquire(slot)
            store_decays(scores, slot, (x, y, g), (pending_before, pending), state_decay, config)
            commit_scores(scores, slot, prob)
            inputs.ring.consumer_release(stage)
            stage = inputs.ring.next(stage)
            slot = scores.ring.next(slot)


# --- State partitions -------------------------------------------------------------------------------------------------


@gluon.jit
def load_state(program, work, first_row, i, layout: gl.constexpr):
    """Return the rows of the state from first_row on that a state partition carries.

    Args:
        i: a counter, for `opaque_zero`: it keeps addresses out of registers during the segment. One zero for
            all columns would serialise the products with four blocks of columns (C7512).
        layout: of an accumulator [state_rows, 64].

    Returns:
        blocks_value rows of blocks_key accumulators, [state_rows, 64] each.
    """
    config: gl.constexpr = program.config
    NUM_ROWS: gl.constexpr = config.num_rows
    ROWS: gl.constexpr = config.state_rows
    ROW_STRIDE: gl.constexpr = config.row_stride
    COLUMN_STRIDE: gl.constexpr = config.column_stride
    BLOCKS_VALUE: gl.constexpr = config.blocks_value
    BLOCKS_KEY: gl.constexpr = config.blocks_key
    zero = opaque_zero(i)
    loads = loads_state(program.schedule, i)
    initial = program.states.initial + work.state_index * (config.d_qk * config.d_hv)
    state = ()
    for r in gl.static_range(BLOCKS_VALUE):
        blocks = ()
        for j in gl.static_range(BLOCKS_KEY):
            column = get_first_column(work, config) + (64 * j + opaque_zero(i, j))
            at, rows = state_pointers(
                initial, first_row + ROWS * r + zero, column, ROW_STRIDE, COLUMN_STRIDE, layout, ROWS
            )  # fmt: skip
            blocks += (gl.load(at, mask=(rows < NUM_ROWS) & loads, other=0.0),)
        state += (blocks,)
    return state


@gluon.jit
def store_state(work, ptr, state, first_row, zero, config: gl.constexpr, layout: gl.constexpr, stores=True):
    """Write the rows of the state from first_row on to the matrix (d_qk, d_hv) at ptr.

    Args:
        zero: of `opaque_zero`.
        stores: whether there is anything to write: masks cost h fewer registers than a branch.
    """
    NUM_ROWS: gl.constexpr = config.num_rows
    ROWS: gl.constexpr = config.state_rows
    ROW_STRIDE: gl.constexpr = config.row_stride
    COLUMN_STRIDE: gl.constexpr = config.column_stride
    BLOCKS_VALUE: gl.constexpr = config.blocks_value
    BLOCKS_KEY: gl.constexpr = config.blocks_key
    for r in gl.static_range(BLOCKS_VALUE):
        for j in gl.static_range(BLOCKS_KEY):
            row, column = first_row + ROWS * r + zero, get_first_column(work, config) + (64 * j + zero)
            at, rows = state_pointers(ptr, row, column, ROW_STRIDE, COLUMN_STRIDE, layout, ROWS)
            gl.store(at, state[r][j], mask=(rows < NUM_ROWS) & stores)


@gluon.jit
def read_state(blocks, query, first_block, BLOCKS: gl.constexpr):
    """Return S query^T of 64 rows of the state, [64, columns] @ [columns, 64] -> [64, 64] float32."""
    out = gl.zeros([64, 64], gl.float32, layout=ACC)
    for j in gl.static_range(BLOCKS):
        # [64, 64] @ [64, 64] -> [64, 64]
        s = gl.convert_layout(blocks[j].to(query.dtype), ACC_OPERAND)
        queryT = block(query, first_block + j).permute((1, 0))
        out = warpgroup_mma(s, queryT, out, use_acc=(j > 0), is_async=True)
        out, s = wait_for_products(0, deps=(out, s))
    return out


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
def send_block(desc, work, tile, column, out, config: gl.constexpr, ADD: gl.constexpr = False):
    """Start the copy of a block of the output to memory, or add it to what is there, see `tiles.send`."""
    at = [work.batch, work.head, get_step(work, tile, config), column]
    send(desc, at, out, ADD, config.documents, (tile == work.first_tile) | (tile == work.end_tile - 1))


@gluon.jit
def walk_tile(program, output, work, tile, i, first_row, state, HALF: gl.constexpr):  # noqa: PLR0915
    """Write 64 * blocks_value columns of the output, from first_row on, for the i-th tile of this program.

    Args:
        output: the descriptor of the output, and a ring of blocks in shared memory on their way there.
        state: as `load_state` returns it; what is returned is the state after the tile.
    """
    config: gl.constexpr = program.config
    out_desc, out_smem = output
    inputs, scores = program.inputs, program.scores
    BLOCKS_KEY: gl.constexpr = config.blocks_key
    BLOCKS_VALUE: gl.constexpr = config.blocks_value
    ACCUMULATORS: gl.constexpr = config.accumulators
    NUM_OUT: gl.constexpr = config.num_slots
    key = operands(inputs.key, config.num_stages, BLOCKS_KEY, ACCUMULATORS)
    stage, slot = inputs.ring.at(i), scores.ring.at(i)
    inputs.ring.consumer_wait(stage)
    if not config.shares_decay:
        state_decay = gl.exp2(gl.load(program.gates.g + work.row * program.schedule.num_tiles + tile))
    new_state = ()
    for r in gl.static_range(BLOCKS_VALUE):
        s, b = stage.slot, slot.slot
        if BLOCKS_KEY < 4:  # addresses anew for each r: kept, they spill; with four blocks this serialises (C7512)
            s += opaque_zero(i, r)
            b += opaque_zero(i, r)
        valueT = block(inputs.value, (s * config.halves + HALF) * BLOCKS_VALUE + r).permute((1, 0))

        # out^T = query_decay * S query^T + value^T P^T, [64, 64] for 64 columns of the output
        out = read_state(state[r], inputs.query, s * BLOCKS_KEY, BLOCKS_KEY)
        tma.store_wait(pendings=NUM_OUT - 1)
        barrier()  # a buffer for the output is free
        if r == 0:
            scores.ring.consumer_wait(slot)
        decays = s if config.normalise else b
        out = out * scores.query_decay.index(decays).load(ACC_COLUMN)[None, :]
        blocks = state[r]
        if config.defer_decay:
            blocks = apply_due_decay(blocks, scores, decays, BLOCKS_KEY)
        # [64, 64] @ [64, 64] -> [64, 64]
        out = warpgroup_mma(valueT, scores.p.index(b).permute((1, 0)), out, is_async=True)

        # S = state_decay * S + (key_decay value)^T key, [64, columns]. All blocks are multiplied before the first
        # product starts: nothing may touch accumulators that are in flight.
        if not config.defer_decay:
            if config.shares_decay:
                state_decay = scores.state_decay.index(decays).load(ACC_ROW)[:, None]
            blocks = scale_blocks(blocks, state_decay, BLOCKS_KEY)
        in_flight, kept = start_state_update(blocks, valueT, scores.key_decay.index(decays), key, s, ACCUMULATORS)
        if BLOCKS_VALUE == 1:
            out = wait_for_products(2 * ACCUMULATORS, deps=(out,))  # the state is updated while the output is written
        else:
            out = wait_for_products(0, deps=(out,))  # as above ptxas would serialise the products (C7512)
        if config.normalise:
            if r == 0:
                program.norm.denominator_ready.wait(slot)
            out = out * program.norm.denominator.index(b).load(ACC_COLUMN)[None, :]

        out_block = out_smem.index((i * BLOCKS_VALUE + r) % NUM_OUT)
        out_block.reshape([64, 64]).permute((1, 0)).store(out.to(out_block.dtype))
        fence_async_shared()
        barrier()
        if r == BLOCKS_VALUE - 1:
            scores.ring.consumer_release(slot)
        send_block(out_desc, work, tile, first_row + 64 * r, out_block, config)
        new_state += (finish_state_update(wait_for_products(0, deps=in_flight + kept), BLOCKS_KEY),)
    barrier()
    inputs.ring.consumer_release(stage)
    return new_state


@gluon.jit
def state_partition(program, out_desc, out_smem, HALF: gl.constexpr):
    """Carry rows of the state as float32 accumulators, and write the columns of the output made of them.

    These are half of a program's rows, or all of a small state. Two partitions of a program do not wait for one
    another, so one multiplies while the other stores.
    """
    config: gl.constexpr = program.config
    schedule, states = program.schedule, program.states
    if config.load_early:
        wait_for_kernel_before_unless(is_independent(schedule))
    i = 0
    first, end, stride = get_items(schedule, config)
    for item in range(first, end, stride):
        work = get_work_item(schedule, item, config)
        first_row = (config.halves * work.piece + HALF) * (64 * config.blocks_value)
        state = load_state(program, work, first_row, i, ACC)
        for turn in range(work.first_tile, work.end_tile):
            tile = get_tile(work, turn, config)
            if config.keep_states:  # noqa: SIM102
                if starts_kept_segment(schedule, tile):
                    kept_index = get_kept_index(schedule, work.row, tile)
                    kept = states.kept + kept_index * (config.d_qk * config.d_hv)
                    store_state(work, kept, state, first_row, opaque_zero(i), config, ACC)
            state = walk_tile(program, (out_desc, out_smem), work, tile, i, first_row, state, HALF)
            i += 1
        if config.hands_on:
            final = states.final + work.state_index * (config.d_qk * config.d_hv)
            store_state(work, final, state, first_row, opaque_zero(i), config, ACC, stores_state(schedule, i))
    tma.store_wait(pendings=0)


# --- Kernel -----------------------------------------------------------------------------------------------------------


@gluon.jit
def run_walk(schedule, descs, out_desc, gates, states, diagonal_ptr, config: gl.constexpr):
    """Compute the output of all work items, and the states after them; kernels of 4 warps with maxnreg=128 call it."""
    REGISTERS: gl.constexpr = config.state_registers
    SCORE_REGISTERS: gl.constexpr = config.score_registers
    program = allocate_program(schedule, gates, states, config, out_desc)
    out_smem0 = allocate_output(config, out_desc)
    x_smem = gl.allocate_shared_memory(gl.float32, [64], VECTOR)
    y_smem = gl.allocate_shared_memory(gl.float32, [64], VECTOR)
    independent = is_independent(schedule)
    if not config.load_early:
        begin_kernel(independent)
    if config.halves == 1:
        gl.warp_specialize(
            [
                (state_partition, (program, out_desc, out_smem0, 0)),
                (score_partition, (program, diagonal_ptr, (x_smem, y_smem))),
                (load_partition, (program, descs)),
            ],
            [4, 1],
            [SCORE_REGISTERS, 24],
        )
    else:
        out_smem1 = allocate_output(config, out_desc)
        gl.warp_specialize(
            [
                (state_partition, (program, out_desc, out_smem0, 0)),
                (state_partition, (program, out_desc, out_smem1, 1)),
                (score_partition, (program, diagonal_ptr, (x_smem, y_smem))),
                (load_partition, (program, descs)),
            ],
            [4, 4, 1],
            [REGISTERS, SCORE_REGISTERS, 24],
        )
    end_kernel(independent)
