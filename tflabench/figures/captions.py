"""The words of figures: captions, names in legends, what is missing and where, and where the rows come from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import groupby
from operator import itemgetter
from typing import Any

import pandas as pd

from tflabench.figures.looks import Look
from tflabench.figures.quantities import Rows, days, plain
from tflabench.problem import DRAWN_GATES

NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]\d+)?")
LONGEST = 200  # letters of a reason
USUAL = DRAWN_GATES["normal"]  # which no caption mentions


def caption(rows: Rows, axis: str | None = None) -> str:
    """Return what all rows of a figure have in common, units included: "batch 8 · 16 heads of 256 · ..."."""
    parts = []
    if axis != "seq_len" and (seq_len := common(rows["seq_len"])):
        parts.append(f"T = {plain(seq_len)}")
    if axis != "batch" and (batch := common(rows["batch"])):
        parts.append(f"batch {plain(batch)}")
    elif tokens := common(rows["batch"] * rows["seq_len"]):
        parts.append(f"{int(tokens):,} tokens")
    heads, d_hv, d_qk = (common(rows[column]) for column in ("heads", "d_hv", "d_qk"))
    if heads and axis != "heads":
        parts.append(f"{plain(heads)} head{'s' if heads != 1 else ''}")
    elif embedding := common(rows["heads"] * rows["d_hv"]):
        parts.append(f"embedding {plain(embedding)}")
    if d_hv and axis != "d_hv":
        parts.append(f"d_hv = {plain(d_hv)}")
    if d_qk and axis != "d_qk":
        parts.append(f"d_qk = {plain(d_qk)}")
    elif not d_qk and not d_hv and (ratio := common(rows["d_qk"] / rows["d_hv"])) and ratio != 1:
        parts.append(f"d_qk = {ratio:g} d_hv")
    if axis != "chunk_size" and (chunk_size := common(rows["chunk_size"])):
        parts.append(f"L = {plain(chunk_size)}")
    for column, template in (("ranks", "ranks = {}"), ("dtype", "{}"), ("gates", "{} gates")):
        if axis != column and (value := common(rows[column])) and value not in (USUAL, 1):
            parts.append(template.format(plain(value)))
    return ", ".join(parts)


def common(column: pd.Series) -> Any:
    """Return the one value that a column has, but for missing ones; None where it has several, or none."""
    values = column.dropna().to_numpy()
    return values[0] if len(values) and (values == values[0]).all() else None


def legend_name(look: Look, name: str, rows: Rows) -> str:
    """Return the title, with heads, dimensions, chunk size or gates if it has just one and implementations differ."""
    extra = []
    of_it = rows[rows["implementation"] == name]
    sizes = {
        column: of_it[column].nunique() == 1 and rows[column].nunique() > 1
        for column in ("heads", "d_hv", "chunk_size", "gates")
    }
    if sizes["heads"] and sizes["d_hv"]:
        extra.append(f"{plain(of_it['heads'].iloc[0])}×{plain(of_it['d_hv'].iloc[0])}")
    if sizes["chunk_size"]:
        extra.append(f"L\u00a0{plain(of_it['chunk_size'].dropna().iloc[0])}")
    if sizes["gates"] and (gates := of_it["gates"].dropna().iloc[0]) != USUAL:
        extra.append(f"{gates} gates")
    return f"{look.title} ({', '.join(extra)})" if extra else look.title


def missing(rows: Rows, axis: str, looks: dict[str, Look]) -> list[str]:
    """Return a line a status and reason other than ok: which implementations have it, and where on the axis.

    Reasons that differ in numbers alone share a line, with the first of them.
    """
    failed = rows[rows["status"] != "ok"]
    reasons = failed["reason"].fillna("").astype(str).str.split(";|, not ", regex=True).str[0]
    kinds = reasons.str.replace(NUMBER, "#", regex=True)
    lines = []
    for (status, _), part in failed.assign(reason=reasons).groupby(["status", kinds]):
        mark, reason = "○" if part["timed"].all() else "×", " ".join(part["reason"].iloc[0].split())
        at = places(part, axis, looks)
        lines.append(f"{mark} {status}: {at}" + (f" ({shorten(reason, LONGEST)})" if reason else ""))
    return lines


def places(rows: Rows, axis: str, looks: dict[str, Look]) -> str:
    """Return which implementations rows are of, in which passes, and where on the axis."""
    lines = []
    for name in filter(set(rows["implementation"]).__contains__, looks):
        for pass_, points in rows[rows["implementation"] == name].groupby("pass", sort=False):
            values = sorted(points[axis].dropna().unique())
            written = ", ".join(str(value) if isinstance(value, str) else compact(value) for value in values)
            lines.append(f"{looks[name].title} {pass_}" + f" at {written}" * bool(written))
    return "; ".join(lines)


def provenance(rows: Rows, runs: Mapping[str, Any]) -> str:
    """Return the device, days and versions behind rows, in one line."""
    parts = [*sorted(set(rows["device"])), days(rows)]
    described = [runs[run] for run in dict.fromkeys(rows["run_id"]) if run in runs]
    for package in ("torch", "triton"):
        if versions := sorted({run["packages"][package] for run in described if package in run.get("packages", {})}):
            parts.append(f"{package} {', '.join(versions)}")
    measured = rows[rows["status"].isin(["ok", "wrong"]) & ~rows["package"].isin(["torch", "triton"])]
    for package, group in measured.dropna(subset="package_version").groupby("package"):
        parts.append(f"{package} {', '.join(sorted(set(group['package_version'])))}")
    # A commit's first digits: the whole of them is beside the rows, in environment.json.
    commits = sorted({(run["tflabench"], run["commit"][:12]) for run in described if run.get("commit")})
    versions = groupby(commits, itemgetter(0))
    ours = [f"{version} ({', '.join(commit for _, commit in group)})" for version, group in versions]
    if ours:
        parts.append(f"tflabench {', '.join(ours)}")
    return " · ".join(parts)


def compact(value: float) -> str:
    """Return a count as ticks and notes write it: 65536 is 64Ki, 512 is 512."""
    value = int(value)
    return f"{value // 1024}Ki" if value >= 1024 and value % 1024 == 0 else str(value)


def shorten(text: str, most: int) -> str:
    """Return a text of at most `most` letters, its end replaced by "…" where it is longer."""
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"
