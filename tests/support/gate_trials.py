"""Right kernels and wrong ones at small sizes, which the correctness gate should tell apart.

A trial is one seed: T from 1 to 100, head dimensions of 16, 48 or 64, one to eight slices, float32 or bfloat16. Right
are the bundled operations in plain PyTorch. Wrong are results four times as far from float64 as plain PyTorch's are.
"""

from __future__ import annotations

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
