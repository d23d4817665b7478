"""Answer what libraries ask of a GPU while they are imported, in a process that never touches CUDA.

A child asks the GPU that is here. So what a library keeps of the answers stays true in every process forked later.
"""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import Pipe
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver


@dataclass(frozen=True)
class GpuAnswers:
    """Answers of one GPU: `properties` are those of torch, `triton_properties` those of Triton's driver."""

    name: str
    capability: tuple[int, int]
    properties: dict[str, Any]
    triton_properties: dict[str, int]

    @property
    def target(self) -> GPUTarget:
        """Return what Triton compiles for."""
        major, minor = self.capability
        return GPUTarget("cuda", 10 * major + minor, 32)


def ask_gpu() -> GpuAnswers:
    """Ask the first visible GPU in a forked process: this one must not touch CUDA, before or here.

    Raises:
        EOFError: it does not answer; why is on standard error.
    """
    answers, sending = Pipe(duplex=False)
    if not (child := os.fork()):
        try:
            sending.send(_ask())
        except Exception:  # whatever torch, Triton or the driver raises
            traceback.print_exc()
        finally:
            os._exit(0)
    sending.close()
    with answers:
        try:
            return answers.recv()
        finally:
            os.waitpid(child, 0)


def _ask() -> GpuAnswers:
    properties = torch.cuda.get_device_properties(0)
    values = {name: getattr(properties, name) for name in dir(properties) if not name.startswith("_")}
    plain = {name: value for name, value in values.items() if isinstance(value, int | float | str)}
    utils: Any = driver.active.utils  # type: ignore[attr-defined]
    capability = torch.cuda.get_device_capability(0)
    return GpuAnswers(torch.cuda.get_device_name(0), capability, plain, utils.get_device_properties(0))


@contextlib.contextmanager
def answering(answers: GpuAnswers) -> Iterator[None]:
    """Let torch.cuda and Triton's driver say what GPU this is within the block, and nothing else."""
    functions: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_name": lambda device=None: answers.name,
        "get_device_capability": lambda device=None: answers.capability,
        "get_device_properties": lambda device=None: SimpleNamespace(**answers.properties),
        "is_bf16_supported": lambda including_emulation=True: answers.capability >= (8, 0),
    }
    stand_in: Any = SimpleNamespace(
        utils=SimpleNamespace(get_device_properties=lambda device: answers.triton_properties),
        get_current_target=lambda: answers.target,
        get_device_capability=lambda device=0: answers.capability,
        get_current_device=lambda: 0,
        get_device_interface=lambda: torch.cuda,
        get_active_torch_device=lambda: torch.device("cuda", 0),
    )
    with patch.multiple(torch.cuda, **functions), patch.object(driver, "_active", stand_in):
        yield
