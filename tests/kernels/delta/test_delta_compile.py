"""The kernels of the delta rule compile for an H100, on the newest and oldest Triton: they fit and spill nothing."""

from __future__ import annotations

from typing import Any

import pytest
from compiled import EVERY, compiled_under

from tflabench.kernels.common.sizes import SHARED_MEMORY, USUAL, Sizes
from tflabench.kernels.delta.plan import WalkTiles
from tflabench.kernels.kda.plan import KdaPlan

CASES = "wide", "fused", "kda", "fused_kda"


@pytest.mark.parametrize("triton", ["installed", "oldest"] if EVERY else ["oldest"])
def test_kernels_fit_the_chip(triton: str) -> None:
    compiled = compiled_under(triton, "compile_delta.py", *CASES, *["fused_documents", "kda_older"] * EVERY)["kernels"]
    check_of_channels([kernel for kernel in compiled if kernel["case"] == "kda"])
    check_before_hopper([kernel for kernel in compiled if kernel["case"] == "kda_older"])
    fused = [kernel for kernel in compiled if kernel["case"].startswith("fused")]
    kernels = [kernel for kernel in compiled if kernel["case"] == "wide"]
    check_fused(fused, triton)
    assert {kernel["kernel"] for kernel in kernels} == {
        "tile_inverses", "walk_errors", "walk_gradients", "parallel_outputs", "normalize_rows",
    }  # fmt: skip
    told = WalkTiles.of(Sizes(2, 16, 2, 4096, 128, 256), 256, 2, 1, USUAL).shared_bytes(2, 90)
    for kernel in kernels:
        assert kernel["spilled_bytes"] <= 8 * ((triton, kernel["kernel"]) == ("oldest", "walk_errors")), kernel
        # Triton 3.6 serialises products of the parallel kernel; see docs/delta-rule.md.
        serialised = {"C7519"} if (triton, kernel["kernel"]) == ("oldest", "parallel_outputs") else set()
        assert set(kernel["warnings"]) <= serialised, kernel
        assert kernel["tensor_cores"] != kernel["kernel"].endswith("_rows"), kernel
        if kernel["kernel"] != "parallel_outputs":
            assert kernel["shared_bytes"] <= told


def check_fused(kernels: list[dict[str, Any]], triton: str) -> None:
    """Fused kernels spill little, and that in the largest; ptxas serialises no product (C75xx), but for one."""
    assert {kernel["kernel"] for kernel in kernels} == {
        "make_inverses", "walk_outputs", "walk_values", "walk_queries_keys", "finish_gates",
        "make_operands", "walk_outputs_of_channels", *["walk_values_of_channels", "gradients_of_tiles"] * EVERY,
    }  # fmt: skip
    for kernel in kernels:
        most = {"gradients_of_tiles": 400, "make_operands": 400}
        if kernel["case"] == "fused_documents":
            most["walk_queries_keys"] = 400
        assert kernel["spilled_bytes"] <= most.get(kernel["kernel"], 128 * kernel["kernel"].startswith("walk")), kernel
        assert kernel["shared_bytes"] <= SHARED_MEMORY[90], kernel
        # Products of blocks that stand apart are whole ones there, and ptxas serialises them.
        serialised = {"C7512"} if (triton, kernel["kernel"]) == ("installed", "make_operands") else set()
        assert set(kernel["warnings"]) <= serialised, kernel


def check_before_hopper(kernels: list[dict[str, Any]]) -> None:
    """All registers are used on an A100: products there have their results in registers, so more is spilled."""
    for kernel in kernels:
        assert kernel["registers"] == 255, kernel
        assert kernel["spilled_bytes"] <= (3600 if kernel["kernel"] == "kda_tile_gradients" else 700), kernel


def check_of_channels(kernels: list[dict[str, Any]]) -> None:
    """Kernels with a decay a channel spill little, and that where gradients are made."""
    assert {"tile_operands", "kda_outputs", "kda_gradients"} <= {kernel["kernel"] for kernel in kernels}
    plan = KdaPlan.of(Sizes(2, 16, 16, 4096, 128, 128), 64, "bfloat16", 1)
    for kernel in kernels:
        most = {"kda_tile_gradients": 800, "tile_operands": 100}
        assert kernel["spilled_bytes"] <= most.get(kernel["kernel"], 0), kernel
        assert set(kernel["warnings"]) <= ({"C7515"} if kernel["kernel"] == "kda_tile_gradients" else set()), kernel
        assert kernel["tensor_cores"], kernel
        assert kernel["shared_bytes"] <= plan.shared_bytes(2, 90), kernel
