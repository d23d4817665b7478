"""What the delta rules are held against: shapes, keys, gates and strengths, and how a case is checked in float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from gla_cases import gradients
from tfla_cases import DEVICE, distance
from torch import Tensor
from torch.nn.functional import logsigmoid

from tflabench import ops
from tflabench.kernels.delta import reference
from tflabench.ops import State

BOUND = 1e-4  # relative Frobenius error in float32


@dataclass(frozen=True)
class Case:
    """One computation.

    Attributes:
        gates: "none", DeltaNet; "usual", sigmoid^(1/16); "open", all 1; "strong", exp(-5 sigmoid); "resets", usual, but
            2% of them 0; "closing", the same of strong ones.
        channels: a gate is one a channel of q and k, as in Kimi Delta Attention; resets are in all channels at once or
            in single ones.
        keys: "random"; "alike", of a cosine of 0.9; "repeated", four of them by turns.
        beta: the largest, of some steps, where others have less and 0; "usual" is a sigmoid, "full" is always 1.
        L: the chunk size.
        sharing: heads of v that share one of q and k.
        states: an initial state in, and a gradient of the last state back.
    """

    T: int
    d_qk: int
    d_hv: int
    gates: str = "usual"
    keys: str = "random"
    beta: float | str = "usual"
    L: int = 64
    heads: int = 1
    sharing: int = 1
    dtype: torch.dtype = torch.float32
    states: bool = False
    layout: str = "bhtd"
    channels: bool = False

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        text = f"{self.gates}-{self.keys}-{self.beta}-T{self.T}-{self.d_qk}/{self.d_hv}-L{self.L}-{dtype}"
        return f"{text}-{self.heads}x{self.sharing}-{self.layout}" + "-states" * self.states + "-ch" * self.channels


def keys(kind: str, shape: tuple[int, ...]) -> Tensor:
    """Keys (B, H, T, d_qk) of length 1."""
    k = torch.randn(shape, device=DEVICE)
    if kind == "alike":
        k = k + 3 * torch.randn_like(k[:, :, :1])
    elif kind == "repeated":
        k = k[:, :, torch.arange(shape[2], device=DEVICE) % 4]
    return k / k.norm(dim=-1, keepdim=True)


def log_decays(gates: str, shape: tuple[int, ...]) -> Tensor:
    """Log decays (B, H, T) or (B, H, T, d_qk), float32."""
    if gates == "open":
        return torch.zeros(shape, device=DEVICE)
    x = torch.randn(shape, device=DEVICE)
    g = -5 * x.sigmoid() if gates in ("strong", "closing") else logsigmoid(x) / 16
    if gates in ("resets", "closing"):
        for size in {shape, (*shape[:3], *[1] * (len(shape) - 3))}:
            g = g.masked_fill(torch.rand(size, device=DEVICE) < 0.02, float("-inf"))
    return g


def operation(inputs: Mapping[str, Tensor | None], end: str = "") -> Any:
    """Return the delta rule that takes such inputs, or with "_step" its decode step."""
    g, k = inputs.get("g"), inputs["k"]
    name = "delta_net" if g is None else "kda" if k is not None and g.dim() == k.dim() else "gated_delta_net"
    return getattr(ops, name + end)


def draw(case: Case) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Inputs by name, and the gradients of o and of the last state."""
    torch.manual_seed(0)
    T, heads = case.T, case.heads * case.sharing

    def normal(*shape: int, dtype: torch.dtype = case.dtype) -> Tensor:
        return torch.randn(1, heads, *shape, device=DEVICE).to(dtype)

    inputs = {"q": normal(T, case.d_qk)[:, : case.heads]}
    inputs["k"] = keys(case.keys, (1, case.heads, T, case.d_qk)).to(case.dtype)
    inputs["v"] = normal(T, case.d_hv)
    if case.gates != "none":
        inputs["g"] = log_decays(case.gates, (1, heads, T, *[case.d_qk] * case.channels))
    drawn = normal(T, dtype=torch.float32)
    inputs["beta"] = drawn.sigmoid() if case.beta == "usual" else torch.ones_like(drawn)
    if not isinstance(case.beta, str):
        inputs["beta"] = (case.beta * (0.5 + drawn)).clamp(0, case.beta)
    grads = {"o": normal(T, case.d_hv)}
    if case.states:
        inputs["S"] = normal(case.d_qk, case.d_hv, dtype=torch.float32)
        grads["S"] = normal(case.d_qk, case.d_hv, dtype=torch.float32)
    return inputs, grads


def expected(case: Case, inputs: dict[str, Tensor], grads: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """The same from plain PyTorch in a dtype."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    leaves = {name: x.to(dtype if name in "qkv" else wide).requires_grad_() for name, x in inputs.items()}
    start = State(leaves["S"]) if case.states else None
    q, k, v, g, beta = (leaves.get(name) for name in ("q", "k", "v", "g", "beta"))
    run: Any = reference.chunkwise
    o, last = run(q, k, v, g, beta, start)
    return gradients({"o": o, "S": last.C}, leaves, grads)


def computed(
    case: Case, inputs: dict[str, Tensor], grads: dict[str, Tensor], implementation: str = "tfla"
) -> dict[str, Tensor]:
    """The same from the operation."""
    leaves = {name: x.clone().requires_grad_() for name, x in inputs.items()}
    given = {name: x for name, x in leaves.items() if name != "S"}
    if case.layout == "bthd":
        given = {name: x.transpose(1, 2) for name, x in given.items()}
    o, last = operation(given)(
        **given,
        initial_state=State(leaves["S"]) if case.states else None,
        return_last_state=True,
        chunk_size=case.L,
        layout=case.layout,
        implementation=implementation,
        beta_max=1 if isinstance(case.beta, str) or case.beta <= 1 else 2,
    )
    return gradients({"o": o.transpose(1, 2) if case.layout == "bthd" else o, "S": last.C}, leaves, grads)


def errors(case: Case, implementation: str = "tfla") -> dict[str, tuple[float, float]]:
    """By name, the error and its bound: BOUND, half a unit of the dtype, or twice plain PyTorch's error in it."""
    inputs, grads = draw(case)
    ours, truth = computed(case, inputs, grads, implementation), expected(case, inputs, grads, torch.float64)
    assert ours.keys() == truth.keys()
    assert {"o", "dq", "dk", "dv", "dbeta"} <= ours.keys()
    plain, least = expected(case, inputs, grads, case.dtype), max(BOUND, torch.finfo(case.dtype).eps / 2)
    return {name: (distance(ours[name], y), max(least, 2 * distance(plain[name], y))) for name, y in truth.items()}


def failures(case: Case, implementation: str = "tfla") -> list[str]:
    """What is wrong by more than its bound."""
    found = errors(case, implementation)
    return [f"{name}: {error:.1e}, bound {bound:.1e}" for name, (error, bound) in found.items() if not error <= bound]


def distances_of_documents(
    gates: str, dtype: torch.dtype, bounds: tuple[int, ...], implementation: str, chunk_size: int = 64,
    channels: bool = False,
) -> list[float]:  # fmt: skip
    """The errors of o, the last states and all gradients of documents between bounds, two heads of v for one of q."""
    inputs, _ = draw(Case(bounds[-1], 16, 32, gates, heads=1, sharing=2, dtype=dtype, channels=channels))
    inputs["S"] = torch.randn(len(bounds) - 1, 2, 16, 32, device=DEVICE)

    def of(implementation: str, leaves: dict[str, Any]) -> list[Tensor]:
        given = {name: x for name, x in leaves.items() if name != "S"}
        o, last = operation(given)(
            **given, initial_state=State(leaves["S"]), return_last_state=True, implementation=implementation,
            cu_seqlens=torch.tensor(bounds), chunk_size=chunk_size,
        )  # fmt: skip
        weight = torch.arange(o.numel(), device=DEVICE).view(o.shape).sin()
        loss = (o * weight).sum() + (last.C * last.C.detach().cos()).sum()
        return [o, last.C, *torch.autograd.grad(loss, [*leaves.values()])]

    found = of(implementation, {name: x.clone().requires_grad_() for name, x in inputs.items()})
    wanted = of("reference", {name: x.double().requires_grad_() for name, x in inputs.items()})
    return [float(distance(x, y)) for x, y in zip(found, wanted, strict=True)]
