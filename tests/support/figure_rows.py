"""Rows of many kinds of sweeps, and what the figures of them show."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from tflabench import figures
from tflabench.figures.model import Curve, Figure, Panel
from tflabench.figures.quantities import drawable
from tflabench.figures.source import Source
from tflabench.problem import GATES
from tflabench.rows.load import Results
from tflabench.rows.schema import Row

H200 = {"flops_per_s": 989e12, "bytes_per_s": 4.8e12}
RUN = {
    "tflabench": "0.1.0",
    "commit": "0123456789ab",
    "packages": {"torch": "2.13.0", "triton": "3.9.0"},
    "ceilings": {
        "bfloat16": {"flops_per_s": 807e12, "bytes_per_s": 4.2e12, "provenance": "measured", "source": "calibrate"}
    },
}
# implementation -> family, gate, heads, d_qk, d_hv, its chunk size, how many times slower than the upper bound
KINDS = {
    "tfla_exp_limit": ("mlstm", "exp", 16, 128, 256, 64, 3.4),
    "tfla_exp_xl": ("mlstm", "exp", 16, 128, 256, 128, 2.6),
    "tfla_sig_xl": ("mlstm", "sig", 16, 128, 256, 128, 2.0),
    "sdpa_flash": ("attention", None, 32, 128, 128, None, 1.7),
    "sdpa_math": ("attention", None, 32, 128, 128, None, 9.0),
    "mamba2": ("ssm", None, 64, 64, 64, 256, 2.4),
    "simple_gla": ("linear_attention", None, 16, 128, 256, 64, 2.2),
}


def row(implementation: str = "tfla_sig_xl", asked: str | None = None, **changes) -> Row:
    """A row as a sweep writes it; times follow from a simple cost model and the implementation's slowness."""
    family, gate, heads, d_qk, d_hv, chunk_size, slowness = KINDS.get(implementation, KINDS["tfla_sig_xl"])
    size = {"batch": 8, "heads": heads, "seq_len": 8192, "d_qk": d_qk, "d_hv": d_hv, "chunk_size": chunk_size}
    size |= {name: changes.pop(name) for name in list(changes) if name in size}
    pass_ = changes.pop("pass", "fw")
    tokens, factor = size["batch"] * size["seq_len"] * size["heads"], 1 if pass_ == "fw" else 3
    length = size["seq_len"] if family == "attention" else size["chunk_size"] or 64
    flops = factor * tokens * (length * (size["d_qk"] + size["d_hv"]) + 4 * size["d_qk"] * size["d_hv"])
    states = 0 if family == "attention" else 8 * size["d_qk"] * size["d_hv"] / length
    moved = factor * tokens * (6 * (size["d_qk"] + size["d_hv"]) + states)
    compute, move = flops / H200["flops_per_s"] * 1e3, moved / H200["bytes_per_s"] * 1e3
    ms = slowness * (compute + move) + 0.05
    asked = asked or str(size["chunk_size"] or "auto")
    fields = {
        "run_id": "run", "implementation": implementation, "title": implementation.replace("_", " "),
        "point": f"{implementation}/{pass_}/{'/'.join(f'{k}{v}' for k, v in size.items())}/L{asked}/{changes}",
        "family": family, "gate": gate, "formulation": "chunkwise", "package": "torch", "pass": pass_, **size,
        "dtype": "bfloat16", "inputs": "normal", "seed": 0, "device": "NVIDIA H200", "status": "ok",
        "ms_median": ms, "ms_min": 0.98 * ms, "ms_p20": 0.99 * ms, "ms_p80": 1.02 * ms, "samples": 30,
        "peak_bytes": int(2 * moved / factor) + 2**28, "model_flops": flops, "model_bytes": moved,
        "model_ms_lower": max(compute, move), "model_ms_upper": compute + move, "ceilings": "datasheet: NVIDIA",
        "protocol": "short", "node": "here", "started_at": "2026-11-21T12:00:00+00:00",
    }  # fmt: skip
    if changes.get("status", "ok") not in ("ok", "wrong"):
        fields |= dict.fromkeys(("ms_median", "ms_min", "ms_p20", "ms_p80", "samples", "peak_bytes"))
    return Row.model_validate(fields | changes)


def lengths(implementations=tuple(KINDS), passes=("fw", "fwbw")) -> list[Row]:
    """As the paper's Fig. 4: 65,536 tokens, batch falls as the sequence grows; some points could not be measured."""
    rows = []
    for name in implementations:
        for pass_ in passes:
            for power in range(9, 17):
                status = "ok"
                if name == "sdpa_math" and power >= 14 - (pass_ == "fwbw"):
                    status = "oom"
                if name == "mamba2" and pass_ == "fwbw" and power == 12:
                    status = "wrong"
                point = {"seq_len": 2**power, "batch": 2 ** (16 - power), "pass": pass_, "status": status}
                rows.append(row(name, noisy=name == "simple_gla" and power == 10, **point))
    return rows


def chunks(passes=("fw", "fwbw")) -> list[Row]:
    return [
        row(name, heads=8, d_qk=256, d_hv=512, chunk_size=2**power, **{"pass": pass_})
        for name in ("tfla_exp_xl", "tfla_sig_xl")
        for pass_ in passes
        for power in range(6, 13)
    ]


def many() -> list[Row]:
    """Thirty implementations of which none is registered, the last five without a single point."""
    names = [(f"{list(KINDS)[n % 7]}_{n}", list(KINDS)[n % 7], n) for n in range(30)]
    rows = []
    for name, kind, n in names:
        for power in range(9, 17):
            point = row(kind, seq_len=2**power, batch=2 ** (16 - power))
            times = {column: getattr(point, column) * (1 + n / 10) for column in ("ms_median", "ms_p20", "ms_p80")}
            failed = {**dict.fromkeys(times), "peak_bytes": None, "status": "unsupported", "reason": "not installed"}
            changed = failed if n >= 25 else times
            named = {"implementation": name, "title": name, "point": f"{name}/{power}"}
            rows.append(point.model_copy(update=named | changed))
    return rows


def gates() -> list[Row]:
    """KDA over gates, the strongest first: fla's time and error stay, cuDNN's time falls and its error grows."""
    changes = {"family": "linear_attention", "gate": None}
    return [
        row(name, gates=strength, ms_median=1.0 + falls * n, rel_error=4e-3 * 2 ** (falls * (4 - n)), **changes)
        for name, falls in (("fla_kda", 0), ("cudnn_kda", 1))
        for n, strength in enumerate(GATES[::-1])
    ]


SWEEPS = {
    "gates": gates(),
    "lengths": lengths(),
    "one_pass": lengths(("tfla_exp_xl", "tfla_sig_xl", "sdpa_flash"), ("fwbw",)),
    "chunks": chunks(),
    "chunks_one_pass": chunks(("fwbw",))[7:],
    "one_point": [row(name) for name in KINDS],
    "single": [row()],
    "failed": [row(name, status="unsupported", seq_len=2**n) for name in KINDS for n in (10, 11)],
    "many": many(),
    "dtypes": [row(name, dtype=d, seq_len=n) for name in KINDS for d in ("bfloat16", "float32") for n in (512, 2048)],
    "linear": [row(name, d_qk=d, d_hv=d, heads=4096 // d) for name in list(KINDS)[:3] for d in range(64, 513, 64)],
}  # fmt: skip


def framed(rows: list[Row]) -> pd.DataFrame:
    return drawable(pd.DataFrame([r.model_dump(by_alias=True) for r in rows]))


def source(rows: list[Row], runs=None, highlight=()) -> Source:
    return Source.of(Results(Path("rows"), tuple(rows), {"run": RUN} if runs is None else runs), highlight)


def made(rows: list[Row], what=figures.WHAT, runs=None, highlight=()) -> dict[str, Figure]:
    """stem -> figure."""
    return {figure.stem: figure for figure in figures.figures(source(rows, runs, highlight), what)}


def items(panel: Panel, kind: type) -> list:
    return [item for item in panel.items if isinstance(item, kind)]


def lit(panel: Panel) -> dict[str, Curve]:
    """Implementation -> its highlighted curve."""
    return {curve.name: curve for curve in items(panel, Curve) if curve.role == "highlight"}
