"""The generated results/README.md: our best kernel against each baseline, from stored rows only. No torch.

A table belongs to one campaign (a folder, a machine, a set of versions) and one pass; a ratio is the baseline's time or
memory over that of our fastest kernel at the same point, so above 1 ours is better.
"""

from __future__ import annotations

import os
import shlex
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tflabench.conclusions.campaigns import DECISIVE, Campaign, campaigns, conditions_of, differences
from tflabench.conclusions.compare import comparable, fastest, questions, ratio
from tflabench.conclusions.summary import NOISY_MEANS
from tflabench.implementations.registry import bundled_kernels, operation
from tflabench.problem import InputError
from tflabench.rows.labels import PASS_TITLES, THROTTLED, heads, label, mark
from tflabench.rows.load import find_results
from tflabench.rows.schema import Row

PASSES = ("fw", "fwbw")
TIE = 0.01  # nearer to each other than this, nobody wins


@dataclass(frozen=True)
class Quantity:
    """What a table compares: a column of a row, how it is written, and the verb of its winner."""

    name: str
    column: str
    write: Callable[[float], str]
    wins: str


TIME = Quantity("time", "ms_median", lambda ms: f"{ms:.3g} ms", "faster")
MEMORY = Quantity("peak memory", "peak_bytes", lambda size: f"{size / 2**30:.2f} GiB", "smaller")


def answers(ours: Sequence[Row], rival: Row | None) -> list[Row]:
    """Those of our rows that a baseline is compared with: of the same operation where there is a kernel of ours for it,
    measured here or not; else mLSTM, what this project is about, or all of ours where no mLSTM was measured.
    """
    wanted = operation(rival.implementation, rival.gate) if rival else None
    if rival and wanted and (rival.family == "mlstm" or wanted in {operation(name) for name in bundled_kernels()}):
        return [row for row in ours if operation(row.implementation, row.gate) == wanted]
    return [row for row in ours if row.family == "mlstm"] or list(ours)


@dataclass(frozen=True)
class Column:
    """The rows of one question of a campaign: those of our kernels and those of baselines, by implementation."""

    label: str
    kernels: Mapping[str, list[Row]]
    baselines: Mapping[str, list[Row]]

    def ours(self, rival: Row | None = None) -> Row | None:
        """Return our fastest kernel of those that answer a baseline, or of mLSTM (see `answers`).

        Kernels of the baseline's comparison come before others.
        """
        rows = answers([row for own in self.kernels.values() for row in own if row.status == "ok"], rival)
        if rival and (beside := [row for row in rows if comparable(row, rival)]):
            rows = beside
        return fastest(rows) if rows else None

    def rival(self, name: str) -> Row | None:
        """The fastest row of a baseline, one that failed where none was measured, None where it was not asked for."""
        return fastest(self.baselines[name]) if name in self.baselines else None

    def ratio(self, name: str, quantity: Quantity) -> float | None:
        """The baseline's value over ours."""
        rival = self.rival(name)
        ours = self.ours(rival) if rival else None
        if not (rival and ours and comparable(rival, ours)):
            return None
        return ratio(getattr(rival, quantity.column), getattr(ours, quantity.column))

    def clear_ratio(self, name: str, quantity: Quantity) -> float | None:
        """Return the ratio that counts in what is said of winners: None of a time measured on a throttled GPU."""
        return None if quantity is TIME and self.throttled(name) else self.ratio(name, quantity)

    def throttled(self, name: str) -> list[str]:
        """Return which side of a ratio of times was measured on a throttled GPU: ours, the baseline, or both."""
        rival = self.rival(name)
        ours = self.ours(rival) if rival else None
        if not (rival and ours and self.ratio(name, TIME) is not None):
            return []
        return [title for title, row in ((ours.implementation, ours), (rival.title, rival)) if row.throttled]


@dataclass(frozen=True)
class Table:
    """One pass at one number of tokens, embedding and dtype, over the sequence length or the head dimension."""

    title: str
    axis: str
    columns: tuple[Column, ...]

    @property
    def rows(self) -> list[Row]:
        sides = (side for column in self.columns for side in (column.kernels, column.baselines))
        return [row for side in sides for rows in side.values() for row in rows]

    @property
    def baselines(self) -> dict[str, Row]:
        """A row of every baseline, by name; one with a version where there is one."""
        found: dict[str, Row] = {}
        for column in self.columns:
            for name, rows in column.baselines.items():
                for row in rows:
                    known = found.setdefault(name, row)
                    found[name] = known if known.package_version else row
        return found


def write(root: Path, out: Path, command: Sequence[str] | None = None) -> Path:
    """Write the page about all results at and below `root`; `command`: what it says made it, if not `headline`.

    Raises:
        InputError: no results, results that cannot be read, or a file that cannot be written.
    """
    text = markdown(root, command or ["tflabench", "headline", str(root), "--out", str(out)], out.parent)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text)
    except OSError as error:
        raise InputError(f"{out} cannot be written ({error.strerror}): give another file with --out") from None
    return out


def markdown(root: Path, command: Sequence[str], beside: Path = Path()) -> str:
    """The page about all results at and below `root`, its links relative to the folder `beside`."""
    kernels = bundled_kernels()
    sections, shorts, apart = [], [], dict[str, None]()
    every = campaigns(find_results(root))
    ours = [campaign for campaign in every if any(row.implementation in kernels for row in campaign.rows)]
    folders = {campaign.folder for campaign in ours}
    shown = [campaign for campaign in every if campaign in ours or campaign.folder not in folders]
    for campaign in shown:
        found = tables(campaign, kernels)
        if found:
            name = _heading(campaign, shown, root)
            beyond = [other for other in every if other.folder == campaign.folder and other not in shown]
            sections += ["", f"## {name}", "", *_origin(campaign, beside), *(_beyond(campaign, x) for x in beyond)]
            for table in found:
                sections += ["", f"### {table.title}", "", *_rendered(table)]
                link = f"[{name}](#{_anchor(name)})"
                if said := _short(table):
                    shorts += [f"- {link}, {table.title}: {said}"]
                else:
                    apart[link] = None
    if alone := [link for link in apart if not any(link in short for short in shorts)]:
        shorts += [f"- no kernel of ours and a baseline in one comparison: {', '.join(alone)}"]
    head = [
        "# Results",
        "",
        f"Generated by `{shlex.join(command)}` from the rows in these folders; do not edit.",
        "",
        "A ratio is the baseline's value over that of our fastest kernel at the same point: above 1, ours is better;",
        "**bold** where the baseline is. Both sides are of one comparison: they took turns on one GPU. Where they",
        "are not, or where a baseline was not tuned in full, the plain value stands. Against Simple GLA, Retention,",
        "Lightning attention, Mamba 2 or an mLSTM of a library, ours is the fastest that computes the same (mLSTM: the",
        "same gate); against all others the fastest mLSTM. Each runs at its fastest of the chunk sizes measured.",
        "",
        "In brackets: how near a time comes to the bound of its problem, whichever kernel computes it: each input read",
        "once and each output written once a pass, each product of the chunkwise form made once, at the GPU's copy",
        "bandwidth and matrix rate. The delta rules and Mamba have no such bound: *own* stands for the own roofline,",
        "which is what the FLOPs and bytes of that implementation take at least.",
        f"{THROTTLED}: the GPU held its clock back while this, or a side of this ratio, was measured, as it does at",
        "its power limit where a kernel keeps it busy. Such a ratio stands in the table; what is said of who is",
        "faster leaves it out, and names it.",
        "",
        "## In short",
        "",
        *(shorts or ["No kernel was measured."]),
    ]
    return "\n".join([*head, *sections]) + "\n"


def _beyond(campaign: Campaign, other: Campaign) -> str:
    """That a folder also has rows of baselines from other conditions, with which nothing of ours can be divided."""
    differing = differences(*(conditions_of(each.rows, each.runs) for each in (other, campaign)))
    told = ", ".join(f"{name} {differing[name][0]}" for name in DECISIVE if name in differing)
    names = ", ".join(dict.fromkeys(f"{row.title} ({PASS_TITLES[row.pass_]})" for row in other.rows))
    return f"- also in this folder and its figures, from {told} with no kernel of ours to divide by: {names}"


def tables(campaign: Campaign, kernels: Container[str]) -> list[Table]:
    """The tables of a campaign, forward first: by tokens, embedding, dtype and, where several ran, by head dimension.

    The plain PyTorch forms of our kernels are left out: neither kernels nor baselines.
    """
    groups = defaultdict(list)
    compared = (row for row in campaign.rows if row.pass_ in PASSES and not row.implementation.startswith("reference_"))
    for rows in questions(compared):
        row = rows[0]
        size = (row.batch * row.seq_len, row.heads * row.d_hv)
        groups[PASSES.index(row.pass_), *size, row.dtype, row.inputs].append(rows)
    return [table for _, group in sorted(groups.items()) for table in _split(group, kernels)]


def _heading(campaign: Campaign, every: Sequence[Campaign], root: Path) -> str:
    """The folder below `root`, with the conditions that tell its campaigns apart where it has several."""
    folder = Path(campaign.folder)
    name = root.resolve().name if folder == root else folder.relative_to(root).as_posix()
    own = conditions_of(campaign.rows, campaign.runs)
    siblings = [conditions_of(other.rows, other.runs) for other in every if other.folder == campaign.folder]
    telling = [key for key in DECISIVE if any(other.get(key) != own.get(key) for other in siblings)]
    return ", ".join([name, *(f"{key} {' '.join(own.get(key, ['not recorded']))}" for key in telling)])


def _split(group: Sequence[list[Row]], kernels: Container[str]) -> list[Table]:
    """One table over T; of several questions at one T, one table a head dimension, or one over these at a single T."""
    row = group[0][0]
    words = [f"{row.batch * row.seq_len:,} tokens", f"embedding {row.heads * row.d_hv}", row.dtype]
    words += [] if row.inputs == "normal" else [f"{row.inputs} inputs"]

    def table(axis: str, columns: Mapping[str, list[Row]], *more: str) -> Table:
        found = tuple(_column(label, rows, kernels) for label, rows in columns.items())
        return Table(", ".join([PASS_TITLES[row.pass_], *more, *words]), axis, found)

    by_length = defaultdict(list)
    for rows in group:
        by_length[rows[0].seq_len].append(rows)
    if len(by_length) == 1 and len(group) > 1:
        in_order = sorted(group, key=lambda rows: (rows[0].d_hv, rows[0].d_qk))
        return [table("heads", {heads(rows[0]): rows for rows in in_order}, f"T = {row.seq_len}")]
    found = []
    if alone := {str(T): several[0] for T, several in by_length.items() if len(several) == 1}:
        found.append(table("T", alone))
    by_heads = defaultdict(dict)
    for T, several in by_length.items():
        for rows in several if len(several) > 1 else ():
            by_heads[heads(rows[0])][str(T)] = rows
    return [*found, *(table("T", columns, f"heads {cut}") for cut, columns in by_heads.items())]


def _column(label: str, rows: Iterable[Row], kernels: Container[str]) -> Column:
    column = Column(label, defaultdict(list), defaultdict(list))
    for row in rows:
        side = column.kernels if row.implementation in kernels else column.baselines
        side[row.implementation].append(row)
    return column


def _rendered(table: Table) -> list[str]:
    """Time, then memory, each followed by where baselines win; then what was not measured."""
    lines = []
    best = [column.ours() for column in table.columns]
    for quantity in (TIME, MEMORY):
        lines += [_line([f"{quantity.name}, {table.axis} =", *(column.label for column in table.columns)])]
        lines += ["|---|" + "---:|" * len(table.columns)]
        lines += [_line(["our fastest kernel", *(label(row) if row else "-" for row in best)])] * (quantity is TIME)
        lines += [_line(["ours", *(_own(row, quantity) if row else "-" for row in best)])]
        for name, example in table.baselines.items():
            lines.append(_line([_title(example), *(_cell(column, name, quantity) for column in table.columns)]))
        lines += ["", _winners(table, quantity), ""]
    return lines + _caveats(table)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _title(row: Row) -> str:
    return f"{row.title} ({row.package} {row.package_version})" if row.package_version else row.title


def _own(row: Row, quantity: Quantity) -> str:
    value = getattr(row, quantity.column)
    if value is None:
        return ""
    return quantity.write(value) + (f"{mark(row)}{_nearness(row)}" if quantity is TIME else "")


def _nearness(row: Row) -> str:
    """ " (44%)" of the bound, " (own 68%)" of the own roofline where there is no bound."""
    if row.percent_of_bound is not None:
        return f" ({row.percent_of_bound:.0f}%)"
    return "" if row.percent_of_own_roofline is None else f" (own {row.percent_of_own_roofline:.0f}%)"


def _cell(column: Column, name: str, quantity: Quantity) -> str:
    """A ratio, bold where the baseline wins; the plain value where there is none to take; a status."""
    rival, found = column.rival(name), column.ratio(name, quantity)
    if rival is None:
        return ""
    if rival.status != "ok":
        return f"*{rival.status}*"
    if found is None:
        return _own(rival, quantity)
    clear = column.clear_ratio(name, quantity)
    bold = "**" if clear is not None and clear < 1 - TIE else ""
    shown = f"{bold}{found:.2f}x{bold}"
    return shown if quantity is MEMORY else f"{shown}{THROTTLED if column.throttled(name) else ''}{_nearness(rival)}"


def _winners(table: Table, quantity: Quantity) -> str:
    """Which baselines beat our fastest kernel, where, and by how much at most."""
    if not any(column.ours() for column in table.columns):
        return "No kernel of ours was measured here: the table has the baselines' own values."
    found, counted = [], 0
    for name, example in table.baselines.items():
        ratios = {column.label: column.clear_ratio(name, quantity) for column in table.columns}
        counted += sum(value is not None for value in ratios.values())
        lost = {label: value for label, value in ratios.items() if value is not None and value < 1 - TIE}
        if lost:
            most = 1 / min(lost.values())
            found.append(f"{example.title} {_where(lost, table)} (ours takes up to {most:.2f} times as much)")
    out = _left_out(table) if quantity is TIME else ""
    none = "no ratio without throttling" if out and not counted else "none"
    return f"Baselines that are {quantity.wins}: {'; '.join(found) or none}{out}."


def _where(labels: Collection[str], table: Table) -> str:
    """Columns of a table in words."""
    return "everywhere" if len(labels) == len(table.columns) else f"at {table.axis} = {', '.join(labels)}"


def _caveats(table: Table) -> list[str]:
    """What was not measured and why, a line a reason; and how many rows were measured in bad conditions."""
    missing = defaultdict(list)
    for column in table.columns:
        for rows in (*column.kernels.values(), *column.baselines.values()):
            row = fastest(rows)
            if row.status != "ok":
                missing[row.title, row.status, row.reason].append(column.label)
    lines = [
        f"- not measured: {title} {_where(labels, table)}: {status}: {reason}"
        for (title, status, reason), labels in missing.items()
    ]
    shown = [row for row in table.rows if row.status == "ok"]
    for flag, meaning in (("throttled", "the GPU held its clock back"), ("noisy", NOISY_MEANS)):
        if count := sum(bool(getattr(row, flag)) for row in shown):
            lines.append(f"- {count} of {len(shown)} rows are flagged {flag} ({meaning})")
    return lines


def _short(table: Table) -> str:
    """Return how often ours is the fastest, and its ratio to the strongest baseline in the first and the last column.

    Nothing is said where no kernel of ours and a baseline are of one comparison.
    """
    duels = {}
    for column in table.columns:
        ratios = {name: column.clear_ratio(name, TIME) for name in table.baselines}
        if measured := {name: value for name, value in ratios.items() if value is not None}:
            strongest = min(measured, key=lambda name: measured[name])
            duels[column.label] = measured[strongest], "x", table.baselines[strongest].title
    out = _left_out(table)
    if not duels:
        return f"no ratio without throttling{out}" if out else ""
    won = sum(value > 1 + TIE for value, _, _ in duels.values())
    ends = {label: duels[label] for label in (next(iter(duels)), list(duels)[-1])}
    words = [f"{value:.2f}{x} at {table.axis} = {label} (against {title})" for label, (value, x, title) in ends.items()]
    return f"faster than every baseline at {won} of {len(duels)}; against the strongest one {', '.join(words)}{out}"


def _left_out(table: Table) -> str:
    """Whose times do not count because the GPU held its clock back, and where: "; left out, throttled: ..."."""
    where = defaultdict(dict)
    for column in table.columns:
        for name in table.baselines:
            for title in column.throttled(name):
                where[title][column.label] = None
    told = ", ".join(f"{title} {_where(labels, table)}" for title, labels in where.items())
    return f"; left out, throttled: {told}" if told else ""


def _origin(campaign: Campaign, beside: Path) -> list[str]:
    """Commands, machine and versions behind a campaign's tables."""
    rows = Path(os.path.relpath(campaign.folder, beside)) / "rows.csv"
    commands = dict.fromkeys(
        shlex.join(["tflabench", *run["arguments"]]) for run in campaign.runs.values() if "arguments" in run
    )
    found = conditions_of(campaign.rows, campaign.runs)
    versions = [
        f"{name} {', '.join(found[name])}" for name in (*DECISIVE[1:], "python", "tflabench", "commit") if name in found
    ]
    sources = sorted(
        {(row.ceilings or "").partition(":")[0] for row in campaign.rows if row.ms_median is not None} - {""}
    )
    days = sorted({row.started_at[:10] for row in campaign.rows})
    return [
        f"- command: {'; '.join(f'`{command}`' for command in commands) or 'not recorded'}",
        f"- machine: {', '.join(found['device'])}; {', '.join(versions) or 'versions not recorded'}",
        f"- measured {' to '.join(dict.fromkeys((days[0], days[-1])))}, protocol {', '.join(found['protocol'])}, "
        f"ceilings: {' and '.join(sources) or 'not recorded'}; [rows]({rows.as_posix()})",
    ]


def _anchor(heading: str) -> str:
    """How GitHub names a heading in a link."""
    return "".join(letter for letter in heading.lower().replace(" ", "-") if letter.isalnum() or letter in "-_")
