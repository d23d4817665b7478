"""The tables of the page, as plain values for its template."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd
from markupsafe import Markup

from tflabench.conclusions.campaigns import campaigns
from tflabench.conclusions.contests import contests, faster
from tflabench.figures.quantities import MEMORY, PASSES, RUNTIME, Rows
from tflabench.figures.roofline import roofs
from tflabench.report import formats
from tflabench.report.folders import Part
from tflabench.report.formats import BYTE_RATE, FLOP_RATE, amount, number, span
from tflabench.rows.load import Results
from tflabench.theory.hardware import from_device_name


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
    Column("of the bound", "percent_of_bound", "modelled / measured", "bound"),
    Column("own roofline", "percent_of_own_roofline", "modelled / measured", "percent"),
    Column("rate", "tflops", "modelled / measured", "rate"),
    Column("peak memory", "peak_bytes", "measured", "memory"),
    Column("error", "rel_error", "measured", "error"),
)


FACTS = {"cuda": "CUDA", "cudnn": "cuDNN", "l2_bytes": "L2 cache", "memory_bytes": "memory"}  # of environment.json


def records(rows: Rows) -> Iterator[dict[str, Any]]:
    """Every row: implementation, title, cells (words, what to sort by) in the order of COLUMNS, remarks."""
    for row in rows.to_dict("records"):
        written = {
            "ms_median": amount(row["ms_median"], RUNTIME.units),
            "ms_p80": span(row["ms_p20"], row["ms_p80"], RUNTIME.units),
            "model_ms_lower": span(row["model_ms_lower"], row["model_ms_upper"], RUNTIME.units),
            "percent_of_bound": formats.percent(row["percent_of_bound"], row["ceilings"]),
            "percent_of_own_roofline": formats.percent(row["percent_of_own_roofline"], row["ceilings"]),
            "tflops": amount(row["tflops"] * 1e12, FLOP_RATE),
            "peak_bytes": amount(row["peak_bytes"], MEMORY.units),
            "rel_error": formats.error(row["rel_error"]),
        }
        cells = []
        for column in COLUMNS:
            value = row[column.key]
            absent = not column.words and math.isnan(value)
            plain = str(value) if column.words else f"{value:.6g}"
            cells.append(("", "") if absent else (written.get(column.key, plain), plain))
        ok = row["status"] == "ok"
        remarks = ", ".join(formats.flags(row)) if ok else f"{row['status'].replace('_', ' ')}: {row['reason']}"
        yield {"name": row["implementation"], "title": row["title"], "cells": cells, "remarks": remarks}


def best(results: Results) -> Iterator[dict[str, Any]]:
    """The fastest implementation of every point, and the next best; only rows of one campaign are compared."""
    for campaign in campaigns([results]):
        for first, *others in contests(campaign.rows):
            rivals = (row for row in others if row.implementation != first.implementation)
            rival = next(((row, *ratio) for row in rivals if (ratio := faster(first, row))), None)
            yield {
                "pass": PASSES[first.pass_],
                "row": first,
                "time": amount(first.ms_median, RUNTIME.units),
                "memory": amount(first.peak_bytes, MEMORY.units),
                "bound": formats.percent(first.percent_of_bound, first.ceilings),
                "own": formats.percent(first.percent_of_own_roofline, first.ceilings),
                "next": rival,
            }


def missing(rows: Rows, order: Sequence[str]) -> Iterator[dict[str, Any]]:
    """What was asked for and not measured: a line a status, implementation (in this order) and reason."""
    failed = rows[rows["status"] != "ok"].fillna({"reason": "no reason was given"})
    groups = failed.groupby(["status", "implementation", "reason"], sort=False)
    for (status, name, reason), own in sorted(groups, key=lambda item: (item[0][0], order.index(item[0][1]))):
        yield {
            "status": status,
            "name": name,
            "reason": reason,
            "points": len(own),
            "where": Markup(formats.where(own)),
        }


def environments(parts: Sequence[Part]) -> list[tuple[list[str], list[tuple[str, str]]]]:
    """(the folders, what is known) of every machine and set of versions that rows were measured with."""
    alike: dict[tuple[tuple[str, str], ...], list[tuple[str, Rows]]] = defaultdict(list)
    for part in parts:
        for (run_id, device), own in part.rows.groupby(["run_id", "device"], sort=False):
            known = {"device": device} | _machine(part.runs.get(str(run_id), {}))
            alike[tuple((name, str(value)) for name, value in known.items() if value)].append((part.name, own))
    found = []
    for machine, measured in alike.items():
        rows = pd.concat([own for _, own in measured])
        clocks = rows["sm_clock_mhz"].dropna()
        ends = [f"{end:,.0f}" for end in (clocks.min(), clocks.max())]
        days = sorted({started[:10] for started in rows["started_at"]})
        conditions = {
            "measured": " to ".join(dict.fromkeys((days[0], days[-1]))),
            "protocol": ", ".join(sorted(set(rows["protocol"]))),
            "inputs": ", ".join(sorted(set(rows["inputs"]))),
            "SM clock": f"{'–'.join(dict.fromkeys(ends))} MHz, measured" if len(clocks) else "",
        }
        lines = [*machine, *((name, value) for name, value in conditions.items() if value)]
        found.append((list(dict.fromkeys(name for name, _ in measured)), lines))
    return found


def _machine(run: Mapping[str, Any]) -> dict[str, Any]:
    """What environment.json says of the machine and the versions of a run."""
    if not run:
        return {"versions": "not recorded: environment.json does not describe this run"}
    device: dict[str, Any] = run.get("device_facts", {})
    commit = f"({run['commit']})" if run.get("commit") else ""
    return {
        "driver": run.get("driver"),
        **{FACTS.get(name, name): _fact(name, value) for name, value in device.items() if name != "name"},
        "packages": ", ".join(f"{name} {version}" for name, version in run.get("packages", {}).items()),
        "Python": run.get("python"),
        "platform": run.get("platform"),
        "tflabench": f"{run.get('tflabench', '')} {commit}".strip(),
        "variables": ", ".join(f"{name}={value}" for name, value in run.get("variables", {}).items()),
    }


def _fact(name: str, value: Any) -> str:
    return amount(value, MEMORY.units) if name.endswith("_bytes") else str(value)


def ceilings(parts: Sequence[Part]) -> list[dict[str, Any]]:
    """The ceilings of the devices, from datasheets and as measured, each with its source and the folders it is for."""
    lines: dict[Any, dict[str, Any]] = {}
    for part in parts:
        for (device, _, dtype), rows in part.rows.groupby(["device", "run_id", "dtype"], sort=False):
            gpu = from_device_name(str(device))
            for one in roofs(rows, part.runs):
                line = {
                    "what": gpu.name if gpu and one is gpu.ceilings else device,
                    "dtype": str(dtype),
                    "rate": amount(one.flops_per_s, FLOP_RATE),
                    "bandwidth": amount(one.bytes_per_s, BYTE_RATE),
                    "intensity": f"{number(one.intensity)} FLOP/byte",
                    "provenance": one.provenance,
                    "source": one.source,
                    "folders": {},
                }
                lines.setdefault((device, dtype, one), line)["folders"][part.name] = None
    return list(lines.values())
