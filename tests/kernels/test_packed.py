"""Packed sequences: documents end to end are each by itself, in values, states and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from packed_cases import BOUNDS, D_HV, D_QK, HEADS, OPERATIONS, T, assert_close, by_themselves, inputs, start_of
from torch import Tensor

from tflabench import ops
from tflabench.kernels import api
from tflabench.kernels.common import packed


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("name", OPERATIONS)
def test_documents_do_not_meet(name, dtype):
    run, arguments, _ = OPERATIONS[name]
    x = inputs("cpu", torch.float64)
    bounds = sorted(set(BOUNDS))
    h = run(*arguments(x), cu_seqlens=torch.tensor(BOUNDS, dtype=dtype))
    wanted, _ = by_themselves(run, arguments(x), None, bounds)
    leaves = list(x.values())
    weight = torch.randn_like(h)
    grads = (torch.autograd.grad((y * weight).sum(), leaves, allow_unused=True) for y in (h, wanted))
    assert_close([h, *next(grads)], [wanted, *next(grads)], 1e-12)


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_document_has_its_states(name):
    run, arguments, gate = OPERATIONS[name]
    x = inputs("cpu", torch.float64)
    start = start_of(gate, len(BOUNDS) - 1, x["q"])
    leaves = [*x.values(), start.C.requires_grad_()]
    offsets = torch.tensor(BOUNDS)
    h, last = run(*arguments(x), initial_state=start, return_last_state=True, cu_seqlens=offsets)
    wanted, ends = by_themselves(run, arguments(x), start, BOUNDS)
    weight = torch.randn_like(h)
    results = ((h, last), (wanted, ends))
    grads = (
        torch.autograd.grad((y * weight).sum() + state.C.square().sum(), leaves, allow_unused=True)
        for y, state in results
    )
    assert_close([h, *last, *next(grads)], [wanted, *ends, *next(grads)], 1e-12)


@pytest.mark.parametrize("name", OPERATIONS)
def test_documents_of_one_length_that_follow_each_other_are_one_call(name, monkeypatch):
    run, arguments, gate = OPERATIONS[name]
    x = inputs("cpu", torch.float64)
    shapes = []

    def counted(call: Any, *others: Any) -> Any:
        shapes.append(call.v.shape)
        return one_call(call, *others)

    one_call = api._run
    monkeypatch.setattr(api, "_run", counted)
    offsets = torch.tensor([0, 15, 30, 45, T])
    run(*arguments(x), initial_state=start_of(gate, 4, x["q"]), return_last_state=True, cu_seqlens=offsets)
    assert shapes == [(4, HEADS, 15, D_HV)]
    shapes.clear()
    run(*arguments(x), return_last_state=True, cu_seqlens=torch.tensor([0, 20, 25, 30, T]))
    assert shapes == [(1, HEADS, 20, D_HV), (2, HEADS, 5, D_HV), (1, HEADS, 30, D_HV)]


def test_states_may_go_out_alone():
    x = inputs("cpu", torch.float64)
    tensors = [x[name] for name in ("q", "k", "v", "i", "f")]
    _, last = ops.mlstm_exp(*tensors, return_last_state=True, cu_seqlens=torch.tensor(BOUNDS))
    assert last.n is not None
    assert last.m is not None
    assert last.C.shape == (len(BOUNDS) - 1, HEADS, D_QK, D_HV)
    assert not last.C[3].any()
    assert (last.m[3] == float("-inf")).all()


def test_the_other_layout():
    x = {name: y.detach() for name, y in inputs("cpu", torch.float64).items()}
    tensors = [x[name] for name in ("q", "k", "v", "i", "f")]
    h = ops.mlstm_sig(*tensors, cu_seqlens=torch.tensor(BOUNDS))
    turned = ops.mlstm_sig(*(y.transpose(1, 2) for y in tensors), layout="bthd", cu_seqlens=torch.tensor(BOUNDS))
    assert torch.equal(turned.transpose(1, 2), h)


def test_one_document_is_a_sequence():
    x = {name: y.detach() for name, y in inputs("cpu", torch.float64).items()}
    tensors = [x[name] for name in ("q", "k", "v", "f")]
    ours = ops.gated_retention(*tensors, return_last_state=True, cu_seqlens=torch.tensor([0, T]))
    h, last = ops.gated_retention(*tensors, return_last_state=True)
    assert torch.equal(ours[0], h)
    assert torch.equal(ours[1].C, last.C)


@pytest.mark.parametrize(
    ("cu_seqlens", "error", "words"),
    [
        ([0, T], TypeError, "cu_seqlens is a list: it must be a tensor"),
        (torch.tensor([0.0, T]), TypeError, "cu_seqlens is torch.float32: it must be int32 or int64"),
        (torch.tensor([0]), ValueError, r"cu_seqlens has the shape \(1,\): it must be \(documents \+ 1,\)"),
        (torch.tensor([[0, T]]), ValueError, r"cu_seqlens has the shape \(1, 2\)"),
        (torch.tensor([0, T - 1]), ValueError, f"goes from 0 to {T - 1}: it must go from 0 to T, which is {T}"),
        (torch.tensor([1, T]), ValueError, f"goes from 1 to {T}: it must go from 0 to T, which is {T}"),
        (torch.tensor([0, 30, 20, T]), ValueError, "has 20 behind 30: it must not decrease"),
    ],
)
def test_bad_offsets_are_named(cu_seqlens, error, words):
    x = {name: y.detach() for name, y in inputs("cpu", torch.float64).items()}
    with pytest.raises(error, match=words):
        ops.mlstm_sig(*(x[name] for name in ("q", "k", "v", "i", "f")), cu_seqlens=cu_seqlens)


def test_bad_states_and_batches_are_named():
    x = {name: y.detach() for name, y in inputs("cpu", torch.float64).items()}
    tensors = [x[name] for name in ("q", "k", "v", "f")]
    start = start_of(ops.SIMPLE_GLA, 2, x["q"])
    with pytest.raises(
        ValueError, match=r"initial_state.C has the shape \(2, 2, 16, 32\): it must be \(3, 2, 16, 32\)"
    ):
        ops.gated_retention(*tensors, initial_state=start, cu_seqlens=torch.tensor([0, 9, 20, T]))
    with pytest.raises(ValueError, match="q has the batch size 2: it must be 1 with cu_seqlens"):
        ops.gated_retention(*(torch.cat([y, y]) for y in tensors), cu_seqlens=torch.tensor([0, 9, T]))


def test_offsets_on_a_gpu_are_waited_for_once():
    """As long as the tensor is the same and nobody has written to it. A stand-in plays the GPU."""
    read: list[int] = []

    class Elsewhere(Tensor):
        @property
        def device(self) -> Any:
            return torch.device("cuda")

        def tolist(self) -> Any:
            read.append(1)
            return self.as_subclass(Tensor).tolist()

    offsets = torch.tensor([0, 9, 20]).as_subclass(Elsewhere)
    assert [packed.bounds(offsets, 20) for _ in range(3)] == [[0, 9, 20]] * 3
    assert len(read) == 1
    with pytest.raises(ValueError, match="it must go from 0 to T, which is 21"):
        packed.bounds(offsets, 21)
    offsets[1] = 10
    assert packed.bounds(offsets, 20) == [0, 10, 20]
    assert len(read) == 2
    another = torch.tensor([0, 11, 20]).as_subclass(Elsewhere)
    assert packed.bounds(another, 20) == [0, 11, 20]
    before = len(packed._seen)
    del another
    assert len(packed._seen) == before - 1
