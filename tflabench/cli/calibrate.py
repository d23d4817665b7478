"""The command that measures the ceilings of this machine: calibrate."""

from __future__ import annotations

from typing import Annotated

from tflabench.cli.common import app, options
from tflabench.cli.common.console import emit
from tflabench.conclusions.tables import FittedTable, TableColumn

Force = Annotated[bool, options.option(options.HOW, None, "Store what is measured, also where it is worse.")]


@app.command("calibrate")
def calibrate(
    device: options.Device = "auto",
    seconds: Annotated[float, options.seconds(options.HOW, "Measure for about this time.", least=0.1, max=3600)] = 10.0,
    force: Force = False,
    json_: options.Json = False,
) -> None:
    """Measure the copy bandwidth and the matrix rate of this machine; theory uses them from then on.

    Where one differs from what is stored by more than 10%, it says so and keeps the better.
    """
    from dataclasses import asdict

    from tflabench.bench import ceilings as ceilings_
    from tflabench.bench.machine import detect
    from tflabench.bench.workers import one_worker

    machine = detect(device)
    with one_worker(machine.kind) as workers:
        measured = ceilings_.calibrate(machine, ceilings_.CALIBRATED_DTYPES[machine.kind], workers.ask, seconds, force)
    document = {"device": machine.name, "ceilings": {dtype: asdict(roofs) for dtype, roofs in measured.items()}}
    columns = [
        TableColumn("dtype", lambda row: row[0]),
        TableColumn("matrix rate\nTFLOP/s", lambda row: row[1].flops_per_s / 1e12, ".3g"),
        TableColumn("copy bandwidth\nGB/s", lambda row: row[1].bytes_per_s / 1e9, ".4g"),
    ]
    emit(document, [machine.name, FittedTable(columns, measured.items())], json_)
