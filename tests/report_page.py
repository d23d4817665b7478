"""Rows for the page of `tflabench report`, and the page as tests read it."""

from __future__ import annotations

import base64
import gzip
import json
import sys
from html.parser import HTMLParser
from pathlib import Path

from tflabench import report
from tflabench.rows.schema import Row

sys.path.insert(0, str(Path(__file__).parent))
from synthetic import row

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


def sdpa(ms: float | None, T: int = 4096, **changes) -> Row:
    return row("sdpa", ms, seq_len=T, batch=65536 // T, **ATTENTION, chunk_size=None, **MODEL, **changes)


def tfla(ms: float | None, T: int = 4096, name: str = "tfla_sig_xl", **changes) -> Row:
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
        ms = 0.1 if status == "wrong" else None  # which has a time, and no place in a figure
        failure = tfla(ms, T, name, gate="exp").model_copy(update={"status": status, "reason": REASONS[status]})
        rows.append(failure)
    return rows


def unpacked(script: str) -> str:
    return gzip.decompress(base64.b64decode(script)).decode()


class Page(HTMLParser):
    """A page's text, tags, embedded scripts and what its script is given."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html, self.tags, self.words, self.scripts = html, [], [], {}
        self._script = None
        self.feed(html)
        self.text = " ".join(" ".join(self.words).split())
        self.payload = json.loads(unpacked(self.scripts["payload"]))

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._script = dict(attrs).get("id", "") if tag in ("script", "style") else None

    def handle_endtag(self, tag):
        if tag in ("script", "style"):
            self._script = None

    def handle_data(self, data):
        if self._script is None:
            self.words.append(data)
        else:
            self.scripts[self._script] = data

    def all(self, name: str) -> list[str]:
        """The values of an attribute."""
        return [attrs[name] for _, attrs in self.tags if name in attrs]

    def traces(self, kind: str, **wanted) -> list[dict]:
        """The traces of all plots of a kind of figure that have these properties."""
        plots = [plot for name, plot in self.payload["plots"].items() if name.split("-")[1] == kind]
        return [trace for plot in plots for trace in plot["data"] if all(trace.get(k) == v for k, v in wanted.items())]


def page_of(folder: Path) -> Page:
    """The page about a results folder, written into it."""
    return Page(report.write(folder).read_text())
