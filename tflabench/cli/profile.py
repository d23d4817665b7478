"""The command that looks into one point: profile."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from tflabench.cli.common import app, options
from tflabench.cli.common.console import RenderableType, emit
from tflabench.conclusions.tables import FittedTable, TableColumn

if TYPE_CHECKING:
    from tflabench.bench.profile.counters import KernelCounters
    from tflabench.bench.profile.point import Profile

MOST_ROWS = 20  # of a table of operators
LONGEST_NAME = 48  # characters of a kernel's
NUMBER = ",.4g"
TORCH_KERNEL = re.compile(r"\b(\w*[Ff]unctor\w*|\w+_kernel_(?:cuda|impl))\b")


def _size(line: str, default: str, *names: str) -> Any:
    return options.option(options.PROBLEM, "N", line, *names, show_default=default)


ImplName = Annotated[
    str | None,
    options.option(
        options.WHAT, "NAME", "Profile this implementation.", "--impl", show_default="tfla_sig_xl; CPU: reference_sig"
    ),
]
DtypeHere = Annotated[
    str | None,
    options.option(
        options.PROBLEM, "DTYPE", "Dtype of q, k, v and the gates.", "--dtype", show_default="bfloat16; CPU: float32"
    ),
]
AnyPass = Annotated[str, options.option(options.PROBLEM, "PASS", "Pass: fw, fwbw or decode.", "--pass")]
CALLS = "Profile so many calls and show medians."
Calls = Annotated[int, options.option(options.HOW, "N", CALLS, min=1, max=options.MOST_CHOICES)]
COUNTERS = "Read the chip's counters too, with ncu."
Counters = Annotated[bool, options.option(options.HOW, None, COUNTERS, "--counters/--no-counters")]
PROFILER = "Stop the profiler after this time, and ncu after the same."
ProfilerTimeout = Annotated[float, options.seconds(options.HOW, PROFILER, "--timeout", least=1)]


@app.command("profile")
def profile(  # noqa: PLR0913  options
    impl: ImplName = None,
    plugin: options.Plugin = None,
    seq_len: Annotated[int | None, _size("Sequence length T, in steps.", "4096; CPU: 1024")] = None,
    batch: Annotated[int | None, _size("Sequences of one call.", "16; CPU: 1")] = None,
    heads: Annotated[int | None, _size("Number of heads.", "16; CPU: 2")] = None,
    d_qk: Annotated[int | None, _size("Head dimension of queries and keys.", "128; CPU: 64", "--d-qk")] = None,
    d_hv: Annotated[int | None, _size("Head dimension of values and states.", "256; CPU: 128", "--d-hv")] = None,
    chunk_size: Annotated[int | None, _size("Chunk size L, in steps.", "the implementation's choice")] = None,
    dtype: DtypeHere = None,
    pass_: AnyPass = "fw",
    device: options.Device = "auto",
    calls: Calls = 7,
    count: Counters = True,
    timeout: ProfilerTimeout = 300.0,
    as_json: options.Json = False,
) -> None:
    """Show where one call spends its time, by GPU kernel, or on a CPU by operator of torch.

    With Nsight Compute it also shows the bytes and operations that the chip counted, and those of the model.
    """
    from tflabench.bench.machine import detect
    from tflabench.bench.profile import point as profiles

    machine = detect(device)
    given = {
        "impl": impl, "batch": batch, "heads": heads, "seq_len": seq_len, "d_qk": d_qk, "d_hv": d_hv, "dtype": dtype,
    }  # fmt: skip
    point = profiles.chosen_point(machine, given, chunk_size=chunk_size, pass_=pass_)
    options = {"calls": calls, "count": count, "timeout_s": timeout, "plugins": plugin or ()}
    seen = profiles.profile(point, machine, **options)
    emit(_document(seen), _text(seen), as_json)


def _text(seen: Profile) -> Iterator[RenderableType]:
    """Yield the parts of the call, what was counted of its kernels, and both against the models."""
    from rich.text import Text

    p = seen.problem
    chunk = f", L = {p.chunk_size}" if p.chunk_size else ""
    yield Text(
        f"{seen.point.implementation.title}, {p.pass_}: T = {p.seq_len}, batch {p.batch}, {p.heads} heads, "
        f"d_qk = {p.d_qk}, d_hv = {p.d_hv}{chunk}, {p.dtype}",
        style="bold",
    )
    if seen.wrong:
        yield Text(f"Its result is wrong: {seen.wrong}", style="bold red")
    yield _parts_table(seen)
    yield f"The whole call takes {seen.ms:.4g} ms, timed without the profiler.\n"
    if seen.total is not None:
        yield _counted_table((*seen.counted, seen.total))
        yield "Counted by Nsight Compute with the caches emptied before each kernel.\n"
    yield _sources_table(seen)
    ceilings = seen.ceilings
    yield (
        "Model: Tables 8 and 9 of the paper, the backward derived from its section B.3; "
        f"at {ceilings.flops_per_s / 1e12:.4g} TFLOP/s and {ceilings.bytes_per_s / 1e12:.3g} TB/s "
        f"({ceilings.provenance}: {ceilings.source})."
    )
    if not seen.counted:
        yield f"No counters: {seen.why_not_counted}."


def _parts_table(seen: Profile) -> FittedTable:
    """Return a line a GPU kernel or operator, the longest first: launches, time and share."""
    parts = sorted(seen.parts, key=lambda part: -part["ms"])
    summed, rest = sum(part["ms"] for part in parts), parts[MOST_ROWS:]
    rows = [part | {"name": _short(part["name"])} for part in parts[:MOST_ROWS]]
    if rest:
        rows += [{"name": f"{len(rest)} others", "launches": None, "ms": sum(part["ms"] for part in rest)}]
    rows += [{"name": "sum", "launches": None, "ms": summed}]
    columns = [
        TableColumn("GPU kernel" if seen.machine.kind == "cuda" else "operator", "name"),
        TableColumn("launches", "launches", "d"),
        TableColumn("ms", "ms", ".4g"),
        TableColumn("share", lambda row: row["ms"] / summed, ".1%"),
    ]
    return FittedTable(columns, rows)


def _counted_table(kernels: Sequence[KernelCounters]) -> FittedTable:
    """Return a line a GPU kernel with its counters."""
    columns = [
        TableColumn("GPU kernel, counted", lambda kernel: _short(kernel.name)),
        TableColumn("ms", lambda kernel: kernel.ms, ".4g"),
        TableColumn("DRAM\nMB", lambda kernel: _in(1e6, kernel.dram_bytes), NUMBER),
        TableColumn("GB/s", lambda kernel: _in(kernel.ms * 1e6, kernel.dram_bytes), NUMBER, drop=2),
        TableColumn("tensor\nGFLOP", lambda kernel: _in(1e9, kernel.tensor_flops), NUMBER),
        TableColumn("float32\nGFLOP", lambda kernel: _in(1e9, kernel.scalar_flops), NUMBER, drop=1),
        TableColumn("FLOP/B", lambda kernel: kernel.intensity, NUMBER, drop=2),
    ]
    return FittedTable(columns, kernels)


def _sources_table(seen: Profile) -> FittedTable:
    """Return bytes, FLOPs, intensity and time of the call by both models and as measured."""
    model, total, bounds = seen.model, seen.total, seen.bounds
    sources: list[tuple[str, float | None, float | None, str]] = [
        ("model", float(model.bytes), float(model.flops), f"{bounds.lower * 1e3:.4g} to {bounds.upper * 1e3:.4g}"),
        ("measured", total and total.dram_bytes, total and total.flops, f"{seen.ms:.4g}"),
    ]
    if expected := seen.expected:
        sources.insert(1, ("calibrated model", expected.bytes, expected.flops, f"{expected.ms:.4g}"))
    columns = [
        TableColumn("", lambda source: source[0]),
        TableColumn("DRAM\nMB", lambda source: _in(1e6, source[1]), NUMBER),
        TableColumn("\nGFLOP", lambda source: _in(1e9, source[2]), NUMBER),
        TableColumn("\nFLOP/B", lambda source: source[1] and _in(source[1], source[2]), NUMBER, drop=1),
        TableColumn("time\nms", lambda source: source[3], ">"),
    ]
    return FittedTable(columns, sources)


def _short(name: str) -> str:
    """Return a kernel's name of at most LONGEST_NAME characters, without C++ namespaces and arguments.

    A kernel of torch is named by what it computes.
    """
    number = match[0] if (match := re.search(r" #\d+$", name)) else ""
    bare = name.removesuffix(number).removeprefix("void ")
    bare = bare.replace("<unnamed>::", "").replace("(anonymous namespace)::", "")
    if not bare.startswith(("aten::", "at::")):
        bare = bare.partition("<")[0].partition("(")[0]
    elif bare.startswith("at::"):
        computes = [word for word in TORCH_KERNEL.findall(bare) if word != "BinaryFunctor"]
        bare = computes[0] if computes else bare.partition("<")[0].partition("(")[0].split("::")[-1]
    room = LONGEST_NAME - len(number)
    return (bare if len(bare) <= room else bare[: room - 1] + "…") + number


def _in(unit: float, value: float | None) -> float | None:
    """Return a value in a unit; None where there is none."""
    return None if value is None else value / unit


def _document(seen: Profile) -> dict[str, Any]:
    """Return the profile as --json prints it."""
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
        "expected": seen.expected and seen.expected._asdict(),
        "ceilings": asdict(seen.ceilings),
    }
