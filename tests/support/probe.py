"""Kernels made of PyTorch, which are quick and right, to try the operations and their torch operator with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from tflabench.kernels import backends, chunkwise_operator
from tflabench.kernels.common.contract import Arguments, KernelOptions, Kernels
from tflabench.kernels.families import FAMILIES
from tflabench.kernels.scalar import reference
from tflabench.kernels.state import State
from tflabench.kernels.types import MLSTM_EXP, MLSTM_SIG, Gate

B, H, T, D_QK, D_HV = 2, 2, 40, 16, 32
GATES = {"exp": MLSTM_EXP, "sig": MLSTM_SIG, "retention": Gate("fixed", "none"), "mamba2": Gate("log_decay", "step")}
READ = ("gate", "scale", "chunk_size", "state_dtype")  # of the options, by the reference
PROBE: Any = "probe"  # no Implementation that types know of
every_gate = pytest.mark.parametrize("gate", GATES.values(), ids=GATES.keys())
every_implementation = pytest.mark.parametrize("implementation", ["reference", "probe"])


def map_state(change: Callable[[Tensor], Tensor], state: State) -> State:
    C, n, m = state
    return State(change(C), None if n is None else change(n), None if m is None else change(m))


class Probe:
    """Keeps to the contract of Kernels by way of the reference, and remembers how it was called."""

    def __init__(self) -> None:
        self.calls: list[dict] = []
        self.d_last: list[State | None] = []
        self.gate_gradients: list[bool] = []

    def forward(self, arguments: Arguments, options: KernelOptions) -> Any:
        assert arguments.skip is None
        x, asked = arguments._asdict(), options._asdict()
        self.calls.append({**x, **asked, "last": options.return_last_state})
        h, last = reference.chunkwise(*arguments[:6], **{name: asked[name] for name in READ})
        last = map_state(torch.clone, last) if options.return_last_state else None
        return torch.empty_like(arguments.v).copy_(h), last, (arguments.v.new_ones(3),)

    def backward(self, dh: Tensor, d_last: State | None, *others: Any) -> Any:
        self.d_last.append(d_last)
        # Operators run below autograd; a thread of its own starts above it.
        with ThreadPoolExecutor(1) as other:
            return other.submit(self._backward, dh, d_last, *others).result()

    def _backward(self, dh, d_last, arguments, saved, options) -> Any:
        q, k, v, f, i, initial, _ = arguments
        gate_gradients = options.gate_gradients
        assert saved[0].equal(v.new_ones(3))
        self.gate_gradients.append(gate_gradients)
        inputs = [q, k, v, f, i, *(initial[:2] if initial is not None else (None, None))]
        leaves: list[Any] = [x if x is None else x.detach().requires_grad_() for x in inputs]
        q, k, v, f, i, C, n = leaves
        start = None if initial is None else State(C, n, initial.m)
        asked = {name: getattr(options, name) for name in READ}
        h, last = reference.chunkwise(q, k, v, f, i, start, **asked)
        outputs = [(h, dh), *zip(last[:2], d_last[:2] if d_last is not None else (None, None), strict=True)]
        ends, weights = zip(*((y, dy) for y, dy in outputs if y is not None and dy is not None), strict=True)
        found = iter(torch.autograd.grad(ends, [x for x in leaves if x is not None], weights, materialize_grads=True))
        grads = [x if x is None else torch.empty_like(x).copy_(next(found)) for x in leaves]
        return tuple(grads if gate_gradients else [*grads[:3], None, None, *grads[5:]])

    def kernels(self) -> Kernels:
        return Kernels(
            forward=self.forward,
            backward=self.backward,
            empty_saved=lambda q, v, options: (v.new_ones(3),),
            refuses=lambda q, v, *, chunk_size, **_: "takes chunks up to 64" if chunk_size > 64 else None,
            default_chunk_size=lambda q, v, *, gate, backward: 32,
        )


def forget_kernels() -> None:
    """What is remembered of the kernels of a family, which tests change."""
    backends.kernels_of.cache_clear()
    chunkwise_operator._resolved.clear()


def probed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Probe]:
    """A probe that operations run for `implementation="probe"`, for fixtures."""
    probe = Probe()
    monkeypatch.setitem(FAMILIES["scalar"].kernels, "probe", probe.kernels)
    forget_kernels()
    yield probe
    forget_kernels()
    torch._dynamo.reset()


@dataclass(frozen=True)
class Expert:
    warps: int = 4


def inputs(gate: Gate = MLSTM_EXP, dtype: torch.dtype = torch.float32) -> dict:
    """q, k, v, f, i as leaves, for keywords of `chunkwise`."""
    torch.manual_seed(0)
    x = {"q": torch.randn(B, H, T, D_QK), "k": torch.randn(B, H, T, D_QK), "v": torch.randn(B, H, T, D_HV)}
    x["f"] = {"sigmoid": torch.randn(B, H, T) + 3, "log_decay": -torch.rand(B, H, T), "fixed": -torch.rand(H)}[
        gate.forget
    ]
    if gate.input != "none":
        x["i"] = torch.rand(B, H, T) + 0.1 if gate.input == "step" else torch.randn(B, H, T)
    return {name: t.to(dtype).requires_grad_() for name, t in x.items()}


def start(gate: Gate) -> State:
    n = torch.randn(B, H, D_QK).requires_grad_() if gate.normalize else None
    return State(torch.randn(B, H, D_QK, D_HV).requires_grad_(), n, torch.randn(B, H) if gate.stabilized else None)


def results(compute, x: dict, state: State | None, **options) -> dict[str, Tensor]:
    """Outputs and gradients of a loss in h, the last C and the last n, by name."""
    h, last = compute(**x, initial_state=state, return_last_state=True, **options)
    found = {"h": h, "last.C": last.C} | ({} if last.n is None else {"last.n": last.n})
    loss = torch.stack(
        [(y * torch.linspace(-1, 1, y.numel(), device=y.device).view_as(y)).sum() for y in found.values()]
    ).sum()
    leaves = x | ({} if state is None else {n: t for n, t in zip("Cn", state, strict=False) if t is not None})
    grads = torch.autograd.grad(loss, list(leaves.values()))
    return found | {f"d{n}": g for n, g in zip(leaves, grads, strict=True)}


def double(x: Tensor) -> Tensor:
    return x.detach().double().requires_grad_(x.requires_grad)


def assert_close(found: dict[str, Tensor], wanted: dict[str, Tensor], tolerance: float = 1e-4) -> None:
    assert found.keys() == wanted.keys()
    for name, want in wanted.items():
        error = (found[name] - want).abs().max() / want.abs().max().clamp(min=1e-3)
        assert error <= tolerance, f"{name}: {error:.1e}"
