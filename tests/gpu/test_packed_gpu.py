"""Packed sequences on kernels: 64 documents in one call, with states and without, against float64 one by one."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from tflabench import ops
from tflabench.kernels.reference import recurrent

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

HEADS, T, D_QK, D_HV, DOCUMENTS = 2, 4096, 128, 256, 64
LIMIT = 2e-2  # of a relative norm, in bfloat16


def relative(x: Tensor, wanted: Tensor) -> float:
    return ((x.double() - wanted).norm() / wanted.norm()).item()


@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize("gate", [ops.MLSTM_EXP, ops.MLSTM_SIG], ids=["exp", "sig"])
def test_documents_are_each_by_themselves(gate, states):
    generator = torch.Generator("cuda").manual_seed(3)

    def draw(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        x = torch.randn(shape, generator=generator, device="cuda").to(dtype)
        return x.requires_grad_()

    q, k = (draw(1, HEADS, T, D_QK) for _ in range(2))
    v = draw(1, HEADS, T, D_HV)
    i, f = (draw(1, HEADS, T, dtype=torch.float32) for _ in range(2))
    inner = torch.randperm(T - 1, generator=generator, device="cuda")[: DOCUMENTS - 1] + 1
    bounds = [0, *inner.sort().values.tolist(), T]
    cu_seqlens = torch.tensor(bounds, device="cuda", dtype=torch.int32)
    found = ops.chunkwise(
        *(q, k, v, f, i), gate=gate, implementation="hopper", return_last_state=states, cu_seqlens=cu_seqlens
    )
    h, last = (found, None) if isinstance(found, Tensor) else found
    leaves = (q, k, v, f, i)
    wide = [x.detach().double().requires_grad_() for x in leaves]
    outputs, ends = [], []
    for begin, end in pairwise(bounds):
        q_n, k_n, v_n, f_n, i_n = (x[:, :, begin:end] for x in wide)
        part, state = recurrent(q_n, k_n, v_n, f_n, i_n, gate=gate, scale=D_QK**-0.5)
        outputs.append(part)
        ends.append(state.C if state.m is None else state.C * state.m.exp()[..., None, None])
    wanted = torch.cat(outputs, 2)
    assert relative(h, wanted) < LIMIT
    if last is not None:
        C = last.C if last.m is None else last.C * last.m.exp()[..., None, None]
        assert relative(C, torch.cat(ends)) < LIMIT
    weight = torch.randn(h.shape, generator=generator, device="cuda")
    ours = torch.autograd.grad((h * weight).sum(), leaves)
    theirs = torch.autograd.grad((wanted * weight).sum(), wide)
    for name, x, y in zip(("q", "k", "v", "f", "i"), ours, theirs, strict=True):
        assert relative(x, y) < 2 * LIMIT, name
