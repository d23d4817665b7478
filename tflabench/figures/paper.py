"""Figures 15 to 22 of the paper, for either gate, forward and with the backward: theory, measured rows laid over.

    FIGURES["fig17"]("sig", "fw", rows) -> Figure        rows: as `load.read_rows` gives them, or None

Every function takes a gate ("exp" or "sig"), a pass ("fw" or "fwbw") and rows, of which it draws those of one problem:
see `Overlay`. Counts are the published ones (Table 17) unless a caption says otherwise. GPUs are those of the paper's
Table 18, and the H200 of NVIDIA's datasheet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tflabench.figures.axes import linear, logarithmic, powers, upwards
from tflabench.figures.gpus import ink, intensity_rules, roofs, short, size_rules, sources
from tflabench.figures.looks import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION
from tflabench.figures.model import Axis, Band, Curve, Figure, Ink, Item, Key, Note, Panel, Rule
from tflabench.figures.overlay import PAPER, Overlay, Series
from tflabench.figures.quantities import AXES, PASSES, Rows
from tflabench.kernels.plan.hopper_shapes import TILE
from tflabench.problem import Pass, Problem
from tflabench.theory import cost, fused
from tflabench.theory.chunk_size import Tradeoff
from tflabench.theory.cost import Gate
from tflabench.theory.hardware import Ceilings, Gpu, find

CAUSAL_INKS = {0.5: Ink(BLUE), 0.66: Ink(GREEN, dash="dash"), 1.0: Ink(VERMILION, dash="dashdot")}
DIM_INKS = {
    64: Ink(SKY, dash="dot"),
    128: Ink(GREEN, dash="dash"),
    256: Ink(ORANGE, dash="dashdot"),
    512: Ink(BLUE),
    1024: Ink(PURPLE, dash="dash"),
}
STATES = {4: "states in float32", 2: "states in bfloat16"}  # bytes of an element -> title of a panel
GREY = "#404040"
FUSED = Ink(BLACK, dash="dot")
FUSED_ON = ("H100", "H200")
RING = Ink(GREY, "circle")
MEASURED = Key("measured", Ink(GREY, "square"))
COUNTED = "Modelled: published counts (Table 17), F_causal = 0.5"
RATES = "Measured rates: modelled FLOPs over measured time."
BACKWARD = "The paper counts forward passes. The backward is derived from its section B.3 (tflabench.theory.cost)."


class Asked(NamedTuple):
    """A figure of the paper for one gate and pass."""

    number: int
    gate: Gate
    pass_: Pass

    def figure(self, words: str, setting: str, panels: Iterable[Panel], caption: Iterable[str], **rest: Any) -> Figure:
        """Return a figure whose title says `words` of this gate and pass; `rest` as `Figure` has it."""
        derived = [BACKWARD] if self.pass_ == "fwbw" else []
        return Figure(
            f"fig{self.number}-{self.gate}-{self.pass_}",
            f"mLSTM{self.gate} {PASSES[self.pass_]}, theory: {words}",
            setting,
            tuple(panels),
            caption=(f"Fig. {self.number} of the paper, which is of sig's forward.", *caption, *derived),
            **rest,
        )

    def equation(self, number: int) -> str:
        """Return the name of an equation that the paper prints for sig's forward only."""
        printed = (self.gate, self.pass_) == ("sig", "fw")
        return f"eq. {number}" if printed else f"as eq. {number}, for this gate and pass"

    def tradeoff(self, d_qk: float, d_hv: float, ceilings: Ceilings | None = None, **options: Any) -> Tradeoff:
        """Return the model of one head; head dimensions may be real numbers, as curves have them."""
        problem = Problem(1, 1, PAPER.seq_len, d_qk, d_hv, pass_=self.pass_)  # type: ignore[arg-type]
        return Tradeoff(problem, self.gate, ceilings or find("paper-H100").ceilings, **options)


def fig15(gate: Gate, pass_: Pass = "fw", rows: Rows | None = None) -> Figure:
    """Return FLOPs of one head and sequence over L, for three head sizes and F_causal 0.5, 0.66 and 1."""
    del rows  # FLOPs are counted, not measured
    asked = Asked(15, gate, pass_)
    panels = [_flops_panel(asked, d_qk, d_hv) for d_qk, d_hv in ((256, 512), (128, 256), (64, 128))]
    least = [item.x for panel in panels for item in panel.items if isinstance(item, Note)]
    return asked.figure(
        f"FLOPs are fewest at an L of {min(least):.0f} to {max(least):.0f}",
        "T = 8192, one head and sequence",
        panels=panels,
        keys=(Key("fewest FLOPs", RING, "hollow"), Key("parallel form", Ink(GREY, "diamond"), "hollow")),
        caption=[
            "Modelled: Table 17 as published. The parallel form has one chunk of all T steps, the recurrent form T.",
            f"Fused: tflabench.theory.fused, tiles of {TILE} steps at every L.",
        ],
    )


def _flops_panel(asked: Asked, d_qk: int, d_hv: int) -> Panel:
    T, sizes = PAPER.seq_len, np.geomspace(1, PAPER.seq_len, 300)
    gate, pass_ = asked.gate, asked.pass_
    items: list[Item] = []
    for factor, line in CAUSAL_INKS.items():
        count = cost.flop_polynomial("chunkwise", gate, d_qk, d_hv, causal_factor=factor, pass_=pass_)
        flops = T / sizes * count(sizes) / 1e9
        whole = cost.flop_polynomial("parallel", gate, d_qk, d_hv, causal_factor=factor, pass_=pass_)(T) / 1e9
        least = asked.tradeoff(d_qk, d_hv, causal_factor=factor).flop_optimal
        items += [
            Curve(f"F_causal = {factor:g}", sizes, flops, line, role="theory"),
            Curve("", [T], [whole], Ink(line.colour, "diamond"), joined=False, hollow=[True]),
            Note(least, T / least * count(least) / 1e9, "", line.colour, ring=True),
        ]
    recurrent = cost.flop_polynomial("recurrent", gate, d_qk, d_hv, pass_=pass_)(T) / 1e9
    tiled = fused.cost(Problem(1, 1, T, d_qk, d_hv, pass_=pass_), gate, T).flops / 1e9
    items += [
        Rule("y", recurrent, "recurrent form", Ink("#767676", dash="dash")),
        Rule("y", tiled, "fused kernels", FUSED),
    ]
    heights = [float(value) for item in items if isinstance(item, Curve) for value in item.y]
    y = logarithmic("FLOPs [GFLOP]", min(*heights, tiled, recurrent), max(heights))
    least = [item.x for item in items if isinstance(item, Note)]
    title = f"d_qk = {d_qk}, d_hv = {d_hv}: fewest at L = {min(least):.0f} to {max(least):.0f}"
    return Panel(title, powers(AXES["chunk_size"], 1, T), y, tuple(items))


def fig16(gate: Gate, pass_: Pass = "fw", rows: Rows | None = None) -> Figure:
    """Return the L of fewest FLOPs over d_hv (eq. 111), for d_qk half of d_hv and equal to it."""
    del rows
    asked, d_hv = Asked(16, gate, pass_), np.geomspace(32, 2048, 100)
    lines = {
        p_qk: [
            _line(f"F_causal = {f:g}", look, d_hv, _optima(asked, d_hv, p_qk, "flop_optimal", causal_factor=f))
            for f, look in CAUSAL_INKS.items()
        ]
        for p_qk in (0.5, 1.0)
    }
    y = _from_zero("L of fewest FLOPs [tokens]", [curve for curves in lines.values() for curve in curves])
    return asked.figure(
        f"the L of fewest FLOPs stays below {y.limits[1]:.0f}",  # type: ignore[index]
        f"{asked.equation(111)}, published counts",
        panels=(
            Panel(f"d_qk = {'' if p_qk == 1 else f'{p_qk:g} '}d_hv", _over_dimensions(), y, tuple(curves))
            for p_qk, curves in lines.items()
        ),
        caption=[f"Modelled: {asked.equation(111)}, published counts (Table 17)."],
    )


def fig17(gate: Gate, pass_: Pass = "fw", rows: Rows | None = None) -> Figure:
    """Return theoretical runtime over L, a line a GPU, and measured rows with the bounds of their GPU."""
    asked, sweep = Asked(17, gate, pass_), Overlay.of(rows, gate, pass_)
    gpus = _with(sweep.gpu, "paper-A100", "paper-H100", "H200", "paper-B200")
    home = next((gpu for gpu in gpus if sweep.gpu and short(gpu) == short(sweep.gpu)), find("paper-H100"))
    sizes, measured = _sizes(sweep), sweep.series()
    items = [item for gpu in gpus for item in _runtime(sweep, Tradeoff(sweep.problem, gate, gpu.ceilings), gpu, sizes)]
    if short(home) in FUSED_ON:
        steps = [float(size) for k in range(6, 32) if (size := 2**k) <= sizes[-1]]
        walks = [fused.runtime(sweep.problem.with_(chunk_size=int(size)), gate, home) * 1e3 for size in steps]
        items.append(_line(f"fused, {short(home)}", FUSED, steps, walks))
    items += [own.curve(own.sizes, own.ms) for own in measured]
    best = Tradeoff(sweep.problem, gate, home.ceilings).runtime_optimal
    words = f"{_article(home)} is fastest at L = {best:.0f}"
    if measured:
        chunkwise = [own for own in measured if own.chunkwise]
        fastest = min(chunkwise or measured, key=lambda own: own.ms.min())
        kind = "chunkwise" if chunkwise else "fused"
        words += f", the best measured {kind} kernel at {fastest.sizes[fastest.best]:.0f}"
    keys = [Key("least, at the L beside", RING, "hollow")]
    if measured:
        keys = [
            Key("least", RING, "hollow"),
            Key(f"bounds on {short(home)}", ink(home), "area"),
            MEASURED,
        ]
    return asked.figure(
        words,
        sweep.setting,
        panels=(Panel("", _over_sizes(sizes), upwards("runtime [ms]", _heights(items)), tuple(items)),),
        keys=tuple(keys),
        caption=[
            f"Lines: nothing overlaps (eq. 116). Rings: the least, {asked.equation(121)}.",
            *(["Shaded: down to where all overlaps."] if measured else []),
            f"Fused kernels: theory, all overlaps (tflabench.theory.fused). {COUNTED}, states in float32.",
            sources(gpus),
            *sweep.origin,
        ],
        rows=sweep.rows,
        height=2.5,
    )


def _runtime(sweep: Overlay, tradeoff: Tradeoff, gpu: Gpu, sizes: np.ndarray) -> Iterator[Item]:
    """Yield the upper time of a GPU with a ring at its least, and the bounds of the one that was measured."""
    time, best, look = tradeoff.time(sizes), tradeoff.runtime_optimal, ink(gpu)
    home = sweep.gpu and short(sweep.gpu) == short(gpu)
    role = "context" if sweep.gpu and not home else "theory"
    yield Curve(f"{short(gpu)}: L = {best:.0f}", sizes, time.upper * 1e3, look, role)
    yield Note(best, float(tradeoff.time(best).upper) * 1e3, "", look.colour, ring=True)
    if home:
        yield Band(sizes, time.lower * 1e3, time.upper * 1e3, look.colour)


def fig18(gate: Gate, pass_: Pass = "fw", rows: Rows | None = None) -> Figure:
    """Return arithmetic intensity over L for several head dimensions, states in 4 and 2 bytes, and that of GPUs."""
    del rows
    asked, sizes = Asked(18, gate, pass_), np.geomspace(16, 8192, 200)
    gpus = [find(name) for name in ("paper-V100", "paper-A100", "paper-H100", "H200", "paper-B200")]
    found = {}
    for state_bytes in STATES:
        found[state_bytes] = []
        for d_hv, line in DIM_INKS.items():
            model = asked.tradeoff(d_hv / 2, d_hv, state_bytes=state_bytes)
            intensity = model.flops_per_chunk(sizes) / model.bytes_per_chunk(sizes)
            found[state_bytes].append(_line(f"d_hv = {d_hv}", line, sizes, intensity))
    y = upwards("intensity [FLOP/byte]", (value for curves in found.values() for curve in curves for value in curve.y))
    return asked.figure(
        "intensity grows with L and passes that of every GPU",
        "d_qk = d_hv / 2; dotted: intensity of GPUs",
        panels=(
            Panel(title, _over_sizes(sizes), y, (*intensity_rules(gpus, "y"), *found[state_bytes]))
            for state_bytes, title in STATES.items()
        ),
        caption=[
            "Above a GPU's line a kernel is bound by computing, below it by moving (eqs. 117-118).",
            f"{COUNTED}.",
            sources(gpus),
        ],
        height=1.75,
    )


def fig19(gate: Gate, pass_: Pass = "fw", rows: Rows | None = None) -> Figure:
    """Return rooflines, the intensity of each L as an upright line, and on it what was measured at that L."""
    asked, sweep = Asked(19, gate, pass_), Overlay.of(rows, gate, pass_)
    gpus = _with(sweep.gpu, "paper-V100", "paper-A100", "paper-H100")
    tradeoff = Tradeoff(sweep.problem, gate, gpus[-1].ceilings)
    intensities = {2**n: float(tradeoff.cost(2**n).intensity) for n in range(6, 13)}
    points = []
    for own in sweep.series():
        at = sweep.cost(own, tradeoff)
        points.append(own.curve(at.intensity, at.flops / own.ms / 1e9))
    marks = [*intensities.values(), *(gpu.ceilings.intensity for gpu in gpus), *(x for own in points for x in own.x)]
    limits = (min(marks) / 1.6, max(marks) * 1.6)
    lines = list(roofs(gpus, limits))
    rates = _heights([*lines, *points])
    words = f"from L = {tradeoff.overlapped_optimal:.0f} on computing bounds {_article(gpus[-1])}"
    return asked.figure(
        words,
        sweep.setting,
        panels=(
            Panel(
                "",
                Axis("arithmetic intensity [FLOP/byte]", "log", limits, logarithmic("", *limits).ticks),
                logarithmic("rate [TFLOP/s]", min(rates), max(rates)),
                (*size_rules(intensities, limits), *lines, *points),
            ),
        ),
        keys=(Key("roof", Ink(GREY)), MEASURED) if points else (),
        caption=[
            "Upright: the intensity of chunk sizes. It meets a roof at the rate that this GPU can reach (eq. 119).",
            f"{COUNTED}, states in float32. {RATES if points else ''}".strip(),
            sources(gpus),
            *sweep.origin,
        ],
        rows=sweep.rows,
        height=2.4,
    )


def fig20(gate: Gate, pass_: Pass = "fw", rows: Rows | None = None) -> Figure:
    """Return FLOP/s, FLOPs and runtime over L: the rate grows because the work does, and the runtime does not fall."""
    asked, sweep = Asked(20, gate, pass_), Overlay.of(rows, gate, pass_)
    gpu = sweep.gpu or find("paper-H100")
    tradeoff, sizes = Tradeoff(sweep.problem, gate, gpu.ceilings), _sizes(sweep)
    flops, time = tradeoff.cost(sizes).flops, tradeoff.time(sizes)
    look, best = ink(gpu), tradeoff.runtime_optimal
    rate: list[Item] = [
        Band(sizes, flops / time.upper / 1e12, flops / time.lower / 1e12, look.colour),
        _line(short(gpu), look, sizes, flops / time.upper / 1e12),
    ]
    work: list[Item] = [_line("chunkwise", Ink(GREY), sizes, flops / 1e12)]
    runtime: list[Item] = [
        Band(sizes, time.lower * 1e3, time.upper * 1e3, look.colour),
        _line(short(gpu), look, sizes, time.upper * 1e3),
    ]
    for own in sweep.series():
        count = sweep.cost(own, tradeoff).flops
        rate.append(own.curve(own.sizes, count / own.ms / 1e9))
        work += [] if own.chunkwise else [own.curve(own.sizes, count / 1e12)]
        runtime += [own.curve(own.sizes, own.ms), Note(own.sizes[own.best], own.ms[own.best], "", ring=True)]
    if not sweep.gpu:
        runtime.append(Note(best, float(tradeoff.time(best).upper) * 1e3, f"L = {best:.0f}", ring=True))
    measured = [MEASURED] if sweep.gpu else []
    parts = {"rate": ("rate [TFLOP/s]", rate), "work": ("FLOPs [TFLOP]", work), "runtime": ("runtime [ms]", runtime)}
    return asked.figure(
        f"the rate rises with L, but the runtime is least at L = {best:.0f}",
        sweep.setting,
        panels=(
            Panel(title, _over_sizes(sizes), _from_zero(label, items), tuple(items))
            for title, (label, items) in parts.items()
        ),
        keys=(Key("least", RING, "hollow"), Key(f"bounds on {short(gpu)}", look, "area"), *measured),
        caption=[
            "Lines: nothing overlaps. Shaded: down to where all overlaps.",
            f"{COUNTED}, states in float32. {RATES if measured else ''}".strip(),
            sources([gpu]),
            *sweep.origin,
        ],
        rows=sweep.rows,
        height=1.35,
    )


def fig21(gate: Gate, pass_: Pass = "fw", rows: Rows | None = None) -> Figure:
    """Return the L of least runtime over d_hv (eq. 121), states in 4 and 2 bytes, a line a GPU."""
    del rows
    asked, d_hv = Asked(21, gate, pass_), np.geomspace(32, 2048, 100)
    gpus = [find(name) for name in ("paper-A100", "paper-H100", "H200", "paper-B200")]
    lines = {
        state_bytes: [
            _line(short(gpu), ink(gpu), d_hv, _optima(asked, d_hv, 0.5, ceilings=gpu.ceilings, state_bytes=state_bytes))
            for gpu in gpus
        ]
        for state_bytes in STATES
    }
    y = _from_zero("L of least runtime [tokens]", [curve for curves in lines.values() for curve in curves])
    return asked.figure(
        "the best L grows with the head dimension; states in bfloat16 ask for less",
        "d_qk = d_hv / 2",
        panels=(Panel(STATES[size], _over_dimensions(), y, tuple(curves)) for size, curves in lines.items()),
        caption=[f"{COUNTED}; {asked.equation(121)}.", sources(gpus)],
    )


def fig22(gate: Gate, pass_: Pass = "fw", rows: Rows | None = None) -> Figure:
    """Return the L of least runtime over a GPU's intensity (eq. 121), GPUs as upright lines, and the measured best."""
    asked, sweep = Asked(22, gate, pass_), Overlay.of(rows, gate, pass_)
    intensity = np.linspace(80, 400, 100)
    gpus = [find(name) for name in ("paper-V100", "paper-A100", "H200", "paper-B200", "paper-H100")]
    lines = []
    for d_hv, look in DIM_INKS.items():
        ceilings = [Ceilings(value, 1.0, "given", "") for value in intensity]
        best = [asked.tradeoff(d_hv / 2, d_hv, own).runtime_optimal for own in ceilings]
        lines.append(_line(f"d_hv = {d_hv}", look, intensity, best))
    # To the fused kernels L is no trade of bytes for FLOPs.
    points = [_fastest(own, sweep.gpu) for own in sweep.series() if sweep.gpu and own.chunkwise]
    measured = f"Points: the fastest L measured at d_hv = {sweep.problem.d_hv}."
    x = linear("intensity of the GPU [FLOP/byte]", 80, 400)
    y = _from_zero("L of least runtime [tokens]", [*lines, *points])
    return asked.figure(
        "the more FLOPs a GPU has for a byte, the larger the best L",
        "d_qk = d_hv / 2, states in float32",
        panels=(Panel("", x, y, (*intensity_rules(gpus, "x"), *lines, *points)),),
        keys=(Key(f"measured best, d_hv = {sweep.problem.d_hv}", Ink(GREY, "square")),) if points else (),
        caption=[f"{COUNTED}; {asked.equation(121)}.", *([measured] if points else []), sources(gpus), *sweep.origin],
        rows=sweep.rows,
        height=2.4,
    )


FIGURES: dict[str, Callable[..., Figure]] = {
    figure.__name__: figure for figure in (fig15, fig16, fig17, fig18, fig19, fig20, fig21, fig22)
}


def _line(label: str, look: Ink, x: Any, y: Any) -> Curve:
    return Curve(label, x, y, look, role="theory")


def _fastest(own: Series, gpu: Gpu) -> Curve:
    """Return the point of the fastest measured L, at the intensity of its GPU."""
    size, row = own.sizes[own.best], int(own.rows.index[own.best])
    label = f"{own.title}: {size:.0f}"
    return Curve(label, [gpu.ceilings.intensity], [size], own.ink, joined=False, rows=[row], name=own.name)


def _optima(asked: Asked, d_hv: np.ndarray, p_qk: float, which: str = "runtime_optimal", **options: Any) -> list[float]:
    """Return the best L at every d_hv; `options` as `Tradeoff` has them."""
    return [getattr(asked.tradeoff(p_qk * d, d, **options), which) for d in d_hv]


def _sizes(sweep: Overlay) -> np.ndarray:
    """Return the chunk sizes of theory's curves: 16 to 8192, and as far as rows go."""
    most = max([8192, *(sweep.rows["chunk_size"] if sweep.rows is not None else ())])
    return np.geomspace(min(16, sweep.problem.seq_len), min(most, sweep.problem.seq_len), 300)


def _with(measured: Gpu | None, *names: str) -> list[Gpu]:
    """Return the GPUs of these names, and the one that was measured where it is none of them."""
    gpus = [find(name) for name in names]
    return gpus if measured is None or short(measured) in map(short, gpus) else [*gpus, measured]


def _article(gpu: Gpu) -> str:
    name = short(gpu)
    return f"{'an' if name[0] in 'AHLRM' else 'a'} {name}"


def _heights(items: Sequence[Item]) -> list[float]:
    """Return what a y axis must hold: the values of curves and bands."""
    curves = [value for item in items if isinstance(item, Curve) for value in item.y]
    return [*curves, *(value for item in items if isinstance(item, Band) for value in (*item.lower, *item.upper))]


def _from_zero(label: str, items: Sequence[Item]) -> Axis:
    return linear(label, 0.0, 1.06 * max(_heights(items)))


def _over_sizes(sizes: np.ndarray) -> Axis:
    return powers(AXES["chunk_size"], float(sizes[0]), float(sizes[-1]))


def _over_dimensions() -> Axis:
    return powers(AXES["d_hv"], 32, 2048)
