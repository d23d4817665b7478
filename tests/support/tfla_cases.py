"""What the TFLA kernels are held against: shapes, gates, layouts and dtypes, and how one of them is checked.

`python tests/support/tfla_cases.py [SHARD OF]` runs the GPU's cases, one line each, and exits with 1 if any fails;
pytest runs the same on a GPU (gpu/test_tfla_gpu.py), and smaller ones in Triton's interpreter (test_tfla.py).
"""

from __future__ import annotations

import functools
import itertools
import sys
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tflabench.kernels.common.contract import Arguments, KernelOptions
from tflabench.kernels.scalar import reference
from tflabench.kernels.scalar.plan import hopper as plans
from tflabench.kernels.scalar.plan.tfla import TileConfig
from tflabench.kernels.scalar.tfla import chunkwise
from tflabench.kernels.state import State
from tflabench.kernels.types import MAMBA2, MLSTM_EXP, MLSTM_SIG, RETENTION, SIMPLE_GLA, Gate

GATES = {
    "exp": MLSTM_EXP,
    "sig": MLSTM_SIG,
    "retention": RETENTION,
    "gated_retention": Gate("sigmoid", "none", temperature=4.0),
    "simple_gla": SIMPLE_GLA,
    "mamba2": MAMBA2,
    "mamba2_softplus": Gate("rate", "softplus"),
    "decay_and_step": Gate("log_decay", "step"),
    "exp_bare": Gate("sigmoid", "exp"),
    "sig_normalized": Gate("sigmoid", "sigmoid", normalize=True),
}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SLACK = {
    torch.float32: 3e-5,
    torch.bfloat16: 5e-4,
    torch.float16: 5e-4,
}  # where plain PyTorch happens to be exact; sums of 64 gates of -30 round at 1e-5

FLOOR = 1e-2  # of a norm: the gradient of a forget gate that nothing passes is 0


@dataclass(frozen=True)
class Case:
    """One computation: sizes, gate by name, and what is unusual about its inputs.

    Attributes:
        gates: "normal", or "slow" (what a tile keeps of a state is seldom below 2**-10), or "closing" (slow, but for
            one in thirty: df is then a difference of sums hundreds of times as large), or "extreme" (+-30), or
            "documents" (forget gates of -inf here and there).
        states: an initial state in, and a gradient of the last state back.
        sharing: consecutive heads that share one of q and k.
    """

    gate: str = "exp"
    T: int = 300
    batch: int = 2
    heads: int = 3
    d_qk: int = 64
    d_hv: int = 128
    L: int = 64
    dtype: torch.dtype = torch.bfloat16
    layout: str = "bhtd"
    gates: str = "normal"
    states: bool = False
    sharing: int = 1

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        sizes = f"{self.batch}x{self.heads}x{self.T}-{self.d_qk}-{self.d_hv}-L{self.L}"
        sharing = f"-sharing{self.sharing}" * (self.sharing > 1)
        return f"{self.gate}-{dtype}-{sizes}-{self.layout}-{self.gates}{'-states' * self.states}{sharing}"


MAMBA2_HEADS = Case(gate="mamba2_softplus", heads=8, sharing=8, d_qk=64, d_hv=64, L=256, layout="bthd")


def cases() -> list[Case]:
    """Every value of every axis at least once, exp and sig throughout."""
    both = ("exp", "sig")
    found = [Case(gate=gate, states=states) for gate in GATES for states in (False, True)]
    for gate, dtype in itertools.product(both, SLACK):
        found += [
            Case(gate=gate, dtype=dtype, d_qk=d_qk, d_hv=d_hv, states=True)
            for d_qk, d_hv in ((16, 16), (48, 96), (128, 256), (256, 512), (192, 320), (320, 64), (512, 256))
        ]
        found += [
            Case(gate=gate, dtype=dtype, T=T, L=L) for T, L in ((1, 16), (5, 64), (100, 16), (257, 48), (1000, 1024))
        ]
        found += [Case(gate=gate, dtype=dtype, gates=gates, L=128, T=515) for gates in ("extreme", "documents")]
    for gate in both:
        found += [
            Case(gate=gate, L=L, T=2048 + 40, d_qk=128, d_hv=256, batch=1) for L in (32, 128, 192, 256, 512, 2048)
        ]
        found += [
            Case(gate=gate, layout="bthd", states=True),
            Case(gate=gate, batch=1, heads=1, T=5000, L=128, states=True),
            Case(gate=gate, batch=1, heads=1, T=64, d_qk=1024, d_hv=1024),
            Case(gate=gate, batch=1, heads=2, T=16384, L=256, d_qk=128, d_hv=256, gates="documents", states=True),
            Case(gate=gate, batch=1, heads=2, T=4096, L=256, d_qk=128, d_hv=256, gates="closing"),
            Case(gate=gate, batch=1, heads=2, T=2048, L=1024, d_qk=256, d_hv=512, gates="closing"),
        ]
    found += [replace(MAMBA2_HEADS, T=T, states=states) for T, states in ((1000, False), (300, True))]
    found += [replace(MAMBA2_HEADS, heads=6, sharing=3, d_qk=128, states=states) for states in (False, True)]
    found += [replace(MAMBA2_HEADS, heads=64, sharing=64, T=4096 + 40)]  # enough programs for one to sum several heads
    found += [Case(gate=gate, heads=4, sharing=2, dtype=dtype, states=True) for gate in both for dtype in SLACK]
    found += [
        Case(gate=gate, batch=batch, L=256, T=T, states=True)
        for gate in ("retention", "simple_gla")
        for batch, T in ((20, 1), (2, 63), (2, 2100))  # of one step enough numbers for an error to be one
    ]
    return found


def draw(case: Case, seed: int = 0) -> tuple[dict[str, Tensor | None], dict[str, Tensor]]:
    """Inputs by name in the case's dtype and layout (gates and states float32), and output gradients."""
    g = torch.Generator(DEVICE).manual_seed(seed)
    gate = GATES[case.gate]
    B, H, T = case.batch, case.heads, case.T

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=g, device=DEVICE)

    def rows(d: int, heads: int = H) -> Tensor:
        x = normal(B, T, heads, d).transpose(1, 2) if case.layout == "bthd" else normal(B, heads, T, d)
        return x.to(case.dtype)

    f = 2 * normal(B, H, T) + 2
    if case.gates == "slow":
        f = f / 2 + 2
    elif case.gates == "closing":
        f = torch.where(torch.rand(B, H, T, generator=g, device=DEVICE) < 1 / 30, -6.0, 6.0)
    elif case.gates == "extreme":
        f = torch.where(normal(B, H, T) > 0, 30.0, -30.0)
    if gate.forget == "log_decay":
        f = -f.abs() / 4
    if gate.per_head:
        f = -torch.rand(H, generator=g, device=DEVICE) / 8
    elif case.gates == "documents":
        f = torch.where(torch.rand(B, H, T, generator=g, device=DEVICE) < 0.02, float("-inf"), f)
    i: Tensor | None = normal(B, H, T) * (10 if case.gates == "extreme" else 1)
    if gate.input == "step":
        i = i.abs() + 0.1
    if gate.input == "none":
        i = None
    inputs: dict[str, Tensor | None] = {
        "q": rows(case.d_qk, H // case.sharing),
        "k": rows(case.d_qk, H // case.sharing),
        "v": rows(case.d_hv),
        "f": f,
        "i": i,
    }
    grads = {"h": rows(case.d_hv)}
    if case.states:
        inputs["C"] = normal(B, H, case.d_qk, case.d_hv)
        inputs["n"] = normal(B, H, case.d_qk) if gate.normalize else None
        inputs["m"] = normal(B, H) if gate.stabilized else None
        grads["C"] = normal(B, H, case.d_qk, case.d_hv) / 4
        if gate.normalize:
            grads["n"] = normal(B, H, case.d_qk) / 4
    return inputs, grads


def expected(
    case: Case, inputs: dict[str, Tensor | None], grads: dict[str, Tensor], dtype: torch.dtype
) -> dict[str, Tensor]:
    """Outputs and gradients by autograd through the chunkwise form in plain PyTorch, in float64 or any dtype."""
    gate = GATES[case.gate]
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    x = {
        name: None if value is None else value.detach().to(dtype if name in "qkv" else wide).requires_grad_(name != "m")
        for name, value in inputs.items()
    }
    initial = State(x["C"], x["n"], x["m"]) if case.states else None  # type: ignore[arg-type]
    arguments = (*(x[name] for name in "qkvfi"), initial)
    h, last = reference.chunkwise(*arguments, gate=gate, chunk_size=64)  # type: ignore[arg-type]
    outputs = {"h": h, "C": last.C, "n": last.n}
    torch.autograd.backward(
        [outputs[name] for name in grads], [grad.to(outputs[name].dtype) for name, grad in grads.items()]
    )  # type: ignore[misc]
    found = {"h": h, **_true_state(last)}
    for name, leaf in x.items():
        if leaf is not None and name != "m":
            found["d" + name] = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
    return {name: value.detach() for name, value in found.items()}


def computed(
    case: Case, inputs: dict[str, Tensor | None], grads: dict[str, Tensor], config: TileConfig | None = None
) -> dict[str, Tensor]:
    """The same from the kernels."""
    gate = GATES[case.gate]
    initial = State(inputs["C"], inputs["n"], inputs["m"]) if case.states else None  # type: ignore[arg-type]
    arguments = Arguments(*(inputs[name] for name in ("q", "k", "v", "f", "i")), initial)  # type: ignore[arg-type]
    options = KernelOptions(gate, case.d_qk**-0.5, case.L, config=config)
    h, last, saved = chunkwise.forward(arguments, options)
    assert last is not None
    d_last = State(grads["C"], grads.get("n")) if case.states else None
    gradients = chunkwise.backward(grads["h"], d_last, arguments, saved, options)
    found = {"h": h, **_true_state(last)}
    names = ("q", "k", "v", "f", "i", "C", "n")
    return found | {"d" + name: x for name, x in zip(names, gradients, strict=True) if x is not None}


def check_underflow(case: Case) -> None:
    """Assert that nothing is NaN at a step where n^T q is 0 and exp(-m) underflows, and that all else is right."""
    x, grads = draw(case)
    q, i = x["q"], x["i"]
    assert q is not None
    assert i is not None
    q[:, :, 20], i[:, :, 20] = 0, 95
    wanted = expected(case, x, grads, torch.float64)
    found = computed(case, x, grads)
    assert found["dq"].isfinite().all()
    for name in ("h", "dk", "dv", "df", "di"):
        assert distance(found[name], wanted[name]) < 1e-2, name


def distance(x: Tensor, y: Tensor) -> float:
    """Relative Frobenius error, infinite where x is not finite."""
    error = (x.double() - y).norm() / y.norm().clamp(min=FLOOR)
    return error.item() if torch.isfinite(x).all() else float("inf")


@functools.lru_cache(maxsize=2)
def references(case: Case, seed: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What `expected` returns in float64, and in the dtype of the case."""
    inputs, grads = draw(case, seed)
    return expected(case, inputs, grads, torch.float64), expected(case, inputs, grads, case.dtype)


def errors(case: Case, seed: int = 0, absent: frozenset[str] = frozenset()) -> dict[str, tuple[float, float]]:
    """By name, the relative error of the kernels (inf if not finite) and of plain PyTorch in the same dtype.

    Args:
        absent: what the kernels were not asked for and must not return.
    """
    truth, plain = references(case, seed)
    inputs, grads = draw(case, seed)
    ours = computed(case, inputs, grads)
    truth = {name: x for name, x in truth.items() if name not in absent}
    assert ours.keys() == truth.keys()
    found = {name: (distance(ours[name], y), distance(plain[name], y)) for name, y in truth.items()}
    if case.gates == "extreme" and "df" in found:
        # Every gate is saturated, so every df is about exp(-30): less than what any sum of q.dq - k.dk can resolve.
        # There the kernels are held to that sum in plain PyTorch, everywhere else to autograd.
        q, k, f = (inputs[name].double() for name in "qkf")  # type: ignore[union-attr]
        df = (q * plain["dq"] - k * plain["dk"]).sum(-1).flip(-1).cumsum(-1).flip(-1) * torch.sigmoid(-f)
        found["df"] = (found["df"][0], max(found["df"][1], distance(df, truth["df"])))
    return found


def failures(case: Case, seed: int = 0, absent: frozenset[str] = frozenset()) -> list[str]:
    """What is more than twice as wrong as plain PyTorch in the same dtype."""
    slack = SLACK[case.dtype]
    return [
        f"{name}: error {ours:.2e}, plain PyTorch {plain:.2e}"
        for name, (ours, plain) in errors(case, seed, absent).items()
        if not ours <= 2 * plain + slack
    ]


def planned_anew(monkeypatch: pytest.MonkeyPatch, name: str, replaced: Any) -> None:
    """Replace what plans of the fused kernels call; none of these is remembered."""
    monkeypatch.setattr(f"{plans.__name__}.{name}", replaced)
    for remembered in ("forward", "backward"):
        monkeypatch.setattr(plans, remembered, getattr(plans, remembered).__wrapped__)


def errors_of_the_last_of_a_large_batch(chunk_size: int) -> list[float]:
    """Of mLSTMsig's h, last state and gradients in tensors of more than 2^31 elements, against that one alone."""
    B, H, T, d_qk, d_hv = 9, 16, 65536, 128, 256
    if torch.cuda.mem_get_info()[0] < 48 * 2**30:
        pytest.skip("needs 48 GiB of free GPU memory")
    torch.manual_seed(0)
    q, k, v, dh = (torch.randn(B, H, T, d, device="cuda", dtype=torch.bfloat16) for d in (d_qk, d_qk, d_hv, d_hv))
    assert v.numel() > 2**31
    f, i = torch.randn(B, H, T, device="cuda") + 3, torch.randn(B, H, T, device="cuda")
    options, arguments = KernelOptions(MLSTM_SIG, d_qk**-0.5, chunk_size), Arguments(q, k, v, f, i)
    h, last, saved = chunkwise.forward(arguments, options)
    assert last is not None
    grads = chunkwise.backward(dh, None, arguments, saved, options)
    end = Arguments(q[-1:].clone(), k[-1:].clone(), v[-1:].clone(), f[-1:].clone(), i[-1:].clone())
    h_end, last_end, saved = chunkwise.forward(end, options)
    assert last_end is not None
    grads_end = chunkwise.backward(dh[-1:].clone(), None, end, saved, options)
    found = []
    for x, y in [(h, h_end), (last.C, last_end.C), *zip(grads[:5], grads_end[:5], strict=True)]:
        assert x is not None
        assert y is not None
        found.append(float((x[-1:].float() - y.float()).norm() / y.float().norm()))
    return found


def mean_absolute_error(L: int, dtype: torch.dtype) -> float:
    """Of mLSTMexp's h at the setting of the paper's review answers: T = 8192, 128/256, all inputs N(0, 1)."""
    g = torch.Generator(DEVICE).manual_seed(0)
    q, k, v = (torch.randn(1, 4, 8192, d, generator=g, device=DEVICE).to(dtype) for d in (128, 128, 256))
    f, i = (torch.randn(1, 4, 8192, generator=g, device=DEVICE) for _ in range(2))
    wide = (x.double() for x in (q, k, v, f, i))
    exact, _ = reference.chunkwise(*wide, gate=MLSTM_EXP, chunk_size=64)  # type: ignore[arg-type]
    h, _, _ = chunkwise.forward(Arguments(q, k, v, f, i), KernelOptions(MLSTM_EXP, 128**-0.5, L))
    return (h.double() - exact).abs().mean().item()


def _true_state(state: State) -> dict[str, Tensor]:
    """C and n as they are, not relative to m."""
    scale = 1.0 if state.m is None else state.m.exp()[..., None]
    found = {"C": state.C * (scale if state.m is None else scale[..., None])}  # type: ignore[index]
    return found if state.n is None else found | {"n": state.n * scale}


def main() -> int:
    shard, of = map(int, sys.argv[1:3]) if len(sys.argv) > 2 else (0, 1)
    bad = 0
    for case in cases()[shard::of]:
        try:
            wrong = failures(case)
        except Exception as error:
            wrong = [f"{type(error).__name__}: {str(error)[:300]}"]
        bad += bool(wrong)
        print("FAIL" if wrong else "ok  ", case, *wrong, sep="  ", flush=True)
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main())
