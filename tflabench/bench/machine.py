"""Facts about this machine: device, memory, versions, sources, commit. The parent process asks without torch.

And the GPU that a question of theory is about (`chosen_gpu`): by name, or this machine's.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tflabench
from tflabench.problem import DTYPE_BYTES, DeviceKind, InputError, one_of
from tflabench.theory.hardware import slug

if TYPE_CHECKING:
    import torch

    from tflabench.theory.hardware import Gpu

# What decides a number, relative to the folder of the package.
SOURCES = ("kernels", "baselines", "bench", "implementations")


@dataclass(frozen=True)
class Machine:
    """The device that a sweep runs on.

    Attributes:
        kind: "cuda" or "cpu".
        name: as the driver or the system reports it; for CPUs with the number of cores, which the results depend on.
        memory_bytes: of the GPU; for CPUs what is available now.
        driver: version of the GPU driver.
        uuid: of the GPU; None for a CPU.
    """

    kind: DeviceKind
    name: str
    memory_bytes: int
    driver: str | None = None
    uuid: str | None = None

    def __str__(self) -> str:
        return self.uuid[:12] if self.uuid else self.name

    @property
    def slug(self) -> str:
        """The kind as a folder name: "h200" of "NVIDIA H200"."""
        return slug(self.name)

    @property
    def host_memory_limit(self) -> int | None:
        """Bytes of host memory that one point may allocate: what leaves a CPU machine alive; None for GPUs."""
        return int(0.8 * self.memory_bytes) if self.kind == "cpu" else None


def detect(device: str) -> Machine:
    """Return this machine's first CUDA GPU or its CPU; "auto" takes the GPU where there is one.

    Raises:
        InputError: CUDA asked for where there is none.
    """
    one_of("--device", device, ("auto", "cuda", "cpu"))
    gpu = None if device == "cpu" else next(gpus(), None)
    if gpu is None and device == "cuda":
        raise InputError("--device is cuda, and this machine shows no NVIDIA GPU (nvidia-smi): use --device cpu")
    return gpu or _cpu()


def torch_facts(device: torch.device) -> dict[str, Any]:
    """Return what torch says of the device that it runs on; for environment.json."""
    import torch

    from tflabench.bench.measure import highest_clock

    version = str(torch.__version__)  # it is of a class of torch, for which who unpickles it would import all of torch
    if device.type == "cpu":
        return {
            "torch": version,
            "threads": torch.get_num_threads(),
            "capability": torch.backends.cpu.get_cpu_capability(),
        }
    gpu = torch.cuda.get_device_properties(device)
    return {
        "torch": version,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "name": gpu.name,
        "uuid": f"GPU-{gpu.uuid}",
        "capability": f"sm_{gpu.major}{gpu.minor}",
        "multiprocessors": gpu.multi_processor_count,
        "l2_bytes": gpu.L2_cache_size,
        "memory_bytes": gpu.total_memory,
        "highest_sm_clock_mhz": highest_clock(device),
        "ptxas": assembler(10 * gpu.major + gpu.minor),
    }


def assembler(capability: int) -> str | None:
    """Version and origin of the ptxas that Triton uses for a compute capability (90: sm_90), None without Triton.

    The origin is Triton itself, or the path that TRITON_PTXAS_PATH or one like it names.
    """
    try:
        import triton
        from triton.backends.nvidia.compiler import get_ptxas
    except ImportError:
        return None
    ptxas = get_ptxas(capability)
    bundled = Path(ptxas.path).is_relative_to(Path(triton.__file__).parent)
    return f"{ptxas.version} of {'Triton' if bundled else ptxas.path}"


def command() -> list[str]:
    """Return the words of the command line, without the folder of the results: that is a matter of one machine."""
    words, kept = iter(sys.argv[1:]), list[str]()
    for word in words:
        if word in ("--out", "--results"):
            next(words, None)
        elif not word.startswith(("--out=", "--results=")):
            kept.append(word)
    return kept


def environment(machine: Machine, facts: dict[str, Any]) -> dict[str, Any]:
    """Everything a reader needs to place a run's numbers: device, versions, commit, command."""
    from tflabench.implementations.registry import package_versions  # which `tflabench --help` does without

    return {
        "device": machine.name,
        "driver": machine.driver,
        "node": node_name(),
        "device_facts": facts,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "tflabench": tflabench.__version__,
        "commit": commit(),
        "source_hash": source_hash(),
        "packages": package_versions(),
        "arguments": command(),
        "variables": {
            name: value
            for name, value in os.environ.items()
            if name.startswith(("TRITON_", "OMP_", "CUDA_VIS"))
            and not name.endswith("_DIR")  # where caches lie is private
        },
    }


def gpus() -> Iterator[Machine]:
    """Yield the NVIDIA GPUs of this machine, in the order of CUDA_VISIBLE_DEVICES where that is set."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        yield from gpus_of_node()
    elif visible != "-1":
        for index in filter(None, visible.split(",")):
            yield from gpus_of_node(index.strip())


def warm_ups_at_once(jobs: int | None, gpus: int = 1) -> int:
    """Return how many points are warmed up at a time for one of several GPUs that share the cores of this machine.

    That is `jobs` where given, else two fewer than there are cores, over the number of GPUs, but 1 to 8.
    """
    return min(8, max(1, (_cores() - 2) // gpus)) if jobs is None else jobs


def node_name() -> str:
    """Return the name of this machine in its network."""
    return platform.node() or "localhost"


def gpus_of_node(which: str | None = None) -> list[Machine]:
    """Return GPUs as nvidia-smi reports them: one by its index or UUID, or all, also those this process may not use."""
    if not shutil.which("nvidia-smi"):
        return []
    fields = "--query-gpu=name,memory.total,driver_version,uuid"
    query = ["nvidia-smi", *(["-i", which] if which else []), fields, "--format=csv,noheader,nounits"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=60)
    lines = [[field.strip() for field in line.split(",")] for line in done.stdout.splitlines() if line.strip()]
    if done.returncode or any(len(line) != 4 for line in lines):
        return []
    return [Machine("cuda", name, int(mebibytes) << 20, driver, uuid) for name, mebibytes, driver, uuid in lines]


def _cpu() -> Machine:
    cores = _cores()
    name = platform.processor() or platform.machine()
    if (info := Path("/proc/cpuinfo")).exists() and (model := re.search(r"model name\s*: (.*)", info.read_text())):
        name = " ".join(re.sub(r"\((R|TM)\)", "", model[1]).split())
    return Machine("cpu", f"{name}, {cores} core{'s' if cores > 1 else ''}", _available_bytes())


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _available_bytes() -> int:
    if (info := Path("/proc/meminfo")).exists() and (kib := re.search(r"MemAvailable:\s+(\d+) kB", info.read_text())):
        return int(kib[1]) << 10
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@cache
def source_hash() -> str:
    """Return 12 hexadecimal digits of the sources that decide a number: kernels, baselines, bench, implementations.

    It is the same from a checkout, from a copy without .git and from an installed package.
    """
    root = Path(tflabench.__file__).resolve().parent
    digest = hashlib.sha256()
    for folder in SOURCES:
        for path in sorted((root / folder).rglob("*.py")):
            digest.update(f"{folder}/{path.relative_to(root / folder).as_posix()}\n".encode())
            digest.update(path.read_bytes().replace(b"\r\n", b"\n"))
    return digest.hexdigest()[:12]


@cache
def commit() -> str | None:
    """Return the commit of the checkout that this package runs from, with "+" behind it if files have changed since.

    TFLABENCH_COMMIT, where set, wins: for files that were copied without their .git, or over another checkout.
    """
    if given := os.environ.get("TFLABENCH_COMMIT"):
        return given
    root = Path(tflabench.__file__).resolve().parent.parent
    if not (root / ".git").exists() or not shutil.which("git"):
        return None
    show = ["git", "-C", str(root), "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"]
    return subprocess.run(show, capture_output=True, text=True, timeout=60).stdout.strip() or None


def chosen_gpu(name: str | None, dtype: str) -> Gpu:
    """Return the GPU of a name or .toml file; without one this machine's, or an H100 where there is none.

    Raises:
        InputError: an unknown name or dtype, or a file that describes no GPU.
    """
    from tflabench.theory import hardware  # here: help texts are shown without it

    one_of("dtype", dtype, tuple(DTYPE_BYTES))  # before any note of its rate
    chip = hardware.find(name) if name is not None else own_gpu(dtype) or hardware.find("H100")
    if chip.ceilings.provenance not in ("measured", "given") and dtype not in hardware.DATASHEET_DTYPES:
        hint = f"a --gpu FILE.toml may have that of {dtype}"
        print(f"note: the rate of {chip.name} is that of bfloat16; {hint}", file=sys.stderr)
    return chip


def own_gpu(dtype: str) -> Gpu | None:
    """Return this machine's GPU, with ceilings measured by `tflabench calibrate` or known; None where it has none."""
    from tflabench.theory import hardware

    here = detect("auto")
    ceilings = hardware.ceilings_for(here.name, dtype) if here.kind == "cuda" else None
    if ceilings is None:
        return None
    gpu = hardware.from_device_name(here.name) or hardware.Gpu(here.name, ceilings, here.memory_bytes)
    return replace(gpu, ceilings=ceilings)
