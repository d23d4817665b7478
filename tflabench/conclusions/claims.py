"""The paper's claims as data, and what measured rows say of each: holds, does not hold, not measurable here. No torch.

A claim is put to the kernels published with the paper (`nxai_*`) and to ours of the same algorithm (`tfla_*`). Its
values are ratios, times, rates or sizes of rows of one campaign: one folder, one machine, one set of versions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from tflabench.conclusions.compare import comparable, fastest

if TYPE_CHECKING:
    from tflabench.conclusions.campaigns import Campaign
    from tflabench.rows.schema import Row

Verdict = Literal["holds", "does not hold", "not measurable"]
Point = Mapping[str, "Row"]  # role -> row
Values = Mapping[int, float]  # value of the axis -> value, ascending

KERNELS = ("nxai", "tfla")
AXIS_SYMBOLS = {"seq_len": "T", "chunk_size": "L"}
GIB = 2.0**30


@dataclass(frozen=True)
class Need:
    """Rows that a claim takes: of an implementation, `{}` in its name being the kernels, where columns are as given.

    Besides columns: `tokens` is batch * seq_len, `cut` (heads, d_qk, d_hv), `auto` whether the implementation chose L.
    """

    name: str
    where: Mapping[str, Any]

    def fits(self, row: Row, kernels: str) -> bool:
        return row.implementation == self.name.format(kernels) and all(
            _column(row, name) == value for name, value in self.where.items()
        )


def spread(values: Values, form: str, axis: str) -> str:
    """Least, greatest and median value: "1.18x to 1.31x, median 1.25x, T = 512 to 65536"."""
    low, high, ends = min(values.values()), max(values.values()), [str(at) for at in (min(values), max(values))]
    where = f"{AXIS_SYMBOLS[axis]} = {' to '.join(dict.fromkeys(ends))}"
    if len(values) == 1:
        return f"{form.format(low)}, {where}"
    return f"{form.format(low)} to {form.format(high)}, median {form.format(median(values.values()))}, {where}"


def along(values: Values, form: str, axis: str) -> str:
    """The least value and those at both ends: "least 14.1 ms at L = 128; 15.4 ms at 64, 71.9 ms at 4096"."""
    best = min(values, key=lambda at: values[at])
    ends = ", ".join(f"{form.format(values[at])} at {at}" for at in dict.fromkeys((min(values), max(values))))
    return f"least {form.format(values[best])} at {AXIS_SYMBOLS[axis]} = {best}; {ends}"


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, the rows it needs, and when they bear it out.

    Attributes:
        says: the claim, short.
        source: where the paper says so.
        needs: rows by role; empty where no row could tell, for the reason `unmeasurable`.
        value: the number at one point, from the row of each role.
        form: how the number is written.
        criterion, holds: what is required of the numbers along `over`, in words and as a predicate.
        over: the column whose values the roles must share to make a point.
        tells: what of the numbers is shown.
        at_least: points without which nothing can be said.
    """

    says: str
    source: str
    needs: Mapping[str, Need] = field(default_factory=dict)
    value: Callable[[Point], float] = lambda point: 0.0
    form: str = "{:.2f}x"
    criterion: str = ""
    holds: Callable[[Values], bool] = lambda values: False
    over: str = "seq_len"
    tells: Callable[[Values, str, str], str] = spread
    at_least: int = 2
    unmeasurable: str | None = None


@dataclass(frozen=True)
class Outcome:
    """What the rows say of a claim for one set of kernels.

    `reason`: why it is not measurable, else empty; `folder`: of the campaign that the values are from.
    """

    claim: Claim
    kernels: str
    verdict: Verdict
    values: Values
    reason: str
    folder: str | None = None

    @property
    def measured(self) -> str:
        """The values in words; empty where there are none."""
        return self.claim.tells(self.values, self.claim.form, self.claim.over) if self.values else ""


def check(claim: Claim, kernels: str, campaigns: Sequence[Campaign]) -> Outcome:
    """A claim about one set of kernels, from the campaign that has most points of it (of several, the latest)."""
    if claim.unmeasurable:
        return Outcome(claim, kernels, "not measurable", {}, claim.unmeasurable)
    found = [(points, campaign) for campaign in campaigns if (points := _points(claim, kernels, campaign.rows))]
    if not found:
        return Outcome(claim, kernels, "not measurable", {}, _lacking(claim, kernels, campaigns))
    points, campaign = max(found, key=lambda one: (len(one[0]), max(row.started_at for row in one[1].rows)))
    values = {at: claim.value(points[at]) for at in sorted(points)}
    if len(values) < claim.at_least:
        reason = f"{len(values)} {AXIS_SYMBOLS[claim.over]} measured, {claim.at_least} needed"
        return Outcome(claim, kernels, "not measurable", values, reason, campaign.folder)
    verdict: Verdict = "holds" if claim.holds(values) else "does not hold"
    return Outcome(claim, kernels, verdict, values, "", campaign.folder)


def check_all(campaigns: Sequence[Campaign]) -> list[Outcome]:
    """Every claim for every set of kernels; one outcome where no row could tell."""
    return [
        check(claim, kernels, campaigns)
        for claim in CLAIMS
        for kernels in (KERNELS if claim.needs else ("any kernel",))
    ]


def _points(claim: Claim, kernels: str, rows: Iterable[Row]) -> dict[int, Point]:
    """Value of the axis -> the row of each role, where all roles were measured in one comparison."""
    by_role: dict[str, dict[int, list[Row]]] = {role: {} for role in claim.needs}
    for row in rows:
        for role, need in claim.needs.items():
            if row.status == "ok" and need.fits(row, kernels):
                by_role[role].setdefault(getattr(row, claim.over), []).append(row)
    shared = set.intersection(*(set(found) for found in by_role.values()))
    points = {at: {role: fastest(found[at]) for role, found in by_role.items()} for at in shared}
    return {at: point for at, point in points.items() if len(point) == 1 or comparable(*point.values())}


def _lacking(claim: Claim, kernels: str, campaigns: Sequence[Campaign]) -> str:
    """Why a claim has no point: what was not asked for, what failed and why, or that nothing ran side by side."""
    rows = [row for campaign in campaigns for row in campaign.rows]
    reasons = []
    for need in claim.needs.values():
        asked = [row for row in rows if row.implementation == need.name.format(kernels)]
        fitting = [row for row in asked if need.fits(row, kernels)]
        name = need.name.format("*")
        if not fitting:
            reasons.append(f"no rows of {name}{f' with {setting(need.where)}' if asked else ''}")
        elif not any(row.status == "ok" for row in fitting):
            reasons.append(f"{name} {fitting[-1].status}: {fitting[-1].reason}")
    return "; ".join(dict.fromkeys(reasons)) or "measured, but nowhere in one comparison"


def needed(claim: Claim) -> str:
    """The rows a claim takes, in words: "fwbw, 16 heads of 128/256: *_exp_xl (L 128), *_exp_limit (L 64)"."""
    if not claim.needs:
        return ""
    settings = [need.where.items() for need in claim.needs.values()]
    common = dict(item for item in settings[0] if all(item in others for others in settings))
    names = []
    for need in claim.needs.values():
        own = setting({name: value for name, value in need.where.items() if common.get(name) != value})
        names.append(need.name.format("*") + (f" ({own})" if own else ""))
    return f"{setting(common)}: {', '.join(dict.fromkeys(names))}"


def setting(where: Mapping[str, Any]) -> str:
    """Column values in words: "fwbw, T 8192, 16 heads of 128/256, L 64"."""
    words = [str(where["pass_"])] if "pass_" in where else []
    words += [f"T {where['seq_len']}"] if "seq_len" in where else []
    if "cut" in where:
        heads, *dims = where["cut"]
        words.append(f"{heads} heads of {'/'.join(dict.fromkeys(map(str, dims)))}")
    words += [f"L {where['chunk_size']}"] if "chunk_size" in where else []
    words += ["L auto" if where["auto"] else "L swept"] if "auto" in where else []
    return ", ".join(words)


def _column(row: Row, name: str) -> Any:
    if name == "tokens":
        return row.batch * row.seq_len
    if name == "cut":
        return row.heads, row.d_qk, row.d_hv
    if name == "auto":
        return "/Lauto/" in row.point
    return getattr(row, name)


def _ms(over: str, under: str) -> Callable[[Point], float]:
    return lambda point: (point[over].ms_median or 0) / (point[under].ms_median or 1)


def _memory(over: str, under: str) -> Callable[[Point], float]:
    return lambda point: (point[over].peak_bytes or 0) / (point[under].peak_bytes or 1)


def _least_at(values: Values) -> int:
    return min(values, key=lambda at: values[at])


# Head configurations of the paper (formulas.md, section 9): mLSTM and FLA 16 heads of 128/256 in Fig. 4, 8 of 256/512
# in Figs. 5, 12 and 17 to 20, 32 of 128 in Fig. 13, Mamba 2 64 of 64.
_TOKENS = {"tokens": 65536, "dtype": "bfloat16"}
_FIG4 = {**_TOKENS, "cut": (16, 128, 256)}
_FIG12 = {**_TOKENS, "cut": (8, 256, 512)}
_FIG13 = {**_TOKENS, "cut": (32, 128, 128)}  # attention in Fig. 4, too
_MAMBA2 = {**_TOKENS, "cut": (64, 64, 64)}
_FW, _FWBW = {"pass_": "fw"}, {"pass_": "fwbw"}
_FIG5 = {"sig": Need("{}_sig_xl", {**_FWBW, **_FIG12, "seq_len": 8192})}
_FIG17 = {"sig": Need("{}_sig_xl", {**_FW, **_FIG12, "seq_len": 8192})}
_SIG_XL = Need("{}_sig_xl", {**_FWBW, **_FIG4, "chunk_size": 128})

CLAIMS = (
    Claim(
        "mLSTMexp: xl_chunk about 25% faster than limit_chunk",
        "section 5.2, Fig. 4",
        {
            "xl": Need("{}_exp_xl", {**_FWBW, **_FIG4, "chunk_size": 128}),
            "limit": Need("{}_exp_limit", {**_FWBW, **_FIG4, "chunk_size": 64}),
        },
        _ms("limit", "xl"),
        criterion="time of limit over xl, median 1.15 to 1.35",
        holds=lambda values: 1.15 <= median(values.values()) <= 1.35,
    ),
    Claim(
        "mLSTMsig forward over 30% faster than mLSTMexp forward",
        "section 5.2, Fig. 4",
        {
            "sig": Need("{}_sig_xl", {**_FW, **_FIG4, "chunk_size": 128}),
            "exp": Need("{}_exp_xl", {**_FW, **_FIG4, "chunk_size": 128}),
        },
        _ms("exp", "sig"),
        criterion="time of exp over sig, median above 1.3",
        holds=lambda values: median(values.values()) > 1.3,
    ),
    Claim(
        "training: faster than FlashAttention 3 for longer T",
        "section 5.2, Fig. 4",
        {"sig": _SIG_XL, "rival": Need("flash_attention_3", {**_FWBW, **_FIG13})},
        _ms("rival", "sig"),
        criterion="time of the other over sig above 1 at the longest T",
        holds=lambda values: values[max(values)] > 1,
    ),
    Claim(
        "training: over 2x faster than Mamba 2 at all T",
        "section 5.2, Fig. 4",
        {"sig": _SIG_XL, "rival": Need("mamba2", {**_FWBW, **_MAMBA2})},
        _ms("rival", "sig"),
        criterion="time of the other over sig above 2 at every T",
        holds=lambda values: min(values.values()) > 2,
    ),
    *(
        Claim(
            f"forward: {title} slightly faster (within 1 ms)",
            "appendix E.3, Fig. 4",
            {"sig": Need("{}_sig_xl", {**_FW, **_FIG4, "chunk_size": 128}), "rival": rival},
            lambda point: (point["sig"].ms_median or 0) - (point["rival"].ms_median or 0),
            form="{:.2f} ms",
            criterion="sig minus the other between 0 and 1 ms at every T",
            holds=lambda values: all(0 <= value <= 1 for value in values.values()),
        )
        for title, rival in (
            ("Mamba 2", Need("mamba2", {**_FW, **_MAMBA2})),
            ("Simple GLA", Need("fla_simple_gla", {**_FW, **_FIG4})),
        )
    ),
    Claim(
        "training at d_hv 512: Simple GLA up to 15% (3 ms) faster",
        "appendix E.3, Fig. 12",
        {"sig": Need("{}_sig_xl", {**_FWBW, **_FIG12}), "rival": Need("fla_simple_gla", {**_FWBW, **_FIG12})},
        _ms("sig", "rival"),
        criterion="time of sig over Simple GLA 1 to 1.18 at every T",
        holds=lambda values: all(1 <= value <= 1.18 for value in values.values()),
    ),
    Claim(
        "... but takes almost twice the memory",
        "appendix E.3, Fig. 12",
        {"sig": Need("{}_sig_xl", {**_FWBW, **_FIG12}), "rival": Need("fla_simple_gla", {**_FWBW, **_FIG12})},
        _memory("rival", "sig"),
        criterion="peak memory of Simple GLA over sig, median 1.7 to 2.1",
        holds=lambda values: 1.7 <= median(values.values()) <= 2.1,
    ),
    Claim(
        "head dimension 128: LightningAttention-2 over 3x slower than sig, L = 256",
        "appendix E.3, Fig. 13",
        {
            "sig": Need("{}_sig_xl", {**_FWBW, **_FIG13, "chunk_size": 256}),
            "rival": Need("lightning_attention_2", {**_FWBW, **_FIG13}),
        },
        _ms("rival", "sig"),
        criterion="time of the other over sig above 3 at every T",
        holds=lambda values: min(values.values()) > 3,
    ),
    Claim(
        "... but takes less memory (6.2 to 7.3 GB)",
        "appendix E.3, Fig. 13",
        {
            "sig": Need("{}_sig_xl", {**_FWBW, **_FIG13, "chunk_size": 256}),
            "rival": Need("lightning_attention_2", {**_FWBW, **_FIG13}),
        },
        _memory("rival", "sig"),
        criterion="peak memory of the other over sig below 1 at every T",
        holds=lambda values: max(values.values()) < 1,
    ),
    Claim(
        "measured: the best L is about 128 to 256",
        "section 5.2, Fig. 5",
        _FIG5,
        lambda point: point["sig"].ms_median or 0,
        form="{:.1f} ms",
        criterion="least measured time at L = 128 or 256",
        holds=lambda values: _least_at(values) in (128, 256),
        over="chunk_size",
        tells=along,
        at_least=3,
    ),
    Claim(
        "theory: the best L is about 630",
        "appendix G, eq. 121",
        _FIG17,
        lambda point: point["sig"].model_ms_upper or 0,
        form="{:.1f} ms",
        criterion="least modelled time (upper bound) at L = 512 or 1024",
        holds=lambda values: _least_at(values) in (512, 1024),
        over="chunk_size",
        tells=along,
        at_least=3,
    ),
    Claim(
        "FLOP/s rise with L ...",
        "appendix G, Fig. 20",
        _FIG17,
        lambda point: point["sig"].tflops or 0,
        form="{:.0f} TFLOP/s",
        criterion="no larger L lowers the rate by over 1%",
        holds=lambda values: all(after >= 0.99 * before for before, after in pairwise(values.values())),
        over="chunk_size",
        tells=along,
        at_least=3,
    ),
    Claim(
        "... although runtime does not fall",
        "appendix G, Figs. 17, 20",
        _FIG17,
        lambda point: point["sig"].ms_median or 0,
        form="{:.1f} ms",
        criterion="least time not at the largest L",
        holds=lambda values: _least_at(values) != max(values),
        over="chunk_size",
        tells=along,
        at_least=3,
    ),
    Claim(
        "L is the knob that trades memory for batch size",
        "answers to the reviews",
        _FIG5,
        lambda point: (point["sig"].peak_bytes or 0) / GIB,
        form="{:.2f} GiB",
        criterion="peak memory at the largest L below that at the smallest",
        holds=lambda values: values[max(values)] < values[min(values)],
        over="chunk_size",
        tells=along,
        at_least=3,
    ),
    Claim(
        "choosing L can be automated",
        "answers to the reviews",
        {
            "auto": Need("{}_sig_xl", {**_FWBW, **_FIG12, "auto": True}),
            "swept": Need("{}_sig_xl", {**_FWBW, **_FIG12, "auto": False}),
        },
        _ms("auto", "swept"),
        criterion="time at the chosen L at most 1.05 of the best swept one",
        holds=lambda values: max(values.values()) <= 1.05,
        at_least=1,
    ),
    Claim(
        "error of exp forward the same for every L, 64 to 2048",
        "answers to the reviews",
        {"exp": Need("{}_exp_xl", {**_FW, **_FIG4, "seq_len": 8192})},
        lambda point: point["exp"].rel_error or 0,
        form="{:.1e}",
        criterion="greatest relative error at most 1.5 of the least",
        holds=lambda values: max(values.values()) <= 1.5 * min(values.values()),
        over="chunk_size",
        at_least=3,
    ),
    Claim(
        "mean absolute error of exp forward 7.86e-4 (float32), 2.905e-3 (bf16), for every L",
        "answers to the reviews",
        unmeasurable="rows hold errors relative to the root mean square of float64, not mean absolute ones; "
        "`tflabench verify -a inputs=standard --out DIR` writes those",
    ),
    Claim(
        "training step of a 1.4B model: Llama 2.39 s, mLSTM 1.64 to 1.67 s",
        "answers to the reviews",
        unmeasurable="a kernel bench trains no model",
    ),
)
