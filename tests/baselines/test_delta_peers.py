"""Peers of the delta rules get inputs in their own layouts, and what they return is what the oracle says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tflabench.baselines import attn_gym_gdn, cudnn_kda, fla_ops, flash_qla, flashinfer_gdn
from tflabench.implementations import registry
from tflabench.problem import Problem

SIZE = Problem(batch=2, heads=4, seq_len=5, d_qk=8, d_hv=16, dtype="float32")


def delta_rule(q: Any, k: Any, v: Any, decay: Any, beta: Any, starts: Any = None, *, normalize: bool = False) -> Any:
    """Step by step over tokens (N, heads, d), from zero at each start: a decay (N, heads) or (N, heads, d_qk)."""
    if normalize:
        q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    q, k = (x.repeat_interleave(v.shape[1] // x.shape[1], 1) for x in (q, k))
    outputs = []
    for n in range(len(v)):
        if n in starts:
            C = torch.zeros(v.shape[1], q.shape[-1], v.shape[-1])
        C = C * decay[n].reshape(v.shape[1], -1, 1)
        u = beta[n, :, None] * (v[n] - torch.einsum("hk,hkv->hv", k[n], C))
        C = C + k[n, :, :, None] * u[:, None]
        outputs.append(torch.einsum("hk,hkv->hv", q[n], C) * q.shape[-1] ** -0.5)
    return torch.stack(outputs)


def flashinfer(q: Any, k: Any, v: Any, g: Any, beta: Any, cu_seqlens: Any, max_seqlen: int) -> Any:
    assert max_seqlen == SIZE.seq_len
    return delta_rule(q, k, v, g, beta, cu_seqlens)


def cudnn(q: Any, k: Any, v: Any, g: Any, beta: Any, cu_seqlens: Any, use_qk_l2norm_in_kernel: bool, **_: Any) -> Any:
    return delta_rule(q, k, v, g.exp(), beta, cu_seqlens, normalize=use_qk_l2norm_in_kernel), None


def fused_qla(q: Any, k: Any, v: Any, g: Any, beta: Any, use_qk_l2norm_in_kernel: bool) -> Any:
    sequences = zip(q, k, v, g.exp(), beta, strict=True)
    return torch.stack([delta_rule(*x, [0], normalize=use_qk_l2norm_in_kernel) for x in sequences]), None


def attention_gym(q: Any, k: Any, v: Any, g: Any, beta: Any) -> Any:
    return torch.stack([delta_rule(*x, [0]) for x in zip(q, k, v, g.exp(), beta, strict=True)]), None


CASES = {
    "flashinfer": (flashinfer_gdn, "module", "chunk_gated_delta_rule", flashinfer, SIZE.with_(heads_qk=2)),
    "cudnn": (cudnn_kda, "import_module", "kimi_delta_attention", cudnn, SIZE),
    "cudnn, training": (cudnn_kda, "import_module", "kimi_delta_attention", cudnn, SIZE.with_(pass_="fwbw")),
    "FlashQLA": (flash_qla, "import_module", "chunk_gated_delta_rule", fused_qla, SIZE.with_(pass_="fwbw")),
    "attention-gym": (attn_gym_gdn, "import_module", "chunk_gdn", attention_gym, SIZE.with_(pass_="fwbw", heads_qk=2)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_peer_computes_what_its_oracle_says(name, monkeypatch):
    adapter, imports, function, stand_in, problem = CASES[name]
    monkeypatch.setattr(adapter, imports, lambda *_: SimpleNamespace(**{function: stand_in}))
    impl = adapter.IMPLEMENTATIONS[0]
    case = impl.build(impl.with_gates(problem), torch.device("cpu"))
    leaves = [x for x in case.inputs.values() if x.requires_grad]
    assert len(leaves) == (5 if problem.pass_ == "fwbw" else 0)
    out, truth = case.forward(), case.oracle(case.inputs)
    torch.testing.assert_close(out, truth, rtol=1e-4, atol=1e-5)
    if leaves:
        grad = torch.randn_like(out)
        for one, other in zip(
            torch.autograd.grad(out, leaves, grad), torch.autograd.grad(truth, leaves, grad), strict=True
        ):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def step(q: Any, k: Any, v: Any, decay: Any, beta: Any, C: Any) -> Any:
    """One step from C (B, heads, d_qk, d_hv), of q and k that are normalized here; output and state."""
    q, k = (x[:, 0] / (x[:, 0].square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    C = C * decay[:, 0].reshape(*C.shape[:2], -1, 1)
    u = beta[:, 0, :, None] * (v[:, 0] - torch.einsum("bhk,bhkv->bhv", k, C))
    C = C + k[..., None] * u[:, :, None]
    return (torch.einsum("bhk,bhkv->bhv", q, C) * q.shape[-1] ** -0.5)[:, None], C


def fused_recurrent(q: Any, k: Any, v: Any, g: Any, beta: Any, initial_state: Any, **options: Any) -> Any:
    assert options == {"output_final_state": True, "use_qk_l2norm_in_kernel": True}
    return step(q, k, v, g.exp(), beta, initial_state)


def decode_pretranspose(q: Any, k: Any, v: Any, state: Any, A_log: Any, a: Any, dt_bias: Any, b: Any) -> Any:
    decay = (-A_log.exp() * torch.nn.functional.softplus(a + dt_bias)).exp()
    o, after = step(q, k, v, decay, b.sigmoid(), state.mT)
    state.copy_(after.mT)
    return o, state


@pytest.mark.parametrize("name", ["step_fla_kda", "step_fla_gated_delta_net", "step_flashinfer_gated_delta_net"])
def test_a_step_of_a_peer_leaves_the_state_of_ours(name, monkeypatch):
    functions = {f"fused_recurrent_{module}": fused_recurrent for module in ("kda", "gated_delta_rule")}
    monkeypatch.setattr(fla_ops, "module_of", lambda op: SimpleNamespace(**functions))
    decode = SimpleNamespace(gated_delta_rule_decode_pretranspose=decode_pretranspose)
    monkeypatch.setattr(flashinfer_gdn, "module", lambda _: decode)
    case = registry.get(name).build(SIZE.with_(pass_="decode", seq_len=1), torch.device("cpu"))
    before = {name: x.clone() for name, x in case.inputs.items()}
    torch.testing.assert_close(case.forward(), case.oracle(before), rtol=1e-4, atol=1e-5)
    assert case.states
    torch.testing.assert_close(case.states.left()["C"], case.states.oracle(before)["C"], rtol=1e-4, atol=1e-5)
    changed = {name for name, x in case.inputs.items() if not torch.equal(x, before[name])}
    assert changed == set(case.writes)
