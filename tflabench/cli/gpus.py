"""The command that lists known GPUs: gpus."""

from __future__ import annotations

from dataclasses import asdict

from tflabench.cli.common import app
from tflabench.cli.common.console import filled_table, print_json
from tflabench.cli.common.options import JsonObject
from tflabench.problem import DTYPE_BYTES


@app.command("gpus")
def gpus(as_json: JsonObject = False) -> None:
    """List known GPUs with the source of each figure, and what this machine has."""
    from tflabench.bench import machine
    from tflabench.theory import hardware

    here = machine.detect("auto")
    known = hardware.from_device_name(here.name)
    measured = {dtype: found for dtype in DTYPE_BYTES if (found := hardware.measured_ceilings(here.name, dtype))}
    if as_json:
        rates = {dtype: asdict(ceilings) for dtype, ceilings in measured.items()}
        device = asdict(here) | {"known_as": known and known.name, "measured": rates}
        print_json({"known": [asdict(gpu) for gpu in hardware.KNOWN], "this_machine": device})
        return

    from rich.console import Console

    rows = [
        (
            gpu.name,
            f"{gpu.ceilings.flops_per_s / 1e12:g}",
            f"{gpu.ceilings.bytes_per_s / 1e12:g}",
            f"{gpu.ceilings.intensity:.0f}",
            f"{(gpu.memory_bytes or 0) / 1e9:g}",
            str(gpu.multiprocessors),
            f"{gpu.l2_bytes / 2**20:.0f}" if gpu.l2_bytes else "-",
            ".".join(map(str, gpu.capability)) if gpu.capability else "-",
            f"{gpu.shared_memory_bytes // 1024}" if gpu.shared_memory_bytes else "-",
        )
        for gpu in hardware.KNOWN
    ]
    console = Console()
    columns = (
        "GPU", "bf16\ndense\nTFLOP/s", "band-\nwidth\nTB/s", "I_acc\nFLOP/B", "mem.\nGB", "SMs", "L2\nMiB",
        "capa-\nbility", "shared\nKiB",
    )  # fmt: skip
    console.print(filled_table(columns, rows))
    console.print("Sources, in the order: rate and bandwidth; multiprocessors and L2.", style="bold")
    for gpu in hardware.KNOWN:
        note = f". {gpu.note}" if gpu.note else ""
        console.print(f"{gpu.name}: {gpu.ceilings.source}; {gpu.source}{note}", highlight=False)
    console.print("Shared memory, of a block that asks for it: CUDA C++ programming guide, by compute capability.")
    console.print()
    kind = "no NVIDIA GPU" if here.kind == "cpu" else f"known as {known.name}" if known else "not in the list above"
    console.print(f"This machine: {here.name}, {here.memory_bytes / 2**30:.0f} GiB, {kind}.", highlight=False)
    for dtype, ceilings in measured.items():
        tflops, tbs = ceilings.flops_per_s / 1e12, ceilings.bytes_per_s / 1e12
        console.print(f"Measured, {dtype}: {tflops:.4g} TFLOP/s, {tbs:.3g} TB/s ({ceilings.source})", highlight=False)
    if not measured:
        console.print("Its ceilings are not measured yet: run tflabench calibrate.")
