"""Name what all kernels of one call share: its plan, scale and precision."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from tflabench.kernels.common import device
from tflabench.kernels.common.device import float32_precision
from tflabench.kernels.common.places import Places, places_of_chunks
from tflabench.kernels.common.sizes import Sizes
from tflabench.kernels.gla.plan import Plan

from .tiles import Rows, rows


class Arguments(NamedTuple):
    """The tensors of a call.

    Attributes:
        q, k: (B, H, T, d_qk), any strides.
        v: (B, H, T, d_hv), of the dtype of q and k; any strides.
        g: (B, H, T, d_qk), natural log decays.
        initial: (B, H, d_qk, d_hv) float32, the state before the first step, or None.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    initial: Tensor | None


class Call(NamedTuple):
    """Tell launchers of kernels of a call, but for its tensors.

    Attributes:
        plan: what is launched.
        scale: of q.
        precision: Triton's input_precision of float32 products.
        places: of documents, whose chunks are tiles of these; None for sequences.
    """

    plan: Plan
    scale: float
    precision: str
    places: Places | None = None

    @staticmethod
    def of(arguments: Arguments, chunk_size: int, scale: float, bounds: tuple[int, ...] | None = None) -> Call:
        """Return the call with these tensors, of documents between bounds."""
        q, v = arguments.q, arguments.v
        dtype = str(q.dtype).removeprefix("torch.")
        sizes, places = Sizes.of(q, v), None
        if bounds:
            places = places_of_chunks(bounds, chunk_size, q.device)
            sizes, chunk_size = sizes._replace(steps=places.count), places.tile
        plan = Plan.of(sizes, chunk_size, dtype, device.multiprocessors(q.device))
        return Call(plan, scale, float32_precision(q.dtype), places)

    def rows(self, x: Tensor) -> Rows:
        """Return what kernels take for x (B, H, T, d) (`tiles.rows`)."""
        return rows(x, None if self.places is None else self.places.steps)
