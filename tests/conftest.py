"""Set-up of the test process, before anything else is imported."""

import dataclasses
import functools
import os
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

# Test processes run side by side: threads of their own would wait for each other's cores, and spin while they wait.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

from tflabench.__main__ import leave_repository_root

leave_repository_root()


def interpret_quickly() -> None:
    """Leave out what Triton's interpreter does again and again: two thirds of the time of what runs in it.

    It patches the language at every call from one kernel function to another, though it is patched since the launch;
    it looks for sums of integers that overflow, which those of small tests do not; it makes a table for every dtype.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    patch_lang, np_dtype = interpreter._patch_lang, functools.cache(interpreter._get_np_dtype)
    seen_by_all = SimpleNamespace(__globals__={"tl": tl, "core": tl.core})
    interpreter._patch_lang = lambda _fn: patch_lang(seen_by_all)
    interpreter.InterpretedFunction.__call__ = lambda self, *args, **named: self.rewrite()(*args, **named)
    interpreter._get_np_dtype = lambda dtype: np_dtype(tl.uint64 if dtype.scalar.is_ptr() else dtype.scalar)
    builder = interpreter.interpreter_builder
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)


# Triton decides on its import whether kernels are interpreted, which they are where there is no GPU to run them.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
    if find_spec("triton"):
        interpret_quickly()

# Files that take minutes. They start first, so that no worker waits for the last of them.
LONG = ("test_hopper_compile.py", "test_compile.py", "test_sweep.py", "test_hopper_source.py")


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Put the tests of long files in front, and leave all others in their order."""
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Say at once what failed: a run that is killed prints no summary."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        lines = report.longreprtext.splitlines()
        why = next((line[1:].strip() for line in lines if line.startswith("E ")), lines[-1] if lines else "")
        print(f"\n{report.when} of {report.nodeid}: {why[:300]}", flush=True)
