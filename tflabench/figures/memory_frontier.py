"""Time of a step over the memory it takes: every kernel, chunk size and batch, and those worth choosing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from tflabench.conclusions.advise import Advice, Candidate, frontier
from tflabench.figures.axes import around
from tflabench.figures.highlights import ranked
from tflabench.figures.looks import GREY, VERMILION, looks
from tflabench.figures.model import Curve, Figure, Ink, Item, Key, Mark, Panel, Rule
from tflabench.implementations.registry import implementations

GIB = 2.0**30
LOG_FROM = 4.0  # largest over least value, from which an axis is logarithmic
ALIKE = 0.03  # of a line, within which another lies on it
MOST_NOTES = 2  # choices of the recommended kernel whose L is named besides


def draw(advice: Advice, setting: str, notes: Sequence[str]) -> Figure:
    """Return, a line a kernel, the choices that fit and that no other of that kernel beats in both memory and time.

    Choices of the recommended kernel are labelled with their chunk size, and with the batch where it differs.

    Args:
        setting: what was asked, in words.
        notes: lines of the caption.
    """
    best, allowed = advice.ranked[0], advice.demand.memory_bytes
    considered = [choice for choice in advice.considered if choice.fits] or advice.considered
    unit, size = ("s", 1.0) if best.step_s >= 1 else ("ms", 1e-3)
    lines = _kernels(considered, size)
    sizes, times = ([value for line in lines for value in getattr(line, side)] for side in "xy")
    items: list[Item] = [*lines, *_notes(best, considered, size)]
    if allowed is not None and allowed / GIB < LOG_FROM * max(sizes):
        items.insert(0, Rule("x", allowed / GIB, f"{allowed / GIB:.3g} GiB allowed", Ink(VERMILION, dash="dash")))
        sizes.append(allowed / GIB)
    return Figure(
        stem="advice",
        title=(
            f"{best.kernel.name} at {_name(best, advice.demand.tokens is None)} is recommended: "
            f"{best.step_s / size:.3g} {unit} a step in {best.memory_bytes / GIB:.3g} GiB"
        ),
        setting=setting,
        panels=(
            Panel(
                "",
                around("memory [GiB]", *sizes),
                around(f"time of a step [{unit}]", *times),
                tuple(items),
            ),
        ),
        keys=(Key("recommended", Ink(VERMILION, "circle"), "hollow"),),
        caption=(
            "Lines: choices of a kernel that no other of its choices beats in both time and memory.",
            *notes,
        ),
        height=2.6,
    )


def _kernels(considered: Sequence[Candidate], size: float) -> list[Curve]:
    """Return the line of each kernel, one for those that lie on each other; beyond the seven fastest they are grey."""
    rows = [{"implementation": impl.name, "title": impl.title, "gate": impl.gate} for impl in implementations()]
    inks = {name: look.ink for name, look in looks(pd.DataFrame(rows)).items()}
    curves: list[Curve] = []
    for name, named in ranked((choice.kernel.name, choice.step_s) for choice in considered).items():
        best = frontier([choice for choice in considered if choice.kernel.name == name])
        x, y = [choice.memory_bytes / GIB for choice in best], [choice.step_s / size for choice in best]
        ink, role = (inks.get(name, Ink(GREY, "circle")), "highlight") if named else (Ink(GREY), "context")
        for n, same in enumerate(curves):
            if named and len(same.x) == len(x) and np.allclose((*same.x, *same.y), (*x, *y), rtol=ALIKE):
                curves[n] = replace(same, label=f"{same.label}, {name}")
                break
        else:
            curves.append(Curve(name if named else "", x, y, ink, role, name=name))
    return curves


def _notes(best: Candidate, considered: Sequence[Candidate], size: float) -> list[Mark]:
    """Return the ring around the recommended choice, and words at some others on the line of its kernel."""
    beside = [c for c in frontier([c for c in considered if c.kernel == best.kernel]) if c != best]
    stride = max(1, -(-len(beside) // MOST_NOTES))
    one_batch = len({choice.problem.batch for choice in beside}) <= 1
    notes = [Mark(best.memory_bytes / GIB, best.step_s / size, "", VERMILION, ring=True)]
    for choice in beside[::stride]:
        notes.append(Mark(choice.memory_bytes / GIB, choice.step_s / size, _name(choice, one_batch)))
    return notes


def _name(choice: Candidate, one_batch: bool) -> str:
    parts = {"L =": choice.problem.chunk_size, "batch": None if one_batch else choice.problem.batch}
    return ", ".join(f"{name} {value}" for name, value in parts.items() if value)  # some kernels take no chunk size
