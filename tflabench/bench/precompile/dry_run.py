"""Lists what an implementation would compile for a problem: its launchers run on tensors without memory.

Triton binds, specialises and keys every launch itself, as it would on the GPU; it is then asked for what it would
compile, and nothing is launched. A tuned kernel gives a task for every configuration that it would try.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import triton.runtime.autotuner as tuning
from triton import knobs
from triton.backends.nvidia import driver as nvidia
from triton.runtime import _async_compile, build
from triton.runtime.autotuner import Autotuner
from triton.runtime.cache import _base32

from tflabench.bench.precompile.gpu_facts import DeviceFacts
from tflabench.bench.precompile.pretence import Storage, answers_for_launches, called_once
from tflabench.implementations.adapter import Implementation, Unsupported
from tflabench.kernels.common import launching
from tflabench.problem import Problem


@dataclass(frozen=True)
class CompileTask:
    """One kernel to compile.

    Attributes:
        kernel: its name.
        config: constants and options that tell it from others of that name.
        folder: of Triton's cache, below `knobs.cache.dir`, named by the hash of the key.
        compiles: what Triton would call to compile it; gives a CompiledKernel.
    """

    kernel: str
    config: str
    folder: str
    compiles: Callable[[], Any] = field(repr=False, compare=False)

    @property
    def cached(self) -> bool:
        """Return whether Triton has it compiled in its cache."""
        return not knobs.compilation.always_compile and any(Path(knobs.cache.dir, self.folder).glob("__grp__*.json"))

    def compile(self) -> None:
        """Compile it into the cache, with the launcher's C part where this Triton has one for each signature."""
        kernel = self.compiles()
        if kernel is not None and hasattr(nvidia, "make_launcher") and _can_link():
            with _host_code_not_loaded():
                nvidia.CudaLauncher(kernel.src, kernel.metadata)


@dataclass(frozen=True)
class DryRun:
    """The compile tasks that a dry run of a point recorded.

    Attributes:
        tasks: in the order of their launches, each once.
        reason: why it ended early, with the tasks until then; None if it did not.
    """

    tasks: tuple[CompileTask, ...]
    reason: str | None = None


def compile_tasks(implementation: Implementation, problem: Problem, facts: DeviceFacts) -> list[CompileTask]:
    """Everything to compile for a problem, whether cached or not.

    Raises:
        RuntimeError: the dry run ended early, with the reason.
    """
    done = dry_run(implementation, problem, facts)
    if done.reason:
        raise RuntimeError(f"{implementation.name}: {done.reason}")
    return list(done.tasks)


def dry_run(implementation: Implementation, problem: Problem, facts: DeviceFacts, storage: Storage = "meta") -> DryRun:
    """Build a case and run its pass without launching; in a process that will not use CUDA."""
    if not implementation.compiles:
        return DryRun((), "its kernels are not written in Triton")
    if reason := implementation.refuses(problem, "cuda"):
        return DryRun((), reason)
    recorder, reason = _Recorder(), None
    with answers_for_launches(facts, storage), _recording(recorder):
        try:
            _run(implementation, problem)
        except Unsupported as error:
            reason = str(error)
        except Exception as error:  # whatever a library raises: what was launched until then is worth compiling
            reason = f"{type(error).__name__}: {error}"
    return DryRun(tuple(recorder.tasks.values()), reason and " ".join(reason.split())[:500])


def _run(implementation: Implementation, problem: Problem) -> None:
    """Do what a worker does of a point before it verifies it."""
    torch.manual_seed(problem.seed)
    case = implementation.build(problem, torch.device("cuda", 0))
    backward = problem.pass_ == "fwbw"
    with torch.set_grad_enabled(backward):
        output = case.forward()
        if backward:
            leaves = [tensor for tensor in case.inputs.values() if tensor.requires_grad]
            torch.autograd.grad(output, leaves, torch.randn_like(output))


class _Recorder:
    """Takes the place of Triton's mode of asynchronous compilation, and compiles nothing."""

    def __init__(self) -> None:
        self.tasks: dict[str, CompileTask] = {}
        self.kernels: list[Any] = []
        self.tuners: list[Autotuner] = []

    def submit(self, key: str, compiles: Callable[[], Any], *_: Callable[..., Any]) -> _NotCompiled:
        """Record a launch; Triton calls this for every kind of launch that this process has not seen."""
        if key not in self.tasks:
            known = inspect.getclosurevars(compiles).nonlocals  # Triton says the rest in no other way
            kernel = known["src"].fn
            self.kernels.append(kernel)
            folder = _base32(hashlib.sha256(key.encode()).hexdigest())
            config = _config(known["src"], known["options"])
            self.tasks[key] = CompileTask(kernel.__name__, config, folder, compiles)
        return _NotCompiled()


def _config(source: Any, options: Any) -> str:
    names = source.fn.arg_names
    constants = {names[path[0]]: value for path, value in source.constants.items() if len(path) == 1}
    said = {name: value for name, value in constants.items() if isinstance(value, (bool, int, float, str))}
    said |= {name: getattr(options, name) for name in ("num_warps", "num_stages", "num_ctas")}
    if options.maxnreg:
        said["maxnreg"] = options.maxnreg
    return " ".join(f"{name}={value}" for name, value in said.items())


class _NotCompiled:
    """A compiled kernel, as far as launchers look at it."""

    function = packed_metadata = None
    n_regs = n_spills = 0

    def launch_metadata(self, *_: Any) -> None:
        pass

    def run(self, *_: Any) -> None:
        pass

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *args, **options: None


class _Unwritten:
    """A cache that keeps nothing: no other process may read the timings of a dry run, which mean nothing."""

    def __init__(self, key: str) -> None:
        self._known = Path(knobs.cache.dir, _base32(key))

    def get_file(self, name: str) -> str | None:
        path = self._known / name
        return str(path) if path.exists() else None

    def put(self, *_: Any, **__: Any) -> None:
        pass


@contextlib.contextmanager
def _recording(recorder: _Recorder) -> Iterator[None]:
    """Send launches to the recorder; forget afterwards what kernels and tuners of this process remember of it."""
    run, cache = Autotuner.run, tuning.get_cache_manager
    mode: Any = _async_compile.active_mode
    chosen = "do_bench", vars(Autotuner)["do_bench"]

    def tuned(tuner: Autotuner, *args: Any, **options: Any) -> Any:
        recorder.tuners.append(tuner)
        return run(tuner, *args, **options)

    token = mode.set(recorder)
    Autotuner.run = tuned  # type: ignore[method-assign]
    Autotuner.do_bench = property(lambda tuner: called_once)  # type: ignore[assignment]
    tuning.get_cache_manager = _Unwritten  # type: ignore[assignment]
    try:
        yield
    finally:
        mode.reset(token)
        Autotuner.run, tuning.get_cache_manager = run, cache  # type: ignore[method-assign]
        setattr(Autotuner, *chosen)
        for kernel in recorder.kernels:
            kernel.device_caches.clear()
        for tuner in recorder.tuners:
            tuner.cache.clear()
        launching._remembered.clear()


def driver_module() -> CompileTask | None:
    """Triton's binding to CUDA's driver; None where that is built, or this machine has no such driver to link with."""

    def refuse(*_: Any, **__: Any) -> str:
        raise InterruptedError

    if not _can_link():
        return None
    really_build = build._build
    build._build = refuse
    try:
        _build_driver_module()
    except InterruptedError:
        return CompileTask("driver module", "", "driver module", _build_driver_module)
    finally:
        build._build = really_build
    return None


def _build_driver_module() -> None:
    with _host_code_not_loaded():
        nvidia.CudaUtils()


def _can_link() -> bool:
    try:
        return bool(nvidia.libcuda_dirs())
    except (AssertionError, OSError, subprocess.SubprocessError):
        return False


@contextlib.contextmanager
def _host_code_not_loaded() -> Iterator[None]:
    """Keep what a C compiler builds in the cache only: loading it would load CUDA's driver."""
    load = build._load_module_from_path
    build._load_module_from_path = lambda name, path: _Unloaded()  # type: ignore[assignment]
    try:
        yield
    finally:
        build._load_module_from_path = load


class _Unloaded:
    def __getattr__(self, name: str) -> None:
        return None
