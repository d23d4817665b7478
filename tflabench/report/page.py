"""The page: its parts as JSON inside a fixed document, which a script shows as text."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import tflabench
from tflabench.figures import plotly_renderer
from tflabench.figures.captions import provenance
from tflabench.figures.source import Source
from tflabench.problem import InputError
from tflabench.report import charts, details, lookup
from tflabench.rows.load import Results, find_results

INSTALL = "pip install 'tflabench[report]'"


def render(directory: Path) -> str:
    """Return the page about the results in and below a folder, as HTML.

    Raises:
        InputError: no results, rows that cannot be read, or plotly is missing.
    """
    plotly = _plotly()
    named = {_name(results.folder, directory): results for results in find_results(directory)}
    payload = _payload(directory, named, _source(named))
    text = json.dumps(payload, separators=(",", ":"), allow_nan=False, default=asdict)
    parts = {"css": _text("page.css"), "script": _text("page.js")}
    parts |= {"plotly": _packed(plotly), "payload": _packed(text.encode())}
    html = _text("page.html")
    for name, part in parts.items():
        html = html.replace(f"/*{name}*/", part, 1)
    return html


def _plotly() -> bytes:
    """Return Plotly's script, from the Python package, which need not be imported for that."""
    spec = find_spec("plotly")
    if spec is None or not spec.submodule_search_locations:
        raise InputError(f"the report needs the package plotly, which is not installed: {INSTALL}")
    return (Path(spec.submodule_search_locations[0]) / "package_data" / "plotly.min.js").read_bytes()


def _text(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def _packed(content: bytes) -> str:
    """Return content compressed, in letters that mean nothing in HTML (`unpack` in page.js)."""
    return base64.b64encode(gzip.compress(content, 6, mtime=0)).decode()


def _name(folder: Path, directory: Path) -> str:
    return folder.relative_to(directory).as_posix() if folder != directory else directory.resolve().name


def _source(named: Mapping[str, Results]) -> Source:
    """Return the rows of all folders as figures draw them; `folder` is the name of each row's."""
    rows = tuple(row for results in named.values() for row in results.rows)
    source = Source.of(Results(Path(), rows, dict(chain(*(results.runs.items() for results in named.values())))))
    folders = [name for name, results in named.items() for _ in results.rows]
    return replace(source, rows=source.rows.assign(folder=folders))


def _payload(directory: Path, named: Mapping[str, Results], source: Source) -> dict[str, Any]:
    """Return all that the script shows, as plain values.

    Args:
        named: the folders with results, by the names that the page has for them.
    """
    made = list(charts.charts(source))
    devices = dict.fromkeys([*(chart["gpu"] for chart in made), *source.rows["device"]])
    return {
        "title": directory.resolve().name if directory.is_absolute() or directory == Path() else directory.as_posix(),
        "version": tflabench.__version__,
        "origin": provenance(source.rows, source.runs),
        "selectors": charts.SELECTORS,
        "charts": made,
        "rooflines": list(charts.rooflines(source)),
        "rows": details.table(source),
        "lookup": {
            "gates": lookup.GATES,
            "measured": lookup.measured(list(source.rows["record"])),
            "modelled": lookup.modelled(lookup.shapes(source.rows["record"])),
            "commands": lookup.commands(devices),
        },
        "claims": details.claims(directory, named.values()),
        "machines": details.machines(named),
        "commands": details.commands(directory, named),
        "dark": plotly_renderer.DARK,
    }
