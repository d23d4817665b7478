"""`tflabench report`: the page says what the rows say, each number with its origin, and no ratio that must not be."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tflabench import report
from tflabench.cli.main import app
from tflabench.figures.quantities import drawable
from tflabench.report import duels, formats, tables
from tflabench.report import folders as runs
from tflabench.rows.schema import Row
from tflabench.rows.table import frame

sys.path.insert(0, str(Path(__file__).parent))
from report_page import MODEL, REASONS, RUN, Page, page_of, sdpa, sweep, tfla
from synthetic import APART, IN_PART, row, write


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("report") / "fig4", sweep(), run=RUN)


@pytest.fixture(scope="module")
def page(folder) -> Page:
    return page_of(folder)


# --- numbers and their origin


def test_every_fact_has_a_unit_a_source_and_a_note(page):
    shown = [fact for card in page.payload["cards"].values() for fact in card["facts"]]
    assert {source for _, _, source, _ in shown} == {"measured", "modelled", "modelled / measured"}
    assert {note for *_, note in shown} <= set(range(1, len(formats.NOTES) + 1))
    unitless = {label for label, value, *_ in shown if not re.search(r"\d ?(?!e-)[A-Za-zµ%]", value)}
    assert unitless == {"error against float64"}


def test_every_figure_says_its_sources_and_notes(page):
    figures = page.html.split("<figure ")[1:]
    assert figures
    assert all('class="source' in figure and 'href="#note-' in figure for figure in figures)


@pytest.mark.parametrize(
    ("value", "words"), [(0.0004, "0.40 µs"), (3.244, "3.24 ms"), (718.4, "718 ms"), (71840.0, "71.8 s"), (None, "")]
)
def test_amounts_come_in_the_unit_that_fits(value, words):
    assert formats.amount(value, (("µs", 1e-3), ("ms", 1.0), ("s", 1e3))).replace("0.400", "0.40") == words


@pytest.mark.parametrize(
    ("value", "uncertainty", "words"),
    [
        (2.791, 0.0364, "2.79 ± 0.04"),
        (25.04, 0.51, "25.0 ± 0.5"),
        (0.0388, None, "0.039"),
        (1204.0, 3.0, "1,204 ± 3"),
        (2, 0, "2.000 ± <0.001"),
    ],
)
def test_ratios_are_as_exact_as_they_are(value, uncertainty, words):
    assert formats.ratio(value, uncertainty) == words


def test_a_call_that_waits_for_the_host_says_so():
    assert formats.host(0.2, 1.0) == "200 µs"
    assert formats.host(1.25, 1.0) == "1.25 ms, longer than the call"
    assert formats.host(float("nan"), 1.0) == ""


# --- headline


def compare(tmp_path, *folders: list[Row]) -> duels.Headline:
    for n, rows in enumerate(folders):
        write(tmp_path / str(n), rows, run=RUN)
    return duels.compare(part.results for part in runs.find(tmp_path))


def ratios_of(page: Page) -> set[float]:
    """Every ratio in the headline and the tables: what stands before a "×", the ticks of scales aside."""
    shown = re.sub(r"<text .*?</text>", "", page.html.partition("<main>")[2].partition('<section id="notes">')[0])
    return {float(found) for found in re.findall(r"([\d.]+)(?: ± (?:&lt;)?[\d.]+)?(?:<small>)?×(?!\d)", shown)}


def cells(page: Page, kind: str) -> list[str]:
    """The words of every table cell of a kind."""
    return re.findall(rf'<td class="{kind}"[^>]*>([^<]*)</td>', page.html)


def test_our_fastest_chunk_size_meets_each_baseline(tmp_path):
    said = compare(tmp_path, [tfla(1.0), tfla(0.8, chunk_size=256), sdpa(2.0), sdpa(4.0, 512), tfla(5.0, 512)])
    assert not said.stand_in
    (verdict,) = said.verdicts
    (against,) = verdict.comparisons
    assert [(duel.ours.seq_len, duel.ours.chunk_size, duel.ratio) for duel in against.duels] == [
        (512, 128, pytest.approx(0.8)),
        (4096, 256, pytest.approx(2.5)),
    ]
    assert (against.median, against.won) == (pytest.approx(1.65), 1)
    assert verdict.slower == 1
    assert ratios_of(page_of(tmp_path / "0")) == {0.8, 1.25, 1.65, 2.5}  # 1.25: sdpa first at T = 512


def test_rows_of_different_folders_are_not_compared(tmp_path):
    assert compare(tmp_path, [tfla(1.0)], [sdpa(2.0)]).verdicts == ()


@pytest.mark.parametrize(("of_ours", "of_theirs"), APART.values(), ids=APART)
def test_rows_that_are_not_comparable_have_no_ratio_anywhere(tmp_path, of_ours, of_theirs):
    rows = [one for T in (512, 4096) for one in (tfla(1.0, T, **of_ours), sdpa(2.0, T, **of_theirs))]
    assert compare(tmp_path, rows).verdicts == ()
    page = page_of(tmp_path / "0")
    assert "Nothing to compare: no kernel of this repository was measured in one comparison with" in page.text
    assert ratios_of(page) == set()
    assert {"1.00 ms", "2.00 ms"} <= set(cells(page, "n"))
    assert set(cells(page, "next")) == {""}


def test_only_the_points_apart_lose_their_ratio(tmp_path):
    rows = [tfla(1.0, 512), sdpa(2.0, 512), tfla(1.0), sdpa(3.0, comparison_id="another"), tfla(1.0, 1024)]
    rows += [sdpa(5.0, 1024, tuned=IN_PART)]
    (comparison,) = compare(tmp_path, rows).verdicts[0].comparisons
    assert [(duel.ours.seq_len, duel.ratio) for duel in comparison.duels] == [(512, 2.0)]
    page = page_of(tmp_path / "0")
    assert ratios_of(page) == {2.0}
    assert sorted(words.partition(":")[0] for words in cells(page, "next")) == ["", "", "sdpa"]


def test_a_baseline_meets_ours_of_its_comparison_before_a_faster_one_of_another(tmp_path):
    rows = [tfla(1.0), tfla(0.5, name="hopper_sig", comparison_id="later"), sdpa(2.0)]
    (comparison,) = compare(tmp_path, rows).verdicts[0].comparisons
    assert [(duel.ours.implementation, duel.ratio) for duel in comparison.duels] == [("tfla_sig_xl", 2.0)]


def test_an_mlstm_baseline_meets_the_same_gate(tmp_path):
    theirs = row("nxai_exp_xl", 3.0, gate="exp", **MODEL)
    said = compare(tmp_path, [row(ms=1.0), row("tfla_exp_xl", 2.0, gate="exp", **MODEL), theirs])
    assert said.verdicts[0].comparisons[0].duels[0].ratio == pytest.approx(1.5)


def test_a_failed_row_fights_no_duel(tmp_path):
    assert compare(tmp_path, [tfla(1.0), sdpa(None)]).verdicts == ()


def test_pytorch_forms_stand_in_and_the_page_says_so(tmp_path):
    folder = write(tmp_path, [row("reference_sig", 4.0, **MODEL), sdpa(2.0)], run=RUN)
    page = page_of(folder)
    assert "stand in for them" in page.text
    assert "0.500 × as fast as sdpa , the strongest baseline" in page.text


def test_nothing_to_compare_is_said(tmp_path):
    assert "Nothing to compare" in page_of(write(tmp_path, [sdpa(2.0)])).text


# --- tables, environment, commands


def test_what_is_missing_is_listed_with_its_reason(page):
    said = page.text.rpartition("Asked for and not measured")[2].partition("Tables The fastest")[0]
    for status, reason in REASONS.items():
        assert status.replace("_", " ") in said
        assert reason in said


def test_the_commands_that_made_and_redo_the_rows(page, folder):
    assert "tflabench sweep --impl 'tfla*' -a seq_len=512:4096:x2" in page.text
    assert f"tflabench report {folder}" in page.text
    assert f"tflabench plot {folder}" in page.text


def test_the_environment_with_its_ceilings(page):
    for words in ("NVIDIA H200", "580.1", "60.0 MiB", "torch 2.11.0", "0.1.0 (0123456789ab)", "800 TFLOP/s", "a copy"):
        assert words in page.text
    assert "NVIDIA H200 datasheet" in page.text


def test_several_folders_are_one_page(tmp_path):
    for name in ("fig4", "fig5"):
        write(tmp_path / name, sweep(), run=RUN)
    page = page_of(tmp_path)
    assert len(page.all("id")) == len(set(page.all("id")))
    assert len(page.payload["cards"]) == 2 * len(sweep())
    assert page.text.count("580.1") == 1  # one machine, told once


# --- command line and bad input


def test_the_command_prints_the_file(folder, tmp_path):
    out = tmp_path / "page.html"
    done = CliRunner().invoke(app, ["report", str(folder), "--out", str(out)])
    assert (done.exit_code, done.stdout.split()) == (0, [str(out)])
    assert "MB" in done.stderr


def refused(arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(app, ["report", *arguments])
    assert (done.exit_code, done.stdout) == (2, "")
    (line,) = done.stderr.strip().splitlines()
    assert says in line


def test_no_folder_no_results_no_rows(tmp_path):
    refused([str(tmp_path / "missing")], "does not exist")
    refused([str(tmp_path)], "holds no results")
    (tmp_path / "journal.jsonl").touch()  # of a sweep that was stopped before its first row
    refused([str(tmp_path)], "holds no rows yet")


def test_rows_of_another_schema(tmp_path):
    (tmp_path / "journal.jsonl").write_text('{"schema_version": 99}\n')
    refused([str(tmp_path)], "row schema 99")


def test_a_place_that_cannot_be_written(folder, tmp_path):
    (tmp_path / "file").touch()
    refused([str(folder), "--out", str(tmp_path / "file" / "page.html")], "cannot be written")


def test_throttled_points_do_not_count_in_the_headline_and_are_named(tmp_path):
    ours = [row("tfla_sig_xl", 1.0, seq_len=T) for T in (512, 1024)]
    theirs = [row("fla_gla", ms, seq_len=T, throttled=T == 512) for T, ms in ((512, 0.5), (1024, 3.0))]
    said = compare(tmp_path / "some", [*ours, *theirs])
    assert [duel.ratio for duel in said.verdicts[0].comparisons[0].duels] == [3.0]
    assert said.left_out == ("NVIDIA H200, bfloat16, forward: fla gla (1 point)",)
    ours = [one.model_copy(update={"throttled": True}) for one in ours]
    said = compare(tmp_path / "all", [*ours, *theirs])
    assert (said.verdicts, said.left_out) == ((), ("NVIDIA H200, bfloat16, forward: fla gla (2 points)",))
    page = report.write(tmp_path / "all").read_text()
    assert "No ratio without throttling" in page
    assert "Left out, throttled: the GPU held its clock back" in page


@pytest.mark.parametrize("package", ["plotly", "jinja2"])
def test_a_missing_package_is_named_with_its_remedy(folder, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "tflabench.report.page", raising=False)
    monkeypatch.delattr(report, "page", raising=False)
    for name in [name for name in sys.modules if name.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
    refused([str(folder)], f"needs the package {package}, which is not installed: pip install 'tflabench[report]'")


def test_wheels_carry_the_page():
    import tomllib

    root = Path(report.__file__).parents[2]
    globs = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["tflabench"]
    carried = {path for glob in globs for path in (root / "tflabench").glob(glob)}
    here = {*Path(report.__file__).parent.iterdir()}
    assert {path for path in here if path.is_file() and path.suffix != ".py"} == carried & here


def test_percentages_lead_with_the_bound_and_name_datasheet_ceilings():
    rows = [row(), row(percent_of_bound=None, seq_len=512), row(ceilings="datasheet: NVIDIA", seq_len=256)]
    keys = [column.key for column in tables.COLUMNS]
    bound, own = keys.index("percent_of_bound"), keys.index("percent_of_own_roofline")
    assert own == bound + 1
    cells = [record["cells"] for record in tables.records(drawable(frame(rows)))]
    assert [each[bound][0] for each in cells] == ["30.0%", "", "30.0% (datasheet)"]
    assert [each[own][0] for each in cells] == ["40.0%", "40.0%", "40.0% (datasheet)"]
    facts = [fact.label for fact in formats.facts(drawable(frame(rows)).to_dict("records")[0])]
    assert facts.index("of the bound") + 1 == facts.index("own roofline")
