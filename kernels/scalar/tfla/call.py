"""Name what all kernels of one call share: its tensors, gates, chunks and precision."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from tflabench.kernels.common.places import Table
from tflabench.kernels.scalar.gates import LogGates, TileGates, tile_gates
from tflabench.kernels.scalar.plan.tfla import Plan
from tflabench.kernels.types import Gate


class Inputs(NamedTuple):
    """Tensors of a call, as kernels take them (`descriptors.aligned`).

    Attributes:
        skip: (H,) float32 contiguous, weights of the skip connection, or None.
        dh: the gradient of H; backward only.
        inverse: (B, H, T) float32, 1 / denominator; backward of a normalised gate only.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    skip: Tensor | None = None
    dh: Any = None
    inverse: Tensor | None = None


class EdgeStates(NamedTuple):
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
class Call:
    """Tell launchers of kernels of a call, but for its tensors.

    Attributes:
        gate, gates: the gate, and its log gates (B, H, T).
        documents: where documents lie, whose gates are by places (`kernels.common.places`); None for sequences.
    """

    plan: Plan
    gate: Gate
    gates: LogGates
    scale: float
    precision: str
    documents: Table | None = None
    _tile_gates: dict[int, TileGates] = field(default_factory=dict[int, TileGates])

    def tile_gates(self, tile: int) -> TileGates:
        """Return `gates.tile_gates`, computed once for each tile size."""
        if tile not in self._tile_gates:
            self._tile_gates[tile] = tile_gates(self.gates, tile)
        return self._tile_gates[tile]
