"""Rows and results folders as a sweep writes them, made up: for tests of what is said about rows."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from tflabench.implementations import registry
from tflabench.rows.schema import Row
from tflabench.selection.points import Point

RUN = {
    "device": "NVIDIA H200",
    "driver": "580.1",
    "device_facts": {"cuda": "13.0"},
    "packages": {"torch": "2.11.0", "triton": "3.6.0"},
}
IN_PART = {"choices": {}, "tried": 3, "configurations": 9}
IN_FULL = {"choices": {}, "tried": 9, "configurations": 9}
# Why no ratio of two rows may be taken -> (changes of our row, changes of the baseline's).
APART: dict[str, tuple[dict, dict]] = {
    "other comparisons": ({}, {"comparison_id": "another"}),
    "no comparison": ({"comparison_id": None}, {"comparison_id": None}),  # rows of schema 1
    "an open comparison": ({"closed": False}, {"closed": False}),
    "a row of an open comparison": ({}, {"closed": False}),
    "a baseline tuned in part": ({}, {"tuned": IN_PART}),
    "ours tuned in part": ({"tuned": IN_PART}, {"tuned": IN_FULL}),
}


def row(implementation: str = "tfla_sig_xl", ms: float | None = 1.0, **changes) -> Row:
    """A row of the paper's Fig. 4 whose samples lie within 0.2% of its median; `ms` None: it was out of memory.

    Rows of the same batch, length, embedding, dtype, inputs and pass were measured in one comparison, which is closed,
    of today's kernels.
    """
    size = {"batch": 16, "heads": 16, "seq_len": 4096, "d_qk": 128, "d_hv": 256, "chunk_size": 128} | {
        name: changes.pop(name) for name in list(changes) if name in ("batch", "heads", "seq_len", "d_qk", "d_hv")
    }
    size["chunk_size"] = changes.pop("chunk_size", 128)
    pass_ = changes.pop("pass_", "fw")
    of = {"batch": size["batch"], "seq_len": size["seq_len"], "embedding": size["heads"] * size["d_hv"]}
    of |= {"dtype": changes.get("dtype", "bfloat16"), "inputs": changes.get("inputs", "normal"), "pass": pass_}
    measured = {"status": "oom", "reason": "no memory", "rounds": 0}
    if ms is not None:
        times = {"ms_median": ms, "ms_min": 0.999 * ms, "ms_p20": 0.9995 * ms, "ms_p80": 1.001 * ms}
        measured = {"status": "ok", **times, "samples": 30, "rounds": 3}
        measured |= {"peak_bytes": 2**30, "percent_of_bound": 30.0, "percent_of_own_roofline": 40.0}
    found = registry.find(implementation)
    fields = {
        "run_id": "run", "implementation": implementation, "title": implementation.replace("_", " "),
        "kernel_version": found.version if found else None,
        "point": f"{implementation}/{pass_}/{'/'.join(f'{k}{v}' for k, v in size.items())}", "family": "mlstm",
        "gate": "sig", "formulation": "chunkwise", "package": "torch", "pass": pass_, **size, "dtype": "bfloat16",
        "inputs": "normal", "seed": 0, "device": "NVIDIA H200", "protocol": "standard", "node": "here",
        "comparison_id": "/".join(map(str, of.values())), "closed": True, "started_at": "2026-11-21T12:00:00+00:00",
    }  # fmt: skip
    return Row.model_validate(fields | measured | changes)


def row_of(point: Point, ms: float | None = 1.0, **changes) -> Row:
    """As `row`, of a point."""
    impl = point.implementation
    named = {name: getattr(impl, name) for name in ("title", "family", "gate", "formulation", "package")}
    return row(impl.name, ms, point=point.id, **named, **asdict(point.problem), **changes)


def write(folder: Path, rows: list[Row], **runs) -> Path:
    """A results folder with these rows; `runs`: environments by run id beside the usual one."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "journal.jsonl").write_text("".join(r.model_dump_json(by_alias=True) + "\n" for r in rows))
    (folder / "environment.json").write_text(json.dumps({"runs": {"run": RUN, **runs}}))
    return folder
