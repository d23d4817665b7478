"""Kimi Delta Attention by TFLA, in Triton's interpreter: forward and every gradient against float64.

With gates of every strength an error is at most twice that of plain PyTorch in the same dtype (`delta_cases.errors`).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from delta_cases import Case, distance, draw, failures

from tflabench import ops
from tflabench.kernels.chunkwise_operator import setup_key
from tflabench.ops import KDA, State

Kda = partial(Case, channels=True)
HALF = torch.float16
CASES = [
    Kda(1, 16, 16, states=True),
    Kda(40, 16, 16, "closing", "repeated", beta=2.0, L=16, states=True, layout="bthd"),
    Kda(64, 48, 80, "usual", sharing=2, dtype=HALF, states=True),
    Kda(130, 16, 16, "strong", L=64, dtype=HALF),
    Kda(80, 32, 32, "closing", "alike", beta=1.0, L=128, dtype=HALF, states=True),
    Kda(80, 32, 32, "open", "alike", beta=2.0, L=128, dtype=HALF),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward_and_every_gradient(case: Case) -> None:
    assert failures(case) == []


def test_documents_are_sequences_of_their_own() -> None:
    """Nothing passes a boundary, not even what rounding leaves: values before it change no bit behind it."""
    inputs, _ = draw(Kda(50, 16, 16, heads=1))
    given: Any = inputs
    run = partial(ops.kda, cu_seqlens=torch.tensor([0, 23, 50]), implementation="tfla", chunk_size=32)
    o = run(**given)
    torch.testing.assert_close(o, ops.kda(**given, cu_seqlens=torch.tensor([0, 23, 50])), rtol=1e-4, atol=1e-5)
    for name in ("k", "v"):
        given[name][:, :, :23] *= 2
    assert torch.equal(run(**given)[:, :, 23:], o[:, :, 23:])


def test_columns_that_are_no_neighbours_in_memory_are_written_too() -> None:
    inputs, _ = draw(Kda(20, 16, 16))
    given: Any = inputs
    o = ops.kda(**given, implementation="tfla")
    given["v"] = given["v"].mT.contiguous().mT
    assert torch.equal(ops.kda(**given, implementation="tfla"), o)


def test_a_step_that_writes_nothing_has_the_gradient_of_its_strength() -> None:
    inputs, _ = draw(Kda(20, 16, 16, dtype=HALF))
    found: list[Any] = []
    for implementation in ("tfla", "reference"):
        leaves: Any = inputs | {"beta": torch.zeros_like(inputs["beta"]).requires_grad_()}
        given = leaves if implementation == "tfla" else {name: x.double() for name, x in leaves.items()}
        ops.kda(**given, implementation=implementation).sin().sum().backward()
        found.append(leaves["beta"].grad)
    assert found[1].abs().min() > 0
    assert distance(found[0], found[1].double()) < 1e-3


def test_the_operator_is_one_to_compilers() -> None:
    """Its fake has the shapes and strides of what runs."""
    inputs, _ = draw(Kda(17, 16, 32))
    key = setup_key("tfla", KDA.family, KDA.fields, torch.float32, None)
    arguments = (*inputs.values(), None, None, None, 0.25, 1.0, 32, True, key, None, True, None)
    torch.library.opcheck(
        torch.ops.tflabench.chunkwise.default, arguments, test_utils=("test_schema", "test_faketensor")
    )


def test_what_the_kernels_do_not_take_is_named() -> None:
    x = torch.zeros(1, 2, 8, 144)
    with pytest.raises(ValueError, match="tfla takes a d_qk up to 128, not 144"):
        ops.kda(x, x, x, x, x[..., 0], implementation="tfla", initial_state=State(torch.zeros(1, 2, 144, 144)))
