"""Ceilings of a machine: measured once for each GPU."""

from __future__ import annotations

from typing import Any

import pytest

from tflabench.bench.ceilings import calibrate, ceilings_of
from tflabench.bench.machine import Machine
from tflabench.problem import InputError
from tflabench.theory.hardware import Ceilings, measured_ceilings

MACHINE = Machine("cuda", "some GPU", 2**36)


def test_each_gpu_of_a_kind_is_calibrated_once_and_stored_by_its_uuid(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    rates = {"GPU-1": 7.8e14, "GPU-2": 7.5e14}
    jobs: list[str] = []

    def ceilings(uuid: str) -> Ceilings:
        def answer(job: dict[str, Any], timeout_s: float) -> dict[str, Any]:
            jobs.append(uuid)
            return {"status": "ok", "ceilings": dict.fromkeys(job["dtypes"], (rates[uuid], 4.2e12))}

        gpu = Machine("cuda", "NVIDIA H200", 2**37, uuid=uuid)
        return ceilings_of(gpu, ["bfloat16"], answer)["bfloat16"]

    assert [ceilings(uuid).flops_per_s for uuid in (*rates, *rates)] == [7.8e14, 7.5e14] * 2
    assert jobs == ["GPU-1", "GPU-2"]
    assert [measured_ceilings(uuid).flops_per_s for uuid in rates] == [7.8e14, 7.5e14]  # type: ignore[union-attr]
    assert measured_ceilings("NVIDIA H200").flops_per_s == 7.8e14, "of the kind: the first"  # type: ignore[union-attr]


def test_where_ceilings_cannot_be_measured_a_sweep_has_those_of_the_datasheet(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def full(job: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        return {"status": "oom", "reason": "full"}

    gpu = Machine("cuda", "NVIDIA H200", 2**37, uuid="GPU-1")
    with pytest.warns(UserWarning, match="not of ceilings measured on this device: NVIDIA H200 cannot be calibrated"):
        assert ceilings_of(gpu, ["bfloat16"], full)["bfloat16"].provenance == "datasheet"
    with pytest.raises(InputError, match="some GPU cannot be calibrated: full"):
        ceilings_of(MACHINE, ["bfloat16"], full)


@pytest.mark.parametrize(
    ("measured", "force", "kept", "warnings"),
    [
        ((0.95e14, 1e12), False, (0.95e14, 1e12), 0),
        ((0.2e14, 1.2e12), False, (1e14, 1.2e12), 2),
        ((0.2e14, 1.2e12), True, (0.2e14, 1.2e12), 0),
    ],
)
def test_a_calibration_on_a_busy_machine_keeps_what_was_better(
    measured, force, kept, warnings, monkeypatch, tmp_path, recwarn
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def calibrated(rates: tuple[float, float]) -> Ceilings:
        answer = {"status": "ok", "ceilings": {"float32": rates}}
        return calibrate(MACHINE, ["float32"], lambda job, timeout_s: answer, 1.0, force)["float32"]

    calibrated((1e14, 1e12))
    found = calibrated(measured)
    assert (found.flops_per_s, found.bytes_per_s) == kept
    assert measured_ceilings(MACHINE.name, "float32") == found
    assert len(recwarn) == warnings


def test_a_cache_that_cannot_be_written_ends_no_sweep(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    answer = {"status": "ok", "ceilings": {"float64": (1e13, 1e12)}}
    with pytest.warns(UserWarning, match="set XDG_CACHE_HOME to a writable folder; until then every sweep"):
        found = ceilings_of(MACHINE, ["float64"], lambda job, timeout_s: answer)
    assert found["float64"].flops_per_s == 1e13
