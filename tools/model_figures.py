"""Draws the time of measured rows, term by term over the chunk size, and what moves the best chunk size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from model_error import JudgedRow, published

from tflabench.figures.axes import linear, powers
from tflabench.figures.captions import compact
from tflabench.figures.files import write_figures
from tflabench.figures.looks import BLACK, GREY, VERMILION
from tflabench.figures.model import Axis, Curve, Figure, Ink, Item, Key, Panel, Rule, Stack
from tflabench.figures.quantities import AXES, PASSES
from tflabench.problem import Problem
from tflabench.theory import calibrated
from tflabench.theory.chunk_size import Tradeoff
from tflabench.theory.hardware import slug
from tflabench.theory.launches import ALGORITHMS, TERMS

# Memory in blues, matrix products in greens, what the paper's model leaves out in warm colours.
COLOURS = ("#08519c", "#6baed6", "#006d2c", "#74c476", "#fee08b", "#fdae61", "#f46d43", "#9e0142", "#8d6e63")
TERM_COLOURS = dict(zip(TERMS, COLOURS, strict=True))
MEASURED, PUBLISHED = Ink(BLACK, "diamond"), Ink(BLACK, dash="dash")
LONGEST = 4096  # steps of a chunk


@dataclass(frozen=True)
class Step:
    """One step from the paper's to the calibrated model: what was added, the best L then, and those within 5%."""

    name: str
    best: int
    low: int
    high: int


def draw(judged: Iterable[JudgedRow], folder: Path) -> None:
    """Draw every implementation and pass on every GPU, at the problem with the most chunk sizes."""
    groups: dict[tuple[str, ...], dict[Problem, list[JudgedRow]]] = {}
    for row in judged:
        problems = groups.setdefault((slug(row.gpu.name), row.title, row.problem.pass_), {})
        problems.setdefault(row.problem.with_(chunk_size=None), []).append(row)
    folder.mkdir(parents=True, exist_ok=True)
    figures = []
    for name, problems in groups.items():
        rows = max(problems.values(), key=lambda rows: (len(rows), sum(row.measured for row in rows)))
        stem = "-".join(("breakdown", *name)).replace(" ", "_")
        figures.append(breakdown(stem, sorted(rows, key=lambda row: row.problem.chunk_size or 0)))
    for path in write_figures(figures, folder, ["png"]):
        print(path)


def breakdown(stem: str, rows: Sequence[JudgedRow]) -> Figure:
    """Return the time over L of rows that differ in L only: terms stacked, measured times, the paper's model.

    Below it stands how the best L moves from the paper's model to the calibrated one. The fused kernels, whose L trades
    nothing, have no such panel.
    """
    first, problem = rows[0], rows[0].problem
    measured = {row.problem.chunk_size or problem.seq_len: row.measured for row in rows}
    best = min(measured, key=measured.__getitem__)
    terms = calibrated.predict(problem.with_(chunk_size=best), first.kernel, first.chip)
    moves = [] if first.kernel.algorithm == "fused" else list(steps(first))
    return Figure(
        stem=stem,
        title=f'{first.title}, {PASSES[problem.pass_]}: at L = {best} most time is "{max(terms, key=terms.get)}"',  # type: ignore[arg-type]
        setting=(
            f"T = {problem.seq_len}, batch {problem.batch}, {problem.heads} heads, d_qk = {problem.d_qk}, "
            f"d_hv = {problem.d_hv}, {problem.dtype}, {first.gpu.name}"
        ),
        panels=(_stacked(first, measured), *([_ladder(moves, best)] if moves else [])),
        keys=(Key("measured", MEASURED), Key("paper's model, eq. 116", PUBLISHED)),
        caption=(
            *(f"{term}: {meaning}." for term, meaning in TERMS.items()),
            *([f"Best L: {'; '.join(f'{step.name}, {step.best}' for step in moves)}."] if moves else []),
            f"Modelled: {ALGORITHMS[first.kernel.algorithm]}.",
        ),
        height=1.9,
    )


def _stacked(row: JudgedRow, measured: dict[int, float]) -> Panel:
    """Return where the time goes at powers of two and the measured chunk sizes, in milliseconds."""
    problem = row.problem
    sizes = sorted({*(2**n for n in range(6, min(problem.seq_len, LONGEST).bit_length())), *measured})
    models = [calibrated.predict(problem.with_(chunk_size=size), row.kernel, row.chip) for size in sizes]
    paper = [published(problem.with_(chunk_size=size), row.kernel, row.gpu) * 1e3 for size in sizes]
    parts = {term: [model[term] * 1e3 for model in models] for term in TERMS if any(model[term] for model in models)}
    places = [float(n) for n in range(len(sizes))]
    ticks = [(place, compact(size)) for place, size in zip(places, sizes, strict=True)]
    times = [seconds * 1e3 for seconds in measured.values()]
    tops = [*(sum(model.values()) * 1e3 for model in models), *paper, *times]
    items = (
        Stack(places, parts, {term: TERM_COLOURS[term] for term in parts}),  # type: ignore[arg-type]
        Curve("", places, paper, PUBLISHED, "theory"),
        Curve("", [sizes.index(size) for size in measured], times, MEASURED, joined=False),
    )
    x = Axis(AXES["chunk_size"], "linear", (-0.6, len(sizes) - 0.4), tuple(ticks[:: 1 if len(ticks) <= 8 else 2]))
    return Panel("where the time goes", x, linear("runtime [ms]", 0.0, 1.05 * max(tops)), items)


def steps(row: JudgedRow) -> Iterator[Step]:
    """Yield how the best L moves when terms are added one by one; L runs over the multiples of 64 up to LONGEST."""
    problem, roofs = row.problem, row.chip.ceilings
    sizes = [64 * n for n in range(1, min(problem.seq_len, LONGEST) // 64 + 1)] or [problem.seq_len]
    width = calibrated.STATE_BYTES[row.kernel.algorithm]
    for name, ceilings, state_bytes in (
        ("paper's model, datasheet", row.gpu.ceilings, 4),
        ("measured roofs", roofs, 4),
        (f"states in {width} bytes", roofs, width),
    ):
        model = Tradeoff(problem, row.kernel.gate, ceilings, state_bytes=state_bytes)
        yield _step(name, sizes, [float(model.time(size).upper) for size in sizes])
    terms = [calibrated.predict(problem.with_(chunk_size=size), row.kernel, row.chip) for size in sizes]
    times = [sum(at[name] for name in calibrated.PUBLISHED_TERMS) for at in terms]
    yield _step("kernel by kernel, overlapping", sizes, times)
    for name in list(TERMS)[len(calibrated.PUBLISHED_TERMS) :]:
        times = [time + at[name] for time, at in zip(times, terms, strict=True)]
        yield _step(f"+ {name}", sizes, times)


def _step(name: str, sizes: Sequence[int], times: Sequence[float]) -> Step:
    near = [size for size, time in zip(sizes, times, strict=True) if time <= 1.05 * min(times)]
    return Step(name, sizes[times.index(min(times))], near[0], near[-1])


def _ladder(moves: Sequence[Step], best: int) -> Panel:
    """Return the best L, and those within 5% of it, after every step from the paper's model to the calibrated one."""
    places = [float(n) for n in range(len(moves))][::-1]
    items: list[Item] = [Rule("x", best, f"measured best {best}", Ink(VERMILION, dash="dash"))]
    for step, place in zip(moves, places, strict=True):
        items.append(Curve(step.name, [step.low, step.high], [place] * 2, Ink(GREY), "theory"))
    items.append(Curve("", [step.best for step in moves], places, Ink(BLACK, "circle"), "theory"))
    low, high = min(best, *(step.low for step in moves)), max(best, *(step.high for step in moves))
    x = powers(AXES["chunk_size"], 2.0 ** np.floor(np.log2(low)), 2.0 ** np.ceil(np.log2(high)))
    y = Axis("", "linear", (-0.6, len(moves) - 0.4), ((0.0, ""),))
    title = f"what moves the best L from {moves[0].best} to {moves[-1].best}; grey: within 5%"
    return Panel(title, x, y, tuple(items))
