"""Choose the kernels that run for given tensors, of those that the family of their gates has."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from . import opaque_reference
from .checks import check_chunk_size, check_is_gate, check_name, check_queries
from .common.contract import Kernels
from .common.operators import HAS_TRITON, constant_to_compilers
from .common.tiling import DTYPES, fitting
from .families import FAMILIES, family_of
from .scalar.plan.tfla import TileConfig
from .types import ChunkSize, Gating, Implementation, Layout

KERNEL_DTYPES: tuple[torch.dtype, ...] = tuple(getattr(torch, name) for name in DTYPES)


@functools.cache
def kernels_of(family: str, implementation: str) -> Kernels:
    """Return the kernels of an implementation that a family has.

    Raises:
        ValueError: the package triton is not installed.
    """
    if implementation == "reference":
        return opaque_reference.kernels(FAMILIES[family])
    if not HAS_TRITON:
        raise ValueError(f"implementation is {implementation!r}: it needs the package triton, which is not installed")
    return FAMILIES[family].kernels[implementation]()


@functools.cache
def decode_kernels_of(family: str) -> Any:
    """Return the module with the decode step of a family in Triton."""
    load = FAMILIES[family].decode_kernels
    assert load is not None
    return load()


# By family. They are there before torch.compile looks: it does not look into imports.
_references: dict[str, Any] = {name: family.reference() for name, family in FAMILIES.items()}


def reference_of(gate: Gating) -> Any:
    """Return the module with the family of these gates in PyTorch."""
    if gate.family not in _references:
        _references[gate.family] = family_of(gate).reference()
    return _references[gate.family]


def check_implementation(implementation: str, gate: Gating) -> None:
    """Raise ValueError unless the family has such an implementation, or group of them."""
    family = family_of(gate)
    if implementation not in family.tried and implementation not in family.kernels:
        check_name("implementation", implementation, family.implementations)


def autocast_dtype(x: Tensor) -> torch.dtype | None:
    """Return the dtype to which autocast casts q, k and v where x is, None outside of autocast."""
    device = x.device.type
    if device == "meta":  # autocast does not know it
        return None
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


def only_reference(q: Tensor, v: Tensor, gate: Gating) -> str | None:
    """Return why "auto" is the reference for q (..., d_qk) and v (..., d_hv), or None where it looks for kernels.

    The reason has places for `str.format`: torch.compile traces this function, and formats nothing.
    """
    if not family_of(gate).kernels:
        return "there are none of its family"
    if not HAS_TRITON:
        return "the package triton is not installed"
    if not q.is_cuda:
        return "q is on {q.device}, and kernels need a CUDA device"
    if q.dtype not in KERNEL_DTYPES:
        return "q is {q.dtype}, and kernels take bfloat16, float16 and float32"
    if not _has_tensor_cores(q.device):
        return "{q.device} has a compute capability below 8.0"
    for d in (q.shape[-1], v.shape[-1]):
        if d % 16 != 0 or d > 1024:
            return "d_qk is {q.shape[3]} and d_hv {v.shape[3]}, and kernels take multiples of 16 up to 1024"
    return None


@constant_to_compilers
def _has_tensor_cores(device: torch.device) -> bool:
    """Return whether they multiply bfloat16: compute capability 8.0 and later."""
    return torch.cuda.get_device_capability(device) >= (8, 0)


def check_for_kernels(q: Tensor, v: Tensor, chunk_size: ChunkSize, implementation: str) -> None:
    """Raise TypeError or ValueError for what the reference takes but no kernel does.

    Args:
        q, v: (B, H, T, d_qk) and (B, H, T, d_hv).
    """
    instead = f"for implementation {implementation!r} (the reference takes any)"
    if q.dtype not in KERNEL_DTYPES:
        raise TypeError(f"q is {q.dtype}: it must be bfloat16, float16 or float32 {instead}")
    for name, x in (("q", q), ("v", v)):
        if x.shape[-1] % 16 != 0:
            raise ValueError(f"{name} has the head dimension {x.shape[-1]}: it must be a multiple of 16 {instead}")
    if chunk_size != "auto" and (chunk_size < 16 or chunk_size % 16 != 0):
        raise ValueError(f"chunk_size is {chunk_size}: it must be a multiple of 16 {instead}")


def resolve(
    q: Tensor,
    v: Tensor,
    *,
    gate: Gating,
    implementation: str,
    chunk_size: int | None,
    backward: bool,
    config: Any,
    deterministic_layout: bool = False,
) -> tuple[str, int, list[str]]:
    """Find the first kernels of `implementation`, a name or a group, that run here.

    Args:
        q, v: (B, H, T, d_qk) and (B, H, T, d_hv); only shape, dtype and device are read. Sizes may be symbols.
        chunk_size: None lets the kernels choose.
        backward: whether there will be one, which decides the chunk size that they choose.
        deterministic_layout: they choose that of one row of the batch.

    Returns:
        Their name, their chunk size L, and why each that was tried before them does not run.

    Raises:
        ValueError: none can run here, with the reason of each.
    """
    refused: list[str] = []
    chosen_by = (q[:1], v[:1]) if deterministic_layout else (q, v)
    for name in family_of(gate).tried.get(implementation, (implementation,)):
        kernels = kernels_of(gate.family, name)
        if implementation == "auto" and chunk_size is not None and chunk_size < kernels.auto_from:
            refused.append(f"{name} is slower than the next at a chunk_size below {kernels.auto_from}")
            continue
        L = kernels.default_chunk_size(*chosen_by, gate=gate, backward=backward) if chunk_size is None else chunk_size
        reason = kernels.refuses(q, v, gate=gate, chunk_size=L, config=config)
        if reason is None:
            return name, L, refused
        refused.append(f"{name} {reason}")
    raise ValueError(f"implementation is {implementation!r}: it must be one that can run here; {'; '.join(refused)}")


class Choice(NamedTuple):
    """Name what an operation runs.

    Attributes:
        implementation: the name of what runs, never a group such as "auto".
        chunk_size: L, steps between two states in memory.
        why: a sentence that says why it runs, with the reason of each implementation that was refused before it.
    """

    implementation: Implementation
    chunk_size: int
    why: str


def choose(
    q: Tensor,
    v: Tensor,
    *,
    gate: Gating,
    layout: Layout = "bhtd",
    implementation: Implementation = "auto",
    chunk_size: ChunkSize = "auto",
    backward: bool | None = None,
    config: TileConfig | None = None,
) -> Choice:
    """Return what an operation would run for such tensors, and why. Nothing is computed: only shapes are read.

    Args:
        q: (B, H, T, d_qk), or with fewer heads; C of `mamba2_ssd`. Its dtype is what autocast would make of it.
        v: (B, H, T, d_hv); x of `mamba2_ssd`.
        gate: of the operation: MLSTM_EXP, MLSTM_SIG, RETENTION (Lightning attention too), SIMPLE_GLA, MAMBA2, GLA, ...
        layout: "bthd" for q (B, T, H, d_qk) and v (B, T, H, d_hv).
        implementation, chunk_size, config: as given to the operation.
        backward: whether gradients will be asked for; None is yes if q or v requires one and they are enabled.

    Raises:
        TypeError, ValueError: an argument of the wrong type, shape or value, or an implementation that cannot run here,
            with its reason.
    """
    check_name("layout", layout, ("bhtd", "bthd"))
    check_is_gate(gate)
    check_queries(q, q, v, "BHT" if layout == "bhtd" else "BTH")
    check_implementation(implementation, gate)
    check_chunk_size(chunk_size)
    if backward is None:
        backward = torch.is_grad_enabled() and (q.requires_grad or v.requires_grad)
    q, v = (_as_under_autocast(x if layout == "bhtd" else x.transpose(1, 2)) for x in (q, v))
    given = None if chunk_size == "auto" else chunk_size
    requested = f"{implementation} was asked for"
    no_kernel = only_reference(q, v, gate) if implementation == "auto" else None
    if implementation == "reference" or no_kernel is not None:
        why = requested if no_kernel is None else f"no kernel runs here: {no_kernel.format(q=q, v=v)}"
        return Choice("reference", min(given or family_of(gate).reference_chunk_size, q.shape[2]), why)
    name, L, refused = resolve(
        q, v, gate=gate, implementation=implementation, chunk_size=given, backward=backward, config=config
    )
    if refused:
        why = f"{name} is the first that runs here: {'; '.join(refused)}"
    elif name == implementation:
        why = f"{requested} and runs here"
    else:
        why = f"{name} is the first choice and runs here"
    return Choice(cast("Implementation", name), fitting(L, q.shape[2]) if given is None else L, why)


def _as_under_autocast(x: Tensor) -> Tensor:
    """Return a tensor of the shape and device of x, in the dtype to which autocast would cast x. It has no data."""
    dtype = autocast_dtype(x)
    return x if dtype is None else x.new_empty((), dtype=dtype).expand(x.shape)
