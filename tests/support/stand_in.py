"""A plugin (`--plugin tests/support/stand_in.py`) whose points need neither torch nor a GPU: for tests of all else.

In the process that it is plugged into, stations have `Quick` in place of worker processes. All else of a sweep is as
it is: the scheduler, rows, ceilings, journals.
"""

from __future__ import annotations

import os
import time
from typing import Any

from tflabench.bench.station import Station
from tflabench.implementations.adapter import Implementation

NAMES = [f"stand_in_{number}" for number in range(8)]
TURN_S = float(os.environ.get("STAND_IN_S", "0.05"))  # of one turn of a point
FACTS = {"torch": "2.13.0"}
DIGEST = {"forward": [0.5] * 4}


class Quick:
    """Worker processes that answer a job when they are waited for, as `bench.workers.Workers` do."""

    def __init__(self) -> None:
        self._due: dict[str, dict[str, Any] | None] = {}

    def busy(self, slot: str) -> bool:
        return slot in self._due

    def has(self, slot: str) -> bool:
        return True

    def send(self, slot: str, job: dict[str, Any] | None, timeout_s: float) -> None:
        self._due[slot] = job

    def wait(self, timeout_s: float) -> list[tuple[str, dict[str, Any]]]:
        due, self._due = self._due, {}
        return [(slot, self._answer(job or {"kind": "start"})) for slot, job in due.items()]

    def facts(self) -> dict[str, Any]:
        return FACTS

    def ask(self, job: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        return self._answer(job)

    def pausable(self, slot: str) -> bool:
        return False

    def pause(self, slots: object) -> None: ...

    def resume(self) -> None: ...

    def end(self, slot: str) -> None: ...

    def _answer(self, job: dict[str, Any]) -> dict[str, Any]:
        if job["kind"] == "calibrate":
            return {"status": "ok", "ceilings": dict.fromkeys(job["dtypes"], (1e14, 1e12))}
        if job["kind"] == "prepare":
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            details = {"allowed": {"forward": 0.01}, "visible": visible}
            return {"status": "ok", "reason": None, "digest": DIGEST, "details": details}
        if job["kind"] == "start":
            return {"status": "ok"}
        time.sleep(TURN_S)
        turn = {"samples": [1000.0] * 10, "warmup": 5, "timer": "stand-in"}
        clocks = {"sm_clock_mhz": None, "throttled": None, "throttle_reasons": []}
        return {"status": "ok", "turn": turn, "digest": DIGEST, "seconds": TURN_S, **clocks}


def start_quick(station: Station) -> None:
    """Start `Quick` in place of worker processes, and no compilers."""
    station._workers = Quick()  # type: ignore[assignment]


def build(problem: object, device: object) -> Any:
    raise AssertionError("nothing is built")


if __name__ != "stand_in":  # it is plugged in, not imported by a test
    Station._open = start_quick  # type: ignore[method-assign]
IMPLEMENTATIONS = tuple(
    Implementation(name, "mlstm", name, build, lambda problem, device: None, gate="sig") for name in NAMES
)
