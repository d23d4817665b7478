"""The command that answers which kernel and which chunk size: advise."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from tflabench.bench.gpu_choice import chosen_gpu
from tflabench.cli.common import app
from tflabench.cli.common.checks import words
from tflabench.cli.common.console import print_json
from tflabench.cli.common.options import (
    HOW,
    MOST_CHOICES,
    OUTPUT,
    PROBLEM,
    BandwidthTbs,
    Dhv,
    Dqk,
    Dtype,
    GpuName,
    Heads,
    Impl,
    JsonObject,
    Pass,
    PeakTflops,
    Plugin,
    SeqLen,
    Timeout,
)
from tflabench.cli.common.paths import figure_to_write, out_file
from tflabench.problem import DeviceKind, InputError, Problem, parse_bytes

if TYPE_CHECKING:
    from tflabench.bench.machine import Machine
    from tflabench.conclusions.advise import Advice, Choice, Refused
    from tflabench.theory.hardware import Ceilings, Gpu
    from tflabench.theory.held_out import ModelError


LONGEST_ON_CPU_S = 120
USUAL_CPU = (1.0, 0.1)  # TFLOP/s and TB/s: what to expect of one whose ceilings are not measured
LEAST_CALLS = 15  # of a measured choice: rounds, warm-ups, samples, check
FUSED_CAVEAT = (
    "For the fused kernels (hopper_*) this model is off by 9 to 10% in the median and by up to half "
    "(docs/decisions/2026-11-24-model-held-out.md): measure before you rely on it."
)


BOUND_CAVEAT = (
    "The calibrated model does not know tfla_gla_xl: its time is the paper's upper bound, which leaves out pointwise "
    "work, launches and products made twice."
)

Sequences = Annotated[
    int | None,
    typer.Option(
        "--batch",
        metavar="N",
        rich_help_panel=PROBLEM,
        help="Sequences of one call.",
        show_default="8; with --tokens, the best",
    ),
]
Gates = Annotated[
    str,
    typer.Option(
        "--gate",
        metavar="GATES",
        rich_help_panel=PROBLEM,
        help="Any of exp and sig (mLSTM), simple_gla, gla, retention, mamba2, ..., comma-separated.",
    ),
]
Layers = Annotated[
    int, typer.Option(max=MOST_CHOICES, metavar="N", rich_help_panel=PROBLEM, help="Layers that run the kernel.")
]
Tokens = Annotated[
    int | None,
    typer.Option(metavar="N", rich_help_panel=PROBLEM, help="Choose the batch for a step of so many tokens."),
]
Budget = Annotated[
    str | None,
    typer.Option(
        "--memory-budget",
        metavar="SIZE",
        rich_help_panel=PROBLEM,
        help="Take what fits into this much GPU memory, such as 8GiB.",
        show_default="all that the GPU has",
    ),
]
Measure = Annotated[
    bool, typer.Option("--measure", rich_help_panel=HOW, help="Measure the best choices on this machine.")
]
Top = Annotated[
    int,
    typer.Option(
        min=1,
        max=MOST_CHOICES,
        metavar="N",
        rich_help_panel=OUTPUT,
        help="Print, and with --measure measure, so many choices.",
    ),
]


class _Wanted(NamedTuple):
    """A request for advice, before the GPU is known.

    Attributes:
        budget: bytes of memory allowed; None for all that the GPU has.
        pattern: of implementations; None for the usual ones.
    """

    problem: Problem
    layers: int
    tokens: int | None
    budget: int | None
    gates: Sequence[str]
    pattern: str | None

    def advice(self, chip: Gpu, kind: DeviceKind) -> Advice:
        """Return all choices on a device, ranked by theory."""
        from tflabench.conclusions import advise as advising

        demand = advising.Demand(self.problem, self.layers, self.tokens, self.budget or chip.memory_bytes)
        return advising.advice(demand, chip, self.gates, kind, self.pattern)


class _Trial(NamedTuple):
    """The rules of measuring the best choices: how many, how long one call may take, and with which plugins."""

    top: int
    timeout: float
    plugins: Sequence[str]


@app.command("advise")
def advise(  # noqa: PLR0913  options
    d_qk: Dqk = 256,
    d_hv: Dhv = 512,
    heads: Heads = 8,
    seq_len: SeqLen = 8192,
    batch: Sequences = None,
    pass_: Pass = "fwbw",
    dtype: Dtype = "bfloat16",
    gate: Gates = "exp,sig",
    impl: Impl = None,
    layers: Layers = 1,
    tokens: Tokens = None,
    memory_budget: Budget = None,
    gpu: GpuName = None,
    peak_tflops: PeakTflops = None,
    bandwidth_tbs: BandwidthTbs = None,
    measure: Measure = False,
    timeout: Timeout = 120.0,
    top: Top = 10,
    plugin: Plugin = None,
    plot: Annotated[Path | None, out_file("advise.png", "nothing is drawn")] = None,
    as_json: JsonObject = False,
) -> None:
    """Rank kernels, chunk sizes and batches for a model, a GPU and its memory, by theory or by measurement.

    A smaller chunk size is often faster, and takes memory for more states; memory buys batch size. The table ranks the
    choices by the time of a step and marks those on the frontier: no other is both smaller and faster.
    """
    plot = figure_to_write(plot, "advise.png") if plot else None
    from tflabench.bench.machine import detect
    from tflabench.implementations import registry

    for name in plugin or ():
        registry.plug_in(name)
    if tokens is not None and batch is not None:
        raise InputError(f"batch is {batch} and tokens {tokens}: give one of them, --tokens chooses the batch")
    gates = _gates(gate)
    size = 8 if batch is None else batch
    problem = Problem(size, heads, seq_len, d_qk, d_hv, dtype=dtype, pass_=pass_)  # type: ignore[arg-type]
    here = detect("auto")
    budget = None if memory_budget is None else parse_bytes("memory_budget", memory_budget)
    wanted = _Wanted(problem, layers, tokens, budget, gates, ",".join(impl) if impl else None)
    if measure:
        if gpu is not None or peak_tflops or bandwidth_tbs:
            raise InputError("--measure measures what this machine has: leave out --gpu and its ceilings, or --measure")
        advice = _measured(wanted, here, _Trial(top, timeout, plugin or ()))
    else:
        advice = wanted.advice(chosen_gpu(gpu, dtype, peak_tflops, bandwidth_tbs), "cuda")
    _require_fit(advice)
    footer = _footer(advice, here, measure)
    if plot:
        _draw(advice, footer, plot)
    if as_json:
        print_json(_json(advice, footer))
        return
    _print(advice, top, footer)


def _gates(text: str) -> list[str]:
    """Return the gates and other linear RNNs that --gate names.

    Raises:
        InputError: one is not known.
    """
    from tflabench.conclusions.advise import computed

    gates = words(text)
    if wrong := [word for word in gates if word not in computed()]:
        raise InputError(f"gate is {wrong[0]!r}: it must be any of {', '.join(computed())}, comma-separated")
    return gates


def _require_fit(advice: Advice) -> None:
    """Raise InputError where no choice fits the memory, with what one sequence takes at least."""
    if advice.ranked[0].fits:
        return
    least = min(choice.memory_bytes / choice.problem.batch for choice in advice.ranked)
    raise InputError(
        f"nothing fits {_size(advice.demand.memory_bytes or 0)}: one sequence takes at least {_size(least)}; "
        "give a smaller batch, shorter sequences, fewer layers or more memory"
    )


def _draw(advice: Advice, footer: list[str], path: Path) -> None:
    """Draw the frontier of memory and time into a file."""
    from tflabench.figures.files import write_figure
    from tflabench.figures.memory_frontier import draw

    write_figure(draw(advice, _title(advice), footer), path)
    print(f"wrote {path}", file=sys.stderr)


def _measured(wanted: _Wanted, here: Machine, trial: _Trial) -> Advice:
    """Return advice for this machine's device, its best choices measured."""
    from tflabench.bench.protocol import SHORT
    from tflabench.bench.rules import Rules
    from tflabench.bench.station import Station
    from tflabench.conclusions import advise as advising
    from tflabench.theory import hardware

    dtype = wanted.problem.dtype
    if here.kind == "cpu":  # before a worker starts and measures its ceilings
        known = hardware.ceilings_for(here.name, dtype)
        ceilings = known or hardware.custom(*USUAL_CPU).ceilings
        _require_short(wanted.advice(_device(here, ceilings), here.kind), here, trial, assumed=known is None)
    with Station(here, Rules(SHORT, trial.timeout, jobs=0, plugins=trial.plugins)) as station:
        advice = wanted.advice(_device(here, station.ceilings([dtype])[dtype]), here.kind)
        seconds, count = _require_short(advice, here, trial)
        print(f"measuring {count} choices on {here.name}, at least {seconds:.0f} s", file=sys.stderr)

        def tell(choice: Choice) -> None:
            line = f"{_named(choice)}, batch {choice.problem.batch}: {choice.call_s * 1e3:.4g} ms"
            print(line, file=sys.stderr)

        return advising.measured(advice, station.measure_point, trial.top, tell)


def _device(here: Machine, ceilings: Ceilings) -> Gpu:
    """Return this machine's device with these ceilings, and the memory that it has."""
    from tflabench.theory import hardware

    known = hardware.from_device_name(here.name) or hardware.Gpu(here.name, ceilings)
    return replace(known, ceilings=ceilings, memory_bytes=here.memory_bytes)


def _require_short(advice: Advice, here: Machine, trial: _Trial, assumed: bool = False) -> tuple[float, int]:
    """Return the least seconds that measuring takes and the number of choices.

    Args:
        assumed: the ceilings are those of USUAL_CPU.

    Raises:
        InputError: on a CPU, it takes more than LONGEST_ON_CPU_S or half of the memory.
    """
    chosen = [choice for choice in advice.ranked if choice.fits][: trial.top]
    seconds = sum(min(LEAST_CALLS * choice.call_s, trial.timeout) for choice in chosen)
    memory = max((choice.memory_bytes for choice in chosen), default=0.0)
    if here.kind == "cpu" and (seconds > LONGEST_ON_CPU_S or memory > here.memory_bytes / 2):
        guess = f" (if it has {USUAL_CPU[0]:g} TFLOP/s; tflabench calibrate measures that)" if assumed else ""
        raise InputError(
            f"--measure would take {seconds / 60:.0f} min or more{guess} and {_size(memory)} of "
            f"{_size(here.memory_bytes)} on this CPU: "
            "give a smaller problem, such as --dtype float32 --batch 1 --heads 2 --seq-len 512"
        )
    return seconds, len(chosen)


def _title(advice: Advice) -> str:
    demand, p = advice.demand, advice.demand.problem
    size = f"batch {p.batch}" if demand.tokens is None else f"{demand.tokens:,} tokens a step"
    layers = f", {demand.layers} layers" if demand.layers > 1 else ""
    passes = {"fw": "forward", "fwbw": "forward + backward"}[p.pass_]
    return (
        f"{passes} on {advice.gpu.name}: T = {p.seq_len}, {size}, {p.heads} heads, d_qk = {p.d_qk}, d_hv = {p.d_hv}, "
        f"{p.dtype}{layers}"
    )


def _footer(advice: Advice, here: Machine, measured: bool) -> list[str]:
    """Return in sentences where the numbers come from."""
    from tflabench.theory import hardware

    chip, sources = advice.gpu, sorted({choice.source for choice in advice.ranked})
    known = hardware.from_device_name(here.name)
    is_here = here.kind == "cuda" and known is not None and known.name == chip.name
    ceilings = (
        f"{chip.ceilings.flops_per_s / 1e12:.4g} TFLOP/s and {chip.ceilings.bytes_per_s / 1e12:.3g} TB/s "
        f"({chip.ceilings.provenance}: {chip.ceilings.source})"
    )
    if measured:
        return [f"Times and peak memory of a call are measured here, on {here.name}."]
    where = f"{chip.name} is here: --measure measures." if is_here else f"{chip.name} is not here: all this is theory."
    return [
        where,
        *_never_run(advice),
        *_recommendation(advice),
        *([f"Of the {chip.name}: {chip.note.rstrip('.')}."] if chip.note else []),
        f"Times: {' and '.join(sources)}, at {ceilings}.",
        *([BOUND_CAVEAT] if any(choice.kernel.name == "tfla_gla_xl" for choice in advice.ranked) else []),
        *([FUSED_CAVEAT] if any(choice.kernel.algorithm == "fused" for choice in advice.ranked) else []),
        "Memory: the kernels' tensors and what a forward keeps for its backward, by count; a model needs more.",
    ]


def _never_run(advice: Advice) -> list[str]:
    """Say so of a GPU kind of which no row is stored, and what is not known of one that is given by its ceilings."""
    from tflabench.theory import held_out

    if held_out.has_run_on(advice.gpu):
        return []
    told = f"Nothing was ever run on {held_out.with_article(advice.gpu.name)}: this is theory alone."
    if advice.gpu.capability is None:
        told += " Its compute capability is not known: of what kernels refuse only sizes are checked."
    return [told]


def _recommendation(advice: Advice) -> list[str]:
    """Return the first choice's time with the model's error, and why it is outside of its bounds where it is."""
    from tflabench.theory import held_out

    best = advice.ranked[0]
    name, algorithm = _named(best), best.kernel.algorithm
    error = advice.error(best)
    if error is None or algorithm is None:
        known = f"{name}: predicted {best.call_s * 1e3:.3g} ms a call; no held-out error of this model is stored."
    else:
        others = held_out.in_sample_error(algorithm)
        known = f"{name}: predicted {best.call_s * 1e3:.3g} ms a call, +-{_error(error)}, worst {error.worst:+.0%}."
        if others:
            known += (
                f" On {held_out.with_article(others.gpu)}, where its one constant was fitted, the median error is "
                f"{others.median:.0%} ({others.rows} rows, of more shapes)."
            )
    return [known, *([f"{name} is {best.outside}."] if best.outside else [])]


def _named(choice: Choice) -> str:
    size = choice.problem.chunk_size
    return f"{choice.kernel.name}, L = {size}" if size else choice.kernel.name


def _error(error: ModelError) -> str:
    from tflabench.theory.held_out import with_article

    return f"{error.median:.0%} (held out: {error.rows} rows of {with_article(error.gpu)})"


def _left_out(advice: Advice) -> list[str]:
    """Return a line an implementation: its chunk sizes that were left out, and the reason at the first of them."""
    found: dict[str, list[Refused]] = {}
    for each in advice.refused:
        found.setdefault(each.implementation, []).append(each)
    lines = []
    for name, several in found.items():
        sizes = ", ".join(str(each.chunk_size) for each in several if each.chunk_size is not None)
        lines.append(f"Left out: {name}{f' at L = {sizes}:' if sizes else ''} {several[0].reason}.")
    return lines


def _print(advice: Advice, top: int, footer: list[str]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    demand, best = advice.demand, advice.ranked[0]
    console = Console(highlight=False)
    console = console if console.is_terminal else Console(highlight=False, width=120)
    console.print(_title(advice), style="bold")
    steps = demand.tokens is not None or demand.layers > 1
    efficient = {id(choice) for choice in advice.frontier}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    columns = ["kernel", "L", "batch", "call\nms", "held-out\nerror", "bounds\nms", ""]
    columns += ["calls", "step\nms"] if steps else []
    for column in [*columns, "memory\nGiB", "largest\nbatch", ""]:
        table.add_column(column, justify="left" if column in ("kernel", "") else "right", no_wrap=True)
    for choice in advice.ranked[:top]:
        mark = "recommended" if choice is best else "frontier" if id(choice) in efficient else ""
        table.add_row(
            choice.kernel.name,
            str(choice.problem.chunk_size or "-"),
            str(choice.problem.batch),
            f"{choice.call_s * 1e3:.4g}",
            f"+-{error.median:.0%}" if (error := advice.error(choice)) else "-",
            f"{choice.bounds.lower * 1e3:.3g} to {choice.bounds.upper * 1e3:.3g}",
            _side(choice),
            *([str(choice.calls * demand.layers), f"{choice.step_s * 1e3:.4g}"] if steps else []),
            f"{choice.memory_bytes / 2**30:.2f}",
            "-" if choice.largest_batch is None else str(choice.largest_batch),
            mark if choice.fits else "does not fit",
        )
    console.print(table)
    console.print("The frontier: what more memory buys, in steps of more than 1% of the time.", style="bold")
    for choice in advice.frontier:
        p = choice.problem
        console.print(
            f"  {choice.memory_bytes / 2**30:7.2f} GiB  {choice.step_s * 1e3:9.4g} ms  "
            f"{_named(choice)}, batch {p.batch}"
        )
    if demand.memory_bytes:
        console.print(f"Memory allowed: {_size(demand.memory_bytes)}; largest batch: what fits it.")
    for sentence in [*_left_out(advice), *footer]:
        console.print(sentence)


def _side(choice: Choice) -> str:
    """Return on which side of its bounds a time is, "" where it is between them."""
    if choice.outside is None:
        return ""
    return "above" if choice.call_s > choice.bounds.upper else "below"


def _size(count: float) -> str:
    return f"{count / 2**30:.3g} GiB" if count >= 2**30 else f"{count / 2**20:.3g} MiB"


def _json(advice: Advice, footer: list[str]) -> dict[str, Any]:
    from tflabench.theory import held_out

    demand = advice.demand
    return {
        "recommended": _row(advice, advice.ranked[0]),
        "ranked": [_row(advice, choice) for choice in advice.ranked],
        "frontier": [_row(advice, choice) for choice in advice.frontier],
        "refused": [asdict(each) for each in advice.refused],
        "never_run": advice.ranked[0].source != "measured" and not held_out.has_run_on(advice.gpu),
        "layers": demand.layers,
        "tokens": demand.tokens,
        "memory_budget_bytes": demand.memory_bytes,
        "problem": demand.problem.columns(),
        "gpu": asdict(advice.gpu),
        "notes": footer,
    }


def _row(advice: Advice, choice: Choice) -> dict[str, Any]:
    error = advice.error(choice)
    return {
        "implementation": choice.kernel.name,
        "gate": choice.kernel.gate,
        "chunk_size": choice.problem.chunk_size,
        "batch": choice.problem.batch,
        "call_ms": choice.call_s * 1e3,
        "source": choice.source,
        "held_out_error": asdict(error) if error else None,
        "model_ms_lower": float(choice.bounds.lower) * 1e3,
        "model_ms_upper": float(choice.bounds.upper) * 1e3,
        "outside_bounds": choice.outside,
        "calls": choice.calls,
        "step_ms": choice.step_s * 1e3,
        "memory_bytes": choice.memory_bytes,
        "largest_batch": choice.largest_batch,
        "fits": choice.fits,
    }
