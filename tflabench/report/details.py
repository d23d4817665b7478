"""The folds of the page: all rows as columns, machines and commands."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tflabench.figures.source import Source
from tflabench.problem import PASS_TITLES
from tflabench.rows.load import Results
from tflabench.rows.schema import Row

# Column of the table -> heading.
COLUMNS = {
    "title": "kernel", "ms_median": "median [ms]", "chunk_size": "L", "pass": "pass", "seq_len": "T", "batch": "batch",
    "heads": "heads", "d_qk": "d_qk", "d_hv": "d_hv", "dtype": "type", "implementation": "name", "gate": "gate",
    "gates": "gates", "device": "GPU", "folder": "results", "ms_p20": "p20 [ms]", "ms_p80": "p80 [ms]",
    "model_ms_lower": "bound [ms]", "percent_of_bound": "of the problem's bound [%]",
    "percent_of_own_roofline": "of its own roofline [%]", "tflops": "rate [TFLOP/s]", "peak_gib": "peak [GiB]",
    "rel_error": "error", "status": "status", "remarks": "remarks",
}  # fmt: skip


def table(source: Source) -> list[dict[str, Any]]:
    """Return the columns of all rows: heading and values; words once each, with the place of each row's among them."""
    records = list(source.rows["record"])
    made: dict[str, Any] = {
        "folder": source.rows["folder"].tolist(),
        "pass": [PASS_TITLES.get(row.pass_, row.pass_) for row in records],
        "gate": [row.gate or "" for row in records],
        "peak_gib": [row.peak_bytes and row.peak_bytes / 2**30 for row in records],
        "remarks": [_remarks(row) for row in records],
    }
    columns = []
    for name, heading in COLUMNS.items():
        column: dict[str, Any] = {"name": name, "heading": heading}
        values = made.get(name) or [getattr(row, name) for row in records]
        if any(isinstance(value, str) for value in values):
            places = {word: n for n, word in enumerate(dict.fromkeys(values))}
            column |= {"words": list(places), "values": [places[value] for value in values]}
        else:
            column["values"] = [_number(value) for value in values]
        columns.append(column)
    return columns


def _remarks(row: Row) -> str:
    flags = ["noisy"] * bool(row.noisy) + ["throttled"] * bool(row.throttled)
    return ", ".join([*flags, *([" ".join(row.reason.split())[:300]] if row.reason else [])])


def _number(value: float | None) -> float | None:
    """Return a number with six digits; None for none and for what JSON has no word for."""
    if value is None or not math.isfinite(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.6g}")


def machines(named: Mapping[str, Results]) -> list[dict[str, Any]]:
    """Return what is known of every machine and set of versions, once each, with the folders measured there."""
    by_facts: dict[str, dict[str, Any]] = {}
    for name, results in named.items():
        for run, device in {row.run_id: row.device for row in results.rows}.items():
            lines = [["device", device], *_facts(results.runs.get(run, {}))]
            by_facts.setdefault(str(lines), {"facts": lines, "folders": {}})["folders"][name] = None
    return [machine | {"folders": list(machine["folders"])} for machine in by_facts.values()]


def _facts(run: Mapping[str, Any]) -> Iterator[list[str]]:
    if not run:
        yield ["versions", "not recorded"]
    for name in ("driver", "python", "platform", "tflabench", "commit"):
        if run.get(name):
            yield [name, str(run[name])]
    for name in ("device_facts", "packages", "variables"):
        if values := {key: value for key, value in run.get(name, {}).items() if key != "name"}:
            yield [name.replace("_", " "), ", ".join(f"{key} {value}" for key, value in values.items())]
    for dtype, roof in run.get("ceilings", {}).items():
        rates = f"{roof['flops_per_s'] / 1e12:.4g} TFLOP/s, {roof['bytes_per_s'] / 1e12:.3g} TB/s"
        yield [f"ceilings, {dtype}", f"{rates} ({roof['provenance']}: {roof['source']})"]


def commands(directory: Path, named: Mapping[str, Results]) -> list[list[str]]:
    """Return every command with what it did: those that measured the rows, then those that show them."""
    lines = []
    for name, results in named.items():
        for run, count in Counter(row.run_id for row in results.rows).items():
            arguments = results.runs.get(run, {}).get("arguments")
            command = shlex.join(["tflabench", *arguments]) if arguments else "(not recorded)"
            of_file = any(word.endswith((".toml", ".csv")) for word in arguments or ())
            kept = ", of a file that is not kept with the rows" if of_file else ""
            lines.append([command, f"{count} rows of {name}, run {run}{kept}"])
    shown = {"report": "writes this page", "plot": "draws the figures", "claims": "prints the claims"}
    return [*lines, *([shlex.join(["tflabench", word, str(directory)]), says] for word, says in shown.items())]
