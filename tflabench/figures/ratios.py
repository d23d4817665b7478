"""Ratios of two measurements of the same points: a panel a pass, a line an implementation, over every swept axis."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tflabench.conclusions.compare import Judgement, Match
from tflabench.figures import facets
from tflabench.figures.axes import around, held
from tflabench.figures.captions import caption, missing, provenance
from tflabench.figures.curves import Chart, columns_of, key_of_crosses, over_axis
from tflabench.figures.highlights import MOST
from tflabench.figures.looks import Look, looks
from tflabench.figures.model import Figure, Ink, Key, Panel, Rule, Shading
from tflabench.figures.quantities import PASSES, Quantity, Rows, by_pass, drawable
from tflabench.rows.spread import of_pair, on_another_occasion
from tflabench.rows.table import frame

RATIO = Quantity(
    "Ratio", "ratio", "runtime, B over A", (("×", 1.0), ("×", 1.0)), ("the same", "faster than", "slower than"),
    spread=("ratio_low", "ratio_high"),
)  # fmt: skip
SAME = Ink("#b0b0b0")


def draw(
    judgement: Judgement, names: tuple[str, str], runs: tuple[Mapping[str, Any], Mapping[str, Any]], stem: str
) -> Iterator[Figure]:
    """Yield a figure of the ratios over every axis that matched points were swept over.

    Args:
        names: of A and B.
        runs: what environment.json says of the runs of A, and of B.
        stem: of the files; axis and setting are added where there are several figures.
    """
    rows = _frame(judgement.matches)
    parts = [part for axis in facets.swept_axes(rows) or ["seq_len"] for part in facets.split(rows, axis)]
    a, b = (frame([getattr(match, side) for match in judgement.matches]) for side in "ab")
    threshold = max(match.threshold.value for match in judgement.matches)
    keys = [Key(f"within the threshold of {100 * threshold:.3g}%", SAME, "area")]
    ambiguous = Key("ambiguous", Ink("#595959", "circle"), "hollow")
    for part in parts:
        table = looks(part.rows)
        panels = tuple(_panels(part, table, threshold))
        yield Figure(
            stem=stem if len(parts) == 1 else f"{stem}-{part.stem}",
            title=f"Runtime of B over A: B = {names[1]}, A = {names[0]}",
            setting=caption(part.rows, part.axis),
            panels=panels,
            keys=(*keys, *([ambiguous] if part.rows["noisy"].any() else []), *key_of_crosses(panels)),
            caption=(
                "Whiskers: where 95% of ratios lie on another occasion.",
                *missing(part.rows, part.axis, table),
                *dict.fromkeys((provenance(a, runs[0]), provenance(b, runs[1]))),
            ),
            rows=part.rows,
        )


def _frame(matches: Sequence[Match]) -> Rows:
    """Return the rows of B with the ratio and its interval; status that of the side which failed."""
    spans = [_span(match) for match in matches]
    of_one = {"chunk_size": None}  # not of both: it is in no caption
    of_b = [m.b if m.a.chunk_size == m.b.chunk_size else m.b.model_copy(update=of_one) for m in matches]
    rows = drawable(
        frame(of_b).assign(
            status=[match.a.status if match.b.status == "ok" else match.b.status for match in matches],
            noisy=[match.verdict == "ambiguous" for match in matches],
            throttled=False,
            ratio=[match.ratio or np.nan for match in matches],
            ratio_low=[low for low, _ in spans],
            ratio_high=[high for _, high in spans],
        )
    )
    return rows.assign(timed=rows["status"] == "ok")


def _span(match: Match) -> tuple[float, float]:
    """Return where the ratio lies on another occasion, with 95%."""
    if not match.ratio:
        return np.nan, np.nan
    half = on_another_occasion(of_pair(match.a, match.b))
    return match.ratio * math.exp(-half), match.ratio * math.exp(half)


def _panels(part: facets.Slice, table: dict[str, Look], threshold: float) -> Iterator[Panel]:
    """Yield a panel a pass, with those highlighted whose ratio is farthest from 1."""
    far = part.rows.assign(far=np.abs(np.log(part.rows["ratio"]))).groupby("implementation")["far"].max()
    names = tuple(far.dropna().sort_values(ascending=False).index[:MOST])
    chart = Chart(part, RATIO, "×", 1.0, table, names, False)
    margin = 1 + max(threshold, 0.01)
    band = (Shading("y", 1 / (1 + threshold), 1 + threshold, SAME.colour), Rule("y", 1.0, ink=Ink("#4d4d4d")))
    for pass_, of_pass in by_pass(part.rows).items():
        panel = over_axis(chart, columns_of(of_pass, part.axis), f"{PASSES[pass_]}; above 1, B is slower")
        y = around(panel.y.label, 1 / margin, margin, *filter(math.isfinite, held(panel.items)))
        yield replace(panel, y=y, items=(*band, *panel.items))
