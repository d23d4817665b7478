# type: ignore   # Gluon: what runs on the device has no types that a Python checker knows
"""Bring Triton 3.6 and 3.9 under one name where they differ.

Some functions of Gluon moved. Some code compiles to something slower on the later version unless it is told
(docs/decisions/2026-11-23-triton-versions.md, 2026-11-22-serialised-products.md).
"""

import triton
from triton import knobs
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia.hopper import tma, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@builtin
def reinterpret(memory, dtype, shape, layout, _semantic=None):
    """View shared memory by another shape and layout."""
    name = "reinterpret" if hasattr(type(memory), "reinterpret") else "_reinterpret"
    return getattr(memory, name)(dtype, shape, layout, _semantic=_semantic)


@builtin
def wait_for_products(num_outstanding=0, deps=None, _semantic=None):
    """Wait for the products of a warp's own group, as warpgroup_mma_wait.

    In a partition of two groups Triton 3.9 follows each wait with a barrier of both (its pull request 11056), for what
    one has read the other could overwrite. The partitions here have a `barrier` of their own before they release what
    was read.
    """
    found = warpgroup_mma_wait(num_outstanding, deps, _semantic=_semantic)
    one = found if len(deps) == 1 else found[0]
    one.handle.set_attr("warpGroupLocal", _semantic.builder.get_unit_attr())
    return found


wait_for_kernel_before, let_next_kernel_start = gdc_wait, gdc_launch_dependents

barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier
tma_load = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
tma_store = tma.async_store if hasattr(tma, "async_store") else tma.async_copy_shared_to_global

if hasattr(tma, "async_atomic_add"):
    tma_add = tma.async_atomic_add
else:
    from triton._C.libtriton import ir

    @builtin
    def tma_add(tensor_desc, coord, src, _semantic=None):
        """Add shared to global memory, by the L2 (`cp.reduce.async.bulk.tensor`): Triton 3.6 has it without a name."""
        coord = _semantic._convert_to_ir_values(coord, require_i64=False)
        _semantic.builder.create_async_tma_reduce(ir.DESCRIPTOR_REDUCE_KIND.ADD, tensor_desc.handle, coord, src.handle)


# From 3.7 on Triton has ptxas allocate registers with less care (`--regAllocOptLevel=2`, against a bug of ptxas 13):
# the walks then spill three times as much. 4 is what every ptxas does by itself; the last option given counts.
ASSEMBLY = {"ptx_options": " ".join(filter(None, ["--regAllocOptLevel=4", knobs.nvidia.ptxas_options]))}

HOISTS = gl.constexpr(tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 7))
WIDEST_OPERAND = gl.constexpr(2 if HOISTS else 4)  # blocks of U or W in a product of scores, see `uniform`


@gluon.jit
def wait_for_kernel_before_unless(condition):
    """Wait for the kernel before this one, without a branch: with one h of 256/512 spills 28 B more (Triton 3.6)."""
    asm: gl.constexpr = "{ .reg .pred p; setp.eq.s32 p, $1, 0; @p griddepcontrol.wait; mov.b32 $0, 0; }"
    unless = gl.to_tensor(condition).to(gl.int32)
    gl.inline_asm_elementwise(asm, "=r,r", [unless], gl.int32, is_pure=False, pack=1)


@gluon.jit
def zero_from_here(i):
    """Return 0 so that an address made of it stays behind what stands before it, for example a product.

    Later LLVMs form the descriptors of products that follow each other all before the first: 22 of them, 44 registers.
    """
    if HOISTS:
        return gl.inline_asm_elementwise("mov.b32 $0, 0;", "=r,r", [i], gl.int32, is_pure=False, pack=1)
    else:
        return 0


@gluon.jit
def zero_in_round(j):
    """Return 0, before 3.7 made of a loop's counter: addresses made of a constant LLVM would keep in registers."""
    if HOISTS:
        return 0
    else:
        return j >> 30


@gluon.jit
def opaque_zero(i, n: gl.constexpr = 0):
    """Return 0, made of a counter so that the compiler does not fold it.

    An address made of it is worked out where it is used, not kept in registers; a different n gives another address, so
    that two uses do not share one either. Without it h of 128/256 spills 224 B and takes 4 to 13% longer.
    """
    return i >> (30 - n)


@gluon.jit
def pinned(x):
    """Return x of 32 bits, worked out here: sums that are needed late are put off, and all they are made of is kept."""
    kinds: gl.constexpr = "=f,f" if x.dtype == gl.float32 else "=r,r"
    return gl.inline_asm_elementwise("mov.b32 $0, $1;", kinds, [x], x.dtype, is_pure=False, pack=1)


@gluon.jit
def prefetch(ptr, BYTES: gl.constexpr):
    """Start to bring contiguous bytes, a multiple of 16 from an aligned address on, to the L2 cache. One warp."""
    asm: gl.constexpr = """{ .reg .pred p; elect.sync _|p, 0xffffffff;
        @p cp.async.bulk.prefetch.L2.global [$1], $2; mov.b32 $0, 0; }"""
    gl.inline_asm_elementwise(asm, "=r,l,r", [ptr, gl.to_tensor(BYTES)], gl.int32, is_pure=False, pack=1)


@gluon.jit
def uniform(i):
    """Return i, the same in every lane, in a uniform register: what descriptors are computed of stays in those.

    Later LLVMs form every descriptor of a product ahead of it from a 32-bit address. Where these are more than there
    are uniform registers (or i is in no such register to begin with), ptxas takes others, and every instruction of the
    product waits for two moves (R2UR): forward of exp took 28% longer at 256/512.
    """
    if HOISTS:
        asm: gl.constexpr = "redux.sync.or.b32 $0, $1, 0xffffffff;"
        return gl.inline_asm_elementwise(asm, "=r,r", [i], gl.int32, is_pure=False, pack=1)
    else:
        return i
