"""Name what all kernels of one call share: its tensors, gates, chunks and precision."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from tflabench.kernels.cover import cdiv
from tflabench.kernels.gates import LogGates, TileGates, tile_gates
from tflabench.kernels.types import Gate


class Inputs(NamedTuple):
    """Tensors of a call, as kernels take them (`tiles.aligned`).

    Attributes:
        q, k: (B, H, T, d_qk), or fewer heads, each for consecutive ones of v.
        v: (B, H, T, d_hv).
        skip: (H,) float32 contiguous, weights of the skip connection, or None.
        dh: (B, H, T, d_hv), the gradient of H; backward only.
        inverse: (B, H, T) float32, 1 / denominator; backward of a normalised gate only.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    skip: Tensor | None = None
    dh: Tensor | None = None
    inverse: Tensor | None = None


class States(NamedTuple):
    """States at the near edges of chunks, or their gradients.

    Attributes:
        states: (B, H, chunks, d_qk, d_hv), or None.
        n_states: (B, H, chunks, d_qk) float32, or None.
        first: whether the first chunk met has one: an initial state, or the gradient of the last.
    """

    states: Tensor | None
    n_states: Tensor | None
    first: bool


@dataclass(frozen=True)
class Plan:
    """Say how a call is run, to the launchers of kernels.

    Attributes:
        gate, gates: the gate, and its log gates (B, H, T).
        chunk_size: steps between materialised states, a multiple of every tile.
        scale: of q.
        tma: whether tiles travel by host-made descriptors (compute capability 9.0 and later, and the interpreter).
        precision: Triton's input_precision of float32 products.
        programs: at least as many should run at once.
    """

    gate: Gate
    gates: LogGates
    chunk_size: int
    scale: float
    tma: bool
    precision: str
    programs: int
    _tile_gates: dict[int, TileGates] = field(default_factory=dict[int, TileGates])

    @property
    def chunks(self) -> int:
        """Chunks of the sequence."""
        return cdiv(self.gates.log_f.shape[-1], self.chunk_size)

    def tile_gates(self, tile: int) -> TileGates:
        """Return `gates.tile_gates`, computed once for each tile size."""
        if tile not in self._tile_gates:
            self._tile_gates[tile] = tile_gates(self.gates, tile)
        return self._tile_gates[tile]

    def segments(self, programs: int) -> int:
        """Return how many segments to cut the sequence into, where each has this many programs."""
        return max(1, min(self.chunks, self.programs // programs))


def float32_precision(dtype: torch.dtype) -> str:
    """Return "ieee", or "tf32" for float32 where the user allowed it (`torch.set_float32_matmul_precision`)."""
    return "tf32" if dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest" else "ieee"
