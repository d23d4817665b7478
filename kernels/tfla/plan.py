"""A plan: what all kernels of one call share, gates, chunks and precision."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from tflabench.kernels.cover import cdiv
from tflabench.kernels.gates import LogGates, TileGates, tile_gates
from tflabench.kernels.types import Gate


@dataclass(frozen=True)
class Plan:
    """One call, seen from a kernel's launcher.

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
        return cdiv(self.gates.log_f.shape[-1], self.chunk_size)

    def tile_gates(self, tile: int) -> TileGates:
        """Return `gates.tile_gates`, computed once for each tile size."""
        if tile not in self._tile_gates:
            self._tile_gates[tile] = tile_gates(self.gates, tile)
        return self._tile_gates[tile]

    def segments(self, programs: int) -> int:
        """Return how many segments to cut the sequence into, if without any there are so many programs."""
        return max(1, min(self.chunks, self.programs // programs))


def float32_precision(dtype: torch.dtype) -> str:
    """Return "ieee", or "tf32" for float32 where the user allowed it (`torch.set_float32_matmul_precision`)."""
    return "tf32" if dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest" else "ieee"
