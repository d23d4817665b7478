"""Baselines: oracles against the recurrence step by step, how libraries are called, what is counted, who refuses why.

The libraries are not installed here: packages made by the tests stand in for them, and note how they are called.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from contextlib import nullcontext

import pytest
import torch
from torch.nn.functional import logsigmoid, softplus

from tflabench.baselines import fla_ops, fla_rwkv7, flash_attention, lightning, mamba, nxai, packages
from tflabench.baselines.recurrences import rwkv7, selective_scan
from tflabench.bench.verify import verify
from tflabench.bench.worker import Worker
from tflabench.implementations import registry
from tflabench.implementations.adapter import Unsupported, differentiate, suffix_sum
from tflabench.implementations.packages import package_version, taken_as_installed
from tflabench.problem import Problem

CPU = torch.device("cpu")
PROBLEM = Problem(batch=2, heads=3, seq_len=70, d_qk=16, d_hv=24, dtype="float32", pass_="fwbw")
BY_NAME = {impl.name: impl for impl in registry.implementations()}
ADAPTERS = (flash_attention, fla_ops, fla_rwkv7, lightning, mamba, nxai)
BASELINES = [impl for adapter in ADAPTERS for impl in adapter.IMPLEMENTATIONS]
SEQUENCES = [impl for impl in BASELINES if not impl.name.startswith("step_")]


# --- the oracles


def step_by_step(q, k, v, log_decay, beta=None, scale=1.0, low_rank=None):
    """The recurrence as its module states it, one step after the other."""
    B, H, T, _ = v.shape
    C = torch.zeros(B, H, k.shape[-1], v.shape[-1], dtype=v.dtype)
    outputs = []
    for t in range(T):
        added = 0
        if low_rank is not None:
            a, b = (x[:, :, t, :, None] for x in low_rank)
            added = b @ (a.mT @ C)
        C = log_decay.expand(B, H, T, -1)[:, :, t, :, None].exp() * C + added
        u = v[:, :, t]
        if beta is not None:
            u = beta[:, :, t, None] * (u - (C.mT @ k[:, :, t, :, None]).squeeze(-1))
        C = C + k[:, :, t, :, None] * u[:, :, None, :]
        outputs.append(scale * (C.mT @ q[:, :, t, :, None]).squeeze(-1))
    return torch.stack(outputs, dim=2)


def random(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def assert_same_with_gradients(actual, expected, leaves):
    torch.testing.assert_close(actual, expected)
    grad = torch.randn_like(expected)
    for left, right in zip(
        torch.autograd.grad(actual, leaves, grad, retain_graph=True),
        torch.autograd.grad(expected, leaves, grad),
        strict=True,
    ):
        torch.testing.assert_close(left, right)


def test_rwkv_7_reads_the_state_before_the_step():
    """Whole chunks and a ragged one."""
    torch.manual_seed(0)
    q, k, v, f, a, b = (random(2, 2, 40, d) for d in (4, 4, 3, 4, 4, 4))
    unit = torch.nn.functional.normalize(a, dim=-1)
    pair = -unit, unit * b.sigmoid()
    expected = step_by_step(q, k, v, logsigmoid(f), low_rank=pair)
    assert_same_with_gradients(rwkv7(q, k, v, logsigmoid(f), *pair), expected, [q, k, v, f, a, b])


def test_rwkv_7_survives_closed_gates():
    q, k, v = random(1, 1, 70, 4), random(1, 1, 70, 4), random(1, 1, 70, 3)
    g, nothing = torch.full_like(q, -1e4), torch.zeros_like(q)
    torch.testing.assert_close(rwkv7(q, k, v, g, nothing, nothing), (q * k).sum(-1, keepdim=True) * v)


def test_selective_scan_is_what_its_steps_say():
    torch.manual_seed(0)
    u, dt, B, C = random(2, 5, 70), random(2, 5, 70), random(2, 3, 70), random(2, 3, 70)
    A, D, delta = -torch.rand(5, 3, dtype=torch.float64), random(5), softplus(dt)
    h, outputs = torch.zeros(2, 5, 3, dtype=torch.float64), []
    for t in range(70):
        h = (delta[:, :, t, None] * A).exp() * h + (delta * u)[:, :, t, None] * B[:, None, :, t]
        outputs.append((h * C[:, None, :, t]).sum(-1) + D * u[:, :, t])
    assert_same_with_gradients(selective_scan(u, delta, A, B, C, D), torch.stack(outputs, -1), [u, dt, B, C, D])


def test_mamba_2_is_the_recurrence_it_is_said_to_be():
    """Against the definition with a state of its own: h = exp(dt A) h + dt B x^T, y = C h + D x."""
    torch.manual_seed(0)
    case_inputs = {
        "x": random(2, 70, 3, 5), "dt": random(2, 70, 3), "B": random(2, 70, 1, 4), "C": random(2, 70, 1, 4),
        "dt_bias": random(3), "D": random(3), "A": (-torch.rand(3, dtype=torch.float64)).requires_grad_(),
    }  # fmt: skip
    x, dt, B, C, dt_bias, D, A = case_inputs.values()
    step, h, outputs = softplus(dt + dt_bias), torch.zeros(2, 3, 4, 5, dtype=torch.float64), []
    for t in range(70):
        new = (step[:, t, :, None] * B[:, t])[..., None] * x[:, t, :, None]
        h = (step[:, t] * A).exp()[..., None, None] * h + new
        outputs.append((C[:, t, :, None] @ h).squeeze(-2) + D[:, None] * x[:, t])
    actual = mamba.ssd_oracle(case_inputs)
    assert_same_with_gradients(actual, torch.stack(outputs, 1), list(case_inputs.values()))


def test_flash_attention_and_its_oracle_see_batch_time_heads():
    q, k, v = random(2, 9, 3, 4), random(2, 9, 3, 4), random(2, 9, 3, 5)
    scores = torch.einsum("bihd,bjhd->bhij", q, k) / 2
    weights = scores.masked_fill(torch.ones(9, 9).triu(1).bool(), -torch.inf).softmax(-1)
    actual = flash_attention.oracle({"q": q, "k": k, "v": v})
    torch.testing.assert_close(actual, torch.einsum("bhij,bjhd->bihd", weights, v))


@pytest.mark.parametrize(("gate", "autograd"), [("exp", False), ("exp", True), ("sig", False)])
def test_native_oracle_is_the_reference_where_rounding_does_not_matter(monkeypatch, gate, autograd):
    from tflabench.implementations.mlstm import GATES
    from tflabench.kernels.scalar import reference

    monkeypatch.setattr(nxai, "NATIVE_ORACLE_BLOCK", 16)
    torch.manual_seed(0)
    q, k, v, f, i = random(1, 2, 40, 4), random(1, 2, 40, 4), random(1, 2, 40, 5), random(1, 2, 40), random(1, 2, 40)
    expected, _ = reference.recurrent(q, k, v, f, i, gate=GATES[gate], exact_normalizer_gradient=autograd)
    actual = nxai.native_oracle(gate, autograd, {"q": q, "k": k, "v": v, "f": f, "i": i})
    assert_same_with_gradients(actual, expected, [q, k, v, f, i])


# --- how the libraries are called: stand-ins that compute what theirs do, one step after the other

HEADS_FIRST = """
import torch
from torch.nn.functional import silu, softplus, conv1d, pad
{step_by_step}
def heads_first(x):
    return x.transpose(1, 2)
"""
FLA = {
    "gla": """
def chunk_gla(q, k, v, g, scale=None, initial_state=None, output_final_state=False):
    o = step_by_step(*map(heads_first, (q, k, v, g)), scale=q.shape[-1] ** -0.5)
    return heads_first(o), None
def fused_chunk_gla(**kwargs):
    raise NotImplementedError("deprecated")
""",
    "simple_gla": """
def chunk_simple_gla(q, k, v, g=None, g_gamma=None, scale=None):
    o = step_by_step(*map(heads_first, (q, k, v)), heads_first(g)[..., None], scale=q.shape[-1] ** -0.5)
    return heads_first(o), None
fused_chunk_simple_gla = chunk_simple_gla
""",
    "retention": """
def chunk_retention(q, k, v, scale=None):
    g = (1 - 2.0 ** (-5 - torch.arange(q.shape[2]))).log()[None, :, None, None]
    return heads_first(step_by_step(*map(heads_first, (q, k, v)), g, scale=q.shape[-1] ** -0.5)), None
fused_chunk_retention = chunk_retention
""",
    "lightning_attn": """
def chunk_lightning_attn(q, k, v, layer_idx, num_layers, scale=None):
    g = -(8 / q.shape[2] * (1 - layer_idx / num_layers)) * torch.arange(q.shape[2])[None, :, None, None]
    return heads_first(step_by_step(*map(heads_first, (q, k, v)), g, scale=q.shape[-1] ** -0.5)), None
""",
    "linear_attn": """
def chunk_linear_attn(q, k, v, scale=None, normalize=True):
    assert not normalize
    o = step_by_step(*map(heads_first, (q, k, v)), torch.zeros(1, 1, 1, 1), scale=q.shape[-1] ** -0.5)
    return heads_first(o), None
fused_chunk_linear_attn = chunk_linear_attn
""",
    "delta_rule": """
def unit(x):
    return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()
def chunk_delta_rule(q, k, v, beta, g=None, scale=None, use_qk_l2norm_in_kernel=False):
    assert use_qk_l2norm_in_kernel
    g = torch.zeros_like(v[..., :1]) if g is None else g
    o = step_by_step(*map(heads_first, (unit(q), unit(k), v, g, beta)), scale=q.shape[-1] ** -0.5)
    return heads_first(o), None
""",
    "gated_delta_rule": """
from fla.ops.delta_rule import chunk_delta_rule
def chunk_gated_delta_rule(q, k, v, g, beta, scale=None, use_qk_l2norm_in_kernel=False):
    return chunk_delta_rule(q, k, v, beta, g[..., None], scale, use_qk_l2norm_in_kernel)
""",
    "rwkv7": """
def chunk_rwkv7(r, w, k, v, a, b, scale=1.0, safe_gate=False, lower_bound=None, chunk_size=None):
    assert w.min() >= lower_bound and (safe_gate, chunk_size) == (True, 64)
    r, w, k, v, *low_rank = map(heads_first, (r, w, k, v, a, b))
    return heads_first(step_by_step(r, k, v, w, scale=scale, low_rank=low_rank)), None
""",
    "kda": """
from fla.ops.delta_rule import chunk_delta_rule
def chunk_kda(q, k, v, g, beta, scale=None, use_qk_l2norm_in_kernel=False):
    return chunk_delta_rule(q, k, v, beta, g, scale, use_qk_l2norm_in_kernel)
""",
}
ATTENTION = """
import torch
def flash_attn_func(q, k, v, causal=False):
    assert causal
    o = torch.nn.functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=True)
    return {result}
"""
SCAN = """
def selective_scan_fn(u, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False):
    assert delta_softplus and A.dtype == delta_bias.dtype == D.dtype == torch.float32
    assert B.is_contiguous() and C.is_contiguous()
    B, C, delta = B[:, 0], C[:, 0], softplus(delta + delta_bias[:, None])
    h, y = torch.zeros(*u.shape[:2], A.shape[1]), []
    for t in range(u.shape[2]):
        h = (delta[:, :, t, None] * A).exp() * h + (delta * u)[:, :, t, None] * B[:, None, :, t]
        y.append((h * C[:, None, :, t]).sum(-1) + D * u[:, :, t])
    return torch.stack(y, -1)
"""
SSD = """
def mamba_chunk_scan_combined(x, dt, A, B, C, chunk_size, D=None, z=None, dt_bias=None, dt_softplus=False):
    assert dt_softplus
    dt = softplus(dt + dt_bias)
    C, B, v = (heads_first(t.expand(*t.shape[:2], x.shape[2], -1)) for t in (C, B, dt[..., None] * x))
    return heads_first(step_by_step(C, B, v, heads_first(dt * A)[..., None])) + D[:, None] * x
def mamba_split_conv1d_scan_combined(zxbcdt, weight, bias, dt_bias, A, D, chunk_size, headdim=None, ngroups=1):
    inner, N = headdim * len(A), (weight.shape[0] - headdim * len(A)) // 2
    z, xBC, dt = zxbcdt.split([inner, inner + 2 * N, len(A)], -1)
    xBC = silu(conv1d(pad(xBC.mT, (weight.shape[1] - 1, 0)), weight[:, None], bias, groups=len(weight)).mT)
    x, B, C = xBC.split([inner, N, N], -1)
    x = x.unflatten(-1, (len(A), headdim))
    y = mamba_chunk_scan_combined(x, dt, A, B[:, :, None], C[:, :, None], chunk_size, D, None, dt_bias, True)
    return y.flatten(2) * silu(z)
"""
LIGHTNING = """
def lightning_attn_func(q, k, v, s):
    assert s.dtype == torch.float32 and s.shape == (q.shape[1], 1, 1)
    return step_by_step(q, k, v, -s[None])
"""
MLSTM = """
from tflabench.kernels.scalar import reference
from tflabench.kernels.types import MLSTM_EXP, MLSTM_SIG
def kernel(gate, exact):
    def run(q, k, v, i, f, eps=1e-6, autocast_kernel_dtype=torch.float32, **options):
        assert autocast_kernel_dtype == q.dtype and set(options) <= {"chunk_size", "normalize"}
        assert gate is MLSTM_EXP or options.pop("normalize") is False
        return reference.chunkwise(q, k, v, f, i, gate=gate, exact_normalizer_gradient=exact)[0]
    return run
"""
STAND_INS = {
    "fla/__init__.py": "",
    "fla/ops/__init__.py": "",
    **{f"fla/ops/{name}/__init__.py": HEADS_FIRST + source for name, source in FLA.items()},
    "flash_attn/__init__.py": ATTENTION.replace("{result}", "o.transpose(1, 2)"),
    "flash_attn/flash_attn_interface.py": "",
    "flash_attn_interface.py": ATTENTION.replace("{result}", "o.transpose(1, 2)"),
    "flash_attn/cute/__init__.py": ATTENTION.replace("{result}", "(o.transpose(1, 2), None)"),
    **{f"{name}/__init__.py": "" for name in ("cutlass", "quack", "tvm_ffi", "causal_conv1d")},
    "mamba_ssm/__init__.py": "import selective_scan_cuda",
    "mamba_ssm/ops/__init__.py": "",
    "mamba_ssm/ops/selective_scan_interface.py": HEADS_FIRST + SCAN,
    "mamba_ssm/ops/triton/__init__.py": "",
    "mamba_ssm/ops/triton/ssd_combined.py": HEADS_FIRST + SSD,
    "lightning_attn/__init__.py": "",
    "lightning_attn/ops/__init__.py": HEADS_FIRST + LIGHTNING,
    "mlstm_kernels/__init__.py": "",
    "mlstm_kernels/torch/__init__.py": "",
    "mlstm_kernels/torch/chunkwise.py": HEADS_FIRST + MLSTM + """
mlstm_chunkwise__limit_chunk = mlstm_chunkwise__xl_chunk = kernel(MLSTM_EXP, False)
mlstm_siging_chunkwise__xl_chunk = kernel(MLSTM_SIG, False)
mlstm_chunkwise__native_autograd, mlstm_chunkwise__native_custbw = kernel(MLSTM_EXP, True), kernel(MLSTM_EXP, False)
""",
    "mlstm_kernels/torch/parallel.py": HEADS_FIRST + MLSTM + """
mlstm_parallel__native_autograd, mlstm_parallel__native_custbw = kernel(MLSTM_EXP, True), kernel(MLSTM_EXP, False)
mlstm_siging_parallel__native_autograd = mlstm_siging_parallel__native_custbw = kernel(MLSTM_SIG, False)
""",
}  # fmt: skip
NAMES = {path.split("/")[0].removesuffix(".py") for path in STAND_INS} | {"selective_scan_cuda"}


def is_stand_in(module):
    return module.split(".")[0] in NAMES


@pytest.fixture
def stand_ins(tmp_path, monkeypatch):
    """A folder of stand-ins for every library, first on the path; its name, to take some of them away."""
    for path, source in STAND_INS.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source.replace("{step_by_step}", inspect.getsource(step_by_step)))
    monkeypatch.syspath_prepend(tmp_path)
    for module in filter(is_stand_in, list(sys.modules)):
        monkeypatch.delitem(sys.modules, module)
    yield tmp_path
    for module in filter(is_stand_in, list(sys.modules)):
        del sys.modules[module]


@pytest.mark.parametrize("pass_", ["fw", "fwbw"])
@pytest.mark.parametrize("name", [impl.name for impl in SEQUENCES if impl.name != "fla_gla_fused"])
def test_is_called_as_the_library_wants_it(stand_ins, name, pass_):
    """Argument order, layout, scale, and which gradients there are: what comes out agrees with the oracle."""
    if name == "mamba":
        (stand_ins / "selective_scan_cuda.py").write_text("")
    impl = BY_NAME[name]
    problem = PROBLEM.with_(pass_=pass_, chunk_size=16 if impl.chunked else None, heads=2)
    if name.startswith("flash_attention"):
        problem = problem.with_(d_hv=16)
    case = impl.build(problem, CPU)
    assert case.inputs
    output = case.forward()
    assert output.dtype == torch.float32
    verdict = verify(case, torch.float32, torch.randn_like(output) if pass_ == "fwbw" else None, budget_s=2)
    assert max(error.error for error in verdict.errors) < 2e-5
    differentiated = {f"d{key}" for key, tensor in case.inputs.items() if tensor.requires_grad}
    of_one_slice = {f"d{key}" for key, tensor in case.inputs.items() if tensor.ndim == 1}
    assert {error.name for error in verdict.errors} == {"forward"} | differentiated - of_one_slice
    assert case.details["kernel"]


def test_parameters_get_gradients_too(stand_ins):
    case = BY_NAME["mamba2"].build(PROBLEM.with_(batch=1), CPU)
    verdict = verify(case, torch.float32, torch.randn_like(case.forward()), budget_s=2)
    assert {"dA", "dD", "ddt_bias"} <= {error.name for error in verdict.errors}
    assert verdict.rel_error < 1e-5


def test_mamba_2_does_without_the_compiled_scan(stand_ins):
    assert BY_NAME["mamba2"].refuses(PROBLEM, "cuda") is None
    assert "selective_scan_cuda is not installed" in (BY_NAME["mamba"].refuses(PROBLEM, "cuda") or "")
    with pytest.raises(ImportError, match="selective_scan_cuda"):
        importlib.import_module("mamba_ssm")
    assert BY_NAME["mamba2"].build(PROBLEM, CPU).forward().shape == (2, 70, 3, 24)


def test_a_decay_gradient_that_is_summed_is_the_decay_gradient(stand_ins):
    case = BY_NAME["fla_simple_gla_fused"].build(PROBLEM.with_(dtype="float64"), CPU)
    results = differentiate(case.oracle, case.inputs, torch.randn(2, 70, 3, 24, dtype=torch.float64))
    assert case.as_kernels_do
    sums = case.as_kernels_do(case.inputs, results)
    assert list(sums) == ["dg"]
    torch.testing.assert_close(suffix_sum(sums["dg"].terms, 1) * sums["dg"].scale, results["dg"])


@pytest.mark.parametrize("name", ["fla_mlstm_sig", "fla_mlstm_sig_fused"])
def test_simple_gla_is_mlstm_sig_to_rounding(stand_ins, name):
    case = BY_NAME[name].build(PROBLEM.with_(dtype="float64"), CPU)
    grad = torch.randn(2, 70, 3, 24, dtype=torch.float64)
    actual = differentiate(lambda _: case.forward(), case.inputs, grad)
    expected = differentiate(case.oracle, case.inputs, grad)
    assert set(actual) == {"forward", "dq", "dk", "dv", "di", "df"}
    for result, of_oracle in zip(actual.values(), expected.values(), strict=True):
        torch.testing.assert_close(result, of_oracle, rtol=1e-12, atol=1e-12)


def test_a_function_that_fla_gave_up_is_unsupported(stand_ins):
    with pytest.raises(Unsupported, match="this version of fla has no fused_chunk_gla any more"):
        BY_NAME["fla_gla_fused"].build(PROBLEM, CPU)


def test_the_decays_of_a_slice_are_those_of_its_heads(stand_ins):
    """A wrong head's decay would pass unnoticed if both slices were taken for the first head."""
    case = BY_NAME["fla_retention"].build(PROBLEM.with_(batch=1, pass_="fw"), CPU)
    case.inputs["log_decay"] = case.inputs["log_decay"].flip(0)
    assert verify(case, torch.float32, None, budget_s=2).reason


# --- why they refuse


@pytest.mark.parametrize("impl", BASELINES, ids=lambda impl: impl.name)
def test_a_missing_package_is_named_with_what_installs_it(monkeypatch, impl):
    monkeypatch.setattr(packages, "installed", lambda module: False)
    reason = impl.refuses(PROBLEM.with_(dtype="bfloat16"), "cuda")
    assert reason
    assert re.search(r"^[\w.]+ is not installed: (pip install|MAMBA_FORCE_BUILD|build)", reason)


@pytest.mark.parametrize("impl", [impl for impl in BASELINES if "native" not in impl.name], ids=lambda impl: impl.name)
def test_a_cpu_is_refused(impl):
    assert impl.refuses(PROBLEM, "cpu") == "its kernels need a CUDA GPU"


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("flash_attention_2", {"d_hv": 32}, "needs equal head dimensions, not d_qk 16 and d_hv 32"),
        ("flash_attention_3", {"dtype": "float32", "d_hv": 16}, "takes bfloat16 and float16, not float32"),
        ("flash_attention_4", {"d_hv": 36}, "takes a d_hv that is a multiple of 8 up to 256, not 36"),
        ("fla_kda", {"d_qk": 512}, "takes a d_qk up to 256, not 512"),
        ("fla_gla", {"pass_": "decode", "seq_len": 1}, "only whole sequences are measured, not single steps"),
        ("lightning_attention_2", {"d_qk": 96}, "takes a d_qk that is a power of two from 32, not 96"),
        ("mamba2", {"d_qk": 512}, "takes states (d_qk) up to 256, not 512"),
        ("nxai_exp_limit", {"chunk_size": 128}, "limit_chunk takes chunks of at most 64 steps, not 128"),
        ("nxai_sig_xl", {"d_qk": 24}, "needs d_qk to be a power of two from 16, not 24"),
        ("nxai_exp_xl", {"seq_len": 100}, "needs a sequence length that is a multiple of the chunk size 128, not 100"),
    ],
)
def test_refuses_with_a_reason(monkeypatch, name, changes, reason):
    monkeypatch.setattr(nxai, "installed_version", lambda name: None)
    monkeypatch.setattr(packages, "installed", lambda module: True)
    problem = PROBLEM.with_(**{"seq_len": 512, "dtype": "bfloat16", "d_hv": 64, **changes})
    assert BY_NAME[name].refuses(problem, "cuda") == reason


@pytest.mark.parametrize(
    ("capability", "triton_version", "tilelang", "refused"),
    [
        ((9, 0), "3.6.0", False, True),
        ((9, 0), "3.4.0", False, True),
        ((9, 0), "3.7.1", False, False),
        ((9, 0), "3.3.1", False, False),
        ((9, 0), "3.6.0", True, False),
        ((10, 0), "3.6.0", False, False),
    ],
)
def test_fla_on_hopper_needs_a_triton_that_does_not_miscompile(
    monkeypatch, capability, triton_version, tilelang, refused
):
    import triton

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(triton, "__version__", triton_version)
    monkeypatch.setattr(fla_ops, "installed", lambda module: tilelang)
    with pytest.raises(Unsupported, match=r"Triton 3.*: needs Triton >= 3\.7\.1") if refused else nullcontext():
        fla_ops.require_sound_triton(torch.device("cuda"))


@pytest.mark.parametrize(
    ("version", "exp", "sig"),
    [("3.6.0", "aborts on this kernel", None), ("3.7.1", None, None), ("3.9.0", "has no more", "has no more")],
)
def test_mlstm_kernels_says_which_triton_it_needs(monkeypatch, version, exp, sig):
    from tflabench.implementations import packages as versions

    monkeypatch.setattr(packages, "installed", lambda module: True)
    monkeypatch.setattr(nxai, "installed_version", lambda name: version)
    for name, reason in (("nxai_exp_xl", exp), ("nxai_sig_xl", sig)):
        said = BY_NAME[name].refuses(PROBLEM.with_(seq_len=512, d_qk=64, d_hv=64, dtype="bfloat16"), "cuda") or ""
        assert (reason or "") in said
        assert said.endswith("pip install triton==3.7.1" if reason else "")
        assert bool(said) is bool(reason)
    with versions.taken_as_installed():
        assert versions.installed_version("triton") is None


@pytest.mark.parametrize(
    ("name", "capability", "wanted"),
    [
        ("cudnn_kda", (8, 0), "9.x, not 8.0"),
        ("cudnn_kda", (10, 0), "9.x, not 10.0"),
        ("fla_gla", (7, 5), "8.0 or above"),
    ],
)
def test_a_gpu_without_kernels_is_named_before_anything_is_built(monkeypatch, name, capability, wanted):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    worker = Worker("cuda", lambda answer: None)
    worker.device = torch.device("cuda")
    problem = PROBLEM.with_(d_qk=128, d_hv=128, dtype="bfloat16")
    with taken_as_installed(), pytest.raises(Unsupported, match=f"compute capability {wanted}"):
        worker._ready(name, problem)


def test_a_module_inside_a_package_is_found_without_importing_it(stand_ins):
    assert packages.installed("mamba_ssm.ops.triton.ssd_combined")
    assert not packages.installed("mamba_ssm.ops.triton.nothing")
    assert not packages.installed("nothing.at.all")
    assert not packages.installed("flash_attn_interface.deeper")
    assert not any(is_stand_in(module) for module in sys.modules)


def test_what_a_package_imports_besides_waits_until_it_is_asked_for(stand_ins):
    (stand_ins / "fla" / "__init__.py").write_text("import fla.ops\nlayers = 'slow to import'")
    (stand_ins / "fla" / "ops" / "__init__.py").write_text("from .gla import chunk_gla")
    BY_NAME["fla_gla"].build(PROBLEM, CPU)
    fla = importlib.import_module("fla")
    assert fla.__version__ == (package_version("flash-linear-attention") or "0")
    assert "layers" not in vars(fla)
    assert "chunk_gla" not in vars(fla.ops)
    assert not hasattr(fla, "__wrapped__")
    assert "layers" not in vars(fla)
    assert fla.ops.chunk_gla is sys.modules["fla.ops.gla"].chunk_gla
    assert fla.layers == "slow to import"
    with pytest.raises(AttributeError, match="nothing"):
        _ = fla.nothing


def test_flash_attention_4_alone_is_not_flash_attention_2(stand_ins):
    (stand_ins / "flash_attn" / "flash_attn_interface.py").unlink()
    problem = PROBLEM.with_(dtype="bfloat16", d_hv=16)
    assert BY_NAME["flash_attention_4"].refuses(problem, "cuda") is None
    assert "nvcc" in (BY_NAME["flash_attention_2"].refuses(problem, "cuda") or "")
