"""The list of GPUs, how one is found, and the ceilings that a calibration leaves behind."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tflabench.problem import InputError
from tflabench.theory import hardware
from tflabench.theory.hardware import KNOWN, Ceilings


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "tflabench" / "ceilings.json"


def test_the_gpus_are_listed_with_all_figures_and_their_sources():
    ampere = "A100 SXM 40GB, A100 SXM 80GB, A100 PCIe 40GB, A100 PCIe 80GB"
    hopper = "H100 SXM, H100 PCIe, H100 NVL, H200"
    for name in f"V100, {ampere}, {hopper}, B200, GB200, L40S, RTX 4090, RTX 5090, MI300X".split(", "):
        gpu = hardware.find(name)
        assert gpu.ceilings.provenance == "datasheet"
        assert gpu.ceilings.source
        assert gpu.source
        assert gpu.memory_bytes
        assert gpu.multiprocessors


def test_table_18_of_the_paper_is_reproduced():
    rows = {gpu.name: (gpu.ceilings.flops_per_s, gpu.ceilings.bytes_per_s) for gpu in hardware.table_18()}
    assert rows == {
        "paper-V100": (120e12, 0.9e12),
        "paper-A100": (312e12, 1.935e12),
        "paper-H100": (989e12, 3.35e12),
        "paper-B200": (2250e12, 7.7e12),
    }
    assert {gpu.ceilings.provenance for gpu in hardware.table_18()} == {"paper"}
    assert hardware.find("paper-H100").ceilings.intensity == pytest.approx(295.2, abs=0.05)


def test_the_papers_a100_is_the_pcie_card():
    """Table 18 calls it A100 SXM; its bandwidth is the PCIe 80GB card's, and the SXM's is higher."""
    paper = hardware.find("paper-A100").ceilings.bytes_per_s
    assert paper == hardware.find("A100 PCIe 80GB").ceilings.bytes_per_s
    assert paper < hardware.find("A100 SXM 80GB").ceilings.bytes_per_s


def test_rates_are_dense_and_accumulate_in_float32():
    """Against the sparse figures that datasheets print in larger type, and GeForce's float16 accumulation."""
    sparse = {"A100": 624, "H100": 1979, "H100 PCIe": 1513, "H100 NVL": 1671, "H200": 1979, "B200": 4500, "GB200": 5000}
    for name, tflops in sparse.items():
        assert hardware.find(name).ceilings.flops_per_s / 1e12 == pytest.approx(tflops / 2, abs=0.6)
    for name, float16 in {"RTX 4090": 330.3, "RTX 5090": 419}.items():
        assert hardware.find(name).ceilings.flops_per_s / 1e12 == pytest.approx(float16 / 2, abs=0.1)


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("H100", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("GeForce RTX 5090", "RTX 5090"),
        ("a100_40gb", "A100 SXM 40GB"),
        ("AMD Instinct MI300X", "MI300X"),
    ],
)
def test_names_are_found_whatever_their_spelling(asked, name):
    assert hardware.find(asked).name == name


@pytest.mark.parametrize(
    ("device", "folder"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA Something 9000", "something-9000"),
    ],
)
def test_a_gpu_has_one_folder_by_its_kind(device, folder):
    assert hardware.slug(device) == folder


def test_no_two_gpus_share_a_folder():
    assert len({hardware.slug(gpu.name) for gpu in KNOWN}) == len(KNOWN)


def test_no_two_gpus_share_a_name():
    names = [hardware._plain(name) for gpu in KNOWN for name in {gpu.name, *gpu.aliases}]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(("asked", "suggested"), [("H10O", "H100 SXM"), ("B20", "B200"), ("RTX 409", "RTX 4090")])
def test_an_unknown_gpu_suggests_the_nearest(asked, suggested):
    with pytest.raises(InputError, match=rf"no GPU is called '{asked}'; did you mean .*{suggested}"):
        hardware.find(asked)


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("Tesla V100-SXM2-32GB", "V100 SXM2 32GB"),
        ("NVIDIA A100-SXM4-40GB", "A100 SXM 40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM 80GB"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H200", "H200 SXM"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA H20", "H20"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A10G", None),
        ("NVIDIA L40", None),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("AMD Instinct MI300X", "MI300X"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA H200 NVL", None),
        ("Intel Xeon Processor, 2 cores", None),
    ],
)
def test_drivers_names_are_recognised(device, name):
    gpu = hardware.from_device_name(device)
    assert (gpu and gpu.name) == name


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_ceilings_must_be_positive(value):
    with pytest.raises(InputError, match=r"flops_per_s is .*: it must be a positive number"):
        Ceilings(value, 1, "measured", "")
    with pytest.raises(InputError, match=r"bytes_per_s is .*: it must be a positive number"):
        Ceilings(1, value, "measured", "")


def test_measured_ceilings_are_kept_by_device_and_dtype(own_cache):
    assert hardware.measured_ceilings("NVIDIA H200") is None
    bf16, fp32 = (Ceilings(rate, 4.26e12, "measured", "copy and matrix product") for rate in (782e12, 50e12))
    assert hardware.store_ceilings("NVIDIA H200", "bfloat16", bf16) == own_cache
    hardware.store_ceilings("NVIDIA H200", "float32", fp32)
    assert hardware.measured_ceilings("NVIDIA H200") == bf16
    assert hardware.measured_ceilings("NVIDIA H200", "float32") == fp32
    assert hardware.measured_ceilings("NVIDIA H100") is None
    assert sorted(path.name for path in own_cache.parent.iterdir()) == ["ceilings.json", "ceilings.lock"]


def test_processes_that_store_ceilings_at_the_same_time_lose_none(own_cache):
    ceilings = Ceilings(1e14, 1e12, "measured", "test")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: hardware.store_ceilings(f"GPU-{number}", "bfloat16", ceilings), range(40)))
    assert all(hardware.measured_ceilings(f"GPU-{number}") for number in range(40))


def test_measured_ceilings_come_before_the_datasheets():
    assert hardware.ceilings_for("NVIDIA H200") == hardware.find("H200").ceilings
    measured = Ceilings(782e12, 4.26e12, "measured", "")
    hardware.store_ceilings("NVIDIA H200", "bfloat16", measured)
    assert hardware.ceilings_for("NVIDIA H200") == measured
    assert hardware.ceilings_for("NVIDIA H200", "float16") == hardware.find("H200").ceilings


def test_a_datasheet_says_nothing_of_float32_and_of_unknown_devices():
    assert hardware.ceilings_for("NVIDIA H200", "float32") is None
    assert hardware.ceilings_for("Intel Xeon Processor, 2 cores") is None


def test_a_damaged_file_of_ceilings_is_named(own_cache):
    own_cache.parent.mkdir()
    own_cache.write_text('{"NVIDIA H200": {')
    with pytest.raises(InputError, match=r"ceilings.json is not what `tflabench calibrate` writes: delete it"):
        hardware.measured_ceilings("NVIDIA H200")


def test_an_unwritable_cache_is_named(own_cache):
    own_cache.parent.write_text("a file where the folder should be")
    with pytest.raises(InputError, match=r"cannot write .*ceilings.json .*: set XDG_CACHE_HOME"):
        hardware.store_ceilings("NVIDIA H200", "bfloat16", Ceilings(1, 1, "measured", ""))


def test_vector_rates_and_clocks_agree_with_the_lanes_of_the_architecture():
    """Multiprocessors times lanes times two times the clock: 64 lanes before Hopper and Ada, then 128.

    Datasheets round: to 0.6% at most. A multiprocessor of 132 is 0.8%, the clock of tensor cores for that of the lanes
    (H100: 1.83 for 1.98 GHz) 8%.
    """
    known = [gpu for gpu in hardware.KNOWN if gpu.float32_flops_per_s]
    # AMD's compute units count otherwise
    assert {gpu.name for gpu in hardware.KNOWN if gpu not in known} == {"MI300X", "H20"}
    for gpu in known:
        assert _lanes_say(gpu) == pytest.approx(1, abs=0.006), gpu.name


def _lanes_say(gpu: hardware.Gpu) -> float:
    """What multiprocessors, lanes and clock make of the float32 rate, over the rate."""
    assert gpu.multiprocessors
    assert gpu.clock_hz
    assert gpu.float32_flops_per_s
    lanes = 64 if gpu.name.startswith(("V100", "A100")) else 128
    return 2 * lanes * gpu.multiprocessors * gpu.clock_hz / gpu.float32_flops_per_s


GPU = 'name = "B300"\npeak_tflops = 2500\nbandwidth_tbs = 8.0\ncapability = "10.0"\nl2_mib = 126\nmemory_gb = 288\n'


def test_a_gpu_is_a_file_too(tmp_path):
    path = tmp_path / "b300.toml"
    path.write_text(GPU)
    gpu = hardware.find(str(path))
    assert (gpu.name, gpu.ceilings.flops_per_s, gpu.ceilings.bytes_per_s) == ("B300", 2.5e15, 8e12)
    assert (gpu.memory_bytes, gpu.l2_bytes, gpu.capability) == (288e9, 126 * 2**20, (10, 0))
    assert gpu.shared_memory_bytes == hardware.find("B200").shared_memory_bytes
    path.write_text(GPU + "shared_memory_kib = 64\n")
    assert hardware.find(str(path)).shared_memory_bytes == 64 * 1024


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("8.0", "-1"), "bandwidth_tbs is -1: it must be a positive number"),
        (("8.0", '"8"'), "bandwidth_tbs is '8': it must be a positive number"),
        (("bandwidth_tbs = 8.0", ""), "no bandwidth_tbs: peak_tflops and bandwidth_tbs must be there"),
        (("l2_mib", "l2"), "unknown field 'l2': a GPU has name, capability, peak_tflops"),
        (('"10.0"', '"hopper"'), "capability is 'hopper': it must be one of CUDA"),
    ],
)
def test_a_file_that_is_no_gpu(tmp_path, change, message):
    path = tmp_path / "mine.toml"
    path.write_text(GPU.replace(*change))
    with pytest.raises(InputError) as error:
        hardware.find(str(path))
    assert str(error.value).startswith(f"GPU {path}: {message}")
    with pytest.raises(InputError, match="cannot be read"):
        hardware.find(str(tmp_path / "nowhere.toml"))
