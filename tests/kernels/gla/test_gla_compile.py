"""The GLA kernels compile for an H100, on the newest and oldest Triton: they fit and multiply on tensor cores."""

from __future__ import annotations

from typing import Any

import pytest
from compiled import EVERY, compiled_under

from tflabench.kernels.common.sizes import SHARED_MEMORY
from tflabench.kernels.gla.plan import Blocks

SPILLED_BYTES = 700  # stores and loads, of dq, dk and dg in one program: fewer registers a thread were slower
MULTIPLYING = {"tile_scores", "chunk_states", "parallel_outputs", "tile_gradients"}


CASES = [("installed", "wide"), ("oldest", "wide"), ("oldest", "documents")]


@pytest.mark.parametrize(("triton", "case"), CASES if EVERY else CASES[-1:])
def test_kernels_fit_the_chip(triton: str, case: str) -> None:
    """Compiled in a process of its own (this one interprets); those of documents do what others do, and more."""
    kernels: list[dict[str, Any]] = compiled_under(triton, "compile_gla.py", case)["kernels"]
    names = {kernel["kernel"] for kernel in kernels}
    assert names >= {*MULTIPLYING, "add_passing"} | ({"join_segments"} if case == "wide" else set())
    needed = Blocks.for_shape(128, 256, 2, 256).shared_bytes(2, 90)
    assert 0.75 * needed <= max(kernel["shared_bytes"] for kernel in kernels) <= needed
    for kernel in kernels:
        assert kernel["spilled_bytes"] <= SPILLED_BYTES, kernel
        assert not kernel["warnings"], kernel
        if kernel["kernel"] in MULTIPLYING:
            assert kernel["tensor_cores"], kernel


@pytest.mark.parametrize("triton", ["oldest", "installed"] if EVERY else ["oldest"])
def test_fused_walks_fit_the_chip(triton: str) -> None:
    """They spill little, and ptxas serialises no product (C75xx)."""
    kernels: list[dict[str, Any]] = compiled_under(triton, "compile_gla.py", "fused")["kernels"]
    assert {kernel["kernel"] for kernel in kernels} == {"walk_columns", "walk_channels"}
    for kernel in kernels:
        assert kernel["spilled_bytes"] <= 512, kernel
        assert kernel["shared_bytes"] <= SHARED_MEMORY[90], kernel
        assert not kernel["warnings"], kernel
