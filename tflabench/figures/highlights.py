"""Which implementations of a figure stand out, and what a reader sees at a glance."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from statistics import fmean
from typing import Any, NamedTuple

from tflabench.conclusions.ratio import comparable
from tflabench.figures.looks import Look, owners
from tflabench.figures.quantities import PASSES, Quantity, Rows, plain
from tflabench.implementations.registry import nearest, owner
from tflabench.problem import InputError
from tflabench.rows.schema import Row
from tflabench.theory.hardware import short_device

MOST = 7  # highlighted series in a figure
SYMBOLS = {"seq_len": "T", "chunk_size": "L", "d_hv": "d_hv", "d_qk": "d_qk", "heads": "heads", "batch": "batch"}


@dataclass(frozen=True)
class Highlights:
    """The implementations that stand out in a figure.

    Attributes:
        names: at most MOST, the least runtime or memory first.
        alike: name -> implementations of the same owner whose line would lie on its line.
    """

    names: tuple[str, ...]
    alike: dict[str, list[str]] = field(default_factory=dict)


def chosen(rows: Rows, quantity: Quantity, looks: dict[str, Look], patterns: Sequence[str] = ()) -> Highlights:
    """Return the implementations to highlight.

    Without patterns: the best of each owner, of ours the best mLSTM; then more of ours, then more of the others. Those
    with less than half as many points as the longest line come last. Plain PyTorch stays in the background where there
    is a kernel of ours. Of lines on top of each other one is chosen.
    """
    ratios = _ratios(rows, quantity)
    excess = {name: math.exp(fmean(map(math.log, own.values()))) for name, own in ratios.items()}
    most = max(map(len, ratios.values()), default=0)
    best = sorted(excess, key=lambda name: (2 * len(ratios[name]) < most, excess[name], name))
    if patterns:
        named = [name for name in best if any(fnmatchcase(name, pattern) for pattern in patterns)]
        return Highlights(tuple(named[:MOST]))
    families = dict(zip(rows["implementation"], rows["family"], strict=True))
    whose = {name: looks[name].owner for name in best}
    ours = {name for name in best if whose[name].role == "ours"}
    foreground = [name for name in best if whose[name].role != "reference" or not ours]
    leading = []
    for each in owners(looks.values()):
        of_owner = [name for name in foreground if whose[name] == each]
        leading += sorted(of_owner, key=lambda name: name in ours and families[name] != "mlstm")[:1]
    others = sorted((name for name in foreground if name not in leading), key=lambda name: name not in ours)
    alike: dict[str, list[str]] = {}
    for name in [*leading, *others]:
        twin = next((o for o in alike if whose[o] == whose[name] and _coincide(ratios[o], ratios[name])), None)
        if twin:
            alike[twin].append(name)
        elif len(alike) < MOST:
            alike[name] = []
    return Highlights(tuple(sorted(alike, key=lambda name: (excess[name], name))), alike)


def ranked(values: Iterable[tuple[str, float]]) -> dict[str, bool]:
    """Return names in the order of the least value of each, and whether each is among the MOST that a figure names."""
    least: dict[str, float] = {}
    for name, value in values:
        least[name] = min(value, least.get(name, value))
    return {name: rank < MOST for rank, name in enumerate(sorted(least, key=least.__getitem__))}


def require(patterns: Sequence[str], names: Collection[str], option: str) -> None:
    """Raise InputError for a pattern that matches none of the implementations; `option` is what the user gave it as."""
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise InputError(f"{option} is {pattern!r}: no implementation is called so; {nearest(pattern, names)}")


def _ratios(rows: Rows, quantity: Quantity) -> dict[str, dict[Any, float]]:
    """Return by implementation how many times the least value at each of its points it takes."""
    done = rows[rows["timed"] & (rows[quantity.column] > 0)]
    place = ["pass", "seq_len", "batch", "dtype"]
    least = done.groupby([*place, done["heads"] * done["d_hv"]])[quantity.column].transform("min")
    asked = done["chunk_asked"].fillna("")  # NaN is no key
    points = zip(*(done[name] for name in (*place, "heads")), asked, strict=True)
    table: dict[str, dict[Any, float]] = {}
    for name, point, ratio in zip(done["implementation"], points, done[quantity.column] / least, strict=True):
        table.setdefault(name, {})[point] = ratio
    return table


def _coincide(one: dict[Any, float], other: dict[Any, float]) -> bool:
    """Return whether the line of `other` lies on that of `one`: all of its points within 2%."""
    return all(place in one and abs(value / one[place] - 1) < 0.02 for place, value in other.items())


class Finding(NamedTuple):
    """The result of one comparison: who is compared with whom, and where."""

    subject: str
    words: str


def finding(records: Sequence[Row], quantity: Quantity, axis: str | None) -> Finding:
    """Return in a few words how ours compares with its strongest peer; no words where no ratio may be taken.

    Ours is our best mLSTM, or our best kernel where there is none. Its peer is the best of other libraries that
    computes the same, mLSTMexp or mLSTMsig; where no comparison has one, the best of all that is no mLSTM. Both are of
    one closed comparison. Where the slower of them was throttled, the next best is not compared in its place. Of
    several comparisons the one with most rows counts, then the one at the larger problem.
    """
    comparisons: dict[str, list[Row]] = {}
    for row in records:
        known = 0 < (getattr(row, quantity.column) or 0) < math.inf
        if row.comparison_id and row.closed and row.status == "ok" and known:
            comparisons.setdefault(row.comparison_id, []).append(row)
    alike: list[tuple[Row, Row]] = []
    apart: list[tuple[Row, Row]] = []
    for rows in sorted(comparisons.values(), key=lambda rows: (-len(rows), -rows[0].seq_len)):
        rows = sorted(rows, key=lambda row: getattr(row, quantity.column) or 0.0)
        roles = {row.implementation: owner(row.implementation).role for row in rows}
        others = [row for row in rows if roles[row.implementation] == "peer"]
        mine = next(iter(_mlstm_first([row for row in rows if roles[row.implementation] == "ours"])), None)
        if mine is None:
            continue
        peers = [peer for peer in others if comparable(mine, peer)]
        same = [peer for peer in peers if peer.family == "mlstm" and peer.gate == mine.gate]
        different = [peer for peer in peers if peer.family != "mlstm"]
        for pairs, kind in ((alike, same), (apart, different)):
            if kind and not _larger(mine, kind[0], quantity).throttled:
                pairs.append((mine, kind[0]))
    for mine, peer in (*alike, *apart)[:1]:
        name = "mLSTM" if mine.family == "mlstm" else mine.title
        return Finding(name, _ratio(mine, peer, quantity, axis))
    return Finding("mLSTM" if any(row.family == "mlstm" for row in records) else quantity.name, "")


def _larger(one: Row, other: Row, quantity: Quantity) -> Row:
    return max(one, other, key=lambda row: getattr(row, quantity.column))


def _mlstm_first(rows: Sequence[Row]) -> list[Row]:
    """Return rows with those of mLSTM in front, each part in its order."""
    return sorted(rows, key=lambda row: row.family != "mlstm")


def _ratio(ours: Row, peer: Row, quantity: Quantity, axis: str | None) -> str:
    ratio = getattr(peer, quantity.column) / getattr(ours, quantity.column)
    whose = owner(peer.implementation)
    name = whose.name if whose.in_sentences else peer.title
    where = (
        f" at {SYMBOLS[axis]}\u00a0=\u00a0{plain(getattr(ours, axis))}"
        if axis in SYMBOLS and axis != "chunk_size"
        else ""
    )
    if abs(ratio - 1) < 0.005:
        return f"as {quantity.better[0]} as {name}{where}"
    times = ratio if ratio > 1 else 1 / ratio
    bound = "at least " if (ours if ratio > 1 else peer).throttled and quantity.spread else ""
    return f"{bound}{times:.{1 if times >= 2 else 2}f}x {quantity.better[1 if ratio > 1 else 2]} {name}{where}"


def device_name(rows: Rows) -> str:
    """Return the short name of the device behind rows: "H100", or "CPU"."""
    return ", ".join(dict.fromkeys(short_device(name) for name in rows["device"].unique()))


def title(finding: Finding, pass_: str, device: str) -> str:
    """Return a sentence for the head of a figure: "mLSTM forward, H100: 4.5x faster than mlstm_kernels"."""
    head = f"{finding.subject} {PASSES[pass_]}, {device}"
    return f"{head}: {finding.words}" if finding.words else head
