"""Name what all kernels of one call share."""

from __future__ import annotations

from typing import NamedTuple

from tflabench.kernels.common import device
from tflabench.kernels.common.contract import Arguments, KernelOptions
from tflabench.kernels.common.device import float32_precision
from tflabench.kernels.common.sizes import Sizes
from tflabench.kernels.delta.plan import WalkTiles
from tflabench.kernels.gla.call import GlaCall

from .plan import planned


class KdaCall(NamedTuple):
    """Tell launchers of kernels of a call, but for its tensors.

    Attributes:
        gla: of Gated Linear Attention, whose values are the errors times beta.
        walk: tiles of the walks.
    """

    gla: GlaCall
    walk: WalkTiles

    @staticmethod
    def of(arguments: Arguments, options: KernelOptions) -> KdaCall:
        """Return the call with these tensors and options."""
        q, v = arguments.q, arguments.v
        dtype, figures = str(q.dtype).removeprefix("torch."), device.figures(q.device)
        plan, walk = planned(Sizes.of(q, v), options.chunk_size, dtype, options.gate.beta_max, figures)
        return KdaCall(GlaCall(plan, options.scale, float32_precision(q.dtype)), walk)
