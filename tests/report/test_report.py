"""`tflabench report`: the page has what the rows and `advise` say, injects nothing, and is small and quick."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from report_page import HOSTILE, LATEX, REASONS, RUN, Page, many, page_of, sdpa, sweep, tfla
from repository import ROOT
from synthetic import write
from typer.testing import CliRunner

from tflabench.cli.main import app
from tflabench.figures.quantities import WARY
from tflabench.rows.load import read_results
from tflabench.rows.schema import Row


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("report") / "fig4", sweep(), run=RUN)


@pytest.fixture(scope="module")
def page(folder) -> Page:
    return page_of(folder)


@pytest.fixture(scope="module")
def measured(page, folder) -> tuple[Page, list[Row]]:
    return page, list(read_results(folder).rows)


def test_the_page_says_what_hollow_points_are(page):
    (why,) = re.findall("Hollow: (.*?)\\.", page.html)
    assert re.split(", | or ", why) == [*WARY]


# --- rows


def test_the_table_has_every_row_as_it_is(page, folder):
    rows = read_results(folder).rows
    assert {len(column["values"]) for column in page.payload["rows"]} == {len(rows)}
    for n, one in enumerate(rows):
        assert page.cell("implementation", n) == one.implementation
        assert page.cell("ms_median", n) == (one.ms_median and pytest.approx(one.ms_median, rel=1e-5))
        assert page.cell("seq_len", n) == one.seq_len
        assert page.cell("chunk_size", n) == one.chunk_size
        assert page.cell("status", n) == one.status
        assert (page.cell("peak_gib", n) is None) == (one.peak_bytes is None)
    remarks = [page.cell("remarks", n) for n in range(len(rows))]
    assert set(REASONS.values()) <= set(remarks)
    assert "noisy" in remarks


# --- charts


def test_points_of_charts_are_the_rows_that_they_name(page, folder):
    rows, seen = read_results(folder).rows, 0
    for chart in page.charts(view="runtime over T"):
        for trace in chart["plot"]["data"]:
            for x, y, index in zip(trace["x"], trace["y"], trace.get("customdata", ()), strict=False):
                if y is not None and trace.get("yaxis") != "y2":
                    assert (x, y) == (rows[index].seq_len, pytest.approx(rows[index].ms_median, rel=1e-4))
                    assert chart["pass"] == {"fw": "forward", "fwbw": "forward + backward"}[rows[index].pass_]
                    seen += 1
    assert seen >= 16


def test_every_view_of_the_rows_is_there(page):
    views = {chart["view"] for chart in page.charts()}
    over = {f"{what} over {axis}" for what in ("runtime", "peak memory") for axis in "TL"}
    assert views == over
    assert {chart["pass"] for chart in page.charts()} == {"forward", "forward + backward"}


def test_selections_are_unique(page):
    keys = [tuple(chart[name] for name in page.payload["selectors"]) for chart in page.payload["charts"]]
    assert len(keys) == len(set(keys))


def test_a_chart_colours_the_kernels_that_its_title_names(tmp_path):
    """The peer that computes the same is not the best of its owner, and ours alone would fill the legend."""
    gates = {"tfla_sig_xl": "sig", "hopper_sig": "sig", "fla_mlstm_sig": "sig"}
    ours = ("tfla_sig_xl", "hopper_sig", "tfla_sig_limit", "tfla_exp_xl", "tfla_exp_limit", "hopper_exp")
    ms = dict.fromkeys(ours, 1.0) | {"hopper_sig": 0.5, "fla_linear": 2.0, "fla_mlstm_sig": 3.0}
    rows = [
        tfla(of, T, name, gate=gates.get(name), family="linear" if name == "fla_linear" else "mlstm")
        for T in (512, 1024, 2048)
        for name, of in ms.items()
    ]
    chart = page_of(write(tmp_path, rows)).charts(view="runtime over T")[0]
    assert "6.0x faster than fla" in chart["title"]
    named = {trace.get("name") for trace in chart["plot"]["data"]}
    assert {"mLSTMsig by Simple GLA chunk (fla)", "mLSTMsig fused for Hopper"} <= named


def test_points_that_failed_are_crosses_over_their_rows(tmp_path):
    rows = [tfla(1.0, 512), tfla(None, 1024), tfla(2.0, 2048), sdpa(1.0, 512), sdpa(2.0, 1024), sdpa(3.0, 2048)]
    page = page_of(write(tmp_path, rows, run=RUN))
    (cross,) = [trace for trace in page.charts()[0]["plot"]["data"] if trace.get("yaxis") == "y2"]
    assert (cross["x"], cross["customdata"]) == ([1024], [1])


def test_the_roofline_has_its_roof(page):
    roofs = [trace for one in page.payload["rooflines"] for trace in one["plot"]["data"] if "customdata" not in trace]
    assert [max(trace["y"]) for trace in roofs] == [800, 800]


# --- folds


def test_machines_and_commands(page, folder):
    (machine,) = page.payload["machines"]
    facts = dict(machine["facts"])
    assert (facts["driver"], facts["device"]) == ("580.1", "NVIDIA H200")
    assert facts["packages"] == "torch 2.11.0"
    assert facts["ceilings, bfloat16"] == "800 TFLOP/s, 4.2 TB/s (measured: a copy)"
    commands = dict(page.payload["commands"])
    assert "tflabench sweep --impl 'tfla*' -a seq_len=512:4096:x2" in commands
    assert f"tflabench report {folder}" in commands
    assert not any("not kept" in says for says in commands.values())


def test_a_command_whose_preset_was_a_file_says_that_it_is_not_kept(tmp_path):
    write(tmp_path, sweep(), run=RUN | {"arguments": ["sweep", "--preset", "wide.toml"]})
    says = dict(page_of(tmp_path).payload["commands"])["tflabench sweep --preset wide.toml"]
    assert says.endswith(", of a file that is not kept with the rows")


def test_several_folders_are_one_page(tmp_path):
    for name in ("fig4", "fig5"):
        write(tmp_path / name, sweep(), run=RUN)
    page = page_of(tmp_path)
    assert len(page.columns["pass"]["values"]) == 2 * len(sweep())
    assert {chart["results"] for chart in page.charts()} == {"fig4", "fig5"}
    second = {
        n for chart in page.charts(results="fig5") for one in chart["plot"]["data"] for n in one.get("customdata", ())
    }
    assert {page.cell("folder", n) for n in second} == {"fig5"}
    (machine,) = page.payload["machines"]
    assert machine["folders"] == ["fig4", "fig5"]


def test_the_page_opens_with_most_rows_of_todays_kernels_in_closed_comparisons(tmp_path):
    write(tmp_path / "apart", [one.model_copy(update={"comparison_id": None}) for one in [*sweep(), sdpa(9.0, 32768)]])
    h100 = [one.model_copy(update={"device": "NVIDIA H100 80GB HBM3"}) for one in sweep()]
    write(tmp_path / "beside", h100, run=RUN | {"device": "NVIDIA H100 80GB HBM3"})
    payload = page_of(tmp_path).payload
    assert list(dict.fromkeys(chart["results"] for chart in payload["charts"])) == ["beside", "apart"]
    write(tmp_path / "beside", [one.model_copy(update={"kernel_version": 0}) for one in h100], run=RUN)
    write(tmp_path / "fewer", sweep()[1:], run=RUN)
    payload = page_of(tmp_path).payload
    assert list(dict.fromkeys(chart["results"] for chart in payload["charts"])) == ["fewer", "beside", "apart"]


# --- bad input


def named(name: str, ms: float = 1.0) -> list[Row]:
    return [tfla(ms, T, name) for T in (512, 1024)]


@pytest.mark.parametrize("name", [HOSTILE, LATEX])
def test_nothing_of_a_name_becomes_markup(tmp_path, name):
    page = page_of(write(tmp_path, [*named(name), sdpa(2.0, 512), sdpa(2.0, 1024)]))
    assert name not in page.html
    assert page.html.count("<script") == 3
    assert name in page.columns["title"]["words"]
    for chart in page.charts():
        layout = json.dumps(chart["plot"]["layout"])
        assert not re.search(r"<(?!span style=\\\"color:#[0-9a-f]{6}\\\">|/span>)", layout)


BAD = {
    "one point": [tfla(1.0)],
    "all failed": [tfla(None, T) for T in (512, 1024)],
    "not a number": [tfla(float("nan"), 512), tfla(1.0, 1024), sdpa(float("nan"), 512), sdpa(2.0, 1024)],
    "long names": [row for n in range(3) for row in named(f"{'n' * 58}{n:02}", 1.0 + n)],
    "fifty implementations": [row for n in range(50) for row in named(f"plugin {n}", 1.0 + n)],
    "an unknown device": [tfla(1.0, T).model_copy(update={"device": "a toaster"}) for T in (512, 1024)],
    "decode": [tfla(1.0, T, pass_="decode") for T in (512, 1024)],
}  # fmt: skip


@pytest.mark.parametrize("rows", BAD.values(), ids=BAD)
def test_bad_rows_are_drawn_or_said(tmp_path, rows):
    page = page_of(write(tmp_path, rows))
    assert page.charts()
    assert len(page.columns["status"]["values"]) == len(rows)
    measured = any(row.status == "ok" and row.ms_median and row.ms_median < 1e9 for row in rows)
    for chart in page.charts(view=page.charts()[0]["view"]):
        said = [one["text"] for one in chart["plot"]["layout"]["annotations"]]
        assert measured or any("no point was measured" in words for words in said)
        assert "nan" not in chart["title"]
        assert "inf" not in chart["title"]


def test_numbers_that_json_does_not_know(tmp_path):
    folder = write(tmp_path, [tfla(1.0, 512), tfla(2.0, 1024), sdpa(1.0, 512), sdpa(3.0, 1024)])
    journal = folder / "journal.jsonl"
    lines = (
        journal.read_text()
        .replace('"ms_median":2.0', '"ms_median":NaN')
        .replace('"ms_median":3.0', '"ms_median":Infinity')
    )
    journal.write_text(lines)
    page = page_of(folder)
    assert [page.cell("ms_median", n) for n in range(4)] == [1.0, None, 1.0, None]
    (chart,) = page.charts(view="runtime over T")
    assert sorted(max(filter(None, one["y"])) for one in chart["plot"]["data"] if "customdata" in one) == [1.0, 1.0]


# --- size


def test_a_row_takes_a_hundred_bytes(page, tmp_path):
    """So a page of ten thousand has 3 MB, most of which is Plotly."""
    large = page_of(write(tmp_path, many(1000), run=RUN))
    assert len(large.columns["pass"]["values"]) == 1000
    assert len(large.html) - len(page.html) < 105 * 1000


def test_the_page_asks_no_network(page):
    assert "default-src 'none'" in page.html
    assert not re.search(
        r"(?:src|href)=[\"']?(?:https?:)?//", re.sub(r'<script type="text/plain".*?</script>', "", page.html)
    )


# --- command line


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


def test_a_missing_package_is_named_with_its_remedy(folder, monkeypatch):
    monkeypatch.setattr("tflabench.report.page.find_spec", lambda name: None)
    refused([str(folder)], "needs the package plotly, which is not installed: pip install 'tflabench[report]'")


def test_wheels_carry_the_page():
    import tomllib

    root = ROOT
    globs = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["tflabench"]
    carried = {path.name for glob in globs for path in (root / "tflabench").glob(glob)}
    assert {"page.html", "page.css", "page.js"} <= carried


def test_a_file_of_another_kind_is_refused(tmp_path):
    folder = write(tmp_path / "quick", [tfla(512)])
    done = CliRunner().invoke(app, ["report", str(folder), "--out", str(tmp_path / "x.pdf")])
    assert done.exit_code == 2
    assert "what is written there is a .html file" in done.output
    assert not (tmp_path / "x.pdf").exists()
