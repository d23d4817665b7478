"""The command that lists known GPUs: gpus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from tflabench.cli.common import app, options
from tflabench.cli.common.console import RenderableType, emit
from tflabench.conclusions.tables import FittedTable, TableColumn
from tflabench.problem import DTYPE_BYTES

if TYPE_CHECKING:
    from tflabench.bench.machine import Machine
    from tflabench.theory.hardware import Ceilings, Gpu


@app.command("gpus")
def gpus(as_json: options.Json = False) -> None:
    """List known GPUs with the source of each figure, and what this machine has."""
    from tflabench.bench import machine
    from tflabench.theory import hardware

    here = machine.detect("auto")
    gpu = hardware.from_device_name(here.name)
    measured = {dtype: ceilings for dtype in DTYPE_BYTES if (ceilings := hardware.measured_ceilings(here.name, dtype))}
    device = asdict(here) | {
        "known_as": gpu and gpu.name,
        "measured": {dtype: asdict(ceilings) for dtype, ceilings in measured.items()},
    }
    document = {"known": [asdict(gpu) for gpu in hardware.KNOWN], "this_machine": device}
    emit(document, _text(here, gpu, measured), as_json)


def _text(here: Machine, gpu: Gpu | None, measured: Mapping[str, Ceilings]) -> Iterator[RenderableType]:
    """Yield the table of GPUs, the sources of its figures, and what this machine has."""
    from rich.text import Text

    from tflabench.theory import hardware

    columns = [
        TableColumn("GPU", lambda gpu: gpu.name),
        TableColumn("bf16\ndense\nTFLOP/s", lambda gpu: gpu.ceilings.flops_per_s / 1e12, "g"),
        TableColumn("band-\nwidth\nTB/s", lambda gpu: gpu.ceilings.bytes_per_s / 1e12, "g"),
        TableColumn("I_acc\nFLOP/B", lambda gpu: gpu.ceilings.intensity, ".0f", drop=1),
        TableColumn("mem.\nGB", lambda gpu: (gpu.memory_bytes or 0) / 1e9, "g"),
        TableColumn("SMs", lambda gpu: gpu.multiprocessors, "d"),
        TableColumn("L2\nMiB", lambda gpu: gpu.l2_bytes and gpu.l2_bytes / 2**20, ".0f", drop=3),
        TableColumn("capa-\nbility", lambda gpu: gpu.capability and "{}.{}".format(*gpu.capability), ">"),
        TableColumn("shared\nKiB", lambda gpu: gpu.shared_memory_bytes and gpu.shared_memory_bytes / 1024, "g", drop=2),
    ]
    yield FittedTable(columns, hardware.KNOWN)
    yield Text("Sources, in the order: rate and bandwidth; multiprocessors and L2.", style="bold")
    for known_gpu in hardware.KNOWN:
        note = f". {known_gpu.note}" if known_gpu.note else ""
        yield f"{known_gpu.name}: {known_gpu.ceilings.source}; {known_gpu.source}{note}"
    yield "Shared memory, of a block that asks for it: CUDA C++ programming guide, by compute capability.\n"
    kind = "no NVIDIA GPU" if here.kind == "cpu" else f"known as {gpu.name}" if gpu else "not in the list above"
    yield f"This machine: {here.name}, {here.memory_bytes / 2**30:.0f} GiB, {kind}."
    for dtype, ceilings in measured.items():
        tflops, tbs = ceilings.flops_per_s / 1e12, ceilings.bytes_per_s / 1e12
        yield f"Measured, {dtype}: {tflops:.4g} TFLOP/s, {tbs:.3g} TB/s ({ceilings.source})"
    if not measured:
        yield "Its ceilings are not measured yet: run tflabench calibrate."
