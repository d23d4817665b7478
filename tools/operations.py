"""README's table and figure: each operation on a kind of GPU, ours and its fastest peer, for `tools/pages.py`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, nan
from pathlib import Path
from typing import NamedTuple

from headline import TIE, digits, milliseconds

from tflabench.conclusions.ratio import Ratio, fastest, ratio
from tflabench.figures.axes import labels, linear
from tflabench.figures.looks import COLOURS
from tflabench.figures.model import Bars, Figure, Panel
from tflabench.implementations.registry import is_current, operation, owner
from tflabench.problem import PASS_TITLES
from tflabench.rows.labels import heads
from tflabench.rows.load import find_results
from tflabench.rows.schema import Row

ELSEWHERE = "‡"  # after a time with another Triton than most
IN_PART = "tuned in part"  # in place of a ratio
PASSES = ("fw", "fwbw")


class Setting(NamedTuple):
    """The size at which an operation is quoted; `heads` as `rows.labels.heads` has them."""

    operation: str
    heads: str
    batch: int
    seq_len: int

    def __str__(self) -> str:
        number, _, dimensions = self.heads.partition("x")
        return f"{number.replace(':', ' and ')} of {dimensions}, {self.batch} x {self.seq_len}"


FIG_4 = ("16x128/256", 16, 4096)
OPERATIONS = {  # of README
    "mLSTMsig": Setting("mlstm_sig", *FIG_4),
    "mLSTMexp": Setting("mlstm_exp", *FIG_4),
    "Mamba 2 (Nemotron 3 Super)": Setting("mamba2", "128x128/64", 4, 8192),
    "Gated DeltaNet (Qwen3-Next)": Setting("gated_delta_net", "16:32x128", 4, 8192),
    "KDA (Kimi Linear)": Setting("kda", "32x128", 4, 8192),
    "GLA": Setting("gla", *FIG_4),
    "Lightning (MiniMax-Text-01)": Setting("lightning", "64x128", 4, 8192),
    "Simple GLA": Setting("simple_gla", *FIG_4),
    "Retention": Setting("retention", *FIG_4),
}
MODELS = {  # of preset models
    "Qwen3-Next, Qwen3.5": Setting("gated_delta_net", "16:32x128", 4, 8192),
    "Qwen3.5 397B": Setting("gated_delta_net", "16:64x128", 4, 8192),
    "Olmo Hybrid 7B": Setting("gated_delta_net", "30x96/192", 4, 8192),
    "Kimi Linear 48B": Setting("kda", "32x128", 4, 8192),
    "GLM-5.3 Flash": Setting("kda", "64x128", 4, 8192),
    "Kimi K3": Setting("kda", "96x128", 4, 8192),
    "MiniMax-Text-01, Ling 2.5": Setting("lightning", "64x128", 4, 8192),
    "Nemotron 3 Super": Setting("mamba2", "128x128/64", 4, 8192),
    "Falcon-H1": Setting("mamba2", "24x256/64", 4, 8192),
    "xLSTM 7B": Setting("mlstm_exp", "8x256/512", 4, 8192),
}


class Rivals(NamedTuple):
    """Our fastest row of a comparison and the fastest of one peer in it; `peer` is None for our row alone."""

    ours: Row
    peer: Row | None = None

    @property
    def ratio(self) -> Ratio | None:
        """Return the peer's time over ours, None where none may be taken."""
        return ratio(self.peer, self.ours) if self.peer else None

    @property
    def package(self) -> str:
        """Return the library of the peer."""
        assert self.peer is not None
        library = owner(self.peer.implementation)
        return library.name if library.in_sentences else self.peer.package

    @property
    def ms(self) -> float:
        """Return the peer's time: nothing where it was tuned in part, for then it may be the fastest."""
        if self.peer is None:
            return inf
        return (self.peer.ms_median or inf) * self.peer.tuned_fully


@dataclass(frozen=True)
class Comparisons:
    """Right rows of one kind of GPU by the comparison that they are of.

    Attributes:
        folder, packages: where the rows of a run lie, and the versions that it had.
    """

    comparisons: Sequence[Sequence[Row]]
    folder: dict[str, Path]
    packages: dict[str, dict[str, str]]

    @classmethod
    def below(cls, results: Path) -> Comparisons:
        """Return those of all folders below one."""
        folders = find_results(results)
        compared: dict[str | None, list[Row]] = defaultdict(list)
        for row in (row for results in folders for row in results.rows if row.closed and row.status == "ok"):
            compared[row.comparison_id].append(row)
        folder = {name: results.folder for results in folders for name in results.runs}
        packages = {name: run["packages"] for results in folders for name, run in results.runs.items()}
        return cls(list(compared.values()), folder, packages)

    def triton(self, row: Row) -> str:
        """Return the Triton that a row was measured with."""
        return self.packages[row.run_id]["triton"]

    @cached_property
    def usual_triton(self) -> str:
        """Return the Triton of most rows."""
        return Counter(self.triton(rows[0]) for rows in self.comparisons).most_common(1)[0][0]

    def pairs(self, setting: Setting, pass_: str) -> Iterator[Rivals]:
        """Yield our fastest row of each comparison with the heads of a setting: alone, and with each peer.

        Comparisons with older kernels of ours are left out: what is current in them may not be our fastest.
        """
        for rows in self.comparisons:
            by_role: dict[str, dict[str, list[Row]]] = {"ours": {}, "peer": {}}
            for row in rows:
                alike = (operation(row.implementation, row.gate), heads(row), row.pass_) == (*setting[:2], pass_)
                if alike and row.ms_median and (names := by_role.get(owner(row.implementation).role)) is not None:
                    names.setdefault(row.implementation, []).append(row)
            of_ours = [row for of_name in by_role["ours"].values() for row in of_name]
            if of_ours and all(is_current(row.implementation, row.kernel_version) for row in of_ours):
                ours = fastest(of_ours)
                yield Rivals(ours)
                yield from (Rivals(ours, fastest(of_name)) for of_name in by_role["peer"].values())

    def best(self, setting: Setting, pass_: str) -> Rivals | None:
        """Return ours and the fastest peer at a setting, in any Triton; of several occasions of a peer the last.

        Another Triton than the usual counts where a peer is faster with it by TIE or more.
        """
        last: dict[object, Rivals] = {}
        for pair in sorted(self.pairs(setting, pass_), key=lambda pair: (pair.ms > 0, pair.ours.started_at)):
            if (pair.ours.batch, pair.ours.seq_len) == (setting.batch, setting.seq_len):
                last[pair.peer and (pair.peer.implementation, self.triton(pair.peer))] = pair

        def time(pair: Rivals) -> float:
            return pair.ms * (1 + TIE * (self.triton(pair.ours) != self.usual_triton))

        return min(last.values(), key=time, default=None)

    def quoted(self) -> list[Rivals]:
        """Return all pairs of the table."""
        pairs = [self.best(setting, pass_) for setting in OPERATIONS.values() for pass_ in PASSES]
        return [pair for pair in pairs if pair]

    def ratios(self, setting: Setting, peer: Row) -> list[float]:
        """Return the ratios to a peer in its pass and at its gates over all T and tokens, without bounds."""
        alike = [pair for pair in self.pairs(setting, peer.pass_) if pair.ours.gates == peer.gates and pair.peer]
        over = [pair.ratio for pair in alike if pair.peer and pair.peer.implementation == peer.implementation]
        return [quotient.value for quotient in over if quotient and not quotient.bound]


def table(measured: Comparisons, subject: str, settings: Mapping[str, Setting], results: str) -> Iterator[str]:
    """Yield a line a setting: for each pass ours, the fastest peer, their ratio with a link to its rows, and its range.

    Settings at which nothing of today's kernels was measured are left out.

    Args:
        subject: what the titles of settings are.
        results: where the folders of that GPU lie, from the page that has the table.
    """
    columns = " | ".join(("ours", "fastest peer", "ratio", "range"))
    yield f"| {subject} | heads of d_qk/d_hv, sequences x T | {columns} | + backward: {columns} |"
    yield "|---|---|" + "---:|---|---:|---:|" * len(PASSES)
    for title, setting in settings.items():
        pairs = [measured.best(setting, pass_) for pass_ in PASSES]
        cells = [cell for pair in pairs for cell in _cells(measured, setting, pair, results)]
        if any(pairs):
            yield f"| {' | '.join([title, str(setting), *cells])} |"


def _cells(measured: Comparisons, setting: Setting, pair: Rivals | None, results: str) -> list[str]:
    if pair is None or pair.peer is None:
        return [milliseconds(pair.ours) if pair else "", "", "", ""]
    elsewhere = ELSEWHERE * (measured.triton(pair.peer) != measured.usual_triton)
    peer = f"{pair.package} {milliseconds(pair.peer)}{elsewhere}"
    if not (over := pair.ratio):
        return [milliseconds(pair.ours), peer, "" if pair.peer.tuned_fully else IN_PART, ""]
    value = digits(over.value)
    shown = f"{over.bound}{value} ± {over.margin:.{len(value.partition('.')[2])}f}"
    values = sorted(measured.ratios(setting, pair.peer))
    ends = [digits(end) for end in values[:: len(values) - 1]] if len(values) > 1 else []
    rows = f"{results}/{measured.folder[pair.ours.run_id].name}/times.csv"
    return [milliseconds(pair.ours), peer, f"[{shown}]({rows})", " to ".join(dict.fromkeys(ends))]


def figure(measured: Comparisons) -> Figure:
    """Return the times of the table as bars, a panel a pass: under each of ours that of its fastest peer."""
    panels = []
    for pass_ in PASSES:
        bars = [
            bar
            for title, setting in OPERATIONS.items()
            for bar in _bars(title.partition(" (")[0], measured.best(setting, pass_))
        ]
        names, values, texts, colours = zip(*bars[:-1], strict=True)
        axis = labels(names)
        axis = replace(axis, ticks=[tick for tick in axis.ticks if tick[1]])
        scale = linear("ms", 0.0, 1.4 * max(value for value in values if value > 0))
        panels.append(Panel(PASS_TITLES[pass_], scale, axis, (Bars(names, values, texts, colours),)))
    return Figure(
        stem="operations",
        title="Operations of linear RNNs on an H100, each with its fastest peer below it",
        setting="bfloat16, GPU time with a cold L2, in brackets the peer's time over ours",
        panels=tuple(panels),
        columns=len(panels),
        height=0.1 * len(bars),
    )


def _bars(title: str, pair: Rivals | None) -> Iterator[tuple[str, float, str, str]]:
    """Yield label, time, words and colour of ours and of the peer, and of the room below."""
    peer, over = (pair.peer, pair.ratio) if pair else (None, None)
    yield _bar(title, pair.ours if pair else None)
    yield _bar(pair.package if pair and peer else "peer", peer, f" ({over.bound}{digits(over.value)})" if over else "")
    yield "", nan, "", COLOURS["black"]


def _bar(name: str, row: Row | None, more: str = "") -> tuple[str, float, str, str]:
    if row is None or row.ms_median is None:
        return name, nan, "not measured", COLOURS["black"]
    return name, row.ms_median, milliseconds(row) + more, COLOURS[owner(row.implementation).colour]
