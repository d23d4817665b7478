"""What the GLA kernels are held against: shapes, gates and dtypes, and how one case is checked against float64."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tfla_cases import DEVICE, distance
from torch import Tensor
from torch.nn.functional import logsigmoid

from tflabench import ops
from tflabench.kernels.gla import reference
from tflabench.ops import State

GATES = ("usual", "uniform", "down", "zeros", "closed", "open")
BOUND = 1e-4  # relative Frobenius error in float32


@dataclass(frozen=True)
class Case:
    """One computation.

    Attributes:
        gates: "usual", sigmoid^(1/16); "uniform" in (0, 1); "down" to 1e-6; "zeros", 1% of them; "closed", all of the
            steps 64 to 127 and one channel; "open", all 1.
        L: the chunk size.
        states: an initial state in, and a gradient of the last state back.
    """

    T: int
    d_qk: int
    d_hv: int
    gates: str = "usual"
    L: int = 64
    heads: int = 1
    dtype: torch.dtype = torch.float32
    states: bool = False
    layout: str = "bhtd"

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        text = f"{self.gates}-T{self.T}-{self.d_qk}/{self.d_hv}-L{self.L}-{dtype}-{self.layout}"
        return text + "-states" * self.states


def log_decays(gates: str, shape: tuple[int, ...]) -> Tensor:
    """Log decays (B, H, T, d_qk), float32."""
    g = logsigmoid(torch.randn(shape, device=DEVICE)) / 16
    if gates == "uniform":
        return torch.rand(shape, device=DEVICE).clamp(min=1e-7).log()
    if gates == "down":
        return -13.8 * torch.rand(shape, device=DEVICE)
    if gates == "zeros":
        return torch.where(torch.rand(shape, device=DEVICE) < 0.01, float("-inf"), g)
    if gates == "closed":
        g[:, :, 64:128] = float("-inf")
        g[..., 3] = float("-inf")
        return g
    return torch.zeros_like(g) if gates == "open" else g


def draw(case: Case) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Inputs by name, and the gradients of o and of the last state."""
    torch.manual_seed(0)

    def normal(*shape: int, dtype: torch.dtype = case.dtype) -> Tensor:
        return torch.randn(1, case.heads, *shape, device=DEVICE).to(dtype)

    T, state = case.T, (case.d_qk, case.d_hv)
    inputs = {"q": normal(T, case.d_qk), "k": normal(T, case.d_qk), "v": normal(T, case.d_hv)}
    inputs["g"] = log_decays(case.gates, (1, case.heads, T, case.d_qk))
    grads = {"o": normal(T, case.d_hv)}
    if case.states:
        inputs["S"] = normal(*state, dtype=torch.float32)
        grads["S"] = normal(*state, dtype=torch.float32)
    return inputs, grads


def gradients(outputs: dict[str, Tensor], leaves: dict[str, Tensor], grads: dict[str, Tensor]) -> dict[str, Tensor]:
    """Outputs and gradients by name."""
    given = [grads[name].to(x.dtype) for name, x in outputs.items() if name in grads]
    asked = [x for name, x in outputs.items() if name in grads]
    found = torch.autograd.grad(asked, list(leaves.values()), given)
    return {name: x.detach() for name, x in outputs.items()} | {
        f"d{name}": x for name, x in zip(leaves, found, strict=True)
    }


def expected(case: Case, inputs: dict[str, Tensor], grads: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """The same from plain PyTorch in a dtype."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    leaves = {name: x.to(dtype if name in "qkv" else wide).requires_grad_() for name, x in inputs.items()}
    start = State(leaves["S"]) if case.states else None
    q, k, v, g = (leaves[name] for name in "qkvg")
    o, last = reference.chunkwise(q, k, v, g, None, start, chunk_size=16)
    return gradients({"o": o, "S": last.C}, leaves, grads)


def computed(
    case: Case, inputs: dict[str, Tensor], grads: dict[str, Tensor], implementation: str = "tfla"
) -> dict[str, Tensor]:
    """The same from the operation."""
    leaves = {name: x.clone().requires_grad_() for name, x in inputs.items()}
    given = [leaves[name] for name in "qkvg"]
    if case.layout == "bthd":
        given = [x.transpose(1, 2) for x in given]
    o, last = ops.gla(
        *given,
        initial_state=State(leaves["S"]) if case.states else None,
        return_last_state=True,
        chunk_size=case.L,
        layout=case.layout,  # type: ignore[arg-type]
        implementation=implementation,  # type: ignore[arg-type]
    )
    return gradients({"o": o.transpose(1, 2) if case.layout == "bthd" else o, "S": last.C}, leaves, grads)


def failures(case: Case, implementation: str = "tfla") -> list[str]:
    """What is wrong by more than BOUND; in 16 bits, by more than twice the error of plain PyTorch.

    Where that rounds nothing, as for the state of one step, it may be a rounding of an operand.
    """
    inputs, grads = draw(case)
    ours, truth = computed(case, inputs, grads, implementation), expected(case, inputs, grads, torch.float64)
    assert ours.keys() == truth.keys()
    assert {"o", "dq", "dk", "dv", "dg"} <= ours.keys()
    bounds = dict.fromkeys(truth, BOUND)
    if case.dtype != torch.float32:
        plain = expected(case, inputs, grads, case.dtype)
        rounding = torch.finfo(case.dtype).eps / 4  # of an operand, on average
        off = {name: distance(plain[name], y) for name, y in truth.items()}
        bounds = {name: rounding if error < BOUND / 2 else max(BOUND, 2 * error) for name, error in off.items()}
    errors = {name: distance(ours[name], y) for name, y in truth.items()}
    return [f"{name}: {error:.1e}, bound {bounds[name]:.1e}" for name, error in errors.items() if error > bounds[name]]
