"""What is said of the machine behind a row."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")


def said(**variables: str) -> str:
    """What `assembler` says of sm_80 in a process with these variables."""
    code = "from tflabench.bench.machine import assembler; print(assembler(80))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | variables, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_the_assembler_is_named_with_its_version_and_origin(tmp_path: Path) -> None:
    from triton.backends.nvidia.compiler import get_ptxas

    own = get_ptxas(80)
    assert said() == f"{own.version} of Triton"
    other = tmp_path / "ptxas"
    shutil.copy(own.path, other)
    assert said(TRITON_PTXAS_PATH=str(other)) == f"{own.version} of {other}"


def test_a_copy_over_another_checkout_is_what_it_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    from tflabench.bench import machine

    monkeypatch.delenv("TFLABENCH_COMMIT", raising=False)
    found = machine._commit()
    monkeypatch.setenv("TFLABENCH_COMMIT", "0123456789ab")
    assert machine._commit() == "0123456789ab" != found
