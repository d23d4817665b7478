"""The calibrated model: how wrong both models are, and a row's time taken apart term by term over the chunk size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tflabench.conclusions.model_error import Verdict
from tflabench.figures.axes import linear, logarithmic, powers
from tflabench.figures.captions import compact
from tflabench.figures.looks import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION
from tflabench.figures.model import Axis, Curve, Figure, Ink, Item, Key, Numbers, Panel, Rule, Shading, Stack
from tflabench.figures.quantities import AXES, PASSES
from tflabench.problem import Problem
from tflabench.theory import calibrated
from tflabench.theory.calibrated import Judged, Step
from tflabench.theory.hardware import slug
from tflabench.theory.launches import TERMS

# Memory in blues, matrix products in greens, what the published model leaves out in warm colours.
TERM_COLOURS = {
    "inputs and outputs": "#08519c",
    "states": "#6baed6",
    "between chunks": "#006d2c",
    "within chunks": "#74c476",
    "causal waste": "#fee08b",
    "recomputation": "#fdae61",
    "pointwise": "#f46d43",
    "waiting": "#9e0142",
    "idle multiprocessors": "#8d6e63",
}
KERNELS = {"tfla": "TFLA", "unpipelined": "mlstm_kernels", "fused": "fused"}  # algorithm -> its name in a margin
KERNEL_INKS = {
    ("tfla", "sig"): Ink(VERMILION, "square"),
    ("tfla", "exp"): Ink(ORANGE, "circle"),
    ("fused", "sig"): Ink(GREEN, "triangle-up"),
    ("fused", "exp"): Ink(PURPLE, "triangle-down"),
    ("unpipelined", "sig"): Ink(BLUE, "diamond"),
    ("unpipelined", "exp"): Ink(SKY, "cross"),
}
TOLERANCE = 1.2  # predicted over measured time, or the inverse
MEASURED = Ink(BLACK, "diamond")
PUBLISHED = Ink(BLACK, dash="dash")


def errors(verdict: Verdict) -> Figure:
    """Return predicted over measured time of every row, by the published model and below it by the calibrated one."""
    titles, medians = [], []
    for n, model in enumerate(("published", "calibrated")):
        median, worst = calibrated.median_and_worst(row.errors[n] for row in verdict.judged)
        titles.append(f"{model} model: median error {median:.0%}, worst {worst:+.0%}")
        medians.append(f"{median:.0%}")
    times = [row.measured * 1e3 for row in verdict.judged]
    ratios = [1 + error for row in verdict.judged for error in row.errors]
    x = logarithmic("measured runtime [ms]", min(times), max(times))
    y = logarithmic("predicted / measured", min(*ratios, 0.5), max(*ratios, 2.0))
    return Figure(
        stem="model-error",
        title=f"Predicted times are off by {medians[0]} in the median (published model), {medians[1]} (calibrated)",
        setting=f"{len(verdict.judged)} rows on {', '.join(verdict.devices)}",
        panels=tuple(Panel(title, x, y, tuple(_ratios(verdict, n))) for n, title in enumerate(titles)),
        keys=(Key("within 20%", Ink(GREY), "area"),),
        caption=(
            "A point a row; above 1 the model predicts too slow. TFLA and fused: kernels of this repository.",
            "Colours: whose kernels and which gate, in this figure alone.",
            "sig and exp: the gate of the mLSTM; the other linear RNNs are modelled as sig.",
            *_sources(verdict),
        ),
    )


def _ratios(verdict: Verdict, model: int) -> Iterator[Item]:
    """Yield predicted over measured time by kernels and gate, by the first or the second model."""
    yield Shading("y", 1 / TOLERANCE, TOLERANCE, GREY)
    yield Rule("y", 1.0)
    for (algorithm, gate), ink in KERNEL_INKS.items():
        own = [row for row in verdict.judged if (row.kernel.algorithm, row.kernel.gate) == (algorithm, gate)]
        x, y = [row.measured * 1e3 for row in own], [1 + row.errors[model] for row in own]
        if own:
            yield Curve(f"{KERNELS[algorithm]} {gate}", x, y, ink, "context", joined=False)


def breakdowns(verdict: Verdict) -> Iterator[Figure]:
    """Yield the breakdown of every implementation and pass, at the problem with the most chunk sizes.

    Where there are several devices, there is one of each.
    """
    groups: dict[tuple[str, ...], dict[Problem, list[Judged]]] = {}
    for row in verdict.judged:
        name = (slug(row.device),) if len(verdict.devices) > 1 else ()
        own = groups.setdefault((*name, row.implementation, row.problem.pass_), {})
        own.setdefault(row.problem.with_(chunk_size=None), []).append(row)
    for name, problems in groups.items():
        rows = max(problems.values(), key=lambda rows: (len(rows), sum(row.measured for row in rows)))
        ordered = sorted(rows, key=lambda row: row.problem.chunk_size or 0)
        yield breakdown("-".join(("breakdown", *name)), verdict, ordered)


def breakdown(stem: str, verdict: Verdict, rows: Sequence[Judged]) -> Figure:
    """Return the time over L of rows that differ in L only: terms stacked, measured times, the published model.

    Below it stands how the best L moves from the published model's to the calibrated one's; the fused kernels have
    nothing there.
    """
    first, name = rows[0], verdict.titles[rows[0].implementation]
    problem = first.problem
    measured = {row.problem.chunk_size or problem.seq_len: row.measured for row in rows}
    best = min(measured, key=measured.__getitem__)
    terms = calibrated.predict(problem.with_(chunk_size=best), first.kernel, first.chip)
    longest = max(terms, key=terms.__getitem__)
    panels, steps = [_stacked(first, measured)], []
    if first.kernel.algorithm != "fused":
        steps = calibrated.steps(problem, first.kernel, first.gpu, first.chip)
        panels.append(_ladder(steps, best))
    return Figure(
        stem=stem,
        title=f'{name}, {PASSES[problem.pass_]}: at L = {best} most time is "{longest}"',
        setting=(
            f"T = {problem.seq_len}, batch {problem.batch}, {problem.heads} heads, d_qk = {problem.d_qk}, "
            f"d_hv = {problem.d_hv}, {problem.dtype}"
        ),
        panels=tuple(panels),
        keys=(Key("measured", MEASURED), Key("published model, eq. 116", PUBLISHED)),
        caption=(
            *(f"{term}: {meaning}." for term, meaning in TERMS.items()),
            *([f"Best L: {'; '.join(f'{step.name}, {step.best}' for step in steps)}."] if steps else []),
            f"Modelled: {calibrated.ALGORITHMS[first.kernel.algorithm]}. Published: on the datasheet's roofs.",
            *_sources(verdict),
        ),
        height=1.9,
    )


def _stacked(row: Judged, measured: dict[int, float]) -> Panel:
    """Return where the time goes at powers of two and the measured chunk sizes, in milliseconds."""
    problem = row.problem
    powers_of_two = [2**n for n in range(6, min(problem.seq_len, 4096).bit_length())]
    sizes = sorted({*powers_of_two, *measured})
    models = [calibrated.predict(problem.with_(chunk_size=size), row.kernel, row.chip) for size in sizes]
    published = [calibrated.published(problem.with_(chunk_size=size), row.kernel, row.gpu) * 1e3 for size in sizes]
    parts: dict[str, Numbers] = {
        term: [model[term] * 1e3 for model in models] for term in TERM_COLOURS if any(model[term] for model in models)
    }
    places = [float(n) for n in range(len(sizes))]
    ticks = tuple((place, compact(size)) for place, size in zip(places, sizes, strict=True))
    shown = ticks[:: 1 if len(ticks) <= 8 else 2]
    tops = [*(sum(model.values()) * 1e3 for model in models), *published, *(time * 1e3 for time in measured.values())]
    items = (
        Stack(places, parts, {term: TERM_COLOURS[term] for term in parts}),
        Curve("", places, published, PUBLISHED, "theory"),
        Curve(
            "", [sizes.index(size) for size in measured], [s * 1e3 for s in measured.values()], MEASURED, joined=False
        ),
    )
    x = Axis(AXES["chunk_size"], "linear", (-0.6, len(sizes) - 0.4), shown)
    return Panel("where the time goes", x, linear("runtime [ms]", 0.0, 1.05 * max(tops)), items)


def _ladder(steps: Sequence[Step], best: int) -> Panel:
    """Return the best L, and those within 5% of it, after every step from the published model to the calibrated one."""
    places = [float(n) for n in range(len(steps))][::-1]
    items: list[Item] = [Rule("x", best, f"measured best {best}", Ink(VERMILION, dash="dash"))]
    for step, place in zip(steps, places, strict=True):
        items.append(Curve(step.name, [step.low, step.high], [place] * 2, Ink(GREY), "theory"))
    items.append(Curve("", [step.best for step in steps], places, Ink(BLACK, "circle"), "theory"))
    low, high = min(best, *(step.low for step in steps)), max(best, *(step.high for step in steps))
    x = powers(AXES["chunk_size"], 2.0 ** np.floor(np.log2(low)), 2.0 ** np.ceil(np.log2(high)))
    y = Axis("", "linear", (-0.6, len(steps) - 0.4), ((0.0, ""),))
    title = f"what moves the best L from {steps[0].best} to {steps[-1].best}; grey: within 5%"
    return Panel(title, x, y, tuple(items))


def _sources(verdict: Verdict) -> Iterator[str]:
    days = " to ".join(dict.fromkeys((verdict.days[0], verdict.days[-1])))
    yield f"Measured on {', '.join(verdict.devices)}, {days}."
    for model, told in verdict.told_roofs().items():
        yield f"Roofs of the {model} model: {', '.join(told)}."
    yield "Terms: tflabench.theory.launches; constants: tflabench.theory.constants."
