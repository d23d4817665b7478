"""The row of a point: a time that no kernel could have is none."""

from __future__ import annotations

import pytest

from tflabench.bench.comparison_run import ComparisonRun, PointRun
from tflabench.bench.events import Task
from tflabench.bench.machine import Machine
from tflabench.bench.protocol import STANDARD
from tflabench.bench.rows_of_run import Occasion
from tflabench.bench.timing import Turn
from tflabench.implementations import registry
from tflabench.problem import Problem
from tflabench.selection.points import Comparison, Point
from tflabench.theory.hardware import Ceilings
from tflabench.theory.roofline import bound_s

H100 = Machine("cuda", "NVIDIA H100 80GB HBM3", 80 << 30)
DATASHEET = Ceilings(989e12, 3.35e12, "datasheet", "NVIDIA")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(
    ("of_bound", "machine", "status"),
    [(1.05, H100, "ok"), (1.2, H100, "wrong"), (1.2, Machine("cpu", "some CPU, 2 cores", 8 << 30), "ok")],
)
def test_a_time_far_below_the_bound_is_none(of_bound, machine, status, dtype):
    impl, problem = registry.get("reference_sig"), Problem(8, 8, 4096, 128, 128, dtype=dtype)
    bound = bound_s(impl.bounded, problem, DATASHEET)
    assert bound
    point = Point(impl, problem)
    run = PointRun(point, "shared", alone=False, columns={"status": "ok", "reason": None})
    run.turns.append(Turn([1e3 * bound / of_bound] * 10, 5, "cuda_events"))
    begun = ComparisonRun(Task(1, Comparison((point,))), [run], STANDARD)
    row = Occasion("run", machine, STANDARD, {dtype: DATASHEET}).row(begun, run)
    assert row.status == status
    assert (row.ms_median is None) == (status == "wrong")
    assert ("120% of the bound by the datasheet of H100" in (row.reason or "")) == (status == "wrong")
