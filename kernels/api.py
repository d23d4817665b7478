"""The public operations: what they accept, which implementation runs, and how torch sees them.

    mlstm_exp, mlstm_sig             the paper's two gates
    retention, gated_retention,      the linear RNNs with one scalar gate a head that the paper leaves undone (A.3):
    simple_gla, lightning_attention, another gate, and for Mamba 2 shared heads and an epilogue
    mamba2_ssd
    chunkwise                        any Gate

"reference" is plain PyTorch under plain autograd. Every other implementation is a set of `Kernels` behind one torch
custom operator and its backward, so that torch.compile, autocast, opcheck and CUDA graphs see a single opaque call.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypedDict, Unpack

import torch
from torch import Tensor

from . import reference
from .checks import (
    check_chunk_size,
    check_gate,
    check_inputs,
    check_mamba2,
    check_name,
    check_not_negative,
    check_not_positive,
    check_one_dtype,
    check_scale,
    check_skip,
    check_state,
    heads_of,
)
from .epilogue import skip_and_gate, skip_gradients
from .operators import FIRST_ORDER, HAS_TRITON, Gradients, define
from .prologue import add_bias
from .state import State
from .types import MLSTM_EXP, MLSTM_SIG, RETENTION, SIMPLE_GLA, Gate

Layout = Literal["bhtd", "bthd"]
AUTO, AUTO_FORWARD = 0, -1  # as chunk sizes, inside the operators: with a backward to come, and without

_REFERENCE_CHUNK_SIZE = 64
KERNEL_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class Kernels(NamedTuple):
    """Chunkwise kernels as the operators call them. Tensors are (B, H, T, ...) with any strides.

    Attributes:
        forward: (q, k, v, f, i, initial, *, gate, scale, chunk_size, state_dtype, config, return_last_state) ->
            (h, last, saved): h of the shape and strides of `torch.empty_like(v)`, the State after the last step
            (None where it is not asked for), and a tuple of tensors for backward. All fresh: none shares memory with an
            input or with another. i and initial may be None.
        backward: (dh, d_last, q, k, v, f, i, initial, saved, *, gate, scale, chunk_size, state_dtype, config,
            gate_gradients) -> (dq, dk, dv, df, di, dC, dn) made as `torch.empty_like` makes them, None where the input
            is None, df and di also without gate_gradients. d_last is a State without m.
        empty_saved: (q, v, *, gate, chunk_size, state_dtype, config) -> tensors as `saved`, uninitialised.
        refuses: (q, v, *, gate, chunk_size, config) -> why it cannot run here, or None.
        default_chunk_size: (q, v, *, gate, backward) -> L; backward: whether there will be one.
        shares_heads: whether q and k may have fewer heads than v, H / G consecutive ones for each (dq and dk are then
            summed over these); kernels that do not are given copies.
        adds_skip: whether forward and backward take `skip` (H,), by which h_t has skip v_t added, and backward returns
            its gradient behind the others; for kernels that do not, that is another pass over memory.
        cuts_freely: whether forward takes `cut_freely`: chunk_size is the default and that of what backward reads, but
            forward may cut sequences otherwise.
    """

    forward: Callable[..., tuple[Tensor, State | None, tuple[Tensor, ...]]]
    backward: Callable[..., tuple[Tensor | None, ...]]
    empty_saved: Callable[..., tuple[Tensor, ...]]
    refuses: Callable[..., str | None]
    default_chunk_size: Callable[..., int]
    shares_heads: bool = False
    adds_skip: bool = False
    cuts_freely: bool = False


def _tfla(levels: int) -> Kernels:
    return importlib.import_module(".tfla.chunkwise", __package__).kernels(levels)


def _hopper() -> Kernels:
    return importlib.import_module(".hopper.chunkwise", __package__).kernels()


_KERNELS: dict[str, Callable[[], Kernels]] = {
    "hopper": _hopper,
    "tfla_xl": functools.partial(_tfla, 2),
    "tfla_limit": functools.partial(_tfla, 1),
}
_TRIED = {"auto": ("hopper", "tfla_xl", "tfla_limit"), "tfla": ("tfla_xl", "tfla_limit")}  # in this order
_RARE_STATES = 512  # steps between states from which on the fused kernels are the faster ones: theirs are float32


class Options(TypedDict, total=False):
    """Keywords of `chunkwise`, which explains them."""

    layout: Layout
    chunk_size: int | Literal["auto"]
    initial_state: State | None
    return_last_state: bool
    scale: float | None
    state_dtype: torch.dtype
    skip: Tensor | None
    implementation: str
    config: Any


def mlstm_exp(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, **options: Unpack[Options]) -> Any:
    """mLSTMexp: exponential input gate, sigmoid forget gate, normaliser. See `chunkwise` for arguments and results."""
    return chunkwise(q, k, v, f, i, gate=MLSTM_EXP, **options)


def mlstm_sig(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, **options: Unpack[Options]) -> Any:
    """mLSTMsig: sigmoid input and forget gates, no normaliser. See `chunkwise` for arguments and results."""
    return chunkwise(q, k, v, f, i, gate=MLSTM_SIG, **options)


def retention(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None = None, **options: Unpack[Options]) -> Any:
    """Retention: F = exp(log_decay), a constant of each head, no input gate (Sun et al. 2023, eq. 5).

    Args:
        q, k, v: see `chunkwise`, as the options and results.
        log_decay: (H,), <= 0; None is `retnet_log_decays`.
    """
    if log_decay is None:
        log_decay = retnet_log_decays(heads_of(v, options.get("layout", "bhtd")), device=v.device)
    check_gate("log_decay", log_decay, v, options.get("layout", "bhtd"), per_head=True)
    check_not_positive("log_decay", log_decay)
    return chunkwise(q, k, v, log_decay, gate=RETENTION, **options)


def gated_retention(
    q: Tensor, k: Tensor, v: Tensor, f: Tensor, *, temperature: float = 16.0, **options: Unpack[Options]
) -> Any:
    """Gated Retention: F = sigmoid(f)^(1 / temperature), no input gate (Sun et al. 2024, "You only cache once").

    Args:
        q, k, v: see `chunkwise`, as the options and results.
        f: gate pre-activations (B, H, T).
        temperature: > 0; the larger, the slower it forgets.
    """
    check_gate("f", f, v, options.get("layout", "bhtd"), per_head=False)
    return chunkwise(q, k, v, f, gate=Gate("sigmoid", "none", temperature=temperature), **options)


def simple_gla(q: Tensor, k: Tensor, v: Tensor, g: Tensor, **options: Unpack[Options]) -> Any:
    """Simple GLA, scalar-gated linear attention: F = exp(g), no input gate.

    Args:
        q, k, v: see `chunkwise`, as the options and results.
        g: log decays (B, H, T), <= 0, such as logsigmoid of a projection; -inf starts a new document.
    """
    check_gate("g", g, v, options.get("layout", "bhtd"), per_head=False)
    check_not_positive("g", g)
    return chunkwise(q, k, v, g, gate=SIMPLE_GLA, **options)


def lightning_attention(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, **options: Unpack[Options]) -> Any:
    """Lightning attention: F = exp(-slope), a constant of each head, no input gate (Qin et al. 2024).

    Args:
        q, k, v: see `chunkwise`, as the options and results.
        slopes: (H,), >= 0, such as `lightning_slopes`.
    """
    check_gate("slopes", slopes, v, options.get("layout", "bhtd"), per_head=True)
    check_not_negative("slopes", slopes)
    return chunkwise(q, k, v, -slopes, gate=RETENTION, **options)


def mamba2_ssd(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    *,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    **options: Unpack[Options],
) -> Any:
    """Mamba 2's state space dual (Dao and Gu 2024): with d_t = softplus(dt_t + dt_bias), or dt_t + dt_bias itself,

        S_t = exp(d_t A) S_{t-1} + d_t B_t x_t^T,    y_t = (S_t^T C_t + D x_t) * silu(z_t).

    It is `chunkwise` with q = C, k = B, v = x, F = exp(d A) and I = d, all scaled by 1. Gradients flow to every tensor.

    Args:
        x: (B, H, T, d_hv); dt: (B, H, T), d_t > 0 (a step of 0 writes nothing and gets no gradient of I).
        A: (H,), <= 0, the decay rate.
        B, C: (B, G, T, d_qk), dtype of x; G divides H, and each group serves H / G consecutive heads.
        D: (H,) or (H, d_hv), weight of the skip connection.
        z: like x, the output gate's pre-activation.
        dt_bias: (H,), added to dt before softplus.
        dt_softplus: whether the step size is softplus of what is given.
        options: those of `chunkwise`; the layout holds for all tensors; `scale` is 1 if not given. The state's C is
            (B, H, d_qk, d_hv), mamba-ssm's transposed.

    Returns:
        y of the shape of x, or (y, State) with `return_last_state`.
    """
    layout = options.get("layout", "bhtd")
    check_name("layout", layout, ("bhtd", "bthd"))
    check_mamba2(x, dt, A, B, C, D, z, dt_bias, "BHT" if layout == "bhtd" else "BTH")
    around: dict[str, Any] = {
        "head_axis": 1 if layout == "bhtd" else 2,
        "plain": options.get("implementation") == "reference",
    }
    if dt_bias is not None:
        dt = add_bias(dt, dt_bias, **around)
    gate = Gate("rate", "softplus" if dt_softplus else "step")
    skip, wide = (D, None) if D is None or D.dim() == 1 else (None, D)
    found = chunkwise(C, B, x, A, dt, gate=gate, skip=skip, **{"scale": 1.0, **options})
    y, *state = found if options.get("return_last_state") else (found,)
    y = skip_and_gate(y, x, wide, z, **around)
    return (y, *state) if state else y


def retnet_log_decays(heads: int, device: torch.device | str | None = None) -> Tensor:
    """log(1 - 2^(-5 - h)) for head h = 0 ... heads - 1: RetNet's decays, (H,) float32."""
    return torch.log1p(-torch.exp2(-5.0 - torch.arange(heads, dtype=torch.float32, device=device)))


def lightning_slopes(heads: int, layer: int, layers: int, device: torch.device | str | None = None) -> Tensor:
    """8 h / H (1 - layer / layers) for head h: Lightning attention's slopes in layer 0 ... layers - 1, (H,) float32."""
    return 8.0 / heads * (1 - layer / layers) * torch.arange(heads, dtype=torch.float32, device=device)


def chunkwise(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    f: Tensor,
    i: Tensor | None = None,
    *,
    gate: Gate,
    layout: Layout = "bhtd",
    chunk_size: int | Literal["auto"] = "auto",
    initial_state: State | None = None,
    return_last_state: bool = False,
    scale: float | None = None,
    state_dtype: torch.dtype = torch.float32,
    skip: Tensor | None = None,
    implementation: str = "auto",
    config: Any = None,
) -> Any:
    """h_t = scale C_t^T q_t of C_t = F_t C_{t-1} + I_t k_t v_t^T, normalised if the gate says so (paper, eqs. 1-9).

    Gradients flow from h and the last C and n to q, k, v, f, i, skip and the initial C and n; the denominator of h
    and the stabiliser m count as constants (TFLA paper, B.3). NaN in an input reaches every output that depends on it.

    Args:
        q, k: (B, H, T, d_qk), bfloat16, float16 or float32 (float64 too: reference), any strides. With fewer heads than
            v, a divisor of H, each serves H / G consecutive heads.
        v: (B, H, T, d_hv), dtype and device of q. Under autocast q, k, v are cast, gates and states are not.
        f, i: gate pre-activations (B, H, T) of any floating dtype, or what `gate` says instead.
        gate: which gates, with a normaliser or without.
        layout: "bhtd", or "bthd" for q, k (B, T, H, d_qk), v and h (B, T, H, d_hv), gates (B, T, H); never copied.
        chunk_size: L, the number of steps between two states in memory; "auto" chooses by shape and device, and by
            whether a gradient is asked for. It changes speed and memory, not the result. At least 16 and a multiple of
            the tile, for the reference any L >= 1.
        initial_state: State before the first step; None is `types.zero_state`.
        return_last_state: return (h, State) instead of h. The state is float32, of float64 inputs float64.
        scale: of q; None is 1/sqrt(d_qk).
        state_dtype: float32 or bfloat16: the widest type in which states between chunks lie in memory. Kernels keep
            them in the dtype of q where that is narrower: their products would round them to it anyway.
        skip: (H,), the weight of a skip connection: skip v_t is added to h_t, of a gate without normaliser. None is 0.
        implementation: "auto", "reference", "hopper", "tfla" (one of the next two), "tfla_xl" or "tfla_limit". "auto"
            is the fused kernels ("hopper": compute capability 9.0) where they take these inputs, else a TFLA kernel,
            else the reference (CPU, float64, head dimensions that are no multiple of 16). It is not the fused kernels
            below a chunk size of 512, as they write larger states.
        config: for experts, the tuning parameters of the implementation, one frozen object (`tfla.config.TileConfig`).

    Returns:
        h of the shape of v and the dtype of q, or (h, State) with `return_last_state`.

    Raises:
        TypeError, ValueError: an argument of the wrong type, dtype, device, shape or value, or an implementation that
            cannot run here; the message names the argument, what it is and what it must be.
    """
    check_name("layout", layout, ("bhtd", "bthd"))
    check_inputs(q, k, v, f, i, gate, "BHT" if layout == "bhtd" else "BTH")
    if layout == "bthd":
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        f = f if f.dim() == 1 else f.transpose(1, 2)
        i = None if i is None else i.transpose(1, 2)
    if initial_state is not None:
        check_state("initial_state", initial_state, gate, q, v)
    if skip is not None:
        check_skip(skip, gate, v)
    check_chunk_size(chunk_size)
    check_scale(scale)
    check_name("state_dtype", state_dtype, (torch.float32, torch.bfloat16))
    check_name("implementation", implementation, ("auto", "reference", "tfla", *_KERNELS))
    q, k, v = autocast(q, k, v)
    check_one_dtype(q, k, v)

    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    L = chunk_size
    if L == "auto":
        L = AUTO if _wants_gradients(q, k, v, f, i, skip, *initial_state or ()) else AUTO_FORWARD
    if implementation == "auto" and not _kernels_take(q, v):
        implementation = "reference"
    device = q.device.type
    with torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext():
        if implementation == "reference":
            h, last = reference.chunkwise(
                *(q, k, v, f, i, initial_state),
                gate=gate,
                scale=scale,
                chunk_size=L if L > 0 else _REFERENCE_CHUNK_SIZE,
                state_dtype=None if q.dtype == torch.float64 else state_dtype,
            )
            h = skip_and_gate(h, v, skip, None, head_axis=1, plain=True)
        else:
            _check_for_kernels(q, v, L, implementation)
            C, n, m = (None if x is None else x.float() for x in initial_state or (None, None, None))
            gate_fields = (gate.forget, gate.input, gate.normalize)
            key = _setup_key(implementation, gate_fields, state_dtype, config)
            numbers = (scale, gate.temperature, L)
            h, *states = torch.ops.tflabench.chunkwise(q, k, v, f, i, C, n, m, *numbers, key, skip, return_last_state)
            last = _split(states, gate)[0] if return_last_state else None
    if layout == "bthd":
        h = h.transpose(1, 2)
    return (h, last) if return_last_state else h


def _wants_gradients(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def autocast(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """q, k, v in the dtype that autocast asks for, or as they are outside of it."""
    device = q.device.type
    if not torch.is_autocast_enabled(device):
        return q, k, v
    return tuple(x.to(torch.get_autocast_dtype(device)) for x in (q, k, v))


def _kernels_take(q: Tensor, v: Tensor) -> bool:
    """Whether "auto" looks for kernels: what all of them ask of tensors and device."""
    if not (HAS_TRITON and q.is_cuda and q.dtype in KERNEL_DTYPES and _has_tensor_cores(q.device)):
        return False
    return all(d % 16 == 0 and d <= 1024 for d in (q.shape[-1], v.shape[-1]))


@torch.compiler.assume_constant_result
def _has_tensor_cores(device: torch.device) -> bool:
    """Whether they multiply bfloat16: compute capability 8.0 and later."""
    return torch.cuda.get_device_capability(device) >= (8, 0)


def _check_for_kernels(q: Tensor, v: Tensor, chunk_size: int, implementation: str) -> None:
    """What no kernel takes, though the reference does."""
    instead = f"for implementation {implementation!r} (the reference takes any)"
    if q.dtype not in KERNEL_DTYPES:
        raise TypeError(f"q is {q.dtype}: it must be bfloat16, float16 or float32 {instead}")
    for name, x in (("q", q), ("v", v)):
        if x.shape[-1] % 16 != 0:
            raise ValueError(f"{name} has the head dimension {x.shape[-1]}: it must be a multiple of 16 {instead}")
    if chunk_size > 0 and (chunk_size < 16 or chunk_size % 16 != 0):
        raise ValueError(f"chunk_size is {chunk_size}: it must be a multiple of 16 {instead}")


# --- Which kernels run


class Choice(NamedTuple):
    """What runs: the name of the implementation and its chunk size L."""

    implementation: str
    chunk_size: int


def choose(
    q: Tensor, v: Tensor, *, gate: Gate, implementation: str = "auto", chunk_size: int = AUTO, config: Any = None
) -> Choice:
    """What `chunkwise` runs for q (B, H, T, d_qk) and v (B, H, T, d_hv), of which it reads shape, dtype and device.

    Raises:
        ValueError: the implementation cannot run here, with its reason.
    """
    if implementation == "reference" or (implementation == "auto" and not _kernels_take(q, v)):
        return Choice("reference", min(chunk_size if chunk_size > 0 else _REFERENCE_CHUNK_SIZE, q.shape[2]))
    reasons = []
    for name in _TRIED.get(implementation, (implementation,)):
        if name == "hopper" and implementation == "auto" and 0 < chunk_size < _RARE_STATES:
            continue
        kernels = _kernels(name)
        L = chunk_size
        if L <= 0:
            L = kernels.default_chunk_size(q, v, gate=gate, backward=chunk_size == AUTO)
        reason = kernels.refuses(q, v, gate=gate, chunk_size=L, config=config)
        if reason is None:
            return Choice(name, L)
        reasons.append(f"{name} {reason}")
    raise ValueError(f"implementation is {implementation!r}: it must be one that can run here; {'; '.join(reasons)}")


@functools.cache
def _kernels(name: str) -> Kernels:
    if not HAS_TRITON:
        raise ValueError(f"implementation is {name!r}: it needs the package triton, which is not installed")
    return _KERNELS[name]()


class _Setup(NamedTuple):
    """What a call fixes beyond tensors and numbers. Operators take strings: its text stands for it.

    The gate is without its temperature: to torch.compile a float may be one that changes from call to call.
    """

    implementation: str
    gate: Gate
    state_dtype: torch.dtype
    config: Any


_setups: dict[str, _Setup] = {}


@torch.compiler.assume_constant_result
def _setup_key(implementation: str, gate_fields: tuple[Any, ...], state_dtype: torch.dtype, config: Any) -> str:
    """The gate comes as its fields: torch.compile before 2.13 takes no frozen dataclass for a constant."""
    register = _registered if config is None else _register  # what is no config need not have a hash
    return register(implementation, gate_fields, state_dtype, config)


def _register(implementation: str, gate_fields: tuple[Any, ...], state_dtype: torch.dtype, config: Any) -> str:
    setup = _Setup(implementation, Gate(*gate_fields), state_dtype, config)
    _setups[repr(setup)] = setup
    return repr(setup)


_registered = functools.lru_cache(1024)(_register)


# --- The operators


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    f: Tensor,
    i: Tensor | None,
    C: Tensor | None,
    n: Tensor | None,
    m: Tensor | None,
    scale: float,
    temperature: float,
    chunk_size: int,
    setup: str,
    skip: Tensor | None,
    return_last_state: bool,
) -> list[Tensor]:
    """[h, if asked for the last C, last n and m where the gate has them, *saved]."""
    kernels, options = _call(q, v, temperature, chunk_size, setup)
    initial = None if C is None else State(C, n, m)
    if not kernels.shares_heads:
        q, k = (reference.shared(x, v.shape[1]) for x in (q, k))
    if kernels.adds_skip:
        options["skip"] = skip
    options["return_last_state"] = return_last_state
    if kernels.cuts_freely:
        options["cut_freely"] = chunk_size == AUTO
    h, last, saved = kernels.forward(q, k, v, f, i, initial, scale=scale, **options)
    if not kernels.adds_skip:
        h = skip_and_gate(h, v, skip, None, head_axis=1)
    return [h, *(x for x in last or () if x is not None), *saved]


def _fake_forward(q, k, v, f, i, C, n, m, scale, temperature, chunk_size, setup, skip, return_last_state):
    kernels, options = _call(q, v, 1.0, chunk_size, setup)
    if not kernels.shares_heads:
        q = reference.shared(q, v.shape[1])
    gate, (B, H, _, d_hv), d_qk = options["gate"], v.shape, q.shape[-1]
    shapes = [(B, H, d_qk, d_hv), *[(B, H, d_qk)] * gate.normalize, *[(B, H)] * gate.stabilized]
    last = [q.new_empty(shape, dtype=torch.float32) for shape in shapes] if return_last_state else []
    return [torch.empty_like(v), *last, *kernels.empty_saved(q, v, **options)]


def _backward(
    dh: Tensor,
    dC_last: Tensor | None,
    dn_last: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    f: Tensor,
    i: Tensor | None,
    C: Tensor | None,
    n: Tensor | None,
    m: Tensor | None,
    saved: Sequence[Tensor],
    scale: float,
    temperature: float,
    chunk_size: int,
    setup: str,
    skip: Tensor | None,
    gate_gradients: bool,
) -> list[Tensor]:
    """The gradients of those of q, k, v, f, i, C, n, skip that are not None, in this order; f and i if asked for."""
    kernels, options = _call(q, v, temperature, chunk_size, setup)
    if dC_last is None and dn_last is not None:
        dC_last = dn_last.new_zeros(*dn_last.shape, v.shape[-1])
    d_last = None if dC_last is None else State(dC_last, dn_last)
    initial = None if C is None else State(C, n, m)
    keys = (q, k) if kernels.shares_heads else tuple(reference.shared(x, v.shape[1]) for x in (q, k))
    if kernels.adds_skip:
        options["skip"] = skip
    options["gate_gradients"] = gate_gradients
    grads = kernels.backward(dh, d_last, *keys, v, f, i, initial, tuple(saved), scale=scale, **options)
    dq, dk, *others = grads
    assert dq is not None
    assert dk is not None
    if skip is not None and not kernels.adds_skip:
        through_skip, dskip = skip_gradients(dh, v, skip)
        assert others[0] is not None
        others[0] += through_skip
        others.append(dskip)
    return [reference.sum_shared(dq, q), reference.sum_shared(dk, k), *(g for g in others if g is not None)]


def _fake_backward(dh, dC_last, dn_last, q, k, v, f, i, C, n, m, saved, *others):
    *_, skip, gate_gradients = others
    gates = (f, i) if gate_gradients else ()
    return [torch.empty_like(x) for x in (q, k, v, *gates, C, n, skip) if x is not None]


@functools.lru_cache(64)
def _with_temperature(gate: Gate, temperature: float) -> Gate:
    return replace(gate, temperature=temperature)


def _call(q: Tensor, v: Tensor, temperature: float, chunk_size: int, setup: str) -> tuple[Kernels, dict[str, Any]]:
    """The kernels that run and the keywords they all take."""
    implementation, gate, state_dtype, config = _setups[setup]
    if temperature != 1:
        gate = _with_temperature(gate, temperature)
    name, L = choose(q, v, gate=gate, implementation=implementation, chunk_size=int(chunk_size), config=config)
    return _kernels(name), {"gate": gate, "chunk_size": L, "state_dtype": state_dtype, "config": config}


def _split(states: Sequence[Any], gate: Gate) -> tuple[State, Sequence[Any]]:
    """The State and what follows it, of tensors or gradients that the operator gives after h."""
    rest = list(states)  # not `C, *rest = states`: torch.compile before 2.13 makes a tuple of it
    C = rest.pop(0)
    n = rest.pop(0) if gate.normalize else None
    m = rest.pop(0) if gate.stabilized else None
    return State(C, n, m), rest


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.set_materialize_grads(False)  # a last state that nothing depends on has no gradient, not one of zeros
    *tensors, scale, temperature, chunk_size, setup, skip, ctx.has_last = inputs
    ctx.numbers = (scale, temperature, chunk_size, setup)
    ctx.gate = _setups[setup].gate
    saved = _split(output[1:], ctx.gate)[1] if ctx.has_last else output[1:]
    ctx.save_for_backward(*tensors, skip, *saved)


def _gradients(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    dh, *d_states = grads
    dC, dn, _ = _split(d_states, ctx.gate)[0] if ctx.has_last else (None, None, None)
    kept = ctx.saved_tensors  # once: activation checkpointing computes them anew for whoever asks
    tensors, skip, saved = kept[:8], kept[8], kept[9:]
    if dh is None:
        dh = torch.zeros_like(tensors[2])
    gates = any(ctx.needs_input_grad[3:5])
    found = iter(torch.ops.tflabench.chunkwise_backward(dh, dC, dn, *tensors, list(saved), *ctx.numbers, skip, gates))
    given = [x if gates or place not in (3, 4) else None for place, x in enumerate(tensors[:7])]
    q_to_n = [next(found) if x is not None else None for x in given]
    return (*q_to_n, None, *(None for _ in ctx.numbers), next(found) if skip is not None else None, None)


define("chunkwise", _forward, _fake_forward, Gradients(_save_for_backward, _gradients))
define("chunkwise_backward", _backward, _fake_backward, FIRST_ORDER)
