"""The source of the fused kernels of Kimi Delta Attention, run on the CPU (gluon_on_cpu.py), held to float64."""

from __future__ import annotations

import pytest
import torch

if not torch.cuda.is_available():
    pytest.importorskip("triton.experimental.gluon")

from delta_cases import distance, log_decays
from gluon_on_cpu import KDA, Machine
from torch import Tensor

from tflabench.kernels.common.sizes import Sizes
from tflabench.kernels.kda.hopper import operands

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the rest is computed in Triton's interpreter")

B16 = torch.bfloat16


def tiles(x: Tensor) -> Tensor:
    """(B, H, T, d) as (B, H, tiles, 64, d) in float64, with zeros beyond T."""
    return torch.nn.functional.pad(x.double(), (0, 0, 0, -x.shape[2] % 64)).unflatten(2, (-1, 64))


@pytest.mark.parametrize("gates", ["usual", "strong", "closing"])
def test_operands_of_a_tile(gates: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the gates: their sums are those of the recurrence, and every factor is in range."""
    monkeypatch.setattr(operands, "make_operands", Machine(family=KDA).kernels["make_operands"])
    torch.manual_seed(0)
    q, k = (torch.randn(1, 1, 100, 80).to(B16) for _ in range(2))
    g = log_decays(gates, (1, 2, 100, 80)).to(B16 if gates == "usual" else torch.float32)
    made = operands.launch_operands(
        q, k, g, torch.ones(1, 2, 100), sizes=Sizes(1, 2, 2, 100, 80, 16), scale=0.1, parts=1
    )
    q, k, b = tiles(q), tiles(k), tiles(g).clamp_min(-100).cumsum(3)
    weights = (b[..., :, None, :] - b[..., None, :, :]).clamp_max(0).exp()
    p = torch.einsum("bhnic,bhnjc,bhnijc->bhnij", *(x.expand(-1, 2, -1, -1, -1) for x in (q, k)), weights).tril()
    end = b[..., -1:, :]
    wanted = (0.1 * q * b.exp(), k * (end - b).exp(), 0.1 * p)
    for x, y in zip((made.query, made.written_key, made.p), wanted, strict=True):
        assert distance(tiles(x), y) < 5e-3
    assert distance(made.decays.unflatten(2, (-1, 192))[..., :80], end[:, :, :, 0].exp()) < 1e-5
