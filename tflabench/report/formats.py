"""Numbers as the page writes them: with their unit, and with where they come from."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from tflabench.figures.captions import caption, compact
from tflabench.figures.quantities import AXES, MEMORY, PASSES, RUNTIME, Rows, plain
from tflabench.rows.labels import on_datasheet

Units = Sequence[tuple[str, float]]  # (unit, its size), smallest first

FLOP_RATE: Units = (("MFLOP/s", 1e6), ("GFLOP/s", 1e9), ("TFLOP/s", 1e12))
BYTE_RATE: Units = (("MB/s", 1e6), ("GB/s", 1e9), ("TB/s", 1e12))
COUNT: Units = (("MFLOP", 1e6), ("GFLOP", 1e9), ("TFLOP", 1e12))
MOVED: Units = (("KB", 1e3), ("MB", 1e6), ("GB", 1e9))

# What a number is and which equation made it; the page lists them as numbered notes, in this order.
NOTES = {
    "runtime": (
        "Measured. Median over the samples of a point, each timed alone (CUDA events with the L2 cache flushed before, "
        "or perf_counter on CPUs); whiskers and ranges: the 20th to 80th percentile. <i>Noisy</i>: the "
        "median is known less well than its place among the others needs; <i>throttled</i>: the GPU held its clock "
        "back."
    ),
    "memory": (
        "Measured in a pass of its own: the largest memory allocated during a call (on CPUs: by how much the resident "
        "memory grew). <i>Beyond inputs</i>: less what was allocated before the call."
    ),
    "bounds": (
        "Modelled. Lower bound τ = max(FLOPs/α, bytes/β), computing and moving fully overlapped; upper bound "
        "τ = FLOPs/α + bytes/β, not at all (TFLA paper, eqs. 112–116), with the ceilings α, β of the run."
    ),
    "counts": (
        "Modelled. FLOPs: sums of Tables 8, 10, 12 of the TFLA paper with F<sub>causal</sub> = 0.5; bytes: Tables 9, "
        "11, 13. The backward adds the matrix products of section B.3. Attention: its matrix products, and q, k, v, h "
        "moved once. They count the paper's algorithm, whatever the kernel does."
    ),
    "rate": "Modelled FLOPs or bytes over the measured median runtime.",
    "intensity": "Modelled: I = FLOPs / bytes of the algorithm. Of the device: I<sub>acc</sub> = α/β (eqs. 117–118).",
    "roof": (
        "min(β · I, α) (eq. 119), with α and β of the datasheet, and as <code>tflabench calibrate</code> measured "
        "them: a large matrix product and a large copy."
    ),
    "bound": (
        "The bound of the problem, whichever kernel computes it, over the measured median runtime. The bound: "
        "max(bytes/β, FLOPs/α) a pass, with each input read once, each output written once, and each product of the "
        "chunkwise form (chunks of 64; attention: all T) made once. None for the delta rules and Mamba. "
        "<i>Datasheet</i>: α and β are not measured."
    ),
    "percent": (
        "The modelled lower bound of this implementation's own FLOPs and bytes over the measured median runtime: it "
        "rises where a kernel does more work in the same time. Above 100%: the model is no bound of what ran."
    ),
    "optimum": (
        "Modelled. L<sub>opt</sub> = √((a<sub>0</sub> + I<sub>acc</sub> c<sub>0</sub>) / a<sub>2</sub>) where a chunk "
        "takes a<sub>2</sub>L² + a<sub>1</sub>L + a<sub>0</sub> FLOPs and moves c<sub>1</sub>L + c<sub>0</sub> bytes "
        "(eq. 121, generalised), with states in 4 bytes and the ceilings of the run."
    ),
    "ratio": (
        "Measured. Median runtime of the baseline over that of our fastest kernel and chunk size, at the same tokens, "
        "sequence length, embedding and data type, within one closed comparison, in which both took turns on one GPU; "
        "against an mLSTM, ours with the same gate. ± is half the range of the ratio over the rounds. A baseline with "
        "several chunk sizes counts with its fastest."
    ),
    "error": (
        "Measured. Largest deviation of the output and of every gradient from float64, root mean square over root mean "
        "square."
    ),
}


class Fact(NamedTuple):
    """One number of a row: `source` is "measured", "modelled" or both, `note` a key of NOTES."""

    label: str
    value: str
    source: str
    note: str


def unit_of(value: float, units: Units) -> tuple[str, float]:
    """The largest unit in which a value is at least 1, or the smallest."""
    return next((unit for unit in reversed(units) if abs(value) >= unit[1]), units[0])


def amount(value: float | None, units: Units) -> str:
    """A value with its unit: "3.24 ms"; nothing for no value."""
    if value is None or math.isnan(value):
        return ""
    unit, size = unit_of(value, units)
    return f"{number(value / size)} {unit}"


def span(low: float, high: float, units: Units) -> str:
    """A range in one unit: "2.20–6.61 ms"; nothing where an end is missing."""
    if math.isnan(low) or math.isnan(high):
        return ""
    unit, size = unit_of(high, units)
    return f"{number(low / size)}–{number(high / size)} {unit}"


def number(value: float) -> str:
    """Three digits, "6.90", and no exponent below a million."""
    return f"{value:,.0f}" if 100 <= abs(value) < 1e6 else f"{value:#.3g}"


def ratio(value: float, uncertainty: float | None = None) -> str:
    """A ratio to as many places as its uncertainty has, "2.79 ± 0.04", or else to about three digits, "0.039"."""
    if uncertainty is None:
        return f"{value:,.{_places(value / 100)}f}"
    places = _places(uncertainty)
    least = 10.0**-places
    return f"{value:,.{places}f} ± " + (f"{uncertainty:.{places}f}" if uncertainty >= least / 2 else f"<{least:g}")


def _places(size: float) -> int:
    """Decimal places down to the first digit of a size, at most three."""
    return max(0, min(3, math.ceil(-math.log10(size)))) if size > 0 else 3


def percent(value: float | None, ceilings: object = None) -> str:
    """ "43.2%", with a word where the row's `ceilings` are a datasheet's; nothing for no value."""
    if value is None or math.isnan(value):
        return ""
    return f"{number(value)}%" + (" (datasheet)" if isinstance(ceilings, str) and on_datasheet(ceilings) else "")


def error(value: float) -> str:
    """ "2.1e-03"; nothing for no value."""
    return "" if math.isnan(value) else f"{value:.1e}"


def host(ms: float, call_ms: float) -> str:
    """ "0.21 ms", and whether eager PyTorch waits for it; nothing for no value."""
    return amount(ms, RUNTIME.units) + (", longer than the call" if ms > call_ms else "")


def facts(row: Mapping[str, Any]) -> list[Fact]:
    """Everything that was measured at a point, and what theory says of it; nothing where it was not timed."""
    if math.isnan(row["ms_median"]):
        return []
    ms = RUNTIME.units
    samples = "samples" if math.isnan(row["samples"]) else f"{row['samples']:.0f} samples"
    clock = "" if math.isnan(row["sm_clock_mhz"]) else f"{row['sm_clock_mhz']:,.0f} MHz"
    both = "modelled / measured"
    found = [
        Fact("median runtime", amount(row["ms_median"], ms), "measured", "runtime"),
        Fact(f"20–80% of {samples}", span(row["ms_p20"], row["ms_p80"], ms), "measured", "runtime"),
        Fact("host, to enqueue it", host(row["host_ms"], row["ms_median"]), "measured", "runtime"),
        Fact("theory", span(row["model_ms_lower"], row["model_ms_upper"], ms), "modelled", "bounds"),
        Fact("of the bound", percent(row["percent_of_bound"], row["ceilings"]), both, "bound"),
        Fact("own roofline", percent(row["percent_of_own_roofline"], row["ceilings"]), both, "percent"),
        Fact("FLOPs", amount(row["model_flops"], COUNT), "modelled", "counts"),
        Fact("bytes moved", amount(row["model_bytes"], MOVED), "modelled", "counts"),
        Fact("rate", amount(row["tflops"] * 1e12, FLOP_RATE), both, "rate"),
        Fact("bandwidth", amount(row["gbps"] * 1e9, BYTE_RATE), both, "rate"),
        Fact("peak memory", amount(row["peak_bytes"], MEMORY.units), "measured", "memory"),
        Fact("beyond inputs", amount(row["extra_bytes"], MEMORY.units), "measured", "memory"),
        Fact("error against float64", error(row["rel_error"]), "measured", "error"),
        Fact("SM clock", clock, "measured", "runtime"),
    ]
    return [fact for fact in found if fact.value]


def flags(row: Mapping[str, Any]) -> list[str]:
    """Why to be wary of a measured time: "noisy", "throttled (power cap)"."""
    if row["status"] != "ok":
        return []
    reasons = ", ".join(row["details"].get("throttle_reasons", []))
    throttled = f"throttled ({reasons})" if reasons else "throttled"
    return ["noisy"] * bool(row["noisy"]) + [throttled] * bool(row["throttled"])


def size(row: Mapping[str, Any]) -> str:
    """The problem of a row in one line of HTML."""
    words = [
        PASSES[row["pass"]],
        f"T = {plain(row['seq_len'])}",
        f"batch {plain(row['batch'])}",
        f"{plain(row['heads'])} head{'s' if row['heads'] != 1 else ''}",
        f"d<sub>qk</sub> {plain(row['d_qk'])}",
        f"d<sub>hv</sub> {plain(row['d_hv'])}",
        *([] if math.isnan(row["chunk_size"]) else [f"L = {plain(row['chunk_size'])}"]),
        escape(row["dtype"]),
    ]
    return ", ".join(words)


def where(rows: Rows) -> str:
    """The problems of several rows in one line of HTML: what they share, then the range of what varies."""
    varying = []
    for axis, symbol in zip(AXES, ("T", "$d_{hv}$", "$d_{qk}$", "L", "heads", "batch", "dtype"), strict=True):
        values = sorted(rows[axis].dropna().unique())
        if len(values) > 1:
            written = [compact(value) if axis != "dtype" else str(value) for value in values]
            few = len(written) <= 3 or axis == "dtype"
            varying.append(f"{symbol} {', '.join(written) if few else f'{written[0]}–{written[-1]}'}")
    passes = [PASSES[pass_] for pass_ in PASSES if pass_ in set(rows["pass"])]
    return html("; ".join([", ".join(passes), *varying, caption(rows)]).removesuffix("; "))


def html(words: str) -> str:
    """Words of `plots.words`, whose symbols are TeX, as HTML."""
    return re.sub(r"\$([^$]*)\$", lambda found: re.sub(r"_\{(\w+)\}", r"<sub>\1</sub>", found[1]), escape(words))
