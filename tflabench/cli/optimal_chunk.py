"""The command that finds the chunk size of least theoretical runtime: optimal-chunk."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tflabench.bench.gpu_choice import chosen_gpu
from tflabench.cli.common import app
from tflabench.cli.common.console import PASS_NAMES, filled_table, print_json
from tflabench.cli.common.options import (
    MODEL,
    OUTPUT,
    BandwidthTbs,
    Batch,
    CausalFactor,
    CountsOption,
    Dhv,
    Dqk,
    Dtype,
    Gate,
    GpuName,
    Heads,
    JsonObject,
    MemoryBudget,
    Pass,
    PeakTflops,
    SeqLen,
    StateDtype,
)
from tflabench.cli.common.paths import figure_to_write, out_file
from tflabench.problem import Problem, dtype_bytes, one_of, parse_bytes

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from tflabench.theory.chunk_size import Tradeoff
    from tflabench.theory.hardware import Gpu


LEAST_SHOWN, MOST_SHOWN = 1 / 8, 8  # of the recommended L: the table without --details


Tile = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        rich_help_panel=MODEL,
        help="Tile of the kernel: L is a multiple of it.",
        show_default="64, or less for a short T",
    ),
]
Asked = Annotated[int | None, typer.Option(metavar="N", rich_help_panel=OUTPUT, help="Report this L too.")]
Details = Annotated[
    bool,
    typer.Option(
        "--details",
        rich_help_panel=OUTPUT,
        help="Print every L, the optima of the paper's equations and of the kernels, and the curve.",
    ),
]


@dataclass(frozen=True)
class _Found:
    """A question and its answer.

    Attributes:
        title: the problem and the model, in one line.
        tile: of the kernel; L is a multiple of it.
        budget: bytes of GPU memory allowed, None without a limit.
        recommended: the L of least upper time within the budget.
        asked: another L to report.
    """

    title: str
    problem: Problem
    gate: str
    chip: Gpu
    tradeoff: Tradeoff
    tile: int
    budget: int | None
    recommended: int
    asked: int | None

    @property
    def sizes(self) -> list[int]:
        """Powers of two from 16 to T, the recommended L and the one asked for, in order."""
        asked = {self.asked} if self.asked else set()
        return sorted({2**n for n in range(4, self.problem.seq_len.bit_length())} | {self.recommended} | asked)


@app.command("optimal-chunk")
def optimal_chunk(  # noqa: PLR0913  options
    d_qk: Dqk = 256,
    d_hv: Dhv = 512,
    heads: Heads = 8,
    seq_len: SeqLen = 8192,
    batch: Batch = 8,
    pass_: Pass = "fw",
    dtype: Dtype = "bfloat16",
    gate: Gate = "sig",
    memory_budget: MemoryBudget = None,
    gpu: GpuName = None,
    peak_tflops: PeakTflops = None,
    bandwidth_tbs: BandwidthTbs = None,
    causal_factor: CausalFactor = 0.5,
    state_dtype: StateDtype = "float32",
    tile: Tile = None,
    counts: CountsOption = "published",
    chunk_size: Asked = None,
    details: Details = False,
    plot: Annotated[Path | None, out_file("optimal-chunk.png", "nothing is drawn")] = None,
    as_json: JsonObject = False,
) -> None:
    """Give the chunk size L of least theoretical runtime, and the kernel of ours that would run.

    Measured optima lie lower, at 128 to 256 on an H100 (paper, App. G.4): the paper's model knows no pointwise units
    and no tile shapes, and takes a call for one kernel. The calibrated model knows them, and --details has its L.
    Either curve is flat, so measure: tflabench sweep --preset chunk.
    """
    from tflabench.theory import chunk_size as chunks
    from tflabench.theory.cost import GATES

    plot = figure_to_write(plot, "optimal-chunk.png") if plot else None
    problem = Problem(batch, heads, seq_len, d_qk, d_hv, dtype=dtype, pass_=pass_)  # type: ignore[arg-type]
    chip = chosen_gpu(gpu, dtype, peak_tflops, bandwidth_tbs)
    kind: Any = one_of("gate", gate, GATES)
    counts = one_of("counts", counts, ("published", "exact"))
    if GATES[gate].published is None:
        counts = "exact"
    tradeoff = chunks.Tradeoff(
        problem=problem,
        gate=kind,
        ceilings=chip.ceilings,
        causal_factor=causal_factor,
        state_bytes=dtype_bytes("state_dtype", state_dtype),
        counts=counts,  # type: ignore[arg-type]
    )
    if tile is None:
        tile = chunks.usual_tile(seq_len)
    chunks.check_tile(tile, seq_len)
    if chunk_size is not None:
        chunks.check_chunk_size(chunk_size, tile)
    budget = None if memory_budget is None else parse_bytes("memory_budget", memory_budget)
    recommended = tradeoff.recommend(tile, float("inf") if budget is None else budget)

    title = (
        f"{GATES[kind].title} {PASS_NAMES[pass_]} on {chip.name}: d_qk {d_qk}, d_hv {d_hv}, T {seq_len}, "
        f"batch {batch}, {heads} heads, {dtype}, states {state_dtype}, F_causal {causal_factor:g}, {counts} counts"
    )
    if plot:
        from tflabench.figures.files import write_figure
        from tflabench.figures.theory import runtime_over_chunk_size

        write_figure(runtime_over_chunk_size(tradeoff, recommended, title, budget), plot)
        print(f"wrote {plot}", file=sys.stderr)

    found = _Found(title, problem, gate, chip, tradeoff, tile, budget, recommended, chunk_size)
    if as_json:
        facts = {"counts": counts, "causal_factor": causal_factor, "state_bytes": tradeoff.state_bytes}
        print_json(_json(found) | facts)
        return
    _print_answer(found)
    if details:
        _print_details(found, counts)


def _json(found: _Found) -> dict[str, Any]:
    tradeoff = found.tradeoff
    best = _at(tradeoff, found.recommended)
    return {
        "flop_optimal": tradeoff.flop_optimal,
        "runtime_optimal": tradeoff.runtime_optimal,
        "overlapped_optimal": tradeoff.overlapped_optimal,
        "recommended": found.recommended,
        "within_5_percent": list(tradeoff.within()),
        "predicted_ms_lower": best["ms_lower"],
        "predicted_ms_upper": best["ms_upper"],
        "memory_bytes": best["memory_bytes"],
        "memory_budget_bytes": found.budget,
        "tile": found.tile,
        "gate": found.gate,
        "problem": asdict(found.problem),
        "gpu": asdict(found.chip),
        "kernel": asdict(_kernel(found)),
        "calibrated": _calibrated(found.problem, found.gate, found.chip, found.tile),
        "fused": _fused(found.problem, found.gate, found.chip),
        "chunk_sizes": [_at(tradeoff, size) for size in found.sizes],
    }


@dataclass(frozen=True)
class _Kernel:
    """The kernel of ours that would run: its name and L, or (both None) why none does."""

    implementation: str | None
    chunk_size: int | None
    refused: str | None = None


def _kernel(found: _Found) -> _Kernel:
    """Return what implementation="auto" of our operations would run on the GPU, by its own checks."""
    from tflabench.implementations import registry

    p, reason = found.problem, None
    best = {"fused": _fused(p, found.gate, found.chip), "tfla": _calibrated(p, found.gate, found.chip, found.tile)}
    for impl in registry.tried_by_auto(found.gate):
        model = best.get(impl.modelled.algorithm) if impl.modelled else None
        usual = impl.usual_chunk_size(p) if impl.usual_chunk_size else found.recommended
        size = model["chunk_size"] if model else usual
        reason = impl.refusal_on(p.with_(chunk_size=size), found.chip)
        if reason is None:
            return _Kernel(impl.name, size)
    return _Kernel(None, None, reason or "there are none of this gate")


def _print_answer(found: _Found) -> None:
    """Print the answer in one sentence, then a small table."""
    best, (low, high) = _at(found.tradeoff, found.recommended), found.tradeoff.within()
    kernel = _kernel(found)
    ours = (
        f"our {kernel.implementation} would run with L = {kernel.chunk_size}"
        if kernel.implementation
        else f"no kernel of ours runs there ({kernel.refused})"
    )
    console = _console()
    fits = "" if found.budget is None else " that fits"
    console.print(
        f"L = {found.recommended} takes the least time{fits} in theory on {found.chip.name}: {best['ms_lower']:.3g} to "
        f"{best['ms_upper']:.3g} ms, {best['memory_bytes'] / 2**30:.2f} GiB; {ours}.",
        style="bold green",
    )
    console.print(f"\n{found.title}")
    shown = [
        size
        for size in found.sizes
        if LEAST_SHOWN <= size / found.recommended <= MOST_SHOWN or size in (found.recommended, found.asked)
    ]
    console.print(_table(found, shown))
    console.print(f"The upper time is within 5% of its least from L = {low} to {high}; --details says more.")


def _print_details(found: _Found, counts: str) -> None:
    """Print every L, the optima by equation and by kernel, and the curve."""
    from tflabench.cli.common.sketch import sketch
    from tflabench.theory.cost import GATES

    tradeoff, chip = found.tradeoff, found.chip
    console = _console()
    ceilings, (low, high) = chip.ceilings, tradeoff.within()
    console.print(
        f"\n{ceilings.flops_per_s / 1e12:g} TFLOP/s, {ceilings.bytes_per_s / 1e12:g} TB/s, "
        f"I_acc {ceilings.intensity:.1f} FLOP/B ({ceilings.provenance}: {ceilings.source})"
    )
    console.print(_table(found, found.sizes))
    printed = GATES[found.gate].optimum_printed and (found.problem.pass_, counts) == ("fw", "published")
    eq_111, eq_121 = ("eq. 111", "eq. 121") if printed else ("as eq. 111", "as eq. 121")
    console.print(f"{f'fewest FLOPs ({eq_111})':30}L = {tradeoff.flop_optimal:.1f}")
    console.print(f"{f'least runtime ({eq_121})':30}L = {tradeoff.runtime_optimal:.1f}, within 5% from {low} to {high}")
    console.print(f"least runtime, all overlapped L = {tradeoff.overlapped_optimal:.1f}")
    if kernels := _calibrated(found.problem, found.gate, chip, found.tile):
        most = max(kernels["ms_by_term"], key=kernels["ms_by_term"].__getitem__)
        console.print(
            f"{'bundled kernels, calibrated':30}L = {kernels['chunk_size']}: {kernels['predicted_ms']:.3g} ms, "
            f"most of it {most}"
        )
    if walks := _fused(found.problem, found.gate, chip):
        filled = ", ".join(f"{name} {waves:.2g}" for name, waves in walks["waves"].items())
        console.print(
            f"{'fused kernels, all overlapped':30}L = {walks['chunk_size']}: {walks['predicted_ms_lower']:.3g} ms, "
            f"{walks['segments']} segment{'s' if walks['segments'] > 1 else ''}; waves of programs: {filled}"
        )
    console.print()
    for line in sketch(tradeoff, found.recommended, ascii_only=console.options.ascii_only):
        console.print(line, markup=False, no_wrap=True, crop=True)


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False)


def _table(found: _Found, sizes: Sequence[int]) -> Table:
    """Return a row an L: time between bounds, intensity, memory."""
    low, high = found.tradeoff.within()
    marks = {found.asked: "asked for", found.recommended: "recommended"}
    rows = [_at(found.tradeoff, size) for size in sizes]
    return filled_table(
        ("L", "ms lower", "ms upper", "FLOP/B", "bound by", "GiB", ""),
        [
            (
                str(row["chunk_size"]),
                f"{row['ms_lower']:.3g}",
                f"{row['ms_upper']:.3g}",
                f"{row['intensity']:.0f}",
                row["bound"],
                f"{row['memory_bytes'] / 2**30:.2f}",
                marks.get(row["chunk_size"], "within 5%" if low <= row["chunk_size"] <= high else ""),
            )
            for row in rows
        ],
    )


def _calibrated(problem: Problem, gate: str, chip: Gpu, tile: int) -> dict[str, Any] | None:
    """Return the best L of the bundled Triton kernels by the calibrated model; None where it does not apply.

    L is a power of two from a tile to T. The model needs inputs of 16 bits and enough facts about the chip.
    """
    from tflabench.theory.calibrated import Modelled, predict
    from tflabench.theory.cost import GATES
    from tflabench.theory.launches import Chip

    known = chip.multiprocessors and chip.clock_hz and chip.float32_flops_per_s
    if not GATES[gate].modelled or problem.element_bytes != 2 or not known:
        return None
    sizes = [2**n for n in range(tile.bit_length() - 1, problem.seq_len.bit_length())]
    kernel = Modelled("tfla", gate)  # type: ignore[arg-type]
    terms = {size: predict(problem.with_(chunk_size=size), kernel, Chip.of(chip)) for size in sizes}
    best = min(sizes, key=lambda size: sum(terms[size].values()))
    by_term = {term: seconds * 1e3 for term, seconds in terms[best].items()}
    return {"chunk_size": best, "predicted_ms": sum(by_term.values()), "ms_by_term": by_term}


def _fused(problem: Problem, gate: str, chip: Gpu) -> dict[str, Any] | None:
    """Return the best L of the fused kernels and what it takes; None where they do not run."""
    from tflabench.theory import fused
    from tflabench.theory.cost import GATES
    from tflabench.theory.hardware import HOPPER

    if not GATES[gate].modelled or problem.element_bytes != 2 or chip.capability != HOPPER:
        return None
    best = fused.best_chunk_size(problem, gate, chip)  # type: ignore[arg-type]
    launched = fused.launched(problem, gate, best)  # type: ignore[arg-type]
    return {
        "chunk_size": best,
        "segments": fused.segments(problem, best),
        "predicted_ms_lower": fused.runtime(problem.with_(chunk_size=best), gate, chip) * 1e3,  # type: ignore[arg-type]
        "waves": fused.waves(problem, gate, best, chip),  # type: ignore[arg-type]
        "on_chip_state_bytes": {kernel.name: kernel.on_chip_bytes for kernel in launched},
    }


def _at(tradeoff: Tradeoff, size: int) -> dict[str, Any]:
    """Return one row of the table of chunk sizes."""
    from tflabench.theory.roofline import compute_bound

    cost, time = tradeoff.cost(size), tradeoff.time(size)
    return {
        "chunk_size": size,
        "ms_lower": float(time.lower) * 1e3,
        "ms_upper": float(time.upper) * 1e3,
        "flops": float(cost.flops),
        "bytes": float(cost.bytes),
        "intensity": float(cost.intensity),
        "bound": "compute" if compute_bound(cost, tradeoff.ceilings) else "memory",
        "memory_bytes": int(tradeoff.memory(size)),
    }
