"""GPUs: dense matrix rate and memory bandwidth, from datasheets and as `tflabench calibrate` measured.

Rates are dense (datasheets print twice as much "with sparsity") and with float32 accumulation, which halves the rate of
GeForce cards and is what these kernels use. Bytes are SI, as in datasheets; caches are binary.
"""

from __future__ import annotations

import difflib
import fcntl
import json
import os
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

from tflabench.problem import InputError

Provenance = Literal["datasheet", "paper", "given", "measured"]
KiB, MiB = 1024, 1024**2
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
        _require_positive(flops_per_s=self.flops_per_s, bytes_per_s=self.bytes_per_s)

    @property
    def intensity(self) -> float:
        """I_acc = alpha / beta in FLOP/byte (eq. 117)."""
        return self.flops_per_s / self.bytes_per_s


def _require_positive(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < float("inf"):
            raise InputError(f"{name} is {value}: it must be a positive number")


@dataclass(frozen=True)
class Gpu:
    """A GPU.

    Attributes:
        name, aliases: what `find` accepts; a name is exact, an alias ("A100") picks the usual form factor.
        device: pattern of the name its driver reports.
        ceilings: of bfloat16 (V100: float16) matrix products.
        memory_bytes: of device memory; None where not known.
        multiprocessors: SMs, or compute units on AMD.
        l2_bytes: on-chip cache shared by all multiprocessors, as far as documented.
        float32_flops_per_s: of the vector lanes, a multiply-add counted as two; from the document of the ceilings.
        clock_hz: that the float32 rate stands for; Hopper's and Blackwell's matrix rates stand for a lower one.
        capability: CUDA compute capability; None where not known, and for GPUs of others.
        source: of multiprocessors and L2.
        note: what a reader might argue about.
        shared_memory_bytes: that a block (a program of Triton's) can have if it asks for it; None for that of the
            `capability`.
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
        if self.capability and self.shared_memory_bytes is None:
            object.__setattr__(self, "shared_memory_bytes", SHARED_MEMORY_BYTES.get(self.capability))


def _datasheet(tflops: float, tbs: float, source: str) -> Ceilings:
    return Ceilings(tflops * 1e12, tbs * 1e12, "datasheet", source)


_A100_PAPER = "NVIDIA A100 architecture white paper"
_H100_PAPER = "NVIDIA H100 architecture white paper"
_H100_SHEET = "NVIDIA H100 datasheet (1,979 TFLOP/s sparse, 3.35 TB/s)"
_GH200_SHEET = "NVIDIA GH200 datasheet (1,979 TFLOP/s sparse; HBM3 4 TB/s, HBM3e 4.9 TB/s)"
_GH200_SOURCE = "multiprocessors of the H100 SXM, the same GPU"
_BLACKWELL_SHEET = "NVIDIA Blackwell datasheet"
_BLACKWELL_DRIVER = "NVIDIA Blackwell tuning guide (L2); multiprocessors as reported by the driver"

Capability = tuple[int, int]  # CUDA compute capability
HOPPER: Capability = (9, 0)
# Of a block, by compute capability: "maximum amount of shared memory per thread block" in the table of technical
# specifications in the CUDA C++ programming guide. More than 48 KiB a kernel has to ask for, as Triton does.
SHARED_MEMORY_BYTES = {
    (7, 0): 96 * KiB, (8, 0): 163 * KiB, (8, 9): 99 * KiB, (9, 0): 227 * KiB, (10, 0): 227 * KiB, (12, 0): 99 * KiB,
}  # fmt: skip

KNOWN: tuple[Gpu, ...] = (
    Gpu(
        "V100 SXM2 32GB", _datasheet(125, 0.9, "NVIDIA V100 datasheet"), 32e9, 80, 6 * MiB, 15.7e12, 1.53e9,
        aliases=("V100", "V100 SXM2"), device=r"V100-SXM2", source="NVIDIA Volta architecture white paper",
        note="float16: Volta has no bfloat16. The paper's Table 18 has 120 TFLOP/s, NVIDIA's figure at launch.",
        capability=(7, 0),
    ),
    Gpu(
        "A100 SXM 40GB", _datasheet(312, 1.555, "NVIDIA A100 datasheet"), 40e9, 108, 40 * MiB, 19.5e12, 1.41e9,
        aliases=("A100 40GB",), device=r"A100-SXM4-40GB", source=_A100_PAPER,
        capability=(8, 0),
    ),
    Gpu(
        "A100 SXM 80GB", _datasheet(312, 2.039, "NVIDIA A100 80GB datasheet"), 80e9, 108, 40 * MiB, 19.5e12, 1.41e9,
        aliases=("A100", "A100 SXM", "A100 80GB"), device=r"A100-SXM4-80GB", source=_A100_PAPER,
        note="The paper's Table 18 calls its row A100 SXM but has 1.935 TB/s, the bandwidth of the PCIe 80GB card.",
        capability=(8, 0),
    ),
    Gpu(
        "A100 PCIe 40GB", _datasheet(312, 1.555, "NVIDIA A100 datasheet"), 40e9, 108, 40 * MiB, 19.5e12, 1.41e9,
        device=r"A100-PCIE-40GB", source=_A100_PAPER,
        capability=(8, 0),
    ),
    Gpu(
        "A100 PCIe 80GB", _datasheet(312, 1.935, "NVIDIA A100 80GB datasheet"), 80e9, 108, 40 * MiB, 19.5e12, 1.41e9,
        aliases=("A100 PCIe",), device=r"A100 80GB PCIe", source=_A100_PAPER,
        capability=(8, 0),
    ),
    Gpu(
        "H100 SXM", _datasheet(989, 3.35, _H100_SHEET), 80e9, 132, 50 * MiB, 67e12, 1.98e9,
        aliases=("H100", "H100 SXM 80GB"), device=r"H100 80GB HBM3", source=_H100_PAPER,
        note="989.4 TFLOP/s in the white paper; rounded as in the paper's Table 18.",
        capability=(9, 0),
    ),
    Gpu(
        "H100 PCIe", _datasheet(756, 2.0, "NVIDIA H100 datasheet (1,513 TFLOP/s sparse, 2 TB/s)"),
        80e9, 114, 50 * MiB, 51e12, 1.755e9,
        device=r"H100 PCIe", source=_H100_PAPER,
        capability=(9, 0),
    ),
    Gpu(
        "H100 NVL", _datasheet(835, 3.9, "NVIDIA H100 datasheet (1,671 TFLOP/s sparse, 3.9 TB/s)"),
        94e9, 132, None, 60e12, 1.785e9,
        device=r"H100 NVL", source="NVIDIA H100 NVL product brief",
        note="One card; older datasheets print the sum of a bridged pair.",
        capability=(9, 0),
    ),
    Gpu(
        "H200 SXM", _datasheet(989, 4.8, "NVIDIA H200 datasheet (1,979 TFLOP/s sparse, 4.8 TB/s)"),
        141e9, 132, 60 * MiB, 67e12, 1.98e9,
        aliases=("H200",), device=r"(?<!G)H200(?! NVL)", source="as reported by the driver",
        capability=(9, 0),
    ),
    Gpu(
        "GH200 96GB", _datasheet(989.5, 4.0, _GH200_SHEET), 96e9, 132, None, 67e12, 1.98e9,
        aliases=("GH200", "GH200 480GB", "GH200 HBM3"), device=r"GH200 (96|120|480)G", source=_GH200_SOURCE,
        note="Hopper's GPU beside a Grace CPU; the driver names the CPU's memory: 480GB.",
        capability=(9, 0),
    ),
    Gpu(
        "GH200 144GB", _datasheet(989.5, 4.9, _GH200_SHEET), 144e9, 132, None, 67e12, 1.98e9,
        aliases=("GH200 144G HBM3e", "GH200 HBM3e"), device=r"GH200 144G", source=_GH200_SOURCE,
        note="Hopper's GPU beside a Grace CPU.",
        capability=(9, 0),
    ),
    Gpu(
        "B200", _datasheet(2250, 7.7, _BLACKWELL_SHEET + ", HGX B200 (4.5 PFLOP/s sparse, 7.7 TB/s)"),
        180e9, 148, 126 * MiB, 75e12, 1.98e9,
        aliases=("B200 SXM", "HGX B200"), device=r"(?<!G)B200", source=_BLACKWELL_DRIVER,
        note="1,000 W HGX part, as in the paper's Table 18; others quote 192 GB and 8 TB/s.",
        capability=(10, 0),
    ),
    Gpu(
        "GB200", _datasheet(2500, 8.0, _BLACKWELL_SHEET + ", GB200 NVL72 (5 PFLOP/s sparse, 8 TB/s)"),
        186e9, 152, 126 * MiB, 80e12, 2.06e9,
        device=r"GB200", source=_BLACKWELL_DRIVER, note="One of the superchip's two GPUs.",
        capability=(10, 0),
    ),
    Gpu(
        "L40S", _datasheet(362.05, 0.864, "NVIDIA L40S datasheet"), 48e9, 142, 96 * MiB, 91.6e12, 2.52e9,
        device=r"L40S", source="NVIDIA Ada architecture white paper",
        capability=(8, 9),
    ),
    Gpu(
        "RTX 4090", _datasheet(165.2, 1.008, "NVIDIA Ada architecture white paper, appendix A"),
        24e9, 128, 72 * MiB, 82.6e12, 2.52e9,
        aliases=("GeForce RTX 4090", "4090"), device=r"RTX 4090(?! D| Laptop)",
        source="NVIDIA Ada architecture white paper", note="float32 accumulation; 330.3 with float16 accumulation.",
        capability=(8, 9),
    ),
    Gpu(
        "RTX 5090", _datasheet(209.5, 1.792, "NVIDIA RTX Blackwell architecture white paper, appendix A"),
        32e9, 170, 96 * MiB, 104.8e12, 2.41e9, aliases=("GeForce RTX 5090", "5090"), device=r"RTX 5090(?! D| Laptop)",
        source="NVIDIA RTX Blackwell architecture white paper",
        note="float32 accumulation; 419 with float16 accumulation (float16 inputs) or with sparsity.",
        capability=(12, 0),
    ),
    Gpu(
        "MI300X", _datasheet(1307.4, 5.3, "AMD Instinct MI300X datasheet"), 192e9, 304, 32 * MiB, vendor="AMD",
        aliases=("Instinct MI300X",), device=r"MI300X", source="AMD CDNA 3 white paper",
        note="Eight dies of 4 MiB L2; the 256 MB Infinity Cache is behind them.",
    ),
)  # fmt: skip


def _table_18(gpu: str, tflops: float, tbs: float) -> Gpu:
    """Return a row of the paper's Table 18, to reproduce its figures: `--gpu paper-A100`."""
    known = find(gpu)
    ceilings = Ceilings(tflops * 1e12, tbs * 1e12, "paper", "TFLA paper, Table 18")
    return replace(known, name=f"paper-{gpu}", ceilings=ceilings, aliases=(), device=None, note="")


@cache
def table_18() -> tuple[Gpu, ...]:
    """Return the paper's Table 18: V100 SXM2, A100 SXM, H100 SXM, B200 HGX."""
    rows = (("V100", 120, 0.9), ("A100", 312, 1.935), ("H100", 989, 3.35), ("B200", 2250, 7.7))
    return tuple(_table_18(*row) for row in rows)


def find(name: str) -> Gpu:
    """Return the GPU of a name or alias, whatever its case and punctuation; "paper-H100" is of the paper's Table 18.

    A name that ends in .toml is a file of the fields of `FILE_FIELDS`.

    Raises:
        InputError: no such GPU, with the nearest names, or a file that describes none.
    """
    if name.endswith(".toml"):
        return _of_file(Path(name))
    gpus = {_plain(n): gpu for gpu in KNOWN for n in (gpu.name, *gpu.aliases)}
    if _plain(name).startswith("paper"):
        gpus = {_plain(gpu.name): gpu for gpu in table_18()}
    if gpu := gpus.get(_plain(name)):
        return gpu
    near = dict.fromkeys(gpus[key].name for key in difflib.get_close_matches(_plain(name), gpus, n=3, cutoff=0.5))
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(gpu.name for gpu in KNOWN)}"
    raise InputError(f"no GPU is called {name!r}; {hint} (any other: a .toml file, or its two ceilings)")


# A GPU in a TOML file: the attribute of `Gpu` or `Ceilings` that a field sets, and its unit in that of the attribute.
FILE_FIELDS = {
    "peak_tflops": ("flops_per_s", 1e12),
    "bandwidth_tbs": ("bytes_per_s", 1e12),
    "memory_gb": ("memory_bytes", 1e9),
    "multiprocessors": ("multiprocessors", 1),
    "l2_mib": ("l2_bytes", MiB),
    "shared_memory_kib": ("shared_memory_bytes", KiB),
    "float32_tflops": ("float32_flops_per_s", 1e12),
    "clock_ghz": ("clock_hz", 1e9),
}


def _of_file(path: Path) -> Gpu:
    """Return the GPU that a TOML file describes: `FILE_FIELDS`, a `name` and a `capability` such as "9.0".

    Raises:
        InputError: it cannot be read, or a field is unknown, missing, or no positive number.
    """
    try:
        fields = tomllib.loads(path.read_text(encoding="utf-8"))
        name, capability = str(fields.pop("name", path.stem)), fields.pop("capability", None)
        if unknown := fields.keys() - FILE_FIELDS.keys():
            raise InputError(f"unknown field {min(unknown)!r}: a GPU has name, capability, {', '.join(FILE_FIELDS)}")
        if lacking := {"peak_tflops", "bandwidth_tbs"} - fields.keys():
            raise InputError(f"no {min(lacking)}: peak_tflops and bandwidth_tbs must be there")
        for key, value in fields.items():
            if type(value) not in (int, float) or not 0 < value < float("inf"):
                raise InputError(f"{key} is {value!r}: it must be a positive number")
        if capability is not None and not re.fullmatch(r"\d+\.\d", str(capability)):
            raise InputError(f'capability is {capability!r}: it must be one of CUDA, such as "9.0"')
    except OSError as error:
        raise InputError(f"GPU {path} cannot be read ({error.strerror}): name a TOML file") from None
    except ValueError as error:  # of TOML, of its encoding, and InputError
        raise InputError(f"GPU {path}: {error}") from None
    values = {FILE_FIELDS[key][0]: type(value)(value * FILE_FIELDS[key][1]) for key, value in fields.items()}
    ceilings = Ceilings(values.pop("flops_per_s"), values.pop("bytes_per_s"), "given", str(path))
    major, minor = map(int, str(capability).split(".")) if capability is not None else (0, 0)
    return Gpu(name, ceilings, source=str(path), capability=(major, minor) if capability else None, **values)


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
    """Return the GPU of rows by its driver's name, or what `tflabench calibrate` measured of an unknown one.

    Raises:
        InputError: nothing is known of it.
    """
    if gpu := from_device_name(device):
        return gpu
    if ceilings := measured_ceilings(device, dtype):
        return Gpu(device, ceilings)
    raise InputError(
        f"the rows ran on {device!r}, whose peak rate and bandwidth are not known: run `tflabench calibrate` on it"
    )


def custom(peak_tflops: float, bandwidth_tbs: float, name: str = "custom") -> Gpu:
    """Return a GPU known by its two ceilings only, in TFLOP/s and TB/s."""
    _require_positive(peak_tflops=peak_tflops, bandwidth_tbs=bandwidth_tbs)
    return Gpu(name, Ceilings(peak_tflops * 1e12, bandwidth_tbs * 1e12, "given", "given by the user"))


def store_ceilings(device: str, dtype: str, ceilings: Ceilings) -> Path:
    """Keep measured ceilings of a device for a dtype; returns the file written.

    Args:
        device: the driver's name of a kind of GPU, the UUID of one, or the name of a CPU.

    Raises:
        InputError: the file cannot be written.
    """
    path = ceilings_file()
    half = path.with_suffix(".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _alone_in(path.parent):  # processes on other GPUs store theirs at the same time
            stored = _stored()
            stored.setdefault(device, {})[dtype] = asdict(ceilings)
            half.write_text(json.dumps(stored, indent=1) + "\n")
            half.replace(path)  # at once, so that no reader finds half a file
    except OSError as error:
        raise InputError(f"cannot write {path} ({error.strerror}): set XDG_CACHE_HOME to a writable folder") from None
    return path


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keep other processes out of the same block for the same folder."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def measured_ceilings(device: str, dtype: str = "bfloat16") -> Ceilings | None:
    """Ceilings that `tflabench calibrate` stored for a device on this machine, None where it has not run."""
    found = _stored().get(device, {}).get(dtype)
    return Ceilings(**found) if found else None


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
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "tflabench" / "ceilings.json"


def _stored() -> dict[str, dict[str, dict]]:
    """Return what `ceilings_file` holds by device and dtype; nothing where there is no such file.

    Raises:
        InputError: `store_ceilings` did not write it.
    """
    path = ceilings_file()
    if not path.exists():
        return {}
    try:
        stored = json.loads(path.read_text())
        for by_dtype in stored.values():
            for found in by_dtype.values():
                Ceilings(**found)
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
