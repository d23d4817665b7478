"""Every example runs as it stands, on a machine without a GPU too, and says what its docstring promises."""

from __future__ import annotations

import runpy
import sys

import pytest
from forked_workers import fork_workers
from repository import ROOT

EXAMPLES = ROOT / "examples"
SAYS = {
    "add_a_kernel": ["step_by_step       64     ok"],
    "compare_two": ["T = 64: ", "T = 128: ", "wrote compare_two.png"],
    "decode_step_by_step": ["after 512 tokens the state has 65 KiB", "32 tokens decoded"],
    "gla_layer": ["y (2, 100, 64)", "alone [4.0, 9.0, 15.0, 22.0], behind those before [10.0, 15.0, 21.0, 28.0]"],
    "mlstm_layer": ["step 0: loss 3.", "step 29: loss 0."],
    "one_sequence_on_two_ranks": ["ranks: 1, losses: 2.13111, 2.03283", "ranks: 2, losses: 2.13111, 2.03283"],
    "packed_documents": ["4 prompts, 509 tokens: h (1, 4, 509, 64), a state for each, C (4, 4, 64, 64)"],
    "train_language_model": [
        "1 of 1 pairs of runs",
        "Table 2: sig ends with the loss of exp, within 1%: not tried, needs --gate exp sig",
    ],
    "use_a_kernel": ["mLSTMsig: h (2, 4, 256, 128), state C (2, 4, 64, 128)", "gradient of f: (2, 4, 256)"],
}

ARGUMENTS = {"train_language_model": ["--steps=5", "--gate=sig", "--bias", "0", "-10"]}


@pytest.fixture(autouse=True)
def _apart(tmp_path, monkeypatch):
    """A working directory of its own, and a cache with ceilings in it, so that nothing is calibrated."""
    from tflabench.bench.machine import detect
    from tflabench.implementations import registry
    from tflabench.theory.hardware import Ceilings, store_ceilings

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(registry, "_plugged", [])
    monkeypatch.setattr(registry, "_by_plugin", {})
    fork_workers(monkeypatch)
    for dtype in ("float32", "bfloat16"):
        store_ceilings(detect("auto").name, dtype, Ceilings(1e11, 1e10, "measured", "test"))


@pytest.mark.parametrize("name", SAYS)
def test_an_example_runs_and_prints(name, capsys, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)  # as for a script
    monkeypatch.setattr(sys, "argv", [name, *ARGUMENTS.get(name, [])])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert [words for words in SAYS[name] if words not in said] == [], said


def test_every_example_is_run_here():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SAYS)
