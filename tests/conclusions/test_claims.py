"""`tflabench claims`: every claim borne out, refuted and not measurable, from rows of one comparison only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from synthetic import APART, RUN, row, write
from typer.testing import CliRunner

from tflabench.cli.main import app
from tflabench.conclusions.campaigns import campaigns
from tflabench.conclusions.claim import Outcome, check
from tflabench.conclusions.claims import CLAIMS, KERNELS
from tflabench.rows.load import Results
from tflabench.rows.schema import Row

LENGTHS = (512, 4096, 65536)
FIG4, FIG12, FIG13 = (
    {"heads": heads, "d_qk": d_qk, "d_hv": d_hv}
    for heads, d_qk, d_hv in ((16, 128, 256), (8, 256, 512), (32, 128, 128))
)
GIB = 2**30


def over_lengths(name: str, *ms: float, **changes) -> list[Row]:
    """A row a length at 65,536 tokens; Mamba 2 and attention with heads of their own."""
    sizes = {"mamba2": {"heads": 64, "d_qk": 64, "d_hv": 64}, "flash_attention_3": FIG13}.get(name, FIG4) | changes
    chunk = {"chunk_size": sizes.pop("chunk_size", None if name.partition("_")[0] not in KERNELS else 128)}
    return [
        row(name, value, seq_len=T, batch=65536 // T, **chunk, **sizes) for T, value in zip(LENGTHS, ms, strict=True)
    ]


def over_chunks(ms: dict[int, float], pass_: str = "fwbw", **columns: dict[int, float]) -> list[Row]:
    def at(L: int) -> dict:
        return {name: values[L] for name, values in columns.items()}

    size = {"batch": 8, "seq_len": 8192, "pass_": pass_, **FIG12}
    return [row("tfla_sig_xl", value, chunk_size=L, **size, **at(L)) for L, value in ms.items()]


def training(name: str, *ms: float, **changes) -> list[Row]:
    return over_lengths(name, *ms, pass_="fwbw", **changes)


def chosen(ms: float) -> Row:
    """A row whose chunk size the implementation chose."""
    made = over_chunks({256: ms})[0]
    return made.model_copy(update={"point": "tfla_sig_xl/fwbw/Lauto/bfloat16"})


def errors(by_chunk: dict[int, float]) -> list[Row]:
    size = {"batch": 8, "seq_len": 8192, **FIG4}
    return [row("tfla_exp_xl", chunk_size=L, rel_error=error, **size) for L, error in by_chunk.items()]


def over_heads(name: str, *ms: float, **changes) -> list[Row]:
    """A forward row of heads of 32, of 64 and of 128, at an embedding of 4096, as many as there are times."""
    return [
        row(name, value, seq_len=8192, batch=4, heads=4096 // d, d_qk=d, d_hv=d, **changes)
        for d, value in zip((32, 64, 128), ms, strict=False)
    ]


def limit(ms: dict[int, float]) -> list[Row]:
    size = {"batch": 8, "seq_len": 8192, "pass_": "fwbw", **FIG4}
    return [row("tfla_exp_limit", value, chunk_size=L, **size) for L, value in ms.items()]


SIG = training("tfla_sig_xl", 4, 4, 4)
BIG = training("tfla_sig_xl", 10, 10, 10, **FIG12, peak_bytes=3 * GIB)
SMALL_HEADS = training("tfla_sig_xl", 5, 5, 5, **FIG13, chunk_size=256, peak_bytes=7 * GIB)
FORWARD = over_lengths("tfla_sig_xl", 2, 2, 2)
VALLEY = {64: 15.0, 256: 14.0, 4096: 70.0}
# claim -> rows that bear it out, rows that refute it
CASES = {
    "mLSTMexp: xl_chunk": (
        [*training("tfla_exp_xl", 4, 4, 4), *training("tfla_exp_limit", 5, 5, 5.2, chunk_size=64)],
        [*training("tfla_exp_xl", 4, 4, 4), *training("tfla_exp_limit", 4, 4, 4, chunk_size=64)],
    ),
    "mLSTMsig forward over 30%": (
        [*FORWARD, *over_lengths("tfla_exp_xl", 2.7, 2.7, 2.7)],
        [*FORWARD, *over_lengths("tfla_exp_xl", 2.5, 2.5, 2.5)],
    ),
    "training: faster than FlashAttention 3": (
        [*SIG, *training("flash_attention_3", 2, 8, 90)],
        [*SIG, *training("flash_attention_3", 8, 5, 3)],
    ),
    "training: over 2x faster than Mamba 2": (
        [*SIG, *training("mamba2", 9, 9, 9)],
        [*SIG, *training("mamba2", 9, 9, 7)],
    ),
    "forward: Mamba 2": (
        [*FORWARD, *over_lengths("mamba2", 1.5, 1.5, 1.5)],
        [*FORWARD, *over_lengths("mamba2", 1.5, 1.5, 3)],
    ),
    "forward: Simple GLA": (
        [*FORWARD, *over_lengths("fla_simple_gla", 1.5, 1.5, 1.5)],
        [*FORWARD, *over_lengths("fla_simple_gla", 0.5, 1.5, 1.5)],
    ),
    "training at d_hv 512": (
        [*BIG, *training("fla_simple_gla", 9, 9, 9.5, **FIG12)],
        [*BIG, *training("fla_simple_gla", 9, 9, 11, **FIG12)],
    ),
    "... and within 3 ms": (
        [*BIG, *training("fla_simple_gla", 7.1, 9, 9.5, **FIG12)],
        [*BIG, *training("fla_simple_gla", 6.9, 9, 9.5, **FIG12)],
    ),
    "... but takes almost twice": (
        [*BIG, *training("fla_simple_gla", 9, 9, 9, **FIG12, peak_bytes=int(5.7 * GIB))],
        [*BIG, *training("fla_simple_gla", 9, 9, 9, **FIG12, peak_bytes=3 * GIB)],
    ),
    "head dimension 128": (
        [*SMALL_HEADS, *training("lightning_attention_2", 16, 16, 16, **FIG13)],
        [*SMALL_HEADS, *training("lightning_attention_2", 16, 16, 12, **FIG13)],
    ),
    "... but takes 1.1 GB": (
        [*SMALL_HEADS, *training("lightning_attention_2", 16, 16, 16, **FIG13, peak_bytes=7 * GIB - 1_100_000_000)],
        [*SMALL_HEADS, *training("lightning_attention_2", 16, 16, 16, **FIG13, peak_bytes=8 * GIB)],
    ),
    "training: Simple GLA keeps up": (
        [*SIG, *training("fla_simple_gla", 4.5, 4, 3.5)],
        [*SIG, *training("fla_simple_gla", 4.5, 4, 6)],
    ),
    "L = 256 as fast": (over_chunks({64: 15.0, 128: 14.0, 256: 14.3}), over_chunks({64: 15.0, 128: 14.0, 256: 16.0})),
    "limit_chunk is slower at L": (limit({64: 5.0, 128: 6.0}), limit({64: 6.0, 128: 5.0})),
    "forward: limit_chunk as fast": (
        [*over_heads("tfla_exp_xl", 4, 4), *over_heads("tfla_exp_limit", 4.4, 4.4, chunk_size=64)],
        [*over_heads("tfla_exp_xl", 4, 4), *over_heads("tfla_exp_limit", 6, 4.4, chunk_size=64)],
    ),
    "fast at all head sizes": (
        [*over_heads("tfla_sig_xl", 4, 4), *over_heads("fla_simple_gla", 3.8, 5)],
        [*over_heads("tfla_sig_xl", 4, 4), *over_heads("fla_simple_gla", 3.8, 2)],
    ),
    "the fused GLA is no faster": (
        [*training("fla_gla", 4, 4, 4, **FIG12), *training("fla_gla_fused", 4.4, 4.4, 4.4, **FIG12)],
        [*training("fla_gla", 4, 4, 4, **FIG12), *training("fla_gla_fused", 3.4, 4.4, 4.4, **FIG12)],
    ),
    "... and takes the least": (
        [*training("fla_gla", 4, 4, 4, **FIG12), *training("fla_gla_fused", 4, 4, 4, **FIG12, peak_bytes=GIB - 1)],
        [*training("fla_gla", 4, 4, 4, **FIG12), *training("fla_gla_fused", 4, 4, 4, **FIG12, peak_bytes=2 * GIB)],
    ),
    "measured: the best L": (over_chunks(VALLEY), over_chunks({64: 10.0, 256: 14.0, 4096: 70.0})),
    "theory: the best L": (
        over_chunks(VALLEY | {512: 15}, "fw", model_ms_upper={64: 5, 256: 3, 512: 2, 4096: 4}),
        over_chunks(VALLEY | {512: 15}, "fw", model_ms_upper={64: 2, 256: 3, 512: 3.5, 4096: 4}),
    ),
    "FLOP/s rise": (
        over_chunks(VALLEY, "fw", tflops={64: 100, 256: 150, 4096: 300}),
        over_chunks(VALLEY, "fw", tflops={64: 100, 256: 150, 4096: 90}),
    ),
    "... although runtime": (over_chunks(VALLEY, "fw"), over_chunks({64: 15.0, 256: 14.0, 4096: 13.0}, "fw")),
    "L is the knob": (
        over_chunks(VALLEY, peak_bytes={64: 9 * GIB, 256: 5 * GIB, 4096: 3 * GIB}),
        over_chunks(VALLEY, peak_bytes={64: 3 * GIB, 256: 5 * GIB, 4096: 3 * GIB}),
    ),
    "error of exp": (errors({64: 2e-3, 256: 2.1e-3, 2048: 2e-3}), errors({64: 2e-3, 256: 2e-3, 2048: 4e-3})),
    "choosing L": ([*over_chunks(VALLEY), chosen(14.2)], [*over_chunks(VALLEY), chosen(16.0)]),
}


def claim(start: str):
    (found,) = [claim for claim in CLAIMS if claim.says.startswith(start)]
    return found


def outcome(start: str, rows: list[Row], kernels: str = "tfla") -> Outcome:
    return check(claim(start), kernels, campaigns([Results(Path("fig"), tuple(rows), {"run": RUN})]))


@pytest.mark.parametrize("start", CASES)
def test_rows_bear_a_claim_out_or_refute_it(start):
    held, refuted = CASES[start]
    assert outcome(start, held).verdict == "holds"
    assert outcome(start, refuted).verdict == "does not hold"


@pytest.mark.parametrize("start", [start for start in CASES if len(claim(start).needs) > 1])
@pytest.mark.parametrize(("of_ours", "of_theirs"), APART.values(), ids=APART)
def test_the_same_rows_say_nothing_where_they_are_not_comparable(start, of_ours, of_theirs):
    first, *_ = claim(start).needs.values()
    held, _ = CASES[start]
    found = outcome(start, [r.model_copy(update=of_ours if first.fits(r, "tfla") else of_theirs) for r in held])
    assert (found.verdict, found.numbers) == ("not measurable", {})
    assert found.reason == "measured, but nowhere in one comparison without throttling"


def test_values_are_those_of_the_rows():
    found = outcome("training: over 2x", CASES["training: over 2x faster than Mamba 2"][1])
    assert {at: number.value for at, number in found.numbers.items()} == {512: 2.25, 4096: 2.25, 65536: 1.75}
    assert found.words == "1.75x to 2.25x, median 2.25x (± 0.9%), T = 512 to 65536"
    assert outcome("measured: the best L", over_chunks(VALLEY)).words == (
        "least 14.0 ms at L = 256; 15.0 ms at 64, 70.0 ms at 4096"
    )


def test_a_claim_about_narrow_heads_is_told_by_them_alone():
    wide = [*over_heads("tfla_exp_xl", 4, 4, 4), *over_heads("tfla_exp_limit", 4.4, 4, 9, chunk_size=64)]
    found = outcome("forward: limit_chunk as fast", wide)
    assert (found.verdict, list(found.numbers)) == ("holds", [32, 64])


def test_only_points_of_one_comparison_count():
    theirs = training("mamba2", 9, 9, 1)
    theirs[2] = theirs[2].model_copy(update={"comparison_id": "another"})
    found = outcome("training: over 2x", [*SIG, *theirs])
    assert (found.verdict, list(found.numbers)) == ("holds", [512, 4096])


def test_rows_of_different_folders_or_versions_are_not_divided_by_each_other():
    """Even if they claimed to be of one comparison."""
    theirs = training("mamba2", 9, 9, 9, run_id="newer")
    apart = [Results(Path("a"), tuple(SIG), {"run": RUN}), Results(Path("b"), tuple(theirs), {"newer": RUN})]
    newer = {**RUN, "packages": {"torch": "2.12.0"}}
    together = [Results(Path("a"), (*SIG, *theirs), {"run": RUN, "newer": newer})]
    for results in (apart, together):
        found = check(claim("training: over 2x"), "tfla", campaigns(results))
        assert (found.verdict, found.reason) == (
            "not measurable",
            "measured, but nowhere in one comparison without throttling",
        )


def test_the_campaign_with_most_points_counts():
    few = [*SIG[:2], *training("mamba2", 9, 9, 9)[:2]]
    many = [*SIG, *training("mamba2", 5, 5, 5)]
    results = [Results(Path(name), tuple(rows), {"run": RUN}) for name, rows in (("few", few), ("many", many))]
    found = check(claim("training: over 2x"), "tfla", campaigns(results))
    assert (found.folder, found.verdict) == ("many", "does not hold")


def test_of_equal_campaigns_the_first_occasion_of_todays_kernels_counts():
    def measured(folder: str, version: int | None, started: str) -> Results:
        rows = [*SIG, *training("mamba2", 9, 9, 9)]
        of = {"kernel_version": version, "started_at": started}
        return Results(Path(folder), tuple(each.model_copy(update=of) for each in rows), {"run": RUN})

    today = SIG[0].kernel_version
    results = [
        measured("again", today, "2026-11-26T15:00:00+00:00"),
        measured("old", 0, "2026-11-20T12:00:00+00:00"),
        measured("first", today, "2026-11-26T12:00:00+00:00"),
    ]
    for given in (results, results[::-1]):
        assert check(claim("training: over 2x"), "tfla", campaigns(given)).folder == "first"


# --- The rule: what is stated against what was measured, each with its interval


def of_exp(ratio: float, by: float = 0.0) -> Outcome:
    """What rows say of "25% faster" whose three rounds have the ratio, and `by` more and less."""
    rounds = {"details": {"ms_by_round": [ratio - by, ratio, ratio + by]}}
    limit = training("tfla_exp_limit", ratio, ratio, ratio, chunk_size=64, **rounds)
    xl = training("tfla_exp_xl", 1, 1, 1, details={"ms_by_round": [1, 1, 1]})
    return outcome("mLSTMexp: xl_chunk", [*xl, *limit])


@pytest.mark.parametrize(
    ("ratio", "by", "verdict"),
    [
        (1.1526, 0.003, "does not hold"),
        (1.21, 0, "holds"),
        (1.29, 0, "holds"),
        (1.18, 0, "does not hold"),
        (1.32, 0, "does not hold"),
        (1.199, 0.002, "holds"),
        (1.301, 0.002, "holds"),
    ],
)
def test_about_25_percent_faster_holds_where_the_interval_reaches_20_to_30(ratio, by, verdict):
    found = of_exp(ratio, by)
    assert found.verdict == verdict
    if (ratio, by) == (1.1526, 0.003):
        assert found.reason == "1.14 to 1.166 is not within 1.2 to 1.3"


def test_a_bound_is_not_rounded_and_must_be_passed():
    rounds = {"details": {"ms_by_round": [1.99, 2.0]}}
    ours = training("tfla_sig_xl", 1, 1, 1, details={"ms_by_round": [1.0, 1.0]})
    for ms, changes, verdict in (
        (2.001, {"details": {"ms_by_round": [2.001, 2.001]}}, "holds"),
        (1.97, {"details": {"ms_by_round": [1.97, 1.97]}}, "does not hold"),
        (1.97, rounds, "holds"),
        (1.8, rounds, "does not hold"),
    ):
        assert outcome("training: over 2x", [*ours, *training("mamba2", ms, ms, ms, **changes)]).verdict == verdict


def test_simple_gla_at_d_hv_512_is_slightly_faster_or_the_claim_does_not_hold():
    """ "Slightly faster (within 3 ms or 15%)": neither slower, nor faster by more."""
    for ms, within_15, within_3 in ((9.0, "holds", "holds"), (11.0, "does not hold", "does not hold")):
        rows = [*BIG, *training("fla_simple_gla", ms, ms, ms, **FIG12)]
        assert outcome("training at d_hv 512", rows).verdict == within_15
        assert outcome("... and within 3 ms", rows).verdict == within_3
    rows = [*BIG, *training("fla_simple_gla", 8.6, 8.6, 8.6, **FIG12)]  # 16%, and 1.4 ms
    assert outcome("training at d_hv 512", rows).verdict == "does not hold"
    assert outcome("... and within 3 ms", rows).verdict == "holds"


def test_a_best_chunk_size_is_as_sure_as_the_times_beside_it():
    near = over_chunks({64: 13.6, 256: 14.0, 4096: 70.0})
    assert outcome("measured: the best L", near).verdict == "does not hold"
    wide = [
        r.model_copy(update={"ms_p20": 0.95 * (r.ms_median or 0), "ms_p80": 1.05 * (r.ms_median or 0)}) for r in near
    ]
    assert outcome("measured: the best L", wide).verdict == "holds"


ALONG_L = [start for start in CASES if claim(start).over == "chunk_size" and claim(start).kind == "measured"]


@pytest.mark.parametrize("start", ALONG_L)
@pytest.mark.parametrize(("of_ours", "of_theirs"), APART.values(), ids=APART)
def test_chunk_sizes_are_held_against_each_other_within_one_comparison(start, of_ours, of_theirs):
    first, *others = CASES[start][0]
    apart = [first.model_copy(update=of_ours), *(r.model_copy(update=of_theirs) for r in others)]
    found = outcome(start, apart)
    assert found.verdict == "not measurable"
    assert found.command is not None


def test_rows_without_the_number_are_no_points():
    without = over_chunks(VALLEY, "fw")
    for start in ("FLOP/s rise", "theory: the best L"):
        assert (outcome(start, without).verdict, outcome(start, without).numbers) == ("not measurable", {})
    rows = [r.model_copy(update={"peak_bytes": None}) for r in CASES["... but takes 1.1 GB"][0]]
    assert outcome("... but takes 1.1 GB", rows).verdict == "not measurable"


def test_a_modelled_number_is_never_called_measured(tmp_path):
    held, _ = CASES["theory: the best L"]
    found = outcome("theory: the best L", held)
    assert found.words == "least 2.0 ms at L = 512; 5.0 ms at 64, 4.0 ms at 4096"
    of_models = [start for start in CASES if outcome(start, CASES[start][0]).claim.kind == "modelled"]
    assert all(start.startswith("theory") for start in of_models)
    assert "modelled: least 2.0 ms" in claims(write(tmp_path, held)).stdout
    (entry,) = [e for e in json.loads(claims(tmp_path, "--json").stdout) if e["modelled"] and e["folder"]]
    assert (entry["claim"], entry["measured"]) == ("theory: the best L is about 630", "")


def test_the_papers_formulas_decide_some_claims_without_rows():
    verdicts = {claim.says: check(claim, "any kernel", []) for claim in CLAIMS if claim.theory}
    refuted = [says for says, found in verdicts.items() if found.verdict == "does not hold"]
    assert refuted == ["newer hardware wants larger L"]
    assert all(found.decided and found.words for found in verdicts.values())
    ends = verdicts["L = 1 costs what the recurrent form does, L = T what the parallel one does"].numbers
    assert [round(number.value, 3) for number in ends.values()] == [1.002, 1.078]


def test_a_claim_does_not_hold_by_numbers_that_are_not_there():
    throttled = [each.model_copy(update={"throttled": each.chunk_size == 256}) for each in CASES["L = 256 as fast"][0]]
    found = outcome("L = 256 as fast", [*throttled, *over_chunks({512: 15.0})])
    assert found.verdict == "not measurable"
    assert found.reason == "measured, but nowhere in one comparison without throttling"


def test_a_throttled_row_is_not_used():
    rows = [*SIG, *training("mamba2", 9, 9, 9, throttled=True)]
    assert outcome("training: over 2x", rows).verdict == "not measurable"


def claims(*arguments, code: int = 0):
    done = CliRunner().invoke(app, ["claims", *map(str, arguments)])
    assert done.exit_code == code, done.output
    return done
