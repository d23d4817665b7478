"""Advice on GPUs that are not here: only what runs there, within its bounds or with a reason, with its error."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tflabench.conclusions import advise
from tflabench.conclusions.advise import Advice, Candidate, Demand
from tflabench.implementations import packages, registry
from tflabench.kernels.common.sizes import shared_memory
from tflabench.problem import InputError, Problem
from tflabench.theory import hardware, held_out
from tflabench.theory.calibrated import predict
from tflabench.theory.hardware import Gpu
from tflabench.theory.held_out import ModelError

GIB = 2**30
A100, H100, H200, B200 = map(hardware.find, ("A100", "H100", "H200", "B200"))
OF_AN_A100 = 163 * 1024  # bytes of shared memory of a block
FIG_4 = Problem(16, 16, 4096, 128, 256, pass_="fwbw")
WIDE = Problem(8, 8, 8192, 256, 512, pass_="fwbw")
HEAD_DIMENSIONS = [(16, 16), (64, 64), (128, 256), (256, 512), (384, 320), (512, 512), (1024, 1024)]


def given(problem: Problem, gpu: Gpu, *gates: str, impl: str | None = None, memory: float | None = None) -> Advice:
    return advise.advice(Demand(problem, memory_bytes=memory), gpu, gates or advise.computed(), impl)


def needed(choice: Candidate, gpu: Gpu) -> int:
    """Shared memory of a program in bytes."""
    count = registry.get(choice.kernel.name).shared_bytes
    assert count
    assert gpu.capability
    return count(choice.problem, gpu.capability)


# --- What runs


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("d_qk", "d_hv"), HEAD_DIMENSIONS)
def test_on_an_a100_nothing_needs_more_than_its_shared_memory(d_qk, d_hv, dtype):
    found = given(WIDE.with_(d_qk=d_qk, d_hv=d_hv, dtype=dtype), A100)
    assert found.considered
    assert max(needed(choice, A100) for choice in found.considered) <= OF_AN_A100


def test_without_that_limit_a_larger_one_is_recommended():
    """Kernels tile by compute capability. With Hopper's on a GPU of 163 KiB, long chunks at 256/512 do not fit."""
    options = {"impl": "tfla_sig_xl", "memory": 3.4 * GIB}  # which rules short chunks out
    without = given(WIDE, H100, **options).ranked[0]
    assert without.problem.chunk_size == 1024
    assert needed(without, H100) > OF_AN_A100
    short = replace(H100, shared_memory_bytes=OF_AN_A100)
    within = given(WIDE, short, **options)
    assert all(needed(choice, short) <= OF_AN_A100 for choice in within.considered)
    told = {each.chunk_size: each.reason for each in within.refused}
    assert set(told) == {1024, 2048, 4096, 8192}
    assert told[1024] == "needs 226 KiB of shared memory a program, of which H100 SXM has 163"


@pytest.mark.parametrize("gpu", hardware.KNOWN, ids=lambda gpu: gpu.name)
@pytest.mark.parametrize(
    "problem",
    [FIG_4, WIDE, FIG_4.with_(d_qk=48, d_hv=80, seq_len=1000, pass_="fw"), WIDE.with_(d_qk=64, d_hv=64, heads=64)],
    ids=["fig 4", "wide", "odd", "small heads"],
)
def test_no_gpu_is_recommended_what_a_kernel_refuses(gpu, problem):
    try:
        found = given(problem, gpu)
    except InputError:
        assert gpu.capability is None or gpu.capability < (8, 0)
        return
    for choice in found.considered:
        impl = registry.get(choice.kernel.name)
        with packages.taken_as_installed():
            assert impl.refuses(choice.problem, "cuda") is None
        assert impl.majors
        assert gpu.capability
        assert impl.majors[0] <= gpu.capability[0] <= impl.majors[1]
        assert needed(choice, gpu) <= (gpu.shared_memory_bytes or 0)
    assert {choice.kernel.name for choice in found.considered} | {each.implementation for each in found.refused} == {
        impl.name for impl in registry.implementations()
        if impl.package == "triton" and impl.chunked
    }  # fmt: skip


def test_what_is_recommended_does_not_hang_on_packages_of_this_machine(monkeypatch):
    here = given(FIG_4, H200, "sig")
    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda name: None)
    without = given(FIG_4, H200, "sig")
    assert [choice.problem for choice in without.ranked] == [choice.problem for choice in here.ranked]
    assert without.refused == here.refused


def test_the_kernels_reckon_with_no_more_shared_memory_than_a_gpu_has():
    for capability, there in hardware.SHARED_MEMORY_BYTES.items():
        architecture = 10 * capability[0] + capability[1]
        if architecture >= 80:
            assert shared_memory(architecture) == there
    for gpu in hardware.KNOWN:
        assert (gpu.shared_memory_bytes is None) == (gpu.capability is None) == (gpu.vendor != "NVIDIA")


# --- Bounds


def test_a_prediction_is_within_its_bounds_or_says_why_not():
    for gpu in (A100, H200, B200):
        for problem in (FIG_4, WIDE.with_(pass_="fw"), FIG_4.with_(batch=1, heads=1, seq_len=1024)):
            for choice in given(problem, gpu).considered:
                within = choice.bounds.lower <= choice.call_s <= choice.bounds.upper
                assert within == (choice.outside is None), choice


# --- Errors, and where nothing ran


def test_held_out_are_rows_of_gpus_on_which_no_constant_was_chosen():
    for gpu in (A100, H100, H200):
        error = held_out.held_out_error("fused", gpu)
        assert error is not None
        assert error.held_out
        assert error.gpu == "H100 SXM"


def test_a_gpu_with_held_out_rows_of_its_own_is_judged_by_them(monkeypatch):
    own = ModelError(A100.name, "tfla", 2, 0.3, -0.4, held_out=True)
    monkeypatch.setattr(held_out, "stored", lambda: (*found, own))
    found = (ModelError("H100 SXM", "tfla", 15, 0.05, 0.2, held_out=True),)
    assert held_out.held_out_error("tfla", A100) == own
    assert held_out.held_out_error("tfla", B200) == found[0]
    assert held_out.held_out_error("unpipelined", B200) is None


def test_where_nothing_ran_is_told_by_the_same_table():
    assert [gpu.name for gpu in hardware.KNOWN if held_out.has_run_on(gpu)] == ["H100 SXM", "H200 SXM"]
    assert held_out.has_run_on(hardware.find("paper-H100"))
    assert not held_out.has_run_on(hardware.find("paper-A100"))


def test_other_dtypes_have_no_error_of_the_calibrated_model():
    found = given(FIG_4.with_(dtype="float32"), H200, "sig")
    assert {found.error(choice) for choice in found.ranked} == {None}
    assert {choice.outside for choice in found.ranked} == {None}


def test_predictions_follow_the_tiles_that_a_gpu_gets():
    """The same rates with an A100's compute capability: smaller tiles, which compute scores more often."""
    impl = registry.get("tfla_sig_xl")
    problem = WIDE.with_(chunk_size=1024)
    as_ampere = replace(H100, capability=(8, 0))
    ampere, hopper = (predict(impl.modelled, impl.count(problem), problem, gpu) for gpu in (as_ampere, H100))
    assert ampere.seconds > 1.05 * hopper.seconds
