"""Set-up of the test process, before anything else is imported."""

import os
from importlib.util import find_spec
from typing import Any

# Test processes run side by side: threads of their own would wait for each other's cores, and spin while they wait.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from interpreting import interpret_quickly

from tflabench.__main__ import leave_repository_root

leave_repository_root()


# Triton decides on its import whether kernels are interpreted, which they are where there is no GPU to run them.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
    if find_spec("triton"):
        interpret_quickly()

# Files that take half a minute. They start first, so that no worker waits for the last of them.
LONG = (
    "test_hopper_source.py",
    "test_hopper_compile.py",
    "test_compile.py",
    "test_delta_compile.py",
    "test_gla_compile.py",
    "test_chunkwise_operator.py",
    "test_documents.py",
    "test_tfla.py",
    "test_gla.py",
    "test_linear_rnns.py",
    "test_integrations.py",
    "test_docs.py",
    "test_sweep.py",
    "test_model.py",
    "test_pages.py",
)


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
