"""GPUs: dense matrix rate and memory bandwidth, from datasheets and as `tflabench calibrate` measured.

The known ones are in gpus.toml, next to this module; a user's own GPU is a file with one such table.
"""

from __future__ import annotations

import difflib
import fcntl
import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from platformdirs import user_cache_path

from tflabench.problem import InputError, reading

Provenance = Literal["datasheet", "paper", "given", "measured"]
KiB = 1024
DATASHEET_DTYPES = ("bfloat16", "float16")  # that the datasheet rates below hold for


@dataclass(frozen=True)
class Ceilings:
    """The two roofs of a roofline.

    Attributes:
        flops_per_s: alpha, dense matrix rate in FLOP/s.
        bytes_per_s: beta, memory bandwidth in byte/s.
        provenance: "datasheet"; "paper" (TFLA Table 18); "given" (by the user); "measured" (by `tflabench calibrate`).
        source: document, or how it was measured.
    """

    flops_per_s: float
    bytes_per_s: float
    provenance: Provenance
    source: str

    def __post_init__(self) -> None:
        for name in ("flops_per_s", "bytes_per_s"):
            if not 0 < (value := getattr(self, name)) < float("inf"):
                raise InputError(f"{name} is {value}: it must be a positive number")

    @property
    def intensity(self) -> float:
        """Return I_acc = alpha / beta in FLOP/byte (eq. 117)."""
        return self.flops_per_s / self.bytes_per_s


@dataclass(frozen=True)
class Gpu:
    """A GPU, by the fields that gpus.toml explains, in SI units; what is not known is None.

    Attributes:
        name, aliases: what `find` accepts; a name is exact, an alias ("A100") picks the usual form factor.
        ceilings: of bfloat16 (V100: float16) matrix products.
        capability: None for GPUs of others than NVIDIA too.
        shared_memory_bytes: that a block (a program of Triton's) can have if it asks for it; None: by `capability`.
    """

    name: str
    ceilings: Ceilings
    memory_bytes: float | None = None
    multiprocessors: int | None = None
    l2_bytes: int | None = None
    float32_flops_per_s: float | None = None
    clock_hz: float | None = None
    capability: tuple[int, int] | None = None
    vendor: str = "NVIDIA"
    aliases: tuple[str, ...] = ()
    device: str | None = None
    source: str = ""
    note: str = ""
    shared_memory_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.shared_memory_bytes is None and self.capability:
            object.__setattr__(self, "shared_memory_bytes", SHARED_MEMORY_BYTES.get(self.capability))


Capability = tuple[int, int]  # CUDA compute capability
HOPPER: Capability = (9, 0)
# Of a block, by compute capability: "maximum amount of shared memory per thread block" in the table of technical
# specifications in the CUDA C++ programming guide. More than 48 KiB a kernel has to ask for, as Triton does.
SHARED_MEMORY_BYTES = {
    (7, 0): 96 * KiB, (8, 0): 163 * KiB, (8, 6): 99 * KiB, (8, 9): 99 * KiB, (9, 0): 227 * KiB, (10, 0): 227 * KiB,
    (12, 0): 99 * KiB,
}  # fmt: skip
# Numbers of a GPU's table in TOML -> field of `Gpu`, and what one is of its unit.
NUMBERS = {
    "memory_gb": ("memory_bytes", 1e9),
    "multiprocessors": ("multiprocessors", 1),
    "l2_mib": ("l2_bytes", 1024**2),
    "float32_tflops": ("float32_flops_per_s", 1e12),
    "clock_ghz": ("clock_hz", 1e9),
    "shared_memory_kib": ("shared_memory_bytes", KiB),
}
TEXTS = ("name", "device", "vendor", "source", "note")
FIELDS = ("name", "capability", "peak_tflops", "bandwidth_tbs", *NUMBERS, "datasheet", "aliases", *TEXTS[1:])


def read_gpu(table: Mapping[str, Any], origin: str) -> Gpu:
    """Return the GPU that a table of TOML describes; gpus.toml explains the fields.

    Args:
        origin: without a `datasheet` it is the source of the ceilings, which are "given".

    Raises:
        InputError: a field is unknown, missing, or no positive number.
    """
    if unknown := [key for key in table if key not in FIELDS]:
        raise InputError(f"unknown field {unknown[0]!r}: a GPU has {', '.join(FIELDS)}")
    if lacking := [key for key in ("bandwidth_tbs", "peak_tflops") if key not in table]:
        raise InputError(f"no {lacking[0]}: peak_tflops and bandwidth_tbs must be there")
    for key in ("peak_tflops", "bandwidth_tbs", *(key for key in NUMBERS if key in table)):
        if type(value := table[key]) not in (int, float) or not 0 < value < float("inf"):
            raise InputError(f"{key} is {value!r}: it must be a positive number")
    capability = re.fullmatch(r"(\d+)\.(\d)", str(table.get("capability", "0.0")))
    if not capability:
        raise InputError(f'capability is {table["capability"]!r}: it must be one of CUDA, such as "9.0"')
    major, minor = map(int, capability.groups())
    fields: dict[str, Any] = {"name": Path(origin).stem} | {key: str(table[key]) for key in TEXTS if key in table}
    fields |= {field: table[key] * unit for key, (field, unit) in NUMBERS.items() if key in table}
    source = ("datasheet", table["datasheet"]) if "datasheet" in table else ("given", origin)
    fields["ceilings"] = Ceilings(table["peak_tflops"] * 1e12, table["bandwidth_tbs"] * 1e12, *source)
    return Gpu(**fields, capability=(major, minor) if major else None, aliases=tuple(table.get("aliases", ())))


TABLES = tomllib.loads(Path(__file__).with_name("gpus.toml").read_text(encoding="utf-8"))["gpu"]
KNOWN = tuple(read_gpu(table, "gpus.toml") for table in TABLES)


@cache
def table_18() -> tuple[Gpu, ...]:
    """Return the paper's Table 18, to reproduce its figures: V100 SXM2, A100 SXM, H100 SXM, B200 HGX."""
    gpus = []
    for name, tflops, tbs in (("V100", 120, 0.9), ("A100", 312, 1.935), ("H100", 989, 3.35), ("B200", 2250, 7.7)):
        ceilings = Ceilings(tflops * 1e12, tbs * 1e12, "paper", "TFLA paper, Table 18")
        gpus.append(replace(find(name), name=f"paper-{name}", ceilings=ceilings, aliases=(), device=None, note=""))
    return tuple(gpus)


def find(name: str) -> Gpu:
    """Return the GPU of a name or alias, whatever its case and punctuation, or that of a file in .toml.

    "paper-H100" is of the paper's Table 18.

    Raises:
        InputError: no such GPU, with the nearest names; or a file that cannot be read, or that describes none.
    """
    if name.endswith(".toml"):
        with reading(f"GPU {name}", "TOML"):
            return read_gpu(tomllib.loads(Path(name).read_text(encoding="utf-8")), name)
    gpus = {_plain(n): gpu for gpu in KNOWN for n in (gpu.name, *gpu.aliases)}
    if _plain(name).startswith("paper"):
        gpus = {_plain(gpu.name): gpu for gpu in table_18()}
    if gpu := gpus.get(_plain(name)):
        return gpu
    near = dict.fromkeys(gpus[key].name for key in difflib.get_close_matches(_plain(name), gpus, n=3, cutoff=0.5))
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(gpu.name for gpu in KNOWN)}"
    raise InputError(f"no GPU is called {name!r}; {hint} (any other: a .toml file)")


def from_device_name(device: str) -> Gpu | None:
    """Return the GPU whose driver reports that name ("NVIDIA H100 80GB HBM3"), None where it is not known."""
    return next((gpu for gpu in KNOWN if gpu.device and re.search(gpu.device, device)), None)


def short_device(device: str) -> str:
    """Return the short name of a row's device: "H100", or "CPU"; the whole name of one that is not known."""
    if re.search(r"\d+ cores?$", device):  # as `bench.machine` names a CPU
        return "CPU"
    gpu = from_device_name(device)
    return gpu.name.split()[0] if gpu else device


def short_devices(devices: Iterable[str]) -> dict[str, str]:
    """Return the short names of rows' devices, or their whole names where two would have the same."""
    short = {device: short_device(device) for device in devices}
    count = Counter(short.values())
    return {device: name if count[name] == 1 else device for device, name in short.items()}


def described(device: str, dtype: str = "bfloat16") -> Gpu:
    """Return the GPU of rows by its driver's name, or what `tflabench calibrate` measured of it; InputError without."""
    if gpu := from_device_name(device):
        return gpu
    if ceilings := measured_ceilings(device, dtype):
        return Gpu(device, ceilings)
    raise InputError(
        f"the rows ran on {device!r}, whose peak rate and bandwidth are not known: run `tflabench calibrate` on it"
    )


def store_ceilings(device: str, dtype: str, ceilings: Ceilings) -> Path:
    """Keep measured ceilings of a device for a dtype; return the file, or InputError where it cannot be written.

    Args:
        device: the driver's name of a kind of GPU, the UUID of one, or the name of a CPU.
    """
    path = ceilings_file()
    half = path.with_suffix(".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_suffix(".lock").open("w") as lock:  # processes on other GPUs store theirs at the same time
            fcntl.flock(lock, fcntl.LOCK_EX)
            stored = _stored()
            stored.setdefault(device, {})[dtype] = asdict(ceilings)
            half.write_text(json.dumps(stored, indent=1) + "\n")
            half.replace(path)  # at once, so that no reader finds half a file
    except OSError as error:
        raise InputError(f"cannot write {path} ({error.strerror}): set XDG_CACHE_HOME to a writable folder") from None
    return path


def measured_ceilings(device: str, dtype: str = "bfloat16") -> Ceilings | None:
    """Return the ceilings that `tflabench calibrate` stored for a device on this machine, None where it has not run."""
    stored = _stored().get(device, {}).get(dtype)
    return Ceilings(**stored) if stored else None


def ceilings_for(device: str, dtype: str = "bfloat16") -> Ceilings | None:
    """Return the ceilings to hold a measurement against: measured ones where stored, else the datasheet's.

    Datasheet rates hold for bfloat16 and float16; for other dtypes, and for devices not known, None.
    """
    if measured := measured_ceilings(device, dtype):
        return measured
    gpu = from_device_name(device)
    return gpu.ceilings if gpu and dtype in DATASHEET_DTYPES else None


def ceilings_file() -> Path:
    """Return the file that measured ceilings are kept in; it may not exist."""
    return user_cache_path("tflabench") / "ceilings.json"


def _stored() -> dict[str, dict[str, dict]]:
    """Return what `store_ceilings` has written by device and dtype, if anything; InputError for what it did not."""
    path = ceilings_file()
    if not path.exists():
        return {}
    try:
        stored = json.loads(path.read_text())
        for by_dtype in stored.values():
            for ceilings in by_dtype.values():
                Ceilings(**ceilings)
    except (OSError, ValueError, TypeError, AttributeError):
        raise InputError(f"{path} is not what `tflabench calibrate` writes: delete it and run that again") from None
    return stored


def slug(device: str) -> str:
    """Return a device as a folder name: "h100" of "NVIDIA H100 80GB HBM3" and of "H100 SXM", "h100-pcie" of that board.

    The boards with SXM sockets are the usual ones, so that is left out. Devices not known go by their driver's name.
    """
    gpu = from_device_name(device) or next((gpu for gpu in KNOWN if gpu.name == device), None)
    device = re.sub(r" SXM\d?", "", gpu.name) if gpu else device
    return re.sub(r"[^a-z0-9]+", "-", device.lower().removeprefix("nvidia ")).strip("-")


def _plain(name: str) -> str:
    """Return a name without case, punctuation and the vendor."""
    return re.sub(r"[^a-z0-9]|nvidia|amd", "", name.lower())
