# type: ignore   # Gluon: what runs on the device has no types that a Python checker knows
"""The walk: one Gluon kernel for sm_90 that carries a state on chip over the tiles of a segment.

Every output of a gated linear attention is the same walk, with the roles of the tensors exchanged:

    out_u = sum_z P_uz Z_z + r_u S U_u          P_uz = (U_u . W_z) exp2(a_u + a_z), masked to j <= i
    S    <- e S + sum_z s_z Z_z W_z^T           after every tile of 64 steps

    out | U   W   Z  | i, j | walks     | state S, rows z, columns w | r              | s              | e
    h   | Q   K   V  | u, z | forward   | C^T                        | exp2(a_u)      | exp2(a_z + g)  | exp2(g)
    dq  | dH  V   K  | u, z | forward   | C                          | exp2(a_u)      | exp2(a_z + g)  | exp2(g)
    dv  | K   Q   dH | z, u | backward  | dC^T                       | exp2(a_u + g)  | exp2(a_z)      | exp2(g)
    dk  | V   dH  Q  | z, u | backward  | dC                         | exp2(a_u + g)  | exp2(a_z)      | exp2(g)

The exponents a (one a step) and g (one a tile) come from exponents.py: every kind of gate, the stabiliser, the scale of
q and, in backward, the denominator are in them, so nothing here knows which gate it runs.

Roles in a program (4 + 4 + 4 + 1 warps, with a normaliser 2 more, with row sums 1; connected by mbarriers):
    math 0, math 1   carry 64 * ZB rows of S each, as float32 accumulators, and write their columns of out; they do not
                     wait for one another, so one computes while the other stores. With SUMS one role of 8 warps has all
                     rows (GROUPS = 2), and X . (r S U) too: instructions of two such copies do not fit the cache
    send             with SUMS, one warp that stores out, so that no warp of math waits for a store or a fence
    score            computes P, r and s of a tile ahead of them; with a normaliser also Q n and K^T s, the products of
                     `normalise`: n and s as columns of 16-bit parts that make up a float32; with SUMS it writes the
                     row sums, and going forward (dq) those of pairs within a tile
    produce          one warp that fetches tiles of U, W, Z (and X, for row sums) by TMA into a ring of stages; with a
                     normaliser it puts exponents, s and e beside them
    normalise        two warps that carry n and make the denominators: a thread has a step, or columns of n, so nothing
                     is computed twice. P and r are divided by them in score or, with LATE, out in the math roles

Two variants have files of their own: packed.py, h of several heads a program, and pair.py, dk and dv in one walk.

Row sums (SUMS: dq with X = Q, dk with X = K) are what gate gradients are made of, by differences of their sums over a
whole sequence. They come out exact because both walks give every pair j < i of different tiles the same number:
(Q_i exp2(a_i)) . (K_j exp2(a_j + g)), each rounded as the other walk rounds it for its state, and S U as a product with
twice the bits of an operand, `upper` and `lower`. Pairs within a tile are summed over either index from one matrix.

In h and dv a state of 256 columns is not multiplied by e tile after tile, 128 multiplications a thread: what is due is
put into r and s, and the accumulators are multiplied once it is too much for those (`split_decay`).

Shared memory is what these walks share most of (MEASURED, version 12): operands of products, blocks on their way in and
out and exchanges between lanes all go through it. So what is exchanged is kept small (`leave_dots`).

A block is 64 steps by 64 columns. Every operand lies in shared memory as blocks, so one code takes every width that is
a multiple of 64. The TMA descriptors (B, H, T, d) cut the ends: reads beyond T or d give zeros, writes there are lost.
A state wider or higher than a program's registers is cut into pieces: rows into programs that run side by side and read
U and W through the L2, columns (`column`) into launches of which the second adds to the output of the first (ADD).
"""

from triton import constexpr_function
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
from .state import accumulators, finish_state_update, split_decay, start_state_update, state_pointers
from .tiles import BLOCK_BYTES, block, load_blocks, operands, split_columns
from .workarounds import (
    HOISTS,
    WIDEST_OPERAND,
    barrier,
    reinterpret,
    tma_add,
    tma_store,
    uniform,
    wait_for_kernel_before,
    wait_for_products,
    zero_in_round,
)


@constexpr_function
def spans(WB):
    """Into how many operands WB blocks side by side are cut: powers of two wide, as wide as the compiler takes well."""
    return WB if WB == 3 else max(1, WB // WIDEST_OPERAND)


@gluon.jit
def is_kept(tile, tiles, every):
    """Whether the state before a tile goes to memory: of a sequence cut as by `span`, what segments start from."""
    return ((tiles - tile) % every == 0) | (tile == 0)


@gluon.jit
def nth_tile(first, i, n, REVERSE: gl.constexpr):
    """The i-th tile that a walk over tiles first .. first + n - 1 meets."""
    if REVERSE:
        return first + n - 1 - i
    else:
        return first + i


@gluon.jit
def span(segment, tiles, segment_tiles, segments):
    """The first tile of a segment and how many it has: the first segment has what is left for it."""
    begins = tiles - (segments - segment) * segment_tiles
    return gl.maximum(begins, 0), gl.minimum(begins + segment_tiles, segment_tiles)


@gluon.jit
def is_due(tile, j, n, geometry, KEEP: gl.constexpr):
    """Whether the state after the j-th tile of n goes to memory."""
    if KEEP:
        return (j == n - 1) | is_kept(tile + 1, geometry[1], geometry[6][1])
    else:
        return j == n - 1


@gluon.jit
def place_of(item, geometry, PIECES: gl.constexpr):
    """(batch, head, first tile, tiles, row of batch and head, segment's index over all rows, piece) of a work item."""
    heads, tiles, segment_tiles, segments, lowest, walked, _keep = geometry
    piece = item % PIECES
    segment = lowest + (item // PIECES) % walked
    row = item // (PIECES * walked)
    first, n = span(segment, tiles, segment_tiles, segments)
    return row // heads, row % heads, first, n, row, (row * segments + segment).to(gl.int64), piece


@gluon.jit
def produce(
    descs, exponents, m_ptr, buffers, e_buf, factors, empty, ready, items, geometry, sharing, column, steps,
    PIECES: gl.constexpr, STAGES: gl.constexpr, WB: gl.constexpr, ZB: gl.constexpr, REVERSE: gl.constexpr,
    SUMS: gl.constexpr, NORM: gl.constexpr, LATE: gl.constexpr, DEFERS: gl.constexpr, KEEP: gl.constexpr,
):  # fmt: skip
    t_l: gl.constexpr = gl.BlockedLayout([2], [32], [1], [0])
    u_desc, w_desc, z_desc, x_desc = descs
    au_ptr, az_ptr, g_ptr = exponents
    tiles = geometry[1]
    u_buf, w_buf, z_buf, x_buf = buffers
    r_buf, s_buf, decay_buf = factors
    t = gl.arange(0, 64, layout=t_l)
    i = 0
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        batch, head, first, n, row, _index, piece = place_of(item, geometry, PIECES)
        deferred = 0.0
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
            if NORM:  # as late as the tile itself arrives
                a_u = gl.load(au_ptr + (row * tiles + tile) * 64 + t)
                a_z = gl.load(az_ptr + (row * tiles + tile) * 64 + t)
                g = gl.load(g_ptr + row * tiles + tile)
                m = gl.load(m_ptr + row * steps + tile * 64 + t, mask=tile * 64 + t < steps, other=0.0)
                e_buf.index(3 * s).store(a_u)
                e_buf.index(3 * s + 1).store(a_z)
                e_buf.index(3 * s + 2).store(m)
                if LATE:
                    r_buf.index(s).store(gl.exp2(a_u + deferred))
                e = 0.0
                if DEFERS:
                    e, deferred = split_decay(deferred, g, is_due(tile, j, n, geometry, KEEP))
                elif WB == 4:
                    e = gl.exp2(g)
                s_buf.index(s).store(gl.exp2(a_z + (g - deferred)))
                if WB == 4:
                    decay_buf.index(s).store(gl.full([64], e, gl.float32, layout=t_l))
                barrier()
                mbarrier.arrive(arrived, count=1)
            i += 1


@gluon.jit
def exchanged(low, high, LANES: gl.constexpr):
    """In lanes whose number has the bit LANES, high, in the others low, each with the same of the lane across."""
    asm: gl.constexpr = f"""{{ .reg .pred p; .reg .b32 lane, kept, sent; mov.u32 lane, %laneid;
        and.b32 lane, lane, {LANES}; setp.ne.b32 p, lane, 0; selp.b32 kept, $2, $1, p; selp.b32 sent, $1, $2, p;
        shfl.sync.bfly.b32 sent, sent, {LANES}, 31, 0xffffffff; add.f32 $0, kept, sent; }}"""
    return gl.inline_asm_elementwise(asm, "=f,f,f", [low, high], gl.float32, is_pure=False, pack=1)


@gluon.jit
def leave_dots(products, dots_buf, part, WARPS: gl.constexpr):
    """For `store_dots`: of the sums over rows of products, 16 rows a warp of a role, what every warp has.

    A thread has 16 columns of two rows, and 8 lanes have the other rows of the same columns. Every exchange halves
    the columns that a lane goes on with, down to 2: 14 exchanges, where sums in every lane, as `gl.sum`, take 48.
    """
    rows: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, order=[1, 0])
    dots = reinterpret(dots_buf, gl.float32, [dots_buf.shape[0] // WARPS, WARPS, 64], rows)
    x = gl.sum(products.reshape([WARPS, 2, 8, 64]), axis=1)  # [warp, lane / 4, column]
    for k in gl.static_range(3):
        low, high = x.reshape([WARPS, 8, 2, 32 >> k]).permute((0, 1, 3, 2)).split()
        x = exchanged(low, high, 16 >> k)
    dots.index(part).store(x.reshape([WARPS, 64]))  # 8 columns are left of each lane / 4, one after the other


@gluon.jit
def store_dots(dots_buf, at, left, t, layout: gl.constexpr):
    """Add up what every warp of a role has of sums of a tile."""
    WARPS: gl.constexpr = dots_buf.shape[0]
    dots = gl.zeros([64], gl.float32, layout=layout)
    for warp in gl.static_range(WARPS):
        dots += dots_buf.index(warp).load(layout)
    gl.store(at + t, dots, mask=t < left)


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
def add_up(s, zero, odd, u_spans, w_spans, norm, WB: gl.constexpr):
    """For `normalise`: U n, and what the tile adds to n, W^T s, this summed over pairs of columns of the parts.

    With 8 columns these products of a warp group cost the tensor cores next to nothing; `mma.sync` would starve.
    """
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 8, 16])
    SPANS: gl.constexpr = spans(WB)
    WIDTH: gl.constexpr = 64 * WB // SPANS
    dtype: gl.constexpr = u_spans.dtype
    n_parts, s_parts, un_buf, ws_buf, _d_buf, parts_full, added_full, _d_full = norm
    mbarrier.wait(parts_full, odd)
    un = gl.zeros([64, 8], gl.float32, layout=layout)
    for k in gl.static_range(SPANS):
        parts = n_parts[k].index(zero).permute((1, 0))
        un = warpgroup_mma(u_spans.index(uniform(s) * SPANS + k), parts, un, use_acc=(k > 0), is_async=True)
    products = (un,)
    for k in gl.static_range(SPANS):
        ws = gl.zeros([WIDTH, 8], gl.float32, layout=layout)
        wT = w_spans.index(uniform(s) * SPANS + k).permute((1, 0))
        products += (warpgroup_mma(wT, s_parts.index(zero).permute((1, 0)), ws, use_acc=False, is_async=True),)
    products = wait_for_products(0, deps=products)
    un_buf.store(gl.sum(places(products[0], dtype), axis=1))
    for k in gl.static_range(SPANS):
        ws_buf[k].store(gl.sum(places(products[1 + k], dtype).reshape([WIDTH, 4, 2]), axis=2))
    barrier()
    mbarrier.arrive(added_full, count=1)


@gluon.jit
def load_exponents(exponents, row, tile, tiles, t):
    """x, y and g of a tile."""
    au_ptr, az_ptr, g_ptr = exponents
    at = (row * tiles + tile) * 64 + t
    return gl.load(au_ptr + at), gl.load(az_ptr + at), gl.load(g_ptr + row * tiles + tile)


@gluon.jit
def score(
    exponents, skip, sums, buffers, e_buf, p_buf, sums_bufs, norm, factors, empty, ready, p_full, p_empty,
    items, geometry, steps, part_stride,
    PIECES: gl.constexpr, STAGES: gl.constexpr, SLOTS: gl.constexpr, WB: gl.constexpr, ZB: gl.constexpr,
    REVERSE: gl.constexpr, SUMS: gl.constexpr, NORM: gl.constexpr, LATE: gl.constexpr, DEFERS: gl.constexpr,
    SKIP: gl.constexpr, DIAGONAL: gl.constexpr, EARLY: gl.constexpr, KEEP: gl.constexpr,
):  # fmt: skip
    if EARLY:
        begin_kernel(INDEPENDENT=False)
    p_l: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
    u_l: gl.constexpr = gl.SliceLayout(1, p_l)
    z_l: gl.constexpr = gl.SliceLayout(0, p_l)
    tiles = geometry[1]
    u_buf, w_buf, z_buf, x_buf = buffers
    r_buf, s_buf, decay_buf = factors
    through_ptr, rows_ptr, columns_ptr = sums
    dots_buf, pairs_buf = sums_bufs
    dtype: gl.constexpr = p_buf.dtype
    _n_parts, _s_parts, _un_buf, _ws_buf, d_buf, _parts_full, _added_full, d_full = norm
    SPANS: gl.constexpr = spans(WB)
    u_spans = operands(u_buf, STAGES, WB, SPANS)
    w_spans = operands(w_buf, STAGES, WB, SPANS)
    t_l: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    t = gl.arange(0, 64, layout=t_l)
    u = gl.arange(0, 64, layout=u_l)
    z = gl.arange(0, 64, layout=z_l)
    before, left_before = (steps * 0).to(gl.int64), steps * 0  # the tile before this one, in row sums
    s, b, phase, turn, odd = 0, 0, 0, 0, 0
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        _batch, head, first, n, row, _index, piece = place_of(item, geometry, PIECES)
        deferred = 0.0
        if SKIP:
            skip_weight = gl.load(skip[0] + head)
        if not NORM:  # Exponents are loaded while the tile before theirs is at work, and spread through shared memory.
            tile = nth_tile(first, 0, n, REVERSE)
            x_t, y_t, g = load_exponents(exponents, row, tile, tiles, t)
        for j in range(n):
            tile_now = nth_tile(first, j, n, REVERSE)
            if not NORM:
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
            e = 0
            if NORM:
                e = 3 * s
            a_u = e_buf.index(e).load(u_l)
            a_z = e_buf.index(e + 1).load(z_l)
            if REVERSE:
                keep = z[None, :] >= u[:, None]
            else:
                keep = u[:, None] >= z[None, :]
            p = gl.where(keep, p * gl.exp2(a_u[:, None] + a_z[None, :]), 0.0)
            if SKIP:
                p += gl.where(u[:, None] == z[None, :], skip_weight, 0.0)
            if NORM:
                if LATE:
                    mbarrier.wait(p_empty.index(b), turn ^ 1)
                    hand_over(nearest(p, dtype), p_buf, p_full, b)
                d_buf.index(b).store(gl.sum(p, axis=1))
                zero = zero_in_round(j)
                add_up(s + zero, zero, odd, u_spans, w_spans, norm, WB)
                odd ^= 1
                if not LATE:
                    mbarrier.wait(d_full.index(b), turn)
                    d = d_buf.index(b).load(u_l)
                    p = p * d[:, None]
                    mbarrier.wait(p_empty.index(b), turn ^ 1)
                    r_buf.index(b).store(gl.exp2(a_u) * d)
            else:
                before_tile = deferred
                if DEFERS:
                    e, deferred = split_decay(deferred, g_now, is_due(tile_now, j, n, geometry, KEEP))
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
                store_dots(dots_buf, through_ptr + before, left_before, t, t_l)
                before = piece.to(gl.int64) * part_stride + row.to(gl.int64) * steps + tile_now * 64
                left_before = steps - tile_now * 64
            if not LATE:
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
                leave_dots(xz, pairs_buf, 0, 4)
                barrier()  # they are there, and every warp has read its rows of X and Z
                store_dots(pairs_buf, columns_ptr + before, left_before, t, t_l)
            mbarrier.arrive(empty.index(s), count=1)
            s, phase = following(s, phase, STAGES)
            b, turn = following(b, turn, SLOTS)
    if SUMS:
        mbarrier.wait(p_empty.index(b), turn ^ 1)
        store_dots(dots_buf, through_ptr + before, left_before, t, t_l)


@gluon.jit
def in_parts(x, layout: gl.constexpr, dtype: gl.constexpr):
    """float32 x (n,) as an operand (n, 8) of dtype: products with it, summed over its columns, are products with x.

    A column takes the leading bits of what is left: three of bfloat16 have all of a float32. Four of float16, each
    2**10 times as large as its place, have them from 2**-14 on and steps of 2**-38 below, where a weight is at most 1,
    and reach as far as the sum of 65,536 of the largest keys.
    """
    column = gl.arange(0, 8, layout=gl.SliceLayout(0, layout))
    parts = gl.zeros([x.shape[0], 8], dtype, layout=layout)
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
def places(products, dtype: gl.constexpr):
    """products (n, 8) with an operand `in_parts`, every column as large as it is to be."""
    if dtype == gl.float16:
        column = gl.arange(0, 8, layout=gl.SliceLayout(0, products.type.layout))
        products *= gl.exp2(16.0 - 10.0 * column.to(gl.float32))[None, :]
    return products


@gluon.jit
def normalise(
    states, g_ptr, back_ptr, e_buf, norm, factors, empty, ready, items, geometry,
    W_DIM: gl.constexpr, PIECES: gl.constexpr, STAGES: gl.constexpr, SLOTS: gl.constexpr, WB: gl.constexpr,
    LATE: gl.constexpr, DEFERS: gl.constexpr, KEEP: gl.constexpr, FIRST: gl.constexpr, LAST: gl.constexpr,
):  # fmt: skip
    SPANS: gl.constexpr = spans(WB)
    WIDTH: gl.constexpr = 64 * WB // SPANS
    parts_l: gl.constexpr = gl.BlockedLayout([1, 8], [32, 1], [2, 1], [1, 0])
    sums_l: gl.constexpr = gl.BlockedLayout([1, 4], [32, 1], [2, 1], [1, 0])
    column_l: gl.constexpr = gl.SliceLayout(1, parts_l)  # columns of n, or a step, a thread
    n_first_ptr, n_last_ptr = states
    all_tiles = geometry[1]
    n_parts, s_parts, un_buf, ws_buf, d_buf, parts_full, added_full, d_full = norm
    r_buf, s_buf, _decay_buf = factors
    dtype: gl.constexpr = s_parts.dtype
    u = gl.arange(0, 64, layout=column_l)
    w = gl.arange(0, WIDTH, layout=column_l)
    s, b, phase, turn, odd = 0, 0, 0, 0, 0
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        _batch, _head, first, tiles, row, index, piece = place_of(item, geometry, PIECES)
        at_n = index * W_DIM + w
        deferred = 0.0
        n = ()
        for k in gl.static_range(SPANS):
            if FIRST:
                n += (gl.load(n_first_ptr + at_n + WIDTH * k),)
            else:
                n += (gl.zeros([WIDTH], gl.float32, layout=column_l),)
        for j in range(tiles):
            g = gl.load(g_ptr + row * all_tiles + first + j)
            if DEFERS:
                decay, deferred = split_decay(deferred, g, is_due(first + j, j, tiles, geometry, KEEP))
            else:
                decay = gl.exp2(g)
            for k in gl.static_range(SPANS):
                n_parts[k].index(0).permute((1, 0)).store(in_parts(n[k], parts_l, dtype))
            mbarrier.wait(ready.index(s), phase)
            s_parts.index(0).permute((1, 0)).store(in_parts(s_buf.index(s).load(column_l), parts_l, dtype))
            fence_async_shared()
            barrier()
            mbarrier.arrive(parts_full, count=1)
            a_u = e_buf.index(3 * s).load(column_l)
            if LATE:
                r = r_buf.index(s).load(column_l)
            else:
                r = gl.exp2(a_u)
            bound = gl.exp2(-1.4426950408889634 * e_buf.index(3 * s + 2).load(column_l))
            mbarrier.wait(added_full, odd)
            denominator = gl.maximum(gl.abs(r * un_buf.load(column_l) + d_buf.index(b).load(column_l)), bound)
            d_buf.index(b).store(1.0 / denominator)
            barrier()
            mbarrier.arrive(d_full.index(b), count=1)
            mbarrier.arrive(empty.index(s), count=1)
            if piece == 0:
                gl.store(back_ptr + (row * all_tiles + first + j) * 64 + u, a_u - gl.log2(denominator))
            new_n = ()
            for k in gl.static_range(SPANS):
                added = gl.convert_layout(gl.sum(ws_buf[k].load(sums_l), axis=1), column_l)
                new_n += (n[k] * decay + added,)
            n = new_n
            s, phase = following(s, phase, STAGES)
            b, turn = following(b, turn, SLOTS)
            odd ^= 1
        if LAST:  # noqa: SIM102
            if piece == 0:
                for k in gl.static_range(SPANS):
                    gl.store(n_last_ptr + at_n + WIDTH * k, n[k])


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
    buffers, p_buf, o_buf, o_full, o_free, dots_buf, norm, factors, empty, ready, p_full, p_empty,
    items, geometry, column,
    HALF: gl.constexpr, GROUPS: gl.constexpr, Z_DIM: gl.constexpr, W_DIM: gl.constexpr, TRANSPOSED: gl.constexpr,
    PIECES: gl.constexpr, STAGES: gl.constexpr, SLOTS: gl.constexpr, WB: gl.constexpr, ZB: gl.constexpr,
    OUTS: gl.constexpr, REVERSE: gl.constexpr, SUMS: gl.constexpr, NORM: gl.constexpr, LATE: gl.constexpr,
    DEFERS: gl.constexpr, FIRST: gl.constexpr, LAST: gl.constexpr, ADD: gl.constexpr, EARLY: gl.constexpr,
    KEEP: gl.constexpr,
):  # fmt: skip
    if EARLY:
        wait_for_kernel_before()
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
    # Of zeros that nothing multiplies ptxas would serialise all products (C7512); after 3.6 also beside a normaliser.
    NOT_ZEROS: gl.constexpr = DEFERS or (NORM and WB == 4)
    i = 0
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        batch, head, first, n, row, index, piece = place_of(item, geometry, PIECES)
        z0 = piece * (128 * ZB) + HALF * (ROWS * ZB)
        opaque = i >> 30  # 0: keeps addresses of an item's states out of registers while it is walked
        state = ()  # ZB x WB blocks
        for zb in gl.static_range(ZB):
            for wb in gl.static_range(WB):
                if FIRST or NOT_ZEROS:
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
            if KEEP:
                kept_ptr, every, count = geometry[6]
                if is_kept(tile, tiles, every):
                    opaque = i >> 30
                    place = row * count + count - (tiles - tile + every - 1) // every
                    for zb in gl.static_range(ZB):
                        for wb in gl.static_range(WB):
                            at, rows = state_pointers(
                                kept_ptr + place.to(gl.int64) * (Z_DIM * W_DIM),
                                z0 + ROWS * zb + opaque, column + 64 * wb + opaque, Z_STRIDE, W_STRIDE, s_l, ROWS,
                            )  # fmt: skip
                            gl.store(at, state[zb * WB + wb], mask=rows < Z_DIM)
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
                c = s if NORM else b
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
                r = r_buf.index(s if LATE else b).load(u_l)
                if SUMS:
                    x = widened(x_rows.index(z_block).permute((1, 0)).load(s_l))
                    x = rounded(x * r[None, :], dtype)
                    leave_dots(x * o, dots_buf, HALF, WARPS)
                o = o * r[None, :]
                if DEFERS:
                    e = gl.sum(decay_buf.index(c).slice(0, 1).load(t_l), axis=0)
                    if e != 1.0:
                        scaled = ()
                        for wb in gl.static_range(WB):
                            scaled += (state[zb * WB + wb] * e,)
                        state = scaled
                o = warpgroup_mma(zT, p_buf.index(b).permute((1, 0)), o, is_async=True)
                kept = state
                if not DEFERS:
                    if SUMS or WB == 4:  # leaves more registers (elsewhere Triton 3.9 would serialise: C7512)
                        e = decay_buf.index(c).load(gl.SliceLayout(1, s_l))[:, None]
                    kept = ()
                    for wb in gl.static_range(WB):  # all before the first product: none may touch registers in flight
                        kept += (state[zb * WB + wb] * e,)
                flight_of_state, kept_operands = start_state_update(
                    kept, zT, s_buf.index(c), w_joined, s, accumulators(WB)
                )  # fmt: skip
                if ZB == 1:
                    o = wait_for_products(2 * accumulators(WB), deps=(o,))  # the state is updated while out is written
                else:
                    o = wait_for_products(0, deps=(o,))  # as above it would serialise the products (ptxas C7512)
                if LATE:
                    _n_parts, _s_parts, _un_buf, _ws_buf, d_buf, _parts_full, _added_full, d_full = norm
                    if zb == 0:
                        mbarrier.wait(d_full.index(b), (i // SLOTS) & 1)
                    o = o * d_buf.index(b).load(u_l)[None, :]
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
    do_not_specialize=[
        "items", "heads", "steps", "tiles", "segment_tiles", "segments", "lowest", "walked", "keep_every", "kept",
        "part_stride",
    ],
    do_not_specialize_on_alignment=["u_sharing", "z_sharing"],
)  # fmt: skip
def walk(
    u_desc, w_desc, z_desc, x_desc, o_desc, au_ptr, az_ptr, g_ptr, first_ptr, last_ptr,
    through_ptr, rows_ptr, columns_ptr, m_ptr, back_ptr, n_first_ptr, n_last_ptr, skip_ptr, diagonal_ptr, kept_ptr,
    items, heads, u_sharing, z_sharing, steps, tiles, segment_tiles, segments, lowest, walked, keep_every, kept, column,
    part_stride,
    Z_DIM: gl.constexpr, W_DIM: gl.constexpr, TRANSPOSED: gl.constexpr, STAGES: gl.constexpr, SLOTS: gl.constexpr,
    OUTS: gl.constexpr, WB: gl.constexpr, ZB: gl.constexpr, MATH_REGISTERS: gl.constexpr, GROUPS: gl.constexpr,
    REVERSE: gl.constexpr, SUMS: gl.constexpr, NORM: gl.constexpr, FIRST: gl.constexpr, LAST: gl.constexpr,
    ADD: gl.constexpr, SKIP: gl.constexpr, DIAGONAL: gl.constexpr, INDEPENDENT: gl.constexpr, KEEP: gl.constexpr,
):  # fmt: skip
    """A program takes work items, pieces of the state of a segment of a (batch, head) row, one after the other.

    Segments of a row: `walked`, from the one called `lowest` on.
    KEEP: in a sequence cut into segments of `keep_every` tiles, `kept` of them, the state that each starts from is
    written to kept_ptr (B, H, kept, d_qk, d_hv) (h).
    SKIP: skip (heads,) is added to the diagonal of P (h, dv). DIAGONAL: U_u . W_u is written to diagonal (dq).
    u_sharing, z_sharing: consecutive heads that share one of U and W, of Z and X; out has all of them.

    So the loads of an item run while the one before it ends. Launched by launch.py.
    """
    keep = ()
    if KEEP:
        keep = (kept_ptr, keep_every, kept)
    geometry = (heads, tiles, segment_tiles, segments, lowest, walked, keep)
    PIECES: gl.constexpr = (Z_DIM + 128 * ZB - 1) // (128 * ZB)
    ROLES: gl.constexpr = 2 // GROUPS  # with math
    dtype: gl.constexpr = u_desc.dtype
    LATE: gl.constexpr = NORM and SLOTS > 1  # divide out, so that score, which is ahead, waits for nobody
    # Of h and dv. Row sums need the weights that the other walk rounds by, float16 has no room for what `split_decay`
    # makes of them, fewer columns gain nothing; of dq products would be serialised, and on Triton 3.9 beside a
    # normaliser.
    DEFERS: gl.constexpr = WB == 4 and TRANSPOSED and not (NORM and HOISTS) and dtype == gl.bfloat16
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
    # Written by score for a slot, or by produce, with a normaliser, for a stage; r so if out is divided.
    r_buf = gl.allocate_shared_memory(gl.float32, [STAGES if LATE else SLOTS, 64], flat)
    COPIES: gl.constexpr = STAGES if NORM else SLOTS
    s_buf = gl.allocate_shared_memory(gl.float32, [COPIES, 64], flat)
    decay_buf = s_buf
    if SUMS or WB == 4:  # else the math roles load what it comes from
        decay_buf = gl.allocate_shared_memory(gl.float32, [COPIES, 64 * GROUPS], flat)
    e_buf = gl.allocate_shared_memory(gl.float32, [3 * STAGES if NORM else 2, 64], flat)
    dots_buf = r_buf
    if SUMS:
        gl.static_assert(SLOTS == 1 and ZB == 1, "row sums of a tile are handed over with P of the next")
        dots_buf = gl.allocate_shared_memory(gl.float32, [8, 64], flat)
    pairs_buf = dots_buf
    if SUMS and not REVERSE:
        pairs_buf = gl.allocate_shared_memory(gl.float32, [4, 64], flat)
    norm = (r_buf,) * 8
    if NORM:
        parts_l: gl.constexpr = gl.NVMMASharedLayout.get_default_for([8, 64], dtype)
        rows: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, order=[1, 0])
        SPANS: gl.constexpr = spans(WB)
        WIDTH: gl.constexpr = 64 * WB // SPANS
        n_parts, ws_buf = (), ()
        for _ in gl.static_range(SPANS):
            n_parts += (gl.allocate_shared_memory(dtype, [1, 8, WIDTH], parts_l),)
            ws_buf += (gl.allocate_shared_memory(gl.float32, [WIDTH, 4], rows),)
        s_parts = gl.allocate_shared_memory(dtype, [1, 8, 64], parts_l)
        un_buf = gl.allocate_shared_memory(gl.float32, [64], flat)
        d_buf = gl.allocate_shared_memory(gl.float32, [SLOTS, 64], flat)  # row sums of P, then 1 / denominator
        parts_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
        added_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
        d_full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
        mbarrier.init(parts_full, count=1)
        mbarrier.init(added_full, count=1)
        for i in gl.static_range(SLOTS):
            mbarrier.init(d_full.index(i), count=1)
        norm = (n_parts, s_parts, un_buf, ws_buf, d_buf, parts_full, added_full, d_full)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    p_full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    p_empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(empty.index(i), count=1 + ROLES + NORM)  # released by score, the math roles and normalise
        mbarrier.init(ready.index(i), count=1 + NORM)
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
    MORE: gl.constexpr = NORM or SUMS  # roles than the four: normalise or send
    # h: the kernel before it began when q, k and v were there, so tiles come while it makes exponents or states; roles
    # that read those wait for it. What dq reads may be made by any kernel before it. With a normaliser `produce` reads
    # exponents too, and on Triton 3.9 waiting there spills 40 B more.
    EARLY: gl.constexpr = TRANSPOSED and not REVERSE and not NORM and not INDEPENDENT
    if not EARLY:
        begin_kernel(INDEPENDENT)
    gl.warp_specialize(
        [
            (math, (o_desc, g_ptr, first_ptr, last_ptr,
                    buffers, p_buf, o_buf0, o_full, o_free, dots_buf, norm, factors, empty, ready, p_full, p_empty,
                    items, geometry, column,
                    0, GROUPS, Z_DIM, W_DIM, TRANSPOSED, PIECES, STAGES, SLOTS, WB, ZB, OUTS,
                    REVERSE, SUMS, NORM, LATE, DEFERS, FIRST, LAST, ADD, EARLY, KEEP)),
            (math, (o_desc, g_ptr, first_ptr, last_ptr,
                    buffers, p_buf, o_buf1, o_full, o_free, dots_buf, norm, factors, empty, ready, p_full, p_empty,
                    items, geometry, column,
                    ROLES - 1, GROUPS, Z_DIM, W_DIM, TRANSPOSED, PIECES, STAGES, SLOTS, WB, ZB, OUTS,
                    REVERSE, SUMS, NORM, LATE, DEFERS, FIRST, LAST, ADD, EARLY, KEEP)),
            (score, ((au_ptr, az_ptr, g_ptr), (skip_ptr, diagonal_ptr), (through_ptr, rows_ptr, columns_ptr),
                     buffers, e_buf, p_buf, (dots_buf, pairs_buf), norm, factors, empty, ready, p_full, p_empty,
                     items, geometry, steps, part_stride,
                     PIECES, STAGES, SLOTS, WB, ZB, REVERSE, SUMS, NORM, LATE, DEFERS, SKIP, DIAGONAL, EARLY, KEEP)),
            (produce, ((u_desc, w_desc, z_desc, x_desc), (au_ptr, az_ptr, g_ptr), m_ptr,
                       buffers, e_buf, factors, empty, ready,
                       items, geometry, (u_sharing, z_sharing), column, steps,
                       PIECES, STAGES, WB, ZB, REVERSE, SUMS, NORM, LATE, DEFERS, KEEP)),
            (normalise, ((n_first_ptr, n_last_ptr), g_ptr, back_ptr, e_buf, norm, factors, empty, ready,
                         items, geometry, W_DIM, PIECES, STAGES, SLOTS, WB, LATE, DEFERS, KEEP, FIRST, LAST))
            if NORM
            else (send, (o_desc, o_buf0, o_full, o_free, items, geometry, PIECES, GROUPS, OUTS, REVERSE, ADD)),
        ][2 - ROLES : 4 + MORE],
        [4, 4, 1, 2 if NORM else 1][2 - ROLES : 3 + MORE],
        [MATH_REGISTERS, 488 - 2 * MATH_REGISTERS, 24, 24][2 - ROLES : 3 + MORE],
    )  # fmt: skip
    end_kernel(INDEPENDENT)
