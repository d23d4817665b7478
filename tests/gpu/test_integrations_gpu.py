"""Models of other libraries on a GPU: the same numbers through our kernels, one graph, CUDA graphs for decoding."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from xlstm_models import build, hugging_face, off, tokens

from tflabench.integrations import install

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

WIDE = {"hidden_size": 512}  # heads of 128/256: sizes that the fused kernels take too
SAME_FLOAT, SAME_BFLOAT16 = 2e-3, 3e-2  # relative norms; the products of float32 run in TF32's three passes, or less


@pytest.fixture(scope="module")
def modeling() -> Iterator[Any]:
    pytest.importorskip("transformers", reason="transformers is not installed")
    with hugging_face(external=False) as module:
        yield module


def on_gpu(modeling: Any, dtype: torch.dtype, **options: Any) -> Any:
    return build(modeling, **WIDE, **options).to("cuda", dtype)


def compute(model: Any, T: int = 64) -> dict[str, Tensor]:
    model.zero_grad()
    out = model.train()(tokens(T).cuda(), labels=tokens(T).cuda(), use_cache=False)
    out.loss.backward()
    return {"logits": out.logits.detach(), "loss": out.loss.detach()} | {
        name: x.grad.clone() for name, x in model.named_parameters()
    }


@pytest.mark.parametrize(("dtype", "same"), [(torch.float32, SAME_FLOAT), (torch.bfloat16, SAME_BFLOAT16)], ids=str)
def test_a_model_trains_the_same_before_inside_and_after(modeling, dtype, same):
    """In bfloat16 both are held to float32: the native path rounds its gates and states, ours do not."""
    model = on_gpu(modeling, dtype, mode="train")
    before = compute(model)
    exact = compute(on_gpu(modeling, torch.float32, mode="train")) if dtype != torch.float32 else before
    with install("transformers") as handle:
        found = compute(model)
    assert handle.calls == 2
    for name, value in exact.items():
        bound = max(same, 2 * off(before[name].float(), value))
        assert off(found[name].float(), value) <= bound, f"{name}: {off(found[name].float(), value):.1e}"
    torch.testing.assert_close(compute(model)["logits"], before["logits"])


def test_generation_in_float32_is_the_same(modeling):
    model = on_gpu(modeling, torch.float32).eval()
    wanted = model.generate(tokens(37).cuda(), max_new_tokens=12, do_sample=False)
    with install("transformers") as handle:
        found = model.generate(tokens(37).cuda(), max_new_tokens=12, do_sample=False)
    assert handle.calls == 2 * 12
    assert found.tolist() == wanted.tolist()


@torch.no_grad()
def test_prefill_in_bfloat16_runs(modeling):
    with install("transformers"):
        model = on_gpu(modeling, torch.bfloat16).eval()
        out = model(tokens(1000).cuda(), use_cache=True)
        exact = on_gpu(modeling, torch.float32).eval()(tokens(1000).cuda(), use_cache=True)
    assert off(out.logits.float(), exact.logits) < 2 * SAME_BFLOAT16


@torch.no_grad()
def test_a_cuda_graph_decodes(modeling):
    """The step of a whole model is captured once and replayed; its cache stays where it is."""
    with install("transformers") as handle:
        model = on_gpu(modeling, torch.bfloat16).eval()
        name = "cache" if hasattr(modeling.xLSTMOutput, "cache") else "cache_params"
        prompt, rest = tokens(40).cuda().split([32, 8], dim=1)
        eager = getattr(model(prompt, use_cache=True), name)
        wanted = [model(rest[:, t : t + 1], use_cache=True, **{name: eager}).logits for t in range(8)]
        cache, token = getattr(model(prompt, use_cache=True), name), rest[:, :1].clone()
        begins = [x.clone() for states in cache.rnn_state.values() for x in states]
        step, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.cuda.stream(stream):  # warm up: compiles, and fills the caching allocator
            model(token, use_cache=True, **{name: cache})
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(step):
            logits = model(token, use_cache=True, **{name: cache}).logits
        for x, value in zip((x for states in cache.rnn_state.values() for x in states), begins, strict=True):
            x.copy_(value)
        calls = handle.calls
        for t in range(8):
            token.copy_(rest[:, t : t + 1])
            step.replay()
            assert off(logits.float(), wanted[t].float()) < 1e-3, t
    assert handle.calls == calls


def test_a_compiled_model_is_one_graph(modeling):
    with install("transformers"):
        model = on_gpu(modeling, torch.bfloat16, mode="train").train()
        wanted = model(tokens(200).cuda(), labels=tokens(200).cuda(), use_cache=False).loss
        compiled = torch.compile(model, fullgraph=True)
        loss = compiled(tokens(200).cuda(), labels=tokens(200).cuda(), use_cache=False).loss
        loss.backward()
    assert abs(loss.item() - wanted.item()) < 2e-2
    assert all(x.grad.isfinite().all() for x in model.parameters())


def layer_before_inside_after(library: str, layer: Callable[[], Tensor], calls: int) -> None:
    before = layer()
    with install(library) as handle:
        inside = layer()
    assert handle.calls == calls
    for a, b in ((inside, before), (layer(), before)):
        assert off(a.float(), b.float()) < SAME_BFLOAT16


@pytest.mark.usefixtures("untuned")
@pytest.mark.parametrize("name", ["MultiScaleRetention", "GatedLinearAttention"])
def test_a_layer_of_fla_computes_the_same(name: str):
    layers = pytest.importorskip("fla.layers", reason="flash-linear-attention is not installed")
    layer = getattr(layers, name)(hidden_size=512, num_heads=4).to("cuda", torch.bfloat16)
    x = torch.randn(2, 300, 512, device="cuda", dtype=torch.bfloat16)
    layer_before_inside_after("fla", lambda: layer(x)[0].detach(), 1)


def test_a_layer_of_mamba_ssm_computes_the_same():
    try:
        mamba2: Any = importlib.import_module("mamba_ssm.modules.mamba2")
    except ImportError as error:
        pytest.skip(f"mamba-ssm cannot be imported: {error}")
    if importlib.util.find_spec("causal_conv1d") is None:
        pytest.skip("causal_conv1d is not installed: mamba-ssm's own path needs it")
    layer = mamba2.Mamba2(512, d_state=64, headdim=64).to("cuda", torch.bfloat16)
    x = torch.randn(2, 300, 512, device="cuda", dtype=torch.bfloat16)
    layer_before_inside_after("mamba_ssm", lambda: layer(x).detach(), 1)


def test_everything_of_a_tiny_model_at_once(modeling):
    """What the tests on a CPU hold to 1e-5, on the kernels for any GPU: heads of 32/64, in float32."""
    model = build(modeling).cuda()
    before = compute(model, 48)
    with install("transformers"):
        inside = compute(model, 48)
    for name, value in before.items():
        if not name.endswith("igate_preact.bias"):  # small, and where the normaliser shows
            assert off(inside[name], value) < SAME_FLOAT, name
