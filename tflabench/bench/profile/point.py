"""Profiles a point: time by kernel from a worker process, counters from another one that runs under Nsight Compute."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tflabench.bench.ceilings import ceilings_of
from tflabench.bench.machine import Machine
from tflabench.bench.profile import counters
from tflabench.bench.profile.counters import KernelCounters
from tflabench.bench.rows_of_run import modelled
from tflabench.bench.workers import WORKER, one_worker
from tflabench.implementations import registry
from tflabench.implementations.adapter import Implementation
from tflabench.problem import InputError, Problem
from tflabench.selection.points import Point
from tflabench.theory import calibrated, hardware, roofline
from tflabench.theory.cost import Cost
from tflabench.theory.hardware import Ceilings
from tflabench.theory.launches import Chip
from tflabench.theory.roofline import TimeBounds

NCU = "TFLABENCH_NCU"  # environment variable: where ncu is, if not on the PATH
# Of each kind of device, where nothing is said: the paper's Fig. 4 at T = 4096, and what a CPU does in a moment.
DEFAULTS: dict[str, dict[str, Any]] = {
    "cuda": {
        "impl": "tfla_sig_xl", "batch": 16, "heads": 16, "seq_len": 4096, "d_qk": 128, "d_hv": 256, "dtype": "bfloat16",
    },
    "cpu": {
        "impl": "reference_sig", "batch": 1, "heads": 2, "seq_len": 1024, "d_qk": 64, "d_hv": 128, "dtype": "float32",
    },
}  # fmt: skip
USUAL_PLACES = ("/usr/local/cuda/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu")


class Expected(NamedTuple):
    """A call by the calibrated model: milliseconds, bytes through memory, FLOPs of matrix products."""

    ms: float
    bytes: float
    flops: float


@dataclass(frozen=True)
class Profile:
    """One call of a point, taken apart.

    Attributes:
        problem: with the chunk size that the implementation chose.
        ms: of a whole call, as `tflabench sweep` times it, without any profiler.
        parts: GPU kernels (CPU: operators) as {"name", "launches", "ms"}.
        counted: counters by GPU kernel; empty where there are none, and `why_not_counted` says why.
        model: FLOPs and bytes of the algorithm; `bounds`: the time that they take on `ceilings`, in seconds.
        expected: by the calibrated model; None where it does not know the call.
        wrong: how the result differs from float64, if it does.
    """

    point: Point
    problem: Problem
    machine: Machine
    ms: float
    parts: tuple[dict[str, Any], ...]
    counted: tuple[KernelCounters, ...]
    why_not_counted: str | None
    model: Cost
    expected: Expected | None
    ceilings: Ceilings
    wrong: str | None

    @property
    def bounds(self) -> TimeBounds:
        """Return the time that FLOPs and bytes take on the ceilings."""
        return roofline.time_bounds(self.model, self.ceilings)

    @property
    def total(self) -> KernelCounters | None:
        """The counters of the whole call."""
        return counters.total(self.counted) if self.counted else None


def chosen_point(
    machine: Machine, sizes: Mapping[str, Any], *, chunk_size: int | None = None, pass_: str = "fw"
) -> Point:
    """Return the point to profile, by DEFAULTS where `sizes` has None or nothing.

    Raises:
        InputError: a size, dtype or pass that no problem has, or `impl` matches none or several implementations.
    """
    given = {name: value for name, value in sizes.items() if value is not None}
    usual: dict[str, Any] = DEFAULTS[machine.kind] | ({"seq_len": 1} if pass_ == "decode" else {}) | given
    implementation, *more = registry.select(usual.pop("impl"))
    if more:
        raise InputError(f"impl is {given['impl']!r}, which matches {1 + len(more)} implementations: it must match one")
    problem: Any = {**usual, "chunk_size": chunk_size, "pass_": pass_}
    return Point(implementation, Problem(**problem))


def profile(
    point: Point,
    machine: Machine,
    *,
    calls: int = 7,
    count: bool = True,
    timeout_s: float = 300.0,
    plugins: Sequence[str] = (),
) -> Profile:
    """Profile a point on this machine.

    Args:
        calls: profiled calls; the median of each kernel's time counts.
        count: also read the hardware counters, where they can be read.

    Raises:
        InputError: the point cannot run here, with its reason.
    """
    impl, problem = point.implementation, point.problem
    if reason := impl.refuses(problem, machine.kind):
        raise InputError(f"{impl.name} cannot run here: it {reason}")
    job = {"kind": "profile", "implementation": impl.name, "problem": asdict(problem), "calls": calls}
    with one_worker(machine.kind, plugins) as workers:
        result = workers.ask(job, timeout_s)
        if result["status"] != "ok":
            raise InputError(f"{impl.name} cannot be profiled here ({result['status']}): {result['reason']}")
        ceilings = ceilings_of(machine, [problem.dtype], workers.ask)[problem.dtype]
    used = problem.with_(chunk_size=result["details"].get("chunk_size", problem.chunk_size))
    counted: list[KernelCounters] = []
    why_not: str | None = "not asked for"
    if count:
        settings = {"device": machine.kind, "plugins": list(plugins), "memory_limit": None, "job": job | {"calls": 0}}
        text, why_not = run_ncu([sys.executable, "-P", "-m", WORKER, json.dumps(settings)], machine, timeout_s)
        counted = counters.read_ncu(text)
        why_not = None if counted else why_not or counters.why_not(text)
    theory = modelled(impl, used, ceilings, None)
    return Profile(
        point=point,
        problem=used,
        machine=machine,
        ms=result["ms_median"],
        parts=tuple(result["parts"]),
        counted=tuple(counted),
        why_not_counted=why_not,
        model=Cost(theory["model_flops"], theory["model_bytes"]),
        expected=expected_call(impl, used, machine, ceilings),
        ceilings=ceilings,
        wrong=result["wrong"],
    )


def expected_call(impl: Implementation, problem: Problem, machine: Machine, ceilings: Ceilings) -> Expected | None:
    """Return a call by the calibrated model; None where it does not know it."""
    gpu = hardware.from_device_name(machine.name)
    if impl.modelled is None or gpu is None:
        return None
    try:
        chip = Chip.of(gpu, ceilings)
        launches = calibrated.launches(problem, impl.modelled, chip.device)
    except InputError:  # a size, a dtype or a GPU that this model knows too little of
        return None
    return Expected(
        ms=1e3 * sum(sum(launch.times(chip).values()) for launch in launches),
        bytes=sum(sum(launch.moved.values()) for launch in launches),
        flops=sum(sum(launch.flops.values()) for launch in launches),
    )


def run_ncu(worker: Sequence[str], machine: Machine, timeout_s: float) -> tuple[str, str | None]:
    """Return what ncu wrote of the command line of a worker, or "" and why it could not run."""
    if machine.kind != "cuda":
        return "", "counters are those of NVIDIA GPUs, and this is a CPU"
    ncu = find_ncu()
    if ncu is None:
        return "", f"ncu (Nsight Compute) is not installed: put it on the PATH, or set {NCU} to it"
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "ncu.csv"
        command = [ncu, "--csv", "--page", "raw", "--print-units", "base", "--metrics", ",".join(counters.METRICS)]
        command += ["--profile-from-start", "off", "--clock-control", "none", "--log-file", str(log), *worker]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return "", f"ncu took more than {timeout_s:g} s: give a longer --timeout, or a smaller problem"
        return (log.read_text() if log.exists() else "") + done.stderr, None


def find_ncu() -> str | None:
    """Return the path of Nsight Compute's command: TFLABENCH_NCU, on the PATH, or where it is usually installed."""
    if given := os.environ.get(NCU):
        return shutil.which(given)
    usual = [str(path) for place in USUAL_PLACES for path in sorted(Path("/").glob(place.lstrip("/")))]
    return shutil.which("ncu") or (usual[-1] if usual else None)
