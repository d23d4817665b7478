"""Chunkwise kernels as one torch operator and its backward.

torch.compile, autocast, opcheck and CUDA graphs see one opaque call, whichever kernels run behind it. Which they are is
decided in the call, of sizes that are symbols where torch.compile traces it: compare these, never hash them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from .backends import kernels_of, resolve
from .common import operators
from .common.contract import Arguments, KernelOptions, Kernels
from .common.operators import FIRST_ORDER, Gradients, constant_to_compilers, tuple_of
from .common.tensors import shared, sum_shared
from .families import FAMILIES
from .mamba2.epilogue import skip_and_gate, skip_gradients
from .state import State, gradient_of_state
from .types import Gating


class Setup(NamedTuple):
    """Fix a call beyond its tensors and numbers. Operators take strings: its text stands for it.

    To the operators the gate has no temperature: to torch.compile a float may be one that changes from call to call.
    """

    implementation: str
    gate: Gating
    state_dtype: torch.dtype
    config: Any = None
    deterministic_layout: bool = False


_setups: dict[str, Setup] = {}
_resolved: dict[tuple[Any, ...], tuple[str, int]] = {}
MOST = 4096  # calls of which `_resolved` remembers what runs: shapes that never come again are not to pile up


def run(
    call: Arguments, setup: Setup, scale: float, chunk_size: int | None, return_last_state: bool,
    bounds: Sequence[int] | None = None,
) -> tuple[Tensor, State | None]:  # fmt: skip
    """Return h and, if asked for, the last state of `api.chunkwise`; without a chunk size the kernels choose one."""
    q, k, v, f, i, initial, skip = call
    gate = setup.gate
    backward = wants_gradients(q, k, v, f, i, skip, *initial or ())
    wide = torch.promote_types(q.dtype, torch.float32)
    C, n, m = (None if x is None else x.to(wide) for x in initial or (None, None, None))
    key = setup_key(setup.implementation, gate.family, gate.fields, *setup[2:])
    given = q, k, v, f, i, C, n, m, scale, float(gate.temperature), chunk_size, backward, key, skip
    h, *states = _forward(*given, return_last_state, bounds)
    return h, _split(states, gate)[0] if return_last_state else None


def wants_gradients(*inputs: Any) -> bool:
    """Return whether gradients will flow to one of the inputs: tensors or anything else, which has none."""
    return torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in inputs)


@constant_to_compilers
def setup_key(
    implementation: str, family: str, gate_fields: tuple[Any, ...], state_dtype: torch.dtype, config: Any = None,
    deterministic_layout: bool = False,
) -> str:  # fmt: skip
    """Return the text that stands for these in the operators.

    The gate comes as its fields: torch.compile before 2.13 takes no frozen dataclass for a constant.
    """
    register = _registered if config is None else _register  # what is no config need not have a hash
    return register(implementation, family, gate_fields, state_dtype, config, deterministic_layout)


def _register(implementation: str, family: str, gate_fields: tuple[Any, ...], *others: Any) -> str:
    setup = Setup(implementation, FAMILIES[family].gating(*gate_fields), *others)
    _setups[repr(setup)] = setup
    return repr(setup)


_registered = functools.lru_cache(1024)(_register)


def gate_of(setup: str, temperature: float) -> Gating:
    """Return the gates that the text `setup` stands for."""
    gate = _setups[setup].gate
    return gate if temperature == 1 else _with_temperature(gate, temperature)


@functools.lru_cache(64)
def _with_temperature(gate: Gating, temperature: float) -> Gating:
    return replace(cast("Any", gate), temperature=temperature)


def kernels_and_options(
    q: Tensor, v: Tensor, scale: float, temperature: float, chunk_size: int | None, backward: bool, setup: str, *,
    fake: bool = False, **asked: Any,
) -> tuple[Kernels, KernelOptions]:  # fmt: skip
    """Return the kernels that run and what they are told; `asked` are fields of `KernelOptions`.

    Args:
        fake: sizes may be symbols, which have no hash, so what runs is worked out anew.
    """
    implementation, _, state_dtype, config, deterministic_layout = _setups[setup]
    gate = gate_of(setup, temperature)
    key = None if fake else (q.shape, v.shape, q.dtype, q.device, temperature, chunk_size, backward, setup)
    chosen = None if key is None else _resolved.get(key)
    if chosen is None:
        given = None if chunk_size is None else int(chunk_size)
        choice = resolve(
            q, v, gate=gate, implementation=implementation, chunk_size=given, backward=backward, config=config,
            deterministic_layout=deterministic_layout,
        )  # fmt: skip
        chosen = choice[:2]
        if len(_resolved) >= MOST:
            _resolved.clear()
        if key is not None:
            _resolved[key] = chosen
    name, L = chosen
    return kernels_of(gate.family, name), KernelOptions(
        gate, scale, L, state_dtype, config, deterministic_layout, backward=backward, **asked
    )


def _split(states: Sequence[Any], gate: Gating) -> tuple[State, Sequence[Any]]:
    """Return the State and what follows it, of tensors or gradients that the operator gives after h."""
    rest = list(states)  # not `C, *rest = states`: torch.compile before 2.13 makes a tuple of it
    C = rest.pop(0)
    n = rest.pop(0) if gate.normalize else None
    m = rest.pop(0) if gate.stabilized else None
    return State(C, n, m), rest


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.set_materialize_grads(False)  # a last state that nothing depends on has no gradient, not one of zeros
    *tensors, scale, temperature, chunk_size, backward, setup, skip, ctx.has_last, ctx.bounds = inputs
    ctx.numbers = (scale, temperature, chunk_size, backward, setup)
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
    grads_given = iter(_backward(dh, dC, dn, *tensors, list(saved), *ctx.numbers, skip, gates, ctx.bounds))
    given = [x if gates or place not in (3, 4) else None for place, x in enumerate(tensors[:7])]
    q_to_n = [next(grads_given) if x is not None else None for x in given]
    return (*q_to_n, None, *(None for _ in ctx.numbers), next(grads_given) if skip is not None else None, None, None)


# --- The operators


@operators.custom_op("chunkwise", Gradients(_save_for_backward, _gradients))
def _forward(  # noqa: PLR0913  an operator's schema
    q: Tensor,
    k: Tensor,
    v: Tensor,
    f: Tensor | None,
    i: Tensor | None,
    C: Tensor | None,
    n: Tensor | None,
    m: Tensor | None,
    scale: float,
    temperature: float,
    chunk_size: int | None,
    backward: bool,
    setup: str,
    skip: Tensor | None,
    return_last_state: bool,
    bounds: Sequence[int] | None,
) -> list[Tensor]:
    """Return [h, if asked for the last C, n and m as far as the gate has them, *saved].

    Args:
        C, n, m: the state before the first step, float32.
        setup: `setup_key` of all that is neither a tensor nor a number; see `KernelOptions` for these.
    """
    kernels, options = kernels_and_options(
        q, v, scale, temperature, chunk_size, backward, setup,
        return_last_state=return_last_state, cut_freely=chunk_size is None and backward, bounds=tuple_of(bounds),
    )  # fmt: skip
    adds_skip = kernels.adds_skip and bounds is None
    arguments = kernels.taken(Arguments.of(q, k, v, f, i, C, n, m, skip if adds_skip else None))
    h, last, saved = kernels.forward(arguments, options)
    if not adds_skip:
        h = skip_and_gate(h, v, skip, None, head_axis=1)
    return [h, *(x for x in last or () if x is not None), *saved]


@operators.register_fake("chunkwise")
def _fake_forward(q: Tensor, k: Tensor, v: Tensor, *others: Any) -> list[Tensor]:
    scale, _, chunk_size, backward, setup, _, return_last_state, bounds = others[5:]
    kernels, options = kernels_and_options(
        q, v, scale, 1.0, chunk_size, backward, setup, fake=True, bounds=tuple_of(bounds)
    )
    if not kernels.shares_heads:
        q = shared(q, v.shape[1])
    gate = options.gate
    (B, H, _, d_hv), d_qk = v.shape, q.shape[-1]
    N = B if bounds is None else len(bounds) - 1
    shapes = [(N, H, d_qk, d_hv), *[(N, H, d_qk)] * gate.normalize, *[(N, H)] * gate.stabilized]
    wide = torch.promote_types(q.dtype, torch.float32)
    last = [q.new_empty(shape, dtype=wide) for shape in shapes] if return_last_state else []
    return [torch.empty_like(v), *last, *kernels.empty_saved(q, v, options)]


@operators.custom_op("chunkwise_backward", FIRST_ORDER)
def _backward(  # noqa: PLR0913  an operator's schema
    dh: Tensor,
    dC_last: Tensor | None,
    dn_last: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    f: Tensor | None,
    i: Tensor | None,
    C: Tensor | None,
    n: Tensor | None,
    m: Tensor | None,
    saved: Sequence[Tensor],
    scale: float,
    temperature: float,
    chunk_size: int | None,
    backward: bool,
    setup: str,
    skip: Tensor | None,
    gate_gradients: bool,
    bounds: Sequence[int] | None,
) -> list[Tensor]:
    """Return gradients of q, k, v, f, i, C, n, skip, in this order, without those that are None; f and i if asked for.

    Args:
        dh, dC_last, dn_last: gradients of h and of the last state; None for a state that nothing depends on.
        saved: what forward returned behind the last state; the other arguments are those of forward.
    """
    kernels, options = kernels_and_options(
        q, v, scale, temperature, chunk_size, backward, setup, gate_gradients=gate_gradients, bounds=tuple_of(bounds)
    )
    adds_skip = kernels.adds_skip and bounds is None
    arguments = kernels.taken(Arguments.of(q, k, v, f, i, C, n, m, skip if adds_skip else None))
    d_last = gradient_of_state(dC_last, dn_last, v.shape[-1])
    grads: Any = kernels.backward(dh, d_last, arguments, tuple(saved), options)
    dq, dk, *rest = grads
    if skip is not None and not adds_skip:
        through_skip, dskip = skip_gradients(dh, v, skip)
        rest[0] += through_skip
        rest.append(dskip)
    return [sum_shared(dq, q), sum_shared(dk, k), *(g for g in rest if g is not None)]


@operators.register_fake("chunkwise_backward")
def _fake_backward(dh: Tensor, dC_last: Tensor | None, dn_last: Tensor | None, *others: Any) -> list[Tensor]:
    q, k, v, f, i, C, n, *_, skip, gate_gradients, _ = others
    gates = (f, i) if gate_gradients else ()
    return [torch.empty_like(x) for x in (q, k, v, *gates, C, n, skip) if x is not None]
