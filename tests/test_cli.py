"""What every command shares: usage errors are one line, help is help."""

from __future__ import annotations

import subprocess
import sys

import pytest


def tflabench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tflabench", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--bogus"], "--bogus"),
        (["sweeep"], "sweep"),
        (["sweep", "--otu", "x"], "--out"),
        (["optimal-chunk", "--d-qk", "abc"], "--d-qk"),
        (["plot"], "DIR"),
    ],
)
def test_usage_errors_are_one_line(arguments, said):
    done = tflabench(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("tflabench: ")
    assert said in done.stderr


def test_no_arguments_show_the_help():
    done = tflabench()
    assert "optimal-chunk" in done.stdout + done.stderr
