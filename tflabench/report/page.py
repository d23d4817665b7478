"""The page: its parts as JSON inside a fixed document, which a script shows as text.

It holds everything that it shows, Plotly's script included, and asks no network.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import tflabench
from tflabench.figures import curves, facets, plotly_renderer, roofline
from tflabench.figures.captions import caption, provenance
from tflabench.figures.facets import Slice
from tflabench.figures.highlights import SYMBOLS, device_name, finding, title
from tflabench.figures.model import Panel
from tflabench.figures.quantities import MEMORY, RUNTIME, WARY, by_pass
from tflabench.figures.source import Source
from tflabench.implementations.registry import is_current
from tflabench.problem import PASS_TITLES, InputError
from tflabench.report import details
from tflabench.rows.load import Results, find_results

INSTALL = "pip install 'tflabench[report]'"
# What a chart is selected by -> its heading, in the order in which one choice narrows the next.
SELECTORS = {
    "gpu": "GPU", "results": "results", "dtype": "data type", "pass": "pass", "view": "chart",
    "size": "heads and head dimensions",
}  # fmt: skip
SHARED = ("device", "folder", "dtype", "pass")


def write(directory: Path, out: Path | None = None) -> Path:
    """Write the report of a results folder, or of all below a folder; return the file (default: report.html in it).

    Raises:
        InputError: no results, rows that cannot be read, plotly missing, or a file that cannot be written.
    """
    out = out or directory / "report.html"
    html = render(directory)
    try:
        out.write_text(html, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{out} cannot be written ({error.strerror}): give another file with --out") from None
    return out


def render(directory: Path) -> str:
    """Return the page about the results in and below a folder, as HTML."""
    spec = find_spec("plotly")  # its script is taken from the package, which need not be imported for that
    if spec is None or not spec.submodule_search_locations:
        raise InputError(f"the report needs the package plotly, which is not installed: {INSTALL}")
    plotly = (Path(spec.submodule_search_locations[0]) / "package_data" / "plotly.min.js").read_bytes()
    named = {_name(results.folder, directory): results for results in find_results(directory)}
    payload = _payload(directory, named, _source(named))
    text = json.dumps(payload, separators=(",", ":"), allow_nan=False)
    parts = {"css": _text("page.css"), "script": _text("page.js")}
    parts |= {"wary": f"{', '.join(WARY[:-1])} or {WARY[-1]}"}
    parts |= {"plotly": _packed(plotly), "payload": _packed(text.encode())}
    html = _text("page.html")
    for name, part in parts.items():
        html = html.replace(f"/*{name}*/", part, 1)
    return html


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
    return {
        "title": directory.resolve().name if directory.is_absolute() or directory == Path() else directory.as_posix(),
        "version": tflabench.__version__,
        "origin": provenance(source.rows, source.runs),
        "selectors": SELECTORS,
        "charts": list(charts(source)),
        "rooflines": list(rooflines(source)),
        "rows": details.table(source),
        "machines": details.machines(named),
        "commands": details.commands(directory, named),
        "dark": plotly_renderer.DARK,
    }


def charts(source: Source) -> Iterator[dict[str, Any]]:
    """Yield every chart: what selects it (SELECTORS), its title, its setting and its plot.

    Folders with most rows of today's kernels in closed comparisons come first, then those with most rows.
    """
    rows = source.rows
    pairs = zip(rows["implementation"], rows["kernel_version"], strict=True)
    current = rows.assign(current=[is_current(*pair) for pair in pairs])["current"]
    compared = rows["comparison_id"].notna() & rows["closed"] & current
    folders = rows.assign(compared=compared).groupby("folder")["compared"]
    ordered = rows.assign(compared=-folders.transform("sum"), size=-folders.transform("size"))
    ordered = ordered.sort_values(["compared", "size", "folder"], kind="stable")
    for key, rows in ordered.groupby(list(SHARED), sort=False):
        for part in facets.slices(rows):
            yield from _of_slice(source, part, key)


def rooflines(source: Source) -> Iterator[dict[str, Any]]:
    """Yield the roofline of every GPU, folder, data type and pass, selected as charts are, without view and size."""
    for key, rows in source.rows.groupby(list(SHARED[:-1]), sort=False):
        figure = roofline.draw("roofline", source, rows)
        for pass_, panel in zip(by_pass(rows), figure.panels, strict=True):
            yield _chosen((*key, pass_), panel, title=figure.title, setting=figure.caption[0])


def _chosen(key: tuple[str, ...], panel: Panel, **texts: str) -> dict[str, Any]:
    """Return a chart: what selects it (`key`: values of SHARED) and the words at it, and its plot."""
    device, folder, dtype, pass_ = key
    shared = {"gpu": device, "results": folder, "dtype": dtype, "pass": PASS_TITLES[pass_]}
    return {**shared, **texts, "plot": plotly_renderer.draw(panel)}


def _of_slice(source: Source, part: Slice, key: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Yield runtime and peak memory over the axis of a slice of one pass."""
    rows, single = part.rows, part.single
    size = caption(rows, part.axis).replace(f", {rows['dtype'].iloc[0]}", "")
    size = f"T = {int(rows['seq_len'].iloc[0])}, {size}" if single else size
    over = "" if single else f" over {SYMBOLS.get(part.axis, part.axis)}"
    columns, device = curves.columns_of(rows, part.axis), device_name(rows)
    quantities = (RUNTIME, MEMORY) if rows["peak_bytes"].notna().any() else (RUNTIME,)
    for quantity in quantities:
        result = finding(rows, quantity, None if single else part.axis)
        chart = curves.Chart.of(source, part, quantity, named=result.names)
        panel = curves.ranking(chart, rows, "") if single else curves.over_axis(chart, columns, "")
        head = title(result, rows["pass"].iloc[0], device)
        yield _chosen(key, panel, view=f"{quantity.name.lower()}{over}", size=size, title=head, setting=size)
