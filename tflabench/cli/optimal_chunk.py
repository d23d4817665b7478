"""The command that finds the chunk size of least theoretical runtime: optimal-chunk."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tflabench.cli.common.app import app
from tflabench.cli.common.checks import dtype_bytes, one_of
from tflabench.cli.common.console import PASS_NAMES, filled_table, print_json
from tflabench.cli.common.gpu import chosen_gpu
from tflabench.cli.common.options import (
    BandwidthTbs,
    CausalFactor,
    CountsOption,
    Dhv,
    Dqk,
    Dtype,
    Gate,
    JsonObject,
    PeakTflops,
    StateDtype,
)
from tflabench.problem import Problem, parse_bytes

if TYPE_CHECKING:
    from tflabench.theory.chunk_size import Tradeoff
    from tflabench.theory.hardware import Gpu


@app.command("optimal-chunk")
def optimal_chunk(
    gpu: Annotated[str | None, typer.Option(help="See `tflabench gpus`. Default: this machine's, else H100.")] = None,
    d_hv: Dhv = 512,
    d_qk: Dqk = 256,
    gate: Gate = "sig",
    causal_factor: CausalFactor = 0.5,
    state_dtype: StateDtype = "float32",
    dtype: Dtype = "bfloat16",
    seq_len: Annotated[int, typer.Option(help="Sequence length T.")] = 8192,
    batch: Annotated[int, typer.Option(help="Batch size.")] = 8,
    heads: Annotated[int, typer.Option(help="Heads.")] = 8,
    pass_: Annotated[str, typer.Option("--pass", help="fw, or fwbw (forward and backward).")] = "fw",
    memory_budget: Annotated[str | None, typer.Option(help="Peak memory allowed, such as 8GiB.")] = None,
    tile: Annotated[int | None, typer.Option(help="Tile of the kernel. Default: 64, or less for a short T.")] = None,
    chunk_size: Annotated[int | None, typer.Option(help="Also report this L.")] = None,
    counts: CountsOption = "published",
    peak_tflops: PeakTflops = None,
    bandwidth_tbs: BandwidthTbs = None,
    plot: Annotated[Path | None, typer.Option(help="Draw runtime and memory over L: .png, .svg or .pdf.")] = None,
    as_json: JsonObject = False,
) -> None:
    """The chunk size L with the least theoretical runtime, and what it costs to leave it.

    Measured optima lie lower, at 128 to 256 on an H100 (paper, App. G.4): the paper's model knows no pointwise units,
    launches or tile shapes. The calibrated model does, and its L is printed too (see tflabench model-error). Either
    curve is flat, so measure: tflabench sweep --preset chunk.
    """
    from tflabench.theory import chunk_size as chunks

    problem = Problem(batch, heads, seq_len, d_qk, d_hv, dtype=dtype, pass_=pass_)  # type: ignore[arg-type]
    chip = chosen_gpu(gpu, dtype, peak_tflops, bandwidth_tbs)
    tradeoff = chunks.Tradeoff(
        problem=problem,
        gate=one_of("gate", gate, ("exp", "sig")),  # type: ignore[arg-type]
        ceilings=chip.ceilings,
        causal_factor=causal_factor,
        state_bytes=dtype_bytes("state_dtype", state_dtype),
        counts=one_of("counts", counts, ("published", "exact")),  # type: ignore[arg-type]
    )
    if tile is None:
        tile = chunks.usual_tile(seq_len)
    chunks.check_tile(tile, seq_len)
    if chunk_size is not None:
        chunks.check_chunk_size(chunk_size, tile)
    budget = None if memory_budget is None else parse_bytes("memory_budget", memory_budget)
    recommended = tradeoff.recommend(tile, float("inf") if budget is None else budget)

    title = (
        f"mLSTM{gate} {PASS_NAMES[pass_]} on {chip.name}: d_qk {d_qk}, d_hv {d_hv}, T {seq_len}, batch {batch}, "
        f"{heads} heads, {dtype}, states {state_dtype}, F_causal {causal_factor:g}, {counts} counts"
    )
    if plot:
        from tflabench.figures.files import write_figure
        from tflabench.figures.theory import runtime_over_chunk_size

        write_figure(runtime_over_chunk_size(tradeoff, recommended, title, budget), plot)
        print(f"wrote {plot}", file=sys.stderr)

    sizes = {2**n for n in range(4, seq_len.bit_length())} | {recommended} | ({chunk_size} if chunk_size else set())
    rows = [_at(tradeoff, size) for size in sorted(sizes)]
    best = _at(tradeoff, recommended)
    if as_json:
        print_json(
            {
                "flop_optimal": tradeoff.flop_optimal,
                "runtime_optimal": tradeoff.runtime_optimal,
                "overlapped_optimal": tradeoff.overlapped_optimal,
                "recommended": recommended,
                "within_5_percent": list(tradeoff.within()),
                "predicted_ms_lower": best["ms_lower"],
                "predicted_ms_upper": best["ms_upper"],
                "memory_bytes": best["memory_bytes"],
                "memory_budget_bytes": budget,
                "tile": tile,
                "gate": gate,
                "counts": counts,
                "causal_factor": causal_factor,
                "state_bytes": tradeoff.state_bytes,
                "problem": asdict(problem),
                "gpu": asdict(chip),
                "calibrated": _calibrated(problem, gate, chip, tile),
                "fused": _fused(problem, gate, chip),
                "chunk_sizes": rows,
            }
        )
        return

    from rich.console import Console

    from tflabench.cli.common.sketch import sketch

    console = Console(highlight=False)
    low, high = tradeoff.within()
    console.print(title, style="bold")
    ceilings = chip.ceilings
    console.print(
        f"{ceilings.flops_per_s / 1e12:g} TFLOP/s, {ceilings.bytes_per_s / 1e12:g} TB/s, "
        f"I_acc {ceilings.intensity:.1f} FLOP/B ({ceilings.provenance}: {ceilings.source})"
    )
    marks = {recommended: "recommended", chunk_size: "asked for"}
    table = [
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
    ]
    console.print(filled_table(("L", "ms lower", "ms upper", "FLOP/B", "bound by", "GiB", ""), table))
    printed = (gate, pass_, counts) == ("sig", "fw", "published")  # what the paper's equations are for
    eq_111, eq_121 = ("eq. 111", "eq. 121") if printed else ("as eq. 111", "as eq. 121")
    console.print(f"{f'fewest FLOPs ({eq_111})':30}L = {tradeoff.flop_optimal:.1f}")
    console.print(f"{f'least runtime ({eq_121})':30}L = {tradeoff.runtime_optimal:.1f}, within 5% from {low} to {high}")
    console.print(f"least runtime, all overlapped L = {tradeoff.overlapped_optimal:.1f}")
    fits = "" if budget is None else f", fits {memory_budget}"
    console.print(
        f"recommended                   L = {recommended}: {best['ms_lower']:.3g} to {best['ms_upper']:.3g} ms, "
        f"{best['memory_bytes'] / 2**30:.2f} GiB{fits}",
        style="bold green",
    )
    if kernels := _calibrated(problem, gate, chip, tile):
        most = max(kernels["ms_by_term"], key=kernels["ms_by_term"].__getitem__)
        console.print(
            f"{'bundled kernels, calibrated':30}L = {kernels['chunk_size']}: {kernels['predicted_ms']:.3g} ms, "
            f"most of it {most}"
        )
    if walks := _fused(problem, gate, chip):
        filled = ", ".join(f"{name} {waves:.2g}" for name, waves in walks["waves"].items())
        console.print(
            f"{'fused kernels, all overlapped':30}L = {walks['chunk_size']}: {walks['predicted_ms_lower']:.3g} ms, "
            f"{walks['segments']} segment{'s' if walks['segments'] > 1 else ''}; waves of programs: {filled}"
        )
    console.print()
    for line in sketch(tradeoff, recommended, ascii_only=console.options.ascii_only):
        console.print(line, markup=False, no_wrap=True, crop=True)


def _calibrated(problem: Problem, gate: str, chip: Gpu, tile: int) -> dict[str, Any] | None:
    """The best L of the bundled Triton kernels by the calibrated model, among powers of two from a tile to T; None
    where it knows too little of the chip, or the inputs are not 16 bits wide.
    """
    from tflabench.theory.calibrated import Modelled, predict
    from tflabench.theory.launches import Chip

    if problem.element_bytes != 2 or not (chip.multiprocessors and chip.clock_hz and chip.float32_flops_per_s):
        return None
    sizes = [2**n for n in range(tile.bit_length() - 1, problem.seq_len.bit_length())]
    kernel = Modelled("tfla", gate)  # type: ignore[arg-type]
    terms = {size: predict(problem.with_(chunk_size=size), kernel, Chip.of(chip)) for size in sizes}
    best = min(sizes, key=lambda size: sum(terms[size].values()))
    by_term = {term: seconds * 1e3 for term, seconds in terms[best].items()}
    return {"chunk_size": best, "predicted_ms": sum(by_term.values()), "ms_by_term": by_term}


def _fused(problem: Problem, gate: str, chip: Gpu) -> dict[str, Any] | None:
    """The best L of the fused kernels and what it takes; None on a chip or for inputs that they do not run on."""
    from tflabench.theory import fused

    if problem.element_bytes != 2 or not chip.name.removeprefix("paper-").startswith(("H100", "H200")):
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
    """One row of the table of chunk sizes."""
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
