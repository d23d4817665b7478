"""Packed sequences on kernels: 64 documents in one call, with states and without, against float64 one by one."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from tflabench import ops
from tflabench.kernels.scalar.plan import hopper, tfla
from tflabench.kernels.scalar.reference import recurrent

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

HEADS, T, D_QK, D_HV, DOCUMENTS = 2, 4096, 128, 256, 64
LIMIT = 2e-2  # of a relative norm, in bfloat16
KERNELS: dict[str, tuple[str, Any]] = {"hopper": ("walk_forward", hopper), "tfla_xl": ("parallel_outputs", tfla)}


def relative(x: Tensor, wanted: Tensor) -> float:
    return ((x.double() - wanted).norm() / wanted.norm()).item()


@pytest.mark.parametrize("implementation", ["hopper", "tfla_xl"])
@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize("gate", [ops.MLSTM_EXP, ops.MLSTM_SIG], ids=["exp", "sig"])
def test_documents_are_each_by_themselves(gate, states, implementation):
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
        *(q, k, v, f, i), gate=gate, implementation=implementation, return_last_state=states, cu_seqlens=cu_seqlens
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


GATES = {
    "exp": ops.MLSTM_EXP, "sig": ops.MLSTM_SIG, "simple_gla": ops.SIMPLE_GLA, "retention": ops.RETENTION,
    "mamba2": ops.Gate("rate", "softplus"),
}  # fmt: skip


def with_states(
    name: str, steps: int, documents: int, *, heads: int = 4, sharing: int = 1, d_qk: int = 128, d_hv: int = 256,
    extreme: bool = False,
) -> tuple[list[Tensor | None], list[int], list[Tensor | None]]:  # fmt: skip
    """Tensors of documents of random lengths, one of them without steps, and the states they start from."""
    gate, generator = GATES[name], torch.Generator("cuda").manual_seed(steps)

    def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(shape, generator=generator, device="cuda").to(dtype)

    q, k = (draw(1, heads // sharing, steps, d_qk, dtype=torch.bfloat16) for _ in range(2))
    v = draw(1, heads, steps, d_hv, dtype=torch.bfloat16)
    wide = 30.0 if extreme else 1.0
    i = None if gate.input == "none" else wide * draw(1, heads, steps)
    f = wide * draw(1, heads, steps) + (0 if extreme else 2)
    if gate.forget != "sigmoid":
        f = -f.abs()
    if gate.per_head:
        f = f[0, :, 0] / 10
    C = draw(documents, heads, d_qk, d_hv)
    n = draw(documents, heads, d_qk) if gate.normalize else None
    m = draw(documents, heads) if gate.stabilized else None
    inner = (torch.randperm(steps - 1, generator=generator, device="cuda")[: documents - 2] + 1).sort().values.tolist()
    bounds = [0, *inner[:2], *inner[1:], steps]
    leaves = [None if x is None else x.requires_grad_() for x in (q, k, v, f, i, C, n)]
    return leaves, bounds, [m]


def run(name: str, leaves: list[Tensor | None], bounds: list[int], m: Tensor | None, **options: Any) -> Any:
    q, k, v, f, i, C, n = leaves
    start = ops.State(C, n, m)  # type: ignore[arg-type]
    skip = torch.full((v.shape[1],), 0.5, device="cuda") if name == "mamba2" else None  # type: ignore[union-attr]
    return ops.chunkwise(
        *(q, k, v, f, i),  # type: ignore[arg-type]
        gate=GATES[name], skip=skip, initial_state=start, return_last_state=True, cu_seqlens=torch.tensor(bounds),
        **options,
    )  # fmt: skip


def loss_of(h: Tensor, last: ops.State) -> Tensor:
    weights = torch.Generator("cuda").manual_seed(1)
    total = torch.zeros((), dtype=torch.float64, device="cuda")
    for x in (h, last.C, last.n):
        if x is not None:
            total = total + (x.double() * torch.randn(x.shape, generator=weights, device="cuda")).sum()
    return total


@pytest.mark.parametrize("implementation", KERNELS)
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("exp", {"steps": 3000, "documents": 30}),
        ("sig", {"steps": 3000, "documents": 30}),
        ("sig", {"steps": 300, "documents": 64}),  # most of them within one tile
        ("exp", {"steps": 2000, "documents": 20, "d_qk": 256, "d_hv": 512, "heads": 2}),
        ("sig", {"steps": 2000, "documents": 20, "d_qk": 64, "d_hv": 64, "extreme": True}),
        ("exp", {"steps": 2000, "documents": 20, "d_qk": 192, "d_hv": 128, "extreme": True}),
        ("simple_gla", {"steps": 2000, "documents": 20, "sharing": 2}),
        ("retention", {"steps": 2000, "documents": 20}),
        ("mamba2", {"steps": 2000, "documents": 20, "heads": 8, "sharing": 8, "d_qk": 64, "d_hv": 64}),
    ],
    ids=str,
)  # fmt: skip
def test_states_go_in_and_out_in_one_launch(
    name: str, sizes: dict[str, Any], implementation: str, monkeypatch: pytest.MonkeyPatch
):
    of_h, plans = KERNELS[implementation]
    leaves, bounds, (m,) = with_states(name, **sizes)
    given = [x for x in leaves if x is not None]
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        h, last = run(name, leaves, bounds, m, implementation=implementation)
        torch.cuda.synchronize()
    launched = [e.name for e in seen.events() or () if of_h in e.name]
    assert len(launched) == 1, launched
    found = torch.autograd.grad(loss_of(h, last), given)
    again = run(name, leaves, bounds, m, implementation=implementation)
    assert torch.equal(again[0], h)
    assert all(torch.equal(x, y) for x, y in zip(found, torch.autograd.grad(loss_of(*again), given), strict=True))

    wide: list[Tensor | None] = [None if x is None else x.detach().double().requires_grad_() for x in leaves]
    exact = run(name, wide, bounds, None if m is None else m.double(), implementation="reference")
    wanted = torch.autograd.grad(loss_of(*exact), [x for x in wide if x is not None])
    assert relative(h, exact[0]) < LIMIT
    for x, y in zip(last, exact[1], strict=True):
        assert (x is None) == (y is None)
        assert x is None or relative(x, y) < LIMIT
    monkeypatch.setattr(plans, "takes_documents", lambda *_, **__: False)  # a call for each document
    apart = torch.autograd.grad(loss_of(*run(name, leaves, bounds, m, implementation=implementation)), given)
    for place, (x, y, of_calls) in enumerate(zip(found, wanted, apart, strict=True)):
        assert relative(x, y) < max(2 * relative(of_calls, y), LIMIT / 2), place


@pytest.mark.parametrize(("steps", "documents"), [(3000, 30), (300, 64)])
def test_documents_of_gla_are_one_launch(steps: int, documents: int):
    leaves, bounds, _ = with_states("simple_gla", steps, documents)
    q, k, v, _, _, C, _ = leaves
    assert q is not None
    g = (-torch.rand(q.shape, device="cuda")).requires_grad_()
    given: list[Any] = [q, k, v, g, C]

    def outputs(tensors: list[Any], **options: Any) -> list[Tensor]:
        *inputs, start = tensors
        o, last = ops.gla(
            *inputs, initial_state=ops.State(start), return_last_state=True, cu_seqlens=torch.tensor(bounds), **options
        )
        return [o, last.C, *torch.autograd.grad(loss_of(o, last), tensors)]

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        found = outputs(given)
        torch.cuda.synchronize()
    names = [e.name for e in seen.events() or ()]
    assert [sum(kernel in name for name in names) for kernel in ("parallel_outputs", "tile_gradients")] == [2, 1]
    assert all(torch.equal(x, y) for x, y in zip(found, outputs(given), strict=True))
    wanted = outputs([x.detach().double().requires_grad_() for x in given], implementation="reference")
    for place, (x, y) in enumerate(zip(found, wanted, strict=True)):
        assert relative(x, y) < LIMIT, place


def test_a_graph_and_a_compiled_function_give_what_a_call_gives():
    given, bounds, (m,) = with_states("exp", 2000, 20)
    leaves: list[Tensor | None] = [None if x is None else x.detach() for x in given]
    h, last = run("exp", leaves, bounds, m)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured, last_captured = run("exp", leaves, bounds, m)
    graph.replay()
    assert relative(captured, h) < LIMIT
    assert relative(last_captured.C, last.C) < LIMIT
    compiled, last_compiled = torch.compile(run)("exp", leaves, bounds, m)
    assert torch.equal(compiled, h)
    assert torch.equal(last_compiled.C, last.C)


@pytest.mark.parametrize("lengths", [(700, 300, 1000, 24, 900), (1024, 1024, 1024)], ids=str)
def test_offsets_on_the_cpu_and_on_the_gpu_give_the_same(lengths: tuple[int, ...]):
    """Where they are known documents without states are one launch, or a batch; else one sequence."""
    T_all = sum(lengths)
    x = [torch.randn(1, 40, T_all, d, device="cuda", dtype=torch.bfloat16, requires_grad=True) for d in (64, 64, 128)]
    x += [torch.randn(1, 40, T_all, device="cuda", requires_grad=True) for _ in range(2)]
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    known, unknown = (ops.mlstm_exp(*x, cu_seqlens=at) for at in (offsets, offsets.cuda()))
    assert relative(known, unknown.double()) < LIMIT / 2
    weight = torch.randn_like(known)
    grads = (torch.autograd.grad(h, x, weight) for h in (known, unknown))
    for ours, theirs in zip(*grads, strict=True):
        assert relative(ours, theirs.double()) < LIMIT
