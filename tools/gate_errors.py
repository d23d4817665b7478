"""Count what the correctness gate gets wrong at small sizes: right kernels it flags, and wrong ones it does not.

    python tools/gate_errors.py --seeds 500

A trial is one seed: T from 1 to 100, head dimensions of 16, 48 or 64, one to eight slices, float32 or bfloat16. Right
are the bundled operations in plain PyTorch. Wrong are results four times as far from float64 as plain PyTorch's are.
The gate should flag none of the first and 95% of the second.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from tflabench.bench.verify import Verdict, verify
from tflabench.implementations import registry
from tflabench.implementations.adapter import differentiate
from tflabench.problem import Problem

NAMES = ("reference_exp", "reference_sig", "reference_simple_gla", "reference_gated_retention", "reference_mamba2")
TIMES = 4  # as far off as plain PyTorch
BUDGET_S = 10.0


class Trial:
    """One problem, drawn by a seed, of an implementation."""

    def __init__(self, seed: int, name: str) -> None:
        draw = random.Random(seed)
        dims = (16, 48, 64)
        batch, heads = draw.choice(((1, 1), (1, 2), (2, 2), (2, 3), (1, 8)))
        self.problem = Problem(
            batch, heads, draw.randint(1, 100), draw.choice(dims), draw.choice(dims),
            draw.choice((16, 32, 64, None)), draw.choice(("float32", "bfloat16")), "fwbw", seed=seed,
        )  # fmt: skip
        self._case = registry.get(name).build(self.problem, torch.device("cpu"))
        self._dtype = getattr(torch, self.problem.dtype)
        torch.manual_seed(seed)
        self._grad = torch.randn_like(self._case.forward())

    def right(self) -> Verdict:
        """Check the implementation."""
        return verify(self._case, self._dtype, self._grad, BUDGET_S, self.problem.seed)

    def four_times_as_far_off(self) -> Verdict:
        """Check results that are TIMES as far from float64 as those of plain PyTorch."""
        true, plain = (self._by_the_oracle(dtype) for dtype in (torch.float64, self._dtype))
        results = {name: x + TIMES * (plain[name].double() - x) for name, x in true.items()}
        inputs = self._case.inputs
        leaves = [name for name, x in inputs.items() if x.requires_grad]
        gradients = [results[f"d{name}"].to(inputs[name].dtype) for name in leaves]
        forward = partial(_Given.apply, lambda: (results["forward"].to(self._dtype), gradients))
        case = replace(self._case, forward=lambda: forward(*(inputs[name] for name in leaves)))
        return verify(case, self._dtype, self._grad, BUDGET_S, self.problem.seed)

    def _by_the_oracle(self, dtype: torch.dtype) -> dict[str, Tensor]:
        inputs = {name: x.detach().to(dtype).requires_grad_(x.requires_grad) for name, x in self._case.inputs.items()}
        return differentiate(self._case.oracle, inputs, self._grad.to(dtype))


class _Given(torch.autograd.Function):
    """An output and gradients that are given."""

    @staticmethod
    def forward(ctx, results: Callable[[], tuple[Tensor, list[Tensor]]], *leaves: Tensor) -> Tensor:
        output, ctx.gradients = results()
        return output.clone()

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, *(gradient.clone() for gradient in ctx.gradients)


def main() -> None:
    """Print every miss and false alarm, and how many there are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=500)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    trials, alarms, missed = 0, 0, 0
    for seed in range(given.first, given.first + given.seeds):
        for name in NAMES:
            trial = Trial(seed, name)
            trials += 1
            if reason := trial.right().reason:
                alarms += 1
                print(f"seed {seed}: {name} is right, {trial.problem}: {reason}", flush=True)
            if not trial.four_times_as_far_off().reason:
                missed += 1
                print(f"seed {seed}: {TIMES} times the error of {name} passes, {trial.problem}", flush=True)
    print(f"{alarms} of {trials} right kernels flagged; {trials - missed} of {trials} wrong ones")


if __name__ == "__main__":
    main()
