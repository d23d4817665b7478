"""Rooflines: measured points under the roof of their GPU, and chunk sizes under those of GPUs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, cycle
from typing import Any, NamedTuple

import numpy as np

from tflabench.figures.axes import held, logarithmic
from tflabench.figures.captions import caption, provenance
from tflabench.figures.curves import POINT
from tflabench.figures.highlights import chosen, device_name
from tflabench.figures.looks import BLACK, GREEN, MARKERS, ORANGE, PURPLE, SKY, Look
from tflabench.figures.model import AxisName, Curve, Figure, Ink, Key, Panel, Rule
from tflabench.figures.quantities import RUNTIME, Rows, by_pass
from tflabench.figures.source import Source
from tflabench.problem import PASS_TITLES, Problem, dtype_bytes
from tflabench.theory.chunk_size import Tradeoff
from tflabench.theory.cost import GATES, Cost
from tflabench.theory.hardware import DATASHEET_DTYPES, Ceilings, Gpu, from_device_name
from tflabench.theory.roofline import attainable, compute_bound

ROOF = Ink("#404040")
ROUND = {"circle", "pentagon", "hexagon"}
WORDS = ("arithmetic intensity, modelled", "achieved rate")
NONE = "no point was measured"
# Vermilion and blue stay for measured kernels. Dashes tell lines apart in grey.
INKS = {
    "V100": Ink("#767676", dash="dot"),
    "A100": Ink(GREEN, dash="dashdot"),
    "H100": Ink(SKY),
    "H200": Ink(PURPLE, dash="dash"),
    "B200": Ink(ORANGE, dash="dashdot"),
}
OTHERS = tuple(Ink(BLACK, dash=dash) for dash in ("dash", "dot", "dashdot", "solid"))
APART = 0.17  # of a panel's width, between the names of chunk sizes above it
RATES = (("TFLOP/s", 1e12), ("GFLOP/s", 1e9), ("MFLOP/s", 1e6))
ALIKE = 1.05  # intensities within this factor share a name


def draw(stem: str, source: Source, rows: Rows) -> Figure:
    """Return rows of one dtype at (modelled intensity, modelled FLOPs over measured time), a panel a pass.

    The roof is the measured one of the last run that has one, else the datasheet's.
    """
    done = counted(rows)
    ceilings = roof_of(rows, source.runs)
    roof = [Roof(ceilings, f"{ceilings.provenance} roof", ROOF)] if ceilings else []
    rates = unit([*done["rate"], *(of_roof.ceilings.flops_per_s for of_roof in roof)])
    names = chosen(rows, RUNTIME, source.looks, source.highlight)
    points = {p: list(_points(done[done["pass"] == p], source, names, rates[1])) for p in by_pass(rows)}
    whole = under(roof, [*chain(*points.values())], unit=rates, names=WORDS)
    lines = whole.items[: len(roof)]
    panels = [
        replace(whole, title=PASS_TITLES[pass_], items=(*lines, *curves), empty="" if curves else NONE)
        for pass_, curves in points.items()
    ]
    return Figure(
        stem=stem,
        title=f"Roofline, {device_name(rows)}",
        setting=caption(rows),
        panels=tuple(panels),
        keys=(Key("others", POINT, "points"),)
        if any(curve.role == "context" for curve in chain(*points.values()))
        else (),
        caption=tuple(_notes(rows, ceilings, source, names)),
        rows=rows,
        height=1.7,
    )


class Roofline(NamedTuple):
    """Chunk sizes under the roofs of GPUs: what is drawn, and the cost at each L."""

    title: str
    gpus: Sequence[Gpu]
    costs: Mapping[int, Cost]

    @property
    def points(self) -> list[dict[str, Any]]:
        """Return what each GPU attains at each L, and what bounds it."""
        return [
            {
                "gpu": gpu.name,
                "chunk_size": size,
                "intensity": float(cost.intensity),
                "attainable_tflops": float(attainable(gpu.ceilings, cost.intensity)) / 1e12,
                "bound": "compute" if compute_bound(cost, gpu.ceilings) else "memory",
            }
            for gpu in self.gpus
            for size, cost in self.costs.items()
        ]

    @property
    def figure(self) -> Figure:
        """Return the rooflines (eq. 119), and the intensity of each L as an upright line."""
        sizes = f"L = {min(self.costs)}" + (f" to {max(self.costs)}" if len(self.costs) > 1 else "")
        intensities = {size: float(cost.intensity) for size, cost in self.costs.items()}
        return Figure(
            stem="roofline",
            title=f"Rooflines of {', '.join(dict.fromkeys(map(short, self.gpus)))}, and where {sizes} meets them",
            setting=self.title,
            panels=(under(roofs(self.gpus), [], intensities),),
            caption=(
                "Upright: the intensity of chunk sizes, where there is room. It meets a roof at the rate of this GPU.",
                "Left of the bend of a roof moving bounds a kernel, right of it computing.",
                sources(self.gpus),
            ),
            height=2.4,
        )


def of_chunk_sizes(
    gpus: Sequence[Gpu], sizes: Sequence[int], problem: Problem, gate: str, *,
    causal_factor: float = 0.5, state_dtype: str = "float32", counts: str = "published",
) -> Roofline:  # fmt: skip
    """Return chunk sizes under the roofs of GPUs, by the paper's counts.

    Args:
        problem: its dtype, pass and head dimensions count.
        gate: a name in `cost.GATES`.
        counts: "published" or "exact".
    """
    state_bytes = dtype_bytes("state_dtype", state_dtype)
    tradeoff = Tradeoff(problem, gate, gpus[0].ceilings, causal_factor, state_bytes, counts)  # type: ignore[arg-type]
    costs = {size: tradeoff.cost(size) for size in sizes}
    title = (
        f"{GATES[gate].title} {PASS_TITLES[problem.pass_]}: d_qk {problem.d_qk}, d_hv {problem.d_hv}, "
        f"{problem.dtype}, states {state_dtype}, F_causal {causal_factor:g}"
    )
    return Roofline(title, gpus, costs)


def counted(rows: Rows) -> Rows:
    """Return the measured rows with modelled FLOPs and bytes, their `intensity`, and their `rate` in FLOP/s."""
    done = rows[(rows["status"] == "ok") & (rows[["model_bytes", "model_flops", "ms_median"]] > 0).all(axis=1)]
    rate = done["model_flops"] / done["ms_median"] * 1e3
    return done.assign(intensity=done["model_flops"] / done["model_bytes"], rate=rate)


def roof_of(rows: Rows, runs: Mapping[str, Any]) -> Ceilings | None:
    """Return the ceilings of rows of one dtype: what their last run measured, else the datasheet's, else None."""
    dtype = rows["dtype"].iloc[0]
    for run in reversed(list(dict.fromkeys(rows.sort_values("started_at")["run_id"]))):
        if stored := runs.get(run, {}).get("ceilings", {}).get(dtype):
            return Ceilings(**stored)
    gpu = from_device_name(rows["device"].iloc[0])
    return gpu.ceilings if gpu and dtype in DATASHEET_DTYPES else None


def _points(rows: Rows, source: Source, names: Sequence[str], size: float) -> Iterator[Curve]:
    """Yield the points of each implementation: the background first, the best last."""
    points = {str(name): group for name, group in rows.sort_values("rate").groupby("implementation", sort=False)}
    inks = inks_of_points(names, source.looks)
    for name in [*(name for name in source.looks if name not in names), *names[::-1]]:
        if name in points:
            group = points[name]
            look = source.looks[name]
            ink = inks.get(name, POINT)
            label, role = (look.title, "highlight") if name in names else ("", "context")
            x, y = group["intensity"].to_numpy(float), group["rate"].to_numpy(float) / size
            yield Curve(label, x, y, ink, role, joined=False, rows=[int(n) for n in group.index], name=name)


def inks_of_points(names: Sequence[str], looks: Mapping[str, Look]) -> dict[str, Ink]:
    """Return the ink of each implementation where no dashes tell them apart: no marker twice in one colour.

    Of round markers one colour has one: they are too small to tell a circle from a hexagon.
    """
    inks: dict[str, Ink] = {}
    for name in names:
        ink = looks[name].ink
        taken = {used.marker for used in inks.values() if used.colour == ink.colour}
        taken |= ROUND if taken & ROUND else set()
        free = [marker for marker in (ink.marker, *MARKERS) if marker not in taken]
        inks[name] = Ink(ink.colour, free[0])
    return inks


def _notes(rows: Rows, ceilings: Ceilings | None, source: Source, names: Sequence[str]) -> Iterator[str]:
    present = set(rows["implementation"])
    yield f"Highlighted: {'; '.join(source.looks[name].title for name in names) or 'nothing'}."
    if grey := [look.title for name, look in source.looks.items() if name in present and name not in names]:
        yield f"Grey: {'; '.join(grey)}. --highlight NAMES names others."
    if ceilings:
        yield (
            f"Roof, {ceilings.provenance}: {rate(ceilings.flops_per_s)}, {ceilings.bytes_per_s / 1e9:,.4g} GB/s; "
            f"{ceilings.source}. Left of its corner, at {ceilings.intensity:.0f} FLOP/byte, memory is the limit."
        )
    else:
        yield "No roof: the ceilings of this device are not known; tflabench calibrate measures them."
    yield "Rate: modelled FLOPs over the measured median; intensity: modelled FLOPs over modelled bytes."
    failed = rows.loc[rows["status"] != "ok", "status"].value_counts().sort_index()
    if len(failed):
        yield f"Not measured: {', '.join(f'{count} {status}' for status, count in failed.items())}."
    yield provenance(rows, source.runs)


def short(gpu: Gpu) -> str:
    """Return a GPU's name without its form factor."""
    return gpu.name.removeprefix("paper-").split()[0]


def ink(gpu: Gpu) -> Ink:
    """Return the line of a GPU; black for one that the paper does not name."""
    return INKS.get(short(gpu), OTHERS[0])


class Roof(NamedTuple):
    """The roof min(beta I, alpha) of a chip (eq. 119), and the words and line that it is drawn with."""

    ceilings: Ceilings
    label: str
    ink: Ink


def roofs(gpus: Sequence[Gpu]) -> list[Roof]:
    """Return the roof of each GPU, named by rate and bandwidth; GPUs of one name have lines of their own."""
    inks, by_name = cycle(OTHERS), {}
    for gpu in gpus:
        name = short(gpu) if short(gpu) not in by_name else gpu.name
        label = f"{name}: {rate(gpu.ceilings.flops_per_s)}, {gpu.ceilings.bytes_per_s / 1e12:.3g} TB/s"
        by_name[name] = Roof(gpu.ceilings, label, INKS.get(name) or next(inks))
    return list(by_name.values())


def under(
    roofs: Sequence[Roof],
    points: Sequence[Curve],
    sizes: Mapping[int, float] = {},
    unit: tuple[str, float] = RATES[0],
    names: tuple[str, str] = ("arithmetic intensity", "rate"),
) -> Panel:
    """Return a roofline: points at FLOP/byte and at a rate in `unit`, and the intensity of chunk sizes upright.

    Args:
        unit: name and size in FLOP/s, as RATES has them.
        names: what intensities and rates are called.
    """
    marks = [*sizes.values(), *(roof.ceilings.intensity for roof in roofs), *(x for curve in points for x in curve.x)]
    x = logarithmic(f"{names[0]} [FLOP/byte]", min(marks or [1.0]) / 1.5, max(marks or [1.0]) * 1.5)
    lines = []
    for roof in roofs:
        corners = np.array([x.limits[0], roof.ceilings.intensity, x.limits[1]])
        lines.append(Curve(roof.label, corners, attainable(roof.ceilings, corners) / unit[1], roof.ink, "theory"))
    y = logarithmic(f"{names[1]} [{unit[0]}]", *(held([*lines, *points]) or [1.0]))
    return Panel("", x, y, (*size_rules(sizes, x.limits), *lines, *points))


def unit(rates: Iterable[float]) -> tuple[str, float]:
    """Return the largest unit that the highest rate reaches, and its size in FLOP/s."""
    top = max(rates, default=0.0)
    return next((unit for unit in RATES if top >= unit[1]), RATES[-1])


def rate(flops_per_s: float) -> str:
    """Return a rate in FLOP/s with its unit."""
    return f"{flops_per_s / 1e12:,.4g} TFLOP/s" if flops_per_s >= 1e12 else f"{flops_per_s / 1e9:,.4g} GFLOP/s"


def intensity_rules(gpus: Sequence[Gpu], side: AxisName) -> Iterator[Rule]:
    """Yield a rule at the intensity of each GPU; those within 5% of the one below share its name."""
    groups: list[list[Gpu]] = []
    for gpu in sorted(gpus, key=lambda gpu: gpu.ceilings.intensity):
        if groups and gpu.ceilings.intensity < ALIKE * groups[-1][0].ceilings.intensity:
            groups[-1].append(gpu)
        else:
            groups.append([gpu])
    for group in groups:
        name = ", ".join(map(short, group))
        for gpu in group:
            label = f"{name} {group[0].ceilings.intensity:.0f}" if side == "y" else name
            yield Rule(side, gpu.ceilings.intensity, label if gpu is group[0] else "")


def size_rules(intensities: Mapping[int, float], limits: tuple[float, float]) -> Iterator[Rule]:
    """Yield an upright rule at the intensity of each chunk size on a logarithmic axis, where there is room for one.

    It is named where there is room for a name.
    """
    named = drawn = -math.inf
    for size, intensity in sorted(intensities.items()):
        place = math.log(intensity / limits[0]) / math.log(limits[1] / limits[0])
        if place >= named + APART:
            named = drawn = place
            yield Rule("x", intensity, f"L = {size}")
        elif place >= drawn + APART / 4:
            drawn = place
            yield Rule("x", intensity)


def sources(gpus: Sequence[Gpu]) -> str:
    """Return the GPUs by the document that their ceilings come from."""
    by_source: dict[str, list[str]] = {}
    for gpu in gpus:
        by_source.setdefault(f"{gpu.ceilings.provenance}, {gpu.ceilings.source}", []).append(short(gpu))
    return "Ceilings: " + "; ".join(f"{', '.join(names)}: {source}" for source, names in by_source.items()) + "."
