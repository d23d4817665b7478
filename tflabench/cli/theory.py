"""Commands of theory, which need no GPU: gpus, optimal-chunk, roofline, theory, model-error."""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tflabench.cli import app
from tflabench.problem import DTYPE_BYTES, InputError, Problem, parse_bytes

if TYPE_CHECKING:
    from tflabench.analysis.calibrated import Judged
    from tflabench.analysis.chunk_size import Tradeoff
    from tflabench.analysis.hardware import Gpu
    from tflabench.model_error import Verdict
    from tflabench.plots.theory import Measured

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout instead of tables.")]
Gate = Annotated[str, typer.Option(help="exp or sig.")]
Dhv = Annotated[int, typer.Option("--d-hv", help="Head dimension of values and hidden states.")]
Dqk = Annotated[int, typer.Option("--d-qk", help="Head dimension of queries and keys.")]
CausalFactor = Annotated[float, typer.Option(help="Part of the quadratic work done: 0.5 ideal, 1 all of it.")]
StateDtype = Annotated[str, typer.Option(help="Of the recurrent states in memory.")]
Dtype = Annotated[str, typer.Option(help="Of q, k, v and the gates.")]
CountsOption = Annotated[str, typer.Option(help="published (Table 17, eqs. 111-121) or exact (sums of Table 8).")]
PeakTflops = Annotated[float | None, typer.Option(help="Peak dense matrix rate, in place of the GPU's.")]
BandwidthTbs = Annotated[float | None, typer.Option(help="Memory bandwidth in TB/s, in place of the GPU's.")]


@app.command()
def gpus(as_json: Json = False) -> None:
    """Known GPUs with the source of each figure, and what this machine has."""
    from tflabench import machine
    from tflabench.analysis import hardware

    here = machine.detect("auto")
    known = hardware.from_device_name(here.name)
    measured = {dtype: found for dtype in DTYPE_BYTES if (found := hardware.measured_ceilings(here.name, dtype))}
    if as_json:
        rates = {dtype: asdict(ceilings) for dtype, ceilings in measured.items()}
        device = asdict(here) | {"known_as": known and known.name, "measured": rates}
        _print_json({"known": [asdict(gpu) for gpu in hardware.KNOWN], "this_machine": device})
        return

    from rich.console import Console

    rows = [
        (
            gpu.name,
            f"{gpu.ceilings.flops_per_s / 1e12:g}",
            f"{gpu.ceilings.bytes_per_s / 1e12:g}",
            f"{gpu.ceilings.intensity:.0f}",
            f"{(gpu.memory_bytes or 0) / 1e9:g}",
            str(gpu.multiprocessors),
            f"{gpu.l2_bytes / 2**20:.0f}" if gpu.l2_bytes else "-",
        )
        for gpu in hardware.KNOWN
    ]
    console = Console()
    columns = ("GPU", "bf16 dense\nTFLOP/s", "bandwidth\nTB/s", "I_acc\nFLOP/B", "memory\nGB", "SMs", "L2\nMiB")
    console.print(_table(columns, rows))
    console.print("Sources, in the order: rate and bandwidth; multiprocessors and L2.", style="bold")
    for gpu in hardware.KNOWN:
        note = f". {gpu.note}" if gpu.note else ""
        console.print(f"{gpu.name}: {gpu.ceilings.source}; {gpu.source}{note}", highlight=False)
    console.print()
    kind = "no NVIDIA GPU" if here.kind == "cpu" else f"known as {known.name}" if known else "not in the list above"
    console.print(f"This machine: {here.name}, {here.memory_bytes / 2**30:.0f} GiB, {kind}.", highlight=False)
    for dtype, ceilings in measured.items():
        tflops, tbs = ceilings.flops_per_s / 1e12, ceilings.bytes_per_s / 1e12
        console.print(f"Measured, {dtype}: {tflops:.4g} TFLOP/s, {tbs:.3g} TB/s ({ceilings.source})", highlight=False)
    if not measured:
        console.print("Its ceilings are not measured yet: run tflabench calibrate.")


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
    as_json: Json = False,
) -> None:
    """The chunk size L with the least theoretical runtime, and what it costs to leave it.

    Measured optima lie lower, at 128 to 256 on an H100 (paper, App. G.4): the paper's model knows no pointwise units,
    launches or tile shapes. The calibrated model does, and its L is printed too (see tflabench model-error). Either
    curve is flat, so measure: tflabench sweep --preset chunk.
    """
    from tflabench.analysis import chunk_size as chunks

    problem = Problem(batch, heads, seq_len, d_qk, d_hv, dtype=dtype, pass_=pass_)  # type: ignore[arg-type]
    chip = _gpu(gpu, dtype, peak_tflops, bandwidth_tbs)
    tradeoff = chunks.Tradeoff(
        problem=problem,
        gate=_one_of("gate", gate, ("exp", "sig")),  # type: ignore[arg-type]
        ceilings=chip.ceilings,
        causal_factor=causal_factor,
        state_bytes=_dtype_bytes("state_dtype", state_dtype),
        counts=_one_of("counts", counts, ("published", "exact")),  # type: ignore[arg-type]
    )
    if tile is None:
        tile = min(64, 2 ** (seq_len.bit_length() - 1))
    chunks.check_tile(tile, seq_len)
    if chunk_size is not None:
        chunks.check_chunk_size(chunk_size, tile)
    budget = None if memory_budget is None else parse_bytes("memory_budget", memory_budget)
    recommended = tradeoff.recommend(tile, float("inf") if budget is None else budget)

    title = (
        f"mLSTM{gate} {_PASS_TITLES[pass_]} on {chip.name}: d_qk {d_qk}, d_hv {d_hv}, T {seq_len}, batch {batch}, "
        f"{heads} heads, {dtype}, states {state_dtype}, F_causal {causal_factor:g}, {counts} counts"
    )
    if plot:
        from tflabench.plots import theory

        theory.save(theory.runtime_over_chunk_size(tradeoff, recommended, title, budget), plot)
        print(f"wrote {plot}", file=sys.stderr)

    sizes = {2**n for n in range(4, seq_len.bit_length())} | {recommended} | ({chunk_size} if chunk_size else set())
    rows = [_at(tradeoff, size) for size in sorted(sizes)]
    best = _at(tradeoff, recommended)
    if as_json:
        _print_json(
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

    from tflabench.cli.sketch import sketch

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
    console.print(_table(("L", "ms lower", "ms upper", "FLOP/B", "bound by", "GiB", ""), table))
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


@app.command()
def roofline(
    gpu: Annotated[str | None, typer.Option(help="Names, comma-separated. Default: V100,A100,H100.")] = None,
    d_hv: Dhv = 512,
    d_qk: Dqk = 256,
    gate: Gate = "sig",
    chunk_size: Annotated[str, typer.Option(help="The L to mark: 64,128 or 16:4096:x4.")] = "16:4096:x4",
    causal_factor: CausalFactor = 0.5,
    state_dtype: StateDtype = "float32",
    dtype: Dtype = "bfloat16",
    pass_: Annotated[str, typer.Option("--pass", help="fw, or fwbw (forward and backward).")] = "fw",
    counts: CountsOption = "published",
    peak_tflops: PeakTflops = None,
    bandwidth_tbs: BandwidthTbs = None,
    overlay: Annotated[Path | None, typer.Option(help="Folder of a sweep: draw its measured rows.")] = None,
    out: Annotated[Path, typer.Option(help="File to draw: .png, .svg or .pdf.")] = Path("roofline.png"),
    as_json: Json = False,
) -> None:
    """Arithmetic intensity of chunk sizes against the rooflines of GPUs, with measured points laid over."""
    from tflabench.analysis.chunk_size import Tradeoff
    from tflabench.analysis.roofline import attainable, compute_bound
    from tflabench.plots import theory
    from tflabench.sweep import parse_values

    measured, devices = _measured_points(overlay) if overlay else ([], [])
    if gpu or peak_tflops or bandwidth_tbs:
        chips = [_gpu(name.strip() or None, dtype, peak_tflops, bandwidth_tbs) for name in (gpu or "").split(",")]
    else:
        chips = [_gpu(name, dtype) for name in devices or ("V100", "A100", "H100")]
    sizes = [size for size in parse_values("chunk_size", chunk_size) if isinstance(size, int)]
    if not sizes:
        raise InputError(f"chunk_size is {chunk_size!r}: it must name chunk sizes such as 64,128 or 16:4096:x4")
    problem = Problem(1, 1, max(sizes), d_qk, d_hv, dtype=dtype, pass_=pass_)  # type: ignore[arg-type]
    tradeoff = Tradeoff(
        problem,
        _one_of("gate", gate, ("exp", "sig")),  # type: ignore[arg-type]
        chips[0].ceilings,
        causal_factor,
        _dtype_bytes("state_dtype", state_dtype),
        _one_of("counts", counts, ("published", "exact")),  # type: ignore[arg-type]
    )
    costs = {size: tradeoff.cost(size) for size in sizes}
    title = (
        f"mLSTM{gate} {_PASS_TITLES[pass_]}: d_qk {d_qk}, d_hv {d_hv}, {dtype}, states {state_dtype}, "
        f"F_causal {causal_factor:g}"
    )
    theory.save(theory.roofline(chips, costs, title, measured), out)
    points = [
        {
            "gpu": chip.name,
            "chunk_size": size,
            "intensity": float(cost.intensity),
            "attainable_tflops": float(attainable(chip.ceilings, cost.intensity)) / 1e12,
            "bound": "compute" if compute_bound(cost, chip.ceilings) else "memory",
        }
        for chip in chips
        for size, cost in costs.items()
    ]
    if as_json:
        _print_json(
            {
                "file": str(out),
                "gpus": [asdict(chip) for chip in chips],
                "points": points,
                "measured": [point._asdict() for point in measured],
            }
        )
        return

    from rich.console import Console

    console = Console(highlight=False)
    console.print(title, style="bold")
    header = ("L", "FLOP/B", *(f"{chip.name}\nI_acc {chip.ceilings.intensity:.0f}" for chip in chips))
    rows = [
        (
            str(size),
            f"{cost.intensity:.0f}",
            *(f"{p['attainable_tflops']:.0f} {p['bound']}" for p in points if p["chunk_size"] == size),
        )
        for size, cost in costs.items()
    ]
    console.print(_table(header, rows))
    console.print("TFLOP/s that the roof allows at that intensity, and what bounds it.")
    print(f"wrote {out}", file=sys.stderr)


@app.command()
def theory(
    figures: Annotated[list[str] | None, typer.Argument(metavar="[FIGURE]...", help="fig15 to fig22, or all.")] = None,
    out: Annotated[Path, typer.Option(help="Folder to draw into.")] = Path("theory"),
    overlay: Annotated[Path | None, typer.Option(help="Results folder of a sweep: lay its rows over.")] = None,
    gate: Annotated[str, typer.Option(help="exp or sig, or both, comma-separated.")] = "exp,sig",
    pass_: Annotated[str, typer.Option("--pass", help="fw or fwbw, or both, comma-separated.")] = "fw,fwbw",
    format_: Annotated[str, typer.Option("--format", help="Any of png, svg, pdf, comma-separated.")] = "png",
) -> None:
    """Draw the figures of the paper's theory part, 15 to 22, for a gate and pass each; print the files written.

    FLOPs over L (15), L of fewest (16), theoretical runtime over L (17), intensity (18), roofline (19), FLOP/s, FLOPs
    and runtime over L (20), L of least runtime over d_hv (21) and over accelerator intensity (22).
    """
    from tflabench.plots import paper, theory
    from tflabench.store import read_rows

    wanted = [name for name in figures or ["all"] if name != "all"] or list(paper.FIGURES)
    for name in wanted:
        _one_of("figure", name, ("all", *paper.FIGURES))
    gates = [_one_of("gate", word.strip(), ("exp", "sig")) for word in gate.split(",")]
    passes = [_one_of("pass", word.strip(), ("fw", "fwbw")) for word in pass_.split(",")]
    formats = [_one_of("format", word.strip(), theory.FORMATS) for word in format_.split(",")]
    rows = read_rows(overlay) if overlay else None
    theory.make_folder(out)
    for name in wanted:
        for own_gate in gates:
            for own_pass in passes:
                figure = paper.FIGURES[name](own_gate, own_pass, rows)
                for suffix in formats:
                    theory.save(figure, out / f"{name}-{own_gate}-{own_pass}.{suffix}")
                    print(out / f"{name}-{own_gate}-{own_pass}.{suffix}")


@app.command("model-error")
def model_error(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A results folder, or one above several.")],
    out: Annotated[
        Path | None, typer.Option(help="Also draw into this folder: errors, and time by term over L.")
    ] = None,
    format_: Annotated[str, typer.Option("--format", help="Any of png, svg, pdf, comma-separated.")] = "png",
    as_json: Json = False,
) -> None:
    """How far the published and the calibrated model are from measured rows, and where the calibrated one is wrong.

    Published: eq. 116 on the datasheet's roofs. Calibrated: the kernels that run, launch by launch, under measured
    roofs; with --out every term of it is drawn over L, with what moves the best L.
    """
    from tflabench.analysis.calibrated import median_and_worst
    from tflabench.model_error import judge
    from tflabench.store import find_results

    formats = [_one_of("format", word.strip(), ("png", "svg", "pdf")) for word in format_.split(",")]
    verdict = judge(find_results(directory))
    groups: dict[tuple[str, str], list[Judged]] = {}
    for row in verdict.judged:
        groups.setdefault((row.implementation, row.problem.pass_), []).append(row)
    groups["all", ""] = list(verdict.judged)
    summary = [
        {"implementation": name, "pass": pass_, "rows": len(rows)}
        | {
            f"{model}_{kind}": value
            for n, model in enumerate(("published", "calibrated"))
            for kind, value in zip(("median", "worst"), median_and_worst(row.errors[n] for row in rows), strict=True)
        }
        for (name, pass_), rows in groups.items()
    ]
    if out:
        _draw_models(verdict, out, formats)
    if as_json:
        rows = [
            {"implementation": row.implementation, "algorithm": row.kernel.algorithm, **row.problem.columns()}
            | {
                "ms_measured": row.measured * 1e3,
                "ms_published": row.published * 1e3,
                "ms_calibrated": row.calibrated * 1e3,
            }
            | {"ms_by_term": {term: seconds * 1e3 for term, seconds in row.terms.items()}}
            for row in verdict.judged
        ]
        _print_json({"errors": summary, "rows": rows, "not_described": verdict.others})
        return

    from rich.console import Console

    console = Console(highlight=False)
    header = ("implementation", "pass", "rows", "published\nmedian", "\nworst", "calibrated\nmedian", "\nworst")
    table = [
        (
            str(row["implementation"]), str(row["pass"]), str(row["rows"]), f"{row['published_median']:.0%}",
            f"{row['published_worst']:+.0%}", f"{row['calibrated_median']:.0%}", f"{row['calibrated_worst']:+.0%}",
        )
        for row in summary
    ]  # fmt: skip
    console.print(_table(header, table))
    console.print("Absolute error of the predicted time; worst with its sign: + is predicted too slow.")
    for name, told in verdict.told_roofs().items():
        for roofs in told:
            console.print(f"{name.capitalize()} model, roofs: {roofs}")
    console.print("The calibrated model is furthest off at:", style="bold")
    for row in sorted(verdict.judged, key=lambda row: -abs(row.errors[1]))[:5]:
        p, most = row.problem, max(row.terms, key=row.terms.__getitem__)
        size = f"B={p.batch} T={p.seq_len} heads {p.heads}x{p.d_qk}/{p.d_hv} L={p.chunk_size}"
        times = f"{row.measured * 1e3:.3g} ms measured, {row.calibrated * 1e3:.3g} modelled ({row.errors[1]:+.0%})"
        console.print(f"  {row.implementation} {p.pass_} {size}: {times}, most of it {most}")
    if verdict.others:
        counts = ", ".join(f"{name} ({count})" for name, count in verdict.others.items())
        console.print(f"Rows that the calibrated model does not describe: {counts}")


def _draw_models(verdict: Verdict, out: Path, formats: Sequence[str]) -> None:
    from tflabench.plots import model, theory

    theory.make_folder(out)
    for stem, figure in [("model-error", model.errors(verdict)), *model.breakdowns(verdict)]:
        for suffix in formats:
            theory.save(figure, out / f"{stem}.{suffix}")
            print(f"wrote {out / stem}.{suffix}", file=sys.stderr)


_PASS_TITLES = {"fw": "forward", "fwbw": "forward and backward", "decode": "decode"}


def _gpu(name: str | None, dtype: str, peak_tflops: float | None = None, bandwidth_tbs: float | None = None) -> Gpu:
    """The GPU asked for: by name, by its ceilings, by name with a ceiling replaced; else this machine's, else H100."""
    from tflabench.analysis import hardware

    if name is None and (peak_tflops is None) != (bandwidth_tbs is None):
        given, lacking = (
            ("--peak-tflops", "--bandwidth-tbs") if bandwidth_tbs is None else ("--bandwidth-tbs", "--peak-tflops")
        )
        raise InputError(f"{given} is given without {lacking}: give both, or a --gpu that has the other")
    if name is None and peak_tflops is not None and bandwidth_tbs is not None:
        return hardware.custom(peak_tflops, bandwidth_tbs)
    chip = hardware.find(name) if name else _own_gpu(dtype) or hardware.find("H100")
    if peak_tflops is None and chip.ceilings.provenance != "measured" and dtype not in hardware.DATASHEET_DTYPES:
        print(f"note: the rate of {chip.name} is that of bfloat16; give --peak-tflops for {dtype}", file=sys.stderr)
    if peak_tflops is None and bandwidth_tbs is None:
        return chip
    own = chip.ceilings
    ceilings = hardware.custom(
        own.flops_per_s / 1e12 if peak_tflops is None else peak_tflops,
        own.bytes_per_s / 1e12 if bandwidth_tbs is None else bandwidth_tbs,
    ).ceilings
    return replace(chip, ceilings=ceilings)


def _own_gpu(dtype: str) -> Gpu | None:
    """This machine's GPU, with ceilings measured by `tflabench calibrate` or known; None without such a GPU."""
    from tflabench import machine
    from tflabench.analysis import hardware

    here = machine.detect("auto")
    ceilings = hardware.ceilings_for(here.name, dtype) if here.kind == "cuda" else None
    if ceilings is None:
        return None
    gpu = hardware.from_device_name(here.name) or hardware.Gpu(here.name, ceilings, here.memory_bytes)
    return replace(gpu, ceilings=ceilings)


def _calibrated(problem: Problem, gate: str, chip: Gpu, tile: int) -> dict[str, Any] | None:
    """The best L of the bundled Triton kernels by the calibrated model, among powers of two from a tile to T; None
    where it knows too little of the chip, or the inputs are not 16 bits wide.
    """
    from tflabench.analysis.calibrated import Modelled, predict
    from tflabench.analysis.launches import Chip

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
    from tflabench.analysis import fused

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


def _measured_points(folder: Path) -> tuple[list[Measured], list[str]]:
    """Rows of a sweep that have a time and a cost, and the names of the GPUs they ran on."""
    file = folder / "rows.parquet"
    if not file.is_file():
        raise InputError(f"--overlay is {folder}: it must be the folder of a sweep, and has no rows.parquet")
    import pandas as pd

    from tflabench.analysis import hardware
    from tflabench.plots.theory import Measured

    needed = ["implementation", "device", "status", "ms_median", "model_flops", "model_bytes"]
    try:
        rows = pd.read_parquet(file)
    except Exception as error:  # pyarrow's, of many kinds
        raise InputError(f"cannot read {file}: {error}") from None
    if lacking := [column for column in needed if column not in rows]:
        raise InputError(f"{file} lacks the columns {', '.join(lacking)}: it was written by another version")
    rows = rows[(rows["status"] == "ok") & rows[needed].notna().all(axis="columns")]
    points = [
        Measured(str(name), float(flops) / float(moved), float(flops) / (float(ms) * 1e-3))
        for name, flops, moved, ms in zip(
            rows["implementation"], rows["model_flops"], rows["model_bytes"], rows["ms_median"], strict=True
        )
    ]
    known = [hardware.from_device_name(str(device)) for device in dict.fromkeys(rows["device"])]
    return points, [gpu.name for gpu in known if gpu]


def _at(tradeoff: Tradeoff, size: int) -> dict[str, Any]:
    """One row of the table of chunk sizes."""
    from tflabench.analysis.roofline import compute_bound

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


def _one_of(name: str, value: str, allowed: Sequence[str]) -> str:
    if value in allowed:
        return value
    near = difflib.get_close_matches(value, allowed, n=1, cutoff=0.4)
    hint = f" (did you mean {near[0]}?)" if near else ""
    raise InputError(f"{name} is {value!r}: it must be one of {', '.join(allowed)}{hint}")


def _dtype_bytes(name: str, dtype: str) -> int:
    return DTYPE_BYTES[_one_of(name, dtype, tuple(DTYPE_BYTES))]


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Any:
    """A plain rich table, the first column flushed left and the rest right."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _print_json(value: dict[str, Any]) -> None:
    print(json.dumps(value, indent=2))
