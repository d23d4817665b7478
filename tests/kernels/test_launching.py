"""What `enqueue` launches is what Triton would launch, on the oldest Triton and the one installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from repository import SUPPORT


@pytest.mark.parametrize("triton", ["installed", "oldest"])
def test_a_launch_like_an_earlier_one_is_the_same(triton):
    """Arguments that differ in one thing each, on two devices; in a process of its own: here Triton may interpret."""
    folder = os.environ.get("TFLABENCH_OLD_TRITON") if triton == "oldest" else ""
    if folder is None:
        pytest.skip("TFLABENCH_OLD_TRITON names no folder: `make test` sets it")
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | {"PYTHONPATH": folder}
    script = SUPPORT / "launches.py"
    done = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["triton"] == "3.6.0" or triton == "installed"
    assert report["kernels"] > 30
    assert report["launches"] > 5 * report["kernels"]
