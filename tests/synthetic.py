"""Rows and results folders as a sweep writes them, made up: for tests of what is said about rows."""

from __future__ import annotations

import json
from pathlib import Path

from tflabench.rows.schema import Row

RUN = {
    "device": "NVIDIA H200",
    "driver": "580.1",
    "device_facts": {"cuda": "13.0"},
    "packages": {"torch": "2.11.0", "triton": "3.6.0"},
}


def row(implementation: str = "tfla_sig_xl", ms: float | None = 1.0, **changes) -> Row:
    """A row of the paper's Fig. 4 whose samples lie within 0.2% of its median; `ms` None: it was out of memory."""
    size = {"batch": 16, "heads": 16, "seq_len": 4096, "d_qk": 128, "d_hv": 256, "chunk_size": 128} | {
        name: changes.pop(name) for name in list(changes) if name in ("batch", "heads", "seq_len", "d_qk", "d_hv")
    }
    size["chunk_size"] = changes.pop("chunk_size", 128)
    pass_ = changes.pop("pass_", "fw")
    measured = {"status": "oom", "reason": "no memory"}
    if ms is not None:
        times = {"ms_median": ms, "ms_min": 0.999 * ms, "ms_p20": 0.9995 * ms, "ms_p80": 1.001 * ms}
        measured = {"status": "ok", **times, "samples": 30, "peak_bytes": 2**30, "percent_of_roofline": 40.0}
    fields = {
        "run_id": "run", "implementation": implementation, "title": implementation.replace("_", " "),
        "point": f"{implementation}/{pass_}/{'/'.join(f'{k}{v}' for k, v in size.items())}", "family": "mlstm",
        "gate": "sig", "formulation": "chunkwise", "package": "torch", "pass": pass_, **size, "dtype": "bfloat16",
        "inputs": "normal", "seed": 0, "device": "NVIDIA H200", "protocol": "standard",
        "started_at": "2026-11-21T12:00:00+00:00",
    }  # fmt: skip
    return Row.model_validate(fields | measured | changes)


def write(folder: Path, rows: list[Row], **runs) -> Path:
    """A results folder with these rows; `runs`: environments by run id beside the usual one."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "journal.jsonl").write_text("".join(r.model_dump_json(by_alias=True) + "\n" for r in rows))
    (folder / "environment.json").write_text(json.dumps({"runs": {"run": RUN, **runs}}))
    return folder
