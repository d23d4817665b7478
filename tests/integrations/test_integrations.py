"""Models of other libraries compute the same before, inside and after `install`, and say who computed.

Models are tiny, have random weights, and run on the CPU in float32, where ours are plain PyTorch. NX-AI's packages lie
in a folder of their own, `.xlstm-2.0.6`, where `make test` unpacks them: without it, tests that need them are skipped.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from functools import partial
from importlib import metadata
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo  # before tests fork
import torch.distributed as dist
from repository import ROOT
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing.spawn import start_processes
from torch.nn.parallel import DistributedDataParallel
from xlstm_models import build, hugging_face, off, tokens, with_gates

from tflabench import ops
from tflabench.integrations import IntegrationError, core, fla, install, mamba_ssm, transformers

XLSTM = ROOT / os.environ.get("TFLABENCH_XLSTM", ".xlstm-2.0.6")
WHY = f"no packages xlstm and mlstm_kernels in {XLSTM}: `make test` puts them there"
needs_xlstm = pytest.mark.skipif(not (XLSTM / "xlstm").is_dir(), reason=WHY)

SAME, SAME_GRADIENT = 1e-5, 1e-4
# The native path differentiates the normaliser, ours take it for a constant. The norm behind it cancels that but for
# its epsilon, which shows in one gradient alone, that of the bias of the input gates: it scales h as a whole, and so is
# small. In float64 it is off by 3.8e-4 of itself, everything else by 2e-6.
NORMALISER_IN_GRADIENT, SAME_BIAS = "igate_preact.bias", 1e-3


@pytest.fixture(autouse=True)
def _undone() -> Iterator[None]:
    """Uninstall what a failed test leaves, so that one failure is one."""
    torch.manual_seed(0)
    yield
    for handle in reversed(core._installed[:]):
        handle.uninstall()


@pytest.fixture(scope="module")
def nxai() -> Iterator[None]:
    """Put NX-AI's packages on the path; other tests of this process find none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(XLSTM)
        yield
    for name in list(sys.modules):
        if name.split(".")[0] in ("xlstm", "mlstm_kernels"):
            del sys.modules[name]


@pytest.fixture(scope="module", params=[False, pytest.param(True, marks=needs_xlstm)], ids=["alone", "with xlstm"])
def hf(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The module of transformers' xLSTM, without the package xlstm and with it."""
    if request.param:
        request.getfixturevalue("nxai")
    with hugging_face(request.param) as modeling:
        yield modeling


@pytest.fixture(scope="module")
def own() -> Iterator[Any]:
    """The module of transformers' xLSTM without the package xlstm."""
    with hugging_face(external=False) as modeling:
        yield modeling


def library(module: str) -> Any:
    return importlib.import_module(module)


def everything(model: Any, T: int = 48) -> dict[str, Any]:
    """Return logits, loss, gradients, and what is generated greedily behind 13 tokens."""
    model.train()
    model.zero_grad()
    out = model(tokens(T), labels=tokens(T), use_cache=False)
    out.loss.backward()
    gradients = {name: x.grad.clone() for name, x in model.named_parameters()}
    model.eval()
    with torch.no_grad():
        generated = model.generate(tokens(13), max_new_tokens=8, do_sample=False)
    return {"logits": out.logits.detach(), "loss": out.loss.detach(), "generated": generated} | gradients


def assert_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        if name == "generated":
            assert found[name].tolist() == value.tolist()
        elif name in ("logits", "loss"):
            assert (found[name] - value).abs().max() <= SAME, name
        else:
            allowed = SAME_BIAS if name.endswith(NORMALISER_IN_GRADIENT) else SAME_GRADIENT
            assert off(found[name], value) <= allowed, f"{name}: {off(found[name], value):.1e}"


def test_a_model_computes_the_same_before_inside_and_after(hf):
    before = build(hf)
    wanted = everything(before)
    with install("transformers") as handle:
        assert_same(everything(before), wanted)
        assert handle.calls == 2 + 8 * 2  # a pass and eight tokens through two blocks
        inside = build(hf)
        assert_same(everything(inside), wanted)
        assert handle.calls == 2 * (2 + 8 * 2)
    for model in (before, inside):
        assert_same(everything(model), wanted)
    assert handle.calls == 2 * (2 + 8 * 2)
    of_xlstm = [name for name in handle.replaced if "Backend" in name]
    assert len(of_xlstm) == 2
    assert all(name.endswith(("._train_fn", "._inference_fn")) for name in of_xlstm)


@pytest.mark.parametrize(
    ("model", "name", "value_heads"),
    [("qwen3_next", "Qwen3Next", 2), ("olmo_hybrid", "OlmoHybrid", 1), ("kimi_linear", "KimiLinear", 1)],
)
def test_models_with_the_delta_rule_compute_the_same(model, name, value_heads, monkeypatch):
    """Qwen3-Next, whose heads of q and k serve two of v, Olmo Hybrid, whose step sizes are up to 2, and Kimi Linear."""
    modeling: Any = library(f"transformers.models.{model}.modeling_{model}")
    sizes = {
        "vocab_size": 97, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 2, "head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 2 * value_heads,
        "linear_key_head_dim": 16, "linear_value_head_dim": 32, "num_experts": 2, "num_experts_per_tok": 1,
        "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "pad_token_id": 0, "eos_token_id": 1,
        "bos_token_id": 2, "layer_types": ["linear_attention", "full_attention"], "linear_num_heads": 2,
        "linear_head_dim": 16, "num_local_experts": 2, "n_group": 1, "kv_lora_rank": 16, "qk_rope_head_dim": 16,
        "qk_nope_head_dim": 16, "v_head_dim": 16, "mlp_layer_types": ["dense", "dense"],
    }  # fmt: skip
    network = getattr(modeling, f"{name}ForCausalLM")(getattr(modeling, f"{name}Config")(**sizes))
    for key, x in network.named_parameters():
        if key.endswith("A_log"):  # states that last, so that gates have gradients
            torch.nn.init.constant_(x, -3)
    with monkeypatch.context() as plain:  # fla's kernels, which stand there where fla is installed, need a GPU
        for name in transformers.DELTA_MODELS[model][0][1:]:
            plain.setattr(modeling, name, getattr(modeling, name).__wrapped__)
        wanted = everything(network)
    rule, strides = transformers.DELTA_MODELS[model][0][0], set()
    compute = getattr(ops, rule)
    monkeypatch.setattr(ops, rule, lambda q, *more, **named: strides.add(q.stride(-1)) or compute(q, *more, **named))
    with install("transformers") as handle:
        found = everything(network)
        assert handle.calls == 1 + 8  # a pass and eight tokens through one layer
    assert strides == {1}  # though a convolution leaves time innermost
    tiny = {name for name, x in wanted.items() if name.endswith("weight") and x.norm() < 1e-8}  # of one expert's gate
    assert_same(*({name: x for name, x in each.items() if name not in tiny} for each in (found, wanted)))


def test_training_takes_any_length(hf):
    """The native path refuses lengths that are no multiple of its chunk size; its inference mode takes them.

    It also fails where a cache is written in place before backward. Models are float64: in float32 one of 8,730 logits
    is off by 1.05e-5 on some CPUs.
    """
    model = build(hf, mode="train", norm_reduction_force_float32=False).double()
    with pytest.raises((ValueError, AssertionError, RuntimeError)):
        model(tokens(45), use_cache=False)
    exact = build(hf, mode="inference", norm_reduction_force_float32=False).double()
    wanted = exact(tokens(45), use_cache=False).logits
    with install("transformers"):
        found = model(tokens(45), labels=tokens(45), use_cache=False)
        found.loss.backward()
        model.train()(tokens(45), labels=tokens(45), use_cache=True).loss.backward()
    torch.testing.assert_close(found.logits, wanted, atol=SAME, rtol=0)
    assert all(x.grad.isfinite().all() for x in model.parameters())


@torch.no_grad()
def test_states_are_the_same_and_go_from_one_to_the_other(hf):
    """A prefill of 21 tokens, a step, and 6 tokens more, by either; then the native path continues from our state."""
    model, pieces = build(hf).eval(), tokens(30).split([21, 1, 6, 2], dim=1)

    def run(cache: Any, pieces: Any) -> tuple[list[Tensor], Any]:
        logits = []
        for piece in pieces:
            name = "cache" if hasattr(hf.xLSTMOutput, "cache") else "cache_params"
            out = model(piece, use_cache=True, **({name: cache} if cache is not None else {}))
            logits.append(out.logits)
            cache = getattr(out, name)
        return logits, cache

    wanted, _ = run(None, pieces)
    _, native = run(None, pieces[:-1])
    with install("transformers"):
        found, cache = run(None, pieces[:-1])
    found += run(cache, pieces[-1:])[0]
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, atol=SAME, rtol=0)
    with install("transformers"):
        _, cache = run(None, pieces[:-1])
    for layer, (C, n, m) in cache.rnn_state.items():
        C_, n_, m_ = native.rnn_state[layer]
        assert (C.shape, n.shape, m.shape) == (C_.shape, n_.shape, m_.shape)
        torch.testing.assert_close(m.exp()[..., None] * C, m_.exp()[..., None] * C_, atol=SAME, rtol=1e-4)
        torch.testing.assert_close(m.exp() * n, m_.exp() * n_, atol=SAME, rtol=1e-4)


def test_a_left_padded_batch_is_what_the_model_makes_of_it(own):
    """It reads padding like any token, and so it stays: ours change nothing of the model's own conventions."""
    model = build(own).eval()
    ids, mask = tokens(14), torch.ones(2, 14, dtype=torch.long)
    ids[0, :5], mask[0, :5] = 1, 0
    more = {"attention_mask": mask, "max_new_tokens": 6, "do_sample": False}
    wanted = model.generate(ids, **more)
    with install("transformers") as handle:
        assert model.generate(ids, **more).tolist() == wanted.tolist()
    assert handle.calls == 6 * 2


def test_gradient_checkpointing_and_autocast(own):
    with install("transformers") as handle:
        model = build(own, mode="train").train()
        wanted = everything(model)
        calls = handle.calls
        model.gradient_checkpointing_enable()
        found = everything(model)
        assert handle.calls - calls == calls + 2  # backward computes both blocks again
        assert_same(found, wanted)
        model.gradient_checkpointing_disable()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model.train()(tokens(45), labels=tokens(45), use_cache=False).loss
        loss.backward()
    assert loss.dtype == torch.float32
    assert abs(loss.item() - wanted["loss"].item()) < 0.3  # other tokens: only that it is a loss
    with torch.autocast("cpu", torch.bfloat16):
        native = model(tokens(48), labels=tokens(48), use_cache=False).loss
        with install("transformers"):
            ours = model(tokens(48), labels=tokens(48), use_cache=False).loss
    assert abs(ours.item() - native.item()) < 1e-2


@torch.no_grad()
def test_bfloat16_where_the_native_path_breaks(own):
    """Without a cache its states are float32, and it multiplies them by bfloat16."""
    model = build(own).bfloat16().eval()
    with pytest.raises(RuntimeError, match=r"(?i)expected"):
        model(tokens(40), use_cache=False)
    with install("transformers"):
        for cached in (False, True):
            logits = model(tokens(40), use_cache=cached).logits
            wanted = build(own).eval()(tokens(40), use_cache=cached).logits
            assert off(logits, wanted) < 0.05


def test_compiled_models_follow(own):
    """What was compiled before `install` is compiled again, with ours in one graph; and after it, without."""
    model = build(own, blocks=1, mode="train")
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    wanted = compiled(tokens(16), use_cache=False).logits
    with install("transformers") as handle:
        found = compiled(tokens(16), use_cache=False).logits
        assert handle.calls == 1
        assert compiled(tokens(16), use_cache=False).logits.equal(found)
        assert handle.calls == 1  # the graph is replayed
    torch.testing.assert_close(found, wanted, atol=SAME, rtol=0)
    assert compiled(tokens(16), use_cache=False).logits.equal(wanted)
    assert handle.calls == 1


def on_rank(number: int, store: str, modeling: Any) -> None:
    """Compare gradients of one of two rows, by DDP and by FSDP2, with those of one process that has both."""

    def gradients(model: Any, rows: Tensor) -> dict[str, Tensor]:
        model.train()(rows, labels=rows, use_cache=False).loss.backward()
        return {n: getattr(x.grad, "full_tensor", lambda g=x.grad: g)() for n, x in model.named_parameters()}

    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=number, world_size=2, init_method=f"file://{store}")
    with install("transformers") as handle:
        wanted = gradients(build(modeling, mode="train"), tokens(21))
        calls, mine = handle.calls, tokens(21)[number : number + 1]
        sharded, mesh = build(modeling, mode="train"), init_device_mesh("cpu", (2,))
        for part in (*sharded.backbone.blocks, sharded):
            fully_shard(part, mesh=mesh)
        for model in (DistributedDataParallel(build(modeling, mode="train")), sharded):
            for name, x in gradients(model, mine).items():
                assert off(x, wanted[name.removeprefix("module.")]) < 1e-4, name
        assert handle.calls == 3 * calls > 0
    dist.destroy_process_group()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_two_processes_with_ddp_and_fsdp2(own, tmp_path):
    start_processes(on_rank, (str(tmp_path / "store"), own), 2, start_method="fork")


# --- xlstm and mlstm_kernels


@needs_xlstm
@pytest.mark.usefixtures("nxai")
def test_xlstm_large_is_the_same_before_inside_and_after():
    large = library("xlstm.xlstm_large.model")
    native = {"chunkwise_kernel": "chunkwise--native_autograd", "sequence_kernel": "native_sequence__native"}
    shape = {"embedding_dim": 128, "num_heads": 2, "num_blocks": 2, "vocab_size": 97, "chunk_size": 16}

    def make() -> Any:
        torch.manual_seed(0)
        more = {"step_kernel": "native", "mode": "inference", "return_last_states": True}
        return with_gates(large.xLSTMLarge(large.xLSTMLargeConfig(**shape, **native, **more)))

    def run(model: Any) -> dict[str, Any]:
        model.zero_grad()
        logits, _ = model(tokens(45))
        logits.logsumexp(-1).mean().backward()
        gradients = {name: x.grad.clone() for name, x in model.named_parameters()}
        return {"logits": logits.detach(), "generated": model.generate(tokens(13), 6)[0]} | gradients

    before = make()
    wanted = run(before)
    with install("xlstm") as handle:
        inside = make()
        assert_same(run(before), wanted)
        assert_same(run(inside), wanted)
        assert handle.calls == 2 * 2 * (1 + 6)
        assert "sLSTMCell" in handle.left
    for model in (before, inside):
        assert_same(run(model), wanted)


@needs_xlstm
@pytest.mark.usefixtures("nxai")
def test_the_cell_of_xlstm_computes_the_same_and_keeps_a_function_of_ones_own():
    cells = library("xlstm.blocks.mlstm.cell")
    cell = cells.mLSTMCell(cells.mLSTMCellConfig(context_length=24, embedding_dim=32, num_heads=2))
    q, k, v = (torch.randn(2, 24, 32, requires_grad=True) for _ in range(3))
    weights = torch.randn(2, 24, 32)

    def run() -> list[Tensor]:
        h = cell(q, k, v)
        gradients = torch.autograd.grad((h * weights).sum(), (q, k, v))
        state, steps = None, []
        with torch.no_grad():
            for t in range(5):
                h_t, state = cell.step(*(x[:, t : t + 1] for x in (q, k, v)), mlstm_state=state)
                steps.append(h_t)
        assert state is not None
        C, n, m = state
        assert (C.shape, n.shape, m.shape) == ((2, 2, 16, 16), (2, 2, 16, 1), (2, 2, 1, 1))
        return [h.detach(), torch.cat(steps, 1), m.exp() * C, m.exp() * n, *gradients]

    wanted = run()
    with install("xlstm") as handle:
        found = run()
        assert handle.calls == 1 + 5
        kept = cell.backend_fn
        cell.backend_fn = lambda **named: torch.ones_like(named["queries"])
        assert (cell(q, k, v) == 0).all()  # the norm of ones
        del cell.__dict__["backend_fn"]
        cell.backend_fn = cells.parallel_stabilized_simple
        assert cell.backend_fn is kept
        assert handle.calls == 1 + 5 + 2  # what was looked up twice just now
    for a, b in zip(found, wanted, strict=True):
        assert off(a, b) < SAME_BIAS
    for a, b in zip(run(), wanted, strict=True):
        assert a.equal(b)


@needs_xlstm
@pytest.mark.usefixtures("nxai")
def test_the_snippet_of_the_page_runs():
    text = (ROOT / "docs" / "use-the-kernels.md").read_text()
    code = text.split("<!-- needs xlstm -->\n```python\n")[1].split("```")[0]
    names: dict[str, Any] = {"install": install, "tokens": tokens(45).clamp(max=63)}
    exec(code, names)
    assert names["logits"].shape == (2, 45, 64)
    assert names["text"].shape == (2, 5)
    assert names["handle"].calls == 2 * (1 + 5)


def mlstm_inputs(T: int = 32) -> dict[str, Tensor]:
    q, k = (torch.randn(2, 3, T, 16) for _ in range(2))
    gates = {"i": torch.randn(2, 3, T), "f": torch.randn(2, 3, T) + 3}
    return {"q": q, "k": k, "v": torch.randn(2, 3, T, 32)} | gates


@needs_xlstm
@pytest.mark.usefixtures("nxai")
def test_the_registries_of_mlstm_kernels_have_ours():
    kernels = library("mlstm_kernels.torch")
    get_mlstm_kernel, get_mlstm_step_kernel = kernels.get_mlstm_kernel, kernels.get_mlstm_step_kernel
    names = kernels.get_available_mlstm_kernels()
    native = get_mlstm_kernel("chunkwise--native_autograd")
    native_sig = get_mlstm_kernel("parallel--native_siging_autograd")
    x = mlstm_inputs()
    with install("mlstm_kernels") as handle:
        assert {"chunkwise--tflabench", "chunkwise--tflabench_siging", "step--tflabench"} <= set(handle.replaced)
        wanted, (C, n, m) = native(**x, return_last_states=True, chunk_size=16)
        for name in ("chunkwise--tflabench", "chunkwise--triton_xl_chunk", "chunkwise--triton_limit_chunk"):
            h, (C_, n_, m_) = get_mlstm_kernel(name)(**x, return_last_states=True, chunk_size=16, eps=1e-6)
            torch.testing.assert_close(h, wanted, atol=SAME, rtol=SAME)
            torch.testing.assert_close(m_.exp()[..., None] * C_, m.exp()[..., None] * C, atol=SAME, rtol=1e-4)
            torch.testing.assert_close(m_.exp() * n_, m.exp() * n, atol=SAME, rtol=1e-4)
        for normalize in (True, False):
            kernel = get_mlstm_kernel("chunkwise--tflabench_siging")
            h, (C_, n_) = kernel(**x, normalize=normalize, return_last_states=True, dtype_state=torch.bfloat16)
            torch.testing.assert_close(h, native_sig(**x, normalize=normalize), atol=SAME, rtol=SAME)
            assert (n_ is not None) == normalize
            assert C_.dtype == torch.bfloat16
        states = {"c_initial": C, "n_initial": n, "m_initial": m}
        sequence = kernels.get_mlstm_sequence_kernel("tflabench")
        h, _ = sequence(**x, **states, return_last_states=True, dtype_state=torch.float32)
        torch.testing.assert_close(h, native(**x, **states, chunk_size=16), atol=SAME, rtol=SAME)
        now = {name: y[:, :, 0] if y.dim() == 4 else y[:, :, :1] for name, y in x.items()}
        found = get_mlstm_step_kernel("tflabench")(**now, c=C, n=n, m=m)
        want = get_mlstm_step_kernel("native")(**now, c=C, n=n, m=m)
        torch.testing.assert_close(found[0], want[0], atol=SAME, rtol=SAME)
        served, kept = handle.calls, get_mlstm_kernel("chunkwise--triton_xl_chunk")
        assert served == 3 + 2 + 1 + 1
        assert "chunkwise--native_autograd" in handle.left
    assert kernels.get_available_mlstm_kernels() == names
    assert kept is not get_mlstm_kernel("chunkwise--triton_xl_chunk")
    with pytest.raises(ValueError, match="Unknown"):
        get_mlstm_kernel("chunkwise--tflabench")


@needs_xlstm
@pytest.mark.usefixtures("nxai")
def test_a_backend_of_mlstm_kernels_computes_with_ours_whatever_it_names():
    module = library("mlstm_kernels.torch.backend_module")
    x = mlstm_inputs()
    for name, more in (
        ("parallel--native_autograd", {}),
        ("parallel--native_siging_autograd", {"normalize_siging": False}),
        ("parallel--native_siging_autograd", {"normalize_siging": True}),
    ):
        backend = module.mLSTMBackend(
            module.mLSTMBackendConfig(chunkwise_kernel=name, return_last_states=False, **more)
        )
        wanted = backend(**x)
        with install("mlstm_kernels") as handle:
            torch.testing.assert_close(backend(**x), wanted, atol=SAME, rtol=SAME)
            assert handle.calls == 1
    backend = module.mLSTMBackend(module.mLSTMBackendConfig(eps=1e-2, chunk_size=16))
    wanted, _ = backend(**x)
    with install("mlstm_kernels") as handle:
        assert backend(**x)[0].equal(wanted)  # an eps that ours do not have: the library's own
        assert handle.calls == 0
        assert "eps" in handle.left["mLSTMBackend"]


# --- fla and mamba-ssm


def test_functions_of_fla_are_ours_wherever_they_were_imported():
    fla = pytest.importorskip("fla.ops", reason="flash-linear-attention is not installed")
    layer, naive = library("fla.layers.simple_gla"), library("fla.ops.simple_gla.naive")
    layers, recurrent_gla = library("fla.layers.gla"), library("fla.ops.gla.naive").naive_recurrent_gla

    original = fla.chunk_simple_gla
    user: Any = ModuleType("user_of_fla")
    user.chunk_simple_gla = original
    q, k = (torch.randn(2, 45, 2, 16) for _ in range(2))
    v, g = torch.randn(2, 45, 2, 32), -torch.rand(2, 45, 2)
    start = torch.randn(2, 2, 16, 32).bfloat16()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "user_of_fla", user)
        with install("fla") as handle:
            assert fla.chunk_simple_gla is layer.chunk_simple_gla is user.chunk_simple_gla is not original
            o, state = user.chunk_simple_gla(q, k, v, g, initial_state=start, output_final_state=True)
            more: dict[str, Any] = {"output_final_state": True, "state_v_first": True}
            _, flipped = layer.chunk_simple_gla(q, k, v, g, initial_state=start.mT, **more)
            wanted, last = naive.naive_chunk_simple_gla(q, k, v, g, start.float(), output_final_state=True)
            torch.testing.assert_close(o, wanted, atol=SAME, rtol=1e-4)
            torch.testing.assert_close(state, last, atol=SAME, rtol=1e-4)
            torch.testing.assert_close(flipped.mT, last, atol=SAME, rtol=1e-4)
            decays = -torch.rand(2, 45, 2, 16)
            o, state = fla.chunk_gla(q, k, v, decays, initial_state=start, output_final_state=True)
            wanted, last = recurrent_gla(q, k, v, decays, start.float(), output_final_state=True)
            torch.testing.assert_close(o, wanted, atol=SAME, rtol=1e-4)
            torch.testing.assert_close(state, last, atol=SAME, rtol=1e-4)
            assert layers.chunk_gla is fla.chunk_gla
            fla.chunk_retention(q, k, v)
            fla.chunk_lightning_attn(q, k, v, 0, 4)
            fla.fused_chunk_retention(q, k, v)
            naive_delta = library("fla.ops.gated_delta_rule.naive").naive_recurrent_gated_delta_rule
            delta = library("fla.layers.gated_deltanet").chunk_gated_delta_rule
            unit, beta = torch.nn.functional.normalize(k, dim=-1), torch.rand(2, 45, 2)
            o, state = delta(q, unit, v, g=g, beta=beta, initial_state=start, output_final_state=True)
            wanted, last = naive_delta(q, unit, v, beta, g, initial_state=start.float(), output_final_state=True)
            torch.testing.assert_close(o, wanted, atol=SAME, rtol=1e-4)
            torch.testing.assert_close(state, last, atol=SAME, rtol=1e-4)
            naive_kda, kimi = library("fla.ops.kda.naive").naive_recurrent_kda, library("fla.layers.kda").chunk_kda
            o, state = kimi(q, unit, v, g=decays, beta=beta, initial_state=start, output_final_state=True)
            wanted, last = naive_kda(q, unit, v, decays, beta, initial_state=start.float(), output_final_state=True)
            torch.testing.assert_close(o, wanted, atol=SAME, rtol=1e-4)
            torch.testing.assert_close(state, last, atol=SAME, rtol=1e-4)
            assert handle.calls == 8
            with pytest.raises(Exception, match=r"."):  # its own, which needs a GPU
                fla.chunk_simple_gla(q, k, v, g=g, g_gamma=-torch.rand(2))
            assert handle.calls == 8
            assert handle.left["chunk_simple_gla, in some calls"] == "it has both g and g_gamma"
            with pytest.raises(Exception, match=r"."):
                fla.chunk_gla(q[..., :12], k[..., :12], v, g=decays[..., :12])
            assert handle.calls == 8
            assert "multiple of 16" in handle.left["chunk_gla, in some calls"]
            kept = fla.chunk_simple_gla
        assert fla.chunk_simple_gla is layer.chunk_simple_gla is user.chunk_simple_gla is original
    with pytest.raises(Exception, match=r"."):  # who kept it has fla's again
        kept(q, k, v, g)
    assert handle.calls == 8
    assert "fused_recurrent_simple_gla" in handle.left


def test_mamba2_computes_the_same_in_both_of_its_ways(monkeypatch):
    """The layer as one function, and in its parts, with a state; mamba-ssm's own need a GPU."""
    try:
        metadata.version("mamba-ssm")
    except metadata.PackageNotFoundError:
        pytest.skip("mamba-ssm is not installed")
    monkeypatch.setitem(sys.modules, "selective_scan_cuda", SimpleNamespace())  # Mamba 1's, compiled
    mamba2 = library("mamba_ssm.modules.mamba2")
    original = mamba2.mamba_chunk_scan_combined
    with install("mamba_ssm") as handle:
        assert mamba2.mamba_chunk_scan_combined is not original
        for more in ({"ngroups": 2, "norm_before_gate": True}, {"rmsnorm": False, "D_has_hdim": True}, {"d_ssm": 32}):
            layer = mamba2.Mamba2(32, d_state=16, headdim=16, chunk_size=32, use_mem_eff_path=True, **more)
            layer.norm = gated_norm_of(layer) if layer.rmsnorm else None
            u = torch.randn(2, 45, 32)
            whole = layer(u)
            layer.use_mem_eff_path = False
            torch.testing.assert_close(whole, layer(u), atol=SAME, rtol=0)
        assert handle.calls == 6
    assert mamba2.mamba_chunk_scan_combined is original


def gated_norm_of(layer: Any) -> Any:
    """Return the norm of the layer in plain PyTorch, with its weight: its own is a kernel."""
    rms_norm_ref = library("mamba_ssm.ops.triton.layernorm_gated").rms_norm_ref
    own, before_gate = layer.norm, layer.norm_before_gate

    class Norm(torch.nn.Module):
        weight, eps = own.weight, own.eps

        def forward(self, x: Tensor, z: Tensor) -> Tensor:
            more = {"group_size": own.group_size, "norm_before_gate": before_gate}
            return rms_norm_ref(x, own.weight, None, z=z, eps=own.eps, **more)

    return Norm()


@pytest.mark.parametrize("by_name", [True, False])
@pytest.mark.parametrize("call", ["g and g_gamma", "wide KDA", "documents", "documents on a CPU", "activation"])
def test_what_ours_do_not_take_is_the_librarys_by_place_and_by_name(call, by_name):
    def chunk_simple_gla(q: Any, k: Any, v: Any, g: Any = None, g_gamma: Any = None, **more: Any) -> str:
        return "theirs"

    def split_conv1d_scan(zxbcdt: Any, seq_idx: Any = None, activation: Any = "silu") -> str:
        return "theirs"

    x, wide, convolution = torch.ones(1, 2, 2, 16), torch.ones(1, 2, 2, 144), None if call == "documents" else print
    of_mamba = partial(mamba_ssm.refuses, SimpleNamespace(causal_conv1d_fn=convolution))
    original, refuses, given = {
        "g and g_gamma": (chunk_simple_gla, fla.refuses, {"q": x, "k": x, "v": x, "g": x, "g_gamma": x}),
        "wide KDA": (chunk_simple_gla, fla.refuses_kda, {"q": wide, "k": wide, "v": x}),
        "activation": (split_conv1d_scan, of_mamba, {"zxbcdt": x, "seq_idx": None, "activation": "gelu"}),
    }.get(call, (split_conv1d_scan, of_mamba, {"zxbcdt": x, "seq_idx": x}))
    handle: Any = SimpleNamespace(active=lambda: True, leave=lambda name, why: None, count=lambda: 0)
    served = core.stand_in(handle, original, lambda *args, **named: "ours", refuses)
    assert (served(**given) if by_name else served(*given.values())) == "theirs"
    assert served(**dict.fromkeys([*given][: 3 if original is chunk_simple_gla else 1], x)) == "ours"


# --- errors


def test_what_cannot_be_is_one_clear_error(own, monkeypatch):
    def says(words: str) -> Any:
        return pytest.raises(IntegrationError, match=rf"^(?s:(?!.*\n).*{words})")

    with says("library is 'torch': it must be one of transformers, xlstm, mlstm_kernels, fla, mamba_ssm"):
        install("torch")
    first = install("transformers")
    with says(r"transformers is already installed: uninstall\(\) its handle first"):
        install("transformers")
    first.uninstall()
    with says(r"transformers is not installed: install\('transformers'\) comes first"):
        first.uninstall()
    with monkeypatch.context() as patch:
        patch.setattr(metadata, "version", lambda name: "9.1.0")
        with says("transformers is 9.1.0: it must be 5.17 or .*, which were tried, or force=True"):
            install("transformers")
        with install("transformers", force=True) as handle:
            assert handle.replaced
        with monkeypatch.context() as broken:
            broken.delattr(own, "xLSTMBackend")
            with says("transformers is not what this version of tflabench knows: .*xLSTMBackend"):
                install("transformers", force=True)
    with monkeypatch.context() as patch:
        patch.setattr(metadata, "version", lambda name: _raise(metadata.PackageNotFoundError(name)))
        with says("the package mamba-ssm is not installed"):
            install("mamba_ssm")
    assert core._installed == []


def _raise(error: Exception) -> Any:
    raise error


def test_uninstalling_goes_backwards(own):
    place, seen = own.xLSTMBackend, property(lambda self: None)
    handle = install("transformers")
    ours = vars(place)["_train_fn"]
    place._train_fn = seen
    with pytest.raises(IntegrationError, match=r"^xLSTMBackend._train_fn was replaced again by something else: undo"):
        handle.uninstall()
    assert handle.active()
    place._train_fn = ours
    handle.uninstall()
    assert "_train_fn" not in vars(place)


@needs_xlstm
def test_uninstalling_what_lies_below_says_what_lies_above(nxai):
    below, above = install("mlstm_kernels"), install("xlstm")
    with pytest.raises(
        IntegrationError, match=r"^mLSTMBackend._train_fn .* by install\('xlstm'\): uninstall that first"
    ):
        below.uninstall()
    above.uninstall()
    below.uninstall()
    assert "_train_fn" not in vars(library("mlstm_kernels.torch.backend_module").mLSTMBackend)
