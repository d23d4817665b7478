"""The correctness gate lets plain PyTorch's rounding pass and nothing else."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tflabench import verify as gate
from tflabench.adapter import Case
from tflabench.problem import Problem
from tflabench.verify import verify

PROBLEM = Problem(2, 3, 96, 16, 16, dtype="float32", pass_="fwbw")


def plugin(name: str):
    path = Path(__file__).with_name("faulty.py")
    spec = importlib.util.spec_from_file_location("faulty", path)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return {impl.name: impl for impl in module.IMPLEMENTATIONS}[name]


def check(case: Case, problem: Problem = PROBLEM, budget_s: float = 10.0) -> gate.Verdict:
    torch.manual_seed(1)
    output_grad = torch.randn(case.forward().shape, dtype=getattr(torch, problem.dtype))
    return verify(case, output_grad if problem.pass_ == "fwbw" else None, budget_s)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("pass_", ["fw", "fwbw"])
def test_right_is_right(dtype, pass_):
    problem = replace(PROBLEM, dtype=dtype, pass_=pass_)
    verdict = check(plugin("fine").build(problem, torch.device("cpu")), problem)
    assert verdict.reason is None
    assert verdict.steps == 96
    assert {error.name for error in verdict.errors} == ({"forward"} if pass_ == "fw" else {"forward", "dv"})
    assert verdict.rel_error < torch.finfo(getattr(torch, dtype)).eps * 4


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("returns_nan", "forward is off by nan"),
        ("unwritten", "forward is off by"),
        ("one_bad_step", "forward is off by"),
        ("bad_gradient", "dv is off by 0.1"),
    ],
)
def test_wrong_is_wrong(name, reason):
    assert reason in (check(plugin(name).build(PROBLEM, torch.device("cpu"))).reason or "")


def test_one_wrong_step_shows_in_a_long_sequence():
    problem = replace(PROBLEM, seq_len=4096, pass_="fw", dtype="bfloat16")
    case = plugin("fine").build(problem, torch.device("cpu"))

    def forward() -> torch.Tensor:
        output = case.inputs["v"].cumsum(2)
        output[:, :, 300] *= 1.2
        return output

    (error,) = check(replace(case, forward=forward), problem).errors
    assert error.error <= error.allowed
    assert error.wrong
    assert "in its worst step" in str(error)


def test_what_kernels_form_from_rounded_results_is_measured_as_such():
    """A tenth off is allowed where plain PyTorch, going the same way, is a tenth off; but not however much."""
    case = plugin("bad_gradient").build(PROBLEM, torch.device("cpu"))
    assert check(replace(case, as_kernels_do=lambda inputs, results: {"dv": 0.9 * results["dv"]})).reason is None
    case.forward, right = lambda: 0.5 * right(), case.forward
    assert check(replace(case, as_kernels_do=lambda inputs, results: {"dv": 0.1 * results["dv"]})).reason is not None


def test_only_the_slices_compared_need_the_oracle():
    """First and last head of first and last batch, each alone: the oracle never sees the whole problem."""
    case = plugin("fine").build(PROBLEM, torch.device("cpu"))
    seen = []

    def oracle(inputs):
        seen.append(tuple(inputs["v"].shape))
        return inputs["v"].cumsum(2)

    check(replace(case, oracle=oracle))
    assert seen == [(1, 1, 96, 16)] * 4  # two slices, each in float64 and in the working dtype


def test_a_prefix_is_compared_where_the_oracle_is_dear():
    problem = replace(PROBLEM, seq_len=4096)
    case = plugin("fine").build(problem, torch.device("cpu"))
    verdict = check(case, problem, budget_s=0.0)
    assert verdict.steps == gate.FIRST_STEPS
    assert verdict.reason is None  # the gradient of a prefix is that of the whole under a gradient that ends with it
    assert check(case, problem).steps == 4096


def test_shared_heads_and_time_first_layout():
    """Four heads of v, two of k, one decay a head, laid out (B, T, H, d)."""
    torch.manual_seed(0)
    v = torch.randn(2, 40, 4, 8, requires_grad=True)
    k = torch.randn(2, 40, 2, 8, requires_grad=True)
    decay = torch.rand(4, requires_grad=True)

    def compute(inputs):
        per_head = inputs["v"].shape[2] // inputs["k"].shape[2]
        shared = inputs["k"].repeat_interleave(per_head, 2)
        return (inputs["v"] * shared).cumsum(1) * inputs["decay"][:, None]

    inputs = {"v": v, "k": k, "decay": decay}
    case = Case(inputs, lambda: compute(inputs), compute, layout="bthd")
    verdict = verify(case, torch.randn(2, 40, 4, 8), 10.0)
    assert {error.name: error.wrong for error in verdict.errors} == {"forward": False, "dv": False, "dk": False}

    one = {"v": v[:1].detach().requires_grad_(), "k": k[:1].detach().requires_grad_(), "decay": decay}
    verdict = verify(Case(one, lambda: compute(one), compute, layout="bthd"), torch.randn(1, 40, 4, 8), 10.0)
    assert verdict.reason is None
    assert {error.name for error in verdict.errors} == {"forward", "dv", "dk", "ddecay"}


def test_inputs_are_not_poisoned_by_an_implementation_that_returns_one():
    problem = replace(PROBLEM, pass_="fw")
    case = plugin("fine").build(problem, torch.device("cpu"))
    v = case.inputs["v"]
    assert check(replace(case, forward=lambda: v, oracle=lambda inputs: inputs["v"]), problem).reason is None
