"""Name what all kernels of one call share: its shape, chunks, tiles and precision."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tflabench.kernels.cover import cdiv
from tflabench.kernels.plan.tfla import fitting
from tflabench.kernels.tfla import device
from tflabench.kernels.tfla.call import float32_precision

from .config import Blocks

REACH = {torch.bfloat16: 80.0, torch.float16: 16.0, torch.float32: 80.0}
PROGRAMS = 264  # the walk over states is cut into segments until it has about this many, on 132 multiprocessors


@dataclass(frozen=True)
class Plan:
    """Say how a call is run, to the launchers of kernels.

    Attributes:
        batch, heads, T, d_qk, d_hv: the shape.
        chunk_size: steps between two states in memory, a multiple of every tile.
        scale: of q.
        blocks: how kernels cut it.
        reach: bits that a channel may close in a tile with one reference for all pairs of its steps.
        precision: Triton's input_precision of float32 products.
        programs: at least as many should run at once.
    """

    batch: int
    heads: int
    T: int
    d_qk: int
    d_hv: int
    chunk_size: int
    scale: float
    blocks: Blocks
    reach: float
    precision: str
    programs: int

    @staticmethod
    def of(q: Tensor, v: Tensor, chunk_size: int, scale: float) -> Plan:
        """Return the plan of a call with q (B, H, T, d_qk) and v (B, H, T, d_hv)."""
        (batch, heads, T, d_qk), d_hv = q.shape, v.shape[-1]
        L = fitting(chunk_size, T)
        return Plan(
            *(batch, heads, T, d_qk, d_hv),
            chunk_size=L,
            scale=scale,
            blocks=Blocks.for_shape(d_qk, d_hv, q.element_size(), L),
            reach=REACH[q.dtype],
            precision=float32_precision(q.dtype),
            programs=PROGRAMS * device.multiprocessors(q.device) // 132,
        )

    @property
    def tiles(self) -> int:
        """Tiles of the sequence."""
        return cdiv(self.T, self.blocks.tile)

    @property
    def chunk_tiles(self) -> int:
        """Tiles of a chunk."""
        return self.chunk_size // self.blocks.tile

    @property
    def chunks(self) -> int:
        """Chunks of the sequence."""
        return cdiv(self.T, self.chunk_size)

    @property
    def levels(self) -> int:
        """Times that a tile can be halved."""
        return self.blocks.tile.bit_length() - 1

    def segments(self, programs: int) -> int:
        """Return how many segments to cut the sequence into, where each has this many programs."""
        return max(1, min(self.chunks, self.programs // programs))
