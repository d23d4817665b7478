"""Commands as tests call them: in this process, on a machine without a GPU, in a folder of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from forked_workers import fork_workers
from typer.testing import CliRunner, Result

from tflabench.bench import machine
from tflabench.bench.machine import Machine
from tflabench.cli.main import app

CPU = Machine("cpu", "Some CPU, 2 cores", 8 << 30)


def on_a_cpu(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands see a machine without a GPU, with caches and a working directory of their own in `folder`."""
    for name in ("XDG_CACHE_HOME", "TFLABENCH_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(name, str(folder / "caches" / name))
    monkeypatch.chdir(folder)
    monkeypatch.setattr(machine, "detect", lambda device: CPU)
    fork_workers(monkeypatch)


def run(*words: str, **environment: str) -> Result:
    """Run a command on a terminal of 100 columns."""
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "100", **environment}, prog_name="tflabench")


def output(*words: str, **environment: str) -> str:
    """Return what a command that succeeds prints."""
    done = run(*words, **environment)
    assert done.exit_code == 0, done.output
    return done.stdout


def document(*words: str) -> Any:
    """Return the JSON document of a command."""
    return json.loads(output(*words, "--json"))


def refused(words: list[str], reason: str) -> None:
    """Require that a command ends with code 2, one line that holds the reason, and no result."""
    done = run(*words)
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert reason in done.stderr
