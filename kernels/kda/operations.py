"""Kimi Delta Attention on sequences and step by step."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from tflabench.kernels.api import CommonOptions, operation
from tflabench.kernels.delta.operations import DeltaStepOptions, DeltaTerms, computed, stepped
from tflabench.kernels.state import State
from tflabench.kernels.types import KdaImplementation

from .gating import KdaGate


class KdaOptions(CommonOptions, DeltaTerms, total=False):
    """Keywords of `kda`: `CommonOptions`, `DeltaTerms` and this.

    Attributes:
        implementation: "auto", the default, is "hopper" on a Hopper GPU for what it takes, "tfla" on other GPUs and for
            what else that takes, and "reference" for the rest and on a CPU. "hopper": fused kernels, for bfloat16, d_qk
            up to 128 and d_hv up to 256. "tfla": TFLA with the delta rule and a decay a channel, in Triton, for d_qk up
            to 128.
    """

    implementation: KdaImplementation


@operation
def kda(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, *,
    return_last_state: bool = False, **options: Unpack[KdaOptions],
) -> Tensor | tuple[Tensor, State]:  # fmt: skip
    """Compute Kimi Delta Attention: the delta rule with a decay a channel (Kimi Linear, 2025, eq. 1).

        S_t = (I - beta_t k_t k_t^T) diag(exp(g_t)) S_{t-1} + beta_t k_t v_t^T,   o_t = S_t^T q_t,   q scaled

    Gradients flow from o and the last state to q, k, v, g, beta and the initial state.

    Args:
        q, k: (B, H, T, d_qk), bfloat16, float16 or float32 (float64 too: reference), or with fewer heads, each for
            consecutive ones of v. v: (B, H, T, d_hv), like q. Under autocast they are cast, the others are not.
        g: log decays (B, H, T, d_qk), <= 0, any floating dtype; -inf forgets a channel.
        beta: (B, H, T), from 0 to `beta_max`, any floating dtype.
        return_last_state: return (o, State) instead of o.
        options: see `KdaOptions`.

    Returns:
        o (B, H, T, d_hv), in the dtype of q, or (o, State).

    Raises:
        TypeError, ValueError: see `chunkwise`.
    """
    return computed(q, k, v, g, beta, KdaGate, return_last_state, options, KdaOptions)


def kda_step(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: State, **options: Unpack[DeltaStepOptions]
) -> Tensor:
    """Compute o_t (B, H, d_hv) of `kda`, with g (B, H, d_qk) and beta (B, H), and replace the state."""
    return stepped(q, k, v, g, beta, state, KdaGate, options)
