"""What kernels compile to under a Triton, in a process of its own: the tests' process interprets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from repository import ROOT, SUPPORT

EVERY = os.environ.get("TFLABENCH_COMPILE") == "all"  # as `make compile` asks for, which takes minutes
OLD_TRITON = Path(os.environ.get("TFLABENCH_OLD_TRITON", ".triton-3.6.0"))


def compiled_under(triton: str, script: str, *arguments: str) -> dict[str, Any]:
    """Return the JSON that a script of this folder prints under the Triton "installed" or "oldest".

    Skips the test where the oldest is not there. Fails on what Triton warns of.
    """
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    paths = [ROOT, SUPPORT]
    if triton == "oldest":
        old = ROOT / OLD_TRITON
        if not (old / "triton").is_dir():
            pytest.skip(f"no Triton in {old}: `make test` puts the oldest supported there")
        paths.insert(0, old)
    environment["PYTHONPATH"] = os.pathsep.join(map(str, paths))
    command = [sys.executable, "-P", str(SUPPORT / script), *arguments]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Warning" not in done.stderr, done.stderr[-2000:]  # Triton 3.9 warns of what 3.10 will do by default
    found = json.loads(done.stdout)
    assert (triton == "oldest") == (found["triton"] == "3.6.0")
    return found
