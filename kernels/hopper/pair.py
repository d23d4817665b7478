# type: ignore   # Gluon: what runs on the device has no types that a Python checker knows
"""The pair: dk and dv in one Gluon kernel for sm_90 that walks backward in time with dC on chip.

With D_ij = exp2(x_i + y_j) for i >= j of a tile (exponents.py), S = Q K^T, P = S * D, dP = dH V^T * D and dC after the
tile:

    dk_j = sum_i dP_ij Q_i + r_j dC V_j       r_j = exp2(y_j + g)
    dv_j = sum_i P_ij dH_i + r_j dC^T K_j
    dC  <- exp2(g) dC + sum_i exp2(x_i) Q_i dH_i^T
    k_j . dk_j = sum_i dP_ij S_ij + r_j V_j . (dC^T K_j)

Both walks of walk.py need all four inputs but one, and the same dC: one kernel reads each once.

Roles in a program (8 + 1 warps, connected by mbarriers):
    math      carries dC, 128 rows (d_qk) and up to 256 columns (d_hv), as float32 accumulators and does all products
    produce   one warp that fetches tiles of Q, K, V, dH and of the exponents by TMA into two stages

Latency is what there is to hide, so shared memory holds as much of the tile to come as it can. dk is written over the Q
of its tile and dv over V, once nobody reads those, and stored from there; P, dP and, one half after the other, the
rounded dC share the rest.
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
from .walk import BLOCK_BYTES, WINDOW

STAGES = gl.constexpr(2)
# Of [64, 2]: where sums over the columns of a [64, n] accumulator lie, of warps 0 to 3 and of warps 4 to 7.
SUMS = gl.constexpr(
    gl.DistributedLinearLayout(
        reg_bases=[[8, 0]],
        lane_bases=[[0, 0], [0, 0], [1, 0], [2, 0], [4, 0]],
        warp_bases=[[16, 0], [32, 0], [0, 1]],
        block_bases=[],
        shape=[64, 2],
    )
)


@gluon.jit
def place_of(item, geometry):
    """Of a segment of a (batch, head) row: batch, head, row of both, first tile, tiles."""
    heads, tiles, segment_tiles, segments = geometry
    row = item // segments
    first = item % segments * segment_tiles
    return row // heads, row % heads, row, first, gl.minimum(segment_tiles, tiles - first)


@gluon.jit
def produce(descs, buffers, ready, free, items, geometry, WB: gl.constexpr):
    HB: gl.constexpr = (WB + 1) // 2
    q_desc, k_desc, v_desc, h_desc, x_desc, y_desc = descs
    q_buf, k_buf, v_buf, h_buf, x_buf, y_buf = buffers
    i = 0
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        batch, head, row, first, n = place_of(item, geometry)
        for t in range(n):
            s = i % STAGES
            tile = first + n - 1 - t
            mbarrier.wait(free.index(s), ((i // STAGES) & 1) ^ 1)
            arrived = ready.index(s)
            mbarrier.expect(arrived, BLOCK_BYTES * (4 + 4 * HB) + 512)
            for h in gl.static_range(HB):
                tma_load(v_desc, [batch, head, tile * 64, 128 * h], arrived, v_buf.index(s * HB + h))
                tma_load(h_desc, [batch, head, tile * 64, 128 * h], arrived, h_buf.index(s * HB + h))
            tma_load(k_desc, [batch, head, tile * 64, 0], arrived, k_buf.index(s))
            tma_load(q_desc, [batch, head, tile * 64, 0], arrived, q_buf.index(s))
            tma_load(x_desc, [row * geometry[1] + tile, 0], arrived, x_buf.index(s))
            tma_load(y_desc, [row * geometry[1] + tile, 0], arrived, y_buf.index(s))
            i += 1


@gluon.jit
def tile_of(buffer, i):
    return buffer.index(i).reshape([64, 128])


@gluon.jit
def vector(buffer, i, layout: gl.constexpr):
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, order=[0])
    return reinterpret(buffer.index(i), gl.float32, [64], flat).load(layout)


@gluon.jit
def row_sums(x):
    """Sums of each row's two halves, which lie in different warps."""
    return gl.convert_layout(gl.sum(x.reshape([64, 2, x.shape[1] // 2]), axis=2), SUMS, assert_trivial=True)


@gluon.jit
def state_offsets(h, z_dim, w_dim, layout: gl.constexpr):
    """Where 128 columns of dC lie in memory, and which of them are."""
    rows = gl.arange(0, 128, layout=gl.SliceLayout(1, layout))[:, None]
    columns = 128 * h + gl.arange(0, 128, layout=gl.SliceLayout(0, layout))[None, :]
    return rows * w_dim + columns, (rows < z_dim) & (columns < w_dim)


@gluon.jit
def by_thread(x):
    """128 columns of dC as walk.by_thread has blocks: [32, 512], the 256 columns of either part side by side."""
    x = x.reshape([2, 4, 2, 8, 2, 8, 4, 2])  # parts of 4 warps of 16 rows in two halves; 2 blocks of columns
    return x.permute((4, 5, 2, 0, 1, 3, 6, 7)).reshape([32, 512])


@gluon.jit
def checkpoint(ptr, part_stride, like, BLOCKS: gl.constexpr):
    """What `like` finds of C in a checkpoint of which BLOCKS blocks are left: see walk.checkpoint_pointers."""
    layout: gl.constexpr = like.type.layout
    rows = gl.arange(0, 32, layout=gl.SliceLayout(1, layout))[:, None]
    words = gl.arange(0, 512, layout=gl.SliceLayout(0, layout))[None, :]
    at = (ptr + (words // 256 * part_stride + words % 256)) + rows * 256
    return gl.load(at, mask=rows < 16 * BLOCKS, other=0.0).to(gl.float32)


@gluon.jit
def math(
    dk_desc, dv_desc, g_ptr, first_ptr, last_ptr, sums_ptr, checkpoint_ptr, dots_ptr,
    buffers, work, factors, ready, free, items, geometry, steps, z_dim, w_dim, part_steps,
    WB: gl.constexpr, FIRST: gl.constexpr, LAST: gl.constexpr,
):  # fmt: skip
    HB: gl.constexpr = (WB + 1) // 2  # halves of 128 columns
    c_l: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[8, 1], instr_shape=[16, 128, 16])
    k_l: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[8, 1], instr_shape=[16, 64, 16])
    j_l: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 2], instr_shape=[16, 32, 16])
    v_l: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 2], instr_shape=[16, 64, 16])
    qs_l: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=c_l, k_width=2)
    dC_l: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=k_l, k_width=2)
    p_l: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=v_l, k_width=2)
    t_l: gl.constexpr = gl.BlockedLayout([1], [32], [8], [0])
    dtype: gl.constexpr = dk_desc.dtype
    copy_l: gl.constexpr = gl.NVMMASharedLayout.get_default_for([128, 128], dtype)
    q_buf, k_buf, v_buf, h_buf, x_buf, y_buf = buffers
    r_buf, s_buf = factors
    copy = reinterpret(work, dtype, [128, 128], copy_l)
    keep = (
        gl.arange(0, 64, layout=gl.SliceLayout(0, j_l))[None, :]
        >= gl.arange(0, 64, layout=gl.SliceLayout(1, j_l))[:, None]
    )  # i >= j
    _, tiles, _, segments = geometry
    windows = (tiles - 1) // WINDOW
    part_windows = items // segments * windows
    i = 0
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        batch, head, row, first, n = place_of(item, geometry)
        of_states = (item + (i >> 30)).to(gl.int64) * z_dim * w_dim
        dC = ()
        for h in gl.static_range(HB):
            if FIRST:
                offsets, inner = state_offsets(h + (i >> 30), z_dim, w_dim, c_l)
                dC += (gl.load(first_ptr + of_states + offsets, mask=inner, other=0.0),)
            else:
                dC += (gl.zeros([128, 128], gl.float32, layout=c_l),)
        g = gl.load(g_ptr + row * tiles + first + n - 1)
        for t in range(n):
            s = i % STAGES
            tile = first + n - 1 - t
            nothing = i >> 30  # 0: makes things anew that would otherwise stay in registers
            edge = tile + 1
            if (edge % WINDOW == 0) & (edge < tiles):
                window = row * windows + edge // WINDOW - 1
                met = by_thread(dC[0])
                C_ptr = checkpoint_ptr + window.to(gl.int64) * (WB * 4096)
                dots = met * checkpoint(C_ptr, part_windows * (WB * 4096), met, WB)
                if HB == 2:
                    met = by_thread(dC[1])
                    dots += met * checkpoint(C_ptr + 8192, part_windows * (WB * 4096), met, WB - 2)
                dots = gl.sum(gl.sum(dots, axis=0).reshape([2, 256]), axis=1)
                gl.store(dots_ptr + window + part_windows * gl.arange(0, 2, layout=dots.type.layout), dots)

            mbarrier.wait(ready.index(s), (i // STAGES) & 1)
            dp = gl.zeros([64, 64], gl.float32, layout=j_l)  # [j, i]
            p = gl.zeros([64, 64], gl.float32, layout=j_l)
            p = warpgroup_mma(tile_of(k_buf, s), tile_of(q_buf, s).permute((1, 0)), p, use_acc=False, is_async=True)
            for h in gl.static_range(HB):
                hT = tile_of(h_buf, s * HB + h).permute((1, 0))
                dp = warpgroup_mma(tile_of(v_buf, s * HB + h), hT, dp, use_acc=(h > 0), is_async=True)
            p, dp = warpgroup_mma_wait(0, deps=(p, dp))
            r_buf.store(gl.exp2(vector(y_buf, s, t_l) + g))
            s_buf.store(gl.exp2(vector(x_buf, s, t_l)))
            x_i = vector(x_buf, s, gl.SliceLayout(0, j_l))
            y_j = vector(y_buf, s, gl.SliceLayout(1, j_l))
            D = gl.where(keep, gl.exp2(x_i[None, :] + y_j[:, None]), 0.0)
            dp = (dp * D).to(dtype)
            work.index(1).store(dp)
            work.index(0).store((p * D).to(dtype))
            inside = row_sums(dp.to(gl.float32) * p)
            fence_async_shared()

            dk = gl.zeros([128, 64], gl.float32, layout=k_l)  # dk^T, [d_qk, j]
            for h in gl.static_range(HB):
                a = gl.convert_layout(dC[h].to(dtype), dC_l)
                vT = tile_of(v_buf, s * HB + h).permute((1, 0))
                dk = warpgroup_mma(a, vT, dk, use_acc=(h > 0), is_async=True)
                if h == 0:
                    tma.store_wait(pendings=0)
                    barrier()  # P and dP are there; the outputs of the tile before have left, and with them its stage
                    mbarrier.arrive(free.index((i + 1) % STAGES), count=1, pred=i > 0)
                dk, a = warpgroup_mma_wait(0, deps=(dk, a))
            dk = dk * r_buf.load(gl.SliceLayout(0, k_l))[None, :]
            qT = tile_of(q_buf, s).permute((1, 0))
            dk = warpgroup_mma(qT, work.index(1).permute((1, 0)), dk, is_async=True)
            p = work.index(0).load(p_l)
            qs = (qT.load(qs_l).to(gl.float32) * s_buf.load(gl.SliceLayout(0, qs_l))[None, :]).to(dtype)
            r = r_buf.load(gl.SliceLayout(1, v_l))[:, None]
            dk = warpgroup_mma_wait(0, deps=(dk,))
            barrier()  # P, dP, Q have been read
            copy.store((dC[0] + nothing.to(gl.float32)).to(dtype))
            qT.store(dk.to(dtype))
            fence_async_shared()
            barrier()
            tma_store(dk_desc, [batch, head, tile * 64, 0], q_buf.index(s))

            e = gl.exp2(g)
            g = gl.load(g_ptr + row * tiles + gl.maximum(tile - 1, 0))  # a tile ahead
            across = gl.zeros([64, 2], gl.float32, layout=SUMS)
            flight = ()
            for h in gl.static_range(HB):
                dv = gl.zeros([64, 128], gl.float32, layout=v_l)
                dv = warpgroup_mma(tile_of(k_buf, s), copy, dv, use_acc=False, is_async=True)
                dv = warpgroup_mma_wait(0, deps=(dv,))
                dv = dv * r
                across += row_sums(tile_of(v_buf, s * HB + h).load(v_l).to(gl.float32) * dv)
                dv = warpgroup_mma(p, tile_of(h_buf, s * HB + h), dv, is_async=True)
                if h < HB - 1:
                    barrier()  # the copy has been read
                    copy.store((dC[h + 1] + nothing.to(gl.float32)).to(dtype))
                    dv, p = warpgroup_mma_wait(0, deps=(dv, p))
                else:
                    for c in gl.static_range(HB):
                        flight += (dC[c] * e,)
                    onward = ()
                    for c in gl.static_range(HB):
                        onward += (warpgroup_mma(qs, tile_of(h_buf, s * HB + c), flight[c], is_async=True),)
                    flight = onward
                    dv, p = warpgroup_mma_wait(HB, deps=(dv, p))  # dC is updated while dv is written
                tile_of(v_buf, s * HB + h).store(dv.to(dtype))
                fence_async_shared()
                barrier()
                tma_store(dv_desc, [batch, head, tile * 64, 128 * h], v_buf.index(s * HB + h))
            j = gl.arange(0, 64, layout=gl.SliceLayout(1, SUMS))[:, None]
            part = gl.arange(0, 2, layout=gl.SliceLayout(0, SUMS))[None, :]
            at = sums_ptr + part * part_steps + row * steps + tile * 64 + j
            gl.store(at, inside + across, mask=(tile * 64 + j < steps) & (part < 2))
            gl.store(at + 2 * part_steps, across, mask=(tile * 64 + j < steps) & (part < 2))
            done = warpgroup_mma_wait(0, deps=flight + (qs,))  # noqa: RUF005  # qs: kept until the products are done
            dC = ()
            for h in gl.static_range(HB):
                dC += (done[h],)
            i += 1
        if LAST:
            for h in gl.static_range(HB):
                offsets, inner = state_offsets(h + (i >> 30), z_dim, w_dim, c_l)
                gl.store(last_ptr + of_states + offsets, dC[h], mask=inner)
    tma.store_wait(pendings=0)


@gluon.jit(do_not_specialize=["steps", "tiles", "segment_tiles"])  # see walk.walk
def pair(
    q_desc, k_desc, v_desc, h_desc, dk_desc, dv_desc, x_desc, y_desc, g_ptr, first_ptr, last_ptr, sums_ptr,
    checkpoint_ptr, dots_ptr, items, heads, steps, tiles, segment_tiles, segments, z_dim, w_dim, part_steps,
    WB: gl.constexpr, FIRST: gl.constexpr, LAST: gl.constexpr,
):  # fmt: skip
    """Each program: every n-th segment of a (batch, head) row, d_qk <= 128, d_hv = 64 * WB <= 256."""
    HB: gl.constexpr = (WB + 1) // 2
    dtype: gl.constexpr = q_desc.dtype
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, order=[0])
    q_buf = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, 64, 128], q_desc.layout)
    k_buf = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, 64, 128], q_desc.layout)
    v_buf = gl.allocate_shared_memory(dtype, [STAGES * HB, 1, 1, 64, 128], q_desc.layout)
    h_buf = gl.allocate_shared_memory(dtype, [STAGES * HB, 1, 1, 64, 128], q_desc.layout)
    work = gl.allocate_shared_memory(dtype, [4, 64, 64], gl.NVMMASharedLayout.get_default_for([64, 64], dtype))
    x_buf = gl.allocate_shared_memory(gl.float32, [STAGES, 1, 64], x_desc.layout)
    y_buf = gl.allocate_shared_memory(gl.float32, [STAGES, 1, 64], x_desc.layout)
    r_buf = gl.allocate_shared_memory(gl.float32, [64], flat)
    s_buf = gl.allocate_shared_memory(gl.float32, [64], flat)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for s in gl.static_range(STAGES):
        mbarrier.init(ready.index(s), count=1)
        mbarrier.init(free.index(s), count=1)
    buffers = (q_buf, k_buf, v_buf, h_buf, x_buf, y_buf)
    geometry = (heads, tiles, segment_tiles, segments)
    gl.warp_specialize(
        [
            (math, (dk_desc, dv_desc, g_ptr, first_ptr, last_ptr, sums_ptr, checkpoint_ptr, dots_ptr,
                    buffers, work, (r_buf, s_buf), ready, free, items, geometry, steps, z_dim, w_dim, part_steps,
                    WB, FIRST, LAST)),
            (produce, ((q_desc, k_desc, v_desc, h_desc, x_desc, y_desc), buffers, ready, free, items, geometry, WB)),
        ],
        [1],
        [24],
    )  # fmt: skip
