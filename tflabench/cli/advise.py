"""The command that answers which kernel and which chunk size: advise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

from tflabench.bench.machine import chosen_gpu
from tflabench.cli.common import app, options
from tflabench.cli.common.console import RenderableType, emit
from tflabench.conclusions.tables import FittedTable, TableColumn
from tflabench.problem import PASS_TITLES, InputError, Problem, size_in_words

if TYPE_CHECKING:
    from tflabench.conclusions.advise import Advice, Candidate

MOST_TOKENS = 2**36  # of a step
Sequences = Annotated[
    int | None,
    options.option(
        options.PROBLEM, "N", "Sequences of one call.", "--batch", show_default="8; with --tokens, the best"
    ),
]
GATES = "Any of exp and sig (mLSTM), simple_gla, gla, retention, mamba2, ..., comma-separated."
Gates = Annotated[str, options.option(options.PROBLEM, "GATES", GATES, "--gate")]
Layers = Annotated[int, options.option(options.PROBLEM, "N", "Layers that run the kernel.", max=options.MOST_CHOICES)]
Tokens = Annotated[
    int | None, options.option(options.PROBLEM, "N", "Choose the batch for a step of so many tokens.", max=MOST_TOKENS)
]
Budget = Annotated[
    int | None, options.memory(options.PROBLEM, options.BUDGET, "--memory-budget", show_default="all that the GPU has")
]
TOP = 10  # choices that are printed


@app.command("advise")
def advise(  # noqa: PLR0913  options
    d_qk: options.Dqk = 256,
    d_hv: options.Dhv = 512,
    heads: options.Heads = 8,
    seq_len: options.SeqLen = 8192,
    batch: Sequences = None,
    pass_: options.Pass = "fwbw",
    dtype: options.Dtype = "bfloat16",
    gate: Gates = "exp,sig",
    impl: options.Impl = None,
    layers: Layers = 1,
    tokens: Tokens = None,
    memory_budget: Budget = None,
    gpu: options.GpuName = None,
    plugin: options.Plugin = None,
    as_json: options.Json = False,
) -> None:
    """Rank kernels, chunk sizes and batches for a model, a GPU and its memory, by theory.

    A smaller chunk size is often faster, and takes memory for more states; memory buys batch size. The table ranks the
    choices by the time of a step and marks those on the frontier: no other is both smaller and faster.
    """
    from tflabench.conclusions import advise as advising
    from tflabench.theory import held_out

    if tokens is not None and batch is not None:
        raise InputError(f"batch is {batch} and tokens {tokens}: give one of them, --tokens chooses the batch")
    size = 8 if batch is None else batch
    problem = Problem(size, heads, seq_len, d_qk, d_hv, dtype=dtype, pass_=pass_)  # type: ignore[arg-type]
    chip = chosen_gpu(gpu, dtype)
    demand = advising.Demand(problem, layers, tokens, memory_budget or chip.memory_bytes)
    advice = advising.advice(demand, chip, options.words(gate), ",".join(impl) if impl else None)
    advice.require_fit()
    ranked = [advice.row(choice) for choice in advice.ranked]
    document = {
        "recommended": ranked[0],
        "ranked": ranked,
        "frontier": [advice.row(choice) for choice in advice.frontier],
        "refused": [asdict(refusal) for refusal in advice.refused],
        "never_run": not held_out.has_run_on(advice.gpu),
        "layers": demand.layers,
        "tokens": demand.tokens,
        "memory_budget_bytes": demand.memory_bytes,
        "problem": demand.problem.columns(),
        "gpu": asdict(advice.gpu),
        "notes": list(_notes(advice)),
    }
    emit(document, _text(advice, document), as_json)


def _notes(advice: Advice) -> Iterator[str]:
    """Yield in sentences where the numbers come from, and how well they are known."""
    from tflabench.theory import held_out

    chip, best, sources = advice.gpu, advice.ranked[0], sorted({choice.source for choice in advice.ranked})
    if not held_out.has_run_on(chip):
        unknown = " Its compute capability is not known: of what kernels refuse only sizes are checked."
        alone = f"Nothing was ever run on {held_out.with_article(chip.name)}: this is theory alone."
        yield alone + (unknown if chip.capability is None else "")
    predicted = f"{_name(best)}: predicted {best.call_s * 1e3:.3g} ms a call"
    if error := advice.error(best):
        rows = f"{error.rows} rows of {held_out.with_article(error.gpu)}, on which no constant was fitted"
        yield f"{predicted}, +-{error.median:.0%} ({rows}), worst {error.worst:+.0%}."
    else:
        yield f"{predicted}; no error of this model is stored."
    if best.outside:
        yield f"{_name(best)} is {best.outside}."
    if chip.note:
        yield f"Of the {chip.name}: {chip.note.rstrip('.')}."
    yield (
        f"Times: {' and '.join(sources)}, at {chip.ceilings.flops_per_s / 1e12:.4g} TFLOP/s and "
        f"{chip.ceilings.bytes_per_s / 1e12:.3g} TB/s ({chip.ceilings.provenance}: {chip.ceilings.source})."
    )
    if "published bound" in sources:
        yield "The published bound knows no pointwise work, no launches and no products that are made twice."
    yield "Memory: the kernels' tensors and what a forward keeps for its backward, by count; a model needs more."


def _name(choice: Candidate) -> str:
    size = choice.problem.chunk_size
    return f"{choice.kernel.name}, L = {size}" if size else choice.kernel.name


def _text(advice: Advice, document: dict[str, Any]) -> Iterator[RenderableType]:
    """Yield the choices in the order of their ranks, those that more memory buys, and where the numbers come from."""
    from rich.text import Text

    demand, frontier = advice.demand, document["frontier"]
    steps = demand.tokens is not None or demand.layers > 1

    def mark(row: dict[str, Any]) -> str:
        if not row["fits"]:
            return "does not fit"
        return "recommended" if row == document["recommended"] else "frontier" if row in frontier else ""

    def error(row: dict[str, Any]) -> str | None:
        return row["held_out_error"] and f"+-{row['held_out_error']['median']:.0%}"

    columns = [
        TableColumn("kernel", "implementation"),
        TableColumn("L", "chunk_size", ">"),
        TableColumn("batch", "batch", "d"),
        TableColumn("call\nms", "call_ms", ".4g", drop=1 if steps else 0),
        TableColumn("model's\nerror", error, ">", drop=3),
        TableColumn(
            "bounds\nms", lambda row: f"{row['model_ms_lower']:.3g} to {row['model_ms_upper']:.3g}", ">", drop=4
        ),
        *([TableColumn("calls", lambda row: row["calls"] * demand.layers, "d", drop=2)] if steps else []),
        *([TableColumn("step\nms", "step_ms", ".4g")] if steps else []),
        TableColumn("memory\nGiB", lambda row: row["memory_bytes"] / 2**30, ".2f"),
        TableColumn("largest\nbatch", "largest_batch", ">", drop=1),
        TableColumn("", mark, "<"),
    ]
    p = demand.problem
    size = f"batch {p.batch}" if demand.tokens is None else f"{demand.tokens:,} tokens a step"
    layers = f", {demand.layers} layers" if demand.layers > 1 else ""
    yield Text(
        f"{PASS_TITLES[p.pass_]} on {advice.gpu.name}: T = {p.seq_len}, {size}, {p.heads} heads, d_qk = {p.d_qk}, "
        f"d_hv = {p.d_hv}, {p.dtype}{layers}",
        style="bold",
    )
    yield FittedTable(columns, document["ranked"][:TOP])
    yield Text("The frontier: what more memory buys, in steps of more than 1% of the time.", style="bold")
    for choice in advice.frontier:
        yield (
            f"  {choice.memory_bytes / 2**30:7.2f} GiB  {choice.step_s * 1e3:9.4g} ms  "
            f"{_name(choice)}, batch {choice.problem.batch}"
        )
    if demand.memory_bytes:
        yield f"Memory allowed: {size_in_words(demand.memory_bytes)}; largest batch: what fits it."
    for name, group in groupby(advice.refused, key=lambda refusal: refusal.implementation):
        refused = list(group)
        sizes = ", ".join(str(refusal.chunk_size) for refusal in refused if refusal.chunk_size is not None)
        yield f"Left out: {name}{f' at L = {sizes}:' if sizes else ''} {refused[0].reason}."
    yield from document["notes"]
