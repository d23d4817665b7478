"""The command that measures the ceilings of this machine: calibrate."""

from __future__ import annotations

from typing import Annotated

import typer

from tflabench.cli.common import app
from tflabench.cli.common.console import open_table, print_json, stdout
from tflabench.cli.common.options import HOW, Device, Json


@app.command("calibrate")
def calibrate(
    device: Device = "auto",
    seconds: Annotated[
        float,
        typer.Option(min=0.1, max=3600, metavar="SECONDS", rich_help_panel=HOW, help="Measure for about this time."),
    ] = 10.0,
    json_: Json = False,
) -> None:
    """Measure the copy bandwidth and the matrix rate of this machine; theory uses them from then on."""
    from dataclasses import asdict

    from tflabench.bench import ceilings as ceilings_
    from tflabench.bench.executor import LocalExecutor
    from tflabench.bench.machine import detect

    machine = detect(device)
    with LocalExecutor(machine.kind) as executor:
        measured = ceilings_.calibrate(machine, ceilings_.CALIBRATED_DTYPES[machine.kind], executor.run, seconds)
    if json_:
        ceilings = {dtype: asdict(found) for dtype, found in measured.items()}
        print_json({"device": machine.name, "ceilings": ceilings})
        return
    table = open_table("dtype", "matrix rate", "copy bandwidth", title=machine.name)
    for dtype, found in measured.items():
        table.add_row(dtype, f"{found.flops_per_s / 1e12:.3g} TFLOP/s", f"{found.bytes_per_s / 1e9:.4g} GB/s")
    stdout().print(table)
