"""Documents with states in one launch of each walk: the source of the kernels, on the CPU, against float64."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is imported

pytest.importorskip("triton.experimental.gluon")

from gluon_on_cpu import Machine, launch_on
from planted_mistakes import assert_mistake_shows

from tflabench import ops
from tflabench.kernels import api, backends, chunkwise_operator
from tflabench.kernels.backends import kernels_of
from tflabench.kernels.common import packed as packing
from tflabench.kernels.common.contract import Arguments, KernelOptions
from tflabench.kernels.common.cover import cdiv
from tflabench.kernels.common.sizes import Device, Sizes
from tflabench.kernels.scalar import reference
from tflabench.kernels.scalar.hopper import backward, chunkwise, documents, forward
from tflabench.kernels.scalar.plan import hopper as plans
from tflabench.kernels.state import State
from tflabench.kernels.types import MLSTM_EXP, MLSTM_SIG, Gate

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
    gates: str = "normal"  # or "extreme", +-30, or "slow"


CASES = [
    Case(MLSTM_SIG),
    Case(MLSTM_EXP),
    Case(MLSTM_EXP, starts=False),
    Case(MLSTM_SIG, ends=False, d_qk=128, d_hv=256, heads=1),
    Case(Gate("log_decay", "none"), heads=4, sharing=2, d_hv=128),
    Case(Gate("log_decay", "softplus"), dtype=torch.float16),
    Case(MLSTM_EXP, d_qk=64, d_hv=512, heads=1, bounds=(0, 5, 150)),
    Case(MLSTM_EXP, gates="extreme"),  # exp(-m) is 0 at the ends of documents
    Case(MLSTM_SIG, gates="slow"),
    Case(MLSTM_EXP, d_qk=32, d_hv=80, heads=1),  # blocks that heads do not fill
]


def draw(case: Case) -> tuple[Arguments, Tensor, State | None]:
    """Inputs, and gradients of h and of the last states."""
    torch.manual_seed(3)
    T, H, N, gate = case.bounds[-1], case.heads, len(case.bounds) - 1, case.gate

    def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64).to(dtype)

    q, k = (normal(1, H // case.sharing, T, case.d_qk, dtype=case.dtype) for _ in range(2))
    v, dh = (normal(1, H, T, case.d_hv, dtype=case.dtype) for _ in range(2))
    size = 30 if case.gates == "extreme" else 1
    f = size * normal(1, H, T) + (6 if case.gates == "slow" else 2)
    if gate.forget != "sigmoid":
        f = -f.abs() / (100 if case.gates == "slow" else 1)
    i = None if gate.input == "none" else size * normal(1, H, T)
    if i is not None and case.gates == "extreme":
        i[:, :, [end - 1 for end in case.bounds[1:]]] = 120.0
    shapes = [(N, H, case.d_qk, case.d_hv), (N, H, case.d_qk)]
    C, dC = (normal(*shapes[0]) for _ in range(2))
    n, dn = (normal(*shapes[1]) if gate.normalize else None for _ in range(2))
    initial = State(C, n, normal(N, H) if gate.stabilized else None) if case.starts else None
    return Arguments(q, k, v, f, i, initial), dh, State(dC, dn) if case.ends else None


def by_reference(case: Case, dtype: torch.dtype, arguments: Arguments, dh: Tensor, d_last: State | None) -> Any:
    """h, last states and gradients of one call a document, in this dtype."""
    leaves = [
        None if x is None else x.detach().to(dtype).requires_grad_()
        for x in (*arguments[:5], *(arguments.initial or ()))
    ]
    state: Any = leaves[5:]
    outputs: list[Tensor] = []
    ends: list[State] = []
    for n, (begin, end) in enumerate(pairwise(case.bounds)):
        start = zeros(case)
        if state:
            parts: Any = [None if x is None else x[n : n + 1] for x in state]
            start = State(*parts)
        if begin == end:
            ends.append(start)
            continue
        document: Any = [None if x is None else x[:, :, begin:end] for x in leaves[:5]]
        options: Any = {"gate": case.gate, "scale": case.d_qk**-0.5, "chunk_size": 64, "state_dtype": None}
        h, last = by_chunks(*document, start, **options)
        outputs.append(h)
        ends.append(last)
    h = torch.cat(outputs, 2)
    last = [None if parts[0] is None else torch.cat(parts) for parts in zip(*ends, strict=True)]
    loss = (h * dh.to(dtype)).sum()
    for x, dx in zip(last, d_last or (), strict=False):
        if x is not None and dx is not None:
            loss = loss + (x * dx.to(dtype)).sum()
    wanted = [x for x in (*leaves[:5], *(state[:2] if state else ())) if x is not None]
    return h, last, torch.autograd.grad(loss, wanted, allow_unused=True)


by_chunks: Any = reference.chunkwise


def zeros(case: Case) -> State:
    """What documents start from: kernels count m from 0 then, the reference from -inf."""
    C = torch.zeros(1, case.heads, case.d_qk, case.d_hv, dtype=torch.float64)
    return State(C, C[..., 0] if case.gate.normalize else None, C[..., 0, 0] if case.gate.stabilized else None)


def wrong(case: Case, *, gate_gradients: bool = True) -> list[str]:
    """What is further from float64 than roundings to the inputs' dtype explain."""
    arguments, dh, d_last = draw(case)
    options = KernelOptions(
        case.gate, case.d_qk**-0.5, 64,
        return_last_state=case.ends, gate_gradients=gate_gradients, bounds=case.bounds,
    )  # fmt: skip
    h, last, saved = chunkwise.forward(arguments, options)
    grads = chunkwise.backward(dh, d_last, arguments, saved, options)
    exact_h, exact_last, exact_grads = by_reference(case, torch.float64, arguments, dh, d_last)
    exact = iter(exact_grads)
    given = *arguments[:5], *((arguments.initial or (None, None))[:2])
    names = ("h", "C", "n", "m", "dq", "dk", "dv", "df", "di", "dC_0", "dn_0")
    found = [h, *(last or (None,) * 3), *grads]
    wanted = [
        exact_h,
        *(exact_last if case.ends else (None,) * 3),
        *(next(exact) if x is not None else None for x in given),
    ]
    limit = 2.0**-7 if case.dtype == torch.bfloat16 else 2.0**-10  # two roundings of an output
    failed = []
    for name, x, y in zip(names, found, wanted, strict=True):
        if not gate_gradients and name in ("df", "di"):
            assert x is None
        elif (x is None) != (y is None):
            failed.append(f"{name} is there in one only")
        elif x is not None and not torch.linalg.norm(x.double() - y) <= limit * torch.linalg.norm(y):
            failed.append(name)
    return failed


@pytest.mark.parametrize(("seed", "case"), enumerate(CASES), ids=str)
def test_each_document_is_by_itself(case: Case, seed: int, monkeypatch: pytest.MonkeyPatch):
    launch_on(Machine(seed=seed), monkeypatch)
    assert wrong(case) == []


@pytest.mark.parametrize("gate", [Gate("log_decay", "none"), MLSTM_EXP], ids=["simple_gla", "exp"])
def test_gradients_of_gates_are_those_of_a_call_a_document(gate: Gate, monkeypatch: pytest.MonkeyPatch):
    """The last states of h would put each document off by a number of its own: their roundings are not those of dq."""
    launch_on(Machine(seed=2), monkeypatch)
    case = Case(gate, bounds=(0, 20, 40, 57, 90, 200), gates="slow")
    arguments, dh, d_last = draw(case)
    options = KernelOptions(gate, case.d_qk**-0.5, 512, bounds=case.bounds)
    alone_options = options._replace(bounds=None)
    _, _, saved = chunkwise.forward(arguments, options)
    found = chunkwise.backward(dh, d_last, arguments, saved, options)[3]
    assert found is not None
    assert d_last is not None
    assert arguments.initial is not None
    alone: list[Tensor] = []
    for n, (begin, end) in enumerate(pairwise(case.bounds)):

        def document(x: Tensor | None, n: int = n) -> Tensor | None:
            return None if x is None else x[n : n + 1]

        steps: Any = [None if x is None else x[:, :, begin:end].contiguous() for x in arguments[:5]]
        states: Any = [[*map(document, state)] for state in (arguments.initial, d_last)]
        q, k, v, f, i = steps
        call = Arguments(q, k, v, f, i, State(*states[0]))
        _, _, saved = forward.forward(call, alone_options)
        made = backward.backward(dh[:, :, begin:end].contiguous(), State(*states[1]), call, saved, alone_options)[3]
        assert made is not None
        alone.append(made)
    wanted = torch.cat(alone, 2)
    assert torch.linalg.norm(found - wanted) <= 5e-4 * torch.linalg.norm(wanted)


def test_each_document_is_by_itself_without_gradients_of_gates(monkeypatch: pytest.MonkeyPatch):
    launch_on(Machine(seed=2), monkeypatch)
    assert wrong(CASES[0], gate_gradients=False) == []


@pytest.mark.parametrize(
    ("source", "right", "mistaken"),
    [
        ("schedule", "return tile * 64 - work.shift", "return tile * 64"),  # tiles of other documents
        ("schedule", "gl.load(begins + 1) * PIECES", "gl.load(begins + 1) * PIECES - PIECES"),  # a document is left out
        ("schedule", "(document * num_heads + head)", "(head * num_heads + document)"),  # states of others
        ("state_walk", "(tile == work.first_tile) | (tile == work.end_tile - 1)", "tile == work.first_tile"),
        ("backward_dkdv", "(t == 0) | (t == work.num_tiles - 1)", "t == work.num_tiles - 1"),
        ("backward_dkdv", "(document * num_heads + head)", "(head * num_heads + document)"),
    ],
)
def test_a_mistake_shows(source: str, right: str, mistaken: str, monkeypatch: pytest.MonkeyPatch):
    def launch(edit: Any, seed: int) -> None:
        launch_on(Machine(seed=seed, edit=edit), monkeypatch)

    case = Case(MLSTM_SIG, d_qk=128, d_hv=128, heads=3, bounds=(0, 70, 71, 199, 290, 420))
    assert_mistake_shows(launch, lambda: wrong(case), source, right, mistaken)


@pytest.mark.parametrize("bounds", [(0, 5), (0, 64, 128), (0, 0, 3, 3, 130), (0, *range(1, 40), 200)], ids=str)
def test_every_document_is_in_the_table_once(bounds: tuple[int, ...]):
    places = documents.WalkPlaces.of_walks(bounds, torch.device("cpu"))
    heads, programs, count = 3, 4, len(bounds) - 1
    table = documents._table(bounds, heads, programs, torch.device("cpu"), 0).tolist()
    begins, sequences, of_documents = table[: programs + 1], table[programs + 1 :][: heads * count], table[-3 * count :]
    assert begins[0] == 0
    assert begins[-1] == heads * count == len(sequences)
    assert sorted(sequences) == list(range(heads * count))
    steps = places.steps.tolist()
    for document, (begin, end) in enumerate(pairwise(bounds)):
        first, behind, shift = of_documents[3 * document : 3 * document + 3]
        assert steps[64 * first - 1] == -2 - document
        assert steps[64 * first : 64 * behind] == [
            step if step < end else -1 for step in range(begin, begin + 64 * (behind - first))
        ]
        assert 64 * first - shift == begin
        assert int(places.gaps[document + 1]) == behind
    cost = [cdiv(end - begin, 64) + documents.STATE_TILES for begin, end in pairwise(bounds)]
    taken = [sum(cost[n // heads] for n in sequences[first:behind]) for first, behind in pairwise(begins)]
    longest = max(cost)
    assert max(taken) - min(taken) <= longest


@pytest.mark.parametrize(
    ("lengths", "states", "taken"),
    [
        ([1024] * 64, True, False),  # a batch
        ([1000, 1024] * 32, True, True),
        ([1000, 1024] * 32, False, True),
        ([30, 34] * 1024, False, False),  # half of each tile would be empty
        ([40000, 25536], True, False),  # programs are to share a document
        ([40000, 25536], False, False),
        ([30000, *[555] * 32, *[556] * 32], True, False),
        ([3000, *range(500, 1600, 10)], True, True),
    ],
)
def test_when_documents_are_one_launch(lengths: list[int], states: bool, taken: bool):
    sizes = Sizes(1, 16, 1, sum(lengths), 128, 256)
    assert plans.takes_documents(sizes, Device(90, 132), lengths, states=states) == taken


def test_a_document_may_be_longer_where_several_programs_share_its_state():
    lengths = [5000, *[1000] * 60]
    for d_qk, d_hv, taken in ((128, 256, False), (256, 512, True)):
        sizes = Sizes(1, 8, 1, sum(lengths), d_qk, d_hv)
        assert plans.takes_documents(sizes, Device(90, 132), lengths, states=False) == taken


def test_heads_that_share_a_program_stay_together_without_states():
    sizes = Sizes(1, 64, 64, 64 * 1010, 64, 64)
    assert not plans.takes_documents(sizes, Device(90, 132), [1000, 1020] * 32, states=False)
    assert plans.takes_documents(sizes, Device(90, 132), [1000, 1020] * 32, states=True)


@pytest.fixture
def fused_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let operations take the fused kernels on the CPU."""
    launch_on(Machine(seed=4), monkeypatch)
    found = kernels_of("scalar", "hopper")._replace(
        refuses=lambda *_, **__: None, default_chunk_size=lambda *_, **__: 512
    )
    for module in (api, backends, chunkwise_operator):
        monkeypatch.setattr(module, "kernels_of", lambda *_: found)
    monkeypatch.setattr(api, "only_reference", lambda *_: None)


def packed(gate: Gate, layout: str, bounds: list[int] = BOUNDS) -> tuple[dict[str, Any], State]:
    torch.manual_seed(6)
    H, T = 4, bounds[-1]

    def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        x = torch.randn(1, shape[0], T, *shape[1:]).to(dtype)
        return x.transpose(1, 2).contiguous() if layout == "bthd" else x

    q, k = (draw(2, 64, dtype=torch.bfloat16) for _ in range(2))
    x: dict[str, Any] = {"q": q, "k": k, "v": draw(H, 128, dtype=torch.bfloat16)}
    x["f"] = -torch.rand(H) / 4 if gate.per_head else draw(H) + 3
    if gate.input != "none":
        x["i"] = draw(H)
    if gate.forget == "rate":
        x["skip"] = torch.randn(H)
    shape = (len(bounds) - 1, H, 64)
    n, m = torch.randn(shape) if gate.normalize else None, torch.randn(shape[:2]) if gate.stabilized else None
    return {name: y.requires_grad_() for name, y in x.items()}, State(torch.randn(*shape, 128).requires_grad_(), n, m)


@pytest.mark.parametrize(
    ("gate", "layout"),
    [
        (MLSTM_EXP, "bhtd"),
        (MLSTM_SIG, "bthd"),
        (Gate("rate", "softplus"), "bhtd"),  # Mamba 2, with a skip connection
        (Gate("fixed", "none"), "bthd"),  # Retention
    ],
)
@pytest.mark.usefixtures("fused_on_cpu")
def test_operations_take_documents_in_one_call(gate: Gate, layout: Any, monkeypatch: pytest.MonkeyPatch):
    calls: list[Any] = []
    found = chunkwise_operator.kernels_of("scalar", "hopper")

    def counted(arguments: Arguments, options: KernelOptions) -> Any:
        calls.append(options.bounds)
        return found.forward(arguments, options)

    monkeypatch.setattr(chunkwise_operator, "kernels_of", lambda *_: found._replace(forward=counted))
    x, start = packed(gate, layout)
    wide = {name: y.detach().double().requires_grad_() for name, y in x.items()}
    wide_start = State(*(None if y is None else y.detach().double() for y in start))  # type: ignore[arg-type]
    wide_start.C.requires_grad_()
    results: list[Any] = []
    both: Any = ((x, start, "hopper"), (wide, wide_start, "reference"))
    for tensors, state, implementation in both:
        h, last = ops.chunkwise(
            **tensors, gate=gate, layout=layout, initial_state=state, return_last_state=True,
            cu_seqlens=torch.tensor(BOUNDS), implementation=implementation,
        )  # fmt: skip
        assert h.shape == tensors["v"].shape
        loss = (h.double() * torch.arange(h.numel()).remainder(7).reshape(h.shape)).sum() + last.C.double().sum()
        results.append([h, *last, *torch.autograd.grad(loss, [*tensors.values(), state.C])])
    assert calls == [tuple(BOUNDS)]
    for found, wanted in zip(*results, strict=True):
        assert (found is None) == (wanted is None)
        if found is not None:
            assert torch.linalg.norm(found.double() - wanted) <= 0.01 * torch.linalg.norm(wanted)


@pytest.mark.usefixtures("fused_on_cpu")
def test_documents_without_states_are_one_call_where_the_host_knows_them(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(plans, "LONGER", 2)
    x, _ = packed(MLSTM_SIG, "bhtd")
    monkeypatch.setattr(packing, "as_one_sequence", lambda *_: pytest.fail("one sequence"))
    h = ops.chunkwise(**x, gate=MLSTM_SIG, cu_seqlens=torch.tensor(BOUNDS), implementation="hopper")
    wide = {name: y.detach().double() for name, y in x.items()}
    monkeypatch.undo()
    wanted = ops.chunkwise(**wide, gate=MLSTM_SIG, cu_seqlens=torch.tensor(BOUNDS), implementation="reference")
    assert torch.linalg.norm(h.double() - wanted) <= 0.01 * torch.linalg.norm(wanted)


@pytest.mark.usefixtures("fused_on_cpu")
def test_the_operator_keeps_to_its_schema():
    bounds = [0, 2, 5]
    x, start = packed(MLSTM_EXP, "bhtd", bounds)
    key = chunkwise_operator.setup_key("hopper", "scalar", MLSTM_EXP.fields, torch.float32, None)
    for states in ((start.C.detach(), start.n, start.m), (None, None, None)):
        tensors = (*(y.detach() for y in x.values()), *states)
        arguments = (*tensors, 0.125, 1.0, None, True, key, None, True, bounds)
        checks = ("test_schema", "test_faketensor")
        torch.library.opcheck(torch.ops.tflabench.chunkwise.default, arguments, test_utils=checks)
        h, _, _, _, *saved = torch.ops.tflabench.chunkwise(*arguments)
        given = (torch.ones_like(h), None, None, *tensors, saved, 0.125, 1.0, None, True, key, None, True, bounds)
        torch.library.opcheck(torch.ops.tflabench.chunkwise_backward.default, given, test_utils=checks)
