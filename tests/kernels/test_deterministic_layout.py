"""With a deterministic layout the bits of a row, or of a document, do not depend on the others.

On a CPU kernels run in Triton's interpreter, where only the scalar ones have several segments at little cost.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tflabench import ops
from tflabench.kernels.scalar.plan.tfla import TileConfig

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = [pytest.mark.gpu] if DEVICE == "cuda" else []
FUSED = ("hopper", "tfla")
OPERATIONS: dict[str, Any] = {"exp": ops.mlstm_exp, "sig": ops.mlstm_sig}
OPERATIONS |= {"gla": ops.gla, "gdn": ops.gated_delta_net, "kda": ops.kda} if DEVICE == "cuda" else {}
CASES = [(name, how) for name in OPERATIONS for how in FUSED] if DEVICE == "cuda" else [("sig", "tfla_xl")]


def draw(name: str, B: int) -> list[Tensor]:
    """Return the arguments of an operation: as many heads and steps as one row has segments and many rows have none."""
    H, T, d_qk, d_hv = (4, 16384, 128, 256) if DEVICE == "cuda" else (2, 64, 16, 16)
    torch.manual_seed(0)

    def of(*shape: int) -> Tensor:
        return torch.randn(B, H, T, *shape, device=DEVICE)

    dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float32
    q, k, v = of(d_qk), torch.nn.functional.normalize(of(d_qk), dim=-1), of(d_hv)
    if name in ("exp", "sig"):
        gates = [of(), of() + 4]
    else:
        gates = [-0.05 * (of() if name == "gdn" else of(d_qk)).abs(), *([of().sigmoid()] if name != "gla" else [])]
    return [*(x.to(dtype) for x in (q, k, v)), *gates]


def results(name: str, implementation: str, tensors: list[Tensor], **options: Any) -> list[Tensor]:
    """Return the last C, h, h of forward alone, and the gradients of the tensors."""
    if DEVICE == "cpu":  # four programs for the walk over states: a row alone has two segments, three rows one each
        default = TileConfig.for_shape(16, 16, torch.float32, 16, 90)
        options |= {"chunk_size": 16, "config": TileConfig(**{**default.__dict__, "programs": 4})}
    run, leaves = OPERATIONS[name], [x.requires_grad_() for x in tensors]
    options |= {"implementation": implementation, "deterministic_layout": True, "return_last_state": True}
    h, last = run(*leaves, **options)
    with torch.no_grad():
        forward_alone, _ = run(*leaves, **options)
    grads = torch.autograd.grad(h.float().square().sum() + last.C.sum(), leaves)
    return [last.C, h, forward_alone, *grads]


@pytest.mark.parametrize(("name", "implementation"), CASES)
def test_a_row_has_the_bits_that_it_has_alone(name: str, implementation: str) -> None:
    tensors = draw(name, 3)
    together = results(name, implementation, [x.detach() for x in tensors])
    alone = results(name, implementation, [x[1:2].detach() for x in tensors])
    assert [torch.equal(x[1:2], y) for x, y in zip(together, alone, strict=True)] == [True] * len(alone)


@pytest.mark.parametrize(("name", "implementation"), CASES)
def test_a_document_has_the_bits_that_it_has_alone(name: str, implementation: str) -> None:
    tensors = draw(name, 1)
    half = tensors[0].shape[2] // 2
    offsets = torch.tensor([0, half, 2 * half])
    together = results(name, implementation, [x.detach() for x in tensors], cu_seqlens=offsets)
    alone = results(name, implementation, [x[:, :, half:].detach() for x in tensors])
    assert torch.equal(together[0][1:], alone[0])
    same = [torch.equal(x[:, :, half:], y) for x, y in zip(together[1:], alone[1:], strict=True)]
    assert same == [True] * len(same)
