"""Name what all kernels of one call share: its plan, scale and precision."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from tflabench.kernels.plan.gla import Plan
from tflabench.kernels.plan.sizes import Sizes
from tflabench.kernels.tfla import device
from tflabench.kernels.tfla.call import float32_precision


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
    """

    plan: Plan
    scale: float
    precision: str

    @staticmethod
    def of(arguments: Arguments, chunk_size: int, scale: float) -> Call:
        """Return the call with these tensors."""
        q, v = arguments.q, arguments.v
        dtype = str(q.dtype).removeprefix("torch.")
        plan = Plan.of(Sizes.of(q, v), chunk_size, dtype, device.multiprocessors(q.device))
        return Call(plan, scale, float32_precision(q.dtype))
