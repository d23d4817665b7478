"""Running a plan: what is not tried after a timeout, when a sweep stops, and what it takes up again."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from tflabench.bench import runner
from tflabench.bench.machine import Machine
from tflabench.bench.protocol import STANDARD
from tflabench.bench.runner import Bench, asks_no_less, pending
from tflabench.implementations.registry import get
from tflabench.problem import Problem
from tflabench.rows.journal import Store
from tflabench.rows.schema import Row
from tflabench.selection.points import Point
from tflabench.theory.hardware import Ceilings, store_ceilings

MACHINE = Machine("cpu", "some CPU", 2**34)
TIMES = {"status": "ok", "ms_median": 1.0, "ms_min": 1.0, "ms_p20": 1.0, "ms_p80": 1.0, "samples": 30}


class Scripted:
    """An executor on which the points that `hang` time out."""

    def __init__(self, *hang: Point) -> None:
        self.hang = {(point.implementation.name, point.problem) for point in hang}
        self.tried: list[tuple[str, Problem]] = []

    def facts(self) -> dict[str, Any]:
        return {}

    def run(self, job: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        self.tried.append((job["implementation"], Problem(**job["problem"])))
        return {"status": "timeout", "reason": "no answer"} if self.tried[-1] in self.hang else dict(TIMES)

    def close(self) -> None: ...


def point(name: str = "reference_sig", **changes: Any) -> Point:
    sizes = {"batch": 4, "heads": 2, "seq_len": 512, "d_qk": 16, "d_hv": 16, "dtype": "float32", **changes}
    return Point(get(name), Problem(**sizes))


@pytest.fixture
def store(tmp_path, monkeypatch) -> Store:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for dtype in ("float32", "bfloat16"):
        store_ceilings(MACHINE.name, dtype, Ceilings(1e11, 1e10, "measured", "test"))
    return Store(tmp_path / "out", MACHINE.name)


@pytest.mark.parametrize(
    ("later", "tried"),
    [
        (point(batch=2, seq_len=1024), False),  # as many tokens
        (point(batch=8), False),
        (point(heads=4), False),
        (point(seq_len=256, batch=8), True),
        (point(batch=2), True),
        (point(batch=1, seq_len=1024), True),
        (point(seq_len=1024, d_hv=32), True),
        (point(seq_len=1024, dtype="bfloat16"), True),
        (point(seq_len=1024, pass_="fwbw"), True),
        (point(seq_len=1024, chunk_size=64), True),
        (point("reference_exp", seq_len=1024), True),
    ],
)
def test_after_a_timeout_what_asks_no_less_is_not_tried(store, later, tried):
    slow = point()
    executor = Scripted(slow)
    Bench(MACHINE, executor, STANDARD, 60).sweep([slow, later], store, lambda row: None)
    assert asks_no_less(later, slow) is not tried
    assert len(executor.tried) == 1 + tried
    row = store.rows[later.id]
    assert (row.status, row.reason) == (
        ("ok", None) if tried else ("timeout", "not tried: it took over 60 s at B = 4, H = 2, T = 512")
    )


def test_what_timed_out_or_was_not_tried_is_measured_later_after_what_was_not_reached(store):
    slow, later, other = point(), point(seq_len=1024), point(seq_len=2048, pass_="fwbw")
    Bench(MACHINE, Scripted(slow), STANDARD, 60).sweep([slow, later], store, lambda row: None)
    todo = pending([slow, later, other], store, STANDARD, "cpu")
    assert todo == [other, slow, later]
    Bench(MACHINE, Scripted(), STANDARD, 60).sweep(todo, store, lambda row: None)
    assert pending([slow, later, other], store, STANDARD, "cpu") == []


def test_a_verification_that_timed_out_is_not_tried_at_larger_sizes():
    slow = point()
    executor = Scripted(slow)
    checks = Bench(MACHINE, executor, STANDARD, 60)
    assert [checks.verify(p)["status"] for p in (slow, point(seq_len=1024), point(seq_len=256))] == [
        "timeout",
        "timeout",
        "ok",
    ]
    assert len(executor.tried) == 2


def test_no_point_is_started_once_the_time_is_up(store, monkeypatch):
    clock = count()
    monkeypatch.setattr(runner.time, "monotonic", lambda: next(clock))
    rows: list[Row] = []
    points = [point(seq_len=size) for size in (64, 128, 256, 512)]
    Bench(MACHINE, Scripted(), STANDARD, 60).sweep(points, store, rows.append, stop_at=2)
    assert [row.seq_len for row in rows] == [64, 128]
    assert pending(points, store, STANDARD, "cpu") == points[2:]
