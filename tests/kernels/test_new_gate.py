"""A gate is added in few files, as kernels/README.md says: kernels, decode step and packed sequences then run it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from repository import ROOT, SUPPORT

# By file: what stands there, and what a forget gate F = sigmoid(f)^2 puts before it.
CHANGES = {
    "types.py": (
        (', "rate"]', ', "twice"'),
        (', "fixed": 0.0,', ', "twice": math.inf'),
    ),
    "scalar/gates.py": (
        (
            '    if config.input == "none":\n',
            '    if config.forget == "twice":\n        log_f = 2.0 * _log_sigmoid(log_f)\n',
        ),
        (
            '    if config.input != "none":\n',
            """    if config.forget == "twice":
        x = tl.load(f.data + b * f.b + h * f.h + t * f_t, mask=mask, other=0.0).to(tl.float32)
        df *= 2.0 * tl.sigmoid(-x)
""",
        ),
    ),
    "scalar/reference.py": (
        (
            "    elif gate.per_head:\n",
            '    elif gate.forget == "twice":\n        f = 2 * logsigmoid(f)\n',
        ),
    ),
}
TRIED = """
import torch
from interpreting import interpret_quickly
from tflabench import ops

interpret_quickly()

gate = ops.Gate("twice", "exp", normalize=True)
torch.manual_seed(0)
bounds = [0, 9, 9, 40]
x = {name: torch.randn(1, 2, 40, 16) for name in "qkv"} | {name: torch.randn(1, 2, 40) for name in "fi"}
C, n, m = torch.randn(3, 2, 16, 16), torch.randn(3, 2, 16), torch.randn(3, 2)


def results(implementation, dtype):
    leaves = {name: y.to(dtype).requires_grad_() for name, y in x.items()}
    options = {"gate": gate, "implementation": implementation, "chunk_size": 16, "return_last_state": True}
    h, last = ops.chunkwise(**leaves, **options)
    packed, ends = ops.chunkwise(
        **leaves, **options, initial_state=ops.State(C.to(dtype), n.to(dtype), m.to(dtype)),
        cu_seqlens=torch.tensor(bounds),
    )
    loss = (h * h.detach().cos()).sum() + (packed * packed.detach().sin()).sum() + ends.C.sum()
    return [h, *last, packed, *ends, *torch.autograd.grad(loss, leaves.values())]


for ours, truth in zip(results("tfla_xl", torch.float32), results("reference", torch.float64), strict=True):
    assert (ours - truth).norm() <= 1e-4 * truth.norm(), ours.shape
now = {name: y.detach()[:, :, 0] for name, y in x.items()}
steps = []
for implementation in ("triton", "reference"):
    state = ops.State(C[:1].clone(), n[:1].clone(), m[:1].clone())
    steps.append([ops.step(**now, state=state, gate=gate, implementation=implementation), *state])
for ours, truth in zip(*steps, strict=True):
    torch.testing.assert_close(ours, truth)
"""


def test_a_new_gate_runs_everywhere(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "tflabench", tmp_path / "tflabench", ignore=shutil.ignore_patterns("__pycache__"))
    for name, changes in CHANGES.items():
        path = tmp_path / "tflabench" / "kernels" / name
        text = path.read_text()
        for before, added in changes:
            assert text.count(before) == 1, f"{name} has no place for {added}"
            text = text.replace(before, added + before)
        path.write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", TRIED],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{SUPPORT}", "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
