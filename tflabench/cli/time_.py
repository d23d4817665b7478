"""The command that times one kernel at one shape: time."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tflabench.cli.common import app, options
from tflabench.cli.common.console import emit, stderr
from tflabench.cli.common.options import WHAT, option
from tflabench.conclusions.ratio import ratio
from tflabench.conclusions.tables import FittedTable, TableColumn
from tflabench.implementations import registry
from tflabench.problem import PASS_TITLES, InputError
from tflabench.selection.axes import parse_values, resolve

if TYPE_CHECKING:
    from tflabench.implementations.adapter import Implementation
    from tflabench.problem import DeviceKind, Problem
    from tflabench.rows.schema import Row
    from tflabench.selection.axes import Values

SIZES: tuple[str, ...] = ("batch", "heads", "seq_len", "d_qk", "d_hv")
KERNEL = "A function, as FILE.py:FUNCTION or MODULE:FUNCTION, or an implementation of `tflabench list`."
Kernel = Annotated[str, typer.Argument(metavar="KERNEL", help=KERNEL, show_default=False)]
OPERATION = "The operation of `tflabench.ops` that a function computes, such as mlstm_sig."
Operation = Annotated[str | None, option(WHAT, "NAME", OPERATION, "--op", show_default="none")]
SHAPE = "Sizes of the call; H is H_QK:H where q and k have fewer heads."
Shape = Annotated[str, option(WHAT, "B,H,T,d_qk,d_hv", SHAPE, "--shape")]
Pass = Annotated[str, option(WHAT, "PASS", "Take this pass: fw, fwbw or both.", "--pass")]


@app.command("time")
def time(
    kernel: Kernel,
    op: Operation = None,
    shape: Shape = "1,4,1024,64,64",
    dtype: options.Dtype = "bfloat16",
    pass_: Pass = "both",
    device: options.Device = "auto",
    timeout: options.Timeout = 300.0,
    json_: options.Json = False,
) -> None:
    """Check and time one kernel at one shape, in turn with ours that run here; nothing is kept.

    A function takes the tensors of its operation by name, each (B, H, T, ...): q, k, v, i, f for mlstm_sig. The exit
    code is 1 if it fails or its numbers are wrong.
    """
    from tflabench.bench.devices import Devices
    from tflabench.bench.machine import detect
    from tflabench.bench.protocol import Rules
    from tflabench.bench.request import Request
    from tflabench.bench.sweep import Listener, measure

    plugins = [f"{kernel}={op}"] if op else []
    name = kernel.rpartition(":")[2] if op else kernel
    if kernel.endswith(".py") or (op and ":" not in kernel):
        raise InputError(f"{kernel} is no function: name one, as in my_kernel.py:my_kernel --op mlstm_sig")
    if ":" in kernel and not op:
        raise InputError(f"{kernel} is a function: say what it computes, as in --op mlstm_sig")
    for plugin in plugins:
        registry.plug_in(plugin)
    axes = _axes(shape, dtype, pass_)
    kind = detect(device).kind
    problems = [resolve({axis: values[0] for axis, values in axes.items()} | {"pass": name}) for name in axes["pass"]]
    impl = registry.select(name)[0]
    if all(reasons := [impl.refuses(problem, kind) for problem in problems]):
        raise InputError(f"{name} cannot run here: {reasons[0]}")
    request = Request(axes=axes, patterns=[name, *_ours(impl, problems[0], kind)])
    rules = Rules(timeout_s=timeout, plugins=plugins)
    with tempfile.TemporaryDirectory() as folder, stderr().status(f"Measuring {', '.join(request.patterns or ())} ..."):
        rows = measure(request, Devices(device), rules, Path(folder), Listener(), resume=False).rows
    emit([row.columns() for row in rows], [_table(name, rows)], json_)
    if any(row.status != "ok" for row in rows if row.implementation == name):
        raise typer.Exit(1)


def _axes(shape: str, dtype: str, pass_: str) -> dict[str, Values]:
    """Return the axes of one shape; InputError if it is not five sizes."""
    sizes = [size.strip() for size in shape.split(",")]
    if len(sizes) != len(SIZES) or not all(re.fullmatch("[0-9:]+", size) for size in sizes):
        raise InputError(f"--shape is {shape!r}: it must be {','.join(SIZES)}, such as 16,16,4096,128,256")
    named = dict(zip(SIZES, sizes, strict=True))
    heads_qk, colon, named["heads"] = named["heads"].rpartition(":")
    if colon:
        named["heads_qk"] = heads_qk
    return {
        axis: parse_values(axis, text)
        for axis, text in {**named, "dtype": dtype, "pass": pass_, "chunk_size": "auto"}.items()
    }


def _ours(impl: Implementation, problem: Problem, kind: DeviceKind) -> list[str]:
    """Return the names of this project's other implementations of the same operation that run here."""
    wanted = registry.operation(impl.name, impl.gate)
    return [
        candidate.name
        for candidate in registry.ours_and_plugged()
        if registry.operation(candidate.name, candidate.gate) == wanted is not None
        and candidate.formulation in ("chunkwise", "fused")
        and candidate not in registry.plugged()
        and candidate.name != impl.name
        and not candidate.refuses(problem, kind)
    ]


def _table(name: str, rows: Sequence[Row]) -> FittedTable:
    """Return a line a row, with the ratio of the kernel's time to it."""
    kernels = {row.pass_: row for row in rows if row.implementation == name}

    def times(row: Row) -> str | None:
        """Return how many times as long as this row the kernel takes."""
        quotient = None if row.implementation == name else ratio(kernels[row.pass_], row)
        return quotient and f"{quotient.bound}{quotient.value:.2f} ± {quotient.margin:.2f}"

    columns = [
        TableColumn("pass", lambda row: PASS_TITLES[row.pass_]),
        TableColumn("implementation", lambda row: row.implementation),
        TableColumn("ms", lambda row: row.ms_median, ".4g"),
        TableColumn("20 to 80%", lambda row: row.ms_p20 and f"{row.ms_p20:.4g} to {row.ms_p80:.4g}", ">", drop=2),
        TableColumn("of bound", lambda row: row.percent_of_bound and f"{row.percent_of_bound:.0f}%", ">", drop=1),
        TableColumn(f"{name}\ntakes, times", times, ">"),
        TableColumn("error", lambda row: row.rel_error, ".1e", drop=1),
        TableColumn("", lambda row: row.status if row.status == "ok" else f"{row.status}: {row.reason}"),
    ]
    return FittedTable(columns, rows, lambda row: "" if row.status == "ok" else "red")
