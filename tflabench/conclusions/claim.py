"""Claims, and the one rule by which rows decide them: holds, does not hold, not measurable here. No torch.

What a claim states is an interval. A printed number stands for all that round to it: 25% is 24.5 to 25.5%. A bound
("over 2x", "within 15%") is itself. Words such as "about" add nothing.

What was measured is an interval too. A ratio or a difference is of two rows of one closed comparison, with half its
range over their rounds; of a single round, and of the time of one row, half the spread from the 20th to the 80th
percentile. Memory, errors against float64 and modelled times have no spread. What lies between two chunk sizes that
were tried is not known, so a best one reaches to its neighbours where the claim is about all chunk sizes.

A claim does not hold where a number that it is about misses what is stated with its whole interval. Else it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from tflabench.conclusions.compare import comparable, fastest
from tflabench.conclusions.spans import ANYTHING, AXIS_SYMBOLS, Point, Span, Stated, Values, every, exactly, spread

if TYPE_CHECKING:
    from tflabench.conclusions.campaigns import Campaign
    from tflabench.rows.errors import ErrorLine
    from tflabench.rows.schema import Row

Verdict = Literal["holds", "does not hold", "not measurable"]
# What Triton 3.6 miscompiles or aborts on, by implementation and pass (docs/getting-started.md).
OTHER_TRITON = {("nxai_exp_xl", "fw"), ("nxai_exp_xl", "fwbw"), ("fla_simple_gla", "fwbw")}


@dataclass(frozen=True)
class Need:
    """Rows that a claim takes: of an implementation, `{}` in its name being the kernels, where columns are as given.

    Besides columns: `tokens` is batch * seq_len, `cut` (heads, d_qk, d_hv), `dims` (d_qk, d_hv), `auto` whether the
    implementation chose L.
    """

    name: str
    where: Mapping[str, Any]

    def fits(self, row: Row | ErrorLine, kernels: str) -> bool:
        """Return whether a row is one of these, for a set of kernels."""
        return row.implementation == self.name.format(kernels) and all(
            _column(row, name) == value for name, value in self.where.items()
        )


@dataclass(frozen=True)
class Verified:
    """Lines of an errors.csv that can decide a claim, a line a chunk size, and which number of them."""

    need: Need
    column: Literal["error", "mean_absolute"]


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, the rows it needs, and when they bear it out.

    Attributes:
        says: the claim, short.
        source: where the paper says so.
        needs: rows by role; empty where no row can tell.
        value: the number at one point, from the row of each role; None where a row lacks it.
        form: how the number is written.
        about, of: of which numbers along `over` it is, in words and as a function.
        stated: in which interval they all lie.
        over: the column whose values the roles must share to make a point; the chunk sizes that are held against each
            other are of one comparison, the lengths of one each.
        tells: what of the numbers is shown.
        at_least: points without which nothing can be said.
        kind: "modelled" where the number comes from a model, "counted" where it does not depend on the occasion.
        verified: what of errors.csv decides it, before any row.
        command: what measures the rows, without --impl.
        unmeasurable: why neither rows nor errors can tell.
    """

    says: str
    source: str
    needs: Mapping[str, Need] = field(default_factory=dict)
    value: Callable[[Point], Span | None] = lambda point: None
    form: str = "{:.2f}x"
    about: str = ""
    of: Callable[[Values], list[Span]] = every
    stated: Stated = ANYTHING
    over: str = "seq_len"
    tells: Callable[[Values, str, str], str] = spread
    at_least: int = 2
    kind: Literal["measured", "modelled", "counted"] = "measured"
    verified: Verified | None = None
    command: str = ""
    unmeasurable: str | None = None

    @property
    def criterion(self) -> str:
        """Return in words what is required of the numbers."""
        return f"{self.about}: {self.stated}" if self.about else ""


@dataclass(frozen=True)
class Outcome:
    """The verdict of the rows on a claim for one set of kernels.

    `reason`: why it does not hold or is not measurable, else empty; `folder`: where the values are from; `command`:
    what would decide it, where it is not measurable and something would.
    """

    claim: Claim
    kernels: str
    verdict: Verdict
    spans: Values
    reason: str
    folder: str | None = None
    command: str | None = None

    @property
    def values(self) -> dict[int, float]:
        """Return the numbers without their intervals."""
        return {at: span.value for at, span in self.spans.items()}

    @property
    def measured(self) -> str:
        """The measured values in words; empty where there are none, or where they are modelled."""
        return "" if self.claim.kind == "modelled" else self._told

    @property
    def modelled(self) -> str:
        """The modelled values in words; empty where there are none, or where they are measured."""
        return self._told if self.claim.kind == "modelled" else ""

    @property
    def _told(self) -> str:
        return self.claim.tells(self.spans, self.claim.form, self.claim.over) if self.spans else ""


def check(claim: Claim, kernels: str, campaigns: Sequence[Campaign], errors: Sequence[ErrorLine] = ()) -> Outcome:
    """Decide a claim about one set of kernels: by errors.csv where it has what is needed, else by rows.

    Rows are those of the campaign that has most points of it; of several, of the latest source its first occasion.
    """
    if claim.unmeasurable:
        return Outcome(claim, kernels, "not measurable", {}, claim.unmeasurable)
    found = [*_of_errors(claim, kernels, errors)]
    if not found and claim.needs:
        for campaign in _by_preference(campaigns):
            points = sorted(_points(claim, kernels, campaign.rows).items())
            if values := {at: value for at, point in points if (value := claim.value(point))}:
                found.append((values, campaign.folder))
    if not found:
        return Outcome(claim, kernels, "not measurable", {}, *lacking(claim, kernels, campaigns))
    values, folder = max(found, key=lambda one: len(one[0]))
    if len(values) < claim.at_least:
        reason = f"{len(values)} {AXIS_SYMBOLS[claim.over]} measured, {claim.at_least} needed"
        return Outcome(claim, kernels, "not measurable", values, reason, folder, deciding(claim, kernels))
    missed = [span for span in claim.of(values) if not claim.stated.reached(span)]
    if not missed:
        return Outcome(claim, kernels, "holds", values, "", folder)
    low, _, high = max(missed, key=lambda span: max(claim.stated.low - span.high, span.low - claim.stated.high))
    known = f"{low:.4g}" if f"{low:.4g}" == f"{high:.4g}" else f"{low:.4g} to {high:.4g}"
    return Outcome(claim, kernels, "does not hold", values, f"{known} is not {claim.stated.words}", folder)


def _by_preference(campaigns: Sequence[Campaign]) -> list[Campaign]:
    """Return campaigns with the latest source first, and of a source its first occasion before later ones."""

    def source(one: Campaign) -> frozenset[str | None] | str:
        return one.folder if None in one.sources else one.sources

    by_start = sorted(campaigns, key=lambda one: one.last_started)
    latest = {source(one): one.last_started for one in by_start}
    return sorted(by_start, key=lambda one: latest[source(one)], reverse=True)


def _of_errors(claim: Claim, kernels: str, errors: Iterable[ErrorLine]) -> Iterable[tuple[Values, str]]:
    """Return the numbers along the axis in errors.csv, and its folder, for every folder that has enough of them."""
    if claim.verified is None:
        return
    by_folder: dict[str, dict[int, Span]] = {}
    for line in errors:
        value = getattr(line, claim.verified.column)
        if line.status == "ok" and line.tensor == "forward" and claim.verified.need.fits(line, kernels) and value:
            by_folder.setdefault(line.folder, {})[getattr(line, claim.over)] = exactly(value)
    for folder, values in by_folder.items():
        if len(values) >= claim.at_least:
            yield dict(sorted(values.items())), folder


def _points(claim: Claim, kernels: str, rows: Iterable[Row]) -> Mapping[int, Point]:
    """Value of the axis -> the row of each role.

    Rows that are held against each other were measured in one comparison: all roles, and all chunk sizes.
    """
    occasions: dict[str | None, dict[int, dict[str, list[Row]]]] = {}
    free = claim.kind != "measured"
    for row in sorted(rows, key=lambda row: row.started_at):
        for role, need in claim.needs.items():
            if row.status == "ok" and need.fits(row, kernels) and (free or comparable(row)):
                points = occasions.setdefault(None if free else row.comparison_id, {})
                points.setdefault(getattr(row, claim.over), {}).setdefault(role, []).append(row)
    complete = [
        {
            at: {role: fastest(found) for role, found in roles.items()}
            for at, roles in points.items()
            if len(roles) == len(claim.needs)
        }
        for points in occasions.values()
    ]
    if claim.over == "chunk_size":
        return max(reversed(complete), key=len, default={})
    return {at: point for points in complete for at, point in points.items()}


def lacking(claim: Claim, kernels: str, campaigns: Sequence[Campaign]) -> tuple[str, str | None, str | None]:
    """Say why a claim has no point (not asked for, failed, nothing ran side by side), and what decides it."""
    if not claim.needs:
        assert claim.verified is not None
        return f"no errors.csv has enough of {claim.verified.need.name.format('*')}", None, deciding(claim, kernels)
    rows = [row for campaign in campaigns for row in campaign.rows]
    reasons, hopeless = [], False
    for need in claim.needs.values():
        asked = [row for row in rows if row.implementation == need.name.format(kernels)]
        fitting = [row for row in asked if need.fits(row, kernels)]
        name = need.name.format("*")
        if not fitting:
            reasons.append(f"no rows of {name}{f' with {setting(need.where)}' if asked else ''}")
        elif not any(row.status == "ok" for row in fitting):
            reasons.append(f"{name} {fitting[-1].status}: {fitting[-1].reason}")
            hopeless = hopeless or fitting[-1].status == "wrong"
    told = "; ".join(dict.fromkeys(reasons)) or "measured, but nowhere in one comparison"
    return told, None, None if hopeless else deciding(claim, kernels)


def deciding(claim: Claim, kernels: str) -> str:
    """Return the command that makes what a claim about one set of kernels needs."""
    needs = [*claim.needs.values(), *([claim.verified.need] if claim.verified else [])]
    names = list(dict.fromkeys(need.name.format(kernels) for need in needs))
    refused = [name for name in names for need in needs if (name, need.where["pass_"]) in OTHER_TRITON]
    note = f"  # {refused[0]} needs another Triton: pip install triton==3.7.1" if refused else ""
    return f"{claim.command} --impl {','.join(names)}{note}"


def needed(claim: Claim) -> str:
    """Say the rows a claim takes: "fwbw, 16 heads of 128/256: *_exp_xl (L 128), *_exp_limit (L 64)"."""
    if not claim.needs:
        return "" if claim.verified is None else f"errors.csv, {_named([claim.verified.need])}"
    return _named([*claim.needs.values()])


def _named(needs: Sequence[Need]) -> str:
    settings = [need.where.items() for need in needs]
    common = dict(item for item in settings[0] if all(item in others for others in settings))
    names = []
    for need in needs:
        own = setting({name: value for name, value in need.where.items() if common.get(name) != value})
        names.append(need.name.format("*") + (f" ({own})" if own else ""))
    return f"{setting(common)}: {', '.join(dict.fromkeys(names))}"


def setting(where: Mapping[str, Any]) -> str:
    """Say column values: "fwbw, T 8192, 16 heads of 128/256, L 64"."""
    words = [str(where["pass_"])] if "pass_" in where else []
    words += [f"T {where['seq_len']}"] if "seq_len" in where else []
    if "cut" in where or "dims" in where:
        *heads, d_qk, d_hv = where.get("cut", where.get("dims", ()))
        words.append(f"{''.join(f'{n} ' for n in heads)}heads of {'/'.join(dict.fromkeys((str(d_qk), str(d_hv))))}")
    words += [f"L {where['chunk_size']}"] if "chunk_size" in where else []
    words += ["L auto" if where["auto"] else "L swept"] if "auto" in where else []
    words += [f"{where['inputs']} inputs"] if "inputs" in where else []
    return ", ".join(words)


def _column(row: Row | ErrorLine, name: str) -> Any:
    if name == "tokens":
        return row.batch * row.seq_len
    if name == "cut":
        return row.heads, row.d_qk, row.d_hv
    if name == "dims":
        return row.d_qk, row.d_hv
    if name == "auto":
        return "/Lauto/" in row.point
    return getattr(row, name)
