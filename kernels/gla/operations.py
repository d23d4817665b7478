"""Gated Linear Attention on sequences and step by step."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from tflabench.kernels.api import CommonOptions, compute, operation
from tflabench.kernels.checks import check_options
from tflabench.kernels.state import State
from tflabench.kernels.step import StepOptions, compute_step
from tflabench.kernels.types import GlaImplementation

from .gating import GLA

NAMES = "g", "i"


class GlaOptions(CommonOptions, total=False):
    """Keywords of `gla`: `CommonOptions` and this.

    Attributes:
        implementation: "auto", the default, is "hopper" on a Hopper GPU for what it takes, "tfla" where that runs, and
            "reference" for the rest (CPU, float64, head dimensions that are no multiple of 16). "hopper": fused
            kernels, for bfloat16, d_qk up to 128 and d_hv up to 512. "tfla": TFLA with a gate a channel, in Triton.
    """

    implementation: GlaImplementation


@operation
def gla(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, *, return_last_state: bool = False, **options: Unpack[GlaOptions]
) -> Tensor | tuple[Tensor, State]:
    """Compute Gated Linear Attention: a given decay a step and channel of q and k (Yang et al. 2024, eq. 8).

        S_t = diag(exp(g_t)) S_{t-1} + k_t v_t^T,   o_t = S_t^T q_t,   q scaled

    Gradients flow from o and the last state to q, k, v, g and the initial state.

    Args:
        q, k: (B, H, T, d_qk), bfloat16, float16 or float32 (float64 too: reference), or with fewer heads, each for
            consecutive ones of v. v: (B, H, T, d_hv), like q. Under autocast they are cast, g and states are not.
        g: log decays (B, H, T, d_qk), <= 0, any floating dtype; -inf forgets a channel.
        return_last_state: return (o, State) instead of o.
        options: see `GlaOptions`.

    Returns:
        o (B, H, T, d_hv), in the dtype of q, or (o, State).

    Raises:
        TypeError, ValueError: see `chunkwise`.
    """
    check_options(options, GlaOptions.__annotations__)
    return compute(q, k, v, g, None, GLA, options, names=NAMES, return_last_state=return_last_state)


def gla_step(q: Tensor, k: Tensor, v: Tensor, g: Tensor, state: State, **options: Unpack[StepOptions]) -> Tensor:
    """Compute one step of `gla`, and replace the state by the one after it: one pass over it in PyTorch.

    Args:
        q, k: (B, H, d_qk); v: (B, H, d_hv).
        g: log decays (B, H, d_qk), <= 0, any floating dtype.
        state: before the step.
        options: see `StepOptions`; there is no implementation "triton".

    Returns:
        o_t (B, H, d_hv), in the dtype of q.
    """
    return compute_step(q, k, v, g, None, state, GLA, options, names=NAMES)
