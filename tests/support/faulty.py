"""A plugin (`--plugin tests/support/faulty.py`): a running sum over time, right and in every way that goes wrong.

It imports torch where it computes: the process that reads the command line loads plugins too, and needs none.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tflabench.implementations.adapter import Case, Implementation, Unsupported, draw
from tflabench.problem import Problem

if TYPE_CHECKING:
    import torch
    from torch import Tensor


CALLS = itertools.count()  # of `not_a_number_later`


def running_sum(inputs: Mapping[str, Tensor]) -> Tensor:
    """(B, H, T, d_hv) -> the same."""
    return inputs["v"].cumsum(2)


def abort(inputs: Mapping[str, Tensor]) -> Tensor:
    os.write(2, b"LLVM ERROR: no registers left\n")
    os.abort()


def hang(inputs: Mapping[str, Tensor]) -> Tensor:
    time.sleep(3600)
    return running_sum(inputs)


def fail(inputs: Mapping[str, Tensor]) -> Tensor:
    raise ValueError("this size\nis not for me")


def not_a_number(inputs: Mapping[str, Tensor]) -> Tensor:
    return running_sum(inputs) * float("nan")


def not_a_number_later(inputs: Mapping[str, Tensor]) -> Tensor:
    """Right in the first call, and in the one that is checked."""
    return running_sum(inputs) * (1.0 if next(CALLS) < 2 else float("nan"))


def name_no_file(inputs: Mapping[str, Tensor]) -> Tensor:
    raise OSError("no file \udcff")


def signal_itself(inputs: Mapping[str, Tensor]) -> Tensor:
    os.kill(os.getpid(), 40)
    return running_sum(inputs)


def hoard(inputs: Mapping[str, Tensor]) -> Tensor:
    import torch

    kept = []
    while True:
        kept.append(torch.ones(1 << 24))


def break_the_device(inputs: Mapping[str, Tensor]) -> Tensor:
    """On CUDA an assertion in a kernel: the context is unusable from then on. (On the CPU an IndexError.)"""
    import torch

    beyond = torch.full((1,), 1 << 20, device=inputs["v"].device)
    return running_sum(inputs) + inputs["v"].flatten()[beyond]


def leave_last_step_unwritten(inputs: Mapping[str, Tensor]) -> Tensor:
    import torch

    right = running_sum(inputs)
    output = torch.empty_like(right)
    output[:, :, :-1] = right[:, :, :-1]
    return output


def spoil_one_step(inputs: Mapping[str, Tensor]) -> Tensor:
    import torch

    step = torch.arange(inputs["v"].shape[2])[:, None]
    return running_sum(inputs) * torch.where(step == 5, 1.01, 1.0)


def spoil_gradient(inputs: Mapping[str, Tensor]) -> Tensor:
    right = running_sum(inputs)
    return right.detach() + 0.9 * (right - right.detach())


def chatter(inputs: Mapping[str, Tensor]) -> Tensor:
    print('{"result": "from a kernel"}', flush=True)
    os.write(1, b"not JSON\n")
    return running_sum(inputs)


def refuse(inputs: Mapping[str, Tensor]) -> Tensor:
    raise Unsupported("needs a full moon")


def _implementation(name: str, compute: Callable[[Mapping[str, Tensor]], Tensor]) -> Implementation:
    def build(problem: Problem, device: torch.device) -> Case:
        shape = (problem.batch, problem.heads, problem.seq_len, problem.d_hv)
        inputs = draw(problem, device, {"v": shape})
        return Case(inputs, lambda: compute(inputs), running_sum)

    return Implementation(name, "mlstm", f"running sum, {name}", build, lambda problem, device: None, gate="sig")


IMPLEMENTATIONS = (
    _implementation("fine", running_sum),
    _implementation("aborts", abort),
    _implementation("hangs", hang),
    _implementation("raises", fail),
    _implementation("returns_nan", not_a_number),
    _implementation("returns_nan_later", not_a_number_later),
    _implementation("raises_no_letter", name_no_file),
    _implementation("signals", signal_itself),
    _implementation("hoards", hoard),
    _implementation("breaks_device", break_the_device),
    _implementation("unwritten", leave_last_step_unwritten),
    _implementation("one_bad_step", spoil_one_step),
    _implementation("bad_gradient", spoil_gradient),
    _implementation("chatters", chatter),
    _implementation("refuses_late", refuse),
)
