# type: ignore   # Gluon: what runs on the device has no types that a Python checker knows
"""Backward of states of 64 by 64 (Mamba 2): all tiles of 64 steps side by side, dq, dk and dv of a tile in one program.

A walk has one tile after the other, each of which waits for the state, and of a state this small a tile is little work
between many waits. But such states are also small in memory. So C before every tile and dC after it are written down
first (`segments.accumulate`, 16 bits an element: products round them to that anyway), and then no tile waits for
another; every input is read once, where walks for dq, dk and dv read dh and v three times and two.

A work item is a tile of HEADS heads that share q and k, one after the other: their dv and row sums are written, and the
sum of their dq and dk, in float32 until the last of them is in it. With rows j, columns i,

    S = K Q^T    D = V dH^T    E_ji = exp2(y_j + x_i) for j <= i, else 0

    dV = (E S) dH + exp2(y + g) (K dC)    dK = (E D) Q + exp2(y + g) (V dC^T)    dQ = (E D)^T K + exp2(x) (dH C^T)

Row sums: of pairs within the tile from one float32 matrix, E S D, by its rows and by its columns, so that they cancel;
of others q . dq and k . dk as far as these come through a state; and exp2(g) <C, dC> is what passes the whole tile. So
all that a gate's gradient adds up is there, told apart by tile (`gates.gate_gradients`), and no difference of sums
over the sequence is needed.

Roles in a program (4 + 4 + 4 + 1 warps), a head each at a time, connected by mbarriers:
    score        S and D, and of them E S and E D, rounded, for the two others; row sums of pairs within the tile
    value        dV, with what a skip connection adds, and its weight's gradient
    accumulate   dK and dQ, over all heads of a program, and <C, dC>
    produce      fetches
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
)

from .conversions import nearest, widened
from .pipeline import begin_kernel
from .row_sums import store_warp_sums, write_sums
from .tiles import BLOCK_BYTES, block
from .workarounds import barrier, tma_load, tma_store, wait_for_products


@gluon.jit
def place_of(item, geometry, HEADS: gl.constexpr):
    """(batch, pack of heads, tile, first head, its row of batch and head) of a work item: packs that share q and k one
    after the other, for the L2.
    """
    heads, tiles = geometry
    packs = heads // HEADS
    pack = item % packs
    batch = item // packs // tiles
    return batch, pack, item // packs % tiles, pack * HEADS, batch * heads + pack * HEADS


@gluon.jit
def produce(
    descs, shared, buffers, shared_ready, shared_empty, ready, empty, items, geometry, sharing,
    HEADS: gl.constexpr, SHARED: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    q_desc, k_desc, v_desc, h_desc, C_desc, dC_desc, x_desc, y_desc = descs
    q_buf, k_buf = shared
    v_buf, h_buf, C_buf, dC_buf, x_buf, y_buf = buffers
    i = 0
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        batch, _pack, tile, head, row = place_of(item, geometry, HEADS)
        j = item // gl.num_programs(0)
        b = j % SHARED
        mbarrier.wait(shared_empty.index(b), ((j // SHARED) & 1) ^ 1)
        fence_async_shared()  # what has been read there, before the copy writes
        mbarrier.expect(shared_ready.index(b), 2 * BLOCK_BYTES)
        tma_load(q_desc, [batch, head // sharing, tile * 64, 0], shared_ready.index(b), q_buf.index(b))
        tma_load(k_desc, [batch, head // sharing, tile * 64, 0], shared_ready.index(b), k_buf.index(b))
        for n in range(HEADS):
            s = i % STAGES
            mbarrier.wait(empty.index(s), ((i // STAGES) & 1) ^ 1)
            fence_async_shared()
            arrived = ready.index(s)
            mbarrier.expect(arrived, 4 * BLOCK_BYTES + 2 * 64 * 4)
            tma_load(v_desc, [batch, head + n, tile * 64, 0], arrived, v_buf.index(s))
            tma_load(h_desc, [batch, head + n, tile * 64, 0], arrived, h_buf.index(s))
            tma_load(C_desc, [batch, head + n, tile * 64, 0], arrived, C_buf.index(s))
            tma_load(dC_desc, [batch, head + n, tile * 64, 0], arrived, dC_buf.index(s))
            exponents = (row + n) * geometry[1] + tile
            tma_load(x_desc, [exponents, 0], arrived, x_buf.index(s))
            tma_load(y_desc, [exponents, 0], arrived, y_buf.index(s))
            i += 1


@gluon.jit
def product(a, b, layout: gl.constexpr):
    """Start a b of blocks in shared memory."""
    return warpgroup_mma(a, b, gl.zeros([64, 64], gl.float32, layout=layout), use_acc=False, is_async=True)


@gluon.jit
def exponents_of(buffer, s, layout: gl.constexpr):
    return buffer.index(s).reshape([64]).load(layout)


@gluon.jit
def sum_of(buffer):
    """Of 64 numbers that all warps have left: every warp by itself, without waiting for another."""
    return gl.sum(buffer.load(gl.BlockedLayout([2], [32], [4], [0])), axis=0)


@gluon.jit
def score(
    sums_ptr, part_stride, shared, buffers, pairs_bufs, dots_buf,
    shared_ready, shared_read, ready, empty, pairs_full, pairs_empty, items, geometry, steps,
    HEADS: gl.constexpr, SHARED: gl.constexpr, STAGES: gl.constexpr, SLOTS: gl.constexpr, SUMS: gl.constexpr,
):  # fmt: skip
    s_l: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
    rows_l: gl.constexpr = gl.SliceLayout(1, s_l)
    columns_l: gl.constexpr = gl.SliceLayout(0, s_l)
    t_l: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    q_buf, k_buf = shared
    v_buf, h_buf, _C_buf, _dC_buf, x_buf, y_buf = buffers
    p_buf, d_buf = pairs_bufs
    dtype: gl.constexpr = p_buf.dtype
    rows = gl.arange(0, 64, layout=rows_l)
    columns = gl.arange(0, 64, layout=columns_l)
    t = gl.arange(0, 64, layout=t_l)
    last = HEADS * (1 + (items - 1 - gl.program_id(0)) // gl.num_programs(0)) - 1
    mbarrier.wait(shared_ready.index(0), 0)
    mbarrier.wait(ready.index(0), 0)
    scores = product(block(k_buf, 0), block(q_buf, 0).permute((1, 0)), s_l)
    d = product(block(v_buf, 0), block(h_buf, 0).permute((1, 0)), s_l)
    i = 0
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        _batch, _pack, tile, _head, row = place_of(item, geometry, HEADS)
        left = steps - tile * 64
        for n in range(HEADS):
            s, b = i % STAGES, i % SLOTS
            weights = gl.exp2(exponents_of(y_buf, s, rows_l)[:, None] + exponents_of(x_buf, s, columns_l)[None, :])
            weights = gl.where(rows[:, None] <= columns[None, :], weights, 0.0)
            scores, d = wait_for_products(0, deps=(scores, d))
            at = (row + n).to(gl.int64) * steps + tile * 64
            d *= weights
            if SUMS:
                pairs = scores * d
                gl.store(sums_ptr + at + 3 * part_stride + rows, gl.sum(pairs, axis=1), mask=rows < left)
                store_warp_sums(pairs, dots_buf, 0, 4)
            scores *= weights
            mbarrier.wait(pairs_empty.index(b), ((i // SLOTS) & 1) ^ 1)
            p_buf.index(b).store(nearest(scores, dtype))
            d_buf.index(b).store(nearest(d, dtype))
            fence_async_shared()
            barrier()  # both and the sums are in shared memory, everything else has been read
            mbarrier.arrive(pairs_full.index(b), count=1)
            # The next head's products run while this one's last sums are made; at the end this head's once more.
            i += 1
            following = gl.minimum(i, last)
            other = following // HEADS
            mbarrier.wait(shared_ready.index(other % SHARED), (other // SHARED) & 1)
            mbarrier.wait(ready.index(following % STAGES), (following // STAGES) & 1)
            q, k = block(q_buf, other % SHARED), block(k_buf, other % SHARED)
            v, h = block(v_buf, following % STAGES), block(h_buf, following % STAGES)
            scores = product(k, q.permute((1, 0)), s_l)
            d = product(v, h.permute((1, 0)), s_l)
            mbarrier.arrive(empty.index(s), count=1)
            if SUMS:
                write_sums(dots_buf, sums_ptr + at + part_stride, left, t, t_l)
                barrier()  # read
        mbarrier.arrive(shared_read.index(item // gl.num_programs(0) % SHARED), count=1)
    wait_for_products(0, deps=(scores, d))


@gluon.jit
def value(
    dv_desc, g_ptr, skip_ptr, skip_dots_ptr, sums_ptr, part_stride, shared, buffers, p_buf, o_buf, rows_buf,
    shared_ready, shared_read, ready, empty, pairs_full, pairs_empty, items, geometry, steps,
    HEADS: gl.constexpr, SHARED: gl.constexpr, STAGES: gl.constexpr, SLOTS: gl.constexpr, SUMS: gl.constexpr,
    SKIP: gl.constexpr,
):  # fmt: skip
    s_l: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
    rows_l: gl.constexpr = gl.SliceLayout(1, s_l)
    _q_buf, k_buf = shared
    v_buf, h_buf, _C_buf, dC_buf, _x_buf, y_buf = buffers
    _heads, tiles = geometry
    rows = gl.arange(0, 64, layout=rows_l)
    i = 0
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        batch, _pack, tile, head, row = place_of(item, geometry, HEADS)
        j = item // gl.num_programs(0)
        left = steps - tile * 64
        mbarrier.wait(shared_ready.index(j % SHARED), (j // SHARED) & 1)
        k = block(k_buf, j % SHARED)
        g = gl.load(g_ptr + row * tiles + tile)
        for n in range(HEADS):
            g_now = g
            g = gl.load(g_ptr + (row + gl.minimum(n + 1, HEADS - 1)) * tiles + tile)
            s, b = i % STAGES, i % SLOTS
            mbarrier.wait(ready.index(s), (i // STAGES) & 1)
            dv = product(k, block(dC_buf, s), s_l)
            weight = gl.exp2(exponents_of(y_buf, s, rows_l) + g_now)
            if SUMS or SKIP:
                v = widened(block(v_buf, s).load(s_l))
            if SKIP:
                h = widened(block(h_buf, s).load(s_l))
                rows_buf.index(i % 2).store(gl.sum(v * h, axis=1))
            dv = wait_for_products(0, deps=(dv,))
            dv *= weight[:, None]
            if SUMS:
                of_keys = gl.sum(v * dv, axis=1)
                at = (row + n).to(gl.int64) * steps + tile * 64
                gl.store(sums_ptr + at + 2 * part_stride + rows, of_keys, mask=rows < left)
            if SKIP:
                dv += gl.load(skip_ptr + head + n) * h
            mbarrier.wait(pairs_full.index(b), (i // SLOTS) & 1)
            dv = warpgroup_mma(p_buf.index(b), block(h_buf, s), dv, is_async=True)
            dv = wait_for_products(0, deps=(dv,))
            tma.store_wait(pendings=1)
            barrier()  # a buffer for dv is free, everything else has been read
            mbarrier.arrive(pairs_empty.index(b), count=1)
            mbarrier.arrive(empty.index(s), count=1)
            if SKIP:
                gl.store(skip_dots_ptr + (row + n) * tiles + tile, sum_of(rows_buf.index(i % 2)))
            out = o_buf.index(i % 2)
            out.reshape([64, 64]).store(nearest(dv, p_buf.dtype))
            fence_async_shared()
            barrier()
            tma_store(dv_desc, [batch, head + n, tile * 64, 0], out)
            i += 1
        mbarrier.arrive(shared_read.index(j % SHARED), count=1)
    tma.store_wait(pendings=0)


@gluon.jit
def accumulate(
    dq_desc, dk_desc, g_ptr, sums_ptr, through_ptr, shared, buffers, d_buf, rows_buf,
    shared_ready, shared_read, shared_empty, ready, empty, pairs_full, pairs_empty, items, geometry, steps,
    HEADS: gl.constexpr, SHARED: gl.constexpr, STAGES: gl.constexpr, SLOTS: gl.constexpr, SUMS: gl.constexpr,
):  # fmt: skip
    s_l: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
    rows_l: gl.constexpr = gl.SliceLayout(1, s_l)
    q_buf, k_buf = shared
    v_buf, h_buf, C_buf, dC_buf, x_buf, y_buf = buffers
    _heads, tiles = geometry
    dtype: gl.constexpr = d_buf.dtype
    rows = gl.arange(0, 64, layout=rows_l)
    i = 0
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        batch, pack, tile, _head, row = place_of(item, geometry, HEADS)
        j = item // gl.num_programs(0)
        left = steps - tile * 64
        mbarrier.wait(shared_ready.index(j % SHARED), (j // SHARED) & 1)
        q, k = block(q_buf, j % SHARED), block(k_buf, j % SHARED)
        dq = gl.zeros([64, 64], gl.float32, layout=s_l)
        dk = gl.zeros([64, 64], gl.float32, layout=s_l)
        g = gl.load(g_ptr + row * tiles + tile)
        for n in range(HEADS):
            g_now = g
            g = gl.load(g_ptr + (row + gl.minimum(n + 1, HEADS - 1)) * tiles + tile)
            s, b = i % STAGES, i % SLOTS
            mbarrier.wait(ready.index(s), (i // STAGES) & 1)
            through_dq = product(block(h_buf, s), block(C_buf, s).permute((1, 0)), s_l)
            through_dk = product(block(v_buf, s), block(dC_buf, s).permute((1, 0)), s_l)
            query_weight = gl.exp2(exponents_of(x_buf, s, rows_l))[:, None]
            key_weight = gl.exp2(exponents_of(y_buf, s, rows_l) + g_now)[:, None]
            if SUMS:
                both = widened(block(C_buf, s).load(s_l)) * widened(block(dC_buf, s).load(s_l))
                rows_buf.index(i % 2).store(gl.sum(both, axis=1))
            through_dq, through_dk = wait_for_products(0, deps=(through_dq, through_dk))
            through_dq *= query_weight
            dq += through_dq
            dk += through_dk * key_weight
            mbarrier.wait(pairs_full.index(b), (i // SLOTS) & 1)
            dk = warpgroup_mma(d_buf.index(b), q, dk, is_async=True)
            dq = warpgroup_mma(d_buf.index(b).permute((1, 0)), k, dq, is_async=True)
            if SUMS:
                of_queries = gl.sum(widened(q.load(s_l)) * through_dq, axis=1)
                at = (row + n).to(gl.int64) * steps + tile * 64
                gl.store(sums_ptr + at + rows, of_queries, mask=rows < left)
            dk, dq = wait_for_products(0, deps=(dk, dq))
            barrier()  # everything has been read
            mbarrier.arrive(pairs_empty.index(b), count=1)
            mbarrier.arrive(empty.index(s), count=1)
            if SUMS:
                gl.store(through_ptr + (row + n) * tiles + tile, gl.exp2(g_now) * sum_of(rows_buf.index(i % 2)))
            i += 1
        mbarrier.wait(shared_read.index(j % SHARED), (j // SHARED) & 1)
        q.store(nearest(dq, dtype))
        k.store(nearest(dk, dtype))
        fence_async_shared()
        barrier()
        tma_store(dq_desc, [batch, pack, tile * 64, 0], q_buf.index(j % SHARED))
        tma_store(dk_desc, [batch, pack, tile * 64, 0], k_buf.index(j % SHARED))
        if SHARED == 2:
            tma.store_wait(pendings=0)
            mbarrier.arrive(shared_empty.index(j % SHARED), count=1)
        else:  # those of the item before have been read: its place can wait an item longer
            tma.store_wait(pendings=2)
            if j > 0:
                mbarrier.arrive(shared_empty.index((j - 1) % SHARED), count=1)
    tma.store_wait(pendings=0)


@gluon.jit
def barriers(N: gl.constexpr, COUNT: gl.constexpr):
    made = gl.allocate_shared_memory(gl.int64, [N, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(N):
        mbarrier.init(made.index(i), count=COUNT)
    return made


@gluon.jit(
    do_not_specialize=["items", "heads", "steps", "tiles", "part_stride"], do_not_specialize_on_alignment=["sharing"]
)
def gradients(
    q_desc, k_desc, v_desc, h_desc, C_desc, dC_desc, x_desc, y_desc, dq_desc, dk_desc, dv_desc,
    g_ptr, skip_ptr, skip_dots_ptr, through_ptr, sums_ptr,
    items, heads, sharing, steps, tiles, part_stride,
    HEADS: gl.constexpr, SHARED: gl.constexpr, STAGES: gl.constexpr, SLOTS: gl.constexpr, SUMS: gl.constexpr,
    SKIP: gl.constexpr,
):  # fmt: skip
    """A program takes work items, each a tile of HEADS consecutive heads, of which `sharing` share one of Q and K.

    C, dC: (B, heads, tiles * 64, 64), before and after each tile.  dq, dk: (B, heads / HEADS, T, 64).
    SKIP: dV gets skip (heads,) dH more; skip_dots (B, heads, tiles) float32: sums of dh_t . v_t.
    SUMS: q . dq through the state and within the tile, and k . dk, sums (4, B, heads, T), and through (B, heads,
    tiles), what passes a tile, are written, float32.
    """
    geometry = (heads, tiles)
    dtype: gl.constexpr = q_desc.dtype
    block_l: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, 64], dtype)
    q_buf = gl.allocate_shared_memory(dtype, [SHARED, 1, 1, 64, 64], q_desc.layout)
    k_buf = gl.allocate_shared_memory(dtype, [SHARED, 1, 1, 64, 64], q_desc.layout)
    v_buf = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, 64, 64], q_desc.layout)
    h_buf = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, 64, 64], q_desc.layout)
    C_buf = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, 64, 64], q_desc.layout)
    dC_buf = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, 64, 64], q_desc.layout)
    x_buf = gl.allocate_shared_memory(gl.float32, [STAGES, 1, 64], x_desc.layout)
    y_buf = gl.allocate_shared_memory(gl.float32, [STAGES, 1, 64], x_desc.layout)
    p_buf = gl.allocate_shared_memory(dtype, [SLOTS, 64, 64], block_l)
    d_buf = gl.allocate_shared_memory(dtype, [SLOTS, 64, 64], block_l)
    dv_buf = gl.allocate_shared_memory(dtype, [2, 1, 1, 64, 64], q_desc.layout)
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, order=[0])
    dots_buf = gl.allocate_shared_memory(gl.float32, [4, 64], flat)
    rows_buf0 = gl.allocate_shared_memory(gl.float32, [2, 64], flat)
    rows_buf1 = gl.allocate_shared_memory(gl.float32, [2, 64], flat)
    shared, buffers = (q_buf, k_buf), (v_buf, h_buf, C_buf, dC_buf, x_buf, y_buf)
    shared_ready, shared_read, shared_empty = barriers(SHARED, 1), barriers(SHARED, 2), barriers(SHARED, 1)
    ready, empty = barriers(STAGES, 1), barriers(STAGES, 3)
    pairs_full, pairs_empty = barriers(SLOTS, 1), barriers(SLOTS, 2)
    begin_kernel(INDEPENDENT=False)
    gl.warp_specialize(
        [
            (accumulate, (dq_desc, dk_desc, g_ptr, sums_ptr, through_ptr, shared, buffers, d_buf, rows_buf0,
                          shared_ready, shared_read, shared_empty, ready, empty, pairs_full, pairs_empty,
                          items, geometry, steps, HEADS, SHARED, STAGES, SLOTS, SUMS)),
            (score, (sums_ptr, part_stride, shared, buffers, (p_buf, d_buf), dots_buf,
                     shared_ready, shared_read, ready, empty, pairs_full, pairs_empty, items, geometry, steps,
                     HEADS, SHARED, STAGES, SLOTS, SUMS)),
            (value, (dv_desc, g_ptr, skip_ptr, skip_dots_ptr, sums_ptr, part_stride, shared, buffers, p_buf, dv_buf,
                     rows_buf1, shared_ready, shared_read, ready, empty, pairs_full, pairs_empty, items, geometry,
                     steps, HEADS, SHARED, STAGES, SLOTS, SUMS, SKIP)),
            (produce, ((q_desc, k_desc, v_desc, h_desc, C_desc, dC_desc, x_desc, y_desc), shared, buffers,
                       shared_ready, shared_empty, ready, empty, items, geometry, sharing, HEADS, SHARED, STAGES)),
        ],
        [4, 4, 1],
        [160, 144, 24],
    )  # fmt: skip
