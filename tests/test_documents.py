"""Documents with states in one launch of each walk: the source of the kernels, on the CPU, against float64."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is imported

pytest.importorskip("triton.experimental.gluon")

from tflabench.kernels import reference
from tflabench.kernels.backends import Arguments, KernelOptions
from tflabench.kernels.hopper import config, documents, tiles
from tflabench.kernels.plan.sizes import Device
from tflabench.kernels.state import State
from tflabench.kernels.types import MLSTM_EXP, MLSTM_SIG, Gate

sys.path.insert(0, str(Path(__file__).parent))
from gluon_on_cpu import KERNELS, Machine

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="gates are computed in Triton's interpreter")

BOUNDS = [0, 70, 71, 71, 199, 340]  # one of a single step, one without steps, one of whole tiles


@dataclass(frozen=True)
class Case:
    gate: Gate
    d_qk: int = 64
    d_hv: int = 64
    heads: int = 2
    sharing: int = 1
    starts: bool = True
    ends: bool = True
    dtype: torch.dtype = torch.bfloat16
    bounds: tuple[int, ...] = tuple(BOUNDS)


CASES = [
    Case(MLSTM_SIG),
    Case(MLSTM_EXP),
    Case(MLSTM_EXP, starts=False),
    Case(MLSTM_SIG, ends=False, d_qk=128, d_hv=256, heads=1),
    Case(Gate("log_decay", "none"), heads=4, sharing=2, d_hv=128),
    Case(Gate("log_decay", "softplus"), dtype=torch.float16),
    Case(MLSTM_EXP, d_qk=64, d_hv=512, heads=1, bounds=(0, 5, 150)),
]


def draw(case: Case) -> tuple[Arguments, State | None, Tensor, State | None]:
    """Inputs, and gradients of h and of the last states."""
    torch.manual_seed(3)
    T, H, N, gate = case.bounds[-1], case.heads, len(case.bounds) - 1, case.gate

    def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64).to(dtype)

    q, k = (normal(1, H // case.sharing, T, case.d_qk, dtype=case.dtype) for _ in range(2))
    v, dh = (normal(1, H, T, case.d_hv, dtype=case.dtype) for _ in range(2))
    f = normal(1, H, T) + 2 if gate.forget == "sigmoid" else -normal(1, H, T).abs()
    i = None if gate.input == "none" else normal(1, H, T)
    shapes = [(N, H, case.d_qk, case.d_hv), (N, H, case.d_qk)]
    C, dC = (normal(*shapes[0]) for _ in range(2))
    n, dn = (normal(*shapes[1]) if gate.normalize else None for _ in range(2))
    initial = State(C, n, normal(N, H) if gate.stabilized else None) if case.starts else None
    return Arguments(q, k, v, f, i, initial), dh, State(dC, dn) if case.ends else None


def by_reference(case: Case, dtype: torch.dtype, arguments: Arguments, dh: Tensor, d_last: State | None) -> Any:
    """h, last states and gradients of one call a document, in this dtype."""
    leaves = [
        None if x is None else x.detach().to(dtype).requires_grad_() for x in (*arguments[:5], *(arguments.initial or ()))
    ]
    q, k, v, f, i, *state = leaves
    outputs, ends = [], []
    for n, (begin, end) in enumerate(pairwise(case.bounds)):
        start = State(*(None if x is None else x[n : n + 1] for x in state)) if state else zeros(case)
        if begin == end:
            ends.append(start)
            continue
        cut = [None if x is None else x[:, :, begin:end] for x in (q, k, v, f, i)]
        h, last = reference.chunkwise(
            *cut, start, gate=case.gate, scale=case.d_qk**-0.5, chunk_size=64, state_dtype=None
        )
        outputs.append(h)
        ends.append(last)
    h = torch.cat(outputs, 2)
    last = [None if parts[0] is None else torch.cat(parts) for parts in zip(*ends, strict=True)]
    loss = (h * dh.to(dtype)).sum()
    if d_last is not None:
        loss = loss + sum((x * dx.to(dtype)).sum() for x, dx in zip(last, d_last, strict=False) if dx is not None)
    wanted = [x for x in (*leaves[:5], *(state[:2] if state else ())) if x is not None]
    return h, last, torch.autograd.grad(loss, wanted, allow_unused=True)


def zeros(case: Case) -> State:
    """What documents start from: kernels count m from 0 then, the reference from -inf."""
    C = torch.zeros(1, case.heads, case.d_qk, case.d_hv, dtype=torch.float64)
    return State(C, C[..., 0] if case.gate.normalize else None, C[..., 0, 0] if case.gate.stabilized else None)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_document_is_by_itself(case: Case, monkeypatch: pytest.MonkeyPatch):
    machine = Machine(seed=2)
    for name, kernel in machine.kernels.items():
        monkeypatch.setattr(f"{documents.__package__}.{KERNELS[name]}.{name}", kernel)
    monkeypatch.setattr(config, "HOISTS", machine.newer)
    monkeypatch.setattr(tiles, "WIDEST_OPERAND", 2)
    config.WalkConfig.of.cache_clear()  # of the other Triton
    monkeypatch.setattr(documents, "figures", lambda _device: Device(90, 3))  # programs take several documents
    arguments, dh, d_last = draw(case)
    options = KernelOptions(case.gate, case.d_qk**-0.5, 64, return_last_state=case.ends)
    bounds = list(case.bounds)
    h, last, saved = documents.forward(arguments, options, bounds)
    C_last = None if last is None else last.C
    grads = documents.backward(dh, d_last, C_last, arguments, saved, options, bounds)
    exact = by_reference(case, torch.float64, arguments, dh, d_last)
    found = [h, *([] if last is None else last), *grads]
    wanted = [exact[0], *(exact[1] if case.ends else []), *exact[2]]
    found = [x for x in found if x is not None]
    wanted = [x for x in wanted if x is not None]
    assert len(found) == len(wanted)
    for place, (x, y) in enumerate(zip(found, wanted, strict=True)):
        error = torch.linalg.norm(x.double() - y) / (1e-9 + torch.linalg.norm(y))
        print(place, tuple(x.shape), float(error))
        assert error < 0.01, place
