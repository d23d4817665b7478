"""The command time: one function, or one implementation, at one shape."""

from __future__ import annotations

import json

import pytest
from commands import on_a_cpu, refused, run

from tflabench.implementations import registry

KERNELS = """
from tflabench import ops

def right(q, k, v, g):
    return ops.simple_gla(q, k, v, g)

def wrong(q, k, v, i, f):
    return 1.01 * ops.mlstm_sig(q, k, v, i, f)
"""
SHAPE = ["--shape", "1,2,33,16,24", "--dtype", "float32"]


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    on_a_cpu(tmp_path, monkeypatch)
    monkeypatch.setattr(registry, "_plugged", [])
    (tmp_path / "my.py").write_text(KERNELS)


def test_a_function_is_checked_and_timed_beside_ours_and_leaves_nothing(tmp_path):
    done = run("time", "my.py:right", "--op", "simple_gla", *SHAPE, "--pass", "fwbw", "--json")
    assert done.exit_code == 0, done.output
    rows = {row["implementation"]: row for row in json.loads(done.stdout)}
    assert rows.keys() == {"right", "reference_simple_gla"}
    assert {row["status"] for row in rows.values()} == {"ok"}
    assert all(row["ms_median"] and (row["heads"], row["d_hv"]) == (2, 24) for row in rows.values())
    assert not (tmp_path / "results").exists()


def test_a_wrong_function_ends_with_1():
    done = run("time", "my.py:wrong", "--op", "mlstm_sig", *SHAPE, "--pass", "fw")
    assert done.exit_code == 1, done.output
    assert "wrong: forward is off by 0.01" in done.stdout


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["my.py:right"], "my.py:right is a function: say what it computes"),
        (["my.py"], "my.py is no function: name one, as in my_kernel.py:my_kernel --op mlstm_sig"),
        (["my.py", "--op", "simple_gla"], "my.py is no function: name one"),
        (["my.py:nothing", "--op", "simple_gla"], "plugin 'my.py:nothing' cannot be used: it has no function"),
        (["hopper_gla", "--shape", "1,1,8,8,8"], "hopper_gla cannot run here: needs a CUDA device"),
        (["my.py:right", "--op", "simple_gal"], "operation is 'simple_gal': it must be one of mlstm_exp"),
        (["reference_sig", "--shape", "1,2,3"], "--shape is '1,2,3': it must be batch,heads,seq_len,d_qk,d_hv"),
        (["reference_sig", "--shape", "1,2,x,8,8"], "--shape is '1,2,x,8,8': it must be batch,heads,seq_len,d_qk,d_hv"),
        (["reference_sig", "--shape", "1,3:4,8,8,8"], "heads_qk"),
    ],
)
def test_what_cannot_be_timed_is_one_line(words, reason):
    refused(["time", *words], reason)
