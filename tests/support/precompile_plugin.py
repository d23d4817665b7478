"""Implementations with kernels that compile, or not, for `test_precompile.py`."""

# pyright: reportArgumentType=false, reportInvalidTypeForm=false
# (Triton's language looks like Python, but its types are its own.)

from __future__ import annotations

import os
import time
from functools import partial
from typing import Any

import triton
import triton.language as tl

from tflabench.implementations.adapter import Case, Implementation
from tflabench.problem import Problem

constexpr_function = triton.runtime.jit.constexpr_function


class Abort:  # a class: Triton looks into functions
    def __init__(self) -> None:
        os.abort()  # as an assertion in LLVM does


class Sleep:
    def __init__(self) -> None:
        time.sleep(600)


@constexpr_function
def crash(width):
    Abort()
    return width


@constexpr_function
def hang(width):
    Sleep()
    return width


@triton.jit
def sound(x, WIDTH: tl.constexpr):
    tl.store(x + tl.arange(0, WIDTH), 0.0)


@triton.jit
def crashes(x, WIDTH: tl.constexpr):
    tl.store(x + tl.arange(0, crash(WIDTH)), 0.0)


@triton.jit
def hangs(x, WIDTH: tl.constexpr):
    tl.store(x + tl.arange(0, hang(WIDTH)), 0.0)


@triton.jit
def refused(x, WIDTH: tl.constexpr):
    tl.static_assert(WIDTH < 0, "no width will do")


def tuned(width: int) -> Any:
    """`sound` with a tuner that tries three configurations, of which one is cut off before."""
    configs = [triton.Config({"WIDTH": width * n}, num_warps=n) for n in (1, 2, 4)]
    prune = {"early_config_prune": lambda configs, arguments, **_: configs[:2]}
    return triton.autotune(configs, key=[], prune_configs_by=prune, cache_results=True)(sound)


def build(kernels: Any, problem: Problem, device: Any) -> Case:
    import torch

    x = torch.zeros(problem.seq_len, device=device)

    def forward() -> torch.Tensor:
        for kernel in kernels:
            if isinstance(kernel, triton.runtime.Autotuner):
                kernel[(1,)](x)
            else:
                kernel[(1,)](x, WIDTH=problem.d_qk, enable_fp_fusion=True)
        return x

    return Case({"x": x}, forward, lambda inputs: inputs["x"])


def fail(problem: Problem, device: Any) -> Case:
    raise OSError("a library\nthat fails")


def _implementation(name: str, build: Any) -> Implementation:
    return Implementation(name, "mlstm", name, build, lambda problem, device: None)


IMPLEMENTATIONS = (
    _implementation("plug_sound", partial(build, [sound])),
    _implementation("plug_faulty", partial(build, [crashes, hangs, refused, sound])),
    _implementation("plug_hangs", partial(build, [hangs, hangs])),
    _implementation("plug_tuned", partial(build, [tuned(32)])),
    _implementation("plug_fails", fail),
)
