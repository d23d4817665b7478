# type: ignore   # Gluon: what runs on the device has no types that a Python checker knows
"""A tile of 64 steps of the fused delta rules, but for q, k and v: gates, strengths, decays, scores."""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma

from tflabench.kernels.delta import hopper_plan as plan
from tflabench.kernels.delta import normalize
from tflabench.kernels.scalar.hopper.conversions import nearest, widened
from tflabench.kernels.scalar.hopper.tiles import ACC, ACC_COLUMN, ACC_ROW, block
from tflabench.kernels.scalar.hopper.workarounds import wait_for_products

LOG2E = gl.constexpr(1.4426950408889634)
LEAST_STRENGTH = gl.constexpr(plan.LEAST_STRENGTH)
EPSILON = gl.constexpr(normalize.EPSILON)
LEAST_GATE = gl.constexpr(-160.0)  # a log2 gate below counts as this: its weights are 0 in float32 anyway
BEYOND = gl.constexpr(-1e30)  # sums of log2 gates at steps beyond the last one, which read nothing
STEP_OF_EACH_WARP = gl.constexpr(gl.BlockedLayout([2], [32], [4], [0]))  # 64 steps, all of them in every warp


class DeltaGates(NamedTuple):
    """Log decays g, float32, or anything without a decay, and strengths beta, float32: (B, H, T), contiguous."""

    g: Any
    beta: Any


class NormalizedGates(NamedTuple):
    """As `DeltaGates`, with the norms of k as it comes, like beta, which `make_inverses` writes."""

    g: Any
    beta: Any
    norms: Any


@gluon.jit
def add(a, b):
    """Return the sum, for `associative_scan`."""
    return a + b


@gluon.jit
def steps_of(row, tile, num_steps, steps, DOCUMENTS: gl.constexpr):
    """Return where the steps of a tile are in tensors (B, H, T), [64], and which of them exist; see `load_steps`."""
    t = tile * 64 + gl.arange(0, 64, layout=STEP_OF_EACH_WARP)
    if DOCUMENTS:
        t = gl.load(steps + t)
        there = t >= 0
    else:
        there = t < num_steps
    return row * num_steps + t, there


@gluon.jit
def load_steps(gates, row, tile, num_steps, GATED: gl.constexpr, steps=0, DOCUMENTS: gl.constexpr = False):
    """Return of a tile the log gates, and the roots of the strengths, which are 0 beyond the last step: [64] each.

    Args:
        steps: of documents, see `DeltaSchedule`.
    """
    at, there = steps_of(row, tile, num_steps, steps, DOCUMENTS)
    beta = gl.load(gates.beta + at, mask=there, other=0.0)
    root = gl.where(there, gl.sqrt(gl.maximum(beta, LEAST_STRENGTH)), 0.0)
    if GATED:
        return gl.load(gates.g + at, mask=there, other=0.0), root
    else:
        return gl.zeros([64], gl.float32, layout=STEP_OF_EACH_WARP), root


@gluon.jit
def sums_of_gates(g):
    """Return b, the sums of log2 gates from the first step of a tile to each of its steps."""
    return gl.associative_scan(gl.maximum(g * LOG2E, LEAST_GATE), 0, add)


@gluon.jit
def products(x_blocks, x_tile, y_blocks, y_tile):
    """Return x y^T of two tiles of 128 columns, [64, 64] float32."""
    return wait_for_products(0, deps=(begin_products(x_blocks, x_tile, y_blocks, y_tile),))


@gluon.jit
def begin_products(x_blocks, x_tile, y_blocks, y_tile):
    """Return what `products` does, once they have been waited for."""
    xy = gl.zeros([64, 64], gl.float32, layout=ACC)
    for j in gl.static_range(2):
        # [64, 64] @ [64, 64] -> [64, 64]
        yT = block(y_blocks, 2 * y_tile + j).permute((1, 0))
        xy = warpgroup_mma(block(x_blocks, 2 * x_tile + j), yT, xy, use_acc=j > 0, is_async=True)
    return xy


@gluon.jit
def norms_of(blocks, tile):
    """Return sqrt(sum of squares + EPSILON) of the steps of a tile of 128 columns, [64] float32."""
    squares = gl.zeros([64], gl.float32, layout=ACC_ROW)
    for j in gl.static_range(2):
        x = widened(block(blocks, 2 * tile + j).load(ACC))
        squares += gl.sum(x * x, axis=1)
    return gl.sqrt(squares + EPSILON)


@gluon.jit
def divide_by_norms(blocks):
    """Divide a tile of 128 columns in place by the norms of its steps; each thread reads and writes what is its own."""
    inverse = (1.0 / norms_of(blocks, 0))[:, None]
    for j in gl.static_range(2):
        x = block(blocks, j)
        x.store(nearest(widened(x.load(ACC)) * inverse, x.dtype))


@gluon.jit
def decayed(x, prefix, root):
    """Return x_ij 2^(b_i - b_j) s_j, [64, 64], where j <= i; elsewhere any number.

    Args:
        prefix, root: b and s, [64] float32 in shared memory.
    """
    decay = gl.exp2(gl.minimum(prefix.load(ACC_ROW)[:, None] - prefix.load(ACC_COLUMN)[None, :], 0.0))
    return x * decay * root.load(ACC_COLUMN)[None, :]
