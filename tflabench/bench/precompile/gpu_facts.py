"""Facts of a GPU that kernels and launchers ask for before they compile, and a process that asks the driver for them.

Run as a program it asks CUDA's driver for device 0, without a context, prints the facts as JSON and ends.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from dataclasses import asdict, dataclass

from tflabench.problem import InputError

ASK_TIMEOUT_S = 60


@dataclass(frozen=True)
class DeviceFacts:
    """One GPU as torch and Triton describe it.

    Attributes:
        name: as torch.cuda.get_device_name has it.
        capability: compute capability, (9, 0).
        shared_memory_bytes: that a block can have if it asks for it.
        block_shared_memory_bytes: that it has without asking.
        multiprocessor_shared_memory_bytes, multiprocessor_registers, multiprocessor_threads: of one multiprocessor.
        block_registers: that a block can have.
        core_clock_khz, memory_clock_khz, memory_bus_bits: as the driver gives them.
    """

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    shared_memory_bytes: int
    l2_bytes: int
    memory_bytes: int
    warp_size: int = 32
    block_shared_memory_bytes: int = 49_152
    multiprocessor_shared_memory_bytes: int = 233_472
    multiprocessor_registers: int = 65_536
    multiprocessor_threads: int = 2048
    block_registers: int = 65_536
    core_clock_khz: int = 0
    memory_clock_khz: int = 0
    memory_bus_bits: int = 0

    @property
    def architecture(self) -> int:
        """90 of compute capability 9.0."""
        return 10 * self.capability[0] + self.capability[1]

    def as_json(self) -> str:
        """Return the facts as JSON."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> DeviceFacts:
        """Return the facts that `as_json` wrote."""
        values = json.loads(text)
        return DeviceFacts(**{**values, "capability": tuple(values["capability"])})


H100 = DeviceFacts(
    name="NVIDIA H100 80GB HBM3",
    capability=(9, 0),
    multiprocessors=132,
    shared_memory_bytes=232_448,
    l2_bytes=52_428_800,
    memory_bytes=85_017_755_648,
    core_clock_khz=1_980_000,
    memory_clock_khz=2_619_000,
    memory_bus_bits=5120,
)

# Of enum CUdevice_attribute, cuda.h
_ATTRIBUTES = {
    "block_shared_memory_bytes": 8,
    "warp_size": 10,
    "block_registers": 12,
    "core_clock_khz": 13,
    "multiprocessors": 16,
    "memory_clock_khz": 36,
    "memory_bus_bits": 37,
    "l2_bytes": 38,
    "multiprocessor_threads": 39,
    "multiprocessor_shared_memory_bytes": 81,
    "multiprocessor_registers": 82,
    "shared_memory_bytes": 97,
}
_MAJOR, _MINOR = 75, 76


def probe() -> DeviceFacts:
    """Return the facts of the first visible GPU, asked in a process of its own: this one never touches CUDA.

    Raises:
        InputError: the driver shows no GPU.
    """
    command = [sys.executable, "-P", "-m", f"{__package__}.gpu_facts"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ASK_TIMEOUT_S, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise InputError(f"CUDA's driver does not say what GPU this is: {reason}")
    return DeviceFacts.from_json(done.stdout)


def _ask_driver() -> DeviceFacts:
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(function: str, *arguments: object) -> None:
        if code := getattr(cuda, function)(*arguments):
            raise RuntimeError(f"{function} gives error {code}")

    def attribute(number: int) -> int:
        value = ctypes.c_int()
        call("cuDeviceGetAttribute", ctypes.byref(value), number, device)
        return value.value

    device, name, memory = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_size_t()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDeviceGetName", name, len(name), device)
    call("cuDeviceTotalMem_v2", ctypes.byref(memory), device)
    return DeviceFacts(
        name=name.value.decode(),
        capability=(attribute(_MAJOR), attribute(_MINOR)),
        memory_bytes=memory.value,
        **{field: attribute(number) for field, number in _ATTRIBUTES.items()},
    )


if __name__ == "__main__":
    print(_ask_driver().as_json())
