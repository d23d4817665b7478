"""The delta rules by TFLA, in Triton's interpreter: forward and every gradient against float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from delta_cases import DEVICE, Case, distance, distances_of_documents, draw, failures

from tflabench import ops
from tflabench.kernels.chunkwise_operator import setup_key
from tflabench.kernels.common.cover import next_power_of_2
from tflabench.kernels.delta import normalize_kernel
from tflabench.kernels.delta.gating import GATED_DELTA_NET
from tflabench.kernels.delta.normalize import EPSILON, l2_normalized
from tflabench.kernels.scalar.plan import tfla

HALF = torch.float16
CASES = [
    Case(1, 16, 16, states=True),
    Case(15, 16, 32, "strong", beta=2.0, states=True),
    Case(63, 16, 16, "none", L=16),
    Case(40, 16, 16, "resets", "repeated", beta=1.0, states=True, layout="bthd"),
    Case(64, 48, 80, "usual", heads=2, sharing=2, dtype=HALF, states=True),
    Case(100, 64, 64, "none", "repeated", beta=1.0, dtype=HALF, states=True),
    Case(100, 64, 64, "open", "alike", beta=2.0, dtype=HALF),
    Case(100, 96, 192, "resets", "alike", beta=1.0, L=128, dtype=HALF),
    Case(80, 128, 256, "usual", dtype=HALF),
    Case(256, 32, 32, "open", "alike", "full", L=128, dtype=HALF),  # dg is what is left of large summands
    Case(1000, 16, 16, "none", L=512, dtype=HALF, states=True),  # where states made again from errors drift
]


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tiles of the parallel kernels as large as with 16 bits: few programs, which the interpreter takes in turn."""
    tiles, states = tfla._parallel_tiles, tfla._state_tiles

    def wide(function: Any) -> Any:
        return lambda d_in, d_out, size, *others: function(d_in, next_power_of_2(d_out), min(size, 2), *others)

    monkeypatch.setattr(tfla, "_parallel_tiles", wide(tiles))
    monkeypatch.setattr(tfla, "_state_tiles", wide(states))
    tfla.for_element_bytes.cache_clear()
    tfla.planned.cache_clear()
    yield
    tfla.for_element_bytes.cache_clear()
    tfla.planned.cache_clear()


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward_and_every_gradient(case: Case) -> None:
    assert failures(case) == []


def test_with_the_tiles_that_run_on_a_gpu() -> None:
    assert failures(Case(40, 48, 80, "usual", L=32, states=True)) == []


def test_a_step_that_writes_nothing_has_the_gradient_of_its_strength() -> None:
    """With a beta of 0, which no kernel divides by, in 16 bits too."""
    inputs, _ = draw(Case(30, 16, 16, dtype=HALF))
    found = []
    for implementation in ("tfla", "reference"):
        leaves = {name: x.clone().requires_grad_() for name, x in inputs.items()}
        leaves["beta"] = torch.zeros_like(inputs["beta"]).requires_grad_()
        given: Any = leaves if implementation == "tfla" else {name: x.double() for name, x in leaves.items()}
        ops.gated_delta_net(**given, implementation=implementation).sin().sum().backward()  # type: ignore[arg-type]
        found.append(leaves["beta"].grad)
    assert found[1].abs().min() > 0
    assert distance(found[0], found[1].double()) < 1e-3


@pytest.fixture
def filled() -> Iterator[None]:
    """Memory that nobody has written is NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("large", "filled")
@pytest.mark.parametrize(("gates", "dtype"), [("none", torch.float32), ("resets", torch.float32), ("usual", HALF)])
def test_documents_are_one_call(gates: str, dtype: torch.dtype) -> None:
    """Outputs, last states and gradients are those of the reference, document by document, one of them empty.

    Chunks of 16 bits have two tiles, and the second one of a short document has no step.
    """
    wide = dtype == torch.float32
    bounds = (0, 7, 40, 40, 70) if wide else (0, 7, 40, 40, 170)
    assert max(distances_of_documents(gates, dtype, bounds, "tfla", 32 if wide else 128)) < (1e-5 if wide else 2e-3)


def test_the_operator_is_one_to_compilers() -> None:
    """Its fake has the shapes and strides of what runs, of values that lie heads first in memory or steps first."""
    inputs, _ = draw(Case(17, 16, 32, heads=2, layout="bthd"))
    q, k, v, g, beta = inputs.values()
    v = v.transpose(1, 2).contiguous().transpose(1, 2)
    key = setup_key("tfla", GATED_DELTA_NET.family, GATED_DELTA_NET.fields, torch.float32, None)
    for bounds in (None, [0, 5, 17]):
        arguments = (q, k, v, g, beta, None, None, None, 0.25, 1.0, 32, True, key, None, True, bounds)
        torch.library.opcheck(
            torch.ops.tflabench.chunkwise.default, arguments, test_utils=("test_schema", "test_faketensor")
        )


@pytest.mark.parametrize("turned", [False, True])
def test_norms_and_their_gradients(turned: bool) -> None:
    """Of rows that lie anyhow in memory, one of them zero."""
    x = torch.randn(2, 3, 37, 24, device=DEVICE)
    x[0, 1, 5] = 0
    x = x.transpose(2, 3).contiguous().transpose(2, 3) if turned else x.transpose(1, 2)
    dy = torch.randn_like(x)
    wide = x.double().requires_grad_()
    wanted = l2_normalized(wide)
    (dx,) = torch.autograd.grad(wanted, wide, dy.double())
    made, gradient = (normalize_kernel.normalize(x, y, EPSILON) for y in (None, dy))
    assert made.stride() == gradient.stride() == torch.empty_like(x).stride()
    torch.testing.assert_close(made, wanted.detach().float())
    torch.testing.assert_close(gradient, dx.float(), rtol=1e-5, atol=1e-5)


def test_what_the_kernels_do_not_take_is_named() -> None:
    x = torch.zeros(1, 2, 8, 272)
    with pytest.raises(ValueError, match="tfla takes a d_qk up to 256, not 272"):
        ops.delta_net(x, x, x, x[..., 0], implementation="tfla")
