"""tflabench profile: reading ncu, time by operator on the CPU, a stand-in for Nsight Compute, bad input."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from forked_workers import fork_workers
from repository import ROOT
from typer.testing import CliRunner

from tflabench.bench.machine import Machine
from tflabench.bench.profile import counters
from tflabench.bench.profile import point as profiles
from tflabench.bench.profile.calls import merge
from tflabench.bench.profile.counters import KernelCounters
from tflabench.cli.main import app
from tflabench.implementations import registry
from tflabench.kernels.scalar.plan.tfla import planned
from tflabench.problem import Problem
from tflabench.selection.points import Point
from tflabench.theory import calibrated, hardware, tfla
from tflabench.theory.cost import Cost
from tflabench.theory.hardware import Ceilings
from tflabench.theory.launches import Chip

COLUMNS = "ID,Process ID,Process Name,Host Name,Kernel Name,Context,Stream,Block Size,Grid Size,Device,CC".split(",")


def table(metrics: dict[str, str], *launches: tuple[str, dict[str, str]]) -> str:
    """ncu's output in its own format: notes, a header, units, launches."""

    def line(cells: list[str]) -> str:
        return ",".join(f'"{cell}"' for cell in cells)

    lines = ["==PROF== Connected to process 42 (/usr/bin/python3.12)", '==PROF== Profiling "states": 0%....100%']
    lines += [line([*COLUMNS, *metrics]), line([*("" for _ in COLUMNS), *metrics.values()])]
    for n, (kernel, values) in enumerate(launches):
        cells = [str(n), "42", "python3.12", "127.0.0.1", kernel, "1", "7", "(128, 1, 1)", "(4, 16, 1)", "0", "9.0"]
        lines.append(line([*cells, *(values[name] for name in metrics)]))
    return "\n".join([*lines, "==PROF== Disconnected from process 42"]) + "\n"


BF16 = counters.BF16
FFMA, FADD, FMUL = counters.SCALAR


def test_launches_of_a_kernel_are_summed_and_separators_understood():
    metrics = {counters.DURATION: "ns", counters.DRAM: "byte", BF16: "", FFMA: "inst", FADD: "inst", FMUL: "inst"}
    one = {counters.DURATION: "1,250,500", counters.DRAM: "3500000", BF16: "4000000", FFMA: "10", FADD: "3", FMUL: "2"}
    other = {counters.DURATION: "9,500", counters.DRAM: "500,000", BF16: "0", FFMA: "0", FADD: "0", FMUL: "1"}
    outputs, gates = counters.read_ncu(table(metrics, ("outputs", one), ("gates", other), ("gates", other)))
    assert outputs.ms == pytest.approx(1.2505)
    found = (outputs.name, outputs.launches, outputs.dram_bytes, outputs.tensor_flops, outputs.scalar_flops)
    assert found == ("outputs", 1, 3.5e6, 4e6, 2 * 10 + 3 + 2)
    assert outputs.intensity == pytest.approx((4e6 + 25) / 3.5e6)
    assert (gates.launches, gates.ms, gates.dram_bytes) == (2, pytest.approx(0.019), 1e6)
    whole = counters.total([outputs, gates])
    assert (whole.launches, whole.dram_bytes, whole.flops) == (3, 4.5e6, 4e6 + 27)


def test_what_ncu_wrote_on_an_h200_is_read():
    """mLSTMsig forward, 65,536 tokens, 16 heads, 128/256, L = 256: states multiply 2 d_qk d_hv a step and head."""
    states, outputs = counters.read_ncu((RECORDED / "ncu-h200-tfla_sig_xl-fw.csv").read_text())[2:]
    assert (states.name, outputs.name) == ("chunk_states", "parallel_outputs")
    steps = 65536 * 16
    assert states.tensor_flops == steps * 2 * 128 * 256
    inputs, stored = steps * (128 + 256) * 2, steps / 256 * 128 * 256 * 2
    assert states.dram_bytes == pytest.approx(inputs + stored, rel=0.05)
    assert outputs.dram_bytes == pytest.approx(steps * (2 * 128 + 2 * 256) * 2 + stored, rel=0.05)
    assert outputs.ms == pytest.approx(0.668, abs=1e-3)


TOLD = (("chunk_states", 3), ("parallel_outputs", 4))


def test_launches_of_a_long_kernel_are_told_apart_as_recorded():
    found = counters.read_ncu((RECORDED / "ncu-h200-tfla_exp_xl-fwbw.csv").read_text())
    long = [kernel.name for kernel in found if "#" in kernel.name]
    assert sorted(long) == [
        *(f"chunk_states #{n}" for n in (1, 2, 3)),
        *(f"parallel_outputs #{n}" for n in (1, 2, 3, 4)),
    ]
    (gates,) = [kernel for kernel in found if kernel.name == "_sum_tiles"]
    assert gates.launches == 3
    assert counters.total(found).tensor_flops == pytest.approx(1022e9, rel=1e-3)


def test_float16_is_counted_once_whichever_names_the_gpu_has():
    both = {counters.DURATION: "ns", counters.FP16: "", counters.FP16_TO_FP32: ""}
    values = {counters.DURATION: "1", counters.FP16: "80", counters.FP16_TO_FP32: "60"}
    (kernel,) = counters.read_ncu(table(both, ("k", values)))
    assert kernel.tensor_flops == 80
    one = {counters.DURATION: "ns", counters.FP16_TO_FP32: ""}
    (kernel,) = counters.read_ncu(table(one, ("k", values)))
    assert kernel.tensor_flops == 60


def test_calls_are_merged_by_kernel_with_medians():
    calls = [[("a", ms), ("small", 0.01), ("a", 2.0), ("small", 0.01)] for ms in (1.0, 5.0, 1.2)]
    parts = {part.name: (part.launches, part.ms) for part in merge(calls)}
    assert parts == {"a #1": (1, 1.2), "small": (2, pytest.approx(0.02)), "a #2": (1, 2.0)}
    unlike = merge([calls[0], calls[0][:2]])
    assert {part.name: part.launches for part in unlike} == {"a": 2, "small": 2}
    assert unlike[0].ms == pytest.approx((3.0 + 1.0) / 2)


def test_a_counter_that_the_gpu_lacks_is_missing_not_zero():
    metrics = {counters.DURATION: "nsecond", counters.DRAM: "byte", BF16: ""}
    values = {counters.DURATION: "2000", counters.DRAM: "64", BF16: "n/a"}
    (kernel,) = counters.read_ncu(table(metrics, ("k", values)))
    assert (kernel.ms, kernel.tensor_flops, kernel.scalar_flops) == (pytest.approx(2e-3), None, None)
    assert kernel.flops is None
    assert kernel.intensity is None
    assert counters.total([kernel]).flops is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters "
            "on the target device 0. For instructions on enabling permissions see https://developer.nvidia.com/\n",
            "this user may not read the GPU's counters: run as root",
        ),
        ("==ERROR== Failed to initialize the profiler: LibraryNotLoaded\n", "use another machine"),
        ("==PROF== Connected to process 1\n==WARNING== No kernels were profiled.\n", "launched no GPU kernel"),
        ("==ERROR== Unknown Error on device 0.\n", "ncu gave no counters: Unknown Error on device 0."),
        ("", "ncu gave no counters; --no-counters leaves them out"),
    ],
)
def test_no_counters_is_explained(text, reason):
    assert counters.read_ncu(text) == []
    assert reason in counters.why_not(text)
    assert "\n" not in counters.why_not(text)


RECORDED = ROOT / "tests" / "data"
GPU = Machine("cuda", "NVIDIA H200", 141 << 30)
CPU = Machine("cpu", "a CPU, 2 cores", 8 << 30)
SMALL = "--device cpu --seq-len 64 --batch 1 --heads 1 --d-qk 8 --d-hv 8 --calls 2".split()

FAKE_NCU = """#!{python}
import pathlib, subprocess, sys
words = sys.argv[1:]
assert "off" == words[words.index("--profile-from-start") + 1]
assert "none" == words[words.index("--clock-control") + 1]
log = pathlib.Path(words[words.index("--log-file") + 1])
worker = words[words.index("--log-file") + 2 :]
done = subprocess.run(worker, capture_output=True, text=True)
log.write_text(done.stdout + open({table!r}).read())
"""


@pytest.fixture
def ncu(tmp_path, monkeypatch):
    """A program in place of ncu, which runs the worker and then writes a table of counters."""
    metrics = {counters.DURATION: "ns", counters.DRAM: "byte", counters.BF16: ""}
    values = {counters.DURATION: "2000", counters.DRAM: "1000", counters.BF16: "50000"}
    (tmp_path / "table").write_text(table(metrics, ("outputs", values)))
    program = tmp_path / "ncu"
    program.write_text(FAKE_NCU.format(python=sys.executable, table=str(tmp_path / "table")))
    program.chmod(0o755)
    monkeypatch.setenv(profiles.NCU, str(program))
    return program


def invoke(*words: str):
    return CliRunner().invoke(app, ["profile", *words])


def test_the_cpu_is_profiled_by_operator(monkeypatch):
    fork_workers(monkeypatch)
    done = invoke(*SMALL, "--pass", "fwbw", "--json")
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    parts = {part["name"]: part for part in result["parts"]}
    assert parts["aten::bmm"]["launches"] >= 1
    assert parts["aten::bmm"]["ms"] > 0
    assert result["implementation"] == "reference_sig"
    assert result["pass"] == "fwbw"
    assert result["wrong"] is None
    assert result["ms_median"] > 0
    assert result["no_counters"] == "counters are those of NVIDIA GPUs, and this is a CPU"
    assert result["model"]["intensity"] == pytest.approx(result["model"]["flops"] / result["model"]["bytes"])


def test_a_job_reaches_the_worker_under_ncu_and_its_counters_come_back(ncu):
    echo = [sys.executable, "-c", "import sys; print('got', sys.argv)", "--job", '{"calls": 0}']
    text, why_not = profiles.run_ncu(echo, GPU, timeout_s=60)
    assert why_not is None
    assert "'--job', '{" in text
    (kernel,) = counters.read_ncu(text)
    assert (kernel.name, kernel.intensity) == ("outputs", 50.0)


def test_a_worker_that_hangs_under_ncu_is_given_up(ncu):
    hang = [sys.executable, "-c", "import time; time.sleep(30)"]
    assert profiles.run_ncu(hang, GPU, timeout_s=0.5)[1] == (
        "ncu took more than 0.5 s: give a longer --timeout, or a smaller problem"
    )


def test_where_ncu_is_missing_and_where_there_is_no_gpu_it_says_so(monkeypatch):
    monkeypatch.setenv(profiles.NCU, "/no/such/program")
    assert "not installed" in str(profiles.run_ncu([], GPU, 1)[1])
    assert "this is a CPU" in str(profiles.run_ncu([], CPU, 1)[1])


def profile(counted: tuple[KernelCounters, ...], parts: int = 3) -> profiles.Profile:
    problem = Problem(16, 16, 4096, 128, 256, chunk_size=256)
    return profiles.Profile(
        point=Point(registry.get("tfla_sig_xl"), problem),
        problem=problem,
        machine=GPU,
        ms=1.3,
        parts=tuple({"name": f"kernel_{n}", "launches": 1, "ms": 0.1 * (n + 1)} for n in range(parts)),
        counted=counted,
        why_not_counted=None if counted else "ncu is not installed",
        model=Cost(4e11, 3e9),
        expected=None,
        ceilings=Ceilings(8e14, 4e12, "measured", "test"),
        wrong=None,
    )


# What an H200 counted of mLSTMexp forward + backward over what is modelled: FLOPs, bytes, by kernel. The state walk has
# n in columns of its own, a quarter more; H and dQ skip the product with the state of the first of 16 chunks: it is 0.
COUNTED = {
    "C": (1.25, 1.018), "H": (0.978, 0.988), "C, again": (1.25, 1.019), "dC": (1.0, 1.027), "dQ": (0.978, 1.010),
    "dK": (1.0, 1.012), "dV": (1.0, 0.999),
}  # fmt: skip
FLOPS_WITHIN, BYTES_WITHIN = 0.002, 0.005


def recorded_pairs() -> list[tuple[str, str, float, float]]:
    """(counted kernel, modelled kernel, FLOPs counted over modelled, bytes likewise) of the recorded call."""
    impl, problem = registry.get("tfla_exp_xl"), Problem(16, 16, 4096, 128, 256, chunk_size=256, pass_="fwbw")
    counted = counters.read_ncu((RECORDED / "ncu-h200-tfla_exp_xl-fwbw.csv").read_text())
    assert impl.modelled is not None
    chip = Chip.of(hardware.find("H200"), Ceilings(782e12, 4.262e12, "measured", "test"))
    made = [launch for launch in calibrated.launches(problem, impl.modelled, chip.device) if any(launch.flops.values())]
    return [
        (kernel.name, launch.name, (kernel.tensor_flops or 0) / sum(launch.flops.values()),
         (kernel.dram_bytes or 0) / sum(launch.moved.values()))
        for kernel, launch in zip([kernel for kernel in counted if kernel.tensor_flops], made, strict=True)
    ]  # fmt: skip


def test_counted_kernels_are_as_near_the_calibrated_models_as_they_were():
    pairs = recorded_pairs()
    assert [(counted, made) for counted, made, *_ in pairs] == [
        ("chunk_states #1", "C"),
        ("parallel_outputs #1", "H"),
        ("chunk_states #2", "C, again"),
        ("chunk_states #3", "dC"),
        ("parallel_outputs #2", "dQ"),
        ("parallel_outputs #3", "dK"),
        ("parallel_outputs #4", "dV"),
    ]
    for _, made, flops, moved in pairs:
        assert flops == pytest.approx(COUNTED[made][0], abs=FLOPS_WITHIN), made
        assert moved == pytest.approx(COUNTED[made][1], abs=BYTES_WITHIN), made


def planned_with(tiles: tfla.Tiles) -> Callable[..., Any]:
    """Return what plans a call with other tiles of its parallel kernels."""
    outputs = SimpleNamespace(tiles=tiles, members=1)
    parallel = dict.fromkeys(("h", "dq", "dk", "dv"), outputs)
    return lambda *call: SimpleNamespace(**parallel, forward_states=planned(*call).forward_states)


@pytest.mark.parametrize(
    ("where", "name", "wrong"),
    [
        (tfla, "TILE_GATES", 0),  # gates' sums within tiles are not read
        (calibrated, "STATE_BYTES", {"tfla": 4, "unpipelined": 4}),  # chunk states in float32
        (tfla, "planned", planned_with(tfla.Tiles(128, 64, 128, 256, 8, 3))),  # tiles of other kernels
        (tfla, "planned", planned_with(tfla.Tiles(64, 64, 128, 128, 4, 2))),
        (tfla, "state_elements", lambda gate, d_qk, d_hv: d_qk * d_qk),  # a state of the wrong shape
    ],
)
def test_a_wrong_count_is_further_from_the_counters(where, name, wrong, monkeypatch):
    monkeypatch.setattr(where, name, wrong)
    off = [
        abs(flops - COUNTED[made][0]) > FLOPS_WITHIN or abs(moved - COUNTED[made][1]) > BYTES_WITHIN
        for _, made, flops, moved in recorded_pairs()
    ]
    assert any(off)


def test_what_the_calibrated_model_does_not_know_is_left_out():
    sizes = Problem(16, 16, 4096, 128, 256, chunk_size=256)
    ceilings = Ceilings(1e12, 1e11, "measured", "test")
    for name, problem, machine in (
        ("reference_sig", sizes, GPU),
        ("tfla_sig_xl", sizes.with_(dtype="float32"), GPU),
        ("tfla_sig_xl", sizes, Machine("cuda", "NVIDIA Unheard Of", 1 << 30)),
    ):
        assert profiles.expected_call(registry.get(name), problem, machine, ceilings) is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--impl", "reference_*"], "impl is 'reference_*', which matches"),
        (["--impl", "tfla_sig_xl"], "tfla_sig_xl cannot run here: it needs a CUDA device"),
        (["--pass", "both"], "pass is 'both': it must be one of fw, fwbw, decode"),
        (["--calls", "0"], "Invalid value for '--calls'"),
    ],
)
def test_bad_input_is_one_sentence(words, message):
    done = invoke(*SMALL, *words)
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
