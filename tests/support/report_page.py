"""Rows for the page of `tflabench report`, and the page as tests read it."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

from synthetic import row

from tflabench.report import page as report
from tflabench.rows.schema import Row

MODEL = {
    "model_flops": 1e12, "model_bytes": 1e10, "model_ms_lower": 0.4, "model_ms_upper": 0.6, "tflops": 500.0,
    "gbps": 5e3, "rel_error": 2e-3, "sm_clock_mhz": 1980.0, "ceilings": "measured: calibrate", "extra_bytes": 2**29,
}  # fmt: skip
RUN = {
    "device": "NVIDIA H200", "driver": "580.1", "device_facts": {"cuda": "13.0", "l2_bytes": 60 * 2**20},
    "packages": {"torch": "2.11.0"}, "tflabench": "0.1.0", "commit": "0123456789ab",
    "arguments": ["sweep", "--impl", "tfla*", "-a", "seq_len=512:4096:x2"],
    "ceilings": {
        "bfloat16": {"flops_per_s": 8e14, "bytes_per_s": 4.2e12, "provenance": "measured", "source": "a copy"},
    },
}  # fmt: skip
ATTENTION = {"family": "attention", "gate": None, "formulation": "attention", "heads": 32, "d_qk": 128, "d_hv": 128}
REASONS = {
    "unsupported": "takes a chunk_size that is one tile", "oom": "34 GiB", "compile_error": "failed <at> ttgir",
    "crashed": "signal 6", "timeout": "no result in 300 s", "wrong": "dq is off by 0.31",
    "error": "</script><script>alert(1)</script>",
}  # fmt: skip
# Names that a plugin may have.
HOSTILE = "<img src=x onerror=alert(1)>"
LATEX = "$\\frac{a}{b}$ </script><b>bold</b>"


def sdpa(ms: float | None, T: int = 4096, **changes: Any) -> Row:
    return row("sdpa", ms, seq_len=T, batch=65536 // T, **ATTENTION, chunk_size=None, **MODEL, **changes)


def tfla(ms: float | None, T: int = 4096, name: str = "tfla_sig_xl", **changes: Any) -> Row:
    return row(name, ms, seq_len=T, batch=65536 // T, **MODEL, **changes)


def sweep() -> list[Row]:
    """Two kernels and attention over T, the second kernel over L too; every status; flags."""
    rows = []
    for pass_, slower in (("fw", 1), ("fwbw", 3)):
        for n, T in enumerate((512, 1024, 2048, 4096)):
            rows.append(sdpa(slower * (0.5 + n), T, pass_=pass_))
            rows.append(tfla(slower * (1 + 0.01 * n), T, pass_=pass_, noisy=T == 1024))
        for L in (64, 256, 512):
            rows.append(tfla(slower * (1 + abs(L - 256) / 256), pass_=pass_, chunk_size=L))
    failed = zip(REASONS, (512, 1024, 2048, 4096, 512, 1024, 2048), strict=True)
    for n, (status, T) in enumerate(failed):
        name = "tfla_exp_xl" if n < 4 else "tfla_exp_limit"
        ms = 0.1 if status == "wrong" else None
        failure = tfla(ms, T, name, gate="exp").model_copy(update={"status": status, "reason": REASONS[status]})
        rows.append(failure)
    return rows


def many(count: int) -> list[Row]:
    """`count` rows, all different: 50 implementations at 10 lengths, 10 head sizes and both passes."""
    rows = []
    for n in range(count):
        place, impl = divmod(n, 50)
        place, power = divmod(place, 10)
        size, backward = divmod(place, 2)
        T, d = 2 ** (8 + power), 32 * (1 + size % 10)
        ms = round((1 + backward) * (0.1 + impl / 50) * (1 + (n * 7919 % 1000) / 5000) * d / 64, 7)
        # Of the names, some are registered ones and some a plugin's.
        name = (
            ("tfla_sig_xl", "tfla_exp_xl", "nxai_sig_xl", "fla_simple_gla", "mamba2")[impl] if impl < 5 else f"p{impl}"
        )
        rows.append(
            row(
                name, ms, seq_len=T, batch=2**18 // T, heads=4096 // 64, d_qk=d, d_hv=d, pass_=("fw", "fwbw")[backward],
                **MODEL | {"rel_error": 1e-3 + n * 1e-8},
            ).model_copy(update={"peak_bytes": 2**28 + 4096 * (n * 104729 % 2**16)})
        )  # fmt: skip
    return rows


class Page:
    """The parts of a page: its HTML, and what its script is given."""

    def __init__(self, html: str) -> None:
        self.html = html
        self.scripts = dict(re.findall(r'<script type="text/plain" id="(\w+)">([^<]*)</script>', html))
        self.payload = json.loads(gzip.decompress(base64.b64decode(self.scripts["payload"])))
        self.columns = {column["name"]: column for column in self.payload["rows"]}

    def cell(self, name: str, row: int) -> Any:
        """Return what the table of all rows has in a column."""
        column = self.columns[name]
        value = column["values"][row]
        return column["words"][value] if "words" in column else value

    def charts(self, **wanted: str) -> list[dict[str, Any]]:
        """Return the charts that have these selections."""
        return [one for one in self.payload["charts"] if all(one[key] == value for key, value in wanted.items())]


def page_of(folder: Path) -> Page:
    """Return the page about a results folder, written into it."""
    return Page(report.write(folder).read_text())
