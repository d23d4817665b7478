"""The GLA kernels compile for an H100, on the newest and oldest Triton: they fit and multiply on tensor cores."""

from __future__ import annotations

from typing import Any

import pytest
from compiled import compiled_under

from tflabench.kernels.gla.plan import Blocks

SPILLED_BYTES = 700  # stores and loads, of dq, dk and dg in one program: fewer registers a thread were slower
MULTIPLYING = {"tile_scores", "chunk_states", "parallel_outputs", "tile_gradients"}


@pytest.fixture(scope="module", params=["installed", "oldest"])
def kernels(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """What each kernel uses, compiled in a process of its own (this one interprets)."""
    return compiled_under(request.param, "compile_gla.py", "wide")["kernels"]


def test_kernels_of_documents_compile() -> None:
    kernels = compiled_under("oldest", "compile_gla.py", "documents")["kernels"]
    assert {kernel["kernel"] for kernel in kernels} >= {*MULTIPLYING, "add_passing"}
    for kernel in kernels:
        assert kernel["spilled_bytes"] <= SPILLED_BYTES, kernel
        assert not kernel["warnings"], kernel


def test_kernels_fit_the_chip(kernels: list[dict[str, Any]]) -> None:
    assert {kernel["kernel"] for kernel in kernels} >= {*MULTIPLYING, "join_segments", "add_passing"}
    told = Blocks.for_shape(128, 256, 2, 256).shared_bytes(2, 90)
    assert 0.75 * told <= max(kernel["shared_bytes"] for kernel in kernels) <= told
    for kernel in kernels:
        assert kernel["spilled_bytes"] <= SPILLED_BYTES, kernel
        assert not kernel["warnings"], kernel
        if kernel["kernel"] in MULTIPLYING:
            assert kernel["tensor_cores"], kernel
