"""Name what all kernels of one call share: its plan, scale and precision."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from tflabench.kernels.common import device
from tflabench.kernels.common.contract import Arguments, KernelOptions
from tflabench.kernels.common.device import float32_precision
from tflabench.kernels.common.places import Places, places_of_chunks
from tflabench.kernels.common.rows import Rows, rows
from tflabench.kernels.common.sizes import Sizes
from tflabench.kernels.gla.plan import GlaPlan


class GlaCall(NamedTuple):
    """Tell launchers of kernels of a call, but for its tensors.

    Attributes:
        places: of documents, whose chunks are tiles of these; None for sequences.
    """

    plan: GlaPlan
    scale: float
    precision: str
    places: Places | None = None

    @staticmethod
    def of(arguments: Arguments, options: KernelOptions) -> GlaCall:
        """Return the call with these tensors and options."""
        q, v = arguments.q, arguments.v
        dtype = str(q.dtype).removeprefix("torch.")
        sizes, places, chunk_size = Sizes.of(q, v), None, options.chunk_size
        if options.bounds:
            places = places_of_chunks(options.bounds, chunk_size, q.device)
            sizes, chunk_size = sizes._replace(steps=places.count), places.tile
        plan = GlaPlan.of(sizes, chunk_size, dtype, device.figures_of(q, options).multiprocessors)
        return GlaCall(plan, options.scale, float32_precision(q.dtype), places)

    def rows(self, x: Tensor) -> Rows:
        """Return what kernels take for x (B, H, T, d) (`common.rows`)."""
        return rows(x, None if self.places is None else self.places.steps)
