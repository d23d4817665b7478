"""The worker process: builds, checks and measures one point at a time, so that a kernel can only kill this process.

A job is {"kind": "prepare", ...} (or "warm", "turn", "verify", "calibrate", "profile"); the answers are {"stage": ...}
while it works and then one {"result": ...}. What kernels print goes to its log. Between two jobs it holds no tensors:
whatever a job needs it draws anew from the seed.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import secrets
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tflabench.bench.child import die_with_parent
from tflabench.bench.protocol import Protocol
from tflabench.bench.warming import NICENESS, stand_when_asked, wait_at, warming
from tflabench.implementations.adapter import Unsupported
from tflabench.problem import Problem

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from tflabench.bench.inputs import InputSlots
    from tflabench.bench.verify import Verdict
    from tflabench.implementations.adapter import Case

STATM = Path("/proc/self/statm")  # where a process has its size; Linux alone has it, and without it there is no limit


def main() -> None:
    """Answer jobs from the pipe that the second argument names by its descriptor, until it closes.

    The first argument is an object in JSON: `device`, `plugins` and `memory_limit` (bytes of host memory on top of what
    it takes to import torch, or null). Without a second one it has a `job` too: the only one, of which nobody hears.
    """
    options, *descriptor = sys.argv[1:]
    settings = json.loads(options)
    die_with_parent()
    if descriptor:
        serve(Connection(int(descriptor[0])), **settings)
        return
    job = settings.pop("job")
    worker = Worker(settings.pop("device"), lambda answer: None)
    worker.start(**settings)
    worker.do(job)


def serve_forked(jobs: int, log: int, gate: int | None = None, *, device: str, plugins: Sequence[str]) -> None:
    """Serve jobs in a process that a fork server has made, over a socket, with `log` for what kernels print.

    Args:
        gate: what it stands at when it is asked to, as it warms up and measures nothing; None for one that measures.

    Raises:
        RuntimeError: the server has used CUDA.
    """
    import torch

    for stream in (1, 2):
        os.dup2(log, stream)
    pipe = Connection(jobs)
    if gate is not None:
        os.nice(NICENESS)
        stand_when_asked(gate, pipe)
    pipe.send({"stage": "starting", "pid": os.getpid()})
    if gate is not None:
        wait_at(gate)
    if torch.cuda.is_initialized() or torch.cuda._is_in_bad_fork():
        raise RuntimeError("CUDA was used before this process was forked: it cannot measure")
    serve(pipe, device, plugins, None, warms_up=gate is not None)


def serve(
    pipe: Connection, device: str, plugins: Sequence[str], memory_limit: int | None, warms_up: bool = False
) -> None:
    """Answer jobs from a pipe until it closes; `memory_limit` is in bytes, on top of what this process has."""
    worker = Worker(device, pipe.send)
    with contextlib.suppress(EOFError, ConnectionError):
        worker.start(plugins, memory_limit, warms_up)
        while True:
            worker.do(pipe.recv())


@dataclass(frozen=True)
class _Ready:
    """A point that is built and has run once, with a `digest` of its results; `step` is what is timed."""

    case: Case
    inputs: InputSlots
    output_grad: Tensor | None
    step: Callable[[], object]
    first_call_s: float
    digest: dict[str, list[float]]

    @property
    def held_bytes(self) -> int:
        held = (*self.case.inputs.values(), *(() if self.output_grad is None else (self.output_grad,)))
        return sum(tensor.nbytes for tensor in held)


class Worker:
    """Runs jobs on one device and answers each through `answer`."""

    def __init__(self, device: str, answer: Callable[[dict[str, Any]], None]) -> None:
        self.device_type = device
        self.answer = answer

    def start(self, plugins: Sequence[str], memory_limit: int | None, warms_up: bool = False) -> None:
        """Import torch, register plugins, say what machine this is, cap the memory."""
        import torch

        from tflabench.bench import machine, measure, verify  # noqa: F401  what they bind, plugins cannot replace
        from tflabench.implementations import registry

        for plugin in plugins:
            registry.plug_in(plugin)
        if self.device_type == "cuda" and find_spec("triton"):
            from tflabench.bench.warming import key_callees_first

            key_callees_first()  # or what was compiled before is not found
        if self.device_type == "cuda" and not torch.cuda.is_available():
            reason = f"torch {torch.__version__} finds no CUDA device: use --device cpu, or install the gpu extra"
            self.answer({"result": {"status": "unsupported", "reason": reason}})
            sys.exit()
        self.device = torch.device("cuda", 0) if self.device_type == "cuda" else torch.device("cpu")
        self.answer({"result": machine.torch_facts(self.device)})
        if self.device_type == "cuda" and not warms_up:
            threading.Thread(target=_load_matrix_library, args=(self.device,), daemon=True).start()
        if memory_limit is not None and STATM.exists():
            pages = int(STATM.read_text().split()[0])
            limit = pages * resource.getpagesize() + memory_limit
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    def do(self, job: dict[str, Any]) -> None:
        """Answer one job; a failure that leaves Python running becomes a status and a reason."""
        apart = False  # ranks that have not done the same
        try:
            result = getattr(self, job.pop("kind"))(**job)
        except Exception as error:  # whatever a kernel raises is a result of measuring it
            status, reason = classify(error)
            result = {"status": status, "reason": reason}
            apart = status != "unsupported" and bool(job.get("problem", {}).get("ranks"))
        # Of what a plugin tells, another process may know no class, and a file may have no such letter.
        plain = json.loads(json.dumps(result, default=str, ensure_ascii=False).encode(errors="replace"))
        self.answer({"result": plain | {"restart": apart or not self._usable(result)}})

    def warm(
        self, implementation: str, problem: dict[str, Any], replay: Mapping[str, dict[str, Any]] | None = None
    ) -> dict[str, Any]:
        """Make the first call of a point for what it compiles; `cpu_seconds` is what that took."""
        from tflabench.bench.tuning import tuning

        begin = _cpu_seconds()
        with warming(), tuning(None, replay):
            self._ready(implementation, Problem(**problem))
        return {"status": "ok", "reason": None, "cpu_seconds": _cpu_seconds() - begin}

    def prepare(
        self,
        implementation: str,
        problem: dict[str, Any],
        verify_s: float,
        tune_s: float | None = None,
        replay: Mapping[str, dict[str, Any]] | None = None,
    ) -> dict[str, Any]:
        """Compile, tune and check a point; return the columns of its row that no turn changes.

        Besides columns: `digest` of the results (see `answers`), and `allowed`, the error allowed by result.
        """
        from tflabench.bench.answers import digest, no_longer_finite
        from tflabench.bench.measure import memory_of
        from tflabench.bench.tuning import tuning
        from tflabench.implementations import registry
        from tflabench.implementations.packages import package_version

        impl = registry.get(implementation)
        with tuning(tune_s, replay) as tuned:
            ready = self._ready(implementation, Problem(**problem))
        seed = secrets.randbits(31)
        start = time.perf_counter()
        verdict = self._checked(ready, problem["dtype"], verify_s, seed)
        checked = time.perf_counter() - start
        with self._gradients(ready):
            self.answer({"stage": "measuring memory"})
            memory = memory_of(ready.step, self.device, ready.held_bytes)
        last = digest(self._results(ready))
        reason = verdict.reason or no_longer_finite(ready.digest, last)
        details = ready.case.details | {"errors": {error.name: error.error for error in verdict.errors}}
        details |= {"check_seed": seed, "checked_slices": verdict.slices, "projected_slices": verdict.projected}
        return {
            "status": "wrong" if reason else "ok",
            "reason": reason,
            "package_version": package_version(impl.package),
            "rel_error": verdict.rel_error,
            "verified_steps": verdict.steps,
            "details": details | {"allowed": {error.name: error.allowed for error in verdict.errors}},
            "compile_s": max(0.0, ready.first_call_s - tuned.seconds),
            "check_s": checked,
            **tuned.columns(),
            **memory,
            "digest": ready.digest | last,
        }

    def turn(
        self, implementation: str, problem: dict[str, Any], protocol: dict[str, Any], names: bool = False
    ) -> dict[str, Any]:
        """Sample a point that this process has prepared; its `turn` is a `timing.Turn`, its `columns` are of the row.

        Args:
            names: also say which GPU kernels a call launches, as a column, and take the protocol's other times; a
                profiler looks after the samples.
        """
        from tflabench.bench.answers import digest
        from tflabench.bench.measure import Clocks, take_turn
        from tflabench.bench.profile.calls import launched

        start = time.perf_counter()
        ready = self._ready(implementation, Problem(**problem))
        rules = Protocol(**protocol)
        clocks = Clocks(self.device, rules.locked_mhz)
        columns: dict[str, Any] = {}
        with self._gradients(ready):
            self.answer({"stage": "timing"})
            restore, unseen = ready.inputs.restore, ready.inputs.unseen
            turn = take_turn(ready.step, self.device, rules, clocks, before=restore, unseen=unseen)
            if names:
                columns = {"gpu_kernels": launched(ready.step, self.device), "locked_mhz": rules.locked_mhz}
                columns |= self._other_times(ready, implementation, Problem(**problem), rules)
        ready.inputs.require_unchanged()
        ready.inputs.change()  # to what was checked
        results = self._results(ready)
        ready.inputs.require_unchanged()
        return {
            "status": "ok",
            "columns": columns,
            "turn": asdict(turn),
            "sm_clock_mhz": clocks.median_mhz,
            "throttled": clocks.throttled,
            "throttle_reasons": sorted(clocks.reasons),
            "digest": ready.digest | digest(results),
            "seconds": time.perf_counter() - start,
        }

    def _other_times(self, ready: _Ready, name: str, problem: Problem, rules: Protocol) -> dict[str, Any]:
        """Return the columns of other times than the cold one; `untimed` says why one is missing, by its name."""
        import torch

        from tflabench.bench import other_times
        from tflabench.bench.measure import Clocks
        from tflabench.implementations import registry

        cuda = self.device_type == "cuda"
        wait = partial(torch.cuda.synchronize, self.device) if cuda else lambda: None

        def graph() -> dict[str, Any]:
            if not cuda:
                raise RuntimeError("a CPU has no CUDA graphs")
            if problem.ranks:
                raise RuntimeError("a call on several devices is not captured")
            l2_bytes = torch.cuda.get_device_properties(self.device).L2_cache_size
            calls = other_times.calls_of_graph(ready.held_bytes, l2_bytes)
            cases = [registry.get(name).build(problem, self.device) for _ in range(calls - 1)]
            steps = [ready.step, *(step_of(case, ready.output_grad) for case in cases)]
            replay = other_times.captured(steps, self.device)
            return other_times.back_to_back(replay, calls, wait, Clocks(self.device))

        columns: dict[str, Any] = {}
        untimed: dict[str, str] = {}
        if "eager" in rules.times:
            self.answer({"stage": "timing with the host"})
            columns["ms_eager"] = other_times.eager_ms(ready.step, wait)
        alone = partial(self._of_rows, ready, name, problem, rules)
        for what, measure in (("alone", alone), ("graph", graph)):
            if what in rules.times:
                self.answer({"stage": "timing rows" if what == "alone" else "timing a CUDA graph"})
                try:
                    columns |= measure()
                except Exception as error:  # whatever a kernel raises where it is captured, or takes no such batch
                    untimed[what] = classify(error)[1]
        return columns | {"times": list(rules.times), "untimed": untimed}

    def _of_rows(self, ready: _Ready, name: str, problem: Problem, rules: Protocol) -> dict[str, Any]:
        """Return the columns that say what times and bits of a row of the batch depend on."""
        from tflabench.bench import other_times
        from tflabench.bench.measure import take_turn
        from tflabench.implementations import registry
        from tflabench.implementations.adapter import differentiate

        ours = ready.case.call if ready.case.decode else None
        if problem.ranks or (problem.batch == 1 and ours is None):
            raise RuntimeError("a call on several devices" if problem.ranks else "there is one row")
        columns: dict[str, Any] = {}
        same: list[str] = []
        if problem.batch > 1:
            case = registry.get(name).build(problem.with_(batch=1), self.device)
            for key, x in case.inputs.items():
                given = ready.case.inputs[key]
                x.data.copy_(given if given.shape == x.shape else given[:1])
            grad = None if ready.output_grad is None else ready.output_grad[:1]
            of_row = differentiate(lambda _: case.forward(), case.inputs, grad)
            of_batch = {key: x for key, x in self._results(ready).items() if x.shape != of_row[key].shape}
            same.append(other_times.invariance((x[:1], of_row[key]) for key, x in of_batch.items()))
            columns["ms_alone"] = problem.batch * take_turn(step_of(case, grad), self.device, rules.brief).ms
        if ours is not None:
            by_row = replace(ready.case, forward=partial(ours, deterministic_layout=True))
            step = step_of(by_row, ready.output_grad)
            columns["ms_deterministic"] = take_turn(step, self.device, rules.brief).ms
            same.append(other_times.of_one_sequence(ready.case))
        return columns | {"batch_invariant": ", ".join(same)}

    def verify(self, implementation: str, problem: dict[str, Any], budget_s: float) -> dict[str, Any]:
        """Return the error table of a point: `status` "ok" or "wrong", and every error as `verify.Error` has it."""
        ready = self._ready(implementation, Problem(**problem))
        verdict = self._checked(ready, problem["dtype"], budget_s, problem["seed"])
        return {
            "status": "wrong" if verdict.reason else "ok",
            "reason": verdict.reason,
            "verified_steps": verdict.steps,
            "errors": [asdict(error) | {"wrong": error.wrong} for error in verdict.errors],
        }

    def calibrate(self, dtypes: list[str], seconds: float) -> dict[str, Any]:
        """Return measured ceilings by dtype, as `calibrate.measure_ceilings` gives them."""
        from tflabench.bench.measure import measure_ceilings

        self.answer({"stage": "calibrating"})
        return {"status": "ok", "ceilings": measure_ceilings(self.device, dtypes, seconds)}

    def profile(self, implementation: str, problem: dict[str, Any], calls: int) -> dict[str, Any]:
        """Return the time of a call by GPU kernel or operator, as `profile.calls.Part` has it; `wrong` says if it is.

        With no `calls` to profile, make one between the marks that Nsight Compute waits for.
        """
        from tflabench.bench.measure import take_turn
        from tflabench.bench.profile.calls import counted_call, parts_of
        from tflabench.bench.protocol import SHORT

        ready = self._ready(implementation, Problem(**problem))
        verdict = self._checked(ready, problem["dtype"], SHORT.verify_s, problem["seed"])
        with self._gradients(ready):
            self.answer({"stage": "profiling"})
            if not calls:
                counted_call(ready.step, self.device)
                return {"status": "ok"}
            ms = take_turn(ready.step, self.device, SHORT).ms
            parts = parts_of(ready.step, self.device, calls)
        return {
            "status": "ok",
            "ms_median": ms,
            "parts": [asdict(part) for part in parts],
            "wrong": verdict.reason,
            "details": ready.case.details,
        }

    def _ready(self, implementation: str, problem: Problem) -> _Ready:
        """Build the case and run it once, which compiles what is not compiled and tunes what is not tuned."""
        import torch

        from tflabench.bench.answers import OF_FIRST_CALL, digest
        from tflabench.bench.inputs import InputSlots
        from tflabench.bench.measure import require_timers
        from tflabench.implementations import registry
        from tflabench.implementations.adapter import Case, Unsupported

        self.answer({"stage": "building"})
        torch.manual_seed(problem.seed)
        impl = registry.get(implementation)
        capability = torch.cuda.get_device_capability(self.device) if self.device_type == "cuda" else None
        if reason := impl.refusal(problem, self.device_type, capability):
            raise Unsupported(reason)
        build: Callable[..., object] = impl.build
        if problem.ranks:
            from tflabench.bench import ranks

            build = partial(ranks.build, impl)
        case = build(problem, self.device)
        if not isinstance(case, Case):
            raise TypeError(f"build returned {type(case).__name__}: it must return a Case")
        details: object = case.details
        if not isinstance(details, dict) or not all(isinstance(name, str) for name in details):
            raise TypeError(f"details are {details!r:.100}: they must be a dict with strings as keys")
        chunk_size: object = details.get("chunk_size")
        if chunk_size is not None and (type(chunk_size) is not int or chunk_size < 1):
            raise TypeError(f"details have the chunk_size {chunk_size!r}: it must be an integer, 1 or more")
        inputs = InputSlots(case)
        leaves = [tensor for tensor in case.inputs.values() if tensor.requires_grad]
        backward = problem.pass_ == "fwbw"
        self.answer({"stage": "compiling and running for the first time"})
        with torch.set_grad_enabled(backward):
            start = time.perf_counter()
            output = case.forward()
            if not isinstance(output, torch.Tensor):
                first = ", such as the first of the tuple" if isinstance(output, tuple) else ""
                raise TypeError(f"the output is a {type(output).__name__}: it must be one tensor{first}")
            if backward and not output.requires_grad:
                raise TypeError(
                    "the output has no gradient: forward must be differentiable by autograd (no detach), or the "
                    "implementation must refuse fwbw"
                )
            output_grad = torch.randn_like(output) if backward else None
            gradients = torch.autograd.grad(output, leaves, output_grad) if backward else ()
            if self.device_type == "cuda":
                torch.cuda.synchronize(self.device)
            first_call_s = time.perf_counter() - start
        require_timers()
        names = ["forward", *(f"d{name}" for name, tensor in case.inputs.items() if tensor.requires_grad)]
        results = {name + OF_FIRST_CALL: x.detach() for name, x in zip(names, (output, *gradients), strict=False)}
        first = digest(results)
        del output, gradients, results

        return _Ready(case, inputs, output_grad, step_of(case, output_grad), first_call_s, first)

    def _checked(self, ready: _Ready, dtype: str, budget_s: float, seed: int) -> Verdict:
        """Compare a point with its oracle, on other values than those that it has seen."""
        import torch

        from tflabench.bench.verify import verify

        self.answer({"stage": "verifying"})
        ready.inputs.require_unchanged()
        ready.inputs.change()
        verdict = verify(ready.inputs.case, getattr(torch, dtype), ready.output_grad, budget_s, seed)
        ready.inputs.require_unchanged()
        return verdict

    def _gradients(self, ready: _Ready) -> AbstractContextManager[None]:
        import torch

        return torch.set_grad_enabled(ready.output_grad is not None)

    def _results(self, ready: _Ready) -> dict[str, Tensor]:
        from tflabench.implementations.adapter import differentiate

        return differentiate(lambda _: ready.inputs.case.forward(), ready.case.inputs, ready.output_grad)

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


def step_of(case: Case, output_grad: Tensor | None) -> Callable[[], object]:
    """Return what is timed: the step of a case, or its forward, with an output gradient the gradients of its leaves."""
    import torch

    if case.step is not None:
        return case.step
    leaves = [tensor for tensor in case.inputs.values() if tensor.requires_grad]

    def step() -> None:
        """Return the gradients to nobody: accumulated ones would have to be cleared between calls."""
        output = case.forward()
        if output_grad is not None:
            torch.autograd.grad(output, leaves, output_grad)

    return step


def _cpu_seconds() -> float:
    """Return the CPU seconds of this process and of those that it has waited for."""
    return sum(os.times()[:4])


def _load_matrix_library(device: torch.device) -> None:
    """Make the first matrix products, for which gigabytes of kernels are loaded, while something else compiles."""
    import torch

    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        a = torch.ones(64, 64, dtype=dtype, device=device)
        torch.mm(a, a)


def classify(error: Exception) -> tuple[str, str]:
    """Status and one-line reason of what an implementation raised."""
    kinds = {cls.__name__ for cls in type(error).__mro__}
    text = " ".join(str(error).split())
    reason = f"{type(error).__name__}: {text}"[:500]
    if isinstance(error, Unsupported):
        return "unsupported", text
    if "ChangedInputError" in kinds:
        return "wrong", text
    if kinds & {"OutOfMemoryError", "MemoryError"} or "DefaultCPUAllocator" in text or "out of memory" in text.lower():
        return "oom", reason
    if type(error).__module__.startswith("triton") or kinds & {"TorchDynamoException", "InductorError"}:
        return "compile_error", reason
    return "error", reason


if __name__ == "__main__":
    main()
