"""What the list says of implementations, presets and axes."""

from __future__ import annotations

from commands import document, on_a_cpu, output

from tflabench.bench import machine
from tflabench.bench.machine import Machine


def test_it_says_what_runs_here_and_why_the_rest_does_not(tmp_path, monkeypatch):
    on_a_cpu(tmp_path, monkeypatch)
    listed = document("list")
    here = {impl["name"]: impl["runs_here"] for impl in listed["implementations"]}
    assert here["reference_sig"]
    assert not here["hopper_sig"]
    text = output("list")
    assert all(name in text for name in (*here, *listed["presets"], *listed["axes"]))
    monkeypatch.setattr(machine, "detect", lambda device: Machine("cuda", "NVIDIA A100-SXM4-80GB", 80 << 30))
    impls = {impl["name"]: impl for impl in document("list")["implementations"]}
    assert impls["hopper_sig"]["refused"] == "needs a GPU of compute capability 9.x, not 8.0"
    assert impls["tfla_sig_xl"]["runs_here"]
