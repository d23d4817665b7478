"""DeltaNet and Gated DeltaNet on sequences and step by step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, TypedDict, Unpack, cast

from torch import Tensor

from tflabench.kernels.api import CommonOptions, compute, operation
from tflabench.kernels.backends import autocast_dtype
from tflabench.kernels.checks import check_between, check_options, check_tensor
from tflabench.kernels.chunkwise_operator import wants_gradients
from tflabench.kernels.context import checks
from tflabench.kernels.state import State
from tflabench.kernels.step import StepOptions, compute_step
from tflabench.kernels.types import DeltaImplementation

from .gating import DeltaGate
from .normalize import l2_normalized

NAMES = "g", "beta"


class DeltaTerms(TypedDict, total=False):
    """Keywords that the delta rules and their steps have for themselves.

    Attributes:
        l2_normalize: divide q and k by sqrt(sum of their squares + 1e-6) before all else; False is the default.
        beta_max: 1, the default, or 2: the largest beta. Above 1 a state may turn over, and errors grow more: in 16
            bits 2 makes kernels multiply with more digits.
    """

    l2_normalize: bool
    beta_max: Literal[1, 2]


class DeltaOptions(CommonOptions, DeltaTerms, total=False):
    """Keywords of `delta_net` and `gated_delta_net`: `CommonOptions`, `DeltaTerms` and this.

    Attributes:
        implementation: "auto", the default, is "hopper" on a Hopper GPU for what it takes, "tfla" on other GPUs and for
            what else that takes, and "reference" for the rest and on a CPU. "hopper": fused kernels, for bfloat16 and
            float16, d_qk up to 128 and d_hv up to 256. "tfla": TFLA with the delta rule, in Triton, for d_qk up to 256.
    """

    implementation: DeltaImplementation


class DeltaStepOptions(StepOptions, DeltaTerms, total=False):
    """Keywords of the steps of the delta rules: `StepOptions` and `DeltaTerms`."""


@operation
def delta_net(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, *,
    return_last_state: bool = False, **options: Unpack[DeltaOptions],
) -> Tensor | tuple[Tensor, State]:  # fmt: skip
    """Compute DeltaNet, which corrects what the state has for a key (Yang et al. 2024, eq. 5).

        S_t = S_{t-1} + beta_t k_t (v_t - S_{t-1}^T k_t)^T,   o_t = S_t^T q_t,   q scaled

    Arguments as for `gated_delta_net`, without g.
    """
    return computed(q, k, v, None, beta, DeltaGate, return_last_state, options, DeltaOptions)


@operation
def gated_delta_net(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, *,
    return_last_state: bool = False, **options: Unpack[DeltaOptions],
) -> Tensor | tuple[Tensor, State]:  # fmt: skip
    """Compute Gated DeltaNet: the delta rule on a state that decays (Yang et al. 2025, eq. 10).

        S_t = exp(g_t) S_{t-1} + beta_t k_t (v_t - exp(g_t) S_{t-1}^T k_t)^T,   o_t = S_t^T q_t,   q scaled

    Gradients flow from o and the last state to q, k, v, g, beta and the initial state.

    Args:
        q, k: (B, H, T, d_qk), bfloat16, float16 or float32 (float64 too: reference), or with fewer heads, each for
            consecutive ones of v. v: (B, H, T, d_hv), like q. Under autocast they are cast, the others are not.
        g: log decays (B, H, T), <= 0, any floating dtype; -inf starts a document.
        beta: (B, H, T), from 0 to `beta_max`, any floating dtype.
        return_last_state: return (o, State) instead of o.
        options: see `DeltaOptions`.

    Returns:
        o (B, H, T, d_hv), in the dtype of q, or (o, State).

    Raises:
        TypeError, ValueError: see `chunkwise`.
    """
    return computed(q, k, v, g, beta, DeltaGate, return_last_state, options, DeltaOptions)


def computed(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, beta: Tensor, gate: type[DeltaGate], return_last_state: bool,
    options: Any, keywords: type,
) -> Any:  # fmt: skip
    """Return what a delta rule with gates of this class returns; `keywords` are those that it takes."""
    check_options(options, keywords.__annotations__)
    start, group = getattr(options.get("initial_state"), "C", None), options.get("group")
    inside = group is None and not wants_gradients(q, k, v, g, beta, start)
    q, k, made = _prepared(q, k, beta, gate, g is not None, options, inside=inside)
    return compute(q, k, v, g, beta, made, options, names=NAMES, return_last_state=return_last_state)


def _prepared(
    q: Tensor, k: Tensor, beta: Tensor, gate: type[DeltaGate], gated: bool, options: DeltaTerms, *, inside: bool
) -> tuple[Tensor, Tensor, DeltaGate]:  # fmt: skip
    """Return q and k, and the gate; its keywords leave the options. Inside, kernels divide q and k by their norms."""
    normalize, made = options.pop("l2_normalize", False), gate(gated, options.pop("beta_max", 1))
    with checks(options.get("group")):
        check_between("beta", check_tensor("beta", beta, q), 0, made.beta_max)
        if normalize:
            q, k = check_tensor("q", q, q), check_tensor("k", k, q)
            if inside and autocast_dtype(q) in (None, q.dtype):
                return q, k, replace(made, l2_normalize=True)
            plain = options.get("implementation") == "reference"
            q, k = l2_normalized(q, plain=plain), l2_normalized(k, plain=plain)
    return q, k, made


def delta_net_step(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, state: State, **options: Unpack[DeltaStepOptions]
) -> Tensor:
    """Compute o_t (B, H, d_hv) of `delta_net`, with beta (B, H), and replace the state."""
    return stepped(q, k, v, None, beta, state, DeltaGate, options)


def gated_delta_net_step(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: State, **options: Unpack[DeltaStepOptions]
) -> Tensor:
    """Compute o_t (B, H, d_hv) of `gated_delta_net`, with g and beta (B, H), and replace the state."""
    return stepped(q, k, v, g, beta, state, DeltaGate, options)


def stepped(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, beta: Tensor, state: State, gate: type[DeltaGate],
    options: DeltaStepOptions,
) -> Tensor:  # fmt: skip
    """Return what the decode step of a delta rule with gates of this class returns, and replace the state."""
    q, k, made = _prepared(q, k, beta, gate, g is not None, options, inside=False)
    return compute_step(q, k, v, g, beta, state, made, cast("StepOptions", options), names=NAMES)
