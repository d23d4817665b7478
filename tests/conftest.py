"""Set-up of the test process, before anything else is imported."""

import os
from importlib.util import find_spec
from inspect import getmembers
from typing import Any

# Test processes run side by side: threads of their own would wait for each other's cores, and spin while they wait.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

from tflabench.__main__ import leave_repository_root

leave_repository_root()


def look_up_builtins_once() -> None:
    """Triton's interpreter looks through its language at every call from one kernel function to another, and replaces
    what nobody has replaced yet: a third of the time of all tests that run in it. What there is does not change.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    places = (tl, tl.core, tl.tensor, tl.math, tl.core.tensor_descriptor_base)
    builtins = {place: [name for name, x in getmembers(place) if tl.core.is_builtin(x)] for place in places}

    def patch_builtin(place: Any, builder: Any, scope: Any) -> None:
        for name in builtins[place]:
            member = getattr(place, name)
            if tl.core.is_builtin(member):
                interpreter._patch_attr(place, name, member, builder, scope)

    interpreter._patch_builtin = patch_builtin


# Triton decides on its import whether kernels are interpreted, which they are where there is no GPU to run them.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
    if find_spec("triton"):
        look_up_builtins_once()

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
