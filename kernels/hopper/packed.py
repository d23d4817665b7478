# type: ignore   # Gluon: what runs on the device has no types that a Python checker knows
"""Walks (see walk.py) of several heads in one program, for heads that share q and k and states of 64 x 64.

Which of a walk's tensors the heads of a program share, and so read once, depends on its output:

    out     | U, W        | Z, X    | P of a program                      | out
    h, dv   | shared      | a head  | U W^T once, weighted for each head  | a head
    dq, dk  | a head      | shared  | sum over the heads                  | sum over the heads: of a program (SUMMED)

so that dq and dk of heads/HEADS programs, not of every head, are left to be added up. Each of the two math roles
holds the states of HEADS / 2 heads, of 64 rows just as its accumulators, and takes them one after the other in a tile.
Of a SUMMED walk math 1 hands its sum over to math 0, which adds P Z, the same for all heads, and writes out.

Row sums are those of walk.py, a head each, with one difference: X Z^T is shared, so pairs within a tile cost `score`
one product a tile, and each walk sums them over the index that is its rows: dq writes those of q, dk those of k. Both
sum the same float32 numbers, not rounded as P is for its product.

The heads of a program come in pairs, one for each math role. A pair has barriers and buffers of its own, so that the
math roles start on one while `score` is at the next; of a SUMMED walk P is a sum over a pair, which math 0 wants at the
end of a tile alone: all that the math roles wait for before is a tile's factors r, s and e (f_full).

`score` is what the others would wait for, so it has eight warps, each with half the columns of 16 rows of P. It fetches
the tiles too: there are then sixteen warps, which share all registers there are, and with a role for it alone twenty,
for which no more than 96 a thread could be had at launch. Where the math roles' code for two heads does not fit the
instruction cache they can take one at a time, in turns of a loop (AT_ONCE = 1), at the price of moving their states.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
)

from .compat import barrier, reinterpret, tma_load, tma_store, wait_for_products
from .walk import BLOCK_BYTES, advance, begin, end, lower, nth_tile, place_of, rounded, state_pointers, upper

# Of float32 accumulators in shared memory: pairs of columns of thread after thread, at constants from one address.
SUM_LAYOUT = gl.constexpr(
    gl.SharedLinearLayout(
        [[0, 1], [0, 2], [0, 4], [1, 0], [2, 0], [4, 0], [16, 0], [32, 0], [0, 8], [0, 16], [0, 32], [8, 0]]
    )
)


@gluon.jit
def fetch(
    descs, stages, empty, ready, i, batch, u_head, z_head, tile,
    HEADS: gl.constexpr, STAGES: gl.constexpr, SUMMED: gl.constexpr, SUMS: gl.constexpr,
):  # fmt: skip
    """Start the copies of a program's i-th tile, each of all heads."""
    u_desc, w_desc, z_desc, x_desc = descs
    u_stages, w_stages, z_stages, x_stages = stages
    UW: gl.constexpr = HEADS if SUMMED else 1
    ZX: gl.constexpr = 1 if SUMMED else HEADS
    s = i % STAGES
    mbarrier.wait(empty.index(s), ((i // STAGES) & 1) ^ 1)
    arrived = ready.index(s)
    mbarrier.expect(arrived, BLOCK_BYTES * (2 * UW + ZX * (1 + SUMS)))
    tma_load(u_desc, [batch, u_head, tile * 64, 0], arrived, u_stages.index(s))
    tma_load(w_desc, [batch, u_head, tile * 64, 0], arrived, w_stages.index(s))
    tma_load(z_desc, [batch, z_head, tile * 64, 0], arrived, z_stages.index(s))
    if SUMS:
        tma_load(x_desc, [batch, z_head, tile * 64, 0], arrived, x_stages.index(s))


@gluon.jit
def product(a, b, layout: gl.constexpr):
    """Start a b^T of blocks in shared memory."""
    return warpgroup_mma(a, b.permute((1, 0)), gl.zeros([64, 64], gl.float32, layout=layout), is_async=True)


@gluon.jit
def score(
    descs, stages, exponents, skip_ptr, diagonal_ptr, within_ptr, buffers, e_bufs, p_bufs, within_buf, factors,
    empty, ready, f_full, p_full, p_empty, items, geometry, sharing, steps,
    HEADS: gl.constexpr, STAGES: gl.constexpr, GROUPS: gl.constexpr, REVERSE: gl.constexpr, SUMMED: gl.constexpr,
    SUMS: gl.constexpr, SKIP: gl.constexpr, DIAGONAL: gl.constexpr,
):  # fmt: skip
    COLUMNS: gl.constexpr = 64 // GROUPS  # of P for each warp group
    PAIRS: gl.constexpr = HEADS // 2
    p_l: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, GROUPS], instr_shape=[16, COLUMNS, 16]
    )
    u_l: gl.constexpr = gl.SliceLayout(1, p_l)
    z_l: gl.constexpr = gl.SliceLayout(0, p_l)
    e_l: gl.constexpr = gl.BlockedLayout([1, 2 // GROUPS], [1, 32], [4, GROUPS], [1, 0])  # a head's in GROUPS warps
    e_shared: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, order=[1, 0])
    au_ptr, az_ptr, g_ptr = exponents
    _packs, tiles, _segment_tiles, _segments = geometry
    u_buf, w_buf, z_buf, x_buf = buffers
    u_exponents, z_exponents = e_bufs
    p_buf0, p_buf1 = p_bufs
    r_buf, s_buf, decay_buf = factors
    u_by_head = reinterpret(u_exponents, gl.float32, [1, HEADS, 64], e_shared).index(0)
    z_by_head = reinterpret(z_exponents, gl.float32, [1, HEADS, 64], e_shared).index(0)
    r_by_head = reinterpret(r_buf, gl.float32, [2, HEADS, 64], e_shared)
    s_by_head = reinterpret(s_buf, gl.float32, [2, HEADS, 64], e_shared)
    decay_by_head = reinterpret(decay_buf, gl.float32, [2, HEADS, 64], e_shared)
    if SUMS:
        by_pair: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, order=[2, 1, 0])
        within_by_pair = reinterpret(within_buf, gl.float32, [PAIRS, 2, GROUPS, 64], by_pair)
    u = gl.arange(0, 64, layout=u_l)
    z = gl.arange(0, 64, layout=z_l)
    h_e = gl.arange(0, HEADS, layout=gl.SliceLayout(1, e_l))[:, None]
    t_e = gl.arange(0, 64, layout=gl.SliceLayout(0, e_l))[None, :]
    i = 0
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        batch, pack, first, n, row, _index, _piece = place_of(item, geometry, 1)
        own, common = pack * HEADS, pack * HEADS // sharing
        u_head, z_head = (own, common) if SUMMED else (common, own)
        tile = nth_tile(first, 0, n, REVERSE)
        fetch(descs, stages, empty, ready, i, batch, u_head, z_head, tile, HEADS, STAGES, SUMMED, SUMS)
        # The exponents of a tile are loaded while the one before it is at work, and spread through shared memory.
        at = (row * HEADS + h_e) * tiles + tile
        x_t = gl.load(au_ptr + (at * 64 + t_e))
        y_t = gl.load(az_ptr + (at * 64 + t_e))
        g = gl.load(g_ptr + (at + 0 * t_e))
        for j in range(n):
            s = i % STAGES
            start = nth_tile(first, j, n, REVERSE) * 64
            u_by_head.store(x_t)
            z_by_head.store(y_t)
            # Two sets of factors: the other may still be read. This one was the math roles' two tiles ago.
            r_by_head.index(i & 1).store(gl.exp2(x_t + g if REVERSE else x_t))
            s_by_head.index(i & 1).store(gl.exp2(y_t if REVERSE else y_t + g))
            decay_by_head.index(i & 1).store(gl.exp2(g))
            barrier()
            mbarrier.arrive(f_full.index(i & 1), count=1)
            tile = nth_tile(first, gl.minimum(j + 1, n - 1), n, REVERSE)
            at = (row * HEADS + h_e) * tiles + tile
            x_t = gl.load(au_ptr + (at * 64 + t_e))
            y_t = gl.load(az_ptr + (at * 64 + t_e))
            g = gl.load(g_ptr + (at + 0 * t_e))
            mbarrier.wait(ready.index(s), (i // STAGES) & 1)
            if REVERSE:
                keep = z[None, :] >= u[:, None]
            else:
                keep = u[:, None] >= z[None, :]
            if not SUMMED:
                alike = wait_for_products(0, deps=(product(u_buf.index(s), w_buf.index(s), p_l),))
                scores = (alike, alike)
            for pair in range(PAIRS):
                if (pair == PAIRS - 1) & (j + 1 < n):  # by now the math roles leave the tile before: its place is next
                    fetch(descs, stages, empty, ready, i + 1, batch, u_head, z_head, tile, HEADS, STAGES, SUMMED, SUMS)
                if SUMMED:
                    b = (s * PAIRS + pair) * 2
                    left = product(u_buf.index(b), w_buf.index(b), p_l)
                    right = product(u_buf.index(b + 1), w_buf.index(b + 1), p_l)
                    if SUMS:
                        xz = product(x_buf.index(s), z_buf.index(s), p_l)
                        left, right, xz = wait_for_products(0, deps=(left, right, xz))
                    else:
                        left, right = wait_for_products(0, deps=(left, right))
                    scores = (left, right)
                weighted = ()
                for half in gl.static_range(2):
                    head = 2 * pair + half
                    if DIAGONAL:  # dh . v of the same step: at most one of a thread's columns, and no sum over threads
                        step = (row * HEADS + head) * steps + start + u
                        same = (u[:, None] == z[None, :]) & (start + u < steps)[:, None]
                        gl.store(diagonal_ptr + (step[:, None] + 0 * z[None, :]), scores[half], mask=same)
                    a_u = u_exponents.index(head).load(u_l)
                    a_z = z_exponents.index(head).load(z_l)
                    p = gl.where(keep, scores[half] * gl.exp2(a_u[:, None] + a_z[None, :]), 0.0)
                    if SKIP:
                        p += gl.where(u[:, None] == z[None, :], gl.load(skip_ptr + pack * HEADS + head), 0.0)
                    weighted += (p,)
                if SUMS:
                    dots = gl.join(
                        gl.sum((weighted[0] * xz).reshape([64, GROUPS, COLUMNS]), axis=2),
                        gl.sum((weighted[1] * xz).reshape([64, GROUPS, COLUMNS]), axis=2),
                    )
                    within_by_pair.index(pair).store(dots.permute((2, 1, 0)))
                mbarrier.wait(p_empty.index(pair), (i & 1) ^ 1)
                if SUMMED:
                    p_buf0.index(pair).store((weighted[0] + weighted[1]).to(p_buf0.dtype))
                else:
                    p_buf0.index(pair).store(weighted[0].to(p_buf0.dtype))
                    p_buf1.index(pair).store(weighted[1].to(p_buf0.dtype))
                fence_async_shared()
                barrier()  # P of this pair is in shared memory, the exponents have been read
                mbarrier.arrive(p_full.index(pair), count=1)
            if SUMS:
                dots = gl.zeros([HEADS, 64], gl.float32, layout=e_l)
                within = reinterpret(within_buf, gl.float32, [1, HEADS, GROUPS * 64], e_shared).index(0)
                for group in gl.static_range(GROUPS):
                    dots += within.slice(64 * group, 64, dim=1).load(e_l)
                gl.store(within_ptr + ((row * HEADS + h_e) * steps + start + t_e), dots, mask=start + t_e < steps)
            i += 1


@gluon.jit
def math(
    o_desc, first_ptr, last_ptr, through_ptr, buffers, p_buf, s_buf, o_buf, sum_buf, factors,
    empty, ready, f_full, p_full, p_empty, sum_full, sum_empty, items, geometry, steps,
    HALF: gl.constexpr, HEADS: gl.constexpr, STAGES: gl.constexpr, AT_ONCE: gl.constexpr, TRANSPOSED: gl.constexpr,
    REVERSE: gl.constexpr, SUMMED: gl.constexpr, SUMS: gl.constexpr, FIRST: gl.constexpr, LAST: gl.constexpr,
):  # fmt: skip
    s_l: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
    u_l: gl.constexpr = gl.SliceLayout(1, s_l)
    dtype: gl.constexpr = p_buf.dtype
    PAIRS: gl.constexpr = HEADS // 2
    Z_STRIDE: gl.constexpr = 1 if TRANSPOSED else 64
    W_STRIDE: gl.constexpr = 64 if TRANSPOSED else 1
    u_buf, w_buf, z_buf, x_buf = buffers
    r_buf, s_factors, decay_buf = factors
    _packs, _tiles, _segment_tiles, segments = geometry
    u = gl.arange(0, 64, layout=u_l)
    i = 0
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        batch, pack, first, n, row, _index, _piece = place_of(item, geometry, 1)
        state = ()  # of each pair's head
        for pair in gl.static_range(PAIRS):
            if FIRST:
                index = (row * HEADS + 2 * pair + HALF) * segments + item % segments
                at, _ = state_pointers(first_ptr + index.to(gl.int64) * 4096, 0, 0, Z_STRIDE, W_STRIDE, s_l)
                state += (gl.load(at),)
            else:
                state += (gl.zeros([64, 64], gl.float32, layout=s_l),)
        for j in range(n):
            s = i % STAGES
            start = nth_tile(first, j, n, REVERSE) * 64
            phase = i & 1
            mbarrier.wait(ready.index(s), (i // STAGES) & 1)
            if SUMMED:
                mbarrier.wait(f_full.index(phase), (i >> 1) & 1)
                total = gl.zeros([64, 64], gl.float32, layout=s_l)
                if HALF == 1:
                    mbarrier.wait(sum_empty, phase ^ 1)  # the sum of the tile before was in s_buf
            for turn in range(PAIRS // AT_ONCE):
                new_state = ()
                for at_once in gl.static_range(AT_ONCE):
                    nth = turn * AT_ONCE + at_once
                    head = 2 * nth + HALF
                    zero = i >> (30 - nth)  # spelled anew for each pair: keeps addresses out of registers
                    again = s + zero
                    if SUMMED:
                        uw, zx = again * HEADS + head, again
                    else:
                        uw, zx = again, again * HEADS + head
                        tma.store_wait(pendings=PAIRS - 1)
                    if SUMS:
                        s_buf.index(zero).store(upper(state[at_once], dtype))
                        s_buf.index(zero + 1).store(lower(state[at_once], dtype))
                    else:
                        s_buf.index(zero).store(state[at_once].to(dtype))
                    fence_async_shared()
                    barrier()  # S is in shared memory; this pair's buffer for out is free
                    o = gl.zeros([64, 64], gl.float32, layout=s_l)
                    for part in gl.static_range(1 + SUMS):
                        o = warpgroup_mma(u_buf.index(uw), s_buf.index(zero + part).permute((1, 0)), o, is_async=True)
                    o = wait_for_products(0, deps=(o,))
                    if not SUMMED:
                        mbarrier.wait(p_full.index(nth), phase)
                    at_factors = phase * HEADS + head
                    r = r_buf.index(at_factors).load(u_l)
                    e = decay_buf.index(at_factors).load(u_l)[:, None]
                    if not SUMMED:
                        o = warpgroup_mma(p_buf.index(nth), z_buf.index(zx), o * r[:, None], is_async=True)
                    flight, operands = advance(
                        (state[at_once] * e,), z_buf.index(zx).permute((1, 0)), s_factors.index(at_factors),
                        w_buf, uw, 1,
                    )  # fmt: skip
                    if SUMMED:
                        if SUMS:
                            x = rounded(x_buf.index(zx).load(s_l).to(gl.float32) * r[:, None], dtype)
                            step = (row * HEADS + head) * steps + start + u
                            gl.store(through_ptr + step, gl.sum(x * o, axis=1), mask=start + u < steps)
                        total += o * r[:, None]
                    else:
                        o = wait_for_products(2, deps=(o,))  # the state is updated while out is written
                        out = o_buf.index(nth)
                        out.reshape([64, 64]).store(o.to(dtype))
                        fence_async_shared()
                    barrier()  # every warp has read S, P and its factors, and written its part of out
                    if not SUMMED:
                        tma_store(o_desc, [batch, pack * HEADS + head, start, 0], out)
                        mbarrier.arrive(p_empty.index(nth), count=1)
                    done = wait_for_products(0, deps=flight + operands)
                    new_state += (done[0],)
                state = state[AT_ONCE:] + new_state
            if SUMMED:
                if HALF == 1:
                    sum_buf.store(total)
                else:
                    mbarrier.wait(sum_full, phase)
                    total += sum_buf.load(s_l)
                    tma.store_wait(pendings=0)
                    barrier()  # the buffer for out is free, the other role's sum has been read
                    mbarrier.arrive(sum_empty, count=1)
                    for pair in gl.static_range(PAIRS):
                        mbarrier.wait(p_full.index(pair), phase)
                    for pair in gl.static_range(PAIRS):
                        total = warpgroup_mma(p_buf.index(pair), z_buf.index(s), total, is_async=True)
                    total = wait_for_products(0, deps=(total,))
                    o_buf.index(0).reshape([64, 64]).store(total.to(dtype))
            fence_async_shared()
            barrier()
            if SUMMED:
                if HALF == 1:
                    mbarrier.arrive(sum_full, count=1)
                else:
                    tma_store(o_desc, [batch, pack, start, 0], o_buf.index(0))
                    for pair in gl.static_range(PAIRS):
                        mbarrier.arrive(p_empty.index(pair), count=1)
            mbarrier.arrive(empty.index(s), count=1)
            i += 1
        if LAST:
            for pair in gl.static_range(PAIRS):
                index = (row * HEADS + 2 * pair + HALF) * segments + item % segments
                at, _ = state_pointers(last_ptr + index.to(gl.int64) * 4096, 0, 0, Z_STRIDE, W_STRIDE, s_l)
                gl.store(at, state[pair])
    tma.store_wait(pendings=0)


# Sequences of one tile must not become another kernel: Triton 3.6 fails to compile that.
@gluon.jit(do_not_specialize=["steps", "tiles", "segment_tiles"])
def walk_heads(
    u_desc, w_desc, z_desc, x_desc, o_desc, au_ptr, az_ptr, g_ptr, first_ptr, last_ptr,
    through_ptr, within_ptr, skip_ptr, diagonal_ptr,
    items, packs, sharing, steps, tiles, segment_tiles, segments,
    HEADS: gl.constexpr, STAGES: gl.constexpr, AT_ONCE: gl.constexpr,
    MATH_REGISTERS: gl.constexpr, SCORE_REGISTERS: gl.constexpr, SCORE_GROUPS: gl.constexpr,
    TRANSPOSED: gl.constexpr, REVERSE: gl.constexpr, SUMMED: gl.constexpr, SUMS: gl.constexpr,
    FIRST: gl.constexpr, LAST: gl.constexpr, SKIP: gl.constexpr, DIAGONAL: gl.constexpr,
    INDEPENDENT: gl.constexpr,
):  # fmt: skip
    """As walk.walk, a work item being `HEADS` consecutive heads of a segment, `packs` of which make all heads.

    sharing: consecutive heads that share a head of U and W or, SUMMED, of Z and X; a multiple of HEADS.
    """
    geometry = (packs, tiles, segment_tiles, segments)
    dtype: gl.constexpr = u_desc.dtype
    UW: gl.constexpr = HEADS if SUMMED else 1
    ZX: gl.constexpr = 1 if SUMMED else HEADS
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, order=[0])
    u_stages = gl.allocate_shared_memory(dtype, [STAGES, 1, UW, 64, 64], u_desc.layout)
    w_stages = gl.allocate_shared_memory(dtype, [STAGES, 1, UW, 64, 64], u_desc.layout)
    z_stages = gl.allocate_shared_memory(dtype, [STAGES, 1, ZX, 64, 64], u_desc.layout)
    x_stages = z_stages
    if SUMS:
        x_stages = gl.allocate_shared_memory(dtype, [STAGES, 1, ZX, 64, 64], u_desc.layout)
    stages = (u_stages, w_stages, z_stages, x_stages)
    block: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, 64], dtype)
    buffers = (
        reinterpret(u_stages, dtype, [STAGES * UW, 64, 64], block),
        reinterpret(w_stages, dtype, [STAGES * UW, 64, 64], block),
        reinterpret(z_stages, dtype, [STAGES * ZX, 64, 64], block),
        reinterpret(x_stages, dtype, [STAGES * ZX, 64, 64], block),
    )
    s_buf0 = gl.allocate_shared_memory(dtype, [1 + SUMS, 64, 64], block)
    o_buf0 = gl.allocate_shared_memory(dtype, [1 if SUMMED else HEADS // 2, 1, 1, 64, 64], u_desc.layout)
    if SUMMED:  # math 1 leaves its sum where its state was
        s_buf1 = gl.allocate_shared_memory(dtype, [2, 64, 64], block)
        o_buf1 = o_buf0
        sum_buf = reinterpret(s_buf1, gl.float32, [64, 64], SUM_LAYOUT)
    else:
        s_buf1 = gl.allocate_shared_memory(dtype, [1, 64, 64], block)
        o_buf1 = gl.allocate_shared_memory(dtype, [HEADS // 2, 1, 1, 64, 64], u_desc.layout)
        sum_buf = s_buf1
    # By themselves, not slices of one: the compiler puts barriers between stores that it cannot tell apart.
    p_buf0 = gl.allocate_shared_memory(dtype, [HEADS // 2, 64, 64], block)
    p_buf1 = p_buf0
    if not SUMMED:
        p_buf1 = gl.allocate_shared_memory(dtype, [HEADS // 2, 64, 64], block)
    u_exponents = gl.allocate_shared_memory(gl.float32, [HEADS, 64], flat)
    z_exponents = gl.allocate_shared_memory(gl.float32, [HEADS, 64], flat)
    r_buf = gl.allocate_shared_memory(gl.float32, [2 * HEADS, 64], flat)  # of a tile and of the one before
    s_factors = gl.allocate_shared_memory(gl.float32, [2 * HEADS, 64], flat)
    decay_buf = gl.allocate_shared_memory(gl.float32, [2 * HEADS, 64], flat)
    within_buf = r_buf
    if SUMS:
        within_buf = gl.allocate_shared_memory(gl.float32, [HEADS, SCORE_GROUPS * 64], flat)
    gl.static_assert(SUMMED or not SUMS, "row sums are those of q and k, which the heads share")
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    f_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    p_full = gl.allocate_shared_memory(gl.int64, [HEADS // 2, 1], mbarrier.MBarrierLayout())
    p_empty = gl.allocate_shared_memory(gl.int64, [HEADS // 2, 1], mbarrier.MBarrierLayout())
    sum_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    sum_empty = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(empty.index(i), count=2)  # released by both math roles; score is done when they are
        mbarrier.init(ready.index(i), count=1)
    for i in gl.static_range(2):
        mbarrier.init(f_full.index(i), count=1)
    for i in gl.static_range(HEADS // 2):
        mbarrier.init(p_full.index(i), count=1)
        mbarrier.init(p_empty.index(i), count=1 if SUMMED else 2)  # with the sum by math 0 alone, after math 1
    mbarrier.init(sum_full, count=1)
    mbarrier.init(sum_empty, count=1)
    factors = (r_buf, s_factors, decay_buf)
    begin(INDEPENDENT)
    gl.warp_specialize(
        [
            (math, (o_desc, first_ptr, last_ptr, through_ptr, buffers, p_buf0, s_buf0, o_buf0, sum_buf, factors,
                    empty, ready, f_full, p_full, p_empty, sum_full, sum_empty, items, geometry, steps,
                    0, HEADS, STAGES, AT_ONCE, TRANSPOSED, REVERSE, SUMMED, SUMS, FIRST, LAST)),
            (math, (o_desc, first_ptr, last_ptr, through_ptr, buffers, p_buf1, s_buf1, o_buf1, sum_buf, factors,
                    empty, ready, f_full, p_full, p_empty, sum_full, sum_empty, items, geometry, steps,
                    1, HEADS, STAGES, AT_ONCE, TRANSPOSED, REVERSE, SUMMED, SUMS, FIRST, LAST)),
            (score, ((u_desc, w_desc, z_desc, x_desc), stages, (au_ptr, az_ptr, g_ptr), skip_ptr, diagonal_ptr,
                     within_ptr, buffers, (u_exponents, z_exponents), (p_buf0, p_buf1), within_buf, factors,
                     empty, ready, f_full, p_full, p_empty, items, geometry, sharing, steps,
                     HEADS, STAGES, SCORE_GROUPS, REVERSE, SUMMED, SUMS, SKIP, DIAGONAL)),
        ],
        [4, 4 * SCORE_GROUPS],
        [MATH_REGISTERS, SCORE_REGISTERS],
    )  # fmt: skip
    end(INDEPENDENT)
