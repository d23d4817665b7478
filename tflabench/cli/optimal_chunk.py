"""The command that finds the chunk size of least theoretical runtime: optimal-chunk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from tflabench.bench.machine import chosen_gpu
from tflabench.cli.common import app, options
from tflabench.cli.common.console import RenderableType, emit
from tflabench.conclusions.tables import FittedTable, TableColumn
from tflabench.problem import PASS_TITLES, Problem, dtype_bytes, one_of, size_in_words
from tflabench.selection.axes import parse_values

if TYPE_CHECKING:
    from tflabench.theory.chunk_size import Tradeoff
    from tflabench.theory.hardware import Gpu

WIDTHS = "Head dimension of values and states; several, comma-separated, make one table."
Widths = Annotated[str, options.option(options.PROBLEM, "N", WIDTHS, "--d-hv")]
GPUS = "Take this GPU of `tflabench gpus`, or that of a .toml file; several, comma-separated, make one table."
Gpus = Annotated[
    str | None,
    options.option(
        options.CHIP, "NAMES", GPUS, autocompletion=options.complete_gpus, show_default="this machine's, else H100"
    ),
]
LEAST_SHOWN, MOST_SHOWN = 1 / 8, 8  # of the recommended L, in the table


@app.command("optimal-chunk")
def optimal_chunk(  # noqa: PLR0913  options
    d_qk: options.Dqk = 256,
    d_hv: Widths = "512",
    heads: options.Heads = 8,
    seq_len: options.SeqLen = 8192,
    batch: options.Batch = 8,
    pass_: options.Pass = "fw",
    dtype: options.Dtype = "bfloat16",
    gate: options.Gate = "sig",
    memory_budget: options.MemoryBudget = None,
    gpu: Gpus = None,
    causal_factor: options.CausalFactor = 0.5,
    state_dtype: options.StateDtype = "float32",
    counts: options.CountsName = "published",
    as_json: options.Json = False,
) -> None:
    """Give the chunk size L of least theoretical runtime, and the kernel of ours that would run.

    Measured optima lie lower, at 128 to 256 on an H100 (paper, App. G.4): the paper's model knows no pointwise units
    and no tile shapes, and takes a call for one kernel. The calibrated model, which chooses L for our Triton kernels,
    knows them. Either curve is flat, so measure: tflabench sweep --preset chunk.
    """
    from tflabench.theory import chunk_size as chunks
    from tflabench.theory.cost import GATES

    widths = [int(width or 0) for width in parse_values("d_hv", d_hv)]
    chips = [chosen_gpu(name, dtype) for name in (options.words(gpu) if gpu else [None])]
    kind: Any = one_of("gate", gate, GATES)
    counts = one_of("counts", counts, ("published", "exact"))
    if GATES[gate].published is None:
        counts = "exact"
    state_bytes = dtype_bytes("state_dtype", state_dtype)
    sizes = {"d_qk": d_qk, "dtype": dtype, "pass_": pass_}
    problems = [Problem(batch, heads, seq_len, d_hv=width, **sizes) for width in widths]  # type: ignore[arg-type]
    given = [
        (chip, chunks.Tradeoff(problem, kind, chip.ceilings, causal_factor, state_bytes, counts))  # type: ignore[arg-type]
        for chip in chips
        for problem in problems
    ]
    setting = (
        f"T {seq_len}, batch {batch}, {heads} heads, {dtype}, states {state_dtype}, F_causal {causal_factor:g}, "
        f"{counts} counts"
    )
    if len(given) > 1:
        best = [(chip, tradeoff, tradeoff.recommend(memory_budget)) for chip, tradeoff in given]
        lines = [
            {"gpu": chip.name, "d_hv": of.problem.d_hv, "runtime_optimal": of.runtime_optimal}
            | {"within_5_percent": list(of.within()), **_at(of, size)}
            for chip, of, size in best
        ]
        title = f"{GATES[kind].title} {PASS_TITLES[pass_]}: d_qk {d_qk}, {setting}. The best power of two:"
        emit(lines, [title, _table_of_best(lines)], as_json)
        return
    ((chip, tradeoff),) = given
    title = f"{GATES[kind].title} {PASS_TITLES[pass_]} on {chip.name}: d_qk {d_qk}, d_hv {widths[0]}, {setting}"
    document = _document(chip, tradeoff, tradeoff.recommend(memory_budget)) | {"memory_budget_bytes": memory_budget}
    emit(document, _text(title, tradeoff, document), as_json)


def _document(chip: Gpu, tradeoff: Tradeoff, recommended: int) -> dict[str, Any]:
    """Return the answer for one GPU and problem, as --json prints it but for the memory budget."""
    from tflabench.conclusions.advise import kernel_of_ours
    from tflabench.theory.chunk_size import chunk_sizes

    problem = tradeoff.problem
    sizes, best = chunk_sizes(problem.seq_len), _at(tradeoff, recommended)
    return {
        "flop_optimal": tradeoff.flop_optimal,
        "runtime_optimal": tradeoff.runtime_optimal,
        "overlapped_optimal": tradeoff.overlapped_optimal,
        "recommended": recommended,
        "within_5_percent": list(tradeoff.within()),
        "predicted_ms_lower": best["ms_lower"],
        "predicted_ms_upper": best["ms_upper"],
        "memory_bytes": best["memory_bytes"],
        "tile": sizes[0],
        "gate": tradeoff.gate,
        "problem": asdict(problem),
        "gpu": asdict(chip),
        "kernel": kernel_of_ours(problem, tradeoff.gate, chip, recommended),
        "chunk_sizes": [_at(tradeoff, size) for size in sizes],
        "counts": tradeoff.counts,
        "causal_factor": tradeoff.causal_factor,
        "state_bytes": tradeoff.state_bytes,
    }


def _table_of_best(lines: Sequence[dict[str, Any]]) -> FittedTable:
    """Return a row a GPU and head dimension, with its best L."""
    columns = [
        TableColumn("GPU", "gpu"),
        TableColumn("d_hv", "d_hv", "d"),
        TableColumn("L", "chunk_size", "d"),
        TableColumn("ms lower", "ms_lower", ".3g"),
        TableColumn("ms upper", "ms_upper", ".3g"),
        TableColumn("memory", lambda line: size_in_words(line["memory_bytes"]), ">", drop=1),
        TableColumn("optimum", "runtime_optimal", ".1f"),
        TableColumn("within 5%", lambda line: "{} to {}".format(*line["within_5_percent"]), ">", drop=2),
    ]
    return FittedTable(columns, lines)


def _text(title: str, tradeoff: Tradeoff, document: dict[str, Any]) -> Iterator[RenderableType]:
    """Yield the answer in one sentence, a table of chunk sizes, and the optima by equation."""
    from rich.text import Text

    from tflabench.theory.cost import GATES

    recommended, rows = document["recommended"], document["chunk_sizes"]
    fits = "" if document["memory_budget_bytes"] is None else " that fit"
    yield Text(
        f"Of the powers of two{fits}, L = {recommended} takes the least upper time in theory on "
        f"{document['gpu']['name']}: {document['predicted_ms_lower']:.3g} to {document['predicted_ms_upper']:.3g} ms, "
        f"{size_in_words(document['memory_bytes'])}; {_ours(document['kernel'])}.",
        style="bold green",
    )
    yield f"\n{title}"
    near = [row for row in rows if LEAST_SHOWN <= row["chunk_size"] / recommended <= MOST_SHOWN]
    yield _table(tradeoff, near, recommended)
    ceilings = tradeoff.ceilings
    yield (
        f"{ceilings.flops_per_s / 1e12:g} TFLOP/s, {ceilings.bytes_per_s / 1e12:g} TB/s, "
        f"I_acc {ceilings.intensity:.1f} FLOP/B ({ceilings.provenance}: {ceilings.source})"
    )
    low, high = tradeoff.within()
    gate, counted = GATES[tradeoff.gate], (tradeoff.problem.pass_, tradeoff.counts)
    # The paper prints it where it prints counts, and there is no normaliser.
    printed = gate.published and not gate.normalized and counted == ("fw", "published")
    eq_111, eq_121 = ("eq. 111", "eq. 121") if printed else ("as eq. 111", "as eq. 121")
    yield f"{f'fewest FLOPs ({eq_111})':30}L = {tradeoff.flop_optimal:.1f}"
    yield f"{f'least runtime ({eq_121})':30}L = {tradeoff.runtime_optimal:.1f}, within 5% from {low} to {high}"
    yield f"least runtime, all overlapped L = {tradeoff.overlapped_optimal:.1f}"


def _ours(kernel: dict[str, Any]) -> str:
    """Return which kernel of ours would run there, and what L is to it."""
    if not kernel["implementation"]:
        return f"no kernel of ours runs there ({kernel['refused']})"
    if count := kernel["segments"]:
        cut = f"it cuts T into {count} segments of {kernel['chunk_size']}" if count > 1 else "it takes T whole"
        return f"our {kernel['implementation']} needs no such L: {cut}"
    return f"our {kernel['implementation']} would run with L = {kernel['chunk_size']}"


def _table(tradeoff: Tradeoff, rows: Sequence[dict[str, Any]], recommended: int) -> FittedTable:
    """Return a row an L: time between bounds, intensity, memory, and which is recommended or within 5% of the least."""
    low, high = tradeoff.within()

    def mark(row: dict[str, Any]) -> str:
        near = "within 5%" if low <= row["chunk_size"] <= high else ""
        return "recommended" if row["chunk_size"] == recommended else near

    columns = [
        TableColumn("L", "chunk_size", "d"),
        TableColumn("ms lower", "ms_lower", ".3g"),
        TableColumn("ms upper", "ms_upper", ".3g"),
        TableColumn("FLOP/B", "intensity", ".0f", drop=2),
        TableColumn("bound by", "bound", ">", drop=1),
        TableColumn("memory", lambda row: size_in_words(row["memory_bytes"]), ">"),
        TableColumn("", mark, "<"),
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
