"""mamba-ssm: the scan of Mamba 2, and the layer from convolution to output projection that calls it."""

from __future__ import annotations

import functools
import importlib
import inspect
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv1d, linear, silu

from tflabench.kernels.compat.mamba import mamba_chunk_scan_combined

from .core import Installed, Replacement, stand_in, wherever

VERSIONS = {"mamba-ssm": ("2.3.2",)}
LEFT = {
    "selective_state_update": "its step for single tokens; it continues from the states that ours return",
    "selective_scan_fn": "Mamba 1 has a decay for each channel and state, which ours do not compute",
    "Mamba3": "its recurrence has complex states, which ours do not compute",
}


def plan(handle: Installed, force: bool) -> list[Replacement]:
    """Return what to replace."""
    module: Any = importlib.import_module("mamba_ssm.ops.triton.ssd_combined")
    handle.left.update(LEFT)
    scan, layer = module.mamba_chunk_scan_combined, module.mamba_split_conv1d_scan_combined
    ours = functools.partial(split_conv1d_scan, module, inspect.signature(layer))
    return [
        *wherever(module, scan.__name__, stand_in(handle, scan, mamba_chunk_scan_combined)),
        *wherever(module, layer.__name__, stand_in(handle, layer, ours, functools.partial(refuses, module))),
    ]


def refuses(module: Any, given: dict[str, Any]) -> str | None:
    """Return why ours do not take a call of `mamba_split_conv1d_scan_combined` with such arguments, or None."""
    if given.get("seq_idx") is not None and not _has_convolution(module, given["zxbcdt"]):
        return "seq_idx needs the package causal_conv1d, and a GPU"
    if given.get("activation", "silu") not in ("silu", "swish"):
        return "its activation is not silu"
    return None


def split_conv1d_scan(module: Any, signature: inspect.Signature, *args: Any, **named: Any) -> Any:
    """Compute what `mamba_split_conv1d_scan_combined` does: convolution, scan, norm and gate, output projection.

    It keeps what the convolution returns for backward, where mamba-ssm computes it again.

    Args:
        module: mamba_ssm.ops.triton.ssd_combined, for its convolution and norm.
        signature: of the function, whose arguments follow.

    Returns:
        The output (batch, seqlen, out_dim), or (output, final states) with `return_final_states`.
    """
    bound = signature.bind(*args, **named)
    bound.apply_defaults()
    of = bound.arguments
    heads, headdim = of["D"].shape if of["D"].dim() == 2 else (of["D"].shape[0], of["headdim"])
    groups, dim = of["ngroups"], heads * headdim
    dstate = (of["conv1d_weight"].shape[0] - dim) // groups // 2
    mlp = (of["zxbcdt"].shape[-1] - 2 * dim - 2 * groups * dstate - heads) // 2
    z0, x0, z, conv, dt = of["zxbcdt"].split([mlp, mlp, dim, dim + 2 * groups * dstate, heads], dim=-1)
    conv = _convolve(module, conv, of["conv1d_weight"], of["conv1d_bias"], of["seq_idx"])
    x, B, C = conv.split([dim, groups * dstate, groups * dstate], dim=-1)
    norm = of["rmsnorm_weight"]
    B, C = (s.unflatten(-1, (groups, dstate)) for s in (B, C))
    y = mamba_chunk_scan_combined(
        *(x.unflatten(-1, (heads, headdim)), dt, of["A"], B, C, of["chunk_size"]),
        D=of["D"],
        z=z.unflatten(-1, (heads, headdim)) if norm is None else None,
        dt_bias=of["dt_bias"],
        initial_states=of["initial_states"],
        seq_idx=of["seq_idx"],
        dt_softplus=True,
        dt_limit=of["dt_limit"],
        return_final_states=of["return_final_states"],
    )
    y, *states = y if isinstance(y, tuple) else (y,)
    y = y.flatten(-2)
    if norm is not None:
        more = {"eps": of["rmsnorm_eps"], "norm_before_gate": of["norm_before_gate"], "group_size": dim // groups}
        y = (module.rmsnorm_fn if y.is_cuda else gated_norm)(y, norm, None, z=z, **more)
    if mlp > 0:
        y = torch.cat([silu(z0) * x0, y], dim=-1)
    if of["outproj_weight"] is not None:
        y = linear(y, of["outproj_weight"], of["outproj_bias"])
    return (y, *states) if states else y


def _convolve(module: Any, x: Tensor, weight: Tensor, bias: Tensor | None, seq_idx: Tensor | None) -> Tensor:
    """Return silu of the causal convolution of x (batch, seqlen, channels) with a weight (channels, width)."""
    if _has_convolution(module, x):
        more = {"bias": bias, "activation": "silu", "seq_idx": seq_idx}
        return module.causal_conv1d_fn(x.transpose(1, 2), weight, **more).transpose(1, 2)
    T, width = x.shape[1], weight.shape[1]
    y = conv1d(x.transpose(1, 2), weight[:, None].to(x.dtype), bias, padding=width - 1, groups=x.shape[2])
    return silu(y[..., :T]).transpose(1, 2)


def _has_convolution(module: Any, x: Tensor) -> bool:
    """Return whether the convolution of causal_conv1d, which knows seq_idx, runs where x is."""
    return module.causal_conv1d_fn is not None and x.is_cuda


def gated_norm(
    y: Tensor, weight: Tensor, bias: None, *, z: Tensor, eps: float, norm_before_gate: bool, group_size: int
) -> Tensor:
    """Return RMSNorm(y) silu(z), or RMSNorm(y silu(z)), where mamba-ssm's `rmsnorm_fn` does not run.

    Args:
        y, z: (batch, seqlen, dim); weight: (dim,).
        group_size: channels that are normalised together.
    """
    wide, gate = y.float(), silu(z.float())
    wide = wide if norm_before_gate else wide * gate
    groups = wide.unflatten(-1, (-1, group_size))
    wide = (groups * torch.rsqrt(groups.square().mean(-1, keepdim=True) + eps)).flatten(-2) * weight
    return (wide * gate if norm_before_gate else wide).to(y.dtype)
