"""The claims of the paper that its own formulas decide, for mLSTMsig forward with the counts it prints. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from math import log

from tflabench.conclusions.claim import Claim, Interval, Numbers, Stated
from tflabench.problem import Problem
from tflabench.theory import cost
from tflabench.theory.chunk_size import Tradeoff
from tflabench.theory.hardware import Ceilings, table_18

T = 8192
SIZES = [2**n for n in range(14)]  # L = 1 ... T
PROBLEM = Problem(batch=8, heads=8, seq_len=T, d_qk=256, d_hv=512)
GPUS = {gpu.name.removeprefix("paper-"): gpu.ceilings for gpu in table_18()}
H100 = GPUS["H100"]


def tradeoff(ceilings: Ceilings = H100, d_hv: int = 512) -> Tradeoff:
    """Return the trade-off of Figs. 15 to 22 on a chip, with d_qk = d_hv / 2."""
    return Tradeoff(PROBLEM.with_(d_qk=d_hv // 2, d_hv=d_hv), "sig", ceilings)


def over_sizes(value: Callable[[int], float]) -> Numbers:
    """Return a number at every chunk size."""
    return {size: Interval.around(value(size)) for size in SIZES}


def flops(formulation: cost.Formulation, unit: int, gate: cost.Gate = "sig") -> float:
    """Return the FLOPs of a head and sequence of T steps, of whole units."""
    return cost.over_sequence(cost.flop_polynomial(formulation, gate, PROBLEM.d_qk, PROBLEM.d_hv), T, unit)


def growth(numbers: Mapping[float, float]) -> list[float]:
    """Return the exponents with which a number grows from one place to the next."""
    return [log(after / before) / log(x / w) for (w, before), (x, after) in pairwise(numbers.items())]


def time_at_most_flops_a_second() -> Numbers:
    """Return the modelled time at the L of most FLOP/s over the least at any L, by the first."""
    made = tradeoff()
    times = {size: float(made.time(size).upper) for size in SIZES}
    busiest = max(SIZES, key=lambda size: made.cost(size).flops / times[size])
    return {busiest: Interval.around(times[busiest] / min(times.values()))}


def rising(numbers: Numbers) -> list[Interval]:
    """Return every number over the one before."""
    return [after / before for before, after in pairwise(numbers.values())]


def inside(numbers: Numbers) -> Iterable[Interval]:
    """Return both ends over the least number between them."""
    least = min(number.value for number in list(numbers.values())[1:-1])
    return [Interval.around(numbers[at].value / least) for at in (min(numbers), max(numbers))]


def by_number(values: Sequence[float]) -> Numbers:
    """Return numbers by their place, from 1."""
    return {place: Interval.around(value) for place, value in enumerate(values, 1)}


def _claim(says: str, source: str, about: str, stated: Stated, numbers: Callable[[], Numbers], **more: object) -> Claim:
    fields = {"form": "{:.3g}", "over": "chunk_size", "at_least": 1, "kind": "modelled"} | more
    return Claim(says, source, about=about, stated=stated, theory=numbers, **fields)  # type: ignore[arg-type]


THEORY_CLAIMS = (
    _claim(
        "L = 1 costs what the recurrent form does, L = T what the parallel one does", "appendix G, Fig. 15",
        "FLOPs over those of that form, at both ends", Stated(0.9, 1.1),
        lambda: {
            1: Interval.around(flops("chunkwise", 1) / flops("recurrent", T)),
            T: Interval.around(flops("chunkwise", T) / flops("parallel", T)),
        },
        form="{:.3f}x",
    ),
    _claim(
        "a chunk size of fewest FLOPs exists between them", "appendix G, eq. 111",
        "FLOPs at both ends over the least between", Stated(low=1),
        lambda: over_sizes(lambda size: flops("chunkwise", size)), of=inside,
    ),
    _claim(
        "exp takes less than 2% more FLOPs than sig at L = 64", "appendix G, Fig. 15",
        "FLOPs of exp over sig", Stated(1, 1.02),
        lambda: {64: Interval.around(flops("chunkwise", 64, "exp") / flops("chunkwise", 64))}, form="{:.4f}x",
    ),
    _claim(
        "intensity grows with L", "appendix G, Fig. 18", "FLOPs a byte over those at half the L", Stated(low=1),
        lambda: over_sizes(lambda size: float(tradeoff().cost(size).intensity)), of=rising,
    ),
    _claim(
        "L chooses the bound: memory where it is small, compute where it is large", "appendix G, Fig. 18",
        "intensity over that of an H100: below 1 at L = 1, above at L = T", Stated(low=1),
        lambda: over_sizes(lambda size: float(tradeoff().cost(size).intensity) / H100.intensity),
        of=lambda numbers: [Interval.around(1 / numbers[1].value), numbers[T]],
    ),
    _claim(
        "judge by time, not by FLOP/s", "appendix G, Figs. 17, 19",
        "time at the L of most FLOP/s over the least at any L", Stated(low=1.05), time_at_most_flops_a_second,
        form="{:.2f}x",
    ),
    _claim(
        "the best L grows with the square root of d", "appendix G, eq. 121, Fig. 21",
        "exponent, d_hv from 128 to 2048", Stated(0.45, 0.55),
        lambda: by_number(growth({d: tradeoff(d_hv=d).runtime_optimal for d in (128, 256, 512, 1024, 2048)})),
        over="number",
    ),
    _claim(
        "the best L grows with the square root of the accelerator's intensity", "appendix G, eq. 121, Fig. 22",
        "exponent, intensity from 100 to 800 FLOPs a byte", Stated(0.45, 0.55),
        lambda: by_number(
            growth({x: tradeoff(Ceilings(x, 1.0, "given", "")).runtime_optimal for x in (100, 200, 400, 800)})
        ),
        over="number",
    ),
    _claim(
        "newer hardware wants larger L", "appendix G, Table 18", "best L over that of the GPU before, V100 to B200",
        Stated(low=1), lambda: by_number([tradeoff(chip).runtime_optimal for chip in GPUS.values()]), of=rising,
        over="number", form="{:.0f}",
    ),
    _claim(
        "the curve over L is flatter on newer GPUs", "appendix G, Fig. 17",
        "width of the L within 5% of the least time, B200 over A100", Stated(low=1),
        lambda: by_number([_width(GPUS[name]) for name in ("A100", "H100", "B200")]),
        of=lambda numbers: [Interval.around(numbers[3].value / numbers[1].value)], over="number", form="{:.2f}x",
    ),
)  # fmt: skip


def _width(ceilings: Ceilings) -> float:
    low, high = tradeoff(ceilings).within(0.05)
    return high / low
