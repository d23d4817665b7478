"""The source of the fused Hopper kernels, run on the CPU with their host code: see gluon_on_cpu.py."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is imported

pytest.importorskip("triton.experimental.gluon")

from tflabench.kernels import reference
from tflabench.kernels.hopper import backward, forward, launch
from tflabench.kernels.types import MLSTM_EXP, MLSTM_SIG, Gate, State

sys.path.insert(0, str(Path(__file__).parent))
from gluon_on_cpu import Deadlock, Machine

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="gates are computed in Triton's interpreter")

GATES = {
    "sig": MLSTM_SIG,
    "exp": MLSTM_EXP,
    "decay": Gate("log_decay", "step"),
}
MULTIPROCESSORS = 3  # fewer than work items: programs take several


class Carry:
    """The Triton kernel beside them, interpreted, without what only a GPU has."""

    def __getitem__(self, grid: tuple[int]) -> Any:
        def run(*args: Any, OVERLAP: bool, launch_pdl: bool, **options: Any) -> None:
            assert OVERLAP
            assert launch_pdl
            launch.segments.carry[grid](*args, **options)

        return run


def put_in(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, kernel in machine.kernels.items():
        monkeypatch.setattr(launch, {"walk_heads": "_walk_heads"}.get(name, f"_{name}"), kernel)
    monkeypatch.setattr(launch, "_carry", Carry())
    monkeypatch.setattr(launch, "multiprocessors", lambda _device: MULTIPROCESSORS)


def inputs(gate: Gate, d: tuple[int, int], T: int, dtype: torch.dtype, heads: int, sharing: int, state: bool) -> Any:
    torch.manual_seed(T + d[1])
    d_qk, d_hv = d
    f = -torch.rand(1, heads, T) if gate.forget == "log_decay" else torch.randn(1, heads, T) + 2
    i = torch.rand(1, heads, T) + 0.1 if gate.input == "step" else torch.randn(1, heads, T)
    initial = State(
        torch.randn(1, heads, d_qk, d_hv),
        torch.randn(1, heads, d_qk) if gate.normalize else None,
        torch.randn(1, heads) if gate.stabilized else None,
    )
    q, k = torch.randn(2, 1, heads // sharing, T, d_qk).to(dtype)
    return {"q": q, "k": k, "v": torch.randn(1, heads, T, d_hv).to(dtype), "f": f, "i": i} | {
        "initial": initial if state else None
    }


def double(x: Any) -> Any:
    return None if x is None else State(*map(double, x)) if isinstance(x, State) else x.double().requires_grad_()


def errors(x: dict[str, Any], gate: Gate, chunk_size: int, skip: Tensor | None, gate_gradients: bool = True) -> Any:
    """By name: relative to the float64 recurrence and its gradients."""
    options: dict[str, Any] = {"gate": gate, "scale": x["q"].shape[-1] ** -0.5, "chunk_size": chunk_size}
    if skip is not None:
        options["skip"] = skip
    h, last, saved = forward.forward(**x, **options)
    assert last is not None
    exact: Any = {name: double(y) for name, y in x.items()}
    h_exact, last_exact = reference.chunkwise(**exact, gate=gate, scale=options["scale"], chunk_size=64)
    if skip is not None:
        h_exact = h_exact + skip.double()[:, None, None] * exact["v"]
    dh = torch.randn(h.shape).to(h.dtype)
    names = [name for name in ("q", "k", "v", "f", "i") if gate_gradients or name not in "fi"]
    true = torch.autograd.grad((h_exact * dh).sum(), [exact[name] for name in names])
    made = backward.backward(dh, None, **x, saved=saved, gate_gradients=gate_gradients, **options)
    got: dict[str, Any] = dict(zip(("q", "k", "v", "f", "i"), made, strict=False))
    pairs = {"h": (h, h_exact), "C": (last.C, last_exact.C)}
    pairs |= {f"d{name}": (got[name], y) for name, y in zip(names, true, strict=True)}
    return {name: ((y.double() - z).norm() / z.norm()).item() for name, (y, z) in pairs.items()}


def wrong(found: dict[str, float], dtype: torch.dtype) -> dict[str, float]:
    bound = 2e-3 if dtype == torch.float16 else 1e-2
    return {name: error for name, error in found.items() if not error < bound}


@pytest.mark.parametrize(
    ("gate", "d", "T", "chunk_size", "dtype", "heads", "sharing", "state", "newer"),
    [
        ("sig", (64, 64), 200, 512, torch.bfloat16, 2, 1, False, True),
        ("sig", (128, 256), 330, 512, torch.bfloat16, 4, 2, True, True),
        ("sig", (128, 256), 200, 128, torch.bfloat16, 1, 1, False, False),
        ("sig", (256, 512), 130, 128, torch.float16, 1, 1, False, True),
        ("sig", (192, 128), 330, 128, torch.bfloat16, 1, 1, True, True),
        ("exp", (64, 128), 330, 128, torch.bfloat16, 2, 1, True, True),
        ("exp", (128, 64), 200, 512, torch.float16, 4, 1, False, True),
        ("exp", (256, 128), 200, 512, torch.bfloat16, 1, 1, True, True),
        ("exp", (256, 128), 130, 512, torch.bfloat16, 1, 1, True, False),
        ("decay", (64, 64), 330, 128, torch.bfloat16, 8, 4, False, True),
        ("decay", (128, 64), 200, 512, torch.bfloat16, 4, 2, True, True),
    ],
)
def test_kernels_compute_the_recurrence_and_its_gradients(
    monkeypatch: pytest.MonkeyPatch, gate: str, d: tuple[int, int], T: int, chunk_size: int, dtype: torch.dtype,
    heads: int, sharing: int, state: bool, newer: bool,
):  # fmt: skip
    put_in(Machine(seed=T, newer=newer), monkeypatch)
    x = inputs(GATES[gate], d, T, dtype, heads, sharing, state)
    skip = torch.randn(heads) if sharing > 1 else None
    assert wrong(errors(x, GATES[gate], chunk_size, skip), dtype) == {}


@pytest.mark.parametrize("d", [(64, 64), (128, 256)])
def test_dk_and_dv_in_one_walk(monkeypatch: pytest.MonkeyPatch, d: tuple[int, int]):
    put_in(Machine(seed=1), monkeypatch)
    x = inputs(MLSTM_SIG, d, 330, torch.bfloat16, 2, 1, state=True)
    assert wrong(errors(x, MLSTM_SIG, 128, None, gate_gradients=False), torch.bfloat16) == {}


@pytest.mark.parametrize(
    ("source", "right", "mistaken"),
    [
        ("walk", "mbarrier.wait(p_empty.index(b), turn ^ 1)", "pass"),  # P is overwritten
        ("walk", "tma.store_wait(pendings=(OUTS - 1) * GROUPS)", "pass"),  # so is out
        ("walk", "mbarrier.wait(ready.index(s), phase)", "pass"),  # a tile that has not arrived
        ("walk", "            mbarrier.arrive(empty.index(s), count=1)\n            s, phase", "            s, phase"),
        ("walk", "BLOCK_BYTES * (2 * WB", "BLOCK_BYTES * (3 * WB"),  # bytes that never come
        ("walk", "wait_for_products(2 * accumulators(WB), deps=(o,))", "wait_for_products(9, deps=(o,))"),
        ("pair", "mbarrier.wait(dp_full.index(0), i & 1)", "pass"),
        ("pair", "mbarrier.wait(copy_free.index(b), ((v // COPIES) & 1) ^ 1)", "pass"),
    ],
)
def test_a_mistake_shows(monkeypatch: pytest.MonkeyPatch, source: str, right: str, mistaken: str):
    """Of what is easily got wrong: that the numbers, a deadlock or an assertion would tell."""
    edited = []

    def edit(name: str, text: str) -> str:
        if name == source:
            assert right in text
            edited.append(name)
            return text.replace(right, mistaken)
        return text

    x = inputs(MLSTM_SIG, (128, 128), 330, torch.bfloat16, 2, 1, state=False)
    found = []
    for seed in range(4):
        put_in(Machine(seed=seed, edit=edit), monkeypatch)
        try:
            found.append(bool(wrong(errors(x, MLSTM_SIG, 512, None, gate_gradients=source == "walk"), torch.bfloat16)))
        except (Deadlock, AssertionError, TypeError, AttributeError):
            found.append(True)
        if found[-1]:
            break
    assert edited
    assert any(found)
