"""The wrappers of `kernels.compat` beside the packages whose place they take: outputs and every gradient, in bfloat16.

Where two libraries round differently, equal means: apart by no more than a few roundings of bfloat16, in relative norm.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from tflabench.implementations.adapter import Unsupported
from tflabench.kernels.compat import fla, mamba

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

SAME, SAME_GATE = 1e-2, 3e-2  # gradients of gates are sums over rows, and differences of them
B, T, H, D_QK, D_HV = 2, 1000, 4, 128, 256


@pytest.fixture(autouse=True)
def untuned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first configuration of a kernel that fits: to find the fastest takes minutes and changes no value."""
    autotuner = pytest.importorskip("triton.runtime.autotuner")
    from triton.runtime.errors import OutOfResources

    tuned = autotuner.Autotuner.run

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        *others, last = self.configs
        for config in others:
            self.configs = [config]
            try:
                return tuned(self, *args, **kwargs)
            except OutOfResources:
                continue
        self.configs = [last]
        return tuned(self, *args, **kwargs)

    monkeypatch.setattr(autotuner.Autotuner, "run", run)


def differences(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> dict[str, float]:
    assert ours.keys() == theirs.keys()
    return {
        name: ((ours[name].double() - wanted.double()).norm() / wanted.double().norm()).item()
        for name, wanted in theirs.items()
    }


def assert_same(ours: dict[str, Tensor], theirs: dict[str, Tensor], gates: set[str]) -> None:
    for name, difference in differences(ours, theirs).items():
        assert difference <= (SAME_GATE if name in gates else SAME), f"{name}: {difference:.1e}"


def outputs(function: Callable[..., Any], x: dict[str, Tensor], backward: bool, **options: Any) -> dict[str, Tensor]:
    """o and the final state and, of a loss in both, every gradient by argument name."""
    x = {name: y.detach().clone().requires_grad_(y.is_floating_point()) for name, y in x.items()}
    o, state = function(**x, **options)
    found = {"o": o, "state": state}
    if backward:
        torch.manual_seed(1)  # and not randn_like, which draws in the order of strides: states of two libraries differ
        loss = sum((y.float() * torch.randn(y.shape, device=y.device)).sum() for y in found.values())
        loss.backward()  # type: ignore[union-attr]
        found |= {f"d{name}": y.grad for name, y in x.items() if y.grad is not None}
    return {name: y.detach() for name, y in found.items()}


def fla_function(module: str, name: str) -> Callable[..., Any]:
    pytest.importorskip("fla", reason="flash-linear-attention is not installed")
    return getattr(importlib.import_module(f"fla.ops.{module}"), name)


def qkv() -> dict[str, Tensor]:
    torch.manual_seed(0)
    sizes = {"q": D_QK, "k": D_QK, "v": D_HV}
    x = {name: torch.randn(B, T, H, d, device="cuda", dtype=torch.bfloat16) for name, d in sizes.items()}
    return x | {"initial_state": torch.randn(B, H, D_QK, D_HV, device="cuda")}


FLA = {
    "simple_gla": ("simple_gla", fla.chunk_simple_gla, {}),
    "simple_gla_constant": ("simple_gla", fla.chunk_simple_gla, {}),
    "retention": ("retention", fla.chunk_retention, {}),
    "lightning_attn": ("lightning_attn", fla.chunk_lightning_attn, {"layer_idx": 1, "num_layers": 4}),
}


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("name", FLA)
def test_fla(name: str, backward: bool) -> None:
    module, ours, options = FLA[name]
    theirs = fla_function(module, ours.__name__)
    if backward:
        from tflabench.baselines.fla_ops import require_sound_triton

        try:
            require_sound_triton(torch.device("cuda"))
        except Unsupported as reason:
            pytest.skip(str(reason))
    x = qkv()
    if name == "lightning_attn":  # whole chunks: fla 0.6's last state is NaN after others, in heads that decay steeply
        x |= {y: x[y][:, :960] for y in "qkv"}
    options = options | {"output_final_state": True}
    if name == "simple_gla":
        x["g"] = logsigmoid(torch.randn(B, T, H, device="cuda") + 3)
    elif name == "simple_gla_constant":  # which gets no gradient from fla
        options["g_gamma"] = -torch.rand(H, device="cuda") / 8
    assert_same(outputs(ours, x, backward, **options), outputs(theirs, x, backward, **options), {"dg"})


def test_fla_packed() -> None:
    theirs = fla_function("simple_gla", "chunk_simple_gla")
    x: dict[str, Any] = {name: y.flatten(0, 1)[None] for name, y in qkv().items() if name != "initial_state"}
    x["g"] = logsigmoid(torch.randn(1, B * T, H, device="cuda") + 3)
    bounds = torch.tensor([0, 17, 900, B * T], device="cuda")
    wanted = theirs(**x, cu_seqlens=bounds)[0]
    assert_same({"o": fla.chunk_simple_gla(**x, cu_seqlens=bounds)[0]}, {"o": wanted}, set())
    states: dict[str, Any] = {"initial_state": torch.randn(3, H, D_QK, D_HV, device="cuda"), "output_final_state": True}
    ours = dict(zip(("o", "state"), fla.chunk_simple_gla(**x, **states, cu_seqlens=bounds), strict=True))
    assert_same(ours, dict(zip(("o", "state"), theirs(**x, **states, cu_seqlens=bounds), strict=True)), set())  # type: ignore[arg-type]


def mamba_inputs(groups: int, heads: int) -> dict[str, Tensor]:
    torch.manual_seed(0)
    rows = (B, T, heads)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, device="cuda")

    x = {"x": normal(*rows, 64), "dt": normal(*rows), "B": normal(B, T, groups, 64), "C": normal(B, T, groups, 64)}
    x = {name: y.bfloat16() for name, y in x.items()}
    x |= {"A": -torch.rand(heads, device="cuda") - 0.5, "dt_bias": normal(heads) - 3}
    return x | {"initial_states": normal(B, heads, 64, 64)}


@pytest.mark.parametrize("more", ["", "D", "z", "D wide and z", "seq_idx"])
@pytest.mark.parametrize(("groups", "heads"), [(1, 8), (2, 8), (4, 4)])
def test_mamba2(groups: int, heads: int, more: str) -> None:
    theirs = mamba_ssm().mamba_chunk_scan_combined
    x = mamba_inputs(groups, heads)
    if "D" in more:
        x["D"] = torch.randn((heads, 64) if "wide" in more else (heads,), device="cuda")
    if "z" in more:
        x["z"] = torch.randn_like(x["x"])
    options: dict[str, Any] = {"chunk_size": 256, "dt_softplus": True, "return_final_states": True}
    if more == "seq_idx":
        del x["initial_states"]
        options["seq_idx"] = (torch.arange(T, device="cuda") >= 300).int().expand(B, T).contiguous()
    ours = outputs(mamba.mamba_chunk_scan_combined, x, backward=True, **options)
    assert_same(ours, outputs(theirs, x, backward=True, **options), {"ddt", "dA", "ddt_bias", "dD"})


def mamba_ssm() -> Any:
    """mamba-ssm's Triton kernels, also where its compiled scan was not built."""
    pytest.importorskip("einops", reason="einops is not installed")
    from tflabench.baselines.mamba import SSD_MODULE, ssd_module
    from tflabench.baselines.packages import installed

    if not installed(SSD_MODULE):
        pytest.skip("mamba-ssm is not installed")
    return ssd_module()
