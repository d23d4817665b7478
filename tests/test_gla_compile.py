"""The GLA kernels compile for an H100, on the newest and oldest Triton: they fit and multiply on tensor cores."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tflabench.kernels.plan.gla import Blocks

ROOT = Path(__file__).parents[1]
OLD_TRITON = Path(os.environ.get("TFLABENCH_OLD_TRITON", ".triton-3.6.0"))
SPILLED_BYTES = 800  # stores and loads, of dq, dk and dg in one program; nobody has tuned it on a GPU
MULTIPLYING = {"tile_scores", "chunk_states", "parallel_outputs", "tile_gradients"}


@pytest.fixture(scope="module", params=["installed", "oldest"])
def kernels(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """What each kernel uses, compiled in a process of its own (this one interprets)."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    if request.param == "oldest":
        old = ROOT / OLD_TRITON
        if not (old / "triton").is_dir():
            pytest.skip(f"no Triton in {old}: `make test` puts the oldest supported there")
        environment["PYTHONPATH"] = str(old)
    command = [sys.executable, "-P", str(ROOT / "tests" / "compile_gla.py"), "wide"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert (request.param == "oldest") == (found["triton"] == "3.6.0")
    return found["kernels"]


def test_kernels_fit_the_chip(kernels: list[dict[str, Any]]) -> None:
    assert {kernel["kernel"] for kernel in kernels} >= {*MULTIPLYING, "join_segments", "add_passing"}
    told = Blocks.for_shape(128, 256, 2, 256).shared_bytes(2, 90)
    assert 0.75 * told <= max(kernel["shared_bytes"] for kernel in kernels) <= told
    for kernel in kernels:
        assert kernel["spilled_bytes"] <= SPILLED_BYTES, kernel
        assert not kernel["warnings"], kernel
        if kernel["kernel"] in MULTIPLYING:
            assert kernel["tensor_cores"], kernel
