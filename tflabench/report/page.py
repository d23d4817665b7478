"""The page: what its template shows, and what the script on it needs."""

from __future__ import annotations

import base64
import gzip
import json
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.colors import to_hex
from plotly.offline import get_plotlyjs, get_plotlyjs_version

import tflabench
from tflabench.figures.captions import provenance
from tflabench.figures.quantities import PASSES, RUNTIME, Rows
from tflabench.figures.style import Look, looks
from tflabench.report import charts, duels, formats, tables
from tflabench.report.folders import Part
from tflabench.report.formats import NOTES, amount
from tflabench.report.plotly_axes import LINES, SYMBOLS, dark_colours
from tflabench.rows.table import flat

_OPTIONS: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True, "undefined": StrictUndefined}
_DRAWN_SYMBOLS = {  # in a box of 26 x 12, as Plotly draws them
    "circle": '<circle cx="13" cy="6" r="3.4"/>',
    "square": '<rect x="9.8" y="2.8" width="6.4" height="6.4"/>',
    "triangle-up": '<path d="M13 1.8 17 9.2H9Z"/>',
    "diamond": '<path d="M13 1.6 17 6 13 10.4 9 6Z"/>',
    "triangle-down": '<path d="M13 10.2 17 2.8H9Z"/>',
    "cross": '<path d="M11.6 2h2.8v2.6H17v2.8h-2.6V10h-2.8V7.4H9V4.6h2.6Z"/>',
    "x": '<path d="M10.6 2 13 4.4 15.4 2 17 3.6 14.6 6 17 8.4 15.4 10 13 7.6 10.6 10 9 8.4 11.4 6 9 3.6Z"/>',
    "pentagon": '<path d="M13 1.8 17 4.9 15.4 9.8H10.6L9 4.9Z"/>',
    "triangle-left": '<path d="M8.8 6 16.2 2V10Z"/>',
    "triangle-right": '<path d="M17.2 6 9.8 2V10Z"/>',
    "star": '<path d="M13 1.4 14.1 4.5 17.4 4.6 14.8 6.6 15.7 9.8 13 7.9 10.3 9.8 11.2 6.6 8.6 4.6 11.9 4.5Z"/>',
}


def render(directory: Path, parts: Sequence[Part]) -> str:
    """The page about the results in and below `directory`, as HTML."""
    rows = pd.concat([part.rows for part in parts])
    table = looks(rows)
    figures = [list(charts.figures(part, f"r{n}", table)) for n, part in enumerate(parts)]
    said = duels.compare(part.results for part in parts)
    plotly = _packed(get_plotlyjs())
    environment = Environment(loader=PackageLoader("tflabench.report", "."), autoescape=True, **_OPTIONS)
    environment.filters |= {
        "html": Markup,
        "ratio": formats.ratio,
        "swatch": lambda name: _swatch(list(table).index(name)),
    }
    return environment.get_template("page.html.j2").render(
        title=directory.resolve().name if directory.is_absolute() or directory == Path() else directory.as_posix(),
        version=tflabench.__version__,
        provenance=dict.fromkeys(provenance(part.rows, part.runs) for part in parts),
        counts=_counts(rows),
        titles={name: look.title for name, look in table.items()},
        symbols=[_symbol(n, look) for n, look in enumerate(table.values())],
        colours=[(to_hex(look.colour), dark_colours(table)[to_hex(look.colour)]) for look in table.values()],
        passes=PASSES,
        headline=said,
        scale=Scale([duel.ratio for verdict in said.verdicts for one in verdict.comparisons for duel in one.duels]),
        words=_words,
        parts=[
            {
                "name": part.name,
                "figures": own,
                "best": list(tables.best(part.results)),
                "missing": list(tables.missing(part.rows, list(table))),
                "records": list(tables.records(part.rows)),
                "commands": part.commands(),
                "plot": shlex.join(["tflabench", "plot", str(part.results.folder)]),
            }
            for part, own in zip(parts, figures, strict=True)
        ],
        columns=tables.COLUMNS,
        environments=tables.environments(parts),
        ceilings=tables.ceilings(parts),
        report=shlex.join(["tflabench", "report", str(directory)]),
        notes={key: (n, Markup(text)) for n, (key, text) in enumerate(NOTES.items(), 1)},
        css=Markup(_text("page.css")),
        script=Markup(_text("page.js")),
        payload=_packed(json.dumps(_payload(parts, rows, figures, table), separators=(",", ":"), allow_nan=False)),
        plotly=plotly,
        plotly_version=get_plotlyjs_version(),
        plotly_size=f"{len(plotly) / 1e6:.1f} MB",
    )


def _text(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def _packed(text: str) -> str:
    """Compressed, for the browser to unpack (`unpack` in page.js)."""
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


def _payload(
    parts: Sequence[Part], rows: Rows, figures: Sequence[Sequence[charts.Figure]], table: Mapping[str, Look]
) -> dict[str, Any]:
    """What the script draws and shows: plots by id, the card of every row by its index, dark colours, tables as CSV."""
    plots = {
        f"{figure.id}-{n}": panel.plot for own in figures for figure in own for n, panel in enumerate(figure.panels)
    }
    cards = dict(zip(map(int, rows.index), map(_card, rows.to_dict("records")), strict=True))
    csv = [flat(part.rows.drop(columns=["details", "chunk_asked", "timed"])).to_csv(index=False) for part in parts]
    return {"plots": plots, "cards": cards, "dark": dark_colours(table), "csv": csv}


def _card(row: Mapping[str, Any]) -> dict[str, Any]:
    """What hovering over the point of a row shows."""
    notes = list(NOTES)
    card = {
        "title": row["title"],
        "size": formats.size(row),
        "facts": [[fact.label, fact.value, fact.source, notes.index(fact.note) + 1] for fact in formats.facts(row)],
        "remarks": formats.flags(row),
    }
    if row["status"] != "ok":
        card["remarks"] = [f"{row['status'].replace('_', ' ')}: {row['reason'] or 'no reason was given'}"]
    return card


def _counts(rows: Rows) -> list[tuple[str, int]]:
    """(what, how many) of all rows: asked for, measured, each other status, flags."""
    done = rows[rows["status"] == "ok"]
    statuses = rows.loc[rows["status"] != "ok", "status"].value_counts()
    return [
        ("points asked for", len(rows)),
        ("measured", len(done)),
        *((str(status).replace("_", " "), int(count)) for status, count in statuses.items()),
        *((flag, int(done[flag].sum())) for flag in ("noisy", "throttled") if done[flag].any()),
    ]


def _symbol(n: int, look: Look) -> Markup:
    """The line and marker of the n-th implementation, to be drawn wherever it is named."""
    dash = LINES[look.dashes].replace("solid", "none")
    line = f'<line x1="0" x2="26" y1="6" y2="6" stroke-dasharray="{dash}"/>'
    return Markup(f'<symbol id="k{n}" viewBox="0 0 26 12">{line}{_DRAWN_SYMBOLS[SYMBOLS[look.marker]]}</symbol>')


def _swatch(n: int) -> Markup:
    return Markup(f'<svg class="swatch k{n}"><use href="#k{n}"/></svg>')


class Scale:
    """A logarithmic axis that holds 1 and all ratios: `scale(ratio)` is its place in percent of the width."""

    def __init__(self, ratios: Sequence[float]) -> None:
        low, high = min([0.8, *ratios]) / 1.08, max([1.25, *ratios]) * 1.08
        self.low, self.span = math.log(low), math.log(high / low)
        steps = (1, 2, 5) if high < 100 * low else (1,)
        marks = (step * 10.0**power for power in range(-6, 7) for step in steps)
        self.ticks = [mark for mark in marks if low * 1.05 < mark < high / 1.05]

    def __call__(self, ratio: float) -> float:
        return round(100 * (math.log(ratio) - self.low) / self.span, 2)


def _words(duel: duels.Duel) -> str:
    sides = (f"{row.title} {amount(row.ms_median, RUNTIME.units)}" for row in (duel.ours, duel.baseline))
    size = f"T = {duel.ours.seq_len:,}, batch {duel.ours.batch}"
    return f"{size}: {', '.join(sides)}, {formats.ratio(duel.ratio, duel.uncertainty)}×"
