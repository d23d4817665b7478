"""A family of linear RNNs goes through sweep, verify, theory, advice and figures by being registered alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from forked_workers import fork_workers

from tflabench.cli.main import app
from tflabench.conclusions import advise
from tflabench.figures import paper
from tflabench.implementations import registry
from tflabench.kernels import families
from tflabench.problem import Problem
from tflabench.rows import load
from tflabench.theory import cost
from tflabench.theory.hardware import find

# S_t = S_{t-1} (1 - beta v v^T) + beta k v^T, with grouped heads: what docs/add-a-family.md lists, in one file.
OJAS_RULE = """
from functools import partial
from types import SimpleNamespace

import torch
from tflabench import ops
from tflabench.plugin import REFERENCE, Family, GateCounts, Gating, Recurrence, attention_inputs, register_family


class Beta(Gating):
    family, forget_of, writes = "oja", None, True


def decode(q, k, v, f, beta, state, *, gate, scale):
    q, k = (x.repeat_interleave(v.shape[1] // x.shape[1], 1) for x in (q * scale, k))
    error = beta[..., None] * (k - (state.C @ v[..., :, None])[..., 0])
    C = state.C + error[..., :, None] * v[..., None, :]
    return (q[..., None, :] @ C)[..., 0, :].to(v.dtype), ops.State(C)


def chunkwise(q, k, v, f, beta, initial, *, gate, scale, chunk_size, state_dtype):
    state = initial or ops.State(v.new_zeros(*v.shape[:2], q.shape[-1], v.shape[-1]))
    outputs = []
    for t in range(v.shape[2]):
        o, state = decode(*(x[:, :, t] for x in (q, k, v)), None, beta[:, :, t], state, gate=gate, scale=scale)
        outputs.append(o)
    return torch.stack(outputs, 2), state


def ojas_rule(q, k, v, beta, **options):
    return ops.chunkwise(q, k, v / v.norm(dim=-1, keepdim=True), None, beta.sigmoid(), gate=Beta(), **options)


IMPLEMENTATIONS = register_family(
    Family(Beta, lambda: SimpleNamespace(chunkwise=chunkwise, decode=decode)),
    Recurrence(
        "oja", "Oja's rule", ojas_rule, Beta(), partial(attention_inputs, beta=()), {"reference": REFERENCE},
        counts="oja", bound="one_gate",
    ),
    GateCounts("Oja's rule", lambda d_qk: 1),
)
"""


@pytest.fixture
def plugin(tmp_path: Path):
    path = tmp_path / "oja.py"
    path.write_text(OJAS_RULE)
    yield path
    registry._plugged.clear()
    families.FAMILIES.pop("oja", None)
    cost.GATES.pop("oja", None)


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    with pytest.raises(SystemExit) as end:
        app([str(word) for word in arguments])
    output = capsys.readouterr()
    assert not end.value.code, output.err
    return output.out


def test_a_family_is_measured_verified_counted_advised_and_drawn(plugin, tmp_path, capsys, monkeypatch):
    fork_workers(monkeypatch)
    given = ("--plugin", plugin, "--impl", "reference_oja", "--device", "cpu", "-a", "seq_len=16,32", "-a", "heads=6")
    given = (*given, "-a", "heads_qk=2", "-a", "head_dim=16", "-a", "dtype=float32", "-a", "pass=fwbw")
    run(capsys, "sweep", *given, "--paper-protocol", "--no-plots", "--out", tmp_path / "rows")
    rows = load.rows_by_point(tmp_path / "rows").values()
    assert [(row.status, row.heads, row.heads_qk, row.seq_len) for row in rows] == [
        ("ok", 6, 2, 16),
        ("ok", 6, 2, 32),
    ]
    for row in rows:
        assert row.rel_error is not None
        assert row.rel_error < 1e-4
        assert row.model_flops
        assert row.model_bytes
    assert "reference_oja" in run(capsys, "verify", *given)
    assert list((tmp_path / "plots").glob("runtime*")) == []
    run(capsys, "plot", tmp_path / "rows", "--what", "runtime", "--format", "svg", "--out", tmp_path / "plots")
    assert list((tmp_path / "plots").glob("runtime*.svg"))


def test_theory_knows_a_family(plugin):
    registry.plug_in(str(plugin))
    problem, gpu = Problem(1, 48, 4096, 128, 128, heads_qk=16), find("H100-SXM")
    given = advise.advice(advise.Demand(problem), gpu, ("oja",))
    assert {choice.kernel.name for choice in given.ranked} == {"reference_oja"}
    impl = registry.get("reference_oja")
    apart = problem.with_(heads_qk=None)
    assert impl.count(problem).flops == impl.count(apart).flops
    saved = impl.count(apart).bytes - impl.count(problem).bytes
    assert saved >= 2 * 2 * 32 * 4096 * 128  # q and k of 32 heads, at least once
    assert "Oja's rule" in paper.FIGURES["fig17"]("oja").title
