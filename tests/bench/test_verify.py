"""The correctness gate lets plain PyTorch's rounding pass and nothing else."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from functools import partial
from math import nan
from pathlib import Path

import pytest
import torch
from gate_trials import Trial
from repository import ROOT, SUPPORT
from torch import Tensor

from tflabench.baselines.recurrences import decay_gradient_as_summed
from tflabench.bench import verify as gate
from tflabench.bench.verify import verify
from tflabench.implementations.adapter import Case, SuffixSum, differentiate, suffix_sum
from tflabench.implementations.mlstm import sequence_inputs, sequence_oracle
from tflabench.kernels.types import MLSTM_SIG
from tflabench.problem import Problem

PROBLEM = Problem(2, 3, 96, 16, 16, dtype="float32", pass_="fwbw")


def plugin(name: str, path: Path = SUPPORT / "faulty.py"):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return {impl.name: impl for impl in module.IMPLEMENTATIONS}[name]


def check(case: Case, problem: Problem = PROBLEM, budget_s: float = 10.0) -> gate.Verdict:
    torch.manual_seed(1)
    output_grad = torch.randn(case.forward().shape, dtype=getattr(torch, problem.dtype))
    return verify(case, getattr(torch, problem.dtype), output_grad if problem.pass_ == "fwbw" else None, budget_s)


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


def test_an_error_by_a_hair_is_told_from_what_is_allowed():
    near = gate.Error("df", 0.4004, 0.4, 0.0, 1.0, 0.0, 1.0, 0.0)
    assert str(near) == "df is off by 0.4004, 0.4 allowed"
    assert str(replace(near, error=0.87)) == "df is off by 0.87, 0.4 allowed"
    assert str(replace(near, error=nan)) == "df is off by nan, 0.4 allowed"


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


def test_a_gradient_summed_from_rounded_terms_is_held_to_the_error_to_be_expected_of_such_a_sum():
    """One realisation of that error says little of the next: 2.1 times as much may pass, a df that is wrong may not."""
    problem = Problem(1, 1, 512, 32, 32, dtype="bfloat16", pass_="fwbw")
    inputs = sequence_inputs(problem, torch.device("cpu"))
    oracle = partial(sequence_oracle, MLSTM_SIG)
    torch.manual_seed(1)
    output_grad = torch.randn(1, 1, 512, 32, dtype=torch.bfloat16)

    def results_in(dtype: torch.dtype) -> tuple[dict[str, Tensor], SuffixSum]:
        inputs_so = {name: x.detach().to(dtype).requires_grad_() for name, x in inputs.items()}
        results = differentiate(oracle, inputs_so, output_grad.to(dtype))
        return results, decay_gradient_as_summed("f", inputs_so, results)["df"]

    def total(df: SuffixSum) -> Tensor:
        return df.scale * suffix_sum(df.terms, 2)

    true, df = results_in(torch.float64)
    torch.testing.assert_close(total(df), true["df"])
    realised = total(results_in(torch.bfloat16)[1]) - true["df"]

    def df_off_by(error: Tensor) -> gate.Error:
        class Wrapped(torch.autograd.Function):
            @staticmethod
            def forward(ctx, h, f):
                return h.clone()

            @staticmethod
            def backward(ctx, dh):
                return dh, (true["df"] + error).to(torch.bfloat16)

        leaves = inputs | {"f": inputs["f"].detach()}
        case = Case(
            inputs,
            lambda: Wrapped.apply(oracle(leaves), inputs["f"]),
            oracle,
            as_kernels_do=partial(decay_gradient_as_summed, "f"),
        )
        return {error.name: error for error in verify(case, torch.bfloat16, output_grad, 10.0).errors}["df"]

    assert not df_off_by(2.1 * realised).wrong
    assert df_off_by(2.1 * realised).allowed < gate.OF_ZEROS
    assert df_off_by(8 * realised).wrong
    assert df_off_by(true["df"].roll(1, 2) - true["df"]).wrong
    assert df_off_by(-(df.scale - 1) * suffix_sum(df.terms, 2)).wrong  # the derivative of the gate left out


@pytest.fixture(scope="module")
def sums() -> dict[str, Tensor]:
    problem = Problem(1, 1, 32768, 16, 16, dtype="bfloat16", pass_="fwbw")
    inputs = sequence_inputs(problem, torch.device("cpu"))
    torch.manual_seed(1)
    output_grad = torch.randn(1, 1, problem.seq_len, 16, dtype=torch.bfloat16)
    found = {}
    for dtype in (torch.float64, torch.bfloat16):
        inputs_so = {name: x.detach().to(dtype).requires_grad_() for name, x in inputs.items()}
        results = differentiate(partial(sequence_oracle, MLSTM_SIG), inputs_so, output_grad.to(dtype))
        found[dtype] = results, decay_gradient_as_summed("f", inputs_so, results)["df"]
    (exact, terms), (plain, rounded) = found[torch.float64], found[torch.bfloat16]
    off = rounded.terms.double() - terms.terms
    return {
        "true": exact["df"],
        "plain": plain["df"],
        "lost": suffix_sum(off, 2) * terms.scale,
        "walk": suffix_sum(off.square(), 2) * terms.scale**2,
    }


class TestLongSums:
    """df as the paper sums it, of 32,768 steps in bfloat16: what plain PyTorch loses is as large as df in some step."""

    @staticmethod
    def error_of(sums: dict[str, Tensor], df: Tensor, *, as_kernels_do: bool = True) -> gate.Error:
        walk = sums["walk"] if as_kernels_do else None
        return gate._judged("df", [gate._Draw.of(df.to(torch.bfloat16), sums["plain"], sums["true"], 2, walk)])

    def test_plain_pytorch_is_right_by_its_own_rule(self, sums):
        """It is off by more than the root mean square of df in its worst step, which a fixed limit of 1 calls wrong."""
        for sign in (-1, 1):
            error = self.error_of(sums, sums["true"] + sign * sums["lost"])
            assert error.step_error > 1
            assert not error.wrong

    def test_autograds_sum_is_held_to_autograds_error(self, sums):
        """Who does not declare that formula is allowed a hundredth of it."""
        assert not self.error_of(sums, sums["plain"], as_kernels_do=False).wrong
        assert self.error_of(sums, sums["true"] + 0.1 * sums["lost"], as_kernels_do=False).wrong

    @pytest.mark.parametrize(
        "mistake",
        [
            torch.zeros_like,
            lambda df: df / 2,
            lambda df: df * 2,
            lambda df: -df,
            lambda df: df.roll(1, 2),
            lambda df: df.flip(2),
            lambda df: df.cumsum(2),
            lambda df: torch.cat([df[..., :16384], 0 * df[..., 16384:]], 2),  # the second half never written
        ],
    )
    @pytest.mark.parametrize("noise", [-1.0, 0.0, 1.0])
    @pytest.mark.parametrize("more", [1, 100])
    def test_no_mistake_hides_behind_it(self, sums, mistake, noise, more):
        """Nor where PyTorch's own error is ten times larger, as it is of sequences a hundred times as long."""
        hidden = sums | {"walk": more * sums["walk"]}
        assert self.error_of(hidden, mistake(sums["true"]) + noise * sums["lost"]).wrong


class Watched:
    """The oracle of a running sum, which keeps how many slices and steps it is asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def __call__(self, inputs: dict[str, Tensor]) -> Tensor:
        self.asked.append((inputs["v"].shape[0] * inputs["v"].shape[1], inputs["v"].shape[2]))
        return inputs["v"].cumsum(2)


def test_only_the_slices_compared_need_the_oracle():
    """Each alone: the oracle never sees the whole problem, and of many numbers no copies."""
    problem = replace(PROBLEM, batch=3, heads=8, seq_len=400, d_hv=128)
    oracle = Watched()
    verdict = check(replace(plugin("fine").build(problem, torch.device("cpu")), oracle=oracle), problem)
    assert verdict.slices == gate.SLICES
    assert oracle.asked == [(1, gate.SHAPE_STEPS), (8, 400), (8, 400)]  # in float64 and in the working dtype


def test_of_few_numbers_it_takes_more_draws_of_plain_pytorchs_error():
    oracle = Watched()
    problem = replace(PROBLEM, batch=1, heads=2, seq_len=20)
    check(replace(plugin("fine").build(problem, torch.device("cpu")), oracle=oracle), problem)
    assert oracle.asked[1:] == [(2 * gate.REALISATIONS, 20)] * 2


def test_slices_are_drawn_anew_by_the_seed():
    cut = gate._Cut(plugin("fine").build(replace(PROBLEM, batch=4, heads=4), torch.device("cpu")), torch.float32)
    case = plugin("fine").build(replace(PROBLEM, batch=4, heads=4), torch.device("cpu"))

    def drawn(seed: int) -> set[tuple[int, int]]:
        stacks = gate._stacks(case, cut, False, torch.Generator().manual_seed(seed))
        return {place for stack in stacks for place in stack.places}

    assert drawn(3) == drawn(3)
    assert {len(drawn(seed)) for seed in range(20)} == {gate.SLICES}
    assert len(set.union(*map(drawn, range(20)))) == 16


def test_a_prefix_is_compared_where_the_oracle_is_dear():
    problem = replace(PROBLEM, seq_len=4096)
    case = plugin("fine").build(problem, torch.device("cpu"))
    oracle = Watched()
    verdict = check(replace(case, oracle=oracle), problem, budget_s=0.0)
    assert verdict.steps == gate.FIRST_STEPS
    assert verdict.reason is None  # the gradient of a prefix is that of the whole under a gradient that ends with it
    assert {error.name for error in verdict.errors} == {"forward", "dv"}
    assert {steps for _, steps in oracle.asked[1:]} == {gate.FIRST_STEPS}
    assert check(case, problem).steps == 4096


def test_what_is_wrong_in_one_slice_alone_is_found_in_a_prefix():
    problem = replace(PROBLEM, seq_len=1024)
    case = plugin("fine").build(problem, torch.device("cpu"))

    def forward():
        spoiled = torch.ones(2, 3, 1024, 1)
        spoiled[1, 1, :512] = 1.01
        return case.inputs["v"].cumsum(2) * spoiled

    verdict = check(replace(case, forward=forward), problem, budget_s=0.0)
    assert verdict.steps == 512
    assert {error.name for error in verdict.errors if error.wrong} == {"forward", "dv"}


@pytest.mark.parametrize("seed", range(30))
def test_a_right_kernel_is_right_and_one_four_times_as_far_off_is_not(seed):
    """Small sizes, whose errors are draws of few numbers."""
    trial = Trial(seed, ("reference_exp", "reference_simple_gla")[seed % 2])
    assert trial.right().reason is None
    assert trial.four_times_as_far_off().reason


def step_by_step(seed: int) -> tuple[Case, Problem]:
    """Return an mLSTM in float32 whose state is carried from step to step."""
    problem = Problem(1, 4, 256, 16, 16, dtype="float32", pass_="fwbw", seed=seed)
    return plugin("step_by_step", ROOT / "examples" / "add_a_kernel.py").build(problem, torch.device("cpu")), problem


@pytest.mark.parametrize("seed", range(4))
def test_a_state_carried_from_step_to_step_in_float32_is_right(seed):
    """Its df collects the roundings of all steps: up to four times plain PyTorch's, which adds up in blocks."""
    assert check(*step_by_step(seed)).reason is None


def test_what_is_less_exact_than_that_is_wrong():
    """Noise of a thirtieth of TF32's rounding, in the gradient of a gate alone."""
    case, problem = step_by_step(0)
    noise = 2**-16 * torch.randn_like(case.inputs["f"], dtype=torch.float64)
    case.inputs["f"].register_hook(lambda df: (df * (1 + noise)).float())
    (wrong,) = (error for error in check(case, problem).errors if error.wrong)
    assert wrong.name == "df"


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
    verdict = verify(case, torch.float32, torch.randn(2, 40, 4, 8), 10.0)
    assert {error.name: error.wrong for error in verdict.errors} == {"forward": False, "dv": False, "dk": False}

    one = {"v": v[:1].detach().requires_grad_(), "k": k[:1].detach().requires_grad_(), "decay": decay}
    verdict = verify(
        Case(one, lambda: compute(one), compute, layout="bthd"), torch.float32, torch.randn(1, 40, 4, 8), 10.0
    )
    assert verdict.reason is None
    assert {error.name for error in verdict.errors} == {"forward", "dv", "dk", "ddecay"}


def test_inputs_are_not_poisoned_by_an_implementation_that_returns_one():
    problem = replace(PROBLEM, pass_="fw")
    case = plugin("fine").build(problem, torch.device("cpu"))
    v = case.inputs["v"]
    assert check(replace(case, forward=lambda: v, oracle=lambda inputs: inputs["v"]), problem).reason is None
