"""The GLA kernels compile for an H100, on the newest and oldest Triton: they fit and multiply on tensor cores."""

from __future__ import annotations

from typing import Any

import pytest
from compiled import EVERY, compiled_under

from tflabench.kernels.common.sizes import SHARED_MEMORY
from tflabench.kernels.gla.plan import Blocks

SPILLED_BYTES = 700  # stores and loads, of dq, dk and dg in one program: fewer registers a thread were slower
MULTIPLYING = {"tile_scores", "chunk_states", "parallel_outputs", "tile_gradients"}


# Cases with each Triton; those of documents do what others do, and more.
CASES = {"installed": ["wide", "fused"], "oldest": ["wide", "documents", "fused"]}
if not EVERY:
    CASES = {"oldest": ["documents", "fused"]}


@pytest.fixture(scope="module", params=CASES)
def compiled(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """What each kernel uses, compiled in a process of its own (this one interprets)."""
    return compiled_under(request.param, "compile_gla.py", *CASES[request.param])["kernels"]


def test_kernels_fit_the_chip(compiled: list[dict[str, Any]]) -> None:
    needed = Blocks.for_shape(128, 256, 2, 256).shared_bytes(2, 90)
    for case in {kernel["case"] for kernel in compiled} - {"fused"}:
        kernels = {kernel["kernel"]: kernel for kernel in compiled if kernel["case"] == case}
        assert kernels.keys() >= {*MULTIPLYING, "add_passing"} | ({"join_segments"} if case == "wide" else set())
        assert 0.75 * needed <= max(kernel["shared_bytes"] for kernel in kernels.values()) <= needed
        for name, kernel in kernels.items():
            of_places = 60 * ((case, name) == ("documents", "tile_gradients"))  # which it keeps beside its sums
            assert kernel["spilled_bytes"] <= SPILLED_BYTES + of_places, kernel
            assert not kernel["warnings"], kernel
            assert kernel["tensor_cores"] or name not in MULTIPLYING, kernel


def test_fused_walks_fit_the_chip(compiled: list[dict[str, Any]]) -> None:
    """They spill little, and ptxas serialises no product (C75xx)."""
    kernels = [kernel for kernel in compiled if kernel["case"] == "fused"]
    every = {"walk_columns": 512, "walk_channels": 512} | ({"add_pairs_of_tiles": 32} if EVERY else {})
    assert {kernel["kernel"] for kernel in kernels} == every.keys()
    for kernel in kernels:
        assert kernel["spilled_bytes"] <= every[kernel["kernel"]], kernel
        assert kernel["shared_bytes"] <= SHARED_MEMORY[90], kernel
        assert not kernel["warnings"], kernel
