# type: ignore   # Gluon: what runs on the device has no types that a Python checker knows
"""h (see forward.py) of several heads in one program, for heads that share q and k and states of 64 x 64.

U and W, Q and K, are read once for all of them, and of P the product U W^T is made once and weighted for each head; Z
and out, V and h, are a head's. Each of the two math roles holds the states of HEADS / 2 heads, of 64 rows just as its
accumulators, and takes them one after the other in a tile. The heads of a program come in pairs, one for each math
role. A pair has barriers and buffers of its own, so that the math roles start on one while `score` is at the next.

`score` is what the others would wait for, so it has eight warps, each with half the columns of 16 rows of P. It fetches
the tiles too: there are then sixteen warps, which share all registers there are, and with a role for it alone twenty,
for which no more than 96 a thread could be had at launch.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
)

from .pipeline import begin_kernel
from .schedule import nth_tile, place_of
from .state import start_state_update, state_pointers
from .tiles import BLOCK_BYTES
from .workarounds import barrier, reinterpret, tma_load, tma_store, wait_for_products


@gluon.jit
def fetch(
    descs, stages, empty, ready, i, batch, uw_head, z_head, tile, HEADS: gl.constexpr, STAGES: gl.constexpr
):  # fmt: skip
    """Start the copies of a program's i-th tile: what its heads share, and Z of each."""
    u_desc, w_desc, z_desc = descs
    u_stages, w_stages, z_stages = stages
    s = i % STAGES
    mbarrier.wait(empty.index(s), ((i // STAGES) & 1) ^ 1)
    arrived = ready.index(s)
    mbarrier.expect(arrived, BLOCK_BYTES * (2 + HEADS))
    tma_load(u_desc, [batch, uw_head, tile * 64, 0], arrived, u_stages.index(s))
    tma_load(w_desc, [batch, uw_head, tile * 64, 0], arrived, w_stages.index(s))
    tma_load(z_desc, [batch, z_head, tile * 64, 0], arrived, z_stages.index(s))


@gluon.jit
def score(
    descs, stages, exponents, skip_ptr, buffers, e_bufs, p_bufs, factors, empty, ready, p_full, p_empty,
    items, geometry, sharing, HEADS: gl.constexpr, STAGES: gl.constexpr, GROUPS: gl.constexpr, SKIP: gl.constexpr,
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
    tiles = geometry[1]
    u_buf, w_buf, _z_buf = buffers
    u_exponents, z_exponents = e_bufs
    p_buf0, p_buf1 = p_bufs
    r_buf, s_buf, decay_buf = factors
    u_by_head = reinterpret(u_exponents, gl.float32, [1, HEADS, 64], e_shared).index(0)
    z_by_head = reinterpret(z_exponents, gl.float32, [1, HEADS, 64], e_shared).index(0)
    r_by_head = reinterpret(r_buf, gl.float32, [2, HEADS, 64], e_shared)
    s_by_head = reinterpret(s_buf, gl.float32, [2, HEADS, 64], e_shared)
    decay_by_head = reinterpret(decay_buf, gl.float32, [2, HEADS, 64], e_shared)
    u = gl.arange(0, 64, layout=u_l)
    z = gl.arange(0, 64, layout=z_l)
    h_e = gl.arange(0, HEADS, layout=gl.SliceLayout(1, e_l))[:, None]
    t_e = gl.arange(0, 64, layout=gl.SliceLayout(0, e_l))[None, :]
    i = 0
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        batch, pack, first, n, row, _index, _piece = place_of(item, geometry, 1)
        own, common = pack * HEADS, pack * HEADS // sharing
        tile = nth_tile(first, 0, n, REVERSE=False)
        fetch(descs, stages, empty, ready, i, batch, common, own, tile, HEADS, STAGES)
        # The exponents of a tile are loaded while the one before it is at work, and spread through shared memory.
        at = (row * HEADS + h_e) * tiles + tile
        x_t = gl.load(au_ptr + (at * 64 + t_e))
        y_t = gl.load(az_ptr + (at * 64 + t_e))
        g = gl.load(g_ptr + (at + 0 * t_e))
        for j in range(n):
            s = i % STAGES
            u_by_head.store(x_t)
            z_by_head.store(y_t)
            # Two sets of factors: the other may still be read. This one was the math roles' two tiles ago.
            r_by_head.index(i & 1).store(gl.exp2(x_t))
            s_by_head.index(i & 1).store(gl.exp2(y_t + g))
            decay_by_head.index(i & 1).store(gl.exp2(g))
            barrier()  # before other warps read the exponents; the math roles read factors once they have P
            tile = nth_tile(first, gl.minimum(j + 1, n - 1), n, REVERSE=False)
            at = (row * HEADS + h_e) * tiles + tile
            x_t = gl.load(au_ptr + (at * 64 + t_e))
            y_t = gl.load(az_ptr + (at * 64 + t_e))
            g = gl.load(g_ptr + (at + 0 * t_e))
            mbarrier.wait(ready.index(s), (i // STAGES) & 1)
            keep = u[:, None] >= z[None, :]
            scores = gl.zeros([64, 64], gl.float32, layout=p_l)
            scores = warpgroup_mma(u_buf.index(s), w_buf.index(s).permute((1, 0)), scores, is_async=True)
            scores = wait_for_products(0, deps=(scores,))
            for pair in range(PAIRS):
                if (pair == PAIRS - 1) & (j + 1 < n):  # by now the math roles leave the tile before: its place is next
                    fetch(descs, stages, empty, ready, i + 1, batch, common, own, tile, HEADS, STAGES)
                weighted = ()
                for half in gl.static_range(2):
                    head = 2 * pair + half
                    a_u = u_exponents.index(head).load(u_l)
                    a_z = z_exponents.index(head).load(z_l)
                    p = gl.where(keep, scores * gl.exp2(a_u[:, None] + a_z[None, :]), 0.0)
                    if SKIP:
                        p += gl.where(u[:, None] == z[None, :], gl.load(skip_ptr + pack * HEADS + head), 0.0)
                    weighted += (p,)
                mbarrier.wait(p_empty.index(pair), (i & 1) ^ 1)
                p_buf0.index(pair).store(weighted[0].to(p_buf0.dtype))
                p_buf1.index(pair).store(weighted[1].to(p_buf0.dtype))
                fence_async_shared()
                barrier()  # P of this pair is in shared memory, the exponents have been read
                mbarrier.arrive(p_full.index(pair), count=1)
            i += 1


@gluon.jit
def math(
    o_desc, first_ptr, last_ptr, buffers, p_buf, s_buf, o_buf, factors, empty, ready, p_full, p_empty, items, geometry,
    HALF: gl.constexpr, HEADS: gl.constexpr, STAGES: gl.constexpr, FIRST: gl.constexpr, LAST: gl.constexpr,
):  # fmt: skip
    s_l: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
    u_l: gl.constexpr = gl.SliceLayout(1, s_l)
    dtype: gl.constexpr = p_buf.dtype
    PAIRS: gl.constexpr = HEADS // 2
    u_buf, w_buf, z_buf = buffers
    r_buf, s_factors, decay_buf = factors
    segments = geometry[3]
    i = 0
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        batch, pack, first, n, row, _index, _piece = place_of(item, geometry, 1)
        state = ()  # of each pair's head, in memory (w, z)
        for pair in gl.static_range(PAIRS):
            if FIRST:
                index = (row * HEADS + 2 * pair + HALF) * segments + item % segments
                at, _ = state_pointers(first_ptr + index.to(gl.int64) * 4096, 0, 0, 1, 64, s_l)
                state += (gl.load(at),)
            else:
                state += (gl.zeros([64, 64], gl.float32, layout=s_l),)
        for j in range(n):
            s = i % STAGES
            start = nth_tile(first, j, n, REVERSE=False) * 64
            phase = i & 1
            mbarrier.wait(ready.index(s), (i // STAGES) & 1)
            new_state = ()
            for pair in gl.static_range(PAIRS):
                head = 2 * pair + HALF
                zero = i >> (30 - pair)  # spelled anew for each pair: keeps addresses out of registers
                uw = s + zero
                tma.store_wait(pendings=PAIRS - 1)
                s_buf.index(zero).store(state[pair].to(dtype))
                fence_async_shared()
                barrier()  # S is in shared memory; this pair's buffer for out is free
                o = gl.zeros([64, 64], gl.float32, layout=s_l)
                o = warpgroup_mma(u_buf.index(uw), s_buf.index(zero).permute((1, 0)), o, is_async=True)
                o = wait_for_products(0, deps=(o,))
                mbarrier.wait(p_full.index(pair), phase)
                at_factors = phase * HEADS + head
                r = r_buf.index(at_factors).load(u_l)
                e = decay_buf.index(at_factors).load(u_l)[:, None]
                z = z_buf.index(uw * HEADS + head)
                o = warpgroup_mma(p_buf.index(pair), z, o * r[:, None], is_async=True)
                flight, kept_operands = start_state_update(
                    (state[pair] * e,), z.permute((1, 0)), s_factors.index(at_factors), w_buf, uw, 1
                )  # fmt: skip
                o = wait_for_products(2, deps=(o,))  # the state is updated while out is written
                out = o_buf.index(pair)
                out.reshape([64, 64]).store(o.to(dtype))
                fence_async_shared()
                barrier()  # every warp has read S, P and its factors, and written its part of out
                tma_store(o_desc, [batch, pack * HEADS + head, start, 0], out)
                mbarrier.arrive(p_empty.index(pair), count=1)
                done = wait_for_products(0, deps=flight + kept_operands)
                new_state += (done[0],)
            state = new_state
            fence_async_shared()
            barrier()
            mbarrier.arrive(empty.index(s), count=1)
            i += 1
        if LAST:
            for pair in gl.static_range(PAIRS):
                index = (row * HEADS + 2 * pair + HALF) * segments + item % segments
                at, _ = state_pointers(last_ptr + index.to(gl.int64) * 4096, 0, 0, 1, 64, s_l)
                gl.store(at, state[pair])
    tma.store_wait(pendings=0)


# See walk.walk. Of one segment a tile has a dozen instructions less.
@gluon.jit(
    do_not_specialize=["items", "packs", "sharing", "tiles", "segment_tiles"],
    do_not_specialize_on_alignment=["segments"],
)
def walk_heads(
    u_desc, w_desc, z_desc, o_desc, au_ptr, az_ptr, g_ptr, first_ptr, last_ptr, skip_ptr,
    items, packs, sharing, tiles, segment_tiles, segments,
    HEADS: gl.constexpr, STAGES: gl.constexpr,
    MATH_REGISTERS: gl.constexpr, SCORE_REGISTERS: gl.constexpr, SCORE_GROUPS: gl.constexpr,
    FIRST: gl.constexpr, LAST: gl.constexpr, SKIP: gl.constexpr,
):  # fmt: skip
    """As walk.walk, a work item being `HEADS` consecutive heads of a segment, `packs` of which make all heads.

    sharing: consecutive heads that share a head of U and W; a multiple of HEADS.
    """
    geometry = (packs, tiles, segment_tiles, segments)
    dtype: gl.constexpr = u_desc.dtype
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, order=[0])
    u_stages = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, 64, 64], u_desc.layout)
    w_stages = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, 64, 64], u_desc.layout)
    z_stages = gl.allocate_shared_memory(dtype, [STAGES, 1, HEADS, 64, 64], u_desc.layout)
    stages = (u_stages, w_stages, z_stages)
    block: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, 64], dtype)
    buffers = (
        reinterpret(u_stages, dtype, [STAGES, 64, 64], block),
        reinterpret(w_stages, dtype, [STAGES, 64, 64], block),
        reinterpret(z_stages, dtype, [STAGES * HEADS, 64, 64], block),
    )
    s_buf0 = gl.allocate_shared_memory(dtype, [1, 64, 64], block)
    o_buf0 = gl.allocate_shared_memory(dtype, [HEADS // 2, 1, 1, 64, 64], u_desc.layout)
    s_buf1 = gl.allocate_shared_memory(dtype, [1, 64, 64], block)
    o_buf1 = gl.allocate_shared_memory(dtype, [HEADS // 2, 1, 1, 64, 64], u_desc.layout)
    # By themselves, not slices of one: the compiler puts barriers between stores that it cannot tell apart.
    p_buf0 = gl.allocate_shared_memory(dtype, [HEADS // 2, 64, 64], block)
    p_buf1 = gl.allocate_shared_memory(dtype, [HEADS // 2, 64, 64], block)
    u_exponents = gl.allocate_shared_memory(gl.float32, [HEADS, 64], flat)
    z_exponents = gl.allocate_shared_memory(gl.float32, [HEADS, 64], flat)
    r_buf = gl.allocate_shared_memory(gl.float32, [2 * HEADS, 64], flat)  # of a tile and of the one before
    s_factors = gl.allocate_shared_memory(gl.float32, [2 * HEADS, 64], flat)
    decay_buf = gl.allocate_shared_memory(gl.float32, [2 * HEADS, 64], flat)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    p_full = gl.allocate_shared_memory(gl.int64, [HEADS // 2, 1], mbarrier.MBarrierLayout())
    p_empty = gl.allocate_shared_memory(gl.int64, [HEADS // 2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(empty.index(i), count=2)  # released by both math roles; score is done when they are
        mbarrier.init(ready.index(i), count=1)
    for i in gl.static_range(HEADS // 2):
        mbarrier.init(p_full.index(i), count=1)
        mbarrier.init(p_empty.index(i), count=2)
    factors = (r_buf, s_factors, decay_buf)
    begin_kernel(INDEPENDENT=False)
    gl.warp_specialize(
        [
            (math, (o_desc, first_ptr, last_ptr, buffers, p_buf0, s_buf0, o_buf0, factors,
                    empty, ready, p_full, p_empty, items, geometry, 0, HEADS, STAGES, FIRST, LAST)),
            (math, (o_desc, first_ptr, last_ptr, buffers, p_buf1, s_buf1, o_buf1, factors,
                    empty, ready, p_full, p_empty, items, geometry, 1, HEADS, STAGES, FIRST, LAST)),
            (score, ((u_desc, w_desc, z_desc), stages, (au_ptr, az_ptr, g_ptr), skip_ptr, buffers,
                     (u_exponents, z_exponents), (p_buf0, p_buf1), factors, empty, ready, p_full, p_empty,
                     items, geometry, sharing, HEADS, STAGES, SCORE_GROUPS, SKIP)),
        ],
        [4, 4 * SCORE_GROUPS],
        [MATH_REGISTERS, SCORE_REGISTERS],
    )  # fmt: skip
