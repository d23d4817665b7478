"""NX-AI's mlstm_kernels: its registries of kernels, and the backend that models are made with.

The registries get our kernels under names of ours, and in the place of its Triton kernels. The backend computes with
ours whichever kernel its configuration names.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tflabench.kernels.types import Gate

from . import mlstm
from .core import Installed, Replacement, kept_by_instances, stand_in

VERSIONS = {"mlstm_kernels": ("2.0.6",)}
REFERENCE = "plain PyTorch, which stays as what to compare with"


def plan(handle: Installed, force: bool) -> list[Replacement]:
    """Return what to replace."""
    replacements = backend(handle)
    for kind, module, registry_name, ours in (
        ("chunkwise", "chunkwise", "registry", {"": chunkwise_exp, "_siging": chunkwise_sig}),
        ("parallel", "parallel", "registry", {}),
        ("sequence", "recurrent", "registry_sequence", {"": chunkwise_exp}),
        ("step", "recurrent", "registry_step", {"": step}),
    ):
        registry: dict[str, Callable[..., Any]] = getattr(_library(module), registry_name)
        for suffix, function in ours.items():
            name = f"tflabench{suffix}"
            replacements.append(Replacement(f"{kind}--{name}", registry, name, stand_in(handle, function, function)))
        for name, original in registry.items():
            if "triton" in name and ours:
                served = stand_in(handle, original, ours["_siging" if "siging" in name else ""])
                replacements.append(Replacement(f"{kind}--{name}", registry, name, served))
            else:
                why = "its own Triton kernel, without states" if "triton" in name else REFERENCE
                handle.leave(f"{kind}--{name}", why)
    return replacements


def backend(handle: Installed) -> list[Replacement]:
    """Return what to replace in mLSTMBackend, whose instances keep two functions, for training and for inference."""
    place = _library("backend_module").mLSTMBackend
    handle.leave("mLSTMBackend(mode='inference') of a siging kernel", "it steps with the exponential input gate")
    return [
        Replacement(f"mLSTMBackend.{name}", place, name, kept_by_instances(name, functools.partial(read, handle)))
        for name, read in (("_train_fn", _train), ("_inference_fn", _infer))
    ]


def chunkwise_exp(
    q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor,
    c_initial: Tensor | None = None, n_initial: Tensor | None = None, m_initial: Tensor | None = None,
    return_last_states: bool = False, **tuning: Any,
) -> Tensor | tuple[Tensor, tuple[Tensor, ...]]:  # fmt: skip
    """Compute mLSTMexp with the arguments of the library's kernels of sequences, at any length.

    Args:
        q, k, v, i, f: as for `mlstm.sequence`, whose `states` are the initial ones.
        return_last_states: return (h, (C, n, m)) instead of h.
        tuning: `dtype_state`, of the states returned (None is float32); chunk sizes, warps, other dtypes and eps of the
            library's kernels, without effect here.
    """
    states, dtype = (c_initial, n_initial, m_initial), tuning.get("dtype_state")
    h, last = mlstm.sequence(q, k, v, i, f, states, state_dtype=dtype, return_last_states=return_last_states)
    return (h, last) if return_last_states else h


def chunkwise_sig(
    q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor,
    c_initial: Tensor | None = None, n_initial: Tensor | None = None,
    return_last_states: bool = False, normalize: bool = True, **tuning: Any,
) -> Tensor | tuple[Tensor, tuple[Tensor | None, Tensor | None]]:  # fmt: skip
    """Compute mLSTMsig, with a normaliser or without, with the arguments of the library's kernel, at any length.

    Args:
        q, k, v, i, f, c_initial, n_initial, tuning: as for `chunkwise_exp`.
        return_last_states: return (h, (C, n)) instead of h; n is None without a normaliser.
        normalize: divide h by max(|n^T q|, 1).
    """
    gate, dtype = Gate("sigmoid", "sigmoid", normalize=normalize), tuning.get("dtype_state")
    states = (c_initial, n_initial, None)
    h, last = mlstm.sequence(q, k, v, i, f, states, gate=gate, state_dtype=dtype, return_last_states=return_last_states)
    return (h, last[:2]) if return_last_states else h


def step(
    q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, c: Tensor, n: Tensor, m: Tensor, **tuning: Any
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Compute one step of mLSTMexp with the arguments of the library's step kernels.

    Args:
        q, k, v, i, f: as for `mlstm.one_step`, whose `states` are c, n, m.
        tuning: as for `chunkwise_exp`.

    Returns:
        h (B, H, d_hv), and the states after the step.
    """
    return mlstm.one_step(q, k, v, i, f, (c, n, m), state_dtype=tuning.get("dtype_state"))


def _library(module: str) -> Any:
    return importlib.import_module(f"mlstm_kernels.torch.{module}")


def _train(handle: Installed, backend: Any, native: Callable[[], Any]) -> Any:
    if _too_large_eps(handle, backend):
        return native()
    handle.count()
    return chunkwise_sig if "siging" in backend.config.chunkwise_kernel else chunkwise_exp


def _infer(handle: Installed, backend: Any, native: Callable[[], Any]) -> Any:
    if _too_large_eps(handle, backend) or "siging" in backend.config.chunkwise_kernel:
        return native()
    handle.count()
    return functools.partial(mlstm.infer, getattr(torch, backend.config.inference_state_dtype))


def _too_large_eps(handle: Installed, backend: Any) -> bool:
    if backend.config.eps <= mlstm.LARGEST_EPS:
        return False
    handle.leave("mLSTMBackend", mlstm.TOO_LARGE_EPS)
    return True
