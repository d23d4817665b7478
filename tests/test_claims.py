"""`tflabench claims`: every claim borne out, refuted and not measurable, from rows of one comparison only."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tflabench.cli.main import app
from tflabench.conclusions.campaigns import campaigns
from tflabench.conclusions.claims import CLAIMS, KERNELS, Outcome, check, check_all, needed
from tflabench.implementations.registry import implementations
from tflabench.rows.load import Results
from tflabench.rows.schema import Row

sys.path.insert(0, str(Path(__file__).parent))
from synthetic import APART, RUN, row, write

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
    "... but takes almost twice": (
        [*BIG, *training("fla_simple_gla", 9, 9, 9, **FIG12, peak_bytes=int(5.7 * GIB))],
        [*BIG, *training("fla_simple_gla", 9, 9, 9, **FIG12, peak_bytes=3 * GIB)],
    ),
    "head dimension 128": (
        [*SMALL_HEADS, *training("lightning_attention_2", 16, 16, 16, **FIG13)],
        [*SMALL_HEADS, *training("lightning_attention_2", 16, 16, 12, **FIG13)],
    ),
    "... but takes less memory": (
        [*SMALL_HEADS, *training("lightning_attention_2", 16, 16, 16, **FIG13, peak_bytes=6 * GIB)],
        [*SMALL_HEADS, *training("lightning_attention_2", 16, 16, 16, **FIG13, peak_bytes=8 * GIB)],
    ),
    "measured: the best L": (over_chunks(VALLEY), over_chunks({64: 10.0, 256: 14.0, 4096: 70.0})),
    "theory: the best L": (
        over_chunks(VALLEY | {512: 15}, "fw", model_ms_upper={64: 5, 256: 3, 512: 2, 4096: 4}),
        over_chunks(VALLEY | {512: 15}, "fw", model_ms_upper={64: 5, 256: 2, 512: 3, 4096: 4}),
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


def test_every_claim_that_rows_can_tell_has_a_case():
    assert set(CASES) == {start for start in CASES if claim(start).needs}
    assert len(CASES) == sum(bool(claim.needs) for claim in CLAIMS)


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
    assert (found.verdict, found.values) == ("not measurable", {})
    assert found.reason == "measured, but nowhere in one comparison"


@pytest.mark.parametrize("start", CASES)
def test_the_same_rows_say_nothing_of_other_kernels(start):
    found = outcome(start, CASES[start][0], "nxai")
    assert (found.verdict, found.values) == ("not measurable", {})
    assert "no rows of *_" in found.reason


def test_values_are_those_of_the_rows():
    found = outcome("training: over 2x", CASES["training: over 2x faster than Mamba 2"][1])
    assert found.values == {512: 2.25, 4096: 2.25, 65536: 1.75}
    assert found.measured == "1.75x to 2.25x, median 2.25x, T = 512 to 65536"
    assert outcome("measured: the best L", over_chunks(VALLEY)).measured == (
        "least 14.0 ms at L = 256; 15.0 ms at 64, 70.0 ms at 4096"
    )


def test_why_a_claim_cannot_be_measured():
    failed = [r.model_copy(update={"status": "unsupported", "reason": "no nvcc", "ms_median": None}) for r in SIG]
    failed = [r.model_copy(update={"implementation": "mamba2", "heads": 64, "d_qk": 64, "d_hv": 64}) for r in failed]
    assert outcome("training: over 2x", [*SIG, *failed]).reason == "mamba2 unsupported: no nvcc"
    assert outcome("training: over 2x", SIG).reason == "no rows of mamba2"
    elsewhere = [*SIG, *training("mamba2", 9, 9, 9, heads=32)]
    assert outcome("training: over 2x", elsewhere).reason == "no rows of mamba2 with fwbw, 64 heads of 64"
    assert outcome("training step", []).reason == "a kernel bench trains no model"


def test_one_point_says_nothing_of_all_lengths():
    one = [SIG[1], training("mamba2", 9, 9, 9)[1]]
    found = outcome("training: over 2x", one)
    assert (found.verdict, found.reason, found.measured) == (
        "not measurable",
        "1 T measured, 2 needed",
        "2.25x, T = 4096",
    )


def test_only_points_of_one_comparison_count():
    theirs = training("mamba2", 9, 9, 1)
    theirs[2] = theirs[2].model_copy(update={"comparison_id": "another"})
    found = outcome("training: over 2x", [*SIG, *theirs])
    assert (found.verdict, found.values) == ("holds", {512: 2.25, 4096: 2.25})


def test_rows_of_different_folders_or_versions_are_not_divided_by_each_other():
    """Even if they claimed to be of one comparison."""
    theirs = training("mamba2", 9, 9, 9, run_id="newer")
    apart = [Results(Path("a"), tuple(SIG), {"run": RUN}), Results(Path("b"), tuple(theirs), {"newer": RUN})]
    newer = {**RUN, "packages": {"torch": "2.12.0"}}
    together = [Results(Path("a"), (*SIG, *theirs), {"run": RUN, "newer": newer})]
    for results in (apart, together):
        found = check(claim("training: over 2x"), "tfla", campaigns(results))
        assert (found.verdict, found.reason) == ("not measurable", "measured, but nowhere in one comparison")


def test_the_campaign_with_most_points_counts():
    few = [*SIG[:2], *training("mamba2", 9, 9, 9)[:2]]
    many = [*SIG, *training("mamba2", 5, 5, 5)]
    results = [Results(Path(name), tuple(rows), {"run": RUN}) for name, rows in (("few", few), ("many", many))]
    found = check(claim("training: over 2x"), "tfla", campaigns(results))
    assert (found.folder, found.verdict) == ("many", "does not hold")


def test_claims_name_implementations_that_exist():
    known = {impl.name for impl in implementations()}
    named = {need.name.format(kernels) for claim in CLAIMS for need in claim.needs.values() for kernels in KERNELS}
    assert named <= known


def test_what_a_claim_needs_is_said_in_words():
    assert needed(claim("mLSTMexp: xl")) == "fwbw, 16 heads of 128/256: *_exp_xl (L 128), *_exp_limit (L 64)"
    assert needed(claim("training step")) == ""


def claims(*arguments, code: int = 0):
    done = CliRunner().invoke(app, ["claims", *map(str, arguments)])
    assert done.exit_code == code, done.output
    return done


def test_the_table_has_every_claim_and_120_columns(tmp_path):
    write(tmp_path / "h200" / "fig4", [*SIG, *training("mamba2", 9, 9, 9), *CASES["mLSTMexp: xl_chunk"][0]])
    write(tmp_path / "h200" / "fig5", [*over_chunks(VALLEY), *over_chunks(VALLEY, "fw")])
    lines = claims(tmp_path).stdout.splitlines()
    assert max(map(len, lines)) <= 120
    text = " ".join(" ".join(lines).split())
    assert all(claim.says.split()[0] in text for claim in CLAIMS)
    assert text.count("not measurable") > 5
    assert text.count(" holds") >= 4


def test_reasons_are_printed_as_they_are(tmp_path):
    failed = row("tfla_sig_xl", None, pass_="fwbw", reason="[/red]")
    assert "[/red]" in claims(write(tmp_path, [failed])).stdout


def test_json_has_every_outcome(tmp_path):
    write(tmp_path, [*SIG, *training("mamba2", 9, 9, 9)])
    found = json.loads(claims(tmp_path, "--json").stdout)
    assert len(found) == len(check_all([])) == len(KERNELS) * len(CASES) + 2
    (held,) = [entry for entry in found if entry["verdict"] == "holds"]
    assert (held["kernels"], held["values"]["4096"], held["folder"]) == ("tfla", 2.25, str(tmp_path))


@pytest.mark.parametrize(
    ("journal", "says"),
    [
        (None, "holds no results"),
        ("", "holds no rows yet"),
        ('{"schema_version": 99}\n', "row schema 99 and this version reads 3: "),
    ],
)
@pytest.mark.parametrize("command", ["claims", "headline"])
def test_folders_without_usable_rows_are_one_line_and_2(tmp_path, command, journal, says):
    if journal is not None:
        (tmp_path / "journal.jsonl").write_text(journal)
    done = CliRunner().invoke(app, [command, str(tmp_path)])
    assert (done.exit_code, done.stdout) == (2, "")
    (line,) = done.stderr.strip().splitlines()
    assert says in line
