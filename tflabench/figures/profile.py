"""A profiled point: its time by kernel, and its measured and modelled arithmetic intensity on the roofline."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import cycle
from typing import TYPE_CHECKING

from tflabench.figures.axes import labels, linear
from tflabench.figures.looks import BLACK, BLUE, GREEN, GREY, MARKERS, ORANGE, PURPLE, SKY, VERMILION
from tflabench.figures.model import Bars, Curve, Figure, Ink, Panel
from tflabench.figures.roofline import Roof, roof_name, under, unit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tflabench.bench.profile.point import Profile

PARTS = {"cuda": "GPU kernel", "cpu": "operator"}  # what a call consists of, by kind of device
MOST_BARS = 9  # parts shown; what is left is summed
LONGEST_NAME = 26  # characters
TORCH_KERNEL = re.compile(r"\b(\w*[Ff]unctor\w*|\w+_kernel_(?:cuda|impl))\b")
COLOURS = (BLUE, GREEN, ORANGE, PURPLE, SKY, BLACK)  # of kernels: vermilion is the whole call
MOST_POINTS = 5  # kernels on the roofline, the longest
WORTH_A_POINT = 0.02  # of a call's time, from which a kernel is drawn on the roofline
ROOF, CALL = Ink("#404040"), Ink(VERMILION, "diamond")


def draw(profile: Profile, setting: str, sources: Sequence[str]) -> Figure:
    """Return the milliseconds of each GPU kernel (CPU: operator) as bars, and below them the roofline.

    On the roofline is the call by the model (modelled FLOPs over time at the modelled intensity). Where there are
    counters, it is there as measured too (counted FLOPs over time at counted FLOPs over DRAM bytes), with its longest
    kernels in the colours of their bars.

    Args:
        setting: what was profiled, in words.
        sources: lines of the caption.
    """
    rates = unit([profile.ceilings.flops_per_s])
    parts, points = shortened(profile), _points(profile, rates[1])
    kind, (longest, ms) = PARTS[profile.machine.kind], parts[0]
    share = ms / sum(value for _, value in parts)
    counters = [] if profile.counted else [f"No counters: {profile.why_not_counted}."]
    return Figure(
        stem="profile",
        title=f"{profile.ms:.3g} ms a call; {short(longest)} takes {share:.0%} of the time by {kind}",
        setting=setting,
        panels=(_bars(parts, points, kind), _roofline(profile, points, rates)),
        caption=(
            f"Bars: milliseconds of each {kind}, and its share of their sum.",
            "The call, modelled: modelled FLOPs over time at the modelled intensity.",
            *(
                ["Counted: FLOPs and DRAM bytes of the counters. Points have the colours of their bars."]
                if points
                else []
            ),
            f"Roof: {profile.ceilings.provenance}, {profile.ceilings.source}.",
            *counters,
            *sources,
        ),
        height=1.6,
    )


def shortened(profile: Profile) -> list[tuple[str, float]]:
    """Return (name, ms) of the longest parts, in order of time, the rest summed."""
    parts = sorted(profile.parts, key=lambda part: -part["ms"])
    shown = [(part["name"], part["ms"]) for part in parts[:MOST_BARS]]
    if rest := parts[MOST_BARS:]:
        shown.append((f"{len(rest)} others", sum(part["ms"] for part in rest)))
    return shown


def short(name: str, longest: int = LONGEST_NAME) -> str:
    """Return a kernel's name cut to a length, without C++ namespaces and arguments.

    A kernel of torch is named by what it computes.
    """
    number = match[0] if (match := re.search(r" #\d+$", name)) else ""
    bare = name.removesuffix(number).removeprefix("void ")
    bare = bare.replace("<unnamed>::", "").replace("(anonymous namespace)::", "")
    if not bare.startswith(("aten::", "at::")):
        bare = bare.partition("<")[0].partition("(")[0]
    elif bare.startswith("at::"):
        computes = [word for word in TORCH_KERNEL.findall(bare) if word != "BinaryFunctor"]
        bare = computes[0] if computes else bare.partition("<")[0].partition("(")[0].split("::")[-1]
    room = longest - len(number)
    return (bare if len(bare) <= room else bare[: room - 1] + "…") + number


def _point(name: str, intensity: float, flops: float, ms: float, ink: Ink, size: float) -> Curve:
    """Return a point of the roofline: FLOPs in so many ms, over `size` FLOP/s."""
    return Curve(name, [intensity], [flops / ms * 1e3 / size], ink, joined=False)


def _points(profile: Profile, size: float) -> dict[str, Curve]:
    """Return the counted kernels that are worth a point, the longest first, by short name."""
    least = WORTH_A_POINT * sum(kernel.ms for kernel in profile.counted)
    worth = [k for k in profile.counted if k.intensity and k.flops and k.ms >= least]
    longest = sorted(worth, key=lambda kernel: -kernel.ms)[:MOST_POINTS]
    return {
        (name := short(k.name)): _point(name, k.intensity or 0.0, k.flops or 0.0, k.ms, Ink(colour, marker), size)
        for k, colour, marker in zip(longest, cycle(COLOURS), cycle(MARKERS), strict=False)
    }


def _bars(parts: Sequence[tuple[str, float]], points: dict[str, Curve], kind: str) -> Panel:
    names, ms = [short(name) for name, _ in parts], [value for _, value in parts]
    plain = GREY if points else BLUE
    colours = [points[name].ink.colour if name in points else plain for name in names]
    shares = [f"{value:.3g} ({value / sum(ms):.0%})" for value in ms]
    x = linear("time [ms]", 0.0, 1.45 * max(ms))
    return Panel(f"time by {kind}", x, labels(names), (Bars(names, ms, shares, colours),))


def _roofline(profile: Profile, points: dict[str, Curve], rates: tuple[str, float]) -> Panel:
    """Return the call and its kernels under the roof; the call as modelled is hollow."""
    model, total, size = profile.model, profile.total, rates[1]
    modelled = _point("the call, modelled", float(model.intensity), float(model.flops), profile.ms, CALL, size)
    calls = [replace(modelled, hollow=[True])]
    if total and total.intensity and total.flops:
        calls.append(_point("the call, counted", total.intensity, total.flops, profile.ms, CALL, size))
    way = Curve("", [c.x[0] for c in calls], [c.y[0] for c in calls], Ink(VERMILION, dash="dot"), "theory")
    ceilings = profile.ceilings
    roof = Roof(ceilings, roof_name("roof", ceilings), ROOF)
    return replace(under([roof], [way, *calls, *points.values()], unit=rates), title="roofline")
