"""The brief ending of a sweep: its width and length, which problems it shows, and what it says of who is faster."""

from __future__ import annotations

import io
import re
import time
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text
from synthetic import APART, row

from tflabench.conclusions.brief import LINES, WIDTH, BriefEnding, chosen
from tflabench.conclusions.columns import Column, cut, table_lines
from tflabench.conclusions.contests import contests
from tflabench.conclusions.summary import Swept, full_ending
from tflabench.rows.schema import Row

LENGTHS = [2**n for n in range(5, 17)]
LONG = "a_kernel_whose_name_has_sixty_characters_as_no_kernel_should"
FOLDER = Path("results") / "h200" / "quick"


def swept(rows: list[Row], folder: Path = FOLDER) -> Swept:
    files = [folder / name for name in ("journal.jsonl", "rows.parquet", "rows.csv", "environment.json")]
    files += [folder / "figures" / f"runtime-{number}.png" for number in range(40)]
    return Swept(rows, files, f"tflabench plot {folder}", 0, "--full --no-plots")


def told(rows: list[Row], width: int = 160, folder: Path = FOLDER) -> list[str]:
    """Return the lines of the brief ending on something this wide."""
    console = Console(file=io.StringIO(), width=width)
    console.print(BriefEnding(swept(rows, folder)))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def many(count: int = 10_000) -> list[Row]:
    """Return rows of hundreds of problems, with failures of every kind and every bad condition."""
    bad = {"noisy": True, "host_ms": 9.0, "percent_of_bound": 140.0, "ceilings": "datasheet: NVIDIA"}
    names = ["hopper_sig", "sdpa", "fla_gla", "fla_simple_gla_fused"]
    ends = ["wrong", "crashed", "timeout", "oom", "unsupported", "error", "compile_error"]
    rows: list[Row] = []
    for number in range(count):
        name, problem = names[number % 4], number // 4
        size = {
            "seq_len": LENGTHS[problem % 12],
            "batch": 1 + problem // 12 % 32,
            "heads": 2 ** (problem // 384 % 3),
            "pass_": ("fw", "fwbw")[problem // 1152 % 2],
        }
        if number % 7 == 3:
            end = {"status": ends[number // 7 % 7], "reason": f"reason {number} " + "of many words " * 20}
            rows.append(row(name, ms=None, **size, **end))
        else:
            rows.append(row(name, ms=1.0 + number % 5, throttled=number % 11 == 0, **size, **bad))
    return rows


def sets() -> dict[str, list[Row]]:
    reasons = [{"status": "error", "reason": f"reason {n}: {'word ' * 50}"} for n in range(200)]
    nan = float("nan")
    return {
        "no row": [],
        "one point": [row()],
        "five rows": [row(ms=1.0 + n, seq_len=512 * (n + 1)) for n in range(5)],
        "ten thousand": many(),
        "long names": [row(f"{LONG}_{n}", ms=1.0 + n / 9, seq_len=2**k) for n in range(3) for k in range(5, 17)],
        "200 failures": [row(f"impl_{n}", ms=None, **end) for n, end in enumerate(reasons)],
        "all failed alike": [row(f"impl_{n}", ms=None) for n in range(40)],
        "not a number": [row(ms=2.0, ms_median=nan), row("sdpa", ms=1.0, percent_of_bound=nan)],
        "wide letters": [row("核" * 60, ms=1.0), row("sdpa", ms=2.0)],
        "newlines": [row("two\nlines", ms=1.0), row("esc\x1b[31m", ms=2.0), row("x", ms=None, reason="a\nb\r\nc")],
    }


@pytest.mark.parametrize("width", [160, 80, 60, 40, 24])
@pytest.mark.parametrize("rows", sets().values(), ids=sets())
def test_no_line_is_too_long_and_no_more_than_30_are_told(rows, width):
    lines = told(rows, width)
    assert 0 < len(lines) <= LINES
    assert max(Text(line).cell_len for line in lines) <= min(width, WIDTH)
    assert "\x1b" not in "".join(lines)


def test_a_long_path_is_folded_and_the_lines_stay_as_few():
    lines = told(many(400), folder=Path("/") / ("deep/" * 50))
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= WIDTH
    assert any(line.startswith("draw again: tflabench plot") for line in lines)


def test_ten_thousand_rows_are_summed_up_in_a_moment_and_fill_the_lines():
    rows = many()
    began = time.perf_counter()
    lines = told(rows)
    assert time.perf_counter() - began < 20
    assert LINES - 1 <= len(lines) <= LINES  # problems come in pairs of passes
    assert sum(line.startswith(("fw ", "fwbw ")) for line in lines) >= 7


def test_the_table_says_what_is_fastest_and_what_comes_next():
    rows = [row("hopper_sig", ms=1.0), row("tfla_sig_xl", ms=1.5), row("sdpa", ms=2.0, chunk_size=None)]
    title, head, line, *rest = told(rows)
    assert title == "Fastest kernels, 1 problem: B=16, T=4096, heads 16x128/256, bfloat16, NVIDIA H200"[:79] + "…"
    assert head.split() == "pass fastest chunk ms of bound next best of others".split()
    assert line.split() == "fw hopper_sig 128 1 30% 2.00x sdpa".split()
    assert rest[0] == ""
    assert "3 of 3 points measured" in rest
    assert "written: results/h200/quick/ (4 files, 40 in figures/)" in rest
    assert "draw again: tflabench plot results/h200/quick" in rest


def test_what_varies_has_a_column_and_what_does_not_is_in_the_title():
    rows = [row(seq_len=seq_len, dtype=dtype) for seq_len in (512, 1024) for dtype in ("float32", "bfloat16")]
    title, head, *_ = told(rows)
    assert head.split()[:3] == ["pass", "T", "dtype"]
    assert title == "Fastest kernels, 4 problems: B=16, heads 16x128/256, NVIDIA H200"


def test_without_another_owner_the_next_best_implementation_stands_there():
    _, head, line, *_ = told([row("hopper_sig", ms=1.0), row("tfla_sig_xl", ms=1.5)])
    assert head.endswith("  next best")
    assert line.endswith("1.50x tfla_sig_xl")


def test_the_next_best_is_of_another_owner_where_one_was_measured():
    """Two kinds of softmax attention have one owner, as in the colours of figures."""
    rows = [row("sdpa_cudnn", ms=1.0, family="attention"), row("sdpa_flash", ms=1.1, family="attention")]
    assert told(rows)[2].endswith("1.10x sdpa_flash")
    assert told([*rows, row("hopper_sig", ms=1.2)])[2].endswith("1.20x hopper_sig")


@pytest.mark.parametrize(("of_ours", "of_theirs"), APART.values(), ids=APART)
def test_rows_that_are_not_comparable_have_no_ratio(of_ours, of_theirs):
    line = told([row("hopper_sig", ms=1.0, **of_ours), row("sdpa", ms=2.0, **of_theirs)])[2]
    assert line.split() == "fw hopper_sig 128 1 30%".split()


def test_the_ratio_of_a_throttled_row_is_a_bound_and_none_is_a_rival():
    ours, throttled, clear = row("hopper_sig", ms=1.0), row("sdpa", ms=2.0, throttled=True), row("fla_gla", ms=3.0)
    lines = told([ours, throttled, clear])
    assert lines[2].endswith("3.00x fla_gla")
    assert "2.00x" not in "".join(lines)
    lines = told([row("hopper_sig", ms=1.0, throttled=True), clear])
    assert "1†" in lines[2].split()
    assert lines[2].endswith("≥3.00x fla_gla")
    assert any(line.startswith("  throttled (1x): the GPU held its clock back: a ratio of the") for line in lines)
    assert told([ours, throttled])[2].endswith("† no ratio")


def test_a_tie_is_marked():
    rows = [
        row("hopper_sig", ms=1.0, details={"ms_by_round": [1.0, 1.2]}),
        row("sdpa", ms=1.05, details={"ms_by_round": [1.05, 1.0]}),
    ]
    lines = told(rows)
    assert lines[2].endswith("1.05x~ sdpa")
    assert lines[3].startswith("~ a tie")
    assert not any("~" in line for line in told([row("hopper_sig", ms=1.0), row("sdpa", ms=2.0)]))


def test_the_largest_problem_of_each_pass_comes_first_and_the_others_are_spread():
    rows = [row(seq_len=n, pass_=pass_) for n in LENGTHS for pass_ in ("fw", "fwbw")]
    groups = contests(rows)
    kept = [(groups[n][0].pass_, groups[n][0].seq_len) for n in chosen(groups, 9)]
    assert kept == [(pass_, n) for n in (65536, 4096, 512, 32) for pass_ in ("fw", "fwbw")]
    assert sorted(chosen(groups, 100)) == list(range(len(groups)))
    assert [groups[n][0].seq_len for n in chosen(groups, 1)] == [65536]
    forward_only = contests([row(seq_len=n) for n in LENGTHS])
    assert [forward_only[n][0].seq_len for n in chosen(forward_only, 3)] == [65536, 1024, 32]


def test_failures_are_merged_and_counted_the_gravest_first():
    rows = [row(f"impl_{n}", ms=None, status="unsupported", reason="needs a GPU") for n in range(5)]
    rows += [row("nxai", ms=None, status="wrong", reason=f"off by {n}", seq_len=n) for n in (1, 2, 3)]
    rows += [row("sdpa", ms=None), row()]
    lines = told(rows)
    start = lines.index("1 of 10 points measured; 3 wrong, 1 oom, 5 unsupported")
    assert lines[start + 1 : start + 4] == [
        "  wrong (3x)  nxai: 3 reasons, such as off by 1",
        "  oom (1x)  sdpa: no memory",
        "  unsupported (5x)  impl_0, impl_1, impl_2 and 2 more: needs a GPU",
    ]


def test_failures_beyond_the_first_are_counted():
    rows = [row(f"impl_{n}", ms=None, reason=f"reason {n}") for n in range(200)]
    assert "  and 196 points that failed in other ways" in told(rows)
    assert "  oom (1x)  impl_4: reason 4" in told(rows[:5])
    assert "  and 2 points that failed in other ways" in told(rows[:6])


def test_it_says_how_many_lines_more_there_are():
    rows = [row(name, ms=1.0 + n, seq_len=k) for n, name in enumerate(("hopper_sig", "sdpa")) for k in LENGTHS]
    brief = told(rows)
    console = Console(file=io.StringIO(), width=160)
    console.print(full_ending(swept(rows)))
    more = len(console.file.getvalue().splitlines()) - len(brief)  # type: ignore[attr-defined]
    assert brief[-1] == f"about {more} more lines: the same command with --full --no-plots (measures nothing)"


def test_names_are_no_markup():
    lines = told([row("[bold]x[/bold]", ms=1.0), row("[/red]", ms=2.0), row("[y]", ms=None, reason="[link=a]b[/link]")])
    assert "[bold]x[/bold]" in lines[2]
    assert lines[2].endswith("2.00x [/red]")
    assert "  oom (1x)  [y]: [link=a]b[/link]" in lines


def test_where_there_is_no_room_names_are_cut_and_then_columns_dropped():
    columns = [
        Column("pass", [Text("fw")]),
        Column("fastest", [Text("a_long_name")], least=6),
        Column("chunk", [Text("64")], right=True, spare=True),
        Column("next", [Text("another_long_name")], least=8),
    ]

    def shown(width: int) -> list[str]:
        return [line.plain for line in table_lines(columns, width)]

    assert shown(80)[1] == "fw    a_long_name     64  another_long_name"
    assert shown(36)[1] == "fw   a_long_name another_long_name"
    assert shown(22)[1] == "fw   a_long… another_…"
    assert shown(18)[1] == "fw   a_long_name"
    assert shown(12)[1] == "fw   a_long…"
    assert shown(3)[1] == "fw"
    assert cut("abc", 2).plain == "a…"


def test_kinds_of_gpu_have_lines_of_their_own_and_are_not_divided():
    """A sweep over two kinds: the slower one's rows are no rivals of the faster one's."""
    h100, h200 = "NVIDIA H100 80GB HBM3", "NVIDIA H200"
    rows = [
        row(name, ms=ms * speed, device=device, comparison_id=device)
        for device, speed in ((h100, 1.0), (h200, 0.5))
        for name, ms in (("hopper_sig", 1.0), ("nxai_sig_xl", 3.0))
    ]
    for lines in (told(rows), [line for line in full_lines_of(rows) if "fw " in line]):
        kinds = {("h200" if re.search("h200", line, re.I) else "h100"): line for line in lines if "hopper_sig" in line}
        assert kinds.keys() == {"h100", "h200"}, lines
        assert all(re.search(r"3\.00x?", line) for line in kinds.values()), kinds
    said = full_lines_of(rows)
    assert sum("3.00 ± " in line for line in said) == 2
    assert sum(f", {h200}: hopper_sig" in line for line in said) == 1


def full_lines_of(rows: list[Row]) -> list[str]:
    console = Console(file=io.StringIO(), width=200)
    console.print(full_ending(swept(rows)))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]
