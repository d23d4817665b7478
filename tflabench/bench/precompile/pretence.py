"""Makes a process without CUDA answer as a given GPU: for imports, and for running launchers on tensors without memory.

Nothing here ever calls CUDA. Every replacement is undone when its context ends.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from tflabench.bench.precompile.gpu_facts import DeviceFacts

Storage = Literal["meta", "cpu"]
ADDRESS = 1 << 40  # of what has no memory; real allocations are multiples of 512 bytes too
_OWN_OPERATORS = frozenset(("aten", "prim", "prims", "inductor", "profiler"))
_ON_GPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
_GPU = torch.device("cuda", 0)


class StandInDriver:
    """A driver that answers what Triton asks before it launches."""

    def __init__(self, facts: DeviceFacts) -> None:
        self._facts = facts
        self.utils = SimpleNamespace(get_device_properties=self._properties)

    def _properties(self, device: int) -> dict[str, int]:
        return {
            "max_shared_mem": self._facts.shared_memory_bytes,
            "max_num_regs": self._facts.block_registers,
            "multiprocessor_count": self._facts.multiprocessors,
            "warpSize": self._facts.warp_size,
            "sm_clock_rate": self._facts.core_clock_khz,
            "mem_clock_rate": self._facts.memory_clock_khz,
            "mem_bus_width": self._facts.memory_bus_bits,
        }

    def get_current_target(self) -> GPUTarget:
        """Return the GPU's architecture, as Triton's compiler takes it."""
        return GPUTarget("cuda", self._facts.architecture, self._facts.warp_size)

    def get_current_device(self) -> int:
        """Return 0, the only device."""
        return 0

    def set_current_device(self, device: int) -> None:
        """Do nothing: there is one device."""

    def get_current_stream(self, device: int | None = None) -> int:
        """Return 0, the default stream."""
        return 0

    def get_device_capability(self, device: int = 0) -> tuple[int, int]:
        """Return the GPU's compute capability."""
        return self._facts.capability

    def get_device_interface(self) -> Any:
        """Return torch.cuda, as Triton's own driver does."""
        return torch.cuda

    def get_active_torch_device(self) -> torch.device:
        """Return the device that stands for the GPU."""
        return _GPU

    def get_benchmarker(self) -> Callable[..., list[float]]:
        """Return a benchmark that calls once and tells no times."""
        return called_once


def called_once(call: Callable[[], object], *_: object, quantiles: Any = None, **__: object) -> list[float]:
    """Stands in for a benchmark: every candidate takes as long."""
    call()
    return [1.0, 1.0, 1.0]


@contextlib.contextmanager
def answers_for_imports(facts: DeviceFacts) -> Iterator[None]:
    """torch.cuda and Triton's driver say what GPU this is, and no more: what a library keeps of it stays true later."""
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_name": lambda device=None: facts.name,
        "get_device_capability": lambda device=None: facts.capability,
        "get_device_properties": lambda device=None: _properties(facts),
        "is_bf16_supported": lambda including_emulation=True: facts.capability >= (8, 0),
    }
    before = driver._active
    driver.set_active(StandInDriver(facts))  # type: ignore[arg-type]
    try:
        with _replaced(torch.cuda, answers):
            yield
    finally:
        driver._active = before


@contextlib.contextmanager
def answers_for_launches(facts: DeviceFacts, storage: Storage = "meta") -> Iterator[None]:
    """Answer as for imports, and make tensors "on cuda" that have no memory but say where they lie.

    Libraries' own operators run as on a GPU, not their fakes. Fork for it: torch takes CUDA for initialised afterwards.

    Args:
        storage: "cpu" gives tensors memory of the host, to compare with.
    """
    calls: dict[str, Any] = {
        "_lazy_init": lambda: None,
        "_exchange_device": lambda device: 0,
        "_maybe_exchange_device": lambda device: 0,
        "set_device": lambda device: None,
        "synchronize": lambda device=None: None,
        "empty_cache": lambda: None,
        "current_stream": lambda device=None: _Stream(),
        "default_stream": lambda device=None: _Stream(),
        "mem_get_info": lambda device=None: (facts.memory_bytes, facts.memory_bytes),
        "get_rng_state": lambda device="cuda": torch.get_rng_state(),
        "set_rng_state": lambda state, device="cuda": None,
    }
    tensors = _Tensors(storage)
    members: dict[str, Any] = {
        "device": property(tensors.device),
        "is_cuda": property(lambda x: tensors.device(x).type == "cuda"),
        "is_cpu": property(lambda x: tensors.device(x).type == "cpu"),
        "is_meta": property(lambda x: tensors.device(x).type == "meta"),
        "get_device": lambda x: 0 if tensors.device(x).type == "cuda" else -1,
        "data_ptr": lambda x: tensors.data_ptr(x),
        "to": tensors.to,
        "cuda": lambda x, *_, **__: tensors.to(x, "cuda"),
    }
    with contextlib.ExitStack() as stack:
        stack.enter_context(answers_for_imports(facts))
        stack.enter_context(_replaced(torch.cuda, calls))
        functions = {"Generator": _Generator, "compile": _uncompiled, **tensors.from_data()}
        stack.enter_context(_replaced(torch, functions))
        stack.enter_context(_replaced(Tensor, members))
        if "torch._dynamo" in sys.modules:  # what was given to torch.compile before runs as it is written, too
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        else:
            stack.enter_context(_without_dynamo())
        stack.enter_context(_OnPaper(tensors))
        yield


def start_autograd_without_gpu() -> None:
    """Keep the autograd engine of this process from asking CUDA how many GPUs there are, which would initialise it.

    It asks once, at the first backward pass. That happens here, while no file can be opened: the CUDA runtime finds no
    driver, and the engine makes no threads for GPUs.
    """
    x = torch.zeros((), requires_grad=True)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        torch.autograd.grad(2 * x, x)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def touched_cuda() -> bool:
    """Return whether this process has initialised CUDA: it then holds a device file open that NVML leaves alone."""
    folder = "/proc/self/fd"
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):
            if os.readlink(f"{folder}/{name}").startswith("/dev/nvidia-uvm"):
                return True
    return False


class _Tensors:
    """The device that tensors say they are on; the true one while torch itself asks (`honest`)."""

    def __init__(self, storage: Storage) -> None:
        self.storage: Storage = storage
        self.honest = False
        self._device: Any = torch._C.TensorBase.device  # type: ignore[attr-defined]
        self._data_ptr: Any = torch._C.TensorBase.data_ptr

    def device(self, x: Tensor) -> torch.device:
        real = self._device.__get__(x)
        return _GPU if real.type == self.storage and not self.honest else real

    def data_ptr(self, x: Tensor) -> int:
        if self._device.__get__(x).type != "meta":
            return self._data_ptr(x)
        return ADDRESS + int(x.storage_offset()) * x.element_size() if x.numel() else 0

    def place(self, value: Any) -> Any:
        """Return an argument of an operator with the device that stands for the GPU in its place."""
        kind = value.type if isinstance(value, torch.device) else value.split(":")[0] if isinstance(value, str) else ""
        return torch.device(self.storage) if kind == "cuda" else value

    @property
    def to(self) -> Callable[..., Tensor]:
        """Tensor.to, which asks CUDA for its current device first."""
        real = torch._C.TensorBase.to

        def moved(x: Tensor, *args: Any, **options: Any) -> Tensor:
            return real(x, *map(self.place, args), **{name: self.place(value) for name, value in options.items()})

        return moved

    def from_data(self) -> dict[str, Any]:
        """torch.tensor and its like, which go to the device that is asked for before a mode can tell them where."""

        def placed(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
            def called(data: Any, *args: Any, device: Any = None, **options: Any) -> Tensor:
                return make(data, *args, device=self.place(device), **options)

            return called

        return {name: placed(getattr(torch, name)) for name in ("tensor", "as_tensor", "asarray")}


class _OnPaper(TorchDispatchMode):
    """Makes tensors elsewhere that are asked for on the GPU, and runs what a library's operators do there."""

    def __init__(self, tensors: _Tensors) -> None:
        super().__init__()
        self._tensors = tensors

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or torch imports Dynamo to keep it from looking in here

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if func.namespace not in _OWN_OPERATORS:
            with self:
                return func.redispatch(_ON_GPU, *args, **named)
        place, before = self._tensors.place, self._tensors.honest
        self._tensors.honest = True
        try:
            return func(*map(place, args), **{name: place(value) for name, value in named.items()})
        finally:
            self._tensors.honest = before


def _uncompiled(function: Any = None, **_: Any) -> Any:
    """Stands in for torch.compile, whose kernels are Inductor's, in a cache of its own."""
    return function or _uncompiled


@contextlib.contextmanager
def _without_dynamo() -> Iterator[None]:
    """Keep torch from importing Dynamo for tensors without data: that takes seconds, and nothing is traced here."""
    stand_in: Any = ModuleType("torch._dynamo")
    stand_in.disable = lambda function, *_, **__: function
    with _replaced(torch, {"_dynamo": stand_in}):
        sys.modules["torch._dynamo"] = stand_in
        try:
            yield
        finally:
            del sys.modules["torch._dynamo"]


class _Generator(torch.Generator):
    """A generator of random numbers on the CPU, whatever device is asked for: nobody sees any."""

    def __new__(cls, device: Any = None) -> torch.Generator:
        return torch._C.Generator.__new__(torch._C.Generator, "cpu")  # type: ignore[call-arg]


class _Stream:
    cuda_stream = 0
    device = _GPU

    def synchronize(self) -> None:
        pass

    def wait_stream(self, stream: Any) -> None:
        pass


def _properties(facts: DeviceFacts) -> SimpleNamespace:
    """Return properties as torch.cuda.get_device_properties gives them."""
    return SimpleNamespace(
        name=facts.name,
        major=facts.capability[0],
        minor=facts.capability[1],
        total_memory=facts.memory_bytes,
        multi_processor_count=facts.multiprocessors,
        L2_cache_size=facts.l2_bytes,
        warp_size=facts.warp_size,
        shared_memory_per_block=facts.block_shared_memory_bytes,
        shared_memory_per_block_optin=facts.shared_memory_bytes,
        shared_memory_per_multiprocessor=facts.multiprocessor_shared_memory_bytes,
        regs_per_multiprocessor=facts.multiprocessor_registers,
        max_threads_per_multi_processor=facts.multiprocessor_threads,
        clock_rate=facts.core_clock_khz,
        memory_clock_rate=facts.memory_clock_khz,
        memory_bus_width=facts.memory_bus_bits,
        is_integrated=0,
        is_multi_gpu_board=0,
        gcnArchName=facts.name,
    )


@contextlib.contextmanager
def _replaced(owner: Any, members: dict[str, Any]) -> Iterator[None]:
    """Attributes of a module or class for a while; those that it only inherits are taken off again."""
    before = {name: vars(owner)[name] for name in members if name in vars(owner)}
    for name, value in members.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name in members:
            if name in before:
                setattr(owner, name, before[name])
            else:
                delattr(owner, name)
