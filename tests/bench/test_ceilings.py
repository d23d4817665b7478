"""Ceilings of a machine: measured where only a datasheet's are known, once for each GPU."""

from __future__ import annotations

from typing import Any

import pytest

from tflabench.bench.ceilings import calibrate, ceilings_of, measured_instead
from tflabench.bench.machine import Machine
from tflabench.theory.hardware import Ceilings, measured_ceilings

MACHINE = Machine("cuda", "some GPU", 2**36)
CEILINGS = {"float32": Ceilings(1e14, 1e12, "measured", "test")}


def test_measured_ceilings_take_the_place_of_a_datasheets(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    datasheet = Ceilings(989e12, 4.8e12, "datasheet", "NVIDIA")
    known = {"bfloat16": datasheet, **CEILINGS}
    jobs: list[dict[str, Any]] = []

    def answer(job: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        jobs.append(job)
        return {"status": "ok", "ceilings": dict.fromkeys(job["dtypes"], (782000000000000.0, 4260000000000.0))}

    found = measured_instead(MACHINE, known, answer)
    assert [job["dtypes"] for job in jobs] == [["bfloat16"]]
    assert (found["bfloat16"].provenance, found["bfloat16"].flops_per_s) == ("measured", 782e12)
    assert found["float32"] == CEILINGS["float32"]
    assert measured_ceilings(MACHINE.name) == found["bfloat16"], "the next sweep need not measure them"
    assert measured_instead(MACHINE, found, answer) == found
    assert len(jobs) == 1


def test_each_gpu_of_a_kind_is_calibrated_once_and_stored_by_its_uuid(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    rates = {"GPU-1": 7.8e14, "GPU-2": 7.5e14}
    jobs: list[str] = []

    def ceilings(uuid: str) -> Ceilings:
        def answer(job: dict[str, Any], timeout_s: float) -> dict[str, Any]:
            jobs.append(uuid)
            return {"status": "ok", "ceilings": dict.fromkeys(job["dtypes"], (rates[uuid], 4.2e12))}

        gpu = Machine("cuda", "NVIDIA H200", 2**37, uuid=uuid)
        return measured_instead(gpu, ceilings_of(gpu, ["bfloat16"], answer), answer)["bfloat16"]

    assert [ceilings(uuid).flops_per_s for uuid in (*rates, *rates)] == [7.8e14, 7.5e14] * 2
    assert jobs == ["GPU-1", "GPU-2"]
    assert [measured_ceilings(uuid).flops_per_s for uuid in rates] == [7.8e14, 7.5e14]  # type: ignore[union-attr]
    assert measured_ceilings("NVIDIA H200").flops_per_s == 7.8e14, "of the kind: the first"  # type: ignore[union-attr]


def test_without_measured_ceilings_a_sweep_goes_on(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    known = {"bfloat16": Ceilings(989e12, 4.8e12, "datasheet", "NVIDIA")}
    with pytest.warns(
        UserWarning, match="percentages are not of ceilings measured on this device: some GPU cannot be calibrated"
    ):
        assert measured_instead(MACHINE, known, lambda job, timeout_s: {"status": "oom", "reason": "full"}) == known


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
