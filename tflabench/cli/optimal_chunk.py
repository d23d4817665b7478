"""The command that finds the chunk size of least theoretical runtime: optimal-chunk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tflabench.bench.gpu_choice import chosen_gpu
from tflabench.cli.common import app, options
from tflabench.cli.common.console import PASS_NAMES, emit, stdout
from tflabench.cli.common.paths import out_file, write_drawn
from tflabench.conclusions.tables import FittedTable, TableColumn
from tflabench.problem import Problem, dtype_bytes, one_of

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tflabench.theory.chunk_size import Tradeoff


LEAST_SHOWN, MOST_SHOWN = 1 / 8, 8  # of the recommended L: the table without --details
BESIDE_SKETCH = 21  # characters of its labels


TILE = "Tile of the kernel: L is a multiple of it."
Tile = Annotated[
    int | None,
    options.option(options.MODEL, "N", TILE, show_default="64, or less for a short T"),
]
Reported = Annotated[int | None, options.option(options.OUTPUT, "N", "Report this L too.")]
DETAILS = "Print every L, the optima of the paper's equations and of the kernels, and the curve."
Details = Annotated[bool, options.option(options.OUTPUT, None, DETAILS, "--details")]


@dataclass(frozen=True)
class _Answer:
    """The answer to a question.

    Attributes:
        title: the problem and the model, in one line.
        tile: of the kernel; L is a multiple of it.
        recommended: the L of least upper time within the budget.
        chunk_size: another L to report.
        document: all of it, as --json prints it.
    """

    title: str
    tradeoff: Tradeoff
    recommended: int
    chunk_size: int | None
    document: dict[str, Any]


@app.command("optimal-chunk")
def optimal_chunk(  # noqa: PLR0913  options
    d_qk: options.Dqk = 256,
    d_hv: options.Dhv = 512,
    heads: options.Heads = 8,
    seq_len: options.SeqLen = 8192,
    batch: options.Batch = 8,
    pass_: options.Pass = "fw",
    dtype: options.Dtype = "bfloat16",
    gate: options.Gate = "sig",
    memory_budget: options.MemoryBudget = None,
    gpu: options.GpuName = None,
    peak_tflops: options.PeakTflops = None,
    bandwidth_tbs: options.BandwidthTbs = None,
    causal_factor: options.CausalFactor = 0.5,
    state_dtype: options.StateDtype = "float32",
    tile: Tile = None,
    counts: options.CountsName = "published",
    chunk_size: Reported = None,
    details: Details = False,
    plot: Annotated[Path | None, out_file("optimal-chunk.png", "nothing is drawn")] = None,
    as_json: options.Json = False,
) -> None:
    """Give the chunk size L of least theoretical runtime, and the kernel of ours that would run.

    Measured optima lie lower, at 128 to 256 on an H100 (paper, App. G.4): the paper's model knows no pointwise units
    and no tile shapes, and takes a call for one kernel. The calibrated model knows them, and --details has its L.
    Either curve is flat, so measure: tflabench sweep --preset chunk.
    """
    from tflabench.conclusions import kernel_chunks
    from tflabench.theory import chunk_size as chunks
    from tflabench.theory.cost import GATES

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
    recommended = tradeoff.recommend(tile, float("inf") if memory_budget is None else memory_budget)

    title = (
        f"{GATES[kind].title} {PASS_NAMES[pass_]} on {chip.name}: d_qk {d_qk}, d_hv {d_hv}, T {seq_len}, "
        f"batch {batch}, {heads} heads, {dtype}, states {state_dtype}, F_causal {causal_factor:g}, {counts} counts"
    )
    if plot:
        from tflabench.figures.theory import runtime_over_chunk_size

        write_drawn(runtime_over_chunk_size(tradeoff, recommended, title, memory_budget), plot)

    kernels = kernel_chunks.optima(problem, gate, chip, tile, recommended)
    sizes = {2**n for n in range(4, seq_len.bit_length())} | {recommended} | ({chunk_size} if chunk_size else set())
    best = _at(tradeoff, recommended)
    document = {
        "flop_optimal": tradeoff.flop_optimal,
        "runtime_optimal": tradeoff.runtime_optimal,
        "overlapped_optimal": tradeoff.overlapped_optimal,
        "recommended": recommended,
        "within_5_percent": list(tradeoff.within()),
        "predicted_ms_lower": best["ms_lower"],
        "predicted_ms_upper": best["ms_upper"],
        "memory_bytes": best["memory_bytes"],
        "memory_budget_bytes": memory_budget,
        "tile": tile,
        "gate": gate,
        "problem": asdict(problem),
        "gpu": asdict(chip),
        **kernels,
        "chunk_sizes": [_at(tradeoff, size) for size in sorted(sizes)],
        "counts": counts,
        "causal_factor": causal_factor,
        "state_bytes": tradeoff.state_bytes,
    }
    answer = _Answer(title, tradeoff, recommended, chunk_size, document)
    emit(document, chain(_short(answer), _details(answer) if details else ()), as_json)


def _short(answer: _Answer) -> Iterator[RenderableType]:
    """Yield the answer in one sentence, then a small table."""
    from rich.text import Text

    document, tradeoff = answer.document, answer.tradeoff
    kernel, (low, high) = document["kernel"], tradeoff.within()
    ours = (
        f"our {kernel['implementation']} would run with L = {kernel['chunk_size']}"
        if kernel["implementation"]
        else f"no kernel of ours runs there ({kernel['refused']})"
    )
    fits = "" if document["memory_budget_bytes"] is None else " that fits"
    yield Text(
        f"L = {answer.recommended} takes the least time{fits} in theory on {document['gpu']['name']}: "
        f"{document['predicted_ms_lower']:.3g} to {document['predicted_ms_upper']:.3g} ms, "
        f"{document['memory_bytes'] / 2**30:.2f} GiB; {ours}.",
        style="bold green",
    )
    yield f"\n{answer.title}"
    yield _table(
        answer,
        [
            row
            for row in document["chunk_sizes"]
            if LEAST_SHOWN <= row["chunk_size"] / answer.recommended <= MOST_SHOWN
            or row["chunk_size"] == answer.chunk_size
        ],
    )
    yield f"The upper time is within 5% of its least from L = {low} to {high}; --details says more."


def _details(answer: _Answer) -> Iterator[RenderableType]:
    """Yield every L, the optima by equation and by kernel, and the curve."""
    from tflabench.cli.common.sketch import sketch
    from tflabench.theory.cost import GATES

    document, tradeoff = answer.document, answer.tradeoff
    ceilings, (low, high) = tradeoff.ceilings, tradeoff.within()
    yield (
        f"\n{ceilings.flops_per_s / 1e12:g} TFLOP/s, {ceilings.bytes_per_s / 1e12:g} TB/s, "
        f"I_acc {ceilings.intensity:.1f} FLOP/B ({ceilings.provenance}: {ceilings.source})"
    )
    yield _table(answer, document["chunk_sizes"])
    printed = GATES[tradeoff.gate].optimum_printed and (tradeoff.problem.pass_, tradeoff.counts) == ("fw", "published")
    eq_111, eq_121 = ("eq. 111", "eq. 121") if printed else ("as eq. 111", "as eq. 121")
    yield f"{f'fewest FLOPs ({eq_111})':30}L = {tradeoff.flop_optimal:.1f}"
    yield f"{f'least runtime ({eq_121})':30}L = {tradeoff.runtime_optimal:.1f}, within 5% from {low} to {high}"
    yield f"least runtime, all overlapped L = {tradeoff.overlapped_optimal:.1f}"
    if triton := document["calibrated"]:
        most = max(triton["ms_by_term"], key=triton["ms_by_term"].__getitem__)
        yield (
            f"{'bundled kernels, calibrated':30}L = {triton['chunk_size']}: {triton['predicted_ms']:.3g} ms, "
            f"most of it {most}"
        )
    if fused := document["fused"]:
        waves = ", ".join(f"{name} {waves:.2g}" for name, waves in fused["waves"].items())
        yield (
            f"{'fused kernels, all overlapped':30}L = {fused['chunk_size']}: {fused['predicted_ms_lower']:.3g} ms, "
            f"{fused['segments']} segment{'s' if fused['segments'] > 1 else ''}; waves of programs: {waves}"
        )
    yield ""
    console = stdout()
    yield from sketch(
        tradeoff,
        answer.recommended,
        width=min(60, console.width - BESIDE_SKETCH),
        ascii_only=console.options.ascii_only,
    )


def _table(answer: _Answer, rows: Sequence[dict[str, Any]]) -> FittedTable:
    """Return a row an L: time between bounds, intensity, memory."""
    low, high = answer.tradeoff.within()
    marks = {answer.chunk_size: "asked for", answer.recommended: "recommended"}

    def mark(row: dict[str, Any]) -> str:
        size = row["chunk_size"]
        return marks.get(size, "within 5%" if low <= size <= high else "")

    columns = [
        TableColumn("L", "chunk_size"),
        TableColumn("ms lower", "ms_lower", ".3g"),
        TableColumn("ms upper", "ms_upper", ".3g"),
        TableColumn("FLOP/B", "intensity", ".0f", drop=2),
        TableColumn("bound by", "bound", ">", drop=1),
        TableColumn("GiB", lambda row: row["memory_bytes"] / 2**30, ".2f"),
        TableColumn("", mark, ">"),
    ]
    return FittedTable(columns, rows)


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
