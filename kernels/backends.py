"""Name the kernels there are, and choose those that run for given tensors.

To add an implementation, write a function that returns its `Kernels` and name it in `KERNELS`.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from torch import Tensor

from .checks import check_chunk_size, check_heads, check_is_gate, check_name, check_sequence
from .common.operators import HAS_TRITON, constant_to_compilers
from .common.tiling import DTYPES
from .scalar.plan.tfla import TileConfig
from .state import State
from .types import ChunkSize, Gate, Implementation, Layout

KERNEL_DTYPES: tuple[torch.dtype, ...] = tuple(getattr(torch, name) for name in DTYPES)
REFERENCE_CHUNK_SIZE = 64
RARE_STATES = 512  # "auto" takes the fused kernels from this chunk size on: their states are float32, and larger


class Arguments(NamedTuple):
    """The tensors of a call.

    Attributes:
        q, k: (B, H, T, d_qk), or fewer heads, each for consecutive ones of v; any strides.
        v: (B, H, T, d_hv), of the dtype of q and k; any strides.
        f, i: gates as `Gate` describes them; i is None for a gate without input gate.
        initial: the State before the first step, None for zero.
        skip: (H,), for a gate without normaliser: skip v_t is added to h_t. None for nothing.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    f: Tensor
    i: Tensor | None = None
    initial: State | None = None
    skip: Tensor | None = None


class KernelOptions(NamedTuple):
    """Everything that kernels need to know of a call but its tensors.

    Attributes:
        gate: which gates.
        scale: of q.
        chunk_size: L, steps between two states in memory.
        state_dtype: the widest type in which states between chunks lie in memory.
        config: for experts, how kernels are tiled; None lets them choose.
        return_last_state: forward returns the State after the last step.
        cut_freely: the caller gave no chunk size, and L is the default for backward. Forward may divide the sequence
            otherwise, as long as it saves what backward reads.
        gate_gradients: backward returns df and di.
        bounds: where documents begin and end, [0, ..., T], that lie end to end along T in a batch of one. Each has its
            state, (documents, H, ...). The forget gate is one a step then, and there is no skip. None for sequences.
    """

    gate: Gate
    scale: float
    chunk_size: int
    state_dtype: torch.dtype = torch.float32
    config: TileConfig | None = None
    return_last_state: bool = True
    cut_freely: bool = False
    gate_gradients: bool = True
    bounds: tuple[int, ...] | None = None


class Kernels(NamedTuple):
    """Describe chunkwise kernels, as the torch operator calls them.

    Attributes:
        forward: (arguments, options) -> (h, last, saved): h with the shape and strides of `torch.empty_like(v)`; the
            State after the last step, or None if it is not asked for; and a tuple of tensors for backward. All of them
            fresh: none shares memory with an input or with another.
        backward: (dh, d_last, arguments, saved, options) -> (dq, dk, dv, df, di, dC, dn), each made as
            `torch.empty_like` makes it, and None where the input is None; without `options.gate_gradients` df and di
            are None too. d_last is a State without m, or None.
        empty_saved: (q, v, options) -> uninitialised tensors like `saved`.
        refuses: (q, v, *, gate, chunk_size, config) -> the reason why the kernels cannot run here, or None if they can.
        default_chunk_size: (q, v, *, gate, backward) -> L; backward says whether there will be one.
        shares_heads: q and k may have fewer heads than v, each for H / G consecutive ones; dq and dk are then summed
            over these. Kernels without it get copies of q and k.
        adds_skip: forward and backward heed `arguments.skip`, and backward returns its gradient behind the others.
            Kernels without it get None, and the skip connection is another pass over memory.
        takes_documents: (bounds, q, v, *, states) -> whether kernels that heed `options.bounds` are the fastest way for
            documents; states: whether states go in or out. None for kernels that do not heed it.
    """

    forward: Callable[[Arguments, KernelOptions], tuple[Tensor, State | None, tuple[Tensor, ...]]]
    backward: Callable[[Tensor, State | None, Arguments, tuple[Tensor, ...], KernelOptions], tuple[Tensor | None, ...]]
    empty_saved: Callable[[Tensor, Tensor, KernelOptions], tuple[Tensor, ...]]
    refuses: Callable[..., str | None]
    default_chunk_size: Callable[..., int]
    shares_heads: bool = False
    adds_skip: bool = False
    takes_documents: Callable[..., bool] | None = None


def _tfla(levels: int) -> Kernels:
    return importlib.import_module(".scalar.tfla.chunkwise", __package__).kernels(levels)


def _hopper() -> Kernels:
    return importlib.import_module(".scalar.hopper.chunkwise", __package__).kernels()


KERNELS: dict[str, Callable[[], Kernels]] = {
    "hopper": _hopper,
    "tfla_xl": functools.partial(_tfla, 2),
    "tfla_limit": functools.partial(_tfla, 1),
}
_TRIED = {"auto": ("hopper", "tfla_xl", "tfla_limit"), "tfla": ("tfla_xl", "tfla_limit")}  # in this order


@functools.cache
def kernels_of(name: str) -> Kernels:
    """Return the kernels of this name in `KERNELS`.

    Raises:
        ValueError: the package triton is not installed.
    """
    if not HAS_TRITON:
        raise ValueError(f"implementation is {name!r}: it needs the package triton, which is not installed")
    return KERNELS[name]()


def check_implementation(implementation: str) -> None:
    """Raise ValueError unless there is such an implementation, or group of them."""
    check_name("implementation", implementation, ("auto", "reference", "tfla", *KERNELS))


def autocast_dtype(x: Tensor) -> torch.dtype | None:
    """Return the dtype to which autocast casts q, k and v where x is, None outside of autocast."""
    device = x.device.type
    if device == "meta":  # autocast does not know it
        return None
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


def only_reference(q: Tensor, v: Tensor) -> str | None:
    """Return why "auto" is the reference for q (..., d_qk) and v (..., d_hv), or None where it looks for kernels.

    The reason has places for `str.format`: torch.compile traces this function, and formats nothing.
    """
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
    gate: Gate,
    implementation: str,
    chunk_size: int | None,
    backward: bool,
    config: TileConfig | None,
) -> tuple[str, int, list[str]]:
    """Find the first kernels of `implementation`, a name or a group, that run here.

    Args:
        q, v: (B, H, T, d_qk) and (B, H, T, d_hv); only shape, dtype and device are read. Sizes may be symbols.
        chunk_size: None lets the kernels choose.
        backward: whether there will be one, which decides the chunk size that they choose.

    Returns:
        Their name in `KERNELS`, their chunk size L, and why each that was tried before them does not run.

    Raises:
        ValueError: none can run here, with the reason of each.
    """
    refused: list[str] = []
    for name in _TRIED.get(implementation, (implementation,)):
        if name == "hopper" and implementation == "auto" and chunk_size is not None and chunk_size < RARE_STATES:
            refused.append(f"hopper is slower than the next at a chunk_size below {RARE_STATES}")
            continue
        kernels = kernels_of(name)
        L = kernels.default_chunk_size(q, v, gate=gate, backward=backward) if chunk_size is None else chunk_size
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
    gate: Gate,
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
        gate: of the operation: MLSTM_EXP, MLSTM_SIG, RETENTION (Lightning attention too), SIMPLE_GLA, MAMBA2, ...
        layout: "bthd" for q (B, T, H, d_qk) and v (B, T, H, d_hv).
        implementation, chunk_size, config: as given to the operation.
        backward: whether gradients will be asked for; None is yes if q or v requires one and they are enabled.

    Raises:
        TypeError, ValueError: an argument of the wrong type, shape or value, or an implementation that cannot run here,
            with its reason.
    """
    check_name("layout", layout, ("bhtd", "bthd"))
    check_sequence("q", q, layout)
    check_sequence("v", v, layout)
    check_is_gate(gate)
    check_heads(q, v, layout)
    check_implementation(implementation)
    check_chunk_size(chunk_size)
    if backward is None:
        backward = torch.is_grad_enabled() and (q.requires_grad or v.requires_grad)
    q, v = (_as_under_autocast(x if layout == "bhtd" else x.transpose(1, 2)) for x in (q, v))
    given = None if chunk_size == "auto" else chunk_size
    asked = f"{implementation} was asked for"
    no_kernel = only_reference(q, v) if implementation == "auto" else None
    if implementation == "reference" or no_kernel is not None:
        why = asked if no_kernel is None else f"no kernel runs here: {no_kernel.format(q=q, v=v)}"
        return Choice("reference", min(given or REFERENCE_CHUNK_SIZE, q.shape[2]), why)
    name, L, refused = resolve(
        q, v, gate=gate, implementation=implementation, chunk_size=given, backward=backward, config=config
    )
    if refused:
        why = f"{name} is the first that runs here: {'; '.join(refused)}"
    elif name == implementation:
        why = f"{asked} and runs here"
    else:
        why = f"{name} is the first choice and runs here"
    return Choice(cast("Implementation", name), L, why)


def _as_under_autocast(x: Tensor) -> Tensor:
    """Return a tensor of the shape and device of x, in the dtype to which autocast would cast x. It has no data."""
    dtype = autocast_dtype(x)
    return x if dtype is None else x.new_empty((), dtype=dtype).expand(x.shape)
