"""`tflabench model`: tiny models through training, prefill and decode, single layers, and what cannot run."""

from __future__ import annotations

import importlib
import json
import tempfile
from types import SimpleNamespace
from typing import Any

import commands
import pytest
import torch
from forked_workers import fork_workers
from synthetic import row

from tflabench.baselines import model_cases, models
from tflabench.baselines.architectures import ARCHITECTURES, Form
from tflabench.bench.machine import detect
from tflabench.conclusions.models import crossings, gains, record
from tflabench.implementations import registry
from tflabench.problem import Problem
from tflabench.theory.hardware import Ceilings, store_ceilings


@pytest.fixture(scope="module")
def _imported():
    """Import what takes seconds once: the workers, which are forked, have it then."""
    for name in ("xlstm", "llama", "qwen3_next"):
        importlib.import_module(f"transformers.models.{name}.modeling_{name}")


@pytest.fixture(autouse=True)
def _apart(_imported, tmp_path, monkeypatch):
    """Every test has its own working directory, locks and cache, with ceilings in it, so that nothing is calibrated."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(registry, "_plugged", [])
    monkeypatch.setattr(registry, "_by_plugin", {})
    fork_workers(monkeypatch)
    store_ceilings(detect("cpu").name, "float32", Ceilings(1e11, 1e10, "measured", "test"))


def model(*words: str) -> list[dict]:
    return json.loads(commands.output("model", "--device", "cpu", "--no-plots", "--json", *words))["rows"]


def test_a_tiny_model_trains_prefills_and_decodes_on_kernels_that_take_turns():
    rows = model("--kernels", "ours,mlstm_kernels,sdpa", "--out", "out")  # native is what the others are held to
    ok = {(row["implementation"], row["pass"]): row for row in rows if row["status"] == "ok"}
    names = ("xlstm-tiny.ours", "llama-tiny.sdpa")
    assert set(ok) == {(name, pass_) for name in names for pass_ in ("fw", "fwbw", "decode")}
    for (_, pass_), each in ok.items():
        assert each["peak_bytes"] > 0
        assert each["details"]["recurrence_ms"] > 0
        assert each["rel_error"] < 1e-5
        assert (each["details"].get("sequences_at_once") == 2) == (pass_ == "fwbw")
    assert len({row["comparison_id"] for row in ok.values()}) == 3  # all kernels of a mode took turns
    refused = [row for row in rows if row["status"] != "ok"]
    assert {row["status"] for row in refused} == {"unsupported"}
    assert all("mlstm_kernels" in row["implementation"] and row["reason"] for row in refused)


def test_a_layer_is_compared_with_attention_and_a_wrong_word_is_refused():
    rows = model("--versus", "--kernels", "ours,sdpa", "-a", "seq_len=32", "--out", "out")
    assert {(row["implementation"], row["pass"], row["status"]) for row in rows} == {
        (f"{name}.layer", pass_, "ok") for name in ("xlstm-tiny.ours", "llama-tiny.sdpa") for pass_ in ("fw", "fwbw")
    }
    assert len({row["comparison_id"] for row in rows}) == 2
    for words, reason in (
        (["xlstm-tyni"], "did you mean xlstm-tiny"),
        (["--kernels", "our"], "did you mean ours"),
        (["--mode", "train"], "did you mean training"),
        (["xlstm-7b"], "has no xlstm-7b on cpu; it has xlstm-tiny, llama-tiny there"),
        (["llama-tiny", "--kernels", "ours"], "llama-tiny run on sdpa"),
    ):
        commands.refused(["model", "--device", "cpu", *words], reason)


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ({512: 0.5, 1024: 1.5, 2048: 2.0}, "from T = 1024 on faster than"),
        ({512: 1.5, 1024: 2.0}, "from T = 512 on, the shortest measured, faster than"),
        ({512: 1.5, 1024: 0.9}, "up to T = 1024 not faster than"),
    ],
)
def test_the_crossing_is_where_the_linear_layer_stays_faster(times, words):
    rows = []
    for T, ms in times.items():
        shared = {"seq_len": T, "batch": 1, "comparison_id": str(T)}
        rows += [row("xlstm-1.4b.ours.layer", **shared), row("llama-1.4b.sdpa.layer", ms, **shared)]
    (sentence,) = crossings(rows)
    assert words in sentence
    assert record(rows[0])["parameters"] < 1e8  # of the layer


@pytest.mark.parametrize("kernels", ["ours", "mamba_ssm"])
def test_mamba_needs_its_convolution_only_where_pytorch_cannot_convolve(monkeypatch, kernels):
    monkeypatch.setattr(models, "installed", lambda module: module != "causal_conv1d")
    sizes: dict[str, Any] = dict(ARCHITECTURES["mamba2-1.3b"].sizes)
    for pass_ in ("fw", "fwbw", "decode"):
        problem = Problem(batch=1, seq_len=64, pass_=pass_, **sizes)
        refused = bool(models.refuses("mamba2-1.3b", kernels, Form(), problem, "cuda"))
        assert refused == (kernels == "mamba_ssm" and pass_ == "fwbw")


def test_what_mamba_keeps_on_its_import_stays_ours_behind_the_check(monkeypatch):
    events = []
    handle = SimpleNamespace(uninstall=lambda: events.append("uninstall"))
    monkeypatch.setattr(model_cases, "install", lambda library: events.append(library) or handle)
    monkeypatch.setattr(model_cases, "_places", lambda of: ())
    for name in ("_handle", "_now"):
        monkeypatch.setattr(model_cases._Switch, name, None)
    switch = model_cases._Switch(ARCHITECTURES["mamba2-1.3b"])
    for kernels in ("ours", "native", "ours"):
        switch.to(kernels)
    assert events == ["mamba_ssm"]  # no second one, which the module would not see


def test_the_time_of_a_recurrence_is_the_median_over_steps_even_where_it_leaves_its_call_to_others(monkeypatch):
    clock = iter((0.0, 9.0, 10.0, 11.0, 12.0, 13.0))
    monkeypatch.setattr(model_cases, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    module = SimpleNamespace(scan=lambda x: None)  # as plain PyTorch for Mamba 2
    monkeypatch.setattr(model_cases, "_places", lambda of: [(module, "scan")])
    step = lambda: module.scan(torch.ones(1, requires_grad=True))  # noqa: E731
    assert model_cases._recurrence_ms(ARCHITECTURES["xlstm-tiny"], step, torch.device("cpu")) == 1000


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_parameters_are_those_of_the_configuration(name):
    of = ARCHITECTURES[name]
    with torch.device("meta"):
        made = model_cases._model(of, of.options, torch.float32, torch.device("meta"))
    assert sum(x.numel() for x in made.parameters()) == of.parameters
    parts = model_cases._mixer(made.base_model)
    assert sum(x.numel() for part in parts for x in part.parameters()) == of.layer_parameters


def test_flops_are_those_of_weights_and_of_the_recurrence():
    of = ARCHITECTURES["xlstm-tiny"]
    weights = 493_448 - 256 * 128  # an embedding is looked up
    sizes: dict[str, Any] = dict(of.sizes)
    train = Problem(batch=2, seq_len=64, pass_="fwbw", **sizes)
    prefill, decode = train.with_(pass_="fw"), train.with_(pass_="decode")
    forward, backward = 4 * 32 * 64 + 64 * (32 + 64), 10 * 32 * 64 + 64 * (3 * 32 + 2 * 64)  # a token and head
    assert of.cost(train).flops == 128 * (6 * weights + 2 * 2 * (forward + backward))
    assert of.cost(prefill).flops == 128 * (2 * weights + 2 * 2 * forward)
    assert of.layer_cost(prefill).flops == 128 * (2 * of.layer_parameters + 2 * forward)
    assert of.cost(decode).flops == 2 * (2 * weights + 2 * 2 * 4 * 32 * 64)


@pytest.mark.parametrize(
    ("slower", "quicker", "said"), [(True, True, True), (False, False, True), (True, False, False)]
)
def test_a_gain_is_said_where_both_sides_are_throttled_or_the_slower_is_not(slower, quicker, said):
    rows = [
        row("xlstm-1.4b.ours", 1.0, throttled=quicker, comparison_id="one", details={"recurrence_ms": 0.2}),
        row("xlstm-1.4b.mlstm_kernels_limit", 1.5, throttled=slower, comparison_id="one"),
        row("xlstm-1.4b.mlstm_kernels", None, comparison_id="one"),
    ]
    sentences = list(gains(rows))
    assert len(sentences) == said
    for sentence in sentences:
        assert "1.50" in sentence
        assert sentence.endswith("1.88.")  # 1.5 / (1 - 0.2)
        assert ("both throttled" in sentence) == slower


def test_a_step_takes_as_long_as_the_slower_of_gpu_and_host():
    shared = {"pass_": "decode", "batch": 4, "seq_len": 8192, "model_flops": 4e9}
    of_gpu, of_host = (record(row("llama-1.4b.sdpa", 2.0, host_ms=host, **shared)) for host in (1.0, 6.0))
    assert (of_gpu["step_s"], of_gpu["tokens_per_s"], of_gpu["note"]) == (0.002, 2000, "")
    assert (of_host["step_s"], of_host["gflops_per_token"]) == (0.006, 1)
    assert "host" in of_host["note"]
    assert of_gpu["mfu"] == pytest.approx(3 * of_host["mfu"])
    # A long step has the waits for the host in it, but for its lead; a first call, which allocates, tells nothing.
    long = record(row("llama-1.4b.sdpa", 2000.0, host_ms=2500.0, pass_="fwbw"))
    assert (long["step_s"], long["note"]) == (pytest.approx(2.0, rel=0.01), "")


def test_what_does_not_fit_is_one_line_of_the_table():
    short = record(row("llama-1.4b.sdpa", None, status="oom", reason="OutOfMemoryError: " + "CUDA " * 90))
    assert short["note"] == "out of memory"
