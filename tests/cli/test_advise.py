"""The command advise: by theory of GPUs that are not here."""

from __future__ import annotations

import pytest
from commands import document, on_a_cpu, refused

from tflabench.theory.held_out import with_article

GIB = 2**30


@pytest.fixture(autouse=True)
def _machine(tmp_path, monkeypatch):
    on_a_cpu(tmp_path, monkeypatch)


def test_json_has_ranks_frontier_and_batches_in_order():
    result = document("advise", "--gpu", "H200", "--memory-budget", "20GiB", "--gate", "sig")
    fitting = [row["step_ms"] for row in result["ranked"] if row["fits"]]
    assert fitting == sorted(fitting)
    assert result["recommended"] == result["ranked"][0]
    front = result["frontier"]
    assert [row["memory_bytes"] for row in front] == sorted(row["memory_bytes"] for row in front)
    assert [row["step_ms"] for row in front] == sorted((row["step_ms"] for row in front), reverse=True)
    assert result["memory_budget_bytes"] == 20 * GIB
    assert {row["gate"] for row in result["ranked"]} == {"sig"}
    assert result["never_run"] is False


def test_json_has_what_was_refused_and_how_far_to_trust_the_rest():
    result = document("advise", "--gpu", "A100", "--gate", "sig")
    assert result["never_run"] is True
    refusals = {(each["implementation"], each["chunk_size"]): each["reason"] for each in result["refused"]}
    assert refusals["hopper_sig", None] == "needs a GPU of compute capability 9.x, not 8.0"
    assert {size for name, size in refusals if name == "tfla_sig_limit"} == {256, 512, 1024, 2048, 4096, 8192}
    for row in result["ranked"]:
        assert row["held_out_error"]["held_out"]
        within = row["model_ms_lower"] <= row["call_ms"] <= row["model_ms_upper"]
        assert (row["outside_bounds"] is None) == within
    assert result["gpu"]["capability"] == [8, 0]


@pytest.mark.parametrize("name", ["a My GPU", "an MI300X", "an A10", "a B200", "an RTX 3090"])
def test_a_gpu_has_the_article_with_which_it_is_spoken(name):
    assert with_article(name.partition(" ")[2]) == name


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--gpu", "H1000"], "no GPU is called 'H1000'"),
        (["--memory-budget", "1MiB"], "one sequence takes at least"),
        (["--pass", "decode"], "pass is 'decode': one step has no chunks to choose"),
        (["--tokens", "65536", "--batch", "4"], "batch is 4 and tokens 65536: give one of them"),
        (["--gpu", "V100"], "needs a GPU of compute capability 8.0 or above, not 7.0"),
    ],
)
def test_bad_input_is_one_line(words, reason):
    refused(["advise", *words], reason)
