"""Which implementations of a figure stand out, and what a reader sees at a glance."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

import numpy as np
import pandas as pd

from tflabench.conclusions.ratio import comparable
from tflabench.figures.looks import Look, owners
from tflabench.figures.quantities import Quantity, Rows, plain
from tflabench.implementations.registry import nearest, owner
from tflabench.problem import PASS_TITLES, InputError
from tflabench.rows.schema import Row
from tflabench.theory.hardware import short_device

MOST = 7  # highlighted series in a figure
SYMBOLS = {"seq_len": "T", "chunk_size": "L", "d_hv": "d_hv", "d_qk": "d_qk", "heads": "heads", "batch": "batch"}


def chosen(
    rows: Rows,
    quantity: Quantity,
    looks: dict[str, Look],
    patterns: Sequence[str] = (),
    axis: str | None = None,
    named: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return the names of the implementations to highlight, at most MOST, the least runtime or memory first.

    Without patterns: what a title has `named`, the best of each owner, of ours the best mLSTM; then more of ours, then
    more of the others. Those with less than half as many points as the longest line come last; of lines over an `axis`
    no single point is one. Nor is plain PyTorch where there is a kernel of ours. What is published to be read comes
    where there is room.
    """
    measured = rows[rows["timed"] & (rows[quantity.column] > 0)]
    place = ["pass", "seq_len", "batch", "dtype"]
    least = measured.groupby([*place, measured["heads"] * measured["d_hv"]])[quantity.column].transform("min")
    excess = np.log(measured[quantity.column].astype(float) / least.astype(float))
    lines = pd.DataFrame({"excess": excess, "name": measured["implementation"]}).groupby("name")["excess"]
    sizes = measured.groupby(["implementation", "pass"]).size().groupby("implementation").max()
    points = {str(name): int(count) for name, count in sizes.items()}
    excess = {str(name): float(mean) for name, mean in lines.mean().items()}
    best = sorted(excess, key=lambda name: (2 * points[name] < max(points.values()), excess[name], name))
    if patterns:
        return tuple(name for name in best if any(fnmatchcase(name, pattern) for pattern in patterns))[:MOST]
    families = dict(zip(rows["implementation"], rows["family"], strict=True))
    owner_of = {name: looks[name].owner for name in best}
    ours = {name for name in best if owner_of[name].role == "ours"}
    foreground = [name for name in best if owner_of[name].role != "reference" or not ours]
    if axis and max(points.values(), default=0) > 2:
        over = set(measured.loc[measured[axis].notna(), "implementation"])  # the axis means nothing to others
        foreground = [name for name in foreground if points[name] > 1 or name not in over]
    leading = []
    for group_owner in owners(looks.values()):
        of_owner = [name for name in foreground if owner_of[name] == group_owner and group_owner.role != "published"]
        leading += sorted(of_owner, key=lambda name: name in ours and families[name] != "mlstm")[:1]
    rest = sorted((name for name in foreground if name not in leading), key=lambda name: name not in ours)
    first = list(dict.fromkeys([*named, *leading, *rest]))[:MOST]
    return tuple(sorted(first, key=lambda name: (excess[name], name)))


def require(patterns: Sequence[str], names: Collection[str], option: str) -> None:
    """Raise InputError for a pattern that matches none of the implementations, and warn where more match than MOST.

    Args:
        option: what the user gave patterns as.
    """
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise InputError(f"{option} is {pattern!r}: no implementation is called so; {nearest(pattern, names)}")
    count = sum(any(fnmatchcase(name, pattern) for pattern in patterns) for name in names)
    if count > MOST:
        warnings.warn(f"{option} names {count} implementations: a figure colours the best {MOST} of them", stacklevel=2)


class Finding(NamedTuple):
    """The result of one comparison: who is compared with whom, and where. `names` are of the implementations."""

    subject: str
    verdict: str
    names: tuple[str, ...] = ()


def finding(rows: Rows, quantity: Quantity, axis: str | None) -> Finding:
    """Return in a few words how ours compares with its strongest peer; an empty verdict where no ratio may be taken.

    Ours is our best mLSTM, or our best kernel where there is none. Its peer is the best of other libraries that
    computes the same, mLSTMexp or mLSTMsig; where no comparison has one, the best of all that is no mLSTM. Both are of
    one closed comparison. Where the slower of them was throttled, the next best is not compared in its place. Of
    several comparisons the one with most rows counts, then the one at the larger problem.
    """

    def value(row: Row) -> float:
        return getattr(row, quantity.column) or 0.0

    comparisons: dict[str, list[Row]] = {}
    for row in rows["record"]:
        if row.comparison_id and row.closed and row.status == "ok" and 0 < value(row) < math.inf:
            comparisons.setdefault(row.comparison_id, []).append(row)
    alike: list[tuple[Row, Row]] = []
    apart: list[tuple[Row, Row]] = []
    for compared in sorted(comparisons.values(), key=lambda compared: (-len(compared), -compared[0].seq_len)):
        by_role: dict[str, list[Row]] = {"ours": [], "peer": []}
        for row in sorted(compared, key=value):
            by_role.setdefault(owner(row.implementation).role, []).append(row)
        if not by_role["ours"]:
            continue
        ours = min(by_role["ours"], key=lambda row: row.family != "mlstm")
        peers = [peer for peer in by_role["peer"] if comparable(ours, peer)]
        same = [peer for peer in peers if peer.family == "mlstm" and peer.gate == ours.gate]
        different = [peer for peer in peers if peer.family != "mlstm"]
        for pairs, kind in ((alike, same), (apart, different)):
            if kind and not max(ours, kind[0], key=value).throttled:
                pairs.append((ours, kind[0]))
    for ours, peer in (*alike, *apart)[:1]:
        name = "mLSTM" if ours.family == "mlstm" else ours.title
        return Finding(name, _ratio(ours, peer, quantity, axis), (ours.implementation, peer.implementation))
    return Finding(quantity.name, "")


def _ratio(ours: Row, peer: Row, quantity: Quantity, axis: str | None) -> str:
    ratio = getattr(peer, quantity.column) / getattr(ours, quantity.column)
    peer_owner = owner(peer.implementation)
    name = peer_owner.name if peer_owner.in_sentences else peer.title
    symbol, places = SYMBOLS.get(axis or ""), [getattr(row, str(axis), None) for row in (ours, peer)]
    values = " and ".join(dict.fromkeys(plain(place) for place in places if place is not None))
    position = f" at {symbol}\u00a0=\u00a0{values}" if symbol and values else ""
    if abs(ratio - 1) < 0.005:
        return f"as {quantity.better[0]} as {name}{position}"
    times = ratio if ratio > 1 else 1 / ratio
    bound = "at least " if (ours if ratio > 1 else peer).throttled and quantity.spread else ""
    return f"{bound}{times:.{1 if times >= 2 else 2}f}x {quantity.better[1 if ratio > 1 else 2]} {name}{position}"


def device_name(rows: Rows) -> str:
    """Return the short name of the device behind rows: "H100", or "CPU"."""
    return ", ".join(dict.fromkeys(short_device(name) for name in rows["device"].unique()))


def title(finding: Finding, pass_: str, device: str) -> str:
    """Return a sentence for the head of a figure: "mLSTM forward, H100: 4.5x faster than mlstm_kernels"."""
    head = f"{finding.subject} {PASS_TITLES[pass_]}, {device}"
    return f"{head}: {finding.verdict}" if finding.verdict else head
