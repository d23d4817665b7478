"""Hugging Face's xLSTM: `transformers.models.xlstm`, with the package xlstm and without it.

Without it, transformers has an xLSTMBackend of its own in plain PyTorch, whose instances keep two functions: one for
training and one for inference. With it, the model is made of blocks of xlstm, whose backend is that of mlstm_kernels.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import mlstm, mlstm_kernels, xlstm
from .core import Installed, Replacement, check_versions, kept_by_instances

VERSIONS = {"transformers": ("5.17", "5.18", "5.19", "5.20", "5.21", "5.22", "5.23", "5.24")}
MODULE = "transformers.models.xlstm.modeling_xlstm"


def plan(handle: Installed, force: bool) -> list[Replacement]:
    """Return what to replace."""
    modeling: Any = importlib.import_module(MODULE)
    if modeling.external_xlstm:
        check_versions(xlstm.VERSIONS, force=force)
        return mlstm_kernels.backend(handle)
    backend = modeling.xLSTMBackend
    return [
        Replacement(f"xLSTMBackend.{name}", backend, name, kept_by_instances(name, _instead(handle, function)))
        for name, function in (("_train_fn", _train), ("_inference_fn", _infer))
    ]


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
    """Compute what `mlstm_chunkwise_native_autograd` does, at any length.

    Args:
        query, key: (B, H, T, d_qk); value: (B, H, T, d_hv); igate, fgate: (B, H, T).
        return_last_states: return the states too, in the dtype of key, as it does.
        initial: c_initial, n_initial and m_initial, None for zeros.
    """
    options: dict[str, Any] = {"dtype_state": key.dtype, "return_last_states": return_last_states}
    return mlstm_kernels.chunkwise_exp(query, key, value, igate, fgate, **initial, **options)


def _infer(
    config: Any, query: Tensor, key: Tensor, value: Tensor, igate: Tensor, fgate: Tensor, **initial: Tensor | None
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Compute what `wrap_chunkwise_arbitrary_sequence_length` does: a decode step, or a sequence, and the states."""
    dtype = getattr(torch, config.inference_state_dtype)
    return mlstm.infer(dtype, query, key, value, igate, fgate, **initial)
