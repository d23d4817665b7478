"""Figures 15 to 22 of the paper, for either gate, forward and with the backward: pure theory, measured rows laid over.

    FIGURES["fig17"]("sig", "fw", rows) -> Figure        rows: as `store.read_rows` gives them, or None

Every function takes a gate ("exp" or "sig"), a pass ("fw" or "fwbw") and rows, of which it draws those of one problem:
see `Overlay`. Counts are the published ones (Table 17) unless a figure says otherwise; GPUs are those of the paper's
Table 18, and the H200 of NVIDIA's datasheet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tflabench.figures.captions import compact
from tflabench.figures.layout import Sheet
from tflabench.figures.overlay import PAPER, Overlay, backward_notes
from tflabench.figures.quantities import Rows
from tflabench.figures.roofline import roof
from tflabench.figures.style import BLACK, BLUE, DASHES, GREEN, NOTE_SIZE, ORANGE, PURPLE, SKY, styled
from tflabench.figures.ticks import log_ticks
from tflabench.problem import Pass, Problem
from tflabench.theory import cost, fused, fused_kernels
from tflabench.theory.chunk_size import Tradeoff
from tflabench.theory.cost import Gate
from tflabench.theory.hardware import Ceilings, Gpu, find

INDIGO, OLIVE = "#44337A", "#7A7A00"  # beside Okabe-Ito, whose vermilion and blue stand for sig and exp
GPU_COLOURS = {"V100": PURPLE, "A100": GREEN, "H100": SKY, "H200": INDIGO, "B200": ORANGE}
CAUSAL_COLOURS = {0.5: BLUE, 0.66: GREEN, 1.0: ORANGE}
DIM_COLOURS = {64: SKY, 128: GREEN, 256: ORANGE, 512: BLUE, 1024: PURPLE}
LABELS = {"chunk": "chunk size L [tokens]", "d_hv": "head dimension $d_{hv}$ [channels]"}
PASS_NAMES = {"fw": "forward", "fwbw": "forward + backward"}
HOPPER = ("H100", "H200")  # what the fused kernels run on
COUNTED = "Modelled: published counts, $F_{causal}$ = 0.5"


@styled
def fig15(gate: Gate, pass_: Pass = "fw", rows: Rows | None = None) -> Figure:
    """FLOPs of one head and sequence over L, between recurrent and parallel form; F_causal 0.5, 0.66, 1."""
    del rows  # FLOPs are counted, not measured
    T, sizes = 8192, np.geomspace(1, 8192, 300)
    sheet = Sheet(3, gap=0.35)
    for ax, (d_qk, d_hv) in zip(sheet.axes, ((256, 512), (128, 256), (64, 128)), strict=True):
        own = Problem(1, 1, T, d_qk, d_hv, pass_=pass_)
        for factor, colour in CAUSAL_COLOURS.items():
            per_chunk = cost.flop_polynomial("chunkwise", gate, d_qk, d_hv, causal_factor=factor, pass_=pass_)
            flops = T / sizes * per_chunk(sizes)
            ax.plot(sizes, flops / 1e9, color=colour)
            least = int(np.argmin(flops))
            ax.plot(sizes[least], flops[least] / 1e9, "o", color=colour)
            whole = cost.flop_polynomial("parallel", gate, d_qk, d_hv, causal_factor=factor, pass_=pass_)(T)
            ax.axhline(whole / 1e9, color=colour, ls=DASHES[1], lw=0.8)
        ax.axhline(cost.flop_polynomial("recurrent", gate, d_qk, d_hv, pass_=pass_)(T) / 1e9, color="0.4", ls=DASHES[2])
        ax.axhline(fused.cost(own, gate, T).flops / 1e9, color=BLACK, ls=DASHES[3], lw=0.8)
        ax.set(title=f"$d_{{qk}}$ = {d_qk}, $d_{{hv}}$ = {d_hv}", yscale="log")
        _over_chunk_size(ax, 1, T)
        log_ticks(ax.yaxis)
    sheet.axes[0].set_ylabel("FLOPs [GFLOP]")
    handles = [Line2D([], [], color=c, label=f"chunkwise, $F_{{causal}}$ = {f:g}") for f, c in CAUSAL_COLOURS.items()]
    keys = [
        Line2D([], [], color="0.2", marker="o", ls="", label="fewest FLOPs"),
        Line2D([], [], color="0.2", ls=DASHES[1], lw=0.8, label="parallel form"),
        Line2D([], [], color="0.4", ls=DASHES[2], label="recurrent form"),
        Line2D([], [], color=BLACK, ls=DASHES[3], lw=0.8, label=f"fused, tiles of {fused_kernels.TILE} at every L"),
    ]
    notes = backward_notes(pass_)
    footer = "Modelled: Table 17 as published; fused: tflabench.theory.fused. Fig. 15 of the paper is sig, forward."
    sheet.finish(_title(15, "FLOPs of one head and sequence, T = 8192", gate, pass_), handles, keys, notes, footer)
    return sheet.figure


@styled
def fig16(gate: Gate, pass_: Pass = "fw", rows: Rows | None = None) -> Figure:
    """The L of fewest FLOPs over d_hv (eq. 111), for d_qk half of d_hv and equal to it."""
    del rows
    d_hv = np.geomspace(32, 2048, 100)
    sheet = Sheet(2)
    for ax, p_qk in zip(sheet.axes, (0.5, 1.0), strict=True):
        for factor, colour in CAUSAL_COLOURS.items():
            best = [_tradeoff(gate, pass_, p_qk * d, d, causal_factor=factor).flop_optimal for d in d_hv]
            ax.plot(d_hv, best, color=colour, label=f"$F_{{causal}}$ = {factor:g}")
        ax.set(title=f"$p_{{qk}}$ = {p_qk:g}", xlabel=LABELS["d_hv"])
        _over(ax, 32, 2048)
    sheet.axes[0].set_ylabel("FLOP-optimal L [tokens]")
    _share_y(sheet.axes, log=False)
    handles = sheet.axes[0].get_lines()
    notes = backward_notes(pass_)
    footer = f"Modelled: {_equation(111, gate, pass_)}, published counts."
    sheet.finish(_title(16, "chunk size of fewest FLOPs", gate, pass_), handles, [], notes, footer)
    return sheet.figure


@styled
def fig17(gate: Gate, pass_: Pass = "fw", rows: Rows | None = None) -> Figure:
    """Theoretical runtime over L on A100, H100, H200 and B200, from lower to upper bound, and the measured one.

    A measured GPU that is none of these gets a panel of its own.
    """
    sweep = Overlay.of(rows, gate, pass_)
    gpus = [find(name) for name in ("paper-A100", "paper-H100", "H200", "paper-B200")]
    home = next((n for n, gpu in enumerate(gpus) if sweep.gpu and _short(gpu) == _short(sweep.gpu)), None)
    if sweep.gpu and home is None:
        home = len(gpus)
        gpus.append(sweep.gpu)
    sheet = Sheet(len(gpus), gap=0.3)
    sizes = _sizes(sweep)
    for n, (ax, gpu) in enumerate(zip(sheet.axes, gpus, strict=True)):
        tradeoff = Tradeoff(sweep.problem, gate, gpu.ceilings)
        colour = GPU_COLOURS.get(_short(gpu), OLIVE)
        time = tradeoff.time(sizes)
        ax.fill_between(sizes, time.lower * 1e3, time.upper * 1e3, color=colour, alpha=0.18, lw=0)
        ax.plot(sizes, time.upper * 1e3, color=colour)
        best = tradeoff.runtime_optimal
        ax.plot(best, tradeoff.time(best).upper * 1e3, "o", color=colour, mec="white")
        ax.annotate(
            f"L = {best:.0f}", (best, tradeoff.time(best).upper * 1e3), (0, 6), textcoords="offset points", ha="center",
            fontsize=NOTE_SIZE, color=colour,
        )  # fmt: skip
        if _short(gpu) in HOPPER:
            steps = [size for k in range(6, 32) if (size := 2**k) <= sizes[-1]]
            walks = [fused.runtime(sweep.problem.with_(chunk_size=size), gate, gpu) * 1e3 for size in steps]
            ax.plot(steps, walks, color="0.25", ls=DASHES[3], lw=0.8)
        for look, own in sweep.series() if n == home else ():
            ax.plot(own["chunk_size"], own["ms_median"], **look.line())
        ax.set(title=f"{_short(gpu)}, $I_{{acc}}$ = {gpu.ceilings.intensity:.0f} FLOP/B", yscale="log")
        _over_chunk_size(ax, sizes[0], sizes[-1])
    _share_y(sheet.axes)
    sheet.axes[0].set_ylabel("runtime [ms]")
    keys = [
        Line2D([], [], color="0.3", label="theory: nothing overlaps (eq. 116), down to all overlaps"),
        Line2D([], [], color="0.3", marker="o", ls="", label=f"its least, {_equation(121, gate, pass_)}"),
        Line2D([], [], color="0.25", ls=DASHES[3], lw=0.8, label="fused kernels for Hopper, theory: all overlaps"),
    ]
    footer = f"{COUNTED}, states float32. {_sources(gpus)}"
    title = _title(17, sweep.title(), gate, pass_)
    sheet.finish(title, sweep.handles(), keys, sweep.notes(pass_), footer)
    return sheet.figure


@styled
def fig18(gate: Gate, pass_: Pass = "fw", rows: Rows | None = None) -> Figure:
    """Arithmetic intensity over L for several head dimensions, states in 4 and 2 bytes, and the accelerators' own."""
    del rows
    sizes = np.geomspace(16, 8192, 200)
    gpus = [find(name) for name in ("paper-V100", "paper-A100", "paper-H100", "H200", "paper-B200")]
    sheet = Sheet(2, height=2.3)
    for ax, (state_bytes, dtype) in zip(sheet.axes, ((4, "float32"), (2, "bfloat16")), strict=True):
        _intensity_lines(ax, gpus)
        for d_hv, colour in DIM_COLOURS.items():
            tradeoff = _tradeoff(gate, pass_, d_hv / 2, d_hv, state_bytes=state_bytes)
            ax.plot(sizes, tradeoff.flops_per_chunk(sizes) / tradeoff.bytes_per_chunk(sizes), color=colour)
        ax.set(title=f"states in {dtype}, $b_C$ = {state_bytes}", yscale="log")
        _over_chunk_size(ax, 16, 8192)
        log_ticks(ax.yaxis)
    sheet.axes[0].set_ylabel("arithmetic intensity [FLOP/byte]")
    _share_y(sheet.axes)
    handles = [Line2D([], [], color=c, label=f"$d_{{hv}}$ = {d}") for d, c in DIM_COLOURS.items()]
    notes = [
        "Above a GPU's line a kernel is bound by computing, below it by moving (eqs. 117-118).",
        *backward_notes(pass_),
    ]
    footer = f"{COUNTED}, $d_{{qk}}$ = $d_{{hv}}$/2. {_sources(gpus)}"
    sheet.finish(_title(18, "arithmetic intensity", gate, pass_), handles, [], notes, footer)
    return sheet.figure


@styled
def fig19(gate: Gate, pass_: Pass = "fw", rows: Rows | None = None) -> Figure:
    """Rooflines, the intensity of each L as a column that meets them, and on it what was measured at that L."""
    sweep = Overlay.of(rows, gate, pass_)
    gpus = [find(name) for name in ("paper-V100", "paper-A100", "paper-H100")]
    if sweep.gpu and _short(sweep.gpu) not in map(_short, gpus):
        gpus.append(sweep.gpu)
    tradeoff = Tradeoff(sweep.problem, gate, gpus[-1].ceilings)
    asked = range(6, min(sweep.problem.seq_len, 4096).bit_length())
    own = [size for _, part in sweep.series() if _chunkwise(part) for size in part["chunk_size"]]
    columns = sorted({2**n for n in asked} | {int(size) for size in own})
    sheet = Sheet(1, height=3.0, wide=True)
    (ax,) = sheet.axes
    intensities = [float(tradeoff.cost(size).intensity) for size in columns]
    marks = [x for _, part in sweep.series() for x in sweep.cost(gate, part, tradeoff).intensity]
    marks += [*intensities, *(gpu.ceilings.intensity for gpu in gpus)]
    ax.set(xscale="log", yscale="log", xlim=(min(marks) / 1.6, max(marks) * 2))
    handles = []
    for gpu in gpus:
        colour = GPU_COLOURS.get(_short(gpu), OLIVE)
        handles.append(roof(ax, gpu.ceilings, 1e12, color=colour, label=_roof_label(gpu)))
        ax.plot(gpu.ceilings.intensity, gpu.ceilings.flops_per_s / 1e12, "o", color=colour)
    shades = _shades(len(columns))
    for size, intensity, shade in zip(columns, intensities, shades, strict=True):
        ax.axvline(intensity, color=shade, lw=0.9, ls=DASHES[1], zorder=1)
        place = {"xy": (intensity, 1), "xycoords": ax.get_xaxis_transform(), "xytext": (-1, -2)}
        style = {"ha": "right", "va": "top", "rotation": 90, "fontsize": NOTE_SIZE, "color": shade}
        ax.annotate(f"L = {size}", textcoords="offset points", **style, **place)
    for look, own in sweep.series():
        at = sweep.cost(gate, own, tradeoff)
        rates = at.flops / own["ms_median"].to_numpy() / 1e9
        ax.plot(at.intensity, rates, **look.line(linewidth=0.5, markersize=4.5))
        for x, y, size in zip(at.intensity, rates, own["chunk_size"] if _chunkwise(own) else (), strict=False):
            shade = shades[columns.index(int(size))]
            ax.plot(x, y, **look.line(color=shade, markersize=4.5, markeredgecolor="white", markeredgewidth=0.4))
    ax.set_ylim(top=ax.get_ylim()[1] * 2.2)
    ax.set(xlabel="arithmetic intensity [FLOP/byte]", ylabel="rate [TFLOP/s]")
    log_ticks(ax.xaxis)
    log_ticks(ax.yaxis)
    rates = "measured rates: modelled FLOPs over measured time"
    footer = f"{COUNTED}, states float32; {rates}. {_sources(gpus)}"
    title = _title(19, sweep.title(), gate, pass_)
    sheet.finish(title, handles, sweep.handles(), sweep.notes(pass_), footer)
    return sheet.figure


@styled
def fig20(gate: Gate, pass_: Pass = "fw", rows: Rows | None = None) -> Figure:
    """FLOP/s, FLOPs and runtime over L: the rate grows with L because the work does, and the runtime does not fall."""
    sweep = Overlay.of(rows, gate, pass_)
    gpu = sweep.gpu or find("paper-H100")
    tradeoff = Tradeoff(sweep.problem, gate, gpu.ceilings)
    sizes = _sizes(sweep)
    flops, time = tradeoff.cost(sizes).flops, tradeoff.time(sizes)
    sheet = Sheet(3, gap=0.6)
    rate, count, runtime = sheet.axes
    band: dict[str, Any] = {"color": GPU_COLOURS.get(_short(gpu), OLIVE), "alpha": 0.18, "lw": 0}
    line: dict[str, Any] = {"color": GPU_COLOURS.get(_short(gpu), OLIVE)}
    rate.fill_between(sizes, flops / time.upper / 1e12, flops / time.lower / 1e12, **band)
    rate.plot(sizes, flops / time.upper / 1e12, **line)
    count.plot(sizes, flops / 1e12, color="0.2")
    runtime.fill_between(sizes, time.lower * 1e3, time.upper * 1e3, **band)
    runtime.plot(sizes, time.upper * 1e3, **line)
    for look, own in sweep.series():
        work = sweep.cost(gate, own, tradeoff).flops
        rate.plot(own["chunk_size"], work / own["ms_median"].to_numpy() / 1e9, **look.line())
        if not _chunkwise(own):
            count.plot(own["chunk_size"], work / 1e12, **look.line())
        runtime.plot(own["chunk_size"], own["ms_median"], **look.line())
        best = own.loc[own["ms_median"].idxmin()]
        runtime.plot(best["chunk_size"], best["ms_median"], "o", ms=8, mfc="none", mec=look.colour, mew=0.8)
    for ax, title, label in (
        (rate, "rate", "rate [TFLOP/s]"),
        (count, "work", "FLOPs [TFLOP]"),
        (runtime, "runtime", "runtime [ms]"),
    ):
        ax.set(title=title, ylabel=label)
        ax.set_ylim(bottom=0)
        _over_chunk_size(ax, sizes[0], sizes[-1])
    keys = [Line2D([], [], label=f"theory on {_short(gpu)}: nothing overlaps, band to all overlaps", **line)]
    if sweep.gpu:
        keys.append(Line2D([], [], color="0.3", marker="o", ms=8, mfc="none", ls="", label="least measured runtime"))
    rates = "measured rates: modelled FLOPs over measured time"
    footer = f"{COUNTED}, states float32; {rates}. {_sources([gpu])}"
    sheet.finish(_title(20, sweep.title(), gate, pass_), sweep.handles(), keys, sweep.notes(pass_), footer)
    return sheet.figure


@styled
def fig21(gate: Gate, pass_: Pass = "fw", rows: Rows | None = None) -> Figure:
    """The L of least runtime over d_hv (eq. 121), states in 4 and 2 bytes, on A100, H100, H200 and B200."""
    del rows
    d_hv = np.geomspace(32, 2048, 100)
    gpus = [find(name) for name in ("paper-A100", "paper-H100", "H200", "paper-B200")]
    sheet = Sheet(2)
    for ax, (state_bytes, dtype) in zip(sheet.axes, ((4, "float32"), (2, "bfloat16")), strict=True):
        for gpu in gpus:
            best = [
                _tradeoff(gate, pass_, d / 2, d, ceilings=gpu.ceilings, state_bytes=state_bytes).runtime_optimal
                for d in d_hv
            ]
            ax.plot(d_hv, best, **_gpu_line(gpu))
        ax.set(title=f"states in {dtype}", xlabel=LABELS["d_hv"])
        _over(ax, 32, 2048)
    sheet.axes[0].set_ylabel("runtime-optimal L [tokens]")
    _share_y(sheet.axes, log=False)
    handles = [Line2D([], [], label=_short(gpu), **_gpu_line(gpu)) for gpu in gpus]
    footer = f"{COUNTED}, $d_{{qk}}$ = $d_{{hv}}$/2; {_equation(121, gate, pass_)}. {_sources(gpus)}"
    sheet.finish(_title(21, "chunk size of least runtime", gate, pass_), handles, [], backward_notes(pass_), footer)
    return sheet.figure


@styled
def fig22(gate: Gate, pass_: Pass = "fw", rows: Rows | None = None) -> Figure:
    """The L of least runtime over the accelerator's intensity (eq. 121), GPUs marked, and the measured best L."""
    sweep = Overlay.of(rows, gate, pass_)
    intensity = np.geomspace(80, 500, 100)
    gpus = [find(name) for name in ("paper-V100", "paper-A100", "H200", "paper-B200", "paper-H100")]
    sheet = Sheet(1, height=2.6, wide=True)
    (ax,) = sheet.axes
    for d_hv, colour in DIM_COLOURS.items():
        best = [
            _tradeoff(gate, pass_, d_hv / 2, d_hv, ceilings=Ceilings(i, 1.0, "given", "")).runtime_optimal
            for i in intensity
        ]
        ax.plot(intensity, best, color=colour)
    ax.set(xlim=(intensity[0], intensity[-1]), ylim=(0, None), xlabel="accelerator intensity $I_{acc}$ [FLOP/byte]")
    ax.set_ylabel("runtime-optimal L [tokens]")
    for n, gpu in enumerate(sorted(gpus, key=lambda gpu: gpu.ceilings.intensity)):
        ax.axvline(gpu.ceilings.intensity, color="0.45", lw=0.7, ls=DASHES[2])
        left = n + 1 < len(gpus) and _short(gpu) == "B200"  # H100's line is next to it
        place = {"xy": (gpu.ceilings.intensity, 0.97), "xycoords": ax.get_xaxis_transform()}
        ax.annotate(f" {_short(gpu)} ", ha="right" if left else "left", va="top", fontsize=NOTE_SIZE, **place)
    handles = [Line2D([], [], color=c, label=f"$d_{{hv}}$ = {d}") for d, c in DIM_COLOURS.items()]
    measured = []
    for look, own in sweep.series():
        if sweep.gpu and _chunkwise(own):  # to the fused kernels L is no trade of bytes for FLOPs
            best = own.loc[own["ms_median"].idxmin()]
            label = f"{look.title}, measured best, $d_{{hv}}$ = {sweep.problem.d_hv}"
            style = look.line(linestyle="", markersize=5, label=label)
            measured += ax.plot(sweep.gpu.ceilings.intensity, best["chunk_size"], **style)
    footer = f"{COUNTED}, $d_{{qk}}$ = $d_{{hv}}$/2, states float32; {_equation(121, gate, pass_)}. {_sources(gpus)}"
    sheet.finish(_title(22, "chunk size of least runtime", gate, pass_), handles, measured, sweep.notes(pass_), footer)
    return sheet.figure


FIGURES: dict[str, Callable[..., Figure]] = {
    figure.__name__: figure for figure in (fig15, fig16, fig17, fig18, fig19, fig20, fig21, fig22)
}


def _chunkwise(own: Rows) -> bool:
    return own["formulation"].iloc[0] == "chunkwise"


def _title(number: int, what: str, gate: Gate, pass_: Pass) -> str:
    return f"Fig. {number}, mLSTM{gate} {PASS_NAMES[pass_]}: {what}"


def _equation(number: int, gate: Gate, pass_: Pass) -> str:
    """The paper prints its optima for sig's forward only."""
    return f"eq. {number}" if (gate, pass_) == ("sig", "fw") else f"as eq. {number}, for this gate and pass"


def _tradeoff(
    gate: Gate, pass_: Pass, d_qk: float, d_hv: float, ceilings: Ceilings | None = None, **options: Any
) -> Tradeoff:
    """For real head dimensions, as curves have them."""
    problem = Problem(1, 1, PAPER.seq_len, d_qk, d_hv, pass_=pass_)  # type: ignore[arg-type]
    return Tradeoff(problem, gate, ceilings or find("paper-H100").ceilings, **options)


def _sizes(sweep: Overlay) -> np.ndarray:
    """The chunk sizes of theory's curves: 16 to 8192, and as far as rows go."""
    most = max([8192, *(sweep.rows["chunk_size"] if sweep.gpu else ())])
    return np.geomspace(min(16, sweep.problem.seq_len), min(most, sweep.problem.seq_len), 300)


def _short(gpu: Gpu) -> str:
    return gpu.name.removeprefix("paper-").split()[0]


def _gpu_line(gpu: Gpu) -> dict[str, Any]:
    """B200 broken, for it lies on H100: their intensities differ by 1%."""
    return {"color": GPU_COLOURS[_short(gpu)], "ls": DASHES[1] if _short(gpu) == "B200" else DASHES[0]}


def _roof_label(gpu: Gpu) -> str:
    own = gpu.ceilings
    return f"{_short(gpu)}: {own.flops_per_s / 1e12:.4g} TFLOP/s, {own.bytes_per_s / 1e12:.4g} TB/s"


def _sources(gpus: Sequence[Gpu]) -> str:
    """GPUs by the document that their ceilings come from."""
    by_source: dict[str, list[str]] = {}
    for gpu in gpus:
        by_source.setdefault(f"{gpu.ceilings.provenance}: {gpu.ceilings.source}", []).append(_short(gpu))
    return "; ".join(f"{', '.join(names)}: {source}" for source, names in by_source.items()) + "."


def _intensity_lines(ax: Axes, gpus: Sequence[Gpu]) -> None:
    """A named line at the intensity of each accelerator; names of those within 5% share a place."""
    groups: list[list[Gpu]] = []
    for gpu in sorted(gpus, key=lambda gpu: gpu.ceilings.intensity):
        ax.axhline(gpu.ceilings.intensity, color="0.4", lw=0.7, ls=DASHES[2])
        if groups and gpu.ceilings.intensity < 1.05 * groups[-1][-1].ceilings.intensity:
            groups[-1].append(gpu)
        else:
            groups.append([gpu])
    for n, group in enumerate(groups):
        name = ", ".join(f"{_short(gpu)} {gpu.ceilings.intensity:.0f}" for gpu in group)
        side = {"xytext": (0, 1.5)} if n else {"xytext": (0, -1.5), "va": "top"}  # the lowest below its line
        place = {"xy": (0.012, group[-1].ceilings.intensity), "xycoords": ax.get_yaxis_transform(), **side}
        ax.annotate(name, textcoords="offset points", fontsize=NOTE_SIZE, color="0.3", **place)


def _over_chunk_size(ax: Axes, low: float, high: float) -> None:
    ax.set_xlabel(LABELS["chunk"])
    _over(ax, low, high)


def _over(ax: Axes, low: float, high: float) -> None:
    """A logarithmic x axis with a tick at every second or fourth power of two."""
    ax.set_xscale("log", base=2)
    ax.set_xlim(low / 1.12, high * 1.12)
    powers = [2**n for n in range(int(np.ceil(np.log2(low))), int(np.log2(high) + 1e-9) + 1)]
    shown = powers[:: 2 if len(powers) > 6 else 1]
    ax.set_xticks(shown, [compact(value) for value in shown])
    ax.set_xticks([], minor=True)


def _share_y(axes: Sequence[Axes], log: bool = True) -> None:
    lows, highs = zip(*(ax.get_ylim() for ax in axes), strict=True)
    for ax in axes:
        ax.set_ylim(min(lows) if log else 0, max(highs))
        if log:
            log_ticks(ax.yaxis)


def _shades(count: int) -> list[Any]:
    """Colours from light to dark, one a chunk size."""
    import matplotlib

    return [matplotlib.colormaps["viridis_r"](0.12 + 0.8 * n / max(count - 1, 1)) for n in range(count)]
