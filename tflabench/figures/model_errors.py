"""The calibrated model: how wrong both models are, and a row's time taken apart term by term over the chunk size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from tflabench.conclusions.model_error import Verdict
from tflabench.figures.layout import Sheet
from tflabench.figures.quantities import PASSES
from tflabench.figures.style import MARKERS, NOTE_SIZE, PALETTE, VERMILION, styled
from tflabench.figures.ticks import log_ticks
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


@styled
def errors(verdict: Verdict) -> Figure:
    """Predicted over measured time of every row, by the published model (left) and the calibrated one (right)."""
    sheet = Sheet(2, height=2.3)
    names = list(verdict.titles)
    for n, (ax, title) in enumerate(zip(sheet.axes, ("published model", "calibrated model"), strict=True)):
        ax.set(title=title, xscale="log", yscale="log", xlabel="measured runtime [ms]")
        ax.axhspan(1 / 1.2, 1.2, color="0.5", alpha=0.12, lw=0)
        ax.axhline(1, color="0.3", lw=0.7)
        for index, name in enumerate(names):
            own = [row for row in verdict.judged if row.implementation == name]
            style = {"color": PALETTE[index % len(PALETTE)], "mec": "white", "mew": 0.35, "ms": 4, "ls": ""}
            ratios = [1 + row.errors[n] for row in own]
            ax.plot([row.measured * 1e3 for row in own], ratios, MARKERS[index % len(MARKERS)], **style)
    lows, highs = zip(*(ax.get_ylim() for ax in sheet.axes), strict=True)
    for ax in sheet.axes:
        ax.set_ylim(min(*lows, 0.5), max(*highs, 2))
        log_ticks(ax.xaxis)
        log_ticks(ax.yaxis)
    sheet.axes[0].set_ylabel("predicted / measured")
    handles = [
        Line2D(
            [], [], color=PALETTE[n % len(PALETTE)], marker=MARKERS[n % len(MARKERS)], ls="", label=verdict.titles[name]
        )
        for n, name in enumerate(names)
    ]
    keys = [Patch(facecolor="0.88", label="within 20%")]
    words = []
    for n, model in enumerate(("published", "calibrated")):
        median, worst = calibrated.median_and_worst(row.errors[n] for row in verdict.judged)
        words.append(f"{model}: median {median:.0%}, worst {worst:+.0%}")
    title = f"{len(verdict.judged)} rows on {', '.join(verdict.devices)}; error of the models, {'; '.join(words)}"
    sheet.finish(title, handles, keys, [], _sources(verdict))
    return sheet.figure


def breakdowns(verdict: Verdict) -> Iterator[tuple[str, Figure]]:
    """(stem of the file name, figure) of every implementation and pass, at the problem with the most chunk sizes; of
    every device, where there are several.
    """
    groups: dict[tuple[str, ...], dict[Problem, list[Judged]]] = {}
    for row in verdict.judged:
        name = (slug(row.device),) if len(verdict.devices) > 1 else ()
        own = groups.setdefault((*name, row.implementation, row.problem.pass_), {})
        own.setdefault(row.problem.with_(chunk_size=None), []).append(row)
    for name, problems in groups.items():
        rows = max(problems.values(), key=lambda rows: (len(rows), sum(row.measured for row in rows)))
        figure = breakdown(verdict, sorted(rows, key=lambda row: row.problem.chunk_size or 0))
        yield "-".join(("breakdown", *name)), figure


@styled
def breakdown(verdict: Verdict, rows: Sequence[Judged]) -> Figure:
    """Time over L of rows that differ in L only: terms stacked, measured times, the published model; beside it, how
    the best L moves from the published model's to the calibrated one's (not for fused kernels).
    """
    first = rows[0]
    problem, trades = first.problem, first.kernel.algorithm != "fused"
    measured = {row.problem.chunk_size or problem.seq_len: row.measured for row in rows}
    powers = [2**n for n in range(6, min(problem.seq_len, 4096).bit_length())]
    sizes = sorted({*powers, *measured})
    models = {size: calibrated.predict(problem.with_(chunk_size=size), first.kernel, first.chip) for size in sizes}
    printed = [calibrated.published(problem.with_(chunk_size=size), first.kernel, first.gpu) * 1e3 for size in sizes]
    sheet = Sheet(2 if trades else 1, height=2.9, gap=1.95, wide=True)
    ax, places = sheet.axes[0], np.arange(len(sizes))
    base = np.zeros(len(sizes))
    for term, colour in TERM_COLOURS.items():
        heights = np.array([models[size][term] * 1e3 for size in sizes])
        ax.bar(places, heights, bottom=base, color=colour, width=0.72, linewidth=0)
        base += heights
    ax.plot(places, printed, color="black", ls=(0, (4, 1.2)), lw=0.9, marker="_", ms=6)
    at = [sizes.index(size) for size in measured]
    ax.plot(at, [time * 1e3 for time in measured.values()], "D", color="black", mec="white", mew=0.6, ms=4.5)
    ax.set_xticks(places, [str(size) for size in sizes])
    ax.grid(visible=False, axis="x")
    ax.set(title="where the time goes", xlabel="chunk size L [tokens]", ylabel="runtime [ms]", ylim=(0, None))
    if trades:
        _ladder(sheet.axes[1], calibrated.steps(problem, first.kernel, first.gpu, first.chip), measured)
    handles = [Patch(facecolor=colour, label=term) for term, colour in TERM_COLOURS.items()]
    keys = [
        Line2D([], [], color="black", marker="D", mec="white", ls="", label="measured"),
        Line2D([], [], color="black", ls=(0, (4, 1.2)), lw=0.9, label="published model, eq. 116, datasheet roofs"),
    ]
    dims = f"{problem.heads} heads, $d_{{qk}}$ = {problem.d_qk}, $d_{{hv}}$ = {problem.d_hv}, {problem.dtype}"
    title = f"{verdict.titles[first.implementation]}, {PASSES[problem.pass_]}: "
    title += f"T = {problem.seq_len}, batch {problem.batch}, {dims}"
    meanings = [f"{term}: {TERMS[term]}" for term in list(TERMS)[4:]]
    notes = ["; ".join(meanings) + ".", f"Modelled: {calibrated.ALGORITHMS[first.kernel.algorithm]}."]
    sheet.finish(title, handles, keys, notes, _sources(verdict))
    return sheet.figure


def _ladder(ax: Axes, steps: Sequence[Step], measured: dict[int, float]) -> None:
    """The best L, and those within 5% of it, after every step from the published model down to the calibrated one."""
    places = np.arange(len(steps))[::-1]
    ax.hlines(places, [step.low for step in steps], [step.high for step in steps], color="0.75", lw=3)
    ax.plot([step.best for step in steps], places, "o-", color="0.25", lw=0.8, ms=4)
    for step, place in zip(steps, places, strict=True):
        ax.annotate(
            str(step.best), (step.best, place), (0, 4), textcoords="offset points", ha="center", fontsize=NOTE_SIZE
        )
    best = min(measured, key=measured.__getitem__)
    ax.axvline(best, color=VERMILION, lw=0.9, ls=":")
    ax.annotate(
        f" measured best: {best} ", (best, -0.45), fontsize=NOTE_SIZE, color=VERMILION, va="center",
        ha="left" if best <= steps[0].best else "right",
    )  # fmt: skip
    ax.set_xscale("log", base=2)
    low, high = min(best, *(step.low for step in steps)), max(best, *(step.high for step in steps))
    left, right = low / 1.3, high * 1.3
    powers = [2**n for n in range(int(np.ceil(np.log2(left))), int(np.log2(right)) + 1)]
    ax.set_xlim(left, right)
    ax.set_xticks(powers, [str(power) for power in powers])
    ax.set_xticks([], minor=True)
    ax.set_yticks(places, [step.name for step in steps])
    ax.set(title="what moves the best L; grey: within 5%", xlabel="chunk size L [tokens]")
    ax.set_ylim(-0.6, len(steps) - 0.1)


def _sources(verdict: Verdict) -> str:
    days = " to ".join(dict.fromkeys((verdict.days[0], verdict.days[-1])))
    roofs = "; ".join(f"{model}: {', '.join(told)}" for model, told in verdict.told_roofs().items())
    return (
        f"Measured on {', '.join(verdict.devices)}, {days}. Roofs of the models, {roofs}. "
        "Terms: tflabench.theory.launches; constants: tflabench.theory.constants."
    )
