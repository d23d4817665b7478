"""Plan the kernels of Kimi Delta Attention: what they take, and the tiles of their walks."""

from __future__ import annotations

from dataclasses import replace

from tflabench.kernels.common import tiling
from tflabench.kernels.common.sizes import Device, Sizes
from tflabench.kernels.delta.plan import WalkTiles
from tflabench.kernels.gla.plan import GlaPlan

LARGEST_D_QK = 128  # at 256/512 a kernel reads outside of its tensors
EVERY_GATE = -1.0  # a `GlaPlan.reach` of no tile: all are halved, so that times do not depend on the gates


def refuses_sizes(d_qk: int, d_hv: int, chunk_size: int | None) -> str | None:
    """Return why the kernels do not take these sizes, or None if they do; a chunk size of None is left to them."""
    if d_qk > LARGEST_D_QK:
        return f"takes a d_qk up to {LARGEST_D_QK}, not {d_qk}"
    return tiling.refuses_sizes(d_qk, d_hv, chunk_size)


def planned(sizes: Sizes, chunk_size: int, dtype: str, beta_max: int, device: Device) -> tuple[GlaPlan, WalkTiles]:
    """Return the plan of a call, as for Gated Linear Attention, and the tiles of its walks."""
    plan = replace(GlaPlan.of(sizes, chunk_size, dtype, device.multiprocessors), reach=EVERY_GATE)
    element_bytes = 4 if dtype == "float32" else 2
    walk = replace(WalkTiles.of(sizes, plan.chunk_size, element_bytes, beta_max, device), rows=plan.blocks.tile)
    fits = shared_bytes(walk, element_bytes, device.architecture) <= device.shared_memory
    return plan, walk if fits else replace(walk, stages=1)


def shared_bytes(walk: WalkTiles, size: int, architecture: int) -> int:
    """Return what Triton allots a program of a walk of shared memory, at most, for elements of `size` bytes."""
    columns = 2 * walk.backward.columns  # of do and R
    tile = walk.rows * (3 * walk.channels + columns + (walk.parts + 1) * walk.rows)
    return size * tiling.buffered(walk.stages, architecture) * tile + tiling.SMALL_BUFFERS
