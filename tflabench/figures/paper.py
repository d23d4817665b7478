"""Figures 15 to 22 of the paper, for any gate, forward and with the backward: theory, measured rows laid over.

    FIGURES["fig17"]("sig", "fw", rows) -> Figure        rows: as `load.read_rows` gives them, or None

Every figure takes a gate ("exp", "sig" or "gla"), a pass ("fw" or "fwbw") and rows, of which it draws those of one
problem: see `MeasuredSweep`. Counts are the published ones (Table 17), of GLA the sums of Table 8. GPUs are those of
the paper's Table 18, and the H200 of NVIDIA's datasheet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any, NamedTuple

import numpy as np

from tflabench.figures.axes import held, linear, logarithmic, powers, upwards
from tflabench.figures.looks import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION, looks
from tflabench.figures.model import Axis, Band, Circle, Curve, Figure, Ink, Item, Key, Numbers, Panel, Rule
from tflabench.figures.quantities import AXES, Rows, days, drawable
from tflabench.figures.roofline import ink, intensity_rules, roofs, short, sources, under
from tflabench.implementations import registry
from tflabench.kernels.scalar.plan.hopper_shapes import TILE
from tflabench.problem import PASS_TITLES, Pass, Problem
from tflabench.theory import cost, fused
from tflabench.theory.chunk_size import Tradeoff
from tflabench.theory.cost import Cost, Formulation, Gate
from tflabench.theory.hardware import Ceilings, Gpu, described, find
from tflabench.theory.launches import Modelled

PAPER = Problem(batch=8, heads=8, seq_len=8192, d_qk=256, d_hv=512)  # the 7B size of Figs. 17, 19 and 20
SIZE = ["batch", "heads", "seq_len", "d_qk", "d_hv"]
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
LEAST = Ink(GREY, "circle")
MISSING = "The rows to be laid over hold none of these kernels, gate and pass."
MEASURED = Key("measured", Ink(GREY, "square"))
RATES = "Measured rates: modelled FLOPs over measured time."
BACKWARD = "The paper counts forward passes. The backward is derived from its section B.3 (tflabench.theory.cost)."
DIMENSIONS = np.geomspace(32, 2048, 100)
OVER_DIMENSIONS = powers(AXES["d_hv"], 32, 2048)


class MeasuredLine(NamedTuple):
    """The rows of one implementation, by chunk size."""

    name: str
    title: str
    ink: Ink
    rows: Rows

    @property
    def sizes(self) -> np.ndarray:
        """Return the chunk sizes of the rows."""
        return self.rows["chunk_size"].to_numpy(float)

    @property
    def ms(self) -> np.ndarray:
        """Return the times of the rows in ms."""
        return self.rows["ms_median"].to_numpy(float)

    @property
    def best(self) -> int:
        """Return the index of the fastest row."""
        return int(np.argmin(self.ms))

    @property
    def chunkwise(self) -> bool:
        """Return whether the implementation has chunks."""
        return self.rows["formulation"].iloc[0] == "chunkwise"

    def curve(self, x: Numbers, y: Numbers) -> Curve:
        """Return the line through the values of the rows."""
        return Curve(self.title, x, y, self.ink, rows=[int(n) for n in self.rows.index], name=self.name)


@dataclass(frozen=True)
class MeasuredSweep:
    """Measured rows over the chunk size at one problem on one GPU.

    Attributes:
        problem: of the rows, without chunk size; the paper's where there are no rows.
        rows: of chunkwise and fused kernels of one gate and pass; None where there are none.
        gpu: that they ran on; None without rows.
        given: whether there were rows to choose from.
    """

    problem: Problem
    rows: Rows | None = None
    gpu: Gpu | None = None
    given: bool = False

    @classmethod
    def of(cls, rows: Rows | None, gate: Gate, pass_: Pass) -> MeasuredSweep:
        """Return the rows of the device and problem measured at the most chunk sizes; the paper's among equals.

        Plain PyTorch is left out: it is not the algorithm that is counted. Of several rows at one chunk size the last
        measured counts.
        """
        problem = PAPER.with_(pass_=pass_)
        if rows is None:
            return cls(problem)
        table: Rows = drawable(rows)
        counted = np.array([_counts(name, gate) for name in table["implementation"]], dtype=bool)
        table = table[(table["status"] == "ok") & (table["pass"] == pass_) & table["chunk_size"].notna() & counted]
        if table.empty:
            return cls(problem, given=True)

        def rank(part: Rows) -> tuple[int, bool, float]:
            of_the_paper = all(part[column].iloc[0] == getattr(PAPER, column) for column in SIZE)
            return part["chunk_size"].nunique(), of_the_paper, part["ms_median"].sum()

        part = max((part for _, part in table.groupby(["device", *SIZE, "dtype"])), key=rank)
        part = part.sort_values("started_at").drop_duplicates(["implementation", "chunk_size"], keep="last")
        first = part.iloc[0]
        problem = Problem(*(int(first[column]) for column in SIZE), dtype=first["dtype"], pass_=pass_)
        return cls(problem, part.sort_values("chunk_size"), described(first["device"], first["dtype"]), True)

    def lines(self) -> list[MeasuredLine]:
        """Return the rows by implementation, without the gate in titles: a figure has one."""
        if self.rows is None:
            return []
        gate = f"mLSTM{self.rows['gate'].iloc[0]} "  # of GLA there is one kernel
        return [
            MeasuredLine(name, look.title.replace(gate, ""), look.ink, self.rows[self.rows["implementation"] == name])
            for name, look in looks(self.rows).items()
        ]

    def cost(self, line: MeasuredLine, tradeoff: Tradeoff) -> Cost:
        """Return FLOPs and bytes of rows, each counted as what it runs: chunkwise, or fused."""
        if line.chunkwise:
            return tradeoff.cost(line.sizes)
        counts = [fused.cost(self.problem, Modelled("fused", tradeoff.gate), int(size)) for size in line.sizes]
        return Cost(np.array([count.flops for count in counts]), np.array([count.bytes for count in counts]))

    @property
    def setting(self) -> str:
        """Return the problem in words."""
        p = self.problem
        heads = f"{p.heads} head{'s' if p.heads > 1 else ''}"
        return f"T = {p.seq_len}, batch {p.batch}, {heads}, d_qk = {p.d_qk}, d_hv = {p.d_hv}, {p.dtype}"

    @property
    def origin(self) -> list[str]:
        """Return where the rows come from, or that there are none, as lines of a caption."""
        if self.rows is None:
            return [MISSING] if self.given else []
        return [f"Measured on {self.rows['device'].iloc[0]}, {days(self.rows)}."]


def _counts(name: str, gate: Gate) -> bool:
    """Return whether an implementation is a kernel of this gate that the model counts."""
    impl = registry.find(name)
    if impl is None:
        return False
    counted = bool(impl.modelled) if cost.GATES[gate].modelled else impl.chunked
    return impl.computes == gate and counted


@dataclass(frozen=True)
class FigureRequest:
    """A figure of the paper for one gate and pass, and the rows that may be laid over."""

    number: int
    gate: Gate
    pass_: Pass
    rows: Rows | None

    @cached_property
    def sweep(self) -> MeasuredSweep:
        """Return the rows that are laid over."""
        return MeasuredSweep.of(self.rows, self.gate, self.pass_)

    def figure(
        self, statement: str, panels: Iterable[Panel], caption: Iterable[str], gpus: Sequence[Gpu] = (), **rest: Any
    ) -> Figure:
        """Return a figure whose title says `statement` of this gate and pass; `rest` as `Figure` has it.

        Args:
            gpus: those in it, whose sources the caption names.
        """
        laid_over = {"setting": self.sweep.setting, "rows": self.sweep.rows} if "sweep" in vars(self) else {}
        return Figure(
            f"fig{self.number}-{self.gate}-{self.pass_}",
            f"{cost.GATES[self.gate].title} {PASS_TITLES[self.pass_]}, theory: {statement}",
            panels=tuple(panels),
            caption=(
                f"Fig. {self.number} of the paper, which is of sig's forward.",
                *caption,
                *([sources(gpus)] if gpus else []),
                *(self.sweep.origin if laid_over else []),
                *([BACKWARD] if self.pass_ == "fwbw" else []),
            ),
            **laid_over | rest,
        )

    @property
    def counted(self) -> str:
        """Return the sentence of the caption that says what is counted."""
        return f"Modelled: {cost.GATES[self.gate].note}, F_causal = 0.5 where nothing else is said"

    @property
    def has_fused(self) -> bool:
        """Return whether there are fused kernels of this gate."""
        return cost.GATES[self.gate].modelled

    def tradeoff(self, d_qk: float, d_hv: float, ceilings: Ceilings | None = None, **options: Any) -> Tradeoff:
        """Return the model of one head; head dimensions may be real numbers, as curves have them."""
        problem = Problem(1, 1, PAPER.seq_len, d_qk, d_hv, pass_=self.pass_)  # type: ignore[arg-type]
        return Tradeoff(problem, self.gate, ceilings or find("paper-H100").ceilings, **options)


FIGURES: dict[str, Callable[..., Figure]] = {}


def _of_the_paper(drawn: Callable[[FigureRequest], Figure]) -> Callable[..., Figure]:
    """Return a figure as a function of gate, pass and rows, and list it in FIGURES."""

    @wraps(drawn)
    def figure(gate: Gate, pass_: Pass = "fw", rows: Rows | None = None) -> Figure:
        return drawn(FigureRequest(int(drawn.__name__.removeprefix("fig")), gate, pass_, rows))

    FIGURES[drawn.__name__] = figure
    return figure


@_of_the_paper
def fig15(variant: FigureRequest) -> Figure:
    """Return FLOPs of one head and sequence over L, for three head sizes and F_causal 0.5, 0.66 and 1."""
    panels = [_flops_panel(variant, d_qk, d_hv) for d_qk, d_hv in ((256, 512), (128, 256), (64, 128))]
    least = [item.x for panel in panels for item in panel.items if isinstance(item, Circle)]
    return variant.figure(
        f"FLOPs are fewest at an L of {min(least):.0f} to {max(least):.0f}",
        setting="T = 8192, one head and sequence",
        panels=panels,
        keys=(Key("fewest FLOPs", LEAST, "hollow"), Key("parallel form", Ink(GREY, "diamond"), "hollow")),
        caption=[
            f"{variant.counted}. The parallel form has one chunk of all T steps, the recurrent form T.",
            *([f"Fused: tflabench.theory.fused, tiles of {TILE} steps at every L."] if variant.has_fused else []),
        ],
    )


def _flops_panel(variant: FigureRequest, d_qk: int, d_hv: int) -> Panel:
    T, sizes = PAPER.seq_len, np.geomspace(1, PAPER.seq_len, 300)

    def gflops(form: Formulation, chunk_size: Any, factor: float = 0.5) -> Any:
        count = cost.flop_polynomial(form, variant.gate, d_qk, d_hv, causal_factor=factor, pass_=variant.pass_)
        return count(chunk_size) * (T / chunk_size if form == "chunkwise" else 1) / 1e9

    lines: list[Item] = []
    rings = []
    for factor, line in CAUSAL_INKS.items():
        least = variant.tradeoff(d_qk, d_hv, causal_factor=factor).flop_optimal
        lines += [
            Curve(f"F_causal = {factor:g}", sizes, gflops("chunkwise", sizes, factor), line, "theory"),
            Curve("", [T], [gflops("parallel", T, factor)], Ink(line.colour, "diamond"), joined=False, hollow=[True]),
        ]
        rings.append(Circle(least, gflops("chunkwise", least, factor), line.colour))
    rules = [Rule("y", gflops("recurrent", T), "recurrent form", Ink("#767676", dash="dash"))]
    if variant.has_fused:
        tiled = (
            fused.cost(Problem(1, 1, T, d_qk, d_hv, pass_=variant.pass_), Modelled("fused", variant.gate), T).flops
            / 1e9
        )
        rules.append(Rule("y", tiled, "fused kernels", FUSED))
    y = logarithmic("FLOPs [GFLOP]", *held(lines), *(rule.value for rule in rules))
    fewest = [ring.x for ring in rings]
    title = f"d_qk = {d_qk}, d_hv = {d_hv}: fewest at L = {min(fewest):.0f} to {max(fewest):.0f}"
    return Panel(title, powers(AXES["chunk_size"], 1, T), y, (*lines, *rings, *rules))


@_of_the_paper
def fig16(variant: FigureRequest) -> Figure:
    """Return the L of fewest FLOPs over d_hv (eq. 111), for d_qk half of d_hv and equal to it."""
    panels = {}
    for p_qk, factor in ((0.5, "0.5 "), (1.0, "")):
        models = {f: [variant.tradeoff(p_qk * d, d, causal_factor=f) for d in DIMENSIONS] for f in CAUSAL_INKS}
        panels[f"d_qk = {factor}d_hv"] = [
            Curve(f"F_causal = {f:g}", DIMENSIONS, [model.flop_optimal for model in models[f]], line, "theory")
            for f, line in CAUSAL_INKS.items()
        ]
    shared = _panels(panels, OVER_DIMENSIONS, _from_zero("L of fewest FLOPs [tokens]", *panels.values()))
    return variant.figure(
        f"the L of fewest FLOPs stays below {shared[0].y.limits[1]:.0f}",
        setting="eq. 111",
        panels=shared,
        caption=[f"{variant.counted}."],
    )


@_of_the_paper
def fig17(variant: FigureRequest) -> Figure:
    """Return theoretical runtime over L, a line a GPU, and measured rows with the bounds of their GPU."""
    sweep, gate = variant.sweep, variant.gate
    gpus = _with(sweep.gpu, "paper-A100", "paper-H100", "H200", "paper-B200")
    home = next((gpu for gpu in gpus if sweep.gpu and short(gpu) == short(sweep.gpu)), find("paper-H100"))
    sizes, measured = _sizes(sweep), sweep.lines()
    items = [item for gpu in gpus for item in _runtime(sweep, Tradeoff(sweep.problem, gate, gpu.ceilings), gpu, sizes)]
    if variant.has_fused and short(home) in FUSED_ON:
        steps = [float(size) for k in range(6, 32) if (size := 2**k) <= sizes[-1]]
        kernel, problems = Modelled("fused", gate), [sweep.problem.with_(chunk_size=int(size)) for size in steps]
        walks = [fused.runtime(problem, kernel, home) * 1e3 for problem in problems]
        items.append(Curve(f"fused, {short(home)}", steps, walks, FUSED, "theory"))
    items += [line.curve(line.sizes, line.ms) for line in measured]
    best = Tradeoff(sweep.problem, gate, home.ceilings).runtime_optimal
    statement = f"{short(home)} takes the least time at L\u00a0=\u00a0{best:.0f}"
    keys = [Key("least, at the L beside", LEAST, "hollow")]
    if measured:
        chunkwise = [line for line in measured if line.chunkwise]
        fastest = min(chunkwise or measured, key=lambda line: line.ms.min())
        kind = "chunkwise" if chunkwise else "fused"
        statement += f", the best measured {kind} kernel at {fastest.sizes[fastest.best]:.0f}"
        keys = [Key("least", LEAST, "hollow"), Key(f"bounds on {short(home)}", ink(home), "area"), MEASURED]
    return variant.figure(
        statement,
        [Panel("", _over_sizes(sizes), upwards("runtime [ms]", held(items)), tuple(items))],
        keys=tuple(keys),
        caption=[
            "Lines: nothing overlaps (eq. 116). Rings: the least, eq. 121.",
            *(["Shaded: down to where all overlaps."] if measured else []),
            *(
                ["Dotted: our fused kernels, which hold states on chip and take L as the length of segments."]
                if variant.has_fused
                else []
            ),
            f"{variant.counted}, states in float32.",
        ],
        gpus=gpus,
        height=2.5,
    )


def _runtime(sweep: MeasuredSweep, tradeoff: Tradeoff, gpu: Gpu, sizes: np.ndarray) -> Iterator[Item]:
    """Yield the upper time of a GPU with a ring at its least, and the bounds of the one that was measured."""
    time, best, look = tradeoff.time(sizes), tradeoff.runtime_optimal, ink(gpu)
    home = sweep.gpu and short(sweep.gpu) == short(gpu)
    role = "context" if sweep.gpu and not home else "theory"
    yield Curve(f"{short(gpu)}: L = {best:.0f}", sizes, time.upper * 1e3, look, role)
    yield Circle(best, float(tradeoff.time(best).upper) * 1e3, look.colour)
    if home:
        yield Band(sizes, time.lower * 1e3, time.upper * 1e3, look.colour)


@_of_the_paper
def fig18(variant: FigureRequest) -> Figure:
    """Return arithmetic intensity over L for several head dimensions, states in 4 and 2 bytes, and that of GPUs."""
    sizes = np.geomspace(16, 8192, 200)
    gpus = [find(name) for name in ("paper-V100", "paper-A100", "paper-H100", "H200", "paper-B200")]
    panels: dict[str, list[Item]] = {title: [*intensity_rules(gpus, "y")] for title in STATES.values()}
    for state_bytes, title in STATES.items():
        for d_hv, line in DIM_INKS.items():
            cost = variant.tradeoff(d_hv / 2, d_hv, state_bytes=state_bytes).cost(sizes)
            panels[title].append(Curve(f"d_hv = {d_hv}", sizes, cost.intensity, line, "theory"))
    y = upwards("intensity [FLOP/byte]", (value for items in panels.values() for value in held(items)))
    return variant.figure(
        "intensity grows with L and passes that of every GPU",
        setting="d_qk = d_hv / 2; dotted: intensity of GPUs",
        panels=_panels(panels, _over_sizes(sizes), y),
        caption=[
            "Above a GPU's line a kernel is bound by computing, below it by moving (eqs. 117-118).",
            f"{variant.counted}.",
        ],
        gpus=gpus,
        height=1.75,
    )


@_of_the_paper
def fig19(variant: FigureRequest) -> Figure:
    """Return rooflines, the intensity of each L as an upright line, and on it what was measured at that L."""
    sweep = variant.sweep
    gpus = _with(sweep.gpu, "paper-V100", "paper-A100", "paper-H100")
    tradeoff = Tradeoff(sweep.problem, variant.gate, gpus[-1].ceilings)
    points = []
    for line in sweep.lines():
        at = sweep.cost(line, tradeoff)
        points.append(line.curve(at.intensity, at.flops / line.ms / 1e9))
    return variant.figure(
        f"from L = {tradeoff.overlapped_optimal:.0f} on computing bounds {short(gpus[-1])}",
        [under(roofs(gpus), points, {2**n: float(tradeoff.cost(2**n).intensity) for n in range(6, 13)})],
        keys=(Key("roof", Ink(GREY)), MEASURED) if points else (),
        caption=[
            "Upright: the intensity of chunk sizes. It meets a roof at the rate that this GPU can reach (eq. 119).",
            f"{variant.counted}, states in float32. {RATES if points else ''}".strip(),
        ],
        gpus=gpus,
        height=2.4,
    )


@_of_the_paper
def fig20(variant: FigureRequest) -> Figure:
    """Return FLOP/s, FLOPs and runtime over L: the rate grows because the work does, and the runtime does not fall."""
    sweep = variant.sweep
    gpu = sweep.gpu or find("paper-H100")
    tradeoff, sizes = Tradeoff(sweep.problem, variant.gate, gpu.ceilings), _sizes(sweep)
    flops, time = tradeoff.cost(sizes).flops, tradeoff.time(sizes)
    look, best = ink(gpu), tradeoff.runtime_optimal
    lower, upper = time.lower * 1e3, time.upper * 1e3
    rate, work, runtime = "rate [TFLOP/s]", "FLOPs [TFLOP]", "runtime [ms]"
    items: dict[str, list[Item]] = {
        rate: [Band(sizes, flops / upper / 1e9, flops / lower / 1e9, look.colour)],
        work: [Curve("chunkwise", sizes, flops / 1e12, Ink(GREY), "theory")],
        runtime: [Band(sizes, lower, upper, look.colour)],
    }
    items[rate].append(Curve(short(gpu), sizes, flops / upper / 1e9, look, "theory"))
    items[runtime].append(Curve(short(gpu), sizes, upper, look, "theory"))
    for line in sweep.lines():
        count = sweep.cost(line, tradeoff).flops
        items[rate].append(line.curve(line.sizes, count / line.ms / 1e9))
        items[work] += [] if line.chunkwise else [line.curve(line.sizes, count / 1e12)]
        items[runtime].append(line.curve(line.sizes, line.ms))
        items[runtime].append(Circle(line.sizes[line.best], line.ms[line.best]))
    if not sweep.gpu:
        items[runtime].append(Circle(best, float(tradeoff.time(best).upper) * 1e3))
    measured = [MEASURED] if sweep.gpu else []
    return variant.figure(
        f"the rate rises with L, but the runtime is least at L = {best:.0f}",
        (
            Panel(title, _over_sizes(sizes), _from_zero(label, items[label]), tuple(items[label]))
            for title, label in (("rate", rate), ("work", work), ("runtime", runtime))
        ),
        keys=(Key("least", LEAST, "hollow"), Key(f"bounds on {short(gpu)}", look, "area"), *measured),
        caption=[
            "Lines: nothing overlaps. Shaded: down to where all overlaps.",
            f"{variant.counted}, states in float32. {RATES if measured else ''}".strip(),
        ],
        gpus=[gpu],
        height=1.35,
    )


@_of_the_paper
def fig21(variant: FigureRequest) -> Figure:
    """Return the L of least runtime over d_hv (eq. 121), states in 4 and 2 bytes, a line a GPU."""
    gpus = [find(name) for name in ("paper-A100", "paper-H100", "H200", "paper-B200")]
    panels: dict[str, list[Item]] = {title: [] for title in STATES.values()}
    for state_bytes, title in STATES.items():
        for gpu in gpus:
            models = [variant.tradeoff(0.5 * d, d, gpu.ceilings, state_bytes=state_bytes) for d in DIMENSIONS]
            best = [model.runtime_optimal for model in models]
            panels[title].append(Curve(short(gpu), DIMENSIONS, best, ink(gpu), "theory"))
    return variant.figure(
        "the best L grows with the head dimension; states in bfloat16 ask for less",
        setting="d_qk = d_hv / 2",
        panels=_panels(panels, OVER_DIMENSIONS, _from_zero("L of least runtime [tokens]", *panels.values())),
        caption=[f"{variant.counted}; eq. 121."],
        gpus=gpus,
    )


@_of_the_paper
def fig22(variant: FigureRequest) -> Figure:
    """Return the L of least runtime over a GPU's intensity (eq. 121), GPUs as upright lines, and the measured best."""
    sweep, intensity = variant.sweep, np.linspace(80, 400, 100)
    gpus = [find(name) for name in ("paper-V100", "paper-A100", "H200", "paper-B200", "paper-H100")]
    items: list[Item] = []
    for d_hv, look in DIM_INKS.items():
        ceilings = [Ceilings(value, 1.0, "given", "") for value in intensity]
        best = [variant.tradeoff(d_hv / 2, d_hv, of_gpu).runtime_optimal for of_gpu in ceilings]
        items.append(Curve(f"d_hv = {d_hv}", intensity, best, look, "theory"))
    # To the fused kernels L is no trade of bytes for FLOPs.
    points = [_fastest(line, sweep.gpu) for line in sweep.lines() if sweep.gpu and line.chunkwise]
    items += points
    x, y = linear("intensity of the GPU [FLOP/byte]", 80, 400), _from_zero("L of least runtime [tokens]", items)
    measured = f"Points: the fastest L measured at d_hv = {sweep.problem.d_hv}."
    return variant.figure(
        "the more FLOPs a GPU has for a byte, the larger the best L",
        [Panel("", x, y, (*intensity_rules(gpus, "x"), *items))],
        setting="d_qk = d_hv / 2, states in float32",
        keys=(Key(f"measured best, d_hv = {sweep.problem.d_hv}", Ink(GREY, "square")),) if points else (),
        caption=[f"{variant.counted}; eq. 121.", *([measured] if points else [])],
        gpus=gpus,
        height=2.4,
    )


def _fastest(line: MeasuredLine, gpu: Gpu) -> Curve:
    """Return the point of the fastest measured L, at the intensity of its GPU."""
    size, row = line.sizes[line.best], int(line.rows.index[line.best])
    label = f"{line.title}: {size:.0f}"
    return Curve(label, [gpu.ceilings.intensity], [size], line.ink, joined=False, rows=[row], name=line.name)


def _sizes(sweep: MeasuredSweep) -> np.ndarray:
    """Return the chunk sizes of theory's curves: 16 to 8192, and as far as rows go."""
    most = max([8192, *(sweep.rows["chunk_size"] if sweep.rows is not None else ())])
    return np.geomspace(min(16, sweep.problem.seq_len), min(most, sweep.problem.seq_len), 300)


def _with(measured: Gpu | None, *names: str) -> list[Gpu]:
    """Return the GPUs of these names, and the one that was measured where it is none of them."""
    gpus = [find(name) for name in names]
    return gpus if measured is None or short(measured) in map(short, gpus) else [*gpus, measured]


def _panels(items: Mapping[str, Sequence[Item]], x: Axis, y: Axis) -> list[Panel]:
    """Return panels that share their axes, by title."""
    return [Panel(title, x, y, tuple(drawn)) for title, drawn in items.items()]


def _from_zero(label: str, *items: Sequence[Item]) -> Axis:
    return linear(label, 0.0, 1.06 * max(value for drawn in items for value in held(drawn)))


def _over_sizes(sizes: np.ndarray) -> Axis:
    return powers(AXES["chunk_size"], float(sizes[0]), float(sizes[-1]))
