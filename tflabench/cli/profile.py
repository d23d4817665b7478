"""The command that looks into one point: profile."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tflabench.cli.common import app
from tflabench.cli.common.console import print_json
from tflabench.cli.common.options import HOW, MOST_CHOICES, OUTPUT, PROBLEM, WHAT, Device, JsonObject, Plugin
from tflabench.cli.common.paths import figure_to_write, file_to_write, out_file
from tflabench.problem import InputError, Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from tflabench.bench.profile.counters import KernelCounters
    from tflabench.bench.profile.point import Profile

# Of each kind of device, where options leave it open: the paper's Fig. 4 at T = 4096, and what a CPU does in a moment.
DEFAULTS: dict[str, dict[str, Any]] = {
    "cuda": {
        "impl": "tfla_sig_xl", "batch": 16, "heads": 16, "seq_len": 4096, "d_qk": 128, "d_hv": 256, "dtype": "bfloat16",
    },
    "cpu": {
        "impl": "reference_sig", "batch": 1, "heads": 2, "seq_len": 1024, "d_qk": 64, "d_hv": 128, "dtype": "float32",
    },
}  # fmt: skip
MOST_ROWS = 20  # of a table of operators


def _size(words: str, default: str, *names: str) -> Any:
    return typer.Option(*names, metavar="N", rich_help_panel=PROBLEM, help=words, show_default=default)


Implementation = Annotated[
    str | None,
    typer.Option(
        "--impl",
        metavar="NAME",
        rich_help_panel=WHAT,
        help="Profile this implementation.",
        show_default="tfla_sig_xl; CPU: reference_sig",
    ),
]
OwnDtype = Annotated[
    str | None,
    typer.Option(
        "--dtype",
        metavar="DTYPE",
        rich_help_panel=PROBLEM,
        help="Dtype of q, k, v and the gates.",
        show_default="bfloat16; CPU: float32",
    ),
]
AnyPass = Annotated[
    str, typer.Option("--pass", metavar="PASS", rich_help_panel=PROBLEM, help="Pass: fw, fwbw or decode.")
]
Calls = Annotated[
    int,
    typer.Option(
        min=1, max=MOST_CHOICES, metavar="N", rich_help_panel=HOW, help="Profile so many calls and show medians."
    ),
]
Counters = Annotated[
    bool,
    typer.Option("--counters/--no-counters", rich_help_panel=HOW, help="Read the chip's counters too, with ncu."),
]
ProfilerTimeout = Annotated[
    float,
    typer.Option(
        "--timeout",
        min=1,
        metavar="SECONDS",
        rich_help_panel=HOW,
        help="Stop the profiler after this time, and ncu after the same.",
    ),
]
Keep = Annotated[
    Path | None,
    typer.Option(metavar="FILE", rich_help_panel=OUTPUT, help="Keep what ncu wrote in this file."),
]


@app.command("profile")
def profile(  # noqa: PLR0913  options
    impl: Implementation = None,
    plugin: Plugin = None,
    seq_len: Annotated[int | None, _size("Sequence length T, in steps.", "4096; CPU: 1024")] = None,
    batch: Annotated[int | None, _size("Sequences of one call.", "16; CPU: 1")] = None,
    heads: Annotated[int | None, _size("Number of heads.", "16; CPU: 2")] = None,
    d_qk: Annotated[int | None, _size("Head dimension of queries and keys.", "128; CPU: 64", "--d-qk")] = None,
    d_hv: Annotated[int | None, _size("Head dimension of values and states.", "256; CPU: 128", "--d-hv")] = None,
    chunk_size: Annotated[int | None, _size("Chunk size L, in steps.", "the implementation's choice")] = None,
    dtype: OwnDtype = None,
    pass_: AnyPass = "fw",
    device: Device = "auto",
    calls: Calls = 7,
    count: Counters = True,
    timeout: ProfilerTimeout = 300.0,
    out: Annotated[Path | None, out_file("profile.png", "nothing is drawn")] = None,
    keep: Keep = None,
    as_json: JsonObject = False,
) -> None:
    """Show where one call spends its time, by GPU kernel, or on a CPU by operator of torch.

    With Nsight Compute it also shows the bytes and operations that the chip counted, and those of the model.
    """
    from tflabench.bench.machine import detect
    from tflabench.bench.profile import point as profiles
    from tflabench.implementations import registry
    from tflabench.selection.points import Point

    if out:
        out = figure_to_write(out, "profile.png")
    keep = file_to_write(keep, "ncu.csv", "--keep") if keep else None
    for name in plugin or ():
        registry.plug_in(name)
    machine = detect(device)
    sizes = {
        "seq_len": seq_len,
        "batch": batch,
        "heads": heads,
        "d_qk": d_qk,
        "d_hv": d_hv,
        "dtype": dtype,
        "impl": impl,
    }
    sizes = DEFAULTS[machine.kind] | {name: value for name, value in sizes.items() if value is not None}
    implementation, *more = registry.select(sizes.pop("impl"))
    if more:
        raise InputError(f"impl is {impl!r}, which matches {1 + len(more)} implementations: it must match one")
    if pass_ == "decode":
        sizes["seq_len"] = 1 if seq_len is None else seq_len
    problem = Problem(**sizes, chunk_size=chunk_size, pass_=pass_)  # type: ignore[arg-type]
    options = {"calls": calls, "count": count, "timeout_s": timeout, "plugins": plugin or (), "keep": keep}
    seen = profiles.profile(Point(implementation, problem), machine, **options)
    if out:
        from tflabench.figures.files import write_figure
        from tflabench.figures.profile import draw

        write_figure(draw(seen, _title(seen), [_footer(seen)]), out)
        print(f"wrote {out}", file=sys.stderr)
    if as_json:
        print_json(_json(seen))
        return
    _print(seen)


def _title(seen: Profile) -> str:
    p = seen.problem
    chunk = f", L = {p.chunk_size}" if p.chunk_size else ""
    return (
        f"{seen.point.implementation.title}, {p.pass_}: T = {p.seq_len}, batch {p.batch}, {p.heads} heads, "
        f"d_qk = {p.d_qk}, d_hv = {p.d_hv}{chunk}, {p.dtype}"
    )


def _footer(seen: Profile) -> str:
    words = [seen.machine.name, "time: torch profiler"]
    if seen.machine.kind == "cuda":
        words[1] += ", L2 flushed before each call"
    if seen.counted:
        words.append("counters: Nsight Compute, caches emptied before each kernel")
    return " · ".join(words)


def _print(seen: Profile) -> None:
    """Print the parts of the call, what was counted of its kernels, and both against the models."""
    from rich.console import Console

    console = Console(highlight=False)
    console = console if console.is_terminal else Console(highlight=False, width=120)
    console.print(_title(seen), style="bold")
    if seen.wrong:
        console.print(f"Its result is wrong: {seen.wrong}", style="bold red")
    console.print(_parts_table(seen))
    console.print(f"The whole call takes {seen.ms:.4g} ms, timed without the profiler.")
    if seen.total is not None:
        console.print(_counted_table(seen, seen.total))
        console.print("Counted by Nsight Compute with the caches emptied before each kernel.")
    if seen.pairs:
        console.print(_expected_table(seen))
        console.print("Model: the calibrated one, kernel by kernel; GFLOP of matrix products.")
    console.print(_sources_table(seen))
    ceilings = seen.ceilings
    console.print(
        "Model: Tables 8 and 9 of the paper, the backward derived from its section B.3; "
        f"at {ceilings.flops_per_s / 1e12:.4g} TFLOP/s and {ceilings.bytes_per_s / 1e12:.3g} TB/s "
        f"({ceilings.provenance}: {ceilings.source})."
    )
    if not seen.counted:
        console.print(f"No counters: {seen.why_not_counted}.")


def _parts_table(seen: Profile) -> Table:
    """Return a line a GPU kernel or operator, the longest first: launches, time and share."""
    from tflabench.figures.profile import PARTS, short

    parts = sorted(seen.parts, key=lambda part: -part["ms"])
    summed = sum(part["ms"] for part in parts)
    rows: list[tuple[str, ...]] = [
        (short(part["name"], 48), str(part["launches"]), f"{part['ms']:.4g}", f"{100 * part['ms'] / summed:.1f}%")
        for part in parts[:MOST_ROWS]
    ]
    if rest := parts[MOST_ROWS:]:
        spent = sum(part["ms"] for part in rest)
        rows.append((f"{len(rest)} others", "", f"{spent:.4g}", f"{100 * spent / summed:.1f}%"))
    rows.append(("sum", "", f"{summed:.4g}", ""))
    return _table((PARTS[seen.machine.kind], "launches", "ms", "share"), rows)


def _counted_table(seen: Profile, total: KernelCounters) -> Table:
    """Return a line a GPU kernel with its counters, and one for their sum."""
    from tflabench.figures.profile import short

    rows = [
        (
            short(kernel.name, 48),
            f"{kernel.ms:.4g}",
            _number(kernel.dram_bytes, 1e6),
            _number(kernel.dram_bytes and kernel.dram_bytes / kernel.ms * 1e3, 1e9),
            _number(kernel.tensor_flops, 1e9),
            _number(kernel.scalar_flops, 1e9),
            _number(kernel.intensity, 1),
        )
        for kernel in (*seen.counted, total)
    ]
    header = ("GPU kernel, counted", "ms", "DRAM\nMB", "GB/s", "tensor\nGFLOP", "float32\nGFLOP", "FLOP/B")
    return _table(header, rows)


def _expected_table(seen: Profile) -> Table:
    """Return a line a GPU kernel: what the calibrated model says, and what was counted."""
    from tflabench.figures.profile import short

    rows = [
        (
            short(counted.name, 48),
            expected.name,
            *(_number(value, 1) for value in (expected.ms, counted.ms)),
            *(_number(value, 1e6) for value in (expected.bytes, counted.dram_bytes)),
            *(_number(value, 1e9) for value in (expected.flops, counted.tensor_flops)),
        )
        for counted, expected in seen.pairs
    ]
    columns = [name for unit in ("ms", "MB", "GFLOP") for name in (f"{unit}\nmodel", "\ncounted")]
    return _table(("GPU kernel", "makes", *columns), rows)


def _sources_table(seen: Profile) -> Table:
    """Return bytes, FLOPs, intensity and time of the call by both models and as measured."""
    total, bounds = seen.total, seen.bounds
    sources = [("model", seen.model.bytes, seen.model.flops, f"{bounds.lower * 1e3:.4g} to {bounds.upper * 1e3:.4g}")]
    if seen.expected:
        ms, moved, flops = (sum(getattr(kernel, name) for kernel in seen.expected) for name in ("ms", "bytes", "flops"))
        sources.append(("calibrated\nmodel", moved, flops, f"{ms:.4g}"))
    sources.append(("measured", total and total.dram_bytes, total and total.flops, f"{seen.ms:.4g}"))
    rows = [
        ("DRAM bytes (MB)", *(_number(moved, 1e6) for _, moved, _, _ in sources)),
        ("FLOPs (GFLOP)", *(_number(flops, 1e9) for _, _, flops, _ in sources)),
        ("intensity (FLOP/B)", *(_number(flops and moved and flops / moved, 1) for _, moved, flops, _ in sources)),
        ("time (ms)", *(time for _, _, _, time in sources)),
    ]
    return _table(("", *(name for name, *_ in sources)), rows)


def _json(seen: Profile) -> dict[str, Any]:
    total = seen.total
    return {
        "implementation": seen.point.implementation.name,
        **seen.problem.columns(),
        "device": seen.machine.name,
        "ms_median": seen.ms,
        "wrong": seen.wrong,
        "parts": list(seen.parts),
        "counters": [asdict(kernel) | {"intensity": kernel.intensity} for kernel in seen.counted],
        "no_counters": seen.why_not_counted,
        "measured": total and {"bytes": total.dram_bytes, "flops": total.flops, "intensity": total.intensity},
        "model": {
            "bytes": float(seen.model.bytes),
            "flops": float(seen.model.flops),
            "intensity": float(seen.model.intensity),
            "ms_lower": float(seen.bounds.lower) * 1e3,
            "ms_upper": float(seen.bounds.upper) * 1e3,
        },
        "expected": [asdict(kernel) for kernel in seen.expected],
        "pairs": [[counted.name, expected.name] for counted, expected in seen.pairs],
        "ceilings": asdict(seen.ceilings),
    }


def _number(value: float | None, size: float) -> str:
    return "-" if value is None else f"{value / size:,.4g}"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table
