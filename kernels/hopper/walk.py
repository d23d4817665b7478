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

Roles in a program (4 + 4 + 4 + 1 warps, connected by mbarriers):
    math 0, math 1   carry 64 * ZB rows of S each, as float32 accumulators, and write their columns of out; they do not
                     wait for one another, so one computes while the other stores; with row sums X . out they also
                     leave C (going forward) or meet it with dC (backward) every WINDOW tiles: see launch.Checkpoints
    score            computes P, r and s of a tile ahead of them; with a normaliser also carries n and divides P and r;
                     with row sums also those of P Z alone
    produce          one warp that fetches tiles of U, W, Z (and X, for row sums X . out) by TMA into a ring of stages

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
    warpgroup_mma_wait,
)

from .compat import barrier, reinterpret, tma_add, tma_load, tma_store

BLOCK_BYTES = gl.constexpr(64 * 64 * 2)
WINDOW = gl.constexpr(8)  # tiles between two checkpoints


@gluon.jit
def nth_tile(first, i, n, REVERSE: gl.constexpr):
    """The i-th tile that a walk over tiles first .. first + n - 1 meets."""
    if REVERSE:
        return first + n - 1 - i
    else:
        return first + i


@gluon.jit
def place_of(item, heads, tiles, segment_tiles, segments, pieces):
    """(batch, head, first tile, tiles, row of batch and head, segment's index over all rows, piece) of a work item."""
    piece = item % pieces
    segment = (item // pieces) % segments
    row = item // (pieces * segments)
    first = segment * segment_tiles
    n = gl.minimum(segment_tiles, tiles - first)
    return row // heads, row % heads, first, n, row, (row * segments + segment).to(gl.int64), piece


@gluon.jit
def fetch(desc, batch, head, tile, column, COUNT: gl.constexpr, buffer, slot, arrived):
    """Start the copy of COUNT blocks side by side, from `column` on."""
    for j in gl.static_range(COUNT):
        tma_load(desc, [batch, head, tile * 64, column + 64 * j], arrived, buffer.index(slot * COUNT + j))


@gluon.jit
def block(buffer, i):
    return buffer.index(i).reshape([64, 64])


@gluon.jit
def produce(
    descs, buffers, empty, ready, items, geometry, sharing, column,
    STAGES: gl.constexpr, WB: gl.constexpr, ZB: gl.constexpr, REVERSE: gl.constexpr, SUMS: gl.constexpr,
):  # fmt: skip
    u_desc, w_desc, z_desc, x_desc = descs
    u_buf, w_buf, z_buf, x_buf = buffers
    heads, tiles, segment_tiles, segments, pieces = geometry
    i = 0
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        batch, head, first, n, _row, _index, piece = place_of(item, heads, tiles, segment_tiles, segments, pieces)
        z0 = piece * (128 * ZB)
        u_head, z_head = head // sharing[0], head // sharing[1]
        for j in range(n):
            s = i % STAGES
            mbarrier.wait(empty.index(s), ((i // STAGES) & 1) ^ 1)
            arrived = ready.index(s)
            tile = nth_tile(first, j, n, REVERSE)
            mbarrier.expect(arrived, BLOCK_BYTES * (2 * WB + 2 * ZB * (1 + SUMS)))
            fetch(u_desc, batch, u_head, tile, column, WB, u_buf, s, arrived)
            fetch(w_desc, batch, u_head, tile, column, WB, w_buf, s, arrived)
            fetch(z_desc, batch, z_head, tile, z0, 2 * ZB, z_buf, s, arrived)
            if SUMS:
                fetch(x_desc, batch, z_head, tile, z0, 2 * ZB, x_buf, s, arrived)
            i += 1


@gluon.jit
def score(
    exponents, norm, skip, within_ptr, buffers, n_buf, e_buf, p_buf, factors, empty, ready, p_full, p_empty,
    items, geometry, steps, part_stride, w_dim,
    STAGES: gl.constexpr, SLOTS: gl.constexpr, WB: gl.constexpr, ZB: gl.constexpr, REVERSE: gl.constexpr,
    SUMS: gl.constexpr, NORM: gl.constexpr, FIRST: gl.constexpr, LAST: gl.constexpr, SKIP: gl.constexpr,
):  # fmt: skip
    p_l: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
    u_l: gl.constexpr = gl.SliceLayout(1, p_l)
    z_l: gl.constexpr = gl.SliceLayout(0, p_l)
    down: gl.constexpr = gl.BlockedLayout([16, 2], [1, 32], [4, 1], [1, 0])  # two columns of 16 steps a thread
    n_l: gl.constexpr = gl.BlockedLayout([1, 2], [1, 32], [4, 1], [1, 0])  # their sums: n is kept in four parts
    au_ptr, az_ptr, g_ptr = exponents
    m_ptr, back_ptr, n_first_ptr, n_last_ptr = norm
    heads, tiles, segment_tiles, segments, pieces = geometry
    u_buf, w_buf, z_buf, x_buf = buffers
    r_buf, s_buf = factors
    t = gl.arange(0, 64, layout=gl.BlockedLayout([1], [32], [4], [0]))
    u = gl.arange(0, 64, layout=u_l)
    z = gl.arange(0, 64, layout=z_l)
    parts_of_n = n_buf
    if NORM:
        parts_of_n = reinterpret(n_buf, gl.float32, [WB, 4, 64], gl.SwizzledSharedLayout(1, 1, 1, order=[1, 0]))
    part = gl.arange(0, 4, layout=gl.SliceLayout(1, n_l))[:, None]
    w = gl.arange(0, 64, layout=gl.SliceLayout(0, n_l))[None, :]
    i = 0
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        _batch, head, first, n, row, index, piece = place_of(item, heads, tiles, segment_tiles, segments, pieces)
        n0 = index * w_dim
        if SKIP and not SUMS:
            skip_weight = gl.load(skip[0] + head)
        if NORM:
            for wb in gl.static_range(WB):
                if FIRST:
                    parts_of_n.index(wb).store(
                        gl.load(n_first_ptr + n0 + 64 * wb + w + 0 * part, mask=w + 64 * part < 64, other=0.0)
                    )
                else:
                    parts_of_n.index(wb).store(gl.zeros([4, 64], gl.float32, layout=n_l))
        # The exponents of a tile are loaded while the one before it is at work, and spread through shared memory.
        tile = nth_tile(first, 0, n, REVERSE)
        x_t = gl.load(au_ptr + (row * tiles + tile) * 64 + t)
        y_t = gl.load(az_ptr + (row * tiles + tile) * 64 + t)
        g = gl.load(g_ptr + row * tiles + tile)
        m_t = x_t
        if NORM:
            m_t = gl.load(m_ptr + row * steps + tile * 64 + t, mask=tile * 64 + t < steps, other=0.0)
        for j in range(n):
            s = i % STAGES
            b = i % SLOTS
            tile_now = nth_tile(first, j, n, REVERSE)
            at = (row * tiles + tile_now) * 64
            e_buf.index(0).store(x_t)
            e_buf.index(1).store(y_t)
            if NORM:
                e_buf.index(2).store(m_t)
            barrier()
            x_now, y_now, g_now = x_t, y_t, g
            tile = nth_tile(first, gl.minimum(j + 1, n - 1), n, REVERSE)
            x_t = gl.load(au_ptr + (row * tiles + tile) * 64 + t)
            y_t = gl.load(az_ptr + (row * tiles + tile) * 64 + t)
            g = gl.load(g_ptr + row * tiles + tile)
            if NORM:
                m_t = gl.load(m_ptr + row * steps + tile * 64 + t, mask=tile * 64 + t < steps, other=0.0)
            mbarrier.wait(ready.index(s), (i // STAGES) & 1)
            if NORM:
                qn = gl.zeros([64], gl.float32, layout=u_l)
                for c in range(WB):
                    n_z = gl.zeros([64], gl.float32, layout=z_l)
                    for a in gl.static_range(4):
                        n_z += n_buf.index(4 * c + a).load(z_l)
                    qn += gl.sum(block(u_buf, s * WB + c).load(p_l).to(gl.float32) * n_z[None, :], axis=1)
            p = gl.zeros([64, 64], gl.float32, layout=p_l)
            for wb in gl.static_range(WB):
                wT = block(w_buf, s * WB + wb).permute((1, 0))
                p = warpgroup_mma(block(u_buf, s * WB + wb), wT, p, use_acc=(wb > 0), is_async=True)
            p = warpgroup_mma_wait(0, deps=(p,))
            if SKIP and SUMS:  # noqa: SIM102  dh . v of the same step
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
            if SKIP and not SUMS:
                p += gl.where(u[:, None] == z[None, :], skip_weight, 0.0)
            if NORM:
                bound = gl.exp2(-1.4426950408889634 * e_buf.index(2).load(u_l))
                denominator = gl.maximum(gl.abs(gl.exp2(a_u) * qn + gl.sum(p, axis=1)), bound)
                a_u -= gl.log2(denominator)
                if piece == 0:
                    gl.store(back_ptr + at + u, a_u)
                p = p * (1.0 / denominator)[:, None]
                mbarrier.wait(p_empty.index(b), ((i // SLOTS) & 1) ^ 1)
                r_buf.index(b).store(gl.exp2(a_u))
                s_buf.index(b).store(gl.exp2(y_now + g_now))
            elif REVERSE:
                mbarrier.wait(p_empty.index(b), ((i // SLOTS) & 1) ^ 1)
                r_buf.index(b).store(gl.exp2(x_now + g_now))
                s_buf.index(b).store(gl.exp2(y_now))
            else:
                mbarrier.wait(p_empty.index(b), ((i // SLOTS) & 1) ^ 1)
                r_buf.index(b).store(gl.exp2(x_now))
                s_buf.index(b).store(gl.exp2(y_now + g_now))
            rounded = p.to(p_buf.dtype)
            p_buf.index(b).store(rounded)
            fence_async_shared()
            barrier()  # P, r and s are in shared memory; the exponents and n have been read
            mbarrier.arrive(p_full.index(b), count=1)
            if SUMS:  # of P Z alone: sum of X . (P Z) = sum of P (X Z^T)
                xz = gl.zeros([64, 64], gl.float32, layout=p_l)
                for c in gl.static_range(2 * ZB):
                    zT = block(z_buf, s * 2 * ZB + c).permute((1, 0))
                    xz = warpgroup_mma(block(x_buf, s * 2 * ZB + c), zT, xz, use_acc=(c > 0), is_async=True)
                xz = warpgroup_mma_wait(0, deps=(xz,))
                within = within_ptr + piece.to(gl.int64) * part_stride + row.to(gl.int64) * steps
                step = tile_now * 64 + u
                gl.store(within + step, gl.sum(rounded.to(gl.float32) * xz, axis=1), mask=step < steps)
                barrier()  # every warp has read its rows of X and Z
            if NORM:
                s_k = s_buf.index(b).load(gl.SliceLayout(1, down))
                for c in range(WB):
                    k = block(w_buf, s * WB + c).load(down).to(gl.float32)
                    added = gl.sum((k * s_k[:, None]).reshape([4, 16, 64]), axis=1)  # each warp its 16 steps
                    n_c = parts_of_n.index(c)
                    n_c.store(n_c.load(n_l) * gl.exp2(g_now) + gl.convert_layout(added, n_l, assert_trivial=True))
                fence_async_shared()
                barrier()
            mbarrier.arrive(empty.index(s), count=1)
            i += 1
        if NORM:
            if LAST:  # noqa: SIM102
                if piece == 0:
                    for wb in gl.static_range(WB):
                        last = gl.sum(parts_of_n.index(wb).load(n_l), axis=0)
                        gl.store(n_last_ptr + n0 + 64 * wb + gl.arange(0, 64, layout=gl.SliceLayout(0, n_l)), last)
            barrier()


@gluon.jit
def state_pointers(ptr, z, w, z_stride, w_stride, layout: gl.constexpr):
    rows = z + gl.arange(0, 64, layout=gl.SliceLayout(1, layout))
    columns = w + gl.arange(0, 64, layout=gl.SliceLayout(0, layout))
    return ptr + rows[:, None] * z_stride + columns[None, :] * w_stride, rows[:, None]


@gluon.jit
def by_thread(x):
    """A block in registers, [64, 64], as [16, 256]: two neighbours of each of 128 threads a row. No data moves."""
    x = x.reshape([4, 2, 8, 8, 4, 2])  # 16 rows a warp in two halves, 8 columns a quad in neighbours
    return x.permute((3, 1, 0, 2, 4, 5)).reshape([16, 256])


@gluon.jit
def checkpoint_pointers(ptr, like):
    """Where a block goes in a checkpoint: so that threads side by side write words side by side."""
    layout: gl.constexpr = like.type.layout
    rows = gl.arange(0, 16, layout=gl.SliceLayout(1, layout))
    words = gl.arange(0, 256, layout=gl.SliceLayout(0, layout))
    return (ptr + words[None, :]) + rows[:, None] * 256  # in this order: constants added to one pointer a thread


@gluon.jit
def math(
    o_desc, g_ptr, first_ptr, last_ptr, sums_ptr, checkpoint_ptr, dots_ptr,
    buffers, p_buf, o_buf, factors, empty, ready, p_full, p_empty,
    items, geometry, steps, part_stride, column, z_dim, w_dim, z_stride, w_stride,
    HALF: gl.constexpr, STAGES: gl.constexpr, SLOTS: gl.constexpr, WB: gl.constexpr, ZB: gl.constexpr,
    OUTS: gl.constexpr, REVERSE: gl.constexpr, SUMS: gl.constexpr, FIRST: gl.constexpr, LAST: gl.constexpr,
    ADD: gl.constexpr,
):  # fmt: skip
    s_l: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
    a_l: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=s_l, k_width=2)
    u_l: gl.constexpr = gl.SliceLayout(0, s_l)
    dtype: gl.constexpr = p_buf.dtype
    u_buf, w_buf, z_buf, x_buf = buffers
    r_buf, s_buf = factors
    heads, tiles, segment_tiles, segments, pieces = geometry
    windows = (tiles - 1) // WINDOW
    sequences = items // (pieces * segments)
    i = 0
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        batch, head, first, n, row, index, piece = place_of(item, heads, tiles, segment_tiles, segments, pieces)
        z0 = piece * (128 * ZB) + HALF * (64 * ZB)
        part = piece * 2 + HALF
        part_window = ((part * sequences + row) * windows).to(gl.int64)
        opaque = i >> 30  # 0: keeps addresses of an item's states out of registers while it is walked
        state = ()  # ZB x WB blocks
        for zb in gl.static_range(ZB):
            for wb in gl.static_range(WB):
                if FIRST:
                    at, rows = state_pointers(
                        first_ptr + index * z_dim * w_dim, z0 + 64 * zb + opaque, column + 64 * wb + opaque,
                        z_stride, w_stride, s_l,
                    )  # fmt: skip
                    state += (gl.load(at, mask=rows < z_dim, other=0.0),)
                else:
                    state += (gl.zeros([64, 64], gl.float32, layout=s_l),)
        for j in range(n):
            tile = nth_tile(first, j, n, REVERSE)
            if SUMS:
                if REVERSE:  # the state is dC after the tile
                    edge = tile + 1
                else:  # C before the tile
                    edge = tile
                if (edge % WINDOW == 0) & (edge > 0) & (edge < tiles):
                    window = edge // WINDOW - 1
                    kept = checkpoint_ptr + (part_window + window) * (WB * 4096)
                    if REVERSE:
                        product = by_thread(state[0])
                        product *= gl.load(checkpoint_pointers(kept, product)).to(gl.float32)
                        for wb in gl.static_range(1, WB):
                            mine = by_thread(state[wb])
                            product += gl.load(checkpoint_pointers(kept + wb * 4096, mine)).to(gl.float32) * mine
                        dot = gl.sum(gl.sum(product, axis=1), axis=0)
                        gl.store(dots_ptr + part_window + window, dot)
                    else:
                        one = gl.exp2((i >> 30).to(gl.float32))  # else the rounded state would be kept for the products
                        for wb in gl.static_range(WB):
                            mine = by_thread(state[wb] * one)
                            gl.store(checkpoint_pointers(kept + wb * 4096, mine), mine.to(dtype))
            mbarrier.wait(ready.index(i % STAGES), (i // STAGES) & 1)
            new_state = ()
            e = gl.exp2(gl.load(g_ptr + row * tiles + tile))
            for zb in gl.static_range(ZB):
                # i >> 30 is 0: spelled anew for each zb, or addresses stay in registers
                s = i % STAGES + (i >> (30 - zb))
                b = i % SLOTS + (i >> (30 - zb))
                z_block = (s * 2 + HALF) * ZB + zb
                zT = block(z_buf, z_block).permute((1, 0))
                o = gl.zeros([64, 64], gl.float32, layout=s_l)  # out^T, [z, u]
                for wb in gl.static_range(WB):
                    a = gl.convert_layout(state[zb * WB + wb].to(dtype), a_l)
                    uT = block(u_buf, s * WB + wb).permute((1, 0))
                    o = warpgroup_mma(a, uT, o, use_acc=(wb > 0), is_async=True)
                    o, a = warpgroup_mma_wait(0, deps=(o, a))
                tma.store_wait(pendings=OUTS - 1)
                barrier()  # a buffer for out is free
                if zb == 0:
                    mbarrier.wait(p_full.index(b), (i // SLOTS) & 1)
                o = o * r_buf.index(b).load(u_l)[None, :]
                o = warpgroup_mma(zT, p_buf.index(b).permute((1, 0)), o, is_async=True)
                flight = ()
                for wb in gl.static_range(WB):  # all before the first product: nothing may touch registers in flight
                    flight += (state[zb * WB + wb] * e,)
                operands = ()
                for h in gl.static_range(2):  # of 32 steps each: half the registers on their way to an operand
                    zs = zT.slice(32 * h, 32, dim=1).load(a_l).to(gl.float32)
                    zs = (zs * s_buf.index(b).slice(32 * h, 32).load(gl.SliceLayout(0, a_l))[None, :]).to(dtype)
                    operands += (zs,)
                    onward = ()
                    for wb in gl.static_range(WB):
                        w_part = block(w_buf, s * WB + wb).slice(32 * h, 32, dim=0)
                        onward += (warpgroup_mma(zs, w_part, flight[wb], is_async=True),)
                    flight = onward
                if ZB == 1:
                    o = warpgroup_mma_wait(2 * WB, deps=(o,))  # the state is updated while out is written
                else:
                    o = warpgroup_mma_wait(0, deps=(o,))  # as above it would serialise the products (ptxas C7512)
                if SUMS:
                    x = block(x_buf, z_block).permute((1, 0)).load(s_l)
                    x = block(x_buf, z_block).permute((1, 0)).load(s_l)
                    dot = gl.sum(x.to(gl.float32) * o, axis=0)
                    sums = sums_ptr + (part * ZB + zb).to(gl.int64) * part_stride + row.to(gl.int64) * steps
                    step = tile * 64 + gl.arange(0, 64, layout=u_l)
                    gl.store(sums + step, dot, mask=step < steps)
                out = o_buf.index((i * ZB + zb) % OUTS)
                out.reshape([64, 64]).permute((1, 0)).store(o.to(dtype))
                fence_async_shared()
                barrier()
                if zb == ZB - 1:
                    mbarrier.arrive(p_empty.index(b), count=1)
                at_out = [batch, head, tile * 64, z0 + 64 * zb]
                if ADD:
                    tma_add(o_desc, at_out, out)
                else:
                    tma_store(o_desc, at_out, out)
                done = warpgroup_mma_wait(0, deps=flight + operands)  # operands: kept until the products are done
                for wb in gl.static_range(WB):
                    new_state += (done[wb],)
            state = new_state
            fence_async_shared()
            barrier()
            mbarrier.arrive(empty.index(i % STAGES), count=1)
            i += 1
        if LAST:
            opaque = i >> 30
            for zb in gl.static_range(ZB):
                for wb in gl.static_range(WB):
                    at, rows = state_pointers(
                        last_ptr + index * z_dim * w_dim, z0 + 64 * zb + opaque, column + 64 * wb + opaque,
                        z_stride, w_stride, s_l,
                    )  # fmt: skip
                    gl.store(at, state[zb * WB + wb], mask=rows < z_dim)
    tma.store_wait(pendings=0)


# Sequences of one tile must not become another kernel: Triton 3.6 fails to compile that.
@gluon.jit(do_not_specialize=["steps", "tiles", "segment_tiles"])
def walk(
    u_desc, w_desc, z_desc, x_desc, o_desc, au_ptr, az_ptr, g_ptr, first_ptr, last_ptr, sums_ptr, within_ptr,
    checkpoint_ptr, dots_ptr, m_ptr, back_ptr, n_first_ptr, n_last_ptr, skip_ptr, skip_dots_ptr,
    items, heads, u_sharing, z_sharing, steps, tiles, segment_tiles, segments, pieces, column,
    z_dim, w_dim, z_stride, w_stride, part_stride,
    STAGES: gl.constexpr, SLOTS: gl.constexpr, OUTS: gl.constexpr, WB: gl.constexpr,
    ZB: gl.constexpr, MATH_REGISTERS: gl.constexpr,
    REVERSE: gl.constexpr, SUMS: gl.constexpr, NORM: gl.constexpr, FIRST: gl.constexpr, LAST: gl.constexpr,
    ADD: gl.constexpr, SKIP: gl.constexpr,
):  # fmt: skip
    """A program takes work items, pieces of the state of a segment of a (batch, head) row, one after the other.

    SKIP: skip (heads,) is added to the diagonal of P (h, dv); with sums (dq) U_u . W_u is written to skip_dots instead.
    u_sharing, z_sharing: consecutive heads that share one of U and W, of Z and X; out has all of them.

    So the loads of an item run while the one before it ends. Launched by launch.py.
    """
    geometry = (heads, tiles, segment_tiles, segments, pieces)
    dtype: gl.constexpr = u_desc.dtype
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, order=[0])
    u_buf = gl.allocate_shared_memory(dtype, [STAGES * WB, 1, 1, 64, 64], u_desc.layout)
    w_buf = gl.allocate_shared_memory(dtype, [STAGES * WB, 1, 1, 64, 64], u_desc.layout)
    z_buf = gl.allocate_shared_memory(dtype, [STAGES * 2 * ZB, 1, 1, 64, 64], u_desc.layout)
    x_buf = z_buf
    if SUMS:
        x_buf = gl.allocate_shared_memory(dtype, [STAGES * 2 * ZB, 1, 1, 64, 64], u_desc.layout)
    p_buf = gl.allocate_shared_memory(dtype, [SLOTS, 64, 64], gl.NVMMASharedLayout.get_default_for([64, 64], dtype))
    o_buf0 = gl.allocate_shared_memory(dtype, [OUTS, 1, 1, 64, 64], u_desc.layout)
    o_buf1 = gl.allocate_shared_memory(dtype, [OUTS, 1, 1, 64, 64], u_desc.layout)
    r_buf = gl.allocate_shared_memory(gl.float32, [SLOTS, 64], flat)
    s_buf = gl.allocate_shared_memory(gl.float32, [SLOTS, 64], flat)
    e_buf = gl.allocate_shared_memory(gl.float32, [2 + NORM, 64], flat)
    n_buf = r_buf
    if NORM:
        n_buf = gl.allocate_shared_memory(gl.float32, [WB * 4, 64], flat)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    p_full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    p_empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(empty.index(i), count=3)  # released by score and by both math roles
        mbarrier.init(ready.index(i), count=1)
    for i in gl.static_range(SLOTS):
        mbarrier.init(p_full.index(i), count=1)
        mbarrier.init(p_empty.index(i), count=2)
    buffers = (u_buf, w_buf, z_buf, x_buf)
    factors = (r_buf, s_buf)
    gl.warp_specialize(
        [
            (math, (o_desc, g_ptr, first_ptr, last_ptr, sums_ptr, checkpoint_ptr, dots_ptr,
                    buffers, p_buf, o_buf0, factors, empty, ready, p_full, p_empty,
                    items, geometry, steps, part_stride, column, z_dim, w_dim, z_stride, w_stride,
                    0, STAGES, SLOTS, WB, ZB, OUTS, REVERSE, SUMS, FIRST, LAST, ADD)),
            (math, (o_desc, g_ptr, first_ptr, last_ptr, sums_ptr, checkpoint_ptr, dots_ptr,
                    buffers, p_buf, o_buf1, factors, empty, ready, p_full, p_empty,
                    items, geometry, steps, part_stride, column, z_dim, w_dim, z_stride, w_stride,
                    1, STAGES, SLOTS, WB, ZB, OUTS, REVERSE, SUMS, FIRST, LAST, ADD)),
            (score, ((au_ptr, az_ptr, g_ptr), (m_ptr, back_ptr, n_first_ptr, n_last_ptr),
                     (skip_ptr, skip_dots_ptr), within_ptr,
                     buffers, n_buf, e_buf, p_buf, factors, empty, ready, p_full, p_empty,
                     items, geometry, steps, part_stride, w_dim,
                     STAGES, SLOTS, WB, ZB, REVERSE, SUMS, NORM, FIRST, LAST, SKIP)),
            (produce, ((u_desc, w_desc, z_desc, x_desc), buffers, empty, ready,
                       items, geometry, (u_sharing, z_sharing), column,
                       STAGES, WB, ZB, REVERSE, SUMS)),
        ],
        [4, 4, 1],
        [MATH_REGISTERS, 488 - 2 * MATH_REGISTERS, 24],
    )  # fmt: skip
