"""flash-linear-attention: GLA, Simple GLA, Retention, Lightning attention, the delta rules, in all modules."""

from __future__ import annotations

import importlib
from typing import Any

from torch import Tensor

from tflabench.kernels.compat import fla as ours
from tflabench.kernels.kda.plan import LARGEST_D_QK

from .core import Installed, Replacement, stand_in, wherever

VERSIONS = {"flash-linear-attention": ("0.6",)}
REPLACED = {
    "chunk_gla": ours.chunk_gla,
    "chunk_simple_gla": ours.chunk_simple_gla,
    "chunk_retention": ours.chunk_retention,
    "chunk_lightning_attn": ours.chunk_lightning_attn,
    "chunk_delta_rule": ours.chunk_delta_rule,
    "chunk_gated_delta_rule": ours.chunk_gated_delta_rule,
    "chunk_kda": ours.chunk_kda,
    "fused_chunk_simple_gla": ours.chunk_simple_gla,
    "fused_chunk_retention": ours.chunk_retention,
}
# Modules that have these functions.
LAYERS = ("gla", "simple_gla", "multiscale_retention", "yoco", "delta_net", "gated_deltanet", "kda")
STEPS = "its kernel for single tokens and short sequences; it continues from the states that ours return"
ATTENTION = "it returns attention scores, which ours never have"
LEFT = {
    "fused_chunk_gla": "fla 0.6 has no kernel of it, and its layers would read the state that ours return transposed",
    "fused_recurrent_gla": STEPS,
    "fused_recurrent_simple_gla": STEPS,
    "fused_recurrent_retention": STEPS,
    "fused_recurrent_lightning_attn": STEPS,
    "fused_recurrent_delta_rule": STEPS,
    "fused_recurrent_gated_delta_rule": STEPS,
    "fused_recurrent_kda": STEPS,
    "parallel_simple_gla": ATTENTION,
    "parallel_retention": ATTENTION,
}


def plan(handle: Installed, force: bool) -> list[Replacement]:
    """Return what to replace."""
    ops: Any = importlib.import_module("fla.ops")
    for layer in LAYERS:
        importlib.import_module(f"fla.layers.{layer}")
    handle.left.update(LEFT)
    served = {
        name: stand_in(handle, getattr(ops, name), ours, refuses_kda if name == "chunk_kda" else refuses)
        for name, ours in REPLACED.items()
    }
    return [replacement for name, ours in served.items() for replacement in wherever(ops, name, ours)]


def refuses(given: dict[str, Any]) -> str | None:
    """Return why ours do not take a call with such arguments that fla's do, or None."""
    if set(given) & {"head_first", "transpose_state_layout"}:
        return "it has keywords that fla is giving up"
    if given.get("g") is not None and given.get("g_gamma") is not None:
        return "it has both g and g_gamma"
    if given.get("cp_context") is not None:
        return "it has a part of a sequence"
    if given.get("return_intermediate_states") or given.get("use_graph"):
        return "it asks for states in between, or for a graph of sequences whose bounds change"
    return refuses_sizes(given["q"], given["v"])


def refuses_kda(given: dict[str, Any]) -> str | None:
    """Return `refuses` of a call of KDA."""
    if given["q"].shape[-1] > LARGEST_D_QK:
        return f"d_qk is above {LARGEST_D_QK}: ours would run in plain PyTorch"
    return refuses(given)


def refuses_sizes(q: Tensor, v: Tensor) -> str | None:
    """Return why our kernels do not take tensors with these head dimensions, or None."""
    if any(x.shape[-1] % 16 for x in (q, v)):
        return "a head dimension is no multiple of 16: ours would run in plain PyTorch"
    return None
