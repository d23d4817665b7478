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


def test_a_level_of_the_log_that_is_none_is_one_line_and_2(monkeypatch):
    monkeypatch.setenv("TFLABENCH_LOG", "foo")
    done = tflabench("gpus")
    assert done.returncode == 2
    assert done.stderr.startswith("tflabench: TFLABENCH_LOG is 'foo': it must be one of CRITICAL")
    assert len(done.stderr.splitlines()) == 1
