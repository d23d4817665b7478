"""The commands gpus, optimal-chunk and roofline, as a user meets them."""

from __future__ import annotations

import math

import pytest
from commands import document, on_a_cpu, output, refused, run

import tflabench
from tflabench.bench import machine
from tflabench.bench.machine import Machine
from tflabench.problem import Problem
from tflabench.theory import hardware
from tflabench.theory.chunk_size import Tradeoff
from tflabench.theory.hardware import Ceilings

PAPER = ["optimal-chunk", "--gpu", "H100", "--d-hv", "512", "--d-qk", "256"]


@pytest.fixture(autouse=True)
def _machine(tmp_path, monkeypatch):
    on_a_cpu(tmp_path, monkeypatch)


class TestOptimalChunk:
    def test_several_gpus_and_head_dimensions_are_one_table(self):
        got = document("optimal-chunk", "--gpu", "A100,H100", "--d-hv", "128,512")
        assert [(line["gpu"].split()[0], line["d_hv"]) for line in got] == [
            ("A100", 128), ("A100", 512), ("H100", 128), ("H100", 512),
        ]  # fmt: skip
        assert got[3]["chunk_size"] == document(*PAPER)["recommended"]
        assert got[3]["ms_upper"] == document(*PAPER)["predicted_ms_upper"]

    def test_json_holds_the_contract_and_the_papers_values(self):
        got = document(*PAPER)
        assert got["flop_optimal"] == pytest.approx(18.4, abs=0.05)
        assert got["runtime_optimal"] == pytest.approx(633.5, abs=0.05)
        assert got["recommended"] == 512
        assert got["within_5_percent"] == [372, 1081]
        assert got["state_bytes"] == 4
        assert got["gpu"]["name"] == "H100 SXM"
        assert "H100 datasheet" in got["gpu"]["ceilings"]["source"]
        time = Tradeoff(Problem(8, 8, 8192, 256, 512), "sig", hardware.find("H100").ceilings).time(512)
        assert got["predicted_ms_lower"] == pytest.approx(time.lower * 1e3)
        assert got["predicted_ms_upper"] == pytest.approx(time.upper * 1e3)

    def test_the_options_reach_the_model(self):
        base = document(*PAPER)
        assert document(*PAPER, "--state-dtype", "bfloat16")["runtime_optimal"] < base["runtime_optimal"]
        assert document(*PAPER, "--causal-factor", "1")["flop_optimal"] < base["flop_optimal"]
        assert document(*PAPER, "--counts", "exact")["flop_optimal"] != base["flop_optimal"]
        assert document(*PAPER, "--gate", "exp")["runtime_optimal"] > base["runtime_optimal"]
        assert document(*PAPER, "--pass", "fwbw")["predicted_ms_upper"] > 2 * base["predicted_ms_upper"]
        assert document(*PAPER, "--batch", "16")["predicted_ms_upper"] == pytest.approx(2 * base["predicted_ms_upper"])
        assert document(*PAPER, "--heads", "4")["memory_bytes"] == base["memory_bytes"] / 2
        assert document(*PAPER, "--seq-len", "256")["recommended"] == 256
        assert document(*PAPER, "--dtype", "float32")["memory_bytes"] > base["memory_bytes"]

    def test_a_sequence_shorter_than_the_usual_tile_still_gets_an_answer(self):
        got = document(*PAPER, "--seq-len", "40")
        assert (got["tile"], got["recommended"]) == (32, 32)

    def test_a_memory_budget_is_kept(self):
        got = document(*PAPER, "--memory-budget", "1.9GiB")
        assert got["recommended"] == 1024
        assert got["memory_bytes"] <= got["memory_budget_bytes"] == int(1.9 * 2**30)

    def test_a_gpu_of_a_file(self, tmp_path):
        (tmp_path / "mine.toml").write_text("peak_tflops = 989\nbandwidth_tbs = 3.35\n")
        got = document("optimal-chunk", "--gpu", "mine.toml")
        assert got["runtime_optimal"] == document(*PAPER)["runtime_optimal"]
        assert (got["gpu"]["name"], got["gpu"]["ceilings"]["provenance"]) == ("mine", "given")

    def test_without_a_name_it_is_this_machines_gpu_as_measured(self, monkeypatch):
        assert document("optimal-chunk")["gpu"]["name"] == "H100 SXM"
        monkeypatch.setattr(machine, "detect", lambda device: Machine("cuda", "NVIDIA H200", 141 << 30))
        assert document("optimal-chunk")["gpu"]["ceilings"]["provenance"] == "datasheet"
        hardware.store_ceilings("NVIDIA H200", "bfloat16", Ceilings(782e12, 4.26e12, "measured", "calibrate"))
        got = document("optimal-chunk")["gpu"]
        assert (got["name"], got["ceilings"]["provenance"]) == ("H200 SXM", "measured")

    def test_a_dtype_that_the_datasheet_says_nothing_of_is_noted(self, tmp_path):
        assert "rate of H100 SXM is that of bfloat16" in run(*PAPER, "--dtype", "float32").stderr
        (tmp_path / "float32.toml").write_text("peak_tflops = 67\nbandwidth_tbs = 3.35\n")
        assert run("optimal-chunk", "--gpu", "float32.toml", "--dtype", "float32").stderr == ""
        assert run(*PAPER, "--dtype", "float16").stderr == ""

    def test_the_best_of_the_table_is_marked_and_the_first_line_is_of_powers_of_two(self):
        first, *lines = output(*PAPER).splitlines()
        assert first.startswith("Of the powers of two, L = 512 takes the least upper time")
        assert [line.split()[0] for line in lines if line.endswith("recommended")] == ["512"]
        assert document(*PAPER)["chunk_sizes"][0]["chunk_size"] == 64

    def test_only_the_optimum_of_sig_is_printed_in_the_paper(self):
        assert "(eq. 111)" in output(*PAPER)
        for gate in ("exp", "gla", "delta_net"):
            assert "(as eq. 111)" in output(*PAPER, "--gate", gate)

    def test_the_first_line_says_that_fused_kernels_need_no_such_l(self):
        first = output(*PAPER).partition("\n\n")[0]
        assert "hopper_sig needs no such L: it takes T whole" in " ".join(first.split())
        first = output("optimal-chunk", "--gpu", "A100").partition("\n\n")[0]
        assert "our tfla_sig_xl would run with L = " in " ".join(first.split())

    @pytest.mark.parametrize("gate", ["gla", "delta_net", "gated_delta_net", "kda"])
    def test_fused_kernels_of_every_gate_say_into_how_many_segments_they_cut(self, gate):
        """At these sizes a GPU of 132 multiprocessors takes a batch of 16 whole, and cuts one sequence."""
        few, many = ["--batch", "16", "--heads", "16"], ["--batch", "1", "--heads", "16"]
        sizes = ["optimal-chunk", "--gpu", "H100", "--gate", gate, "--d-qk", "128", "--d-hv", "128"]
        whole = document(*sizes, *few, "--seq-len", "4096")["kernel"]
        assert (whole["chunk_size"], whole["segments"]) == (4096, 1)
        cut = document(*sizes, *many, "--seq-len", "65536")["kernel"]
        assert cut["segments"] == math.ceil(65536 / cut["chunk_size"]) > 1

    def test_a_narrow_terminal_drops_columns_and_no_digits(self):
        text = run(*PAPER, COLUMNS="60").stdout
        assert {"1024", "2048", "4096"} <= set(text.split())
        assert "too narrow: " in text

    def test_small_sizes_are_told_in_small_units(self):
        tiny = ["--batch", "1", "--heads", "1", "--seq-len", "64", "--d-qk", "16", "--d-hv", "16"]
        assert " KiB" in output("optimal-chunk", *tiny)
        refused(["optimal-chunk", *tiny, "--memory-budget", "10"], "--memory-budget is 10 bytes")

    def test_the_papers_equations_are_claimed_only_where_they_hold(self):
        assert "(eq. 121)" in output(*PAPER)
        for other in (["--gate", "exp"], ["--pass", "fwbw"], ["--counts", "exact"]):
            assert "(as eq. 121)" in output(*PAPER, *other)

    @pytest.mark.parametrize(
        ("words", "kernel"),
        [
            (["--gpu", "A100"], "tfla_sig_xl"),
            (["--gpu", "GH200", "--gate", "exp"], "hopper_exp"),
            (["--gpu", "V100"], None),
            (["--gpu", "H100", "--d-qk", "320"], "tfla_sig_xl"),
        ],
    )
    def test_the_kernel_is_one_that_runs_there(self, words, kernel):
        assert document("optimal-chunk", *words)["kernel"]["implementation"] == kernel

    def test_triton_kernels_take_the_l_of_the_calibrated_model(self):
        """512 by a few percent; measured it is 256, 12% faster (results/h200/paper-fig5)."""
        wide = ["--d-qk", "320"]  # which the fused kernels do not take
        got = document("optimal-chunk", "--gpu", "H200", *wide)
        assert got["kernel"] == {
            "implementation": "tfla_sig_xl", "chunk_size": 256, "segments": None, "refused": None,
        }  # fmt: skip
        assert got["recommended"] == 512

    def test_gla_has_its_own_counts_and_kernel(self):
        size = ["--d-qk", "128", "--d-hv", "256", "--gpu", "H100", "--gate", "gla"]
        got = document("optimal-chunk", *size)
        sig = document("optimal-chunk", *size[:-1], "sig")
        assert got["counts"] == "exact"  # the paper publishes none
        assert got["recommended"] == tflabench.optimal_chunk_size("H100", d_qk=128, d_hv=256, gate="gla") == 512
        assert got["kernel"] == {
            "implementation": "hopper_gla", "chunk_size": 8192, "segments": 1, "refused": None,
        }  # fmt: skip
        of_a100 = document("optimal-chunk", *size[:-4], "--gpu", "A100", "--gate", "gla")["kernel"]
        assert of_a100 == {
            "implementation": "tfla_gla_xl", "chunk_size": 256, "segments": None, "refused": None,
        }  # fmt: skip
        by_size = {row["chunk_size"]: row["bytes"] for row in got["chunk_sizes"]}
        steps, decays = 8 * 8 * 8192, 2 * (128 - 2) * 2  # read by two kernels, in two bytes
        assert by_size[256] - {row["chunk_size"]: row["bytes"] for row in sig["chunk_sizes"]}[256] == steps * decays

    def test_the_fused_kernels_choose_an_l_of_their_own_where_they_run(self):
        long = ["--d-hv", "256", "--d-qk", "128", "--heads", "16", "--seq-len", "65536", "--batch", "1"]
        got = document("optimal-chunk", "--gpu", "H200", *long)["kernel"]
        assert (got["chunk_size"], got["segments"]) == (14592, 5)
        for words in (["--gpu", "A100"], ["--gpu", "H200", "--dtype", "float32"]):
            assert document("optimal-chunk", *words, *long)["kernel"]["segments"] is None


class TestGpus:
    def test_lists_every_gpu_its_sources_and_this_machine(self):
        text = output("gpus")
        for gpu in hardware.KNOWN:
            assert text.count(gpu.name) >= 2  # a row of figures, and its sources
        assert "This machine: Some CPU, 2 cores, 8 GiB, no NVIDIA GPU." in text
        assert "not measured yet: run tflabench calibrate" in text

    def test_json(self, monkeypatch):
        monkeypatch.setattr(machine, "detect", lambda device: Machine("cuda", "NVIDIA H200", 141 << 30, "580"))
        hardware.store_ceilings("NVIDIA H200", "bfloat16", Ceilings(782e12, 4.26e12, "measured", "calibrate"))
        got = document("gpus")
        assert [gpu["name"] for gpu in got["known"]] == [gpu.name for gpu in hardware.KNOWN]
        assert got["this_machine"]["known_as"] == "H200 SXM"
        assert got["this_machine"]["measured"]["bfloat16"]["bytes_per_s"] == 4.26e12


class TestRoofline:
    def test_draws_the_papers_gpus_into_the_working_directory(self, tmp_path):
        got = document("roofline")
        assert (tmp_path / "roofline.png").read_bytes().startswith(b"\x89PNG")
        assert got["file"] == "roofline.png"
        assert [gpu["name"] for gpu in got["gpus"]] == ["V100 SXM2 32GB", "A100 SXM 80GB", "H100 SXM"]
        h100 = {p["chunk_size"]: p for p in got["points"] if p["gpu"] == "H100 SXM"}
        assert list(h100) == [16, 64, 256, 1024, 4096]
        assert h100[64]["attainable_tflops"] == pytest.approx(h100[64]["intensity"] * 3.35)
        assert (h100[4096]["attainable_tflops"], h100[4096]["bound"]) == (989, "compute")

    def test_options(self, tmp_path):
        got = document("roofline", "--gpu", "H200,L40S", "--chunk-size", "128", "--out", "here.svg", "--gate", "exp")
        assert [(p["gpu"], p["chunk_size"]) for p in got["points"]] == [("H200 SXM", 128), ("L40S", 128)]
        assert (tmp_path / "here.svg").exists()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--pass", "decode"], "--pass is 'decode': one step has no chunks"),
        (["--d-qk", "0"], "--d-qk is 0: it must be at least 1"),
        (["--causal-factor", "0.3"], "--causal-factor is 0.3: it must lie in [0.5, 1]"),
        (["--memory-budget", "lots"], "--memory-budget is 'lots': it must be a size such as 8GiB"),
        (["--gpu", "H100,mine.toml"], "GPU mine.toml cannot be read"),
    ],
)
def test_bad_input_to_optimal_chunk(argv, said):
    refused(["optimal-chunk", *argv], said)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--chunk-size", "64:"], "chunk_size has '64:'"),
        (["--out", "roof"], "cannot draw roof: its suffix must be one of .png"),
    ],
)
def test_bad_input_to_roofline(argv, said):
    refused(["roofline", *argv], said)
