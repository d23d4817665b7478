"""The tables of the page, as plain values for its template."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from tflabench.analysis.hardware import from_device_name
from tflabench.plots.roofline import roofs
from tflabench.plots.rows import MEMORY, PASSES, RUNTIME, Rows
from tflabench.report import facts
from tflabench.report.facts import BYTE_RATE, FLOP_RATE, amount, number, span
from tflabench.report.runs import Results
from tflabench.store import Row
from tflabench.summary import contests, faster


class Column(NamedTuple):
    """A column of the table of all rows: its heading as HTML, what it is sorted by, source and note of its numbers."""

    heading: str
    key: str
    source: str = ""
    note: str = ""
    words: bool = False


COLUMNS = (
    Column("pass", "pass", words=True),
    Column("T", "seq_len"),
    Column("batch", "batch"),
    Column("heads", "heads"),
    Column("d<sub>qk</sub>", "d_qk"),
    Column("d<sub>hv</sub>", "d_hv"),
    Column("L", "chunk_size"),
    Column("type", "dtype", words=True),
    Column("median runtime", "ms_median", "measured", "runtime"),
    Column("20–80%", "ms_p80", "measured", "runtime"),
    Column("theory", "model_ms_lower", "modelled", "bounds"),
    Column("of roofline", "percent_of_roofline", "modelled / measured", "percent"),
    Column("rate", "tflops", "modelled / measured", "rate"),
    Column("peak memory", "peak_bytes", "measured", "memory"),
    Column("error", "rel_error", "measured", "error"),
)


def records(rows: Rows) -> Iterator[dict[str, Any]]:
    """Every row: implementation, title, cells (words, what to sort by) in the order of COLUMNS, remarks."""
    for row in rows.to_dict("records"):
        written = {
            "ms_median": amount(row["ms_median"], RUNTIME.units),
            "ms_p80": span(row["ms_p20"], row["ms_p80"], RUNTIME.units),
            "model_ms_lower": span(row["model_ms_lower"], row["model_ms_upper"], RUNTIME.units),
            "percent_of_roofline": f"{number(row['percent_of_roofline'])}%",
            "tflops": amount(row["tflops"] * 1e12, FLOP_RATE),
            "peak_bytes": amount(row["peak_bytes"], MEMORY.units),
            "rel_error": f"{row['rel_error']:.1e}",
        }
        cells = []
        for column in COLUMNS:
            value = row[column.key]
            absent = not column.words and math.isnan(value)
            plain = str(value) if column.words else f"{value:.0f}"
            cells.append(("", "") if absent else (written.get(column.key, plain), value))
        ok = row["status"] == "ok"
        remarks = ", ".join(facts.flags(row)) if ok else f"{row['status'].replace('_', ' ')}: {row['reason']}"
        yield {"name": row["implementation"], "title": row["title"], "cells": cells, "remarks": remarks}


def best(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """The fastest implementation of every point, and the next best; only rows of one run are compared."""
    for run in dict.fromkeys(row.run_id for row in rows):
        for first, *others in contests(row for row in rows if row.run_id == run):
            rival = next((row for row in others if row.implementation != first.implementation), None)
            percent = first.percent_of_roofline
            yield {
                "pass": PASSES[first.pass_],
                "row": first,
                "time": amount(first.ms_median, RUNTIME.units),
                "memory": amount(first.peak_bytes, MEMORY.units),
                "roofline": "" if percent is None else f"{number(percent)}%",
                "next": (rival, *faster(first, rival)) if rival else None,
            }


def missing(rows: Rows, order: Sequence[str]) -> Iterator[dict[str, Any]]:
    """What was asked for and not measured: a line a status, implementation (in this order) and reason."""
    failed = rows[rows["status"] != "ok"].fillna({"reason": "no reason was given"})
    groups = failed.groupby(["status", "implementation", "reason"], sort=False)
    for (status, name, reason), own in sorted(groups, key=lambda item: (item[0][0], order.index(item[0][1]))):
        yield {"status": status, "name": name, "reason": reason, "points": len(own), "where": Markup(facts.where(own))}


def environments(results: Results) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """(run_id, what is known of its environment) of every run that has rows."""
    for run_id, own in results.rows.groupby("run_id", sort=False):
        run: Mapping[str, Any] = results.runs.get(str(run_id), {})
        device = {name: value for name, value in run.get("device_facts", {}).items() if name != "name"}
        commit = f"({run['commit']})" if run.get("commit") else ""
        clocks = own["sm_clock_mhz"].dropna()
        days = sorted({started[:10] for started in own["started_at"]})
        known = {
            "device": ", ".join(sorted(set(own["device"]))),
            "days": " to ".join(dict.fromkeys((days[0], days[-1]))),
            "driver": run.get("driver"),
            **{name.replace("_bytes", "").replace("_", " "): _fact(name, value) for name, value in device.items()},
            "packages": ", ".join(f"{name} {version}" for name, version in run.get("packages", {}).items()),
            "Python": run.get("python"),
            "platform": run.get("platform"),
            "tflabench": f"{run.get('tflabench', '')} {commit}".strip(),
            "variables": ", ".join(f"{name}={value}" for name, value in run.get("variables", {}).items()),
            "protocol": ", ".join(sorted(set(own["protocol"]))),
            "inputs": ", ".join(sorted(set(own["inputs"]))),
            "SM clock": f"{clocks.min():,.0f}–{clocks.max():,.0f} MHz, measured" if len(clocks) else "",
            "not recorded": "" if run else "environment.json does not describe this run",
        }
        yield str(run_id), [(name, value) for name, value in known.items() if value]


def _fact(name: str, value: Any) -> str:
    return amount(value, MEMORY.units) if name.endswith("_bytes") else str(value)


def ceilings(results: Results) -> list[dict[str, str]]:
    """The ceilings of the device, from its datasheet and as measured, each with its source."""
    lines: dict[Any, dict[str, str]] = {}
    for (_, dtype), rows in results.rows.groupby(["run_id", "dtype"], sort=False):
        device = rows["device"].iloc[0]
        gpu = from_device_name(device)
        for one in roofs(rows, results.runs):
            lines[dtype, one] = {
                "what": gpu.name if gpu and one is gpu.ceilings else device,
                "dtype": str(dtype),
                "rate": amount(one.flops_per_s, FLOP_RATE),
                "bandwidth": amount(one.bytes_per_s, BYTE_RATE),
                "intensity": f"{number(one.intensity)} FLOP/byte",
                "provenance": one.provenance,
                "source": one.source,
            }
    return list(lines.values())
