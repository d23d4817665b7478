"""Hugging Face's xLSTM, with the package xlstm and without it, and its models with a delta rule.

Without xlstm, transformers has an xLSTMBackend of its own in plain PyTorch, whose instances keep two functions: one for
training and one for inference. With it, the model is made of blocks of xlstm, whose backend is that of mlstm_kernels.
Layers with the delta rule look up two functions of their module at each call, whose kernels are those of fla where that
is installed.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from tflabench import ops
from tflabench.ops import State

from . import mlstm, mlstm_kernels, xlstm
from .core import Installed, Replacement, check_versions, kept_by_instances, stand_in
from .fla import refuses_sizes

VERSIONS = {"transformers": ("5.17", "5.18", "5.19", "5.20", "5.21", "5.22", "5.23", "5.24")}
MODULE = "transformers.models.xlstm.modeling_xlstm"
GATED = "gated_delta_net", "torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"
KIMI = "kda", "chunk_kimi_delta_attention", "recurrent_kimi_delta_attention"
# The operation and the functions of a model that are it, and the largest step size.
DELTA_MODELS: dict[str, tuple[tuple[str, str, str], Literal[1, 2]]] = {
    "qwen3_next": (GATED, 1),
    "qwen3_5": (GATED, 1),
    "qwen3_5_moe": (GATED, 1),
    "olmo_hybrid": (GATED, 2),
    "kimi_linear": (KIMI, 1),
}


def plan(handle: Installed, force: bool) -> list[Replacement]:
    """Return what to replace."""
    return _xlstm_plan(handle, force) + _delta_plan(handle)


def _xlstm_plan(handle: Installed, force: bool) -> list[Replacement]:
    modeling: Any = importlib.import_module(MODULE)
    if modeling.external_xlstm:
        check_versions(xlstm.VERSIONS, force=force)
        return mlstm_kernels.backend(handle)
    backend = modeling.xLSTMBackend
    return [
        Replacement(f"xLSTMBackend.{name}", backend, name, kept_by_instances(name, _instead(handle, function)))
        for name, function in (("_train_fn", _train), ("_inference_fn", _infer))
    ]


def _delta_plan(handle: Installed) -> list[Replacement]:
    replacements: list[Replacement] = []
    refuses = lambda given: refuses_sizes(given["query"], given["value"])  # noqa: E731
    for model, ((rule, *names), beta_max) in DELTA_MODELS.items():
        try:
            modeling = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
        except ModuleNotFoundError:
            handle.leave(model, "this transformers does not have it")
            continue
        for name in names:
            function: Any = getattr(modeling, name, None)
            if not hasattr(function, "__wrapped__"):  # its layers keep what they call
                handle.leave(f"{model}.{name}", "needs transformers 5.24 or newer")
                continue
            ours = functools.partial(_delta_rule, rule, beta_max)
            replacements.append(
                Replacement(f"{model}.{name}", modeling, name, stand_in(handle, function, ours, refuses))
            )
    return replacements


def _delta_rule(  # noqa: PLR0913  the functions' arguments
    rule: str,
    beta_max: Literal[1, 2],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    **of_attention: Any,
) -> tuple[Tensor, Tensor | None]:
    """Compute what the functions of a model do, of a sequence and of a step.

    Args:
        rule, beta_max: the operation, and its largest step size.
        query, key: (B, T, H, d_qk); value: (B, T, H_v, d_hv); beta: (B, T, H_v); g: like beta, or a decay a channel.
        of_attention: what the model hands to layers of attention, and a chunk size; not read.
    """
    del of_attention
    options: dict[str, Any] = {"l2_normalize": use_qk_l2norm_in_kernel, "beta_max": beta_max}
    if query.shape[1] == 1 and initial_state is not None and not torch.is_grad_enabled():
        after = State(initial_state.to(torch.promote_types(query.dtype, torch.float32), copy=True).contiguous())
        now = (x[:, 0] for x in (query, key, value, g, beta))
        o = getattr(ops, f"{rule}_step")(*now, state=after, **options)[:, None]
        return o, after.C if output_final_state else None
    # A convolution leaves time innermost: one copy here is cheaper than what kernels would make of it.
    query, key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value))
    o, last = getattr(ops, rule)(
        query, key, value, g, beta,
        layout="bthd",
        **options,
        initial_state=None if initial_state is None else State(initial_state),
        return_last_state=True,
        cu_seqlens=cu_seqlens,
    )  # fmt: skip
    return o, last.C if output_final_state else None


def _instead(handle: Installed, function: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    def read(backend: Any, native: Callable[[], Any]) -> Any:
        if backend.config.eps > mlstm.LARGEST_EPS:
            handle.leave("xLSTMBackend", mlstm.TOO_LARGE_EPS)
            return native()
        handle.count()
        return functools.partial(function, backend.config)

    return read


def _train(
    config: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    igate: Tensor,
    fgate: Tensor,
    return_last_states: bool = False,
    **initial: Tensor | None,
) -> Tensor | tuple[Tensor, tuple[Tensor, ...]]:
    """Compute what `mlstm_chunkwise_native_autograd` does, at any length; states are in the dtype of key.

    Arguments as for `mlstm_kernels.chunkwise_exp`.
    """
    options: dict[str, Any] = {"dtype_state": key.dtype, "return_last_states": return_last_states}
    return mlstm_kernels.chunkwise_exp(query, key, value, igate, fgate, **initial, **options)


def _infer(
    config: Any, query: Tensor, key: Tensor, value: Tensor, igate: Tensor, fgate: Tensor, **initial: Tensor | None
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Compute what `wrap_chunkwise_arbitrary_sequence_length` does: a decode step, or a sequence, and the states."""
    dtype = getattr(torch, config.inference_state_dtype)
    return mlstm.infer(dtype, query, key, value, igate, fgate, **initial)
