# type: ignore   # Gluon: what runs on the device has no types that a Python checker knows
"""Backward of states of 64 by 64 (Mamba 2): all tiles of 64 steps side by side, dq, dk and dv of a tile in one program.

A walk has one tile after the other, each of which waits for the state, and of a state this small a tile is little work
between many waits. But such states are also small in memory. So C before every tile and dC after it are written down
first (`segments.accumulate`, 16 bits an element: products round them to that anyway), and then no tile waits for
another; every input is read once, where walks for dq, dk and dv read dh and v three times and two.

A program has a tile of HEADS heads that share q and k, one after the other: it writes their dv and row sums, and the
sum of their dq and dk, in float32 until the last of them is in it. With rows j, columns i,

    S = K Q^T    D = V dH^T    E_ji = exp2(y_j + x_i) for j <= i, else 0

    dV = (E S) dH + exp2(y + g) (K dC)    dK = (E D) Q + exp2(y + g) (V dC^T)    dQ = (E D)^T K + exp2(x) (dH C^T)

Row sums: of pairs within the tile from one float32 matrix, E S D, by its rows and by its columns, so that they cancel;
of others q . dq and k . dk as far as these come through a state; and exp2(g) <C, dC> is what passes the whole tile. So
all that a gate's gradient adds up is there, told apart by tile (`gates.gate_gradients`), and no difference of sums
over the sequence is needed.

Roles in a program (4 + 1 warps; two programs a multiprocessor): `gradients_of_heads` computes, `produce` fetches.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
)

from .compat import barrier, tma_load, tma_store, wait_for_products
from .walk import BLOCK_BYTES, begin, block, leave_dots, nearest


@gluon.jit
def produce(
    descs, buffers, shared_ready, ready, empty, batch, shared, head, tile, row, tiles,
    HEADS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    q_desc, k_desc, v_desc, h_desc, C_desc, dC_desc, x_desc, y_desc = descs
    q_buf, k_buf, v_buf, h_buf, C_buf, dC_buf, x_buf, y_buf = buffers
    mbarrier.expect(shared_ready, 2 * BLOCK_BYTES)
    tma_load(q_desc, [batch, shared, tile * 64, 0], shared_ready, q_buf.index(0))
    tma_load(k_desc, [batch, shared, tile * 64, 0], shared_ready, k_buf.index(0))
    for n in range(HEADS):
        s = n % STAGES
        mbarrier.wait(empty.index(s), ((n // STAGES) & 1) ^ 1)
        fence_async_shared()  # what has been read there, before the copy writes
        arrived = ready.index(s)
        mbarrier.expect(arrived, 4 * BLOCK_BYTES + 2 * 64 * 4)
        tma_load(v_desc, [batch, head + n, tile * 64, 0], arrived, v_buf.index(s))
        tma_load(h_desc, [batch, head + n, tile * 64, 0], arrived, h_buf.index(s))
        tma_load(C_desc, [batch, head + n, tile * 64, 0], arrived, C_buf.index(s))
        tma_load(dC_desc, [batch, head + n, tile * 64, 0], arrived, dC_buf.index(s))
        exponents = (row + n) * tiles + tile
        tma_load(x_desc, [exponents, 0], arrived, x_buf.index(s))
        tma_load(y_desc, [exponents, 0], arrived, y_buf.index(s))


@gluon.jit
def product(a, b, layout: gl.constexpr):
    """Start a b of blocks in shared memory."""
    return warpgroup_mma(a, b, gl.zeros([64, 64], gl.float32, layout=layout), use_acc=False, is_async=True)


@gluon.jit
def total(x):
    return gl.sum(gl.sum(x, axis=1), axis=0)


@gluon.jit
def gradients_of_heads(
    outputs, g_ptr, skip_ptr, skip_dots_ptr, through_ptr, sums_ptr, part_stride,
    buffers, between, shared_ready, ready, empty,
    batch, pack, head, tile, row, steps, tiles,
    HEADS: gl.constexpr, STAGES: gl.constexpr, SUMS: gl.constexpr, SKIP: gl.constexpr,
):  # fmt: skip
    s_l: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
    rows_l: gl.constexpr = gl.SliceLayout(1, s_l)
    columns_l: gl.constexpr = gl.SliceLayout(0, s_l)
    dq_desc, dk_desc, dv_desc = outputs
    q_buf, k_buf, v_buf, h_buf, C_buf, dC_buf, x_buf, y_buf = buffers
    p_buf, d_buf, o_buf, dots_buf = between
    dtype: gl.constexpr = q_buf.dtype
    t = gl.arange(0, 64, layout=rows_l)
    later = t[:, None] <= gl.arange(0, 64, layout=columns_l)[None, :]
    same = t[:, None] == gl.arange(0, 64, layout=columns_l)[None, :]
    inside = tile * 64 + t < steps
    dq = gl.zeros([64, 64], gl.float32, layout=s_l)
    dk = gl.zeros([64, 64], gl.float32, layout=s_l)
    mbarrier.wait(shared_ready, 0)
    for n in range(HEADS):
        g = gl.load(g_ptr + (row + n) * tiles + tile)
        s = n % STAGES
        zero = n >> 30  # spelled anew for each use: keeps addresses out of registers
        q, k = block(q_buf, zero), block(k_buf, zero)
        v, h = block(v_buf, s), block(h_buf, s)
        C, dC = block(C_buf, s), block(dC_buf, s)
        mbarrier.wait(ready.index(s), (n // STAGES) & 1)
        scores = product(k, q.permute((1, 0)), s_l)
        d = product(v, h.permute((1, 0)), s_l)
        y = y_buf.index(s).reshape([64]).load(rows_l)
        x = x_buf.index(s).reshape([64]).load(columns_l)
        weights = gl.where(later, gl.exp2(y[:, None] + x[None, :]), 0.0)
        scores, d = wait_for_products(0, deps=(scores, d))
        if SKIP:
            gl.store(skip_dots_ptr + (row + n) * tiles + tile, total(gl.where(same, d, 0.0)))
        d *= weights
        if SUMS:
            pairs = scores * d
            of_keys = gl.sum(pairs, axis=1)
            leave_dots(pairs, dots_buf, 0, 4)
        scores *= weights
        if SKIP:
            scores += gl.where(same, gl.load(skip_ptr + head + n), 0.0)
        p_buf.index(zero).store(nearest(scores, dtype))
        d_buf.index(zero).store(nearest(d, dtype))
        tma.store_wait(pendings=0)
        fence_async_shared()
        barrier()  # P, D and sums are in shared memory, the buffer for dv is free
        dv = product(k, dC, s_l)
        through_dk = product(v, dC.permute((1, 0)), s_l)
        key_weight = gl.exp2(y + g)[:, None]
        query_weight = gl.exp2(x_buf.index(s).reshape([64]).load(rows_l))[:, None]
        dv = wait_for_products(1, deps=(dv,))
        dv *= key_weight
        if SUMS:
            k_through = gl.sum(v.load(s_l).to(gl.float32) * dv, axis=1)
        through_dk = wait_for_products(0, deps=(through_dk,))
        dk += through_dk * key_weight
        through_dq = product(h, C.permute((1, 0)), s_l)
        dv = warpgroup_mma(p_buf.index(zero), h, dv, is_async=True)
        dk = warpgroup_mma(d_buf.index(zero), q, dk, is_async=True)
        through_dq = wait_for_products(2, deps=(through_dq,))
        through_dq *= query_weight
        if SUMS:
            q_through = gl.sum(q.load(s_l).to(gl.float32) * through_dq, axis=1)
            of_queries = gl.zeros([64], gl.float32, layout=rows_l)
            for warp in gl.static_range(4):
                of_queries += dots_buf.index(warp).load(rows_l)
            at = sums_ptr + ((row + n).to(gl.int64) * steps + tile * 64) + t
            gl.store(at, of_queries + q_through, mask=inside)
            gl.store(at + part_stride, of_queries, mask=inside)
            gl.store(at + 2 * part_stride, of_keys + k_through, mask=inside)
            gl.store(at + 3 * part_stride, of_keys, mask=inside)
            passed = total(C.load(s_l).to(gl.float32) * dC.load(s_l).to(gl.float32))
            gl.store(through_ptr + (row + n) * tiles + tile, gl.exp2(g) * passed)
        dq += through_dq
        dq = warpgroup_mma(d_buf.index(zero).permute((1, 0)), k, dq, is_async=True)
        dv, dk, dq = wait_for_products(0, deps=(dv, dk, dq))
        o_buf.index(zero).reshape([64, 64]).store(nearest(dv, dtype))
        fence_async_shared()
        barrier()  # dv is there, and everything of this head has been read
        tma_store(dv_desc, [batch, head + n, tile * 64, 0], o_buf.index(zero))
        mbarrier.arrive(empty.index(s), count=1)
    tma.store_wait(pendings=0)
    barrier()
    o_buf.index(0).reshape([64, 64]).store(nearest(dq, dtype))
    k_buf.index(0).reshape([64, 64]).store(nearest(dk, dtype))
    fence_async_shared()
    barrier()
    tma_store(dq_desc, [batch, pack, tile * 64, 0], o_buf.index(0))
    tma_store(dk_desc, [batch, pack, tile * 64, 0], k_buf.index(0))
    tma.store_wait(pendings=0)


@gluon.jit(do_not_specialize=["steps", "tiles"])
def gradients(
    q_desc, k_desc, v_desc, h_desc, C_desc, dC_desc, x_desc, y_desc, dq_desc, dk_desc, dv_desc,
    g_ptr, skip_ptr, skip_dots_ptr, through_ptr, sums_ptr,
    heads, sharing, steps, tiles, part_stride,
    HEADS: gl.constexpr, STAGES: gl.constexpr, SUMS: gl.constexpr, SKIP: gl.constexpr,
):  # fmt: skip
    """One program: a tile of HEADS consecutive heads, of which `sharing` share one of Q and K.

    C, dC: (B, heads, tiles * 64, 64), before and after each tile.  dq, dk: (B, heads / HEADS, T, 64).
    SKIP: dV gets skip (heads,) dH more; skip_dots (B, heads, tiles) float32: sums of dh_t . v_t.
    SUMS: q . dq, what of it is within a tile, k . dk and likewise, sums (4, B, heads, T), and through (B, heads,
    tiles), what passes a tile, are written, float32.
    """
    packs = heads // HEADS
    pack = gl.program_id(0) % packs  # those that share q and k side by side, for the L2
    tile = gl.program_id(0) // packs % tiles
    batch = gl.program_id(0) // packs // tiles
    head = pack * HEADS
    row = batch * heads + head
    dtype: gl.constexpr = q_desc.dtype
    q_buf = gl.allocate_shared_memory(dtype, [1, 1, 1, 64, 64], q_desc.layout)
    k_buf = gl.allocate_shared_memory(dtype, [1, 1, 1, 64, 64], q_desc.layout)
    v_buf = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, 64, 64], q_desc.layout)
    h_buf = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, 64, 64], q_desc.layout)
    C_buf = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, 64, 64], q_desc.layout)
    dC_buf = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, 64, 64], q_desc.layout)
    x_buf = gl.allocate_shared_memory(gl.float32, [STAGES, 1, 64], x_desc.layout)
    y_buf = gl.allocate_shared_memory(gl.float32, [STAGES, 1, 64], x_desc.layout)
    o_buf = gl.allocate_shared_memory(dtype, [1, 1, 1, 64, 64], q_desc.layout)
    block_l: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, 64], dtype)
    p_buf = gl.allocate_shared_memory(dtype, [1, 64, 64], block_l)
    d_buf = gl.allocate_shared_memory(dtype, [1, 64, 64], block_l)
    dots_buf = gl.allocate_shared_memory(gl.float32, [4, 64], gl.SwizzledSharedLayout(1, 1, 1, order=[0]))
    shared_ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(shared_ready, count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(ready.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    buffers = (q_buf, k_buf, v_buf, h_buf, C_buf, dC_buf, x_buf, y_buf)
    begin(INDEPENDENT=False)
    gl.warp_specialize(
        [
            (gradients_of_heads, ((dq_desc, dk_desc, dv_desc), g_ptr, skip_ptr, skip_dots_ptr, through_ptr,
                                  sums_ptr, part_stride, buffers, (p_buf, d_buf, o_buf, dots_buf),
                                  shared_ready, ready, empty, batch, pack, head, tile, row, steps, tiles,
                                  HEADS, STAGES, SUMS, SKIP)),
            (produce, ((q_desc, k_desc, v_desc, h_desc, C_desc, dC_desc, x_desc, y_desc), buffers,
                       shared_ready, ready, empty, batch, head // sharing, head, tile, row, tiles, HEADS, STAGES)),
        ],
        [1],
        [24],
    )  # fmt: skip
