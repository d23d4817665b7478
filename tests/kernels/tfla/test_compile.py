"""The TFLA kernels compile for Ampere, Hopper and Blackwell, on the newest and oldest Triton, within a chip's means."""

from __future__ import annotations

from typing import Any

import pytest
from compiled import EVERY, compiled_under

SHARED_BYTES = {80: 166_912, 90: 232_448, 100: 232_448}
TENSOR_MEMORY_COLUMNS = 512
# Stores and loads; a tile row or two, outside the loop. On sm_100, which nobody has tuned, also n of the state walk.
SPILLED_BYTES = {80: 256, 90: 128, 100: 1024}


@pytest.fixture(scope="module", params=["installed", "oldest"] if EVERY else ["oldest"])
def kernels(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """What each kernel uses, compiled in a process of its own (this one interprets)."""
    return compiled_under(request.param, "compile_tfla.py", *[] if EVERY else ["few"])["kernels"]


def test_kernels_fit_the_chip(kernels: list[dict[str, Any]]) -> None:
    names = {kernel["kernel"] for kernel in kernels}
    assert {"parallel_outputs", "chunk_states", "join_segments"} <= names
    for kernel in kernels:
        assert kernel["shared_bytes"] <= min(kernel["needed_bytes"], SHARED_BYTES[kernel["sm"]]), kernel
        assert kernel["tensor_memory_columns"] <= TENSOR_MEMORY_COLUMNS, kernel
        assert kernel["spilled_bytes"] <= SPILLED_BYTES[kernel["sm"]], kernel


def test_the_shared_memory_told_without_compiling_is_what_a_case_needs(kernels: list[dict[str, Any]]) -> None:
    """What `tflabench advise` leaves a configuration out by: never too little, and not much more than is allotted."""
    most: dict[tuple[int, int], int] = {}
    for kernel in kernels:
        if kernel["dtype"] != "float32":
            case = kernel["sm"], kernel["needed_bytes"]
            most[case] = max(most.get(case, 0), kernel["shared_bytes"])
    assert {sm for sm, _ in most} == set(SHARED_BYTES)
    for (sm, needed), allotted in most.items():
        assert 0.75 * needed <= allotted <= needed <= SHARED_BYTES[sm], (sm, needed, allotted)


@pytest.mark.parametrize("sm", [90, 100])
def test_hopper_and_blackwell_use_their_own_instructions(kernels: list[dict[str, Any]], sm: int) -> None:
    """TMA, and asynchronous products (C75xx: ptxas serialises them), except in true float32: it has no tensor cores."""
    tiled = [k for k in kernels if k["sm"] == sm and k["kernel"] in ("parallel_outputs", "chunk_states")]
    assert tiled
    for kernel in tiled:
        assert kernel["tma"], kernel
        assert kernel["tensor_cores"] == (kernel["dtype"] != "float32"), kernel
        assert not kernel["warnings"], kernel


def test_ampere_loads_sixteen_bytes(kernels: list[dict[str, Any]]) -> None:
    tiled = [k for k in kernels if k["sm"] == 80 and k["kernel"] in ("parallel_outputs", "chunk_states")]
    assert tiled
    for kernel in tiled:
        assert not kernel["tma"], kernel
        assert kernel["wide_loads"], kernel
