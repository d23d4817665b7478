"""The worker process: builds, verifies and measures one point at a time, so that a kernel can only kill this process.

Speaks JSON lines over its original standard input and output. A job is {"kind": "measure", ...} (or "verify",
"calibrate", "profile"); the answers are {"stage": ...} while it works and then one {"result": ...}. What kernels print
goes to standard error.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from tflabench.bench.protocol import Protocol
from tflabench.implementations.adapter import Unsupported
from tflabench.problem import Problem

if TYPE_CHECKING:
    from torch import Tensor

    from tflabench.bench.verify import Verdict
    from tflabench.implementations.adapter import Case, Implementation

PR_SET_PDEATHSIG = 1


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tflabench.bench.worker", description="Started by `tflabench sweep`."
    )
    parser.add_argument("--device", required=True, choices=("cuda", "cpu"))
    parser.add_argument("--memory-limit", type=int, help="bytes of host memory on top of what it takes to import torch")
    parser.add_argument("--plugin", action="append", default=[])
    options = parser.parse_args()
    _die_with_parent()
    jobs, answers = _take_pipes()
    worker = Worker(options.device, lambda answer: print(json.dumps(answer, default=str), file=answers, flush=True))
    worker.start(options.plugin, options.memory_limit)
    for line in jobs:
        worker.do(json.loads(line))


@dataclass(frozen=True)
class _Ready:
    """A point that is built, has run once, and has been verified; `step` is what is timed."""

    case: Case
    output_grad: Tensor | None
    step: Callable[[], object]
    first_call_s: float
    verdict: Verdict

    @property
    def held_bytes(self) -> int:
        held = (*self.case.inputs.values(), *(() if self.output_grad is None else (self.output_grad,)))
        return sum(tensor.nbytes for tensor in held)


class Worker:
    """Runs jobs on one device and answers each through `answer`."""

    def __init__(self, device: str, answer: Callable[[dict[str, Any]], None]) -> None:
        self.device_type = device
        self.answer = answer

    def start(self, plugins: list[str], memory_limit: int | None) -> None:
        """Import torch, register plugins, say what machine this is, cap the memory."""
        import torch

        from tflabench.bench import machine
        from tflabench.implementations import registry

        for plugin in plugins:
            registry.plug_in(plugin)
        if self.device_type == "cuda" and not torch.cuda.is_available():
            reason = f"torch {torch.__version__} finds no CUDA device: use --device cpu, or install the gpu extra"
            self.answer({"result": {"status": "unsupported", "reason": reason}})
            sys.exit()
        self.device = torch.device("cuda", 0) if self.device_type == "cuda" else torch.device("cpu")
        self.answer({"result": machine.torch_facts(self.device)})
        if memory_limit is not None:
            limit = _address_space_bytes() + memory_limit
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    def do(self, job: dict[str, Any]) -> None:
        """Answer one job; a failure that leaves Python running becomes a status and a reason."""
        kinds = {
            "measure": self.measure,
            "verify": self.verify,
            "calibrate": self.calibrate,
            "profile": self.profile,
        }
        try:
            result = kinds[job.pop("kind")](**job)
        except Exception as error:  # whatever a kernel raises is a result of measuring it
            status, reason = classify(error)
            result = {"status": status, "reason": reason}
        self.answer({"result": result | {"restart": not self._usable(result)}})

    def measure(self, implementation: str, problem: dict[str, Any], protocol: dict[str, Any]) -> dict[str, Any]:
        """The measured columns of a row: the gate first, then time, then memory in a pass of its own."""
        import torch

        from tflabench.bench.measure import Clocks, memory_of, time_calls
        from tflabench.implementations import registry
        from tflabench.implementations.packages import package_version

        rules = Protocol(**protocol)
        impl = registry.get(implementation)
        ready = self._prepare(impl, Problem(**problem), rules.verify_s)
        row = {
            "package_version": package_version(impl.package),
            "rel_error": ready.verdict.rel_error,
            "verified_steps": ready.verdict.steps,
            "details": ready.case.details | {"errors": {error.name: error.error for error in ready.verdict.errors}},
        }
        if ready.verdict.reason:
            return row | {"status": "wrong", "reason": ready.verdict.reason}
        clocks = Clocks(self.device)
        with torch.set_grad_enabled(ready.output_grad is not None):
            self.answer({"stage": "timing"})
            timing = time_calls(ready.step, self.device, rules, clocks)
            self.answer({"stage": "measuring memory"})
            memory = memory_of(ready.step, self.device, ready.held_bytes)
        if clocks.reasons:
            row["details"]["throttle_reasons"] = sorted(clocks.reasons)
        return row | {
            "status": "ok",
            **asdict(timing),
            **asdict(memory),
            "compile_s": max(0.0, ready.first_call_s - timing.ms_median / 1e3),
            "sm_clock_mhz": clocks.median_mhz,
            "throttled": clocks.throttled,
        }

    def verify(self, implementation: str, problem: dict[str, Any], budget_s: float) -> dict[str, Any]:
        """Return the error table of a point: `status` "ok" or "wrong", and every error as `verify.Error` has it."""
        from tflabench.implementations import registry

        verdict = self._prepare(registry.get(implementation), Problem(**problem), budget_s).verdict
        return {
            "status": "wrong" if verdict.reason else "ok",
            "reason": verdict.reason,
            "verified_steps": verdict.steps,
            "errors": [asdict(error) | {"wrong": error.wrong} for error in verdict.errors],
        }

    def calibrate(self, dtypes: list[str], seconds: float) -> dict[str, Any]:
        """Measured ceilings by dtype, as `tflabench.bench.calibrate.measure_ceilings` gives them."""
        from tflabench.bench.calibrate import measure_ceilings

        self.answer({"stage": "calibrating"})
        return {"status": "ok", "ceilings": measure_ceilings(self.device, dtypes, seconds)}

    def profile(self, implementation: str, problem: dict[str, Any], calls: int) -> dict[str, Any]:
        """Return the time of a call by GPU kernel or operator, as `profile.calls.Part` has it; `wrong` says if it is.

        With no `calls` to profile, makes one between the marks that Nsight Compute waits for.
        """
        import torch

        from tflabench.bench.measure import time_calls
        from tflabench.bench.profile.calls import counted_call, parts_of
        from tflabench.bench.protocol import SHORT
        from tflabench.implementations import registry

        ready = self._prepare(registry.get(implementation), Problem(**problem), SHORT.verify_s)
        with torch.set_grad_enabled(ready.output_grad is not None):
            self.answer({"stage": "profiling"})
            if not calls:
                counted_call(ready.step, self.device)
                return {"status": "ok"}
            ms = time_calls(ready.step, self.device, SHORT).ms_median
            parts = parts_of(ready.step, self.device, calls)
        return {
            "status": "ok",
            "ms_median": ms,
            "parts": [asdict(part) for part in parts],
            "wrong": ready.verdict.reason,
            "details": ready.case.details,
        }

    def _prepare(self, impl: Implementation, problem: Problem, verify_s: float) -> _Ready:
        """Build the case, run it once (which compiles), and verify it."""
        import torch

        from tflabench.bench.verify import verify

        self.answer({"stage": "building"})
        torch.manual_seed(problem.seed)
        case = impl.build(problem, self.device)
        leaves = [tensor for tensor in case.inputs.values() if tensor.requires_grad]
        backward = problem.pass_ == "fwbw"
        self.answer({"stage": "compiling and running for the first time"})
        with torch.set_grad_enabled(backward):
            start = time.perf_counter()
            output = case.forward()
            output_grad = torch.randn_like(output) if backward else None
            if backward:
                torch.autograd.grad(output, leaves, output_grad)
            self._synchronize()
            first_call_s = time.perf_counter() - start
        del output

        def step() -> None:
            """What is timed. The gradients are returned, not accumulated: there is nothing to clear between calls."""
            output = case.forward()
            if backward:
                torch.autograd.grad(output, leaves, output_grad)

        self.answer({"stage": "verifying"})
        return _Ready(case, output_grad, step, first_call_s, verify(case, output_grad, verify_s))

    def _synchronize(self) -> None:
        import torch

        if self.device_type == "cuda":
            torch.cuda.synchronize(self.device)

    def _usable(self, result: dict[str, Any]) -> bool:
        """Give memory back; False where this process should be replaced (a CUDA error leaves its context broken)."""
        import torch

        gc.collect()
        gc.freeze()  # what is left belongs to libraries: to look through it takes 0.1 s and more, twice a point
        if self.device_type == "cpu":
            return result["status"] != "oom"
        try:
            torch.cuda.synchronize(self.device)
            torch.cuda.empty_cache()
        except RuntimeError:
            return False
        return True


def classify(error: Exception) -> tuple[str, str]:
    """Status and one-line reason of what an implementation raised."""
    kinds = {cls.__name__ for cls in type(error).__mro__}
    text = " ".join(str(error).split())
    reason = f"{type(error).__name__}: {text}"[:500]
    if isinstance(error, Unsupported):
        return "unsupported", text
    if kinds & {"OutOfMemoryError", "MemoryError"} or "DefaultCPUAllocator" in text or "out of memory" in text.lower():
        return "oom", reason
    if type(error).__module__.startswith("triton") or kinds & {"TorchDynamoException", "InductorError"}:
        return "compile_error", reason
    return "error", reason


def _take_pipes() -> tuple[TextIO, TextIO]:
    """Keep the original standard input and output for the protocol and give everybody else empty input and stderr."""
    jobs, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    return jobs, answers


def _die_with_parent() -> None:
    """A sweep that is killed takes its worker with it, whatever the worker is doing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _address_space_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


if __name__ == "__main__":
    main()
