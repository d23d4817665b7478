"""A sweep as people watch it."""

from __future__ import annotations

from tflabench.bench.devices import Fleet
from tflabench.bench.events import Activity, Work
from tflabench.bench.machine import Machine
from tflabench.bench.protocol import STANDARD
from tflabench.bench.sweep import Progress
from tflabench.implementations import registry
from tflabench.problem import Problem
from tflabench.progress import ProgressPrinter
from tflabench.selection.points import Point

CPU = Machine("cpu", "a CPU", 2**36)


def shown(count: int, *activities: tuple[Machine, Activity]) -> list[str]:
    """Lines of the table for so many devices."""
    printer = ProgressPrinter()
    printer.begin([], {}, Fleet(CPU, count, lambda *_: None), STANDARD)  # type: ignore[arg-type,return-value]
    printer.end()
    return list(printer._lines(Progress(40, 11, 120, 45, 3, 2, activities)))


def test_the_table_says_what_is_measured_and_compiled():
    points = [Point(registry.get("tfla_sig_xl"), Problem(1, 2, 512, 16, 16, chunk_size=size)) for size in range(64, 69)]
    working = (Work(points[0], "timing", 12, 2), Work(points[1], "preparing", 13, 1))
    activity = Activity(working, tuple(points[1:]))
    counts, timing, preparing, compiling = shown(1, (CPU, activity))
    assert counts == "45 of 120 timed, 2 failed, 3 refused; 11 of 40 comparisons closed"
    assert timing == "timing round 2 of 3 to 6, tfla_sig_xl (L=64), forward T=512, comparison 12 of 40"
    assert preparing == "preparing tfla_sig_xl (L=65), forward T=512, comparison 13 of 40"
    assert compiling.startswith("compiling tfla_sig_xl (L=65), ")
    assert compiling.endswith(" and 1 more")


def test_of_several_devices_each_has_a_line():
    work = Work(Point(registry.get("sdpa"), Problem(1, 2, 64, 16, 16)), "timing", 7, 2)
    gpu, other = (Machine("cuda", "NVIDIA H100", 2**36, uuid=f"GPU-{n}234567-89") for n in (1, 2))
    _, first, second = shown(2, (gpu, Activity((work, work))), (other, Activity()))
    assert first == "GPU-1234567-: timing round 2 of 3 to 6, sdpa, forward T=64, comparison 7 of 40"
    assert second == "GPU-2234567-: starting"
