"""The command that compares implementations with float64: verify."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from tflabench.cli.common import app, options
from tflabench.cli.common.console import emit, stderr
from tflabench.cli.common.paths import folder_to_write, out_folder
from tflabench.conclusions.tables import FittedTable, TableColumn


@app.command("verify")
def verify(
    preset: options.Preset = "quick",
    axis: options.Axes = None,
    impl: options.Impl = None,
    plugin: options.Plugin = None,
    device: options.Device = "auto",
    verify_seconds: Annotated[float, options.seconds(options.HOW, options.VERIFY)] = 30.0,
    timeout: options.Timeout = 600.0,
    out: Annotated[Path | None, out_folder("no errors.csv is written")] = None,
    json_: options.Json = False,
) -> None:
    """Compare forward and every gradient with float64; exit code 1 where one is too far off."""
    from rich.progress import track

    from tflabench.bench import verifier
    from tflabench.bench.machine import detect, environment
    from tflabench.rows import errors
    from tflabench.rows.journal import described_runs
    from tflabench.selection import axes

    if out:
        described_runs(folder_to_write(out))  # what cannot be added to is refused before anything is checked
    machine = detect(device)
    points = verifier.points_to_verify(preset, axes.parse_overrides(axis or ()), impl, machine)
    note = stderr()
    results, facts, interrupted = verifier.verify(
        track(points, "", console=note, transient=True), machine,
        plugins=plugin or (), budget_s=verify_seconds, timeout_s=timeout,
    )  # fmt: skip
    if out and results:
        note.print(f"Wrote {errors.write_errors(out, results, environment(machine, facts))}")
    if interrupted:
        note.print(f"Interrupted: {len(results)} of {len(points)} points were checked.")
        raise typer.Exit(130)
    failed = [result for result in results if result["status"] not in ("ok", "unsupported")]
    emit(results, [_table(results)], json_)
    if facts.get("ptxas"):
        note.print(f"Triton's kernels were assembled by ptxas {facts['ptxas']}.")
    note.print(f"{len(results) - len(failed)} of {len(results)} points agree with float64 or were refused.")
    if failed:
        raise typer.Exit(1)


def _table(results: Iterable[dict[str, Any]]) -> FittedTable:
    """Return a line a tensor of each point, and one for a point that has no errors, with the reason."""
    columns = [
        TableColumn("point", "point"),
        TableColumn("tensor", "name"),
        TableColumn("error", "error", ".2e"),
        TableColumn("allowed", "allowed", ".2e"),
        TableColumn("worst step", "step_error", ".2e", drop=1),
        TableColumn("allowed", "step_allowed", ".2e", drop=1),
        TableColumn("", "verdict"),
    ]
    return FittedTable(columns, _lines(results), lambda line: "red" if line["verdict"] == "WRONG" else "")


def _lines(results: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    numbers = dict.fromkeys(("name", "error", "allowed", "step_error", "step_allowed"))
    for result in results:
        if not result["errors"]:
            yield {"point": result["point"], **numbers, "verdict": f"{result['status']}: {result['reason']}"}
        for n, error in enumerate(result["errors"]):
            yield {"point": "" if n else result["point"], **error, "verdict": "WRONG" if error["wrong"] else ""}
