# type: ignore   # Gluon: what runs on the device has no types that a Python checker knows
"""The walk: one Gluon kernel for sm_90 that carries a state on chip over the tiles of a segment, for dq, dk and dv.

Every output of a gated linear attention is the same walk, with the roles of the tensors exchanged:

    out_u = sum_z P_uz Z_z + r_u S U_u          P_uz = (U_u . W_z) exp2(a_u + a_z), masked to j <= i
    S    <- e S + sum_z s_z Z_z W_z^T           after every tile of 64 steps

    out | U   W   Z  | i, j | walks     | state S, rows z, columns w | r              | s              | e
    dq  | dH  V   K  | u, z | forward   | C                          | exp2(a_u)      | exp2(a_z + g)  | exp2(g)
    dv  | K   Q   dH | z, u | backward  | dC^T                       | exp2(a_u + g)  | exp2(a_z)      | exp2(g)
    dk  | V   dH  Q  | z, u | backward  | dC                         | exp2(a_u + g)  | exp2(a_z)      | exp2(g)

The exponents a (one a step) and g (one a tile) come from exponents.py: every kind of gate, the stabiliser, the scale of
q and the denominator are in them, so nothing here knows which gate it runs.

Roles in a program (4 + 4 + 4 + 1 warps, with row sums 1 more; connected by mbarriers):
    math 0, math 1   carry 64 * ZB rows of S each, as float32 accumulators, and write their columns of out; they do not
                     wait for one another, so one computes while the other stores. With SUMS one role of 8 warps has all
                     rows (GROUPS = 2), and X . (r S U) too: instructions of two such copies do not fit the cache
    send             with SUMS, one warp that stores out, so that no warp of math waits for a store or a fence
    score            computes P, r and s of a tile ahead of them; with SUMS it writes the row sums, and going forward
                     (dq) those of pairs within a tile
    produce          one warp that fetches tiles of U, W, Z (and X, for row sums) by TMA into a ring of stages

h is forward.py, h of several heads a program packed.py, dk and dv in one walk pair.py.

Row sums (SUMS: dq with X = Q, dk with X = K) are what gate gradients are made of, by differences of their sums over a
whole sequence. They come out exact because both walks give every pair j < i of different tiles the same number:
(Q_i exp2(a_i)) . (K_j exp2(a_j + g)), each rounded as the other walk rounds it for its state, and S U as a product with
twice the bits of an operand, `upper` and `lower`. Pairs within a tile are summed over either index from one matrix.

In dv a state of 256 columns is not multiplied by e tile after tile, 128 multiplications a thread: what is due is
put into r and s, and the accumulators are multiplied once it is too much for those (`split_decay`).

Shared memory is what these walks share most of (MEASURED, version 12): operands of products, blocks on their way in and
out and exchanges between lanes all go through it. So what is exchanged is kept small (`store_warp_sums`).

A block is 64 steps by 64 columns. Every operand lies in shared memory as blocks, so one code takes every width that is
a multiple of 64. The TMA descriptors (B, H, T, d) cut the ends: reads beyond T or d give zeros, writes there are lost.
A state wider or higher than a program's registers is cut into pieces: rows into programs that run side by side and read
U and W through the L2, columns (`column`) into launches of which the second adds to the output of the first (ADD).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
)

from .conversions import lower, nearest, rounded, upper, widened
from .pipeline import begin_kernel, end_kernel
from .row_sums import store_warp_sums, write_sums
from .schedule import nth_tile, place_of
from .state import accumulators, finish_state_update, split_decay, start_state_update, state_pointers
from .tiles import BLOCK_BYTES, block, load_blocks, operands, score_operands, split_columns
from .workarounds import (
    barrier,
    reinterpret,
    tma_add,
    tma_store,
    uniform,
    wait_for_products,
)


@gluon.jit
def produce(
    descs, buffers, empty, ready, items, geometry, sharing, column,
    PIECES: gl.constexpr, STAGES: gl.constexpr, WB: gl.constexpr, ZB: gl.constexpr, REVERSE: gl.constexpr,
    SUMS: gl.constexpr,
):  # fmt: skip
    u_desc, w_desc, z_desc, x_desc = descs
    u_buf, w_buf, z_buf, x_buf = buffers
    i = 0
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        batch, head, first, n, _row, _index, piece = place_of(item, geometry, PIECES)
        z0 = piece * (128 * ZB)
        u_head, z_head = head // sharing[0], head // sharing[1]
        for j in range(n):
            s = i % STAGES
            mbarrier.wait(empty.index(s), ((i // STAGES) & 1) ^ 1)
            fence_async_shared()  # what roles have read there, before the copy writes
            arrived = ready.index(s)
            tile = nth_tile(first, j, n, REVERSE)
            mbarrier.expect(arrived, BLOCK_BYTES * (2 * WB + 2 * ZB * (1 + SUMS)))
            load_blocks(u_desc, (batch, u_head, tile * 64, column), u_buf, s * WB, WB, arrived)
            load_blocks(w_desc, (batch, u_head, tile * 64, column), w_buf, s * WB, WB, arrived)
            load_blocks(z_desc, (batch, z_head, tile * 64, z0), z_buf, s * (2 * ZB), 2 * ZB, arrived)
            if SUMS:
                load_blocks(x_desc, (batch, z_head, tile * 64, z0), x_buf, s * (2 * ZB), 2 * ZB, arrived)
            i += 1


@gluon.jit
def following(s, phase, COUNT: gl.constexpr):
    """The slot after s of COUNT, and the phase of its barrier: carried, since for every address made of i % COUNT the
    compiler keeps a register.
    """
    s += 1
    return s % COUNT, phase ^ (s // COUNT)


@gluon.jit
def hand_over(p, p_buf, p_full, b):
    p_buf.index(b).store(p)
    fence_async_shared()
    barrier()  # P and its factors are in shared memory; without a normaliser, the exponents have been read
    mbarrier.arrive(p_full.index(b), count=1)


@gluon.jit
def load_exponents(exponents, row, tile, tiles, t):
    """x, y and g of a tile."""
    au_ptr, az_ptr, g_ptr = exponents
    at = (row * tiles + tile) * 64 + t
    return gl.load(au_ptr + at), gl.load(az_ptr + at), gl.load(g_ptr + row * tiles + tile)


@gluon.jit
def score(
    exponents, skip, sums, buffers, e_buf, p_buf, sums_bufs, factors, empty, ready, p_full, p_empty,
    items, geometry, steps, part_stride,
    PIECES: gl.constexpr, STAGES: gl.constexpr, SLOTS: gl.constexpr, WB: gl.constexpr, ZB: gl.constexpr,
    REVERSE: gl.constexpr, SUMS: gl.constexpr, DEFERS: gl.constexpr, SKIP: gl.constexpr, DIAGONAL: gl.constexpr,
):  # fmt: skip
    p_l: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
    u_l: gl.constexpr = gl.SliceLayout(1, p_l)
    z_l: gl.constexpr = gl.SliceLayout(0, p_l)
    tiles = geometry[1]
    u_buf, w_buf, z_buf, x_buf = buffers
    r_buf, s_buf, decay_buf = factors
    through_ptr, rows_ptr, columns_ptr = sums
    dots_buf, pairs_buf = sums_bufs
    dtype: gl.constexpr = p_buf.dtype
    SPANS: gl.constexpr = score_operands(WB)
    u_spans = operands(u_buf, STAGES, WB, SPANS)
    w_spans = operands(w_buf, STAGES, WB, SPANS)
    t_l: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    t = gl.arange(0, 64, layout=t_l)
    u = gl.arange(0, 64, layout=u_l)
    z = gl.arange(0, 64, layout=z_l)
    before, left_before = (steps * 0).to(gl.int64), steps * 0  # the tile before this one, in row sums
    s, b, phase, turn = 0, 0, 0, 0
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        _batch, head, first, n, row, _index, piece = place_of(item, geometry, PIECES)
        deferred = 0.0
        if SKIP:
            skip_weight = gl.load(skip[0] + head)
        # Exponents are loaded while the tile before theirs is at work, and spread through shared memory.
        tile = nth_tile(first, 0, n, REVERSE)
        x_t, y_t, g = load_exponents(exponents, row, tile, tiles, t)
        for j in range(n):
            tile_now = nth_tile(first, j, n, REVERSE)
            x_now, y_now, g_now = x_t, y_t, g
            e_buf.index(0).store(x_now)
            e_buf.index(1).store(y_now)
            barrier()
            tile = nth_tile(first, gl.minimum(j + 1, n - 1), n, REVERSE)
            x_t, y_t, g = load_exponents(exponents, row, tile, tiles, t)
            mbarrier.wait(ready.index(s), phase)
            p = gl.zeros([64, 64], gl.float32, layout=p_l)
            for k in gl.static_range(SPANS):
                here = uniform(s) * SPANS + k
                wT = w_spans.index(here).permute((1, 0))
                p = warpgroup_mma(u_spans.index(here), wT, p, use_acc=(k > 0), is_async=True)
            p = wait_for_products(0, deps=(p,))
            if DIAGONAL:  # noqa: SIM102  dh . v of the same step
                if piece == 0:
                    step = tile_now * 64 + u
                    dots = gl.sum(gl.where(u[:, None] == z[None, :], p, 0.0), axis=1)
                    gl.store(skip[1] + row.to(gl.int64) * steps + step, dots, mask=step < steps)
            # Not before the product: the registers that exponents take would serialise it (ptxas C7512).
            a_u = e_buf.index(0).load(u_l)
            a_z = e_buf.index(1).load(z_l)
            if REVERSE:
                keep = z[None, :] >= u[:, None]
            else:
                keep = u[:, None] >= z[None, :]
            p = gl.where(keep, p * gl.exp2(a_u[:, None] + a_z[None, :]), 0.0)
            if SKIP:
                p += gl.where(u[:, None] == z[None, :], skip_weight, 0.0)
            before_tile = deferred
            if DEFERS:
                e, deferred = split_decay(deferred, g_now, j == n - 1)
            else:
                e = gl.exp2(g_now)
            mbarrier.wait(p_empty.index(b), turn ^ 1)
            if REVERSE:
                r_buf.index(b).store(gl.exp2(x_now + (g_now + before_tile)))
                s_buf.index(b).store(gl.exp2(y_now - deferred))
            else:
                r_buf.index(b).store(gl.exp2(x_now + before_tile))
                s_buf.index(b).store(gl.exp2(y_now + (g_now - deferred)))
            if SUMS or WB == 4:
                decay = decay_buf.index(b)
                decay.store(gl.full(decay.shape, e, gl.float32, layout=t_l))
            if SUMS:  # the math roles have left what they have of the tile before
                write_sums(dots_buf, through_ptr + before, left_before, t, t_l)
                before = piece.to(gl.int64) * part_stride + row.to(gl.int64) * steps + tile_now * 64
                left_before = steps - tile_now * 64
            hand_over(nearest(p, dtype), p_buf, p_full, b)
            if SUMS and not REVERSE:  # pairs within the tile: M = P * (X Z^T), by its rows and its columns
                xz = gl.zeros([64, 64], gl.float32, layout=p_l)
                for c in gl.static_range(2 * ZB):
                    zT = block(z_buf, s * 2 * ZB + c).permute((1, 0))
                    xz = warpgroup_mma(block(x_buf, s * 2 * ZB + c), zT, xz, use_acc=(c > 0), is_async=True)
                xz = wait_for_products(0, deps=(xz,))
                xz *= widened(p_buf.index(b).load(p_l))
                gl.store(rows_ptr + before + u, gl.sum(xz, axis=1), mask=u < left_before)
                # By hand: Triton 3.9 adds up over warps with seven barriers, and the math roles wait for this one.
                store_warp_sums(xz, pairs_buf, 0, 4)
                barrier()  # they are there, and every warp has read its rows of X and Z
                write_sums(pairs_buf, columns_ptr + before, left_before, t, t_l)
            mbarrier.arrive(empty.index(s), count=1)
            s, phase = following(s, phase, STAGES)
            b, turn = following(b, turn, SLOTS)
    if SUMS:
        mbarrier.wait(p_empty.index(b), turn ^ 1)
        write_sums(dots_buf, through_ptr + before, left_before, t, t_l)


@gluon.jit
def through_state(state, uT, o, first: gl.constexpr, dtype: gl.constexpr):
    """o + S U of a block of the state, o zero if it is the first."""
    a = gl.convert_layout(state.to(dtype), gl.DotOperandLayout(operand_index=0, parent=state.type.layout, k_width=2))
    o = warpgroup_mma(a, uT, o, use_acc=not first, is_async=True)
    o, a = wait_for_products(0, deps=(o, a))
    return o


@gluon.jit
def through_both_parts(state, uT, o, flight, first: gl.constexpr, dtype: gl.constexpr):
    """Start o + S U, S in two parts; of 16 columns at a time, for there are no registers for larger operands of three
    products, two at work and one that is made. Those at work are the flight, which begins as ().
    """
    a_l: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=state.type.layout, k_width=2)
    left, right = split_columns(state)
    pieces = split_columns(left) + split_columns(right)
    for k in gl.static_range(4):
        u = uT.slice(16 * k, 16, dim=0)
        for part in gl.static_range(2):
            a = lower(pieces[k], dtype) if part else upper(pieces[k], dtype)
            a = gl.convert_layout(a, a_l)
            o = warpgroup_mma(a, u, o, use_acc=not first or k + part > 0, is_async=True)
            if len(flight) == 2:
                wait_for_products(2, deps=(flight[0],))
                flight = (flight[1], a)
            else:  # waits for nothing; but ptxas would for the state (C7517), from Triton 3.9 on
                flight += (wait_for_products(len(flight) + 1, deps=(a,)),)
    return o, flight


@gluon.jit
def send(
    o_desc, o_buf, o_full, o_free, items, geometry,
    PIECES: gl.constexpr, GROUPS: gl.constexpr, OUTS: gl.constexpr, REVERSE: gl.constexpr, ADD: gl.constexpr,
):  # fmt: skip
    """Of the role that math hands out to: between what threads write to shared memory and what TMA or a product reads
    there a fence is wanted, but it may stand with who hands on (PTX, causality order: anywhere along the path).
    """
    i = 0
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        batch, head, first, n, _row, _index, piece = place_of(item, geometry, PIECES)
        for j in range(n):
            slot = i % OUTS
            mbarrier.wait(o_full.index(slot), (i // OUTS) & 1)
            fence_async_shared()
            for group in gl.static_range(GROUPS):
                at_out = [batch, head, nth_tile(first, j, n, REVERSE) * 64, 64 * (piece * GROUPS + group)]
                if ADD:
                    tma_add(o_desc, at_out, o_buf.index(slot * GROUPS + group))
                else:
                    tma_store(o_desc, at_out, o_buf.index(slot * GROUPS + group))
            tma.store_wait(pendings=0)
            mbarrier.arrive(o_free.index(slot), count=1)
            i += 1


@gluon.jit
def math(
    o_desc, g_ptr, first_ptr, last_ptr,
    buffers, p_buf, o_buf, o_full, o_free, dots_buf, factors, empty, ready, p_full, p_empty,
    items, geometry, column,
    HALF: gl.constexpr, GROUPS: gl.constexpr, Z_DIM: gl.constexpr, W_DIM: gl.constexpr, TRANSPOSED: gl.constexpr,
    PIECES: gl.constexpr, STAGES: gl.constexpr, SLOTS: gl.constexpr, WB: gl.constexpr, ZB: gl.constexpr,
    OUTS: gl.constexpr, REVERSE: gl.constexpr, SUMS: gl.constexpr, DEFERS: gl.constexpr, FIRST: gl.constexpr,
    LAST: gl.constexpr, ADD: gl.constexpr,
):  # fmt: skip
    ROWS: gl.constexpr = 64 * GROUPS  # of a state that a role carries at a time
    WARPS: gl.constexpr = 4 * GROUPS
    t_l: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    s_l: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[WARPS, 1], instr_shape=[16, 64, 16])
    u_l: gl.constexpr = gl.SliceLayout(0, s_l)
    dtype: gl.constexpr = p_buf.dtype
    u_buf, w_buf, z_buf, x_buf = buffers
    r_buf, s_buf, decay_buf = factors
    tiles = geometry[1]
    rows_l: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, ROWS], dtype)
    z_rows = reinterpret(z_buf, dtype, [STAGES * 2 * ZB // GROUPS, 64, ROWS], rows_l)
    o_rows = reinterpret(o_buf, dtype, [OUTS, 64, ROWS], rows_l)
    w_joined = operands(w_buf, STAGES, WB, accumulators(WB))
    x_rows = z_rows
    if SUMS:
        x_rows = reinterpret(x_buf, dtype, [STAGES * 2 * ZB // GROUPS, 64, ROWS], rows_l)
    Z_STRIDE: gl.constexpr = 1 if TRANSPOSED else W_DIM
    W_STRIDE: gl.constexpr = Z_DIM if TRANSPOSED else 1
    i = 0
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        batch, head, first, n, row, index, piece = place_of(item, geometry, PIECES)
        z0 = piece * (128 * ZB) + HALF * (ROWS * ZB)
        opaque = i >> 30  # 0: keeps addresses of an item's states out of registers while it is walked
        state = ()  # ZB x WB blocks
        for zb in gl.static_range(ZB):
            for wb in gl.static_range(WB):
                if FIRST or DEFERS:  # of zeros that nothing multiplies ptxas would serialise all products (C7512)
                    at, rows = state_pointers(
                        first_ptr + index * (Z_DIM * W_DIM), z0 + ROWS * zb + opaque, column + 64 * wb + opaque,
                        Z_STRIDE, W_STRIDE, s_l, ROWS,
                    )  # fmt: skip
                    there = rows < Z_DIM
                    if not FIRST:
                        there = there & (opaque > 0)
                    state += (gl.load(at, mask=there, other=0.0),)
                else:
                    state += (gl.zeros([ROWS, 64], gl.float32, layout=s_l),)
        for j in range(n):
            tile = nth_tile(first, j, n, REVERSE)
            mbarrier.wait(ready.index(i % STAGES), (i // STAGES) & 1)
            new_state = ()
            if not (SUMS or WB == 4):
                e = gl.exp2(gl.load(g_ptr + row * tiles + tile))
            for zb in gl.static_range(ZB):
                s = i % STAGES
                b = i % SLOTS
                if SUMS or WB < 4:  # 0, spelled anew for each zb: keeps addresses out of registers (elsewhere: C7512)
                    s += i >> (30 - zb)
                    b += i >> (30 - zb)
                z_block = (s * 2 // GROUPS + HALF) * ZB + zb
                zT = z_rows.index(z_block).permute((1, 0))
                o = gl.zeros([ROWS, 64], gl.float32, layout=s_l)  # out^T, [z, u]
                flight = ()
                for wb in gl.static_range(WB):
                    uT = block(u_buf, s * WB + wb).permute((1, 0))
                    if SUMS:
                        o, flight = through_both_parts(state[wb], uT, o, flight, wb == 0, dtype)
                    else:
                        o = through_state(state[zb * WB + wb], uT, o, wb == 0, dtype)
                if SUMS:
                    o, _, _ = wait_for_products(0, deps=(o, flight[0], flight[1]))
                else:
                    tma.store_wait(pendings=OUTS - 1)
                    barrier()  # a buffer for out is free
                if zb == 0:
                    mbarrier.wait(p_full.index(b), (i // SLOTS) & 1)
                r = r_buf.index(b).load(u_l)
                if SUMS:
                    x = widened(x_rows.index(z_block).permute((1, 0)).load(s_l))
                    x = rounded(x * r[None, :], dtype)
                    store_warp_sums(x * o, dots_buf, HALF, WARPS)
                o = o * r[None, :]
                if DEFERS:
                    e = gl.sum(decay_buf.index(b).slice(0, 1).load(t_l), axis=0)
                    if e != 1.0:
                        scaled = ()
                        for wb in gl.static_range(WB):
                            scaled += (state[zb * WB + wb] * e,)
                        state = scaled
                o = warpgroup_mma(zT, p_buf.index(b).permute((1, 0)), o, is_async=True)
                kept = state
                if not DEFERS:
                    if SUMS or WB == 4:  # leaves more registers (elsewhere Triton 3.9 would serialise: C7512)
                        e = decay_buf.index(b).load(gl.SliceLayout(1, s_l))[:, None]
                    kept = ()
                    for wb in gl.static_range(WB):  # all before the first product: none may touch registers in flight
                        kept += (state[zb * WB + wb] * e,)
                flight_of_state, kept_operands = start_state_update(
                    kept, zT, s_buf.index(b), w_joined, s, accumulators(WB)
                )  # fmt: skip
                if ZB == 1:
                    o = wait_for_products(2 * accumulators(WB), deps=(o,))  # the state is updated while out is written
                else:
                    o = wait_for_products(0, deps=(o,))  # as above it would serialise the products (ptxas C7512)
                slot = (i * ZB + zb) % OUTS
                if SUMS:
                    mbarrier.wait(o_free.index(slot), ((i // OUTS) & 1) ^ 1)
                o_rows.index(slot).permute((1, 0)).store(o.to(dtype))
                if not SUMS:
                    fence_async_shared()
                    barrier()
                    if zb == ZB - 1:
                        mbarrier.arrive(p_empty.index(b), count=1)
                    at_out = [batch, head, tile * 64, z0 + ROWS * zb]
                    if ADD:
                        tma_add(o_desc, at_out, o_buf.index(slot))
                    else:
                        tma_store(o_desc, at_out, o_buf.index(slot))
                new_state += finish_state_update(wait_for_products(0, deps=flight_of_state + kept_operands), WB)
            state = new_state
            barrier()
            if SUMS:
                mbarrier.arrive(o_full.index(i % OUTS), count=1)
                mbarrier.arrive(p_empty.index(i % SLOTS), count=1)
            mbarrier.arrive(empty.index(i % STAGES), count=1)
            i += 1
        if LAST:
            opaque = i >> 30
            for zb in gl.static_range(ZB):
                for wb in gl.static_range(WB):
                    at, rows = state_pointers(
                        last_ptr + index * (Z_DIM * W_DIM), z0 + ROWS * zb + opaque, column + 64 * wb + opaque,
                        Z_STRIDE, W_STRIDE, s_l, ROWS,
                    )  # fmt: skip
                    gl.store(at, state[zb * WB + wb], mask=rows < Z_DIM)
    if not SUMS:
        tma.store_wait(pendings=0)


# A count that is 1 or a multiple of 16 is to compile nothing of its own (and with one tile Triton 3.6 fails to). That
# no heads share is known to the kernel: `produce` has no registers left for it.
@gluon.jit(
    do_not_specialize=["items", "heads", "steps", "tiles", "segment_tiles", "segments", "part_stride"],
    do_not_specialize_on_alignment=["u_sharing", "z_sharing"],
)  # fmt: skip
def walk(
    u_desc, w_desc, z_desc, x_desc, o_desc, au_ptr, az_ptr, g_ptr, first_ptr, last_ptr,
    through_ptr, rows_ptr, columns_ptr, skip_ptr, diagonal_ptr,
    items, heads, u_sharing, z_sharing, steps, tiles, segment_tiles, segments, column, part_stride,
    Z_DIM: gl.constexpr, W_DIM: gl.constexpr, TRANSPOSED: gl.constexpr, STAGES: gl.constexpr, SLOTS: gl.constexpr,
    OUTS: gl.constexpr, WB: gl.constexpr, ZB: gl.constexpr, MATH_REGISTERS: gl.constexpr, GROUPS: gl.constexpr,
    REVERSE: gl.constexpr, SUMS: gl.constexpr, FIRST: gl.constexpr, LAST: gl.constexpr, ADD: gl.constexpr,
    SKIP: gl.constexpr, DIAGONAL: gl.constexpr, INDEPENDENT: gl.constexpr,
):  # fmt: skip
    """A program takes work items, pieces of the state of a segment of a (batch, head) row, one after the other.

    SKIP: skip (heads,) is added to the diagonal of P (dv). DIAGONAL: U_u . W_u is written to diagonal (dq).
    u_sharing, z_sharing: consecutive heads that share one of U and W, of Z and X; out has all of them.

    So the loads of an item run while the one before it ends. Launched by launch.py.
    """
    geometry = (heads, tiles, segment_tiles, segments)
    PIECES: gl.constexpr = (Z_DIM + 128 * ZB - 1) // (128 * ZB)
    ROLES: gl.constexpr = 2 // GROUPS  # with math
    dtype: gl.constexpr = u_desc.dtype
    # Of dv. Row sums need the weights that the other walk rounds by, float16 has no room for what `split_decay` makes
    # of them, fewer columns gain nothing; of dq products would be serialised.
    DEFERS: gl.constexpr = WB == 4 and TRANSPOSED and dtype == gl.bfloat16
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, order=[0])
    u_buf = gl.allocate_shared_memory(dtype, [STAGES * WB, 1, 1, 64, 64], u_desc.layout)
    w_buf = gl.allocate_shared_memory(dtype, [STAGES * WB, 1, 1, 64, 64], u_desc.layout)
    z_buf = gl.allocate_shared_memory(dtype, [STAGES * 2 * ZB, 1, 1, 64, 64], u_desc.layout)
    x_buf = z_buf
    if SUMS:
        x_buf = gl.allocate_shared_memory(dtype, [STAGES * 2 * ZB, 1, 1, 64, 64], u_desc.layout)
    p_buf = gl.allocate_shared_memory(dtype, [SLOTS, 64, 64], gl.NVMMASharedLayout.get_default_for([64, 64], dtype))
    o_buf0 = gl.allocate_shared_memory(dtype, [OUTS * GROUPS, 1, 1, 64, 64], u_desc.layout)
    o_buf1 = o_buf0
    if ROLES == 2:
        o_buf1 = gl.allocate_shared_memory(dtype, [OUTS, 1, 1, 64, 64], u_desc.layout)
    r_buf = gl.allocate_shared_memory(gl.float32, [SLOTS, 64], flat)
    s_buf = gl.allocate_shared_memory(gl.float32, [SLOTS, 64], flat)
    decay_buf = s_buf
    if SUMS or WB == 4:  # else the math roles load what it comes from
        decay_buf = gl.allocate_shared_memory(gl.float32, [SLOTS, 64 * GROUPS], flat)
    e_buf = gl.allocate_shared_memory(gl.float32, [2, 64], flat)
    dots_buf = r_buf
    if SUMS:
        gl.static_assert(SLOTS == 1 and ZB == 1, "row sums of a tile are handed over with P of the next")
        dots_buf = gl.allocate_shared_memory(gl.float32, [8, 64], flat)
    pairs_buf = dots_buf
    if SUMS and not REVERSE:
        pairs_buf = gl.allocate_shared_memory(gl.float32, [4, 64], flat)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    p_full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    p_empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(empty.index(i), count=1 + ROLES)  # released by score and the math roles
        mbarrier.init(ready.index(i), count=1)
    for i in gl.static_range(SLOTS):
        mbarrier.init(p_full.index(i), count=1)
        mbarrier.init(p_empty.index(i), count=ROLES)
    o_full, o_free = p_full, p_empty
    if SUMS:
        o_full = gl.allocate_shared_memory(gl.int64, [OUTS, 1], mbarrier.MBarrierLayout())
        o_free = gl.allocate_shared_memory(gl.int64, [OUTS, 1], mbarrier.MBarrierLayout())
        for i in gl.static_range(OUTS):
            mbarrier.init(o_full.index(i), count=1)
            mbarrier.init(o_free.index(i), count=1)
    buffers = (u_buf, w_buf, z_buf, x_buf)
    factors = (r_buf, s_buf, decay_buf)
    begin_kernel(INDEPENDENT)
    gl.warp_specialize(
        [
            (math, (o_desc, g_ptr, first_ptr, last_ptr,
                    buffers, p_buf, o_buf0, o_full, o_free, dots_buf, factors, empty, ready, p_full, p_empty,
                    items, geometry, column,
                    0, GROUPS, Z_DIM, W_DIM, TRANSPOSED, PIECES, STAGES, SLOTS, WB, ZB, OUTS,
                    REVERSE, SUMS, DEFERS, FIRST, LAST, ADD)),
            (math, (o_desc, g_ptr, first_ptr, last_ptr,
                    buffers, p_buf, o_buf1, o_full, o_free, dots_buf, factors, empty, ready, p_full, p_empty,
                    items, geometry, column,
                    ROLES - 1, GROUPS, Z_DIM, W_DIM, TRANSPOSED, PIECES, STAGES, SLOTS, WB, ZB, OUTS,
                    REVERSE, SUMS, DEFERS, FIRST, LAST, ADD)),
            (score, ((au_ptr, az_ptr, g_ptr), (skip_ptr, diagonal_ptr), (through_ptr, rows_ptr, columns_ptr),
                     buffers, e_buf, p_buf, (dots_buf, pairs_buf), factors, empty, ready, p_full, p_empty,
                     items, geometry, steps, part_stride,
                     PIECES, STAGES, SLOTS, WB, ZB, REVERSE, SUMS, DEFERS, SKIP, DIAGONAL)),
            (produce, ((u_desc, w_desc, z_desc, x_desc), buffers, empty, ready,
                       items, geometry, (u_sharing, z_sharing), column,
                       PIECES, STAGES, WB, ZB, REVERSE, SUMS)),
            (send, (o_desc, o_buf0, o_full, o_free, items, geometry, PIECES, GROUPS, OUTS, REVERSE, ADD)),
        ][2 - ROLES : 4 + SUMS],
        [4, 4, 1, 1][2 - ROLES : 3 + SUMS],
        [MATH_REGISTERS, 488 - 2 * MATH_REGISTERS, 24, 24][2 - ROLES : 3 + SUMS],
    )  # fmt: skip
    end_kernel(INDEPENDENT)
