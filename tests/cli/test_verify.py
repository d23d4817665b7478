"""The command verify: what it keeps of a folder, and of a run that is interrupted."""

from __future__ import annotations

import json
import re

import pytest
from commands import on_a_cpu, output, refused, run

from tflabench.bench import verifier
from tflabench.bench.workers import Workers

SMALL = ("--device", "cpu", "--impl", "reference_sig", "-a", "d_qk=16", "-a", "d_hv=16", "-a", "chunk_size=64")


@pytest.fixture(autouse=True)
def _machine(tmp_path, monkeypatch):
    on_a_cpu(tmp_path, monkeypatch)


def test_it_keeps_what_a_sweep_recorded_of_its_runs(tmp_path):
    folder, one = str(tmp_path / "rows"), ("-a", "seq_len=64")
    output("sweep", *SMALL, *one, "--no-plots", "--out", folder)
    before = json.loads((tmp_path / "rows" / "environment.json").read_text())["runs"]
    output("verify", *SMALL, *one, "--out", folder)
    after = json.loads((tmp_path / "rows" / "environment.json").read_text())["runs"]
    assert before
    assert {name: run for name, run in after.items() if name != "verify"} == before
    assert "arguments" in after["verify"]


def test_an_environment_that_no_sweep_wrote_is_refused_before_anything_is_checked(tmp_path, monkeypatch):
    monkeypatch.setattr(verifier, "one_worker", None)
    (tmp_path / "environment.json").write_text("[]")
    refused(["verify", *SMALL, "--out", str(tmp_path)], "is not what `tflabench sweep` writes")
    assert [path.name for path in tmp_path.iterdir()] == ["environment.json"]


def test_interrupted_it_writes_what_it_has_checked(tmp_path, monkeypatch):
    real, calls = Workers.ask, []

    def ask(self, job, *more):
        calls.append(job)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(self, job, *more)

    monkeypatch.setattr(Workers, "ask", ask)
    done = run("verify", *SMALL, "-a", "seq_len=64,128", "--out", str(tmp_path))
    assert (done.exit_code, done.stdout) == (130, "")
    assert re.search(r"Interrupted: 1 of \d+ points were checked\.", done.stderr)
    points = {line.split(",")[0] for line in (tmp_path / "errors.csv").read_text().splitlines()[1:]}
    assert len(points) == 1
