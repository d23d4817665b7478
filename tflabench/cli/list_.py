"""The command that lists what can be measured: list."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tflabench.cli.common import app, options
from tflabench.cli.common.console import RenderableType, emit
from tflabench.conclusions.tables import FittedTable, TableColumn

if TYPE_CHECKING:
    from tflabench.bench.machine import Machine
    from tflabench.implementations.adapter import Implementation

AXIS_MEANINGS = {
    "head_dim": "d_qk and d_hv",
    "tokens": "batch x seq_len: sets the batch",
    "embedding": "heads x d_hv: sets the heads",
    "chunk_size": "steps of a chunk, or auto",
}


@app.command("list")
def list_(plugin: options.Plugin = None, json_: options.Json = False) -> None:
    """List implementations with what they need and whether they run here, presets and axes.

    An implementation runs here if it takes one usual problem; others it may still refuse, with a reason in its row.
    """
    from tflabench.bench.machine import detect
    from tflabench.implementations import registry
    from tflabench.problem import PASSES
    from tflabench.selection.axes import AXES, WORDS
    from tflabench.selection.presets import load_preset, preset_names

    machine = detect("auto")
    values_of = {axis: ", ".join(values) for axis, values in WORDS.items()} | {"pass": f"{', '.join(PASSES)} or both"}
    document = {
        "device": machine.name,
        "implementations": [_described(impl, machine) for impl in registry.implementations()],
        "presets": {name: load_preset(name).title for name in preset_names()},
        "axes": {axis: values_of.get(axis) or AXIS_MEANINGS.get(axis, "whole numbers") for axis in AXES},
    }
    emit(document, _text(document), json_)


def _text(document: dict[str, Any]) -> Iterator[RenderableType]:
    """Yield a table of each, and why implementations do not run here: a reason, then the names."""
    impls = document["implementations"]
    columns = [
        TableColumn("implementation (--impl)", "name"),
        TableColumn("needs", "needs"),
        TableColumn("", lambda impl: "runs here" if impl["runs_here"] else "not here", "<"),
    ]
    yield FittedTable(columns, impls)
    names: dict[str, list[str]] = {}
    for impl in impls:
        if impl["refused"]:
            names.setdefault(impl["refused"], []).append(impl["name"])
    for reason, refused in names.items():
        yield f"Not here ({reason}): {', '.join(refused)}"
    for head, meanings in (("preset (--preset)", document["presets"]), ("axis (-a)", document["axes"])):
        yield ""
        pair = [TableColumn(head, lambda item: item[0]), TableColumn("", lambda item: item[1])]
        yield FittedTable(pair, meanings.items())
    yield "Values of an axis: 512,1024 or 512:65536:x2 or 64:512:+64."


def _described(impl: Implementation, machine: Machine) -> dict[str, Any]:
    """Return what an implementation is and needs, and why it does not run here; None where it does."""
    from tflabench.theory import hardware

    listed = hardware.from_device_name(machine.name)
    refused = _refusal(impl, machine, listed.capability if listed else None)
    or_above = " or above" if impl.majors and len(set(impl.majors)) > 1 else ""
    return {
        "name": impl.name,
        "title": impl.title,
        "family": impl.family,
        "package": impl.package,
        "needs": f"{impl.package}, GPU {impl.majors[0]}.x{or_above}" if impl.majors else impl.package,
        "runs_here": refused is None,
        "refused": refused,
    }


def _refusal(impl: Implementation, machine: Machine, capability: tuple[int, int] | None) -> str | None:
    """Return why it takes no usual problem here: heads of 128/256, of 128 or of 64; None where it takes one."""
    from tflabench.problem import Problem

    dtype = "bfloat16" if machine.kind == "cuda" else "float32"
    reasons = []
    for d_qk, d_hv in ((128, 256), (128, 128), (64, 64)):
        for pass_ in ("fw", "decode"):
            steps = 1 if pass_ == "decode" else 1024
            problem = Problem(1, 4, steps, d_qk, d_hv, dtype=dtype, pass_=pass_)
            if (reason := impl.refusal(problem, machine.kind, capability)) is None:
                return None
            reasons.append(reason)
    return reasons[0]
