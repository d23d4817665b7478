"""The Triton kernels take documents in one launch: values, states and gradients of each are those of a call of its own.

In Triton's interpreter, or on a GPU where there is one.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from packed_cases import BOUNDS, OPERATIONS, assert_close, by_themselves, inputs, start_of

from tflabench.kernels import api, backends
from tflabench.kernels.common.contract import Arguments, KernelOptions
from tflabench.kernels.common.places import places_of_chunks
from tflabench.kernels.common.sizes import Device, Sizes
from tflabench.kernels.scalar.plan import tfla as plans
from tflabench.kernels.types import MLSTM_EXP

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LIMIT = 2e-5 if DEVICE == "cpu" else 2e-4


def outputs(run: Any, tensors: list[Any], start: Any, leaves: list[Any], **options: Any) -> list[Any]:
    """Return h, last states and gradients of documents."""
    h, last = run(*tensors, initial_state=start, return_last_state=True, **options)
    return gradients(h, last, leaves)


def gradients(h: Any, last: Any, leaves: list[Any]) -> list[Any]:
    weight = torch.randn(h.shape, generator=torch.Generator().manual_seed(1)).to(h)
    loss = (h * weight).sum() + last.C.square().sum() + (0 if last.n is None else last.n.square().sum())
    return [h, *last, *torch.autograd.grad(loss, leaves, allow_unused=True)]


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Let kernels take documents however few there are; what calls they get."""
    monkeypatch.setattr(plans, "takes_documents", lambda *_, **__: True)
    calls: list[Any] = []
    made = api._run

    def counted(*given: Any) -> Any:
        calls.append(given[4:])
        return made(*given)

    monkeypatch.setattr(api, "_run", counted)
    return calls


@pytest.mark.parametrize(
    ("name", "implementation"),
    [
        ("mlstm_exp", "tfla_xl"),
        ("retention", "tfla_xl"),
        ("simple_gla", "tfla_xl"),
        ("mlstm_sig", "tfla_limit"),
        ("mamba2_ssd", "tfla_limit"),
    ],
)
def test_each_document_is_by_itself(name: str, implementation: str, always: list[Any]) -> None:
    run, arguments, gate = OPERATIONS[name]
    x = inputs(DEVICE, torch.float32)
    start = start_of(gate, len(BOUNDS) - 1, x["q"])
    leaves = [*x.values(), start.C.requires_grad_(), *([] if start.n is None else [start.n.requires_grad_()])]
    options = {"implementation": implementation, "chunk_size": 16}
    found = outputs(run, arguments(x), start, leaves, cu_seqlens=torch.tensor(BOUNDS), **options)
    assert always == [(BOUNDS,)]
    if name == "mlstm_exp":  # the closer comparison, for which the interpreter runs each document
        assert_close(found, gradients(*by_themselves(run, arguments(x), start, BOUNDS, **options), leaves), LIMIT / 10)
    wanted = gradients(*by_themselves(run, arguments(x), start, BOUNDS, implementation="reference"), leaves)
    assert_close(found, wanted, LIMIT)


@pytest.mark.parametrize(
    ("chunk_size", "bounds"), [(16, (0, *range(1, 6), 60)), (32, (0, 32, 33, 60)), (256, (0, 21, 60))], ids=str
)
def test_chunks_of_any_size(bounds: tuple[int, ...], chunk_size: int, always: list[Any]) -> None:
    """And heads that share q and k, and no state to start from."""
    run, arguments, _ = OPERATIONS["mlstm_exp"]
    x = inputs(DEVICE, torch.float32)
    tensors = arguments({**x, "q": x["q"][:, :1], "k": x["k"][:, :1]})
    leaves = [x[name] for name in "qkvif"]
    options: dict[str, Any] = {"implementation": "tfla_xl", "chunk_size": chunk_size}
    found = outputs(run, tensors, None, leaves, cu_seqlens=torch.tensor(bounds), **options)
    assert len(always) == 1
    wanted = gradients(*by_themselves(run, tensors, None, [*bounds], **options), leaves)
    assert_close(found, wanted, LIMIT)


def test_what_lies_behind_a_document_is_not_written_and_adds_nothing(always: list[Any]) -> None:
    """Documents of other numbers, which are large, change no bit of one."""
    run, arguments, _ = OPERATIONS["simple_gla"]
    x = {name: y.detach() for name, y in inputs(DEVICE, torch.float32).items()}
    other = {name: y.clone() for name, y in x.items()}
    for name in "qkv":
        other[name][:, :, 17:] *= 1e6
    options: dict[str, Any] = {"implementation": "tfla_xl", "chunk_size": 32, "return_last_state": True}
    found = [run(*arguments(y), cu_seqlens=torch.tensor([0, 17, 60]), **options) for y in (x, other)]
    assert torch.equal(found[0][0][:, :, :17], found[1][0][:, :, :17])
    assert torch.equal(found[0][1].C[:1], found[1][1].C[:1])
    assert len(always) == 2


def test_what_forward_saves_has_the_shapes_that_tracing_is_told(always: list[Any]) -> None:
    del always
    kernels = backends.kernels_of("scalar", "tfla_xl")
    x = {name: y.detach() for name, y in inputs(DEVICE, torch.float32).items()}
    options = KernelOptions(MLSTM_EXP, 1.0, 16, bounds=tuple(BOUNDS))
    arguments = Arguments(x["q"], x["k"], x["v"], x["f"], x["i"])
    saved = kernels.forward(arguments, options)[2]
    announced = kernels.empty_saved(x["q"], x["v"], options)
    assert [(y.shape, y.dtype) for y in saved] == [(y.shape, y.dtype) for y in announced]


@pytest.mark.parametrize(
    ("lengths", "states", "taken"),
    [
        ([1024] * 64, True, False),  # a batch
        ([1000, 1024] * 32, True, True),
        ([1000, 1024] * 32, False, False),  # one sequence
        ([60000, 5536], True, False),  # the walk over states would be long
        ([3000, *range(500, 1600, 10)], True, True),
    ],
)
def test_when_documents_are_one_launch(lengths: list[int], states: bool, taken: bool) -> None:
    sizes = Sizes(1, 4, 1, sum(lengths), 128, 256)
    assert plans.takes_documents(sizes, Device(80, 108), lengths, states=states, levels=2) == taken


def test_the_longest_document_is_walked_first() -> None:
    places = places_of_chunks((0, 10, 40, 41), 16, torch.device("cpu"))
    assert places.chunks.order.tolist() == [1, 0, 2]
    assert places.chunks.of_chunk.tolist() == [-1, 0, -1, 1, 1, -1, 2, -1]
    assert places.chunks.gaps.tolist() == [0, 2, 5, 7]
    assert places.chunks.documents == 3
    assert places.tiles == 8
