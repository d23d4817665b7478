"""`tflabench model`: tiny models through training, prefill and decode, single layers, and what cannot run."""

from __future__ import annotations

import json
import tempfile

import commands
import pytest
from forked_workers import fork_workers

from tflabench.bench.machine import detect
from tflabench.implementations import registry
from tflabench.theory.hardware import Ceilings, store_ceilings


@pytest.fixture(autouse=True)
def _apart(tmp_path, monkeypatch):
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


def test_a_tiny_model_trains_prefills_and_decodes_on_every_set_of_kernels():
    rows = model("--out", "out")
    ok = {(row["implementation"], row["pass"]): row for row in rows if row["status"] == "ok"}
    names = ("xlstm-tiny.native", "xlstm-tiny.ours", "llama-tiny.sdpa")
    assert set(ok) == {(name, pass_) for name in names for pass_ in ("fw", "fwbw", "decode")}
    for (_, pass_), row in ok.items():
        assert row["peak_bytes"] > 0
        assert row["details"]["recurrence_ms"] > 0
        assert row["rel_error"] < 1e-5
        assert (row["details"].get("sequences_at_once") == 2) == (pass_ == "fwbw")
    assert len({row["comparison_id"] for row in ok.values()}) == 3  # all kernels of a mode took turns
    refused = [row for row in rows if row["status"] != "ok"]
    assert {row["status"] for row in refused} == {"unsupported"}
    assert all("mlstm_kernels" in row["implementation"] and row["reason"] for row in refused)
