"""GLA, Simple GLA, Retention, Lightning attention and the delta rules as flash-linear-attention (0.6) calls them.

    from tflabench.kernels.compat.fla import chunk_simple_gla   # was: from fla.ops.simple_gla import chunk_simple_gla

All tensors have the layout (B, T, H, ...). Each function takes arguments of an `FlaCall`, in the order that it has in
fla, and returns o (B, T, H_v, d_hv) and the state after the last step, float32, or None. What differs: `g_gamma` gets a
gradient too, keywords that mean nothing are refused and not passed over, and a `chunk_size` is only needed to override
what these kernels choose.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections import namedtuple
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import softplus

from tflabench.kernels.api import compute
from tflabench.kernels.checks import check_sequence, check_tensor, heads_of
from tflabench.kernels.delta.operations import delta_net, gated_delta_net
from tflabench.kernels.gla.operations import gla
from tflabench.kernels.kda.operations import kda
from tflabench.kernels.scalar.operations import lightning_slopes, retnet_log_decays, simple_gla
from tflabench.kernels.state import State
from tflabench.kernels.types import RETENTION

Output: TypeAlias = tuple[Tensor, Tensor | None]


class FlaCall(NamedTuple):
    """Arguments of fla's functions, of which each takes some.

    Attributes:
        q, k: (B, T, H, d_qk).
        v: (B, T, H_v, d_hv); of the delta rules H_v may be a multiple of H.
        g: log decays (B, T, H_v), of GLA and KDA (B, T, H_v, d_qk).
        g_gamma: (H,), log decays, one a head, in the place of g; none at all without either.
        gk: what fla's recurrent form of GLA calls g; None is no decay. Else None.
        gv: None: these kernels have no decays of v.
        beta: (B, T, H_v), from 0 to 2, of the delta rules.
        layer_idx, num_layers: of Lightning attention, whose decays are exp(-8 h / H (1 - layer_idx / num_layers)).
        scale: of q; None is 1/sqrt(d_qk).
        initial_state: (B, H_v, d_qk, d_hv), or (.., d_hv, d_qk) with `state_v_first`; one a sequence with `cu_seqlens`.
        output_final_state: return the state after the last step, of each sequence with `cu_seqlens`.
        cu_seqlens: (N + 1), where N sequences laid one behind the other begin and end (B is 1 then). With states in or
            out those of one length that follow each other are one call, and bounds are read from the device unless
            `cu_seqlens_cpu` has them, which says nothing alone.
        reverse: from the last step to the first; not with `cu_seqlens`.
        use_qk_l2norm_in_kernel: divide q and k by their norms.
        use_beta_sigmoid_in_kernel: beta is given before a sigmoid; `allow_neg_eigval`: and is twice that.
        use_gate_in_kernel: log decays are -exp(A_log) softplus(g + dt_bias), or with a `lower_bound`
            lower_bound sigmoid(exp(A_log) (g + dt_bias)), with A_log (H_v,) and dt_bias H_v numbers, of KDA H_v d_qk.
        safe_gate: there must be a lower bound. The result is the same.
        return_intermediate_states, use_graph, cp_context: such calls are refused; a sequence is on one GPU.
        disable_recompute, chunk_indices, max_num_seqs: of no effect.
        chunk_size: steps between two states in memory, of KDA 32 or 64; None lets the kernels choose.
        transpose_state_layout: what earlier versions of fla call `state_v_first`.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor | None = None
    g_gamma: Tensor | None = None
    gk: Tensor | None = None
    gv: Tensor | None = None
    beta: Tensor | None = None
    layer_idx: int = 0
    num_layers: int = 1
    scale: float | None = None
    initial_state: Tensor | None = None
    output_final_state: bool = False
    state_v_first: bool = False
    cu_seqlens: Tensor | None = None
    cu_seqlens_cpu: Tensor | None = None
    reverse: bool = False
    use_qk_l2norm_in_kernel: bool = False
    use_beta_sigmoid_in_kernel: bool = False
    allow_neg_eigval: bool = False
    use_gate_in_kernel: bool = False
    A_log: Tensor | None = None
    dt_bias: Tensor | None = None
    safe_gate: bool = False
    lower_bound: float | None = None
    return_intermediate_states: bool = False
    use_graph: bool = False
    cp_context: None = None
    disable_recompute: bool = False
    chunk_indices: Tensor | None = None
    max_num_seqs: int | None = None
    chunk_size: int | None = None
    transpose_state_layout: bool | None = None


def takes(needed: str, others: str, named: str = "") -> Callable[[Callable[[FlaCall], Output]], Callable[..., Output]]:
    """Return a decorator: the function takes these arguments of a `FlaCall`, by place or by name.

    Args:
        needed, others: those without a default, then those with the default of `FlaCall`.
        named: those that it takes by name alone, which fla does not have.
    """
    usual, names = FlaCall._field_defaults, (*needed.split(), *others.split(), *named.split())
    kinds = dict.fromkeys(named.split(), inspect.Parameter.KEYWORD_ONLY)
    parameters = [
        inspect.Parameter(
            name, kinds.get(name, inspect.Parameter.POSITIONAL_OR_KEYWORD), annotation=FlaCall.__annotations__[name],
            default=inspect.Parameter.empty if name in needed.split() else usual[name],
        )
        for name in names
    ]  # fmt: skip

    def decorated(function: Callable[[FlaCall], Output]) -> Callable[..., Output]:
        defaults = [usual[name] for name in (others + " " + named).split()]
        given: Any = namedtuple(function.__name__, names, defaults=defaults)  # pyright: ignore[reportUntypedNamedTuple]

        def called(*args: Any, **by_name: Any) -> Output:
            return function(FlaCall(**dict(zip(names, given(*args, **by_name), strict=True))))

        functools.update_wrapper(called, function)
        del vars(called)["__wrapped__"]  # its one parameter is for nobody to see
        called.__signature__ = inspect.Signature(parameters, return_annotation=Output)  # type: ignore[attr-defined]
        return called

    return decorated


def _computed(operation: Callable[..., Any], call: FlaCall, *gates: Tensor | None, **options: Any) -> Output:
    """Return o and the last state, or None, of an operation with its own options."""
    check_sequence("v", call.v, "bthd")
    initial, offsets = call.initial_state, call.cu_seqlens
    if initial is not None and call.state_v_first:
        initial = check_tensor("initial_state", initial, call.v, "v").mT
    if offsets is not None and call.cu_seqlens_cpu is not None:
        offsets = call.cu_seqlens_cpu
    made = operation(
        *(call.q, call.k, call.v, *gates),
        layout="bthd",
        chunk_size="auto" if call.chunk_size is None else call.chunk_size,
        initial_state=None if initial is None else State(initial),
        scale=call.scale,
        cu_seqlens=offsets,
        return_last_state=call.output_final_state,
        **options,
    )
    if not call.output_final_state:
        return made, None
    o, last = made
    return o, last.C.mT if call.state_v_first else last.C


def _constant_decays(
    q: Tensor, k: Tensor, v: Tensor, g_gamma: Tensor, *, return_last_state: bool, **options: Any
) -> Any:
    names = "g_gamma", "i"
    return compute(q, k, v, g_gamma, None, RETENTION, options, names=names, return_last_state=return_last_state)


def _simple_gla(call: FlaCall) -> Output:
    if call.g is not None and call.g_gamma is not None:
        raise ValueError("g and g_gamma are both given: only one of them may be")
    if call.g is not None:
        return _computed(simple_gla, call, call.g)
    g_gamma = torch.zeros(heads_of(call.v, "bthd"), device=call.v.device) if call.g_gamma is None else call.g_gamma
    return _computed(_constant_decays, call, g_gamma)


@takes(
    "q k v", "g g_gamma scale initial_state output_final_state state_v_first cu_seqlens cu_seqlens_cpu", "chunk_size"
)
def chunk_simple_gla(call: FlaCall) -> Output:
    """Compute Simple GLA: h_t = scale S_t^T q_t, S_t = exp(g_t) S_{t-1} + k_t v_t^T."""
    return _simple_gla(call)


@takes("q k v", "scale initial_state output_final_state cu_seqlens", "chunk_size")
def chunk_retention(call: FlaCall) -> Output:
    """Compute `chunk_simple_gla` with RetNet's decays, 1 - 2^(-5 - h) for head h."""
    heads, wide = heads_of(call.v, "bthd"), torch.promote_types(call.v.dtype, torch.float32)
    return _simple_gla(call._replace(g_gamma=retnet_log_decays(heads, call.v.device, wide)))


@takes("q k v layer_idx num_layers", "scale initial_state output_final_state cu_seqlens", "chunk_size")
def chunk_lightning_attn(call: FlaCall) -> Output:
    """Compute `chunk_simple_gla` with Lightning attention's decays, exp(-8 h / H (1 - layer_idx / num_layers))."""
    slopes = lightning_slopes(heads_of(call.v, "bthd"), call.layer_idx, call.num_layers, device=call.v.device)
    return _simple_gla(call._replace(g_gamma=-slopes))


@takes("q k v g", "scale initial_state output_final_state state_v_first cu_seqlens cu_seqlens_cpu", "chunk_size")
def chunk_gla(call: FlaCall) -> Output:
    """Compute Gated Linear Attention: o_t = scale S_t^T q_t, S_t = diag(exp(g_t)) S_{t-1} + k_t v_t^T."""
    return _computed(gla, call, call.g)


fused_chunk_gla = chunk_gla


@takes(
    "q k v", "gk gv scale initial_state output_final_state reverse state_v_first cu_seqlens", "transpose_state_layout"
)
def fused_recurrent_gla(call: FlaCall) -> Output:
    """Compute `chunk_gla` with g = gk, from the last step to the first where it is `reverse`.

    Raises:
        TypeError: an unknown keyword.
        ValueError: gates of v (gv), `reverse` with packed sequences, or a keyword by both of its names.
    """
    if call.transpose_state_layout is not None:
        if call.state_v_first:
            raise ValueError("state_v_first and transpose_state_layout are both given: it must be the first alone")
        warnings.warn("transpose_state_layout is now state_v_first", DeprecationWarning, stacklevel=3)
        call = call._replace(state_v_first=call.transpose_state_layout)
    if call.gv is not None:
        raise ValueError("gv is a tensor: it must be None, these kernels have no gates of v")
    if call.reverse and call.cu_seqlens is not None:
        raise ValueError("reverse is True: it must be False with cu_seqlens")
    check_sequence("q", call.q, "bthd")
    q, k, v, g = call.q, call.k, call.v, torch.zeros_like(call.q) if call.gk is None else call.gk
    if call.reverse:
        q, k, v, g = (x.flip(1) for x in (q, k, v, g))
    o, last = _computed(gla, call._replace(q=q, k=k, v=v), g)
    return o.flip(1) if call.reverse else o, last


def _delta_rule(rule: Any, call: FlaCall) -> Output:
    """Return what a delta rule computes; `rule` is the operation."""
    for name in ("return_intermediate_states", "use_graph", "cp_context"):
        if getattr(call, name):
            raise ValueError(f"{name} is given: it must be {FlaCall._field_defaults[name]}")
    beta, sigmoid, negative = call.beta, call.use_beta_sigmoid_in_kernel, call.allow_neg_eigval
    if negative and not sigmoid:
        raise ValueError("allow_neg_eigval is True: it must be False without use_beta_sigmoid_in_kernel")
    if sigmoid:
        beta = check_tensor("beta", beta, call.v, "v").float().sigmoid() * (2 if negative else 1)
    g = _log_decays(call) if call.use_gate_in_kernel else call.g
    gates: Any = (beta,) if rule is delta_net else (g, beta)
    # One that is given as it is may be up to 2. KDA computes the same whichever way it is given, as fla's does.
    beta_max = 1 if sigmoid and not negative and rule is not kda else 2
    return _computed(rule, call, *gates, l2_normalize=call.use_qk_l2norm_in_kernel, beta_max=beta_max)


def _log_decays(call: FlaCall) -> Tensor:
    """Return what a gate in the kernel makes of g (B, T, H_v) or (B, T, H_v, d_qk), float32."""
    g: Any = call.g
    A_log, dt_bias, lower_bound = call.A_log, call.dt_bias, call.lower_bound
    if lower_bound is None and (call.safe_gate or A_log is None):
        name, wanted = ("lower_bound", "a number") if call.safe_gate else ("A_log", "a tensor")
        raise ValueError(
            f"{name} is None: it must be {wanted} with use_gate_in_kernel{' and safe_gate' * call.safe_gate}"
        )
    if lower_bound is not None and not lower_bound < 0:
        raise ValueError(f"lower_bound is {lower_bound}: it must be below 0")
    g = g.float() if dt_bias is None else g.float() + dt_bias.float().reshape(g.shape[2:])
    rate: Any = 1.0 if A_log is None else A_log.float().reshape(-1, *[1] * (g.dim() - 3)).exp()
    return -rate * softplus(g) if lower_bound is None else lower_bound * torch.sigmoid(rate * g)


def _as_v(call: FlaCall) -> FlaCall:
    """Return a call with q and k in the dtype of v, and a beta of 1 and no decay where these are None."""
    v = call.v
    beta = v.new_ones(v.shape[:-1]) if call.beta is None else call.beta
    g = v.new_zeros(v.shape[:-1]) if call.g is None else call.g
    return call._replace(q=call.q.to(v.dtype), k=call.k.to(v.dtype), g=g, beta=beta)


@takes(
    "q k v beta",
    "scale initial_state output_final_state use_qk_l2norm_in_kernel cu_seqlens cu_seqlens_cpu",
    "chunk_size",
)
def chunk_delta_rule(call: FlaCall) -> Output:
    """Compute DeltaNet: o_t = scale S_t^T q_t, S_t = S_{t-1} + beta_t k_t (v_t - S_{t-1}^T k_t)^T."""
    return _delta_rule(delta_net, call)


@takes("q k v", "beta scale initial_state output_final_state use_qk_l2norm_in_kernel cu_seqlens")
def fused_recurrent_delta_rule(call: FlaCall) -> Output:
    """Compute `chunk_delta_rule`; a beta of None is 1, and q and k are cast to the dtype of v."""
    return _delta_rule(delta_net, _as_v(call))


@takes(
    "q k v g beta",
    "scale initial_state output_final_state use_qk_l2norm_in_kernel use_beta_sigmoid_in_kernel allow_neg_eigval "
    "state_v_first cu_seqlens cu_seqlens_cpu chunk_indices cp_context",
    "use_gate_in_kernel A_log dt_bias chunk_size",
)
def chunk_gated_delta_rule(call: FlaCall) -> Output:
    """Compute Gated DeltaNet: o_t = scale S_t^T q_t, S_t = d_t S_{t-1} + beta_t k_t (v_t - d_t S_{t-1}^T k_t)^T.

    d_t is exp(g_t).
    """
    return _delta_rule(gated_delta_net, call)


@takes(
    "q k v",
    "g gk gv beta scale initial_state output_final_state use_qk_l2norm_in_kernel use_gate_in_kernel A_log dt_bias "
    "use_beta_sigmoid_in_kernel allow_neg_eigval state_v_first cu_seqlens",
)
def fused_recurrent_gated_delta_rule(call: FlaCall) -> Output:
    """Compute `chunk_gated_delta_rule`; a g of None is no decay, a beta of None is 1. gk and gv must be None.

    q and k are cast to the dtype of v.
    """
    if call.gk is not None or call.gv is not None:
        name = "gk" if call.gv is None else "gv"
        raise ValueError(f"{name} is a tensor: it must be None, these kernels have one decay a head and step")
    return _delta_rule(gated_delta_net, _as_v(call))


@takes(
    "q k v g beta",
    "scale initial_state output_final_state use_qk_l2norm_in_kernel use_gate_in_kernel use_beta_sigmoid_in_kernel "
    "allow_neg_eigval safe_gate lower_bound disable_recompute return_intermediate_states state_v_first cu_seqlens "
    "cu_seqlens_cpu cp_context use_graph max_num_seqs",
    "A_log dt_bias chunk_size",
)
def chunk_kda(call: FlaCall) -> Output:
    """Compute Kimi Delta Attention: `chunk_gated_delta_rule` with d_t a diagonal matrix.

    Raises:
        ValueError: a chunk_size that fla's has not.
    """
    if call.chunk_size not in (None, 32, 64):
        raise ValueError(f"chunk_size is {call.chunk_size}: `chunk_size` must be either 32 or 64")
    return _delta_rule(kda, call)


@takes(
    "q k v g beta",
    "A_log dt_bias scale initial_state output_final_state use_qk_l2norm_in_kernel use_gate_in_kernel "
    "use_beta_sigmoid_in_kernel allow_neg_eigval lower_bound state_v_first cu_seqlens",
)
def fused_recurrent_kda(call: FlaCall) -> Output:
    """Compute `chunk_kda`."""
    return _delta_rule(kda, call)
