# type: ignore   # Gluon: what runs on the device has no types that a Python checker knows
"""The pair: dk and dv in one Gluon kernel for sm_90 that walks backward in time with dC on chip.

With D_ij = exp2(x_i + y_j) for i >= j of a tile, P = Q K^T * D, dP = dH V^T * D, r_j = exp2(y_j + g) (exponents.py)
and dC the gradient of the state after the tile:

    dk_j = sum_i dP_ij Q_i + r_j dC V_j
    dv_j = sum_i P_ij dH_i + dC^T (r_j K_j)
    dC  <- exp2(g) dC + sum_i exp2(x_i) Q_i dH_i^T

The two walks of walk.py that give these need all four inputs but one, and the same dC: here each input is read once.

Roles in a program (8 + 4 + 1 + 1 + 1 warps, connected by mbarriers):
    state              carries dC as float32 accumulators, leaves copies of it for `value`, 64 columns at a time, makes
                       r K and dk; one role, for instructions of two copies would not fit the cache
    value              computes P and dP of a tile, then dv, 64 columns at a time behind the copies
    produce            fetches tiles of Q, K, dH and blocks of V by TMA into rings
    send               stores dv and dk out
    prepare            makes r, s and e of a tile, and passes copies on to `value` behind a fence
The last three, of one warp each, wait for memory and fences so that the others need not.

Row sums (SUMS) of k * dk as far as dk comes through dC are exact in the sense of walk.py: r K is rounded as the walk
for dq rounds it for its state, and dC V is a product with twice the bits of dC, `nearest` and `remainder`. They are
made in `state`, as the walk for dk makes them; `value` only adds up over its warps. dv has dC rounded.

Shared memory holds tiles to come instead of outputs: dk is written over the Q of its tile, dv over V and r K over K.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
)

from .conversions import nearest, remainder, widened
from .pipeline import begin_kernel, end_kernel
from .row_sums import store_warp_sums, write_sums
from .schedule import nth_tile
from .state import accumulators, finish_state_update, start_state_update, state_pointers
from .tiles import BLOCK_BYTES, block, load_blocks, operands
from .workarounds import barrier, reinterpret, tma_load, tma_store, wait_for_products


@gluon.jit
def place_of(item, geometry):
    """(batch, head, first tile, tiles, row of batch and head, segment's index over all rows) of a work item."""
    heads, tiles, segment_tiles, segments = geometry
    segment = item % segments
    row = item // segments
    # As walk.span, in the order that leaves these roles most registers.
    n = gl.minimum(tiles - (segments - segment) * segment_tiles, 0) + segment_tiles
    first = tiles - (segments - 1 - segment) * segment_tiles - n
    return row // heads, row % heads, first, n, row, (row * segments + segment).to(gl.int64)


@gluon.jit
def launched(items, register: gl.constexpr):
    """The number of the program (ctaid) or how many there are (nctaid), read where it is wanted: as a value that roles
    share it would lie on the stack for them.
    """
    asm: gl.constexpr = f"mov.u32 $0, %{register}.x;"
    return gl.inline_asm_elementwise(asm, "=r,r", [items], gl.int32, is_pure=False, pack=1)


@gluon.jit
def produce(
    descs, buffers, ready, free, items, geometry, sharing,
    STAGES: gl.constexpr, SLOTS: gl.constexpr, WB: gl.constexpr,
):  # fmt: skip
    q_desc, k_desc, v_desc, h_desc, x_desc, y_desc = descs
    q_buf, k_buf, v_buf, h_buf, x_buf, y_buf = buffers
    tile_ready, v_ready = ready
    tile_free, v_free = free
    i = 0
    for item in range(launched(items, "ctaid"), items, launched(items, "nctaid")):
        batch, head, first, n, row, _index = place_of(item, geometry)
        for j in range(n):
            s = i % STAGES
            tile = nth_tile(first, j, n, True)
            arrived = tile_ready.index(s)
            mbarrier.wait(tile_free.index(s), ((i // STAGES) & 1) ^ 1)
            fence_async_shared()  # what roles have read there, before the copy writes
            mbarrier.expect(arrived, BLOCK_BYTES * (4 + WB) + 2 * 256)
            tma_load(x_desc, [row * geometry[1] + tile, 0], arrived, x_buf.index(s))
            tma_load(y_desc, [row * geometry[1] + tile, 0], arrived, y_buf.index(s))
            load_blocks(h_desc, (batch, head, tile * 64, 0), h_buf, s * WB, WB, arrived)
            load_blocks(k_desc, (batch, head // sharing, tile * 64, 0), k_buf, s * 2, 2, arrived)
            load_blocks(q_desc, (batch, head // sharing, tile * 64, 0), q_buf, s * 2, 2, arrived)
            for c in gl.static_range(WB):
                v = i * WB + c
                mbarrier.wait(v_free.index(v % SLOTS), ((v // SLOTS) & 1) ^ 1)
                mbarrier.expect(v_ready.index(v % SLOTS), BLOCK_BYTES)
                load_blocks(v_desc, (batch, head, tile * 64, 64 * c), v_buf, v % SLOTS, 1, v_ready.index(v % SLOTS))
            i += 1


@gluon.jit
def vector(buffer, i, layout: gl.constexpr):
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, order=[0])
    return reinterpret(buffer.index(i), gl.float32, [64], flat).load(layout)


@gluon.jit
def weighted(scores, x_buf, y_buf, s, layout: gl.constexpr):
    """Scores [j, i] times D."""
    j_l: gl.constexpr = gl.SliceLayout(1, layout)
    i_l: gl.constexpr = gl.SliceLayout(0, layout)
    keep = gl.arange(0, 64, layout=i_l)[None, :] >= gl.arange(0, 64, layout=j_l)[:, None]
    log_D = vector(x_buf, s, i_l)[None, :] + vector(y_buf, s, j_l)[:, None]
    return gl.where(keep, scores * gl.exp2(log_D), 0.0)


@gluon.jit
def value(
    skip_ptr, through_ptr,
    buffers, copies, dp_buf, p_buf, dots_buf, ready, free, between, written,
    items, geometry, steps,
    STAGES: gl.constexpr, SLOTS: gl.constexpr, COPIES: gl.constexpr, WB: gl.constexpr, SUMS: gl.constexpr,
    SKIP: gl.constexpr,
):  # fmt: skip
    j_l: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
    rows: gl.constexpr = gl.SliceLayout(1, j_l)
    t_l: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    dtype: gl.constexpr = dp_buf.dtype
    q_buf, k_buf, v_buf, h_buf, x_buf, y_buf = buffers
    tile_ready, v_ready = ready
    tile_free, _v_free = free
    _dk_written, dv_written = written
    _copy_written, copy_full, copy_free, dp_full, dp_free, k_read, _factors_full = between
    q_rows, k_rows = operands(q_buf, STAGES, 2, 1), operands(k_buf, STAGES, 2, 1)
    t_tile = gl.arange(0, 64, layout=t_l)
    before, left_before = (steps * 0).to(gl.int64), steps * 0  # the tile before this one, in row sums
    i = 0
    for item in range(launched(items, "ctaid"), items, launched(items, "nctaid")):
        _batch, head, first, n, row, _index = place_of(item, geometry)
        if SKIP:
            skip_weight = gl.load(skip_ptr + head)
        for t in range(n):
            s = i % STAGES
            mbarrier.wait(tile_ready.index(s), (i // STAGES) & 1)
            tile = nth_tile(first, t, n, True)
            p = gl.zeros([64, 64], gl.float32, layout=j_l)  # [j, i], as dP
            p = warpgroup_mma(k_rows.index(s), q_rows.index(s).permute((1, 0)), p, use_acc=False, is_async=True)
            p = wait_for_products(0, deps=(p,))
            barrier()  # every warp's product has read K
            mbarrier.arrive(k_read.index(0), count=1)
            p = weighted(p, x_buf, y_buf, s, j_l)
            if SKIP:
                diagonal = gl.arange(0, 64, layout=rows)[:, None] + (i >> 30)  # 0: not kept in registers
                diagonal = diagonal == gl.arange(0, 64, layout=gl.SliceLayout(0, j_l))[None, :]
                p = gl.where(diagonal, p + skip_weight, p)
            p_buf.index(0).store(nearest(p, dtype))
            for c in gl.static_range(WB):
                v = i * WB + c
                mbarrier.wait(v_ready.index(v % SLOTS), (v // SLOTS) & 1)
            dp = gl.zeros([64, 64], gl.float32, layout=j_l)
            for c in gl.static_range(WB):
                hT = block(h_buf, s * WB + c).permute((1, 0))
                dp = warpgroup_mma(block(v_buf, (i * WB + c) % SLOTS), hT, dp, use_acc=(c > 0), is_async=True)
            dp = wait_for_products(0, deps=(dp,))
            dp = nearest(weighted(dp, x_buf, y_buf, s, j_l), dtype)
            mbarrier.wait(dp_free.index(0), (i & 1) ^ 1)
            dp_buf.index(0).store(dp)
            if SUMS:  # of the tile before
                write_sums(dots_buf, through_ptr + before, left_before, t_tile, t_l)
                before = row.to(gl.int64) * steps + tile * 64
                left_before = steps - tile * 64
            fence_async_shared()
            barrier()
            mbarrier.arrive(dp_full.index(0), count=1)  # Q has been read as well, and may become dk
            for c in range(WB):
                v = i * WB + c
                none = (3 * v) >> 30  # 0, and not the same in every round as v >> 30 would be
                b = v % COPIES + none
                dv = gl.zeros([64, 64], gl.float32, layout=j_l)
                dv = warpgroup_mma(p_buf.index(none), block(h_buf, s * WB + c), dv, use_acc=False, is_async=True)
                mbarrier.wait(copy_full.index(b), (v // COPIES) & 1)  # of the first, r K is there as well
                dv = warpgroup_mma(k_rows.index(s + none), copies.index(b), dv, is_async=True)
                dv = wait_for_products(0, deps=(dv,))
                out = v_buf.index(v % SLOTS)  # the copies are there, hence dC V^T is done
                out.reshape([64, 64]).store(dv.to(dtype))
                barrier()
                mbarrier.arrive(copy_free.index(b), count=1)
                mbarrier.arrive(dv_written.index(v % SLOTS), count=1)
            mbarrier.arrive(tile_free.index(s), count=1)
            i += 1
    if SUMS:
        mbarrier.wait(dp_free.index(0), (i & 1) ^ 1)
        write_sums(dots_buf, through_ptr + before, left_before, t_tile, t_l)


@gluon.jit
def prepare(
    g_ptr, buffers, factors, ready, between, items, geometry,
    STAGES: gl.constexpr, COPIES: gl.constexpr, WB: gl.constexpr,
):  # fmt: skip
    t_l: gl.constexpr = gl.BlockedLayout([2], [32], [1], [0])
    _q_buf, _k_buf, _v_buf, _h_buf, x_buf, y_buf = buffers
    r_buf, s_buf, decay_buf = factors
    tile_ready, _v_ready = ready
    copy_written, copy_full, _copy_free, _dp_full, _dp_free, _k_read, factors_full = between
    tiles = geometry[1]
    i = 0
    for item in range(launched(items, "ctaid"), items, launched(items, "nctaid")):
        _batch, _head, first, n, row, _index = place_of(item, geometry)
        g_next = gl.load(g_ptr + row * tiles + first + n - 1)
        for t in range(n):
            s = i % STAGES
            tile = nth_tile(first, t, n, True)
            g = g_next
            g_next = gl.load(g_ptr + row * tiles + gl.maximum(tile - 1, 0))
            mbarrier.wait(tile_ready.index(s), (i // STAGES) & 1)
            r_buf.index(s).store(gl.exp2(vector(y_buf, s, t_l) + g))
            s_buf.index(s).store(gl.exp2(vector(x_buf, s, t_l)))
            decay_buf.index(s).store(gl.full([128], gl.exp2(g), gl.float32, layout=t_l))
            barrier()
            mbarrier.arrive(factors_full.index(s), count=1)
            for c in range(WB):
                v = i * WB + c
                mbarrier.wait(copy_written.index(v % COPIES), (v // COPIES) & 1)
                fence_async_shared()
                mbarrier.arrive(copy_full.index(v % COPIES), count=1)
            i += 1


@gluon.jit
def send(
    dk_desc, dv_desc, buffers, free, written, items, geometry,
    STAGES: gl.constexpr, SLOTS: gl.constexpr, WB: gl.constexpr,
):  # fmt: skip
    q_buf, _k_buf, v_buf, _h_buf, _x_buf, _y_buf = buffers
    tile_free, v_free = free
    dk_written, dv_written = written
    i = 0
    for item in range(launched(items, "ctaid"), items, launched(items, "nctaid")):
        batch, head, first, n, _row, _index = place_of(item, geometry)
        for t in range(n):
            s = i % STAGES
            tile = nth_tile(first, t, n, True)
            for c in range(WB):
                v = i * WB + c
                mbarrier.wait(dv_written.index(v % SLOTS), (v // SLOTS) & 1)
                fence_async_shared()
                tma_store(dv_desc, [batch, head, tile * 64, 64 * c], v_buf.index(v % SLOTS))
                tma.store_wait(pendings=0)
                mbarrier.arrive(v_free.index(v % SLOTS), count=1)
            mbarrier.wait(dk_written.index(s), (i // STAGES) & 1)
            fence_async_shared()
            for half in gl.static_range(2):
                tma_store(dk_desc, [batch, head, tile * 64, 64 * half], q_buf.index(s * 2 + half))
            tma.store_wait(pendings=0)
            mbarrier.arrive(tile_free.index(s), count=1)
            i += 1


@gluon.jit
def state(
    first_ptr, last_ptr,
    buffers, copies, dp_buf, dots_buf, factors, ready, free, between, written,
    items, geometry,
    Z_DIM: gl.constexpr, W_DIM: gl.constexpr,
    STAGES: gl.constexpr, SLOTS: gl.constexpr, COPIES: gl.constexpr, WB: gl.constexpr, SUMS: gl.constexpr,
    FIRST: gl.constexpr, LAST: gl.constexpr,
):  # fmt: skip
    s_l: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[8, 1], instr_shape=[16, 64, 16])
    a_l: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=s_l, k_width=2)
    j_l: gl.constexpr = gl.SliceLayout(0, s_l)
    half_l: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[8, 1], instr_shape=[16, 32, 16])
    dtype: gl.constexpr = dp_buf.dtype
    q_buf, k_buf, v_buf, h_buf, _x_buf, _y_buf = buffers
    r_buf, s_buf, decay_buf = factors
    tile_ready, v_ready = ready
    dk_written, _dv_written = written
    copy_written, _copy_full, copy_free, dp_full, dp_free, k_read, factors_full = between
    AHEAD: gl.constexpr = min(COPIES, WB) - 1  # copies up to this one are handed over together, with r K: none is late
    q_rows, k_rows = operands(q_buf, STAGES, 2, 1), operands(k_buf, STAGES, 2, 1)
    h_joined = operands(h_buf, STAGES, WB, accumulators(WB))
    i = 0
    for item in range(launched(items, "ctaid"), items, launched(items, "nctaid")):
        _batch, _head, _first, n, _row, index = place_of(item, geometry)
        opaque = i >> 30  # 0: keeps addresses of an item's states out of registers while it is walked
        dC = ()
        for c in gl.static_range(WB):
            if FIRST:
                at, z = state_pointers(first_ptr + index * (Z_DIM * W_DIM), opaque, 64 * c + opaque, W_DIM, 1, s_l, 128)
                dC += (gl.load(at, mask=z < Z_DIM, other=0.0),)
            else:
                dC += (gl.zeros([128, 64], gl.float32, layout=s_l),)
        for _ in range(n):
            s = i % STAGES
            dk = gl.zeros([128, 64], gl.float32, layout=s_l)  # dk^T, [d_qk, j]
            for c in gl.static_range(WB):
                v = i * WB + c
                b = v % COPIES
                mbarrier.wait(v_ready.index(v % SLOTS), (v // SLOTS) & 1)
                copy = nearest(dC[c], dtype)
                a = gl.convert_layout(copy, a_l)
                vT = block(v_buf, v % SLOTS).permute((1, 0))
                dk = warpgroup_mma(a, vT, dk, use_acc=(c > 0), is_async=True)
                mbarrier.wait(copy_free.index(b), ((v // COPIES) & 1) ^ 1)
                copies.index(b + ((3 * v) >> 30)).store(copy)  # + 0: keeps addresses out of registers
                dk, a = wait_for_products(0, deps=(dk, a))
                if SUMS:
                    a = gl.convert_layout(remainder(dC[c], dtype), a_l)
                    dk = warpgroup_mma(a, vT, dk, is_async=True)
                    dk, a = wait_for_products(0, deps=(dk, a))
                if c == AHEAD:
                    mbarrier.wait(k_read.index(0), i & 1)
                    mbarrier.wait(factors_full.index(s), (i // STAGES) & 1)
                    kT = k_rows.index(s).permute((1, 0))
                    for half in gl.static_range(2):  # of the steps, for want of registers
                        k = kT.slice(32 * half, 32, dim=1)
                        r = r_buf.index(s).slice(32 * half, 32).load(gl.SliceLayout(0, half_l))
                        k.store(nearest(widened(k.load(half_l)) * r[None, :], dtype))
                if c >= AHEAD:
                    barrier()
                    mbarrier.arrive(copy_written.index(b), count=1)
                if c == AHEAD:
                    for before in gl.static_range(AHEAD):
                        mbarrier.arrive(copy_written.index((i * WB + before) % COPIES), count=1)
            mbarrier.wait(tile_ready.index(s), (i // STAGES) & 1)
            mbarrier.wait(dp_full.index(0), i & 1)
            if SUMS:  # with r K, rounded as the walk for dq rounds it for its state
                x = widened(k_rows.index(s).permute((1, 0)).load(s_l))
                store_warp_sums(x * dk, dots_buf, 0, 8)
            dk = dk * r_buf.index(s).load(j_l)[None, :]
            qT = q_rows.index(s).permute((1, 0))
            dk = warpgroup_mma(qT, dp_buf.index(0).permute((1, 0)), dk, is_async=True)
            e = decay_buf.index(s).load(gl.SliceLayout(1, s_l))[:, None]
            kept = ()
            for c in gl.static_range(WB):  # all before the first product: nothing may touch registers in flight
                kept += (dC[c] * e,)
            flight, kept_operands = start_state_update(kept, qT, s_buf.index(s), h_joined, s, accumulators(WB))
            dk = wait_for_products(2 * accumulators(WB), deps=(dk,))  # dC is updated while dk is written
            barrier()  # dP, its factors and Q have been read
            mbarrier.arrive(dp_free.index(0), count=1)
            qT.store(dk.to(dtype))
            dC = finish_state_update(wait_for_products(0, deps=flight + kept_operands), WB)
            barrier()
            mbarrier.arrive(dk_written.index(s), count=1)
            i += 1
        if LAST:
            opaque = i >> 30
            for c in gl.static_range(WB):
                at, z = state_pointers(last_ptr + index * (Z_DIM * W_DIM), opaque, 64 * c + opaque, W_DIM, 1, s_l, 128)
                gl.store(at, dC[c], mask=z < Z_DIM)


@gluon.jit
def barriers(N: gl.constexpr, COUNT: gl.constexpr):
    made = gl.allocate_shared_memory(gl.int64, [N, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(N):
        mbarrier.init(made.index(i), count=COUNT)
    return made


# See walk.walk. One segment: its length would be worked out before the roles begin, and lie on the stack for them.
@gluon.jit(
    do_not_specialize=["items", "heads", "steps", "tiles", "segment_tiles", "segments"],
    do_not_specialize_on_alignment=["sharing"],
)
def pair(
    q_desc, k_desc, v_desc, h_desc, dk_desc, dv_desc, x_desc, y_desc, g_ptr, first_ptr, last_ptr, skip_ptr, through_ptr,
    items, heads, sharing, steps, tiles, segment_tiles, segments,
    Z_DIM: gl.constexpr, W_DIM: gl.constexpr, STAGES: gl.constexpr, SLOTS: gl.constexpr, COPIES: gl.constexpr,
    WB: gl.constexpr, STATE_REGISTERS: gl.constexpr, SUMS: gl.constexpr, FIRST: gl.constexpr, LAST: gl.constexpr,
    SKIP: gl.constexpr,
):  # fmt: skip
    """A program takes work items, segments of a (batch, head) row, one after the other; Z_DIM <= 128, W_DIM <= 256.

    SKIP: skip (heads,) is added to the diagonal of P. sharing: consecutive heads that share one of Q and K.
    """
    geometry = (heads, tiles, segment_tiles, segments)
    dtype: gl.constexpr = q_desc.dtype
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, order=[0])
    tile_l: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, 64], dtype)
    q_buf = gl.allocate_shared_memory(dtype, [STAGES * 2, 1, 1, 64, 64], q_desc.layout)
    k_buf = gl.allocate_shared_memory(dtype, [STAGES * 2, 1, 1, 64, 64], q_desc.layout)
    h_buf = gl.allocate_shared_memory(dtype, [STAGES * WB, 1, 1, 64, 64], q_desc.layout)
    v_buf = gl.allocate_shared_memory(dtype, [SLOTS, 1, 1, 64, 64], q_desc.layout)
    copy_l: gl.constexpr = gl.NVMMASharedLayout.get_default_for([128, 64], dtype)
    copies = gl.allocate_shared_memory(dtype, [COPIES, 128, 64], copy_l)
    dp_buf = gl.allocate_shared_memory(dtype, [1, 64, 64], tile_l)
    p_buf = gl.allocate_shared_memory(dtype, [1, 64, 64], tile_l)
    r_buf = gl.allocate_shared_memory(gl.float32, [STAGES, 64], flat)
    s_buf = gl.allocate_shared_memory(gl.float32, [STAGES, 64], flat)
    decay_buf = gl.allocate_shared_memory(gl.float32, [STAGES, 128], flat)
    dots_buf = r_buf
    if SUMS:
        dots_buf = gl.allocate_shared_memory(gl.float32, [8, 64], flat)
    x_buf = gl.allocate_shared_memory(gl.float32, [STAGES, 1, 64], x_desc.layout)
    y_buf = gl.allocate_shared_memory(gl.float32, [STAGES, 1, 64], x_desc.layout)
    buffers = (q_buf, k_buf, v_buf, h_buf, x_buf, y_buf)
    factors = (r_buf, s_buf, decay_buf)
    ready = (barriers(STAGES, 1), barriers(SLOTS, 1))
    free = (barriers(STAGES, 2), barriers(SLOTS, 1))
    copy_written, copy_full, copy_free = barriers(COPIES, 1), barriers(COPIES, 1), barriers(COPIES, 1)
    factors_full = barriers(STAGES, 1)
    dp_full, dp_free = barriers(1, 1), barriers(1, 1)
    k_read = barriers(1, 1)
    between = (copy_written, copy_full, copy_free, dp_full, dp_free, k_read, factors_full)
    written = (barriers(STAGES, 1), barriers(SLOTS, 1))
    begin_kernel(True)  # dq, before it, has nothing that this reads
    gl.warp_specialize(
        [
            (state, (first_ptr, last_ptr,
                     buffers, copies, dp_buf, dots_buf, factors, ready, free, between, written,
                     items, geometry, Z_DIM, W_DIM, STAGES, SLOTS, COPIES, WB, SUMS, FIRST, LAST)),
            (value, (skip_ptr, through_ptr,
                     buffers, copies, dp_buf, p_buf, dots_buf, ready, free, between, written,
                     items, geometry, steps, STAGES, SLOTS, COPIES, WB, SUMS, SKIP)),
            (produce, ((q_desc, k_desc, v_desc, h_desc, x_desc, y_desc), buffers, ready, free,
                       items, geometry, sharing, STAGES, SLOTS, WB)),
            (send, (dk_desc, dv_desc, buffers, free, written, items, geometry, STAGES, SLOTS, WB)),
            (prepare, (g_ptr, buffers, factors, ready, between, items, geometry, STAGES, COPIES, WB)),
        ],
        [4, 1, 1, 1],
        [488 - 2 * STATE_REGISTERS, 24, 24, 24],
    )  # fmt: skip
    end_kernel(True)
