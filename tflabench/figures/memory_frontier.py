"""Time of a step over the memory it takes: every kernel, chunk size and batch, and those worth choosing."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from tflabench.conclusions.advise import Advice, Choice, frontier
from tflabench.figures.axes import MARGIN, linear, logarithmic
from tflabench.figures.looks import GREY, VERMILION, looks
from tflabench.figures.model import Axis, Curve, Figure, Ink, Item, Key, Note, Panel, Rule
from tflabench.implementations.registry import implementations

GIB = 2.0**30
LOG_FROM = 4.0  # largest over least value, from which an axis is logarithmic
MOST_NAMES = 7  # kernels named
MOST_NOTES = 4  # choices of the recommended kernel whose L is named


def draw(advice: Advice, setting: str, notes: Sequence[str]) -> Figure:
    """Return every choice as a point and, a line a kernel, those that no other of that kernel beats in both.

    Chunk size, and batch where it differs, stand beside choices of the recommended kernel.

    Args:
        setting: what was asked, in words.
        notes: lines of the caption.
    """
    best, considered, allowed = advice.ranked[0], advice.considered, advice.demand.memory_bytes
    times, sizes = [own.step_s for own in considered], [own.memory_bytes / GIB for own in considered]
    unit, size = ("s", 1.0) if min(times) >= 1 else ("ms", 1e-3)
    items: list[Item] = [*_kernels(considered, size), *_named(best, considered, size)]
    if allowed is not None and allowed / GIB < LOG_FROM * max(sizes):
        items.insert(0, Rule("x", allowed / GIB, f"{allowed / GIB:.3g} GiB allowed", Ink(VERMILION, dash="dash")))
        sizes.append(allowed / GIB)
    return Figure(
        stem="advice",
        title=(
            f"{best.kernel.name} at L = {best.problem.chunk_size} is recommended: "
            f"{best.step_s / size:.3g} {unit} a step in {best.memory_bytes / GIB:.3g} GiB"
        ),
        setting=setting,
        panels=(
            Panel("", _axis("memory [GiB]", sizes), _axis(f"time of a step [{unit}]", [s / size for s in times]),
                  tuple(items)),
        ),
        keys=(Key("recommended", Ink(VERMILION, "circle"), "hollow"),),
        caption=(
            "Lines: choices of a kernel that no other of its choices beats in both time and memory.",
            "Small points: its other choices.",
            *notes,
        ),
        height=2.6,
    )  # fmt: skip


def _kernels(considered: Sequence[Choice], size: float) -> list[Curve]:
    """Return the choices of each kernel, and the line of its best; kernels beyond the seven fastest are grey."""
    best: dict[str, float] = {}
    for choice in considered:
        best[choice.kernel.name] = min(choice.step_s, best.get(choice.kernel.name, choice.step_s))
    inks, found = _inks(), []
    for rank, name in enumerate(sorted(best, key=best.__getitem__)):
        own = [choice for choice in considered if choice.kernel.name == name]
        ink = inks.get(name, Ink(GREY, "circle")) if rank < MOST_NAMES else Ink(GREY)
        label, role = (name, "highlight") if rank < MOST_NAMES else ("", "context")
        found.append(Curve("", *_places(own, size), Ink(ink.colour, ink.marker or "circle"), "context", joined=False))
        found.append(Curve(label, *_places(frontier(own), size), ink, role, name=name))
    return found


def _named(best: Choice, considered: Sequence[Choice], size: float) -> list[Note]:
    """Return the words beside choices on the line of the recommended kernel, and the ring around it."""
    own = frontier([choice for choice in considered if choice.kernel == best.kernel])
    stride = max(1, -(-len(own) // MOST_NOTES))
    shown = [choice for choice in own[::stride] if choice != best]
    one_batch = len({choice.problem.batch for choice in own}) == 1
    notes = []
    for choice in (best, *shown):
        words = f"L = {choice.problem.chunk_size}" + ("" if one_batch else f", batch {choice.problem.batch}")
        (x,), (y,) = _places([choice], size)
        notes.append(Note(x, y, words, VERMILION if choice is best else "#404040", ring=choice is best))
    return notes


def _inks() -> dict[str, Ink]:
    """Return the line of every registered implementation."""
    columns = ("name", "title", "family", "package", "gate")
    rows = pd.DataFrame([{column: getattr(impl, column) for column in columns} for impl in implementations()])
    return {name: look.ink for name, look in looks(rows.rename(columns={"name": "implementation"})).items()}


def _places(choices: Sequence[Choice], size: float) -> tuple[list[float], list[float]]:
    return [choice.memory_bytes / GIB for choice in choices], [choice.step_s / size for choice in choices]


def _axis(label: str, values: Sequence[float]) -> Axis:
    """Return an axis that holds the values, logarithmic where they differ much."""
    low, high = min(values), max(values)
    if high > LOG_FROM * low:
        return logarithmic(label, low, high)
    room = 2 * MARGIN * ((high - low) or high)
    return linear(label, low - room, high + room)
