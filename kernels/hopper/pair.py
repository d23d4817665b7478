# type: ignore   # Gluon: what runs on the device has no types that a Python checker knows
"""The pair: dk and dv in one Gluon kernel for sm_90 that walks backward in time with dC on chip.

With D_ij = exp2(x_i + y_j) for i >= j of a tile, P = Q K^T * D, dP = dH V^T * D (exponents.py) and dC after the tile:

    dk_j = sum_i dP_ij Q_i  + exp2(y_j + g) dC V_j
    dv_j = sum_i P_ij dH_i  + exp2(y_j + g) dC^T K_j
    dC  <- exp2(g) dC + sum_i exp2(x_i) Q_i dH_i^T

Both walks of walk.py need all four inputs but one, and the same dC: one kernel reads each once.

Roles in a program (4 + 4 + 4 + 1 warps, connected by mbarriers):
    state 0, state 1   carry 64 rows of dC (d_qk) and all columns (d_hv) each, as float32 accumulators; leave a rounded
                       copy of each block of columns for `value` and write 64 columns of dk, with row sums k . dk
    value              computes P and dP of a tile, then dv, block by block of 64 columns behind the copies
    produce            one warp that fetches tiles of Q, K, dH (STAGES tiles) and blocks of V (SLOTS blocks) by TMA

Shared memory holds tiles that are to come instead of outputs, for latency is what there is to hide: dk is written over
the Q of its tile and dv over V, once nobody reads those, and stored from there. P stays in registers.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from .compat import barrier, reinterpret, tma_load, tma_store
from .walk import BLOCK_BYTES, WINDOW, block, checkpoint_offsets, fetch, state_pointers


@gluon.jit
def produce(
    descs, buffers, ready, free, place, exponents_row,
    STAGES: gl.constexpr, SLOTS: gl.constexpr, WB: gl.constexpr,
):  # fmt: skip
    q_desc, k_desc, v_desc, h_desc, x_desc, y_desc = descs
    q_buf, k_buf, v_buf, h_buf, x_buf, y_buf = buffers
    tile_ready, v_ready = ready
    q_free, k_free, h_free, v_free = free
    batch, head, first, n = place
    for i in range(n):
        s = i % STAGES
        turn = ((i // STAGES) & 1) ^ 1
        tile = first + n - 1 - i
        arrived = tile_ready.index(s)
        mbarrier.wait(k_free.index(s), turn)
        mbarrier.expect(arrived, BLOCK_BYTES * (4 + WB) + 512)
        tma_load(x_desc, [exponents_row + tile, 0], arrived, x_buf.index(s))
        tma_load(y_desc, [exponents_row + tile, 0], arrived, y_buf.index(s))
        fetch(k_desc, batch, head, tile, 0, 2, k_buf, s, arrived)
        mbarrier.wait(h_free.index(s), turn)
        fetch(h_desc, batch, head, tile, 0, WB, h_buf, s, arrived)
        mbarrier.wait(q_free.index(s), turn)
        fetch(q_desc, batch, head, tile, 0, 2, q_buf, s, arrived)
        for c in gl.static_range(WB):
            v = (i * WB + c) % SLOTS
            mbarrier.wait(v_free.index(v), (((i * WB + c) // SLOTS) & 1) ^ 1)
            mbarrier.expect(v_ready.index(v), BLOCK_BYTES)
            tma_load(v_desc, [batch, head, tile * 64, 64 * c], v_ready.index(v), v_buf.index(v))


@gluon.jit
def vector(buffer, i, layout: gl.constexpr):
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, order=[0])
    return reinterpret(buffer.index(i), gl.float32, [64], flat).load(layout)


@gluon.jit
def weighted(scores, x_buf, y_buf, s, layout: gl.constexpr):
    """Scores [j, i] times D."""
    j: gl.constexpr = gl.SliceLayout(1, layout)
    i: gl.constexpr = gl.SliceLayout(0, layout)
    keep = gl.arange(0, 64, layout=i)[None, :] >= gl.arange(0, 64, layout=j)[:, None]
    log_D = vector(x_buf, s, i)[None, :] + vector(y_buf, s, j)[:, None]
    return gl.where(keep, scores * gl.exp2(log_D), 0.0)


@gluon.jit
def value(
    dv_desc, g_ptr, sums_ptr, buffers, copies, dp_buf, p_buf, factors, ready, free,
    copy_full, copy_free, dp_full, dp_free,
    place, row, tiles, steps,
    STAGES: gl.constexpr, SLOTS: gl.constexpr, COPIES: gl.constexpr, WB: gl.constexpr,
):  # fmt: skip
    j_l: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
    rows: gl.constexpr = gl.SliceLayout(1, j_l)
    dtype: gl.constexpr = dp_buf.dtype
    q_buf, k_buf, v_buf, h_buf, x_buf, y_buf = buffers
    r_buf, s_buf = factors
    tile_ready, v_ready = ready
    _, k_free, h_free, v_free = free
    batch, head, first, n = place
    t_l: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    g = gl.load(g_ptr + row * tiles + first + n - 1)
    for i in range(n):
        s = i % STAGES
        tile = first + n - 1 - i
        mbarrier.wait(dp_free.index(0), (i & 1) ^ 1)
        mbarrier.wait(tile_ready.index(s), (i // STAGES) & 1)
        r_buf.index(0).store(gl.exp2(vector(y_buf, s, t_l) + g))
        s_buf.index(0).store(gl.exp2(vector(x_buf, s, t_l)))
        dp = gl.zeros([64, 64], gl.float32, layout=j_l)  # [j, i], as P
        for c in range(WB):  # loops that stay loops: unrolled, their addresses take too many registers
            v = (i * WB + c) % SLOTS
            mbarrier.wait(v_ready.index(v), ((i * WB + c) // SLOTS) & 1)
            hT = block(h_buf, s * WB + c).permute((1, 0))
            dp = warpgroup_mma(block(v_buf, v), hT, dp, is_async=True)
            dp = warpgroup_mma_wait(0, deps=(dp,))
        dp_buf.index(0).store(weighted(dp, x_buf, y_buf, s, j_l).to(dtype))
        fence_async_shared()
        p = gl.zeros([64, 64], gl.float32, layout=j_l)
        for c in gl.static_range(2):
            qT = block(q_buf, s * 2 + c).permute((1, 0))
            p = warpgroup_mma(block(k_buf, s * 2 + c), qT, p, use_acc=(c > 0), is_async=True)
        barrier()
        p = warpgroup_mma_wait(0, deps=(p,))
        sums = gl.sum(dp_buf.index(0).load(j_l).to(gl.float32) * p, axis=1)
        p_buf.index(0).store(weighted(p, x_buf, y_buf, s, j_l).to(dtype))
        fence_async_shared()
        barrier()
        mbarrier.arrive(dp_full.index(0), count=1)  # Q has been read as well, and may become dk
        r = gl.exp2(vector(y_buf, s, rows) + g)
        g = gl.load(g_ptr + row * tiles + gl.maximum(tile - 1, 0))  # a tile ahead
        for c in range(WB):
            v = (i * WB + c) % SLOTS
            b = (i * WB + c) % COPIES
            mbarrier.wait(copy_full.index(b), ((i * WB + c) // COPIES) & 1)
            dv = gl.zeros([64, 64], gl.float32, layout=j_l)
            for half in gl.static_range(2):
                dv = warpgroup_mma(
                    block(k_buf, s * 2 + half), block(copies, b * 2 + half), dv, use_acc=(half > 0), is_async=True
                )
            dv = warpgroup_mma_wait(0, deps=(dv,))
            dv = dv * r[:, None]
            sums += gl.sum(block(v_buf, v).load(j_l).to(gl.float32) * dv, axis=1)
            dv = warpgroup_mma(p_buf.index(0), block(h_buf, s * WB + c), dv, is_async=True)
            tma.store_wait(pendings=0)
            barrier()
            mbarrier.arrive(copy_free.index(b), count=1)
            mbarrier.arrive(v_free.index((i * WB + c + SLOTS - 1) % SLOTS), count=1, pred=i * WB + c > 0)
            mbarrier.arrive(k_free.index(s), count=1, pred=c == WB - 1)
            dv = warpgroup_mma_wait(0, deps=(dv,))
            out = v_buf.index(v)  # the copy is there, hence dC V^T is done
            out.reshape([64, 64]).store(dv.to(dtype))
            fence_async_shared()
            barrier()
            mbarrier.arrive(h_free.index(s), count=1, pred=c == WB - 1)
            tma_store(dv_desc, [batch, head, tile * 64, 64 * c], out)
        step = tile * 64 + gl.arange(0, 64, layout=rows)
        gl.store(sums_ptr + row * steps + step, sums, mask=step < steps)
    tma.store_wait(pendings=0)


@gluon.jit
def state(
    dk_desc, g_ptr, first_ptr, last_ptr, checkpoint_ptr, dots_ptr,
    buffers, copies, dp_buf, factors, ready, free, copy_full, copy_free, dp_full, dp_free,
    place, row, tiles, z_dim, w_dim,
    HALF: gl.constexpr, STAGES: gl.constexpr, SLOTS: gl.constexpr, COPIES: gl.constexpr, WB: gl.constexpr,
    FIRST: gl.constexpr, LAST: gl.constexpr,
):  # fmt: skip
    s_l: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
    a_l: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=s_l, k_width=2)
    j_l: gl.constexpr = gl.SliceLayout(0, s_l)
    dtype: gl.constexpr = dp_buf.dtype
    q_buf, _, v_buf, h_buf, _, _ = buffers
    r_buf, s_buf = factors
    tile_ready, v_ready = ready
    q_free, _, h_free, _ = free
    batch, head, first, n = place
    dC = ()
    for wb in gl.static_range(WB):
        if FIRST:
            at, z = state_pointers(first_ptr, 64 * HALF, 64 * wb, w_dim, 1, s_l)
            dC += (gl.load(at, mask=z < z_dim, other=0.0),)
        else:
            dC += (gl.zeros([64, 64], gl.float32, layout=s_l),)
    g = gl.load(g_ptr + row * tiles + first + n - 1)
    for i in range(n):
        s = i % STAGES
        tile = first + n - 1 - i
        edge = tile + 1
        if (edge % WINDOW == 0) & (edge < tiles):
            window = edge // WINDOW - 1
            at = checkpoint_ptr + window * (WB * 4096) + checkpoint_offsets(s_l)
            dots = gl.zeros([64], gl.float32, layout=gl.SliceLayout(1, s_l))
            for wb in gl.static_range(WB):
                dots += gl.sum(gl.load(at + wb * 4096) * dC[wb], axis=1)
            gl.store(dots_ptr + window, gl.sum(dots, axis=0))
        dk = gl.zeros([64, 64], gl.float32, layout=s_l)  # dk^T, [d_qk, j]
        for c in gl.static_range(WB):
            v = (i * WB + c) % SLOTS
            b = (i * WB + c) % COPIES
            a = dC[c].to(dtype)
            mbarrier.wait(copy_free.index(b), (((i * WB + c) // COPIES) & 1) ^ 1)
            block(copies, b * 2 + HALF).store(a)
            fence_async_shared()
            a = gl.convert_layout(a, a_l)
            mbarrier.wait(v_ready.index(v), ((i * WB + c) // SLOTS) & 1)
            dk = warpgroup_mma(a, block(v_buf, v).permute((1, 0)), dk, use_acc=(c > 0), is_async=True)
            if c == 0:
                tma.store_wait(pendings=0)
            dk, a = warpgroup_mma_wait(0, deps=(dk, a))
            barrier()
            mbarrier.arrive(copy_full.index(b), count=1)
            if c == 0:
                mbarrier.arrive(q_free.index((i + STAGES - 1) % STAGES), count=1, pred=i > 0)
                mbarrier.arrive(h_free.index((i + STAGES - 1) % STAGES), count=1, pred=i > 0)
        mbarrier.wait(tile_ready.index(s), (i // STAGES) & 1)
        mbarrier.wait(dp_full.index(0), i & 1)
        dk = dk * r_buf.index(0).load(j_l)[None, :]
        q = q_buf.index(s * 2 + HALF)
        qT = q.reshape([64, 64]).permute((1, 0))
        dk = warpgroup_mma(qT, dp_buf.index(0).permute((1, 0)), dk, is_async=True)
        e = gl.exp2(g)
        g = gl.load(g_ptr + row * tiles + gl.maximum(tile - 1, 0))  # a tile ahead
        flight = ()
        for wb in gl.static_range(WB):  # all before the first product: nothing may touch registers in flight
            flight += (dC[wb] * e,)
        operands = ()
        for h in gl.static_range(2):  # of 32 steps each: half the registers on their way to an operand
            qs = qT.slice(32 * h, 32, dim=1).load(a_l).to(gl.float32)
            qs = (qs * s_buf.index(0).slice(32 * h, 32).load(gl.SliceLayout(0, a_l))[None, :]).to(dtype)
            operands += (qs,)
            onward = ()
            for wb in gl.static_range(WB):
                h_part = block(h_buf, s * WB + wb).slice(32 * h, 32, dim=0)
                onward += (warpgroup_mma(qs, h_part, flight[wb], is_async=True),)
            flight = onward
        dk = warpgroup_mma_wait(2 * WB, deps=(dk,))  # dC is updated while dk is written
        barrier()  # this half of Q has been read
        qT.store(dk.to(dtype))
        fence_async_shared()
        barrier()
        mbarrier.arrive(dp_free.index(0), count=1)
        tma_store(dk_desc, [batch, head, tile * 64, 64 * HALF], q)
        done = warpgroup_mma_wait(0, deps=flight + operands)  # operands: kept until the products are done
        dC = ()
        for wb in gl.static_range(WB):
            dC += (done[wb],)
    if LAST:
        for wb in gl.static_range(WB):
            at, z = state_pointers(last_ptr, 64 * HALF, 64 * wb, w_dim, 1, s_l)
            gl.store(at, dC[wb], mask=z < z_dim)
    tma.store_wait(pendings=0)


@gluon.jit
def barriers(N: gl.constexpr, COUNT: gl.constexpr):
    made = gl.allocate_shared_memory(gl.int64, [N, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(N):
        mbarrier.init(made.index(i), count=COUNT)
    return made


@gluon.jit(do_not_specialize=["steps", "tiles", "segment_tiles"])  # see walk.walk
def pair(
    q_desc, k_desc, v_desc, h_desc, dk_desc, dv_desc, x_desc, y_desc, g_ptr, first_ptr, last_ptr, sums_ptr,
    checkpoint_ptr, dots_ptr, heads, steps, tiles, segment_tiles, segments, z_dim, w_dim,
    STAGES: gl.constexpr, SLOTS: gl.constexpr, COPIES: gl.constexpr, WB: gl.constexpr, STATE_REGISTERS: gl.constexpr,
    FIRST: gl.constexpr, LAST: gl.constexpr,
):  # fmt: skip
    """One program: a segment of a (batch, head) row, d_qk <= 128, d_hv = 64 * WB <= 256."""
    segment = gl.program_id(0) % segments
    row = gl.program_id(0) // segments
    first = segment * segment_tiles
    place = (row // heads, row % heads, first, gl.minimum(segment_tiles, tiles - first))
    index = gl.program_id(0).to(gl.int64)
    first_ptr += index * z_dim * w_dim
    last_ptr += index * z_dim * w_dim
    rows = gl.num_programs(0) // segments
    windows = (tiles - 1) // WINDOW
    window_0 = (row * windows).to(gl.int64)
    window_1 = ((rows + row) * windows).to(gl.int64)

    dtype: gl.constexpr = q_desc.dtype
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, order=[0])
    tile_l: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, 64], dtype)
    q_buf = gl.allocate_shared_memory(dtype, [STAGES * 2, 1, 1, 64, 64], q_desc.layout)
    k_buf = gl.allocate_shared_memory(dtype, [STAGES * 2, 1, 1, 64, 64], q_desc.layout)
    h_buf = gl.allocate_shared_memory(dtype, [STAGES * WB, 1, 1, 64, 64], q_desc.layout)
    v_buf = gl.allocate_shared_memory(dtype, [SLOTS, 1, 1, 64, 64], q_desc.layout)
    copies = gl.allocate_shared_memory(dtype, [COPIES * 2, 64, 64], tile_l)
    dp_buf = gl.allocate_shared_memory(dtype, [1, 64, 64], tile_l)
    p_buf = gl.allocate_shared_memory(dtype, [1, 64, 64], tile_l)
    r_buf = gl.allocate_shared_memory(gl.float32, [1, 64], flat)
    s_buf = gl.allocate_shared_memory(gl.float32, [1, 64], flat)
    x_buf = gl.allocate_shared_memory(gl.float32, [STAGES, 1, 64], x_desc.layout)
    y_buf = gl.allocate_shared_memory(gl.float32, [STAGES, 1, 64], x_desc.layout)
    ready = (barriers(STAGES, 1), barriers(SLOTS, 1))
    free = (barriers(STAGES, 2), barriers(STAGES, 1), barriers(STAGES, 3), barriers(SLOTS, 1))  # of Q, K, dH, V
    copy_full = barriers(COPIES, 2)
    copy_free = barriers(COPIES, 1)
    dp_full = barriers(1, 1)
    dp_free = barriers(1, 2)
    buffers = (q_buf, k_buf, v_buf, h_buf, x_buf, y_buf)
    factors = (r_buf, s_buf)
    gl.warp_specialize(
        [
            (state, (dk_desc, g_ptr, first_ptr, last_ptr,
                     checkpoint_ptr + window_0 * (WB * 4096), dots_ptr + window_0,
                     buffers, copies, dp_buf, factors, ready, free, copy_full, copy_free, dp_full, dp_free,
                     place, row, tiles, z_dim, w_dim, 0, STAGES, SLOTS, COPIES, WB, FIRST, LAST)),
            (state, (dk_desc, g_ptr, first_ptr, last_ptr,
                     checkpoint_ptr + window_1 * (WB * 4096), dots_ptr + window_1,
                     buffers, copies, dp_buf, factors, ready, free, copy_full, copy_free, dp_full, dp_free,
                     place, row, tiles, z_dim, w_dim, 1, STAGES, SLOTS, COPIES, WB, FIRST, LAST)),
            (value, (dv_desc, g_ptr, sums_ptr, buffers, copies, dp_buf, p_buf, factors, ready, free,
                     copy_full, copy_free, dp_full, dp_free, place, row, tiles, steps, STAGES, SLOTS, COPIES, WB)),
            (produce, ((q_desc, k_desc, v_desc, h_desc, x_desc, y_desc), buffers, ready, free, place, row * tiles,
                       STAGES, SLOTS, WB)),
        ],
        [4, 4, 1],
        [STATE_REGISTERS, 488 - 2 * STATE_REGISTERS, 24],
    )  # fmt: skip
